/* SPDX-License-Identifier: MIT */
/* Follows generic_permission() of the kernel; keeps no state. */
#include "fs/base/access.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/id_map.h"
#include "lib/proc_file.h"
#include "lib/procfs.h"
#include "lib/rights.h"

/* The bits of one class of a mode are those of access(2). */
_Static_assert(R_OK == S_IROTH && W_OK == S_IWOTH && X_OK == S_IXOTH, "modes of access(2)");

static bool allows(mode_t class, int wanted)
{
	return !((mode_t)wanted & ~class);
}

static bool has_group(const struct gcr_file_rights *rights, gid_t gid)
{
	for (size_t i = 0; i < rights->groups_count; i++)
		if (rights->groups[i] == gid)
			return true;
	return false;
}

/* Do these capabilities allow what the file's mode does not? */
static bool override(uint64_t capabilities, const struct stat *stat, int wanted)
{
	bool reads = S_ISDIR(stat->st_mode) ? !(wanted & W_OK) : wanted == R_OK;

	if (reads && capabilities >> CAP_DAC_READ_SEARCH & 1)
		return true;
	return capabilities >> CAP_DAC_OVERRIDE & 1 &&
	       (S_ISDIR(stat->st_mode) || !(wanted & X_OK) || stat->st_mode & 0111);
}

/* The same, if the thread's capabilities reach this file. */
static bool overrides(pid_t pid, uint64_t capabilities, const struct stat *stat, int wanted)
{
	/* The map of our own user namespace has numbers of the one above it. */
	return override(capabilities, stat, wanted) &&
	       (gcr_id_map_is_ours(pid) == 1 || (gcr_id_map_has(pid, "uid_map", stat->st_uid) &&
						 gcr_id_map_has(pid, "gid_map", stat->st_gid)));
}

/* For a caller of whom only the ids are known: a file of root's belongs to the others. */
static int check_unknown(const struct gcr_access *caller, const struct stat *stat, int wanted)
{
	bool may_be_in_group = stat->st_gid || !caller->gid;

	return stat->st_uid || allows(stat->st_mode, wanted) ||
			       (may_be_in_group && allows(stat->st_mode >> 3, wanted))
		       ? 0
		       : -EACCES;
}

int gcr_access_check(const struct gcr_access *caller, const struct stat *stat, int wanted)
{
	_cleanup_(gcr_file_rights_destroy_cleanup) struct gcr_file_rights *rights = NULL;
	struct gcr_proc_status status;
	mode_t class = stat->st_mode;
	bool is_in_group;

	if (!caller->uid)
		return 0;
	if (caller->uid == stat->st_uid && allows(class >> 6, wanted))
		return 0;
	if (gcr_file_rights_of(caller->pid, &rights) < 0 ||
	    gcr_proc_status(caller->pid, &status) < 0)
		return check_unknown(caller, stat, wanted);
	is_in_group = caller->gid == stat->st_gid || has_group(rights, stat->st_gid);
	if (caller->uid == stat->st_uid)
		class >>= 6;
	else if (is_in_group)
		class >>= 3;
	if (allows(class, wanted) ||
	    overrides(caller->pid, status.effective_capabilities, stat, wanted))
		return 0;
	return -EACCES;
}
