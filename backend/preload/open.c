/* SPDX-License-Identifier: MIT */
/*
 * dlopen(3), for what it would hide from this library. An object opened with RTLD_DEEPBIND finds
 * the C library's dlsym, and the driver's functions if it is linked with it, before ours: it would
 * go around the gate. So the flag is taken away (Julia opens all with it). The object then prefers
 * what the program and its libraries export to its own, as it would on any system without the flag;
 * a program that cannot stand that has GPUCR_PRELOAD_DEEPBIND=1, and the page says that the gate is
 * incomplete. So it does of an object in a name space of its own (dlmopen), where we are not.
 *
 * Runs inside any program at any time, before main() too: no lock, no memory allocated here. In
 * doubt the call is what it was.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/preload/entry_points.h"
#include "backend/preload/gate.h"
#include "backend/preload/preload.h"

#if GCR_PRELOAD_DLSYM

static void *fail(void)
{
	return NULL;
}

/* Of the next library that has one: the C library, or one that stands in for it as we do. */
static void *find_next(const char *name, _Atomic(void *) *known)
{
	gcr_dlsym_function *look_up = gcr_real_dlsym();
	void *next = atomic_load(known);

	if (!next && look_up)
		next = look_up(RTLD_NEXT, name);
	atomic_store(known, next);
	return next ? next : (void *)fail;
}

/* As what it opens is called in the page. */
static void say_incomplete(const char *what, const char *file)
{
	const char *slash = file ? strrchr(file, '/') : NULL;
	char name[64];

	snprintf(name, sizeof(name), "%s: %s", what, slash ? slash + 1 : file ? file : "-");
	gcr_gate_incomplete(name);
}

static bool keeps_flag(void)
{
	const char *keep = getenv("GPUCR_PRELOAD_DEEPBIND");

	return keep && strcmp(keep, "1") == 0;
}

static int change_mode(const char *file, int mode)
{
	if (!(mode & RTLD_DEEPBIND))
		return mode;
	if (!keeps_flag())
		return mode & ~RTLD_DEEPBIND;
	say_incomplete("RTLD_DEEPBIND", file);
	return mode;
}

struct gcr_preload_open gcr_preload_dlopen_target(const char *file, int mode)
{
	static _Atomic(void *) known;

	return (struct gcr_preload_open){
		.function = find_next("dlopen", &known),
		.mode = (uint64_t)(unsigned)change_mode(file, mode),
	};
}

struct gcr_preload_open gcr_preload_dlmopen_target(long space, const char *file, int mode)
{
	static _Atomic(void *) known;

	if (space == LM_ID_BASE)
		mode = change_mode(file, mode);
	else
		say_incomplete("dlmopen", file);
	return (struct gcr_preload_open){
		.function = find_next("dlmopen", &known),
		.mode = (uint64_t)(unsigned)mode,
	};
}

#endif
