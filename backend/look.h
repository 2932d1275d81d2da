/* SPDX-License-Identifier: MIT */
/* The checks in /proc that the preflights of all vendors have in common. */
#ifndef GCR_BACKEND_LOOK_H
#define GCR_BACKEND_LOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

enum gcr_obstacle_kind {
	GCR_OBSTACLE_OPEN,   /* an open or mapped file's name begins with `prefix` */
	GCR_OBSTACLE_DEVICE, /* the same, with `prefix` relative to the device directory */
	GCR_OBSTACLE_MAPPED, /* the last part of a mapped file's name begins with `prefix` */
};

/* One obstacle: a kind of file that forbids a freeze. */
struct gcr_obstacle {
	enum gcr_obstacle_kind kind;
	const char *prefix;
	unsigned int first_number; /* not 0: a number of at least this value must follow */
	const char *why;	   /* a clause: what would be lost */
	const char *what_to_do;
};

/*
 * Returns the row of @obstacles that matches the open file or (@is_mapping) the mapped file @path;
 * NULL: none.
 */
const struct gcr_obstacle *gcr_obstacle_find(const struct gcr_obstacle *obstacles, size_t count,
					     const char *path, bool is_mapping,
					     const char *device_directory);

/* The inspection of one process. */
struct gcr_look {
	pid_t pid;
	const char *device_directory;
	const struct gcr_obstacle *obstacles;
	size_t obstacles_count;
	const char *if_stopped; /* a clause: the consequence if the process does not run */
	struct gcr_error *error;
	/* output: inode numbers of the process's sockets; gcr_look_finish() frees them */
	uint64_t *sockets;
	size_t sockets_count;
};
void gcr_look_finish(struct gcr_look *look);

/*
 * Checks that the pid is a process, that its threads run, and that no file of the table is open or
 * mapped. Returns 0, -EOPNOTSUPP with a message, or an error for which gcr_look_explain() has a
 * message.
 */
int gcr_look_at_process(struct gcr_look *look);

/* Adds a message to -EACCES, -ESRCH and other errors that have none yet; returns @r. */
int gcr_look_explain(int r, const struct gcr_look *look);

#endif
