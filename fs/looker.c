/* SPDX-License-Identifier: MIT */
/*
 * The pool of gpucr-look processes and the source of lib/proc_source.h that it is. pool.lock guards
 * the lists and is a leaf; nothing waits with it but for a helper that is free, with a deadline.
 */
#include "fs/looker.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/helper_process.h"
#include "fs/log.h"
#include "fs/looker_process.h"
#include "fs/looker_silent.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/proc_file.h"
#include "lib/proc_source.h"
#include "lib/procfs.h"

#define HELPERS_MAX 8
#define IDLE_MAX    4 /* more of them end */

/* Helpers that cannot be killed: of all users, and of one. */
#define ABANDONED_MAX	   16
#define ABANDONED_USER_MAX 2

#define SILENT_USER_MAX 16 /* with more silent processes a user is not looked at */
#define SLOW_USER_MAX	2  /* looks at one user's processes that take long, at a time */

/* With so many silent processes, of the user or of all, others of theirs get less time. */
#define PATIENT_USER_MAX 2
#define PATIENT_MAX	 8
#define HURRIED_MAX	 64 /* with more of all users there is no patience left */
#define HURRIED_USEC	 (100 * GCR_USEC_PER_MSEC)

#define SOON_USEC     (20 * GCR_USEC_PER_MSEC) /* a look that takes longer is slow */
#define DEADLINE_USEC (1 * GCR_USEC_PER_SEC)
#define SUMMING_USEC  (20 * GCR_USEC_PER_SEC) /* of smaps_rollup, which is slow by itself */
#define STARVED_FACTOR \
	5 /* a helper that runs, on a machine with much to do, gets so many times that */
#define FREE_WAIT_USEC (2 * GCR_USEC_PER_SEC) /* for a helper */
#define SAY_USEC       (10 * GCR_USEC_PER_SEC)
#define KILL_WAIT_USEC (50 * GCR_USEC_PER_MSEC)

struct slow {
	uid_t uid;
	unsigned int count;
};

struct abandoned {
	struct gcr_looker *looker;
	uid_t uid;
};

static struct {
	char *path; /* of the program; NULL: not started */
	bool keep_stderr;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct gcr_looker *idle[HELPERS_MAX];
	unsigned int idle_count;
	unsigned int count; /* the idle ones, and those that somebody asks */
	struct slow slow[HELPERS_MAX];
	struct abandoned abandoned[2 * ABANDONED_MAX + HELPERS_MAX];
	unsigned int abandoned_count;
	struct gcr_silent silent;
	uint64_t kills;
	int64_t said_usec; /* when it was last logged that helpers fail */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* One look. */
struct look {
	const struct gcr_looker_request *request;
	size_t request_bytes;
	int fd; /* goes with the request; -1: none */
	bool has_data;
	enum gcr_silent_kind kind;
	int64_t deadline_usec;
	struct gcr_looker *looker;
	struct gcr_looker_reply reply;
	/* filled in once it is slow */
	bool is_slow;
	uid_t uid;
};

/* ---- under the lock ---- */

static void reap_locked(void)
{
	for (unsigned int i = pool.abandoned_count; i-- > 0;)
		if (gcr_looker_process_reap(pool.abandoned[i].looker))
			pool.abandoned[i] = pool.abandoned[--pool.abandoned_count];
}

static unsigned int count_abandoned_locked(uid_t uid)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < pool.abandoned_count; i++)
		count += pool.abandoned[i].uid == uid;
	return count;
}

/* Room for one more slow look at a process of @uid's; NULL: it has its share. */
static struct slow *find_slow_locked(uid_t uid)
{
	struct slow *unused = NULL;

	for (size_t i = 0; i < HELPERS_MAX; i++) {
		struct slow *slow = &pool.slow[i];

		if (slow->count && slow->uid == uid)
			return slow->count < SLOW_USER_MAX ? slow : NULL;
		if (!slow->count)
			unused = slow;
	}
	return unused;
}

static void end_slow_locked(uid_t uid)
{
	for (size_t i = 0; i < HELPERS_MAX; i++)
		if (pool.slow[i].count && pool.slow[i].uid == uid) {
			pool.slow[i].count--;
			return;
		}
}

/* Does any user have so many silent processes, or any helper not end? Else uids are not asked for.
 */
static bool knows_offenders_locked(void)
{
	return pool.silent.count > SILENT_USER_MAX || pool.abandoned_count;
}

static bool is_refused_locked(uid_t uid, enum gcr_silent_kind kind)
{
	if (gcr_silent_count(&pool.silent, uid) > SILENT_USER_MAX)
		return true;
	/* All other waits end with SIGKILL; so the second bound is for what nobody knows of. */
	if (pool.abandoned_count >= 2 * ABANDONED_MAX)
		return true;
	return kind == GCR_SILENT_MEMORY && (pool.abandoned_count >= ABANDONED_MAX ||
					     count_abandoned_locked(uid) >= ABANDONED_USER_MAX);
}

/* ---- helpers ---- */

/* A process that hides its user, by ending, is nobody's. */
static uid_t user_of(pid_t pid)
{
	struct gcr_proc_status status;

	/* The real user: a set-user-ID program is still that of the one who has started it. */
	return gcr_proc_status(pid, &status) < 0 ? (uid_t)-1 : status.real_uid;
}

/* -EBUSY: the process is not looked at now. */
static int check_process(const struct look *look)
{
	bool knows_offenders;
	bool refused;
	uid_t uid;

	{
		GCR_LOCK_SCOPE(&pool.lock);

		if (gcr_silent_pauses(&pool.silent, look->request->pid, look->kind,
				      gcr_clock_usec()))
			return -EBUSY;
		reap_locked();
		knows_offenders = knows_offenders_locked();
	}
	if (!knows_offenders)
		return 0;
	uid = user_of(look->request->pid);
	{
		GCR_LOCK_SCOPE(&pool.lock);

		refused = is_refused_locked(uid, look->kind);
	}
	return refused ? -EBUSY : 0;
}

/* Ours, to be given back or got rid of. -ETIMEDOUT: none has become free. */
static int take_helper(struct gcr_looker **ret_looker)
{
	struct timespec until = gcr_clock_after(FREE_WAIT_USEC);
	int result = 0;

	pthread_mutex_lock(&pool.lock);
	while (!pool.idle_count && pool.count == HELPERS_MAX && !result)
		result = pthread_cond_timedwait(&pool.changed, &pool.lock, &until);
	if (pool.idle_count) {
		*ret_looker = pool.idle[--pool.idle_count];
		pthread_mutex_unlock(&pool.lock);
		return 0;
	}
	if (pool.count < HELPERS_MAX) {
		result = 0;
		pool.count++;
	}
	pthread_mutex_unlock(&pool.lock);
	if (result)
		return -ETIMEDOUT;
	result = gcr_looker_process_start(pool.path, pool.keep_stderr, ret_looker);
	if (result < 0) {
		GCR_LOCK_SCOPE(&pool.lock);

		pool.count--;
		pthread_cond_signal(&pool.changed);
	}
	return result;
}

/* Kill it. One that does not end is kept in mind, and reaped later. */
static void get_rid_of(struct gcr_looker *looker, uid_t uid)
{
	bool has_ended = gcr_looker_process_kill(looker, KILL_WAIT_USEC);

	GCR_LOCK_SCOPE(&pool.lock);
	pool.count--;
	pthread_cond_signal(&pool.changed);
	if (!has_ended)
		pool.abandoned[pool.abandoned_count++] =
			(struct abandoned){.looker = looker, .uid = uid};
}

static void give_back(struct gcr_looker *looker)
{
	{
		GCR_LOCK_SCOPE(&pool.lock);

		if (pool.idle_count < IDLE_MAX) {
			pool.idle[pool.idle_count++] = looker;
			pthread_cond_signal(&pool.changed);
			return;
		}
	}
	get_rid_of(looker, (uid_t)-1);
}

/* ---- one look ---- */

/*
 * It takes long: whose process is it? -EBUSY: that user's others are being waited for, or too many
 * have been silent.
 */
static int become_slow(struct look *look)
{
	uid_t uid = user_of(look->request->pid);
	unsigned int silent;
	struct slow *slow;

	GCR_LOCK_SCOPE(&pool.lock);
	look->uid = uid;
	silent = pool.silent.count;
	slow = find_slow_locked(uid);
	if (!slow || silent > HURRIED_MAX)
		return -EBUSY;
	if (silent > PATIENT_MAX || gcr_silent_count(&pool.silent, uid) > PATIENT_USER_MAX ||
	    gcr_silent_has(&pool.silent, look->request->pid))
		look->deadline_usec = HURRIED_USEC;
	slow->uid = uid;
	slow->count++;
	look->is_slow = true;
	return 0;
}

static int await_reply(struct look *look)
{
	int64_t began_usec = gcr_clock_usec();
	int64_t wait_usec;
	int r = gcr_looker_process_receive(look->looker, SOON_USEC, look->has_data, &look->reply);

	if (r == -ETIMEDOUT) {
		r = become_slow(look);
		if (r < 0)
			return r;
		r = -ETIMEDOUT;
	}
	wait_usec = look->deadline_usec - SOON_USEC;
	while (r == -ETIMEDOUT) {
		bool is_last;

		r = gcr_looker_process_receive(look->looker, wait_usec, look->has_data,
					       &look->reply);
		if (r != -ETIMEDOUT)
			break;
		wait_usec = DEADLINE_USEC / 4;
		is_last = gcr_clock_usec() - began_usec > STARVED_FACTOR * look->deadline_usec ||
			  !gcr_looker_process_runs(look->looker);
		/* It may have answered between the two. */
		if (is_last)
			return gcr_looker_process_receive(look->looker, 0, look->has_data,
							  &look->reply);
	}
	return r;
}

static void note_outcome(const struct look *look, int result)
{
	GCR_LOCK_SCOPE(&pool.lock);
	pool.kills += result < 0;
	if (look->is_slow)
		end_slow_locked(look->uid);
	if (result == -ETIMEDOUT || result == -EBUSY)
		gcr_silent_note(&pool.silent, look->request->pid, look->kind, look->uid,
				gcr_clock_usec());
	else if (result == 0)
		gcr_silent_forget(&pool.silent, look->request->pid, look->kind);
}

/* With one helper. -EPIPE, -EPROTO: another one may do better. */
static int look_once(struct look *look)
{
	int r = take_helper(&look->looker);

	if (r < 0)
		return r;
	r = gcr_looker_process_send(look->looker, look->request, look->request_bytes, look->fd);
	if (r == 0)
		r = await_reply(look);
	note_outcome(look, r);
	look->is_slow = false;
	if (r < 0)
		get_rid_of(TAKE_PTR(look->looker), look->uid);
	return r;
}

static void say_failure(const struct look *look, int result)
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

/* The outcome; if it is 0 the caller gives look->looker back. */
static int perform(struct look *look)
{
	int r = check_process(look);

	if (r < 0)
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
		give_back(TAKE_PTR(look->looker));
		return -look->reply.error;
	}
	return 0;
}

static const uint8_t *data_of(const struct look *look)
{
	return look->looker->message.payload + sizeof(struct gcr_looker_reply);
}

static void finish(struct look *look)
{
	gcr_message_close_fds(&look->looker->message);
	give_back(TAKE_PTR(look->looker));
}

/* ---- the source ---- */

#define HEAD_BYTES offsetof(struct gcr_looker_request, fds)

static int set_name(struct gcr_looker_request *request, const char *name)
{
	if (strlen(name) >= sizeof(request->name))
		return -ENAMETOOLONG;
	strcpy(request->name, name);
	return 0;
}

static enum gcr_silent_kind kind_of(const char *name)
{
	const char *slash = strrchr(name, '/');

	return !strcmp(slash ? slash + 1 : name, "stat") ? GCR_SILENT_ALL : GCR_SILENT_MEMORY;
}

/* @verb: of a text. It may be cut by nobody, so that its last byte is followed by a NUL. */
static int get_file(enum gcr_looker_verb verb, pid_t pid, const char *name, int *ret_fd)
{
	struct gcr_looker_request request = {.verb = verb, .pid = pid};
	_cleanup_close_ int fd = memfd_create("gpucr-look", MFD_CLOEXEC);
	struct look look = {
		.request = &request,
		.request_bytes = HEAD_BYTES,
		.fd = fd,
		.kind = name ? kind_of(name) : GCR_SILENT_ALL,
		.deadline_usec = name && !strcmp(name, "smaps_rollup") ? SUMMING_USEC
								       : DEADLINE_USEC,
	};
	int r = fd < 0 ? -errno : name ? set_name(&request, name) : 0;

	if (r == 0)
		r = perform(&look);
	if (r < 0)
		return r;
	finish(&look);
	if (lseek(fd, 0, SEEK_SET) < 0)
		return -errno;
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static int get_file_text(enum gcr_looker_verb verb, pid_t pid, const char *name, char **ret_text,
			 size_t *ret_bytes)
{
	char path[GCR_PROC_PATH_BYTES];
	_cleanup_close_ int fd = -1;
	int r = get_file(verb, pid, name, &fd);

	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return gcr_file_read(path, ret_text, ret_bytes);
}

/* A short text comes with the reply. */
static int get_text(enum gcr_looker_verb verb, pid_t pid, const char *name, char **ret_text,
		    size_t *ret_bytes)
{
	struct gcr_looker_request request = {.verb = verb, .pid = pid};
	struct look look = {
		.request = &request,
		.request_bytes = HEAD_BYTES,
		.fd = -1,
		.has_data = true,
		.kind = name ? kind_of(name) : GCR_SILENT_ALL,
		.deadline_usec = DEADLINE_USEC,
	};
	char *text;
	int r = name ? set_name(&request, name) : 0;

	if (r < 0)
		return r;
	if (name && !strcmp(name, "smaps_rollup"))
		look.deadline_usec = SUMMING_USEC;
	r = perform(&look);
	if (r == -EFBIG)
		return get_file_text(verb, pid, name, ret_text, ret_bytes);
	if (r < 0)
		return r;
	text = malloc(look.reply.bytes + 1);
	if (text) {
		memcpy(text, data_of(&look), look.reply.bytes);
		text[look.reply.bytes] = '\0';
		if (ret_bytes)
			*ret_bytes = look.reply.bytes;
		*ret_text = text;
	}
	finish(&look);
	return text ? 0 : -ENOMEM;
}

static int source_read(pid_t pid, const char *name, char **ret_text, size_t *ret_bytes)
{
	return get_text(GCR_LOOKER_READ, pid, name, ret_text, ret_bytes);
}

static int source_open(pid_t pid, const char *name, int *ret_fd)
{
	return get_file(GCR_LOOKER_READ, pid, name, ret_fd);
}

static int source_links(pid_t pid, char **ret_text, size_t *ret_bytes)
{
	return get_text(GCR_LOOKER_LINKS, pid, NULL, ret_text, ret_bytes);
}

static int source_link(pid_t pid, const char *name, char *ret_target, size_t target_bytes)
{
	struct gcr_looker_request request = {.verb = GCR_LOOKER_LINK, .pid = pid};
	struct look look = {
		.request = &request,
		.request_bytes = HEAD_BYTES,
		.fd = -1,
		.has_data = true,
		.kind = GCR_SILENT_ALL,
		.deadline_usec = DEADLINE_USEC,
	};
	int r = set_name(&request, name);

	if (r == 0)
		r = perform(&look);
	if (r < 0)
		return r;
	snprintf(ret_target, target_bytes, "%.*s", (int)look.reply.bytes,
		 (const char *)data_of(&look));
	finish(&look);
	return 0;
}

/* The kernel's name of what is open tells that it is a namespace, without asking a filesystem. */
static bool is_namespace(int fd, const char *name)
{
	char path[GCR_PROC_PATH_BYTES];
	char target[64];
	size_t length = strlen(name);
	ssize_t got;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	got = readlink(path, target, sizeof(target) - 1);
	target[got > 0 ? got : 0] = '\0';
	return !strncmp(target, name, length) && !strncmp(target + length, ":[", 2);
}

static int source_open_namespace(pid_t pid, const char *name, int *ret_fd)
{
	struct gcr_looker_request request = {.verb = GCR_LOOKER_NAMESPACE, .pid = pid};
	struct look look = {
		.request = &request,
		.request_bytes = HEAD_BYTES,
		.fd = -1,
		.kind = GCR_SILENT_ALL,
		.deadline_usec = DEADLINE_USEC,
	};
	int r = set_name(&request, name);

	if (r == 0)
		r = perform(&look);
	if (r < 0)
		return r;
	r = -EIO;
	if (look.looker->message.fds_count == 1 &&
	    is_namespace(look.looker->message.fds[0], name)) {
		*ret_fd = TAKE_FD(look.looker->message.fds[0]);
		r = 0;
	}
	finish(&look);
	return r;
}

static int source_peek(pid_t pid, uintptr_t address, void *ret, size_t bytes)
{
	struct gcr_looker_request request = {
		.verb = GCR_LOOKER_PEEK, .pid = pid, .address = address, .count = (uint32_t)bytes};
	struct look look = {
		.request = &request,
		.request_bytes = HEAD_BYTES,
		.fd = -1,
		.has_data = true,
		.kind = GCR_SILENT_MEMORY,
		.deadline_usec = DEADLINE_USEC,
	};
	int r = bytes > GCR_LOOKER_DATA_MAX ? -E2BIG : perform(&look);

	if (r < 0)
		return r;
	if (look.reply.bytes == bytes)
		memcpy(ret, data_of(&look), bytes);
	else
		r = -EIO;
	finish(&look);
	return r;
}

static int source_poke(pid_t pid, uintptr_t address, uint32_t value)
{
	struct gcr_looker_request request = {
		.verb = GCR_LOOKER_POKE, .pid = pid, .address = address, .value = value};
	struct look look = {
		.request = &request,
		.request_bytes = HEAD_BYTES,
		.fd = -1,
		.kind = GCR_SILENT_MEMORY,
		.deadline_usec = DEADLINE_USEC,
	};
	int r = perform(&look);

	if (r == 0)
		finish(&look);
	return r;
}

_Static_assert(GCR_LOOKER_FDS_MAX >= GCR_PROC_SAME_MAX, "room for all");

static int source_same_files(pid_t pid, pid_t other, const int *fds, size_t count, bool *ret_same)
{
	struct gcr_looker_request request = {.verb = GCR_LOOKER_SAME_FILES,
					     .pid = other,
					     .other = pid,
					     .count = (uint32_t)count};
	struct look look = {
		.request = &request,
		.request_bytes = HEAD_BYTES + count * sizeof(request.fds[0]),
		.fd = -1,
		.has_data = true,
		.kind = GCR_SILENT_ALL,
		.deadline_usec = DEADLINE_USEC,
	};
	int r;

	memcpy(request.fds, fds, count * sizeof(*fds));
	r = perform(&look);
	if (r < 0)
		return r;
	r = look.reply.bytes == count ? 0 : -EIO;
	for (size_t i = 0; r == 0 && i < count; i++)
		ret_same[i] = data_of(&look)[i] != 0;
	finish(&look);
	return r;
}

int gcr_looker_devices(pid_t pid, const struct gcr_scan_wanted *wanted, unsigned int *ret_devices,
		       uint64_t *ret_start_ticks)
{
	struct gcr_looker_request request = {
		.verb = GCR_LOOKER_DEVICES, .pid = pid, .wanted = *wanted};
	struct look look = {
		.request = &request,
		.request_bytes = HEAD_BYTES + sizeof(*wanted),
		.fd = -1,
		.kind = GCR_SILENT_MEMORY,
		.deadline_usec = DEADLINE_USEC,
	};
	int r = perform(&look);

	if (r < 0)
		return r;
	*ret_devices = look.reply.devices & ((1u << GCR_SCAN_DEVICES_MAX) - 1);
	*ret_start_ticks = look.reply.start_ticks;
	finish(&look);
	return 0;
}

static const struct gcr_proc_source source = {
	.read = source_read,
	.open = source_open,
	.links = source_links,
	.link = source_link,
	.open_namespace = source_open_namespace,
	.peek = source_peek,
	.poke = source_poke,
	.same_files = source_same_files,
};

/* ---- its life ---- */

int gcr_looker_start(const char *helper_directory, bool keep_stderr, struct gcr_error *error)
{
	struct gcr_proc_stat stat;
	int r;

	pool.path = gcr_helper_find(helper_directory, GCR_LOOKER_PROGRAM);
	if (!pool.path)
		return gcr_error_set(error, ENOMEM, "out of memory");
	pool.keep_stderr = keep_stderr;
	pthread_cond_init(&pool.changed, NULL);
	gcr_proc_set_source(&source);
	r = gcr_proc_stat(getpid(), &stat);
	if (r == 0)
		return 0;
	r = gcr_error_set(error, EIO, "%s cannot be started, or does not answer: %s", pool.path,
			  strerror(-r));
	gcr_looker_stop();
	return r;
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
