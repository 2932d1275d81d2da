/* SPDX-License-Identifier: MIT */
/*
 * The table of device memory: mappings sorted by address, handles by number, and all memory. A
 * program has at most thousands of each, so arrays suffice. Calls the driver only to release memory
 * without users, without the lock.
 */
#include "backend/preload/memory/table.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "backend/preload/gate/gate.h"
#include "backend/preload/base/listener.h"
#include "lib/protocol.h"

/*
 * The library's own numbers begin at GCR_TABLE_NO_HANDLE; no address is like that. A handle of the
 * driver's is an address in the program, and no other argument looks like such an address. A
 * driver's handle that is a small number could not be distinguished from a size or a flag: then the
 * program gets a number of the library's.
 */
#define HANDLE_LEAST (1ull << 32)

struct handle {
	CUmemGenericAllocationHandle value;
	CUmemGenericAllocationHandle real; /* APART: the driver's handle */
	struct gcr_memory *memory;
	unsigned count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
	struct gcr_mapping **mappings; /* by address; they do not overlap */
	size_t mapping_count, mapping_room;
	struct handle *handles; /* by value */
	size_t handle_count, handle_room;
	struct gcr_memory **memories;
	size_t memory_count, memory_room;
	uint64_t last_id;
	uint64_t changes;
	uint64_t device_bytes;
	uint64_t apart_bytes;
	uint64_t imported_bytes;
	uint32_t extents, imported;
} table;

/* ---- the lock, which is initialised again in the child of a fork ---- */

void gcr_table_lock(void)
{
	pthread_mutex_lock(&lock);
}

void gcr_table_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

static void reset_lock(void)
{
	pthread_mutex_init(&lock, NULL);
}

/*
 * Makes forks wait while the table changes, since a child has to find the descriptors that it
 * closes.
 */
static void watch_forks(void)
{
	pthread_atfork(gcr_table_lock, gcr_table_unlock, reset_lock);
}

static int make_room(void **array, size_t *room, size_t count, size_t size)
{
	size_t more = *room ? 2 * *room : 64;
	void *longer;

	if (count < *room)
		return 0;
	longer = realloc(*array, more * size);
	if (!longer)
		return -ENOMEM;
	*array = longer;
	*room = more;
	return 0;
}

/* ---- figures in the page ---- */

static void publish(void)
{
	struct gcr_page *page = gcr_gate_page();

	if (!page)
		return;
	page->device_bytes = table.device_bytes;
	page->imported_bytes = table.imported_bytes;
	page->extents = table.extents;
	if (table.imported)
		__atomic_or_fetch(&page->flags, GCR_PAGE_IMPORTED, __ATOMIC_SEQ_CST);
	else
		__atomic_and_fetch(&page->flags, ~(uint32_t)GCR_PAGE_IMPORTED, __ATOMIC_SEQ_CST);
	/* Managed memory also changes this counter. */
	__atomic_add_fetch(&page->table_changes, 1, __ATOMIC_SEQ_CST);
}

/*
 * Shows the size of APART memory in the page. No extent has changed: files that are ready for the
 * extents remain valid.
 */
static void publish_apart(void)
{
	struct gcr_page *page = gcr_gate_page();

	if (page)
		page->apart_bytes = table.apart_bytes;
}

/* Called when an extent has been added, removed or moved: counts that, and updates the page. */
static void changed(void)
{
	table.changes++;
	publish();
}

uint64_t gcr_table_changes(void)
{
	return table.changes;
}

/* ---- memory ---- */

struct gcr_memory *gcr_table_add_memory(enum gcr_memory_origin origin, int device, uint64_t bytes,
					CUmemGenericAllocationHandle real)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	_cleanup_free_ struct gcr_memory *memory = calloc(1, sizeof(*memory));

	pthread_once(&once, watch_forks);
	if (!memory || make_room((void **)&table.memories, &table.memory_room, table.memory_count,
				 sizeof(table.memories[0])) < 0)
		return NULL;
	memory->id = ++table.last_id;
	memory->origin = origin;
	memory->device = device;
	memory->bytes = bytes;
	memory->real = real;
	memory->descriptor.fd = -1;
	memory->references = 1;
	memory->index = table.memory_count;
	table.memories[table.memory_count++] = memory;
	if (gcr_memory_joins(memory)) {
		table.device_bytes += bytes;
		table.extents++;
		changed();
	}
	if (origin == GCR_MEMORY_APART) {
		table.apart_bytes += bytes;
		publish_apart();
	}
	return TAKE_PTR(memory);
}

void gcr_table_share(struct gcr_memory *memory)
{
	if (memory->shared)
		return;
	memory->shared = true;
	gcr_sharing_add(1);
}

void gcr_table_obstruct(struct gcr_memory *memory, enum gcr_obstacle obstacle)
{
	gcr_obstacle_add(memory->obstacle, -1);
	memory->obstacle = obstacle;
	gcr_obstacle_add(obstacle, 1);
}

void gcr_table_set_imported(struct gcr_memory *memory)
{
	if (memory->imported)
		return;
	memory->imported = true;
	table.imported++;
	table.imported_bytes += memory->bytes;
	publish();
}

void gcr_table_unref(struct gcr_memory *memory, struct gcr_memory **dead)
{
	if (--memory->references)
		return;
	table.memories[memory->index] = table.memories[--table.memory_count];
	table.memories[memory->index]->index = memory->index;
	if (memory->shared)
		gcr_sharing_add(-1);
	gcr_obstacle_add(memory->obstacle, -1);
	if (gcr_memory_joins(memory)) {
		table.device_bytes -= memory->bytes;
		table.extents--;
		table.imported -= memory->imported;
		table.imported_bytes -= memory->imported ? memory->bytes : 0;
		changed();
	}
	if (memory->origin == GCR_MEMORY_APART) {
		table.apart_bytes -= memory->bytes;
		publish_apart();
	}
	memory->next_dead = *dead;
	*dead = memory;
}

void gcr_table_release_dead(struct gcr_memory *dead)
{
	while (dead) {
		struct gcr_memory *memory = dead;

		dead = memory->next_dead;
		if (memory->real && memory->origin != GCR_MEMORY_APART)
			GCR_REAL(cuMemRelease)(memory->real);
		/* A descriptor keeps the VRAM in use just as a handle does. */
		gcr_descriptor_close(&memory->descriptor);
		if (memory->give_back)
			memory->give_back(memory->exporter);
		free(memory);
	}
}

void gcr_table_put(struct gcr_memory *memory)
{
	struct gcr_memory *dead = NULL;

	gcr_table_lock();
	gcr_table_unref(memory, &dead);
	gcr_table_unlock();
	gcr_table_release_dead(dead);
}

struct gcr_memory *const *gcr_table_all(size_t *ret_count)
{
	*ret_count = table.memory_count;
	return table.memories;
}

/* ---- handles ---- */

/* The index of @value, or the one where it would be inserted. */
static size_t handle_index(CUmemGenericAllocationHandle value)
{
	size_t low = 0, high = table.handle_count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (table.handles[middle].value < value)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct handle *find_handle(CUmemGenericAllocationHandle value)
{
	size_t i = handle_index(value);

	return i < table.handle_count && table.handles[i].value == value ? &table.handles[i] : NULL;
}

static CUmemGenericAllocationHandle real_of(const struct handle *handle)
{
	return handle->memory->origin == GCR_MEMORY_APART ? handle->real : handle->memory->real;
}

/*
 * The handle for @memory that the program already has. For APART one per driver's handle: if the
 * driver makes a new handle each time, so does the table.
 */
static struct handle *find_given(const struct gcr_memory *memory, CUmemGenericAllocationHandle real)
{
	bool is_apart = memory->origin == GCR_MEMORY_APART;
	struct handle *handle = find_handle(is_apart ? real : memory->number);

	if (handle && handle->memory == memory && (!is_apart || handle->real == real))
		return handle;
	for (size_t i = 0; is_apart && i < table.handle_count; i++)
		if (table.handles[i].memory == memory && table.handles[i].real == real)
			return &table.handles[i];
	return NULL;
}

int gcr_table_add_handle(struct gcr_memory *memory, CUmemGenericAllocationHandle real,
			 CUmemGenericAllocationHandle *ret_value)
{
	struct handle *handle = find_given(memory, real);
	CUmemGenericAllocationHandle value = real;
	size_t i;

	if (!handle) {
		if (make_room((void **)&table.handles, &table.handle_room, table.handle_count,
			      sizeof(table.handles[0])) < 0)
			return -ENOMEM;
		if (value < HANDLE_LEAST || find_handle(value))
			value = GCR_TABLE_NO_HANDLE + ++table.last_id;
		i = handle_index(value);
		handle = &table.handles[i];
		memmove(handle + 1, handle, (table.handle_count - i) * sizeof(*handle));
		*handle = (struct handle){.value = value, .real = real, .memory = memory};
		table.handle_count++;
		memory->number = value;
	}
	handle->count++;
	memory->references++;
	*ret_value = handle->value;
	return 0;
}

struct gcr_memory *gcr_table_find_handle(CUmemGenericAllocationHandle value,
					 CUmemGenericAllocationHandle *ret_real)
{
	struct handle *handle = find_handle(value);

	if (!handle)
		return NULL;
	*ret_real = real_of(handle);
	return handle->memory;
}

struct gcr_memory *gcr_table_find_apart(CUmemGenericAllocationHandle real)
{
	for (size_t i = 0; i < table.handle_count; i++)
		if (table.handles[i].memory->origin == GCR_MEMORY_APART &&
		    table.handles[i].real == real)
			return table.handles[i].memory;
	return NULL;
}

bool gcr_table_has_handle(const struct gcr_memory *memory, CUmemGenericAllocationHandle *ret_value)
{
	struct handle *handle = find_given(memory, 0);

	if (!handle)
		return false;
	*ret_value = handle->value;
	return true;
}

bool gcr_table_is_hidden(CUmemGenericAllocationHandle value)
{
	if (find_handle(value))
		return false;
	for (size_t i = 0; i < table.memory_count; i++)
		if (table.memories[i]->origin != GCR_MEMORY_APART &&
		    table.memories[i]->real == value)
			return value != 0;
	return false;
}

void gcr_table_translate(uint64_t *words, size_t count)
{
	GCR_TABLE_LOCK();
	for (size_t i = 0; i < count; i++) {
		struct handle *handle = words[i] < HANDLE_LEAST ? NULL : find_handle(words[i]);

		if (handle)
			words[i] = real_of(handle);
	}
}

void gcr_table_drop_handle(CUmemGenericAllocationHandle value, struct gcr_memory **dead)
{
	struct handle *handle = find_handle(value);
	struct gcr_memory *memory;
	size_t i;

	if (!handle)
		return;
	memory = handle->memory;
	if (--handle->count == 0) {
		i = (size_t)(handle - table.handles);
		table.handle_count--;
		memmove(handle, handle + 1, (table.handle_count - i) * sizeof(*handle));
	}
	gcr_table_unref(memory, dead);
}

/* ---- mappings ---- */

struct gcr_mapping *gcr_table_new_mapping(CUdeviceptr start, size_t bytes, size_t offset)
{
	struct gcr_mapping *mapping = calloc(1, sizeof(*mapping));

	if (!mapping)
		return NULL;
	mapping->start = start;
	mapping->bytes = bytes;
	mapping->offset = offset;
	mapping->mapped = true;
	return mapping;
}

void gcr_table_free_mapping(struct gcr_mapping *mapping)
{
	if (!mapping)
		return;
	free(mapping->allocation);
	free(mapping->access);
	free(mapping);
}

/* The index of the first mapping that ends above @address. */
static size_t mapping_index(CUdeviceptr address)
{
	size_t low = 0, high = table.mapping_count;

	while (low < high) {
		const struct gcr_mapping *middle = table.mappings[(low + high) / 2];

		if (middle->start + middle->bytes <= address)
			low = (low + high) / 2 + 1;
		else
			high = (low + high) / 2;
	}
	return low;
}

struct gcr_mapping *gcr_table_next_mapping(CUdeviceptr address)
{
	size_t i = mapping_index(address);

	return i < table.mapping_count ? table.mappings[i] : NULL;
}

struct gcr_mapping *gcr_table_find_mapping(CUdeviceptr address)
{
	struct gcr_mapping *mapping = gcr_table_next_mapping(address);

	return mapping && mapping->start <= address ? mapping : NULL;
}

struct gcr_mapping *gcr_table_find_allocation(CUdeviceptr address)
{
	struct gcr_mapping *mapping = gcr_table_find_mapping(address);

	return mapping && mapping->allocation &&
			       address - mapping->start < mapping->allocation->bytes
		       ? mapping
		       : NULL;
}

bool gcr_table_has_allocation(CUdeviceptr start, size_t bytes)
{
	for (struct gcr_mapping *mapping = gcr_table_next_mapping(start);
	     mapping && (mapping->start <= start || mapping->start - start < bytes);
	     mapping = gcr_table_next_mapping(mapping->start + mapping->bytes))
		if (mapping->allocation)
			return true;
	return false;
}

int gcr_table_add_mapping(struct gcr_mapping *mapping, struct gcr_memory **dead)
{
	struct gcr_mapping *stale;
	size_t i;

	if (make_room((void **)&table.mappings, &table.mapping_room, table.mapping_count,
		      sizeof(table.mappings[0])) < 0)
		return -ENOMEM;
	/* The driver never maps an address twice: an older mapping here was removed unnoticed. */
	while ((stale = gcr_table_next_mapping(mapping->start)) &&
	       stale->start < mapping->start + mapping->bytes)
		gcr_table_drop_mapping(stale, dead);
	i = mapping_index(mapping->start);
	memmove(&table.mappings[i + 1], &table.mappings[i],
		(table.mapping_count - i) * sizeof(table.mappings[0]));
	table.mappings[i] = mapping;
	table.mapping_count++;
	mapping->next = mapping->memory->mappings;
	mapping->memory->mappings = mapping;
	mapping->memory->references++;
	if (gcr_memory_joins(mapping->memory))
		changed();
	return 0;
}

void gcr_table_drop_mapping(struct gcr_mapping *mapping, struct gcr_memory **dead)
{
	struct gcr_memory *memory = mapping->memory;
	size_t i = mapping_index(mapping->start);

	table.mapping_count--;
	memmove(&table.mappings[i], &table.mappings[i + 1],
		(table.mapping_count - i) * sizeof(table.mappings[0]));
	for (struct gcr_mapping **link = &memory->mappings; *link; link = &(*link)->next)
		if (*link == mapping) {
			*link = mapping->next;
			break;
		}
	if (gcr_memory_joins(memory))
		changed();
	gcr_table_free_mapping(mapping);
	gcr_table_unref(memory, dead);
}

/* ---- access rights ---- */

int gcr_table_room_for_access(struct gcr_mapping *mapping, size_t count)
{
	size_t room = mapping->access_count + count;
	CUmemAccessDesc *access;

	if (room <= mapping->access_room)
		return 0;
	access = realloc(mapping->access, room * sizeof(*access));
	if (!access)
		return -ENOMEM;
	mapping->access = access;
	mapping->access_room = room;
	return 0;
}

static CUmemAccessDesc *find_access(struct gcr_mapping *mapping, const CUmemLocation *location)
{
	for (size_t i = 0; i < mapping->access_count; i++)
		if (mapping->access[i].location.type == location->type &&
		    mapping->access[i].location.id == location->id)
			return &mapping->access[i];
	return NULL;
}

void gcr_table_set_access(struct gcr_mapping *mapping, const CUmemAccessDesc *access, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		CUmemAccessDesc *known = find_access(mapping, &access[i].location);

		if (known)
			known->flags = access[i].flags;
		else if (mapping->access_count < mapping->access_room)
			mapping->access[mapping->access_count++] = access[i];
	}
}

/* ---- fork ---- */

static void forget(void)
{
	reset_lock();
	for (size_t i = 0; i < table.memory_count; i++)
		gcr_descriptor_close(&table.memories[i]->descriptor);
	/* The rest is not freed: another thread may have held malloc's lock at the fork. */
	memset(&table, 0, sizeof(table));
}

GCR_LISTEN(fork, forget);
