/* F32, F16 and BF16 weights against f32 activations: 16 partial sums by k mod 16, then the tree. */
#ifndef SIPD_MATMUL_FLOAT_H
#define SIPD_MATMUL_FLOAT_H

#include "simd.h"

#define PARTS (16 / W)

INLINE vf load_weights(const int type, const uint8_t *w, int k) {
  if (type == SIPD_F32) return loadf((const float *)(w + 4 * (int64_t)k));
  if (type == SIPD_F16) return load_half(w + 2 * (int64_t)k);
  vu bits = {0};
  for (int l = 0; l < W; l++) bits[l] = (uint32_t)load_u16(w + 2 * (int64_t)(k + l)) << 16;
  return (vf)bits;
}

INLINE float load_weight(const int type, const uint8_t *w, int k) {
  if (type == SIPD_F16) return half_to_float_portable(load_u16(w + 2 * (int64_t)k));
  uint32_t bits = type == SIPD_F32 ? load_u32(w + 4 * (int64_t)k) : (uint32_t)load_u16(w + 2 * (int64_t)k) << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

/* One output of R rows. */
INLINE void float_rows(const int type, const int R, const sipd_matmul *m, int row, int o) {
  const uint8_t *w = m->w + o * m->row_bytes;
  const float *x = m->xf + row * m->xf_stride;
  const int whole = m->n_in / 16 * 16;
  vf acc[4][PARTS];
  for (int r = 0; r < R; r++)
    for (int p = 0; p < PARTS; p++) acc[r][p] = splat(0.0f);
  for (int k = 0; k < whole; k += 16) {
    for (int p = 0; p < PARTS; p++) {
      vf wv = load_weights(type, w, k + p * W);
      for (int r = 0; r < R; r++) acc[r][p] = acc[r][p] + wv * loadf(x + r * m->xf_stride + k + p * W);
    }
  }
  for (int r = 0; r < R; r++) {
    float partial[16];
    for (int p = 0; p < PARTS; p++) storef(partial + p * W, acc[r][p]);
    for (int k = whole; k < m->n_in; k++)
      partial[k - whole] = partial[k - whole] + load_weight(type, w, k) * x[r * m->xf_stride + k];
    float y = tree16(partial);
    if (m->bias) y = y + m->bias[o];
    float *out = m->out + (row + r) * m->out_stride + o;
    *out = m->add ? *out + y : y;
  }
}

INLINE void float_outputs(const int type, const sipd_matmul *m, int begin, int end) {
  int row = 0;
  for (; row + 4 <= m->n_rows; row += 4)
    for (int o = begin; o < end; o++) float_rows(type, 4, m, row, o);
  for (; row < m->n_rows; row++)
    for (int o = begin; o < end; o++) float_rows(type, 1, m, row, o);
}
#endif
