/* SPDX-License-Identifier: MIT */
/*
 * The address space of device pointers: which ranges are reserved, which of them are backed by
 * memory, and which allocation a pointer belongs to. A device pointer is a host address, so that
 * the CPU can run kernels. Reserved but unmapped addresses are held by PROT_NONE mappings.
 */
#include "backend/sim/sim.h"

#include <errno.h>
#include <sys/mman.h>

struct span_table ranges, allocations, mappings;
struct phys *physes;

static size_t align_up(size_t value, size_t alignment)
{
	return (value + alignment - 1) & ~(alignment - 1);
}

/* Returns the index of the first span that ends above `address`. */
static size_t span_index(const struct span_table *table, CUdeviceptr address)
{
	size_t low = 0, high = table->count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (table->items[middle].start + table->items[middle].size_bytes <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct span *span_find(const struct span_table *table, CUdeviceptr address)
{
	size_t i = span_index(table, address);

	return i < table->count && table->items[i].start <= address ? &table->items[i] : NULL;
}

bool span_overlaps(const struct span_table *table, CUdeviceptr start, size_t size_bytes)
{
	size_t i = span_index(table, start);

	return i < table->count && table->items[i].start < start + size_bytes;
}

int span_insert(struct span_table *table, CUdeviceptr start, size_t size_bytes, void *object)
{
	size_t i = span_index(table, start);

	if (table->count == table->capacity) {
		size_t capacity = table->capacity ? 2 * table->capacity : 16;
		struct span *items = realloc(table->items, capacity * sizeof(*items));

		if (!items)
			return -ENOMEM;
		table->items = items;
		table->capacity = capacity;
	}
	memmove(&table->items[i + 1], &table->items[i],
		(table->count - i) * sizeof(table->items[0]));
	table->items[i] = (struct span){start, size_bytes, object};
	table->count++;
	return 0;
}

void span_remove(struct span_table *table, CUdeviceptr start)
{
	size_t i = span_index(table, start);

	if (i >= table->count || table->items[i].start != start)
		return;
	table->count--;
	memmove(&table->items[i], &table->items[i + 1],
		(table->count - i) * sizeof(table->items[0]));
}

static bool hold(CUdeviceptr start, size_t size_bytes)
{
	void *address = mmap((void *)start, size_bytes, PROT_NONE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1,
			     0);

	if (address == MAP_FAILED)
		return false;
	if (address != (void *)start) {
		munmap(address, size_bytes);
		return false;
	}
	return true;
}

CUdeviceptr range_reserve(size_t size_bytes, size_t alignment, CUdeviceptr hint)
{
	CUdeviceptr start = SIM_VA_START;

	size_bytes = align_up(size_bytes, SIM_BLOCK_BYTES);
	if (alignment < SIM_BLOCK_BYTES)
		alignment = SIM_BLOCK_BYTES;
	if (hint && hint % SIM_BLOCK_BYTES == 0 && !span_overlaps(&ranges, hint, size_bytes) &&
	    hold(hint, size_bytes)) {
		if (!span_insert(&ranges, hint, size_bytes, NULL))
			return hint;
		munmap((void *)hint, size_bytes);
		return 0;
	}
	/*
	 * First fit: memory freed and allocated again in the same order gets the same addresses, as
	 * with the real driver.
	 */
	for (size_t i = 0; start + size_bytes <= SIM_VA_END;) {
		start = align_up(start, alignment);
		if (i < ranges.count &&
		    ranges.items[i].start + ranges.items[i].size_bytes <= start) {
			i++;
			continue;
		}
		if (i < ranges.count && ranges.items[i].start < start + size_bytes) {
			start = ranges.items[i].start + ranges.items[i].size_bytes;
			i++;
			continue;
		}
		if (hold(start, size_bytes)) {
			if (!span_insert(&ranges, start, size_bytes, NULL))
				return start;
			munmap((void *)start, size_bytes);
			return 0;
		}
		start += alignment; /* another mapping of the program is there */
	}
	return 0;
}

void range_release(CUdeviceptr start)
{
	struct span *range = span_find(&ranges, start);

	if (!range || range->start != start)
		return;
	munmap((void *)start, range->size_bytes);
	span_remove(&ranges, start);
}

static struct phys *phys_new(unsigned slot, int device)
{
	struct phys *phys = calloc(1, sizeof(*phys));

	if (!phys)
		return NULL;
	phys->references = 1;
	phys->slot = slot;
	phys->size_bytes = shared->allocations[slot].size_bytes;
	phys->device = device;
	phys->next = physes;
	physes = phys;
	return phys;
}

CUresult phys_create(int device, size_t size_bytes, const CUmemAllocationProp *prop,
		     struct phys **ret_phys)
{
	struct phys *phys = NULL;
	int slot;

	shared_lock();
	slot = shared_allocation_add(sim.index, sim.gpu_of_device[device], size_bytes);
	if (slot >= 0) {
		phys = phys_new((unsigned)slot, device);
		if (!phys)
			shared_allocation_drop((unsigned)slot, sim.index);
	}
	shared_unlock();
	if (!phys)
		return slot < 0 ? sim_error_of(slot) : CUDA_ERROR_OUT_OF_MEMORY;
	if (prop)
		phys->prop = *prop;
	*ret_phys = phys;
	return CUDA_SUCCESS;
}

struct phys *phys_adopt(unsigned slot, int device)
{
	struct phys *phys = phys_new(slot, device);

	if (phys)
		shared_allocation_hold(slot, sim.index);
	return phys;
}

/*
 * Does this process still hold the allocation @slot? The process may have imported an allocation
 * more than once.
 */
static bool phys_slot_used(unsigned slot)
{
	for (struct phys *phys = physes; phys; phys = phys->next)
		if (phys->slot == slot && !phys->saved)
			return true;
	return false;
}

void phys_unref(struct phys *phys)
{
	if (--phys->references)
		return;
	for (struct phys **link = &physes; *link; link = &(*link)->next)
		if (*link == phys) {
			*link = phys->next;
			break;
		}
	if (!phys_slot_used(phys->slot)) {
		shared_lock();
		shared_allocation_drop(phys->slot, sim.index);
		shared_unlock();
	}
	free(phys);
}

int mapping_protection(const struct mapping *mapping)
{
	int all = 0;

	for (unsigned i = 0; i < SIM_MAX_GPUS; i++)
		all |= mapping->protection[i];
	return (all & CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : 0) |
	       (all == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_WRITE : 0);
}

int mapping_attach(const struct mapping *mapping)
{
	_cleanup_close_ int fd = -1;
	void *address;

	if (mapping->phys) {
		fd = shared_allocation_open(mapping->phys->slot, false);
		if (fd < 0)
			return fd;
		address = mmap((void *)mapping->start, mapping->size_bytes,
			       mapping_protection(mapping), MAP_SHARED | MAP_FIXED, fd,
			       (off_t)mapping->offset);
	} else {
		address = mmap((void *)mapping->start, mapping->size_bytes, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	}
	if (address == MAP_FAILED)
		return -errno;
	/* A forked child has neither device memory nor managed memory in its address space. */
	madvise(address, mapping->size_bytes, MADV_DONTFORK);
	return 0;
}

void mapping_detach(const struct mapping *mapping)
{
	mmap((void *)mapping->start, mapping->size_bytes, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

CUresult mapping_add(CUdeviceptr start, size_t size_bytes, struct phys *phys, size_t offset,
		     enum mapping_access access)
{
	struct mapping *mapping = calloc(1, sizeof(*mapping));
	int r;

	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mapping->start = start;
	mapping->size_bytes = size_bytes;
	mapping->phys = phys;
	mapping->offset = offset;
	mapping->id = ++sim.next_serial;
	mapping->peers = access == ACCESS_PEERS;
	for (unsigned i = 0; access != ACCESS_NOBODY && i < sim.device_count; i++)
		if (!phys || (int)i == phys->device)
			mapping->protection[i] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	pthread_rwlock_wrlock(&sim.map_lock);
	r = mapping_attach(mapping);
	if (!r)
		r = span_insert(&mappings, start, size_bytes, mapping);
	if (r)
		mapping_detach(mapping);
	pthread_rwlock_unlock(&sim.map_lock);
	if (r) {
		free(mapping);
		return sim_error_of(r);
	}
	if (phys)
		phys->references++;
	return CUDA_SUCCESS;
}

void mapping_remove(CUdeviceptr start)
{
	struct mapping *mapping = NULL;
	struct span *span;

	pthread_rwlock_wrlock(&sim.map_lock);
	span = span_find(&mappings, start);
	if (span && span->start == start) {
		mapping = span->object;
		span_remove(&mappings, start);
		mapping_detach(mapping);
	}
	pthread_rwlock_unlock(&sim.map_lock);
	if (!mapping)
		return;
	mapping_reside(mapping, -1);
	if (mapping->phys)
		phys_unref(mapping->phys);
	free(mapping);
}

bool memory_is_device(CUdeviceptr address)
{
	return span_find(&mappings, address) != NULL;
}

void mapping_reside(struct mapping *mapping, int gpu)
{
	struct shared_process *self = &shared->processes[sim.index];
	int before;

	if (mapping->phys || atomic_load(&mapping->resident) == gpu + 1)
		return;
	shared_lock();
	/* If the GPU is full, the memory stays where it is, and the GPU accesses it there. */
	if (gpu < 0 || shared_gpu_used_bytes((unsigned)gpu) + mapping->size_bytes <=
			       shared->gpus[gpu].capacity_bytes) {
		before = atomic_exchange(&mapping->resident, gpu + 1);
		if (before)
			self->managed_bytes[before - 1] -= mapping->size_bytes;
		if (gpu >= 0)
			self->managed_bytes[gpu] += mapping->size_bytes;
		shared_changed();
	}
	shared_unlock();
}

static bool mapping_allows(const struct mapping *mapping, const struct accessor *by, bool write)
{
	int wanted = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;

	if (!mapping->phys || (mapping->peers && by->peers >> mapping->phys->device & 1))
		return true;
	for (unsigned i = 0; i < sim.device_count; i++)
		if (by->devices >> i & 1 && (mapping->protection[i] & wanted) == wanted)
			return true;
	return false;
}

bool memory_accessible(const struct accessor *by, CUdeviceptr start, size_t size_bytes, bool write)
{
	CUdeviceptr end = start + size_bytes;

	if (end < start)
		return false;
	while (start < end) {
		const struct span *span = span_find(&mappings, start);

		if (!span || !mapping_allows(span->object, by, write))
			return false;
		if (by->moves)
			mapping_reside(span->object, by->gpu);
		start = span->start + span->size_bytes;
	}
	return true;
}

struct allocation *allocation_find(CUdeviceptr address)
{
	struct span *span = span_find(&allocations, address);

	return span ? span->object : NULL;
}

struct allocation *allocation_add(CUdeviceptr start, size_t size_bytes, enum allocation_kind kind,
				  int device)
{
	struct allocation *allocation = calloc(1, sizeof(*allocation));

	if (!allocation)
		return NULL;
	allocation->start = start;
	allocation->size_bytes = size_bytes;
	allocation->kind = kind;
	allocation->device = device;
	allocation->buffer_id = ++sim.next_serial;
	allocation->sync_memops = 1;
	if (span_insert(&allocations, start, size_bytes, allocation)) {
		free(allocation);
		return NULL;
	}
	return allocation;
}

void allocation_remove(struct allocation *allocation)
{
	span_remove(&allocations, allocation->start);
	free(allocation);
}
