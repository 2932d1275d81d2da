/* SPDX-License-Identifier: MIT */
/*
 * The pool of gpucr-look processes, and one look by one of them. pool.lock protects the lists and
 * is a leaf lock; the only wait under it is that for a free helper (a condition variable), with a
 * deadline.
 */
#include "fs/helper/looker.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/credentials.h"
#include "fs/base/log.h"
#include "fs/base/quota.h"
#include "fs/helper/helper_process.h"
#include "fs/helper/looker_private.h"
#include "fs/helper/looker_process.h"
#include "fs/helper/looker_silent.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/proc_file.h"
#include "lib/proc_source.h"
#include "lib/procfs.h"

#define HELPERS_MAX 9
#define IDLE_MAX    4 /* idle helpers beyond this number end */

/*
 * One helper is reserved for the thread that hurries, one for processes of root and of the daemon's
 * own user, and two more for owners none of whose processes is being looked at, so that they need
 * not wait for others.
 */
#define KEPT_HURRY     1
#define KEPT_TRUSTED   (KEPT_HURRY + 1)
#define KEPT_FRESH     2
#define ASKING_MAX     4 /* helpers per owner */
#define WAITING_MAX    4 /* waiting looks of a hindered owner, see is_hindered() */
#define ABANDONED_ROOM (2 * ABANDONED_MAX + 2 * HELPERS_MAX)

/* Limits for helpers that cannot be killed: of all owners, and of one. */
#define ABANDONED_MAX	    16
#define ABANDONED_OWNER_MAX 2

/* An owner with more silent processes is not looked at: see has_too_many_silent(). */
#define SILENT_OWNER_MAX 16
#define SLOW_OWNER_MAX	 2 /* slow looks at one owner's processes at a time */

/*
 * An owner's other processes get less time if he has more silent processes than the first limit, or
 * has any and all owners together have more than the second. An owner without silent processes
 * always gets the full time.
 */
#define PATIENT_OWNER_MAX 2
#define PATIENT_MAX	  8
/* With more silent processes of all owners, one with any (not a trusted one) gets no slow look. */
#define HURRIED_MAX	  64
#define HURRIED_USEC	  (100 * GCR_USEC_PER_MSEC)

#define SOON_USEC (20 * GCR_USEC_PER_MSEC) /* a look that takes longer is slow */
#define STARVED_FACTOR \
	5 /* a helper that is running, on a busy machine, gets this multiple of the deadline */
#define FREE_WAIT_USEC (2 * GCR_USEC_PER_SEC) /* for a free helper */
#define SAY_USEC       (10 * GCR_USEC_PER_SEC)
#define KILL_WAIT_USEC (50 * GCR_USEC_PER_MSEC)

struct abandoned {
	struct gcr_looker *looker;
	uid_t owner;
};

static _Thread_local bool hurries; /* see gcr_looker_hurry() */
static _Thread_local int64_t waited_usec;

static struct {
	char *path; /* path of the program; NULL: not started */
	bool keep_stderr;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct gcr_looker *idle[HELPERS_MAX];
	unsigned int idle_count;
	unsigned int count;	    /* idle helpers, and those in use */
	struct gcr_one_look *looks; /* looks that wait for a helper or have one */
	struct abandoned abandoned[ABANDONED_ROOM];
	unsigned int abandoned_count;
	struct gcr_silent silent;
	uint64_t kills;
	int64_t said_usec; /* time of the last log message about failing helpers */
	uid_t (*owner_of)(uid_t uid, void *data);
	void *owner_data;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* One owner's share of the pool. */
struct share {
	unsigned int waiting;
	unsigned int asking; /* including the slow ones */
	unsigned int slow;
	unsigned int abandoned;
	unsigned int silent;
};

/* ---- under the lock ---- */

static void reap_locked(void)
{
	for (unsigned int i = pool.abandoned_count; i-- > 0;)
		if (gcr_looker_process_reap(pool.abandoned[i].looker))
			pool.abandoned[i] = pool.abandoned[--pool.abandoned_count];
}

static struct share count_locked(uid_t owner)
{
	struct share share = {.silent = gcr_silent_count(&pool.silent, owner)};

	for (const struct gcr_one_look *look = pool.looks; look; look = look->next) {
		if (look->owner != owner)
			continue;
		share.waiting += look->state == LOOK_WAITS;
		share.asking += look->state != LOOK_WAITS;
		share.slow += look->state == LOOK_IS_SLOW;
	}
	for (unsigned int i = 0; i < pool.abandoned_count; i++)
		share.abandoned += pool.abandoned[i].owner == owner;
	return share;
}

/* Do helpers wait for processes of this owner, or have some of them not answered lately? */
static bool is_hindered(const struct share *share)
{
	return share->slow || share->abandoned || share->silent;
}

/*
 * Is the owner root or the daemon's user? Root of a container is another owner: see
 * gcr_looker_owner().
 */
static bool is_trusted(uid_t owner)
{
	return !owner || owner == geteuid();
}

/*
 * Has the owner so many silent processes that none of his processes is looked at? A trusted owner
 * has not, because verbs of all users need looks at root's processes.
 *
 * A user may have a hand in silent processes of root's (a set-user-ID program, say), but does not
 * occupy the helpers by them. A look at a process that answers has its helper for a moment. One at
 * a process that does not answer is slow, and may_be_slow() gives a trusted owner with many silent
 * processes only SLOW_OWNER_MAX helpers at a time for longer than SOON_USEC, each of them for
 * HURRIED_USEC at most; the process is then paused.
 */
static bool has_too_many_silent(uid_t owner, const struct share *share)
{
	return share->silent > SILENT_OWNER_MAX && !is_trusted(owner);
}

/* May one more look at a process of this owner be slow? */
static bool may_be_slow(uid_t owner, const struct share *share)
{
	bool is_limited = !is_trusted(owner) || share->silent > SILENT_OWNER_MAX;

	if (is_limited && share->slow >= SLOW_OWNER_MAX)
		return false;
	return is_trusted(owner) || !share->silent || pool.silent.count <= HURRIED_MAX;
}

static void add_locked(struct gcr_one_look *look)
{
	look->state = LOOK_WAITS;
	look->next = pool.looks;
	pool.looks = look;
}

static void remove_locked(struct gcr_one_look *look)
{
	struct gcr_one_look **link = &pool.looks;

	while (*link != look)
		link = &(*link)->next;
	*link = look->next;
	pthread_cond_broadcast(&pool.changed);
}

/*
 * Can a look of this kind block its helper in a wait for memory, which SIGKILL may not end? SIGKILL
 * ends all other waits.
 */
static bool waits_for_memory(enum gcr_silent_kind kind)
{
	return kind == GCR_SILENT_MEMORY || kind == GCR_SILENT_SENT;
}

/*
 * Is the process not looked at now, because it is paused, or because its owner (or all owners) have
 * too many silent processes or helpers that cannot be killed?
 */
static bool is_refused_locked(const struct gcr_one_look *look, const struct share *share)
{
	unsigned int most = is_trusted(look->owner) ? ABANDONED_ROOM - HELPERS_MAX
						    : 2 * ABANDONED_MAX;

	if (gcr_silent_pauses(&pool.silent, look->request->pid, look->kind, gcr_clock_usec()))
		return true;
	/* @most only guards against unknown cases. */
	if (has_too_many_silent(look->owner, share) || pool.abandoned_count >= most)
		return true;
	return waits_for_memory(look->kind) &&
	       (share->abandoned >= ABANDONED_OWNER_MAX ||
		(share->abandoned && pool.abandoned_count >= ABANDONED_MAX));
}

/* May this look have one of the free helpers? */
static bool has_room_locked(const struct gcr_one_look *look, const struct share *share)
{
	unsigned int free_count = HELPERS_MAX - (pool.count - pool.idle_count);

	if (is_trusted(look->owner))
		return free_count > (look->hurries ? 0 : KEPT_HURRY);
	/* One at a time: the next helper may also become impossible to kill. */
	if (share->abandoned && share->asking)
		return false;
	if (look->hurries)
		return free_count;
	if (!share->asking && !is_hindered(share))
		return free_count > KEPT_TRUSTED;
	return share->asking < ASKING_MAX && free_count > KEPT_TRUSTED + KEPT_FRESH;
}

/* ---- helpers ---- */

/* As gcr_looker_owner(). -ESRCH: the process has ended; *ret_owner is set all the same. */
static int find_owner(pid_t pid, uid_t *ret_owner)
{
	struct gcr_proc_status status;
	int r = gcr_proc_status(pid, &status);

	*ret_owner = GCR_QUOTA_OTHER_ROOT;
	if (r < 0)
		return r;
	/*
	 * Files of /proc tell whether this root is our own, and never block, as a look at a
	 * namespace would.
	 */
	if (!status.real_uid && gcr_credentials_seem_contained(pid))
		return 0;
	/* The real user: a set-user-ID program still counts for the user who started it. */
	*ret_owner = pool.owner_of ? pool.owner_of(status.real_uid, pool.owner_data)
				   : status.real_uid;
	return 0;
}

uid_t gcr_looker_owner(pid_t pid)
{
	uid_t owner;

	find_owner(pid, &owner);
	return owner;
}

/*
 * Waits for a helper that this look may have, a hurried look not at all. On success the look is in
 * pool.looks. The owner's share is counted again after each wait, since it changes.
 */
static int await_turn_locked(struct gcr_one_look *look)
{
	int64_t until_usec =
		gcr_clock_usec() + (look->free_wait_usec ? look->free_wait_usec : FREE_WAIT_USEC);
	struct share share = count_locked(look->owner);
	int result = 0;

	/* The looks of a trusted owner wait for any free helper, which is not long. */
	if (is_hindered(&share) && !is_trusted(look->owner) && share.waiting >= WAITING_MAX)
		return -EBUSY;
	add_locked(look);
	for (;;) {
		if (is_refused_locked(look, &share)) {
			result = -EBUSY;
			break;
		}
		if (has_room_locked(look, &share))
			return 0;
		if (result)
			break;
		if (look->hurries) {
			result = -EBUSY;
			break;
		}
		result = gcr_cond_wait_until(&pool.changed, &pool.lock, until_usec);
		share = count_locked(look->owner);
	}
	remove_locked(look);
	return result;
}

int gcr_one_look_take_helper(struct gcr_one_look *look)
{
	int r;

	look->hurries = hurries;
	if (hurries)
		look->deadline_usec = HURRIED_USEC;
	{
		GCR_LOCK_SCOPE(&pool.lock);

		reap_locked();
		r = await_turn_locked(look);
		if (r < 0)
			return r;
		look->state = LOOK_ASKS;
		if (pool.idle_count) {
			look->looker = pool.idle[--pool.idle_count];
			return 0;
		}
		pool.count++;
	}
	r = gcr_looker_process_start(pool.path, pool.keep_stderr, &look->looker);
	if (r < 0) {
		GCR_LOCK_SCOPE(&pool.lock);

		pool.count--;
		remove_locked(look);
	}
	return r;
}

/*
 * Adds a helper that has not ended to the abandoned ones. The looks are bounded so that there is
 * room; otherwise the helper is forgotten.
 */
static void abandon_locked(struct gcr_looker *looker, uid_t owner)
{
	if (pool.abandoned_count < ABANDONED_ROOM)
		pool.abandoned[pool.abandoned_count++] =
			(struct abandoned){.looker = looker, .owner = owner};
	else
		gcr_looker_process_free(looker);
}

/* Kills the helper. One that does not end is abandoned, and reaped later. */
static void get_rid_of(struct gcr_one_look *look)
{
	struct gcr_looker *looker = TAKE_PTR(look->looker);
	bool has_ended = gcr_looker_process_kill(looker, KILL_WAIT_USEC);

	GCR_LOCK_SCOPE(&pool.lock);
	pool.count--;
	if (!has_ended)
		abandon_locked(looker, look->owner);
	remove_locked(look);
}

static void give_back(struct gcr_one_look *look)
{
	{
		GCR_LOCK_SCOPE(&pool.lock);

		if (pool.idle_count < IDLE_MAX) {
			pool.idle[pool.idle_count++] = TAKE_PTR(look->looker);
			remove_locked(look);
			return;
		}
	}
	get_rid_of(look);
}

/* ---- one look ---- */

/*
 * Called when the process blocks the helper. -EBUSY: too many helpers are blocked by other
 * processes of its owner, or too many processes were silent.
 */
static int become_slow(struct gcr_one_look *look)
{
	struct share share;

	GCR_LOCK_SCOPE(&pool.lock);
	share = count_locked(look->owner);
	if (!may_be_slow(look->owner, &share))
		return -EBUSY;
	if (share.silent > PATIENT_OWNER_MAX || (share.silent && pool.silent.count > PATIENT_MAX) ||
	    gcr_silent_has(&pool.silent, look->request->pid))
		look->deadline_usec = HURRIED_USEC;
	look->state = LOOK_IS_SLOW;
	return 0;
}

/*
 * Waits for a fast reply. -ETIMEDOUT: the process blocks the helper. A helper that is running, on a
 * busy machine or at a process with very many mappings, is not blocked, so its look is not slow.
 */
static int await_soon(struct gcr_one_look *look, int64_t began_usec)
{
	bool runs;
	int r;

	do {
		r = gcr_looker_process_receive(look->looker, SOON_USEC, look->has_data,
					       &look->reply);
		if (r != -ETIMEDOUT)
			return r;
		runs = gcr_looker_process_runs(look->looker);
	} while (runs && gcr_clock_usec() - began_usec < STARVED_FACTOR * look->deadline_usec);
	/* The helper may have answered between the two calls. */
	return gcr_looker_process_receive(look->looker, 0, look->has_data, &look->reply);
}

/*
 * Waits for the reply of a look that is slow, since @began_usec. -ETIMEDOUT: the process was
 * silent; -EPIPE, -EPROTO: the helper failed.
 */
static int await_late(struct gcr_one_look *look, int64_t began_usec)
{
	int64_t wait_usec = look->deadline_usec - SOON_USEC;

	for (;;) {
		bool is_last;
		int r = gcr_looker_process_receive(look->looker, wait_usec, look->has_data,
						   &look->reply);

		if (r != -ETIMEDOUT)
			return r;
		wait_usec = GCR_LOOK_DEADLINE_USEC / 4;
		is_last = gcr_clock_usec() - began_usec > STARVED_FACTOR * look->deadline_usec ||
			  !gcr_looker_process_runs(look->looker);
		/* The helper may have answered between the two calls. */
		if (is_last)
			return gcr_looker_process_receive(look->looker, 0, look->has_data,
							  &look->reply);
	}
}

/*
 * Waits for the reply within the look's deadline. Errors of await_late(); -EBUSY as become_slow().
 */
static int await_reply(struct gcr_one_look *look)
{
	int64_t began_usec = gcr_clock_usec();
	int r = await_soon(look, began_usec);

	if (r != -ETIMEDOUT)
		return r;
	r = become_slow(look);
	if (r == 0)
		r = await_late(look, began_usec);
	waited_usec += gcr_clock_usec() - began_usec;
	return r;
}

/* Records whether the process has answered or was silent. */
static void note_outcome(const struct gcr_one_look *look, int result)
{
	GCR_LOCK_SCOPE(&pool.lock);
	pool.kills += result < 0;
	if ((result == -ETIMEDOUT || result == -EBUSY) && !look->hurries)
		gcr_silent_note(&pool.silent, look->request->pid, look->kind, look->owner,
				gcr_clock_usec());
	else if (result == 0)
		gcr_silent_forget(&pool.silent, look->request->pid, look->kind);
}

/* One attempt with one helper. -EPIPE, -EPROTO: the helper failed, another one may succeed. */
static int look_once(struct gcr_one_look *look)
{
	int r = gcr_one_look_take_helper(look);

	if (r < 0)
		return r;
	r = gcr_looker_process_send(look->looker, look->request, look->request_bytes, look->fd);
	if (r == 0)
		r = await_reply(look);
	note_outcome(look, r);
	if (r < 0)
		get_rid_of(look);
	return r;
}

static void say_failure(const struct gcr_one_look *look, int result)
{
	int64_t now_usec = gcr_clock_usec();

	{
		GCR_LOCK_SCOPE(&pool.lock);

		if (pool.said_usec && now_usec - pool.said_usec < SAY_USEC)
			return;
		pool.said_usec = now_usec;
	}
	gcr_log(LOG_ERR, look->request->pid, "the helper that looks at it fails: %s",
		strerror(-result));
}

int gcr_one_look_perform(struct gcr_one_look *look)
{
	int r = find_owner(look->request->pid, &look->owner);

	/* A process that has ended is no other root's; what it has sent can still be read. */
	if (r == -ESRCH && look->kind != GCR_SILENT_SENT)
		return r;
	r = look_once(look);
	if (r == -EPIPE || r == -EPROTO)
		r = look_once(look);
	if (r == -EPIPE || r == -EPROTO) {
		say_failure(look, r);
		r = -EIO;
	}
	if (r < 0)
		return r;
	if (look->reply.error) {
		gcr_message_close_fds(&look->looker->message);
		give_back(look);
		return -look->reply.error;
	}
	return 0;
}

const uint8_t *gcr_one_look_data(const struct gcr_one_look *look)
{
	return look->looker->message.payload + sizeof(struct gcr_looker_reply);
}

void gcr_one_look_finish(struct gcr_one_look *look)
{
	gcr_message_close_fds(&look->looker->message);
	give_back(look);
}

void gcr_one_look_give_up(struct gcr_one_look *look)
{
	{
		GCR_LOCK_SCOPE(&pool.lock);
		pool.kills++;
	}
	get_rid_of(look);
}

/* ---- its life ---- */

int gcr_looker_start(const char *helper_directory, bool keep_stderr, struct gcr_error *error)
{
	struct gcr_proc_stat stat;
	int r;

	r = gcr_helper_find(helper_directory, GCR_LOOKER_PROGRAM, &pool.path, error);
	if (r < 0)
		return r;
	pool.keep_stderr = keep_stderr;
	pthread_cond_init(&pool.changed, NULL);
	gcr_proc_set_source(&gcr_looker_source);
	r = gcr_proc_stat(getpid(), &stat);
	if (r == 0)
		return 0;
	r = gcr_error_set(error, EIO, "%s cannot be started, or does not answer: %s", pool.path,
			  strerror(-r));
	gcr_looker_stop();
	return r;
}

void gcr_looker_set_owners(uid_t (*owner)(uid_t uid, void *data), void *data)
{
	GCR_LOCK_SCOPE(&pool.lock);
	pool.owner_of = owner;
	pool.owner_data = data;
}

void gcr_looker_hurry(void)
{
	hurries = true;
}

int64_t gcr_looker_waited_usec(void)
{
	return waited_usec;
}

void gcr_looker_stop(void)
{
	if (!pool.path)
		return;
	gcr_proc_set_source(NULL);
	while (pool.idle_count) {
		struct gcr_looker *looker = pool.idle[--pool.idle_count];

		if (!gcr_looker_process_kill(looker, KILL_WAIT_USEC))
			gcr_looker_process_free(looker);
	}
	for (unsigned int i = 0; i < pool.abandoned_count; i++)
		if (!gcr_looker_process_reap(pool.abandoned[i].looker))
			gcr_looker_process_free(pool.abandoned[i].looker);
	gcr_silent_finish(&pool.silent);
	pthread_cond_destroy(&pool.changed);
	free(pool.path);
	pool.path = NULL;
	pool.count = pool.abandoned_count = 0;
	pool.kills = 0;
	pool.owner_of = NULL;
}

bool gcr_looker_is_silent(pid_t pid)
{
	GCR_LOCK_SCOPE(&pool.lock);
	return gcr_silent_has(&pool.silent, pid);
}

void gcr_looker_figures(struct gcr_looker_figures *ret_figures)
{
	GCR_LOCK_SCOPE(&pool.lock);
	reap_locked();
	*ret_figures = (struct gcr_looker_figures){
		.helpers = pool.count,
		.abandoned = pool.abandoned_count,
		.silent = pool.silent.count,
		.kills = pool.kills,
	};
}
