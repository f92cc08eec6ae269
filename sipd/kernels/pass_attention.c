/* pass_attention: rotates queries and keys, stores keys and values, and deals heads and rows out to the threads. */
#include <string.h>

#include "model.h"

#define ROW_BLOCK 16

typedef struct {
  sipd_model *m;
  int layer, head_group; /* query heads of one item */
  int n_blocks;
  _Atomic int32_t next;
} attention_job;

static uint8_t *layer_of_page(const sipd_model *m, int page, int layer) {
  return m->pages + page * m->page_bytes + layer * (m->page_bytes / m->c.n_layers);
}

static void rotate_and_store(void *arg, int thread) {
  (void)thread;
  attention_job *job = arg;
  sipd_model *m = job->m;
  const sipd_model_config *c = &m->c;
  for (int r; (r = atomic_fetch_add(&job->next, 1)) < m->n_rows;) {
    const float *cos_sin = m->cos_sin + (int64_t)r * c->n_rot;
    float *k = m->k + (int64_t)r * c->n_kv_heads * c->head_dim, *v = m->v + (int64_t)r * c->n_kv_heads * c->head_dim;
    m->ops->rope(m->q + (int64_t)r * c->n_heads * c->head_dim, c->n_heads, c->head_dim, c->n_rot, c->is_neox, cos_sin);
    m->ops->rope(k, c->n_kv_heads, c->head_dim, c->n_rot, c->is_neox, cos_sin);
    const sipd_row *row = &m->rows[r];
    const int page = m->page_list[m->page_starts[row->sequence] + row->position / SIPD_PAGE];
    m->ops->store_kv(k, v, c->n_kv_heads, c->head_dim, row->position % SIPD_PAGE, layer_of_page(m, page, job->layer));
  }
}

/* Cuts the rows into blocks of at most ROW_BLOCK of one sequence; returns how many, their first rows in row_blocks. */
static int cut_rows(sipd_model *m) {
  int n = 0;
  for (int r = 0; r < m->n_rows; n++) {
    m->row_blocks[n] = r;
    int end = r + 1;
    while (end < m->n_rows && end - r < ROW_BLOCK && m->rows[end].sequence == m->rows[r].sequence) end++;
    r = end;
  }
  m->row_blocks[n] = m->n_rows;
  return n;
}

static void attend(void *arg, int thread) {
  attention_job *job = arg;
  sipd_model *m = job->m;
  const sipd_model_config *c = &m->c;
  const int n_groups = c->n_heads / job->head_group, n_items = n_groups * job->n_blocks;
  for (int item; (item = atomic_fetch_add(&job->next, 1)) < n_items;) {
    /* the last blocks of a long prompt are the dearest: deal them out first */
    const int block = job->n_blocks - 1 - item / n_groups, row0 = m->row_blocks[block];
    const int n_rows = m->row_blocks[block + 1] - row0, head0 = item % n_groups * job->head_group;
    const int64_t stride = (int64_t)c->n_heads * c->head_dim;
    const sipd_attention a = {
        .q = m->q + row0 * stride,
        .out = m->q + row0 * stride, /* an item reads its own queries for the last time before it writes */
        .q_stride = stride,
        .positions = m->positions + row0,
        .n_rows = n_rows,
        .head0 = head0,
        .n_heads = job->head_group,
        .kv_head = head0 / (c->n_heads / c->n_kv_heads),
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .scale = c->attention_scale,
        .arena = m->pages,
        .page_bytes = m->page_bytes,
        .layer_offset = job->layer * (m->page_bytes / c->n_layers),
        .pages = m->page_list + m->page_starts[m->rows[row0].sequence]};
    m->ops->attention(&a, m->scratch[thread]);
  }
}

void sipd_pass_attention(sipd_model *m, const sipd_op *op) {
  attention_job job = {.m = m, .layer = op->layer};
  sipd_model_run(m, m->n_rows < 8, rotate_and_store, &job);
  job.n_blocks = cut_rows(m);
  const int group = m->c.n_heads / m->c.n_kv_heads;
  /* heads that share keys go together, unless that leaves a thread without work; results are the same either way */
  job.head_group = job.n_blocks * m->c.n_kv_heads < sipd_pool_size(m->pool) ? 1 : group;
  atomic_store(&job.next, 0);
  const int is_small = m->n_rows == 1 && m->positions[0] < 32;
  sipd_model_run(m, is_small, attend, &job);
}
