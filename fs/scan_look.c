/* SPDX-License-Identifier: MIT */
/* Descriptors and mappings of one process. It runs in the helper gpucr-look, and keeps no state. */
#include "fs/scan_look.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/procfs.h"

struct look {
	const struct gcr_scan_wanted *wanted;
	unsigned int open;
	unsigned int mapped;
};

static bool is_wanted(const struct gcr_scan_wanted_device *device)
{
	return device->path[0] != '\0';
}

static int note_open(int fd, const char *target, void *data)
{
	struct look *look = data;

	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX; i++)
		if (is_wanted(&look->wanted->devices[i]) &&
		    !strcmp(target, look->wanted->devices[i].path))
			look->open |= 1u << i;
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

/* Ends when all that are open have been found. */
static int note_mapped(const char *path, void *data)
{
	struct look *look = data;

	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX; i++)
		if (look->open & 1u << i && is_mapping_of(&look->wanted->devices[i], path))
			look->mapped |= 1u << i;
	return look->mapped == look->open;
}

/*
 * Kernel threads and zombies have no program and no files. A process that ends loses its mappings
 * at the same moment as its program, and its descriptors after that.
 */
static bool has_program(pid_t pid)
{
	char start_of_link[2];

	return gcr_proc_link(pid, "exe", start_of_link, sizeof(start_of_link)) != -ESRCH;
}

int gcr_scan_look(pid_t pid, const struct gcr_scan_wanted *wanted, unsigned int *ret_devices,
		  uint64_t *ret_start_ticks)
{
	struct look look = {.wanted = wanted};
	struct gcr_proc_stat stat;
	int r;

	if (!has_program(pid))
		return -ESRCH;
	r = gcr_proc_each_link(pid, note_open, &look);
	/*
	 * Who only asks NVML opens the device too, and a child inherits it; a context maps it.
	 */
	if (r == 0 && look.open)
		r = gcr_proc_each_mapping(pid, note_mapped, &look);
	if (r < 0)
		return r;
	if (!look.mapped && !has_program(pid))
		return -ESRCH;
	if (look.mapped) {
		r = gcr_proc_stat(pid, &stat);
		if (r < 0)
			return r;
		*ret_start_ticks = stat.start_ticks;
	}
	*ret_devices = look.mapped;
	return 0;
}
