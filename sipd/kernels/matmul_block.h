/* Block-quantised matrix product: W outputs in the lanes, a few rows in registers, K walked block by block.
 *
 * Few rows take operands straight from the weights (on disk order, or packed); many rows unpack a panel once into
 * scratch and sweep all rows over it. Both run `accumulate`, so a row's result is the same in either.
 */
#ifndef SIPD_MATMUL_BLOCK_H
#define SIPD_MATMUL_BLOCK_H

#include "unpack.h"

#define UNIT_BYTES (40 * W) /* an unpacked unit in scratch: 8 operand vectors, 2 scale vectors */

/* R rows meet one unit of weights. x: row 0 at this unit; rows are x_stride blocks apart. */
INLINE void accumulate(const int kind, const int shift, const int is_signed, const int R, const vu *q, vf s0, vf s1,
                       const sipd_q8_block *x, int64_t x_stride, vf *acc) {
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    const sipd_q8_block *b = x + r * x_stride;
    vf d = splat(b->d);
    if (kind == KIND_HALVES) {
      vi low = splat_i(shift >= 0 ? b->nsum8_lo * (1 << (shift < 0 ? 0 : shift)) : 0);
      vi high = splat_i(shift >= 0 ? (b->nsum8 - b->nsum8_lo) * (1 << (shift < 0 ? 0 : shift)) : 0);
      low = dot16(low, q, b->q);
      high = dot16(high, q + 4, b->q + 16);
      acc[r] = acc[r] + to_float(low) * (s0 * d);
      acc[r] = acc[r] + to_float(high) * (s1 * d);
    } else {
      vi a = splat_i(shift >= 0 ? b->nsum8 * (1 << (shift < 0 ? 0 : shift)) : 0);
      a = is_signed ? dot16_signed(a, q, b->q) : dot16(a, q, b->q);
      a = is_signed ? dot16_signed(a, q + 4, b->q + 16) : dot16(a, q + 4, b->q + 16);
      vf t = to_float(a) * (s0 * d);
      if (kind == KIND_MINIMUM) t = t + s1 * splat(b->s);
      acc[r] = acc[r] + t;
    }
  }
}

/* Bias, residual, store: outputs o .. o + lanes - 1 of R rows. */
INLINE void store_outputs(const sipd_matmul *m, const int R, int row, int o, int lanes, const vf *acc) {
  for (int r = 0; r < R; r++) {
    float *out = m->out + (row + r) * m->out_stride + o;
    vf y = acc[r];
    if (lanes == W) {
      if (m->bias) y = y + loadf(m->bias + o);
      if (m->add) y = loadf(out) + y;
      storef(out, y);
    } else {
      for (int l = 0; l < lanes; l++) {
        float v = y[l];
        if (m->bias) v = v + m->bias[o + l];
        out[l] = m->add ? out[l] + v : v;
      }
    }
  }
}

/* Packed unit: [f16 d x W][f16 m x W if any][operand dwords]; see repack.c. */
INLINE void load_packed(const int type, const uint8_t *p, vu *q, vf *s0, vf *s1) {
  vu t[8];
  *s0 = load_half(p);
  p += 2 * W;
  *s1 = *s0;
  if (type == SIPD_Q4_1) {
    *s1 = load_half(p);
    p += 2 * W;
  }
  if (type == SIPD_Q8_0) {
    for (int g = 0; g < 8; g++) q[g] = as_operand(*(const vu *)(p + 4 * W * g));
  } else {
    for (int g = 0; g < 4; g++) t[g] = *(const vu *)(p + 4 * W * g);
    nibbles(t, q);
  }
}

INLINE int64_t packed_unit_bytes(const int type) { return W * (type == SIPD_Q8_0 ? 34 : type == SIPD_Q4_1 ? 20 : 18); }

INLINE void few_rows(const int type, const int is_packed, const int R, const sipd_matmul *m, const uint8_t *rows, int row,
                     int o, int lanes, const float *scales) {
  const int n_units = m->n_in / 32;
  const sipd_q8_block *x = m->xq + (int64_t)row * n_units;
  vf acc[8];
  for (int r = 0; r < R; r++) acc[r] = splat(0.0f);
  for (int u = 0; u < n_units; u++) {
    vu q[8];
    vf s0, s1;
    if (is_packed) {
      load_packed(type, rows + u * packed_unit_bytes(type), q, &s0, &s1);
    } else {
      load_quants(type, rows, m->row_bytes, u, q);
      s0 = loadf(scales + 2 * u * W);
      s1 = loadf(scales + (2 * u + 1) * W);
    }
    accumulate(unit_kind(type), offset_shift(type), is_signed_type(type), R, q, s0, s1, x + u, n_units, acc);
  }
  store_outputs(m, R, row, o, lanes, acc);
}

INLINE void unpack_panel(const int type, const int is_packed, const sipd_matmul *m, const uint8_t *rows,
                         const float *scales, uint8_t *scratch) {
  const int n_units = m->n_in / 32;
  for (int u = 0; u < n_units; u++) {
    vu *q = (vu *)(scratch + (int64_t)u * UNIT_BYTES);
    vf s0, s1;
    vu t[8];
    if (is_packed) {
      load_packed(type, rows + u * packed_unit_bytes(type), t, &s0, &s1);
    } else {
      load_quants(type, rows, m->row_bytes, u, t);
      s0 = loadf(scales + 2 * u * W);
      s1 = loadf(scales + (2 * u + 1) * W);
    }
    for (int g = 0; g < 8; g++) q[g] = t[g];
    ((vf *)q)[8] = s0;
    ((vf *)q)[9] = s1;
  }
}

INLINE void many_rows(const int type, const int R, const sipd_matmul *m, const uint8_t *scratch, int row, int o,
                      int lanes) {
  const int n_units = m->n_in / 32;
  const sipd_q8_block *x = m->xq + (int64_t)row * n_units;
  vf acc[8];
  for (int r = 0; r < R; r++) acc[r] = splat(0.0f);
  for (int u = 0; u < n_units; u++) {
    const vu *q = (const vu *)(scratch + (int64_t)u * UNIT_BYTES);
    accumulate(unit_kind(type), offset_shift(type), is_signed_type(type), R, q, ((const vf *)q)[8], ((const vf *)q)[9],
               x + u, n_units, acc);
  }
  store_outputs(m, R, row, o, lanes, acc);
}

/* All rows over n unpacked panels: a group of rows meets every panel before the next group comes. */
INLINE void sweep_rows(const int type, const sipd_matmul *m, const uint8_t *scratch, int64_t panel_bytes, int n, int o) {
  for (int row = 0; row < m->n_rows;) {
    const int left = m->n_rows - row, R = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    for (int i = 0; i < n; i++) {
      const int at = o + i * W, lanes = m->n_out - at < W ? m->n_out - at : W;
      const uint8_t *panel = scratch + i * panel_bytes;
      switch (R) {
        case 8: many_rows(type, 8, m, panel, row, at, lanes); break;
        case 4: many_rows(type, 4, m, panel, row, at, lanes); break;
        case 2: many_rows(type, 2, m, panel, row, at, lanes); break;
        default: many_rows(type, 1, m, panel, row, at, lanes); break;
      }
    }
    row += R;
  }
}

#define FEW_ROWS 4
#define SWEEP_BYTES (256 << 10) /* unpacked weights that stay in a second-level cache while rows sweep over them */

/* Outputs [begin, end) of one type; type and is_packed are constants at every call. */
INLINE void block_outputs(const int type, const int is_packed, const sipd_matmul *m, int begin, int end,
                          uint8_t *scratch) {
  const int n_units = m->n_in / 32;
  const int64_t panel_bytes = (int64_t)n_units * UNIT_BYTES;
  float *scales = (float *)scratch;
  uint8_t *unpacked = scratch + (int64_t)n_units * 8 * W;
  const int group = m->n_rows <= FEW_ROWS || panel_bytes * 2 > SWEEP_BYTES ? 1 : (int)(SWEEP_BYTES / panel_bytes);
  for (int o = begin; o < end;) {
    int n = 0;
    for (; n < group && o + n * W < end; n++) {
      const int at = o + n * W, lanes = m->n_out - at < W ? m->n_out - at : W;
      const uint8_t *rows = m->w + at * m->row_bytes;
      if (!is_packed) load_scales(type, rows, m->row_bytes, n_units, scales);
      switch (m->n_rows) {
        case 1: few_rows(type, is_packed, 1, m, rows, 0, at, lanes, scales); break;
        case 2: few_rows(type, is_packed, 2, m, rows, 0, at, lanes, scales); break;
        case 3: few_rows(type, is_packed, 3, m, rows, 0, at, lanes, scales); break;
        case FEW_ROWS: few_rows(type, is_packed, FEW_ROWS, m, rows, 0, at, lanes, scales); break;
        default: unpack_panel(type, is_packed, m, rows, scales, unpacked + n * panel_bytes); break;
      }
    }
    if (m->n_rows > FEW_ROWS) sweep_rows(type, m, unpacked, panel_bytes, n, o);
    o += n * W;
  }
}
#endif
