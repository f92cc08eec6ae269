/* mapping: anonymous memory from the kernel, untouched until used. */
#ifndef SIPD_MAPPING_H
#define SIPD_MAPPING_H

#include <stddef.h>
#include <stdint.h>

/* Pages of the usual size: what is never touched costs nothing. NULL without memory. Give back with munmap. */
uint8_t *sipd_map(size_t bytes);
/* The same where reads land: huge pages where the kernel has them, since a direct read into scattered small pages is
 * cut into as many pieces as the device takes segments, at less than half the rate. Touched in runs of 2 MiB. */
uint8_t *sipd_map_for_reads(size_t bytes);

#endif
