#define _GNU_SOURCE
#include "mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#define HUGE ((size_t)2 << 20) /* x86-64, and ARM64 with 4 KiB pages */

uint8_t *sipd_map(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

uint8_t *sipd_map_for_reads(size_t bytes) {
  uint8_t *p = sipd_map(bytes + HUGE);
  if (!p) return NULL;
  /* from a huge page's boundary on; what lies before and behind is given back */
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (HUGE - (uintptr_t)p % HUGE) % HUGE,
               kept = (bytes + page - 1) / page * page;
  if (before) munmap(p, before);
  if (HUGE - before) munmap(p + before + kept, HUGE - before);
  madvise(p + before, bytes, MADV_HUGEPAGE); /* a kernel without them says no, and small ones it is */
  return p + before;
}
