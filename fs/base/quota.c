/* SPDX-License-Identifier: MIT */
/* A table of users with charges, with a counter for each kind. */
#include "fs/base/quota.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/base/subuid.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

#define USERS_PATH	 "/etc/passwd"
#define DESCRIPTORS_PATH "/proc/self/fd"
/* The part of the descriptors that is reserved for the daemon and root. */
#define RESERVE_SHARE	 4
#define RESERVE_MOST	 8192
#define VERBS_SHARE	 2 /* The verbs of one user hold one in so many of the users' descriptors. */
#define NAME_BYTES	 16 /* of a user's name */
/* Shortest time between two counts of the descriptors, and the same in times that a count takes. */
#define COUNT_USEC	 1000
#define COUNT_TIMES	 10
/* A descriptor is opened within this time after it has been promised. */
#define OPEN_USEC	 (GCR_USEC_PER_SEC / 100)

const struct gcr_quota_kind_words gcr_quota_kinds[GCR_QUOTA_KINDS_COUNT] = {
	[GCR_QUOTA_CONNECTIONS] = {"connections", false, EAGAIN, "connections to the socket",
				   "end some of the programs"},
	[GCR_QUOTA_OPEN_FILES] = {"open_files", false, EMFILE, "open files of the mount",
				  "close some"},
	[GCR_QUOTA_TEXT] = {"text", true, EDQUOT, "bytes of text in open files", "close some"},
	[GCR_QUOTA_PLACES] = {"places", false, EDQUOT, "places", "remove some with rmdir"},
	[GCR_QUOTA_STORE] = {"store", true, EDQUOT, "bytes in the store",
			     "thaw or pack processes, or remove places"},
	[GCR_QUOTA_SPILL] = {"spill", true, EDQUOT, "packed bytes on the disk",
			     "thaw processes, or remove places"},
	[GCR_QUOTA_VERBS] = {"verbs", false, EAGAIN, "verbs under way", "wait for some to end"},
	[GCR_QUOTA_DUMPS] = {"dumps", false, EAGAIN, "dumps under way", "wait for some to end",
			     GCR_QUOTA_ALL_DUMPS},
	[GCR_QUOTA_DESCRIPTORS] = {"descriptors", false, ENFILE,
				   "descriptors of memory that verbs move",
				   "wait for some verbs to end, or give the daemon a higher "
				   "LimitNOFILE="},
};

struct user {
	struct user *next;
	uid_t uid;
	uint64_t counts[GCR_QUOTA_KINDS_COUNT];
};

/*
 * The descriptors of the process. Those that were promised since the last count, and shortly before
 * it, are added: they may not have been open then. Some of them have been closed again, so the sum
 * is rather too large than too small, but for descriptors that no quota covers.
 */
struct descriptors {
	pthread_mutex_t lock; /* guards the fields below; an innermost lock */
	bool is_counting;     /* a thread counts, without the lock */
	int64_t due_usec;     /* monotonic: of the next count */
	uint64_t counted;
	uint64_t promised_before; /* shortly before the last count */
	uint64_t promised;	  /* since it began */
	int64_t promised_usec;	  /* monotonic: of the last promise */
};

struct gcr_quota {
	/* Fixed for life. */
	int64_t timeout_usec;
	uint64_t descriptors_max;

	struct descriptors descriptors;

	pthread_mutex_t lock;		      /* guards the fields below */
	uint64_t most[GCR_QUOTA_KINDS_COUNT]; /* as in struct gcr_quota_limits */
	struct gcr_subuids *subuids;
	struct user *users;
	uint64_t refusals[GCR_QUOTA_KINDS_COUNT];
};

int gcr_quota_create(const struct gcr_quota_limits *limits, const char *subuid_path,
		     uint64_t descriptors_max, struct gcr_quota **ret_quota)
{
	struct gcr_quota *quota = calloc(1, sizeof(*quota));
	int result;

	if (!quota)
		return -ENOMEM;
	quota->timeout_usec = limits->timeout_usec;
	memcpy(quota->most, limits->most, sizeof(quota->most));
	quota->descriptors_max = descriptors_max;
	pthread_mutex_init(&quota->descriptors.lock, NULL);
	pthread_mutex_init(&quota->lock, NULL);
	result = gcr_subuids_create(subuid_path, USERS_PATH, &quota->subuids);
	if (result < 0) {
		gcr_quota_destroy(quota);
		return result;
	}
	if (descriptors_max)
		gcr_quota_lower(quota, GCR_QUOTA_DESCRIPTORS, descriptors_max / VERBS_SHARE);
	*ret_quota = quota;
	return 0;
}

void gcr_quota_destroy(struct gcr_quota *quota)
{
	if (!quota)
		return;
	while (quota->users) {
		struct user *user = quota->users;

		quota->users = user->next;
		free(user);
	}
	gcr_subuids_destroy(quota->subuids);
	pthread_mutex_destroy(&quota->lock);
	pthread_mutex_destroy(&quota->descriptors.lock);
	free(quota);
}

uint64_t gcr_quota_descriptors(uint64_t limit)
{
	uint64_t reserve = limit / RESERVE_SHARE;

	return limit - (reserve < RESERVE_MOST ? reserve : RESERVE_MOST);
}

void gcr_quota_lower(struct gcr_quota *quota, enum gcr_quota_kind kind, uint64_t most)
{
	if (!quota)
		return;
	GCR_LOCK_SCOPE(&quota->lock);
	if (!quota->most[kind] || quota->most[kind] > most)
		quota->most[kind] = most;
}

void gcr_quota_set_most(struct gcr_quota *quota, enum gcr_quota_kind kind, uint64_t most)
{
	if (!quota)
		return;
	GCR_LOCK_SCOPE(&quota->lock);
	quota->most[kind] = most;
}

/* ---- owners ---- */

static uid_t owner_locked(struct gcr_quota *quota, uid_t uid)
{
	if (!uid || uid == GCR_QUOTA_OTHER_ROOT)
		return uid;
	gcr_subuids_refresh(quota->subuids, false);
	return gcr_subuids_owner(quota->subuids, uid);
}

uid_t gcr_quota_owner(struct gcr_quota *quota, uid_t uid)
{
	if (!quota)
		return uid;
	GCR_LOCK_SCOPE(&quota->lock);
	return owner_locked(quota, uid);
}

uid_t gcr_quota_known_owner(struct gcr_quota *quota, uid_t uid)
{
	if (!quota || !uid || uid == GCR_QUOTA_OTHER_ROOT)
		return uid;
	GCR_LOCK_SCOPE(&quota->lock);
	gcr_subuids_refresh(quota->subuids, false);
	return gcr_subuids_known_owner(quota->subuids, uid);
}

bool gcr_quota_is_limited(struct gcr_quota *quota, uid_t uid)
{
	return quota && uid && uid != geteuid();
}

/* The link at which the user's entry is, or would be inserted. */
static struct user **find_locked(struct gcr_quota *quota, uid_t owner)
{
	struct user **link = &quota->users;

	while (*link && (*link)->uid < owner)
		link = &(*link)->next;
	return link;
}

/* The entry of the user, made if there is none. NULL: no memory. */
static struct user *get_locked(struct gcr_quota *quota, uid_t owner)
{
	struct user **link = find_locked(quota, owner);
	struct user *user = *link;

	if (user && user->uid == owner)
		return user;
	user = calloc(1, sizeof(*user));
	if (!user)
		return NULL;
	user->uid = owner;
	user->next = *link;
	*link = user;
	return user;
}

static bool is_nothing(const uint64_t counts[GCR_QUOTA_KINDS_COUNT])
{
	for (size_t i = 0; i < GCR_QUOTA_KINDS_COUNT; i++)
		if (counts[i])
			return false;
	return true;
}

static void forget_if_empty_locked(struct gcr_quota *quota, uid_t owner)
{
	struct user **link = find_locked(quota, owner);
	struct user *user = *link;

	if (!is_nothing(user->counts))
		return;
	*link = user->next;
	free(user);
}

/* ---- taking and giving back ---- */

/* Does an amount take one descriptor? Those of GCR_QUOTA_DESCRIPTORS are checked by their maker. */
static bool takes_descriptors(enum gcr_quota_kind kind)
{
	return kind != GCR_QUOTA_TEXT && kind != GCR_QUOTA_STORE && kind != GCR_QUOTA_SPILL &&
	       kind != GCR_QUOTA_DESCRIPTORS;
}

/*
 * Counts the daemon's open descriptors by listing them, which takes some microseconds for each. A
 * very large number: they cannot be listed.
 */
static uint64_t list_descriptors(void)
{
	_cleanup_closedir_ DIR *dir = opendir(DESCRIPTORS_PATH);
	const struct dirent *entry;
	uint64_t count = 0;

	/* None is left, for example. */
	if (!dir)
		return UINT64_MAX / 2;
	while ((entry = readdir(dir)))
		count += *entry->d_name != '.';
	return count - 1; /* without that of the listing */
}

/*
 * Counts the daemon's open descriptors. The lowest free number does not tell the count: descriptors
 * with higher numbers stay when lower ones are closed.
 */
static uint64_t count_descriptors(void)
{
	struct stat stat_;

	/* The size is their number, since Linux 6.2. */
	if (!stat(DESCRIPTORS_PATH, &stat_) && stat_.st_size > 0)
		return (uint64_t)stat_.st_size;
	return list_descriptors();
}

/* Counts again if that is due and no other thread does. Lock: descriptors; released meanwhile. */
static void refresh_descriptors_locked(struct descriptors *descriptors)
{
	int64_t began_usec = gcr_clock_usec();
	bool is_opening = began_usec - descriptors->promised_usec < OPEN_USEC;
	uint64_t promised = descriptors->promised;
	uint64_t counted;
	int64_t pause_usec;

	if (descriptors->is_counting || began_usec < descriptors->due_usec)
		return;
	descriptors->is_counting = true;
	pthread_mutex_unlock(&descriptors->lock);
	counted = count_descriptors();
	pause_usec = (gcr_clock_usec() - began_usec) * COUNT_TIMES;
	pthread_mutex_lock(&descriptors->lock);
	descriptors->counted = counted;
	descriptors->promised_before = is_opening ? promised : 0;
	descriptors->promised -= promised;
	descriptors->due_usec =
		gcr_clock_usec() + (pause_usec > COUNT_USEC ? pause_usec : COUNT_USEC);
	descriptors->is_counting = false;
}

/* Promises @count more descriptors if the limit allows them. */
static bool promise_descriptors(struct gcr_quota *quota, uint64_t count)
{
	struct descriptors *descriptors = &quota->descriptors;

	GCR_LOCK_SCOPE(&descriptors->lock);
	refresh_descriptors_locked(descriptors);
	if (descriptors->counted + descriptors->promised_before + descriptors->promised + count >
	    quota->descriptors_max)
		return false;
	descriptors->promised += count;
	descriptors->promised_usec = gcr_clock_usec();
	return true;
}

/* May a limited user have @count more of the daemon's descriptors? 0, or -ENFILE with a message. */
static int check_descriptors(struct gcr_quota *quota, uint64_t count, struct gcr_error *error)
{
	if (!quota->descriptors_max || promise_descriptors(quota, count))
		return 0;
	return gcr_error_set(error, ENFILE,
			     "gpucrfs has no descriptors left for users: all of them together use "
			     "%" PRIu64 "; close files of the mount, or try again later",
			     quota->descriptors_max);
}

int gcr_quota_check_descriptors(struct gcr_quota *quota, uid_t uid, uint64_t count,
				struct gcr_error *error)
{
	return gcr_quota_is_limited(quota, uid) ? check_descriptors(quota, count, error) : 0;
}

/* The user's name in the status and in messages, without blanks. */
static void name_user(uid_t owner, char name[NAME_BYTES])
{
	if (owner == GCR_QUOTA_OTHER_ROOT)
		snprintf(name, NAME_BYTES, "container-root");
	else
		snprintf(name, NAME_BYTES, "%u", (unsigned int)owner);
}

/* Sets the error of a quota that is exceeded, counts the refusal, and returns the kind's -errno. */
static int refuse_locked(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t owner,
			 uint64_t held, uint64_t amount, struct gcr_error *error)
{
	const struct gcr_quota_kind_words *words = &gcr_quota_kinds[kind];
	bool is_mib = words->is_bytes;
	char name[NAME_BYTES];

	name_user(owner, name);
	/* A caller without @error only probes. */
	quota->refusals[kind] += error != NULL;
	return gcr_error_set(
		error, words->error,
		"user %s has %" PRIu64 "%s %s, and %" PRIu64
		"%s more would be above the limit of %" PRIu64 "%s (user_%s in gpucrfs(8)): %s",
		name, is_mib ? held >> 20 : held, is_mib ? " MiB of" : "", words->words,
		is_mib ? (amount + (1 << 20) - 1) >> 20 : amount, is_mib ? " MiB" : "",
		is_mib ? quota->most[kind] >> 20 : quota->most[kind], is_mib ? " MiB" : "",
		words->name, words->advice);
}

static bool is_too_much(uint64_t most, uint64_t held, uint64_t amount)
{
	return most && (amount > most || held > most - amount);
}

/* Checks the limit for all limited users together. 0, or the kind's -errno with a message. */
static int check_together_locked(struct gcr_quota *quota, enum gcr_quota_kind kind, uint64_t amount,
				 struct gcr_error *error)
{
	const struct gcr_quota_kind_words *words = &gcr_quota_kinds[kind];
	uint64_t held = 0;

	if (!words->all_most)
		return 0;
	for (const struct user *user = quota->users; user; user = user->next)
		held += user->counts[kind];
	if (!is_too_much(words->all_most, held, amount))
		return 0;
	quota->refusals[kind] += error != NULL;
	return gcr_error_set(error, words->error,
			     "all users together have %" PRIu64 " %s, and may have %" PRIu64
			     " (user_%s in gpucrfs(8)): %s",
			     held, words->words, words->all_most, words->name, words->advice);
}

/* As gcr_quota_take_beyond(). @is_alone: as gcr_quota_take_alone(). */
static int take(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t uid, uint64_t amount,
		uint64_t beyond, bool is_alone, struct gcr_quota_charge *ret_charge,
		struct gcr_error *error)
{
	struct user *user;
	uint64_t most;
	uid_t owner;
	int result = 0;

	if (!gcr_quota_is_limited(quota, uid))
		return 0;
	if (takes_descriptors(kind))
		result = check_descriptors(quota, 1, error);
	GCR_LOCK_SCOPE(&quota->lock);
	if (result < 0) {
		quota->refusals[kind]++;
		return result;
	}
	result = check_together_locked(quota, kind, amount, error);
	if (result < 0)
		return result;
	owner = owner_locked(quota, uid);
	user = get_locked(quota, owner);
	if (!user)
		return gcr_error_set(error, ENOMEM, "out of memory");
	most = is_alone && !user->counts[kind] ? 0 : quota->most[kind];
	if (is_too_much(most ? most + beyond : 0, user->counts[kind], amount)) {
		result = refuse_locked(quota, kind, owner, user->counts[kind], amount, error);
		forget_if_empty_locked(quota, owner);
		return result;
	}
	user->counts[kind] += amount;
	*ret_charge = (struct gcr_quota_charge){quota, kind, owner, amount};
	forget_if_empty_locked(quota, owner);
	return 0;
}

int gcr_quota_take(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t uid, uint64_t amount,
		   struct gcr_quota_charge *ret_charge, struct gcr_error *error)
{
	return take(quota, kind, uid, amount, 0, false, ret_charge, error);
}

int gcr_quota_take_beyond(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t uid,
			  uint64_t amount, uint64_t beyond, struct gcr_quota_charge *ret_charge,
			  struct gcr_error *error)
{
	return take(quota, kind, uid, amount, beyond, false, ret_charge, error);
}

int gcr_quota_take_alone(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t uid,
			 uint64_t amount, struct gcr_quota_charge *ret_charge,
			 struct gcr_error *error)
{
	return take(quota, kind, uid, amount, 0, true, ret_charge, error);
}

void gcr_quota_count(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t uid, uint64_t amount,
		     struct gcr_quota_charge *ret_charge)
{
	struct user *user;
	uid_t owner;

	if (!gcr_quota_is_limited(quota, uid) || !amount)
		return;
	GCR_LOCK_SCOPE(&quota->lock);
	owner = owner_locked(quota, uid);
	user = get_locked(quota, owner);
	/* Without memory the amount is not charged, and so not released. */
	if (!user)
		return;
	user->counts[kind] += amount;
	*ret_charge = (struct gcr_quota_charge){quota, kind, owner, amount};
}

void gcr_quota_release(struct gcr_quota_charge *charge)
{
	struct gcr_quota_charge gone = *charge;
	struct user *user;

	*charge = (struct gcr_quota_charge){0};
	if (!gone.quota || !gone.amount)
		return;
	GCR_LOCK_SCOPE(&gone.quota->lock);
	user = *find_locked(gone.quota, gone.owner);
	if (!user || user->uid != gone.owner || user->counts[gone.kind] < gone.amount) {
		gcr_log(LOG_ERR, 0,
			"%s of user %u: %" PRIu64 " are given back, but fewer are "
			"counted",
			gcr_quota_kinds[gone.kind].words, (unsigned int)gone.owner, gone.amount);
		if (!user || user->uid != gone.owner)
			return;
		gone.amount = user->counts[gone.kind];
	}
	user->counts[gone.kind] -= gone.amount;
	forget_if_empty_locked(gone.quota, gone.owner);
}

int gcr_quota_check_held(struct gcr_quota *quota, enum gcr_quota_kind kind, uid_t owner,
			 uint64_t held, uint64_t amount, struct gcr_error *error)
{
	const struct user *user;

	if (!gcr_quota_is_limited(quota, owner))
		return 0;
	GCR_LOCK_SCOPE(&quota->lock);
	user = *find_locked(quota, owner);
	if (user && user->uid == owner)
		held += user->counts[kind];
	if (!is_too_much(quota->most[kind], held, amount))
		return 0;
	return refuse_locked(quota, kind, owner, held, amount, error);
}

int gcr_quota_check_timeout(struct gcr_quota *quota, uid_t uid, int64_t timeout_usec,
			    struct gcr_error *error)
{
	if (!gcr_quota_is_limited(quota, uid) || !quota->timeout_usec ||
	    timeout_usec <= quota->timeout_usec)
		return 0;
	return gcr_error_set(error, EINVAL,
			     "timeout= takes at most %" PRId64
			     " seconds from a user who is not root (user_timeout in gpucrfs(8))",
			     quota->timeout_usec / GCR_USEC_PER_SEC);
}

/* ---- display ---- */

static void render_user(const uint64_t *most, const struct user *user, FILE *stream)
{
	char name[NAME_BYTES];

	name_user(user->uid, name);
	fprintf(stream, "user %s", name);
	for (size_t i = 0; i < GCR_QUOTA_KINDS_COUNT; i++) {
		fprintf(stream, " %s%s %" PRIu64, gcr_quota_kinds[i].name,
			gcr_quota_kinds[i].is_bytes ? "_bytes" : "", user->counts[i]);
		if (most[i])
			fprintf(stream, "/%" PRIu64, most[i]);
		else
			fputs("/-", stream);
	}
	fputc('\n', stream);
}

static int by_uid(const void *left, const void *right)
{
	uid_t a = ((const struct user *)left)->uid, b = ((const struct user *)right)->uid;

	return a < b ? -1 : a > b;
}

/* All users with charges or holdings, in order of uid, and the limits. NULL: no memory. */
static struct user *gather(struct gcr_quota *quota, const struct gcr_quota_held *held, size_t count,
			   uint64_t ret_most[GCR_QUOTA_KINDS_COUNT], size_t *ret_count)
{
	size_t entries = count, all = 0, users = 0;
	struct user *list;

	GCR_LOCK_SCOPE(&quota->lock);
	memcpy(ret_most, quota->most, sizeof(quota->most));
	for (const struct user *user = quota->users; user; user = user->next)
		entries++;
	list = calloc(entries ? entries : 1, sizeof(*list));
	if (!list)
		return NULL;
	for (const struct user *user = quota->users; user; user = user->next)
		list[all++] = *user;
	for (size_t i = 0; i < count; i++) {
		if (!gcr_quota_is_limited(quota, held[i].uid) || is_nothing(held[i].counts))
			continue;
		list[all].uid = owner_locked(quota, held[i].uid);
		memcpy(list[all++].counts, held[i].counts, sizeof(held[i].counts));
	}
	qsort(list, all, sizeof(*list), by_uid);
	for (size_t i = 0; i < all; i++) {
		if (!users || list[users - 1].uid != list[i].uid) {
			list[users++] = list[i];
			continue;
		}
		for (size_t kind = 0; kind < GCR_QUOTA_KINDS_COUNT; kind++)
			list[users - 1].counts[kind] += list[i].counts[kind];
	}
	*ret_count = users;
	return list;
}

void gcr_quota_render(struct gcr_quota *quota, const struct gcr_quota_held *held, size_t count,
		      bool all, uid_t uid, FILE *stream)
{
	_cleanup_free_ struct user *list = NULL;
	uint64_t most[GCR_QUOTA_KINDS_COUNT];
	size_t users = 0;
	uid_t owner;

	if (!quota)
		return;
	owner = gcr_quota_owner(quota, uid);
	list = gather(quota, held, count, most, &users);
	for (size_t i = 0; list && i < users; i++)
		if (all || list[i].uid == owner)
			render_user(most, &list[i], stream);
}

void gcr_quota_get_figures(struct gcr_quota *quota, struct gcr_quota_figures *ret_figures)
{
	*ret_figures = (struct gcr_quota_figures){0};
	if (!quota)
		return;
	GCR_LOCK_SCOPE(&quota->lock);
	for (const struct user *user = quota->users; user; user = user->next)
		ret_figures->users++;
	memcpy(ret_figures->refusals, quota->refusals, sizeof(quota->refusals));
}
