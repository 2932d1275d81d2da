/* SPDX-License-Identifier: MIT */
/*
 * Functions of a driver that is newer than entry_points.def. They pass the gate like others; but
 * what they do to memory is not known, so a process that has called one cannot be frozen by way of
 * this library. Merely looking one up, as the CUDA runtime does with all, is no obstacle.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "backend/preload/entry_points.h"
#include "backend/preload/gate.h"
#include "backend/preload/preload.h"
#include "backend/preload/thread.h"
#include "lib/cleanup.h"

#if GCR_PRELOAD_UNKNOWN

static struct unknown {
	_Atomic(void *) real;
	_Atomic(const char *) name;
} unknowns[GCR_UNKNOWN_MAX];

static char names[GCR_UNKNOWN_MAX][GCR_UNKNOWN_NAME_BYTES];

/* In unknown.S. */
extern const char gcr_unknown_wrappers[GCR_UNKNOWN_MAX][GCR_UNKNOWN_BYTES];
void *gcr_unknown_enter(unsigned int number, uint64_t *ret_pass);
void gcr_unknown_leave(uint64_t pass);

void *gcr_unknown_enter(unsigned int number, uint64_t *ret_pass)
{
	struct unknown *unknown = &unknowns[number];
	const char *name = atomic_load(&unknown->name);

	gcr_gate_incomplete(name ? name : "a function of the driver without a name");
	*ret_pass = gcr_thread_enter((enum gcr_entry)(GCR_ENTRIES + number));
	gcr_thread_submitted();
	return atomic_load(&unknown->real);
}

void gcr_unknown_leave(uint64_t pass)
{
	gcr_thread_leave(pass != 0);
}

static unsigned int find(void *function)
{
	void *none = NULL;

	for (unsigned int i = 0; i < GCR_UNKNOWN_MAX; i++, none = NULL)
		if (atomic_load(&unknowns[i].real) == function ||
		    atomic_compare_exchange_strong(&unknowns[i].real, &none, function))
			return i;
	return GCR_UNKNOWN_MAX;
}

void *gcr_unknown_wrap(const char *name, void *function)
{
	unsigned int number = find(function);

	if (number == GCR_UNKNOWN_MAX) {
		gcr_gate_incomplete(name);
		return function;
	}
	if (!atomic_load(&unknowns[number].name)) {
		/* Two threads at the same time write the same. */
		strncpy(names[number], name, GCR_UNKNOWN_NAME_BYTES - 1);
		atomic_store(&unknowns[number].name, names[number]);
	}
	return (void *)(uintptr_t)gcr_unknown_wrappers[number];
}

const char *gcr_unknown_name(unsigned int number)
{
	return number < GCR_UNKNOWN_MAX ? atomic_load(&unknowns[number].name) : NULL;
}

#else

void *gcr_unknown_wrap(const char *name, void *function)
{
	gcr_gate_incomplete(name);
	return function;
}

const char *gcr_unknown_name(unsigned int number)
{
	return NULL;
}

#endif
