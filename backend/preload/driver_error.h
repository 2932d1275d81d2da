/* SPDX-License-Identifier: MIT */
/* What the driver says, in words. */
#ifndef GCR_PRELOAD_DRIVER_ERROR_H
#define GCR_PRELOAD_DRIVER_ERROR_H

#include "backend/cuda/cuda_api.h"
#include "lib/error.h"

/* Set @error to EIO and "CALL: NAME (code)"; returns -EIO. @result is not CUDA_SUCCESS. */
int gcr_driver_failed(struct gcr_error *error, const char *call, CUresult result);

#endif
