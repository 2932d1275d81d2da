/* SPDX-License-Identifier: MIT */
/*
 * Intercepts the program's look-ups of driver functions by dlsym. This code runs inside any program
 * at any time, also before main(): it has no constructor, allocates no memory and takes no lock. In
 * doubt the program gets the driver's own function.
 *
 * A program may have two preload libraries, for the drivers of two vendors, each with a dlsym. The
 * first passes names that are not its driver's to the second by a jump, so the second sees the
 * original caller.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/base/preload.h"
#include "backend/preload/hook/unknown.h"

#if GCR_PRELOAD_DLSYM

/* Can @name be that of a wrapped entry point? A cheap test. */
static bool has_prefix(const char *name)
{
#ifdef GCR_HIP
	return name[0] == 'h' && name[1] == 'i' && name[2] == 'p';
#else
	return name[0] == 'c' && name[1] == 'u';
#endif
}

/* Answers while no driver is loaded: fails, with a dlerror() message, as without the library. */
static void *answer_absent(void *handle, const char *name)
{
	void *nothing = gcr_real_dlsym()(RTLD_NEXT, name);

	/* Prevents a tail call: RTLD_NEXT is relative to the library that contains the caller. */
	__asm__ volatile("" : "+r"(nothing));
	return nothing;
}

/* The wrapper of @entry, or @function (the look-up's result) if @entry has none. */
static void *wrap(enum gcr_entry entry, void *function)
{
	void *wrapper = gcr_entry_wrappers[entry];

	return function && wrapper && gcr_reals_is(entry, function) ? wrapper : function;
}

/*
 * Answers a look-up of a wrapped entry point in one library, for which the caller does not matter.
 */
static void *answer_wrapped(void *handle, const char *name)
{
	enum gcr_entry entry = gcr_entry_find(name);
	void *found = gcr_real_dlsym()(handle, name);

	/* dlopen(NULL) finds the library's own wrapper even if no driver is loaded. */
	if (found && found == gcr_entry_wrappers[entry])
		return gcr_entry_real(entry) ? found : answer_absent(handle, name);
	return wrap(entry, found);
}

/*
 * Answers a look-up of a name of the driver's that entry_points.def lacks, or of another library.
 */
static void *answer_unknown(void *handle, const char *name)
{
	void *found = gcr_real_dlsym()(handle, name);

	return found && gcr_reals_has(found) ? gcr_unknown_wrap(name, found) : found;
}

static void *answer_unknown_next(void *handle, const char *name)
{
	return answer_unknown(RTLD_DEFAULT, name);
}

/*
 * Answers a look-up with RTLD_NEXT by an object behind this library: returns the wrapper, since a
 * real look-up from there would find the driver's function only.
 */
static void *answer_own(void *handle, const char *name)
{
	return gcr_entry_wrappers[gcr_entry_find(name)];
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

/* Was the object with this address loaded after this library? Objects are listed in that order. */
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

void *gcr_preload_last_target(void *handle, const char *name, const void *caller)
{
	gcr_dlsym_function *real = gcr_real_dlsym();
	enum gcr_entry entry;

	if (!real)
		return (void *)answer_nothing;
	if (!name || !has_prefix(name))
		return (void *)real;
	entry = gcr_entry_find(name);
	if (entry == GCR_ENTRIES)
		return gcr_entry_is_drivers_name(name) ? unknown_target(handle, name)
						       : (void *)real;
	if (!gcr_entry_wrappers[entry])
		return (void *)real;
	if (handle != RTLD_DEFAULT && handle != RTLD_NEXT)
		return (void *)answer_wrapped;
	if (!gcr_entry_real(entry))
		return (void *)answer_absent;
	/* From an object before this library the dynamic linker finds the wrapper by itself. */
	return handle == RTLD_NEXT && is_behind_us(caller) ? (void *)answer_own : (void *)real;
}

/*
 * The other preload library's dlsym, if that library is loaded. A weak symbol, since a look-up by
 * dlsym could happen inside malloc(3), and calls malloc on failure.
 */
extern gcr_dlsym_function GCR_PRELOAD_DLSYM_OTHER __attribute__((weak, visibility("default")));

void *gcr_preload_dlsym_target(void *handle, const char *name, const void *caller)
{
	if (GCR_PRELOAD_DLSYM_OTHER && (!name || !has_prefix(name)))
		return (void *)GCR_PRELOAD_DLSYM_OTHER;
	return gcr_preload_last_target(handle, name, caller);
}

static bool is_others(const void *function)
{
	Dl_info info, other;

	return GCR_PRELOAD_DLSYM_OTHER && dladdr((void *)GCR_PRELOAD_DLSYM_OTHER, &other) &&
	       dladdr(function, &info) && info.dli_fbase == other.dli_fbase;
}

/*
 * Reports an incomplete gate if a library loaded before this one exports its own dlsym: it may look
 * the driver's functions up by the C library's dlsym, and these then bypass the gate.
 */
static void look_for_other_dlsym(void)
{
	gcr_dlsym_function *real = gcr_real_dlsym();
	void *first = real ? real(RTLD_DEFAULT, "dlsym") : NULL;
	char name[64];
	Dl_info info;

	if (!first || first == (void *)dlsym || is_others(first))
		return;
	if (!dladdr(first, &info) || !info.dli_fname)
		info.dli_fname = "another library";
	snprintf(name, sizeof(name), "dlsym of %s", basename(info.dli_fname));
	gcr_gate_incomplete(name);
}

GCR_LISTEN(start, look_for_other_dlsym);

#endif
