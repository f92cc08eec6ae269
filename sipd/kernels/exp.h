/* exp by a fixed polynomial: every ISA and the NumPy twin give the same bits.
 *
 * Cody-Waite reduction by ln 2 in two parts, degree-5 minimax polynomial (coefficients of Cephes' expf, S. Moshier),
 * arguments clamped to [-87, 88] so that the result is a normal number. exp(0) is exactly 1.
 */
#ifndef SIPD_EXP_H
#define SIPD_EXP_H

#include "simd.h"

INLINE vf vexp(vf x) {
  const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, nearest even */
  x = vmin(vmax(x, splat(-87.0f)), splat(88.0f));
  vf t = x * 1.44269504f + magic;
  vf n = t - magic;
  vf r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  vf y = p * (r * r);
  y = y + r;
  y = y + 1.0f;
  vi bits = ((vi)t - 0x4B400000 + 127) << 23;
  return y * (vf)bits;
}

INLINE float exp1(float x) { return vexp(splat(x))[0]; }

#endif
