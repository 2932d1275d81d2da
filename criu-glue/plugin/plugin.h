/* SPDX-License-Identifier: MIT */
/*
 * The CRIU plugin: with it any CRIU can dump and restore programs that use a GPU, without its user
 * knowing of gpucrfs. All of it runs in CRIU's process (keeper.c in a child of it), in one thread,
 * when CRIU calls its hooks. The plugin knows neither the driver nor the preload library: it reads
 * and writes the mount's files (gpucrfs(5)) and those of CRIU's images.
 */
#ifndef GCR_CRIU_PLUGIN_PLUGIN_H
#define GCR_CRIU_PLUGIN_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

#define GCR_PLUGIN_NAME	  "gpucr_plugin"
#define GCR_IMAGES_PREFIX "gpucr-" /* followed by the pid in the program's own pid namespace */

/* plugin.c: writes a line to CRIU's log. */
enum gcr_plugin_level {
	GCR_PLUGIN_ERROR = 1,
	GCR_PLUGIN_WARNING = 2,
	GCR_PLUGIN_INFO = 3,
};

void gcr_plugin_log(enum gcr_plugin_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* mount.c */

/*
 * Finds the mount point of a gpucrfs: GPUCR_MOUNT, else the first mount of type fuse.gpucrfs that
 * root or this user has made (an ordinary user can give any name to a mount). The caller frees it.
 * -ENOENT: there is none; -EINVAL, -ENOTCONN (no daemon answers), ..., with a message: there should
 * be one.
 */
int gcr_mount_find(char **ret_mount, struct gcr_error *error);

enum gcr_mount_kind {
	GCR_MOUNT_NOTHING,  /* no directory: the process does not use a GPU */
	GCR_MOUNT_LAUNCHER, /* only its descendants use one */
	GCR_MOUNT_PROCESS,
};

/* The facts about one process that the mount shows. */
struct gcr_mount_look {
	enum gcr_mount_kind kind;
	bool is_frozen;
	bool is_half_frozen; /* a freeze is under way, or could not be rolled back */
	/* The vendor has a plugin of its own for memory that stays on the GPU: call that too. */
	bool has_own_plugin;
	uint64_t start_ticks;
};

/*
 * Looks up a process in the mount. Errors, with a message: -EXDEV the mount's pids are those of
 * another pid namespace; -EOPNOTSUPP its engine is neither vmm nor hip; -EACCES; -ENOTCONN; ...
 */
int gcr_mount_look(const char *mount, pid_t pid, struct gcr_mount_look *ret_look,
		   struct gcr_error *error);

/*
 * Writes a verb to MOUNT/DIRECTORY/ctl (@directory "": the root's) and waits for its end, or with
 * O_NONBLOCK in @flags until it is accepted. The error message is the daemon's.
 */
int gcr_mount_write(const char *mount, const char *directory, const char *verb, int flags,
		    struct gcr_error *error);

/* Does the descriptor become readable, as a pidfd at the end of its process? -1: waits for ever. */
bool gcr_becomes_readable(int fd, int timeout_ms);

/* A process, whose pid is its own as long as the pidfd has not become readable. */
struct gcr_kept {
	pid_t pid;
	int pidfd;
};

/*
 * Writes a verb to the ctl of exactly this process, and waits for its end. -ESRCH: the process has
 * ended; then nothing is written to the ctl of another one that has its pid now.
 */
int gcr_mount_write_to(const char *mount, const struct gcr_kept *process, const char *verb,
		       struct gcr_error *error);

/*
 * Finds the end of a verb in lines of `events` (which begin with a time, an id and a generation).
 * 1: found, *ret_result is 0 or -errno, with the daemon's message; 0: not found.
 */
int gcr_mount_verb_end(const char *lines, const char *verb, int *ret_result,
		       struct gcr_error *error);

/* copy.c */

/* The expected owner of the files that are copied. */
struct gcr_copy_owner {
	/* Accept only regular files and directories of @uid that no other user can write. */
	bool is_checked;
	uid_t uid;
};

/*
 * Copies a snapshot (gpucrfs-snapshot(5)) from one directory into another, empty one: the manifest
 * last, and only if the same manifest was there at the beginning. Holes are preserved. Errors, with
 * a message: -ENOENT there is no manifest, or a file has vanished; -ESTALE the snapshot changed
 * during the copy; -EPERM another user owns or can write a file; -ENOSPC, -EIO, ...
 */
int gcr_snapshot_copy(int from_fd, int to_fd, const struct gcr_copy_owner *owner,
		      struct gcr_error *error);

/* Removes GCR_IMAGES_PREFIX@number from the images, if it exists. */
int gcr_images_remove(int images_fd, long number, struct gcr_error *error);

/*
 * Calls @visit with the number of each name GCR_IMAGES_PREFIX@number, until @visit returns
 * non-zero, which is then returned. @visit may remove the name. -errno with a message.
 */
int gcr_images_each(int images_fd, int (*visit)(long number, void *data), void *data,
		    struct gcr_error *error);

/*
 * The pid of a process in its innermost pid namespace, which is the same before a dump and after a
 * restore.
 */
int gcr_own_pid(pid_t pid, pid_t *ret_own_pid, struct gcr_error *error);

/* keeper.c */

/*
 * Starts a keeper: a process that outlives CRIU and, after the dump, thaws the programs that CRIU
 * lets run. Plugins cannot know which these are, and CRIU may be killed. The dump counts as over
 * when the last copy of *ret_fd, the caller's, is closed. -EAGAIN, ..., with a message: the keeper
 * could not be started.
 */
int gcr_keeper_start(const char *mount, const struct gcr_kept *kept, size_t count, int *ret_fd,
		     struct gcr_error *error);
/*
 * Tells the keeper that the freeze has failed: after the dump it thaws only a process whose freeze
 * could not be rolled back, and none that somebody else has frozen.
 */
void gcr_keeper_tell_failure(int fd);

/*
 * dump.c, restore.c: the functions that plugin.c calls. Both `begin` functions return 1 if there
 * may be something to do, 0 if not, or -1. Hooks return 0, -ENOTSUP or -1. Whatever fails has
 * logged the reason.
 */
int gcr_dump_begin(void);
int gcr_dump_pause(pid_t pid);
/* For a dump with nothing to do, since there is no mount: see refuse_handed_over() of dump.c. */
int gcr_dump_check(pid_t pid);
int gcr_dump_save(pid_t pid);
void gcr_dump_end(bool failed);

int gcr_restore_begin(void);
int gcr_restore_resume(pid_t pid);
/* Ends the restore. False: a program stands still; the reason is in the log. */
bool gcr_restore_end(bool failed);

#endif
