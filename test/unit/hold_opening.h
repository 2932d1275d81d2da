/* SPDX-License-Identifier: MIT */
/* A file whose open(2) blocks, as on a file system that does not answer. Needs root. */
#ifndef GCR_TEST_HOLD_OPENING_H
#define GCR_TEST_HOLD_OPENING_H

#include <fcntl.h>
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
