/* SPDX-License-Identifier: MIT */
/*
 * Inside one simulated process: the objects behind the driver's handles and who may touch
 * them.
 *
 * Lock order: sim.lock (objects and tables), then sim.map_lock (which addresses are backed),
 * then work.lock (streams), then the shared lock. Nobody waits for a stream's work while
 * holding one of them. A stream's thread holds map_lock for reading while it touches device
 * memory.
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
/* Device memory has its addresses here: high as the real ones are, and inside what
 * ThreadSanitizer accepts. */
#define SIM_VA_START		0x7e8000000000ull
#define SIM_VA_END		0x7f8000000000ull
#define SIM_SUBALLOCATION_BYTES 512

/* ---- process.c: cuInit, the gate every call passes, fork ---- */

struct sim_process {
	pthread_mutex_t lock;
	pthread_rwlock_t map_lock;
	bool initialized;
	unsigned index; /* in shared->processes */
	uint64_t generation;
	int lock_fd, control_fd, compute_fd;
	void *compute_mapping; /* of the compute file, while there is a context */
	unsigned device_count;
	/* ordinal -> index in shared->gpus; CUDA_VISIBLE_DEVICES and a restore change it */
	unsigned gpu_of_device[SIM_MAX_GPUS];
	int device_fd[SIM_MAX_GPUS]; /* by ordinal; if all are opened, by GPU */
	uint64_t next_serial;
};

extern struct sim_process sim;

/* ---- what differs between the vendors: cuda_vendor.c, hip_vendor.c ---- */

#define SIM_UUID_TEXT_BYTES 37

struct sim_vendor {
	const char *control_file; /* opened when the driver is initialised; or NULL */
	const char *compute_file; /* likewise, and mapped while there is a context */
	const char *device_file;  /* of a GPU, its number to be added */
	unsigned device_file_first;
	bool opens_all_devices; /* when it is initialised; else those with a context */
	const char *server_thread_name, *stream_thread_name;
	/* A checkpoint leaves managed memory in the process; else it is refused. */
	bool checkpoints_managed_memory;
	/* What a restore could not bring back is refused by the checkpoint; else it is lost. */
	bool refuses_what_is_lost;
	/* A handle that was imported can be exported again. */
	bool exports_imported_handles;
	/* Of cuMemCreate and cuMemMap, a power of 2 up to SIM_BLOCK_BYTES. */
	size_t (*granularity_bytes)(void);
	/* Calls devices_choose() with what the environment says. */
	void (*devices_choose)(void);
	/* As programs name a GPU, after "GPU-". */
	void (*uuid_text)(const unsigned char uuid[16], char text[SIM_UUID_TEXT_BYTES]);
	/* PTX text with an `.entry` for each kernel of an image, to be freed; NULL: not for this
	 * GPU. */
	char *(*image_text)(const void *image);
	/* By the vendor's name for it; 0: unknown. */
	CUresult (*error_by_name)(const char *name);
};

extern const struct sim_vendor sim_vendor;

/* Leaves of the process's devices those of a list, in its order. NULL: all. */
void devices_choose(const char *list);

/* An injected fault that is still to come, after the call: fault.c. */
enum fault_action { FAULT_NOTHING, FAULT_KILL, FAULT_STOP, FAULT_ABORT, FAULT_HANG, FAULT_HOLD };

struct fault {
	unsigned delay_ms;
	enum fault_action action;
	bool late; /* when the call is over */
};

struct sim_call {
	CUresult result;
	bool entered;
	struct fault after;
};

enum {
	SIM_CALL_GATED = 0,
	SIM_CALL_BEFORE_INIT = 1, /* may be called before cuInit, and while locked */
	SIM_CALL_CHECKPOINT = 2,  /* acts on another process: not held up by this one's lock */
};

struct sim_call sim_enter(const char *name, int flags);
void sim_leave(struct sim_call *call);

/* First line of every entry point: counts the caller in, waits while the process is locked,
 * applies injected faults. */
#define SIM_ENTER_FLAGS(flags)                                                       \
	_cleanup_(sim_leave) struct sim_call sim_call_ = sim_enter(__func__, flags); \
	if (sim_call_.result)                                                        \
	return sim_call_.result
#define SIM_ENTER() SIM_ENTER_FLAGS(SIM_CALL_GATED)

/* Also needs a current context that has not failed. */
#define SIM_ENTER_CONTEXT(variable)                                             \
	SIM_ENTER();                                                            \
	CUcontext variable __attribute__((unused)) = context_current();         \
	do {                                                                    \
		CUresult context_result_ = context_check(context_of_streams()); \
		if (context_result_)                                            \
			return context_result_;                                 \
	} while (0)

/* Closes the gate and waits for calls and work to end; 0 = no timeout. */
CUresult gate_close(unsigned timeout_ms);
void gate_open(void);
bool sim_on_callback_thread(void);
/* The driver's exit handler has run: no call does anything any more. */
bool process_is_deinitialized(void);
void sim_set_callback_thread(void);
int device_files_open(void);
void device_files_close(void);
CUresult sim_error_of(int error);
static inline uint64_t sim_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}
int sim_thread_start(pthread_t *ret_thread, void *(*function)(void *), void *argument);
/* Names the calling thread as the real driver's are named. */
void sim_thread_name(const char *name);

/* ---- fault.c ---- */

enum fault_place { FAULT_TARGET, FAULT_CALLER };

/* What the rules say of this call: an error, or SUCCESS and perhaps something in *ret_after. */
CUresult fault_check(const char *name, enum fault_place place, struct fault *ret_after);
void fault_act(const struct fault *fault);
/* While it is set, calls of this thread are made by another entry point, which is what a rule for
 * all of them means. */
extern __thread bool fault_nested;

/* ---- context.c ---- */

#define CONTEXT_MAGIC 0x43545831u

/* Of cuda.h; not in cuda_api.h. */
#define SIM_ERROR_STREAM_DETACHED ((CUresult)917)

struct CUctx_st {
	unsigned magic;
	struct CUctx_st *next;
	int device;
	unsigned flags;
	unsigned api_version;
	uint64_t id;
	bool primary;
	bool ended; /* a green one: its streams are detached. work.lock */
	struct CUctx_st
		*owner; /* of a green one: the primary context, which all but its streams is of */
	unsigned references; /* of the primary context */
	_Atomic int failure; /* sticky CUresult */
	size_t limits[CU_LIMIT_MAX];
	CUfunc_cache cache;
	uint64_t vram_bytes;
	struct CUstream_st *legacy;
	_Atomic unsigned peers; /* bit per device */
	struct callbacks *callbacks;
	struct fence *barrier; /* work.lock: waited for by all that is submitted; NULL: nothing */
};

/* The calling thread's; instead of a green one its owner. */
CUcontext context_current(void);
/* What streams and their work belong to: the same, but a green one itself. */
CUcontext context_of_streams(void);
/* The owner of a green one, else itself. */
CUcontext context_owner(CUcontext context);
/* A green one's, and its end: its streams stay, detached. Called without sim.lock. */
CUresult context_green_add(CUcontext owner, CUcontext *ret_context);
void context_green_end(CUcontext context);
/* The primary context of a device, made if there is none and `create`; else NULL then. */
CUresult context_primary(int device, bool create, CUcontext *ret_context);
/* The only one that the calling thread has; NULL: none. */
void context_make_current(CUcontext context);
CUresult context_check(CUcontext context);
bool context_valid(CUcontext context);
/* The context whose device a call without a context of its own works on. */
CUcontext context_first(int device);
uint64_t context_vram_bytes(const struct CUctx_st *context);
/* Enters what the contexts of this process need into the shared table: CUDA_SUCCESS or
 * CUDA_ERROR_OUT_OF_MEMORY. The shared lock is held. */
CUresult contexts_account(void);
void contexts_unaccount(void);
void contexts_fail(CUresult result);
bool device_valid(int device);
bool device_has_context(int device);

/* ---- address.c: the address space, what is mapped where ---- */

struct phys {
	struct phys *next;
	unsigned references; /* handles and mappings */
	unsigned slot;	     /* in shared->allocations */
	uint64_t size_bytes;
	int device;
	bool imported;
	bool exported;
	bool ipc_opened;
	bool lost; /* restored as private memory is impossible */
	CUmemAllocationProp prop;
	void *saved; /* the bytes, while checkpointed */
};

enum mapping_access {
	ACCESS_NOBODY, /* cuMemMap: until cuMemSetAccess */
	ACCESS_OWNER,  /* a pool's: the GPU it is on, others with cuMemPoolSetAccess */
	ACCESS_PEERS,  /* cuMemAlloc's: also contexts with cuCtxEnablePeerAccess */
};

struct mapping {
	CUdeviceptr start;
	size_t size_bytes;
	struct phys *phys; /* NULL: managed memory */
	size_t offset;
	bool peers;	     /* ACCESS_PEERS */
	atomic_int resident; /* managed memory: 1 + the GPU it is on, 0: the host */
	uint64_t id;	     /* CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID */
	int protection[SIM_MAX_GPUS];
};

/* Who reaches for memory: a kernel of a context, or a copy that may involve two GPUs. */
struct accessor {
	unsigned devices; /* bit per device: one of them has to have access */
	unsigned peers;	  /* bit per device whose cuMemAlloc memory may be touched too */
	bool moves;	  /* managed memory comes to `gpu` */
	int gpu;
};
#define ACCESSOR_COPY_PEERS UINT32_MAX /* copies reach what cuMemAlloc made on any GPU */

enum allocation_kind {
	ALLOCATION_DEVICE,  /* cuMemAlloc */
	ALLOCATION_VMM,	    /* one cuMemMap */
	ALLOCATION_POOL,    /* cuMemAllocAsync */
	ALLOCATION_MANAGED, /* cuMemAllocManaged, __managed__ */
	ALLOCATION_IPC,	    /* cuIpcOpenMemHandle */
	ALLOCATION_HOST,    /* cuMemAllocHost */
	ALLOCATION_REGISTERED,
};

/* What a pointer the program holds belongs to. */
struct allocation {
	CUdeviceptr start;
	size_t size_bytes;
	enum allocation_kind kind;
	int device;
	CUcontext context;
	unsigned flags;
	unsigned references; /* ALLOCATION_IPC; which allocation it is, and where in its block */
	uint64_t ipc_id, ipc_offset;
	uint64_t buffer_id;
	int sync_memops;
	struct block *block; /* DEVICE and POOL: where it is cut from */
	struct CUmemPoolHandle_st *pool;
	bool module_owned;
	bool freeing;		  /* cuMemFreeAsync was called */
	struct policy *policies;  /* MANAGED: what holds for its pages */
	uint64_t attached_stream; /* MANAGED with CU_MEM_ATTACH_SINGLE: the stream's id */
};

/* Sorted by start address. */
struct span {
	CUdeviceptr start;
	size_t size_bytes;
	void *object;
};

struct span_table {
	struct span *items;
	size_t count, capacity;
};

extern struct span_table ranges;      /* address space in use; sim.lock */
extern struct span_table allocations; /* struct allocation; sim.lock */
extern struct span_table mappings;    /* struct mapping; map_lock */
extern struct phys *physes;	      /* sim.lock */

struct span *span_find(const struct span_table *table, CUdeviceptr address);
int span_insert(struct span_table *table, CUdeviceptr start, size_t size_bytes, void *object);
void span_remove(struct span_table *table, CUdeviceptr start);
bool span_overlaps(const struct span_table *table, CUdeviceptr start, size_t size_bytes);

/* Takes address space, inaccessible; `hint` is tried first. 0 if there is none. */
CUdeviceptr range_reserve(size_t size_bytes, size_t alignment, CUdeviceptr hint);
void range_release(CUdeviceptr start);

CUresult phys_create(int device, size_t size_bytes, const CUmemAllocationProp *prop,
		     struct phys **ret_phys);
/* Adopts allocation `slot` of another process, which must be live. */
struct phys *phys_adopt(unsigned slot, int device);
void phys_unref(struct phys *phys);
/* phys->references counts the mapping from here on. */
CUresult mapping_add(CUdeviceptr start, size_t size_bytes, struct phys *phys, size_t offset,
		     enum mapping_access access);
void mapping_remove(CUdeviceptr start);
/* Puts the memory behind the addresses, or takes it away. map_lock is held for writing. */
int mapping_attach(const struct mapping *mapping);
void mapping_detach(const struct mapping *mapping);
int mapping_protection(const struct mapping *mapping);
/* Managed memory goes to a GPU of the machine, or to the host (-1), and is accounted there. */
void mapping_reside(struct mapping *mapping, int gpu);
/* map_lock is held. */
bool memory_accessible(const struct accessor *by, CUdeviceptr start, size_t size_bytes, bool write);
bool memory_is_device(CUdeviceptr address);

struct allocation *allocation_find(CUdeviceptr address);
struct allocation *allocation_add(CUdeviceptr start, size_t size_bytes, enum allocation_kind kind,
				  int device);
void allocation_remove(struct allocation *allocation);

/* ---- memory.c and pool.c: memory cut from blocks ---- */

struct block {
	struct block *next;
	CUdeviceptr start;
	size_t size_bytes;
	size_t used_bytes;
	struct span_table pieces;
};

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
	uint64_t attributes[4];			/* the reuse flags, by attribute */
	CUmemAccess_flags access[SIM_MAX_GPUS]; /* of the other GPUs */
};

CUdeviceptr block_take(struct block **blocks, int device, size_t size_bytes,
		       enum mapping_access access, struct block **ret_block, CUresult *ret_result);
void block_give(struct block *block, CUdeviceptr start);
/* Releases blocks nothing is cut from while more than `keep_bytes` are reserved. */
uint64_t blocks_trim(struct block **blocks, uint64_t keep_bytes);
CUresult device_memory_alloc(CUcontext context, size_t size_bytes, CUdeviceptr *ret_pointer);
CUresult device_memory_free(struct allocation *allocation);
void context_memory_free(CUcontext context);
/* Called wherever the program synchronizes: pools give back what is above their threshold. */
void pools_trim(void);
void pool_free_finished(CUdeviceptr start);
bool pool_free(struct allocation *allocation);
CUmemoryPool pool_default(int device);

/* ---- managed.c ---- */

CUresult managed_memory_alloc(int device, size_t size_bytes, unsigned flags,
			      CUdeviceptr *ret_pointer);
void managed_memory_free(struct allocation *allocation);
/* managed_address.c: an accessible range, and its end. */
CUresult managed_address_take(size_t size_bytes, CUdeviceptr *ret_start);
void managed_address_give(CUdeviceptr start);
bool managed_memory_exists(void);

/* ---- stream.c: ordered work ---- */

/* work.lock. Without an operation of its own it is done when all its parts are. */
struct fence {
	atomic_uint references;
	bool done;
	uint64_t time_ns;
	size_t part_count;
	struct fence **parts;
};

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
	struct fence *last; /* of the newest operation */
	struct capture *capture;
	bool unjoined; /* captured work the origin stream has not waited for */
};

struct fence *fence_ref(struct fence *fence);
void fence_unref(struct fence *fence);
bool fence_done(struct fence *fence);
void fence_wait(struct fence *fence);

/* What a stream argument means, and whether its context can be used. */
CUresult stream_argument(CUstream handle, CUstream *ret_stream);
#define SIM_ENTER_STREAM(variable, handle)                                      \
	SIM_ENTER();                                                            \
	CUstream variable;                                                      \
	do {                                                                    \
		CUresult stream_result_ = stream_argument(handle, &(variable)); \
		if (stream_result_)                                             \
			return stream_result_;                                  \
	} while (0)
/* Set around a _ptsz or _ptds variant: stream 0 is the thread's own. */
extern __thread bool per_thread_default;
CUstream stream_create(CUcontext context, unsigned flags, int priority, bool legacy);
void streams_destroy(CUcontext context);
/* Its default stream ends; what the program made stays, of no use, and its work goes on. */
void streams_detach(CUcontext context);
/* Queues work, or captures it. `wait` (may be NULL) is waited for first. The operation's fence,
 * with a reference, in *ret_fence unless that is NULL. */
CUresult stream_submit(CUstream stream, const struct work *work, struct fence *wait,
		       struct fence **ret_fence);
CUresult stream_wait(CUstream stream);
/* Waits for a value in memory, of which the bits of @mask are looked at. */
CUresult stream_wait_value(CUstream handle, CUdeviceptr address, uint64_t value, uint64_t mask,
			   unsigned flags, unsigned bytes);
/* All work of a context so far; NULL if there is none. 900 and the captures are invalidated if one
 * of its streams is capturing, 2 without memory. */
CUresult context_fence(CUcontext context, struct fence **ret_fence);
/* Everything submitted to the context from here on waits for `fence` first. */
CUresult context_wait_fence(CUcontext context, struct fence *fence);
void context_wait(CUcontext context);
/* Waits until no stream has work: false at the deadline (0 = none). */
bool streams_idle_until(uint64_t deadline_ns);
bool streams_idle(void);
/*
 * Between them a sanitizer of threads looks away: what a GPU does to its memory it does not see.
 * Here it would, and would keep four times that memory in mind.
 */
void unseen_begin(void);
void unseen_end(void);

void work_execute(CUcontext context, const struct work *work);
void work_fail(CUcontext context, CUresult result);

/* ---- callback.c ---- */

/* Makes the thread that runs the host functions of a context, if there is none yet. */
CUresult callbacks_start(CUcontext context);
/* Has a host function or callback run there, and waits for its end. */
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
	struct capture *capture; /* recorded in a capturing stream */
	CUstream capture_stream;
	int ipc_slot; /* -1, or in shared->events */
	uint64_t ipc_id;
};

bool event_valid(CUevent event);
CUevent event_make(CUcontext context, unsigned flags);
bool events_shared_with_others(void);
/* After a restore: interprocess events that the machine does not have get an entry. */
void events_enter_again(void);

/* ---- graph.c: capture and replay ---- */

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

CUresult capture_append(struct capture *capture, const struct work *work);
/* How strictly this thread is held to what a capture forbids. */
extern __thread CUstreamCaptureMode capture_thread_mode;
/* A call that may not happen in a capturing stream, or (NULL) that may interact with an open
 * capture in a way it cannot see: 0, or the error, and the capture is invalidated. */
CUresult capture_forbids(CUstream stream);
/* A call that ends every capture in the context, whatever its mode: 900 if there is one. */
CUresult context_ends_captures(CUcontext context);
CUresult stream_capture_begin(CUstream stream, struct capture *capture);
/* A stream waits for an event: it joins the event's capture, or the event's stream is joined. */
CUresult stream_capture_join(CUstream stream, struct CUevent_st *event);
/* With a reference in *ret_capture, also when the capture failed; not when there is none. */
CUresult stream_capture_end(CUstream stream, struct capture **ret_capture);
void capture_unref(struct capture *capture);
struct capture *capture_ref(struct capture *capture);
void graph_program_unref(struct graph_program *program);

/* ---- module.c ---- */

struct kernel {
	const char *name;
	unsigned argument_count;
	unsigned argument_bytes[4];
	/* false: it touched memory it may not */
	bool (*run)(CUcontext context, const void *arguments);
};

extern const struct kernel sim_kernels[]; /* work.c; the last has no name */

/* ---- vmm.c and ipc.c ---- */

/* The reservation that the address is in, or NULL. sim.lock is held. */
const struct span *reservation_find(CUdeviceptr address);

bool ipc_live(void);

/* ---- checkpoint ---- */

/* checkpoint_server.c: the thread that serves requests about this process. */
int checkpoint_server_start(void);
void checkpoint_server_forked(void);
/* checkpoint_state.c: what that thread does. */
CUresult checkpoint_lock(unsigned timeout_ms);
CUresult checkpoint_save(void);
CUresult checkpoint_restore(const CUcheckpointGpuPair *pairs, unsigned count);
CUresult checkpoint_unlock(void);
/* The process is checkpointed: what is left of the machine in it is the restore thread's. */
bool checkpoint_holds_nothing(void);
/* For a checkpointed process: enters it in this machine, where it has come by CRIU perhaps, as what
 * others see: in another pid or time namespace it cannot know. 0 or -errno. */
int checkpoint_register_again(int pid, int tid, uint64_t start_time);

/* later.c: a function that is neither exported nor in any table, NULL if it has no such name. */
void *later_find(const char *name);

#endif
