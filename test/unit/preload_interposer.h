/* SPDX-License-Identifier: MIT */
#ifndef GPUCR_TEST_PRELOAD_INTERPOSER_H
#define GPUCR_TEST_PRELOAD_INTERPOSER_H

#include "backend/cuda/cuda_api.h"

/* How often its cuStreamQuery was called. */
int gcr_test_interposed(void);

CUresult gcr_test_init(void);

/* dlsym, asked from there. */
void *gcr_test_find(void *handle, const char *name);

#endif
