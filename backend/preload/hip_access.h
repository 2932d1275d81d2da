/* SPDX-License-Identifier: MIT */
/*
 * Access to what a program has mapped itself, in HIP 7.0 to 7.2. There hipMemSetAccess looks at how
 * large the first mappings of the reservation are, not those that it is asked about, and refuses a
 * size that is not that of the first one, or the first two, and so on. The program had to give
 * access to several at once then, and so do we.
 */
#ifndef GCR_PRELOAD_HIP_ACCESS_H
#define GCR_PRELOAD_HIP_ACCESS_H

#include <stdbool.h>

#include "backend/preload/table.h"
#include "lib/error.h"

#ifdef GCR_HIP

/* Access to this mapping alone was refused: may that be because of others that are missing yet? */
bool gcr_hip_access_may_wait(const struct gcr_mapping *mapping);

/* All is mapped: access for what waits, together with its neighbours. -EIO, with words. */
int gcr_hip_access_give(struct gcr_error *error);

/*
 * While all is still mapped: could access be given again? It is, as it is already, so that nothing
 * changes. -EOPNOTSUPP, with words.
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
