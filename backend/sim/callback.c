/* SPDX-License-Identifier: MIT */
/*
 * Host functions and callbacks. As measured with the real driver, one thread per context runs the
 * functions of all its streams one after the other; the first call that submits one starts the
 * thread, which inherits the caller's thread name.
 */
#include "backend/sim/sim.h"

struct callbacks {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	CUcontext context;
	const struct work *item; /* item to run or being run; NULL: none */
	bool ending;
};

static void *callback_thread_run(void *argument)
{
	struct callbacks *callbacks = argument;

	sim_set_callback_thread();
	pthread_mutex_lock(&callbacks->lock);
	for (;;) {
		const struct work *item = callbacks->item;

		if (!item) {
			if (callbacks->ending)
				break;
			pthread_cond_wait(&callbacks->changed, &callbacks->lock);
			continue;
		}
		pthread_mutex_unlock(&callbacks->lock);
		if (item->kind == WORK_HOST_FUNCTION)
			item->host.function(item->host.data);
		else
			item->callback.function(item->callback.stream,
						(CUresult)atomic_load(&callbacks->context->failure),
						item->callback.data);
		pthread_mutex_lock(&callbacks->lock);
		callbacks->item = NULL;
		pthread_cond_broadcast(&callbacks->changed);
	}
	pthread_mutex_unlock(&callbacks->lock);
	pthread_cond_destroy(&callbacks->changed);
	pthread_mutex_destroy(&callbacks->lock);
	free(callbacks);
	return NULL;
}

CUresult callbacks_start(CUcontext context)
{
	struct callbacks *callbacks;
	pthread_t thread;
	GCR_LOCK_SCOPE(&sim.lock);

	if (context->callbacks)
		return CUDA_SUCCESS;
	callbacks = calloc(1, sizeof(*callbacks));
	if (!callbacks)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_init(&callbacks->lock, NULL);
	pthread_cond_init(&callbacks->changed, NULL);
	callbacks->context = context;
	if (sim_thread_start(&thread, callback_thread_run, callbacks) < 0) {
		free(callbacks);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	pthread_detach(thread);
	context->callbacks = callbacks;
	return CUDA_SUCCESS;
}

void callback_run(CUcontext context, const struct work *item)
{
	struct callbacks *callbacks = context->callbacks;
	GCR_LOCK_SCOPE(&callbacks->lock);

	while (callbacks->item)
		pthread_cond_wait(&callbacks->changed, &callbacks->lock);
	callbacks->item = item;
	pthread_cond_broadcast(&callbacks->changed);
	while (callbacks->item == item)
		pthread_cond_wait(&callbacks->changed, &callbacks->lock);
}

/*
 * Lets the thread that runs the context's host functions end. Called when no item is running and
 * none will be submitted.
 */
void callbacks_end(CUcontext context)
{
	struct callbacks *callbacks = TAKE_PTR(context->callbacks);

	if (!callbacks)
		return;
	pthread_mutex_lock(&callbacks->lock);
	callbacks->ending = true;
	pthread_cond_broadcast(&callbacks->changed);
	pthread_mutex_unlock(&callbacks->lock);
}
