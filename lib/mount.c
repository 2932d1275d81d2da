/* SPDX-License-Identifier: MIT */
/* Finding a mount in /proc/self/mountinfo. */
#include "lib/mount.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/proc_file.h"
#include "lib/proc_text.h"
#include "lib/trusted_path.h"

#define GPUCRFS "fuse.gpucrfs "

/* Replaces the octal escapes (\ooo) of /proc/self/mountinfo, in place. */
static void unescape(char *text)
{
	char *to = text;

	for (const char *from = text; *from; from++) {
		if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' &&
		    from[2] <= '7' && from[3] >= '0' && from[3] <= '7') {
			*to++ = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 |
				       (from[3] - '0'));
			from += 3;
		} else {
			*to++ = *from;
		}
	}
	*to = '\0';
}

/* Parses the number after "NAME=" in a list of options. */
static bool option_number(const char *options, const char *name, unsigned long *ret_number)
{
	size_t length = strlen(name);

	for (const char *option = options; option; option = strchr(option, ',')) {
		option += *option == ',';
		if (!strncmp(option, name, length) && option[length] == '=') {
			*ret_number = strtoul(option + length + 1, NULL, 10);
			return true;
		}
	}
	return false;
}

/*
 * Parses a line of mountinfo (proc_pid_mountinfo(5)), which is modified: returns the mount point,
 * and in *ret_user the user who made the mount. NULL: its type does not begin with @type.
 */
static char *mount_point(char *line, const char *type, unsigned long *ret_user)
{
	char *after = strstr(line, " - ");
	char *where = line;
	char *options;

	if (!after || strncmp(after + 3, type, strlen(type)))
		return NULL;
	options = strrchr(after, ' ');
	if (!option_number(options + 1, "user_id", ret_user))
		return NULL;
	for (int field = 1; field < 5; field++) {
		where = strchr(where, ' ');
		if (!where)
			return NULL;
		where++;
	}
	where[strcspn(where, " ")] = '\0';
	unescape(where);
	return where;
}

const char *gcr_mount_parse(char *text, uid_t user)
{
	const char *found = NULL;
	unsigned long maker;
	char *rest = text;

	for (char *line; (line = strsep(&rest, "\n"));) {
		const char *where = mount_point(line, GPUCRFS, &maker);

		if (!where || (maker && maker != user))
			continue;
		if (!found || maker == user)
			found = where;
		if (maker == user)
			break;
	}
	return found;
}

int gcr_mount_search(char **ret_mount)
{
	_cleanup_free_ char *text = NULL;
	const char *found;
	int r = gcr_file_read("/proc/self/mountinfo", &text, NULL);

	if (r < 0)
		return r;
	found = gcr_mount_parse(text, geteuid());
	if (!found)
		return -ENOENT;
	*ret_mount = strdup(found);
	return *ret_mount ? 0 : -ENOMEM;
}

static bool is_below(const char *path, const char *directory)
{
	size_t length = strlen(directory);

	if (length && directory[length - 1] == '/')
		length--;
	return !strncmp(path, directory, length) && (!path[length] || path[length] == '/');
}

/*
 * Looks for @path in @text, the mountinfo, and modifies it. 0: @path is the mount point of a
 * gpucrfs of root's or of @user's; -EPERM: @path is on a FUSE mount of another user, *ret_maker;
 * -ENOENT: neither.
 */
static int check_makers(char *text, const char *path, uid_t user, unsigned long *ret_maker)
{
	char *rest = text;
	int result = -ENOENT;
	unsigned long maker;

	for (char *line; (line = strsep(&rest, "\n"));) {
		const char *type = strstr(line, " - ");
		bool is_ours = type && !strncmp(type + 3, GPUCRFS, strlen(GPUCRFS));
		const char *where = mount_point(line, "fuse", &maker);

		if (!where || !is_below(path, where))
			continue;
		if (maker && maker != user) {
			*ret_maker = maker;
			return -EPERM;
		}
		if (is_ours && !strcmp(path, where))
			result = 0;
	}
	return result;
}

int gcr_mount_find_maker(const char *path, uid_t user, unsigned long *ret_maker)
{
	_cleanup_free_ char *text = NULL;
	int r = gcr_file_read("/proc/self/mountinfo", &text, NULL);

	return r < 0 ? r : check_makers(text, path, user, ret_maker) == -EPERM;
}

int gcr_mount_given(const char *given, char **ret_mount, struct gcr_error *error)
{
	_cleanup_free_ char *path = realpath(given, NULL);
	_cleanup_free_ char *text = NULL;
	unsigned long maker;
	int r;

	if (!path)
		return gcr_error_set(error, errno,
				     "GPUCR_MOUNT: the gpucrfs at %s does not answer: %s", given,
				     strerror(errno));
	r = gcr_file_read("/proc/self/mountinfo", &text, NULL);
	if (r < 0)
		return gcr_error_set(error, -r, "/proc/self/mountinfo: %s", strerror(-r));
	r = check_makers(text, path, geteuid(), &maker);
	if (r == -EPERM)
		return gcr_error_set(
			error, EPERM,
			"GPUCR_MOUNT: %s is not used: it is on a mount of user %lu, who is "
			"neither root nor you",
			given, maker);
	if (r == -ENOENT)
		return gcr_trusted_path("GPUCR_MOUNT", path, ret_mount, error);
	*ret_mount = TAKE_PTR(path);
	return 0;
}
