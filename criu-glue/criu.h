/* SPDX-License-Identifier: MIT */
/*
 * CRIU as a child process, or a launcher's: finding it, starting it, waiting for it, stopping it,
 * and turning its log into an error. Facts about its options and messages are those of CRIU 4.0 to
 * 4.2 (Documentation/criu.txt, criu/config.c). A job, one run of CRIU, is used by one thread at a
 * time.
 */
#ifndef GCR_CRIU_GLUE_CRIU_H
#define GCR_CRIU_GLUE_CRIU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "criu-glue/image_owner.h"
#include "lib/cleanup.h"
#include "lib/error.h"

/* Versions in CRIU's own form: major * 10000 + minor * 100 + sublevel. */
#define GCR_CRIU_VERSION_MIN 40000u

/* The descriptor on which CRIU has the directory of its images. */
#define GCR_CRIU_IMAGES_FD 3

/*
 * The program through which CRIU asks whether a dump is to be kept, its descriptor, and the bytes
 * that it sends and receives.
 */
#define GCR_CRIU_HOOK_PROGRAM	   "gpucr-hook"
#define GCR_CRIU_GUARD		   "libgpucr-criu-guard.so"
/* PID:FD, for the guard: the root of a dumped tree, and CRIU's descriptor of its pidfd. */
#define GCR_CRIU_ROOT_VARIABLE	   "GPUCR_CRIU_ROOT"
/* UID:GID:CAPABILITIES:GROUP,GROUP...: with whose rights the guard lets CRIU open a tree's files.
 */
#define GCR_CRIU_OWNER_VARIABLE	   "GPUCR_CRIU_OWNER"
/* FD: CRIU's descriptor of the gate, see guard_start.c. */
#define GCR_CRIU_GATE_VARIABLE	   "GPUCR_CRIU_GATE"
/* PID,PID...: which restored processes the guard makes dumpable, when they have their own rights.
 */
#define GCR_CRIU_DUMPABLE_VARIABLE "GPUCR_CRIU_DUMPABLE"
#define GCR_CRIU_GATE_BYTE	   'g' /* the messages through the gate, both ways */
/* FD, for the guard: CRIU's descriptor on which it asks whether a restored tree may run. */
#define GCR_CRIU_RESUME_VARIABLE   "GPUCR_CRIU_RESUME"
#define GCR_CRIU_HOOK_FD	   5
#define GCR_CRIU_HOOK_ASKS	   '?'
#define GCR_CRIU_HOOK_YES	   'y'
#define GCR_CRIU_HOOK_NO	   'n'

/*
 * The program that keeps CRIU's log, and its argument. CRIU writes to a socket, and this program to
 * the file: CRIU lends its log to the programs that it dumps, and they must not get a file of ours.
 */
#define GCR_DRAIN_PROGRAM	"gpucr-drain"
#define GCR_DRAIN_CRIU		"criu"
/*
 * The log's maximum size; before a write would exceed that, all is removed but for the last part
 * and the first of the errors.
 */
#define GCR_CRIU_LOG_BYTES_MAX	(256u << 10)
#define GCR_CRIU_LOG_BYTES_KEPT (128u << 10)

#define GCR_PIDNS_PROGRAM "gpucr-pidns" /* in the directory of the daemon's other helpers */

struct gcr_criu_program {
	char *path;	/* absolute unless the caller's path was not */
	char *launcher; /* criu-glue/launch.h: a socket's path; NULL: CRIU is our child */
	unsigned int version;
};

/*
 * Finds CRIU and runs it to get its version (do it once, and keep the result). @path: this program
 * and no other; NULL: `criu` in PATH, then where distributions put it. @launcher (may be NULL;
 * copied): the socket of the launcher that starts CRIU, every time. @guard: as in struct
 * gcr_criu_options. Errors, with a message: -EOPNOTSUPP there is no CRIU, it does not run, it is
 * too old, or it does not load the guard (the message says what to install); -EIO the launcher does
 * not answer; -ENOMEM.
 */
int gcr_criu_find(const char *path, const char *launcher, const char *guard,
		  struct gcr_criu_program *ret_program, struct gcr_error *error);
void gcr_criu_program_clear(struct gcr_criu_program *program);

enum gcr_criu_action {
	GCR_CRIU_DUMP,
	GCR_CRIU_RESTORE, /* detached: when CRIU has ended, the tree is not its child */
	GCR_CRIU_VERSION, /* of gcr_criu_find() alone */
};

enum gcr_criu_after {
	GCR_CRIU_AFTER_DEFAULT, /* a dumped tree is killed, a restored one runs */
	GCR_CRIU_AFTER_STOPPED, /* --leave-stopped: SIGCONT resumes the tree */
	GCR_CRIU_AFTER_RUNNING, /* --leave-running, for a dump */
};

enum gcr_criu_tcp {
	GCR_CRIU_TCP_REFUSE, /* a TCP connection is an error */
	GCR_CRIU_TCP_KEEP,   /* --tcp-established: packets are blocked until the restore */
	GCR_CRIU_TCP_CLOSE,  /* --tcp-close: connections are closed at restore */
};

struct gcr_criu_inherit {
	int fd;		 /* stays the caller's */
	const char *key; /* the resource it replaces: "pipe:[INODE]", "tty[RDEV:DEV]", ... */
};

#define GCR_CRIU_UNWANTED_MAX 2

/*
 * The options of one run of CRIU. Everything that they point to stays the caller's, and is needed
 * only during gcr_criu_start().
 */
struct gcr_criu_options {
	enum gcr_criu_action action;
	pid_t pid;		 /* dump: the tree's root */
	int pidfd;		 /* dump with a guard: the root's; stays the caller's */
	int images_fd;		 /* directory of the images */
	int work_fd;		 /* directory of the log and the pid file; -1: images_fd */
	const char *log_name;	 /* a name in the work directory; an existing file is replaced */
	const char *log_program; /* the path of gpucr-drain */
	/*
	 * CRIU's plugin directory: an existing directory of ours, empty or with our plugin. So
	 * CRIU's own plugins for GPUs are never loaded.
	 */
	const char *libdir;
	enum gcr_criu_after after;
	enum gcr_criu_tcp tcp;
	bool shell_job;		      /* root's session leader or terminal is outside the tree */
	bool file_locks;	      /* dump file locks */
	bool ext_unix_sockets;	      /* datagram sockets may be connected to sockets outside */
	bool link_remap;	      /* unlinked files with other names get a temporary name */
	uint64_t ghost_limit_bytes;   /* largest unlinked file (blocks in use); 0: CRIU's 1 MiB */
	const char *const *externals; /* "file[..]", "unix[INODE]", "tty[..]", ... */
	size_t externals_count;
	const struct gcr_criu_inherit *inherits; /* restore */
	size_t inherits_count;
	/*
	 * The file cgroup.procs of a cgroup, open for writing: CRIU starts in that cgroup, and the
	 * restored tree stays there. 0 or less: in our cgroup.
	 */
	int cgroup_procs_fd;
	/*
	 * For a dump: the path of gpucr-hook. When all images are written, CRIU waits for
	 * gcr_criu_answer() while it holds the tree by ptrace(2), which no other process notices.
	 * (After --leave-stopped a parent outside would notice that the tree is stopped, and a
	 * shell, sudo or nsenter would stop too.) NULL: none.
	 */
	const char *hook_program;
	/*
	 * The path of GCR_CRIU_GUARD, which keeps other processes away from CRIU's sockets, CRIU
	 * from a process that has got the root's pid, and a restored tree from files that are not
	 * its owner's. CRIU has its images from the guard: without it CRIU fails. NULL: none.
	 */
	const char *guard;
	/*
	 * For a restore with a guard: with whose rights CRIU opens the files of the tree. NULL: as
	 * root.
	 */
	const struct gcr_image_owner *owner;
	/*
	 * For a restore with a guard: before any thread of the tree runs any of the program, CRIU
	 * waits for gcr_criu_answer() while it holds all of them by ptrace(2). From when CRIU has
	 * attached to them until it lets go, they are killed when it ends.
	 */
	bool asks;
	/*
	 * With an owner: the processes that the guard makes dumpable, by their pids in the images,
	 * which say that none is (criu-glue/dumpable.h).
	 */
	const pid_t *dumpable;
	size_t dumpable_count;
	/*
	 * Restore in a new pid namespace, where all pids are free: the path of gpucr-pidns, which
	 * does that. NULL: in our namespace. The tree ends with the namespace's init, and init ends
	 * when the tree has.
	 */
	const char *pidns_program;
	/*
	 * With pidns_program: st_dev of filesystems whose mounts must not stay busy in the tree's
	 * mount namespace when they are unmounted outside; 0: none. CRIU accesses its images and
	 * its log on them through its descriptors.
	 */
	dev_t unwanted_mounts[GCR_CRIU_UNWANTED_MAX];
};

struct gcr_criu_job;

/*
 * Starts CRIU. The environment is ours without LD_PRELOAD and CRIU_CONFIG_FILE; CRIU_FAULT is
 * passed on. Errors, with a message: -EINVAL contradictory options, -ENOMEM, -EIO (also: the cgroup
 * cannot be entered, or nothing would keep the log).
 */
int gcr_criu_start(const struct gcr_criu_program *program, const struct gcr_criu_options *options,
		   struct gcr_criu_job **ret_job, struct gcr_error *error);

/* Returns a pidfd, readable once CRIU has ended; owned by the job. */
int gcr_criu_fd(const struct gcr_criu_job *job);

/*
 * Waits until CRIU has ended: 0 (gcr_criu_finish() then does not wait), -ETIMEDOUT, or -EINTR:
 * @wake_fd (may be -1) is readable. CRIU keeps running on these errors. @timeout_usec < 0: no
 * limit.
 */
int gcr_criu_wait(struct gcr_criu_job *job, int64_t timeout_usec, int wake_fd);

/*
 * Returns a descriptor that is readable when CRIU waits for an answer: the images are written (with
 * hook_program), or all of the tree is made (with asks). The job owns it; it can be @wake_fd of
 * gcr_criu_wait(). -1: this CRIU does not ask, or has been answered.
 */
int gcr_criu_hook_fd(const struct gcr_criu_job *job);
/*
 * -EIO, with a message: CRIU was given a guard, and has not loaded it by now. Such a CRIU has no
 * images.
 */
int gcr_criu_check_guard(struct gcr_criu_job *job, struct gcr_error *error);
/*
 * Answers, once. False: gcr_criu_finish() returns an error; a dumped tree keeps running, whatever
 * the options say, and a restored one is killed.
 */
void gcr_criu_answer(struct gcr_criu_job *job, bool is_yes);

/*
 * Makes CRIU give up, without waiting. A dump cannot write any more from now on (its file size
 * limit becomes 0, with SIGXFSZ ignored), so it fails as on a full disk: CRIU removes its code from
 * the programs, lets them run and removes its network rules. A killed CRIU would not: see
 * gcr_criu_kill(). A restore is killed with the processes that it has made. CRIU may still have
 * succeeded: see gcr_criu_finish().
 */
void gcr_criu_cancel(struct gcr_criu_job *job);

/*
 * Kills CRIU now. The effects on a dump were found by experiment (CRIU 4.1.1, Linux 6.18, 29 dumps
 * killed at as many moments): the programs are no longer traced and run again. CRIU's code in a
 * program sees its socket close and returns to the interrupted code; its mapping remains, which
 * does no harm and does not prevent another dump. In the moments when CRIU has put a system call
 * into a program's registers but not its code, a program can die of it: use gcr_criu_cancel()
 * first, and this function only for a CRIU that does not react. After a dump with
 * GCR_CRIU_TCP_KEEP, packet filter rules may be left (nftables: tables "inet CRIU-..."). For a
 * restore, all descendants are killed, then CRIU.
 */
void gcr_criu_kill(struct gcr_criu_job *job);

/*
 * Calls gcr_criu_cancel(), waits up to @grace_usec, then calls gcr_criu_kill() and waits for CRIU's
 * end. 0; -ETIMEDOUT: the CRIU of a restore has not ended 10 s after it was killed, because it
 * hangs in the kernel: pass the job to gcr_criu_leave(). The CRIU of a dump is waited for without
 * limit, since it holds the tree.
 */
int gcr_criu_stop(struct gcr_criu_job *job, int64_t grace_usec);

/*
 * Starts a thread that waits for the end of a CRIU that was killed, then calls @ended with @data
 * and destroys the job, which is no longer the caller's. If there is no memory for a thread, the
 * job is leaked and @ended is never called.
 */
void gcr_criu_leave(struct gcr_criu_job *job, void (*ended)(void *data), void *data);

/* The pid of CRIU, or of gpucr-pidns, which runs it. */
pid_t gcr_criu_pid(const struct gcr_criu_job *job);

/*
 * Waits for CRIU's end, and until its log is complete, and returns its result. 0: CRIU has
 * succeeded; *ret_pid (may be NULL) is the root's pid after a restore, in our pid namespace. Else
 * -errno, with a message made from CRIU's log: -ECANCELED CRIU was cancelled or killed by us,
 * -EBUSY, -EOPNOTSUPP, -EFBIG, -ENOSPC, ... as gcr_criu_log_error(), -EIO (also: CRIU has succeeded
 * without its guard; *ret_pid is set).
 */
int gcr_criu_finish(struct gcr_criu_job *job, pid_t *ret_pid, struct gcr_error *error);

/*
 * Gets the pids of gcr_criu_finish() and gcr_criu_namespace_init() while CRIU waits for an answer
 * at a restore. Errors come with a message.
 */
int gcr_criu_made(struct gcr_criu_job *job, pid_t *ret_pid, struct gcr_error *error);

/*
 * Returns the pid of the namespace's init with pidns_program, else 0. Call it after CRIU has
 * succeeded, also if the restored root was not found. Killing init ends everything that was
 * restored. Init is then not our child (but the system's init's, or a subreaper's).
 */
pid_t gcr_criu_namespace_init(const struct gcr_criu_job *job);

/* Destroys the job; kills CRIU if it has not ended. NULL is allowed. */
void gcr_criu_destroy(struct gcr_criu_job *job);
GCR_DEFINE_CLEANUP(struct gcr_criu_job *, gcr_criu_destroy);

/*
 * Finds the cause of a failure in a log: the first error that is not a consequence of another or
 * mere noise, without its time and its place in CRIU's source, preceded by an explanation of known
 * errors. Returns -errno; -ENOENT and no message if the log has none. @text may hold any bytes; it
 * is modified.
 */
int gcr_criu_log_error(char *text, size_t bytes, struct gcr_error *error);

#endif
