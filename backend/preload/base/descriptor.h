/* SPDX-License-Identifier: MIT */
/* The library's own descriptors in the program. They have high numbers, so as not to be in the
 * program's way, and are checked before use, since the program may close descriptors that it does
 * not know and get the same numbers again. */
#ifndef GCR_PRELOAD_DESCRIPTOR_H
#define GCR_PRELOAD_DESCRIPTOR_H

#include <stdbool.h>
#include <sys/types.h>

/* A descriptor, and the file that it referred to when the library opened it. */
struct gcr_descriptor {
	int fd; /* -1: none */
	dev_t device;
	ino_t inode;
};

/*
 * Returns *@fd and sets *@fd to -1 first, before the caller does anything with the descriptor. A
 * child that is forked in between then does not find a number that may already be closed and
 * reused.
 */
int gcr_descriptor_take(int *fd);

/*
 * Moves @fd to a high number with close-on-exec: above the numbers that select(2) supports, and
 * above the soft limit if the hard limit allows. (The soft limit is raised during the dup;
 * descriptors above the limit stay valid.) Takes ownership of @fd, also on failure: -EMFILE,
 * -EBADF.
 */
int gcr_descriptor_keep(int fd, struct gcr_descriptor *ret_descriptor);

/*
 * As gcr_descriptor_keep(), for the few indispensable descriptors: uses a lower number where the
 * limits require that.
 */
int gcr_descriptor_keep_anywhere(int fd, struct gcr_descriptor *ret_descriptor);

/* Does the descriptor still refer to the same file? */
bool gcr_descriptor_valid(const struct gcr_descriptor *descriptor);

/*
 * CRIU has restored the program: descriptors keep their numbers, but an anonymous file is now a
 * different file of the same name. Accepts the present file as the library's own if its name is
 * @name (as readlink(2) of /proc/PID/fd gives it).
 */
void gcr_descriptor_restored(struct gcr_descriptor *descriptor, const char *name);

/* Closes the descriptor if it still belongs to the library. */
void gcr_descriptor_close(struct gcr_descriptor *descriptor);

/*
 * Between these two calls new descriptors may have any number that the hard limit allows. Keep the
 * interval short; the same thread must call no other function of this file in between.
 */
void gcr_descriptor_raise_limit(void);
void gcr_descriptor_lower_limit(void);

/* Around a fork, in the forking thread and then in the child: restores the limit and the lock. */
void gcr_descriptor_before_fork(void);
void gcr_descriptor_forget(void);

#endif
