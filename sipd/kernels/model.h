/* model: the state of one loaded model, shared by pass.c and its parts. Owned by the one thread that runs passes. */
#ifndef SIPD_MODEL_H
#define SIPD_MODEL_H

#include <stdatomic.h>

#include "sipd.h"

#define MAX_THREADS 64

struct sipd_model {
  sipd_model_config c;
  const sipd_ops *ops;
  sipd_pool *pool;
  sipd_stream *stream;
  sipd_tile *tiles;
  sipd_matrix *matrices;
  sipd_op *program;
  uint8_t *is_packed; /* per tile: rearranged in its pinned place */
  uint8_t *is_counted; /* per tile: pinned, and its read is on the account of an earlier pass */
  float *inverse_frequencies;

  uint8_t *arena; /* all of the below */
  int64_t arena_bytes;
  float *x;                 /* max_rows x d_model: the residual stream */
  float *normed;            /* max_rows x d_model when a product reads f32 from it, else one row a thread */
  sipd_q8_block *quantized; /* max_rows x input_width / 32: what the next products read */
  float *q, *k, *v;         /* max_rows x heads * head_dim */
  float *gate, *up;         /* max_rows x d_ff */
  float *logits;            /* max_logit_rows x vocab_size */
  float *selected;          /* max_logit_rows x d_model */
  float *cos_sin;           /* max_rows x n_rot */
  sipd_row *rows;           /* max_rows: those of the pass under way that were not dropped */
  int32_t *positions;       /* max_rows */
  int32_t *row_blocks;      /* max_rows + 1: first rows of the blocks that attention takes together */
  uint8_t *scratch[MAX_THREADS];
  int64_t scratch_bytes;
  const float *input; /* what the next products read, in f32: normed rows, attention in q, or silu in gate */

  uint8_t *pages;
  int64_t pages_bytes, page_bytes;

  /* the pass under way */
  int32_t n_rows, n_logits;
  int32_t end_tile; /* it multiplies no tile from here on: the head's, when no row wants logits */
  const int32_t *page_list, *page_starts;
  sipd_control *control;
  sipd_pass_counters counters;
  _Atomic int32_t next_item;
  _Atomic int32_t has_fault;
};

/* Runs `job` on every thread of the pool, or on the caller alone when there is little to do. */
void sipd_model_run(sipd_model *m, int is_small, void (*job)(void *, int), void *arg);

int sipd_embed(sipd_model *m);
int sipd_pass_matmul(sipd_model *m, const sipd_op *op, int64_t *wait_ns);
void sipd_pass_attention(sipd_model *m, const sipd_op *op);

#endif
