/* attention: a few query heads of a few rows over the KV pages of their sequence (contract, point 7).
 *
 * Keys lie with positions in the lanes, values with the head dimension in the lanes, so neither needs a sum across
 * lanes. A chunk is widened to f32 once and met by all queries of the item. Source of the running form: Milakov and
 * Gimelshein 2018, online softmax; Rabe and Staats 2021.
 */
#include "exp.h"

#define CHUNK_VECTORS (SIPD_PAGE / W)
#define QUERIES 4

typedef struct {
  float maximum;
  float sum;
} softmax_state;

/* Scores of n queries against one chunk of keys [head_dim][SIPD_PAGE]. */
INLINE void chunk_scores(const int n, const float *const *q, const float *keys, int head_dim, float scale,
                         float (*scores)[SIPD_PAGE]) {
  for (int v0 = 0; v0 < CHUNK_VECTORS; v0 += 2) {
    vf acc[QUERIES][2];
    for (int i = 0; i < n; i++) acc[i][0] = acc[i][1] = splat(0.0f);
    for (int d = 0; d < head_dim; d++) {
      vf k0 = loadf(keys + d * SIPD_PAGE + v0 * W), k1 = loadf(keys + d * SIPD_PAGE + (v0 + 1) * W);
      for (int i = 0; i < n; i++) {
        vf x = splat(q[i][d]);
        acc[i][0] = acc[i][0] + x * k0;
        acc[i][1] = acc[i][1] + x * k1;
      }
    }
    for (int i = 0; i < n; i++) {
      storef(scores[i] + v0 * W, acc[i][0] * scale);
      storef(scores[i] + (v0 + 1) * W, acc[i][1] * scale);
    }
  }
}

/* Scores become weights; the state moves on; returns the factor for what was summed before. */
INLINE float chunk_weights(float *scores, int n_valid, softmax_state *state) {
  float top = scores[0];
  for (int t = 1; t < n_valid; t++) top = scores[t] > top ? scores[t] : top;
  const float maximum = top > state->maximum ? top : state->maximum;
  const float factor = exp1(state->maximum - maximum);
  for (int v = 0; v < CHUNK_VECTORS; v++) storef(scores + v * W, vexp(loadf(scores + v * W) - maximum));
  for (int t = n_valid; t < SIPD_PAGE; t++) scores[t] = 0.0f;
  float partial[16];
  for (int t = 0; t < 16; t++) partial[t] = scores[t] + scores[t + 16];
  state->sum = state->sum * factor + tree16(partial);
  state->maximum = maximum;
  return factor;
}

/* acc = acc * factor + weights x values, for n queries and padded head dimension. */
INLINE void add_values(const int n, float *const *acc, const float *factor, float (*const *weights)[SIPD_PAGE],
                       const int *n_valid, const float *values, int padded_dim) {
  for (int d = 0; d < padded_dim; d += W) {
    for (int i = 0; i < n; i++) {
      const float *p = *weights[i];
      vf a = loadf(acc[i] + d) * factor[i];
      for (int t = 0; t < n_valid[i]; t++) a = a + loadf(values + (int64_t)t * padded_dim + d) * p[t];
      storef(acc[i] + d, a);
    }
  }
}

/* The same for four queries whose chunk is whole: values are loaded once for all four. */
INLINE void add_whole_chunk(float *const *acc, const float *factor, float (*weights)[SIPD_PAGE], const float *values,
                            int padded_dim) {
  for (int d = 0; d < padded_dim; d += W) {
    vf a[QUERIES];
    for (int i = 0; i < QUERIES; i++) a[i] = loadf(acc[i] + d) * factor[i];
    for (int t = 0; t < SIPD_PAGE; t++) {
      vf v = loadf(values + (int64_t)t * padded_dim + d);
      for (int i = 0; i < QUERIES; i++) a[i] = a[i] + v * weights[i][t];
    }
    for (int i = 0; i < QUERIES; i++) storef(acc[i] + d, a[i]);
  }
}

static void widen_chunk(const sipd_attention *a, int chunk, float *keys, float *values, int padded_dim) {
  const int64_t head_bytes = 2 * (int64_t)a->head_dim * SIPD_PAGE;
  const uint8_t *layer = a->arena + a->pages[chunk] * a->page_bytes + a->layer_offset;
  const uint8_t *k = layer + a->kv_head * head_bytes, *v = layer + (a->n_kv_heads + a->kv_head) * head_bytes;
  for (int i = 0; i < a->head_dim * SIPD_PAGE; i += W) storef(keys + i, load_half(k + 2 * i));
  if (padded_dim == a->head_dim) {
    for (int i = 0; i < a->head_dim * SIPD_PAGE; i += W) storef(values + i, load_half(v + 2 * i));
    return;
  }
  for (int t = 0; t < SIPD_PAGE; t++)
    for (int d = 0; d < padded_dim; d++)
      values[t * padded_dim + d] =
          d < a->head_dim ? half_to_float_portable(load_u16(v + 2 * (t * a->head_dim + d))) : 0.0f;
}

/* Scratch: see scratch_bytes in pass.c. */
void FN(sipd_attention)(const sipd_attention *a, uint8_t *scratch) {
  const int padded_dim = (a->head_dim + 15) / 16 * 16;
  const int n_queries = a->n_rows * a->n_heads;
  float *keys = (float *)scratch;
  float *values = keys + SIPD_PAGE * padded_dim;
  float *acc = values + SIPD_PAGE * padded_dim;
  softmax_state *state = (softmax_state *)(acc + (int64_t)n_queries * padded_dim);
  memset(acc, 0, sizeof(float) * (size_t)(n_queries * padded_dim));
  for (int i = 0; i < n_queries; i++) state[i] = (softmax_state){-3.0e38f, 0.0f};

  const int last = a->positions[a->n_rows - 1];
  for (int chunk = 0; chunk * SIPD_PAGE <= last; chunk++) {
    widen_chunk(a, chunk, keys, values, padded_dim);
    /* rows are in ascending position: the first ones may lie before this chunk */
    int row = 0;
    while (a->positions[row] < chunk * SIPD_PAGE) row++;
    for (int i = row * a->n_heads; i < n_queries; i += QUERIES) {
      const int n = n_queries - i < QUERIES ? n_queries - i : QUERIES;
      float scores[QUERIES][SIPD_PAGE], factor[QUERIES];
      const float *q[QUERIES] = {0};
      float *sums[QUERIES];
      int n_valid[QUERIES], whole = 1;
      for (int j = 0; j < n; j++) {
        const int r = (i + j) / a->n_heads, h = a->head0 + (i + j) % a->n_heads;
        q[j] = a->q + r * a->q_stride + (int64_t)h * a->head_dim;
        sums[j] = acc + (int64_t)(i + j) * padded_dim;
        const int left = a->positions[r] + 1 - chunk * SIPD_PAGE;
        n_valid[j] = left < SIPD_PAGE ? left : SIPD_PAGE;
        whole &= n_valid[j] == SIPD_PAGE;
      }
      switch (n) {
        case 4: chunk_scores(4, q, keys, a->head_dim, a->scale, scores); break;
        case 3: chunk_scores(3, q, keys, a->head_dim, a->scale, scores); break;
        case 2: chunk_scores(2, q, keys, a->head_dim, a->scale, scores); break;
        default: chunk_scores(1, q, keys, a->head_dim, a->scale, scores); break;
      }
      for (int j = 0; j < n; j++) factor[j] = chunk_weights(scores[j], n_valid[j], &state[i + j]);
      if (n == QUERIES && whole) {
        add_whole_chunk(sums, factor, scores, values, padded_dim);
      } else {
        float (*weights[QUERIES])[SIPD_PAGE];
        for (int j = 0; j < n; j++) weights[j] = &scores[j];
        add_values(n, sums, factor, weights, n_valid, values, padded_dim);
      }
    }
  }
  for (int i = 0; i < n_queries; i++) {
    const int r = i / a->n_heads, h = a->head0 + i % a->n_heads;
    float *out = a->out + r * a->q_stride + (int64_t)h * a->head_dim;
    const float inverse = 1.0f / state[i].sum;
    for (int d = 0; d < a->head_dim; d++) out[d] = acc[(int64_t)i * padded_dim + d] * inverse;
  }
}
