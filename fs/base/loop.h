/* SPDX-License-Identifier: MIT */
/*
 * One thread that waits in epoll for the daemon's descriptors: pidfds, the socket of the preload
 * libraries and its connections. A source is named by a handler and a number, never by a pointer,
 * so that a late event cannot access freed memory.
 */
#ifndef GCR_FS_BASE_LOOP_H
#define GCR_FS_BASE_LOOP_H

#include <stdint.h>

enum gcr_loop_source {
	GCR_LOOP_PROCESS,    /* number: serial of the process that has ended */
	GCR_LOOP_LISTENER,   /* number: 0 */
	GCR_LOOP_CONNECTION, /* number: id of the connection */
	GCR_LOOP_RECEIVER,   /* number: 0; a receiver of fs/helper/receiver.c has ended */
	GCR_LOOP_EMPTYING,   /* number: 0; a helper of fs/engine/emptying.c has ended */
	GCR_LOOP_SOURCES_COUNT,
};

struct gcr_loop;

typedef void gcr_loop_handler(void *context, uint32_t number);

/* Creates the loop and starts its thread. -ENOMEM, -EAGAIN. */
int gcr_loop_create(struct gcr_loop **ret_loop);

/* Stops the thread; no handler runs afterwards. Once, before gcr_loop_destroy(). */
void gcr_loop_stop(struct gcr_loop *loop);

/* NULL is allowed. */
void gcr_loop_destroy(struct gcr_loop *loop);

/*
 * Sets the handler of a source, before its first descriptor is added. Handlers run on the loop's
 * thread.
 */
void gcr_loop_handle(struct gcr_loop *loop, enum gcr_loop_source source, gcr_loop_handler *handler,
		     void *context);

/*
 * Calls the handler of @source with @number whenever @fd is readable or hung up. @fd stays the
 * caller's; closing it removes it from the loop. -errno of epoll_ctl(2).
 */
int gcr_loop_add(struct gcr_loop *loop, int fd, enum gcr_loop_source source, uint32_t number);
void gcr_loop_remove(struct gcr_loop *loop, int fd);

#endif
