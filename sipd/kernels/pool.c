/* pool: threads that run one job together. They spin briefly for the next job, then park on a futex.
 *
 * The caller is thread 0. Between the steps of a pass the gaps are microseconds and a wake-up costs more than that;
 * a wait for storage or for work is longer than SPINS and costs no CPU.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sipd.h"

#define SPINS 4000 /* about 20-40 us */

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

struct sipd_pool {
  _Atomic uint32_t generation; /* moves on with every job */
  _Atomic uint32_t parked;
  _Atomic uint32_t running;
  _Atomic int stop;
  void (*job)(void *, int);
  void *arg;
  int n_threads;
  pthread_t *threads;
};

typedef struct {
  sipd_pool *pool;
  int index;
} worker_start;

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void *worker(void *start) {
  sipd_pool *p = ((worker_start *)start)->pool;
  const int index = ((worker_start *)start)->index;
  free(start);
  uint32_t seen = 0;
  for (;;) {
    uint32_t now = atomic_load_explicit(&p->generation, memory_order_acquire);
    for (int i = 0; now == seen && i < SPINS; i++) {
      RELAX();
      now = atomic_load_explicit(&p->generation, memory_order_acquire);
    }
    while (now == seen) {
      atomic_fetch_add(&p->parked, 1);
      futex_wait(&p->generation, seen);
      atomic_fetch_sub(&p->parked, 1);
      now = atomic_load_explicit(&p->generation, memory_order_acquire);
    }
    seen = now;
    if (atomic_load(&p->stop)) return NULL;
    p->job(p->arg, index);
    atomic_fetch_sub_explicit(&p->running, 1, memory_order_release);
  }
}

static void next_generation(sipd_pool *p) {
  atomic_fetch_add(&p->generation, 1);
  if (atomic_load(&p->parked)) syscall(SYS_futex, &p->generation, FUTEX_WAKE_PRIVATE, p->n_threads, NULL, NULL, 0);
}

sipd_pool *sipd_pool_create(int32_t n_threads) {
  sipd_pool *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  p->threads = calloc((size_t)n_threads, sizeof *p->threads);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  p->n_threads = 1;
  for (int i = 1; p->threads && i < n_threads; i++) {
    worker_start *start = malloc(sizeof *start);
    if (!start) break;
    *start = (worker_start){p, i};
    if (pthread_create(&p->threads[i], &attributes, worker, start)) {
      free(start);
      break;
    }
    p->n_threads++;
  }
  pthread_attr_destroy(&attributes);
  return p;
}

void sipd_pool_destroy(sipd_pool *p) {
  if (!p) return;
  atomic_store(&p->stop, 1);
  next_generation(p);
  for (int i = 1; i < p->n_threads; i++) pthread_join(p->threads[i], NULL);
  free(p->threads);
  free(p);
}

void sipd_pool_run(sipd_pool *p, void (*job)(void *, int), void *arg) {
  if (p->n_threads > 1) {
    p->job = job;
    p->arg = arg;
    atomic_store_explicit(&p->running, (uint32_t)p->n_threads - 1, memory_order_release);
    next_generation(p);
  }
  job(arg, 0);
  for (int i = 0; atomic_load_explicit(&p->running, memory_order_acquire); i++) {
    if (i < SPINS)
      RELAX();
    else
      sched_yield(); /* the others hold the last items: they end soon, unless they lost the CPU */
  }
}

int sipd_pool_size(const sipd_pool *p) { return p->n_threads; }
