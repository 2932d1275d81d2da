/* SPDX-License-Identifier: MIT */
/* Descriptors of ours in somebody else's program: out of its way, and known to be still ours. */
#ifndef GCR_PRELOAD_DESCRIPTOR_H
#define GCR_PRELOAD_DESCRIPTOR_H

#include <stdbool.h>
#include <sys/types.h>

/* A descriptor and what it was when we got it: a program may close all it does not know. */
struct gcr_descriptor {
	int fd; /* -1: none */
	dev_t device;
	ino_t inode;
};

/*
 * *@fd, which is -1 before anything is done with it: a child that is forked in between finds no
 * number there that is closed already and may be somebody else's by now.
 */
int gcr_descriptor_take(int *fd);

/*
 * Move @fd to a high number, close-on-exec: above what select(2) can hold, and above the soft limit
 * if the hard one allows (it is raised for the moment of the dup; numbers above the limit stay
 * valid). Takes @fd, also on failure: -EMFILE, -EBADF.
 */
int gcr_descriptor_keep(int fd, struct gcr_descriptor *ret_descriptor);

/* The same for the few that have to be: lower where the limits leave nothing there. */
int gcr_descriptor_keep_anywhere(int fd, struct gcr_descriptor *ret_descriptor);

/* Is it still the same file? */
bool gcr_descriptor_valid(const struct gcr_descriptor *descriptor);

/*
 * CRIU has restored the program, with the same numbers, where an anonymous file is another one of
 * the same name: take it for what it was if it is called @name (as readlink(2) of /proc/PID/fd
 * says).
 */
void gcr_descriptor_restored(struct gcr_descriptor *descriptor, const char *name);

/* Close it if it is still ours. */
void gcr_descriptor_close(struct gcr_descriptor *descriptor);

/*
 * In between, descriptors may have any number that the hard limit allows. Short, and with no other
 * of these functions called by the same thread.
 */
void gcr_descriptor_raise_limit(void);
void gcr_descriptor_lower_limit(void);

/* Around a fork, in the thread that forks and then in the child: the limit and the lock. */
void gcr_descriptor_before_fork(void);
void gcr_descriptor_forget(void);

#endif
