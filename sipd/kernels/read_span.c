/* read_span: one read of a file to its end, with what a device needs that resets itself. */
#define _GNU_SOURCE
#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "sipd.h"

/* Reads [begin, begin + wanted); up to `capacity` bytes so that the last block is whole. A short tail is the file's end. */
int sipd_read_span(int fd, uint8_t *buffer, int64_t begin, int64_t wanted, int64_t capacity, sipd_read_fault *fault) {
  int64_t got = 0;
  int tries = 0;
  while (got < wanted) {
    ssize_t n = pread(fd, buffer + got, (size_t)(capacity - got), begin + got);
    if (n > 0) {
      got += n;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EIO || errno == EAGAIN) && tries < 3) {
      tries++; /* a bus that resets itself needs a moment */
      struct timespec pause = {0, 20000000L << tries};
      nanosleep(&pause, NULL);
      continue;
    }
    fault->error_number = n < 0 ? errno : 0;
    fault->offset = begin + got;
    fault->wanted = wanted;
    fault->got = got;
    return -1;
  }
  return 0;
}
