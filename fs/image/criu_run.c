/* SPDX-License-Identifier: MIT */
/*
 * Directories below `criu` in the runtime directory; only the daemon (and CRIU) access them. A log
 * directory in which CRIU works, or a dump or a restore, is locked with flock(2).
 */
#include "fs/image/criu_run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/quota.h"
#include "fs/image/place.h"
#include "fs/process/vendor.h"
#include "fs/store/place_name.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/full_io.h"
#include "lib/lock.h"
#include "lib/printable.h"
#include "lib/procfs.h"
#include "lib/trusted_path.h"

#define PROCESS_PREFIX "process-"
#define PLACE_PREFIX   "place-"
#define HIDDEN_NAME    "hidden" /* file in the directory of a log that is for root alone */
/* Symbolic links in such a directory, whose targets are a user id, and the name of a place. */
#define OWNER_NAME     "owner" /* whose log it is; none: of a user who may have any number */
#define TIED_NAME      "place" /* with whose end the log goes; none: with that of its process */
#define OWNER_BYTES    16

/* A user has the newest logs, so many, and those of dumps and restores under way. */
#define LOGS_MAX 16

static struct {
	pthread_mutex_t lock;
	struct gcr_criu_program program; /* path NULL: not found yet */
} found = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Held while a log directory is made, and while old ones are removed. */
static pthread_mutex_t logs_lock = PTHREAD_MUTEX_INITIALIZER;

void gcr_criu_subject_of_process(pid_t pid, uint64_t start_ticks,
				 char ret_subject[GCR_CRIU_SUBJECT_BYTES])
{
	snprintf(ret_subject, GCR_CRIU_SUBJECT_BYTES, PROCESS_PREFIX "%d-%" PRIu64, (int)pid,
		 start_ticks);
}

void gcr_criu_subject_of_place(const char *name, char ret_subject[GCR_CRIU_SUBJECT_BYTES])
{
	snprintf(ret_subject, GCR_CRIU_SUBJECT_BYTES, PLACE_PREFIX "%s", name);
}

int gcr_criu_program(struct gcr_daemon *daemon, const struct gcr_criu_program **ret_program,
		     struct gcr_error *error)
{
	/*
	 * Set by the unit file: CRIU is then started by gpucr-launch, and never a child of the
	 * daemon.
	 */
	const char *named = getenv("GPUCR_CRIU_SOCKET");
	_cleanup_free_ char *launcher = NULL;
	_cleanup_free_ char *guard = NULL;
	int result = gcr_vendor_program(daemon, GCR_CRIU_GUARD, &guard, error);

	if (!result && named && *named)
		result = gcr_trusted_path("GPUCR_CRIU_SOCKET", named, &launcher, error);
	if (result < 0)
		return result;

	pthread_mutex_lock(&found.lock);
	/* CRIU may be installed while the daemon runs. Once found, the program does not change. */
	if (!found.program.path)
		result =
			gcr_criu_find(daemon->options.criu, launcher, guard, &found.program, error);
	pthread_mutex_unlock(&found.lock);
	*ret_program = &found.program;
	return result;
}

/*
 * Opens the directory that holds those of all subjects, and creates it if there is none. Returns a
 * descriptor, which the caller closes, or -errno.
 */
static int open_all(struct gcr_daemon *daemon)
{
	if (mkdirat(daemon->runtime_fd, GCR_CRIU_DIRECTORY, 0700) < 0 && errno != EEXIST)
		return -errno;
	return gcr_beneath_open(daemon->runtime_fd, GCR_CRIU_DIRECTORY, O_RDONLY | O_DIRECTORY);
}

static int open_one(struct gcr_daemon *daemon, const char *name)
{
	_cleanup_close_ int all_fd = open_all(daemon);

	if (all_fd < 0)
		return all_fd;
	if (mkdirat(all_fd, name, 0700) < 0 && errno != EEXIST)
		return -errno;
	return gcr_beneath_open(all_fd, name, O_RDONLY | O_DIRECTORY);
}

int gcr_criu_directory(struct gcr_daemon *daemon, const char *subject, struct gcr_error *error)
{
	int fd = open_one(daemon, subject);

	return fd < 0 ? gcr_error_set(error, -fd, "there is no directory for CRIU's log: %s",
				      strerror(-fd))
		      : fd;
}

bool gcr_criu_render_log(struct gcr_daemon *daemon, const char *subject, FILE *stream)
{
	_cleanup_close_ int all_fd =
		gcr_beneath_open(daemon->runtime_fd, GCR_CRIU_DIRECTORY, O_RDONLY | O_DIRECTORY);
	_cleanup_close_ int fd =
		all_fd < 0 ? -1 : gcr_beneath_open(all_fd, subject, O_RDONLY | O_DIRECTORY);
	_cleanup_close_ int log_fd = fd < 0 ? -1
					    : gcr_beneath_open_file(fd, GCR_CRIU_LOG_NAME, NULL);
	_cleanup_free_ char *text = NULL;
	struct stat stat;
	size_t size, used;
	ssize_t got;
	off_t from;

	if (log_fd < 0 || fstat(log_fd, &stat) < 0)
		return false;
	size = (size_t)(stat.st_size > GCR_CRIU_LOG_BYTES_MAX ? GCR_CRIU_LOG_BYTES_MAX
							      : stat.st_size);
	from = stat.st_size - (off_t)size;
	text = malloc(size + 1);
	if (!text)
		return true;
	got = gcr_pread_all(log_fd, text, size, (uint64_t)from);
	used = got > 0 ? (size_t)got : 0;
	text[used] = '\0';
	/* CRIU writes names that programs have chosen. */
	gcr_make_lines_printable(text, used);
	fwrite(text, 1, used, stream);
	return true;
}

int gcr_criu_hide_log(int fd, struct gcr_error *error)
{
	_cleanup_close_ int mark_fd = openat(fd, HIDDEN_NAME, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	return mark_fd < 0
		       ? gcr_error_set(error, errno, "CRIU's log cannot be kept from others: %s",
				       strerror(errno))
		       : 0;
}

void gcr_criu_show_log(int fd)
{
	unlinkat(fd, HIDDEN_NAME, 0);
}

bool gcr_criu_is_hidden(struct gcr_daemon *daemon, const char *subject)
{
	char path[GCR_CRIU_SUBJECT_BYTES + sizeof(GCR_CRIU_DIRECTORY "//" HIDDEN_NAME)];

	/* The path is safe: only the daemon creates anything below this directory. */
	snprintf(path, sizeof(path), GCR_CRIU_DIRECTORY "/%s/" HIDDEN_NAME, subject);
	return faccessat(daemon->runtime_fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void gcr_criu_forget(struct gcr_daemon *daemon, const char *subject)
{
	_cleanup_close_ int all_fd =
		gcr_beneath_open(daemon->runtime_fd, GCR_CRIU_DIRECTORY, O_RDONLY | O_DIRECTORY);
	_cleanup_close_ int fd =
		all_fd < 0 ? -1 : gcr_beneath_open(all_fd, subject, O_RDONLY | O_DIRECTORY);
	/* The log is removed before the file that hides it. */
	static const char *const names[] = {GCR_CRIU_LOG_NAME, "criu.pid", "stats-dump",
					    "stats-restore",   OWNER_NAME, TIED_NAME,
					    HIDDEN_NAME};

	if (fd < 0)
		return;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(names); i++)
		unlinkat(fd, names[i], 0);
	unlinkat(all_fd, subject, AT_REMOVEDIR);
}

/*
 * Reads the target of the link @name in the directory of @subject as a string, which is cut if the
 * buffer is too short. -errno: there is no such link.
 */
static int read_link(struct gcr_daemon *daemon, const char *subject, const char *name, char *target,
		     size_t bytes)
{
	char path[sizeof(GCR_CRIU_DIRECTORY "//") + NAME_MAX + sizeof(OWNER_NAME)];
	ssize_t length;

	/* The path is safe: only the daemon creates anything below this directory. */
	snprintf(path, sizeof(path), GCR_CRIU_DIRECTORY "/%.*s/%s", NAME_MAX, subject, name);
	length = readlinkat(daemon->runtime_fd, path, target, bytes - 1);
	if (length < 0)
		return -errno;
	target[length] = '\0';
	return 0;
}

/* Replaces the link @name in the directory @fd. -errno. */
static int write_link(int fd, const char *name, const char *target)
{
	if (unlinkat(fd, name, 0) < 0 && errno != ENOENT)
		return -errno;
	return symlinkat(target, fd, name) < 0 ? -errno : 0;
}

/* ---- the number of a user's logs ---- */

/* A log directory of the user. */
struct owned {
	char subject[NAME_MAX + 1];
	struct timespec changed;
};

struct owned_list {
	struct owned *list;
	size_t count, room;
};

static int compare_ages(const void *left, const void *right)
{
	const struct timespec *a = &((const struct owned *)left)->changed;
	const struct timespec *b = &((const struct owned *)right)->changed;

	if (a->tv_sec != b->tv_sec)
		return a->tv_sec < b->tv_sec ? -1 : 1;
	return a->tv_nsec < b->tv_nsec ? -1 : a->tv_nsec > b->tv_nsec;
}

/* Adds the directory @subject in @all_fd to the list. -ENOMEM. */
static int add_owned(struct owned_list *owned, int all_fd, const char *subject)
{
	struct stat stat;

	if (fstatat(all_fd, subject, &stat, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	if (owned->count == owned->room) {
		size_t room = owned->room ? 2 * owned->room : 2 * LOGS_MAX;
		struct owned *list = reallocarray(owned->list, room, sizeof(*list));

		if (!list)
			return -ENOMEM;
		owned->list = list;
		owned->room = room;
	}
	snprintf(owned->list[owned->count].subject, sizeof(owned->list->subject), "%s", subject);
	owned->list[owned->count++].changed = stat.st_mtim;
	return 0;
}

/* Is there a CRIU, or a dump or restore of ours, that uses the directory? */
static bool is_used(int all_fd, const char *subject)
{
	_cleanup_close_ int fd = gcr_beneath_open(all_fd, subject, O_RDONLY | O_DIRECTORY);

	return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0;
}

/*
 * Removes the oldest logs of @owner (as in the links), so that there are at most LOGS_MAX with that
 * of @subject, which stays. Lock: logs.
 */
static void limit_logs_locked(struct gcr_daemon *daemon, const char *owner, const char *subject)
{
	struct owned_list owned = {0};
	_cleanup_closedir_ DIR *all = NULL;
	const struct dirent *entry;
	int all_fd = open_all(daemon);
	char target[OWNER_BYTES];

	if (all_fd < 0)
		return;
	if (gcr_beneath_list_fd(all_fd, &all) < 0)
		return;
	while ((entry = readdir(all)))
		if (*entry->d_name != '.' && strcmp(entry->d_name, subject) != 0 &&
		    read_link(daemon, entry->d_name, OWNER_NAME, target, sizeof(target)) == 0 &&
		    !strcmp(target, owner) && add_owned(&owned, all_fd, entry->d_name) < 0)
			break;
	if (owned.count >= LOGS_MAX) {
		qsort(owned.list, owned.count, sizeof(*owned.list), compare_ages);
		for (size_t i = 0; i <= owned.count - LOGS_MAX; i++)
			if (!is_used(all_fd, owned.list[i].subject))
				gcr_criu_forget(daemon, owned.list[i].subject);
	}
	free(owned.list);
}

int gcr_criu_log_directory(struct gcr_daemon *daemon, const char *subject, uid_t uid,
			   struct gcr_error *error)
{
	uid_t owner = gcr_quota_owner(daemon->quota, uid);
	char target[OWNER_BYTES];
	_cleanup_close_ int fd = -1;
	int result;

	snprintf(target, sizeof(target), "%u", (unsigned int)owner);
	GCR_LOCK_SCOPE(&logs_lock);
	fd = gcr_criu_directory(daemon, subject, error);
	if (fd < 0)
		return fd;
	if (flock(fd, LOCK_SH | LOCK_NB) < 0)
		return gcr_error_set(error, errno, "CRIU's log directory %s cannot be locked: %s",
				     subject, strerror(errno));
	if (!gcr_quota_is_limited(daemon->quota, owner)) {
		unlinkat(fd, OWNER_NAME, 0);
		return TAKE_FD(fd);
	}
	result = write_link(fd, OWNER_NAME, target);
	if (result < 0)
		return gcr_error_set(error, -result, "CRIU's log %s cannot be made: %s", subject,
				     strerror(-result));
	limit_logs_locked(daemon, target, subject);
	return TAKE_FD(fd);
}

void gcr_criu_tie_log(int fd, const char *place)
{
	write_link(fd, TIED_NAME, place);
}

void gcr_criu_forget_tied(struct gcr_daemon *daemon, const char *subject, const char *place)
{
	char name[GCR_PLACE_NAME_BYTES];

	if (read_link(daemon, subject, TIED_NAME, name, sizeof(name)) == 0 && !strcmp(name, place))
		gcr_criu_forget(daemon, subject);
}

/* Does the subject still exist? Also true for names that the daemon does not use. */
static bool is_wanted(struct gcr_daemon *daemon, const char *subject)
{
	_cleanup_close_ int pidfd = -1;
	char name[GCR_CRIU_SUBJECT_BYTES];
	struct gcr_place *place = NULL;
	uint64_t start_ticks;
	int pid;

	if (!strncmp(subject, PLACE_PREFIX, strlen(PLACE_PREFIX))) {
		if (gcr_place_find(daemon->places, subject + strlen(PLACE_PREFIX), &place) < 0)
			return false;
		gcr_place_unref(place);
		return true;
	}
	if (sscanf(subject, PROCESS_PREFIX "%d-%" SCNu64, &pid, &start_ticks) != 2)
		return true;
	gcr_criu_subject_of_process(pid, start_ticks, name);
	if (strcmp(name, subject) != 0)
		return true;
	if (read_link(daemon, subject, TIED_NAME, name, sizeof(name)) == 0) {
		if (gcr_place_find(daemon->places, name, &place) < 0)
			return false;
		gcr_place_unref(place);
	}
	return gcr_proc_open(pid, start_ticks, &pidfd) != -ESRCH;
}

void gcr_criu_sweep(struct gcr_daemon *daemon)
{
	_cleanup_closedir_ DIR *all = NULL;
	const struct dirent *entry;

	if (gcr_beneath_list(daemon->runtime_fd, GCR_CRIU_DIRECTORY, &all) < 0)
		return;
	/*
	 * readdir() may or may not return entries removed during the loop; it returns all the
	 * others.
	 */
	while ((entry = readdir(all)))
		if (*entry->d_name != '.' && !is_wanted(daemon, entry->d_name))
			gcr_criu_forget(daemon, entry->d_name);
}

void gcr_criu_hand_on(struct gcr_daemon *daemon, const char *from, const char *to)
{
	_cleanup_close_ int all_fd = open_all(daemon);

	gcr_criu_forget(daemon, to);
	if (all_fd < 0 || renameat(all_fd, from, all_fd, to) < 0)
		gcr_criu_forget(daemon, from);
}
