/* isa: which operation tables are in this library, and which of them this CPU can run. Best first. */
#include "sipd.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
extern const sipd_ops sipd_ops_neon_i8mm, sipd_ops_neon_dotprod, sipd_ops_neon;
#elif defined(__x86_64__)
#include <cpuid.h>
extern const sipd_ops sipd_ops_avx512vnni, sipd_ops_avx2;
#endif
extern const sipd_ops sipd_ops_portable;

static const sipd_ops *const tables[] = {
#if defined(__aarch64__)
    &sipd_ops_neon_i8mm, &sipd_ops_neon_dotprod, &sipd_ops_neon,
#elif defined(__x86_64__)
    &sipd_ops_avx512vnni, &sipd_ops_avx2,
#endif
    &sipd_ops_portable};

int sipd_contract_version(void) { return SIPD_CONTRACT_VERSION; }
int sipd_isa_count(void) { return (int)(sizeof tables / sizeof *tables); }
const sipd_ops *sipd_isa_ops(int i) { return tables[i]; }
const char *sipd_isa_name(int i) { return tables[i]->name; }

#if defined(__x86_64__)
/* Not every compiler's __builtin_cpu_supports knows it. */
static int has_f16c(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

int sipd_isa_is_supported(int i) {
#if defined(__aarch64__)
  const int has_dotprod = (getauxval(AT_HWCAP) & (1UL << 20)) != 0; /* HWCAP_ASIMDDP */
  if (i == 0) return has_dotprod && (getauxval(AT_HWCAP2) & (1UL << 13)) != 0; /* HWCAP2_I8MM */
  if (i == 1) return has_dotprod;
  return 1;
#elif defined(__x86_64__)
  if (i == 0)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
  if (i == 1) return __builtin_cpu_supports("avx2") && has_f16c();
  return 1;
#else
  (void)i;
  return 1;
#endif
}
