/* SPDX-License-Identifier: MIT */
/* Functions of the driver that entry_points.def does not list. */
#ifndef GCR_PRELOAD_UNKNOWN_H
#define GCR_PRELOAD_UNKNOWN_H

#include <stdbool.h>

/*
 * Does a function of this name (cuMemGetLocationInfo, hipMemGetLocationInfo) only return
 * information? True only if its name contains a verb that asks (Get, Query) and no word known to
 * give access to memory or to change something.
 */
bool gcr_unknown_is_harmless(const char *name);

/*
 * Returns a wrapper of the driver's function @function, which is not an entry point. The wrapper
 * passes the gate as number GCR_ENTRIES + N (see unknown_names.h) and names the function in the
 * page when it is called. If there is no wrapper left, returns @function itself, which then counts
 * as called.
 */
void *gcr_unknown_wrap(const char *name, void *function);

#endif
