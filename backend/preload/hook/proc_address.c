/* SPDX-License-Identifier: MIT */
/*
 * cuInit, the first call of every program, and cuGetProcAddress, by which the CUDA runtime gets the
 * driver's functions. In doubt the program gets the driver's own function.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/hook/start.h"
#include "backend/preload/hook/unknown.h"
#include "lib/cleanup.h"

GCR_OWN(cuInit);
CUresult gcr_own_cuInit(unsigned int flags)
{
	__typeof__(cuInit) *real = GCR_WRAPPED(cuInit);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	GCR_GATE(cuInit);
	result = real(flags);
	if (result == CUDA_SUCCESS)
		gcr_preload_start();
	return result;
}

static bool is_per_thread(const char *symbol)
{
	const char *suffix = strrchr(symbol, '_');

	return suffix && (strcmp(suffix, "_ptsz") == 0 || strcmp(suffix, "_ptds") == 0);
}

/*
 * Returns the entry point that cudaTypedefs.h defines for a name, a version and flags; GCR_ENTRIES:
 * none.
 */
static enum gcr_entry find_version(const char *name, int version, bool per_thread)
{
	enum gcr_entry best = GCR_ENTRIES;
	bool best_per_thread = false;

	for (size_t i = 0; i < GCR_ENTRIES; i++) {
		const struct gcr_entry_point *point = &gcr_entry_points[i];
		bool own = is_per_thread(point->symbol);

		if (strcmp(point->name, name) != 0 || point->version > version ||
		    (own && !per_thread))
			continue;
		/*
		 * A per-thread variant was introduced with its function or later, and takes
		 * precedence over it; a later plain variant has a per-thread variant of its own.
		 */
		if (best == GCR_ENTRIES || point->version > gcr_entry_points[best].version ||
		    (own && !best_per_thread)) {
			best = (enum gcr_entry)i;
			best_per_thread = own;
		}
	}
	return best;
}

/* Does the driver export @function, under any name? */
static bool is_exported(void *function)
{
	Dl_info info;

	return dladdr(function, &info) && info.dli_sname && info.dli_saddr == function;
}

/* Is @function the same as in the version that entry_points.def describes? */
static bool is_as_before(const char *name, const void *function, cuuint64_t flags)
{
	__typeof__(cuGetProcAddress_v2) *get_v2 = GCR_REAL(cuGetProcAddress_v2);
	__typeof__(cuGetProcAddress) *get = GCR_REAL(cuGetProcAddress);
	CUdriverProcAddressQueryResult status;
	void *before = NULL;

	if (get_v2)
		get_v2(name, &before, GCR_ENTRY_POINTS_VERSION, flags, &status);
	else if (get)
		get(name, &before, GCR_ENTRY_POINTS_VERSION, flags);
	return before == function;
}

/* Identifies a function that the driver returns but does not export. GCR_ENTRIES: not known. */
static enum gcr_entry find_unexported(const char *name, void *function, int version,
				      cuuint64_t flags)
{
	enum gcr_entry entry;
	void *none = NULL;

	if (is_exported(function) ||
	    (version > GCR_ENTRY_POINTS_VERSION && !is_as_before(name, function, flags)))
		return GCR_ENTRIES;
	entry = find_version(name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
	/* This may be the only way to get the function. */
	if (entry != GCR_ENTRIES)
		atomic_compare_exchange_strong(&gcr_reals[entry], &none, function);
	return entry;
}

static void substitute(const char *name, void **function, int version, cuuint64_t flags)
{
	enum gcr_entry entry;

	if (!name || !function || !*function || !gcr_entry_is_drivers_name(name))
		return;
	gcr_reals_find(*function);
	entry = gcr_entry_of(*function, name);
	if (entry == GCR_ENTRIES)
		entry = find_unexported(name, *function, version, flags);
	if (entry == GCR_ENTRIES)
		*function = gcr_unknown_wrap(name, *function);
	else if (gcr_entry_wrappers[entry])
		*function = gcr_entry_wrappers[entry];
}

GCR_OWN(cuGetProcAddress);
CUresult gcr_own_cuGetProcAddress(const char *symbol, void **function, int version,
				  cuuint64_t flags)
{
	__typeof__(cuGetProcAddress) *real = GCR_WRAPPED(cuGetProcAddress);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	result = real(symbol, function, version, flags);
	if (result == CUDA_SUCCESS)
		substitute(symbol, function, version, flags);
	return result;
}

GCR_OWN(cuGetProcAddress_v2);
CUresult gcr_own_cuGetProcAddress_v2(const char *symbol, void **function, int version,
				     cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	__typeof__(cuGetProcAddress_v2) *real = GCR_WRAPPED(cuGetProcAddress_v2);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	result = real(symbol, function, version, flags, status);
	if (result == CUDA_SUCCESS)
		substitute(symbol, function, version, flags);
	return result;
}
