// SPDX-License-Identifier: MIT
/*
 * The mount as seen through its files: its mount point, the state of a process, writing verbs and
 * their results.
 */
#include "criu-glue/plugin/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/mount.h"
#include "lib/proc_file.h"
#include "lib/procfs.h"

#define EVENTS_TAIL_BYTES (64 * 1024)

int gcr_mount_find(char **ret_mount, struct gcr_error *error)
{
	const char *given = secure_getenv("GPUCR_MOUNT");
	_cleanup_free_ char *mount = NULL;
	_cleanup_free_ char *ctl = NULL;
	int r;

	if (given && *given) {
		if (*given != '/')
			return gcr_error_set(error, EINVAL,
					     "GPUCR_MOUNT is not an absolute path: %s", given);
		r = gcr_mount_given(given, &mount, error);
		if (r == -ENOENT)
			error->number = ENXIO; /* as below */
		if (r < 0)
			return -error->number;
	} else {
		r = gcr_mount_search(&mount);
		if (r < 0)
			return gcr_error_set(error, -r, "no gpucrfs is mounted");
	}
	if (!mount || asprintf(&ctl, "%s/ctl", mount) < 0)
		return gcr_error_set(error, ENOMEM, "no memory");
	if (access(ctl, F_OK) < 0) {
		r = errno == ENOENT ? ENXIO : errno; /* ENOENT is reserved for: there is no mount */
		return gcr_error_set(error, r,
				     "the gpucrfs at %s does not answer (%s): start it, "
				     "or unmount it",
				     mount, strerror(errno));
	}
	*ret_mount = TAKE_PTR(mount);
	return 0;
}

/*
 * Returns the value of a key at the beginning of a line of `status`, which points into @text. NULL:
 * the key is missing.
 */
static const char *value_of(const char *text, const char *key)
{
	size_t length = strlen(key);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, key, length) && line[length] == ' ')
			return line + length + 1;
	}
	return NULL;
}

int gcr_mount_look(const char *mount, pid_t pid, struct gcr_mount_look *ret_look,
		   struct gcr_error *error)
{
	struct gcr_mount_look look = {.kind = GCR_MOUNT_PROCESS};
	_cleanup_free_ char *path = NULL;
	_cleanup_free_ char *text = NULL;
	struct gcr_proc_stat stat;
	const char *value;
	int r;

	/* The process has just ended, which CRIU will notice. */
	if (gcr_proc_stat(pid, &stat) < 0) {
		*ret_look = (struct gcr_mount_look){.kind = GCR_MOUNT_NOTHING};
		return 0;
	}
	if (asprintf(&path, "%s/%d/status", mount, (int)pid) < 0)
		return gcr_error_set(error, ENOMEM, "no memory");
	r = gcr_file_read(path, &text, NULL);
	if (r == -ENOENT || r == -ESRCH) {
		*ret_look = (struct gcr_mount_look){.kind = GCR_MOUNT_NOTHING};
		return 0;
	}
	if (r < 0)
		return gcr_error_set(error, -r, "%s cannot be read: %s", path, strerror(-r));
	value = value_of(text, "start_ticks");
	look.start_ticks = stat.start_ticks;
	if (!value || strtoull(value, NULL, 10) != stat.start_ticks)
		return gcr_error_set(error, EXDEV,
				     "%s is about another process: the daemon is in another pid "
				     "namespace than CRIU",
				     path);
	value = value_of(text, "engine");
	if (!value) /* only processes that use a GPU themselves have this key */
		look.kind = GCR_MOUNT_LAUNCHER;
	else if (strncmp(value, "vmm\n", 4) != 0 && strncmp(value, "hip\n", 4) != 0)
		return gcr_error_set(error, EOPNOTSUPP,
				     "process %d is of the engine %.*s, and only vmm and hip keep "
				     "what is needed apart: start it with gpucr-run",
				     (int)pid, (int)strcspn(value, "\n"), value);
	look.has_own_plugin = value && !strncmp(value, "hip\n", 4);
	value = value_of(text, "state");
	look.is_frozen = value && !strncmp(value, "frozen\n", 7);
	look.is_half_frozen = value &&
			      (!strncmp(value, "failed\n", 7) || !strncmp(value, "freezing\n", 9));
	*ret_look = look;
	return 0;
}

/* Returns the number of an errno given by its name, as the daemon writes it; EIO: no such name. */
static int number_of(const char *name, size_t length)
{
	for (int number = 1; number < 256; number++) {
		const char *known = strerrorname_np(number);

		if (known && strlen(known) == length && !strncmp(known, name, length))
			return number;
	}
	return EIO;
}

int gcr_mount_verb_end(const char *lines, const char *verb, int *ret_result,
		       struct gcr_error *error)
{
	for (const char *line = lines; *line;) {
		const char *next = strchrnul(line, '\n');
		const char *word = line;
		size_t length = strlen(verb);

		line = *next ? next + 1 : next;
		for (int i = 0; i < 3 && word < next; i++) { /* time, id, generation */
			word += strcspn(word, " \n");
			word += *word == ' ';
		}
		if (strncmp(word, "verb ", 5) || strncmp(word + 5, verb, length) ||
		    word[5 + length] != ' ')
			continue;
		word += 5 + length + 1;
		length = strcspn(word, " \n");
		if (length == 2 && !strncmp(word, "ok", 2)) {
			*ret_result = 0;
			return 1;
		}
		*ret_result = -number_of(word, length);
		word += length + (word[length] == ' ');
		gcr_error_set(error, -*ret_result, "%.*s", (int)(next - word), word);
		return 1;
	}
	return 0;
}

/*
 * Gets the daemon's message for a verb that failed; for a verb on several processes the message is
 * in `events`.
 */
static void fetch_words(const char *mount, const char *directory, off_t events_bytes,
			const char *verb, int number, struct gcr_error *error)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_free_ char *text = NULL;
	_cleanup_close_ int fd = -1;
	char name[16];
	int result;

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(verb, " "), verb);
	gcr_error_set(error, number, "%s", strerror(number));
	if (*directory) {
		if (asprintf(&path, "%s/%s/error", mount, directory) >= 0 &&
		    !gcr_file_read(path, &text, NULL) && *text && strncmp(text, "ok\n", 3))
			gcr_error_set(error, number, "%.*s", (int)strcspn(text, "\n"), text);
		return;
	}
	if (asprintf(&path, "%s/events", mount) < 0)
		return;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	text = calloc(1, EVENTS_TAIL_BYTES);
	if (fd < 0 || !text || pread(fd, text, EVENTS_TAIL_BYTES - 1, events_bytes) <= 0)
		return;
	for (const char *line = text; *line; line = strchrnul(line, '\n'), line += *line == '\n')
		if (gcr_mount_verb_end(line, name, &result, error) == 1 && result)
			return;
}

bool gcr_becomes_readable(int fd, int timeout_ms)
{
	struct pollfd wait = {.fd = fd, .events = POLLIN};
	int r;

	do {
		r = poll(&wait, 1, timeout_ms);
	} while (r < 0 && errno == EINTR);
	return r > 0;
}

/*
 * Writes @verb to MOUNT/DIRECTORY/ctl. @pidfd: of the process of that directory, which must not
 * have ended (-ESRCH); -1: of any process. On failure @error has the daemon's message.
 */
static int write_verb(const char *mount, const char *directory, int pidfd, const char *verb,
		      int flags, struct gcr_error *error)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_free_ char *events = NULL;
	_cleanup_close_ int fd = -1;
	_cleanup_close_ int events_fd = -1;
	size_t length = strlen(verb);
	off_t events_bytes;
	ssize_t written;
	int number;

	if (asprintf(&path, "%s/%s%sctl", mount, directory, *directory ? "/" : "") < 0 ||
	    asprintf(&events, "%s/events", mount) < 0)
		return gcr_error_set(error, ENOMEM, "no memory");
	events_fd = open(events, O_RDONLY | O_CLOEXEC);
	events_bytes = events_fd < 0 ? 0 : lseek(events_fd, 0, SEEK_END);
	fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | flags);
	if (fd < 0)
		return gcr_error_set(error, errno, "%s: %s", path, strerror(errno));
	/* An open ctl stays that of one process: it is the right one, which has the pid even now.
	 */
	if (pidfd >= 0 && gcr_becomes_readable(pidfd, 0))
		return gcr_error_set(error, ESRCH, "process %s has ended", directory);
	written = write(fd, verb, length);
	if (written == (ssize_t)length)
		return 0;
	if (written >= 0)
		return gcr_error_set(error, EIO, "%s has taken only a part of '%s'", path, verb);
	number = errno;
	fetch_words(mount, directory, events_bytes < 0 ? 0 : events_bytes, verb, number, error);
	return -number;
}

int gcr_mount_write(const char *mount, const char *directory, const char *verb, int flags,
		    struct gcr_error *error)
{
	return write_verb(mount, directory, -1, verb, flags, error);
}

int gcr_mount_write_to(const char *mount, const struct gcr_kept *process, const char *verb,
		       struct gcr_error *error)
{
	char directory[16];

	snprintf(directory, sizeof(directory), "%d", (int)process->pid);
	return write_verb(mount, directory, process->pidfd, verb, 0, error);
}
