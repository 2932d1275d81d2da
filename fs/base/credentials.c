/* SPDX-License-Identifier: MIT */
/*
 * Credentials of openers and writers, and the rights common to both: read from requests and /proc.
 */
#define FUSE_USE_VERSION 314
#include "fs/base/credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/base/quota.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/id_map.h"
#include "lib/lock.h"
#include "lib/proc_namespace.h"
#include "lib/proc_source.h"
#include "lib/procfs.h"

#define PATH_BYTES 32

/*
 * Is the process in our namespace of this kind? 1, 0, or -errno. *@ret_fd (may be NULL) keeps
 * another namespace open, so that its inode number is not reused.
 */
static int is_in_ours(pid_t pid, const char *name, int *ret_fd)
{
	_cleanup_close_ int fd = -1;
	char path[PATH_BYTES];
	struct stat ours, its;
	int result = gcr_proc_open_namespace(pid, name, &fd);

	if (result < 0)
		return result;
	snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
	if (stat(path, &ours) < 0 || fstat(fd, &its) < 0)
		return -errno;
	result = ours.st_dev == its.st_dev && ours.st_ino == its.st_ino;
	if (!result && ret_fd)
		*ret_fd = TAKE_FD(fd);
	return result;
}

bool gcr_credentials_are_contained(pid_t pid)
{
	struct gcr_proc_status status;

	return pid <= 0 || gcr_proc_status(pid, &status) < 0 || status.ns_pids_count != 1 ||
	       gcr_id_map_is_ours(pid) != 1;
}

#define UNCONTAINED_MAX	 256
#define UNCONTAINED_USEC (1 * GCR_USEC_PER_SEC)

/*
 * Cache of processes that are not contained, indexed by pid. A reused pid has another inode in
 * /proc.
 */
static struct {
	pthread_mutex_t lock; /* a leaf */
	struct uncontained {
		pid_t pid;
		ino_t ino;
		int64_t until_usec;
	} processes[UNCONTAINED_MAX];
} uncontained = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_uncontained(pid_t pid, ino_t ino, int64_t now_usec)
{
	const struct uncontained *known = &uncontained.processes[pid % UNCONTAINED_MAX];

	GCR_LOCK_SCOPE(&uncontained.lock);
	return known->pid == pid && known->ino == ino && now_usec < known->until_usec;
}

static void note_uncontained(pid_t pid, ino_t ino, int64_t now_usec)
{
	GCR_LOCK_SCOPE(&uncontained.lock);
	uncontained.processes[pid % UNCONTAINED_MAX] = (struct uncontained){
		.pid = pid, .ino = ino, .until_usec = now_usec + UNCONTAINED_USEC};
}

bool gcr_credentials_seem_contained(pid_t pid)
{
	int64_t now_usec = gcr_clock_usec();
	char path[PATH_BYTES];
	struct stat process;

	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	if (pid <= 0 || stat(path, &process) < 0)
		return true;
	if (is_uncontained(pid, process.st_ino, now_usec))
		return false;
	if (gcr_credentials_are_contained(pid))
		return true;
	note_uncontained(pid, process.st_ino, now_usec);
	return false;
}

uid_t gcr_credentials_seem_counted(pid_t pid, uid_t uid)
{
	return !uid && gcr_credentials_seem_contained(pid) ? GCR_QUOTA_OTHER_ROOT : uid;
}

uid_t gcr_credentials_counted(pid_t pid, uid_t uid)
{
	struct gcr_proc_status status;
	int result;

	if (uid)
		return uid;
	/* A process in a pid namespace below ours has several pids. */
	if (pid <= 0 || gcr_proc_status(pid, &status) < 0 || status.ns_pids_count != 1)
		return GCR_QUOTA_OTHER_ROOT;
	result = is_in_ours(pid, "user", NULL);
	/*
	 * The lookers may be busy with other users' processes; root of the host must get in anyway.
	 */
	if (result < 0)
		result = gcr_id_map_is_ours(pid) == 1;
	return result ? uid : GCR_QUOTA_OTHER_ROOT;
}

uid_t gcr_credentials_payer(pid_t pid)
{
	struct gcr_proc_status status;

	if (pid <= 0 || gcr_proc_status(pid, &status) < 0)
		return GCR_QUOTA_OTHER_ROOT;
	return gcr_credentials_counted(pid, status.real_uid);
}

void gcr_credentials_take_ids(const struct fuse_ctx *caller,
			      struct gcr_credentials *ret_credentials)
{
	*ret_credentials = (struct gcr_credentials){
		.uid = caller->uid,
		.gid = caller->gid,
		.counted = gcr_credentials_counted(caller->pid, caller->uid),
		.namespace_fd = -1,
		.tracer = {.namespace_fd = -1},
	};
}

void gcr_credentials_take(const struct fuse_ctx *caller, struct gcr_credentials *ret_credentials)
{
	struct gcr_proc_status status;
	int local;

	gcr_credentials_take_ids(caller, ret_credentials);
	/* The caller is in a pid namespace that is not below ours. */
	ret_credentials->tracer = (struct gcr_tracer){
		.uid = caller->uid, .gid = caller->gid, .result = -ESRCH, .namespace_fd = -1};
	if (caller->pid <= 0 || gcr_proc_status(caller->pid, &status) < 0)
		return;
	/*
	 * A process with one pid is in our namespace; a look is needed for another namespace only.
	 * -EACCES: the caller is not dumpable, and we are not root.
	 */
	local = status.ns_pids_count == 1
			? 1
			: is_in_ours(caller->pid, "pid", &ret_credentials->namespace_fd);
	ret_credentials->is_local = local == 1;
	ret_credentials->is_unknown = gcr_proc_is_silent(local);
	gcr_tracer_take(caller->pid, caller->uid, caller->gid, &ret_credentials->tracer);
	if (caller->uid ? ret_credentials->tracer.is_ours
			: is_in_ours(caller->pid, "user", NULL) == 1)
		ret_credentials->capabilities = status.effective_capabilities;
}

void gcr_credentials_finish(struct gcr_credentials *credentials)
{
	if (credentials->namespace_fd >= 0)
		close(credentials->namespace_fd);
	credentials->namespace_fd = -1;
	gcr_tracer_finish(&credentials->tracer);
}

static bool reaches(const struct gcr_credentials *credentials, pid_t pid)
{
	uid_t uid;
	gid_t gid;

	if (credentials->is_local)
		return !gcr_proc_owner(pid, &uid, &gid);
	return credentials->namespace_fd >= 0 &&
	       gcr_proc_namespace_holds(credentials->namespace_fd, pid) == 1;
}

bool gcr_parties_are_known(const struct gcr_parties *parties)
{
	return !parties->opener->is_unknown && !parties->writer->is_unknown;
}

bool gcr_parties_reach(const struct gcr_parties *parties, pid_t pid)
{
	return reaches(parties->opener, pid) && reaches(parties->writer, pid);
}

bool gcr_parties_own(const struct gcr_parties *parties, uid_t owner)
{
	return (!parties->opener->uid || parties->opener->uid == owner) &&
	       (!parties->writer->uid || parties->writer->uid == owner);
}

int gcr_parties_check_tracing(const struct gcr_parties *parties, pid_t pid, uid_t owner,
			      struct gcr_error *error)
{
	const struct gcr_tracer *opener = &parties->opener->tracer;
	const struct gcr_tracer *writer = &parties->writer->tracer;
	int result = gcr_tracer_check(opener, pid, owner, error);

	/* One look at the process does for two who are alike. */
	if (result < 0 || gcr_tracer_equals(opener, writer))
		return result;
	return gcr_tracer_check(writer, pid, owner, error);
}

static bool owns_place(const struct gcr_credentials *credentials, uid_t owner)
{
	return credentials->uid ? credentials->uid == owner : credentials->is_local;
}

bool gcr_parties_own_place(const struct gcr_parties *parties, uid_t owner)
{
	return owns_place(parties->opener, owner) && owns_place(parties->writer, owner);
}

struct gcr_rights gcr_parties_rights(const struct gcr_parties *parties)
{
	const struct gcr_credentials *opener = parties->opener, *writer = parties->writer;
	uid_t uid = opener->uid ? opener->uid : writer->uid;
	/* Of two roots, the limited one. */
	uid_t root = opener->counted ? opener->counted : writer->counted;

	return (struct gcr_rights){
		.uid = uid,
		.gid = opener->uid ? opener->gid : writer->gid,
		.counted = uid ? uid : root,
		.is_local = opener->is_local && writer->is_local,
		.capabilities = opener->capabilities & writer->capabilities,
	};
}

bool gcr_rights_may_cancel(const struct gcr_rights *rights, const struct gcr_rights *starters,
			   size_t count)
{
	return !rights || !rights->counted || count == 1 || rights->counted == starters->counted;
}

bool gcr_rights_are_roots(const struct gcr_rights *rights)
{
	return !rights->uid && rights->is_local && rights->capabilities >> CAP_SYS_ADMIN & 1;
}

/* ---- opening a file with given rights ---- */

/* Time limit for the file's file system. */
#define OPEN_USEC (10 * GCR_USEC_PER_SEC)

/* Shared with a thread that may outlive the call while it waits for a user's file system. */
struct opening {
	struct gcr_rights rights;
	char *path;
	int flags;
	mode_t mode;

	pthread_mutex_t lock;
	pthread_cond_t ended;
	unsigned int users;
	bool has_ended;
	int result; /* the descriptor; -1: passed to the caller; or -errno */
};

static void opening_unref(struct opening *opening)
{
	unsigned int users;

	if (!opening)
		return;
	pthread_mutex_lock(&opening->lock);
	users = --opening->users;
	pthread_mutex_unlock(&opening->lock);
	if (users)
		return;
	if (opening->has_ended && opening->result >= 0)
		close(opening->result);
	pthread_cond_destroy(&opening->ended);
	pthread_mutex_destroy(&opening->lock);
	free(opening->path);
	free(opening);
}

GCR_DEFINE_CLEANUP(struct opening *, opening_unref);

/*
 * Takes @rights over for the calling thread only: the system calls apply to one thread; libc's
 * wrappers would change all threads. -errno.
 */
static int assume(const struct gcr_rights *rights)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_setgroups, 0, NULL) < 0)
		return -errno;
	/* Neither call reports whether it has succeeded. */
	setfsgid(rights->gid);
	setfsuid(rights->uid);
	if ((gid_t)setfsgid((gid_t)-1) != rights->gid || (uid_t)setfsuid((uid_t)-1) != rights->uid)
		return -EPERM;
	if (syscall(SYS_capget, &header, data) < 0)
		return -errno;
	data[0].effective &= (uint32_t)rights->capabilities;
	data[1].effective &= (uint32_t)(rights->capabilities >> 32);
	return syscall(SYS_capset, &header, data) < 0 ? -errno : 0;
}

static void *open_as(void *data)
{
	struct opening *opening = data;
	int result = assume(&opening->rights);

	if (!result) {
		result = open(opening->path, opening->flags | O_CLOEXEC, opening->mode);
		if (result < 0)
			result = -errno;
	}
	pthread_mutex_lock(&opening->lock);
	opening->result = result;
	opening->has_ended = true;
	pthread_cond_signal(&opening->ended);
	pthread_mutex_unlock(&opening->lock);
	opening_unref(opening);
	return NULL;
}

static int await_opening(struct opening *opening)
{
	int64_t until_usec = gcr_clock_usec() + OPEN_USEC;
	int result = 0;

	pthread_mutex_lock(&opening->lock);
	while (!opening->has_ended && !result)
		result = gcr_cond_wait_until(&opening->ended, &opening->lock, until_usec);
	result = -ETIMEDOUT;
	if (opening->has_ended) {
		result = opening->result;
		opening->result = -1;
	}
	pthread_mutex_unlock(&opening->lock);
	return result;
}

int gcr_rights_open(const struct gcr_rights *rights, const char *path, int flags, mode_t mode)
{
	_cleanup_(opening_unref_cleanup) struct opening *opening = calloc(1, sizeof(*opening));
	pthread_t thread;
	int result;

	if (!opening)
		return -ENOMEM;
	*opening = (struct opening){
		.rights = *rights, .path = strdup(path), .flags = flags, .mode = mode, .users = 1};
	pthread_mutex_init(&opening->lock, NULL);
	pthread_cond_init(&opening->ended, NULL);
	if (!opening->path)
		return -ENOMEM;
	/* The changed rights end with the thread. */
	opening->users = 2;
	result = pthread_create(&thread, NULL, open_as, opening);
	if (result) {
		opening->users = 1;
		return -result;
	}
	pthread_detach(thread);
	return await_opening(opening);
}
