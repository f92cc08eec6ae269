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
/* By the instruction: some compilers' __builtin_cpu_supports always says no. Returns 2 with AVX-512 VNNI, 1 with AVX2. */
static int x86_level(void) {
  unsigned a, b, c, d, low, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_F16C)) return 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0)); /* what the kernel saves: 1, 2 YMM; 5 to 7 ZMM */
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (low & 0x06) != 0x06 || !(b & bit_AVX2)) return 0;
  const unsigned wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  return (low & 0xe6) == 0xe6 && (b & wanted) == wanted && (c & bit_AVX512VNNI) ? 2 : 1;
}
#endif

int sipd_isa_is_supported(int i) {
#if defined(__aarch64__)
  const int has_dotprod = (getauxval(AT_HWCAP) & (1UL << 20)) != 0; /* HWCAP_ASIMDDP */
  if (i == 0) return has_dotprod && (getauxval(AT_HWCAP2) & (1UL << 13)) != 0; /* HWCAP2_I8MM */
  if (i == 1) return has_dotprod;
  return 1;
#elif defined(__x86_64__)
  if (i == 0) return x86_level() == 2;
  if (i == 1) return x86_level() >= 1;
  return 1;
#else
  (void)i;
  return 1;
#endif
}
