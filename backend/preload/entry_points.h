/* SPDX-License-Identifier: MIT */
/*
 * The driver's entry points and how to reach the driver's own functions from inside the preload
 * library, where the plain names are our wrappers.
 *
 * All is compiled twice. With GCR_HIP the driver is AMD's: the entry points are HIP's, and the
 * sources go on saying cuMemCreate. What that is, where it is called (GCR_REAL), is for
 * backend/rocm/adapt.h to say; where it is stood in for (GCR_OWN), it is for entry_names_hip.h.
 */
#ifndef GCR_PRELOAD_ENTRY_POINTS_H
#define GCR_PRELOAD_ENTRY_POINTS_H

#include <stdatomic.h>
#include <stdbool.h>

#ifdef GCR_HIP
#include "backend/preload/entry_names_hip.h"
#define GCR_ENTRY_POINTS  "backend/preload/entry_points_hip.def"
#define GCR_SYMBOL(owned) GCR_HIP_NAME_##owned
#else
#define GCR_ENTRY_POINTS	 "backend/preload/entry_points.def"
#define GCR_SYMBOL(owned)	 owned
/* Of the newest CUDA whose functions are in the table, as cuGetProcAddress is asked with it. */
#define GCR_ENTRY_POINTS_VERSION 13040
#endif

enum gcr_entry {
#define ENTRY(class, symbol, name, version, arguments) GCR_ENTRY_##symbol,
#include GCR_ENTRY_POINTS
#undef ENTRY
	GCR_ENTRIES,
};

/* The entry point that GCR_OWN(owned) is for, and the name that it has for the linker. */
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

/* The same for the one that GCR_OWN(owned) stands in for: what the program would have called. */
#define GCR_WRAPPED(owned)	    GCR_WRAPPED_AS(owned, owned)
#define GCR_WRAPPED_AS(owned, like) ((__typeof__(like) *)gcr_entry_real(GCR_ENTRY(owned)))

/*
 * A wrapper written by hand, exported under the name of the function it stands in for:
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
 * The class in the table must be OWN, and with GCR_HIP entry_names_hip.h has to have it. GCR_OWN_AS
 * is for an entry point that has the prototype of another one (a per-thread variant, say) and is
 * not declared itself.
 */
#define GCR_OWN(symbol) GCR_OWN_AS(symbol, symbol)
#define GCR_OWN_AS(symbol, like)                                                    \
	extern __typeof__(like) gcr_own_##symbol __asm__(GCR_SYMBOL_STRING(symbol)) \
		__attribute__((visibility("default")))

/* ---- between the files that do the hooking ---- */

/* Look the driver's functions up, if it is loaded. @function is one of them, or NULL. */
void gcr_reals_find(void *function);

/* Could the driver have a function of this name? Not so libraries above it (cudaMalloc). */
bool gcr_entry_is_drivers_name(const char *name);

/* The entry point whose function in the driver is @function; of several, the one of that name. */
enum gcr_entry gcr_entry_of(const void *function, const char *name);

/* Is this a function of the driver's library? */
bool gcr_reals_has(void *function);

/* From here on the driver stays where it is: it has been initialised. */
void gcr_reals_pin(void);

/* The driver has been initialised: the library wakes up. Any number of times. */
void gcr_hook_start(void);

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

/* dlsym(3) as it is without us: the C library's. */
typedef void *gcr_dlsym_function(void *handle, const char *name);
gcr_dlsym_function *gcr_real_dlsym(void);

#endif
