/* SPDX-License-Identifier: MIT */
/*
 * Functions of a driver that is newer than entry_points.def. Their calls pass the gate like others,
 * and the program's handles in the arguments are replaced by the driver's. The effect of most on
 * memory is unknown, so a process that has called one cannot be frozen by way of this library.
 * Functions whose names say that they only return information (unknown_name.c) are listed in the
 * page but are no obstacle. A function that is only looked up, as the CUDA runtime does with all,
 * is neither listed nor an obstacle.
 */
#include <pthread.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/base/preload.h"
#include "backend/preload/memory/table.h"
#include "backend/preload/gate/thread.h"
#include "backend/preload/hook/unknown.h"
#include "backend/preload/gate/unknown_names.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

/* Guards the page's list of names. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Appends a name to the list of @size bytes; a full list ends in an ellipsis. */
static void append(char *list, size_t size, const char *name)
{
	static const char more[] = " ...";
	size_t length = strnlen(list, size - 1), room = size - length - sizeof(more);

	if (length + sizeof(more) > size ||
	    (length >= sizeof(more) - 1 && !strcmp(list + length - (sizeof(more) - 1), more)))
		return;
	if (strlen(name) + 1 > room) {
		memcpy(list + length, more, sizeof(more));
		return;
	}
	if (length)
		list[length++] = ' ';
	memcpy(list + length, name, strlen(name) + 1);
}

/* Records in the page that the function has been called. */
static void note(const char *name)
{
	struct gcr_page *page = gcr_gate_page();

	if (page) {
		GCR_LOCK_SCOPE(&lock);
		append(page->unknown, sizeof(page->unknown), name);
	}
	if (!gcr_unknown_is_harmless(name))
		gcr_gate_incomplete(name);
}

#if GCR_PRELOAD_UNKNOWN

static struct unknown {
	_Atomic(void *) real;
	atomic_bool noted;
} unknowns[GCR_UNKNOWN_MAX];

/* The code of the wrappers, in unknown.S. */
extern const char gcr_unknown_wrappers[GCR_UNKNOWN_MAX][GCR_UNKNOWN_BYTES];
void *gcr_unknown_enter(unsigned int number, uint64_t *ret_pass, uint64_t *registers,
			uint64_t *stack);
void gcr_unknown_leave(uint64_t pass);

void *gcr_unknown_enter(unsigned int number, uint64_t *ret_pass, uint64_t *registers,
			uint64_t *stack)
{
	struct unknown *unknown = &unknowns[number];
	const char *name = gcr_unknown_name(number);

	if (!name)
		name = "a function of the driver without a name";
	if (!atomic_exchange(&unknown->noted, true))
		note(name);
	*ret_pass = gcr_thread_enter((enum gcr_entry)(GCR_ENTRIES + number));
	if (!gcr_unknown_is_harmless(name))
		gcr_thread_submitted();
	/* Only inside the gate: a thaw during the wait changes the driver's handles. */
	gcr_table_translate(registers, GCR_UNKNOWN_REGISTERS);
	gcr_table_translate(stack, GCR_UNKNOWN_STACK_WORDS);
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

	/* Without a wrapper a call would not be seen, so count the function as called. */
	if (number == GCR_UNKNOWN_MAX) {
		note(name);
		return function;
	}
	gcr_unknown_set_name(number, name);
	return (void *)(uintptr_t)gcr_unknown_wrappers[number];
}

static void forget(void)
{
	pthread_mutex_init(&lock, NULL);
	for (unsigned int i = 0; i < GCR_UNKNOWN_MAX; i++)
		atomic_store(&unknowns[i].noted, false);
}

GCR_LISTEN(fork, forget);

#else

void *gcr_unknown_wrap(const char *name, void *function)
{
	note(name);
	return function;
}

static void forget(void)
{
	pthread_mutex_init(&lock, NULL);
}

GCR_LISTEN(fork, forget);

#endif
