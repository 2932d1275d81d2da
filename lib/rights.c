/* SPDX-License-Identifier: MIT */
/*
 * Rights of other processes, and one thread that takes them over. The functions make raw system
 * calls, since those of libc change all threads. When the file system user id changes, the kernel
 * removes the thread's capabilities that override file modes, and restores them later.
 */
#include "lib/rights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/proc_file.h"
#include "lib/proc_text.h"

void gcr_file_rights_destroy(struct gcr_file_rights *rights)
{
	if (!rights)
		return;
	free(rights->groups);
	free(rights);
}

struct gcr_file_rights *gcr_file_rights_copy(const struct gcr_file_rights *rights)
{
	_cleanup_(gcr_file_rights_destroy_cleanup) struct gcr_file_rights *copy =
		calloc(1, sizeof(*copy));

	if (!copy)
		return NULL;
	*copy = *rights;
	copy->groups = calloc(rights->groups_count + 1, sizeof(*copy->groups));
	if (!copy->groups)
		return NULL;
	if (rights->groups_count)
		memcpy(copy->groups, rights->groups, rights->groups_count * sizeof(*copy->groups));
	return TAKE_PTR(copy);
}

/* Parses the line "Groups:" of /proc/PID/status. */
static int parse_groups(const char *text, struct gcr_file_rights *rights)
{
	size_t room = strcspn(text, "\n") / 2 + 1;

	rights->groups = calloc(room, sizeof(*rights->groups));
	if (!rights->groups)
		return -ENOMEM;
	while (rights->groups_count < room) {
		char *end;

		text += strspn(text, " \t");
		if (*text < '0' || *text > '9')
			break;
		rights->groups[rights->groups_count++] = (gid_t)strtoul(text, &end, 10);
		text = end;
	}
	return 0;
}

int gcr_file_rights_parse(const char *text, struct gcr_file_rights *rights)
{
	const char *uids = strstr(text, "\nUid:");
	const char *gids = strstr(text, "\nGid:");
	const char *groups = strstr(text, "\nGroups:");

	if (!uids || !gids || !groups || sscanf(uids, "\nUid: %*u %u", &rights->uid) != 1 ||
	    sscanf(gids, "\nGid: %*u %u", &rights->gid) != 1)
		return -EIO;
	return parse_groups(groups + strlen("\nGroups:"), rights);
}

int gcr_file_rights_of(pid_t pid, struct gcr_file_rights **ret_rights)
{
	_cleanup_(gcr_file_rights_destroy_cleanup) struct gcr_file_rights *rights =
		calloc(1, sizeof(*rights));
	_cleanup_free_ char *status = NULL;
	int result;

	if (!rights)
		return -ENOMEM;
	result = gcr_proc_read(pid, "status", &status, NULL);
	if (result < 0)
		return result;
	result = gcr_file_rights_parse(status, rights);
	if (result < 0)
		return result;
	*ret_rights = TAKE_PTR(rights);
	return 0;
}

static int set_groups(const struct gcr_file_rights *rights)
{
	return syscall(SYS_setgroups, rights->groups_count, rights->groups) < 0 ? -errno : 0;
}

/*
 * Sets the thread's ids for file systems. False: the kernel has refused. Each of the calls returns
 * the previous id, so a call with an invalid id only queries.
 */
static bool set_ids(uid_t uid, gid_t gid)
{
	syscall(SYS_setfsgid, gid);
	syscall(SYS_setfsuid, uid);
	return (gid_t)syscall(SYS_setfsgid, -1) == gid && (uid_t)syscall(SYS_setfsuid, -1) == uid;
}

void gcr_file_rights_give_back(struct gcr_file_rights *ours)
{
	if (!ours)
		return;
	/*
	 * @ours are the thread's rights from before, and no capability needed to set them has been
	 * dropped.
	 */
	set_ids(ours->uid, ours->gid);
	set_groups(ours);
	gcr_file_rights_destroy(ours);
}

int gcr_file_rights_take(const struct gcr_file_rights *rights, struct gcr_file_rights **ret_ours)
{
	struct gcr_file_rights *ours = calloc(1, sizeof(*ours));
	int count = getgroups(0, NULL);
	int result;

	if (!ours || count < 0 || !(ours->groups = calloc((size_t)count + 1, sizeof(gid_t)))) {
		gcr_file_rights_destroy(ours);
		return -ENOMEM;
	}
	count = getgroups(count, ours->groups);
	ours->groups_count = count < 0 ? 0 : (size_t)count;
	ours->uid = geteuid();
	ours->gid = getegid();
	result = set_groups(rights);
	if (!result && !set_ids(rights->uid, rights->gid))
		result = -EPERM;
	if (result < 0) {
		gcr_file_rights_give_back(ours);
		return result;
	}
	*ret_ours = ours;
	return 0;
}

/* Is access allowed with @rights? 1, 0, -errno. @path "": @fd itself. */
static int ask(const struct gcr_file_rights *rights, int fd, const char *path, int mode)
{
	struct gcr_file_rights *ours;
	int result = gcr_file_rights_take(rights, &ours);

	if (result < 0)
		return result;
	result = syscall(SYS_faccessat2, fd, path, mode, AT_EACCESS | (*path ? 0 : AT_EMPTY_PATH)) <
				 0
			 ? -errno
			 : 0;
	gcr_file_rights_give_back(ours);
	if (result == -EACCES || result == -EPERM)
		return 0;
	return result < 0 ? result : 1;
}

int gcr_file_rights_read_fd(const struct gcr_file_rights *rights, int fd)
{
	struct stat stat;

	if (fstat(fd, &stat) < 0)
		return -errno;
	return stat.st_uid == rights->uid ? 1 : ask(rights, fd, "", R_OK);
}

int gcr_file_rights_find(const struct gcr_file_rights *rights, const char *path)
{
	return ask(rights, AT_FDCWD, path, F_OK);
}

int gcr_file_rights_open(const struct gcr_file_rights *rights, const char *link, int flags)
{
	int fd = open(link, flags);
	int number = errno;
	struct stat status;

	if (fd >= 0 || number != EACCES)
		return fd < 0 ? -number : fd;
	if (stat(link, &status) < 0 || status.st_uid != rights->uid)
		return -number;
	syscall(SYS_setfsuid, geteuid());
	fd = open(link, flags);
	number = errno;
	syscall(SYS_setfsuid, rights->uid);
	return fd < 0 ? -number : fd;
}
