/* SPDX-License-Identifier: MIT */
/*
 * The driver's entry points, and access to the driver's own functions from inside the preload
 * library, where the plain names are the library's wrappers.
 *
 * All of this is compiled twice. With GCR_HIP the driver is AMD's and the entry points are HIP's,
 * but the sources still use CUDA's names, such as cuMemCreate. For calls (GCR_REAL),
 * backend/rocm/adapt.h maps a name to HIP; for wrappers (GCR_OWN), entry_names_hip.h does.
 */
#ifndef GCR_PRELOAD_ENTRY_POINTS_H
#define GCR_PRELOAD_ENTRY_POINTS_H

#include <stdatomic.h>
#include <stdbool.h>

#ifdef GCR_HIP
#include "backend/preload/driver/entry_names_hip.h"
#define GCR_ENTRY_POINTS  "backend/preload/driver/entry_points_hip.def"
#define GCR_SYMBOL(owned) GCR_HIP_NAME_##owned
#else
#define GCR_ENTRY_POINTS	 "backend/preload/driver/entry_points.def"
#define GCR_SYMBOL(owned)	 owned
/* The newest CUDA version whose functions are in the table, as passed to cuGetProcAddress. */
#define GCR_ENTRY_POINTS_VERSION 13040
#endif

enum gcr_entry {
#define ENTRY(class, symbol, name, version, arguments) GCR_ENTRY_##symbol,
#include GCR_ENTRY_POINTS
#undef ENTRY
	GCR_ENTRIES,
};

/* The entry point that GCR_OWN(owned) wraps, and its symbol name for the linker. */
#define GCR_ENTRY(owned)	     GCR_ENTRY_PASTED(GCR_SYMBOL(owned))
#define GCR_ENTRY_PASTED(symbol)     GCR_ENTRY_PASTED_(symbol)
#define GCR_ENTRY_PASTED_(symbol)    GCR_ENTRY_##symbol
#define GCR_SYMBOL_STRING(owned)     GCR_SYMBOL_STRINGED(GCR_SYMBOL(owned))
#define GCR_SYMBOL_STRINGED(symbol)  GCR_SYMBOL_STRINGED_(symbol)
#define GCR_SYMBOL_STRINGED_(symbol) #symbol

enum gcr_entry_class {
	GCR_ENTRY_CALL = 1,
	GCR_ENTRY_POLL,
	GCR_ENTRY_SUBMIT,
	GCR_ENTRY_WAIT,
	GCR_ENTRY_FREE,
	GCR_ENTRY_OWN,
};

struct gcr_entry_point {
	const char *symbol;
	const char *name; /* for cuGetProcAddress */
	int version;	  /* 1000 * major + 10 * minor */
	enum gcr_entry_class class;
};

/* All entry points, sorted by symbol. */
extern const struct gcr_entry_point gcr_entry_points[GCR_ENTRIES];

/* The functions that the program calls instead of the driver's; NULL for GCR_ENTRY_FREE. */
extern void *const gcr_entry_wrappers[GCR_ENTRIES];

/* Returns the entry point with this exported name; GCR_ENTRIES if there is none. */
enum gcr_entry gcr_entry_find(const char *symbol);

/*
 * The driver's own function, with the type of its declaration in cuda_api.h. NULL if no driver is
 * loaded, or if the driver is too old to have the function.
 *
 *	__typeof__(cuMemUnmap) *unmap = GCR_REAL(cuMemUnmap);
 */
#ifdef GCR_HIP
enum gcr_call {
#define ALIKE(cuda, hip)   GCR_CALL_##cuda,
#define ADAPTED(cuda, hip) GCR_CALL_##cuda,
#include "backend/rocm/alike.def"
#undef ALIKE
#undef ADAPTED
	GCR_CALLS,
};
#define GCR_REAL(symbol) ((__typeof__(symbol) *)gcr_call_real(GCR_CALL_##symbol))
void *gcr_call_real(enum gcr_call call);
#else
#define GCR_REAL(symbol) ((__typeof__(symbol) *)gcr_entry_real(GCR_ENTRY_##symbol))
#endif
void *gcr_entry_real(enum gcr_entry entry);

/* The driver's function that GCR_OWN(owned) replaces: the program would have called this one. */
#define GCR_WRAPPED(owned)	    GCR_WRAPPED_AS(owned, owned)
#define GCR_WRAPPED_AS(owned, like) ((__typeof__(like) *)gcr_entry_real(GCR_ENTRY(owned)))

/*
 * A hand-written wrapper, exported under the name of the function that it replaces:
 *
 *	GCR_OWN(cuMemUnmap);
 *	CUresult gcr_own_cuMemUnmap(CUdeviceptr ptr, size_t size)
 *	{
 *		__typeof__(cuMemUnmap) *real = GCR_WRAPPED(cuMemUnmap);
 *
 *		if (!real)
 *			return CUDA_ERROR_NOT_FOUND;
 *		GCR_GATE(cuMemUnmap);
 *		...
 *	}
 *
 * The function's class in the table must be OWN, and with GCR_HIP entry_names_hip.h must name it.
 * GCR_OWN_AS is for an entry point that is not declared itself but has the prototype of another one
 * (a per-thread variant, for instance).
 */
#define GCR_OWN(symbol) GCR_OWN_AS(symbol, symbol)
#define GCR_OWN_AS(symbol, like)                                                    \
	extern __typeof__(like) gcr_own_##symbol __asm__(GCR_SYMBOL_STRING(symbol)) \
		__attribute__((visibility("default")))

/* ---- shared by the files that intercept look-ups ---- */

/* Looks up the driver's functions if the driver is loaded. @function: one of them, or NULL. */
void gcr_reals_find(void *function);

/* Could the driver export this name? False for names of libraries above the driver (cudaMalloc). */
bool gcr_entry_is_drivers_name(const char *name);

/* The entry point whose driver function is @function; of several, the one of that name. */
enum gcr_entry gcr_entry_of(const void *function, const char *name);

/* Is @function in the driver's library? */
bool gcr_reals_has(void *function);

/* Keeps the driver loaded at its present address from now on: the driver has been initialised. */
void gcr_reals_pin(void);

/*
 * Is @function the driver's function of @entry? Looks the driver up, and looks it up again if the
 * program has closed it and opened it at another address.
 */
bool gcr_reals_is(enum gcr_entry entry, void *function);

/* The driver's functions; NULL if not found yet. See gcr_entry_real(). */
extern _Atomic(void *) gcr_reals[GCR_ENTRIES];

/* The C library's dlsym(3), which the program would call without this library. */
typedef void *gcr_dlsym_function(void *handle, const char *name);
gcr_dlsym_function *gcr_real_dlsym(void);

/*
 * The function of this name in the next library that has it: the C library, or another one that
 * intercepts it. @known keeps the result for the next call. NULL: there is none.
 */
void *gcr_real_next(const char *name, _Atomic(void *) *known);

#endif
