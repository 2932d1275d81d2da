/* SPDX-License-Identifier: MIT */
/*
 * The hooks for the driver's mmap and munmap. They only act for a thread between
 * gcr_mmap_hook_watch() and gcr_mmap_hook_unwatch(), whose state is in thread-local data; the list
 * of chunks is shared and has a lock.
 */
#include "backend/preload/managed/mmap_hook.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/managed/hold.h"
#include "backend/preload/managed/import.h"
#include "backend/preload/base/listener.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
	struct gcr_chunk *list; /* in no order; they do not overlap */
	size_t count, room;
} chunks;

static _Thread_local struct {
	bool watching;
	bool is_agent; /* ranges are held only by this thread */
	bool holding;
	uintptr_t target; /* required address of the next chunk */
	/* The reservation that is being made: the driver may still trim it. */
	uintptr_t start;
	size_t bytes;
	bool placed; /* not mapped by the driver: the range was, and is, held */
	unsigned made;
} thread;

/* ---- chunks ---- */

/* Forgets every known chunk that overlaps the range. */
static void drop_chunks(uintptr_t start, size_t bytes)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < chunks.count;)
		if (chunks.list[i].start < start + bytes &&
		    start < chunks.list[i].start + chunks.list[i].bytes)
			chunks.list[i] = chunks.list[--chunks.count];
		else
			i++;
	pthread_mutex_unlock(&lock);
}

static void add_chunk(uintptr_t start, size_t bytes)
{
	drop_chunks(start, bytes);
	pthread_mutex_lock(&lock);
	if (chunks.count == chunks.room) {
		size_t room = chunks.room ? 2 * chunks.room : 16;
		struct gcr_chunk *longer = realloc(chunks.list, room * sizeof(*longer));

		if (longer) {
			chunks.list = longer;
			chunks.room = room;
		}
	}
	/* Out of memory: memory in an unknown chunk is not moved. */
	if (chunks.count < chunks.room)
		chunks.list[chunks.count++] = (struct gcr_chunk){.start = start, .bytes = bytes};
	pthread_mutex_unlock(&lock);
}

bool gcr_mmap_hook_chunk(uintptr_t address, struct gcr_chunk *ret_chunk)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < chunks.count && !found; i++)
		if (address >= chunks.list[i].start &&
		    address - chunks.list[i].start < chunks.list[i].bytes) {
			*ret_chunk = chunks.list[i];
			found = true;
		}
	pthread_mutex_unlock(&lock);
	return found;
}

/* ---- the driver's calls ---- */

static void finish_reservation(void)
{
	if (thread.bytes)
		add_chunk(thread.start, thread.bytes);
	thread.bytes = 0;
}

static void *reserve(size_t bytes, int flags, int fd, off_t offset)
{
	void *memory;

	finish_reservation();
	if (thread.target) {
		memory = (void *)thread.target;
		thread.placed = true;
		thread.target = 0;
	} else {
		memory = mmap(NULL, bytes, PROT_NONE, flags, fd, offset);
		thread.placed = false;
	}
	if (memory != MAP_FAILED) {
		thread.start = (uintptr_t)memory;
		thread.bytes = bytes;
		thread.made++;
	}
	return memory;
}

static void *driver_mmap(void *address, size_t bytes, int protection, int flags, int fd,
			 off_t offset)
{
	void *memory;
	int r;

	if (!thread.watching)
		return mmap(address, bytes, protection, flags, fd, offset);
	/* Only chunks are such large reservations; the driver needs other memory too. */
	if (!address && protection == PROT_NONE && bytes >= GCR_CHUNK_BYTES)
		return reserve(bytes, flags, fd, offset);
	if (thread.holding && flags & MAP_FIXED && protection == PROT_NONE) {
		if (gcr_hold_covers((uintptr_t)address, bytes))
			return address;
		r = gcr_hold((uintptr_t)address, bytes);
		if (r == 0)
			return address;
		errno = -r;
		return MAP_FAILED;
	}
	memory = mmap(address, bytes, protection, flags, fd, offset);
	if (memory != MAP_FAILED && thread.is_agent && flags & MAP_FIXED)
		gcr_hold_replaced((uintptr_t)address, bytes);
	return memory;
}

/* Is the range at an end of the reservation that is being made? Then trims the reservation. */
static bool cut(uintptr_t start, size_t bytes)
{
	uintptr_t end = start + bytes;

	if (!thread.bytes || start < thread.start || end > thread.start + thread.bytes)
		return false;
	if (start == thread.start) {
		thread.start = end;
		thread.bytes -= bytes;
		return true;
	}
	if (end == thread.start + thread.bytes) {
		thread.bytes -= bytes;
		return true;
	}
	return false;
}

static int driver_munmap(void *address, size_t bytes)
{
	struct gcr_chunk chunk;
	int r;

	if (thread.watching && cut((uintptr_t)address, bytes) && thread.placed)
		return 0;
	if (thread.watching && thread.holding && gcr_mmap_hook_chunk((uintptr_t)address, &chunk) &&
	    chunk.start == (uintptr_t)address && chunk.bytes == bytes) {
		drop_chunks(chunk.start, chunk.bytes);
		r = gcr_hold(chunk.start, chunk.bytes);
		errno = -r;
		return r < 0 ? -1 : 0;
	}
	drop_chunks((uintptr_t)address, bytes);
	if (thread.watching && thread.is_agent)
		gcr_hold_replaced((uintptr_t)address, bytes);
	return munmap(address, bytes);
}

static void stand_between(void)
{
	struct gcr_import imports[] = {
		{.name = "mmap", .replacement = (void *)driver_mmap},
		{.name = "mmap64", .replacement = (void *)driver_mmap},
		{.name = "munmap", .replacement = (void *)driver_munmap},
	};

	gcr_imports_replace((const void *)GCR_REAL(cuMemAllocManaged), imports,
			    sizeof(imports) / sizeof(imports[0]));
}

void gcr_mmap_hook_begin(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, stand_between);
}

/* ---- watching ---- */

void gcr_mmap_hook_watch(void)
{
	thread.watching = true;
	thread.made = 0;
}

unsigned gcr_mmap_hook_unwatch(void)
{
	finish_reservation();
	thread.watching = false;
	return thread.made;
}

void gcr_mmap_hook_hold(bool held)
{
	thread.is_agent = true;
	thread.holding = held;
}

void gcr_mmap_hook_place_next(uintptr_t start)
{
	thread.target = start;
}

/*
 * Gives back the held ranges. Within a chunk the driver expects unused parts to be mapped
 * PROT_NONE.
 */
void gcr_mmap_hook_release(void)
{
	struct gcr_hold_range range;
	struct gcr_chunk chunk;

	while (gcr_hold_first(&range)) {
		/* No step contains the border of a chunk: chunks are multiples of this. */
		uintptr_t step_end = (range.start / GCR_CHUNK_BYTES + 1) * GCR_CHUNK_BYTES;

		if (step_end - range.start < range.bytes)
			range.bytes = step_end - range.start;
		if (gcr_mmap_hook_chunk(range.start, &chunk))
			mmap((void *)range.start, range.bytes, PROT_NONE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
		else
			munmap((void *)range.start, range.bytes);
		gcr_hold_replaced(range.start, range.bytes);
	}
}

static void forget(void)
{
	pthread_mutex_init(&lock, NULL);
	memset(&chunks, 0, sizeof(chunks));
	memset(&thread, 0, sizeof(thread));
}

GCR_LISTEN(fork, forget);
