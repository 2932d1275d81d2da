/* SPDX-License-Identifier: MIT */
/* The numbers of the installed cuda.h, if that has the version which cuda_api.h follows. */
#ifdef HAVE_CUDA_H
#include <cuda.h>
#endif

#include "test/unit/cuda/test_cuda_api.h"

#if defined(HAVE_CUDA_H) && CUDA_VERSION == 13000
const struct cuda_api_number cuda_api_reference[] = {
#include "test/unit/cuda/cuda_api_list.h"
};

const size_t cuda_api_reference_count = sizeof(cuda_api_reference) / sizeof(cuda_api_reference[0]);
#else
const struct cuda_api_number cuda_api_reference[1];
const size_t cuda_api_reference_count;
#endif

#ifdef HAVE_CUDA_H
const int cuda_api_reference_version = CUDA_VERSION;
#else
const int cuda_api_reference_version;
#endif
