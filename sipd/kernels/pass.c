/* pass: one walk over the program of a model, for all rows at once. One call, no allocation; a lock only where a
 * streamed extent is waited for or given back. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "mapping.h"
#include "model.h"
#include "rope_angles.h"

void sipd_model_run(sipd_model *m, int is_small, void (*job)(void *, int), void *arg) {
  if (is_small)
    job(arg, 0);
  else
    sipd_pool_run(m->pool, job, arg);
}

static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static int input_width(const sipd_model_config *c) {
  int width = c->d_model > c->d_ff ? c->d_model : c->d_ff;
  if (c->n_heads * c->head_dim > width) width = c->n_heads * c->head_dim;
  return (width + 31) / 32 * 32;
}

/* Bytes of one thread's scratch: the largest of an unpacked sweep, an attention item, a panel, an embedding row. */
static int64_t scratch_bytes(const sipd_model_config *c) {
  const int64_t n_units = input_width(c) / 32, unpacked = n_units * 40 * 16;
  const int64_t sweep = n_units * 8 * 16 + (unpacked > (256 << 10) ? unpacked : (256 << 10) + unpacked);
  const int64_t padded = (c->head_dim + 15) / 16 * 16, queries = 16 * (c->n_heads / c->n_kv_heads);
  const int64_t attention = 2 * SIPD_PAGE * padded * 4 + queries * (padded * 4 + 8);
  const int64_t panel = SIPD_PANEL * (int64_t)input_width(c) * 4 + 2 * 4096,
                row = 4 * c->embedding_row_bytes + 4 * 4096;
  int64_t most = sweep > attention ? sweep : attention;
  if (panel > most) most = panel;
  return aligned((row > most ? row : most) + 4096);
}

/* Places the buffers one after another; with base NULL only counts. */
static int64_t place(sipd_model *m, uint8_t *base, int n_threads) {
  const sipd_model_config *c = &m->c;
  const int64_t rows = c->max_rows, width = input_width(c);
  int64_t at = 0;
#define TAKE(field, count) \
  do { \
    if (base) m->field = (void *)(base + at); \
    at += aligned((int64_t)(count) * (int64_t)sizeof *m->field); \
  } while (0)
  TAKE(x, rows * c->d_model);
  TAKE(normed, c->keeps_float ? rows * c->d_model : (int64_t)n_threads * c->d_model);
  TAKE(quantized, rows * width / 32);
  /* q, k and v are done with before gate and up are written */
  const int64_t begin = at;
  TAKE(q, rows * c->n_heads * c->head_dim);
  TAKE(k, rows * c->n_kv_heads * c->head_dim);
  TAKE(v, rows * c->n_kv_heads * c->head_dim);
  const int64_t attention_end = at;
  at = begin;
  TAKE(gate, rows * c->d_ff);
  TAKE(up, rows * c->d_ff);
  if (at < attention_end) at = attention_end;
  TAKE(cos_sin, rows * c->n_rot);
  TAKE(rows, rows);
  TAKE(positions, rows);
  TAKE(row_blocks, rows + 1);
  TAKE(logits, (int64_t)c->max_logit_rows * c->vocab_size);
  TAKE(selected, (int64_t)c->max_logit_rows * c->d_model);
  for (int i = 0; i < n_threads; i++) TAKE(scratch[i], scratch_bytes(c));
#undef TAKE
  return at;
}

int64_t sipd_activation_bytes(const sipd_model_config *c, int n_threads) {
  sipd_model m = {.c = *c};
  return place(&m, NULL, n_threads);
}

int64_t sipd_page_bytes(const sipd_model_config *c) {
  return (int64_t)c->n_layers * 4 * c->n_kv_heads * c->head_dim * SIPD_PAGE;
}

static void *copy_of(const void *from, size_t bytes) {
  void *p = malloc(bytes ? bytes : 1);
  if (p && bytes) memcpy(p, from, bytes);
  return p;
}

sipd_model *sipd_model_create(const sipd_model_config *config, int isa, sipd_pool *pool, sipd_stream *stream,
                              const sipd_tile *tiles, const sipd_matrix *matrices, const sipd_op *ops) {
  sipd_model *m = calloc(1, sizeof *m);
  if (!m) return NULL;
  m->c = *config;
  m->ops = sipd_isa_ops(isa);
  m->pool = pool;
  m->stream = stream;
  m->tiles = copy_of(tiles, sizeof *tiles * (size_t)config->n_tiles);
  m->matrices = copy_of(matrices, sizeof *matrices * (size_t)config->n_matrices);
  m->program = copy_of(ops, sizeof *ops * (size_t)config->n_ops);
  m->inverse_frequencies = copy_of(config->inverse_frequencies, sizeof(float) * (size_t)(config->n_rot / 2));
  m->is_packed = calloc((size_t)config->n_tiles, 1);
  m->is_counted = calloc((size_t)config->n_tiles, 1);
  m->arena_bytes = place(m, NULL, sipd_pool_size(pool));
  m->arena = sipd_map((size_t)m->arena_bytes);
  m->page_bytes = sipd_page_bytes(config);
  m->pages_bytes = m->page_bytes * config->n_pages;
  m->pages = sipd_map((size_t)m->pages_bytes);
  if (!m->tiles || !m->matrices || !m->program || !m->inverse_frequencies || !m->is_packed || !m->is_counted ||
      !m->arena || !m->pages) {
    sipd_model_destroy(m);
    return NULL;
  }
  place(m, m->arena, sipd_pool_size(pool));
  return m;
}

void sipd_model_destroy(sipd_model *m) {
  if (!m) return;
  if (m->arena) munmap(m->arena, (size_t)m->arena_bytes);
  if (m->pages) munmap(m->pages, (size_t)m->pages_bytes);
  free(m->is_packed);
  free(m->is_counted);
  free(m->inverse_frequencies);
  free(m->program);
  free(m->matrices);
  free(m->tiles);
  free(m);
}

void sipd_model_repinned(sipd_model *m) {
  for (int t = 0; t < m->c.n_tiles; t++)
    if (!sipd_stream_is_pinned(m->stream, m->tiles[t].extent)) m->is_packed[t] = m->is_counted[t] = 0;
}

float *sipd_model_logits(sipd_model *m, int32_t i) { return m->logits + (int64_t)i * m->c.vocab_size; }

uint8_t *sipd_model_page(sipd_model *m, int32_t i) { return m->pages + i * m->page_bytes; }

void sipd_model_copy_page(sipd_model *m, int32_t from, int32_t to) {
  memmove(sipd_model_page(m, to), sipd_model_page(m, from), (size_t)m->page_bytes);
}

typedef struct {
  sipd_model *m;
  const sipd_op *op;
  int n_rows;
  _Atomic int32_t next;
} row_job;

static void quantize_row(sipd_model *m, const sipd_op *op, const float *x, int row, int width) {
  if (op->quantize) m->ops->quantize(x, width, m->quantized + (int64_t)row * (width / 32));
}

static void norm_rows(void *arg, int thread) {
  row_job *job = arg;
  sipd_model *m = job->m;
  const int d = m->c.d_model;
  const float *from = job->op->layer < 0 ? m->selected : m->x;
  for (int r; (r = atomic_fetch_add(&job->next, 1)) < job->n_rows;) {
    float *out = m->normed + (int64_t)(m->c.keeps_float ? r : thread) * d;
    m->ops->rms_norm(from + (int64_t)r * d, job->op->weight, d, m->c.rms_eps, out);
    quantize_row(m, job->op, out, r, d);
  }
}

static void silu_rows(void *arg, int thread) {
  (void)thread;
  row_job *job = arg;
  sipd_model *m = job->m;
  const int n = m->c.d_ff;
  for (int r; (r = atomic_fetch_add(&job->next, 1)) < job->n_rows;) {
    float *out = m->gate + (int64_t)r * n;
    m->ops->silu_mul(out, m->up + (int64_t)r * n, n, out);
    quantize_row(m, job->op, out, r, n);
  }
}

static void quantize_attention(void *arg, int thread) {
  (void)thread;
  row_job *job = arg;
  const int n = job->m->c.n_heads * job->m->c.head_dim;
  for (int r; (r = atomic_fetch_add(&job->next, 1)) < job->n_rows;)
    quantize_row(job->m, job->op, job->m->q + (int64_t)r * n, r, n);
}

static void run_rows(sipd_model *m, const sipd_op *op, int n_rows, void (*job)(void *, int)) {
  row_job j = {.m = m, .op = op, .n_rows = n_rows};
  sipd_model_run(m, n_rows < 4, job, &j);
}

/* A dropped sequence's row is 0, as in the twin: the head multiplies it, and no layer has computed it. */
static void select_rows(sipd_model *m) {
  memset(m->selected, 0, sizeof(float) * (size_t)m->n_logits * (size_t)m->c.d_model);
  for (int r = 0; r < m->n_rows; r++)
    if (m->rows[r].logits >= 0)
      memcpy(m->selected + (int64_t)m->rows[r].logits * m->c.d_model, m->x + (int64_t)r * m->c.d_model,
             sizeof(float) * (size_t)m->c.d_model);
}

/* Moves the rows from `from` on down to `to`, with all that outlives a layer. */
static void move_rows(sipd_model *m, int to, int from, int n) {
#define MOVE(field, width) \
  memmove(m->field + (int64_t)to * (width), m->field + (int64_t)from * (width), sizeof *m->field * (size_t)n * (width))
  MOVE(rows, 1);
  MOVE(positions, 1);
  MOVE(cos_sin, (size_t)m->c.n_rot);
  MOVE(x, (size_t)m->c.d_model);
#undef MOVE
}

/* Closes the gaps of sequences that nobody waits for any more; whether a row is left. Between two layers. */
static int drop_rows(sipd_model *m) {
  volatile int32_t *drops = m->control->drops;
  int n_kept = 0;
  for (int r = 0, end; drops && r < m->n_rows; r = end) {
    const int sequence = m->rows[r].sequence;
    for (end = r + 1; end < m->n_rows && m->rows[end].sequence == sequence;) end++;
    if (drops[sequence] == SIPD_KEEP) {
      if (n_kept < r) move_rows(m, n_kept, r, end - r);
      n_kept += end - r;
    } else {
      drops[sequence] = SIPD_DROPPED;
    }
  }
  if (drops) m->n_rows = n_kept;
  return m->n_rows > 0;
}

/* Bytes of the step's tiles that this pass takes from storage: a pinned tile costs the first pass that uses it. */
static void count_streamed(sipd_model *m, const sipd_op *op) {
  for (int t = op->tile0; t < op->tile1; t++) {
    const sipd_tile *tile = &m->tiles[t];
    if (m->is_counted[t]) continue;
    m->is_counted[t] = (uint8_t)sipd_stream_is_pinned(m->stream, tile->extent);
    const int64_t bytes = tile->n_rows * m->matrices[tile->matrix].row_bytes;
    m->counters.streamed_bytes += bytes;
    if (t >= m->c.head_tile0) m->counters.head_bytes += bytes;
  }
}

/* The first extent that no tile before `end_tile` lies in. */
static int32_t extent_limit(const sipd_model *m, int32_t end_tile) {
  return end_tile ? m->tiles[end_tile - 1].extent + 1 : 0;
}

int sipd_model_pass(sipd_model *m, const sipd_row *rows, int32_t n_rows, int32_t n_logits, const int32_t *pages,
                    const int32_t *page_starts, sipd_control *control, sipd_pass_counters *counters) {
  const int64_t begin = sipd_now_ns();
  memcpy(m->rows, rows, sizeof *rows * (size_t)n_rows);
  m->n_rows = n_rows;
  m->n_logits = n_logits;
  m->page_list = pages;
  m->page_starts = page_starts;
  m->control = control;
  m->end_tile = n_logits ? m->c.n_tiles : m->c.head_tile0;
  sipd_stream_begin(m->stream, extent_limit(m, m->end_tile));
  memset(&m->counters, 0, sizeof m->counters);
  atomic_store(&m->has_fault, 0);
  for (int r = 0; r < n_rows; r++) {
    m->positions[r] = rows[r].position;
    sipd_rope_angles(rows[r].position, m->inverse_frequencies, m->c.n_rot / 2, m->cos_sin + (int64_t)r * m->c.n_rot);
  }
  int status = sipd_embed(m);
  m->counters.storage_wait_ns = sipd_now_ns() - begin;
  for (int i = 0; i < m->c.n_ops && status == SIPD_PASS_DONE; i++) {
    const sipd_op *op = &m->program[i];
    if (op->kind == SIPD_OP_SELECT && !n_logits) break; /* inside a prompt: the head would be streamed for nothing */
    if ((i == 0 || op->layer != m->program[i - 1].layer) && !drop_rows(m)) {
      status = SIPD_PASS_CANCELLED;
      break;
    }
    switch (op->kind) {
      case SIPD_OP_NORM:
        run_rows(m, op, op->layer < 0 ? n_logits : m->n_rows, norm_rows);
        m->input = m->normed;
        break;
      case SIPD_OP_MATMUL:
        status = sipd_pass_matmul(m, op, &m->counters.storage_wait_ns);
        if (status == SIPD_PASS_DONE) count_streamed(m, op);
        break;
      case SIPD_OP_ATTENTION:
        sipd_pass_attention(m, op);
        run_rows(m, op, m->n_rows, quantize_attention);
        m->input = m->q;
        break;
      case SIPD_OP_SILU:
        run_rows(m, op, m->n_rows, silu_rows);
        m->input = m->gate;
        break;
      case SIPD_OP_SELECT: select_rows(m); break;
      default: break;
    }
    control->steps++;
    control->layer = op->layer;
    if (control->cancel && i + 1 < m->c.n_ops) status = SIPD_PASS_CANCELLED;
  }
  if (status == SIPD_PASS_DONE) {
    const int64_t end = sipd_now_ns();
    sipd_stream_end(m->stream);
    m->counters.storage_wait_ns += sipd_now_ns() - end;
  }
  m->counters.total_ns = sipd_now_ns() - begin;
  *counters = m->counters;
  return status;
}
