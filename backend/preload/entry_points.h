/* SPDX-License-Identifier: MIT */
/*
 * The driver's entry points (entry_points.def) and how to reach the driver's own functions from
 * inside the preload library, where the plain names are our wrappers.
 */
#ifndef GCR_PRELOAD_ENTRY_POINTS_H
#define GCR_PRELOAD_ENTRY_POINTS_H

#include <stdatomic.h>
#include <stdbool.h>

enum gcr_entry {
#define ENTRY(class, symbol, name, version, arguments) GCR_ENTRY_##symbol,
#include "backend/preload/entry_points.def"
#undef ENTRY
	GCR_ENTRIES,
};

enum gcr_entry_class {
	GCR_ENTRY_CALL = 1,
	GCR_ENTRY_SUBMIT,
	GCR_ENTRY_WAIT,
	GCR_ENTRY_FREE,
	GCR_ENTRY_OWN,
};

struct gcr_entry_point {
	const char *symbol;
	const char *name; /* for cuGetProcAddress */
	int version;	  /* CUDA: 1000 * major + 10 * minor */
	enum gcr_entry_class class;
	void *wrapper; /* NULL for GCR_ENTRY_FREE */
};

extern const struct gcr_entry_point gcr_entry_points[GCR_ENTRIES];

/* The entry point with this exported name; GCR_ENTRIES if there is none. */
enum gcr_entry gcr_entry_find(const char *symbol);

/*
 * The driver's own function, typed by the declaration in cuda_api.h; NULL if no driver is loaded
 * or if it is too old to have it.
 *
 *	__typeof__(cuMemUnmap) *unmap = GCR_REAL(cuMemUnmap);
 */
#define GCR_REAL(symbol) ((__typeof__(symbol) *)gcr_entry_real(GCR_ENTRY_##symbol))
void *gcr_entry_real(enum gcr_entry entry);

/*
 * A wrapper written by hand, exported under the name of the function it stands in for:
 *
 *	GCR_OWN(cuMemUnmap);
 *	CUresult gcr_own_cuMemUnmap(CUdeviceptr ptr, size_t size)
 *	{
 *		__typeof__(cuMemUnmap) *real = GCR_REAL(cuMemUnmap);
 *
 *		if (!real)
 *			return CUDA_ERROR_NOT_FOUND;
 *		GCR_GATE(cuMemUnmap);
 *		...
 *	}
 *
 * The class in entry_points.def must be OWN. GCR_OWN_AS is for an entry point that has the
 * prototype of another one (a per-thread variant, say) and is not declared itself.
 */
#define GCR_OWN(symbol) GCR_OWN_AS(symbol, symbol)
#define GCR_OWN_AS(symbol, like)                                  \
	extern __typeof__(like) gcr_own_##symbol __asm__(#symbol) \
		__attribute__((visibility("default")))

/* ---- between the files that do the hooking ---- */

/* Look the driver's functions up, if it is loaded. @function is one of them, or NULL. */
void gcr_reals_find(void *function);

/* Is this a function of the driver's library? */
bool gcr_reals_has(void *function);

/* From here on the driver stays where it is: cuInit has succeeded. */
void gcr_reals_pin(void);

/* What a caller gets that has found @function under the name of @entry: our wrapper, or itself. */
void *gcr_entry_wrap(enum gcr_entry entry, void *function);

/*
 * What a caller gets instead of @function of the driver, which is none of the entry points: a
 * wrapper that passes the gate as number GCR_ENTRIES + N, and has the page say so when it is
 * called. gcr_unknown_name(N) is what it was first asked for as; NULL if there is no such wrapper.
 */
void *gcr_unknown_wrap(const char *name, void *function);
const char *gcr_unknown_name(unsigned int number);

/* The driver's functions, NULL where not yet found; see gcr_entry_real(). */
extern _Atomic(void *) gcr_reals[GCR_ENTRIES];

/* dlsym(3) as it is without us. */
typedef void *gcr_dlsym_function(void *handle, const char *name);
gcr_dlsym_function *gcr_real_dlsym(void);

#endif
