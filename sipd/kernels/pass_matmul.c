/* pass_matmul: the products of one step. Tiles are taken as the stream hands them over, and those that are ready
 * together run together, so that a resident model pays one rendezvous of the threads per step. */
#include <string.h>

#include "model.h"

#define BATCH 64

typedef struct {
  sipd_model *m;
  int n, n_items;
  sipd_matmul products[BATCH];
  int first_item[BATCH + 1];
  int grain[BATCH]; /* panels of one item */
  int repack[BATCH];
  int tile[BATCH];
  _Atomic int32_t next;
} batch;

static void run_items(void *arg, int thread) {
  batch *b = arg;
  sipd_model *m = b->m;
  for (int item, i = 0; (item = atomic_fetch_add(&b->next, 1)) < b->n_items;) {
    while (item >= b->first_item[i + 1]) i++;
    sipd_matmul product = b->products[i];
    const int n_panels = (product.n_out + SIPD_PANEL - 1) / SIPD_PANEL,
              panel0 = (item - b->first_item[i]) * b->grain[i];
    const int panel1 = panel0 + b->grain[i] < n_panels ? panel0 + b->grain[i] : n_panels;
    if (b->repack[i]) {
      for (int p = panel0; p < panel1 && p < product.n_out / SIPD_PANEL; p++)
        m->ops->repack(product.type, (uint8_t *)(uintptr_t)product.w + (int64_t)p * SIPD_PANEL * product.row_bytes,
                       product.row_bytes, product.n_in, m->scratch[thread]);
      product.is_packed = 1;
    }
    if (product.n_rows) m->ops->matmul(&product, panel0, panel1, m->scratch[thread]);
  }
}

static float *output(sipd_model *m, const sipd_matrix *w, int64_t *stride) {
  const sipd_model_config *c = &m->c;
  switch (w->buffer) {
    case SIPD_BUFFER_X: *stride = c->d_model; return m->x;
    case SIPD_BUFFER_Q: *stride = (int64_t)c->n_heads * c->head_dim; return m->q;
    case SIPD_BUFFER_K: *stride = (int64_t)c->n_kv_heads * c->head_dim; return m->k;
    case SIPD_BUFFER_V: *stride = (int64_t)c->n_kv_heads * c->head_dim; return m->v;
    case SIPD_BUFFER_GATE: *stride = c->d_ff; return m->gate;
    case SIPD_BUFFER_UP: *stride = c->d_ff; return m->up;
    default: *stride = c->vocab_size; return m->logits;
  }
}

static void add_product(batch *b, int t, const uint8_t *data) {
  sipd_model *m = b->m;
  const sipd_tile *tile = &m->tiles[t];
  const sipd_matrix *w = &m->matrices[tile->matrix];
  const int is_pinned = sipd_stream_pinned(m->stream, tile->extent) != NULL;
  int64_t stride;
  float *out = output(m, w, &stride) + tile->row0;
  const int n_rows = w->buffer == SIPD_BUFFER_LOGITS ? m->n_logits : m->n_rows, i = b->n++;
  b->products[i] = (sipd_matmul){.type = w->type,
                                 .is_packed = m->is_packed[t],
                                 .n_in = w->n_in,
                                 .n_out = tile->n_rows,
                                 .row_bytes = w->row_bytes,
                                 .w = data + tile->offset,
                                 .xq = m->quantized,
                                 .xf = m->input,
                                 .xf_stride = w->n_in,
                                 .n_rows = n_rows,
                                 .add = w->add,
                                 .out = out,
                                 .out_stride = stride,
                                 .bias = w->bias ? w->bias + tile->row0 : NULL};
  b->repack[i] = is_pinned && m->c.repack && !m->is_packed[t] && sipd_is_block_type(w->type);
  b->tile[i] = t;
  const int n_panels = (tile->n_rows + SIPD_PANEL - 1) / SIPD_PANEL;
  /* items of some tens of microseconds: small enough to even out, large enough not to matter */
  const int64_t work = (int64_t)w->n_in * (n_rows < 4 ? 4 : n_rows);
  int grain = (int)(262144 / (work + 1)) + 1;
  if (n_rows > 4 && grain < 4) grain = 4; /* panels swept together share the rows in cache */
  b->grain[i] = grain;
  b->first_item[i + 1] = b->first_item[i] + (n_panels + grain - 1) / grain;
}

/* Multiplies tiles [tile0, tile1) of the step. */
int sipd_pass_matmul(sipd_model *m, const sipd_op *op, int64_t *wait_ns) {
  batch b;
  b.m = m;
  for (int t = op->tile0; t < op->tile1;) {
    const uint8_t *data = sipd_stream_acquire(m->stream, m->tiles[t].extent, 0);
    if (!data) {
      const int64_t begin = sipd_now_ns();
      data = sipd_stream_acquire(m->stream, m->tiles[t].extent, 1);
      *wait_ns += sipd_now_ns() - begin;
      if (!data) return SIPD_PASS_FAULT;
    }
    b.n = 0;
    b.first_item[0] = 0;
    const int first = t;
    while (data) {
      add_product(&b, t, data);
      t++;
      if (t == op->tile1 || b.n == BATCH) break;
      data = sipd_stream_acquire(m->stream, m->tiles[t].extent, 0);
    }
    b.n_items = b.first_item[b.n];
    atomic_store(&b.next, 0);
    sipd_model_run(m, b.n_items < 2, run_items, &b);
    for (int i = 0; i < b.n; i++)
      if (b.repack[i]) m->is_packed[b.tile[i]] = 1;
    for (int i = first; i < t; i++) {
      const int is_last_of_extent = i + 1 == m->end_tile || m->tiles[i + 1].extent != m->tiles[i].extent;
      if (is_last_of_extent) sipd_stream_release(m->stream, m->tiles[i].extent);
    }
    m->control->steps++;
    if (m->control->cancel && t < op->tile1) return SIPD_PASS_CANCELLED;
  }
  return SIPD_PASS_DONE;
}
