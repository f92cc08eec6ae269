/* Blocks of W rows made into operands, from rows as on disk or from a packed panel: a table of quant types.
 *
 * A block is a run of f16 numbers and dwords. On disk the W rows of a block lie row_bytes apart and are transposed in
 * registers; in a packed panel (repack.c) each f16 and each dword of all W rows lie side by side. A unit is 32 weights
 * of each row: q[g] holds weights 4g .. 4g + 3 of lane l in its dword l. s0 and s1 are its scales: dw and m for types with
 * a minimum, the two half scales for Q6_K. Lanes past the last row read whatever follows (buffers have slack) and are
 * never stored. Source: the block layouts of the GGUF quant types.
 */
#ifndef SIPD_UNPACK_H
#define SIPD_UNPACK_H

#include "block_layout.h"
#include "simd.h"

enum { KIND_SYMMETRIC, KIND_MINIMUM, KIND_HALVES };

INLINE int unit_kind(int type) {
  switch (type) {
    case SIPD_Q4_1:
    case SIPD_Q5_1:
    case SIPD_Q4_K:
    case SIPD_Q5_K: return KIND_MINIMUM;
    case SIPD_Q6_K: return KIND_HALVES;
    default: return KIND_SYMMETRIC;
  }
}

/* Shift that makes nsum8 the correction of the type's offset; -1: none. */
INLINE int offset_shift(int type) {
  switch (type) {
    case SIPD_Q4_0: return 0;
    case SIPD_Q5_0: return 1;
    case SIPD_Q6_K: return 2;
    case SIPD_Q8_0: return SIGNED_SHIFT;
    default: return -1;
  }
}

INLINE int is_signed_type(int type) { return type == SIPD_Q8_0; }

/* One block of W rows. stride is row_bytes on disk, 0 when packed. */
typedef struct {
  const uint8_t *p;
  int64_t stride;
} block_source;

/* Dwords k .. k + 3 of the block, by lanes. */
INLINE void four_dwords(const int type, const int is_packed, block_source b, int k, vu *out) {
  if (is_packed) {
    for (int i = 0; i < 4; i++) out[i] = load_dwords(b.p + W * (2 * head_halves(type) + 4 * (k + i)));
  } else {
    transpose16(b.p + 2 * head_halves(type) + 4 * k, b.stride, out);
  }
}

INLINE vu one_dword(const int type, const int is_packed, block_source b, int k) {
  if (is_packed) return load_dwords(b.p + W * (2 * head_halves(type) + 4 * k));
  return gather_u32(b.p + 2 * head_halves(type) + 4 * k, b.stride);
}

/* The f16 number at byte `at` of the block. */
INLINE vf one_half(const int is_packed, block_source b, int at) {
  return is_packed ? load_half(b.p + W * at) : gather_half(b.p + at, b.stride);
}

INLINE void low_nibbles(const vu *t, int n, vu *q) {
  for (int g = 0; g < n; g++) q[g] = t[g] & 0x0F0F0F0Fu;
}
INLINE void high_nibbles(const vu *t, int n, vu *q) {
  for (int g = 0; g < n; g++) q[g] = (t[g] >> 4) & 0x0F0F0F0Fu;
}

/* Bits 0..3 of each lane become bit 4 of its four bytes. */
INLINE vu spread_bits(vu v) { return (((v & 0xFu) * 0x00204081u) & 0x01010101u) << 4; }

/* A block of 32: its one unit. */
INLINE void unpack_32(const int type, const int is_packed, block_source b, vu *q, vf *s0, vf *s1) {
  vu t[4];
  if (unit_kind(type) == KIND_MINIMUM && !is_packed) {
    const vu dm = gather_u32(b.p, b.stride);
    *s0 = low_half(dm);
    *s1 = low_half(dm >> 16);
  } else {
    *s0 = one_half(is_packed, b, 0);
    *s1 = unit_kind(type) == KIND_MINIMUM ? one_half(is_packed, b, 2) : *s0;
  }
  if (type == SIPD_Q8_0) {
    four_dwords(type, is_packed, b, 0, q);
    four_dwords(type, is_packed, b, 4, q + 4);
    for (int g = 0; g < 8; g++) q[g] = as_operand(q[g]);
    return;
  }
  const int is_q5 = type == SIPD_Q5_0 || type == SIPD_Q5_1;
  four_dwords(type, is_packed, b, is_q5, t);
  low_nibbles(t, 4, q);
  high_nibbles(t, 4, q + 4);
  if (is_q5) {
    const vu high = one_dword(type, is_packed, b, 0);
    for (int g = 0; g < 8; g++) q[g] |= spread_bits(high >> (4 * g));
  }
}

/* Scales and minima of the 8 units of a Q4_K or Q5_K block. */
INLINE void k_scales(const vu *head, vf *s0, vf *s1) {
  const vf d = low_half(head[0]), dmin = low_half(head[0] >> 16);
  for (int j = 0; j < 8; j++) {
    const int s = 8 * (j & 3);
    vu scale, minimum;
    if (j < 4) {
      scale = (head[1] >> s) & 63u;
      minimum = (head[2] >> s) & 63u;
    } else {
      scale = ((head[3] >> s) & 15u) | (((head[1] >> (s + 6)) & 3u) << 4);
      minimum = ((head[3] >> (s + 4)) & 15u) | (((head[2] >> (s + 6)) & 3u) << 4);
    }
    s0[j] = d * to_float((vi)scale);
    s1[j] = splat(0.0f) - dmin * to_float((vi)minimum);
  }
}

/* Sign-extended byte i of each lane. */
INLINE vi signed_byte(vu v, int i) { return (vi)(v << (24 - 8 * i)) >> 24; }

/* Half scales of the 8 units of a Q6_K block. */
INLINE void q6_scales(const int is_packed, block_source b, vf *s0, vf *s1) {
  vu t[4];
  four_dwords(SIPD_Q6_K, is_packed, b, 48, t);
  const vf d = one_half(is_packed, b, 208);
  for (int j = 0; j < 8; j++) {
    s0[j] = d * to_float(signed_byte(t[j >> 1], 2 * (j & 1)));
    s1[j] = d * to_float(signed_byte(t[j >> 1], 2 * (j & 1) + 1));
  }
}

#endif
