/* SPDX-License-Identifier: MIT */
/*
 * Reading /proc and the cgroup trees. Processes vanish while they are read: whatever the kernel
 * says then (ENOENT, ESRCH, an empty file), the caller hears -ESRCH. Nothing here keeps state.
 */
#include "lib/procfs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/nsfs.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/cleanup.h"

#define PROC_PATH_BYTES 64
#define LINK_BYTES	4096 /* the kernel cuts a link's text at a page */

/* environ may be as large as the stack's quarter; more than this is not a program's environment. */
#define FILE_BYTES_MAX (64u << 20)

static void proc_path(char path[PROC_PATH_BYTES], pid_t pid, const char *name)
{
	snprintf(path, PROC_PATH_BYTES, "/proc/%d/%s", (int)pid, name);
}

/* What an error below /proc/PID means to a caller. */
static int proc_error(int number)
{
	switch (number) {
	case ENOENT:
		return -ESRCH;
	case EPERM:
		return -EACCES;
	default:
		return -number;
	}
}

/* The whole of a file whose size is not known, with a NUL after it. Returns -errno as it is. */
static int read_file(const char *path, char **ret_text, size_t *ret_bytes)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_close_ int fd = -1;
	size_t size = 4096;
	size_t used = 0;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		return -errno;
	text = malloc(size);
	if (!text)
		return -ENOMEM;
	for (;;) {
		ssize_t got;

		if (used + 1 == size) {
			char *larger;

			if (size >= FILE_BYTES_MAX)
				return -EFBIG;
			larger = realloc(text, size * 2);
			if (!larger)
				return -ENOMEM;
			text = larger;
			size *= 2;
		}
		got = read(fd, text + used, size - used - 1);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			break;
		used += (size_t)got;
	}
	text[used] = '\0';
	*ret_text = TAKE_PTR(text);
	if (ret_bytes)
		*ret_bytes = used;
	return 0;
}

#define PF_EXITING 0x4ul /* linux/sched.h; it stands in /proc/PID/stat as it is */

static int read_proc_file(pid_t pid, const char *name, char **ret_text, size_t *ret_bytes)
{
	char path[PROC_PATH_BYTES];
	int r;

	if (pid <= 0)
		return -ESRCH;
	proc_path(path, pid, name);
	r = read_file(path, ret_text, ret_bytes);
	return r < 0 ? proc_error(-r) : 0;
}

/* A whole unsigned number, nothing before it and only white space after it. */
static int parse_u64(const char *text, uint64_t *ret_value)
{
	char *end;
	unsigned long long value;

	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno)
		return -errno;
	while (isspace((unsigned char)*end))
		end++;
	if (*end)
		return -EINVAL;
	*ret_value = value;
	return 0;
}

int gcr_proc_stat(pid_t pid, struct gcr_proc_stat *ret_stat)
{
	struct gcr_proc_stat stat = {};
	_cleanup_free_ char *text = NULL;
	size_t bytes;
	size_t comm_bytes;
	char *open_bracket;
	char *close_bracket;
	char *field;
	int parent;
	int used = 0;
	int r;

	r = read_proc_file(pid, "stat", &text, &bytes);
	if (r < 0)
		return r;
	if (bytes == 0)
		return -ESRCH;
	/* The name may hold brackets, blanks and newlines; what follows it never holds ')'. */
	open_bracket = memchr(text, '(', bytes);
	close_bracket = memrchr(text, ')', bytes);
	if (!open_bracket || !close_bracket || close_bracket < open_bracket)
		return -EPROTO;
	comm_bytes = (size_t)(close_bracket - open_bracket - 1);
	if (comm_bytes >= sizeof(stat.comm))
		comm_bytes = sizeof(stat.comm) - 1;
	memcpy(stat.comm, open_bracket + 1, comm_bytes);

	field = close_bracket + 1;
	if (sscanf(field, " %c %d%n", &stat.state, &parent, &used) != 2)
		return -EPROTO;
	stat.parent = parent;
	field += used;
	/* now behind field 4; field 9 has the flags, field 22 is the start time */
	for (int number = 5; number <= 22; number++) {
		field += strspn(field, " ");
		if (number == 22)
			break;
		if (number == 9)
			stat.is_exiting = strtoul(field, NULL, 10) & PF_EXITING;
		field += strcspn(field, " ");
	}
	if (sscanf(field, "%" SCNu64, &stat.start_ticks) != 1)
		return -EPROTO;
	*ret_stat = stat;
	return 0;
}

static void parse_ns_pids(const char *text, struct gcr_proc_status *status)
{
	char *end;

	status->ns_pids_count = 0;
	while (status->ns_pids_count < GCR_NS_PIDS_MAX) {
		long id = strtol(text, &end, 10);

		if (end == text)
			return;
		status->ns_pids[status->ns_pids_count++] = (pid_t)id;
		text = end;
	}
}

int gcr_proc_status(pid_t pid, struct gcr_proc_status *ret_status)
{
	struct gcr_proc_status status = {};
	_cleanup_free_ char *text = NULL;
	char *rest;
	int r;

	r = read_proc_file(pid, "status", &text, NULL);
	if (r < 0)
		return r;
	/* The kernel escapes newlines of the name here, so every line is what it seems to be. */
	rest = text;
	while (rest && *rest) {
		char *line = strsep(&rest, "\n");
		char *value = strchr(line, ':');

		if (!value)
			continue;
		*value++ = '\0';
		if (strcmp(line, "Tgid") == 0) {
			status.thread_group = (pid_t)strtol(value, NULL, 10);
		} else if (strcmp(line, "Uid") == 0) {
			char *effective;

			strtoul(value, &effective, 10);
			status.effective_uid = (uid_t)strtoul(effective, NULL, 10);
		} else if (strcmp(line, "NSpid") == 0) {
			parse_ns_pids(value, &status);
		} else if (strcmp(line, "SigPnd") == 0 || strcmp(line, "ShdPnd") == 0) {
			status.signals_pending |= strtoull(value, NULL, 16);
		} else if (strcmp(line, "SigBlk") == 0) {
			status.signals_blocked = strtoull(value, NULL, 16);
		} else if (strcmp(line, "RssAnon") == 0) {
			status.rss_anon_bytes = strtoull(value, NULL, 10) * 1024;
		} else if (strcmp(line, "VmSwap") == 0) {
			status.swap_bytes = strtoull(value, NULL, 10) * 1024;
		}
	}
	if (status.thread_group == 0)
		return -ESRCH;
	if (status.ns_pids_count == 0) {
		/* a kernel without pid namespaces */
		status.ns_pids[0] = pid;
		status.ns_pids_count = 1;
	}
	*ret_status = status;
	return 0;
}

int gcr_proc_owner(pid_t pid, uid_t *ret_uid, gid_t *ret_gid)
{
	char path[PROC_PATH_BYTES];
	struct stat status;

	if (pid <= 0)
		return -ESRCH;
	proc_path(path, pid, "");
	if (stat(path, &status) < 0)
		return proc_error(errno);
	*ret_uid = status.st_uid;
	*ret_gid = status.st_gid;
	return 0;
}

int gcr_proc_each_file(pid_t pid, int (*visit)(const char *target, void *data), void *data)
{
	_cleanup_closedir_ DIR *directory = NULL;
	char path[PROC_PATH_BYTES];

	if (pid <= 0)
		return -ESRCH;
	proc_path(path, pid, "fd");
	directory = opendir(path);
	if (!directory)
		return proc_error(errno);
	for (;;) {
		char target[LINK_BYTES + 1];
		struct dirent *entry;
		ssize_t length;
		int r;

		errno = 0;
		entry = readdir(directory);
		if (!entry && errno)
			return proc_error(errno);
		/* readdir also ends without an error when the process is gone: ask once more */
		if (!entry)
			return access(path, F_OK) < 0 ? proc_error(errno) : 0;
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		length = readlinkat(dirfd(directory), entry->d_name, target, sizeof(target) - 1);
		if (length < 0) {
			/* closed since */
			if (errno == ENOENT || errno == ENAMETOOLONG)
				continue;
			return proc_error(errno);
		}
		target[length] = '\0';
		r = visit(target, data);
		if (r)
			return r;
	}
}

static int is_file(const char *target, void *path)
{
	return strcmp(target, path) == 0;
}

int gcr_proc_holds_file(pid_t pid, const char *path)
{
	_cleanup_free_ char *copy = strdup(path);

	if (!copy)
		return -ENOMEM;
	return gcr_proc_each_file(pid, is_file, copy);
}

static int compare_strings(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* The sixth column of a line of maps, "" if there is none. */
static char *mapping_path(char *line)
{
	for (int column = 0; column < 5; column++) {
		line += strcspn(line, " ");
		line += strspn(line, " ");
	}
	line[strcspn(line, "\n")] = '\0';
	return line;
}

static void destroy_tree(void **tree)
{
	if (*tree)
		tdestroy(*tree, free);
}

int gcr_proc_each_mapping(pid_t pid, int (*visit)(const char *path, void *data), void *data)
{
	/* A line at a time: maps can have millions of lines, few of which name a new file. */
	_cleanup_(destroy_tree) void *seen = NULL;
	_cleanup_fclose_ FILE *file = NULL;
	_cleanup_free_ char *line = NULL;
	char path[PROC_PATH_BYTES];
	size_t line_bytes = 0;

	if (pid <= 0)
		return -ESRCH;
	proc_path(path, pid, "maps");
	file = fopen(path, "re");
	if (!file)
		return proc_error(errno);
	for (;;) {
		_cleanup_free_ char *copy = NULL;
		const char *name;
		int r;

		errno = 0;
		if (getline(&line, &line_bytes, file) < 0)
			return feof(file) ? 0 : proc_error(errno ? errno : EIO);
		name = mapping_path(line);
		/* "[heap]", "[anon:...]" and the like are no files */
		if (*name == '\0' || *name == '[' || tfind(name, &seen, compare_strings))
			continue;
		copy = strdup(name);
		if (!copy || !tsearch(copy, &seen, compare_strings))
			return -ENOMEM;
		copy = NULL; /* the tree's */
		r = visit(name, data);
		if (r)
			return r;
	}
}

/* Where in the cgroup trees a process is. */
struct cgroup_place {
	char *unified; /* v2 path, NULL if there is none */
	char *memory;  /* v1 paths of these controllers, NULL if they are v2's or nobody's */
	char *freezer;
};

static void free_place(struct cgroup_place *place)
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

static int cgroup_place(pid_t pid, struct cgroup_place *place)
{
	_cleanup_free_ char *text = NULL;
	char *rest;
	int r;

	r = read_proc_file(pid, "cgroup", &text, NULL);
	if (r < 0)
		return r;
	rest = text;
	while (r == 0 && rest && *rest) {
		/* "hierarchy:controllers:path"; only the path may hold more colons */
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

int gcr_proc_cgroup(pid_t pid, char **ret_path)
{
	_cleanup_(free_place) struct cgroup_place place = {};
	int r;

	r = cgroup_place(pid, &place);
	if (r < 0)
		return r;
	/* In a hybrid setup the v2 tree may be there and unused. */
	if (place.unified && (strcmp(place.unified, "/") != 0 || !place.memory))
		*ret_path = TAKE_PTR(place.unified);
	else if (place.memory)
		*ret_path = TAKE_PTR(place.memory);
	else
		return -ENOENT;
	return 0;
}

/* Where a cgroup tree is mounted, and which of its directories that is. */
struct cgroup_mount {
	char *root;
	char *point;
};

static void free_mount(struct cgroup_mount *mount)
{
	free(mount->root);
	free(mount->point);
}

/* mountinfo writes blanks, tabs, newlines and backslashes as three octal digits. */
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

/* @controller NULL: the v2 tree. -ENOENT: it is not mounted here. */
static int find_cgroup_mount(const char *controller, struct cgroup_mount *mount)
{
	_cleanup_free_ char *text = NULL;
	char *rest;
	int r;

	r = read_file("/proc/self/mountinfo", &text, NULL);
	if (r < 0)
		return r;
	rest = text;
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
 * Calls @visit with the directory of the process's cgroup and then of each ancestor up to the
 * mount, until it returns non-zero. @name is the cgroup's path as the process's cgroup file
 * counts it. A tree that is not mounted here, or not that part of it, has no directories to visit.
 */
static int each_cgroup(const char *controller, const char *cgroup,
		       int (*visit)(const char *directory, const char *name, void *data),
		       void *data)
{
	_cleanup_(free_mount) struct cgroup_mount mount = {};
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
	return read_file(path, ret_text, NULL);
}

static int read_cgroup_u64(const char *directory, const char *file, uint64_t *ret_value)
{
	_cleanup_free_ char *text = NULL;
	int r;

	r = read_cgroup_file(directory, file, &text);
	return r < 0 ? r : parse_u64(text, ret_value);
}

/* The value of "key value" in a flat keyed file's text; false if the key is not there. */
static bool flat_value(const char *text, const char *key, uint64_t *ret_value)
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
	const char *inactive_file; /* key in memory.stat, of the cgroup and all below it */
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

	/* No file (the root, or no memory controller) or "max": no limit at this level. */
	if (read_cgroup_u64(directory, room->files->limit, &limit) < 0 ||
	    read_cgroup_u64(directory, room->files->current, &current) < 0)
		return 0;
	/* File pages count as used, but go when memory is wanted. */
	if (read_cgroup_file(directory, "memory.stat", &stat) == 0)
		flat_value(stat, room->files->inactive_file, &cache);
	current -= cache < current ? cache : current;
	bytes = limit > current ? limit - current : 0;
	if (bytes >= room->bytes)
		return 0;
	room->bytes = bytes;
	return replace_string(&room->what, name);
}

int gcr_proc_memory_room(pid_t pid, uint64_t *ret_bytes, char **ret_what)
{
	_cleanup_(free_place) struct cgroup_place place = {};
	_cleanup_(free_room) struct memory_room room = {};
	_cleanup_free_ char *text = NULL;
	uint64_t available_kib;
	int r;

	r = cgroup_place(pid, &place);
	if (r < 0)
		return r;
	r = read_file("/proc/meminfo", &text, NULL);
	if (r < 0)
		return r;
	if (!flat_value(text, "MemAvailable", &available_kib))
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

/* v2: frozen by itself or an ancestor, be it complete yet or not. */
static int cgroup_is_frozen_v2(const char *directory, const char *name, void *data)
{
	_cleanup_free_ char *text = NULL;
	uint64_t value;

	(void)name;
	(void)data;
	if (read_cgroup_u64(directory, "cgroup.freeze", &value) == 0 && value == 1)
		return 1;
	return read_cgroup_file(directory, "cgroup.events", &text) == 0 &&
	       flat_value(text, "frozen", &value) && value == 1;
}

/* v1: "FREEZING" and "FROZEN" include what an ancestor does. */
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
	_cleanup_(free_place) struct cgroup_place place = {};
	int r;

	r = cgroup_place(pid, &place);
	if (r == 0 && place.unified)
		r = each_cgroup(NULL, place.unified, cgroup_is_frozen_v2, NULL);
	if (r == 0 && place.freezer)
		r = each_cgroup("freezer", place.freezer, cgroup_is_frozen_v1, NULL);
	return r;
}

int gcr_proc_open(pid_t pid, uint64_t start_ticks, int *ret_pidfd)
{
	_cleanup_close_ int pidfd = -1;
	struct gcr_proc_stat stat;
	int r;

	if (pid <= 0)
		return -ESRCH;
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0)
		return -errno;
	r = gcr_proc_stat(pid, &stat);
	if (r < 0)
		return r;
	if (stat.start_ticks != start_ticks)
		return -ESRCH;
	/* Still there, so its pid was not given to another before the start time was read. */
	if (syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) < 0 && errno == ESRCH)
		return -ESRCH;
	*ret_pidfd = TAKE_FD(pidfd);
	return 0;
}

/* A process without a pid in a namespace below ours is in ours. Its status is everybody's to read.
 */
static bool in_our_namespace(pid_t pid)
{
	struct gcr_proc_status status;

	return gcr_proc_status(pid, &status) == 0 && status.ns_pids_count == 1;
}

int gcr_proc_namespace_reaches(pid_t caller, pid_t target)
{
	_cleanup_close_ int namespace = -1;
	char path[PROC_PATH_BYTES];
	struct stat callers;
	struct stat targets;

	if (caller <= 0 || target <= 0)
		return -ESRCH;
	proc_path(path, caller, "ns/pid");
	if (stat(path, &callers) < 0) {
		/* Not dumpable, and we are not root. */
		if (errno != EACCES || !in_our_namespace(caller))
			return proc_error(errno);
		proc_path(path, target, "stat");
		return access(path, F_OK) < 0 ? proc_error(errno) : 1;
	}
	proc_path(path, target, "ns/pid");
	namespace = open(path, O_RDONLY | O_CLOEXEC);
	if (namespace < 0)
		return proc_error(errno);
	for (;;) {
		int parent;

		if (fstat(namespace, &targets) < 0)
			return -errno;
		if (targets.st_dev == callers.st_dev && targets.st_ino == callers.st_ino)
			return 1;
		parent = ioctl(namespace, NS_GET_PARENT);
		/* EPERM: no parent, or none that we may see; the caller's would be below ours */
		if (parent < 0)
			return errno == EPERM ? 0 : -errno;
		close(namespace);
		namespace = parent;
	}
}

int gcr_proc_environ(pid_t pid, const char *name, char **ret_value)
{
	_cleanup_free_ char *text = NULL;
	size_t length = strlen(name);
	size_t bytes;
	int r;

	r = read_proc_file(pid, "environ", &text, &bytes);
	if (r < 0)
		return r;
	for (const char *entry = text; entry < text + bytes; entry += strlen(entry) + 1) {
		char *value;

		if (strncmp(entry, name, length) != 0 || entry[length] != '=')
			continue;
		value = strdup(entry + length + 1);
		if (!value)
			return -ENOMEM;
		*ret_value = value;
		return 0;
	}
	return -ENOENT;
}
