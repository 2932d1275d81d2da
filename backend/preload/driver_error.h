/* SPDX-License-Identifier: MIT */
/* What the driver says, in words. */
#ifndef GCR_PRELOAD_DRIVER_ERROR_H
#define GCR_PRELOAD_DRIVER_ERROR_H

#include "backend/cuda/cuda_api.h"
#include "lib/error.h"

/*
 * Set @error to EIO and "CALL: NAME (code)"; returns -EIO. A driver that has deinitialized is the
 * program's end: -ESRCH then, and gcr_is_ending() from here on. @result is not CUDA_SUCCESS, @call
 * the name in CUDA also where the words say HIP's.
 */
int gcr_driver_failed(struct gcr_error *error, const char *call, CUresult result);

/*
 * A call of ours has failed that the program does not know of: HIP is not to tell it about that
 * when it asks for its thread's last error. CUDA's driver keeps none.
 */
#ifdef GCR_HIP
void gcr_driver_forget_error(void);
#else
static inline void gcr_driver_forget_error(void)
{
}
#endif

#endif
