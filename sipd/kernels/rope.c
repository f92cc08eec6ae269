/* rope: rotary position embedding of one row, in place. Source: Su et al. 2021, RoFormer, equation 34.
 *
 * cos_sin holds n_rot / 2 cosines, then as many sines. Pairs are (2i, 2i + 1), or (i, i + n_rot / 2) when is_neox.
 */
#include "simd.h"

void FN(sipd_rope)(float *v, int32_t n_heads, int32_t head_dim, int32_t n_rot, int32_t is_neox, const float *cos_sin) {
  const int half = n_rot / 2;
  const float *c = cos_sin, *s = cos_sin + half;
  for (int h = 0; h < n_heads; h++, v += head_dim) {
    if (is_neox) {
      for (int i = 0; i < half; i++) {
        float a = v[i], b = v[i + half];
        v[i] = a * c[i] - b * s[i];
        v[i + half] = a * s[i] + b * c[i];
      }
    } else {
      for (int i = 0; i < half; i++) {
        float a = v[2 * i], b = v[2 * i + 1];
        v[2 * i] = a * c[i] - b * s[i];
        v[2 * i + 1] = a * s[i] + b * c[i];
      }
    }
  }
}
