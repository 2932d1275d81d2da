/* SPDX-License-Identifier: MIT */
#include "backend/preload/driver_error.h"

#include <errno.h>

#include "backend/preload/entry_points.h"
#ifdef GCR_HIP
#include "backend/rocm/adapt.h"
#endif

int gcr_driver_failed(struct gcr_error *error, const char *call, CUresult result)
{
	__typeof__(cuGetErrorName) *get_name = GCR_REAL(cuGetErrorName);
	const char *name = NULL;

#ifdef GCR_HIP
	call = gcr_hip_name(call) ? gcr_hip_name(call) : call;
#endif
	if (get_name)
		get_name(result, &name);
	return gcr_error_set(error, EIO, "%s: %s (%d)", call,
			     name ? name : "an error without a name", (int)result);
}

#ifdef GCR_HIP
void gcr_driver_forget_error(void)
{
	int (*get_last_error)(void) = (int (*)(void))gcr_entry_real(GCR_ENTRY_hipGetLastError);

	if (get_last_error)
		get_last_error();
}
#endif
