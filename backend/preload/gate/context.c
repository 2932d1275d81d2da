/* SPDX-License-Identifier: MIT */
/*
 * The list of the program's contexts. When a context is destroyed, the tables of its captures and
 * memory are updated. The driver may use the handle of a destroyed context again: a thread that
 * gets such a handle for a new context waits until the old one is out of the list. `lock` guards
 * the list and is not held over driver calls. primary_locks are held while the reference count of a
 * device's primary context changes.
 */
#include "backend/preload/gate/context.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "backend/preload/gate/ending.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/base/listener.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

#define DEVICES_MAX 64

struct context {
	CUcontext handle;
	CUdevice primary_of;   /* a device, or CU_DEVICE_INVALID */
	unsigned int attached; /* number of cuCtxDetach calls that only lower its reference count */
	bool going;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t gone;
	struct context *list;
	size_t count, room;
} contexts = {.lock = PTHREAD_MUTEX_INITIALIZER, .gone = PTHREAD_COND_INITIALIZER};

/* Recursive: callbacks that the driver runs in a call (CUPTI's) may take the same lock. */
static pthread_mutex_t primary_locks[DEVICES_MAX] = {
	[0 ... DEVICES_MAX - 1] = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP};

pthread_mutex_t *gcr_context_primary_lock(CUdevice device)
{
	return device >= 0 && device < DEVICES_MAX ? &primary_locks[device] : NULL;
}

/* ---- the list ---- */

static struct context *find(CUcontext handle)
{
	for (size_t i = 0; i < contexts.count; i++)
		if (contexts.list[i].handle == handle)
			return &contexts.list[i];
	return NULL;
}

static struct context *find_primary(CUdevice device)
{
	for (size_t i = 0; i < contexts.count; i++)
		if (contexts.list[i].primary_of == device)
			return &contexts.list[i];
	return NULL;
}

static void add(CUcontext handle, CUdevice primary_of)
{
	gcr_ending_expect_context();

	GCR_LOCK_SCOPE(&contexts.lock);
	struct context *context;

	while ((context = find(handle)) && context->going)
		pthread_cond_wait(&contexts.gone, &contexts.lock);
	if (!context && contexts.count == contexts.room) {
		size_t room = contexts.room ? 2 * contexts.room : 16;
		struct context *list = realloc(contexts.list, room * sizeof(*list));

		/* The agent cannot wait for the work of this context. */
		if (!list) {
			gcr_gate_incomplete("a context that is not known");
			return;
		}
		contexts.list = list;
		contexts.room = room;
	}
	if (!context)
		context = &contexts.list[contexts.count++];
	*context = (struct context){.handle = handle, .primary_of = primary_of};
}

static void set_going(CUcontext handle, bool going)
{
	GCR_LOCK_SCOPE(&contexts.lock);
	struct context *context = find(handle);

	if (context)
		context->going = going;
	pthread_cond_broadcast(&contexts.gone);
}

static void remove_it(CUcontext handle)
{
	GCR_LOCK_SCOPE(&contexts.lock);
	struct context *context = find(handle);

	if (context)
		*context = contexts.list[--contexts.count];
	pthread_cond_broadcast(&contexts.gone);
}

/* ---- contexts that the program creates ---- */

#define CREATE(symbol, like, parameters, arguments)             \
	GCR_OWN_AS(symbol, like);                               \
	CUresult gcr_own_##symbol parameters                    \
	{                                                       \
		__typeof__(like) *real = REAL_AS(symbol, like); \
		CUresult result;                                \
                                                                \
		if (!real)                                      \
			return CUDA_ERROR_NOT_FOUND;            \
		GCR_GATE_WHOLE(symbol);                         \
		result = real arguments;                        \
		if (result == CUDA_SUCCESS)                     \
			add(*context, CU_DEVICE_INVALID);       \
		return result;                                  \
	}
#define REAL_AS(symbol, like) ((__typeof__(like) *)gcr_entry_real(GCR_ENTRY_##symbol))

CREATE(cuCtxCreate, cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),
       (context, flags, device))
CREATE(cuCtxCreate_v2, cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),
       (context, flags, device))
CREATE(cuCtxCreate_v3, cuCtxCreate_v3,
       (CUcontext * context, CUexecAffinityParam *parameters, int count, unsigned int flags,
	CUdevice device),
       (context, parameters, count, flags, device))
CREATE(cuCtxCreate_v4, cuCtxCreate_v4,
       (CUcontext * context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device),
       (context, parameters, flags, device))

/* Contexts that share with graphics; not declared in cuda_api.h. */
CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device,
			  uint32_t vdpDevice, void *vdpGetProcAddress);

CREATE(cuGLCtxCreate, cuGLCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device),
       (context, flags, device))
CREATE(cuGLCtxCreate_v2, cuGLCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device),
       (context, flags, device))
CREATE(cuVDPAUCtxCreate, cuVDPAUCtxCreate,
       (CUcontext * context, unsigned int flags, CUdevice device, uint32_t vdp_device,
	void *vdp_get_proc_address),
       (context, flags, device, vdp_device, vdp_get_proc_address))
CREATE(cuVDPAUCtxCreate_v2, cuVDPAUCtxCreate,
       (CUcontext * context, unsigned int flags, CUdevice device, uint32_t vdp_device,
	void *vdp_get_proc_address),
       (context, flags, device, vdp_device, vdp_get_proc_address))

static CUresult destroy(__typeof__(cuCtxDestroy_v2) *real, CUcontext handle)
{
	CUresult result;

	set_going(handle, true);
	result = real(handle);
	if (result != CUDA_SUCCESS) {
		set_going(handle, false);
		return result;
	}
	GCR_TELL(context_gone, handle);
	remove_it(handle);
	return result;
}

#define DESTROY(symbol)                                      \
	GCR_OWN(symbol);                                     \
	CUresult gcr_own_##symbol(CUcontext handle)          \
	{                                                    \
		__typeof__(symbol) *real = GCR_REAL(symbol); \
                                                             \
		if (!real)                                   \
			return CUDA_ERROR_NOT_FOUND;         \
		GCR_GATE_WHOLE(symbol);                      \
		return destroy(real, handle);                \
	}

DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

/* Functions older than primary contexts; not declared in cuda_api.h. */
CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags);
CUresult cuCtxDetach(CUcontext ctx);

GCR_OWN(cuCtxAttach);
CUresult gcr_own_cuCtxAttach(CUcontext *handle, unsigned int flags)
{
	__typeof__(cuCtxAttach) *real = GCR_REAL(cuCtxAttach);
	struct context *context;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuCtxAttach);
	result = real(handle, flags);
	if (result == CUDA_SUCCESS) {
		GCR_LOCK_SCOPE(&contexts.lock);

		context = find(*handle);
		if (context)
			context->attached++;
	}
	return result;
}

static bool detach_one(CUcontext handle)
{
	GCR_LOCK_SCOPE(&contexts.lock);
	struct context *context = find(handle);

	return context && context->attached && context->attached--;
}

GCR_OWN(cuCtxDetach);
CUresult gcr_own_cuCtxDetach(CUcontext handle)
{
	__typeof__(cuCtxDetach) *real = GCR_REAL(cuCtxDetach);

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuCtxDetach);
	return detach_one(handle) ? real(handle) : destroy(real, handle);
}

/* ---- primary contexts ---- */

static CUcontext known_primary(CUdevice device)
{
	GCR_LOCK_SCOPE(&contexts.lock);
	struct context *context = find_primary(device);

	return context ? context->handle : NULL;
}

/*
 * Is the device's primary context active? If the driver does not answer, the state in the list
 * counts, so that no work is overlooked. With a driver that is deinitialized no context is active.
 */
static bool is_active(CUdevice device)
{
	__typeof__(cuDevicePrimaryCtxGetState) *get_state = GCR_REAL(cuDevicePrimaryCtxGetState);
	CUresult result = CUDA_ERROR_NOT_FOUND;
	unsigned int flags;
	int active = 0;

	if (get_state)
		result = get_state(device, &flags, &active);
	if (result == CUDA_ERROR_DEINITIALIZED) {
		gcr_ending_begin();
		return false;
	}
	return result == CUDA_SUCCESS ? active : known_primary(device) != NULL;
}

GCR_OWN(cuDevicePrimaryCtxRetain);
CUresult gcr_own_cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device)
{
	__typeof__(cuDevicePrimaryCtxRetain) *real = GCR_REAL(cuDevicePrimaryCtxRetain);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	GCR_GATE_WHOLE(cuDevicePrimaryCtxRetain);
	GCR_LOCK_SCOPE(gcr_context_primary_lock(device));
	result = real(handle, device);
	if (result == CUDA_SUCCESS && known_primary(device) != *handle)
		add(*handle, device);
	return result;
}

void gcr_context_primary_released(CUdevice device)
{
	CUcontext handle = known_primary(device);

	if (!handle || is_active(device))
		return;
	GCR_TELL(primary_gone, device);
	GCR_TELL(context_gone, handle);
	remove_it(handle);
}

static CUresult release(__typeof__(cuDevicePrimaryCtxRelease_v2) *real, CUdevice device)
{
	GCR_LOCK_SCOPE(gcr_context_primary_lock(device));
	CUresult result = real(device);

	if (result == CUDA_SUCCESS)
		gcr_context_primary_released(device);
	return result;
}

/*
 * Resets the primary context. Threads that have retained it may still use it; its contents are
 * gone.
 */
static CUresult reset(__typeof__(cuDevicePrimaryCtxReset_v2) *real, CUdevice device)
{
	GCR_LOCK_SCOPE(gcr_context_primary_lock(device));
	CUcontext handle = known_primary(device);
	CUresult result = real(device);

	if (result == CUDA_SUCCESS && handle) {
		GCR_TELL(primary_gone, device);
		GCR_TELL(context_gone, handle);
		if (!is_active(device))
			remove_it(handle);
	}
	return result;
}

#define PRIMARY(symbol, action)                              \
	GCR_OWN(symbol);                                     \
	CUresult gcr_own_##symbol(CUdevice device)           \
	{                                                    \
		__typeof__(symbol) *real = GCR_REAL(symbol); \
                                                             \
		if (!real)                                   \
			return CUDA_ERROR_NOT_FOUND;         \
		GCR_GATE_WHOLE(symbol);                      \
		return action(real, device);                 \
	}

PRIMARY(cuDevicePrimaryCtxRelease, release)
PRIMARY(cuDevicePrimaryCtxRelease_v2, release)
PRIMARY(cuDevicePrimaryCtxReset, reset)
PRIMARY(cuDevicePrimaryCtxReset_v2, reset)

/* ---- for the agent ---- */

static void update_primary(CUdevice device)
{
	__typeof__(cuDevicePrimaryCtxRetain) *retain = GCR_REAL(cuDevicePrimaryCtxRetain);
	__typeof__(cuDevicePrimaryCtxRelease_v2) *let_go = GCR_REAL(cuDevicePrimaryCtxRelease_v2);
	CUcontext known = known_primary(device), handle;

	if (!is_active(device)) {
		GCR_TELL(primary_gone, device);
		if (known)
			remove_it(known);
		return;
	}
	if (known || !retain || !let_go || retain(&handle, device) != CUDA_SUCCESS)
		return;
	let_go(device);
	add(handle, device);
}

CUcontext gcr_context_primary(CUdevice device)
{
	update_primary(device);
	return known_primary(device);
}

size_t gcr_contexts_alive(CUcontext *ret_contexts, size_t room)
{
	__typeof__(cuDeviceGetCount) *get_count = GCR_REAL(cuDeviceGetCount);
	int devices = 0;

	if (get_count)
		get_count(&devices);
	for (CUdevice device = 0; device < devices; device++)
		update_primary(device);
	GCR_LOCK_SCOPE(&contexts.lock);
	for (size_t i = 0; i < contexts.count && i < room; i++)
		ret_contexts[i] = contexts.list[i].handle;
	return contexts.count;
}

static void forget(void)
{
	/* A thread of the parent may have held the locks at the fork; the list is the parent's. */
	contexts.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	contexts.gone = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	for (size_t i = 0; i < DEVICES_MAX; i++)
		primary_locks[i] = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	contexts.list = NULL;
	contexts.count = contexts.room = 0;
}

GCR_LISTEN(fork, forget);
