/* SPDX-License-Identifier: MIT */
/* What the vendors' preflights look for in /proc in the same way. */
#ifndef GCR_BACKEND_LOOK_H
#define GCR_BACKEND_LOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

enum gcr_obstacle_kind {
	GCR_OBSTACLE_OPEN,   /* an open or mapped file's name begins with `prefix` */
	GCR_OBSTACLE_DEVICE, /* likewise, `prefix` being below the device directory */
	GCR_OBSTACLE_MAPPED, /* the last part of a mapped file's name begins with `prefix` */
};

/* One row of what is looked for. */
struct gcr_obstacle {
	enum gcr_obstacle_kind kind;
	const char *prefix;
	unsigned int first_number; /* not 0: a number that is at least this has to follow */
	const char *why;	   /* a clause: what would be lost */
	const char *what_to_do;
};

/* The row that an open file, or a mapped one, falls under; NULL if there is none. */
const struct gcr_obstacle *gcr_obstacle_find(const struct gcr_obstacle *obstacles, size_t count,
					     const char *path, bool is_mapping,
					     const char *device_directory);

/* One look at a process. */
struct gcr_look {
	pid_t pid;
	const char *device_directory;
	const struct gcr_obstacle *obstacles;
	size_t obstacles_count;
	const char *if_stopped; /* a clause: what comes of it if it does not run */
	struct gcr_error *error;
	/* filled in: inode numbers of its sockets, for gcr_look_finish() to free */
	uint64_t *sockets;
	size_t sockets_count;
};
void gcr_look_finish(struct gcr_look *look);

/*
 * Is it a process, do its threads run, and is there anything of the table? -EOPNOTSUPP with words;
 * else what gcr_look_explain() has words for.
 */
int gcr_look_at_process(struct gcr_look *look);

/* -EACCES, -ESRCH and others without words yet get them; returns @r. */
int gcr_look_explain(int r, const struct gcr_look *look);

#endif
