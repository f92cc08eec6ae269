/* Every type of weights that the unpackers know, for the programs that drive them. */
#ifndef WEIGHT_TYPES_H
#define WEIGHT_TYPES_H

#include <stdint.h>
#include <string.h>

#include "block_layout.h"
#include "sipd.h"

static const int types[] = {SIPD_F32,  SIPD_F16,  SIPD_BF16, SIPD_Q4_0, SIPD_Q4_1, SIPD_Q5_0,
                            SIPD_Q5_1, SIPD_Q8_0, SIPD_Q4_K, SIPD_Q5_K, SIPD_Q6_K};

/* Bytes of one row of n_in weights. */
static int64_t row_size(int type, int n_in) {
  if (type == SIPD_F32) return 4 * (int64_t)n_in;
  if (!sipd_is_block_type(type)) return 2 * (int64_t)n_in;
  return (int64_t)n_in / block_weights(type) * block_bytes(type);
}

/* Index of the first of n numbers whose bits differ, or -1. NaN on both sides is equal: which NaN comes out of an
 * addition is the machine's choice. */
static int first_unequal(const float *a, const float *b, int n) {
  for (int i = 0; i < n; i++)
    if (memcmp(a + i, b + i, 4) && !(a[i] != a[i] && b[i] != b[i])) return i;
  return -1;
}

#endif
