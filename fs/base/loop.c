/* SPDX-License-Identifier: MIT */
/* The epoll thread. */
#include "fs/base/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "lib/cleanup.h"

#define STOP_SOURCE    GCR_LOOP_SOURCES_COUNT
#define EVENTS_AT_ONCE 32

struct gcr_loop {
	pthread_t thread;
	int epoll_fd;
	int stop_fd;
	struct {
		_Atomic(gcr_loop_handler *) handler;
		void *context;
	} sources[GCR_LOOP_SOURCES_COUNT];
};

static void *run(void *data)
{
	struct gcr_loop *loop = data;
	struct epoll_event events[EVENTS_AT_ONCE];

	for (;;) {
		int count = epoll_wait(loop->epoll_fd, events, EVENTS_AT_ONCE, -1);

		for (int i = 0; i < count; i++) {
			uint32_t source = (uint32_t)(events[i].data.u64 >> 32);
			gcr_loop_handler *handler;

			if (source == STOP_SOURCE)
				return NULL;
			handler = atomic_load(&loop->sources[source].handler);
			if (handler)
				handler(loop->sources[source].context,
					(uint32_t)events[i].data.u64);
		}
	}
}

static int add(struct gcr_loop *loop, int fd, uint32_t source, uint32_t number)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)source << 32 | number};

	return epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

int gcr_loop_create(struct gcr_loop **ret_loop)
{
	_cleanup_close_ int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	_cleanup_close_ int stop_fd = eventfd(0, EFD_CLOEXEC);
	_cleanup_free_ struct gcr_loop *loop = calloc(1, sizeof(*loop));
	int result;

	if (epoll_fd < 0 || stop_fd < 0 || !loop)
		return -ENOMEM;
	loop->epoll_fd = epoll_fd;
	loop->stop_fd = stop_fd;
	result = add(loop, stop_fd, STOP_SOURCE, 0);
	if (result < 0)
		return result;
	result = pthread_create(&loop->thread, NULL, run, loop);
	if (result)
		return -result;
	pthread_setname_np(loop->thread, "gpucrfs-loop");
	TAKE_FD(epoll_fd);
	TAKE_FD(stop_fd);
	*ret_loop = TAKE_PTR(loop);
	return 0;
}

void gcr_loop_stop(struct gcr_loop *loop)
{
	uint64_t one = 1;

	if (write(loop->stop_fd, &one, sizeof(one)) == sizeof(one))
		pthread_join(loop->thread, NULL);
}

void gcr_loop_destroy(struct gcr_loop *loop)
{
	if (!loop)
		return;
	close(loop->epoll_fd);
	close(loop->stop_fd);
	free(loop);
}

void gcr_loop_handle(struct gcr_loop *loop, enum gcr_loop_source source, gcr_loop_handler *handler,
		     void *context)
{
	loop->sources[source].context = context;
	atomic_store(&loop->sources[source].handler, handler);
}

int gcr_loop_add(struct gcr_loop *loop, int fd, enum gcr_loop_source source, uint32_t number)
{
	return add(loop, fd, (uint32_t)source, number);
}

void gcr_loop_remove(struct gcr_loop *loop, int fd)
{
	epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}
