/* SPDX-License-Identifier: MIT */
/*
 * Control over where the driver puts managed memory. Measured (580.159): the driver reserves a
 * chunk, whole multiples of 32 MiB, by
 *
 *	mmap(NULL, size + 32 MiB - 4 KiB, PROT_NONE)	and gives back what is not aligned,
 *	mmap(FIXED) of pages of /dev/nvidia-uvm into it, at the address that they have on the GPU,
 *	mmap(FIXED, PROT_NONE) over them when they are freed,
 *	munmap() of the chunk when nothing is left in it;
 *
 * small allocations share 2 MiB of such pages. So the kernel chooses the address of a chunk, and
 * freed memory does not come back at its old address by itself. This file intercepts the driver's
 * calls of mmap and munmap: it notes where chunks are, and the agent can choose the address of the
 * next chunk and have the ranges that the driver gives back held (hold.h).
 */
#ifndef GCR_PRELOAD_MMAP_HOOK_H
#define GCR_PRELOAD_MMAP_HOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GCR_CHUNK_BYTES (32ull << 20)

struct gcr_chunk {
	uintptr_t start;
	size_t bytes;
};

/*
 * Installs the hook, once, before the first managed memory is made. Without it no chunk is known.
 */
void gcr_mmap_hook_begin(void);

/*
 * Begin and end around a driver call that makes or frees managed memory, in any thread.
 * gcr_mmap_hook_unwatch() returns how many chunks were reserved in between.
 */
void gcr_mmap_hook_watch(void);
unsigned gcr_mmap_hook_unwatch(void);

/* The chunk that contains @address, if it is known. */
bool gcr_mmap_hook_chunk(uintptr_t address, struct gcr_chunk *ret_chunk);

/* ---- for the agent ---- */

/* Turn on or off that ranges given back by driver calls of this thread become held. */
void gcr_mmap_hook_hold(bool held);

/*
 * The next chunk that driver calls of this thread reserve goes to the held range at @start; 0:
 * anywhere.
 */
void gcr_mmap_hook_place_next(uintptr_t start);

/* Gives back all ranges that are still held: each is unused, or part of a chunk of the driver's. */
void gcr_mmap_hook_release(void);

#endif
