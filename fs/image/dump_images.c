/* SPDX-License-Identifier: MIT */
/* The images that CRIU has written, compared with the processes of the tree, which CRIU still
 * holds. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "criu-glue/creds.h"
#include "criu-glue/vdso.h"
#include "fs/image/dump_private.h"
#include "lib/cleanup.h"
#include "lib/procfs.h"

static int check_image(const struct gcr_dump *dump, const char *name, struct gcr_error *error)
{
	struct stat stat;

	if (fstatat(dump->images_fd, name, &stat, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISREG(stat.st_mode) || !stat.st_size)
		return gcr_error_set(error, EIO, "criu says it is done, and has not written %s",
				     name);
	return 0;
}

/*
 * Checks that CRIU has written the image core-PID.img of the member. PID is the pid that the
 * process has in its own pid namespace. -EIO.
 */
static int check_core(const struct gcr_dump *dump, const struct gcr_dump_member *member,
		      struct gcr_error *error)
{
	struct gcr_proc_status status;
	char name[32];

	if (member->proc.state == 'Z' || member->proc.state == 'X')
		return 0;
	if (gcr_proc_status(member->proc.pid, &status) < 0)
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)member->proc.pid);
	snprintf(name, sizeof(name), "core-%d.img", (int)status.ns_pids[status.ns_pids_count - 1]);
	return check_image(dump, name, error);
}

/*
 * Checks that each process that CRIU has dumped is still there, with the rights that its image
 * says. -EPERM, -EBUSY, and the other errors of gcr_criu_check_creds().
 */
static int check_creds(const struct gcr_dump *dump, struct gcr_error *error)
{
	_cleanup_free_ pid_t *pids = calloc(dump->count, sizeof(*pids));
	size_t count = 0;
	int result;

	if (!pids)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < dump->count; i++)
		if (!gcr_dump_is_gone(&dump->members[i]))
			pids[count++] = dump->members[i].proc.pid;
	result = gcr_criu_check_creds(dump->images_fd, pids, count, false, error);
	/* A number that was given to another process in between says nothing. */
	for (size_t i = 0, at = 0; i < dump->count && at < count && !result; i++) {
		const struct gcr_dump_member *member = &dump->members[i];

		if (member->proc.pid != pids[at])
			continue;
		at++;
		if (gcr_dump_is_gone(member))
			result = gcr_error_set(error, EBUSY,
					       "process %d has ended since CRIU dumped it: write "
					       "dump again",
					       (int)member->proc.pid);
	}
	return result;
}

int gcr_dump_check_images(const struct gcr_dump *dump, struct gcr_error *error)
{
	int result = check_image(dump, "inventory.img", error);

	if (!result)
		result = check_image(dump, "pstree.img", error);
	for (size_t i = 0; i < dump->count && !result; i++)
		result = check_core(dump, &dump->members[i], error);
	if (!result)
		result = gcr_criu_check_vdso(dump->images_fd, error);
	return result ? result : check_creds(dump, error);
}
