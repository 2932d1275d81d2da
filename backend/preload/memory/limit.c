/* SPDX-License-Identifier: MIT */
/*
 * Stack limits of contexts, reduced while the program's memory is out. With the default limit of
 * 1024 bytes a context has 528 MiB of control state on an H100 (580.159), which the driver
 * checkpoints in 0.33-0.41 s and restores in 0.20-0.24 s; with limit 0 the figures are 264 MiB,
 * 0.21 s and 0.17 s. Changing the limit takes 0.3-1.4 ms. Only the agent calls these functions, so
 * there is no lock.
 */
#include "backend/preload/memory/limit.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/gate/context.h"
#include "backend/preload/gate/driver_error.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/gate/green.h"
#include "backend/preload/base/listener.h"
#include "lib/cleanup.h"

struct limit {
	CUcontext context;
	size_t bytes; /* stack limit of a thread of its kernels */
};

/* The contexts whose limit differs from the one that the program set. */
static struct {
	struct limit *list;
	size_t count;
} shrunk;

/* The driver's functions, which all work on the current context. */
struct driver {
	__typeof__(cuCtxPushCurrent_v2) *push;
	__typeof__(cuCtxPopCurrent_v2) *pop;
	__typeof__(cuCtxGetLimit) *get;
	__typeof__(cuCtxSetLimit) *set;
};

static bool find_driver(struct driver *ret_driver)
{
	struct driver driver = {
		.push = GCR_REAL(cuCtxPushCurrent_v2),
		.pop = GCR_REAL(cuCtxPopCurrent_v2),
		.get = GCR_REAL(cuCtxGetLimit),
		.set = GCR_REAL(cuCtxSetLimit),
	};

	*ret_driver = driver;
	return driver.push && driver.pop && driver.get && driver.set;
}

/* Lists the program's contexts; the caller frees the list. NULL: out of memory. */
static CUcontext *list_contexts(size_t *ret_count)
{
	size_t room = gcr_contexts_alive(NULL, 0);
	CUcontext *contexts = calloc(room + 1, sizeof(CUcontext));

	if (contexts)
		/* No thread makes or destroys a context now. */
		*ret_count = gcr_contexts_alive(contexts, room);
	return contexts;
}

static bool is_shrunk(CUcontext context)
{
	for (size_t i = 0; i < shrunk.count; i++)
		if (shrunk.list[i].context == context)
			return true;
	return false;
}

/* ---- shrink ---- */

/*
 * Shrink the limit of the current context; *ret_bytes is the old limit. false: the limit is
 * unchanged.
 */
static bool shrink_current(const struct driver *driver, size_t *ret_bytes)
{
	size_t now;

	if (driver->get(ret_bytes, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS || !*ret_bytes)
		return false;
	if (driver->set(CU_LIMIT_STACK_SIZE, 0) == CUDA_SUCCESS)
		return true;
	return driver->get(&now, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS && now != *ret_bytes;
}

static bool shrink_one(const struct driver *driver, struct limit *limit)
{
	CUcontext popped;
	bool is;

	if (driver->push(limit->context) != CUDA_SUCCESS)
		return false;
	is = shrink_current(driver, &limit->bytes);
	driver->pop(&popped);
	return is;
}

void gcr_limits_shrink(void)
{
	_cleanup_free_ CUcontext *contexts = NULL;
	struct driver driver;
	struct limit *list;
	size_t count;

	if (!find_driver(&driver))
		return;
	contexts = list_contexts(&count);
	list = contexts ? realloc(shrunk.list, (shrunk.count + count + 1) * sizeof(*list)) : NULL;
	if (!list)
		return;
	shrunk.list = list;
	for (size_t i = 0; i < count; i++) {
		struct limit *limit = &shrunk.list[shrunk.count];

		limit->context = contexts[i];
		/* The effect of another limit on its green contexts has not been measured. */
		if (gcr_green_is_owner(contexts[i]))
			continue;
		if (!is_shrunk(contexts[i]) && shrink_one(&driver, limit))
			shrunk.count++;
	}
}

/* ---- restore ---- */

/* The name of the current context's GPU for a message, as far as the driver provides it. */
static void name_gpu(char *ret_name, size_t size)
{
	__typeof__(cuCtxGetDevice) *get_device = GCR_REAL(cuCtxGetDevice);
	CUdevice device;

	if (get_device && get_device(&device) == CUDA_SUCCESS && device >= 0)
		snprintf(ret_name, size, "GPU %d of the program", (int)device);
	else
		snprintf(ret_name, size, "a GPU of the program");
}

/* Sets the message for a failed call. @is_current: the context in question is current. */
static int say(const char *call, CUresult result, size_t bytes, bool is_current,
	       struct gcr_error *error)
{
	char gpu[48] = "a GPU of the program";
	int r;

	if (is_current)
		name_gpu(gpu, sizeof(gpu));
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return gcr_error_set(error, ENOMEM,
				     "%s has too little free memory for the stacks of its kernels "
				     "(%zu bytes a thread)",
				     gpu, bytes);
	r = gcr_driver_failed(error, call, result);
	gcr_error_prefix(error, "the stack limit of %s cannot be set back", gpu);
	return r;
}

/* Restores the limit of the current context. */
static int restore_current(const struct driver *driver, size_t bytes, struct gcr_error *error)
{
	size_t now = 0;
	CUresult result = driver->get(&now, CU_LIMIT_STACK_SIZE);

	if (result != CUDA_SUCCESS)
		return say("cuCtxGetLimit", result, bytes, true, error);
	if (now == bytes)
		return 0;
	result = driver->set(CU_LIMIT_STACK_SIZE, bytes);
	if (result != CUDA_SUCCESS)
		return say("cuCtxSetLimit", result, bytes, true, error);
	result = driver->get(&now, CU_LIMIT_STACK_SIZE);
	if (result != CUDA_SUCCESS)
		return say("cuCtxGetLimit", result, bytes, true, error);
	if (now != bytes)
		return gcr_error_set(error, EIO, "a stack limit was set back to %zu, and is %zu",
				     bytes, now);
	return 0;
}

static int restore_one(const struct driver *driver, const struct limit *limit,
		       struct gcr_error *error)
{
	CUcontext popped;
	CUresult result;
	int r;

	result = driver->push(limit->context);
	if (result != CUDA_SUCCESS)
		return say("cuCtxPushCurrent", result, limit->bytes, false, error);
	r = restore_current(driver, limit->bytes, error);
	driver->pop(&popped);
	return r;
}

static bool is_among(CUcontext context, const CUcontext *contexts, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (contexts[i] == context)
			return true;
	return false;
}

int gcr_limits_restore(struct gcr_error *error)
{
	_cleanup_free_ CUcontext *contexts = NULL;
	struct driver driver;
	size_t count;

	if (!shrunk.count)
		return 0;
	contexts = list_contexts(&count);
	if (!contexts)
		return gcr_error_set(error, ENOMEM, "the program has no memory to list contexts");
	if (!find_driver(&driver))
		return gcr_error_set(error, EIO, "the driver's library has gone");
	while (shrunk.count) {
		const struct limit *limit = &shrunk.list[shrunk.count - 1];

		if (is_among(limit->context, contexts, count)) {
			int r = restore_one(&driver, limit, error);

			if (r < 0)
				return r;
		}
		shrunk.count--;
	}
	return 0;
}

static void forget(void)
{
	/* The memory is the parent's. */
	shrunk.list = NULL;
	shrunk.count = 0;
}

GCR_LISTEN(fork, forget);
