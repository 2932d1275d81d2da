/* SPDX-License-Identifier: MIT */
/* A file whose open(2) blocks, as on a file system that does not answer. Needs root. */
#ifndef GCR_TEST_HOLD_OPENING_H
#define GCR_TEST_HOLD_OPENING_H

#include <fcntl.h>
#include <poll.h>
#include <sys/fanotify.h>
#include <unistd.h>

#include "test/unit/test.h"

/*
 * Returns a descriptor: every open of the file blocks until allow_opening() is called with that
 * descriptor. Returns -1 if this kernel cannot do that.
 */
static inline int hold_opening(const char *path)
{
	int fd = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC | FAN_NONBLOCK, O_RDONLY);

	if (fd < 0)
		return -1;
	if (fanotify_mark(fd, FAN_MARK_ADD, FAN_OPEN_PERM, AT_FDCWD, path) == 0)
		return fd;
	close(fd);
	return -1;
}

/* Waits until an open of the file blocks. */
static inline void await_opening(int fd)
{
	struct pollfd event = {.fd = fd, .events = POLLIN};

	CHECK(poll(&event, 1, 10000) == 1);
}

/* Waits for an open of the file, and lets it proceed; the next ones block. */
static inline void allow_one_opening(int fd)
{
	struct fanotify_event_metadata event;
	struct fanotify_response response = {.response = FAN_ALLOW};

	await_opening(fd);
	CHECK(read(fd, &event, sizeof(event)) == sizeof(event));
	response.fd = event.fd;
	CHECK(write(fd, &response, sizeof(response)) == sizeof(response));
	close(event.fd);
}

/* Lets the waiting opens proceed and closes @fd, which hold_opening() returned. */
static inline void allow_opening(int fd)
{
	struct fanotify_event_metadata event;

	while (read(fd, &event, sizeof(event)) == sizeof(event)) {
		struct fanotify_response response = {.fd = event.fd, .response = FAN_ALLOW};

		CHECK(write(fd, &response, sizeof(response)) == sizeof(response));
		close(event.fd);
	}
	close(fd);
}

#endif
