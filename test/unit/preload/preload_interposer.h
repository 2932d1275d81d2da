/* SPDX-License-Identifier: MIT */
#ifndef GPUCR_TEST_PRELOAD_INTERPOSER_H
#define GPUCR_TEST_PRELOAD_INTERPOSER_H

#include "backend/cuda/cuda_api.h"

/* Number of calls of the interposer's cuStreamQuery. */
int gcr_test_interposed(void);

CUresult gcr_test_init(void);

/* Calls dlsym() from inside the interposer. */
void *gcr_test_find(void *handle, const char *name);

#endif
