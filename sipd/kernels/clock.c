/* clock: monotonic time in nanoseconds. */
#define _GNU_SOURCE
#include <time.h>

#include "sipd.h"

int64_t sipd_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
