/* SPDX-License-Identifier: MIT */
/*
 * Whether managed memory would come back where it was, tried with other memory before any of the
 * program's is touched: its threads could see what is in theirs meanwhile, and if that did not come
 * back, there would be no way back either. That the driver frees memory whose pages have been
 * replaced by a hold is part of it.
 */
#ifndef GCR_PRELOAD_MANAGED_TRIAL_H
#define GCR_PRELOAD_MANAGED_TRIAL_H

#include <stdbool.h>
#include <stddef.h>

#include "backend/preload/place.h"
#include "lib/error.h"

/*
 * Between gcr_hold_begin() and gcr_hold_pause(). Places and chunks as for gcr_places_make(); they
 * are not changed. *ret_tells_touch: the kernel knows what the CPU has mapped of such memory.
 * -EOPNOTSUPP or -ENOMEM with words: it would not, and nothing has happened.
 */
int gcr_managed_try(const struct gcr_place *originals, size_t count,
		    const struct gcr_place_chunk *original_chunks, size_t chunk_count,
		    bool *ret_tells_touch, struct gcr_error *error);

/* The driver has given the chunk back, and it is held. */
bool gcr_managed_is_given_back(const struct gcr_place_chunk *chunk);

#endif
