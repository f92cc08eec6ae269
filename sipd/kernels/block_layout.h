/* block_layout: how many bytes, weights and leading f16 numbers a block of each type has. */
#ifndef SIPD_BLOCK_LAYOUT_H
#define SIPD_BLOCK_LAYOUT_H

#include "contract.h"

static inline int block_bytes(int type) {
  switch (type) {
    case SIPD_Q4_0: return 18;
    case SIPD_Q4_1: return 20;
    case SIPD_Q5_0: return 22;
    case SIPD_Q5_1: return 24;
    case SIPD_Q8_0: return 34;
    case SIPD_Q4_K: return 144;
    case SIPD_Q5_K: return 176;
    case SIPD_Q6_K: return 210;
    default: return 0;
  }
}

static inline int is_k_type(int type) { return type == SIPD_Q4_K || type == SIPD_Q5_K || type == SIPD_Q6_K; }

static inline int block_weights(int type) { return is_k_type(type) ? 256 : 32; }

/* f16 numbers before the dwords; those of Q4_K and Q5_K count as a dword, that of Q6_K comes last. */
static inline int head_halves(int type) {
  switch (type) {
    case SIPD_Q4_0:
    case SIPD_Q5_0:
    case SIPD_Q8_0: return 1;
    case SIPD_Q4_1:
    case SIPD_Q5_1: return 2;
    default: return 0;
  }
}

static inline int tail_halves(int type) { return type == SIPD_Q6_K; }

static inline int block_dwords(int type) {
  return (block_bytes(type) - 2 * head_halves(type) - 2 * tail_halves(type)) / 4;
}

#endif
