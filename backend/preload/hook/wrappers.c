/* SPDX-License-Identifier: MIT */
/*
 * The functions that replace the driver's entry points: one for each that passes the gate, made
 * from the table of entry points, and the table of all. cuda_api.h must not be included here: these
 * functions have the same names but take every argument as a full register (or stack slot),
 * whatever its type; that is the same on x86-64 (System V) and on AArch64. Entry points for which
 * this does not hold are OWN, and have a wrapper elsewhere.
 */
#include <stddef.h>
#include <stdint.h>

#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/thread.h"
#include "lib/cleanup.h"

#define EXPORT __attribute__((visibility("default")))

#define NOT_FOUND 500 /* CUDA_ERROR_NOT_FOUND, hipErrorNotFound: there is no such driver */

#define TYPES_0	 void
#define TYPES_1	 uintptr_t
#define TYPES_2	 TYPES_1, uintptr_t
#define TYPES_3	 TYPES_2, uintptr_t
#define TYPES_4	 TYPES_3, uintptr_t
#define TYPES_5	 TYPES_4, uintptr_t
#define TYPES_6	 TYPES_5, uintptr_t
#define TYPES_7	 TYPES_6, uintptr_t
#define TYPES_8	 TYPES_7, uintptr_t
#define TYPES_9	 TYPES_8, uintptr_t
#define TYPES_10 TYPES_9, uintptr_t
#define TYPES_11 TYPES_10, uintptr_t
#define TYPES_12 TYPES_11, uintptr_t
#define TYPES_13 TYPES_12, uintptr_t
#define TYPES_14 TYPES_13, uintptr_t

#define PARAMETERS_0  void
#define PARAMETERS_1  uintptr_t a1
#define PARAMETERS_2  PARAMETERS_1, uintptr_t a2
#define PARAMETERS_3  PARAMETERS_2, uintptr_t a3
#define PARAMETERS_4  PARAMETERS_3, uintptr_t a4
#define PARAMETERS_5  PARAMETERS_4, uintptr_t a5
#define PARAMETERS_6  PARAMETERS_5, uintptr_t a6
#define PARAMETERS_7  PARAMETERS_6, uintptr_t a7
#define PARAMETERS_8  PARAMETERS_7, uintptr_t a8
#define PARAMETERS_9  PARAMETERS_8, uintptr_t a9
#define PARAMETERS_10 PARAMETERS_9, uintptr_t a10
#define PARAMETERS_11 PARAMETERS_10, uintptr_t a11
#define PARAMETERS_12 PARAMETERS_11, uintptr_t a12
#define PARAMETERS_13 PARAMETERS_12, uintptr_t a13
#define PARAMETERS_14 PARAMETERS_13, uintptr_t a14

#define ARGUMENTS_0
#define ARGUMENTS_1  a1
#define ARGUMENTS_2  ARGUMENTS_1, a2
#define ARGUMENTS_3  ARGUMENTS_2, a3
#define ARGUMENTS_4  ARGUMENTS_3, a4
#define ARGUMENTS_5  ARGUMENTS_4, a5
#define ARGUMENTS_6  ARGUMENTS_5, a6
#define ARGUMENTS_7  ARGUMENTS_6, a7
#define ARGUMENTS_8  ARGUMENTS_7, a8
#define ARGUMENTS_9  ARGUMENTS_8, a9
#define ARGUMENTS_10 ARGUMENTS_9, a10
#define ARGUMENTS_11 ARGUMENTS_10, a11
#define ARGUMENTS_12 ARGUMENTS_11, a12
#define ARGUMENTS_13 ARGUMENTS_12, a13
#define ARGUMENTS_14 ARGUMENTS_13, a14

static inline void *find(enum gcr_entry entry)
{
	void *real = atomic_load_explicit(&gcr_reals[entry], memory_order_relaxed);

	return gcr_likely(real) ? real : gcr_entry_real(entry);
}

#define WRAPPER(symbol, submits, polls, parameters, types, arguments) \
	EXPORT int symbol(parameters);                                \
	EXPORT int symbol(parameters)                                 \
	{                                                             \
		int (*real)(types) = find(GCR_ENTRY_##symbol);        \
		bool outermost;                                       \
		int result;                                           \
                                                                      \
		if (!gcr_likely(real))                                \
			return NOT_FOUND;                             \
		outermost = gcr_thread_enter(GCR_ENTRY_##symbol);     \
		if (submits)                                          \
			gcr_thread_submitted();                       \
		result = real(arguments);                             \
		if (polls && result == 0)                             \
			gcr_thread_answered();                        \
		gcr_thread_leave(outermost);                          \
		return result;                                        \
	}

/* A macro that replaces PARAMETERS_3 before its commas count. */
#define LIST(...) __VA_ARGS__

#define WRAPPER_CALL(symbol, arguments)                                                      \
	WRAPPER(symbol, false, false, LIST(PARAMETERS_##arguments), LIST(TYPES_##arguments), \
		LIST(ARGUMENTS_##arguments))
#define WRAPPER_SUBMIT(symbol, arguments)                                                   \
	WRAPPER(symbol, true, false, LIST(PARAMETERS_##arguments), LIST(TYPES_##arguments), \
		LIST(ARGUMENTS_##arguments))
#define WRAPPER_POLL(symbol, arguments)                                                     \
	WRAPPER(symbol, false, true, LIST(PARAMETERS_##arguments), LIST(TYPES_##arguments), \
		LIST(ARGUMENTS_##arguments))
#define WRAPPER_WAIT(symbol, arguments) WRAPPER_CALL(symbol, arguments)
#define WRAPPER_FREE(symbol, arguments)
#define WRAPPER_OWN(symbol, arguments) EXPORT int symbol(void);

#define ENTRY(class, symbol, name, version, arguments) WRAPPER_##class(symbol, arguments)
#include GCR_ENTRY_POINTS
#undef ENTRY

#define ADDRESS_CALL(symbol)   (void *)symbol
#define ADDRESS_POLL(symbol)   (void *)symbol
#define ADDRESS_SUBMIT(symbol) (void *)symbol
#define ADDRESS_WAIT(symbol)   (void *)symbol
#define ADDRESS_FREE(symbol)   NULL
#define ADDRESS_OWN(symbol)    (void *)symbol

void *const gcr_entry_wrappers[GCR_ENTRIES] = {
#define ENTRY(class, symbol, name, version, arguments) ADDRESS_##class(symbol),
#include GCR_ENTRY_POINTS
#undef ENTRY
};
