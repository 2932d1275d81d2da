/* SPDX-License-Identifier: MIT */
/* Functions of the driver that entry_points.def does not have; see entry_points.h for the rest. */
#ifndef GCR_PRELOAD_UNKNOWN_H
#define GCR_PRELOAD_UNKNOWN_H

#include <stdbool.h>

/*
 * Does a function of this name (cuMemGetLocationInfo, hipMemGetLocationInfo) only tell something?
 * What has a word in its name that is not known to be harmless is not.
 */
bool gcr_unknown_is_harmless(const char *name);

/* In the child of a fork: none has been called. */
void gcr_unknown_forget(void);

#endif
