/* SPDX-License-Identifier: MIT */
/*
 * Handing device memory over and taking it back: the agent's requests, with the gate closed. The
 * table does not change then, so it is walked without its lock. Each piece of memory records its
 * own state, so that every step can be undone from wherever it stopped.
 *
 * Possible failures, and the state after each:
 *   export     the driver refuses, or there are no descriptors: those of this hand-over are closed,
 *              nothing else has changed
 *   unmap      an unmap or a release: everything unmapped is mapped again, from the handle or, if
 *              that is released, by import from the kept descriptor
 *   take_back  an import, a map or an access: mapped memory stays mapped, the rest can be retried;
 *              the descriptors are kept
 *   receive    the same, or no descriptors: this piece is as before, the earlier ones stay, until
 *              let_go
 *   let_go     an unmap or a release: the other pieces are released all the same
 * A mapping whose access fails, and then its unmap too, is known to be mapped (is_bare).
 * In every step the program may have closed a descriptor: -EIO, with a message that says so.
 */
#include "backend/preload/memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "backend/preload/memory/allocation.h"
#include "backend/preload/memory/device.h"
#include "backend/preload/gate/driver_error.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/memory/hip_access.h"
#include "backend/preload/ipc/ipc.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/memory/shared_object.h"

/* ---- the order of extents ---- */

static struct {
	struct gcr_memory **memories;
	size_t count, room;
	uint64_t changes; /* gcr_table_changes() when the order was made */
} order;

/* The address of the first byte, if all of the memory is mapped in one piece; else 0. */
static CUdeviceptr address_of(const struct gcr_memory *memory)
{
	CUdeviceptr lowest = 0;

	for (const struct gcr_mapping *mapping = memory->mappings; mapping; mapping = mapping->next)
		if (mapping->offset == 0 && mapping->bytes == memory->bytes &&
		    (!lowest || mapping->start < lowest))
			lowest = mapping->start;
	return lowest;
}

static int compare(const void *left, const void *right)
{
	const struct gcr_memory *a = *(struct gcr_memory *const *)left;
	const struct gcr_memory *b = *(struct gcr_memory *const *)right;
	CUdeviceptr a_address = address_of(a), b_address = address_of(b);

	if (a->device != b->device)
		return a->device < b->device ? -1 : 1;
	if (a_address != b_address)
		return a_address < b_address ? -1 : 1;
	return (a->id > b->id) - (a->id < b->id);
}

/*
 * Makes the order of the extents if the table has changed since the last one. -ENOMEM. Lock: table.
 */
static int make_order(void)
{
	struct gcr_memory *const *all;
	size_t count;

	if (order.memories && order.changes == gcr_table_changes())
		return 0;
	all = gcr_table_all(&count);
	if (count >= order.room) {
		struct gcr_memory **longer =
			realloc(order.memories, (2 * count + 1) * sizeof(*longer));

		if (!longer)
			return -ENOMEM;
		order.memories = longer;
		order.room = 2 * count + 1;
	}
	order.count = 0;
	for (size_t i = 0; i < count; i++)
		if (gcr_memory_joins(all[i]))
			order.memories[order.count++] = all[i];
	qsort(order.memories, order.count, sizeof(order.memories[0]), compare);
	order.changes = gcr_table_changes();
	return 0;
}

ssize_t gcr_memory_describe(struct gcr_extent *extents, size_t room)
{
	GCR_TABLE_LOCK();

	if (make_order() < 0)
		return -ENOMEM;
	for (size_t i = 0; i < order.count && i < room; i++) {
		const struct gcr_memory *memory = order.memories[i];
		const struct gcr_device *device = gcr_device_get(memory->device);

		extents[i] = (struct gcr_extent){
			.address = address_of(memory),
			.bytes = memory->bytes,
			.id = memory->id,
			.kind = GCR_MEMORY_DEVICE,
			.flags = memory->origin == GCR_MEMORY_CREATED ? GCR_EXTENT_PROGRAM_HANDLE
								      : 0,
		};
		if (device)
			memcpy(extents[i].gpu, device->uuid, sizeof(extents[i].gpu));
	}
	return (ssize_t)order.count;
}

/*
 * Updates the order and checks the range [first, first + count); the table does not change.
 * -ENOMEM, -EINVAL.
 */
static int get_order(size_t first, size_t count, struct gcr_error *error)
{
	GCR_TABLE_LOCK();

	if (make_order() < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (first > order.count || count > order.count - first)
		return gcr_error_set(error, EINVAL, "there are only %zu allocations", order.count);
	return 0;
}

/* ---- messages ---- */

static int lost_descriptor(struct gcr_error *error, const struct gcr_memory *memory)
{
	return gcr_error_set(error, EIO,
			     "the program has closed the descriptor of its memory at 0x%llx",
			     address_of(memory));
}

static bool out_of_descriptors(void)
{
	_cleanup_close_ int fd = open("/", O_PATH | O_CLOEXEC);

	return fd < 0 && (errno == EMFILE || errno == ENFILE);
}

static void set_imported(struct gcr_memory *memory)
{
	GCR_TABLE_LOCK();

	gcr_table_set_imported(memory);
}

/* ---- descriptors ---- */

/* Closes the descriptors of memory that can be exported again. */
static void close_unneeded_descriptors(void)
{
	for (size_t i = 0; i < order.count; i++)
		if (order.memories[i]->real && !order.memories[i]->imported)
			gcr_descriptor_close(&order.memories[i]->descriptor);
}

static int keep(struct gcr_memory *memory, int fd, struct gcr_error *error)
{
	int r = gcr_descriptor_keep(fd, &memory->descriptor);

	if (r == -EMFILE)
		return gcr_error_set(error, EMFILE,
				     "the program's limit of open files leaves no room for one "
				     "descriptor per allocation (%zu of them)",
				     order.count);
	if (r < 0)
		return gcr_error_set(error, -r, "a descriptor cannot be kept: %s", strerror(-r));
	return 0;
}

static int export_one(struct gcr_memory *memory, struct gcr_error *error)
{
	CUresult result;
	int fd = -1;

	if (memory->imported || !memory->real)
		return gcr_descriptor_valid(&memory->descriptor) ? 0
								 : lost_descriptor(error, memory);
	if (gcr_descriptor_valid(&memory->descriptor))
		return 0;
	result = GCR_REAL(cuMemExportToShareableHandle)(
		&fd, memory->real, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (result && out_of_descriptors())
		return gcr_error_set(error, EMFILE, "the program has no free file descriptor");
	if (result)
		return gcr_driver_failed(error, "cuMemExportToShareableHandle", result);
	return keep(memory, fd, error);
}

int gcr_memory_export(size_t first, size_t count, int *ret_fds, struct gcr_error *error)
{
	int r = get_order(first, count, error);

	if (r == 0 && first == 0)
		r = gcr_hip_access_try(error);
	for (size_t i = 0; i < count && r == 0; i++) {
		r = export_one(order.memories[first + i], error);
		if (r == 0)
			ret_fds[i] = order.memories[first + i]->descriptor.fd;
	}
	if (r < 0)
		close_unneeded_descriptors();
	return r;
}

/* ---- mapping and unmapping ---- */

static int unmap_one(struct gcr_mapping *mapping, struct gcr_error *error)
{
	CUresult result = GCR_REAL(cuMemUnmap)(mapping->start, mapping->bytes);

	if (result)
		return gcr_driver_failed(error, "cuMemUnmap", result);
	mapping->mapped = mapping->waits = mapping->is_bare = false;
	return 0;
}

/*
 * Maps a mapping, or gives access to one that is bare. If the access fails, the mapping is unmapped
 * again; if that fails too, it stays mapped, and bare, until it is mapped or unmapped later.
 */
static int map_one(struct gcr_mapping *mapping, struct gcr_error *error)
{
	CUresult result = CUDA_SUCCESS;

	if (!mapping->mapped)
		result = GCR_REAL(cuMemMap)(mapping->start, mapping->bytes, mapping->offset,
					    mapping->memory->real, 0);
	if (result)
		return gcr_driver_failed(error, "cuMemMap", result);
	mapping->mapped = true;
	if (mapping->access_count)
		result = GCR_REAL(cuMemSetAccess)(mapping->start, mapping->bytes, mapping->access,
						  mapping->access_count);
	mapping->waits = result && gcr_hip_access_may_wait(mapping);
	mapping->is_bare = result && !mapping->waits;
	if (!mapping->is_bare)
		return 0;
	unmap_one(mapping, NULL);
	return gcr_driver_failed(error, "cuMemSetAccess", result);
}

static int unmap_memory(struct gcr_memory *memory, struct gcr_error *error)
{
	int first = 0;

	for (struct gcr_mapping *mapping = memory->mappings; mapping; mapping = mapping->next) {
		int r = mapping->mapped ? unmap_one(mapping, first ? NULL : error) : 0;

		if (!first)
			first = r;
	}
	return first;
}

static int release_memory(struct gcr_memory *memory, struct gcr_error *error)
{
	CUresult result = CUDA_SUCCESS;

	if (memory->real)
		result = GCR_REAL(cuMemRelease)(memory->real);
	if (result)
		return gcr_driver_failed(error, "cuMemRelease", result);
	memory->real = 0;
	return 0;
}

/* Gets a handle, by import if the memory has none any more, and maps every mapping. */
static int map_memory(struct gcr_memory *memory, struct gcr_error *error)
{
	CUresult result;
	int r = 0;

	if (!memory->real) {
		if (!gcr_descriptor_valid(&memory->descriptor))
			return lost_descriptor(error, memory);
		gcr_device_use(memory->device);
		result = GCR_REAL(cuMemImportFromShareableHandle)(
			&memory->real, (void *)(intptr_t)memory->descriptor.fd,
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
		if (result) {
			memory->real = 0;
			return gcr_driver_failed(error, "cuMemImportFromShareableHandle", result);
		}
		set_imported(memory);
	}
	for (struct gcr_mapping *mapping = memory->mappings; mapping && r == 0;
	     mapping = mapping->next)
		if (!mapping->mapped || mapping->is_bare)
			r = map_one(mapping, error);
	return r;
}

/* ---- out ---- */

static int map_all(struct gcr_error *error)
{
	int first = 0;

	for (size_t i = 0; i < order.count; i++) {
		int r = map_memory(order.memories[i], first ? NULL : error);

		if (!first)
			first = r;
	}
	return first ? first : gcr_hip_access_give(error);
}

/*
 * Sets -ENOTRECOVERABLE with both messages: @error has the reason for the roll back, @second that
 * of its failure.
 */
static int not_recoverable(struct gcr_error *error, const struct gcr_error *second)
{
	struct gcr_error first;

	if (error) {
		first = *error;
		gcr_error_set(error, ENOTRECOVERABLE,
			      "%.200s; and the memory is not mapped again: %.200s", first.words,
			      second->words);
	}
	return -ENOTRECOVERABLE;
}

int gcr_memory_unmap(struct gcr_error *error)
{
	struct gcr_error second = {0};
	int r = get_order(0, 0, error);

	/*
	 * All are unmapped before the first is released: until then the roll back needs no import.
	 */
	for (size_t i = 0; i < order.count && r == 0; i++)
		if (!gcr_descriptor_valid(&order.memories[i]->descriptor))
			r = lost_descriptor(error, order.memories[i]);
	for (size_t i = 0; i < order.count && r == 0; i++)
		r = unmap_memory(order.memories[i], error);
	for (size_t i = 0; i < order.count && r == 0; i++)
		r = release_memory(order.memories[i], error);
	if (r == 0)
		return 0;
	if (map_all(&second) < 0)
		return not_recoverable(error, &second);
	close_unneeded_descriptors();
	return r;
}

int gcr_memory_take_back(struct gcr_error *error)
{
	int r = get_order(0, 0, error);

	if (r == 0)
		r = map_all(error);
	if (r == 0)
		close_unneeded_descriptors();
	return r;
}

void gcr_memory_commit(void)
{
	if (get_order(0, 0, NULL) < 0)
		return;
	for (size_t i = 0; i < order.count; i++)
		gcr_descriptor_close(&order.memories[i]->descriptor);
}

/* ---- in ---- */

/*
 * Restores the state of the memory before gcr_memory_receive(). If that fails, the memory is still
 * recorded as being here.
 */
static int let_go_of(struct gcr_memory *memory, struct gcr_error *error)
{
	int r = unmap_memory(memory, error);

	if (r == 0)
		r = release_memory(memory, error);
	if (r == 0)
		gcr_descriptor_close(&memory->descriptor);
	return r;
}

static int receive_one(struct gcr_memory *memory, int fd, struct gcr_error *error)
{
	int r;

	if (memory->real) {
		close(fd);
		return gcr_error_set(error, EEXIST, "the memory at 0x%llx is here already",
				     address_of(memory));
	}
	gcr_descriptor_close(&memory->descriptor);
	r = keep(memory, fd, error);
	if (r < 0)
		return r;
	r = map_memory(memory, error);
	if (r < 0)
		let_go_of(memory, NULL);
	return r;
}

int gcr_memory_receive(size_t first, size_t count, int *fds, struct gcr_error *error)
{
	int r = get_order(first, count, error);

	for (size_t i = 0; i < count; i++) {
		int fd = gcr_descriptor_take(&fds[i]);

		if (r == 0)
			r = receive_one(order.memories[first + i], fd, error);
		else
			close(fd);
	}
	return r;
}

bool gcr_memory_complete(struct gcr_error *error)
{
	if (get_order(0, 0, error) < 0)
		return false;
	for (size_t i = 0; i < order.count; i++) {
		const struct gcr_memory *memory = order.memories[i];
		bool here = memory->real != 0;

		for (const struct gcr_mapping *mapping = memory->mappings; mapping && here;
		     mapping = mapping->next)
			here = mapping->mapped && !mapping->is_bare;
		if (!here) {
			gcr_error_set(error, EIO, "the memory at 0x%llx (%llu bytes) is not here",
				      address_of(memory), (unsigned long long)memory->bytes);
			return false;
		}
	}
	return gcr_hip_access_give(error) == 0;
}

int gcr_memory_let_go(struct gcr_error *error)
{
	int first = get_order(0, 0, error);

	for (size_t i = 0; i < order.count; i++) {
		int r = order.memories[i]->real ? let_go_of(order.memories[i], first ? NULL : error)
						: 0;

		if (!first)
			first = r;
	}
	return first;
}

/* ---- fork ---- */

static void forget(void)
{
	memset(&order, 0, sizeof(order));
}

GCR_LISTEN(fork, forget);
