/* The C ABI that binding.py speaks. Structs are plain; sizes are bytes unless said otherwise; 0 is success. */
#ifndef SIPD_H
#define SIPD_H

#include <stddef.h>
#include <stdint.h>

#include "contract.h"

/* One read: a run of bytes of one file that holds one or more neighbouring tiles. */
typedef struct {
  int32_t file;
  int32_t is_pinned;
  int64_t offset;
  int64_t length;
  int64_t pin_offset; /* of its aligned span in the pin arena, when pinned */
} sipd_extent;

/* Where the latest failing read was. error_number 0: the file ended early. */
typedef struct {
  int32_t error_number;
  int32_t file;
  int64_t offset;
  int64_t wanted;
  int64_t got;
} sipd_read_fault;

typedef struct {
  int64_t plan_bytes;   /* bytes of extents read */
  int64_t device_bytes; /* bytes that the reads moved, alignment included */
  int64_t busy_ns;      /* time with at least one read in flight */
} sipd_stream_counters;

typedef struct sipd_stream sipd_stream;

typedef struct {
  int32_t n_extents;
  int32_t n_slots;
  int32_t n_readers;
  int32_t drop_cache; /* buffered reads: tell the kernel to forget the pages */
  int64_t slot_bytes; /* room for the largest aligned span */
  int64_t slack;      /* readable bytes wanted past the last slot and the last pinned extent */
  int64_t pin_bytes;
  int64_t alignment; /* of offsets, lengths and addresses; 1 for buffered reads */
} sipd_stream_config;

/* Monotonic time. */
int64_t sipd_now_ns(void);

sipd_stream *sipd_stream_create(const sipd_stream_config *config, const sipd_extent *extents);
void sipd_stream_destroy(sipd_stream *s);
/* Gives the readers their file descriptors; waits until no read is in flight, forgets faults and starts over. */
void sipd_stream_open(sipd_stream *s, const int32_t *fds, int32_t n_files, int64_t alignment);
/* The bytes of an extent, in plan order; blocks when `wait`. NULL: not ready, or a fault (see sipd_stream_fault). */
const uint8_t *sipd_stream_acquire(sipd_stream *s, int32_t extent, int32_t wait);
/* The same for a pinned extent, out of order; NULL when not loaded yet. */
const uint8_t *sipd_stream_pinned(sipd_stream *s, int32_t extent);
void sipd_stream_release(sipd_stream *s, int32_t extent);
/* At most so many reads in flight from now on; at first as many as there are readers. */
void sipd_stream_set_depth(sipd_stream *s, int32_t depth);
/* A pass begins; it acquires no streamed extent from `limit` on. The readers pass those over, now or in the next passes
 * until one wants them; what they had read ahead of them is dropped by sipd_stream_end. */
void sipd_stream_begin(sipd_stream *s, int32_t limit);
/* The pass has released all that it acquired: the next one begins at extent 0. Waits for dropped reads in flight. */
void sipd_stream_end(sipd_stream *s);
/* Starts over at extent 0: what was read ahead is dropped, pinned extents stay. */
void sipd_stream_rewind(sipd_stream *s);
int sipd_stream_is_pinned(const sipd_stream *s, int32_t extent);
/* Changes which extents are pinned, and the ring; for the owner, between passes. The pages of extents that are pinned no
 * more go back to the kernel, those pinned again are read anew; places in the pin arena stay. Starts over at extent 0.
 * -1: no memory for the ring, and nothing has changed. Tell the model: sipd_model_repinned. */
int sipd_stream_repin(sipd_stream *s, const uint8_t *is_pinned, int32_t n_slots, int64_t slot_bytes);
/* Reports a fault that a read outside the ring met; the readers stop until sipd_stream_open or _rewind. */
void sipd_stream_fail(sipd_stream *s, const sipd_read_fault *fault);
int sipd_stream_fault(sipd_stream *s, sipd_read_fault *out);
void sipd_stream_read_counters(sipd_stream *s, sipd_stream_counters *out);
int sipd_stream_fd(sipd_stream *s, int32_t file);
int64_t sipd_stream_alignment(const sipd_stream *s);
/* Reads [begin, begin + wanted), asking for up to `capacity` bytes. -1: see fault. */
int sipd_read_span(int fd, uint8_t *buffer, int64_t begin, int64_t wanted, int64_t capacity, sipd_read_fault *fault);

/* A pool of threads that park when idle. job(arg, thread index) runs once on every thread. */
typedef struct sipd_pool sipd_pool;
sipd_pool *sipd_pool_create(int32_t n_threads);
void sipd_pool_destroy(sipd_pool *p);
void sipd_pool_run(sipd_pool *p, void (*job)(void *, int), void *arg);
int sipd_pool_size(const sipd_pool *p);

/* A run of output rows of one matrix. */
typedef struct {
  int32_t extent;
  int32_t matrix;
  int64_t offset; /* from the extent's first byte */
  int32_t row0;
  int32_t n_rows;
} sipd_tile;

enum {
  SIPD_BUFFER_X,
  SIPD_BUFFER_Q,
  SIPD_BUFFER_K,
  SIPD_BUFFER_V,
  SIPD_BUFFER_GATE,
  SIPD_BUFFER_UP,
  SIPD_BUFFER_LOGITS
};

typedef struct {
  int32_t type;
  int32_t n_in;
  int32_t n_out;
  int32_t buffer; /* where the outputs go */
  int32_t add;    /* joins the residual */
  int32_t reserved;
  int64_t row_bytes;
  const float *bias;
} sipd_matrix;

enum { SIPD_OP_NORM, SIPD_OP_MATMUL, SIPD_OP_ATTENTION, SIPD_OP_SILU, SIPD_OP_SELECT };

/* One step of a pass. NORM, ATTENTION and SILU leave the input of the next products, quantised if asked. */
typedef struct {
  int32_t kind;
  int32_t layer;
  int32_t tile0;
  int32_t tile1;
  int32_t quantize;
  int32_t reserved;
  const float *weight;
} sipd_op;

typedef struct {
  int32_t d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab_size, n_layers;
  int32_t n_rot, is_neox;
  float rms_eps, attention_scale;
  int32_t max_rows, max_logit_rows;
  int32_t n_pages;
  int32_t n_tiles, n_matrices, n_ops;
  int32_t head_tile0; /* tiles from here on are the output head */
  int32_t repack;     /* rearrange pinned tiles for this ISA */
  int32_t embedding_file;
  int32_t embedding_type;
  int32_t embedding_tile0, embedding_tile1; /* tiles that hold the embedding's rows, when some are pinned */
  int32_t keeps_float;                      /* some product reads f32 activations */
  int32_t embedding_waits;                  /* those tiles are loaded for the embedding alone: wait for them */
  int64_t embedding_offset, embedding_row_bytes;
  const float *inverse_frequencies; /* n_rot / 2 */
} sipd_model_config;

typedef struct {
  int32_t token;
  int32_t position;
  int32_t sequence;
  int32_t logits; /* index of its logits row, or -1 */
} sipd_row;

enum { SIPD_KEEP, SIPD_DROP, SIPD_DROPPED };

/* Written by the pass, read by other threads while it runs. `cancel` is written by others; so is drops[i], for sequence
 * i of the pass, from SIPD_KEEP to SIPD_DROP: before the next layer its rows leave the pass, which then writes
 * SIPD_DROPPED. Keys and values of these rows are incomplete, their logits undefined. The owner sets SIPD_KEEP again. */
typedef struct {
  volatile int32_t cancel;
  volatile int32_t layer;
  volatile int64_t steps;
  volatile int32_t *drops; /* as many as there may be sequences, or NULL */
} sipd_control;

typedef struct {
  int64_t streamed_bytes; /* blocks, head and embedding rows that came from storage for this pass */
  int64_t head_bytes;
  int64_t embedding_bytes;
  int64_t embedding_device_bytes; /* what reading those rows moved, alignment included */
  int64_t storage_wait_ns;
  int64_t total_ns;
} sipd_pass_counters;

enum { SIPD_PASS_DONE, SIPD_PASS_CANCELLED, SIPD_PASS_FAULT };

typedef struct sipd_model sipd_model;

int sipd_contract_version(void);
int sipd_isa_count(void);
const char *sipd_isa_name(int i);
int sipd_isa_is_supported(int i);
const sipd_ops *sipd_isa_ops(int i);

sipd_model *sipd_model_create(const sipd_model_config *config, int isa, sipd_pool *pool, sipd_stream *stream,
                              const sipd_tile *tiles, const sipd_matrix *matrices, const sipd_op *ops);
void sipd_model_destroy(sipd_model *m);
/* Bytes of all buffers of a pass: activations, logits, scratch. */
int64_t sipd_activation_bytes(const sipd_model_config *c, int n_threads);
int64_t sipd_page_bytes(const sipd_model_config *c);
/* One pass. rows: sorted by sequence, positions ascending within one. pages[page_starts[i] ..]: the pages of sequence i.
 * SIPD_PASS_CANCELLED when it is cancelled or every sequence is dropped. */
int sipd_model_pass(sipd_model *m, const sipd_row *rows, int32_t n_rows, int32_t n_logits, const int32_t *pages,
                    const int32_t *page_starts, sipd_control *control, sipd_pass_counters *counters);
/* Forgets what is known of tiles that are pinned no more; between passes, after sipd_stream_repin. */
void sipd_model_repinned(sipd_model *m);
float *sipd_model_logits(sipd_model *m, int32_t i);
/* The bytes of KV page i, sipd_page_bytes of them; for the thread that runs passes, between them. */
uint8_t *sipd_model_page(sipd_model *m, int32_t i);
void sipd_model_copy_page(sipd_model *m, int32_t from, int32_t to);

typedef struct {
  float temperature, top_p, min_p;
  int32_t top_k;
  float repetition_penalty, presence_penalty, frequency_penalty;
  int32_t n_biases;
  const int32_t *bias_ids;
  const float *biases;
  int32_t n_context; /* distinct tokens of prompt and output, for repetition_penalty */
  int32_t n_top;     /* alternatives wanted with log probabilities; -1: no log probabilities at all */
  const int32_t *context_ids;
  const int32_t *output_counts; /* times each context id occurs in the output */
  uint64_t seed;
  uint64_t position; /* index of the output token */
} sipd_sampling;

typedef struct {
  int32_t id;
  float logprob;
  int32_t top_ids[20];
  float top_logprobs[20];
} sipd_sample_out;

/* Draws one token; logits are changed in place. scratch: 8 * n bytes. Returns -1 when the logits are not finite. */
int sipd_sample(float *logits, int32_t n, const sipd_sampling *options, uint8_t *scratch, sipd_sample_out *out);

#endif
