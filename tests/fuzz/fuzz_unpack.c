/* Fuzz target: weights of any bytes through every unpacker of one instruction set.
 *
 * Every buffer is of exactly the size that the contract names, so that AddressSanitizer sees one byte too many. Packed
 * weights must give back the bytes on disk and multiply as they did, bit by bit. Input: type, columns, rows, vectors,
 * then the weights, repeated where they are too few.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../hostile/weight_types.h"
#include "dequantize.h"

extern const sipd_ops OPERATIONS;

static void *allocated(int64_t n_bytes) {
  void *p = malloc((size_t)n_bytes);
  if (!p) abort();
  return p;
}

static uint8_t *repeated(const uint8_t *data, size_t n_data, int64_t n_bytes) {
  uint8_t *p = allocated(n_bytes);
  for (int64_t i = 0; i < n_bytes; i++) p[i] = n_data ? data[(size_t)i % n_data] : 0;
  return p;
}

static uint8_t *copied(const uint8_t *from, int64_t n_bytes) {
  uint8_t *p = allocated(n_bytes);
  memcpy(p, from, (size_t)n_bytes);
  return p;
}

static void require_equal(const float *a, const float *b, int n, int type) {
  const int i = first_unequal(a, b, n);
  if (i < 0) return;
  fprintf(stderr, "type %d: output %d is %a, packed %a\n", type, i, (double)a[i], (double)b[i]);
  abort();
}

static void check_rows(int type, const uint8_t *weights, int n_in, int n_out) {
  const int64_t row_bytes = row_size(type, n_in);
  float *row = allocated(4 * (int64_t)n_in);
  for (int o = 0; o < n_out; o++) {
    uint8_t *exact = copied(weights + o * row_bytes, row_bytes);
    sipd_dequantize_row(type, exact, n_in, row);
    free(exact);
  }
  free(row);
}

static void check_packed(sipd_matmul *m, uint8_t *weights, uint8_t *scratch) {
  const int n_panels = (m->n_out + SIPD_PANEL - 1) / SIPD_PANEL, n_values = m->n_rows * m->n_out;
  float *plain = m->out, *packed = allocated(4 * (int64_t)n_values);
  uint8_t *before = copied(weights, m->n_out * m->row_bytes), *found = allocated(m->row_bytes);
  for (int p = 0; p < m->n_out / SIPD_PANEL; p++) {
    uint8_t *panel = weights + p * SIPD_PANEL * m->row_bytes;
    OPERATIONS.repack(m->type, panel, m->row_bytes, m->n_in, scratch);
    for (int lane = 0; lane < SIPD_PANEL; lane++) {
      OPERATIONS.extract_row(m->type, panel, m->row_bytes, m->n_in, lane, found);
      if (memcmp(found, before + (p * SIPD_PANEL + lane) * m->row_bytes, (size_t)m->row_bytes)) {
        fprintf(stderr, "type %d: row %d of panel %d is not the one on disk\n", m->type, lane, p);
        abort();
      }
    }
  }
  m->is_packed = 1;
  m->out = packed;
  OPERATIONS.matmul(m, 0, n_panels, scratch);
  require_equal(plain, packed, n_values, m->type);
  m->out = plain;
  free(packed), free(before), free(found);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data) {
  if (n_data < 4) return 0;
  const int type = types[data[0] % (sizeof types / sizeof *types)];
  const int n_in = 256 * (1 + data[1] % 2), n_out = 1 + data[2] % 40, n_rows = 1 + data[3] % 9;
  const int64_t row_bytes = row_size(type, n_in), unpacked = (int64_t)n_in / 32 * 40 * 16;
  const int64_t scratch_bytes = (1 << 20) + 2 * unpacked + SIPD_PANEL * (row_bytes + 4 * n_in);
  uint8_t *scratch = allocated(scratch_bytes);
  /* slack: the panel past the end is readable */
  uint8_t *weights = repeated(data + 4, n_data - 4, (n_out + SIPD_PANEL) * row_bytes);
  float *x = allocated(4 * (int64_t)n_rows * n_in), *out = allocated(4 * (int64_t)n_rows * n_out);
  sipd_q8_block *quantized = allocated((int64_t)sizeof *quantized * n_rows * n_in / 32);
  for (int i = 0; i < n_rows * n_in; i++) x[i] = ((float)(i * 37 % 256) - 127.5f) / 16;
  for (int r = 0; r < n_rows; r++) OPERATIONS.quantize(x + r * n_in, n_in, quantized + r * n_in / 32);
  check_rows(type, weights, n_in, n_out);
  sipd_matmul m = {.type = type, .n_in = n_in, .n_out = n_out, .row_bytes = row_bytes, .w = weights, .xq = quantized,
                   .xf = x, .xf_stride = n_in, .n_rows = n_rows, .out = out, .out_stride = n_out};
  OPERATIONS.matmul(&m, 0, (n_out + SIPD_PANEL - 1) / SIPD_PANEL, scratch);
  if (sipd_is_block_type(type)) check_packed(&m, weights, scratch);
  free(scratch), free(weights), free(x), free(out), free(quantized);
  return 0;
}
