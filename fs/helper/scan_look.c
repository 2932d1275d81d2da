/* SPDX-License-Identifier: MIT */
/* Descriptors and mappings of one process. Runs in the helper gpucr-look; no state. */
#include "fs/helper/scan_look.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_file.h"
#include "lib/procfs.h"

#define FIRST_LINKS 1024
#define CLOCK_LINKS 128 /* links read between two checks of the time */

struct look {
	const struct gcr_scan_wanted *wanted;
	int64_t until_usec;
	unsigned int open;
	unsigned int asked; /* devices whose mappings are searched for */
	unsigned int mapped;
};

static bool is_wanted(const struct gcr_scan_wanted_device *device)
{
	return device->path[0] != '\0';
}

static void note_open(struct look *look, const char *target)
{
	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX; i++)
		if (is_wanted(&look->wanted->devices[i]) &&
		    !strcmp(target, look->wanted->devices[i].path))
			look->open |= 1u << i;
}

/* Have all of @devices been found open, so that the search can stop? */
static bool is_open(const struct look *look, unsigned int devices)
{
	return (look->open & devices) == devices;
}

static bool is_late(const struct look *look)
{
	return look->until_usec != INT64_MAX && gcr_clock_usec() >= look->until_usec;
}

/*
 * Looks at the next @most descriptors, or until all of @devices are found. 1: end of the directory.
 */
static int look_at_links(struct look *look, DIR *directory, unsigned int devices, unsigned int most)
{
	char target[GCR_SCAN_PATH_BYTES + 1];
	struct dirent *entry;

	while (most && !is_open(look, devices)) {
		ssize_t length;

		errno = 0;
		entry = readdir(directory);
		if (!entry)
			return errno ? gcr_proc_error(errno) : 1;
		if (entry->d_name[0] == '.')
			continue;
		most--;
		if (most % CLOCK_LINKS == 0 && is_late(look))
			return -ETIMEDOUT;
		/* A longer link is not one of our devices. */
		length = readlinkat(dirfd(directory), entry->d_name, target, sizeof(target) - 1);
		if (length < 0 && errno != ENOENT && errno != ENAMETOOLONG)
			return gcr_proc_error(errno);
		target[length < 0 ? 0 : length] = '\0';
		note_open(look, target);
	}
	return 0;
}

static bool is_mapping_of(const struct gcr_scan_wanted_device *device, const char *path)
{
	const char *slash = strrchr(device->path, '/');
	size_t length = (size_t)(slash - device->path);

	if (!device->mapped[0][0])
		return !strcmp(path, device->path);
	if (strncmp(path, device->path, length) != 0 || path[length] != '/')
		return false;
	path += length + 1;
	for (size_t i = 0; i < GCR_SCAN_MAPPED_MAX && device->mapped[i][0]; i++) {
		size_t name = strlen(device->mapped[i]);

		if (!strncmp(path, device->mapped[i], name) &&
		    path[name + strspn(path + name, "0123456789")] == '\0')
			return true;
	}
	return false;
}

/* Stops the search when all devices that are searched for have been found. */
static int note_mapped(const char *path, void *data)
{
	struct look *look = data;

	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX; i++)
		if (look->asked & 1u << i && is_mapping_of(&look->wanted->devices[i], path))
			look->mapped |= 1u << i;
	return look->mapped == look->asked;
}

/*
 * Finds the devices that are open and mapped. A process may have very many descriptors, and reading
 * them costs far more than reading its mappings. So after the first FIRST_LINKS of them, more are
 * read only if the process has a device mapped that was not found open, and until that is found.
 */
static int look_at_process(struct look *look, pid_t pid)
{
	_cleanup_closedir_ DIR *directory = NULL;
	char path[GCR_PROC_PATH_BYTES];
	unsigned int all = 0;
	int r;

	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX; i++)
		if (is_wanted(&look->wanted->devices[i]))
			all |= 1u << i;
	gcr_proc_path(path, pid, "fd");
	directory = opendir(path);
	if (!directory)
		return gcr_proc_error(errno);
	r = look_at_links(look, directory, all, FIRST_LINKS);
	if (r < 0)
		return r;
	/*
	 * A user of NVML alone opens the device too, and a child inherits it; only a context maps
	 * it.
	 */
	look->asked = r == 1 ? look->open : all;
	if (look->asked)
		r = gcr_proc_each_mapping(pid, note_mapped, look);
	if (r >= 0 && look->asked == all && !is_open(look, look->mapped))
		r = look_at_links(look, directory, look->mapped, UINT_MAX);
	look->mapped &= look->open;
	if (r < 0)
		return r;
	/* readdir(3) also stops without an error if the process has ended. */
	return !look->mapped && access(path, F_OK) < 0 ? gcr_proc_error(errno) : 0;
}

/*
 * Does the process have a program? Kernel threads and zombies have none, and no files. An ending
 * process loses its mappings at the same time as its program, and its descriptors after that.
 */
static bool has_program(pid_t pid)
{
	char start_of_link[2];

	return gcr_proc_link(pid, "exe", start_of_link, sizeof(start_of_link)) != -ESRCH;
}

int gcr_scan_look_until(pid_t pid, const struct gcr_scan_wanted *wanted, int64_t until_usec,
			unsigned int *ret_devices, uint64_t *ret_start_ticks)
{
	struct look look = {.wanted = wanted, .until_usec = until_usec};
	_cleanup_close_ int process_fd = -1;
	char path[GCR_PROC_PATH_BYTES];
	struct gcr_proc_stat stat;
	int r;

	if (!has_program(pid))
		return -ESRCH;
	/*
	 * This descriptor becomes invalid with its process: if it is still valid at the end, all
	 * results are of the same process.
	 */
	gcr_proc_path(path, pid, "");
	process_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (process_fd < 0)
		return gcr_proc_error(errno);
	r = look_at_process(&look, pid);
	if (r < 0)
		return r;
	if (!look.mapped && !has_program(pid))
		return -ESRCH;
	if (look.mapped) {
		r = gcr_proc_stat(pid, &stat);
		if (r < 0)
			return r;
		if (faccessat(process_fd, "stat", F_OK, 0) < 0)
			return -ESRCH;
		*ret_start_ticks = stat.start_ticks;
	}
	*ret_devices = look.mapped;
	return 0;
}

int gcr_scan_look(pid_t pid, const struct gcr_scan_wanted *wanted, unsigned int *ret_devices,
		  uint64_t *ret_start_ticks)
{
	return gcr_scan_look_until(pid, wanted, INT64_MAX, ret_devices, ret_start_ticks);
}
