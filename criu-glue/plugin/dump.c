// SPDX-License-Identifier: MIT
/*
 * A dump. When CRIU pauses the root of the tree, all GPU processes below it are frozen and parked,
 * all or none. When all tasks are stopped, their snapshots are copied into the images. From the
 * freeze on, a keeper (keeper.c) runs. The hooks return 0 (CRIU calls no other plugin), -ENOTSUP
 * (CRIU does) and -1; not an errno, because EOPNOTSUPP would be taken for -ENOTSUP.
 */
#include "criu-glue/plugin/plugin.h"

#include <errno.h>
#include <fcntl.h>
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
#include "lib/protocol.h"

#define DEPTH_MAX     256
#define SUBJECTS_MAX  512 /* in one write (gpucrfs-verbs(7)) */
#define SUBJECT_BYTES 12  /* of one pid in it */

struct subject {
	pid_t pid;
	bool was_frozen; /* by another user of the mount: stays frozen, however the dump ends */
	bool is_saved;
	/* The hooks' result: 0, or -ENOTSUP if the vendor's plugin is to be called too. */
	int answer;
	pid_t own_pid; /* in the name of its copy */
	int pidfd;
};

static struct {
	char *mount;
	struct subject *subjects;
	size_t count;
	int *keepers; /* the keepers' sockets */
	size_t keepers_count;
	bool is_noted; /* recorded in the inventory of the images */
} dump;

static int log_error(const struct gcr_error *error)
{
	gcr_plugin_log(GCR_PLUGIN_ERROR, "%s", error->words);
	return -1;
}

static int remove_stale(long number, void *data)
{
	return gcr_images_remove(criu_get_image_dir(), number, data);
}

static void forget(size_t first)
{
	for (size_t i = first; i < dump.count; i++)
		if (dump.subjects[i].pidfd >= 0)
			close(dump.subjects[i].pidfd);
	dump.count = first;
}

static void clear(void)
{
	forget(0);
	free(dump.subjects);
	free(dump.mount);
	free(dump.keepers);
	memset(&dump, 0, sizeof(dump));
}

/* See plugin.h. Returns 1: there may be something to do; 0: there is no mount; -1. */
int gcr_dump_begin(void)
{
	struct gcr_error error = {0};
	int r;

	clear();
	/* Leftovers of an earlier dump into the same directory, even if there is no mount now. */
	if (gcr_images_each(criu_get_image_dir(), remove_stale, &error, &error) < 0)
		return log_error(&error);
	r = gcr_mount_find(&dump.mount, &error);
	if (r == -ENOENT) {
		gcr_plugin_log(GCR_PLUGIN_INFO, "%s: nothing to do", error.words);
		return 0;
	}
	return r < 0 ? log_error(&error) : 1;
}

static struct subject *find_subject(pid_t pid)
{
	for (size_t i = 0; i < dump.count; i++)
		if (dump.subjects[i].pid == pid)
			return &dump.subjects[i];
	return NULL;
}

static int add_subject(pid_t pid, const struct gcr_mount_look *look, struct gcr_error *error)
{
	struct subject *more;
	int pidfd;
	int r;

	if (dump.count >= SUBJECTS_MAX)
		return gcr_error_set(error, E2BIG, "more than %d GPU processes", SUBJECTS_MAX);
	more = reallocarray(dump.subjects, dump.count + 1, sizeof(*more));
	if (!more)
		return gcr_error_set(error, ENOMEM, "no memory");
	dump.subjects = more;
	r = gcr_proc_open(pid, look->start_ticks, &pidfd);
	if (r == -ESRCH) /* the process has just ended */
		return 0;
	if (r < 0)
		return gcr_error_set(error, -r, "process %d: %s", (int)pid, strerror(-r));
	more[dump.count++] = (struct subject){
		.pid = pid,
		.was_frozen = look->is_frozen,
		.answer = look->has_own_plugin ? -ENOTSUP : 0,
		.pidfd = pidfd,
	};
	return 0;
}

/* Returns 1 at the page of a library that has handed over its memory. */
static int stop_at_handed_over(uintptr_t start, uintptr_t end, void *data)
{
	struct gcr_page_head head;

	return end - start >= GCR_PAGE_BYTES_LEAST &&
	       gcr_proc_peek(*(const pid_t *)data, start, &head, sizeof(head)) == 0 &&
	       head.magic == GCR_PAGE_MAGIC && head.phase > GCR_PRELOAD_GATED;
}

/*
 * Refuses a process that no daemon knows now and that has handed over its GPU memory: CRIU would
 * dump it without that memory, and the next daemon removes the snapshot of a process that is gone.
 */
static int refuse_handed_over(pid_t pid, struct gcr_error *error)
{
	return gcr_proc_each_range(pid, GCR_PAGE_FILE_NAME, stop_at_handed_over, &pid) == 1
		       ? gcr_error_set(error, ENXIO,
				       "process %d is frozen, and the gpucrfs that has its GPU "
				       "memory does not list it: start that first",
				       (int)pid)
		       : 0;
}

static int find_subjects(pid_t pid, unsigned int depth, struct gcr_error *error);

/* Finds subjects among the children of all threads of a process, and all their descendants. */
static int find_below(pid_t pid, unsigned int depth, struct gcr_error *error)
{
	_cleanup_closedir_ DIR *tasks = NULL;
	char path[GCR_PROC_PATH_BYTES];
	struct dirent *entry;
	int r = 0;

	if (depth > DEPTH_MAX)
		return gcr_error_set(error, ELOOP, "the tree of processes is too deep");
	gcr_proc_path(path, pid, "task");
	tasks = opendir(path);
	while (!r && tasks && (entry = readdir(tasks))) {
		_cleanup_free_ char *name = NULL;
		_cleanup_free_ char *text = NULL;
		char *end;

		if (*entry->d_name == '.')
			continue;
		if (asprintf(&name, "/proc/%d/task/%s/children", (int)pid, entry->d_name) < 0)
			return gcr_error_set(error, ENOMEM, "no memory");
		r = gcr_file_read(name, &text, NULL);
		if (r == -ENOENT || r == -ESRCH) { /* the thread has ended */
			r = 0;
			continue;
		}
		if (r < 0)
			return gcr_error_set(error, -r, "%s: %s", name, strerror(-r));
		for (char *at = text; !r; at = end) {
			long child = strtol(at, &end, 10);

			if (end == at)
				break;
			r = find_subjects((pid_t)child, depth + 1, error);
		}
	}
	return r;
}

static int find_subjects(pid_t pid, unsigned int depth, struct gcr_error *error)
{
	struct gcr_mount_look look = {.kind = GCR_MOUNT_NOTHING};
	int r = dump.mount ? gcr_mount_look(dump.mount, pid, &look, error) : 0;

	if (!r && look.kind == GCR_MOUNT_PROCESS && !find_subject(pid))
		r = add_subject(pid, &look, error);
	else if (!r && look.kind == GCR_MOUNT_NOTHING)
		r = refuse_handed_over(pid, error);
	return r < 0 ? r : find_below(pid, depth, error);
}

int gcr_dump_check(pid_t pid)
{
	struct gcr_error error = {0};

	return find_subjects(pid, 0, &error) < 0 ? log_error(&error) : -ENOTSUP;
}

/*
 * Starts a keeper for the subjects from @first on that are running; *ret_fd is -1 if there are
 * none.
 */
static int start_keeper(size_t first, int *ret_fd, struct gcr_error *error)
{
	struct gcr_kept kept[SUBJECTS_MAX];
	size_t count = 0;
	int *more;
	int r;

	*ret_fd = -1;
	for (size_t i = first; i < dump.count; i++)
		if (!dump.subjects[i].was_frozen)
			kept[count++] =
				(struct gcr_kept){dump.subjects[i].pid, dump.subjects[i].pidfd};
	if (!count)
		return 0;
	more = reallocarray(dump.keepers, dump.keepers_count + 1, sizeof(*more));
	if (!more)
		return gcr_error_set(error, ENOMEM, "no memory");
	dump.keepers = more;
	r = gcr_keeper_start(dump.mount, kept, count, ret_fd, error);
	if (!r)
		dump.keepers[dump.keepers_count++] = *ret_fd;
	return r;
}

/*
 * -ESRCH: a subject from @first on has ended, and its pid may be another process's. With
 * @are_frozen that one has been frozen in its place: then thaws it.
 */
static int check_ends(size_t first, bool are_frozen, struct gcr_error *error)
{
	struct gcr_error unused;
	char directory[16];
	int r = 0;

	for (size_t i = first; i < dump.count; i++) {
		if (!gcr_becomes_readable(dump.subjects[i].pidfd, 0))
			continue;
		snprintf(directory, sizeof(directory), "%d", (int)dump.subjects[i].pid);
		if (are_frozen)
			gcr_mount_write(dump.mount, directory, "thaw\n", 0, &unused);
		r = gcr_error_set(error, ESRCH, "process %s has ended", directory);
	}
	return r;
}

/*
 * Freezes and parks the subjects from @first on. Writes to the process's own ctl, or for several
 * processes, as one operation, to the root's.
 */
static int freeze(size_t first, struct gcr_error *error)
{
	char verb[32 + SUBJECTS_MAX * SUBJECT_BYTES] = "freeze park";
	size_t length = strlen(verb);
	int r;

	if (first + 1 == dump.count)
		return gcr_mount_write_to(
			dump.mount,
			&(struct gcr_kept){dump.subjects[first].pid, dump.subjects[first].pidfd},
			"freeze park\n", error);
	for (size_t i = first; i < dump.count; i++)
		length += (size_t)snprintf(verb + length, sizeof(verb) - length, " %d",
					   (int)dump.subjects[i].pid);
	verb[length++] = '\n';
	verb[length] = '\0';
	r = check_ends(first, false, error);
	return r ? r : gcr_mount_write(dump.mount, "", verb, 0, error);
}

/* Freezes the subjects from @first on: all or none. */
static int freeze_all(size_t first, struct gcr_error *error)
{
	unsigned int alarm_sec;
	int keeper_fd;
	int r = start_keeper(first, &keeper_fd, error);

	if (r < 0)
		return r;
	/*
	 * CRIU's limit is meant for stopping tasks, which takes milliseconds; moving VRAM takes
	 * seconds, and the daemon has a limit of its own for that.
	 */
	alarm_sec = alarm(0);
	r = freeze(first, error);
	alarm(alarm_sec);
	if (r < 0 && keeper_fd >= 0)
		gcr_keeper_tell_failure(keeper_fd);
	/* The freeze has succeeded: the keeper is to thaw the others, though the dump fails. */
	if (!r && first + 1 < dump.count)
		r = check_ends(first, true, error);
	return r;
}

int gcr_dump_pause(pid_t pid)
{
	struct gcr_error error = {0};
	size_t first = dump.count;
	int r;

	if (find_subject(pid))
		return find_subject(pid)->answer;
	r = find_subjects(pid, 0, &error);
	if (!r && dump.count > first) {
		gcr_plugin_log(GCR_PLUGIN_INFO, "freezing %zu GPU processes from %d on",
			       dump.count - first, (int)pid);
		r = freeze_all(first, &error);
		if (r < 0)
			gcr_error_prefix(&error, "the GPU processes from %d on cannot be frozen",
					 (int)pid);
	}
	if (r < 0) {
		forget(first);
		return log_error(&error);
	}
	if (dump.count > first && !dump.is_noted && add_inventory_plugin) {
		if (add_inventory_plugin(GCR_PLUGIN_NAME) < 0) {
			gcr_error_set(&error, ENOMEM, "the plugin cannot be noted in the images");
			return log_error(&error);
		}
		dump.is_noted = true;
	}
	return find_subject(pid) ? find_subject(pid)->answer : -ENOTSUP;
}

static int save(struct subject *subject, struct gcr_error *error)
{
	static const struct gcr_copy_owner anybody;
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int from = -1;
	_cleanup_close_ int to = -1;
	char name[32];
	int r;

	r = gcr_own_pid(subject->pid, &subject->own_pid, error);
	if (r < 0)
		return r;
	snprintf(name, sizeof(name), GCR_IMAGES_PREFIX "%d", (int)subject->own_pid);
	if (asprintf(&path, "%s/%d/snapshot", dump.mount, (int)subject->pid) < 0)
		return gcr_error_set(error, ENOMEM, "no memory");
	from = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (from < 0)
		return gcr_error_set(error, errno, "%s: %s", path, strerror(errno));
	if (mkdirat(criu_get_image_dir(), name, 0700) < 0)
		return gcr_error_set(error, errno, "%s among the images: %s", name,
				     strerror(errno));
	subject->is_saved = true;
	to = gcr_beneath_open(criu_get_image_dir(), name, O_RDONLY | O_DIRECTORY);
	if (to < 0)
		return gcr_error_set(error, -to, "%s among the images: %s", name, strerror(-to));
	return gcr_snapshot_copy(from, to, &anybody, error);
}

int gcr_dump_save(pid_t pid)
{
	struct subject *subject = find_subject(pid);
	struct gcr_mount_look look;
	struct gcr_error error = {0};
	int r;

	if (!subject) {
		r = gcr_mount_look(dump.mount, pid, &look, &error);
		if (!r && look.kind == GCR_MOUNT_PROCESS)
			r = gcr_error_set(&error, EAGAIN,
					  "process %d has begun to use a GPU just now: try again",
					  (int)pid);
		return r < 0 ? log_error(&error) : -ENOTSUP;
	}
	r = save(subject, &error);
	if (r < 0) {
		gcr_error_prefix(&error, "the GPU memory of process %d could not be saved",
				 (int)pid);
		return log_error(&error);
	}
	gcr_plugin_log(GCR_PLUGIN_INFO,
		       "the GPU memory of process %d is in " GCR_IMAGES_PREFIX "%d", (int)pid,
		       (int)subject->own_pid);
	return subject->answer;
}

void gcr_dump_end(bool failed)
{
	struct gcr_error error = {0};

	for (size_t i = 0; i < dump.count; i++)
		if (failed && dump.subjects[i].is_saved &&
		    gcr_images_remove(criu_get_image_dir(), dump.subjects[i].own_pid, &error) < 0)
			gcr_plugin_log(GCR_PLUGIN_WARNING, "%s", error.words);
	for (size_t i = 0; i < dump.keepers_count; i++)
		close(dump.keepers[i]);
	clear();
}
