/* matmul: one tile of weights times all rows, any type, packed or as on disk. */
#include "matmul_block.h"
#include "matmul_float.h"

#define TYPE(id) \
  static __attribute__((noinline)) void disk_##id(const sipd_matmul *m, int begin, int end, uint8_t *scratch) { \
    block_outputs(SIPD_##id, 0, m, begin, end, scratch); \
  }
#define PACKED_TYPE(id) \
  static __attribute__((noinline)) void packed_##id(const sipd_matmul *m, int begin, int end, uint8_t *scratch) { \
    block_outputs(SIPD_##id, 1, m, begin, end, scratch); \
  }
TYPE(Q4_0)
TYPE(Q4_1)
TYPE(Q5_0)
TYPE(Q5_1)
TYPE(Q8_0)
TYPE(Q4_K)
TYPE(Q5_K)
TYPE(Q6_K)
PACKED_TYPE(Q4_0)
PACKED_TYPE(Q4_1)
PACKED_TYPE(Q5_0)
PACKED_TYPE(Q5_1)
PACKED_TYPE(Q8_0)
PACKED_TYPE(Q4_K)
PACKED_TYPE(Q5_K)
PACKED_TYPE(Q6_K)

static void disk_outputs(const sipd_matmul *m, int begin, int end, uint8_t *scratch) {
  switch (m->type) {
    case SIPD_Q4_0: disk_Q4_0(m, begin, end, scratch); break;
    case SIPD_Q4_1: disk_Q4_1(m, begin, end, scratch); break;
    case SIPD_Q5_0: disk_Q5_0(m, begin, end, scratch); break;
    case SIPD_Q5_1: disk_Q5_1(m, begin, end, scratch); break;
    case SIPD_Q8_0: disk_Q8_0(m, begin, end, scratch); break;
    case SIPD_Q4_K: disk_Q4_K(m, begin, end, scratch); break;
    case SIPD_Q5_K: disk_Q5_K(m, begin, end, scratch); break;
    case SIPD_Q6_K: disk_Q6_K(m, begin, end, scratch); break;
    case SIPD_F32: float_outputs(SIPD_F32, m, begin, end); break;
    case SIPD_F16: float_outputs(SIPD_F16, m, begin, end); break;
    case SIPD_BF16: float_outputs(SIPD_BF16, m, begin, end); break;
    default: break;
  }
}

static void packed_outputs(const sipd_matmul *m, int begin, int end, uint8_t *scratch) {
  switch (m->type) {
    case SIPD_Q4_0: packed_Q4_0(m, begin, end, scratch); break;
    case SIPD_Q4_1: packed_Q4_1(m, begin, end, scratch); break;
    case SIPD_Q5_0: packed_Q5_0(m, begin, end, scratch); break;
    case SIPD_Q5_1: packed_Q5_1(m, begin, end, scratch); break;
    case SIPD_Q8_0: packed_Q8_0(m, begin, end, scratch); break;
    case SIPD_Q4_K: packed_Q4_K(m, begin, end, scratch); break;
    case SIPD_Q5_K: packed_Q5_K(m, begin, end, scratch); break;
    case SIPD_Q6_K: packed_Q6_K(m, begin, end, scratch); break;
    default: break;
  }
}

/* Panels [panel0, panel1) of the tile. Scratch: see scratch_bytes in pass.c. */
void FN(sipd_matmul)(const sipd_matmul *m, int32_t panel0, int32_t panel1, uint8_t *scratch) {
  int begin = panel0 * SIPD_PANEL, end = panel1 * SIPD_PANEL;
  if (end > m->n_out) end = m->n_out;
  /* the rows past the last whole panel stay as on disk when a tile is packed */
  const int packed_end = m->is_packed ? m->n_out / SIPD_PANEL * SIPD_PANEL : 0;
  if (begin < packed_end) packed_outputs(m, begin, end < packed_end ? end : packed_end, scratch);
  if (begin < packed_end) begin = packed_end;
  if (begin < end) disk_outputs(m, begin, end, scratch);
}
