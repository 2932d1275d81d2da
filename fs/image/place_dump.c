/* SPDX-License-Identifier: MIT */
/* Places of dumps: their names, publication, and what becomes of one whose tree does not end. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/image/place_origin.h"
#include "fs/image/place_private.h"
#include "fs/process/process.h"
#include "fs/store/place_name.h"
#include "fs/store/subtree.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

GCR_DEFINE_CLEANUP(struct gcr_place *, gcr_place_unref);

/*
 * Is the place merely another name of this process? A dump of the process then replaces the place.
 * Lock: places.
 */
static bool is_name_of_locked(struct gcr_place *place, pid_t pid, uint64_t start_ticks)
{
	GCR_LOCK_SCOPE(&place->lock);
	return place->process && place->process->pid == pid &&
	       place->process->start_ticks == start_ticks;
}

bool gcr_place_name_of_process(struct gcr_places *places, pid_t pid, uint64_t start_ticks,
			       char ret_name[GCR_PLACE_NAME_BYTES])
{
	struct gcr_place *place;

	GCR_LOCK_SCOPE(&places->lock);
	place = places->list;
	while (place && !is_name_of_locked(place, pid, start_ticks))
		place = place->next;
	if (place)
		memcpy(ret_name, place->name, GCR_PLACE_NAME_BYTES);
	return place;
}

/* Is the place a dump of this process? Lock: places. */
static bool is_dump_of_locked(struct gcr_place *place, pid_t pid, uint64_t start_ticks)
{
	GCR_LOCK_SCOPE(&place->lock);
	return place->origin.pid == pid && place->origin.start_ticks == start_ticks;
}

/*
 * Begins a place under @name in the store. Returns a descriptor of its directory. -EEXIST: the name
 * is taken; *ret_known is the place that has it (no reference), or NULL. Lock: places.
 */
static int try_name_locked(struct gcr_places *places, const char *name, pid_t pid,
			   uint64_t start_ticks, struct gcr_place **ret_known, uint32_t *ret_number)
{
	*ret_known = gcr_place_find_locked(places, name);
	if (*ret_known && !is_name_of_locked(*ret_known, pid, start_ticks))
		return -EEXIST;
	return gcr_store_begin_place(places->daemon->store, name, ret_number);
}

/*
 * As try_name_locked(), but tries other names too if @may_rename, and then changes @name. Any user
 * can make a place with the name that a dump is going to choose; this must not prevent the dump.
 * Lock: places.
 */
static int begin_locked(struct gcr_places *places, char name[GCR_PLACE_NAME_BYTES], bool may_rename,
			pid_t pid, uint64_t start_ticks, uint32_t *ret_number)
{
	struct gcr_place *known;
	int fd = try_name_locked(places, name, pid, start_ticks, &known, ret_number);

	/* There are more names than there can be places. */
	for (unsigned int i = 2; i < 2 * GCR_PLACES_MAX && may_rename && fd == -EEXIST; i++) {
		char other[GCR_PLACE_NAME_BYTES];

		if (known && is_dump_of_locked(known, pid, start_ticks))
			break;
		snprintf(other, sizeof(other), "%.*s-%u", (int)sizeof(other) - 8, name, i);
		fd = try_name_locked(places, other, pid, start_ticks, &known, ret_number);
		if (fd >= 0)
			memcpy(name, other, sizeof(other));
	}
	return fd;
}

int gcr_place_begin(struct gcr_places *places, char name[GCR_PLACE_NAME_BYTES], bool may_rename,
		    pid_t pid, uint64_t start_ticks, uid_t uid, int *ret_fd,
		    struct gcr_place_hold *ret_hold, struct gcr_error *error)
{
	const struct gcr_place_origin origin = {.pid = pid, .start_ticks = start_ticks};
	int fd, result;

	pthread_mutex_lock(&places->lock);
	result = gcr_place_take_locked(places, uid, &ret_hold->charge, error);
	if (result < 0) {
		pthread_mutex_unlock(&places->lock);
		return result;
	}
	places->begun++;
	ret_hold->places = places;
	ret_hold->is_published = false;
	fd = begin_locked(places, name, may_rename, pid, start_ticks, &ret_hold->number);
	pthread_mutex_unlock(&places->lock);
	if (fd < 0) {
		gcr_place_release(ret_hold);
		return fd == -EEXIST
			       ? gcr_error_set(error, EEXIST,
					       "there is a %s already: give another name=", name)
			       : gcr_error_set(error, -fd, "%s cannot be made: %s", name,
					       strerror(-fd));
	}
	result = gcr_place_origin_write(fd, &origin, NULL, error);
	if (result < 0) {
		close(fd);
		gcr_place_abort(ret_hold, name);
		gcr_place_release(ret_hold);
		return result;
	}
	*ret_fd = fd;
	return 0;
}

void gcr_place_release(struct gcr_place_hold *hold)
{
	struct gcr_places *places = hold->places;

	if (!places)
		return;
	hold->places = NULL;
	gcr_quota_release(&hold->charge);
	GCR_LOCK_SCOPE(&places->lock);
	places->begun--;
}

void gcr_place_abort(const struct gcr_place_hold *hold, const char *name)
{
	if (!hold->is_published)
		gcr_store_abort_place(hold->places->daemon->store, name, hold->number);
}

/*
 * Notes in the store, before a published place is removed, that its tree goes on. Should the
 * removal fail, or the daemon die before it, the next daemon must not end that tree.
 */
static void record_staying(const char *name, int fd, struct gcr_place_origin origin)
{
	struct gcr_error error;

	origin.is_ending = false;
	origin.is_staying = true;
	if (gcr_place_origin_write(fd, &origin, NULL, &error) < 0)
		gcr_log(LOG_ERR, 0, "%s: %s", name, error.words);
}

int gcr_place_publish(struct gcr_place_hold *hold, const char *name, int fd,
		      const struct gcr_place_origin *origin, char **ret_cgroup,
		      struct gcr_error *error)
{
	struct gcr_places *places = hold->places;
	struct gcr_store *store = places->daemon->store;
	struct gcr_tree_sum sum;
	struct gcr_place *known;
	bool is_its_name;
	int result = gcr_place_origin_write(fd, origin, NULL, error);

	if (result < 0)
		return result;
	/* A dump may have very many files, and all look-ups need the list. */
	result = gcr_store_sum_place(fd, &sum);
	if (result < 0)
		return gcr_error_set(error, -result, "the files of %s: %s", name,
				     strerror(-result));
	pthread_mutex_lock(&places->lock);
	known = gcr_place_find_locked(places, name);
	is_its_name = known && is_name_of_locked(known, origin->pid, origin->start_ticks);
	if (is_its_name) {
		gcr_place_unlist_locked(places, known);
		gcr_quota_release(&known->charge);
	} else if (known) {
		result = -EEXIST;
	}
	if (!result)
		result = gcr_store_publish_place(store, name, origin->uid, origin->gid);
	hold->is_published = !result;
	if (!result) {
		result = gcr_place_add_locked(places, name, &sum, NULL);
		if (!result) {
			gcr_store_count_place(store, hold->number);
		} else {
			record_staying(name, fd, *origin);
			gcr_store_drop_place(store, name, hold->number, NULL);
		}
	}
	pthread_mutex_unlock(&places->lock);
	/* Also on error: the process is then known by its pid only. */
	if (is_its_name) {
		*ret_cgroup = TAKE_PTR(known->cgroup);
		gcr_place_unref(known);
	}
	return result ? gcr_error_set(error, -result, "%s cannot be made: %s", name,
				      strerror(-result))
		      : 0;
}

void gcr_place_withdraw(struct gcr_places *places, const char *name)
{
	_cleanup_(gcr_place_unref_cleanup) struct gcr_place *place = NULL;
	struct gcr_place_origin origin;
	int result = gcr_place_find(places, name, &place);

	if (result < 0)
		return;
	pthread_mutex_lock(&place->lock);
	origin = place->origin;
	pthread_mutex_unlock(&place->lock);
	record_staying(name, place->fd, origin);
	result = gcr_place_remove(place, GCR_GOING_WITHDRAWN);
	if (result < 0)
		gcr_log(LOG_ERR, 0, "%s cannot be removed, and its process lives: %s", name,
			strerror(-result));
}

void gcr_place_ended(struct gcr_places *places, const char *name)
{
	_cleanup_(gcr_place_unref_cleanup) struct gcr_place *place = NULL;

	if (gcr_place_find(places, name, &place) < 0)
		return;
	GCR_LOCK_SCOPE(&place->lock);
	gcr_place_note_end_locked(place);
}

void gcr_place_ends_with(struct gcr_places *places, const char *name, int *pidfds, size_t count)
{
	_cleanup_(gcr_place_unref_cleanup) struct gcr_place *place = NULL;

	if (gcr_place_find(places, name, &place) < 0) {
		for (size_t i = 0; i < count; i++)
			close(pidfds[i]);
		free(pidfds);
		return;
	}
	GCR_LOCK_SCOPE(&place->lock);
	gcr_place_close_ending_locked(place);
	place->ending = pidfds;
	place->ending_count = count;
}
