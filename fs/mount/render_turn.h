/* SPDX-License-Identifier: MIT */
/*
 * The texts of files whose open waits for fresh figures, written by a few threads. Each owner has a
 * line (a queue of waiting opens), and the lines are served in rotation: however many opens of one
 * owner wait, an open of another owner waits for no more than one text of each. An owner who is
 * limited (fs/base/quota.h) has at most one of the threads at a time, and all limited owners
 * together leave one thread to root: a text that takes long does not delay the texts of other
 * owners.
 */
#ifndef GCR_FS_MOUNT_RENDER_TURN_H
#define GCR_FS_MOUNT_RENDER_TURN_H

#include <stdbool.h>
#include <sys/types.h>

#include "fs/base/quota.h"

#define GCR_RENDER_THREADS   4
#define GCR_RENDER_LIMITED   3 /* of these: for all limited owners */
#define GCR_RENDER_OWNER_MAX 1 /* of these: for one limited owner */

struct gcr_render_turns; /* thread-safe */
struct gcr_render_line;

/* A waiting open. Part of the caller's object; the caller owns it again when run() is called. */
struct gcr_render_turn {
	uid_t owner; /* see gcr_quota_owner() */
	/*
	 * Called once, with no lock held. @result 0: write the text and answer the open. Else the
	 * error with which the open is to be answered: -EINTR, -ENOMEM, -ECONNABORTED (the daemon
	 * is stopping).
	 */
	void (*run)(struct gcr_render_turn *turn, int result);

	/* private to fs/mount/render_turn.c; initially zeros */
	struct gcr_render_line *line; /* NULL: in no line */
	struct gcr_render_turn *next, *previous;
	bool is_interrupted;
};

/* @quota must outlive the turns. -ENOMEM, -EAGAIN. */
int gcr_render_turns_create(struct gcr_quota *quota, struct gcr_render_turns **ret_turns);
/*
 * Answers all waiting opens, and later ones at once. When this function returns, no text is being
 * written.
 */
void gcr_render_turns_stop(struct gcr_render_turns *turns);
/* To be called after stopping, when no more opens can come. NULL is allowed. */
void gcr_render_turns_destroy(struct gcr_render_turns *turns);

/* Appends @turn to its owner's line. Does not block. */
void gcr_render_turns_add(struct gcr_render_turns *turns, struct gcr_render_turn *turn);

/*
 * The open of @turn has been interrupted: a turn that waits in its line is soon answered with
 * -EINTR. May be called from any thread, but not once run() has been called. After a call that
 * precedes gcr_render_turns_add(), the turn is answered likewise, but served as usual if no other
 * turn of its owner waits or is being served. Does not block, and does not call run().
 */
void gcr_render_turns_interrupt(struct gcr_render_turns *turns, struct gcr_render_turn *turn);

#endif
