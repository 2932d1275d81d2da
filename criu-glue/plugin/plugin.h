/* SPDX-License-Identifier: MIT */
/*
 * The CRIU plugin: programs that use a GPU are dumped and restored by anybody's CRIU, without its
 * user knowing of gpucrfs. All of it is in CRIU's process (keeper.c is a child of it), one thread,
 * as CRIU's hooks are called. Nothing here knows the driver or the preload library: it reads and
 * writes the mount's files (gpucrfs(5)) and those of CRIU's images.
 */
#ifndef GCR_CRIU_PLUGIN_PLUGIN_H
#define GCR_CRIU_PLUGIN_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

#define GCR_PLUGIN_NAME	  "gpucr_plugin"
#define GCR_IMAGES_PREFIX "gpucr-" /* and the pid in the program's own pid namespace */

/* plugin.c: into CRIU's log, one line each. */
enum gcr_plugin_level {
	GCR_PLUGIN_ERROR = 1,
	GCR_PLUGIN_WARNING = 2,
	GCR_PLUGIN_INFO = 3,
};

void gcr_plugin_log(enum gcr_plugin_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* mount.c */

/*
 * Where a gpucrfs is mounted: GPUCR_MOUNT, else the first mount of type fuse.gpucrfs that root or
 * this user has made (an ordinary user can give any name to a mount). For the caller to free.
 * -ENOENT: there is none; -EINVAL, -ENOTCONN (no daemon answers), ...: there should be, with words.
 */
int gcr_mount_find(char **ret_mount, struct gcr_error *error);

enum gcr_mount_kind {
	GCR_MOUNT_NOTHING,  /* no directory: the process uses no GPU */
	GCR_MOUNT_LAUNCHER, /* only processes below it do */
	GCR_MOUNT_PROCESS,
};

struct gcr_mount_look {
	enum gcr_mount_kind kind;
	bool is_frozen;
	bool has_own_plugin; /* of its vendor, for what stays on the GPU: that is to be asked too */
	uint64_t start_ticks;
};

/*
 * What the mount says of a process. With words: -EXDEV: its pids are those of another pid
 * namespace; -EOPNOTSUPP: it is not of the engine vmm or hip; -EACCES; -ENOTCONN; ...
 */
int gcr_mount_look(const char *mount, pid_t pid, struct gcr_mount_look *ret_look,
		   struct gcr_error *error);

/*
 * Write a verb to MOUNT/DIRECTORY/ctl (@directory "": the root's) and wait for its end, or with
 * O_NONBLOCK in @flags until it is accepted. The words are those of the daemon.
 */
int gcr_mount_write(const char *mount, const char *directory, const char *verb, int flags,
		    struct gcr_error *error);

/*
 * The end of a verb in lines of `events` (they begin with a time, an id and a generation): 1 and
 * *ret_result is 0 or -errno, with the daemon's words; 0: it is not among them.
 */
int gcr_mount_verb_end(const char *lines, const char *verb, int *ret_result,
		       struct gcr_error *error);

/* copy.c */

/* Who may have made the files that are copied. */
struct gcr_copy_owner {
	bool is_checked; /* regular files and directories of @uid that nobody else can write */
	uid_t uid;
};

/*
 * Copy a snapshot (gpucrfs(5), SNAPSHOT FORMAT) from one directory into another, empty one: its
 * manifest last, and only that which was there at the beginning too. Holes stay holes. With words:
 * -ENOENT: there is no manifest, or a file has vanished; -ESTALE: it has changed meanwhile; -EPERM:
 * not the owner's alone; -ENOSPC, -EIO, ...
 */
int gcr_snapshot_copy(int from_fd, int to_fd, const struct gcr_copy_owner *owner,
		      struct gcr_error *error);

/* Remove GCR_IMAGES_PREFIX@number from the images, if it is there. */
int gcr_images_remove(int images_fd, long number, struct gcr_error *error);

/* Calls @visit with each number for which there is such a name, until it returns non-zero. */
int gcr_images_each(int images_fd, int (*visit)(long number, void *data), void *data,
		    struct gcr_error *error);

/* The pid of a process in its innermost pid namespace: the same before and after. */
int gcr_own_pid(pid_t pid, pid_t *ret_own_pid, struct gcr_error *error);

/* keeper.c */

struct gcr_kept {
	pid_t pid;
	int pidfd;
};

/*
 * Start a process that outlives CRIU, and thaws in the end what is not killed: whether that is so
 * is not told to plugins, and CRIU may be killed. *ret_fd: when its last copy is closed, the dump
 * is over. -EAGAIN, ...: there is none.
 */
int gcr_keeper_start(const char *mount, const struct gcr_kept *kept, size_t count, int *ret_fd,
		     struct gcr_error *error);
/* Before that: nothing was frozen. */
void gcr_keeper_dismiss(int fd);

/* dump.c, restore.c: what plugin.c calls. Hooks return 0, -ENOTSUP or -1, and have logged. */
int gcr_dump_begin(void);
int gcr_dump_pause(pid_t pid);
int gcr_dump_save(pid_t pid);
void gcr_dump_end(bool failed);

int gcr_restore_begin(void);
int gcr_restore_resume(pid_t pid);
/* false: a program stands still, as the log says. */
bool gcr_restore_end(bool failed);

#endif
