/* SPDX-License-Identifier: MIT */
/* Wraps every operation of the session in a begin and an end for the watchdog. */
#include "fs/mount/session_watch.h"

#include "fs/base/watchdog.h"

static const struct fuse_lowlevel_ops *real;

static void begin(struct gcr_watched *watched, fuse_req_t request, const char *kind,
		  fuse_ino_t node)
{
	const struct fuse_ctx *caller = fuse_req_ctx(request);

	gcr_watchdog_begin(watched, kind, node, gcr_node_name(node), caller ? caller->pid : 0);
}

#define WATCHED(operation, node, parameters, arguments)     \
	static void watched_##operation parameters          \
	{                                                   \
		struct gcr_watched watched;                 \
                                                            \
		begin(&watched, request, #operation, node); \
		real->operation arguments;                  \
		gcr_watchdog_end(&watched);                 \
	}

WATCHED(lookup, parent, (fuse_req_t request, fuse_ino_t parent, const char *name),
	(request, parent, name))
WATCHED(forget, node, (fuse_req_t request, fuse_ino_t node, uint64_t lookups),
	(request, node, lookups))
WATCHED(forget_multi, 0, (fuse_req_t request, size_t count, struct fuse_forget_data *forgets),
	(request, count, forgets))
WATCHED(getattr, node, (fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info),
	(request, node, info))
WATCHED(setattr, node,
	(fuse_req_t request, fuse_ino_t node, struct stat *stat, int valid,
	 struct fuse_file_info *info),
	(request, node, stat, valid, info))
WATCHED(readlink, node, (fuse_req_t request, fuse_ino_t node), (request, node))
WATCHED(mknod, parent,
	(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode, dev_t device),
	(request, parent, name, mode, device))
WATCHED(mkdir, parent, (fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode),
	(request, parent, name, mode))
WATCHED(unlink, parent, (fuse_req_t request, fuse_ino_t parent, const char *name),
	(request, parent, name))
WATCHED(rmdir, parent, (fuse_req_t request, fuse_ino_t parent, const char *name),
	(request, parent, name))
WATCHED(symlink, parent,
	(fuse_req_t request, const char *target, fuse_ino_t parent, const char *name),
	(request, target, parent, name))
WATCHED(rename, parent,
	(fuse_req_t request, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	 const char *new_name, unsigned int flags),
	(request, parent, name, new_parent, new_name, flags))
WATCHED(link, node,
	(fuse_req_t request, fuse_ino_t node, fuse_ino_t new_parent, const char *new_name),
	(request, node, new_parent, new_name))
WATCHED(open, node, (fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info),
	(request, node, info))
WATCHED(read, node,
	(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
	 struct fuse_file_info *info),
	(request, node, size, offset, info))
WATCHED(lseek, node,
	(fuse_req_t request, fuse_ino_t node, off_t offset, int whence,
	 struct fuse_file_info *info),
	(request, node, offset, whence, info))
WATCHED(write, node,
	(fuse_req_t request, fuse_ino_t node, const char *bytes, size_t size, off_t offset,
	 struct fuse_file_info *info),
	(request, node, bytes, size, offset, info))
WATCHED(release, node, (fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info),
	(request, node, info))
WATCHED(opendir, node, (fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info),
	(request, node, info))
WATCHED(readdir, node,
	(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
	 struct fuse_file_info *info),
	(request, node, size, offset, info))
WATCHED(releasedir, node, (fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info),
	(request, node, info))
WATCHED(statfs, node, (fuse_req_t request, fuse_ino_t node), (request, node))
WATCHED(create, parent,
	(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode,
	 struct fuse_file_info *info),
	(request, parent, name, mode, info))
WATCHED(poll, node,
	(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info,
	 struct fuse_pollhandle *handle),
	(request, node, info, handle))

/* Wraps only operations that the session has: the kernel is told which exist. */
const struct fuse_lowlevel_ops *gcr_session_watched(const struct fuse_lowlevel_ops *operations)
{
	static struct fuse_lowlevel_ops watched;

	real = operations;
	watched = *operations;
#define WATCH(operation)           \
	if (operations->operation) \
	watched.operation = watched_##operation
	WATCH(lookup);
	WATCH(forget);
	WATCH(forget_multi);
	WATCH(getattr);
	WATCH(setattr);
	WATCH(readlink);
	WATCH(mknod);
	WATCH(mkdir);
	WATCH(unlink);
	WATCH(rmdir);
	WATCH(symlink);
	WATCH(rename);
	WATCH(link);
	WATCH(open);
	WATCH(read);
	WATCH(lseek);
	WATCH(write);
	WATCH(release);
	WATCH(opendir);
	WATCH(readdir);
	WATCH(releasedir);
	WATCH(statfs);
	WATCH(create);
	WATCH(poll);
#undef WATCH
	return &watched;
}
