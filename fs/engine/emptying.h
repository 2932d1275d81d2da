/* SPDX-License-Identifier: MIT */
/*
 * Frees the memory of files that a program may keep open (fs/engine/transit.h). A program with a
 * descriptor for writing can hold such a file's lock for ever, so the daemon itself never truncates
 * or unlinks such a file: a separate process, gpucr-empty, does. The number of such processes at a
 * time is limited for each user (with all subordinate ids), and for all users. Further directories
 * wait for a process, with one descriptor each: at most as many of one user as verbs of his
 * processes are under way at a time, and one more.
 */
#ifndef GCR_FS_ENGINE_EMPTYING_H
#define GCR_FS_ENGINE_EMPTYING_H

#include <sys/types.h>

#include "lib/error.h"

#define GCR_EMPTYING_PROGRAM   "gpucr-empty"
#define GCR_EMPTYING_DIRECTORY 3 /* descriptor of the directory in gpucr-empty */

#define GCR_EMPTYING_USER_MAX 2	 /* processes for one user */
#define GCR_EMPTYING_ROOT_MAX 16 /* for root and for the daemon's user */
#define GCR_EMPTYING_ALL_MAX  64 /* for all other users together */

struct gcr_daemon;

/* Prepares this file's functions; called once, before all others. Returns -errno with a message. */
int gcr_emptying_start(struct gcr_daemon *daemon, struct gcr_error *error);
/* Kills the processes that wait, without awaiting their end. No process is started after this. */
void gcr_emptying_stop(void);

/*
 * May a process of @uid be given files once more? -EBUSY with a message: as many directories of
 * that user are still to be emptied as he may have processes at a time. Those of other users do not
 * count, and neither do verbs under way: what these leave behind waits for a process.
 */
int gcr_emptying_check(uid_t uid, struct gcr_error *error);

/*
 * Has a process empty all files of the directory @fd, which belonged to a process of @uid, at once
 * or when it is the directory's turn. @fd stays the caller's. A start that fails is tried again
 * later; without memory or descriptors the files are not emptied, and the log says so.
 */
void gcr_emptying_begin(int fd, uid_t uid);

#endif
