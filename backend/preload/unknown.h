/* SPDX-License-Identifier: MIT */
/* Functions of the driver that entry_points.def does not list; see entry_points.h for the rest. */
#ifndef GCR_PRELOAD_UNKNOWN_H
#define GCR_PRELOAD_UNKNOWN_H

#include <stdbool.h>

/*
 * Does a function of this name (cuMemGetLocationInfo, hipMemGetLocationInfo) only return
 * information? True only if its name contains a verb that asks (Get, Query) and no word known to
 * give access to memory or to change something.
 */
bool gcr_unknown_is_harmless(const char *name);

#endif
