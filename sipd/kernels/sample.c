/* sample: one token from one row of logits.
 *
 * Order: bias, penalties, temperature, top-k, top-p, min-p, draw. Candidates stand in descending logit, ties in
 * ascending id; sums are f64 in that order, so the draw is the same on every machine. The random number is a function of
 * the seed and the output position alone (splitmix64: Steele, Lea and Flood 2014). Log probabilities are those of the
 * biased and penalised logits at temperature 1.
 */
#include <math.h>
#include <stdlib.h>

#define SIPD_SUFFIX _base
#include "exp.h"
#include "sipd.h"

typedef struct {
  float logit;
  int32_t id;
} candidate;

static int by_rank(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
  return x->id < y->id ? -1 : x->id > y->id;
}

static uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

/* Uniform in [0, 1), 53 bits. */
static double uniform(uint64_t seed, uint64_t position) {
  const uint64_t step = 0x9E3779B97F4A7C15u;
  return (double)(mix(mix(seed + step) + (position + 1) * step) >> 11) * 0x1p-53;
}

/* Natural logarithm of a positive normal f64, without libm: atanh series on the mantissa. */
static double natural_log(double x) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  int exponent = (int)(bits >> 52) - 1023;
  bits = (bits & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u;
  double mantissa;
  memcpy(&mantissa, &bits, 8);
  if (mantissa > 1.4142135623730951) {
    mantissa = mantissa * 0.5;
    exponent++;
  }
  const double t = (mantissa - 1.0) / (mantissa + 1.0), square = t * t;
  double term = t, sum = 0.0;
  for (int k = 1; k < 24; k += 2) {
    sum = sum + term / k;
    term = term * square;
  }
  return 2.0 * sum + exponent * 0.69314718055994530942;
}

static void adjust(float *logits, const sipd_sampling *o) {
  for (int i = 0; i < o->n_biases; i++) logits[o->bias_ids[i]] += o->biases[i];
  for (int i = 0; i < o->n_context; i++) {
    float *l = &logits[o->context_ids[i]];
    if (o->repetition_penalty != 1.0f) *l = *l > 0.0f ? *l / o->repetition_penalty : *l * o->repetition_penalty;
    if (o->output_counts[i] > 0) *l = *l - o->presence_penalty - (float)o->output_counts[i] * o->frequency_penalty;
  }
}

static void log_probabilities(const float *logits, int32_t n, float largest, int n_top, candidate *work,
                              sipd_sample_out *out, float *normalizer) {
  double sum = 0.0;
  for (int32_t i = 0; i < n; i++) sum = sum + (double)exp1(logits[i] - largest);
  *normalizer = (float)((double)largest + natural_log(sum));
  int have = 0;
  for (int32_t i = 0; i < n && n_top > 0; i++) { /* insertion into a short sorted list */
    const candidate c = {logits[i], i};
    if (have == n_top && by_rank(&c, &work[have - 1]) >= 0) continue;
    int at = have < n_top ? have++ : have - 1;
    for (; at > 0 && by_rank(&c, &work[at - 1]) < 0; at--) work[at] = work[at - 1];
    work[at] = c;
  }
  for (int i = 0; i < n_top && i < have; i++) {
    out->top_ids[i] = work[i].id;
    out->top_logprobs[i] = work[i].logit - *normalizer;
  }
}

/* Candidates within `reach` (in units of temperature) of the best, in rank order. */
static int32_t gather(const float *logits, int32_t n, float largest, float temperature, float reach, candidate *work) {
  int32_t count = 0;
  for (int32_t i = 0; i < n; i++)
    if ((largest - logits[i]) / temperature <= reach) work[count++] = (candidate){logits[i], i};
  return count;
}

static double weight(float logit, float largest, float temperature) {
  return (double)exp1((logit - largest) / temperature);
}

static int32_t draw(const float *logits, int32_t n, float largest, const sipd_sampling *o, candidate *work) {
  const int is_ranked = o->top_p < 1.0f || (o->top_k > 0 && o->top_k < n);
  int32_t count = 0;
  if (is_ranked) {
    /* sort only as deep as the filters can reach: widen until they are decided */
    double all = 0.0;
    for (int32_t i = 0; i < n && o->top_p < 1.0f && o->top_k <= 0; i++)
      all = all + weight(logits[i], largest, o->temperature);
    for (float reach = 4.0f;; reach = reach * 2.0f) {
      count = gather(logits, n, largest, o->temperature, reach, work);
      const int is_all = count == n || reach > 1.0e4f;
      if (is_all && count < n) count = gather(logits, n, largest, o->temperature, INFINITY, work);
      if (o->top_k > 0 && count < o->top_k && count < n) continue;
      qsort(work, (size_t)count, sizeof *work, by_rank);
      if (o->top_k > 0 && count > o->top_k) count = o->top_k;
      if (o->top_p >= 1.0f) break;
      double total = all, sum = 0.0;
      if (o->top_k > 0) {
        total = 0.0;
        for (int32_t i = 0; i < count; i++) total = total + weight(work[i].logit, largest, o->temperature);
      }
      int32_t kept = 0;
      while (kept < count && sum < (double)o->top_p * total)
        sum = sum + weight(work[kept++].logit, largest, o->temperature);
      const int is_decided = sum >= (double)o->top_p * total || is_all || o->top_k > 0;
      if (!is_decided) continue;
      count = kept > 0 ? kept : 1;
      break;
    }
  } else {
    for (int32_t i = 0; i < n; i++) work[count++] = (candidate){logits[i], i};
  }
  double sum = 0.0;
  int32_t kept = 0;
  for (int32_t i = 0; i < count; i++) {
    const double w = weight(work[i].logit, largest, o->temperature);
    if (w < (double)o->min_p) continue; /* the best weighs exactly 1 */
    sum = sum + w;
    work[kept++] = work[i];
  }
  const double target = uniform(o->seed, o->position) * sum;
  double reached = 0.0;
  for (int32_t i = 0; i < kept; i++) {
    reached = reached + weight(work[i].logit, largest, o->temperature);
    if (reached > target) return work[i].id;
  }
  return work[kept - 1].id;
}

int sipd_sample(float *logits, int32_t n, const sipd_sampling *o, uint8_t *scratch, sipd_sample_out *out) {
  candidate *work = (candidate *)scratch;
  adjust(logits, o);
  int32_t best = 0;
  int is_finite = 1;
  for (int32_t i = 0; i < n; i++) {
    if (!(logits[i] - logits[i] == 0.0f)) is_finite = 0;
    if (logits[i] > logits[best]) best = i;
  }
  if (!is_finite) return -1;
  const float largest = logits[best];
  float normalizer = 0.0f;
  if (o->n_top >= 0) log_probabilities(logits, n, largest, o->n_top, work, out, &normalizer);
  out->id = o->temperature > 0.0f ? draw(logits, n, largest, o, work) : best;
  out->logprob = logits[out->id] - normalizer;
  return 0;
}
