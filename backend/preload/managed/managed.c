/* SPDX-License-Identifier: MIT */
/*
 * Managed memory as the program makes it: its table, and the wrappers that fill the table. One
 * lock, never held while the driver is called. managed_move.c moves the memory out and in.
 */
#include "backend/preload/managed/managed.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backend/preload/memory/device.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/green.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/managed/managed_file.h"
#include "backend/preload/managed/managed_table.h"
#include "backend/preload/managed/mmap_hook.h"
#include "backend/preload/memory/obstacle.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

#define PAGE_BYTES GCR_MANAGED_PAGE_BYTES

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
	struct gcr_managed **allocations; /* by address */
	size_t count, room;
	uint64_t last_id;
	uint64_t bytes;
	/* Made on demand. */
	struct gcr_managed_piece *pieces;
	size_t piece_count, piece_room;
	bool pieces_stand;
} table;

/* ---- the table; the lock is held ---- */

static void changed(void)
{
	struct gcr_page *page = gcr_gate_page();

	for (size_t i = 0; i < table.piece_count; i++) {
		gcr_descriptor_close(&table.pieces[i].file);
		free(table.pieces[i].newer);
	}
	table.piece_count = 0;
	table.pieces_stand = false;
	if (!page)
		return;
	__atomic_store_n(&page->managed_bytes, table.bytes, __ATOMIC_RELAXED);
	__atomic_fetch_add(&page->table_changes, 1, __ATOMIC_RELEASE);
}

/* The first allocation that ends above @address. */
static size_t find_index(CUdeviceptr address)
{
	size_t first = 0, end = table.count;

	while (first < end) {
		size_t middle = first + (end - first) / 2;
		const struct gcr_managed *managed = table.allocations[middle];

		if (managed->start + managed->bytes <= address)
			first = middle + 1;
		else
			end = middle;
	}
	return first;
}

/* The allocation that contains @address. */
static struct gcr_managed *find(CUdeviceptr address)
{
	size_t index = find_index(address);

	return index < table.count && table.allocations[index]->start <= address
		       ? table.allocations[index]
		       : NULL;
}

static int insert(struct gcr_managed *managed)
{
	size_t index = find_index(managed->start);

	if (table.count == table.room) {
		size_t room = table.room ? 2 * table.room : 16;
		struct gcr_managed **longer =
			realloc(table.allocations, room * sizeof(table.allocations[0]));

		if (!longer)
			return -ENOMEM;
		table.allocations = longer;
		table.room = room;
	}
	memmove(&table.allocations[index + 1], &table.allocations[index],
		(table.count - index) * sizeof(table.allocations[0]));
	table.allocations[index] = managed;
	table.count++;
	table.bytes += managed->bytes;
	changed();
	return 0;
}

static struct gcr_managed *take_out(size_t index)
{
	struct gcr_managed *managed = table.allocations[index];

	table.count--;
	memmove(&table.allocations[index], &table.allocations[index + 1],
		(table.count - index) * sizeof(table.allocations[0]));
	table.bytes -= managed->bytes;
	changed();
	return managed;
}

static void destroy(struct gcr_managed *managed)
{
	if (managed)
		gcr_policy_free(managed->policies);
	free(managed);
}
GCR_DEFINE_CLEANUP(struct gcr_managed *, destroy);

/*
 * Drops the entries in [start, end), where the driver has just put memory: their own memory was
 * freed without the library noticing.
 */
static void drop_overlapping(CUdeviceptr start, CUdeviceptr end)
{
	size_t index = find_index(start);

	while (index < table.count && table.allocations[index]->start < end)
		destroy(take_out(index));
}

/* ---- pieces ---- */

static int make_pieces(void)
{
	if (table.pieces_stand)
		return 0;
	if (table.count > table.piece_room) {
		struct gcr_managed_piece *longer =
			realloc(table.pieces, 2 * table.count * sizeof(table.pieces[0]));

		if (!longer)
			return -ENOMEM;
		table.pieces = longer;
		table.piece_room = 2 * table.count;
	}
	table.piece_count = 0;
	for (size_t i = 0; i < table.count; i++) {
		const struct gcr_managed *managed = table.allocations[i];
		struct gcr_managed_piece *last = NULL;
		CUdeviceptr start = managed->start / PAGE_BYTES * PAGE_BYTES;
		CUdeviceptr end = (managed->start + managed->bytes + PAGE_BYTES - 1) / PAGE_BYTES *
				  PAGE_BYTES;

		if (table.piece_count)
			last = &table.pieces[table.piece_count - 1];
		if (last && start < last->start + last->bytes) {
			last->bytes = end - last->start;
			last->count++;
			continue;
		}
		table.pieces[table.piece_count] = (struct gcr_managed_piece){
			.start = start,
			.bytes = end - start,
			.first = i,
			.count = 1,
			.file = {.fd = -1},
		};
		table.piece_count++;
	}
	table.pieces_stand = true;
	return 0;
}

ssize_t gcr_managed_describe(struct gcr_extent *extents, size_t room)
{
	GCR_LOCK_SCOPE(&lock);

	if (make_pieces() < 0)
		return -ENOMEM;
	for (size_t i = 0; i < table.piece_count && i < room; i++) {
		const struct gcr_managed_piece *piece = &table.pieces[i];
		const struct gcr_managed *managed = table.allocations[piece->first];
		const struct gcr_device *device = gcr_device_get(managed->device);

		extents[i] = (struct gcr_extent){
			.address = piece->start,
			.bytes = piece->bytes,
			.id = managed->id,
			.kind = GCR_MEMORY_MANAGED,
		};
		if (device)
			memcpy(extents[i].gpu, device->uuid, sizeof(extents[i].gpu));
	}
	return (ssize_t)table.piece_count;
}

int gcr_managed_table(struct gcr_managed *const **ret_allocations, size_t *ret_count,
		      struct gcr_managed_piece **ret_pieces, size_t *ret_piece_count)
{
	GCR_LOCK_SCOPE(&lock);

	if (make_pieces() < 0)
		return -ENOMEM;
	*ret_allocations = table.allocations;
	*ret_count = table.count;
	*ret_pieces = table.pieces;
	*ret_piece_count = table.piece_count;
	return 0;
}

/*
 * Copies to @fd the piece's present file, which alone may have the last bytes of the program's
 * threads: a daemon that has died since could not put them into the store. If the program has
 * closed the present file, checks that @fd has those bytes already. -EIO, ...: some bytes are
 * missing; with a message.
 */
static int put_newer(const struct gcr_managed_piece *piece, int fd, struct gcr_error *error)
{
	if (!piece->newer)
		return 0;
	if (gcr_descriptor_valid(&piece->file))
		return gcr_managed_file_copy(piece->file.fd, fd, piece->bytes, error);
	if (gcr_managed_file_check(fd, piece->newer, piece->bytes / PAGE_BYTES) == 0)
		return 0;
	return gcr_error_set(error, EIO,
			     "the program has closed the file of its managed memory at 0x%llx, the "
			     "only one with what its threads wrote last",
			     piece->start);
}

/* Gives the piece its file @fd, which it owns from here on. -errno: @fd is closed. */
static int take_file(struct gcr_managed_piece *piece, int fd, struct gcr_error *error)
{
	struct gcr_descriptor kept = {.fd = -1};
	int result = put_newer(piece, fd, error);

	if (result < 0) {
		close(fd);
		return result;
	}
	result = gcr_descriptor_keep(fd, &kept);
	/* The old file may be the only one with those bytes, so the piece keeps it. */
	if (result < 0)
		return gcr_error_set(error, -result, "no room for a descriptor: %s",
				     strerror(-result));
	/* If the program has closed the old one, the new one may have its number. */
	if (piece->file.fd != kept.fd)
		gcr_descriptor_close(&piece->file);
	piece->file = kept;
	return 0;
}

int gcr_managed_files(size_t first, size_t count, int *fds, struct gcr_error *error)
{
	int result = 0;
	GCR_LOCK_SCOPE(&lock);

	if (make_pieces() < 0)
		result = gcr_error_set(error, ENOMEM, "out of memory");
	else if (first > table.piece_count || count > table.piece_count - first)
		result = gcr_error_set(error, EINVAL, "there are only %zu pieces of managed memory",
				       table.piece_count);
	for (size_t i = 0; i < count; i++) {
		int fd = gcr_descriptor_take(&fds[i]);

		if (result < 0) {
			close(fd);
			continue;
		}
		result = take_file(&table.pieces[first + i], fd, error);
	}
	return result;
}

void gcr_managed_close_files(void)
{
	GCR_LOCK_SCOPE(&lock);

	for (size_t i = 0; i < table.piece_count; i++)
		gcr_descriptor_close(&table.pieces[i].file);
}

/* ---- the program's calls ---- */

static void note(CUdeviceptr start, size_t bytes, unsigned flags)
{
	_cleanup_(destroy_cleanup) struct gcr_managed *managed = calloc(1, sizeof(*managed));
	CUdevice device = 0;
	CUcontext context = NULL;

	gcr_green_current_owner(&context);
	GCR_REAL(cuCtxGetDevice)(&device);
	if (managed) {
		GCR_LOCK_SCOPE(&lock);

		*managed = (struct gcr_managed){.start = start,
						.bytes = bytes,
						.id = ++table.last_id,
						.context = context,
						.device = device,
						.flags = flags};
		drop_overlapping(start, start + bytes);
		if (insert(managed) == 0) {
			managed = NULL;
			return;
		}
	}
	gcr_obstacle_add(GCR_OBSTACLE_MANAGED, 1);
}

GCR_OWN(cuMemAllocManaged);
CUresult gcr_own_cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
	__typeof__(cuMemAllocManaged) *real = GCR_WRAPPED(cuMemAllocManaged);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuMemAllocManaged);
#ifndef GCR_HIP /* where managed memory is not taken out, see managed_move.c */
	gcr_mmap_hook_begin();
#endif
	gcr_mmap_hook_watch();
	result = real(pointer, bytes, flags);
	gcr_mmap_hook_unwatch();
	if (result == CUDA_SUCCESS)
		note(*pointer, bytes, flags);
	return result;
}

static struct gcr_managed *take_if_start(CUdeviceptr address)
{
	GCR_LOCK_SCOPE(&lock);
	size_t index = find_index(address);

	if (index < table.count && table.allocations[index]->start == address)
		return take_out(index);
	return NULL;
}

bool gcr_managed_free(unsigned long long address, int *ret_result)
{
	_cleanup_(destroy_cleanup) struct gcr_managed *managed = take_if_start(address);

	if (!managed)
		return false;
	/*
	 * Remove from the table first: once the memory is free, another thread may get the address.
	 */
	gcr_mmap_hook_watch();
	*ret_result = GCR_REAL(cuMemFree_v2)(address);
	gcr_mmap_hook_unwatch();
	if (*ret_result != CUDA_SUCCESS) {
		GCR_LOCK_SCOPE(&lock);

		if (insert(managed) == 0)
			managed = NULL;
	}
	return true;
}

bool gcr_managed_owns(unsigned long long address)
{
	GCR_LOCK_SCOPE(&lock);

	return find(address) != NULL;
}

static void context_gone(CUcontext context)
{
	GCR_LOCK_SCOPE(&lock);

	for (size_t i = table.count; i > 0; i--)
		if (table.allocations[i - 1]->context == context)
			destroy(take_out(i - 1));
}

GCR_LISTEN(context_gone, context_gone);

static void stream_gone(CUstream stream)
{
	GCR_LOCK_SCOPE(&lock);

	/* The driver drops the attachments to the stream. */
	for (size_t i = 0; i < table.count; i++)
		if (table.allocations[i]->attached && table.allocations[i]->stream == stream)
			table.allocations[i]->attached = 0;
}

GCR_LISTEN(stream_gone, stream_gone);

static void note_advice(CUdeviceptr start, size_t bytes, CUmem_advise advice,
			CUmemLocation location)
{
	CUdeviceptr end = start + bytes;
	int r = 0;
	GCR_LOCK_SCOPE(&lock);

	for (size_t i = find_index(start); i < table.count; i++) {
		struct gcr_managed *managed = table.allocations[i];
		CUdeviceptr managed_end = managed->start + managed->bytes;

		if (managed->start >= end)
			break;
		r = gcr_policy_advise(&managed->policies,
				      start > managed->start ? start : managed->start,
				      end < managed_end ? end : managed_end, advice, location);
		if (r < 0)
			gcr_obstacle_add(GCR_OBSTACLE_MANAGED, 1);
	}
}

GCR_OWN(cuMemAdvise);
CUresult gcr_own_cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
			     CUdevice device)
{
	__typeof__(cuMemAdvise) *real = GCR_WRAPPED(cuMemAdvise);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuMemAdvise);
	result = real(pointer, bytes, advice, device);
	if (result == CUDA_SUCCESS)
		note_advice(pointer, bytes, advice, gcr_policy_location(device));
	return result;
}

GCR_OWN(cuMemAdvise_v2);
CUresult gcr_own_cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
				CUmemLocation location)
{
	__typeof__(cuMemAdvise_v2) *real = GCR_WRAPPED(cuMemAdvise_v2);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuMemAdvise_v2);
	result = real(pointer, bytes, advice, location);
	if (result == CUDA_SUCCESS)
		note_advice(pointer, bytes, advice, location);
	return result;
}

static void note_attachment(CUdeviceptr pointer, unsigned flags, CUstream stream, bool of_thread)
{
	struct gcr_managed *managed;
	GCR_LOCK_SCOPE(&lock);

	managed = find(pointer);
	if (!managed)
		return;
	managed->attached = flags;
	managed->stream = flags == CU_MEM_ATTACH_SINGLE ? stream : NULL;
	managed->of_thread = flags == CU_MEM_ATTACH_SINGLE && of_thread;
}

GCR_OWN(cuStreamAttachMemAsync);
CUresult gcr_own_cuStreamAttachMemAsync(CUstream stream, CUdeviceptr pointer, size_t bytes,
					unsigned int flags)
{
	__typeof__(cuStreamAttachMemAsync) *real = GCR_WRAPPED(cuStreamAttachMemAsync);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuStreamAttachMemAsync);
	gcr_gate_submitted();
	result = real(stream, pointer, bytes, flags);
	if (result == CUDA_SUCCESS)
		note_attachment(pointer, flags, stream, stream == CU_STREAM_PER_THREAD);
	return result;
}

#ifndef GCR_HIP
GCR_OWN_AS(cuStreamAttachMemAsync_ptsz, cuStreamAttachMemAsync);
CUresult gcr_own_cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr pointer, size_t bytes,
					     unsigned int flags)
{
	__typeof__(cuStreamAttachMemAsync) *real =
		GCR_WRAPPED_AS(cuStreamAttachMemAsync_ptsz, cuStreamAttachMemAsync);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE(cuStreamAttachMemAsync_ptsz);
	gcr_gate_submitted();
	result = real(stream, pointer, bytes, flags);
	if (result == CUDA_SUCCESS)
		note_attachment(pointer, flags, stream, !stream || stream == CU_STREAM_PER_THREAD);
	return result;
}
#endif

/* ---- fork ---- */

static void forget(void)
{
	pthread_mutex_init(&lock, NULL);
	for (size_t i = 0; i < table.piece_count; i++)
		gcr_descriptor_close(&table.pieces[i].file);
	/* The fork may have interrupted a change of the lists, so they are not freed. */
	memset(&table, 0, sizeof(table));
}

GCR_LISTEN(fork, forget);
