/* SPDX-License-Identifier: MIT */
/* The place of a process in the cgroup trees (v2, v1 or both), and the limits that apply there. */
#include "lib/proc_cgroup.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/proc_file.h"
#include "lib/proc_text.h"

void gcr_cgroup_place_finish(struct gcr_cgroup_place *place)
{
	free(place->unified);
	free(place->memory);
	free(place->freezer);
}

static bool list_has(const char *list, const char *word)
{
	size_t length = strlen(word);

	for (const char *found = list; (found = strstr(found, word)); found += length)
		if ((found == list || found[-1] == ',') &&
		    (found[length] == ',' || found[length] == '\0'))
			return true;
	return false;
}

static int replace_string(char **string, const char *value)
{
	char *copy = strdup(value);

	if (!copy)
		return -ENOMEM;
	free(*string);
	*string = copy;
	return 0;
}

int gcr_cgroup_parse_place(char *text, struct gcr_cgroup_place *place)
{
	char *rest = text;
	int r = 0;

	while (r == 0 && rest && *rest) {
		/* "hierarchy:controllers:path"; only the path may contain more colons */
		char *path = strsep(&rest, "\n");
		const char *hierarchy = strsep(&path, ":");
		const char *controllers = path ? strsep(&path, ":") : NULL;

		if (!path || !controllers)
			continue;
		if (strcmp(hierarchy, "0") == 0 && *controllers == '\0')
			r = replace_string(&place->unified, path);
		if (r == 0 && list_has(controllers, "memory"))
			r = replace_string(&place->memory, path);
		if (r == 0 && list_has(controllers, "freezer"))
			r = replace_string(&place->freezer, path);
	}
	return r;
}

static int cgroup_place(pid_t pid, struct gcr_cgroup_place *place)
{
	_cleanup_free_ char *text = NULL;
	int r = gcr_proc_read(pid, "cgroup", &text, NULL);

	return r < 0 ? r : gcr_cgroup_parse_place(text, place);
}

int gcr_proc_cgroup(pid_t pid, char **ret_path)
{
	_cleanup_(gcr_cgroup_place_finish) struct gcr_cgroup_place place = {};
	int r;

	r = cgroup_place(pid, &place);
	if (r < 0)
		return r;
	/* In a hybrid setup the v2 tree may be mounted but unused. */
	if (place.unified && (strcmp(place.unified, "/") != 0 || !place.memory))
		*ret_path = TAKE_PTR(place.unified);
	else if (place.memory)
		*ret_path = TAKE_PTR(place.memory);
	else
		return -ENOENT;
	return 0;
}

void gcr_cgroup_mount_finish(struct gcr_cgroup_mount *mount)
{
	free(mount->root);
	free(mount->point);
}

/* Replaces the octal escapes of mountinfo (blanks, tabs, newlines and backslashes), in place. */
static void unescape_octal(char *text)
{
	char *out = text;

	while (*text) {
		if (text[0] == '\\' && text[1] >= '0' && text[1] <= '3' && text[2] >= '0' &&
		    text[2] <= '7' && text[3] >= '0' && text[3] <= '7') {
			*out++ = (char)((text[1] - '0') * 64 + (text[2] - '0') * 8 + text[3] - '0');
			text += 4;
		} else {
			*out++ = *text++;
		}
	}
	*out = '\0';
}

int gcr_cgroup_parse_mount(char *text, const char *controller, struct gcr_cgroup_mount *mount)
{
	char *rest = text;
	int r;

	while (rest && *rest) {
		/* id parent major:minor root point options [optional...] - type source super */
		char *line = strsep(&rest, "\n");
		char *tail = strstr(line, " - ");
		char *columns[6] = {};
		const char *type;

		if (!tail)
			continue;
		*tail = '\0';
		tail += 3;
		for (size_t i = 0; i < GCR_ARRAY_SIZE(columns) && line; i++)
			columns[i] = strsep(&line, " ");
		type = strsep(&tail, " ");
		if (!columns[4] || !tail)
			continue;
		strsep(&tail, " ");
		if (controller ? strcmp(type, "cgroup") != 0 || !tail || !list_has(tail, controller)
			       : strcmp(type, "cgroup2") != 0)
			continue;
		unescape_octal(columns[3]);
		unescape_octal(columns[4]);
		r = replace_string(&mount->root, columns[3]);
		return r < 0 ? r : replace_string(&mount->point, columns[4]);
	}
	return -ENOENT;
}

/*
 * Finds where the tree of @controller (NULL: the v2 tree) is mounted in our mount namespace.
 * -ENOENT: nowhere; -ENOMEM: @mount may be partly filled in.
 */
static int find_cgroup_mount(const char *controller, struct gcr_cgroup_mount *mount)
{
	_cleanup_free_ char *text = NULL;
	int r = gcr_file_read("/proc/self/mountinfo", &text, NULL);

	return r < 0 ? r : gcr_cgroup_parse_mount(text, controller, mount);
}

int gcr_proc_cgroup_mount(char **ret_point)
{
	_cleanup_(gcr_cgroup_mount_finish) struct gcr_cgroup_mount mount = {};
	int r = find_cgroup_mount(NULL, &mount);

	if (r == 0)
		*ret_point = TAKE_PTR(mount.point);
	return r;
}

/*
 * Calls @visit for the directory of the process's cgroup and then for each ancestor up to the
 * mount, until @visit returns non-zero. @name is the cgroup's path as in the process's cgroup file.
 * If the tree, or that part of it, is not mounted here, there are no directories to visit.
 */
static int each_cgroup(const char *controller, const char *cgroup,
		       int (*visit)(const char *directory, const char *name, void *data),
		       void *data)
{
	_cleanup_(gcr_cgroup_mount_finish) struct gcr_cgroup_mount mount = {};
	_cleanup_free_ char *directory = NULL;
	_cleanup_free_ char *name = NULL;
	size_t root_length;
	size_t point_length;
	int r;

	r = find_cgroup_mount(controller, &mount);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	root_length = strcmp(mount.root, "/") == 0 ? 0 : strlen(mount.root);
	if (strncmp(cgroup, mount.root, root_length) != 0 ||
	    (cgroup[root_length] != '/' && cgroup[root_length] != '\0'))
		return 0;
	/* "/../x": outside our cgroup namespace */
	if (strncmp(cgroup, "/..", 3) == 0)
		return 0;
	name = strdup(cgroup);
	if (!name || asprintf(&directory, "%s%s", mount.point, cgroup + root_length) < 0) {
		directory = NULL;
		return -ENOMEM;
	}
	point_length = strlen(mount.point);
	for (;;) {
		char *directory_slash;
		char *name_slash;

		r = visit(directory, *name ? name : "/", data);
		if (r)
			return r;
		directory_slash = strrchr(directory, '/');
		name_slash = strrchr(name, '/');
		if (!directory_slash || !name_slash || directory_slash < directory + point_length ||
		    directory_slash[1] == '\0')
			return 0;
		*directory_slash = '\0';
		*name_slash = '\0';
	}
}

static int read_cgroup_file(const char *directory, const char *file, char **ret_text)
{
	_cleanup_free_ char *path = NULL;

	if (asprintf(&path, "%s/%s", directory, file) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	return gcr_file_read(path, ret_text, NULL);
}

static int read_cgroup_u64(const char *directory, const char *file, uint64_t *ret_value)
{
	_cleanup_free_ char *text = NULL;
	int r;

	r = read_cgroup_file(directory, file, &text);
	return r < 0 ? r : gcr_parse_u64(text, ret_value);
}

bool gcr_cgroup_parse_value(const char *text, const char *key, uint64_t *ret_value)
{
	size_t length = strlen(key);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		if (*line == '\n')
			line++;
		if (strncmp(line, key, length) == 0 && (line[length] == ' ' || line[length] == ':'))
			return sscanf(line + length + 1, "%" SCNu64, ret_value) == 1;
	}
	return false;
}

struct memory_files {
	const char *limit;
	const char *current;
	const char *inactive_file; /* key in memory.stat, for the cgroup and its descendants */
};

static const struct memory_files memory_v2 = {"memory.max", "memory.current", "inactive_file"};
static const struct memory_files memory_v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
					      "total_inactive_file"};

struct memory_room {
	const struct memory_files *files;
	uint64_t bytes;
	char *what;
};

static void free_room(struct memory_room *room)
{
	free(room->what);
}

static int narrow_memory_room(const char *directory, const char *name, void *data)
{
	struct memory_room *room = data;
	_cleanup_free_ char *stat = NULL;
	uint64_t limit;
	uint64_t current;
	uint64_t cache = 0;
	uint64_t bytes;

	/* No such file (the root, or no memory controller) or "max": no limit at this level. */
	if (read_cgroup_u64(directory, room->files->limit, &limit) < 0 ||
	    read_cgroup_u64(directory, room->files->current, &current) < 0)
		return 0;
	/* Inactive file pages count as used, but are reclaimed when memory is needed. */
	if (read_cgroup_file(directory, "memory.stat", &stat) == 0)
		gcr_cgroup_parse_value(stat, room->files->inactive_file, &cache);
	current -= cache < current ? cache : current;
	bytes = limit > current ? limit - current : 0;
	if (bytes >= room->bytes)
		return 0;
	room->bytes = bytes;
	return replace_string(&room->what, name);
}

int gcr_proc_memory_room(pid_t pid, uint64_t *ret_bytes, char **ret_what)
{
	_cleanup_(gcr_cgroup_place_finish) struct gcr_cgroup_place place = {};
	_cleanup_(free_room) struct memory_room room = {};
	_cleanup_free_ char *text = NULL;
	uint64_t available_kib;
	int r;

	r = cgroup_place(pid, &place);
	if (r < 0)
		return r;
	r = gcr_file_read("/proc/meminfo", &text, NULL);
	if (r < 0)
		return r;
	if (!gcr_cgroup_parse_value(text, "MemAvailable", &available_kib))
		return -EPROTO;
	room.bytes = available_kib * 1024;
	r = replace_string(&room.what, "MemAvailable");
	if (r == 0 && place.unified) {
		room.files = &memory_v2;
		r = each_cgroup(NULL, place.unified, narrow_memory_room, &room);
	}
	if (r == 0 && place.memory) {
		room.files = &memory_v1;
		r = each_cgroup("memory", place.memory, narrow_memory_room, &room);
	}
	if (r < 0)
		return r;
	*ret_bytes = room.bytes;
	*ret_what = TAKE_PTR(room.what);
	return 0;
}

/* v2: the cgroup or an ancestor is frozen, or is being frozen. */
static int cgroup_is_frozen_v2(const char *directory, const char *name, void *data)
{
	_cleanup_free_ char *text = NULL;
	uint64_t value;

	(void)name;
	(void)data;
	if (read_cgroup_u64(directory, "cgroup.freeze", &value) == 0 && value == 1)
		return 1;
	return read_cgroup_file(directory, "cgroup.events", &text) == 0 &&
	       gcr_cgroup_parse_value(text, "frozen", &value) && value == 1;
}

/* v1: "FREEZING" and "FROZEN" include the effect of ancestors. */
static int cgroup_is_frozen_v1(const char *directory, const char *name, void *data)
{
	_cleanup_free_ char *text = NULL;

	(void)name;
	(void)data;
	return read_cgroup_file(directory, "freezer.state", &text) == 0 &&
	       strncmp(text, "FR", 2) == 0;
}

int gcr_proc_cgroup_frozen(pid_t pid)
{
	_cleanup_(gcr_cgroup_place_finish) struct gcr_cgroup_place place = {};
	int r;

	r = cgroup_place(pid, &place);
	if (r == 0 && place.unified)
		r = each_cgroup(NULL, place.unified, cgroup_is_frozen_v2, NULL);
	if (r == 0 && place.freezer)
		r = each_cgroup("freezer", place.freezer, cgroup_is_frozen_v1, NULL);
	return r;
}
