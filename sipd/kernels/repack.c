/* repack: a panel of SIPD_PANEL rows rearranged in place, so that W lanes load as whole vectors. Same bytes, same memory.
 *
 * Per W rows and block: each f16 number of the head for all lanes, each dword for all lanes, each f16 of the tail.
 */
#include "block_layout.h"
#include "simd.h"

/* Scratch: SIPD_PANEL * row_bytes. */
void FN(sipd_repack)(int32_t type, uint8_t *panel, int64_t row_bytes, int32_t n_in, uint8_t *scratch) {
  const int bytes = block_bytes(type), halves = head_halves(type), dwords = block_dwords(type);
  memcpy(scratch, panel, (size_t)(SIPD_PANEL * row_bytes));
  for (int o = 0; o < SIPD_PANEL; o += W) {
    uint8_t *out = panel + o * row_bytes;
    for (int i = 0; i < n_in / block_weights(type); i++) {
      const uint8_t *block = scratch + o * row_bytes + (int64_t)i * bytes;
      for (int h = 0; h < halves; h++, out += 2 * W)
        for (int l = 0; l < W; l++) memcpy(out + 2 * l, block + l * row_bytes + 2 * h, 2);
      for (int g = 0; g < dwords; g++, out += 4 * W)
        for (int l = 0; l < W; l++) memcpy(out + 4 * l, block + l * row_bytes + 2 * halves + 4 * g, 4);
      for (int h = 0; h < tail_halves(type); h++, out += 2 * W)
        for (int l = 0; l < W; l++) memcpy(out + 2 * l, block + l * row_bytes + bytes - 2 + 2 * h, 2);
    }
  }
}

/* The row `lane` of a packed panel, as it was on disk: the inverse of sipd_repack. */
void FN(sipd_extract_row)(int32_t type, const uint8_t *panel, int64_t row_bytes, int32_t n_in, int32_t lane,
                          uint8_t *row) {
  const int bytes = block_bytes(type), halves = head_halves(type), dwords = block_dwords(type);
  const uint8_t *in = panel + lane / W * W * row_bytes;
  const int l = lane % W;
  for (int i = 0; i < n_in / block_weights(type); i++, in += W * bytes, row += bytes) {
    for (int h = 0; h < halves; h++) memcpy(row + 2 * h, in + 2 * (h * W + l), 2);
    for (int g = 0; g < dwords; g++) memcpy(row + 2 * halves + 4 * g, in + 2 * halves * W + 4 * (g * W + l), 4);
    if (tail_halves(type)) memcpy(row + bytes - 2, in + (bytes - 2) * W + 2 * l, 2);
  }
}
