/* SPDX-License-Identifier: MIT */
/* Shared by place.c and place_dump.c: the list of places. */
#ifndef GCR_FS_IMAGE_PLACE_PRIVATE_H
#define GCR_FS_IMAGE_PLACE_PRIVATE_H

#include "fs/image/place.h"

#define GCR_PLACES_MAX 1024

struct gcr_places {
	struct gcr_daemon *daemon;
	pthread_mutex_t lock; /* guards the list; held while a place is made */
	struct gcr_place *list;
	size_t count;
	size_t begun; /* places of dumps that are not in the list yet */
	uint32_t last_serial;
};

/* The place with this name, or NULL. Lock: places. */
struct gcr_place *gcr_place_find_locked(const struct gcr_places *places, const char *name);
/*
 * Checks that this user may have one more place, and charges the user's quota. Lock: places.
 * -ENOSPC, and errors of gcr_quota_take(); all set @error.
 */
int gcr_place_take_locked(struct gcr_places *places, uid_t uid, struct gcr_quota_charge *ret_charge,
			  struct gcr_error *error);
/*
 * Adds the place that the store has under this name to the list; *ret_place (may be NULL) is a
 * reference for the caller. @sum: the sum of its files; NULL: the files are few, or the daemon is
 * starting. Lock: places. -ENOMEM, and errors of gcr_store_open_place().
 */
int gcr_place_add_locked(struct gcr_places *places, const char *name,
			 const struct gcr_tree_sum *sum, struct gcr_place **ret_place);
/* Removes @place from the list. False: it is not in the list. Lock: places. */
bool gcr_place_unlist_locked(struct gcr_places *places, struct gcr_place *place);
/* Releases place->ending. Lock: place. */
void gcr_place_close_ending_locked(struct gcr_place *place);
/*
 * Notes, in the store too, that the place's tree has ended. A thaw, which is possible from then on,
 * makes its own mark in the store after that. Lock: place.
 */
void gcr_place_note_end_locked(struct gcr_place *place);

/* What has become of a place that is removed. */
enum gcr_place_going {
	GCR_GOING_DROPPED,
	GCR_GOING_ENDED,     /* the process that the place was another name of has ended */
	GCR_GOING_WITHDRAWN, /* its tree goes on, and is not to be ended */
};
/*
 * Removes the place from the list and from the store. -EBUSY: it is in use; -ENOENT: another thread
 * has removed it. Lock: none.
 */
int gcr_place_remove(struct gcr_place *place, enum gcr_place_going going);

#endif
