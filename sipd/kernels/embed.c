/* embed: the rows of a pass start as rows of the embedding; only those rows are read. */
#include <stdlib.h>
#include <string.h>

#include "dequantize.h"
#include "model.h"

/* Bytes of a token's row from a pinned tile; NULL when it is not in memory. */
static const uint8_t *pinned_row(sipd_model *m, int token, uint8_t *spare) {
  const sipd_model_config *c = &m->c;
  if (c->embedding_tile0 == c->embedding_tile1) return NULL;
  const int t = c->embedding_tile0 + token / m->tiles[c->embedding_tile0].n_rows;
  const sipd_tile *tile = &m->tiles[t];
  const uint8_t *data = sipd_stream_pinned(m->stream, tile->extent);
  if (!data) return NULL;
  const int row = token - tile->row0, panel = row / SIPD_PANEL;
  data += tile->offset;
  if (!m->is_packed[t] || panel >= tile->n_rows / SIPD_PANEL) return data + row * c->embedding_row_bytes;
  m->ops->extract_row(c->embedding_type, data + (int64_t)panel * SIPD_PANEL * c->embedding_row_bytes,
                      c->embedding_row_bytes, c->d_model, row % SIPD_PANEL, spare);
  return spare;
}

typedef struct {
  sipd_model *m;
  _Atomic int64_t bytes, device_bytes;
  _Atomic int32_t next;
} embed_job;

static void embed_rows(void *arg, int thread) {
  embed_job *job = arg;
  sipd_model *m = job->m;
  const sipd_model_config *c = &m->c;
  const int64_t alignment = sipd_stream_alignment(m->stream);
  uint8_t *spare = m->scratch[thread], *aligned = (uint8_t *)(((uintptr_t)spare + 4095) / 4096 * 4096);
  for (int r; (r = atomic_fetch_add(&job->next, 1)) < m->n_rows && !atomic_load(&m->has_fault);) {
    const int token = m->rows[r].token;
    const uint8_t *row = pinned_row(m, token, spare);
    if (!row) {
      const int64_t offset = c->embedding_offset + token * c->embedding_row_bytes,
                    begin = offset / alignment * alignment;
      const int64_t wanted = offset + c->embedding_row_bytes - begin;
      const int64_t capacity = (wanted + alignment - 1) / alignment * alignment;
      sipd_read_fault fault = {0};
      if (sipd_read_span(sipd_stream_fd(m->stream, c->embedding_file), aligned, begin, wanted, capacity, &fault)) {
        fault.file = c->embedding_file;
        sipd_stream_fail(m->stream, &fault);
        atomic_store(&m->has_fault, 1);
        return;
      }
      atomic_fetch_add(&job->bytes, c->embedding_row_bytes);
      atomic_fetch_add(&job->device_bytes, capacity);
      row = aligned + (offset - begin);
    }
    sipd_dequantize_row(c->embedding_type, row, c->d_model, m->x + (int64_t)r * c->d_model);
  }
}

int sipd_embed(sipd_model *m) {
  embed_job job = {.m = m};
  for (int t = m->c.embedding_tile0; m->c.embedding_waits && t < m->c.embedding_tile1; t++) {
    if (!sipd_stream_acquire(m->stream, m->tiles[t].extent, 1)) return SIPD_PASS_FAULT;
    if (!m->is_counted[t]) job.bytes += m->tiles[t].n_rows * m->c.embedding_row_bytes; /* read for this pass, once */
    m->is_counted[t] = 1;
  }
  sipd_model_run(m, m->n_rows < 4, embed_rows, &job);
  m->counters.embedding_bytes = atomic_load(&job.bytes);
  m->counters.embedding_device_bytes = atomic_load(&job.device_bytes);
  m->counters.streamed_bytes += m->counters.embedding_bytes;
  return atomic_load(&m->has_fault) ? SIPD_PASS_FAULT : SIPD_PASS_DONE;
}
