/* stream_repin: which extents are pinned, changed between passes, when memory has to be given back. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mapping.h"
#include "stream.h"

/* Gives the whole pages of an extent's place back; places begin and end at borders of PLACE bytes. */
static void drop_pin(sipd_stream *s, int32_t e) {
  const sipd_extent *x = &s->extents[e];
  const int64_t page = sysconf(_SC_PAGESIZE), span = (x->offset % PLACE + x->length + PLACE - 1) / PLACE * PLACE;
  const int64_t begin = (x->pin_offset + page - 1) / page * page, end = (x->pin_offset + span) / page * page;
  if (end > begin) madvise(s->pins + begin, (size_t)(end - begin), MADV_DONTNEED);
  atomic_store(&s->pin_state[e], PIN_EMPTY);
}

/* Another ring in the place of the present one, which nobody reads into or from. */
static void replace_ring(sipd_stream *s, uint8_t *ring, size_t ring_bytes, slot *slots, int32_t *free_buffers) {
  munmap(s->ring, s->ring_bytes);
  free(s->slots);
  free(s->free_buffers);
  s->ring = ring;
  s->ring_bytes = ring_bytes;
  s->slots = slots;
  s->free_buffers = free_buffers;
}

int sipd_stream_repin(sipd_stream *s, const uint8_t *is_pinned, int32_t n_slots, int64_t slot_bytes) {
  const int is_new_ring = n_slots != s->config.n_slots || slot_bytes != s->config.slot_bytes;
  const size_t ring_bytes = (size_t)(n_slots * slot_bytes + s->config.slack);
  uint8_t *ring = is_new_ring ? sipd_map_for_reads(ring_bytes) : NULL;
  slot *slots = is_new_ring ? calloc((size_t)n_slots, sizeof *slots) : NULL;
  int32_t *free_buffers = is_new_ring ? calloc((size_t)n_slots, sizeof *free_buffers) : NULL;
  if (is_new_ring && (!ring || !slots || !free_buffers)) {
    if (ring) munmap(ring, ring_bytes);
    free(slots);
    free(free_buffers);
    return -1;
  }
  pthread_mutex_lock(&s->mutex);
  sipd_stream_quiesce(s);
  for (int32_t e = 0; e < s->config.n_extents; e++) {
    if (s->extents[e].is_pinned && !is_pinned[e]) drop_pin(s, e);
    s->extents[e].is_pinned = is_pinned[e];
  }
  if (is_new_ring) {
    replace_ring(s, ring, ring_bytes, slots, free_buffers);
    s->config.n_slots = n_slots;
    s->config.slot_bytes = slot_bytes;
  }
  sipd_stream_start_over(s);
  pthread_mutex_unlock(&s->mutex);
  return 0;
}
