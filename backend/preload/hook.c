/* SPDX-License-Identifier: MIT */
/*
 * Being there however the program gets hold of the driver's functions: linked with libcuda, by
 * dlsym, or by cuGetProcAddress. Runs inside any program at any time, before main() too: no
 * constructor, no memory allocated here, no lock. In doubt the program gets the driver's own
 * function.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/agent.h"
#include "backend/preload/entry_points.h"
#include "backend/preload/gate.h"
#include "backend/preload/preload.h"
#include "lib/cleanup.h"

/* cuMemAlloc is; cudaMalloc and cublasCreate are not. */
static bool is_drivers_name(const char *name)
{
	return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

/* ---- dlsym ---- */

#if GCR_PRELOAD_DLSYM

/* No driver is loaded: without us the program would find nothing. dlerror() says so. */
static void *answer_absent(void *handle, const char *name)
{
	void *nothing = gcr_real_dlsym()(RTLD_NEXT, name);

	/* The call must not become a jump: "next" is counted from this library. */
	__asm__ volatile("" : "+r"(nothing));
	return nothing;
}

/* A look-up in one library, whose caller does not matter. */
static void *answer_wrapped(void *handle, const char *name)
{
	enum gcr_entry entry = gcr_entry_find(name);
	void *found = gcr_real_dlsym()(handle, name);

	/* dlopen(NULL) finds our own function even where there is no driver. */
	if (found && found == gcr_entry_points[entry].wrapper)
		return gcr_entry_real(entry) ? found : answer_absent(handle, name);
	return gcr_entry_wrap(entry, found);
}

/* A name of the driver's that came after entry_points.def, or anybody's. */
static void *answer_unknown(void *handle, const char *name)
{
	void *found = gcr_real_dlsym()(handle, name);

	return found && gcr_reals_has(found) ? gcr_unknown_wrap(name, found) : found;
}

static void *answer_unknown_next(void *handle, const char *name)
{
	return answer_unknown(RTLD_DEFAULT, name);
}

/* Asked for as "next" from behind us, where only the driver's own would be found. */
static void *answer_own(void *handle, const char *name)
{
	return gcr_entry_points[gcr_entry_find(name)].wrapper;
}

static void *answer_nothing(void *handle, const char *name)
{
	return NULL;
}

struct search {
	const void *caller;
	bool passed_us, is_behind_us;
};

static bool is_in(const struct dl_phdr_info *object, const void *address)
{
	for (size_t i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];
		uintptr_t start = object->dlpi_addr + part->p_vaddr;

		if (part->p_type == PT_LOAD && (uintptr_t)address - start < part->p_memsz)
			return true;
	}
	return false;
}

static int look_at_object(struct dl_phdr_info *object, size_t bytes, void *argument)
{
	struct search *search = argument;

	if (is_in(object, (const void *)look_at_object)) {
		search->passed_us = true;
		return 0;
	}
	if (!is_in(object, search->caller))
		return 0;
	search->is_behind_us = search->passed_us;
	return 1;
}

/* Was the object with this address loaded after us? They are listed in that order. */
static bool is_behind_us(const void *caller)
{
	struct search search = {.caller = caller};

	dl_iterate_phdr(look_at_object, &search);
	return search.is_behind_us;
}

static bool is_unknown_function(const char *name)
{
	void *found = gcr_real_dlsym()(RTLD_DEFAULT, name);

	return found && gcr_reals_has(found);
}

static void *unknown_target(void *handle, const char *name)
{
	if (handle != RTLD_DEFAULT && handle != RTLD_NEXT)
		return (void *)answer_unknown;
	return is_unknown_function(name) ? (void *)answer_unknown_next : (void *)gcr_real_dlsym();
}

void *gcr_preload_dlsym_target(void *handle, const char *name, const void *caller)
{
	gcr_dlsym_function *real = gcr_real_dlsym();
	enum gcr_entry entry;

	if (!real)
		return (void *)answer_nothing;
	if (!name || name[0] != 'c' || name[1] != 'u')
		return (void *)real;
	entry = gcr_entry_find(name);
	if (entry == GCR_ENTRIES)
		return is_drivers_name(name) ? unknown_target(handle, name) : (void *)real;
	if (!gcr_entry_points[entry].wrapper)
		return (void *)real;
	if (handle != RTLD_DEFAULT && handle != RTLD_NEXT)
		return (void *)answer_wrapped;
	if (!gcr_entry_real(entry))
		return (void *)answer_absent;
	/* From before us the dynamic linker finds our function by itself. */
	return handle == RTLD_NEXT && is_behind_us(caller) ? (void *)answer_own : (void *)real;
}

/*
 * A library before us may have a dlsym of its own, and get the driver's functions from the C
 * library's: these go around the gate.
 */
static void look_for_other_dlsym(void)
{
	gcr_dlsym_function *real = gcr_real_dlsym();
	void *first = real ? real(RTLD_DEFAULT, "dlsym") : NULL;
	char name[64];
	Dl_info info;

	if (!first || first == (void *)dlsym)
		return;
	if (!dladdr(first, &info) || !info.dli_fname)
		info.dli_fname = "another library";
	snprintf(name, sizeof(name), "dlsym of %s", basename(info.dli_fname));
	gcr_gate_incomplete(name);
}

#else

static void look_for_other_dlsym(void)
{
}

#endif

/* ---- the driver's functions ---- */

GCR_OWN(cuInit);
CUresult gcr_own_cuInit(unsigned int flags)
{
	__typeof__(cuInit) *real = GCR_REAL(cuInit);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	GCR_GATE(cuInit);
	result = real(flags);
	if (result == CUDA_SUCCESS) {
		gcr_reals_pin();
		look_for_other_dlsym();
		gcr_agent_start();
	}
	return result;
}

/* The entry point whose function in the driver is @function; of several, the one of that name. */
static enum gcr_entry find_function(const void *function, const char *name)
{
	enum gcr_entry found = GCR_ENTRIES;

	for (size_t i = 0; i < GCR_ENTRIES; i++) {
		if (atomic_load_explicit(&gcr_reals[i], memory_order_relaxed) != function)
			continue;
		if (strcmp(gcr_entry_points[i].name, name) == 0)
			return (enum gcr_entry)i;
		found = (enum gcr_entry)i;
	}
	return found;
}

static bool is_per_thread(const char *symbol)
{
	const char *suffix = strrchr(symbol, '_');

	return suffix && (strcmp(suffix, "_ptsz") == 0 || strcmp(suffix, "_ptds") == 0);
}

/* The entry point that cudaTypedefs.h means by a name, a version and flags. */
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
		/* A per-thread variant came with, or after, its function, and wins over it; a later
		 * plain one has a per-thread one of its own. */
		if (best == GCR_ENTRIES || point->version > gcr_entry_points[best].version ||
		    (own && !best_per_thread)) {
			best = (enum gcr_entry)i;
			best_per_thread = own;
		}
	}
	return best;
}

/* Does the driver export @function, by whatever name? */
static bool is_exported(void *function)
{
	Dl_info info;

	return dladdr(function, &info) && info.dli_sname && info.dli_saddr == function;
}

/* Was it the same one in the version that entry_points.def knows? */
static bool is_as_before(const char *name, const void *function, cuuint64_t flags)
{
	__typeof__(cuGetProcAddress_v2) *get_v2 = GCR_REAL(cuGetProcAddress_v2);
	__typeof__(cuGetProcAddress) *get = GCR_REAL(cuGetProcAddress);
	CUdriverProcAddressQueryResult status;
	void *before = NULL;

	if (get_v2)
		get_v2(name, &before, CUDA_VERSION, flags, &status);
	else if (get)
		get(name, &before, CUDA_VERSION, flags);
	return before == function;
}

/* One that the driver hands out though it does not export it. */
static enum gcr_entry find_unexported(const char *name, void *function, int version,
				      cuuint64_t flags)
{
	enum gcr_entry entry;
	void *none = NULL;

	if (is_exported(function) ||
	    (version > CUDA_VERSION && !is_as_before(name, function, flags)))
		return GCR_ENTRIES;
	entry = find_version(name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
	/* It may be to be had in this way only. */
	if (entry != GCR_ENTRIES)
		atomic_compare_exchange_strong(&gcr_reals[entry], &none, function);
	return entry;
}

static void substitute(const char *name, void **function, int version, cuuint64_t flags)
{
	enum gcr_entry entry;

	if (!name || !function || !*function || !is_drivers_name(name))
		return;
	gcr_reals_find(*function);
	entry = find_function(*function, name);
	if (entry == GCR_ENTRIES)
		entry = find_unexported(name, *function, version, flags);
	if (entry == GCR_ENTRIES)
		*function = gcr_unknown_wrap(name, *function);
	else if (gcr_entry_points[entry].wrapper)
		*function = gcr_entry_points[entry].wrapper;
}

GCR_OWN(cuGetProcAddress);
CUresult gcr_own_cuGetProcAddress(const char *symbol, void **function, int version,
				  cuuint64_t flags)
{
	__typeof__(cuGetProcAddress) *real = GCR_REAL(cuGetProcAddress);
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
	__typeof__(cuGetProcAddress_v2) *real = GCR_REAL(cuGetProcAddress_v2);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	result = real(symbol, function, version, flags, status);
	if (result == CUDA_SUCCESS)
		substitute(symbol, function, version, flags);
	return result;
}
