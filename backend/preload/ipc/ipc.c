/* SPDX-License-Identifier: MIT */
/*
 * Legacy CUDA IPC. The driver does not support it for mapped memory, so the handle of an allocation
 * of the library is a token. Another process with the library sends the token to the exporter's
 * socket and gets a descriptor of the memory. Handles of the driver's own memory are left to the
 * driver. For both kinds, exporter and importer count the sharing in the page.
 */
#include "backend/preload/ipc/ipc.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "backend/preload/memory/allocation.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/green.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/memory/memory.h"
#include "lib/lock.h"

/* Pause between requests to an exporter that is frozen. */
#define PAUSE_USEC 20000

/* ---- shared memory of the driver's own ---- */

/*
 * Memory of the driver's own that was exported, until freed, since the library cannot tell which
 * processes have it; and such memory of other processes that is opened here, with a count.
 */
struct driver_memory {
	CUdeviceptr start;
	CUcontext context;
	unsigned opened; /* times opened; 0: exported */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/*
 * Held while a piece of memory is opened, also while the exporter answers. Taken inside the gate.
 */
static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;
static struct driver_memory *shared;
static size_t shared_count, shared_room;

static struct driver_memory *find_shared(CUdeviceptr start)
{
	for (size_t i = 0; i < shared_count; i++)
		if (shared[i].start == start)
			return &shared[i];
	return NULL;
}

/*
 * Adds to the list of shared memory. If there is no memory for that, the sharing stays counted for
 * ever. Lock: this file's.
 */
static void append(const struct driver_memory *memory)
{
	if (shared_count == shared_room) {
		size_t room = shared_room ? 2 * shared_room : 16;
		struct driver_memory *longer = realloc(shared, room * sizeof(*shared));

		if (!longer)
			return;
		shared = longer;
		shared_room = room;
	}
	shared[shared_count] = *memory;
	__atomic_store_n(&shared_count, shared_count + 1, __ATOMIC_RELAXED);
}

static void note_shared(CUdeviceptr start, bool opened)
{
	struct driver_memory memory = {.start = start, .opened = opened};
	struct driver_memory *known;

	gcr_green_current_owner(&memory.context);
	GCR_LOCK_SCOPE(&lock);
	known = find_shared(start);
	if (known) {
		known->opened += opened;
		return;
	}
	gcr_sharing_add(1);
	append(&memory);
}

/* Removes the entry from the list of shared memory. Lock: this file's. */
static void take_out(struct driver_memory *known)
{
	*known = shared[shared_count - 1];
	__atomic_store_n(&shared_count, shared_count - 1, __ATOMIC_RELAXED);
}

static void forget_shared(struct driver_memory *known)
{
	take_out(known);
	gcr_sharing_add(-1);
}

static void note_closed(CUdeviceptr start)
{
	struct driver_memory *known;

	pthread_mutex_lock(&lock);
	known = find_shared(start);
	if (known && known->opened && --known->opened == 0)
		forget_shared(known);
	pthread_mutex_unlock(&lock);
}

struct gcr_ipc_end gcr_ipc_begin_end(CUdeviceptr address)
{
	struct gcr_ipc_end end = {.start = address};
	struct driver_memory *known;

	/* Programs that share nothing take no lock. */
	if (!__atomic_load_n(&shared_count, __ATOMIC_RELAXED))
		return end;
	GCR_LOCK_SCOPE(&lock);
	known = find_shared(address);
	if (known && !known->opened) {
		end.is_exported = true;
		end.context = known->context;
		take_out(known);
	}
	return end;
}

void gcr_ipc_finish_end(const struct gcr_ipc_end *end, CUresult result)
{
	const struct driver_memory memory = {.start = end->start, .context = end->context};

	if (!end->is_exported)
		return;
	GCR_LOCK_SCOPE(&lock);
	if (result == CUDA_SUCCESS || find_shared(end->start))
		gcr_sharing_add(-1);
	else
		append(&memory);
}

static void context_gone(CUcontext context)
{
	pthread_mutex_lock(&lock);
	for (size_t i = shared_count; i-- > 0;)
		if (shared[i].context == context)
			forget_shared(&shared[i]);
	pthread_mutex_unlock(&lock);
}

GCR_LISTEN(context_gone, context_gone);

/* ---- exporting ---- */

static bool fill_token(CUdeviceptr pointer, struct gcr_ipc_token *token)
{
	GCR_TABLE_LOCK();
	struct gcr_mapping *mapping = gcr_table_find_allocation(pointer);

	if (!mapping || mapping->memory->origin != GCR_MEMORY_ALLOCATED)
		return false;
	mapping->memory->is_exported = true;
	token->id = mapping->memory->id;
	token->address = mapping->start;
	token->bytes = mapping->allocation->bytes;
	return true;
}

static void note_exported(CUdeviceptr pointer)
{
	CUdeviceptr start = pointer;

	if (GCR_REAL(cuMemGetAddressRange_v2))
		GCR_REAL(cuMemGetAddressRange_v2)(&start, NULL, pointer);
	note_shared(start, false);
}

GCR_OWN(cuIpcGetMemHandle);
CUresult gcr_own_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
	__typeof__(cuIpcGetMemHandle) *real = GCR_WRAPPED(cuIpcGetMemHandle);
	struct gcr_ipc_token token = {.magic = GCR_IPC_MAGIC, .pid = getpid()};
	CUdevice device;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuIpcGetMemHandle);
	if (!fill_token(pointer, &token)) {
		GCR_SHARING_PENDING();
		result = real(handle, pointer);
		if (result == CUDA_SUCCESS)
			note_exported(pointer);
		return result;
	}
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	result = GCR_REAL(cuCtxGetDevice)(&device);
	if (result)
		return result;
	if (gcr_ipc_listen(&token) < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	memcpy(handle, &token, sizeof(token));
	return CUDA_SUCCESS;
}

/* ---- opening ---- */

/* Memory that was opened here, so that it is not mapped twice in one context. */
struct opened {
	struct gcr_ipc_token token;
	CUcontext context;
	uint64_t memory_id;
	CUdeviceptr start;
};

/* The list of memory that was opened here. Guarded by the table's lock. */
static struct opened *opened;
static size_t opened_count, opened_room;

/* Returns the mapping of @entry; NULL if it is gone. The caller holds the table's lock. */
static struct gcr_mapping *mapping_of(const struct opened *entry)
{
	struct gcr_mapping *mapping = gcr_table_find_allocation(entry->start);

	return mapping && mapping->memory->id == entry->memory_id && !mapping->allocation->freeing
		       ? mapping
		       : NULL;
}

static bool open_again(const struct gcr_ipc_token *token, CUcontext context, CUdeviceptr *pointer)
{
	GCR_TABLE_LOCK();

	for (size_t i = 0; i < opened_count; i++) {
		struct gcr_mapping *mapping = mapping_of(&opened[i]);

		if (!mapping || opened[i].context != context ||
		    memcmp(&opened[i].token, token, sizeof(*token)) != 0)
			continue;
		mapping->allocation->opened++;
		*pointer = mapping->start;
		return true;
	}
	return false;
}

static void remember(const struct opened *entry)
{
	GCR_TABLE_LOCK();

	for (size_t i = opened_count; i-- > 0;)
		if (!mapping_of(&opened[i]))
			opened[i] = opened[--opened_count];
	if (opened_count == opened_room) {
		size_t room = opened_room ? 2 * opened_room : 16;
		struct opened *longer = realloc(opened, room * sizeof(*opened));

		/* Then the memory is mapped once more when opened again. */
		if (!longer)
			return;
		opened = longer;
		opened_room = room;
	}
	opened[opened_count++] = *entry;
}

/* Maps the memory with access for its own GPU and for @user, the GPU whose context opens it. */
static CUresult map_opened(CUmemGenericAllocationHandle handle, CUdevice user, size_t bytes,
			   CUdeviceptr *ret_start)
{
	CUmemAccessDesc access[2] = {{.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
				     {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
	CUmemAllocationProp prop;
	CUdeviceptr start;
	CUresult result = GCR_REAL(cuMemGetAllocationPropertiesFromHandle)(&prop, handle);

	if (result == CUDA_SUCCESS)
		result = GCR_REAL(cuMemAddressReserve)(&start, bytes, 0, 0, 0);
	if (result)
		return result;
	access[0].location = prop.location;
	access[1].location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = user};
	result = GCR_REAL(cuMemMap)(start, bytes, 0, handle, 0);
	if (result == CUDA_SUCCESS) {
		result = GCR_REAL(cuMemSetAccess)(start, bytes, access,
						  prop.location.id == user ? 1 : 2);
		if (result)
			GCR_REAL(cuMemUnmap)(start, bytes);
	}
	if (result)
		GCR_REAL(cuMemAddressFree)(start, bytes);
	else
		*ret_start = start;
	return result;
}

/* Adds a piece of opened memory, with @model's mapping and allocation, to the table. */
static CUresult enter_opened(const struct gcr_mapping *model, CUmemGenericAllocationHandle handle,
			     struct gcr_ipc_exporter *exporter, struct opened *entry)
{
	_cleanup_(gcr_table_free_mapping_cleanup) struct gcr_mapping *mapping =
		gcr_table_new_mapping(model->start, model->bytes, 0);
	struct gcr_memory *memory, *dead = NULL;
	bool entered = false;

	if (mapping)
		mapping->allocation = malloc(sizeof(*mapping->allocation));
	if (!mapping || !mapping->allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*mapping->allocation = *model->allocation;
	gcr_table_lock();
	memory = gcr_table_add_memory(GCR_MEMORY_OPENED, 0, model->bytes, handle);
	if (memory) {
		mapping->memory = memory;
		entry->memory_id = memory->id;
		entry->start = mapping->start;
		gcr_table_share(memory);
		entered = gcr_table_add_mapping(mapping, &dead) == 0;
		if (entered) {
			mapping = NULL;
			memory->exporter = exporter;
			memory->give_back = gcr_ipc_give_back;
		} else {
			memory->real = 0;
		}
		gcr_table_unref(memory, &dead);
	}
	gcr_table_unlock();
	gcr_table_release_dead(dead);
	return entered ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Imports, maps and notes the memory. @memory_fd and, on failure, @exporter's count stay the
 * caller's. */
static CUresult open_new(const struct gcr_ipc_token *token, int memory_fd,
			 struct gcr_ipc_exporter *exporter, size_t bytes, CUdeviceptr *pointer)
{
	struct opened entry = {.token = *token};
	struct gcr_allocation allocation = {.bytes = token->bytes, .opened = 1};
	struct gcr_mapping model = {.bytes = bytes, .allocation = &allocation};
	CUmemGenericAllocationHandle handle;
	CUdevice device;
	CUresult result;

	if (GCR_REAL(cuCtxGetDevice)(&device) || gcr_green_current_owner(&entry.context))
		return CUDA_ERROR_INVALID_CONTEXT;
	GCR_SHARING_PENDING();
	allocation.context = entry.context;
	result = gcr_allocation_new_companion(&allocation.companion);
	if (result)
		return result;
	result = GCR_REAL(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)memory_fd,
							  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result == CUDA_SUCCESS) {
		result = map_opened(handle, device, bytes, &model.start);
		if (result == CUDA_SUCCESS) {
			result = enter_opened(&model, handle, exporter, &entry);
			if (result) {
				GCR_REAL(cuMemUnmap)(model.start, bytes);
				GCR_REAL(cuMemAddressFree)(model.start, bytes);
			}
		}
		if (result)
			GCR_REAL(cuMemRelease)(handle);
	}
	if (result) {
		GCR_REAL(cuMemFree_v2)(allocation.companion);
		return result == CUDA_ERROR_OUT_OF_MEMORY ? result : CUDA_ERROR_MAP_FAILED;
	}
	remember(&entry);
	*pointer = entry.start;
	return CUDA_SUCCESS;
}

/*
 * Opens the memory of @token. Returns -EAGAIN: the caller retries; else 0, and *ret_result is the
 * program's result.
 */
static int try_open(enum gcr_entry name, const struct gcr_ipc_token *token, CUdeviceptr *pointer,
		    CUresult *ret_result)
{
	_cleanup_(gcr_gate_leave) struct gcr_gate_pass pass = gcr_gate_enter(name);
	/* No other thread opens the same memory at the same time. */
	GCR_LOCK_SCOPE(&opened_lock);
	_cleanup_close_ int memory_fd = -1;
	struct gcr_ipc_exporter *exporter;
	CUcontext context = NULL;
	uint64_t mapped_bytes;
	int r;

	*ret_result = CUDA_ERROR_INVALID_CONTEXT;
	if (gcr_green_current_owner(&context) || !context)
		return 0;
	if (gcr_ipc_is_own(token->process))
		return 0;
	*ret_result = CUDA_SUCCESS;
	if (open_again(token, context, pointer))
		return 0;
	*ret_result = CUDA_ERROR_INVALID_VALUE;
	r = gcr_ipc_ask(token, &exporter, &mapped_bytes, &memory_fd);
	if (r < 0)
		return r == -EAGAIN ? r : 0;
	*ret_result = open_new(token, memory_fd, exporter, mapped_bytes, pointer);
	if (*ret_result)
		gcr_ipc_give_back(exporter);
	return 0;
}

/*
 * Waits for a frozen exporter until it is thawed or ends, as a thread waits for its own gate.
 * Between the retries this process holds nothing of the exporter and is outside its own gate, so
 * that this process can be frozen too.
 */
static CUresult open_token(enum gcr_entry name, const struct gcr_ipc_token *token,
			   CUdeviceptr *pointer)
{
	CUresult result;

	while (try_open(name, token, pointer, &result) == -EAGAIN)
		usleep(PAUSE_USEC);
	return result;
}

static CUresult open_handle(enum gcr_entry name, __typeof__(cuIpcOpenMemHandle_v2) *real,
			    CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
	struct gcr_ipc_token token;
	CUresult result;
	GCR_GATE_NO_CANCEL();

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	memcpy(&token, &handle, sizeof(token));
	if (token.magic == GCR_IPC_MAGIC) {
		if (!pointer || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
			return CUDA_ERROR_INVALID_VALUE;
		return open_token(name, &token, pointer);
	}
	_cleanup_(gcr_gate_leave) struct gcr_gate_pass pass = gcr_gate_enter(name);
	GCR_SHARING_PENDING();

	result = real(pointer, handle, flags);
	if (result == CUDA_SUCCESS)
		note_shared(*pointer, true);
	return result;
}

#ifndef GCR_HIP
GCR_OWN(cuIpcOpenMemHandle);
CUresult gcr_own_cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
	return open_handle(GCR_ENTRY(cuIpcOpenMemHandle), GCR_WRAPPED(cuIpcOpenMemHandle), pointer,
			   handle, flags);
}
#endif

GCR_OWN(cuIpcOpenMemHandle_v2);
CUresult gcr_own_cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle,
				       unsigned int flags)
{
	return open_handle(GCR_ENTRY(cuIpcOpenMemHandle_v2), GCR_WRAPPED(cuIpcOpenMemHandle_v2),
			   pointer, handle, flags);
}

GCR_OWN(cuIpcCloseMemHandle);
CUresult gcr_own_cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	__typeof__(cuIpcCloseMemHandle) *real = GCR_WRAPPED(cuIpcCloseMemHandle);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuIpcCloseMemHandle);
	if (gcr_allocation_owns(pointer))
		return gcr_allocation_close(pointer);
	result = real(pointer);
	if (result == CUDA_SUCCESS)
		note_closed(pointer);
	return result;
}

static void forget(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	opened_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	shared_count = shared_room = 0;
	shared = NULL;
	opened_count = opened_room = 0;
	opened = NULL;
}

GCR_LISTEN(fork, forget);
