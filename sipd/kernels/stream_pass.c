/* stream_pass: what the pass asks of the stream: extents in order, given back as they are done with. */
#define _GNU_SOURCE
#include <errno.h>

#include "stream.h"

/* The oldest slot that the pass holds is free again. Called with the mutex held. */
static void free_slot(sipd_stream *s) {
  s->free_buffers[s->n_free++] = slot_of(s, s->release_sequence++)->buffer;
  pthread_cond_signal(&s->work);
}

static const uint8_t *pinned_data(sipd_stream *s, int32_t e) {
  const sipd_extent *x = &s->extents[e];
  return s->pins + x->pin_offset + x->offset % PLACE;
}

const uint8_t *sipd_stream_pinned(sipd_stream *s, int32_t extent) {
  if (!s->extents[extent].is_pinned) return NULL;
  if (atomic_load_explicit(&s->pin_state[extent], memory_order_acquire) != PIN_READY) return NULL;
  return pinned_data(s, extent);
}

const uint8_t *sipd_stream_acquire(sipd_stream *s, int32_t extent, int32_t wait) {
  const sipd_extent *x = &s->extents[extent];
  if (x->is_pinned) {
    const uint8_t *p = sipd_stream_pinned(s, extent);
    if (p || !wait) return p;
    pthread_mutex_lock(&s->mutex);
    while (!s->has_fault && !s->stop && !(p = sipd_stream_pinned(s, extent))) pthread_cond_wait(&s->ready, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
    return p;
  }
  /* the latest acquired extent may be asked for again, tile by tile */
  const int64_t sequence = s->acquired_extent == extent ? s->acquire_sequence - 1 : s->acquire_sequence;
  slot *from = slot_of(s, sequence);
  if (atomic_load_explicit(&from->ready_sequence, memory_order_acquire) != sequence) {
    if (!wait) return NULL;
    pthread_mutex_lock(&s->mutex);
    while (!s->has_fault && !s->stop && atomic_load(&from->ready_sequence) != sequence)
      pthread_cond_wait(&s->ready, &s->mutex);
    const int is_ready = atomic_load(&from->ready_sequence) == sequence;
    pthread_mutex_unlock(&s->mutex);
    if (!is_ready) return NULL;
  }
  if (from->extent != extent) { /* our own invariant: never compute with another tile's bytes */
    pthread_mutex_lock(&s->mutex);
    s->fault = (sipd_read_fault){EPROTO, x->file, x->offset, x->length, from->extent};
    s->has_fault = 1;
    pthread_mutex_unlock(&s->mutex);
    return NULL;
  }
  s->acquire_sequence = sequence + 1;
  s->acquired_extent = extent;
  return s->ring + from->buffer * s->config.slot_bytes + x->offset % PLACE;
}

void sipd_stream_release(sipd_stream *s, int32_t extent) {
  if (s->extents[extent].is_pinned) return;
  pthread_mutex_lock(&s->mutex);
  free_slot(s);
  if (s->release_sequence == s->acquire_sequence) s->acquired_extent = -1;
  pthread_mutex_unlock(&s->mutex);
}

void sipd_stream_begin(sipd_stream *s, int32_t limit) {
  pthread_mutex_lock(&s->mutex);
  s->pass_lap++;
  s->n_dropped = 0;
  if (s->cursor_lap >= s->pass_lap) {
    const int32_t end = s->cursor_lap > s->pass_lap ? s->config.n_extents : s->cursor;
    for (int32_t e = limit; e < end; e++) s->n_dropped += !s->extents[e].is_pinned;
  }
  const int is_news = limit < s->config.n_extents || s->limit < s->config.n_extents;
  s->limit = limit;
  if (is_news) pthread_cond_broadcast(&s->work);
  pthread_mutex_unlock(&s->mutex);
}

void sipd_stream_end(sipd_stream *s) {
  if (!s->n_dropped) return; /* the owner's alone between _begin and here */
  pthread_mutex_lock(&s->mutex);
  for (; s->n_dropped > 0; s->n_dropped--) {
    /* a slot is given back when no read is under way into it */
    slot *from = slot_of(s, s->acquire_sequence);
    while (!s->has_fault && !s->stop && atomic_load(&from->ready_sequence) != s->acquire_sequence)
      pthread_cond_wait(&s->ready, &s->mutex);
    if (s->has_fault || s->stop) break;
    s->acquire_sequence++;
    free_slot(s);
  }
  s->acquired_extent = -1;
  pthread_mutex_unlock(&s->mutex);
}

int sipd_stream_is_pinned(const sipd_stream *s, int32_t extent) { return s->extents[extent].is_pinned; }

void sipd_stream_fail(sipd_stream *s, const sipd_read_fault *fault) {
  pthread_mutex_lock(&s->mutex);
  if (!s->has_fault) s->fault = *fault;
  s->has_fault = 1;
  pthread_cond_broadcast(&s->ready);
  pthread_mutex_unlock(&s->mutex);
}

int sipd_stream_fault(sipd_stream *s, sipd_read_fault *out) {
  pthread_mutex_lock(&s->mutex);
  const int has_fault = s->has_fault;
  *out = s->fault;
  pthread_mutex_unlock(&s->mutex);
  return has_fault;
}

int sipd_stream_fd(sipd_stream *s, int32_t file) { return s->fds[file]; }

int64_t sipd_stream_alignment(const sipd_stream *s) { return s->config.alignment; }
