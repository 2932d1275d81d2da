/* SPDX-License-Identifier: MIT */
/*
 * Declarations shared by the parts of libgpucr-preload.so and of libgpucr-preload-hip.so. All of
 * them are hidden outside, except the names of dlsym.
 */
#ifndef GCR_PRELOAD_H
#define GCR_PRELOAD_H

#include <features.h>

/*
 * Platforms for which dlsym.S has code, and whose C library has dlvsym(3) to find the real dlsym.
 */
#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#define GCR_PRELOAD_DLSYM 1
#else
#define GCR_PRELOAD_DLSYM 0
#endif

/*
 * Wrappers of functions that are not in entry_points.def: architectures whose registers unknown.S
 * handles.
 */
#if defined(__x86_64__) || defined(__aarch64__)
#define GCR_PRELOAD_UNKNOWN 1
#else
#define GCR_PRELOAD_UNKNOWN 0
#endif
#define GCR_UNKNOWN_MAX	       128
#define GCR_UNKNOWN_BYTES      16 /* of code for each */
#define GCR_UNKNOWN_NAME_BYTES 64
/*
 * Places that can hold integer arguments: registers, and the words of the stack that are passed on.
 */
#ifdef __x86_64__
#define GCR_UNKNOWN_REGISTERS 6
#else
#define GCR_UNKNOWN_REGISTERS 8
#endif
#define GCR_UNKNOWN_STACK_WORDS 16

/*
 * The program's dlsym(3) is the one of the first preload library. The first library calls the
 * second through these names; symbols that the second does not know are looked up by the C
 * library's dlsym.
 */
#ifdef GCR_HIP
#define GCR_PRELOAD_DLSYM_OWN	gcr_preload_dlsym_hip
#define GCR_PRELOAD_DLSYM_OTHER gcr_preload_dlsym_cuda
#else
#define GCR_PRELOAD_DLSYM_OWN	gcr_preload_dlsym_cuda
#define GCR_PRELOAD_DLSYM_OTHER gcr_preload_dlsym_hip
#endif

#ifndef __ASSEMBLER__

#include <stdbool.h>
#include <stdint.h>

#define GCR_PRELOAD_VERSION 3

/*
 * Called before there is state that a child must not use: from now on gcr_preload_forget() is
 * called in the children of fork(2).
 */
void gcr_preload_expect_fork(void);

/*
 * Is this a child that has a copy of its parent's memory, and has not called gcr_preload_forget()
 * yet? Not a child of vfork(2): it shares its parent's memory, and forgetting there would affect
 * the parent.
 */
bool gcr_preload_is_copy(void);

/* Drops all state that belongs to the parent. Called in a child. */
void gcr_preload_forget(void);

/*
 * Returns the function, with the same two arguments, that must handle dlsym(@handle, @name), called
 * at @caller. Called by the assembly in dlsym.S, which then jumps there.
 */
void *gcr_preload_dlsym_target(void *handle, const char *name, const void *caller);

/* As gcr_preload_dlsym_target(), for a call that the other preload library has passed on. */
void *gcr_preload_last_target(void *handle, const char *name, const void *caller);

/*
 * The function that must handle dlopen(@file, @mode), and the mode to use; returned in two
 * registers.
 */
struct gcr_preload_open {
	void *function;
	uint64_t mode;
};
struct gcr_preload_open gcr_preload_dlopen_target(const char *file, int mode);
struct gcr_preload_open gcr_preload_dlmopen_target(long space, const char *file, int mode);

#endif
#endif
