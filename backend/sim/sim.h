/* SPDX-License-Identifier: MIT */
/*
 * The state of one simulated process: the objects behind the driver's handles, and the rules for
 * access to memory.
 *
 * Lock order: sim.lock (objects and tables), then sim.map_lock (which addresses are backed), then
 * work.lock (streams), then the shared lock. No thread waits for a stream's work while holding one
 * of them. A stream's thread holds map_lock for reading while it accesses device memory.
 */
#ifndef GPUCR_SIM_SIM_H
#define GPUCR_SIM_SIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cuda/cuda_api.h"
#include "backend/sim/shared.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

#define SIM_DRIVER_VERSION	13000
/*
 * The address range of device memory: high, as with the real driver, and within the range that
 * ThreadSanitizer accepts.
 */
#define SIM_VA_START		0x7e8000000000ull
#define SIM_VA_END		0x7f8000000000ull
#define SIM_SUBALLOCATION_BYTES 512

/* ---- process.c: the process and the driver's threads ---- */

struct sim_process {
	pthread_mutex_t lock;
	pthread_rwlock_t map_lock;
	unsigned index; /* slot in shared->processes */
	uint64_t generation;
	int lock_fd, control_fd, compute_fd;
	void *compute_mapping; /* of the compute file, while there is a context */
	unsigned device_count;
	/* Ordinal -> index in shared->gpus; changed by CUDA_VISIBLE_DEVICES and by a restore. */
	unsigned gpu_of_device[SIM_MAX_GPUS];
	int device_fd[SIM_MAX_GPUS]; /* by ordinal; by GPU if opens_all_devices */
	uint64_t next_serial;
};

extern struct sim_process sim;

bool process_is_initialized(void);
void process_set_initialized(void);
/* Returns true in a child of a process that had called cuInit. */
bool process_is_forked(void);
void process_set_forked(void);
/* Returns true after the driver's exit handler has run: then calls do nothing. */
bool process_is_deinitialized(void);
void process_set_deinitialized(void);
/* Returns true in the threads of streams and of callbacks, where no call is permitted. */
bool sim_on_callback_thread(void);
void sim_set_callback_thread(void);
/* Converts 0 or -errno to a CUresult. */
CUresult sim_error_of(int error);
int sim_thread_start(pthread_t *ret_thread, void *(*function)(void *), void *argument);
/* Names the calling thread like a thread of the real driver. */
void sim_thread_name(const char *name);
static inline uint64_t sim_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static inline size_t round_up(size_t value, size_t to)
{
	return (value + to - 1) / to * to;
}

/* ---- differences between the vendors: cuda_vendor.c, hip_vendor.c ---- */

#define SIM_UUID_TEXT_BYTES 37

struct sim_vendor {
	const char *control_file; /* opened by the initialisation of the driver; or NULL */
	const char *compute_file; /* the same; also mapped while there is a context */
	const char *device_file;  /* of a GPU, without its number */
	unsigned device_file_first;
	bool opens_all_devices; /* at initialisation; else only devices with a context */
	const char *server_thread_name, *stream_thread_name;
	/* A checkpoint leaves managed memory in the process; else the checkpoint is refused. */
	bool checkpoints_managed_memory;
	/*
	 * A checkpoint is refused if a restore could not bring back some memory; else that memory
	 * is lost.
	 */
	bool refuses_what_is_lost;
	/* A handle that was imported can be exported again. */
	bool exports_imported_handles;
	/* Granularity of cuMemCreate and cuMemMap, a power of 2 up to SIM_BLOCK_BYTES. */
	size_t (*granularity_bytes)(void);
	/* Calls devices_choose() with the list from the environment. */
	void (*devices_choose)(void);
	/* The GPU's UUID as programs write it, after "GPU-". */
	void (*uuid_text)(const unsigned char uuid[16], char text[SIM_UUID_TEXT_BYTES]);
	/*
	 * Returns PTX text with an `.entry` for each kernel of an image; the caller frees it. NULL:
	 * the image is not for this GPU.
	 */
	char *(*image_text)(const void *image);
	/* Returns the error with the vendor's name; 0: unknown. */
	CUresult (*error_by_name)(const char *name);
};

extern const struct sim_vendor sim_vendor;

/* ---- device_list.c ---- */

/* Restricts the process's devices to those of a list, in the list's order. NULL: all devices. */
void devices_choose(const char *list);

/* ---- device_files.c ---- */

/* Opens the files that the process should have open, and closes the others. Returns 0 or -EIO. */
int device_files_open(void);
void device_files_close(void);

/* ---- fault.c ---- */

/* The part of an injected fault that takes effect after the call. */
enum fault_action { FAULT_NOTHING, FAULT_KILL, FAULT_STOP, FAULT_ABORT, FAULT_HANG, FAULT_HOLD };

struct fault {
	unsigned delay_ms;
	enum fault_action action;
	bool late; /* at the end of the call */
};

enum fault_place { FAULT_TARGET, FAULT_CALLER };

/*
 * Applies the rules to this call: returns the error to inject, or SUCCESS, possibly with a later
 * fault in *ret_after.
 */
CUresult fault_check(const char *name, enum fault_place place, struct fault *ret_after);
void fault_act(const struct fault *fault);
/*
 * Set while this thread is inside another entry point; a rule for all calls ("*") then does not
 * apply.
 */
extern __thread bool fault_nested;

/* ---- gate.c: the lock that every call passes ---- */

struct sim_call {
	CUresult result;
	bool entered;
	struct fault after;
};

enum {
	SIM_CALL_GATED = 0,
	SIM_CALL_BEFORE_INIT = 1, /* permitted before cuInit, and while locked */
	SIM_CALL_CHECKPOINT = 2,  /* acts on another process: not blocked by this process's lock */
};

struct sim_call sim_enter(const char *name, int flags);
void sim_leave(struct sim_call *call);

/*
 * First line of every entry point: counts the caller, waits while the process is locked, applies
 * injected faults.
 */
#define SIM_ENTER_FLAGS(flags)                                                       \
	_cleanup_(sim_leave) struct sim_call sim_call_ = sim_enter(__func__, flags); \
	if (sim_call_.result)                                                        \
	return sim_call_.result
#define SIM_ENTER() SIM_ENTER_FLAGS(SIM_CALL_GATED)

/*
 * Closes the gate and waits until no call is inside. At the deadline (0: none) opens it again and
 * returns CUDA_ERROR_NOT_READY.
 */
CUresult gate_close(uint64_t deadline_ns);
void gate_open(void);
/* Marks the process as deinitialized, as soon as the gate is open. */
void gate_deinitialize(void);

/* ---- context.c ---- */

#define CONTEXT_MAGIC 0x43545831u

/* From cuda.h; not in cuda_api.h. */
#define SIM_ERROR_STREAM_DETACHED ((CUresult)917)

struct CUctx_st {
	unsigned magic;
	struct CUctx_st *next;
	int device;
	unsigned flags;
	unsigned api_version;
	uint64_t id;
	bool primary;
	bool ended; /* green context: its streams are detached. work.lock */
	/*
	 * Green context: the primary context, which owns everything except the green context's
	 * streams.
	 */
	struct CUctx_st *owner;
	unsigned references; /* of the primary context */
	_Atomic int failure; /* sticky CUresult */
	size_t limits[CU_LIMIT_MAX];
	CUfunc_cache cache;
	uint64_t vram_bytes;
	struct CUstream_st *legacy;
	_Atomic unsigned peers; /* bit per device */
	struct callbacks *callbacks;
	struct fence *barrier; /* work.lock: fence that all later work waits for; NULL: none */
};

/* Returns the calling thread's context; for a green context, its owner. */
CUcontext context_current(void);
/* Returns the context that owns streams and their work: the same, but a green context itself. */
CUcontext context_of_streams(void);
/* Returns the owner of a green context, else the context itself. */
CUcontext context_owner(CUcontext context);
/*
 * A context, with its owner already set if it is a green one, enters the list of those that can be
 * used, and leaves it (false: the context was not in the list). Once a context has ended it is
 * kept, as threads may still have it as their current context. sim.lock is held.
 */
void context_list_add(CUcontext context);
bool context_list_remove(CUcontext context);
void context_keep_ended(CUcontext context);
/* Returns a green context of this owner; NULL: none. */
CUcontext context_green_of(CUcontext owner);
/* The calling thread's stack of contexts. Push: if it is not full; pop: if there is a context. */
bool context_stack_is_full(void);
void context_push(CUcontext context);
CUcontext context_pop(void);
/* Replaces the calling thread's stack of contexts by this context; NULL: by none. */
void context_make_current(CUcontext context);
/* Returns an error if there is no context, or if the context is destroyed or has failed. */
CUresult context_check(CUcontext context);
bool context_valid(CUcontext context);

/* Also requires a current context that has not failed. */
#define SIM_ENTER_CONTEXT(variable)                                             \
	SIM_ENTER();                                                            \
	CUcontext variable __attribute__((unused)) = context_current();         \
	do {                                                                    \
		CUresult context_result_ = context_check(context_of_streams()); \
		if (context_result_)                                            \
			return context_result_;                                 \
	} while (0)

/* Returns the context for a call that has no context of its own, or NULL. */
CUcontext context_first(int device);
uint64_t context_vram_bytes(const struct CUctx_st *context);
/*
 * Enters the VRAM of this process's contexts into the shared table. Returns CUDA_SUCCESS or
 * CUDA_ERROR_OUT_OF_MEMORY. The shared lock is held.
 */
CUresult contexts_account(void);
void contexts_unaccount(void);
/* Makes all contexts of the process return this error from now on. */
void contexts_fail(CUresult result);
bool device_valid(int device);
bool device_has_context(int device);

/* ---- context_life.c ---- */

/* Create and end a green context. At its end its streams stay, detached. sim.lock is not held. */
CUresult context_green_add(CUcontext owner, CUcontext *ret_context);
void context_green_end(CUcontext context);
/* Returns the primary context of a device. If there is none: created with @create, else NULL. */
CUresult context_primary(int device, bool create, CUcontext *ret_context);

/* ---- address.c: the address space and its mappings ---- */

struct phys {
	struct phys *next;
	unsigned references; /* number of handles and mappings */
	unsigned slot;	     /* in shared->allocations */
	uint64_t size_bytes;
	int device;
	bool imported;
	bool exported;
	bool ipc_opened;
	bool lost; /* cannot be restored as private memory */
	CUmemAllocationProp prop;
	void *saved; /* contents while checkpointed */
};

enum mapping_access {
	ACCESS_NOBODY, /* cuMemMap: none until cuMemSetAccess */
	ACCESS_OWNER,  /* a pool's: its own GPU; others by cuMemPoolSetAccess */
	ACCESS_PEERS,  /* cuMemAlloc's: also contexts with cuCtxEnablePeerAccess */
};

struct mapping {
	CUdeviceptr start;
	size_t size_bytes;
	struct phys *phys; /* NULL: managed memory */
	size_t offset;
	bool peers;	     /* mapped with ACCESS_PEERS */
	atomic_int resident; /* managed memory: 1 + index of its GPU; 0: on the host */
	uint64_t id;	     /* CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID */
	int protection[SIM_MAX_GPUS];
};

/* The accessor of memory: a kernel of a context, or a copy that may involve two GPUs. */
struct accessor {
	unsigned devices; /* bit per device: at least one must have access */
	unsigned peers;	  /* bit per device whose cuMemAlloc memory is accessible too */
	bool moves;	  /* managed memory migrates to `gpu` */
	int gpu;
};
#define ACCESSOR_COPY_PEERS UINT32_MAX /* copies reach cuMemAlloc memory of every GPU */

enum allocation_kind {
	ALLOCATION_DEVICE,  /* cuMemAlloc */
	ALLOCATION_VMM,	    /* one cuMemMap */
	ALLOCATION_POOL,    /* cuMemAllocAsync */
	ALLOCATION_MANAGED, /* cuMemAllocManaged, __managed__ */
	ALLOCATION_IPC,	    /* cuIpcOpenMemHandle */
	ALLOCATION_HOST,    /* cuMemAllocHost */
	ALLOCATION_REGISTERED,
};

/* The allocation that a pointer of the program belongs to. */
struct allocation {
	CUdeviceptr start;
	size_t size_bytes;
	enum allocation_kind kind;
	int device;
	CUcontext context;
	unsigned flags;
	/* ALLOCATION_IPC only: count of opens, id of the source, and offset in its block. */
	unsigned references;
	uint64_t ipc_id, ipc_offset;
	uint64_t buffer_id;
	int sync_memops;
	struct block *block; /* DEVICE and POOL: the block that contains the allocation */
	struct CUmemPoolHandle_st *pool;
	bool module_owned;
	bool freeing;		  /* cuMemFreeAsync was called */
	struct policy *policies;  /* MANAGED: the advice for its pages */
	uint64_t attached_stream; /* MANAGED with CU_MEM_ATTACH_SINGLE: the stream's id */
};

/* A range of addresses; tables are sorted by start. */
struct span {
	CUdeviceptr start;
	size_t size_bytes;
	void *object;
};

struct span_table {
	struct span *items;
	size_t count, capacity;
};

extern struct span_table ranges;      /* reserved address space; sim.lock */
extern struct span_table allocations; /* struct allocation; sim.lock */
extern struct span_table mappings;    /* struct mapping; map_lock */
extern struct phys *physes;	      /* sim.lock */

struct span *span_find(const struct span_table *table, CUdeviceptr address);
int span_insert(struct span_table *table, CUdeviceptr start, size_t size_bytes, void *object);
void span_remove(struct span_table *table, CUdeviceptr start);
bool span_overlaps(const struct span_table *table, CUdeviceptr start, size_t size_bytes);

/* Reserves inaccessible address space, at `hint` if possible. Returns 0 if there is none. */
CUdeviceptr range_reserve(size_t size_bytes, size_t alignment, CUdeviceptr hint);
void range_release(CUdeviceptr start);

CUresult phys_create(int device, size_t size_bytes, const CUmemAllocationProp *prop,
		     struct phys **ret_phys);
/* Adopts the live allocation `slot` of another process. */
struct phys *phys_adopt(unsigned slot, int device);
void phys_unref(struct phys *phys);
/* On success the mapping holds a reference to phys. */
CUresult mapping_add(CUdeviceptr start, size_t size_bytes, struct phys *phys, size_t offset,
		     enum mapping_access access);
void mapping_remove(CUdeviceptr start);
/* Map the memory at the mapping's addresses, or unmap it. map_lock is held for writing. */
int mapping_attach(const struct mapping *mapping);
void mapping_detach(const struct mapping *mapping);
int mapping_protection(const struct mapping *mapping);
/* Moves managed memory to a GPU of the machine, or to the host (-1), and accounts for its VRAM. */
void mapping_reside(struct mapping *mapping, int gpu);
/* Caller holds map_lock. */
bool memory_accessible(const struct accessor *by, CUdeviceptr start, size_t size_bytes, bool write);
bool memory_is_device(CUdeviceptr address);

struct allocation *allocation_find(CUdeviceptr address);
struct allocation *allocation_add(CUdeviceptr start, size_t size_bytes, enum allocation_kind kind,
				  int device);
void allocation_remove(struct allocation *allocation);

/* ---- block.c: memory that is divided into allocations ---- */

struct block {
	struct block *next;
	CUdeviceptr start;
	size_t size_bytes;
	size_t used_bytes;
	struct span_table pieces;
};

/*
 * Allocates from one of the blocks, or from a new block. Returns the start address and the block,
 * or 0 and an error in *ret_result.
 */
CUdeviceptr block_take(struct block **blocks, int device, size_t size_bytes,
		       enum mapping_access access, struct block **ret_block, CUresult *ret_result);
void block_give(struct block *block, CUdeviceptr start);
/* Releases unused blocks while more than `keep_bytes` are reserved. */
uint64_t blocks_trim(struct block **blocks, uint64_t keep_bytes);

/* ---- pool.c: the pools of the stream-ordered allocator ---- */

#define POOL_MAGIC 0x504f4f4cu

struct CUmemPoolHandle_st {
	unsigned magic;
	struct CUmemPoolHandle_st *next;
	int device;
	bool is_default;
	bool destroyed;
	CUmemPoolProps props;
	struct block *blocks;
	uint64_t release_threshold;
	uint64_t reserved_bytes, reserved_high, used_bytes, used_high;
	uint64_t attributes[4];			/* the reuse flags, indexed by attribute */
	CUmemAccess_flags access[SIM_MAX_GPUS]; /* access of the other GPUs */
};

/* sim.lock is held by the callers of all of these but the last two, which take it. */
CUmemoryPool pool_new(int device);
CUmemoryPool pool_default(int device);
/* Returns the default pool of a location and a kind of memory, for cuMemGetDefaultMemPool. */
CUmemoryPool pool_standing(const CUmemPoolProps *props);
bool pool_valid(CUmemoryPool pool);
CUresult pool_alloc(CUmemoryPool pool, CUcontext context, size_t bytes, CUdeviceptr *pointer);
bool pool_free(struct allocation *allocation);
/* Gives the other GPUs the pool's access to one of its blocks. */
void pool_apply_access(const struct CUmemPoolHandle_st *pool, const struct block *block);
void pool_trim(CUmemoryPool pool, uint64_t keep_bytes);
/* Called wherever the program synchronizes: pools release memory above their threshold. */
void pools_trim(void);
/* Frees the pool allocation at `start`, once its stream has reached the free. */
void pool_free_finished(CUdeviceptr start);

/* ---- memory.c ---- */

CUresult device_memory_alloc(CUcontext context, size_t size_bytes, CUdeviceptr *ret_pointer);
CUresult device_memory_free(struct allocation *allocation);
void context_memory_free(CUcontext context);

/* ---- managed.c ---- */

CUresult managed_memory_alloc(int device, size_t size_bytes, unsigned flags,
			      CUdeviceptr *ret_pointer);
void managed_memory_free(struct allocation *allocation);
/* managed_address.c: reserve and release an accessible range. */
CUresult managed_address_take(size_t size_bytes, CUdeviceptr *ret_start);
void managed_address_give(CUdeviceptr start);
bool managed_memory_exists(void);

/* ---- work.c: one operation, and the built-in kernels ---- */

struct kernel {
	const char *name;
	unsigned argument_count;
	unsigned argument_bytes[4];
	/* Returns false after an access to inaccessible memory. */
	bool (*run)(CUcontext context, const void *arguments);
};

extern const struct kernel sim_kernels[]; /* the last entry has no name */

enum work_kind {
	WORK_NOTHING, /* waits, event records */
	WORK_COPY,
	WORK_SET,
	WORK_KERNEL,
	WORK_HOST_FUNCTION,
	WORK_CALLBACK,
	WORK_WAIT_VALUE,
	WORK_WRITE_VALUE,
	WORK_POOL_FREE,
	WORK_GRAPH,
	WORK_IPC_RECORD,
	WORK_IPC_WAIT,
};

#define SIM_KERNEL_MAX_ARGUMENT_BYTES 64

struct work {
	enum work_kind kind;
	union {
		struct {
			void *to;
			const void *from;
			size_t to_pitch, from_pitch, width, height;
			unsigned devices; /* see struct accessor */
		} copy;
		struct {
			CUdeviceptr to;
			size_t pitch, width, height; /* width in elements */
			unsigned value, element_bytes;
		} set;
		struct {
			const struct kernel *kernel;
			unsigned char arguments[SIM_KERNEL_MAX_ARGUMENT_BYTES];
		} kernel;
		struct {
			CUhostFn function;
			void *data;
		} host;
		struct {
			CUstreamCallback function;
			CUstream stream;
			void *data;
		} callback;
		struct {
			CUdeviceptr address;
			uint64_t value, mask;
			unsigned flags, bytes;
		} value;
		struct {
			CUdeviceptr start;
		} pool_free;
		struct {
			struct graph_program *program;
		} graph;
		struct {
			unsigned slot;
			uint64_t number;
		} ipc;
	};
};

void work_execute(CUcontext context, const struct work *work);
void work_fail(CUcontext context, CUresult result);
/*
 * Between these calls ThreadSanitizer ignores memory accesses. ThreadSanitizer cannot see a real
 * GPU's accesses to memory; here it would, and would need four times that memory for its shadow.
 */
void unseen_begin(void);
void unseen_end(void);

/* ---- capture.c: captures and the graphs that they fill ---- */

#define GRAPH_MAGIC 0x47524148u

struct graph_program {
	atomic_uint references;
	size_t count;
	struct work items[];
};

struct CUgraphNode_st {
	struct work work;
};

struct CUgraph_st {
	unsigned magic;
	struct CUgraphNode_st **nodes;
	size_t count, capacity;
};

struct capture {
	atomic_uint references;
	uint64_t id;
	CUstream origin;
	CUgraph graph;
	CUstreamCaptureMode mode;
	pthread_t thread;
	_Atomic bool invalidated;
	bool ended;
};

CUgraph graph_new(void);
void graph_free(CUgraph graph);
CUresult graph_append(CUgraph graph, const struct work *work);
void graph_program_unref(struct graph_program *program);
struct capture *capture_ref(struct capture *capture);
void capture_unref(struct capture *capture);
CUresult capture_append(struct capture *capture, const struct work *work);
/* The thread's capture mode: how strictly calls are refused during a capture. */
extern __thread CUstreamCaptureMode capture_thread_mode;

/* ---- stream.c: ordered work ---- */

/*
 * A fence marks the completion of work; protected by work.lock. A fence without an operation of its
 * own is done when all its parts are done.
 */
struct fence {
	atomic_uint references;
	bool done;
	uint64_t time_ns;
	size_t part_count;
	struct fence **parts;
};

#define STREAM_MAGIC 0x5354524du

struct CUstream_st {
	unsigned magic;
	struct CUstream_st *next;
	CUcontext context;
	unsigned flags;
	int priority;
	uint64_t id;
	bool legacy;
	pthread_t thread;
	struct operation *head, **tail;
	bool busy;
	bool closing;
	struct fence *last; /* fence of the newest operation */
	struct capture *capture;
	bool unjoined; /* captured work that the origin stream has not waited for */
};

struct fence *fence_ref(struct fence *fence);
void fence_unref(struct fence *fence);
bool fence_done(struct fence *fence);
void fence_wait(struct fence *fence);

/* Resolves a stream argument and checks its context. */
CUresult stream_argument(CUstream handle, CUstream *ret_stream);
#define SIM_ENTER_STREAM(variable, handle)                                      \
	SIM_ENTER();                                                            \
	CUstream variable;                                                      \
	do {                                                                    \
		CUresult stream_result_ = stream_argument(handle, &(variable)); \
		if (stream_result_)                                             \
			return stream_result_;                                  \
	} while (0)
/* Set inside a _ptsz or _ptds variant: stream 0 is then the thread's own stream. */
extern __thread bool per_thread_default;
CUstream stream_create(CUcontext context, unsigned flags, int priority, bool legacy);
/* Returns false if the program has no such stream. */
bool stream_destroy(CUstream handle);
void streams_destroy(CUcontext context);
/*
 * Ends the context's default stream. The program's own streams remain but cannot be used; their
 * submitted work continues.
 */
void streams_detach(CUcontext context);
/*
 * Submits work, or captures it. The work waits for `wait` (may be NULL). If ret_fence is not NULL,
 * *ret_fence gets the operation's fence, with a reference.
 */
CUresult stream_submit(CUstream stream, const struct work *work, struct fence *wait,
		       struct fence **ret_fence);
/* Returns true if all work of the stream has ended. */
bool stream_done(CUstream stream);
CUresult stream_wait(CUstream stream);
/*
 * Returns a fence for all work submitted to the context; NULL if there is none. Errors: 900 if one
 * of the context's streams is capturing (the captures are invalidated), 2 without memory.
 */
CUresult context_fence(CUcontext context, struct fence **ret_fence);
/* Makes all later work of the context wait for `fence`. */
CUresult context_wait_fence(CUcontext context, struct fence *fence);
void context_wait(CUcontext context);
/* Waits until no stream has work. Returns false at the deadline (0: none). */
bool streams_idle_until(uint64_t deadline_ns);
bool streams_idle(void);
/*
 * Called by functions that are forbidden in a capturing stream or (NULL) could interact unsafely
 * with an open capture. Returns 0, or the error after invalidating the capture.
 */
CUresult capture_forbids(CUstream stream);
/*
 * Invalidates every capture in the context, whatever its mode. Returns 900 if there was one, else
 * 0.
 */
CUresult context_ends_captures(CUcontext context);
CUresult stream_capture_begin(CUstream stream, struct capture *capture);
/*
 * Called when a stream waits for an event: the stream joins the event's capture, or the event's
 * stream is joined.
 */
CUresult stream_capture_join(CUstream stream, struct CUevent_st *event);
/* *ret_capture gets a reference even if the capture failed, but not if there was none. */
CUresult stream_capture_end(CUstream stream, struct capture **ret_capture);

/* ---- stream_calls.c ---- */

/* Waits until the bits of @mask of a value in memory satisfy the condition. */
CUresult stream_wait_value(CUstream handle, CUdeviceptr address, uint64_t value, uint64_t mask,
			   unsigned flags, unsigned bytes);

/* ---- callback.c ---- */

/* Starts the thread that runs the host functions of a context, unless there is one. */
CUresult callbacks_start(CUcontext context);
/* Runs a host function or callback on that thread, and waits for its end. */
void callback_run(CUcontext context, const struct work *item);
void callbacks_end(CUcontext context);

/* ---- event.c ---- */

#define EVENT_MAGIC 0x45564e54u

struct CUevent_st {
	unsigned magic;
	struct CUevent_st *next;
	CUcontext context;
	unsigned flags;
	struct fence *fence;
	struct capture *capture; /* set if recorded in a capturing stream */
	CUstream capture_stream;
	int ipc_slot; /* -1, or slot in shared->events */
	uint64_t ipc_id;
};

bool event_valid(CUevent event);
CUevent event_make(CUcontext context, unsigned flags);
bool events_shared_with_others(void);
/* After a restore: registers interprocess events that the machine does not know. */
void events_enter_again(void);

/* ---- vmm.c and ipc.c ---- */

/* Returns the reservation that contains the address, or NULL. sim.lock is held. */
const struct span *reservation_find(CUdeviceptr address);

bool ipc_live(void);

/* ---- checkpoint ---- */

/* checkpoint_server.c: the thread that serves checkpoint requests for this process. */
int checkpoint_server_start(void);
void checkpoint_server_forked(void);
/* checkpoint_state.c: the actions of that thread. */
CUresult checkpoint_lock(unsigned timeout_ms);
CUresult checkpoint_save(void);
CUresult checkpoint_restore(const CUcheckpointGpuPair *pairs, unsigned count);
CUresult checkpoint_unlock(void);
/*
 * Returns true if the process is checkpointed: then only the restore thread still uses the
 * machine's state.
 */
bool checkpoint_holds_nothing(void);
/*
 * Registers a checkpointed process in this machine, where CRIU may have restored it. @pid, @tid and
 * @start_time are those that others see: in another pid or time namespace the process cannot know
 * them. Returns 0 or -errno.
 */
int checkpoint_register_again(int pid, int tid, uint64_t start_time);

/* later.c: returns a function that is neither exported nor in any table; NULL: unknown name. */
void *later_find(const char *name);

#endif
