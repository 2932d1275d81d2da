/* SPDX-License-Identifier: MIT */
/*
 * Tests with other memory, before any of the program's is touched, whether its managed memory could
 * be restored at its addresses. The program's threads can see their memory while it is being
 * restored, so a failed restore could not be rolled back. The trial also tests that the driver
 * frees memory whose pages a hold has replaced.
 */
#ifndef GCR_PRELOAD_MANAGED_TRIAL_H
#define GCR_PRELOAD_MANAGED_TRIAL_H

#include <stdbool.h>
#include <stddef.h>

#include "backend/preload/managed/place.h"
#include "lib/error.h"

/*
 * Call between gcr_hold_begin() and gcr_hold_pause(). Places and chunks as for gcr_places_make();
 * they are not changed. *ret_tells_touch: the kernel reports which pages of such memory the CPU has
 * mapped. -EOPNOTSUPP or -ENOMEM with a message: the memory could not be restored, and nothing has
 * changed.
 */
int gcr_managed_try(const struct gcr_place *originals, size_t count,
		    const struct gcr_place_chunk *original_chunks, size_t chunk_count,
		    bool *ret_tells_touch, struct gcr_error *error);

/* Has the driver given the chunk back, and is the chunk's whole range held? */
bool gcr_managed_is_given_back(const struct gcr_place_chunk *chunk);

#endif
