/* quantize: one row of activations to blocks of 32 int8 with an f32 scale (contract, point 2). */
#include "simd.h"

#define VECTORS (32 / W)

void FN(sipd_quantize)(const float *x, int32_t n, sipd_q8_block *out) {
  const vi sign = splat_i(0x7fffffff);
  for (int b = 0; b < n / 32; b++, x += 32, out++) {
    /* magnitudes compare as integers, and so a NaN is the largest of all: it reaches d, and with it every output */
    vf v[VECTORS];
    vi top = splat_i(0);
    for (int i = 0; i < VECTORS; i++) {
      v[i] = loadf(x + i * W);
      const vi magnitude = (vi)v[i] & sign, is_more = magnitude > top;
      top = (magnitude & is_more) | (top & ~is_more);
    }
    const int32_t bits = lane_max(top);
    float largest;
    memcpy(&largest, &bits, 4);
    const float inverse = largest > 0x1p-120f ? 127.0f / largest : 0.0f;
    vi sums[2] = {splat_i(0), splat_i(0)}; /* of the first and the last 16 */
    for (int i = 0; i < VECTORS; i++) {
      /* adding 1.5 * 2^23 rounds to the nearest even integer and leaves it in the low byte */
      const vi q = (vi)(v[i] * inverse + 12582912.0f) - 0x4B400000;
      store_bytes(out->q + i * W, q);
      sums[i * W / 16] += (q << 24) >> 24; /* a NaN leaves no number: what is summed is what is stored */
    }
    const int32_t low = lane_sum(sums[0]), high = lane_sum(sums[1]);
    out->d = largest / 127.0f;
    out->s = out->d * (float)(low + high);
    out->nsum8 = -8 * (low + high);
    out->nsum8_lo = -8 * low;
  }
}
