/* SPDX-License-Identifier: MIT */
#ifndef GCR_PRELOAD_CONVERTS_H
#define GCR_PRELOAD_CONVERTS_H

#include <stdbool.h>

/*
 * Is memory made so that it can be handed over? Yes unless GPUCR_PRELOAD_VMM=0. The creator of the
 * page uses this for GCR_PAGE_VMM.
 */
bool gcr_memory_converts(void);

#endif
