/* SPDX-License-Identifier: MIT */
/*
 * The hook for dlopen(3), which could hide calls from this library. An object opened with
 * RTLD_DEEPBIND finds the C library's dlsym, and the driver's functions if it is linked with the
 * driver, before the library's: its calls would bypass the gate. So the flag is removed (Julia
 * opens all objects with it). The object then prefers the symbols of the program and its libraries
 * to its own, as on any system without the flag. A program that does not work this way can set
 * GPUCR_PRELOAD_DEEPBIND=1; then the page says that the gate is incomplete. The page says the same
 * for an object in a name space of its own (dlmopen), where this library is not loaded.
 *
 * Runs inside any program at any time, before main() too: takes no lock, allocates no memory. In
 * doubt the call is not changed.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/base/preload.h"

#if GCR_PRELOAD_DLSYM

static void *fail(void)
{
	return NULL;
}

static void *find_next(const char *name, _Atomic(void *) *known)
{
	void *next = gcr_real_next(name, known);

	return next ? next : (void *)fail;
}

/* Reports the opened object @file in the page as an incomplete gate, for the reason @what. */
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
