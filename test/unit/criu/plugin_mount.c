// SPDX-License-Identifier: MIT
/*
 * A directory that looks to the CRIU plugin like a mount of gpucrfs. This library is preloaded into
 * the process and interposes some libc calls. FAKE_MOUNT names the directory. Its control files:
 *
 *   .log     a line for each action: "verb DIRECTORY WORDS", "mkdir NAME", "rmdir NAME"
 *   .refuse  lines "VERB ERRNO": a write that begins with VERB fails; ERRNO 0: it writes one byte
 *   .end     the result of an accepted thaw, as in `events`; default "ok". "state": only `status`
 *            says that the process runs; "never": the process does not run
 *   .kill    "VERB PID": the next write that begins with VERB ends this process first; used once
 *   .lonely  no process can begin a session
 *   .copy    what happens at the next copy between files: "vanish", "shrink", "manifest" (the
 *            manifest of the source changes), or "fail"; used once
 *
 * FAKE_MOUNTINFO, if set, is read instead of /proc/self/mountinfo.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *mount(void)
{
	return getenv("FAKE_MOUNT");
}

/* Returns the part of a path below the mount; NULL if the path is outside. */
static const char *below(const char *path)
{
	size_t length = mount() ? strlen(mount()) : 0;

	if (!length || strncmp(path, mount(), length) || path[length] != '/')
		return NULL;
	return path + length + 1;
}

static void path_of(char path[PATH_MAX], int fd)
{
	char link[64];
	ssize_t length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, PATH_MAX - 1);
	path[length < 0 ? 0 : length] = '\0';
}

static ssize_t real_write(int fd, const void *bytes, size_t count)
{
	return syscall(SYS_write, fd, bytes, count);
}

static const char *path_in(const char *name)
{
	static char path[2 * PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", mount(), name);
	return path;
}

/* Appends a line to a file of the mount. */
__attribute__((format(printf, 2, 3))) static void add(const char *name, const char *format, ...)
{
	char text[1024];
	va_list arguments;
	int fd;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fd = open(path_in(name), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || real_write(fd, text, strlen(text)) < 0)
		abort();
	close(fd);
}

static void get(const char *name, char *text, size_t size)
{
	ssize_t bytes = 0;
	int fd = open(path_in(name), O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		bytes = read(fd, text, size - 1);
		close(fd);
	}
	text[bytes > 0 ? bytes : 0] = '\0';
}

/* Returns the errno that .refuse has for the verb; -1: none. */
static int refusal(const char *verb)
{
	char text[1024];

	get(".refuse", text, sizeof(text));
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		char *number = strrchr(line, ' ');

		if (number && !strncmp(verb, line, (size_t)(number - line)))
			return atoi(number);
	}
	return -1;
}

/* Ends the process that .kill names for the verb, and waits until it is a zombie. */
static void kill_for(const char *verb)
{
	char text[64], path[64], stat[512];
	char *pid;

	get(".kill", text, sizeof(text));
	pid = strchr(text, ' ');
	if (!pid || strncmp(verb, text, (size_t)(pid - text)) != 0)
		return;
	if (unlink(path_in(".kill")) < 0 || kill(atoi(pid), SIGKILL) < 0)
		abort();
	snprintf(path, sizeof(path), "/proc/%d/stat", atoi(pid));
	do {
		int at = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t got = at >= 0 ? read(at, stat, sizeof(stat) - 1) : 0;

		close(at);
		stat[got > 0 ? got : 0] = '\0';
	} while (*stat && !strstr(stat, ") Z "));
}

ssize_t write(int fd, const void *bytes, size_t count)
{
	char path[PATH_MAX];
	char verb[4097];
	char name[PATH_MAX];
	char end[256];
	const char *where;
	bool is_root;
	size_t length;
	int number;

	path_of(path, fd);
	where = below(path);
	length = where ? strlen(where) : 0;
	if (length < 3 || strcmp(where + length - 3, "ctl") != 0)
		return real_write(fd, bytes, count);
	snprintf(verb, sizeof(verb), "%.*s", (int)count, (const char *)bytes);
	verb[strcspn(verb, "\n")] = '\0';
	is_root = length == 3;
	path[strlen(path) - 3] = '\0'; /* the directory, with a trailing slash */
	add(".log", "verb %s %s%s\n", is_root ? "." : where, verb,
	    fcntl(fd, F_GETFL) & O_NONBLOCK ? " (nonblock)" : "");
	kill_for(verb);
	number = refusal(verb);
	if (!number)
		return 1;
	if (number > 0) {
		snprintf(name, sizeof(name), "%serror", below(path));
		if (is_root)
			add("events", "T - - verb %.*s %s words of the daemon\n",
			    (int)strcspn(verb, " "), verb, strerrorname_np(number));
		else if (!truncate(path_in(name), 0))
			add(name, "%s: words of the daemon\n", strerrorname_np(number));
		errno = number;
		return -1;
	}
	if (!strncmp(verb, "thaw", 4)) {
		get(".end", end, sizeof(end));
		end[strcspn(end, "\n")] = '\0';
		if (!strcmp(end, "state")) {
			snprintf(name, sizeof(name), "%sstatus", below(path));
			add(name, "pid 1\nstate running\n");
			return (ssize_t)count;
		}
		if (!strcmp(end, "never"))
			return (ssize_t)count;
		snprintf(name, sizeof(name), "%sevents", below(path));
		add(name, "T id - state incoming restoring\nT id g verb thaw %s\n",
		    *end ? end : "ok");
	}
	return (ssize_t)count;
}

int open(const char *path, int flags, ...)
{
	const char *other = getenv("FAKE_MOUNTINFO");
	va_list arguments;
	mode_t mode = 0;

	if (flags & O_CREAT) {
		va_start(arguments, flags);
		mode = va_arg(arguments, mode_t);
		va_end(arguments);
	}
	if (other && !strcmp(path, "/proc/self/mountinfo"))
		path = other;
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

pid_t setsid(void)
{
	if (!access(path_in(".lonely"), F_OK)) {
		errno = EPERM;
		return -1;
	}
	return (pid_t)syscall(SYS_setsid);
}

int mkdir(const char *path, mode_t mode)
{
	static const char *const files[] = {"ctl", "error", "events", "status"};
	const char *name = below(path);
	char file[PATH_MAX];

	if (mkdirat(AT_FDCWD, path, mode) < 0)
		return -1;
	if (!name || strchr(name, '/'))
		return 0;
	add(".log", "mkdir %s\n", name);
	snprintf(file, sizeof(file), "%s/snapshot", path);
	if (mkdirat(AT_FDCWD, file, 0700) < 0)
		abort();
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		snprintf(file, sizeof(file), "%s/%s", name, files[i]);
		add(file, "%s", "");
	}
	return 0;
}

int rmdir(const char *path)
{
	static const char *const parts[] = {"snapshot/vram", "snapshot", "."};
	const char *name = below(path);

	if (!name || strchr(name, '/'))
		return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
	add(".log", "rmdir %s\n", name);
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		char directory[PATH_MAX];
		struct dirent *entry;
		DIR *stream;

		snprintf(directory, sizeof(directory), "%s/%s", path, parts[i]);
		stream = opendir(directory);
		while (stream && (entry = readdir(stream)))
			unlinkat(dirfd(stream), entry->d_name, 0);
		if (stream)
			closedir(stream);
		if (i < 2)
			unlinkat(AT_FDCWD, directory, AT_REMOVEDIR);
	}
	return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

/* Damages the source of a copy as .copy demands: the open file, or the files beside it. */
static void spoil(int fd, const char *how)
{
	char path[PATH_MAX];
	char file[PATH_MAX + 32];
	struct dirent *entry;
	DIR *stream;

	path_of(path, fd);
	if (!strcmp(how, "shrink")) {
		if (truncate(path, 4096) < 0)
			abort();
		return;
	}
	*strrchr(path, '/') = '\0';
	if (!strcmp(how, "manifest")) {
		snprintf(file, sizeof(file), "%s/../manifest", path);
		fd = open(file, O_WRONLY | O_TRUNC | O_CLOEXEC);
		if (fd < 0 || real_write(fd, "{}", 2) < 0)
			abort();
		close(fd);
		return;
	}
	stream = opendir(path);
	while (stream && (entry = readdir(stream)))
		unlinkat(dirfd(stream), entry->d_name, 0);
	if (stream)
		closedir(stream);
}

ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t count,
			unsigned int flags)
{
	char how[64];

	get(".copy", how, sizeof(how));
	how[strcspn(how, "\n")] = '\0';
	if (*how) {
		if (unlink(path_in(".copy")) < 0)
			abort();
		if (!strcmp(how, "fail")) {
			errno = EIO;
			return -1;
		}
		spoil(from, how);
	}
	return syscall(SYS_copy_file_range, from, from_at, to, to_at, count, flags);
}

/* Writes fewer bytes than asked for, which is not an error: callers must continue. */
ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at)
{
	return syscall(SYS_pwrite64, fd, bytes, count > 4096 ? count / 2 : count, at);
}
