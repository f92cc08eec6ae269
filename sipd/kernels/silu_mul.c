/* silu_mul: gate * sigmoid(gate) * up of one row. Source: Shazeer 2020, SwiGLU. */
#include "exp.h"

void FN(sipd_silu_mul)(const float *gate, const float *up, int32_t n, float *out) {
  int i = 0;
  for (; i + W <= n; i += W) {
    vf g = loadf(gate + i);
    storef(out + i, (g / (vexp(-g) + 1.0f)) * loadf(up + i));
  }
  for (; i < n; i++) out[i] = (gate[i] / (exp1(-gate[i]) + 1.0f)) * up[i];
}
