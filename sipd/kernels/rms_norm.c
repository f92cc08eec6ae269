/* rms_norm: y = (x / rms(x)) * w of one row (contract, point 6). Source: Zhang and Sennrich 2019, equation 4. */
#include <math.h>

#include "simd.h"

void FN(sipd_rms_norm)(const float *x, const float *w, int32_t n, float eps, float *out) {
  float partial[16] = {0};
  vf acc[16 / W];
  for (int p = 0; p < 16 / W; p++) acc[p] = splat(0.0f);
  int i = 0;
  for (; i + 16 <= n; i += 16)
    for (int p = 0; p < 16 / W; p++) {
      vf v = loadf(x + i + p * W);
      acc[p] = acc[p] + v * v;
    }
  for (int p = 0; p < 16 / W; p++) storef(partial + p * W, acc[p]);
  for (int k = i; k < n; k++) partial[k - i] = partial[k - i] + x[k] * x[k];
  const float inverse = 1.0f / sqrtf(tree16(partial) / (float)n + eps);
  for (i = 0; i < n; i++) out[i] = (x[i] * inverse) * w[i];
}
