/* dequantize: rows of any type to f32. */
#ifndef SIPD_DEQUANTIZE_H
#define SIPD_DEQUANTIZE_H

#include <stdint.h>

void sipd_dequantize_row(int32_t type, const uint8_t *row, int32_t n, float *out);

#endif
