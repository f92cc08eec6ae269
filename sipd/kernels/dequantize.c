/* dequantize: one row of any type to f32, value by value as the format defines it. Used for embedding rows. */
#define SIPD_SUFFIX _base
#include "dequantize.h"

#include "simd.h"

static int q6_value(const uint8_t *block, int i) {
  const int n = i >> 7, k = i >> 5 & 3, l = i & 31;
  const int low = block[64 * n + 32 * (k & 1) + l] >> (4 * (k >> 1)) & 15;
  const int high = block[128 + 32 * n + l] >> (2 * k) & 3;
  return (low | high << 4) - 32;
}

static void k_block(const uint8_t *block, int is_q5, float *out) {
  const float d = half_to_float_portable(load_u16(block)), dmin = half_to_float_portable(load_u16(block + 2));
  const uint8_t *s = block + 4, *high = block + 16, *quants = block + (is_q5 ? 48 : 16);
  for (int j = 0; j < 8; j++) {
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    const float a = d * (float)scale, b = dmin * (float)minimum;
    for (int l = 0; l < 32; l++) {
      int q = quants[(j >> 1) * 32 + l] >> (4 * (j & 1)) & 15;
      if (is_q5) q |= (high[l] >> j & 1) << 4;
      out[32 * j + l] = a * (float)q - b;
    }
  }
}

void sipd_dequantize_row(int32_t type, const uint8_t *row, int32_t n, float *out) {
  switch (type) {
    case SIPD_F32: memcpy(out, row, 4 * (size_t)n); return;
    case SIPD_F16:
      for (int i = 0; i < n; i++) out[i] = half_to_float_portable(load_u16(row + 2 * i));
      return;
    case SIPD_BF16:
      for (int i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)load_u16(row + 2 * i) << 16;
        memcpy(out + i, &bits, 4);
      }
      return;
    case SIPD_Q8_0:
      for (int b = 0; b < n / 32; b++, row += 34) {
        const float d = half_to_float_portable(load_u16(row));
        for (int i = 0; i < 32; i++) out[32 * b + i] = d * (float)(int8_t)row[2 + i];
      }
      return;
    case SIPD_Q4_0:
    case SIPD_Q4_1:
    case SIPD_Q5_0:
    case SIPD_Q5_1: {
      const int has_min = type == SIPD_Q4_1 || type == SIPD_Q5_1, is_q5 = type == SIPD_Q5_0 || type == SIPD_Q5_1;
      const int head = has_min ? 4 : 2, bytes = head + (is_q5 ? 20 : 16), offset = has_min ? 0 : is_q5 ? 16 : 8;
      for (int b = 0; b < n / 32; b++, row += bytes) {
        const float d = half_to_float_portable(load_u16(row)),
                    m = has_min ? half_to_float_portable(load_u16(row + 2)) : 0;
        const uint32_t high = is_q5 ? load_u32(row + head) : 0;
        const uint8_t *quants = row + head + (is_q5 ? 4 : 0);
        for (int i = 0; i < 32; i++) {
          int q = quants[i & 15] >> (i < 16 ? 0 : 4) & 15;
          if (is_q5) q |= (int)(high >> i & 1) << 4;
          const float v = d * (float)(q - offset);
          out[32 * b + i] = has_min ? v + m : v;
        }
      }
      return;
    }
    case SIPD_Q4_K:
    case SIPD_Q5_K:
      for (int b = 0; b < n / 256; b++)
        k_block(row + (int64_t)b * (type == SIPD_Q4_K ? 144 : 176), type == SIPD_Q5_K, out + 256 * b);
      return;
    case SIPD_Q6_K:
      for (int b = 0; b < n / 256; b++, row += 210) {
        const float d = half_to_float_portable(load_u16(row + 208));
        for (int i = 0; i < 256; i++)
          out[256 * b + i] = d * (float)(int8_t)row[192 + (i >> 4)] * (float)q6_value(row, i);
      }
      return;
    default: return;
  }
}
