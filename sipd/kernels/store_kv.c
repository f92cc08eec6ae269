/* store_kv: keys and values of one position into its page: keys [head][dim][slot], values [head][slot][dim], binary16. */
#include "simd.h"

void FN(sipd_store_kv)(const float *k, const float *v, int32_t n_kv_heads, int32_t head_dim, int32_t slot,
                       uint8_t *layer) {
  const int64_t n = (int64_t)n_kv_heads * head_dim;
  uint8_t *values = layer + 2 * n * SIPD_PAGE;
  for (int64_t i = 0; i < n; i++) {
    uint8_t half[2 * W];
    vf kv = {k[i], v[i]};
    store_half(half, kv);
    memcpy(layer + 2 * (i * SIPD_PAGE + slot), half, 2);
    const int64_t head = i / head_dim, d = i % head_dim;
    memcpy(values + 2 * ((head * SIPD_PAGE + slot) * head_dim + d), half + 2, 2);
  }
}
