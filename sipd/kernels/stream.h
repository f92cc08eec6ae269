/* stream.h: the state of one stream, shared by stream.c (the readers' side) and stream_pass.c (the pass's). */
#ifndef SIPD_STREAM_H
#define SIPD_STREAM_H

#include <pthread.h>
#include <stdatomic.h>

#include "sipd.h"

/* Bytes lie at their file offset modulo this, whatever alignment the reads need: a reopened file moves nothing. */
#define PLACE 4096

enum { PIN_EMPTY, PIN_READING, PIN_READY };

typedef struct {
  _Atomic int64_t ready_sequence; /* -1 unless its bytes are whole */
  int32_t extent;
  int32_t buffer; /* where in the ring its bytes are */
} slot;

struct sipd_stream {
  sipd_stream_config config;
  sipd_extent *extents;
  _Atomic int *pin_state;
  slot *slots;            /* by sequence number modulo their count */
  int32_t *free_buffers;  /* a stack: the buffer used last is the one that is still in the CPU's caches */
  int32_t n_free;
  uint8_t *ring, *pins;
  size_t ring_bytes, pins_bytes;
  int32_t fds[64];
  int64_t read_alignment;

  pthread_mutex_t mutex;
  pthread_cond_t work, ready;
  pthread_t *readers;
  int n_readers;
  int stop, paused, has_fault, in_flight, depth;
  int32_t cursor;           /* next extent that a reader looks at */
  int64_t cursor_lap;       /* walks over the plan that the cursor has ended */
  int64_t pass_lap;         /* the walk that the latest pass consumes; -1 before the first one */
  int32_t limit;            /* first extent that it leaves out; n_extents when it wants them all */
  int32_t n_dropped;        /* streamed extents from there on that were claimed before it said so */
  int64_t read_sequence;    /* streamed extents claimed by readers */
  int64_t release_sequence; /* streamed extents given back by the pass */
  int64_t acquire_sequence; /* owned by the pass */
  int32_t acquired_extent;  /* latest streamed extent acquired; owned by the pass */
  sipd_read_fault fault;
  sipd_stream_counters counters;
  int64_t since;
};

/* Stops claims and waits for the reads in flight; with the mutex held. */
void sipd_stream_quiesce(sipd_stream *s);
/* Empties the ring and lets the readers begin at extent 0; with the mutex held. */
void sipd_stream_start_over(sipd_stream *s);

static inline slot *slot_of(sipd_stream *s, int64_t sequence) { return &s->slots[sequence % s->config.n_slots]; }

#endif
