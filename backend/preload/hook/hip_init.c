/* SPDX-License-Identifier: MIT */
/*
 * The initialisation of HIP, and the functions by which a program asks HIP for others. Few programs
 * call hipInit: HIP initialises itself at the first call that needs it. The library initialises HIP
 * at the first call that passes the gate, where HIP would have done so a moment later.
 */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/hip_begin.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/memory/obstacle.h"
#include "backend/preload/hook/start.h"
#include "backend/preload/hook/unknown.h"
#include "backend/rocm/adapt.h"
#include "backend/rocm/hip_api.h"
#include "lib/cleanup.h"

/*
 * Notes an obstacle if the version of HIP is unsuitable: with such a version HIP keeps all memory,
 * and none could be taken out.
 */
static void look_at_version(void)
{
	/* GCR_REAL() searches HIP's library; gcr_hip_version() is of the last one searched. */
	if (GCR_REAL(cuDeviceGetCount) && gcr_hip_unsuitable(gcr_hip_version()))
		gcr_obstacle_add(GCR_OBSTACLE_HIP_VERSION, 1);
}

static void first_call(void)
{
	__typeof__(hipInit) *init = GCR_WRAPPED(hipInit);
	int saved_errno = errno;

	if (init && init(0) == hipSuccess) {
		look_at_version();
		gcr_preload_start();
	} else {
		gcr_hip_set_failed(true);
	}
	errno = saved_errno;
}

GCR_LISTEN(first_call, first_call);

GCR_OWN(hipInit);
hipError_t gcr_own_hipInit(unsigned int flags)
{
	__typeof__(hipInit) *real = GCR_WRAPPED(hipInit);
	hipError_t result;

	if (!real)
		return hipErrorNoDevice;
	GCR_GATE(hipInit);
	result = real(flags);
	if (result == hipSuccess) {
		gcr_hip_set_failed(false);
		gcr_preload_start();
	}
	return result;
}

/* ---- asking for functions ---- */

static bool is_wrapper(const void *function)
{
	for (size_t i = 0; i < GCR_ENTRIES; i++)
		if (gcr_entry_wrappers[i] == function)
			return true;
	return false;
}

/*
 * Replaces *function, HIP's answer for @name, by its wrapper. HIP looks functions up by the
 * library's dlsym, so *function is usually a wrapper already.
 */
static void substitute(const char *name, void **function)
{
	enum gcr_entry entry;

	if (!name || !function || !*function || !gcr_entry_is_drivers_name(name) ||
	    is_wrapper(*function))
		return;
	gcr_reals_find(*function);
	entry = gcr_entry_of(*function, name);
	if (entry != GCR_ENTRIES && gcr_entry_wrappers[entry])
		*function = gcr_entry_wrappers[entry];
	else if (entry == GCR_ENTRIES && gcr_reals_has(*function))
		*function = gcr_unknown_wrap(name, *function);
}

GCR_OWN(hipGetProcAddress);
hipError_t gcr_own_hipGetProcAddress(const char *symbol, void **function, int version,
				     uint64_t flags, hipDriverProcAddressQueryResult *status)
{
	__typeof__(hipGetProcAddress) *real = GCR_WRAPPED(hipGetProcAddress);
	hipError_t result;

	if (!real)
		return hipErrorNotFound;
	result = real(symbol, function, version, flags, status);
	if (result == hipSuccess)
		substitute(symbol, function);
	return result;
}

/* Since ROCm 7.1. The last parameter is an enum in HIP. */
hipError_t get_entry_point(const char *symbol, void **function, unsigned long long flags,
			   int *status);

#define GET_ENTRY_POINT(symbol_)                                                              \
	GCR_OWN_AS(symbol_, get_entry_point);                                                 \
	hipError_t gcr_own_##symbol_(const char *symbol, void **function,                     \
				     unsigned long long flags, int *status)                   \
	{                                                                                     \
		__typeof__(get_entry_point) *real = GCR_WRAPPED_AS(symbol_, get_entry_point); \
		hipError_t result;                                                            \
                                                                                              \
		if (!real)                                                                    \
			return hipErrorNotFound;                                              \
		result = real(symbol, function, flags, status);                               \
		if (result == hipSuccess)                                                     \
			substitute(symbol, function);                                         \
		return result;                                                                \
	}

GET_ENTRY_POINT(hipGetDriverEntryPoint)
GET_ENTRY_POINT(hipGetDriverEntryPoint_spt)
