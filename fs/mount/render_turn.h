/* SPDX-License-Identifier: MIT */
/*
 * The texts of files that opens wait for, written by a few threads of their own. Each owner has a
 * line, and the lines are served in rotation: however many opens of one owner wait, an open of
 * another owner waits for no more than one text of each. An owner who is limited (fs/base/quota.h)
 * has at most one of the threads at a time, and all of them together leave one to root: a text that
 * takes long does not delay the texts of other owners.
 */
#ifndef GCR_FS_MOUNT_RENDER_TURN_H
#define GCR_FS_MOUNT_RENDER_TURN_H

#include <stdbool.h>
#include <sys/types.h>

#include "fs/base/quota.h"

#define GCR_RENDER_THREADS   4
#define GCR_RENDER_LIMITED   3 /* of these: for owners who are limited */
#define GCR_RENDER_OWNER_MAX 1 /* and for one of them */

struct gcr_render_turns; /* thread-safe */
struct gcr_render_line;

/* One that waits; part of the caller's object, and the caller's again when run() is called. */
struct gcr_render_turn {
	uid_t owner; /* see gcr_quota_owner() */
	/*
	 * Called once, with no lock held: 0: the text is to be written, and the open answered. Else
	 * what the open is to be answered: -EINTR, -ENOMEM, -ECONNABORTED (the daemon is going).
	 */
	void (*run)(struct gcr_render_turn *turn, int result);

	/* of fs/mount/render_turn.c; zeros */
	struct gcr_render_line *line; /* NULL: it is in none */
	struct gcr_render_turn *next, *previous;
	bool is_interrupted;
};

/* @quota has to stay. -ENOMEM, -EAGAIN. */
int gcr_render_turns_create(struct gcr_quota *quota, struct gcr_render_turns **ret_turns);
/* All that wait are answered, and later ones at once. When it returns no text is being written. */
void gcr_render_turns_stop(struct gcr_render_turns *turns);
/* After that, and when no more can come. NULL is allowed. */
void gcr_render_turns_destroy(struct gcr_render_turns *turns);

/* To the end of its owner's line. Does not block. */
void gcr_render_turns_add(struct gcr_render_turns *turns, struct gcr_render_turn *turn);

/*
 * Its open has been interrupted: one that waits behind another of its owner's is answered with
 * -EINTR soon, and the next of its line is served as usual. From any thread, also before
 * gcr_render_turns_add(); not once run() has been called. Does not block, and calls nothing.
 */
void gcr_render_turns_interrupt(struct gcr_render_turns *turns, struct gcr_render_turn *turn);

#endif
