/* ops: the table of one ISA's operations. */
#include "simd.h"

void FN(sipd_quantize)(const float *, int32_t, sipd_q8_block *);
void FN(sipd_rms_norm)(const float *, const float *, int32_t, float, float *);
void FN(sipd_silu_mul)(const float *, const float *, int32_t, float *);
void FN(sipd_rope)(float *, int32_t, int32_t, int32_t, int32_t, const float *);
void FN(sipd_store_kv)(const float *, const float *, int32_t, int32_t, int32_t, uint8_t *);
void FN(sipd_attention)(const sipd_attention *, uint8_t *);
void FN(sipd_matmul)(const sipd_matmul *, int32_t, int32_t, uint8_t *);
void FN(sipd_repack)(int32_t, uint8_t *, int64_t, int32_t, uint8_t *);
void FN(sipd_extract_row)(int32_t, const uint8_t *, int64_t, int32_t, int32_t, uint8_t *);

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

const sipd_ops FN(sipd_ops) = {
    &TEXT(SIPD_SUFFIX)[1], /* "_avx2" without its underscore */
    W,
    FN(sipd_quantize),
    FN(sipd_rms_norm),
    FN(sipd_silu_mul),
    FN(sipd_rope),
    FN(sipd_store_kv),
    FN(sipd_attention),
    FN(sipd_matmul),
    FN(sipd_repack),
    FN(sipd_extract_row),
};
