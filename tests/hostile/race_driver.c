/* Drives the stream and the pool from several threads at once, for ThreadSanitizer: passes, rewinds, reopenings, counters. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sipd.h"

enum { N_EXTENTS = 24, EXTENT_BYTES = 3000, STEP = 3232, N_PASSES = 30 };

static sipd_extent extents[N_EXTENTS];
static uint8_t *file_bytes;
static _Atomic int is_over;
static _Atomic long sum;

static void *watch(void *stream) {
  sipd_stream_counters counters;
  sipd_read_fault fault;
  while (!atomic_load(&is_over)) {
    sipd_stream_read_counters(stream, &counters);
    sipd_stream_fault(stream, &fault);
  }
  return NULL;
}

typedef struct {
  const uint8_t *data;
  const sipd_extent *extent;
  _Atomic int next, n_wrong;
} comparison;

static void compare(void *arg, int thread) {
  comparison *c = arg;
  for (int i; (i = atomic_fetch_add(&c->next, 1)) < 10;)
    if (memcmp(c->data + 300 * i, file_bytes + c->extent->offset + 300 * i, 300)) atomic_fetch_add(&c->n_wrong, 1);
  atomic_fetch_add(&sum, thread);
}

static int walk(sipd_stream *s, sipd_pool *pool, int end) {
  for (int e = 0; e < end; e++) {
    comparison c = {.data = sipd_stream_acquire(s, e, 1), .extent = &extents[e]};
    if (!c.data) return -1;
    sipd_pool_run(pool, compare, &c);
    if (atomic_load(&c.n_wrong)) return -1;
    sipd_stream_release(s, e);
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  const size_t size = N_EXTENTS * STEP + 64;
  file_bytes = malloc(size);
  for (size_t i = 0; i < size; i++) file_bytes[i] = (uint8_t)(i * 2654435761u >> 13);
  int32_t fds[2] = {open(argv[1], O_CREAT | O_RDWR, 0600), -1};
  if (write(fds[0], file_bytes, size) != (ssize_t)size) return 2;
  fds[1] = open(argv[1], O_RDONLY);
  int64_t pin_bytes = 0;
  for (int e = 0; e < N_EXTENTS; e++) {
    extents[e] = (sipd_extent){.is_pinned = e % 5 == 2, .offset = 32 + e * STEP, .length = EXTENT_BYTES};
    if (!extents[e].is_pinned) continue;
    extents[e].pin_offset = pin_bytes;
    pin_bytes += 8192;
  }
  const sipd_stream_config config = {
      .n_extents = N_EXTENTS, .n_slots = 3, .n_readers = 4, .slot_bytes = 8192, .slack = 4096, .pin_bytes = pin_bytes,
      .alignment = 1};
  sipd_stream *s = sipd_stream_create(&config, extents);
  sipd_pool *pool = sipd_pool_create(3);
  if (!s || !pool) return 2;
  sipd_stream_open(s, fds, 1, 1);
  pthread_t watcher;
  pthread_create(&watcher, NULL, watch, s);
  int status = 0;
  for (int pass = 0; pass < N_PASSES && !status; pass++) {
    if (pass % 4 == 1) {
      sipd_stream_begin(s, N_EXTENTS);
      status = walk(s, pool, pass % N_EXTENTS);
      sipd_stream_rewind(s);
    }
    if (pass % 7 == 3) sipd_stream_open(s, fds + (pass & 1), 1, 1);
    if (pass % 11 == 5) {
      const sipd_read_fault fault = {.error_number = 5};
      sipd_stream_fail(s, &fault);
      sipd_stream_open(s, fds, 1, 1);
    }
    if (status) break;
    const int32_t limit = pass % 3 ? N_EXTENTS - 7 : N_EXTENTS; /* two of three passes leave the end out */
    sipd_stream_set_depth(s, 1 + pass % 4);
    sipd_stream_begin(s, limit);
    status = walk(s, pool, limit);
    sipd_stream_end(s);
  }
  atomic_store(&is_over, 1);
  pthread_join(watcher, NULL);
  sipd_stream_destroy(s);
  sipd_pool_destroy(pool);
  puts(status ? "wrong bytes" : "equal");
  return status ? 1 : 0;
}
