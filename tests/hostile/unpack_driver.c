/* Drives the unpackers of one instruction set over random bytes, for AddressSanitizer and UBSan.
 *
 * Every buffer is of exactly the size that the contract names. Weights are any bytes at all: a scale may be NaN or
 * infinite, and whatever is packed must multiply as it did on disk, bit by bit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dequantize.h"
#include "weight_types.h"

extern const sipd_ops OPERATIONS;

static uint64_t state = 88172645463325252ull;

static uint8_t random_byte(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint8_t)(state >> 24);
}

static void *random_bytes(int64_t n) {
  uint8_t *p = malloc((size_t)n);
  for (int64_t i = 0; i < n; i++) p[i] = random_byte();
  return p;
}

static int check(int type, int n_in, int n_out, int n_rows) {
  const int64_t row_bytes = row_size(type, n_in), unpacked = (int64_t)n_in / 32 * 40 * 16;
  const int64_t scratch_bytes = (1 << 20) + 2 * unpacked + SIPD_PANEL * (row_bytes + 4 * n_in);
  uint8_t *scratch = malloc((size_t)scratch_bytes);
  uint8_t *weights = random_bytes((n_out + SIPD_PANEL) * row_bytes); /* slack: the panel past the end is readable */
  float *x = malloc(sizeof *x * (size_t)(n_rows * n_in)), *row = malloc(sizeof *row * (size_t)n_in);
  sipd_q8_block *quantized = malloc(sizeof *quantized * (size_t)(n_rows * n_in / 32));
  float *out = malloc(sizeof *out * (size_t)(n_rows * n_out)), *packed = malloc(sizeof *out * (size_t)(n_rows * n_out));
  for (int i = 0; i < n_rows * n_in; i++) x[i] = ((float)random_byte() - 127.5f) / 16;
  for (int r = 0; r < n_rows; r++) OPERATIONS.quantize(x + r * n_in, n_in, quantized + r * n_in / 32);
  for (int o = 0; o < n_out; o++) {
    uint8_t *exact = malloc((size_t)row_bytes); /* a row of its own: one byte too far is seen */
    memcpy(exact, weights + o * row_bytes, (size_t)row_bytes);
    sipd_dequantize_row(type, exact, n_in, row);
    free(exact);
  }
  sipd_matmul m = {.type = type, .n_in = n_in, .n_out = n_out, .row_bytes = row_bytes, .w = weights, .xq = quantized,
                   .xf = x, .xf_stride = n_in, .n_rows = n_rows, .out = out, .out_stride = n_out};
  const int n_panels = (n_out + SIPD_PANEL - 1) / SIPD_PANEL;
  OPERATIONS.matmul(&m, 0, n_panels, scratch);
  int is_wrong = 0;
  if (sipd_is_block_type(type)) {
    uint8_t *before = malloc((size_t)(n_out * row_bytes)), *found = malloc((size_t)row_bytes);
    memcpy(before, weights, (size_t)(n_out * row_bytes));
    for (int p = 0; p < n_out / SIPD_PANEL; p++) {
      uint8_t *panel = weights + p * SIPD_PANEL * row_bytes;
      OPERATIONS.repack(type, panel, row_bytes, n_in, scratch);
      for (int lane = 0; lane < SIPD_PANEL; lane++) {
        OPERATIONS.extract_row(type, panel, row_bytes, n_in, lane, found);
        is_wrong |= memcmp(found, before + (p * SIPD_PANEL + lane) * row_bytes, (size_t)row_bytes) != 0;
      }
    }
    m.is_packed = 1;
    m.out = packed;
    OPERATIONS.matmul(&m, 0, n_panels, scratch);
    is_wrong |= first_unequal(out, packed, n_rows * n_out) >= 0;
    free(before);
    free(found);
  }
  free(scratch), free(weights), free(x), free(row), free(quantized), free(out), free(packed);
  if (is_wrong) printf("type %d, %d x %d, %d rows: packed differs\n", type, n_out, n_in, n_rows);
  return is_wrong;
}

int main(int argc, char **argv) {
  const int n_rounds = argc > 1 ? atoi(argv[1]) : 1;
  int is_wrong = 0;
  for (int round = 0; round < n_rounds; round++)
    for (unsigned t = 0; t < sizeof types / sizeof *types; t++)
      for (int n_rows = 1; n_rows <= 9; n_rows += 4) {
        const int n_in = 256 * (1 + random_byte() % 2), n_out = 1 + random_byte() % 40;
        is_wrong |= check(types[t], n_in, n_out, n_rows);
      }
  puts(is_wrong ? "wrong" : "equal");
  return is_wrong;
}
