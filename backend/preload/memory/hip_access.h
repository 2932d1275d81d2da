/* SPDX-License-Identifier: MIT */
/*
 * Restoring access to the program's own mappings in HIP 7.0 to 7.2. hipMemSetAccess of these
 * versions checks the sizes of the first mappings of a reservation instead of the mappings that it
 * is called for: it refuses a size that is not that of the first mapping, or of the first two, and
 * so on. So a program could only have given access to several mappings at once, and the library
 * must do the same.
 */
#ifndef GCR_PRELOAD_HIP_ACCESS_H
#define GCR_PRELOAD_HIP_ACCESS_H

#include <stdbool.h>

#include "backend/preload/memory/table.h"
#include "lib/error.h"

#ifdef GCR_HIP

/* Access to this mapping alone was refused. May the reason be mappings that are still missing? */
bool gcr_hip_access_may_wait(const struct gcr_mapping *mapping);

/* Called when everything is mapped: gives access to waiting mappings, together with their
 * neighbours. -EIO, with a message. */
int gcr_hip_access_give(struct gcr_error *error);

/*
 * Called while everything is still mapped: tests whether access could be given again, by setting
 * the rights that are already set. Changes nothing. -EOPNOTSUPP, with a message.
 */
int gcr_hip_access_try(struct gcr_error *error);

#else

static inline bool gcr_hip_access_may_wait(const struct gcr_mapping *mapping)
{
	return false;
}

static inline int gcr_hip_access_give(struct gcr_error *error)
{
	return 0;
}

static inline int gcr_hip_access_try(struct gcr_error *error)
{
	return 0;
}

#endif

#endif
