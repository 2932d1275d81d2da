/* SPDX-License-Identifier: MIT */
/*
 * The owner of a dumped tree, and of the dump. A process can change its user at any moment until
 * CRIU holds the tree, for instance by executing a set-user-ID program. So all ids of a process are
 * read at one moment, the rights of the root of the tree are kept from the first check, and a
 * second check of the stopped tree must find the same.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/image/dump_private.h"
#include "lib/cleanup.h"
#include "lib/proc_file.h"
#include "lib/proc_namespace.h"
#include "lib/proc_text.h"
#include "lib/procfs.h"

struct ids {
	uid_t uids[3]; /* real, effective, saved */
	gid_t gids[3];
	uint64_t permitted; /* capabilities */
	struct gcr_file_rights *rights;
};

static void finish_ids(struct ids *ids)
{
	gcr_file_rights_destroy(ids->rights);
}

/*
 * Reads all ids of @pid from one text, which the kernel makes from one set of credentials. -EIO,
 * -ENOMEM, ...
 */
static int read_ids(pid_t pid, struct ids *ids)
{
	_cleanup_free_ char *text = NULL;
	const char *uids, *gids, *permitted;
	int result = gcr_proc_read(pid, "status", &text, NULL);

	if (result < 0)
		return result;
	uids = strstr(text, "\nUid:");
	gids = strstr(text, "\nGid:");
	permitted = strstr(text, "\nCapPrm:");
	if (!uids || !gids || !permitted ||
	    sscanf(uids, "\nUid: %u %u %u", &ids->uids[0], &ids->uids[1], &ids->uids[2]) != 3 ||
	    sscanf(gids, "\nGid: %u %u %u", &ids->gids[0], &ids->gids[1], &ids->gids[2]) != 3 ||
	    sscanf(permitted, "\nCapPrm: %" SCNx64, &ids->permitted) != 1)
		return -EIO;
	ids->rights = calloc(1, sizeof(*ids->rights));
	return ids->rights ? gcr_file_rights_parse(text, ids->rights) : -ENOMEM;
}

static bool are_all(const uid_t ids[3], uid_t id)
{
	return ids[0] == id && ids[1] == id && ids[2] == id;
}

/*
 * Is the process in our user namespace? 1, 0, -errno. Capabilities in another user namespace have
 * no effect in ours.
 */
static int is_in_our_user_namespace(pid_t pid)
{
	_cleanup_close_ int fd = -1;
	struct stat ours, its;
	int result = gcr_proc_open_namespace(pid, "user", &fd);

	if (result < 0)
		return result;
	if (stat("/proc/self/ns/user", &ours) < 0 || fstat(fd, &its) < 0)
		return -errno;
	return ours.st_dev == its.st_dev && ours.st_ino == its.st_ino;
}

/*
 * Does this process belong to the owner of the tree's root, with no more rights than the writer?
 * For a process with more rights than its user gcr_proc_owner() returns root; the ids are those
 * that the images are compared with, so they are compared as well. 1, 0, -errno.
 */
static int is_of_owner(const struct gcr_dump *dump, pid_t pid, const struct ids *ids)
{
	const struct gcr_rights *writer = &dump->task->command->rights;
	uid_t uid;
	gid_t gid;
	int result = gcr_proc_owner(pid, &uid, &gid);

	if (result < 0)
		return result;
	if (uid != dump->uid || !are_all(ids->uids, dump->uid) || !are_all(ids->gids, ids->gids[0]))
		return 0;
	if (gcr_command_is_root(dump->task->command) || !(ids->permitted & ~writer->capabilities))
		return 1;
	result = is_in_our_user_namespace(pid);
	return result < 0 ? result : !result;
}

/*
 * Does the member belong to the owner? 1, 0, -errno; also 1 if it has ended. *ret_rights: its
 * rights; NULL: it has ended.
 */
static int check_member(const struct gcr_dump *dump, const struct gcr_dump_member *member,
			struct gcr_file_rights **ret_rights)
{
	_cleanup_(finish_ids) struct ids ids = {0};
	int result;

	*ret_rights = NULL;
	/* The ids of the root are read even if it is a zombie. */
	if (member != dump->members && (member->proc.state == 'Z' || member->proc.state == 'X'))
		return 1;
	result = read_ids(member->proc.pid, &ids);
	if (!result)
		result = is_of_owner(dump, member->proc.pid, &ids);
	/* Checked after reading the ids: if the pid has been reused, they are another process's. */
	if (gcr_dump_is_gone(member))
		return 1;
	if (result >= 0)
		*ret_rights = TAKE_PTR(ids.rights);
	return result;
}

static bool are_equal(const struct gcr_file_rights *left, const struct gcr_file_rights *right)
{
	return left->uid == right->uid && left->gid == right->gid &&
	       left->groups_count == right->groups_count &&
	       (!left->groups_count ||
		!memcmp(left->groups, right->groups, left->groups_count * sizeof(*left->groups)));
}

void gcr_dump_make_private(struct gcr_dump *dump)
{
	dump->is_private = true;
}

uid_t gcr_dump_place_uid(const struct gcr_dump *dump)
{
	return dump->is_of_several ? 0 : dump->uid;
}

gid_t gcr_dump_place_gid(const struct gcr_dump *dump)
{
	return dump->is_private || dump->is_of_several ? 0 : dump->gid;
}

static int fail_changed(const struct gcr_dump *dump, struct gcr_error *error)
{
	return gcr_error_set(error, EPERM,
			     "process %d has changed its user or groups while the tree was dumped: "
			     "write dump again",
			     (int)dump->members[0].proc.pid);
}

/*
 * Takes *rights of the tree's root over as dump->first_rights, with which files are read; at a
 * later check compares *rights with these. -EPERM: the rights have changed; -ESRCH: the root has
 * ended.
 */
static int keep_rights(struct gcr_dump *dump, struct gcr_file_rights **rights,
		       struct gcr_error *error)
{
	if (!*rights && !dump->uid)
		return 0;
	if (!*rights)
		return gcr_error_set(error, ESRCH, "process %d has ended",
				     (int)dump->members[0].proc.pid);
	if (!dump->first_rights)
		dump->first_rights = TAKE_PTR(*rights);
	else if (!are_equal(dump->first_rights, *rights))
		return fail_changed(dump, error);
	return 0;
}

/*
 * See dump_private.h. All processes of the tree have to be dumped, so one of another user prevents
 * the dump.
 */
int gcr_dump_check_owner(struct gcr_dump *dump, struct gcr_error *error)
{
	bool is_root = gcr_command_is_root(dump->task->command);
	int result = 0;

	if (!is_root && dump->uid != dump->task->command->rights.uid)
		return gcr_error_set(error, EPERM, "process %d of the tree belongs to another user",
				     (int)dump->members[0].proc.pid);
	for (size_t i = 0; i < dump->count && !result; i++) {
		_cleanup_(gcr_file_rights_destroy_cleanup) struct gcr_file_rights *rights = NULL;
		pid_t pid = dump->members[i].proc.pid;
		int is_its = check_member(dump, &dump->members[i], &rights);

		if (is_its < 0)
			return gcr_error_set(error, -is_its, "the rights of process %d: %s",
					     (int)pid, strerror(-is_its));
		if (!is_its && !is_root)
			return gcr_error_set(error, EPERM,
					     "process %d of the tree belongs to another user, or "
					     "has rights that you have not",
					     (int)pid);
		/*
		 * Root may dump processes of several users together; the place is then readable for
		 * root only.
		 */
		if (!is_its)
			dump->is_of_several = true;
		if (!i)
			result = keep_rights(dump, &rights, error);
	}
	if (result < 0)
		return result;
	if (dump->is_of_several)
		gcr_dump_make_private(dump);
	else if (dump->first_rights && dump->first_rights->uid != dump->uid)
		return fail_changed(dump, error);
	dump->owner_rights = dump->uid && !dump->is_of_several ? dump->first_rights : NULL;
	return 0;
}
