/* The vector vocabulary of one ISA: W lanes of f32/i32, and the few steps that C cannot say.
 *
 * Included by operation files, which are compiled once per ISA with SIPD_SUFFIX and one of SIPD_AVX512, SIPD_AVX2,
 * SIPD_NEON (with or without SIPD_DOTPROD), or none of them (portable). Arithmetic on the vector types is C's own.
 */
#ifndef SIPD_SIMD_H
#define SIPD_SIMD_H

#include <stdint.h>
#include <string.h>

#include "contract.h"

#define SIPD_CAT2(a, b) a##b
#define SIPD_CAT(a, b) SIPD_CAT2(a, b)
#define FN(name) SIPD_CAT(name, SIPD_SUFFIX)
#define INLINE static inline __attribute__((always_inline))

#if defined(SIPD_AVX512)
#include <immintrin.h>
#define W 16
#elif defined(SIPD_AVX2)
#include <immintrin.h>
#define W 8
#elif defined(SIPD_NEON)
#include <arm_neon.h>
#define W 4
#else
#define W 4
#endif

typedef float vf __attribute__((vector_size(4 * W), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * W), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * W), may_alias));
/* The same in memory, where nothing is aligned. Values stay in the types above: their stack slots are aligned. */
typedef float vf_memory __attribute__((vector_size(4 * W), aligned(1), may_alias));
typedef uint32_t vu_memory __attribute__((vector_size(4 * W), aligned(1), may_alias));

/* Weights whose type is signed bytes (Q8_0): VNNI multiplies unsigned by signed, so they are moved up by 128 there. */
#if defined(SIPD_AVX512)
#define SIGNED_SHIFT 4 /* nsum8 << 4 = -128 * sum */
INLINE vu as_operand(vu v) { return v ^ 0x80808080u; }
#else
#define SIGNED_SHIFT (-1)
INLINE vu as_operand(vu v) { return v; }
#endif

#if W == 16
#define SPLAT(x) {x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}
#elif W == 8
#define SPLAT(x) {x, x, x, x, x, x, x, x}
#else
#define SPLAT(x) {x, x, x, x}
#endif
INLINE vf splat(float x) { return (vf)SPLAT(x); }
INLINE vi splat_i(int32_t x) { return (vi)SPLAT(x); }
INLINE vf loadf(const float *p) { return *(const vf_memory *)p; }
INLINE void storef(float *p, vf v) { *(vf_memory *)p = v; }
INLINE vu load_dwords(const uint8_t *p) { return *(const vu_memory *)p; }
INLINE uint16_t load_u16(const uint8_t *p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}
INLINE uint32_t load_u32(const uint8_t *p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}

/* binary16 to binary32, exact; portable form. Source: IEEE 754-2008, 3.6. */
INLINE float half_to_float_portable(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff, bits;
  if (magnitude >= 0x7c00) {
    bits = sign | 0x7f800000u | (magnitude & 0x3ff) << 13;
  } else if (magnitude >= 0x400) {
    bits = sign | ((magnitude << 13) + 0x38000000u);
  } else {
    float f = (float)magnitude * 5.9604644775390625e-8f; /* 2^-24: subnormal step */
    memcpy(&bits, &f, 4);
    bits |= sign;
  }
  float out;
  memcpy(&out, &bits, 4);
  return out;
}

/* binary32 to binary16, round to nearest even; portable form. */
INLINE uint16_t float_to_half_portable(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (magnitude < 0x38800000) { /* subnormal: adding 0.5 puts its last bit at 2^-24 and rounds there */
    float a;
    memcpy(&a, &magnitude, 4);
    a = a + 0.5f;
    memcpy(&magnitude, &a, 4);
    return (uint16_t)(sign | (magnitude - 0x3f000000u));
  }
  magnitude += 0xfff + (magnitude >> 13 & 1);
  return (uint16_t)(sign | (magnitude - 0x38000000u) >> 13);
}

#if defined(SIPD_AVX512) || defined(SIPD_AVX2)
INLINE __m128i gather8_u16(const uint8_t *p, int64_t stride) {
  __m128i v = _mm_cvtsi32_si128(load_u16(p));
  v = _mm_insert_epi16(v, load_u16(p + stride), 1);
  v = _mm_insert_epi16(v, load_u16(p + 2 * stride), 2);
  v = _mm_insert_epi16(v, load_u16(p + 3 * stride), 3);
  v = _mm_insert_epi16(v, load_u16(p + 4 * stride), 4);
  v = _mm_insert_epi16(v, load_u16(p + 5 * stride), 5);
  v = _mm_insert_epi16(v, load_u16(p + 6 * stride), 6);
  return _mm_insert_epi16(v, load_u16(p + 7 * stride), 7);
}
#endif

#if defined(SIPD_AVX512)

INLINE vf to_float(vi v) { return (vf)_mm512_cvtepi32_ps((__m512i)v); }
INLINE vf vmax(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf vmin(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE vf load_half(const uint8_t *p) { return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE void store_half(uint8_t *p, vf v) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, 0)); }
INLINE vf low_half(vu v) { return (vf)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)v)); }

/* acc[lane] += the 16 weights of the lane (4 vectors of 4 bytes) times 16 activations at x. */
INLINE vi dot16(vi acc, const vu *q, const int8_t *x) {
  for (int g = 0; g < 4; g++) {
    int32_t x4;
    memcpy(&x4, x + 4 * g, 4);
    acc = (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)q[g], _mm512_set1_epi32(x4));
  }
  return acc;
}
#define dot16_signed dot16

/* 16 bytes of each of W rows, dword by dword: out[g] lane l = dword g of row l. */
INLINE void transpose16(const uint8_t *p, int64_t stride, vu *out) {
  __m512i a[4];
  for (int i = 0; i < 4; i++) {
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(p + i * stride)));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + (i + 4) * stride)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + (i + 8) * stride)), 2);
    a[i] = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + (i + 12) * stride)), 3);
  }
  __m512i ab = _mm512_unpacklo_epi32(a[0], a[1]), cd = _mm512_unpacklo_epi32(a[2], a[3]);
  __m512i AB = _mm512_unpackhi_epi32(a[0], a[1]), CD = _mm512_unpackhi_epi32(a[2], a[3]);
  __m512i t[4] = {_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd), _mm512_unpacklo_epi64(AB, CD),
                  _mm512_unpackhi_epi64(AB, CD)};
  /* lane 4j + i of t holds row i + 4j: already in order, since 128-bit part j came from rows 4j .. 4j + 3 */
  for (int g = 0; g < 4; g++) out[g] = (vu)t[g];
}
INLINE vf gather_half(const uint8_t *p, int64_t stride) {
  __m256i v = _mm256_castsi128_si256(gather8_u16(p, stride));
  return (vf)_mm512_cvtph_ps(_mm256_inserti128_si256(v, gather8_u16(p + 8 * stride, stride), 1));
}

#elif defined(SIPD_AVX2)

INLINE vf to_float(vi v) { return (vf)_mm256_cvtepi32_ps((__m256i)v); }
INLINE vf vmax(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf vmin(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE vf load_half(const uint8_t *p) { return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE void store_half(uint8_t *p, vf v) { _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)v, 0)); }
INLINE vf low_half(vu v) {
  __m256i even = _mm256_and_si256((__m256i)v, _mm256_set1_epi32(0xffff));
  __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(even), _mm256_extracti128_si256(even, 1));
  return (vf)_mm256_cvtph_ps(packed);
}
/* Pairs of products fit int16: weights are at most 63 unsigned, or 128 in magnitude against 127. */
INLINE vi dot16(vi acc, const vu *q, const int8_t *x) {
  for (int g = 0; g < 4; g++) {
    int32_t x4;
    memcpy(&x4, x + 4 * g, 4);
    __m256i pairs = _mm256_maddubs_epi16((__m256i)q[g], _mm256_set1_epi32(x4));
    acc += (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  return acc;
}
INLINE vi dot16_signed(vi acc, const vu *q, const int8_t *x) {
  for (int g = 0; g < 4; g++) {
    int32_t x4;
    memcpy(&x4, x + 4 * g, 4);
    __m256i w = (__m256i)q[g];
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(_mm256_set1_epi32(x4), w));
    acc += (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  return acc;
}
INLINE void transpose16(const uint8_t *p, int64_t stride, vu *out) {
  __m256i a[4];
  for (int i = 0; i < 4; i++) {
    __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(p + i * stride)));
    a[i] = _mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i *)(p + (i + 4) * stride)), 1);
  }
  __m256i ab = _mm256_unpacklo_epi32(a[0], a[1]), cd = _mm256_unpacklo_epi32(a[2], a[3]);
  __m256i AB = _mm256_unpackhi_epi32(a[0], a[1]), CD = _mm256_unpackhi_epi32(a[2], a[3]);
  out[0] = (vu)_mm256_unpacklo_epi64(ab, cd);
  out[1] = (vu)_mm256_unpackhi_epi64(ab, cd);
  out[2] = (vu)_mm256_unpacklo_epi64(AB, CD);
  out[3] = (vu)_mm256_unpackhi_epi64(AB, CD);
}
INLINE vf gather_half(const uint8_t *p, int64_t stride) { return (vf)_mm256_cvtph_ps(gather8_u16(p, stride)); }

#elif defined(SIPD_NEON)

INLINE vf to_float(vi v) { return (vf)vcvtq_f32_s32((int32x4_t)v); }
INLINE vf vmax(vf a, vf b) { return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b); }
INLINE vf vmin(vf a, vf b) { return (vf)vminq_f32((float32x4_t)a, (float32x4_t)b); }
INLINE vf load_half(const uint8_t *p) { return (vf)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
INLINE void store_half(uint8_t *p, vf v) { vst1_u8(p, vreinterpret_u8_f16(vcvt_f16_f32((float32x4_t)v))); }
INLINE vf low_half(vu v) { return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32((uint32x4_t)v))); }

#if defined(SIPD_DOTPROD)
INLINE vi dot16(vi acc, const vu *q, const int8_t *x) {
  int8x16_t xv = vld1q_s8(x);
  int32x4_t a = (int32x4_t)acc;
  a = vdotq_laneq_s32(a, (int8x16_t)q[0], xv, 0);
  a = vdotq_laneq_s32(a, (int8x16_t)q[1], xv, 1);
  a = vdotq_laneq_s32(a, (int8x16_t)q[2], xv, 2);
  a = vdotq_laneq_s32(a, (int8x16_t)q[3], xv, 3);
  return (vi)a;
}
#else
/* Products of two bytes and their pair sums fit int16 (128 * 127 * 2 < 2^15). */
INLINE vi dot4_neon(vi acc, vu w, int32x4_t x4) {
  int8x16_t wb = (int8x16_t)w, xb = vreinterpretq_s8_s32(x4);
  int16x8_t low = vmull_s8(vget_low_s8(wb), vget_low_s8(xb));
  int16x8_t high = vmull_high_s8(wb, xb);
  return (vi)vpadalq_s16((int32x4_t)acc, vpaddq_s16(low, high));
}
INLINE vi dot16(vi acc, const vu *q, const int8_t *x) {
  int32x4_t xv = vreinterpretq_s32_s8(vld1q_s8(x));
  acc = dot4_neon(acc, q[0], vdupq_laneq_s32(xv, 0));
  acc = dot4_neon(acc, q[1], vdupq_laneq_s32(xv, 1));
  acc = dot4_neon(acc, q[2], vdupq_laneq_s32(xv, 2));
  return dot4_neon(acc, q[3], vdupq_laneq_s32(xv, 3));
}
#endif
#define dot16_signed dot16

#if defined(SIPD_I8MM)
/* n weights of each lane (n / 4 dword vectors) times n activations of two rows: one 2 x 8 by 8 x 2 product a step. */
INLINE void dot_pair(vi *r0, vi *r1, const vu *q, int n, const int8_t *x0, const int8_t *x1) {
  int32x4_t low = vdupq_n_s32(0), high = low; /* outputs 0, 1 and 2, 3 of both rows */
  for (int k = 0; k < n / 8; k++) {
    const int8x16_t x = vcombine_s8(vld1_s8(x0 + 8 * k), vld1_s8(x1 + 8 * k));
    low = vmmlaq_s32(low, (int8x16_t)vzip1q_u32((uint32x4_t)q[2 * k], (uint32x4_t)q[2 * k + 1]), x);
    high = vmmlaq_s32(high, (int8x16_t)vzip2q_u32((uint32x4_t)q[2 * k], (uint32x4_t)q[2 * k + 1]), x);
  }
  *r0 += (vi)vuzp1q_s32(low, high);
  *r1 += (vi)vuzp2q_s32(low, high);
}
#endif

INLINE void transpose16(const uint8_t *p, int64_t stride, vu *out) {
  uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(p)), b = vreinterpretq_u32_u8(vld1q_u8(p + stride));
  uint32x4_t c = vreinterpretq_u32_u8(vld1q_u8(p + 2 * stride)), d = vreinterpretq_u32_u8(vld1q_u8(p + 3 * stride));
  uint64x2_t ab0 = vreinterpretq_u64_u32(vtrn1q_u32(a, b)), ab1 = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
  uint64x2_t cd0 = vreinterpretq_u64_u32(vtrn1q_u32(c, d)), cd1 = vreinterpretq_u64_u32(vtrn2q_u32(c, d));
  out[0] = (vu)vtrn1q_u64(ab0, cd0);
  out[1] = (vu)vtrn1q_u64(ab1, cd1);
  out[2] = (vu)vtrn2q_u64(ab0, cd0);
  out[3] = (vu)vtrn2q_u64(ab1, cd1);
}
INLINE vf gather_half(const uint8_t *p, int64_t stride) {
  uint16x4_t v = vdup_n_u16(0);
  v = vld1_lane_u16((const uint16_t *)(const void *)p, v, 0);
  v = vld1_lane_u16((const uint16_t *)(const void *)(p + stride), v, 1);
  v = vld1_lane_u16((const uint16_t *)(const void *)(p + 2 * stride), v, 2);
  v = vld1_lane_u16((const uint16_t *)(const void *)(p + 3 * stride), v, 3);
  return (vf)vcvt_f32_f16(vreinterpret_f16_u16(v));
}

#else /* portable */

INLINE vf to_float(vi v) {
  vf out;
  for (int i = 0; i < W; i++) out[i] = (float)v[i];
  return out;
}
INLINE vf vmax(vf a, vf b) {
  vf out;
  for (int i = 0; i < W; i++) out[i] = a[i] > b[i] ? a[i] : b[i];
  return out;
}
INLINE vf vmin(vf a, vf b) {
  vf out;
  for (int i = 0; i < W; i++) out[i] = a[i] < b[i] ? a[i] : b[i];
  return out;
}
INLINE vf load_half(const uint8_t *p) {
  vf out;
  for (int i = 0; i < W; i++) out[i] = half_to_float_portable(load_u16(p + 2 * i));
  return out;
}
INLINE void store_half(uint8_t *p, vf v) {
  for (int i = 0; i < W; i++) {
    uint16_t h = float_to_half_portable(v[i]);
    memcpy(p + 2 * i, &h, 2);
  }
}
INLINE vf low_half(vu v) {
  vf out;
  for (int i = 0; i < W; i++) out[i] = half_to_float_portable((uint16_t)v[i]);
  return out;
}
INLINE vi dot16(vi acc, const vu *q, const int8_t *x) {
  int8_t w[4 * 4 * W];
  memcpy(w, q, sizeof w);
  for (int g = 0; g < 4; g++)
    for (int l = 0; l < W; l++)
      for (int i = 0; i < 4; i++) acc[l] += w[(g * W + l) * 4 + i] * x[4 * g + i];
  return acc;
}
#define dot16_signed dot16
INLINE void transpose16(const uint8_t *p, int64_t stride, vu *out) {
  uint32_t dwords[4 * W];
  for (int l = 0; l < W; l++)
    for (int g = 0; g < 4; g++) dwords[g * W + l] = load_u32(p + l * stride + 4 * g);
  memcpy(out, dwords, sizeof dwords);
}
INLINE vf gather_half(const uint8_t *p, int64_t stride) {
  vf out;
  for (int l = 0; l < W; l++) out[l] = half_to_float_portable(load_u16(p + l * stride));
  return out;
}
#endif

/* The low byte of every lane, the sum and the largest of all lanes: integers, so no order matters. */
#if defined(SIPD_AVX512)
INLINE void store_bytes(int8_t *p, vi v) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)v)); }
INLINE int32_t lane_sum(vi v) { return _mm512_reduce_add_epi32((__m512i)v); }
INLINE int32_t lane_max(vi v) { return _mm512_reduce_max_epi32((__m512i)v); }
#elif defined(SIPD_NEON)
INLINE void store_bytes(int8_t *p, vi v) {
  const int16x4_t halves = vmovn_s32((int32x4_t)v);
  vst1_lane_s32((int32_t *)(void *)p, vreinterpret_s32_s8(vmovn_s16(vcombine_s16(halves, halves))), 0);
}
INLINE int32_t lane_sum(vi v) { return vaddvq_s32((int32x4_t)v); }
INLINE int32_t lane_max(vi v) { return vmaxvq_s32((int32x4_t)v); }
#else
INLINE void store_bytes(int8_t *p, vi v) {
  for (int l = 0; l < W; l++) p[l] = (int8_t)v[l];
}
INLINE int32_t lane_sum(vi v) {
  int32_t sum = 0;
  for (int l = 0; l < W; l++) sum += v[l];
  return sum;
}
INLINE int32_t lane_max(vi v) {
  int32_t top = v[0];
  for (int l = 1; l < W; l++) top = v[l] > top ? v[l] : top;
  return top;
}
#endif

/* The dword at the start of each of W rows. */
#if defined(SIPD_AVX512) || defined(SIPD_AVX2)
INLINE __m128i gather4_u32(const uint8_t *p, int64_t stride) {
  __m128i v = _mm_cvtsi32_si128((int)load_u32(p));
  v = _mm_insert_epi32(v, (int)load_u32(p + stride), 1);
  v = _mm_insert_epi32(v, (int)load_u32(p + 2 * stride), 2);
  return _mm_insert_epi32(v, (int)load_u32(p + 3 * stride), 3);
}
INLINE __m256i gather8_u32(const uint8_t *p, int64_t stride) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(gather4_u32(p, stride)), gather4_u32(p + 4 * stride, stride),
                                 1);
}
#endif
INLINE vu gather_u32(const uint8_t *p, int64_t stride) {
#if defined(SIPD_AVX512)
  return (vu)_mm512_inserti64x4(_mm512_castsi256_si512(gather8_u32(p, stride)), gather8_u32(p + 8 * stride, stride), 1);
#elif defined(SIPD_AVX2)
  return (vu)gather8_u32(p, stride);
#else
  return (vu){load_u32(p), load_u32(p + stride), load_u32(p + 2 * stride), load_u32(p + 3 * stride)};
#endif
}

/* The tree over 16 partial sums (contract, point 5). */
INLINE float tree16(const float *p) {
  float s[8];
  for (int i = 0; i < 8; i++) s[i] = p[i] + p[i + 8];
  for (int i = 0; i < 4; i++) s[i] = s[i] + s[i + 4];
  for (int i = 0; i < 2; i++) s[i] = s[i] + s[i + 2];
  return s[0] + s[1];
}
#endif
