/* SPDX-License-Identifier: MIT */
/* Error messages for driver errors. */
#ifndef GCR_PRELOAD_DRIVER_ERROR_H
#define GCR_PRELOAD_DRIVER_ERROR_H

#include "backend/cuda/cuda_api.h"
#include "lib/error.h"

/*
 * Sets @error to EIO and "CALL: NAME (code)"; returns -EIO. If the driver reports that it is
 * deinitialized, the program is ending: returns -ESRCH, and gcr_is_ending() is true from then on.
 * @result is not CUDA_SUCCESS. @call is CUDA's name of the function, also where the message gives
 * HIP's.
 */
int gcr_driver_failed(struct gcr_error *error, const char *call, CUresult result);

/*
 * A driver call made by the library itself has failed. Clears HIP's per-thread last error, so that
 * the program does not get this error when it asks for its own. CUDA's driver keeps no last error.
 */
#ifdef GCR_HIP
void gcr_driver_forget_error(void);
#else
static inline void gcr_driver_forget_error(void)
{
}
#endif

#endif
