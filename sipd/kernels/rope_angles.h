/* rope_angles: n cosines, then n sines, of position x inverse frequency. */
#ifndef SIPD_ROPE_ANGLES_H
#define SIPD_ROPE_ANGLES_H

#include <stdint.h>

void sipd_rope_angles(int32_t position, const float *inverse_frequencies, int32_t n, float *cos_sin);

#endif
