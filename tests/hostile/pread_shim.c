/* Stands before the C library's reads of one file (SHIM_PATH) and makes them late, short, interrupted or failing.
 *
 * Loaded by LD_PRELOAD; settings are changed while the process runs by shim_set. Reads of other files are untouched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { DELAY_US, SEED, SHORT, EINTR_PERCENT, FAIL_ERRNO, FAIL_DIRECT, REFUSE_DIRECT, FAIL_AFTER, N_SETTINGS };
static const char *const names[N_SETTINGS] = {
    "delay_us",    /* each read waits up to so long, by chance */
    "seed",        /* of all that happens by chance */
    "short",       /* 1: a read gives half of what was asked for, in whole sectors */
    "eintr",       /* so many reads of a hundred are interrupted */
    "errno",       /* every read fails with this number */
    "fail_direct", /* direct reads fail with this number */
    "refuse",      /* 1: open refuses O_DIRECT */
    "fail_after",  /* the two above wait for so many reads */
};
static _Atomic long settings[N_SETTINGS];
static _Atomic long n_reads, n_delays;

void shim_set(const char *name, long value) {
  for (int i = 0; i < N_SETTINGS; i++)
    if (!strcmp(name, names[i])) atomic_store(&settings[i], value);
  if (!strcmp(name, "fail_after")) atomic_store(&n_reads, 0);
}

long shim_reads(void) { return atomic_load(&n_reads); }

static long setting(int i) { return atomic_load(&settings[i]); }

/* A number by chance that depends on the seed and the place in the file alone, not on which thread comes first. */
static unsigned long chance(off_t offset, long salt) {
  unsigned long x = (unsigned long)offset * 0x9E3779B97F4A7C15ul + (unsigned long)(setting(SEED) + 1000003 * salt);
  x ^= x >> 31;
  x *= 0xBF58476D1CE4E5B9ul;
  x ^= x >> 29;
  x *= 0x94D049BB133111EBul;
  return x ^ x >> 32;
}

static int is_ours(int fd) {
  const char *path = getenv("SHIM_PATH");
  char link[64], found[4096];
  if (!path) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, found, sizeof found - 1);
  if (n <= 0) return 0;
  found[n] = 0;
  return !strncmp(found, path, strlen(path));
}

/* Bytes to ask for, or -1 with errno set. */
static ssize_t before(int fd, size_t count, off_t offset) {
  const long n = atomic_fetch_add(&n_reads, 1);
  if (setting(DELAY_US)) {
    const long us = (long)(chance(offset, atomic_fetch_add(&n_delays, 1)) % (unsigned long)setting(DELAY_US));
    const struct timespec pause = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&pause, NULL);
  }
  if (setting(EINTR_PERCENT) && (long)(chance(offset, n) % 100) < setting(EINTR_PERCENT)) {
    errno = EINTR;
    return -1;
  }
  if (n >= setting(FAIL_AFTER)) {
    if (setting(FAIL_ERRNO)) {
      errno = (int)setting(FAIL_ERRNO);
      return -1;
    }
    if (setting(FAIL_DIRECT) && fcntl(fd, F_GETFL) & O_DIRECT) {
      errno = (int)setting(FAIL_DIRECT);
      return -1;
    }
  }
  if (setting(SHORT) && count >= 1024) count = count / 2 / 512 * 512;
  return (ssize_t)count;
}

static ssize_t read_at(int fd, void *buffer, size_t count, off_t offset) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  if (!real) real = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
  if (is_ours(fd)) {
    const ssize_t wanted = before(fd, count, offset);
    if (wanted < 0) return -1;
    count = (size_t)wanted;
  }
  return real(fd, buffer, count, offset);
}

ssize_t pread(int fd, void *buffer, size_t count, off_t offset) { return read_at(fd, buffer, count, offset); }
ssize_t pread64(int fd, void *buffer, size_t count, off64_t offset) { return read_at(fd, buffer, count, offset); }

static ssize_t read_vector(int fd, const struct iovec *parts, int n_parts, off_t offset) {
  static ssize_t (*real)(int, const struct iovec *, int, off_t);
  if (!real) real = (ssize_t(*)(int, const struct iovec *, int, off_t))dlsym(RTLD_NEXT, "preadv64");
  if (n_parts != 1 || !is_ours(fd)) return real(fd, parts, n_parts, offset);
  return read_at(fd, parts->iov_base, parts->iov_len, offset);
}

ssize_t preadv(int fd, const struct iovec *p, int n, off_t offset) { return read_vector(fd, p, n, offset); }
ssize_t preadv64(int fd, const struct iovec *p, int n, off64_t offset) { return read_vector(fd, p, n, offset); }

static int open_file(const char *path, int flags, mode_t mode) {
  static int (*real)(const char *, int, ...);
  if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
  const char *ours = getenv("SHIM_PATH");
  if (ours && !strncmp(path, ours, strlen(ours))) {
    if (flags & O_DIRECT && setting(REFUSE_DIRECT)) {
      errno = EINVAL;
      return -1;
    }
    if (setting(FAIL_ERRNO) && atomic_load(&n_reads) >= setting(FAIL_AFTER)) {
      errno = (int)setting(FAIL_ERRNO); /* a disk that is gone cannot be opened either */
      return -1;
    }
  }
  return real(path, flags, mode);
}

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
      va_list list; \
      va_start(list, flags); \
      mode = va_arg(list, mode_t); \
      va_end(list); \
    } \
    return open_file(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)
