/* SPDX-License-Identifier: MIT */
/*
 * What the parts of libgpucr-preload.so, and of libgpucr-preload-hip.so, know of each other. All of
 * it is hidden outside, but for the names of dlsym.
 */
#ifndef GCR_PRELOAD_H
#define GCR_PRELOAD_H

#include <features.h>

/* Where dlsym.S knows the way, and the C library has dlvsym(3) to find the real one with. */
#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#define GCR_PRELOAD_DLSYM 1
#else
#define GCR_PRELOAD_DLSYM 0
#endif

/* Wrappers of functions that are not in entry_points.def: where unknown.S knows the registers. */
#if defined(__x86_64__) || defined(__aarch64__)
#define GCR_PRELOAD_UNKNOWN 1
#else
#define GCR_PRELOAD_UNKNOWN 0
#endif
#define GCR_UNKNOWN_MAX	       128
#define GCR_UNKNOWN_BYTES      16 /* of code for each */
#define GCR_UNKNOWN_NAME_BYTES 64
/* What can hold arguments that are numbers: registers, and words of the stack that are handed on.
 */
#ifdef __x86_64__
#define GCR_UNKNOWN_REGISTERS 6
#else
#define GCR_UNKNOWN_REGISTERS 8
#endif
#define GCR_UNKNOWN_STACK_WORDS 16

/*
 * The program's dlsym(3) is the one of the first preload library. This is the other way in, from
 * the first to the second: what that does not know goes to the C library's.
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

/* Have gcr_preload_forget() called in the children of fork(2), from now on. */
void gcr_preload_expect_fork(void);

/*
 * Is this a child that has a copy of its parent's memory, and has not called gcr_preload_forget()
 * yet? One of vfork(2) is not: what it forgets the parent would not know any more either.
 */
bool gcr_preload_is_copy(void);

/* In a child: nothing of the parent's is ours. */
void gcr_preload_forget(void);

/*
 * Where dlsym(@handle, @name), called at @caller, has to go: a function that takes the same two
 * arguments. Called by the assembly in dlsym.S, which then jumps there.
 */
void *gcr_preload_dlsym_target(void *handle, const char *name, const void *caller);

/* The same for a call that the other preload library has handed on. */
void *gcr_preload_last_target(void *handle, const char *name, const void *caller);

/* Where dlopen(@file, @mode) has to go, and with which mode; in two registers. */
struct gcr_preload_open {
	void *function;
	uint64_t mode;
};
struct gcr_preload_open gcr_preload_dlopen_target(const char *file, int mode);
struct gcr_preload_open gcr_preload_dlmopen_target(long space, const char *file, int mode);

#endif
#endif
