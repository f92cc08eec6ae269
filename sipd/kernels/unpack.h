/* Blocks as they lie on disk, W rows at a time, made into operands: a table of quant types.
 *
 * A unit is 32 weights of each of W rows: q[g] holds weights 4g .. 4g+3 of lane l in its dword l. s0 and s1 are the
 * unit's scales: dw and m for types with a minimum, the two half scales for Q6_K. Rows are row_bytes apart, as on
 * disk; lanes past the last row read whatever follows (the buffers have slack) and are never stored.
 * Source: block layouts of the GGUF quant types as ggml defines them.
 */
#ifndef SIPD_UNPACK_H
#define SIPD_UNPACK_H

#include "simd.h"

enum { KIND_SYMMETRIC, KIND_MINIMUM, KIND_HALVES };

INLINE int unit_kind(int type) {
  switch (type) {
    case SIPD_Q4_1: case SIPD_Q5_1: case SIPD_Q4_K: case SIPD_Q5_K: return KIND_MINIMUM;
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

INLINE void nibbles(const vu *t, vu *q) {
  for (int g = 0; g < 4; g++) {
    q[g] = t[g] & 0x0F0F0F0Fu;
    q[4 + g] = (t[g] >> 4) & 0x0F0F0F0Fu;
  }
}

/* Bits 0..3 of each lane become bit 4 of its four bytes. */
INLINE vu spread_bits(vu v) { return (((v & 0xFu) * 0x00204081u) & 0x01010101u) << 4; }

/* The unit's quants. p: first row at the block (or super-block) that holds unit u of the row. */
INLINE void load_quants(const int type, const uint8_t *rows, int64_t stride, int u, vu *q) {
  vu t[8];
  switch (type) {
    case SIPD_Q4_0:
      transpose16(rows + u * 18 + 2, stride, t);
      nibbles(t, q);
      break;
    case SIPD_Q4_1:
      transpose16(rows + u * 20 + 4, stride, t);
      nibbles(t, q);
      break;
    case SIPD_Q5_0:
    case SIPD_Q5_1: {
      const uint8_t *p = rows + (type == SIPD_Q5_0 ? u * 22 + 2 : u * 24 + 4);
      vu high = gather_u32(p, stride);
      transpose16(p + 4, stride, t);
      nibbles(t, q);
      for (int g = 0; g < 8; g++) q[g] |= spread_bits(high >> (4 * g));
      break;
    }
    case SIPD_Q8_0:
      transpose16(rows + u * 34 + 2, stride, q);
      transpose16(rows + u * 34 + 18, stride, q + 4);
      for (int g = 0; g < 8; g++) q[g] = as_operand(q[g]);
      break;
    case SIPD_Q4_K:
    case SIPD_Q5_K: {
      const int sub = u & 7, is_high = sub & 1;
      const uint8_t *block = rows + (u >> 3) * (type == SIPD_Q4_K ? 144 : 176);
      const uint8_t *p = block + (type == SIPD_Q4_K ? 16 : 48) + (sub >> 1) * 32;
      transpose16(p, stride, t);
      transpose16(p + 16, stride, t + 4);
      for (int g = 0; g < 8; g++) q[g] = (is_high ? t[g] >> 4 : t[g]) & 0x0F0F0F0Fu;
      if (type == SIPD_Q5_K) {
        transpose16(block + 16, stride, t);
        transpose16(block + 32, stride, t + 4);
        for (int g = 0; g < 8; g++) q[g] |= ((t[g] >> sub) & 0x01010101u) << 4;
      }
      break;
    }
    case SIPD_Q6_K: {
      const int sub = u & 7, n = sub >> 2, k = sub & 3;
      const uint8_t *block = rows + (u >> 3) * 210;
      const uint8_t *low = block + 64 * n + 32 * (k & 1), *high = block + 128 + 32 * n;
      transpose16(low, stride, q);
      transpose16(low + 16, stride, q + 4);
      transpose16(high, stride, t);
      transpose16(high + 16, stride, t + 4);
      for (int g = 0; g < 8; g++)
        q[g] = ((q[g] >> (4 * (k >> 1))) & 0x0F0F0F0Fu) | (((t[g] >> (2 * k)) & 0x03030303u) << 4);
      break;
    }
    default: break;
  }
}

INLINE vf to_float_u(vu v) { return to_float((vi)v); } /* values below 2^31 */

/* Sign-extended byte i of each lane. */
INLINE vi signed_byte(vu v, int i) { return (vi)(v << (24 - 8 * i)) >> 24; }

/* All scales of W rows: scales[(2 * u + j) * W], j = 0, 1. */
INLINE void load_scales(const int type, const uint8_t *rows, int64_t stride, int n_units, float *scales) {
  switch (type) {
    case SIPD_Q4_0:
    case SIPD_Q5_0:
    case SIPD_Q8_0: {
      const int block = type == SIPD_Q4_0 ? 18 : type == SIPD_Q5_0 ? 22 : 34;
      for (int u = 0; u < n_units; u++) storef(scales + 2 * u * W, gather_half(rows + u * block, stride));
      break;
    }
    case SIPD_Q4_1:
    case SIPD_Q5_1:
      for (int u = 0; u < n_units; u++) {
        vu dm = gather_u32(rows + u * (type == SIPD_Q4_1 ? 20 : 24), stride);
        storef(scales + 2 * u * W, low_half(dm));
        storef(scales + (2 * u + 1) * W, low_half(dm >> 16));
      }
      break;
    case SIPD_Q4_K:
    case SIPD_Q5_K:
      for (int b = 0; b < n_units / 8; b++) {
        vu t[4];
        transpose16(rows + b * (type == SIPD_Q4_K ? 144 : 176), stride, t);
        vf d = low_half(t[0]), dmin = low_half(t[0] >> 16);
        for (int j = 0; j < 8; j++) {
          const int s = 8 * (j & 3);
          vu scale, minimum;
          if (j < 4) {
            scale = (t[1] >> s) & 63u;
            minimum = (t[2] >> s) & 63u;
          } else {
            scale = ((t[3] >> s) & 15u) | (((t[1] >> (s + 6)) & 3u) << 4);
            minimum = ((t[3] >> (s + 4)) & 15u) | (((t[2] >> (s + 6)) & 3u) << 4);
          }
          float *out = scales + 2 * (8 * b + j) * W;
          storef(out, d * to_float_u(scale));
          storef(out + W, splat(0.0f) - dmin * to_float_u(minimum));
        }
      }
      break;
    case SIPD_Q6_K:
      for (int b = 0; b < n_units / 8; b++) {
        vu t[4];
        transpose16(rows + b * 210 + 192, stride, t);
        vf d = gather_half(rows + b * 210 + 208, stride);
        for (int i = 0; i < 16; i++) storef(scales + (16 * b + i) * W, d * to_float(signed_byte(t[i >> 2], i & 3)));
      }
      break;
    default: break;
  }
}

#endif
