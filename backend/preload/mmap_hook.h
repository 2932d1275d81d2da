/* SPDX-License-Identifier: MIT */
/*
 * Where the driver puts managed memory. As measured (580.159): it reserves a chunk, whole multiples
 * of 32 MiB, by
 *
 *	mmap(NULL, size + 32 MiB - 4 KiB, PROT_NONE)	and gives back what is not aligned,
 *	mmap(FIXED) of pages of /dev/nvidia-uvm into it, at the address that they have on the GPU,
 *	mmap(FIXED, PROT_NONE) over them when they are freed,
 *	munmap() of the chunk when nothing is left in it;
 *
 * small allocations share 2 MiB of such pages. So where a chunk lies is the kernel's choice, and
 * what is freed does not come back by itself. Here the driver's calls of mmap and munmap are seen:
 * of chunks it is noted where they are, and the agent can say where the next one has to be, and
 * have held (hold.h) what the driver gives back.
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

/* Once, before the first managed memory is made. Without it nothing is known of any chunk. */
void gcr_mmap_hook_begin(void);

/*
 * Around a call of the driver that makes or frees managed memory, in any thread. The second returns
 * how many chunks were reserved in between.
 */
void gcr_mmap_hook_watch(void);
unsigned gcr_mmap_hook_unwatch(void);

/* The chunk that @address is in, if it is known. */
bool gcr_mmap_hook_chunk(uintptr_t address, struct gcr_chunk *ret_chunk);

/* ---- the agent's ---- */

/* What this thread's calls give back from here on, is held. */
void gcr_mmap_hook_hold(bool held);

/* The next chunk that this thread's calls reserve goes to the held range at @start; 0: anywhere. */
void gcr_mmap_hook_place_next(uintptr_t start);

/* What is still held belongs to nobody, or to a chunk of the driver's: give it back. */
void gcr_mmap_hook_release(void);

/* In the child of a fork. */
void gcr_mmap_hook_forget(void);

#endif
