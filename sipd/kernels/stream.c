/* stream: reader threads that walk the plan's extents in a circle and keep the ring full, ahead of the pass.
 *
 * A slot has one owner at a time: free, a reader, ready, the pass. It carries the sequence number and the extent that it
 * holds, and the pass checks both. Pinned extents are read once, in plan order, into their own place. Reads go on over
 * the end of a pass into the next one. Every wait is for a reader that holds a read in flight, a fault, or the owner.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "sipd.h"

enum { SLOT_FREE, SLOT_READING, SLOT_READY };
enum { PIN_EMPTY, PIN_READING, PIN_READY };

typedef struct {
  _Atomic int64_t ready_sequence; /* -1 unless its bytes are whole */
  int32_t extent;
} slot;

struct sipd_stream {
  sipd_stream_config config;
  sipd_extent *extents;
  _Atomic int *pin_state;
  slot *slots;
  uint8_t *ring, *pins;
  size_t ring_bytes, pins_bytes;
  int32_t fds[64];

  pthread_mutex_t mutex;
  pthread_cond_t work, ready;
  pthread_t *readers;
  int n_readers;
  int stop, paused, has_fault, in_flight;
  int32_t cursor;           /* next extent that a reader looks at */
  int64_t read_sequence;    /* streamed extents claimed by readers */
  int64_t release_sequence; /* streamed extents given back by the pass */
  int64_t acquire_sequence; /* owned by the pass */
  int32_t acquired_extent;  /* latest streamed extent acquired; owned by the pass */
  sipd_read_fault fault;
  sipd_stream_counters counters;
  int64_t since;
};

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Bytes lie at their file offset modulo this, whatever alignment the reads need: a reopened file moves nothing. */
#define PLACE 4096

static int64_t align_down(int64_t x, int64_t a) { return x / a * a; }
static int64_t align_up(int64_t x, int64_t a) { return (x + a - 1) / a * a; }

/* Reads [begin, begin + wanted); up to `capacity` bytes so that the last block is whole. A short tail is the file's end. */
int sipd_read_span(int fd, uint8_t *buffer, int64_t begin, int64_t wanted, int64_t capacity, sipd_read_fault *fault) {
  int64_t got = 0;
  int tries = 0;
  while (got < wanted) {
    ssize_t n = pread(fd, buffer + got, (size_t)(capacity - got), begin + got);
    if (n > 0) {
      got += n;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EIO || errno == EAGAIN) && tries < 3) {
      tries++; /* a bus that resets itself needs a moment */
      struct timespec pause = {0, 20000000L << tries};
      nanosleep(&pause, NULL);
      continue;
    }
    fault->error_number = n < 0 ? errno : 0;
    fault->offset = begin + got;
    fault->wanted = wanted;
    fault->got = got;
    return -1;
  }
  return 0;
}

/* The next extent that wants reading and may be read now; -1 when there is none. Called with the mutex held. */
static int32_t claim(sipd_stream *s, int64_t *sequence) {
  for (int32_t tried = 0; tried <= s->config.n_extents; tried++) {
    const int32_t e = s->cursor;
    if (s->extents[e].is_pinned) {
      if (atomic_load(&s->pin_state[e]) == PIN_EMPTY) {
        atomic_store(&s->pin_state[e], PIN_READING);
        s->cursor = (e + 1) % s->config.n_extents;
        *sequence = -1;
        return e;
      }
    } else {
      if (s->read_sequence - s->release_sequence >= s->config.n_slots) return -1;
      *sequence = s->read_sequence++;
      s->cursor = (e + 1) % s->config.n_extents;
      return e;
    }
    s->cursor = (e + 1) % s->config.n_extents;
  }
  return -1;
}

static void count_time(sipd_stream *s, int64_t now) {
  if (s->in_flight > 0) s->counters.busy_ns += now - s->since;
  s->since = now;
}

static uint8_t *destination(sipd_stream *s, int32_t extent, int64_t sequence) {
  return sequence < 0 ? s->pins + s->extents[extent].pin_offset
                      : s->ring + sequence % s->config.n_slots * s->config.slot_bytes;
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
    slot *target = sequence < 0 ? NULL : &s->slots[sequence % s->config.n_slots];
    if (target) {
      target->extent = e;
      atomic_store(&target->ready_sequence, -1);
    }
    const int64_t alignment = s->config.alignment;
    const int64_t begin = align_down(extent->offset, alignment);
    const int64_t wanted = extent->offset + extent->length - begin, capacity = align_up(wanted, alignment);
    const int fd = s->fds[extent->file];
    uint8_t *buffer = destination(s, e, sequence) + (begin - align_down(extent->offset, PLACE));
    count_time(s, now_ns());
    s->in_flight++;
    pthread_mutex_unlock(&s->mutex);

    sipd_read_fault fault = {0};
    const int failed = sipd_read_span(fd, buffer, begin, wanted, capacity, &fault);
    if (!failed && s->config.drop_cache && alignment == 1) posix_fadvise(fd, begin, capacity, POSIX_FADV_DONTNEED);

    pthread_mutex_lock(&s->mutex);
    count_time(s, now_ns());
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

static uint8_t *map_pages(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

sipd_stream *sipd_stream_create(const sipd_stream_config *config, const sipd_extent *extents) {
  sipd_stream *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  const size_t n = (size_t)config->n_extents;
  s->config = *config;
  s->extents = malloc(n * sizeof *extents);
  s->pin_state = calloc(n, sizeof *s->pin_state);
  s->slots = calloc((size_t)config->n_slots, sizeof *s->slots);
  s->readers = calloc((size_t)config->n_readers, sizeof *s->readers);
  s->ring_bytes = (size_t)(config->n_slots * config->slot_bytes + config->slack);
  s->pins_bytes = (size_t)(config->pin_bytes + config->slack);
  s->ring = map_pages(s->ring_bytes);
  s->pins = map_pages(s->pins_bytes);
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->work, NULL);
  pthread_cond_init(&s->ready, NULL);
  s->paused = 1;
  if (!s->extents || !s->pin_state || !s->slots || !s->readers || !s->ring || !s->pins) {
    sipd_stream_destroy(s);
    return NULL;
  }
  memcpy(s->extents, extents, n * sizeof *extents);
  for (int i = 0; i < config->n_slots; i++) s->slots[i].ready_sequence = -1;
  s->acquired_extent = -1;
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
  free((void *)s->pin_state);
  free(s->extents);
  free(s);
}

/* Stops claims and waits for the reads in flight. Called with the mutex held; a read in flight always ends. */
static void quiesce(sipd_stream *s) {
  s->paused = 1;
  while (s->in_flight > 0) pthread_cond_wait(&s->ready, &s->mutex);
}

static void start_over(sipd_stream *s) {
  for (int i = 0; i < s->config.n_slots; i++) atomic_store(&s->slots[i].ready_sequence, -1);
  s->cursor = 0;
  s->read_sequence = s->acquire_sequence = s->release_sequence = 0;
  s->acquired_extent = -1;
  s->has_fault = 0;
  s->paused = 0;
  pthread_cond_broadcast(&s->work);
}

void sipd_stream_open(sipd_stream *s, const int32_t *fds, int32_t n_files, int64_t alignment) {
  pthread_mutex_lock(&s->mutex);
  quiesce(s);
  for (int i = 0; i < n_files && i < 64; i++) s->fds[i] = fds[i];
  s->config.alignment = alignment;
  start_over(s);
  pthread_mutex_unlock(&s->mutex);
}

void sipd_stream_rewind(sipd_stream *s) {
  pthread_mutex_lock(&s->mutex);
  quiesce(s);
  start_over(s);
  pthread_mutex_unlock(&s->mutex);
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
  slot *from = &s->slots[sequence % s->config.n_slots];
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
  return s->ring + sequence % s->config.n_slots * s->config.slot_bytes + x->offset % PLACE;
}

void sipd_stream_release(sipd_stream *s, int32_t extent) {
  if (s->extents[extent].is_pinned) return;
  pthread_mutex_lock(&s->mutex);
  s->release_sequence++;
  if (s->release_sequence == s->acquire_sequence) s->acquired_extent = -1;
  pthread_cond_signal(&s->work);
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

void sipd_stream_read_counters(sipd_stream *s, sipd_stream_counters *out) {
  pthread_mutex_lock(&s->mutex);
  count_time(s, now_ns());
  *out = s->counters;
  pthread_mutex_unlock(&s->mutex);
}

int sipd_stream_fd(sipd_stream *s, int32_t file) { return s->fds[file]; }

int64_t sipd_stream_alignment(const sipd_stream *s) { return s->config.alignment; }
