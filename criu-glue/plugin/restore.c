// SPDX-License-Identifier: MIT
/*
 * A restore. Steps that can fail come first, before CRIU has made a process: for each snapshot
 * among the images a place (a directory for a dumped process, gpucrfs-dump(7)) is made in the
 * mount, and the files are copied into it. When the processes exist, still stopped, the daemon is
 * only told their pids: a thaw needs running threads of theirs, so its end is waited for when the
 * restore ends. The processes' libraries are parked with the gate closed; if anything fails, the
 * processes wait there and compute nothing.
 */
#include "criu-glue/plugin/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "criu-glue/plugin/criu_abi.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/proc_file.h"
#include "lib/procfs.h"

#define NAMES_MAX   100
#define NAME_BYTES  64
#define POLL_MS	    500 /* interval of checking that the process still exists */
#define LINES_BYTES 65536

struct place {
	char name[NAME_BYTES]; /* of the directory in the mount */
	pid_t own_pid;	       /* in the program's pid namespace; identifies the process */
	pid_t pid;	       /* 0: not restored (yet) */
	/* The hook's result: 0, or -ENOTSUP if the vendor's plugin is to be called too. */
	int answer;
	int events_fd; /* reports the end of the thaw; -1: no thaw requested */
	bool failed;
};

static struct {
	char *mount;
	struct place *places;
	size_t count;
} restore;

static int log_error(const struct gcr_error *error)
{
	gcr_plugin_log(GCR_PLUGIN_ERROR, "%s", error->words);
	return -1;
}

/* Removes the place with its contents. */
static void remove_place(const struct place *place)
{
	_cleanup_free_ char *path = NULL;

	if (asprintf(&path, "%s/%s", restore.mount, place->name) < 0 ||
	    (rmdir(path) < 0 && errno != ENOENT))
		gcr_plugin_log(GCR_PLUGIN_WARNING, "%s/%s could not be removed: %s", restore.mount,
			       place->name, strerror(errno));
}

static void clear(void)
{
	for (size_t i = 0; i < restore.count; i++)
		if (restore.places[i].events_fd >= 0)
			close(restore.places[i].events_fd);
	free(restore.places);
	free(restore.mount);
	memset(&restore, 0, sizeof(restore));
}

static int make_place(struct place *place, struct gcr_error *error)
{
	_cleanup_free_ char *path = NULL;

	for (int i = 0; i < NAMES_MAX; i++) {
		free(TAKE_PTR(path));
		snprintf(place->name, sizeof(place->name), "criu-%d-%d-%d", (int)place->own_pid,
			 (int)getpid(), i);
		if (asprintf(&path, "%s/%s", restore.mount, place->name) < 0)
			return gcr_error_set(error, ENOMEM, "no memory");
		if (!mkdir(path, 0700))
			return 0;
		if (errno != EEXIST)
			break;
	}
	return gcr_error_set(error, errno, "%s cannot be made: %s", path, strerror(errno));
}

static int fill_place(const struct place *place, int from, const struct gcr_copy_owner *owner,
		      struct gcr_error *error)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int to = -1;

	if (asprintf(&path, "%s/%s/snapshot", restore.mount, place->name) < 0)
		return gcr_error_set(error, ENOMEM, "no memory");
	to = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (to < 0)
		return gcr_error_set(error, errno, "%s: %s", path, strerror(errno));
	return gcr_snapshot_copy(from, to, owner, error);
}

/* Was the process frozen by the engine that leaves a part to the vendor's plugin? */
static bool has_own_plugin(int fd)
{
	_cleanup_close_ int manifest_fd = gcr_beneath_open_file(fd, "manifest", NULL);
	char head[1024];
	ssize_t length = manifest_fd < 0 ? -1 : pread(manifest_fd, head, sizeof(head) - 1, 0);

	if (length < 0)
		return false;
	head[length] = '\0';
	return strstr(head, "\n  \"engine\": \"hip\",\n");
}

struct bringing {
	struct gcr_copy_owner owner;
	struct gcr_error *error;
};

static int bring(long number, void *data)
{
	struct bringing *bringing = data;
	_cleanup_close_ int from = -1;
	char name[32];
	struct place *more;
	struct place *place;
	int r;

	snprintf(name, sizeof(name), GCR_IMAGES_PREFIX "%ld", number);
	from = gcr_beneath_open(criu_get_image_dir(), name, O_RDONLY | O_DIRECTORY);
	if (from < 0)
		return gcr_error_set(bringing->error, -from, "%s: %s", name, strerror(-from));
	more = reallocarray(restore.places, restore.count + 1, sizeof(*more));
	if (!more)
		return gcr_error_set(bringing->error, ENOMEM, "no memory");
	restore.places = more;
	place = &more[restore.count];
	*place = (struct place){
		.own_pid = (pid_t)number,
		.answer = has_own_plugin(from) ? -ENOTSUP : 0,
		.events_fd = -1,
	};
	r = make_place(place, bringing->error);
	if (!r) {
		restore.count++;
		r = fill_place(place, from, &bringing->owner, bringing->error);
	}
	if (r < 0)
		gcr_error_prefix(bringing->error, "%s", name);
	return r;
}

static int count(long number, void *data)
{
	++*(size_t *)data;
	return 0;
}

/*
 * Were the images made with this plugin? CRIU 4.0 and its images do not tell: *ret_is_known is
 * false then.
 */
static bool is_in_inventory(bool *ret_is_known)
{
	/* True for any name: the images are from a CRIU that had no list of plugins. */
	*ret_is_known = check_and_remove_inventory_plugin &&
			!check_and_remove_inventory_plugin("?", 1);
	return *ret_is_known &&
	       check_and_remove_inventory_plugin(GCR_PLUGIN_NAME, strlen(GCR_PLUGIN_NAME));
}

/* See plugin.h. Returns 1: there is something to do; 0: nothing; -1. */
int gcr_restore_begin(void)
{
	struct gcr_error error = {0};
	struct bringing bringing = {.owner.is_checked = true, .error = &error};
	struct stat status;
	size_t snapshots = 0;
	bool is_known;
	bool is_wanted = is_in_inventory(&is_known);
	int r;

	clear();
	if (gcr_images_each(criu_get_image_dir(), count, &snapshots, &error) < 0)
		return log_error(&error);
	if (is_wanted && !snapshots) {
		gcr_error_set(&error, ENOENT,
			      "the images are of GPU processes, and no directory " GCR_IMAGES_PREFIX
			      "PID is among them: copy them whole");
		return log_error(&error);
	}
	if (!snapshots)
		return 0;
	if (is_known && !is_wanted) {
		gcr_plugin_log(GCR_PLUGIN_WARNING,
			       "directories " GCR_IMAGES_PREFIX
			       "PID among the images do not belong to them: not used");
		return 0;
	}
	r = gcr_mount_find(&restore.mount, &error);
	if (r < 0) {
		gcr_error_prefix(&error, "the images hold GPU memory");
		return log_error(&error);
	}
	if (fstatat(criu_get_image_dir(), "inventory.img", &status, AT_SYMLINK_NOFOLLOW) < 0) {
		gcr_error_set(&error, errno, "inventory.img: %s", strerror(errno));
		clear();
		return log_error(&error);
	}
	bringing.owner.uid = status.st_uid;
	r = gcr_images_each(criu_get_image_dir(), bring, &bringing, &error);
	if (r < 0) {
		for (size_t i = 0; i < restore.count; i++)
			remove_place(&restore.places[i]);
		clear();
		return log_error(&error);
	}
	return 1;
}

/* Tells the daemon to thaw the process. Returns 0 when the thaw has been accepted. */
static int notify(struct place *place, pid_t pid, struct gcr_error *error)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int events_fd = -1;
	char verb[32];
	int r;

	place->pid = pid;
	if (asprintf(&path, "%s/%s/events", restore.mount, place->name) < 0)
		return gcr_error_set(error, ENOMEM, "no memory");
	events_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (events_fd < 0 || lseek(events_fd, 0, SEEK_END) < 0)
		return gcr_error_set(error, errno, "%s: %s", path, strerror(errno));
	snprintf(verb, sizeof(verb), "thaw pid=%d\n", (int)pid);
	r = gcr_mount_write(restore.mount, place->name, verb, O_NONBLOCK, error);
	if (!r)
		place->events_fd = TAKE_FD(events_fd);
	return r;
}

static int log_failed(struct place *place, const struct gcr_error *error)
{
	place->failed = true;
	gcr_plugin_log(GCR_PLUGIN_ERROR,
		       "process %d is restored, but cannot be thawed, and stands still: %s (try "
		       "again: echo thaw pid=%d >%s/%s/ctl)",
		       (int)place->pid, error->words, (int)place->pid, restore.mount, place->name);
	return -1;
}

int gcr_restore_resume(pid_t pid)
{
	struct gcr_error error = {0};
	pid_t own_pid;

	if (gcr_own_pid(pid, &own_pid, &error) < 0)
		return log_error(&error);
	for (size_t i = 0; i < restore.count; i++) {
		struct place *place = &restore.places[i];

		if (place->own_pid == own_pid && !place->pid)
			return notify(place, pid, &error) < 0 ? log_failed(place, &error)
							      : place->answer;
	}
	return -ENOTSUP;
}

/* Does the process exist, and can it run? */
static bool can_run(pid_t pid)
{
	struct gcr_proc_stat stat;

	return !gcr_proc_stat(pid, &stat) && !strchr("TZX", stat.state);
}

/*
 * Does the mount's status say that the process runs? So the end of the thaw is noticed even if no
 * event arrives on the open `events`.
 */
static bool is_running(const struct place *place)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_free_ char *text = NULL;

	return asprintf(&path, "%s/%s/status", restore.mount, place->name) >= 0 &&
	       !gcr_file_read(path, &text, NULL) && strstr(text, "\nstate running\n");
}

/* Waits for the end of the thaw: 0, or -errno with a message. */
static int wait_thawed(const struct place *place, struct gcr_error *error)
{
	_cleanup_free_ char *lines = calloc(1, LINES_BYTES);
	size_t bytes = 0;
	int result;

	if (!lines)
		return gcr_error_set(error, ENOMEM, "no memory");
	for (;;) {
		struct pollfd wait = {.fd = place->events_fd, .events = POLLIN};
		ssize_t got = read(place->events_fd, lines + bytes, LINES_BYTES - 1 - bytes);

		if (got < 0 && errno != EINTR)
			return gcr_error_set(error, errno, "its events: %s", strerror(errno));
		if (got > 0) {
			char *last;

			bytes += (size_t)got;
			lines[bytes] = '\0';
			last = strrchr(lines, '\n');
			if (last && gcr_mount_verb_end(lines, "thaw", &result, error) == 1)
				return result;
			if (last) { /* keeps only the incomplete last line */
				bytes -= (size_t)(last + 1 - lines);
				memmove(lines, last + 1, bytes + 1);
			}
			if (bytes == LINES_BYTES - 1)
				return gcr_error_set(error, EIO, "its events have no lines");
			continue;
		}
		if (!can_run(place->pid))
			return gcr_error_set(error, ESRCH, "it has ended, or is stopped");
		if (is_running(place))
			return 0;
		if (poll(&wait, 1, POLL_MS) < 0 && errno != EINTR)
			return gcr_error_set(error, errno, "poll: %s", strerror(errno));
	}
}

bool gcr_restore_end(bool failed)
{
	bool is_well = true;

	for (size_t i = 0; i < restore.count; i++) {
		struct place *place = &restore.places[i];
		struct gcr_error error = {0};

		if (failed) {
			remove_place(place);
		} else if (!place->pid) {
			gcr_plugin_log(GCR_PLUGIN_WARNING,
				       "there is no process for " GCR_IMAGES_PREFIX "%d: removed",
				       (int)place->own_pid);
			remove_place(place);
		} else if (place->failed) {
			is_well = false;
		} else if (!can_run(place->pid)) {
			gcr_plugin_log(GCR_PLUGIN_INFO,
				       "process %d has ended, or is stopped: %s/%s/status tells of "
				       "it",
				       (int)place->pid, restore.mount, place->name);
		} else if (wait_thawed(place, &error) < 0 && can_run(place->pid)) {
			log_failed(place, &error);
			is_well = false;
		}
	}
	clear();
	return is_well;
}
