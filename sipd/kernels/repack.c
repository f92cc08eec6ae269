/* repack: a panel of SIPD_PANEL rows rearranged in place, so that W lanes load as whole vectors. Same bytes, same memory.
 *
 * Per W rows and unit of 32 weights: [f16 d x W][f16 m x W for Q4_1][dword g of all W lanes, g ascending].
 */
#include "simd.h"

static int block_bytes(int type) { return type == SIPD_Q8_0 ? 34 : type == SIPD_Q4_1 ? 20 : 18; }

static int head_halves(int type) { return type == SIPD_Q4_1 ? 2 : 1; }

/* Scratch: SIPD_PANEL * row_bytes. */
void FN(sipd_repack)(int32_t type, uint8_t *panel, int64_t row_bytes, int32_t n_in, uint8_t *scratch) {
  const int bytes = block_bytes(type), halves = head_halves(type), dwords = (bytes - 2 * halves) / 4;
  memcpy(scratch, panel, (size_t)(SIPD_PANEL * row_bytes));
  for (int o = 0; o < SIPD_PANEL; o += W) {
    uint8_t *out = panel + o * row_bytes;
    for (int u = 0; u < n_in / 32; u++) {
      const uint8_t *block = scratch + o * row_bytes + (int64_t)u * bytes;
      for (int h = 0; h < halves; h++, out += 2 * W)
        for (int l = 0; l < W; l++) memcpy(out + 2 * l, block + l * row_bytes + 2 * h, 2);
      for (int g = 0; g < dwords; g++, out += 4 * W)
        for (int l = 0; l < W; l++) memcpy(out + 4 * l, block + l * row_bytes + 2 * halves + 4 * g, 4);
    }
  }
}

/* The row `lane` of a packed panel, as it was on disk: the inverse of sipd_repack. */
void FN(sipd_extract_row)(int32_t type, const uint8_t *panel, int64_t row_bytes, int32_t n_in, int32_t lane,
                          uint8_t *row) {
  const int bytes = block_bytes(type), halves = head_halves(type), dwords = (bytes - 2 * halves) / 4;
  const uint8_t *in = panel + lane / W * W * row_bytes;
  const int l = lane % W;
  for (int u = 0; u < n_in / 32; u++, in += W * bytes, row += bytes) {
    for (int h = 0; h < halves; h++) memcpy(row + 2 * h, in + 2 * (h * W + l), 2);
    for (int g = 0; g < dwords; g++) memcpy(row + 2 * halves + 4 * g, in + 2 * halves * W + 4 * (g * W + l), 4);
  }
}
