/* Block-quantised matrix product: W outputs in the lanes, a few rows in registers, K walked block by block.
 *
 * Few rows take operands straight from the weights (on disk order, or packed); many rows unpack a panel once into
 * scratch and sweep all rows over it. Both run `accumulate`, so a row's result is the same in either.
 */
#ifndef SIPD_MATMUL_BLOCK_H
#define SIPD_MATMUL_BLOCK_H

#include "unpack.h"

#define UNIT_BYTES (40 * W) /* an unpacked unit in scratch: 8 operand vectors, 2 scale vectors */
#define FEW_ROWS 4          /* rows that meet weights without unpacking to memory */
#define MANY_ROWS 8         /* rows in registers at once */

/* -offset * sum(x) from a block's nsum8, for the type's offset; 0 when it has none. */
INLINE vi offset_term(const int shift, int32_t nsum8) { return splat_i(shift < 0 ? 0 : nsum8 * (1 << shift)); }

/* Exact sums of n weights of each lane times R rows: sums[r] += q . x[r]. */
INLINE void integer_sums(const int is_signed, const int R, const vu *q, const int n, const sipd_q8_block *x,
                         int64_t x_stride, const int at, vi *sums) {
#if defined(SIPD_I8MM)
  if (R % 2 == 0) {
    for (int r = 0; r < R; r += 2)
      dot_pair(&sums[r], &sums[r + 1], q, n, x[r * x_stride].q + at, x[(r + 1) * x_stride].q + at);
    return;
  }
#endif
  for (int r = 0; r < R; r++)
    for (int k = 0; k < n; k += 16)
      sums[r] = is_signed ? dot16_signed(sums[r], q + k / 4, x[r * x_stride].q + at + k)
                          : dot16(sums[r], q + k / 4, x[r * x_stride].q + at + k);
}

/* R rows meet one unit of weights. x: row 0 at this unit; rows are x_stride blocks apart. */
INLINE void accumulate(const int kind, const int shift, const int is_signed, const int R, const vu *q, vf s0, vf s1,
                       const sipd_q8_block *x, int64_t x_stride, vf *acc) {
  vi a[MANY_ROWS], b[MANY_ROWS];
  if (kind == KIND_HALVES) {
    for (int r = 0; r < R; r++) {
      const sipd_q8_block *row = x + r * x_stride;
      a[r] = offset_term(shift, row->nsum8_lo);
      b[r] = offset_term(shift, row->nsum8 - row->nsum8_lo);
    }
    integer_sums(is_signed, R, q, 16, x, x_stride, 0, a);
    integer_sums(is_signed, R, q + 4, 16, x, x_stride, 16, b);
    for (int r = 0; r < R; r++) {
      const vf d = splat(x[r * x_stride].d);
      acc[r] = acc[r] + to_float(a[r]) * (s0 * d);
      acc[r] = acc[r] + to_float(b[r]) * (s1 * d);
    }
    return;
  }
  for (int r = 0; r < R; r++) a[r] = offset_term(shift, x[r * x_stride].nsum8);
  integer_sums(is_signed, R, q, 32, x, x_stride, 0, a);
  for (int r = 0; r < R; r++) {
    vf t = to_float(a[r]) * (s0 * splat(x[r * x_stride].d));
    if (kind == KIND_MINIMUM) t = t + s1 * splat(x[r * x_stride].s);
    acc[r] = acc[r] + t;
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

/* What becomes of the units of one panel: R rows meet them at once, or they are laid out in scratch. */
typedef struct {
  const sipd_q8_block *x; /* row 0; rows are x_stride blocks apart */
  int64_t x_stride;
  vf *acc;
  uint8_t *unpacked;
} unit_sink;

/* R is 0 when units go to scratch. */
INLINE void take_unit(const int type, const int R, unit_sink to, int u, const vu *q, vf s0, vf s1) {
  if (R) {
    accumulate(unit_kind(type), offset_shift(type), is_signed_type(type), R, q, s0, s1, to.x + u, to.x_stride, to.acc);
    return;
  }
  vu *out = (vu *)(to.unpacked + (int64_t)u * UNIT_BYTES);
  for (int g = 0; g < 8; g++) out[g] = q[g];
  ((vf *)out)[8] = s0;
  ((vf *)out)[9] = s1;
}

/* The 8 units of a K block, in order. */
INLINE void walk_k_block(const int type, const int is_packed, const int R, block_source b, int u, unit_sink to) {
  vf s0[8], s1[8];
  vu t[8], q[8], high[8];
  if (type == SIPD_Q6_K) {
    q6_scales(is_packed, b, s0, s1);
    for (int n = 0; n < 2; n++) {
      vu low[16];
      for (int i = 0; i < 16; i += 4) four_dwords(type, is_packed, b, 16 * n + i, low + i);
      for (int i = 0; i < 8; i += 4) four_dwords(type, is_packed, b, 32 + 8 * n + i, high + i);
#pragma GCC unroll 4
      for (int k = 0; k < 4; k++) {
        for (int g = 0; g < 8; g++)
          q[g] = ((low[8 * (k & 1) + g] >> (4 * (k >> 1))) & 0x0F0F0F0Fu) | (((high[g] >> (2 * k)) & 0x03030303u) << 4);
        take_unit(type, R, to, u + 4 * n + k, q, s0[4 * n + k], s1[4 * n + k]);
      }
    }
    return;
  }
  four_dwords(type, is_packed, b, 0, t);
  k_scales(t, s0, s1);
  const int quants = type == SIPD_Q5_K ? 12 : 4;
  if (type == SIPD_Q5_K) {
    four_dwords(type, is_packed, b, 4, high);
    four_dwords(type, is_packed, b, 8, high + 4);
  }
  for (int j = 0; j < 8; j += 2) {
    four_dwords(type, is_packed, b, quants + 4 * j, t);
    four_dwords(type, is_packed, b, quants + 4 * j + 4, t + 4);
    low_nibbles(t, 8, q);
    if (type == SIPD_Q5_K)
      for (int g = 0; g < 8; g++) q[g] |= ((high[g] >> j) & 0x01010101u) << 4;
    take_unit(type, R, to, u + j, q, s0[j], s1[j]);
    high_nibbles(t, 8, q);
    if (type == SIPD_Q5_K)
      for (int g = 0; g < 8; g++) q[g] |= ((high[g] >> (j + 1)) & 0x01010101u) << 4;
    take_unit(type, R, to, u + j + 1, q, s0[j + 1], s1[j + 1]);
  }
}

/* Weights come from memory once and in order, but blocks of K types are not read in order: ask for them ahead. */
#define AHEAD_BYTES 4096
INLINE void prefetch_block(const uint8_t *p, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + AHEAD_BYTES + i);
}

/* All units of W rows. */
INLINE void walk_panel(const int type, const int is_packed, const int R, const sipd_matmul *m, const uint8_t *rows,
                       unit_sink to) {
  const int n_blocks = m->n_in / block_weights(type);
  for (int i = 0; i < n_blocks; i++) {
    const block_source b = {rows + (int64_t)i * block_bytes(type) * (is_packed ? W : 1), is_packed ? 0 : m->row_bytes};
    if (is_packed && is_k_type(type)) prefetch_block(b.p, block_bytes(type) * W);
    if (is_k_type(type)) {
      walk_k_block(type, is_packed, R, b, 8 * i, to);
    } else {
      vu q[8];
      vf s0, s1;
      unpack_32(type, is_packed, b, q, &s0, &s1);
      take_unit(type, R, to, i, q, s0, s1);
    }
  }
}

INLINE void few_rows(const int type, const int is_packed, const int R, const sipd_matmul *m, const uint8_t *rows, int o,
                     int lanes) {
  vf acc[FEW_ROWS];
  for (int r = 0; r < R; r++) acc[r] = splat(0.0f);
  walk_panel(type, is_packed, R, m, rows, (unit_sink){m->xq, m->n_in / 32, acc, NULL});
  store_outputs(m, R, 0, o, lanes, acc);
}

INLINE void many_rows(const int type, const int R, const sipd_matmul *m, const uint8_t *scratch, int row, int o,
                      int lanes) {
  const int n_units = m->n_in / 32;
  const sipd_q8_block *x = m->xq + (int64_t)row * n_units;
  vf acc[MANY_ROWS];
  for (int r = 0; r < R; r++) acc[r] = splat(0.0f);
  for (int u = 0; u < n_units; u++) {
    const vu *q = (const vu *)(scratch + (int64_t)u * UNIT_BYTES);
    accumulate(unit_kind(type), offset_shift(type), is_signed_type(type), R, q, ((const vf *)q)[8], ((const vf *)q)[9],
               x + u, n_units, acc);
  }
  store_outputs(m, R, row, o, lanes, acc);
}

/* All rows over n unpacked panels: a group of rows meets every panel before the next group comes. */
INLINE void sweep_rows(const int type, const sipd_matmul *m, const uint8_t *scratch, int64_t panel_bytes, int n,
                       int o) {
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

#define SWEEP_BYTES (256 << 10) /* unpacked weights that stay in a second-level cache while rows sweep over them */

/* Outputs [begin, end) of one type; type and is_packed are constants at every call. */
INLINE void block_outputs(const int type, const int is_packed, const sipd_matmul *m, int begin, int end,
                          uint8_t *scratch) {
  const int64_t panel_bytes = m->n_in / 32 * (int64_t)UNIT_BYTES;
  const int group = m->n_rows <= FEW_ROWS || panel_bytes * 2 > SWEEP_BYTES ? 1 : (int)(SWEEP_BYTES / panel_bytes);
  for (int o = begin; o < end;) {
    int n = 0;
    for (; n < group && o + n * W < end; n++) {
      const int at = o + n * W, lanes = m->n_out - at < W ? m->n_out - at : W;
      const uint8_t *rows = m->w + at * m->row_bytes;
      switch (m->n_rows) {
        case 1: few_rows(type, is_packed, 1, m, rows, at, lanes); break;
        case 2: few_rows(type, is_packed, 2, m, rows, at, lanes); break;
        case 3: few_rows(type, is_packed, 3, m, rows, at, lanes); break;
        case FEW_ROWS: few_rows(type, is_packed, FEW_ROWS, m, rows, at, lanes); break;
        default: walk_panel(type, is_packed, 0, m, rows, (unit_sink){NULL, 0, NULL, scratch + n * panel_bytes}); break;
      }
    }
    if (m->n_rows > FEW_ROWS) sweep_rows(type, m, scratch, panel_bytes, n, o);
    o += n * W;
  }
}
#endif
