/* SPDX-License-Identifier: MIT */
/*
 * Finds the driver's own functions. Runs inside any program at any time, before main() too: no
 * constructor, no lock. Every thread that needs a function looks it up; all threads find the same.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "backend/preload/driver/entry_points.h"
#include "backend/preload/base/preload.h"
#include "lib/cleanup.h"

#ifdef GCR_HIP
#include "backend/rocm/adapt.h"

#define INIT GCR_ENTRY_hipInit

/* Names of the driver's library, the newest first; a program is linked with one of them. */
static const char *const libraries[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
					"libamdhip64.so"};
#else
#define INIT GCR_ENTRY_cuInit

static const char *const libraries[] = {"libcuda.so.1"};
#endif

_Atomic(void *) gcr_reals[GCR_ENTRIES];

static _Atomic(bool) found;  /* gcr_reals[] is filled in */
static _Atomic(bool) pinned; /* and will not change */

#if GCR_PRELOAD_DLSYM

gcr_dlsym_function *gcr_real_dlsym(void)
{
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
	static _Atomic(void *) known;
	void *real = atomic_load(&known);

	for (size_t i = 0; !real && i < GCR_ARRAY_SIZE(versions); i++)
		real = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	atomic_store(&known, real);
	return (gcr_dlsym_function *)real;
}

#else

gcr_dlsym_function *gcr_real_dlsym(void)
{
	return dlsym;
}

#endif

void *gcr_real_next(const char *name, _Atomic(void *) *known)
{
	gcr_dlsym_function *look_up = gcr_real_dlsym();
	void *next = atomic_load(known);

	if (!next && look_up)
		next = look_up(RTLD_NEXT, name);
	atomic_store(known, next);
	return next;
}

static bool is_ours(const void *function)
{
	Dl_info info, own;

	return dladdr(function, &info) && dladdr((void *)gcr_reals_find, &own) &&
	       info.dli_fbase == own.dli_fbase;
}

/*
 * Opens a library that is loaded already, by the C library's dlopen(3): this library's own is there
 * for the program's calls.
 */
static void *open_loaded(const char *name, int flags)
{
	static _Atomic(void *) known;
	__typeof__(dlopen) *real = (__typeof__(dlopen) *)gcr_real_next("dlopen", &known);

	return real ? real(name, RTLD_LAZY | RTLD_NOLOAD | flags) : NULL;
}

/*
 * Returns a handle of the driver's library, which the caller closes; NULL: the driver is not
 * loaded. @function: one of the driver's functions, by which a library of another name is found; or
 * NULL.
 */
static void *open_driver(void *function, int flags)
{
	void *library = NULL;
	Dl_info info;

	for (size_t i = 0; !library && i < GCR_ARRAY_SIZE(libraries); i++)
		library = open_loaded(libraries[i], flags);
	/* A driver with another library name: find it by one of its functions. */
	if (!library && !function)
		function = gcr_real_dlsym()(RTLD_NEXT, gcr_entry_points[INIT].symbol);
	if (!library && function && !is_ours(function) && dladdr(function, &info))
		library = open_loaded(info.dli_fname, flags);
	return library;
}

/*
 * Fills in gcr_reals[] if the driver is loaded. Clears dlerror(), so that the program does not see
 * an error of this lookup.
 */
static void find(void *function, int flags)
{
	gcr_dlsym_function *look_up = gcr_real_dlsym();
	int saved_errno = errno;
	void *library, *init;

	if (!look_up)
		return;
	library = open_driver(function, flags);
	init = library ? look_up(library, gcr_entry_points[INIT].symbol) : NULL;
	if (init && !is_ours(init)) {
		for (size_t i = 0; i < GCR_ENTRIES; i++) {
			void *real = look_up(library, gcr_entry_points[i].symbol);

			if (real)
				atomic_store_explicit(&gcr_reals[i], real, memory_order_relaxed);
		}
		atomic_store_explicit(&found, true, memory_order_release);
	}
	if (library)
		dlclose(library);
	dlerror();
	errno = saved_errno;
}

void gcr_reals_find(void *function)
{
	if (!atomic_load_explicit(&found, memory_order_acquire))
		find(function, 0);
}

bool gcr_reals_has(void *function)
{
	void *init = gcr_entry_real(INIT);
	Dl_info info, driver;

	return init && dladdr(init, &driver) && dladdr(function, &info) &&
	       info.dli_fbase == driver.dli_fbase;
}

void gcr_reals_pin(void)
{
	if (atomic_load_explicit(&pinned, memory_order_relaxed))
		return;
	find(atomic_load(&gcr_reals[INIT]), RTLD_NODELETE);
	atomic_store_explicit(&pinned, true, memory_order_relaxed);
}

void *gcr_entry_real(enum gcr_entry entry)
{
	void *real = atomic_load_explicit(&gcr_reals[entry], memory_order_relaxed);

	if (real)
		return real;
	gcr_reals_find(NULL);
	return atomic_load_explicit(&gcr_reals[entry], memory_order_relaxed);
}

bool gcr_reals_is(enum gcr_entry entry, void *function)
{
	void *library, *now;

	gcr_reals_find(function);
	if (function == atomic_load_explicit(&gcr_reals[entry], memory_order_relaxed))
		return true;
	/*
	 * The program may have closed the library and opened it again at another address. A second
	 * driver in the same program (a stub, for instance) is left alone.
	 */
	if (atomic_load_explicit(&pinned, memory_order_relaxed))
		return false;
	library = open_driver(NULL, 0);
	now = library ? gcr_real_dlsym()(library, gcr_entry_points[entry].symbol) : NULL;
	if (now == function)
		find(function, 0);
	if (library)
		dlclose(library);
	dlerror();
	return now == function;
}

enum gcr_entry gcr_entry_of(const void *function, const char *name)
{
	enum gcr_entry entry = GCR_ENTRIES;

	for (size_t i = 0; i < GCR_ENTRIES; i++) {
		if (atomic_load_explicit(&gcr_reals[i], memory_order_relaxed) != function)
			continue;
		if (strcmp(gcr_entry_points[i].name, name) == 0)
			return (enum gcr_entry)i;
		entry = (enum gcr_entry)i;
	}
	return entry;
}

#ifdef GCR_HIP

static const char *const call_names[GCR_CALLS] = {
#define ALIKE(cuda, hip)   #cuda,
#define ADAPTED(cuda, hip) #cuda,
#include "backend/rocm/alike.def"
#undef ALIKE
#undef ADAPTED
};

static void *look_up(void *nothing, const char *name)
{
	enum gcr_entry entry = gcr_entry_find(name);

	return entry == GCR_ENTRIES ? NULL : gcr_entry_real(entry);
}

void *gcr_call_real(enum gcr_call call)
{
	static _Atomic(void *) known[GCR_CALLS];
	void *real = atomic_load_explicit(&known[call], memory_order_relaxed);

	if (real)
		return real;
	real = gcr_hip_find(call_names[call], look_up, NULL);
	/* Before that the library may be closed, and opened again at another address. */
	if (atomic_load_explicit(&pinned, memory_order_relaxed))
		atomic_store_explicit(&known[call], real, memory_order_relaxed);
	return real;
}

#endif
