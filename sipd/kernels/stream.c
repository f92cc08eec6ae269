/* stream: reader threads that walk the plan's extents in a circle and keep the ring full, ahead of the pass.
 *
 * A slot has one owner at a time: free, a reader, ready, the pass. It carries the sequence number and the extent that it
 * holds, and the pass checks both. Pinned extents are read once, in plan order, into their own place. Reads go on over
 * the end of a pass into the next one. Every wait is for a reader that holds a read in flight, a fault, or the owner.
 */
#define _GNU_SOURCE
#include "stream.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "mapping.h"

static int64_t align_down(int64_t x, int64_t a) { return x / a * a; }
static int64_t align_up(int64_t x, int64_t a) { return (x + a - 1) / a * a; }

static void advance(sipd_stream *s, int32_t to) {
  s->cursor = to % s->config.n_extents;
  if (!s->cursor) s->cursor_lap++;
}

/* The next extent that wants reading and may be read now; -1 when there is none. Called with the mutex held. */
static int32_t claim(sipd_stream *s, int64_t *sequence) {
  if (s->in_flight >= s->depth) return -1;
  for (int32_t tried = 0; tried <= 2 * s->config.n_extents; tried++) {
    const int32_t e = s->cursor;
    if (s->extents[e].is_pinned) {
      if (atomic_load(&s->pin_state[e]) == PIN_EMPTY) {
        atomic_store(&s->pin_state[e], PIN_READING);
        advance(s, e + 1);
        *sequence = -1;
        return e;
      }
    } else if (e >= s->limit) {
      /* passes that leave these out come in a row: whether the next one wants them is known when it begins */
      if (s->cursor_lap > s->pass_lap) return -1;
    } else if (s->cursor_lap >= s->pass_lap) { /* of an earlier lap: its pass left it out */
      if (s->read_sequence - s->release_sequence >= s->config.n_slots) return -1;
      *sequence = s->read_sequence++;
      advance(s, e + 1);
      return e;
    }
    advance(s, e + 1);
  }
  return -1;
}

static void count_time(sipd_stream *s, int64_t now) {
  if (s->in_flight > 0) s->counters.busy_ns += now - s->since;
  s->since = now;
}

static void *reader(void *arg) {
  sipd_stream *s = arg;
  pthread_mutex_lock(&s->mutex);
  for (;;) {
    int64_t sequence = 0;
    int32_t e = -1;
    while (!s->stop && (s->paused || s->has_fault || (e = claim(s, &sequence)) < 0))
      pthread_cond_wait(&s->work, &s->mutex);
    if (s->stop) break;
    const sipd_extent *extent = &s->extents[e];
    slot *target = sequence < 0 ? NULL : slot_of(s, sequence);
    uint8_t *place = s->pins + extent->pin_offset;
    if (target) {
      target->extent = e;
      target->buffer = s->free_buffers[--s->n_free];
      place = s->ring + target->buffer * s->config.slot_bytes;
      atomic_store(&target->ready_sequence, -1);
    }
    const int64_t alignment = s->read_alignment;
    const int64_t begin = align_down(extent->offset, alignment);
    const int64_t wanted = extent->offset + extent->length - begin, capacity = align_up(wanted, alignment);
    const int fd = s->fds[extent->file];
    uint8_t *buffer = place + (begin - align_down(extent->offset, PLACE));
    count_time(s, sipd_now_ns());
    s->in_flight++;
    pthread_mutex_unlock(&s->mutex);

    sipd_read_fault fault = {0};
    const int failed = sipd_read_span(fd, buffer, begin, wanted, capacity, &fault);
    if (!failed && s->config.drop_cache && alignment == 1) posix_fadvise(fd, begin, capacity, POSIX_FADV_DONTNEED);

    pthread_mutex_lock(&s->mutex);
    count_time(s, sipd_now_ns());
    s->in_flight--;
    if (failed) {
      fault.file = extent->file;
      if (!s->has_fault) s->fault = fault;
      s->has_fault = 1;
      if (!target) atomic_store(&s->pin_state[e], PIN_EMPTY);
    } else {
      s->counters.plan_bytes += extent->length;
      s->counters.device_bytes += capacity;
      if (target)
        atomic_store_explicit(&target->ready_sequence, sequence, memory_order_release);
      else
        atomic_store_explicit(&s->pin_state[e], PIN_READY, memory_order_release);
    }
    pthread_cond_broadcast(&s->ready);
  }
  pthread_mutex_unlock(&s->mutex);
  return NULL;
}

sipd_stream *sipd_stream_create(const sipd_stream_config *config, const sipd_extent *extents) {
  sipd_stream *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  const size_t n = (size_t)config->n_extents;
  s->config = *config;
  s->extents = malloc(n * sizeof *extents);
  s->pin_state = calloc(n, sizeof *s->pin_state);
  s->slots = calloc((size_t)config->n_slots, sizeof *s->slots);
  s->free_buffers = calloc((size_t)config->n_slots, sizeof *s->free_buffers);
  s->readers = calloc((size_t)config->n_readers, sizeof *s->readers);
  s->ring_bytes = (size_t)(config->n_slots * config->slot_bytes + config->slack);
  s->pins_bytes = (size_t)(config->pin_bytes + config->slack);
  s->ring = sipd_map_for_reads(s->ring_bytes);
  s->pins = sipd_map_for_reads(s->pins_bytes);
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->work, NULL);
  pthread_cond_init(&s->ready, NULL);
  s->paused = 1;
  if (!s->extents || !s->pin_state || !s->slots || !s->free_buffers || !s->readers || !s->ring || !s->pins) {
    sipd_stream_destroy(s);
    return NULL;
  }
  memcpy(s->extents, extents, n * sizeof *extents);
  for (int i = 0; i < config->n_slots; i++) s->slots[i].ready_sequence = -1;
  s->acquired_extent = -1;
  s->depth = config->n_readers;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 128 << 10);
  for (int i = 0; i < config->n_readers; i++) {
    if (pthread_create(&s->readers[i], &attributes, reader, s)) break;
    s->n_readers++;
  }
  pthread_attr_destroy(&attributes);
  if (!s->n_readers) {
    sipd_stream_destroy(s);
    return NULL;
  }
  return s;
}

void sipd_stream_destroy(sipd_stream *s) {
  if (!s) return;
  pthread_mutex_lock(&s->mutex);
  s->stop = 1;
  pthread_cond_broadcast(&s->work);
  pthread_cond_broadcast(&s->ready);
  pthread_mutex_unlock(&s->mutex);
  for (int i = 0; i < s->n_readers; i++) pthread_join(s->readers[i], NULL);
  pthread_cond_destroy(&s->work);
  pthread_cond_destroy(&s->ready);
  pthread_mutex_destroy(&s->mutex);
  if (s->ring) munmap(s->ring, s->ring_bytes);
  if (s->pins) munmap(s->pins, s->pins_bytes);
  free(s->readers);
  free(s->slots);
  free(s->free_buffers);
  free((void *)s->pin_state);
  free(s->extents);
  free(s);
}

/* Stops claims and waits for the reads in flight. Called with the mutex held; a read in flight always ends. */
void sipd_stream_quiesce(sipd_stream *s) {
  s->paused = 1;
  while (s->in_flight > 0) pthread_cond_wait(&s->ready, &s->mutex);
}

void sipd_stream_start_over(sipd_stream *s) {
  s->n_free = s->config.n_slots;
  for (int i = 0; i < s->config.n_slots; i++) {
    atomic_store(&s->slots[i].ready_sequence, -1);
    /* the first buffer on top: the last one, whose huge page the mapping's end cuts off, is taken when all are */
    s->free_buffers[i] = s->config.n_slots - 1 - i;
  }
  s->cursor = 0;
  s->cursor_lap = 0;
  s->pass_lap = -1;
  s->limit = s->config.n_extents;
  s->n_dropped = 0;
  s->read_sequence = s->acquire_sequence = s->release_sequence = 0;
  s->acquired_extent = -1;
  s->has_fault = 0;
  s->paused = 0;
  pthread_cond_broadcast(&s->work);
}

void sipd_stream_open(sipd_stream *s, const int32_t *fds, int32_t n_files, int64_t alignment) {
  pthread_mutex_lock(&s->mutex);
  sipd_stream_quiesce(s);
  for (int i = 0; i < n_files && i < 64; i++) s->fds[i] = fds[i];
  s->config.alignment = alignment;
  /* a device that allows blocks of 512 still moves pages: a read that begins inside one costs a fifth of the rate */
  s->read_alignment = alignment > 1 && alignment < PLACE ? PLACE : alignment;
  sipd_stream_start_over(s);
  pthread_mutex_unlock(&s->mutex);
}

void sipd_stream_rewind(sipd_stream *s) {
  pthread_mutex_lock(&s->mutex);
  sipd_stream_quiesce(s);
  sipd_stream_start_over(s);
  pthread_mutex_unlock(&s->mutex);
}
void sipd_stream_set_depth(sipd_stream *s, int32_t depth) {
  pthread_mutex_lock(&s->mutex);
  s->depth = depth;
  pthread_cond_broadcast(&s->work);
  pthread_mutex_unlock(&s->mutex);
}

void sipd_stream_read_counters(sipd_stream *s, sipd_stream_counters *out) {
  pthread_mutex_lock(&s->mutex);
  count_time(s, sipd_now_ns());
  *out = s->counters;
  pthread_mutex_unlock(&s->mutex);
}
