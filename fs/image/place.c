/* SPDX-License-Identifier: MIT */
/* The list of places, their states, and their publication. */
#include "fs/image/place_private.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/event.h"
#include "fs/base/log.h"
#include "fs/base/quota.h"
#include "fs/base/refusals.h"
#include "fs/base/state.h"
#include "fs/image/criu_run.h"
#include "fs/image/place_origin.h"
#include "fs/image/restore.h"
#include "fs/image/restored_cgroup.h"
#include "fs/process/process.h"
#include "fs/store/subtree.h"
#include "fs/store/place_name.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

#define PLACES_ROOT 64 /* of GCR_PLACES_MAX: reserved for root */

struct gcr_place *gcr_place_ref(struct gcr_place *place)
{
	atomic_fetch_add(&place->references, 1);
	return place;
}

void gcr_place_close_ending_locked(struct gcr_place *place)
{
	for (size_t i = 0; i < place->ending_count; i++)
		close(place->ending[i]);
	free(TAKE_PTR(place->ending));
	place->ending_count = 0;
}

void gcr_place_unref(struct gcr_place *place)
{
	if (!place || atomic_fetch_sub(&place->references, 1) != 1)
		return;
	gcr_subtree_unref(place->subtree);
	gcr_event_log_unref(place->events);
	gcr_process_unref(place->process);
	if (place->fd >= 0)
		close(place->fd);
	gcr_quota_release(&place->charge);
	/* A cgroup with remaining child processes is not removed. */
	if (place->cgroup)
		gcr_restored_cgroup_remove(place->cgroup, 0);
	free(place->cgroup);
	gcr_place_close_ending_locked(place);
	pthread_mutex_destroy(&place->lock);
	free(place);
}

GCR_DEFINE_CLEANUP(struct gcr_place *, gcr_place_unref);

/* The user to whom the place's lines in an event log count: see gcr_event_log_append_of(). */
static uid_t event_owner(const struct gcr_place *place)
{
	return gcr_quota_owner(place->daemon->quota, place->stat.st_uid);
}

/*
 * Appends a line to both logs: the place's, and the daemon's, which outlives the place. Under any
 * lock: another thread notifies the pollers.
 */
#define TELL(place, ...)                                                                           \
	do {                                                                                       \
		gcr_event_log_append((place)->events, __VA_ARGS__);                                \
		gcr_event_log_append_of((place)->daemon->events, event_owner(place), __VA_ARGS__); \
	} while (0)

struct gcr_place *gcr_place_find_locked(const struct gcr_places *places, const char *name)
{
	struct gcr_place *place = places->list;

	while (place && strcmp(place->name, name) != 0)
		place = place->next;
	return place;
}

/* ---- the origin of a place, for a next daemon ---- */

/*
 * Reads the file `origin`, which a dump writes, into place->origin. Returns the place's state:
 * incoming if there is no such file (a user has made the place), failed if the file is invalid.
 */
static enum gcr_state read_origin(struct gcr_place *place)
{
	struct gcr_place_origin_file file;
	struct gcr_error error;
	int result = gcr_place_origin_read(place->fd, &file, &error);

	if (result < 0)
		return result == -ENOENT ? GCR_STATE_INCOMING : GCR_STATE_FAILED;
	free(file.made.cgroup);
	place->origin = file.origin;
	place->origin.uid = place->stat.st_uid;
	place->origin.gid = place->stat.st_gid;
	/* gcr_restores_recover() will deal with the place. */
	if (file.made.progress != GCR_PLACE_IDLE)
		return GCR_STATE_RESTORING;
	return file.origin.pid ? GCR_STATE_DUMPED : GCR_STATE_INCOMING;
}

int gcr_place_mark(struct gcr_place *place, const struct gcr_place_made *made,
		   struct gcr_error *error)
{
	struct gcr_place_origin origin;

	pthread_mutex_lock(&place->lock);
	origin = place->origin;
	pthread_mutex_unlock(&place->lock);
	return gcr_place_origin_write(place->fd, &origin, made, error);
}

int gcr_place_read_mark(struct gcr_place *place, struct gcr_place_made *ret_made,
			struct gcr_error *error)
{
	struct gcr_place_origin_file file;
	int result = gcr_place_origin_read(place->fd, &file, error);

	if (result < 0)
		return result;
	if (file.made.progress == GCR_PLACE_IDLE)
		return gcr_error_set(error, EIO, "it does not tell of a restore");
	*ret_made = file.made;
	return 0;
}

int gcr_place_add_locked(struct gcr_places *places, const char *name,
			 const struct gcr_tree_sum *sum, struct gcr_place **ret_place)
{
	_cleanup_(gcr_place_unref_cleanup) struct gcr_place *place = calloc(1, sizeof(*place));
	int result;

	if (!place)
		return -ENOMEM;
	atomic_init(&place->references, 1);
	pthread_mutex_init(&place->lock, NULL);
	place->daemon = places->daemon;
	place->serial = ++places->last_serial;
	snprintf(place->name, sizeof(place->name), "%s", name);
	place->fd = -1;
	result = gcr_event_log_create(&place->events);
	if (!result)
		result = gcr_store_open_place(places->daemon->store, name, sum, &place->stat,
					      &place->fd, &place->subtree);
	if (result < 0)
		return result;
	gcr_quota_count(places->daemon->quota, GCR_QUOTA_PLACES, place->stat.st_uid, 1,
			&place->charge);
	place->state = read_origin(place);
	place->state_since_usec = (int64_t)place->stat.st_mtim.tv_sec * GCR_USEC_PER_SEC +
				  place->stat.st_mtim.tv_nsec / 1000;
	place->next = places->list;
	places->list = place;
	places->count++;
	if (ret_place)
		*ret_place = gcr_place_ref(place);
	TELL(place, "%s - found %s", name, gcr_state_name(place->state));
	TAKE_PTR(place);
	return 0;
}

static int add_left(const char *name, void *data)
{
	struct gcr_places *places = data;
	int result = gcr_place_name_is_good(name, strlen(name))
			     ? gcr_place_add_locked(places, name, NULL, NULL)
			     : -EINVAL;

	if (result < 0)
		gcr_log(LOG_WARNING, 0, "the place %s in the store cannot be used: %s", name,
			strerror(-result));
	return 0;
}

static void process_ended(struct gcr_process *process)
{
	char subject[GCR_CRIU_SUBJECT_BYTES];

	gcr_criu_subject_of_process(process->pid, process->start_ticks, subject);
	gcr_criu_forget(process->daemon, subject);
	gcr_places_process_gone(process->daemon->places, process);
}

int gcr_places_create(struct gcr_daemon *daemon, struct gcr_places **ret_places)
{
	static const struct gcr_process_listener listener = {.ended = process_ended};
	struct gcr_places *places = calloc(1, sizeof(*places));
	int result;

	if (!places)
		return -ENOMEM;
	pthread_mutex_init(&places->lock, NULL);
	places->daemon = daemon;
	*ret_places = places;
	pthread_mutex_lock(&places->lock);
	result = gcr_store_each_place(daemon->store, add_left, places);
	pthread_mutex_unlock(&places->lock);
	gcr_processes_listen(daemon->processes, &listener);
	return result;
}

void gcr_places_destroy(struct gcr_places *places)
{
	if (!places)
		return;
	while (places->list) {
		struct gcr_place *place = places->list;

		places->list = place->next;
		gcr_store_close_place(place->subtree);
		/*
		 * The restored tree outlives the daemon: do not wait for its end by removing its
		 * cgroup.
		 */
		if (place->cgroup && gcr_restored_cgroup_is_used(place->cgroup, 0)) {
			free(place->cgroup);
			place->cgroup = NULL;
		}
		gcr_place_unref(place);
	}
	pthread_mutex_destroy(&places->lock);
	free(places);
}

int gcr_place_take_locked(struct gcr_places *places, uid_t uid, struct gcr_quota_charge *ret_charge,
			  struct gcr_error *error)
{
	struct gcr_quota *quota = places->daemon->quota;
	size_t most = GCR_PLACES_MAX - (gcr_quota_is_limited(quota, uid) ? PLACES_ROOT : 0);

	if (places->count + places->begun >= most)
		return gcr_error_set(error, ENOSPC, "there are too many places");
	return gcr_quota_take(quota, GCR_QUOTA_PLACES, uid, 1, ret_charge, error);
}

int gcr_place_make(struct gcr_places *places, const char *name, uid_t uid, gid_t gid,
		   struct gcr_place **ret_place, struct gcr_error *error)
{
	_cleanup_(gcr_quota_release) struct gcr_quota_charge charge = {0};
	struct gcr_store *store = places->daemon->store;
	int result = 0;

	if (!gcr_place_name_is_good(name, strlen(name)))
		return -EINVAL;
	pthread_mutex_lock(&places->lock);
	if (gcr_place_find_locked(places, name))
		result = -EEXIST;
	else
		result = gcr_place_take_locked(places, uid, &charge, error);
	/* The check is done; gcr_place_add_locked() charges the place again, still under the same
	 * lock. */
	gcr_quota_release(&charge);
	if (!result)
		result = gcr_store_make_place(store, name, uid, gid);
	if (!result) {
		result = gcr_place_add_locked(places, name, NULL, ret_place);
		if (result < 0)
			gcr_store_drop_place(store, name, 0, NULL);
	}
	pthread_mutex_unlock(&places->lock);
	return result;
}

int gcr_place_find(struct gcr_places *places, const char *name, struct gcr_place **ret_place)
{
	struct gcr_place *place;

	GCR_LOCK_SCOPE(&places->lock);
	place = gcr_place_find_locked(places, name);
	if (place)
		*ret_place = gcr_place_ref(place);
	return place ? 0 : -ENOENT;
}

int gcr_place_find_serial(struct gcr_places *places, uint32_t serial, struct gcr_place **ret_place)
{
	struct gcr_place *place;

	GCR_LOCK_SCOPE(&places->lock);
	place = places->list;
	while (place && place->serial != serial)
		place = place->next;
	if (place)
		*ret_place = gcr_place_ref(place);
	return place ? 0 : -ENOENT;
}

/* Returns references to all places, in an array that the caller frees. -ENOMEM. */
static int places_list(struct gcr_places *places, struct gcr_place ***ret_list, size_t *ret_count)
{
	struct gcr_place **list;
	size_t count = 0;

	GCR_LOCK_SCOPE(&places->lock);
	list = calloc(places->count + 1, sizeof(struct gcr_place *));
	if (!list)
		return -ENOMEM;
	for (struct gcr_place *place = places->list; place; place = place->next)
		list[count++] = gcr_place_ref(place);
	*ret_list = list;
	*ret_count = count;
	return 0;
}

int gcr_place_each(struct gcr_places *places, int (*visit)(struct gcr_place *place, void *data),
		   void *data)
{
	struct gcr_place **list = NULL;
	size_t count;
	int result = places_list(places, &list, &count);

	if (result < 0)
		return result;
	for (size_t i = 0; i < count; i++) {
		if (!result)
			result = visit(list[i], data);
		gcr_place_unref(list[i]);
	}
	free(list);
	return result;
}

bool gcr_place_unlist_locked(struct gcr_places *places, struct gcr_place *place)
{
	struct gcr_place **link;

	for (link = &places->list; *link && *link != place; link = &(*link)->next)
		;
	if (!*link)
		return false;
	*link = place->next;
	places->count--;
	return true;
}

void gcr_place_note_end_locked(struct gcr_place *place)
{
	struct gcr_error error;

	place->origin.is_ending = place->origin.is_staying = false;
	if (gcr_place_origin_write(place->fd, &place->origin, NULL, &error) < 0)
		gcr_log(LOG_WARNING, 0, "%s: %s", place->name, error.words);
}

/* Have all processes in place->ending ended? Lock: place. */
static bool has_ended_locked(const struct gcr_place *place)
{
	if (!place->origin.is_ending || !place->ending)
		return false;
	for (size_t i = 0; i < place->ending_count; i++) {
		struct pollfd end = {.fd = place->ending[i], .events = POLLIN};

		if (poll(&end, 1, 0) != 1)
			return false;
	}
	return true;
}

void gcr_place_look_at_end(struct gcr_place *place)
{
	GCR_LOCK_SCOPE(&place->lock);
	if (!has_ended_locked(place))
		return;
	gcr_place_close_ending_locked(place);
	gcr_place_note_end_locked(place);
}

int gcr_place_remove(struct gcr_place *place, enum gcr_place_going going)
{
	struct gcr_places *places = place->daemon->places;
	char subject[GCR_CRIU_SUBJECT_BYTES];
	struct gcr_place_origin origin;
	bool is_empty;
	int result = 0;

	gcr_place_look_at_end(place);
	pthread_mutex_lock(&places->lock);
	pthread_mutex_lock(&place->lock);
	is_empty = place->is_empty;
	origin = place->origin;
	if (going == GCR_GOING_WITHDRAWN) {
		place->origin.is_ending = false;
		place->origin.is_staying = true;
	}
	/* A restore that has already made the process needs the place no longer. */
	if (place->origin.is_ending ||
	    ((place->restore || place->process) && !(place->process && going == GCR_GOING_ENDED)))
		result = -EBUSY;
	else
		place->is_empty = true;
	pthread_mutex_unlock(&place->lock);
	if (!result && !gcr_place_unlist_locked(places, place))
		result = -ENOENT;
	pthread_mutex_unlock(&places->lock);
	if (result < 0)
		return result;
	/*
	 * The lock is not held here: waiting for changes under way may take a while, and all
	 * lookups need the list.
	 */
	if (!is_empty)
		result = gcr_store_drop_place(place->daemon->store, place->name, 0, place->subtree);
	if (result < 0) {
		/*
		 * The directory is still in the store, so no other place can have taken the name:
		 * list it again.
		 */
		pthread_mutex_lock(&places->lock);
		pthread_mutex_lock(&place->lock);
		place->is_empty = is_empty;
		pthread_mutex_unlock(&place->lock);
		place->next = places->list;
		places->list = place;
		places->count++;
		pthread_mutex_unlock(&places->lock);
		return result;
	}
	gcr_quota_release(&place->charge);
	gcr_criu_subject_of_place(place->name, subject);
	gcr_criu_forget(place->daemon, subject);
	if (origin.pid) {
		gcr_criu_subject_of_process(origin.pid, origin.start_ticks, subject);
		gcr_criu_forget_tied(place->daemon, subject, place->name);
	}
	TELL(place, "%s - gone %s", place->name, going == GCR_GOING_ENDED ? "ended" : "dropped");
	gcr_place_unref(place); /* the list's reference */
	return 0;
}

int gcr_place_drop(struct gcr_place *place)
{
	return gcr_place_remove(place, GCR_GOING_DROPPED);
}

/* ---- state of a place ---- */

void gcr_place_set_state(struct gcr_place *place, enum gcr_state state)
{
	enum gcr_state from;

	pthread_mutex_lock(&place->lock);
	from = place->state;
	place->state = state;
	place->state_since_usec = gcr_clock_real_usec();
	pthread_mutex_unlock(&place->lock);
	if (from != state)
		TELL(place, "%s - state %s %s", place->name, gcr_state_name(from),
		     gcr_state_name(state));
}

bool gcr_place_is_process(struct gcr_place *place, enum gcr_state *ret_state)
{
	GCR_LOCK_SCOPE(&place->lock);
	*ret_state = place->state;
	return place->process;
}

pid_t gcr_place_pid(struct gcr_place *place)
{
	GCR_LOCK_SCOPE(&place->lock);
	return place->process ? place->process->pid : 0;
}

void gcr_place_became(struct gcr_place *place, struct gcr_process *process)
{
	int result;

	pthread_mutex_lock(&place->lock);
	place->process = gcr_process_ref(process);
	place->is_empty = true;
	pthread_mutex_unlock(&place->lock);
	gcr_place_set_state(place, GCR_STATE_RUNNING);
	/* Removes the files, so that a next daemon does not find the place. */
	result = gcr_store_drop_place(place->daemon->store, place->name, 0, place->subtree);
	if (result < 0) {
		gcr_log(LOG_WARNING, 0, "%s: its files stay: %s", place->name, strerror(-result));
		pthread_mutex_lock(&place->lock);
		place->is_empty = false;
		pthread_mutex_unlock(&place->lock);
	}
	if (gcr_process_has_ended(process))
		gcr_places_process_gone(place->daemon->places, process);
}

void gcr_places_process_gone(struct gcr_places *places, struct gcr_process *process)
{
	struct gcr_place *place;
	int result = 0;

	do {
		pthread_mutex_lock(&places->lock);
		for (place = places->list; place; place = place->next) {
			bool is_its;

			pthread_mutex_lock(&place->lock);
			is_its = place->process == process;
			pthread_mutex_unlock(&place->lock);
			if (is_its)
				break;
		}
		if (place)
			gcr_place_ref(place);
		pthread_mutex_unlock(&places->lock);
		if (place) {
			result = gcr_place_remove(place, GCR_GOING_ENDED);
			gcr_place_unref(place);
		}
	} while (place && !result);
}

/* Does gcr_place_find_pid() look for this place? *ret_ticks: the time of its dump. Lock: places. */
static bool is_of_pid_locked(struct gcr_place *place, pid_t pid, const struct gcr_process *process,
			     uint64_t *ret_ticks)
{
	GCR_LOCK_SCOPE(&place->lock);
	*ret_ticks = place->origin.dumped_ticks;
	return process ? place->process == process : !place->process && place->origin.pid == pid;
}

int gcr_place_find_pid(struct gcr_places *places, pid_t pid, struct gcr_process *process,
		       struct gcr_place **ret_place)
{
	struct gcr_place *place, *last = NULL;
	uint64_t ticks, last_ticks = 0;

	GCR_LOCK_SCOPE(&places->lock);
	for (place = places->list; place; place = place->next) {
		if (is_of_pid_locked(place, pid, process, &ticks) &&
		    (!last || ticks > last_ticks)) {
			last = place;
			last_ticks = ticks;
		}
	}
	if (!last)
		return -ENOENT;
	*ret_place = gcr_place_ref(last);
	return 0;
}

/*
 * Stores and logs the result of a verb. All users can read the daemon's event log: the message,
 * which may contain paths, goes only to the owner's.
 */
static void report(struct gcr_place *place, uid_t uid, const char *verb,
		   const struct gcr_error *error, bool is_for_all)
{
	const char *name = error->number ? gcr_error_name(error->number) : "ok";

	pthread_mutex_lock(&place->lock);
	place->error = *error;
	pthread_mutex_unlock(&place->lock);
	gcr_event_log_append(place->events, "%s - verb %s %s%s%s", place->name, verb, name,
			     *error->words ? " " : "", error->words);
	if (is_for_all)
		gcr_event_log_append_of(place->daemon->events, event_owner(place),
					"%s - verb %s %s", place->name, verb, name);
	if (error->number)
		gcr_refusals_log(place->daemon->refusals,
				 gcr_quota_owner(place->daemon->quota, uid), 0, "%s: %s: %s: %s",
				 place->name, verb, name, error->words);
	else
		gcr_log(LOG_INFO, 0, "%s: %s: done", place->name, verb);
}

void gcr_place_report(struct gcr_place *place, const char *verb, const struct gcr_error *error)
{
	report(place, place->stat.st_uid, verb, error, true);
}

void gcr_place_report_refusal(struct gcr_place *place, uid_t uid, const char *verb,
			      const struct gcr_error *error)
{
	report(place, uid, verb, error, uid == geteuid());
}
