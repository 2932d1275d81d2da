/* SPDX-License-Identifier: MIT */
/*
 * The part of a preflight that the vendors share: reads /proc/PID and compares the files with a
 * table. The other checks concern the process as a whole: stopped, frozen, a thread.
 */
#include "backend/look.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/proc_cgroup.h"
#include "lib/proc_source.h"
#include "lib/procfs.h"

const struct gcr_obstacle *gcr_obstacle_find(const struct gcr_obstacle *obstacles, size_t count,
					     const char *path, bool is_mapping,
					     const char *device_directory)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	size_t directory_length = strlen(device_directory);
	const char *device = NULL;

	if (strncmp(path, device_directory, directory_length) == 0 && path[directory_length] == '/')
		device = path + directory_length + 1;
	for (size_t i = 0; i < count; i++) {
		const struct gcr_obstacle *row = &obstacles[i];
		size_t length = strlen(row->prefix);
		const char *text = path;

		if (row->kind == GCR_OBSTACLE_DEVICE)
			text = device;
		else if (row->kind == GCR_OBSTACLE_MAPPED)
			text = is_mapping ? name : NULL;
		if (!text || strncmp(text, row->prefix, length) != 0)
			continue;
		if (row->first_number && strtoul(text + length, NULL, 10) < row->first_number)
			continue;
		return row;
	}
	return NULL;
}

void gcr_look_finish(struct gcr_look *look)
{
	free(look->sockets);
}

static const struct gcr_obstacle *find(const struct gcr_look *look, const char *path,
				       bool is_mapping)
{
	return gcr_obstacle_find(look->obstacles, look->obstacles_count, path, is_mapping,
				 look->device_directory);
}

static int refuse_path(const struct gcr_look *look, const struct gcr_obstacle *row,
		       const char *path, const char *verb)
{
	return gcr_error_set(look->error, EOPNOTSUPP, "process %d %s %.96s: %s; %s", (int)look->pid,
			     verb, path, row->why, row->what_to_do);
}

static int remember_socket(struct gcr_look *look, uint64_t inode)
{
	/* grow by doubling: 0, 8, 16, 32, ... */
	if ((look->sockets_count & (look->sockets_count - 1)) == 0 &&
	    (look->sockets_count == 0 || look->sockets_count >= 8)) {
		size_t room = look->sockets_count ? look->sockets_count * 2 : 8;
		uint64_t *larger = reallocarray(look->sockets, room, sizeof(*larger));

		if (!larger)
			return -ENOMEM;
		look->sockets = larger;
	}
	look->sockets[look->sockets_count++] = inode;
	return 0;
}

static int look_at_file(const char *target, void *data)
{
	struct gcr_look *look = data;
	const struct gcr_obstacle *row = find(look, target, false);
	uint64_t inode;

	if (row)
		return refuse_path(look, row, target, "has open");
	if (sscanf(target, "socket:[%" SCNu64 "]", &inode) == 1)
		return remember_socket(look, inode);
	return 0;
}

static int look_at_mapping(const char *path, void *data)
{
	struct gcr_look *look = data;
	const struct gcr_obstacle *row = find(look, path, true);

	return row ? refuse_path(look, row, path, "has mapped") : 0;
}

/* Adds a message to errors that have none yet, such as -EACCES and -ESRCH. */
int gcr_look_explain(int r, const struct gcr_look *look)
{
	if (r == -EACCES)
		return gcr_error_set(look->error, EACCES,
				     "process %d: /proc does not let us look; run the daemon as "
				     "root, or as the process's user",
				     (int)look->pid);
	if (r == -ESRCH)
		return gcr_error_set(look->error, ESRCH, "process %d has ended", (int)look->pid);
	if (gcr_proc_is_silent(r))
		return gcr_error_set(look->error, ETIMEDOUT, "process %d " GCR_PROC_SILENT_WORDS,
				     (int)look->pid);
	if (r < 0 && r != -EOPNOTSUPP)
		return gcr_error_set(look->error, -r, "process %d: cannot read /proc: %s",
				     (int)look->pid, strerrordesc_np(-r));
	return r;
}

/*
 * Refuses a process of which a thread is stopped (-EOPNOTSUPP): the driver's threads, or the
 * library's, have to run, and one stopped thread is enough to prevent that.
 */
static int check_running(const struct gcr_look *look)
{
	_cleanup_closedir_ DIR *tasks = NULL;
	struct gcr_proc_stat stat;
	char path[64];
	struct dirent *entry;
	int r;

	r = gcr_proc_stat(look->pid, &stat);
	if (r < 0)
		return r;
	if (stat.state == 'Z' || stat.state == 'X' || stat.is_exiting) {
		r = gcr_proc_is_ending(look->pid);
		if (r)
			return r < 0 ? r : -ESRCH;
		return gcr_error_set(look->error, EOPNOTSUPP,
				     "the main thread of process %d has ended: the kernel does not "
				     "show what its other threads have open and mapped",
				     (int)look->pid);
	}
	snprintf(path, sizeof(path), "/proc/%d/task", (int)look->pid);
	tasks = opendir(path);
	if (!tasks)
		return errno == ENOENT ? -ESRCH : -errno;
	while ((entry = readdir(tasks))) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		r = gcr_proc_stat((pid_t)strtol(entry->d_name, NULL, 10), &stat);
		if (gcr_proc_is_silent(r))
			return r;
		if (r < 0)
			continue;
		if (stat.state == 'T')
			return gcr_error_set(look->error, EOPNOTSUPP,
					     "process %d is stopped: %s; continue it (kill -CONT "
					     "%d)",
					     (int)look->pid, look->if_stopped, (int)look->pid);
		if (stat.state == 't')
			return gcr_error_set(look->error, EOPNOTSUPP,
					     "process %d is stopped by a debugger (its thread %s): "
					     "%s; let it go on",
					     (int)look->pid, entry->d_name, look->if_stopped);
	}
	return 0;
}

static int check_cgroup(const struct gcr_look *look)
{
	_cleanup_free_ char *cgroup = NULL;
	int r;

	r = gcr_proc_cgroup_frozen(look->pid);
	if (r <= 0)
		return r;
	r = gcr_proc_cgroup(look->pid, &cgroup);
	return gcr_error_set(look->error, EOPNOTSUPP,
			     "process %d is in a frozen cgroup (%.96s): %s; thaw the cgroup first",
			     (int)look->pid, r < 0 ? "?" : cgroup, look->if_stopped);
}

static int check_thread(const struct gcr_look *look)
{
	struct gcr_proc_status status;
	int r;

	r = gcr_proc_status(look->pid, &status);
	if (r < 0 || status.thread_group == look->pid)
		return r;
	return gcr_error_set(look->error, EOPNOTSUPP,
			     "%d is a thread of process %d; freeze the process", (int)look->pid,
			     (int)status.thread_group);
}

int gcr_look_at_process(struct gcr_look *look)
{
	int r = check_thread(look);

	if (r == 0)
		r = check_running(look);
	if (r == 0)
		r = check_cgroup(look);
	if (r == 0)
		r = gcr_proc_each_file(look->pid, look_at_file, look);
	if (r == 0)
		r = gcr_proc_each_mapping(look->pid, look_at_mapping, look);
	return r;
}
