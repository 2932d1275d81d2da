/* SPDX-License-Identifier: MIT */
/*
 * Preloaded beside libgpucr-preload.so by test_preload_order, or loaded later: interposes a
 * function of the driver, as other libraries do; with INTERPOSES_DLSYM, dlsym too; with IS_LINKED,
 * the library is linked with libcuda.
 */
#include <dlfcn.h>

#include "backend/cuda/cuda_api.h"
#include "test/unit/preload/preload_interposer.h"

static int calls;

int gcr_test_interposed(void)
{
	return calls;
}

void *gcr_test_find(void *handle, const char *name)
{
	void *found = dlsym(handle, name);

	/* Prevent a tail call: dlsym identifies its caller by the return address. */
	__asm__ volatile("" : "+r"(found));
	return found;
}

CUresult cuStreamQuery(CUstream stream)
{
	__typeof__(cuStreamQuery) *next =
		(__typeof__(cuStreamQuery) *)gcr_test_find(RTLD_NEXT, "cuStreamQuery");

	calls++;
	return next ? next(stream) : CUDA_ERROR_NOT_FOUND;
}

#ifdef IS_LINKED

CUresult gcr_test_init(void)
{
	return cuInit(0);
}

#endif

#ifdef INTERPOSES_DLSYM

void *dlsym(void *handle, const char *name)
{
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
	void *(*real)(void *handle, const char *name) = NULL;

	for (int i = 0; !real && i < 3; i++)
		real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	return real ? real(handle, name) : NULL;
}

#endif
