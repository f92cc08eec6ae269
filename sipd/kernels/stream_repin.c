/* stream_repin: which extents are pinned, changed between passes, when the memory limit moves. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mapping.h"
#include "stream.h"

/* Gives the whole pages of [begin, end) of the pins back; returns whether there are any. */
static int drop_pages(sipd_stream *s, int64_t begin, int64_t end) {
  const int64_t page = sysconf(_SC_PAGESIZE), first = (begin + page - 1) / page * page, last = end / page * page;
  if (last > first) madvise(s->pins + first, (size_t)(last - first), MADV_DONTNEED);
  return last > first;
}

/* Takes over what is pinned. Places begin and end at borders of PLACE bytes, pages may be larger: what goes back is what
 * lies between the places that stay, so that a page that two others share goes as well. */
static void take_over_pins(sipd_stream *s, const uint8_t *is_pinned) {
  int64_t begin = 0;
  int has_gaps = 0;
  /* where there are gaps the kernel would make huge pages of what is left, and fill them again */
  madvise(s->pins, s->pins_bytes, MADV_NOHUGEPAGE);
  for (int32_t e = 0; e < s->config.n_extents; e++) {
    sipd_extent *x = &s->extents[e];
    if (x->is_pinned && !is_pinned[e]) atomic_store(&s->pin_state[e], PIN_EMPTY);
    x->is_pinned = is_pinned[e];
    if (!x->is_pinned) continue;
    has_gaps |= drop_pages(s, begin, x->pin_offset);
    begin = x->pin_offset + (x->offset % PLACE + x->length + PLACE - 1) / PLACE * PLACE;
  }
  has_gaps |= drop_pages(s, begin, s->config.pin_bytes);
  if (!has_gaps) madvise(s->pins, s->pins_bytes, MADV_HUGEPAGE);
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
  take_over_pins(s, is_pinned);
  if (is_new_ring) {
    replace_ring(s, ring, ring_bytes, slots, free_buffers);
    s->config.n_slots = n_slots;
    s->config.slot_bytes = slot_bytes;
  }
  sipd_stream_start_over(s);
  pthread_mutex_unlock(&s->mutex);
  return 0;
}
