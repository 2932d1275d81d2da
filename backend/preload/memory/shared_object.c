/* SPDX-License-Identifier: MIT */
/*
 * The list of shared objects: a handful, if any. Other processes may keep theirs after the program
 * has given up its own; but then the driver has no shared object in this process any more.
 */
#include "backend/preload/memory/shared_object.h"

#include <pthread.h>
#include <stdlib.h>

#include "backend/preload/base/listener.h"
#include "backend/preload/memory/obstacle.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

static const enum gcr_obstacle obstacles[GCR_SHARED_KINDS] = {
	[GCR_SHARED_POOL] = GCR_OBSTACLE_POOL,
	[GCR_SHARED_POOL_MEMORY] = GCR_OBSTACLE_POOL,
	[GCR_SHARED_EVENT] = GCR_OBSTACLE_EVENT,
	[GCR_SHARED_RANGE] = GCR_OBSTACLE_DMA_BUF,
};

struct object {
	enum gcr_shared_kind kind;
	uint64_t value;
	CUcontext context;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects;
static size_t count, room;

static struct object *find(enum gcr_shared_kind kind, uint64_t value)
{
	for (size_t i = 0; i < count; i++)
		if (objects[i].kind == kind && objects[i].value == value)
			return &objects[i];
	return NULL;
}

/* Adds the object to the list. False: the object was in the list, and is counted already. */
static bool add(const struct object *object)
{
	GCR_LOCK_SCOPE(&lock);

	if (find(object->kind, object->value))
		return false;
	if (count == room) {
		size_t more = room ? 2 * room : 16;
		struct object *longer = realloc(objects, more * sizeof(*longer));

		/* Then no later call finds the object, and it is counted for good. */
		if (!longer)
			return true;
		objects = longer;
		room = more;
	}
	objects[count] = *object;
	__atomic_store_n(&count, count + 1, __ATOMIC_RELAXED);
	return true;
}

void gcr_shared_note(enum gcr_shared_kind kind, uint64_t value, CUcontext context)
{
	const struct object object = {kind, value, context};

	if (add(&object))
		gcr_obstacle_add(obstacles[kind], 1);
}

/* Removes the entry from the list. Lock: this file's. */
static void take_out(struct object *object)
{
	*object = objects[count - 1];
	__atomic_store_n(&count, count - 1, __ATOMIC_RELAXED);
}

struct gcr_shared_end gcr_shared_begin_end(enum gcr_shared_kind kind, uint64_t value)
{
	struct gcr_shared_end end = {.kind = kind, .value = value};
	struct object *object;

	/* Programs that share nothing pay nothing. */
	if (!__atomic_load_n(&count, __ATOMIC_RELAXED))
		return end;
	GCR_LOCK_SCOPE(&lock);
	object = find(kind, value);
	if (object) {
		end.is_shared = true;
		end.context = object->context;
		take_out(object);
	}
	return end;
}

void gcr_shared_finish_end(const struct gcr_shared_end *end, CUresult result)
{
	const struct object object = {end->kind, end->value, end->context};

	if (!end->is_shared)
		return;
	if (result == CUDA_SUCCESS || !add(&object))
		gcr_obstacle_add(obstacles[end->kind], -1);
}

static void context_gone(CUcontext context)
{
	GCR_LOCK_SCOPE(&lock);

	for (size_t i = count; i-- > 0;)
		if (objects[i].context == context) {
			gcr_obstacle_add(obstacles[objects[i].kind], -1);
			take_out(&objects[i]);
		}
}

GCR_LISTEN(context_gone, context_gone);

static void forget(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	/*
	 * Not freed until the child ends: another thread may have held malloc's lock at the fork.
	 */
	objects = NULL;
	count = room = 0;
}

GCR_LISTEN(fork, forget);
