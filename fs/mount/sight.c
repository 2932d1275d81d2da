/* SPDX-License-Identifier: MIT */
/* Compares pids in pid namespaces, and asks helpers if that is not sufficient. */
#define FUSE_USE_VERSION 314
#include "fs/mount/sight.h"

#include <fuse_lowlevel.h>
#include <unistd.h>

#include "fs/image/place.h"
#include "fs/mount/tree.h"
#include "fs/process/process.h"
#include "lib/proc_file.h"
#include "lib/proc_namespace.h"
#include "lib/procfs.h"

void gcr_sight_take(const struct fuse_ctx *caller, struct gcr_sight *ret_sight)
{
	struct gcr_proc_status status;

	*ret_sight = (struct gcr_sight){
		.caller = caller, .is_local = gcr_tree_is_local(caller), .namespace_fd = -1};
	if (!ret_sight->is_local && caller->pid > 0 && !gcr_proc_status(caller->pid, &status))
		ret_sight->levels = status.ns_pids_count;
}

void gcr_sight_finish(struct gcr_sight *sight)
{
	if (sight->namespace_fd >= 0)
		close(sight->namespace_fd);
	sight->namespace_fd = -1;
}

bool gcr_sight_reaches(struct gcr_sight *sight, pid_t pid)
{
	struct gcr_proc_status status;
	char path[GCR_PROC_PATH_BYTES];

	if (sight->is_local) {
		gcr_proc_path(path, pid, "stat");
		return access(path, F_OK) == 0;
	}
	/*
	 * A process in the caller's pid namespace, or below it, has a pid in at least as many
	 * namespaces as the caller.
	 */
	if (!sight->levels || gcr_proc_status(pid, &status) < 0 ||
	    status.ns_pids_count < sight->levels)
		return false;
	if (!sight->is_namespace_known) {
		sight->is_namespace_known = true;
		if (gcr_proc_open_namespace(sight->caller->pid, "pid", &sight->namespace_fd) < 0)
			sight->namespace_fd = -1;
	}
	return sight->namespace_fd >= 0 && gcr_proc_namespace_holds(sight->namespace_fd, pid) == 1;
}

bool gcr_sight_shows_place(struct gcr_sight *sight, struct gcr_place *place)
{
	uid_t uid = sight->caller->uid;
	pid_t pid;

	if (sight->is_local || (uid && uid == place->stat.st_uid))
		return true;
	pid = gcr_place_pid(place);
	return pid && gcr_sight_reaches(sight, pid);
}
