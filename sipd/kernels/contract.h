/* The arithmetic contract (version SIPD_CONTRACT_VERSION), kept by every operation on every ISA and by reference.py.
 *
 * 1. All arithmetic is IEEE binary32, round to nearest even, no contraction (the build says -ffp-contract=off).
 *    No libm: exp and sin/cos are the fixed polynomials of exp.h and rope_angles.c.
 * 2. Activations that meet block-quantised weights are quantised per row in blocks of 32:
 *    d = max|x| / 127, q = rint(x * (127 / max|x|)) (all 0 when max|x| is at most 2^-120), s = d * sum(q). A block with
 *    a NaN has d = NaN, so that a fault reaches the logits, where it is seen.
 * 3. A block product is exact in int32 (isum), then joins one f32 accumulator per output, block after block:
 *      symmetric types (Q4_0 Q5_0 Q8_0):   acc = acc + isum * (dw * d)
 *      types with a minimum (Q4_1 Q5_1):   acc = acc + (isum * (dw * d) + m * s)
 *      Q4_K Q5_K, per 32 weights:          the same with dw = d * scale, m = 0 - dmin * min
 *      Q6_K, per 16 weights:               acc = acc + isum * ((dw * scale) * d), low half first
 *    isum is over weights as signed numbers (q - 8, q - 16, q - 32 where the type says so).
 * 4. F32, F16 and BF16 weights: 16 partial sums by k mod 16, each in ascending k (product rounded, then sum rounded),
 *    then the tree of point 5.
 * 5. The tree over 16 partials: p[i] = p[i] + p[i + 8] for i < 8, then 4, then 2, then 1.
 * 6. Row sums of squares (RMS norm): 16 partials by index mod 16, then the tree; y = (x * (1 / sqrt(mean + eps))) * w.
 * 7. Attention walks keys in chunks of SIPD_PAGE positions from position 0: scores are sums over the head dimension in
 *    ascending order, times the scale; running maximum; weights by exp; their sum by 16 partials and the tree; values are
 *    added in ascending position. Keys and values are stored as binary16 (round to nearest even).
 * 8. A bias is added after the last block; a residual is added after that.
 *
 * A row's result therefore depends on the row and the weights alone: not on the number of rows, threads or tiles.
 * K is never split over threads. Lanes of a vector are outputs, which keeps one order for every vector width.
 */
#ifndef SIPD_CONTRACT_H
#define SIPD_CONTRACT_H

#include <stdint.h>

#define SIPD_CONTRACT_VERSION 1
#define SIPD_PAGE 32   /* positions of one KV page and of one attention chunk */
#define SIPD_PANEL 16  /* outputs of one work item, whatever the vector width */

/* GGML type ids of the weights that the kernels multiply. */
enum {
  SIPD_F32 = 0,
  SIPD_F16 = 1,
  SIPD_Q4_0 = 2,
  SIPD_Q4_1 = 3,
  SIPD_Q5_0 = 6,
  SIPD_Q5_1 = 7,
  SIPD_Q8_0 = 8,
  SIPD_Q4_K = 12,
  SIPD_Q5_K = 13,
  SIPD_Q6_K = 14,
  SIPD_BF16 = 30
};

/* 32 quantised activations of one row. nsum8 = -8 * sum(q), nsum8_lo the same over the first 16. */
typedef struct {
  int8_t q[32];
  float d;
  float s;
  int32_t nsum8;
  int32_t nsum8_lo;
} sipd_q8_block;

/* One matrix product of a tile: out[r * out_stride + o] for all rows r of x and outputs o of the tile. */
typedef struct {
  int32_t type;
  int32_t is_packed; /* panels interleaved by repack.c for this ISA; rows as on disk otherwise */
  int32_t n_in;
  int32_t n_out;
  int64_t row_bytes;
  const uint8_t *w;
  const sipd_q8_block *xq; /* n_rows x (n_in / 32), for block types */
  const float *xf;         /* n_rows x xf_stride, for F32, F16, BF16 */
  int64_t xf_stride;
  int32_t n_rows;
  int32_t add; /* add to out instead of storing */
  float *out;
  int64_t out_stride;
  const float *bias; /* n_out or NULL */
} sipd_matmul;

/* One attention item: query heads [head0, head0 + n_heads) of rows that belong to one sequence, all on one KV head. */
typedef struct {
  const float *q; /* row r, head h at q + r * q_stride + h * head_dim */
  float *out;     /* same shape as q */
  int64_t q_stride;
  const int32_t *positions; /* n_rows, ascending */
  int32_t n_rows;
  int32_t head0;
  int32_t n_heads;
  int32_t kv_head;
  int32_t n_kv_heads;
  int32_t head_dim;
  float scale;
  const uint8_t *arena; /* KV pages */
  int64_t page_bytes;
  int64_t
      layer_offset; /* of this layer inside a page: keys [kv_head][head_dim][PAGE], then values [kv_head][PAGE][head_dim] */
  const int32_t *pages; /* page index per chunk of this sequence */
} sipd_attention;

/* The operations of one ISA. */
typedef struct {
  const char *name;
  int32_t lanes;
  void (*quantize)(const float *x, int32_t n, sipd_q8_block *out);
  void (*rms_norm)(const float *x, const float *w, int32_t n, float eps, float *out);
  void (*silu_mul)(const float *gate, const float *up, int32_t n, float *out);
  void (*rope)(float *v, int32_t n_heads, int32_t head_dim, int32_t n_rot, int32_t is_neox, const float *cos_sin);
  void (*store_kv)(const float *k, const float *v, int32_t n_kv_heads, int32_t head_dim, int32_t slot, uint8_t *layer);
  void (*attention)(const sipd_attention *a, uint8_t *scratch);
  void (*matmul)(const sipd_matmul *m, int32_t panel0, int32_t panel1, uint8_t *scratch);
  void (*repack)(int32_t type, uint8_t *panel, int64_t row_bytes, int32_t n_in, uint8_t *scratch);
  void (*extract_row)(int32_t type, const uint8_t *panel, int64_t row_bytes, int32_t n_in, int32_t lane, uint8_t *row);
} sipd_ops;

/* Whether the type is made of blocks: they meet quantised activations, and have a packed form (repack.c). */
static inline int sipd_is_block_type(int32_t type) { return type != SIPD_F32 && type != SIPD_F16 && type != SIPD_BF16; }

#endif
