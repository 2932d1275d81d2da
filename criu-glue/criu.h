/* SPDX-License-Identifier: MIT */
/*
 * CRIU as a child process, or a launcher's: found, started, waited for, stopped; and what it said
 * made into an error. Facts about its options and messages are those of CRIU 4.0 to 4.2
 * (Documentation/criu.txt, criu/config.c). A job is used by one thread at a time.
 */
#ifndef GCR_CRIU_GLUE_CRIU_H
#define GCR_CRIU_GLUE_CRIU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/cleanup.h"
#include "lib/error.h"

/* Versions as CRIU counts them itself: major * 10000 + minor * 100 + sublevel. */
#define GCR_CRIU_VERSION_MIN 40000u

/* The program that asks us before a dump stands, its descriptor, and what it says and hears. */
#define GCR_CRIU_HOOK_PROGRAM "gpucr-hook"
#define GCR_CRIU_GUARD	      "libgpucr-criu-guard.so"
#define GCR_CRIU_HOOK_FD      5
#define GCR_CRIU_HOOK_ASKS    '?'
#define GCR_CRIU_HOOK_YES     'y'
#define GCR_CRIU_HOOK_NO      'n'

#define GCR_PIDNS_PROGRAM "gpucr-pidns" /* where the daemon's other helpers are */

struct gcr_criu_program {
	char *path;	/* absolute unless the caller's was not */
	char *launcher; /* criu-glue/launch.h: a socket's path; NULL: CRIU is our child */
	unsigned int version;
};

/*
 * Find CRIU and ask it for its version (once: keep the result). @path: this program and no other;
 * NULL: `criu` in PATH, then where distributions put it. @launcher (may be NULL): the socket of the
 * launcher that starts it, every time; a copy is made. -EOPNOTSUPP: there is none, it does not
 * run, or it is too old, with words that say what to install; -EIO: the launcher does not answer;
 * -ENOMEM.
 */
int gcr_criu_find(const char *path, const char *launcher, struct gcr_criu_program *ret_program,
		  struct gcr_error *error);
void gcr_criu_program_clear(struct gcr_criu_program *program);

enum gcr_criu_action {
	GCR_CRIU_DUMP,
	GCR_CRIU_RESTORE, /* detached: the tree is no child of CRIU's when it has ended */
};

enum gcr_criu_after {
	GCR_CRIU_AFTER_DEFAULT, /* a dumped tree is killed, a restored one runs */
	GCR_CRIU_AFTER_STOPPED, /* --leave-stopped: SIGCONT makes it go on */
	GCR_CRIU_AFTER_RUNNING, /* --leave-running, of a dump */
};

enum gcr_criu_tcp {
	GCR_CRIU_TCP_REFUSE, /* a connection is an error */
	GCR_CRIU_TCP_KEEP,   /* --tcp-established: packets are held back meanwhile */
	GCR_CRIU_TCP_CLOSE,  /* --tcp-close: closed when restored */
};

struct gcr_criu_inherit {
	int fd;		 /* stays the caller's */
	const char *key; /* what it stands for: "pipe:[INODE]", "tty[RDEV:DEV]", ... */
};

#define GCR_CRIU_UNWANTED_MAX 2

/* Everything in it is the caller's and needed only during gcr_criu_start(). */
struct gcr_criu_options {
	enum gcr_criu_action action;
	pid_t pid;	      /* dump: the tree's root */
	int images_fd;	      /* directory of the images */
	int work_fd;	      /* directory of the log and the pid file; -1: the images' */
	const char *log_name; /* a name in the work directory; one that is there is replaced */
	/*
	 * Where CRIU looks for plugins: an existing directory of ours, empty or with our plugin. A
	 * plugin of CRIU's own for GPUs would act behind our back.
	 */
	const char *libdir;
	enum gcr_criu_after after;
	enum gcr_criu_tcp tcp;
	bool shell_job;		      /* the root's session leader or terminal is outside */
	bool file_locks;	      /* dump file locks */
	bool ext_unix_sockets;	      /* datagram sockets may be connected to the outside */
	bool link_remap;	      /* unlinked files with other names get a temporary one */
	uint64_t ghost_limit_bytes;   /* largest unlinked file (blocks in use); 0: CRIU's 1 MiB */
	const char *const *externals; /* "file[..]", "unix[INODE]", "tty[..]", ... */
	size_t externals_count;
	const struct gcr_criu_inherit *inherits; /* restore */
	size_t inherits_count;
	/*
	 * A cgroup's cgroup.procs, open for writing: CRIU begins there, and what it restores stays
	 * there. 0 or less: in ours.
	 */
	int cgroup_procs_fd;
	/*
	 * Of a dump: the path of gpucr-hook. CRIU waits for gcr_criu_answer() then, with all images
	 * written and the tree held as it is, by ptrace(2), of which nobody else sees anything.
	 * (After
	 * --leave-stopped a parent outside would see it stopped, and a shell, sudo or nsenter stop
	 * too.) NULL: none.
	 */
	const char *hook_program;
	/* The path of GCR_CRIU_GUARD, which keeps others from CRIU's sockets; NULL: none. */
	const char *guard;
	/*
	 * Restore in a new pid namespace, where all pids are free: the path of gpucr-pidns, which
	 * is needed for that. NULL: in ours. The tree ends with the namespace's init, and that ends
	 * when the tree has.
	 */
	const char *pidns_program;
	/*
	 * With pidns_program: st_dev of filesystems whose mounts are not to stay in use by the
	 * tree's mount namespace when they are unmounted outside; 0: none. CRIU reaches its images
	 * and its log there by its descriptors.
	 */
	dev_t unwanted_mounts[GCR_CRIU_UNWANTED_MAX];
};

struct gcr_criu_job;

/*
 * Start it. The environment is ours less LD_PRELOAD and CRIU_CONFIG_FILE; CRIU_FAULT gets through.
 * Errors with words: -EINVAL options that contradict each other, -ENOMEM, -EIO (its cgroup cannot
 * be entered, too).
 */
int gcr_criu_start(const struct gcr_criu_program *program, const struct gcr_criu_options *options,
		   struct gcr_criu_job **ret_job, struct gcr_error *error);

/* A pidfd, readable once CRIU has ended; the job's. */
int gcr_criu_fd(const struct gcr_criu_job *job);

/*
 * Wait until CRIU has ended: 0 (and gcr_criu_finish() does not wait), -ETIMEDOUT, or -EINTR:
 * @wake_fd (may be -1) is readable. The job goes on then. @timeout_usec < 0: no limit.
 */
int gcr_criu_wait(struct gcr_criu_job *job, int64_t timeout_usec, int wake_fd);

/*
 * With hook_program: readable when the images are written and CRIU waits for an answer; the job's,
 * for gcr_criu_wait(). -1: there is none, or it has been answered.
 */
int gcr_criu_hook_fd(const struct gcr_criu_job *job);
/* Once. False: the tree goes on, whatever was asked for, and gcr_criu_finish() is an error. */
void gcr_criu_answer(struct gcr_criu_job *job, bool is_yes);

/*
 * Make it give up, and not wait. A dump cannot write any more from now on (its limit of file sizes
 * is 0, with SIGXFSZ ignored), so it fails as on a full disk: it takes its code out of the
 * programs, lets them go on and removes its network rules. A killed one would not: see
 * gcr_criu_kill(). A restore is killed with what it has made so far. It may still have succeeded,
 * which gcr_criu_finish() tells.
 */
void gcr_criu_cancel(struct gcr_criu_job *job);

/*
 * End it now. What is left of a dump was found by experiment (CRIU 4.1.1, Linux 6.18, 29
 * dumps killed at as many moments): the programs are no longer traced and run again. CRIU's code in
 * a program sees its socket close and returns to what was interrupted; its mapping stays behind,
 * which harms nothing and is no obstacle to another dump. In the moments when CRIU has put a system
 * call into a program's registers but not its code, a program can die of it: use gcr_criu_cancel()
 * first, and this only for a CRIU that does not answer. Of a dump with GCR_CRIU_TCP_KEEP, packet
 * filter rules may be left (nftables: tables "inet CRIU-..."). A restore: all descendants are
 * killed, then CRIU.
 */
void gcr_criu_kill(struct gcr_criu_job *job);

/*
 * gcr_criu_cancel(), up to @grace_usec for it, then gcr_criu_kill(), and wait for its end. 0;
 * -ETIMEDOUT: a restore's CRIU has not ended 10 s after it was killed, for it hangs in the kernel:
 * the job is for gcr_criu_leave(). A dump's is waited for without limit: it holds the tree.
 */
int gcr_criu_stop(struct gcr_criu_job *job, int64_t grace_usec);

/*
 * Have a thread wait for the end of a CRIU that was killed: then it calls @ended with @data and
 * destroys the job, which is not the caller's any more. Without memory for a thread the job is
 * lost, and @ended is never called.
 */
void gcr_criu_leave(struct gcr_criu_job *job, void (*ended)(void *data), void *data);

/* CRIU's, or that of gpucr-pidns, which runs it. */
pid_t gcr_criu_pid(const struct gcr_criu_job *job);

/*
 * What has become of it; waits for its end. 0, and *ret_pid (may be NULL) is the root's pid after a
 * restore, as our pid namespace has it; else with words made of its log: -ECANCELED it was
 * cancelled or killed by us, -EBUSY, -EOPNOTSUPP, -EFBIG, -ENOSPC, ... as gcr_criu_log_error(),
 * -EIO.
 */
int gcr_criu_finish(struct gcr_criu_job *job, pid_t *ret_pid, struct gcr_error *error);

/*
 * Once CRIU has succeeded, also if what it restored was not found: with pidns_program the pid of
 * the namespace's init; else 0. Killing it ends everything that was restored. It is nobody's child
 * then (init's, or a subreaper's).
 */
pid_t gcr_criu_namespace_init(const struct gcr_criu_job *job);

/* Kills it if it has not ended. NULL is allowed. */
void gcr_criu_destroy(struct gcr_criu_job *job);
GCR_DEFINE_CLEANUP(struct gcr_criu_job *, gcr_criu_destroy);

/*
 * What a log says about a failure: the first error that is not the consequence or the noise of
 * another, without its time and place in CRIU's source, and for what is known an explanation in
 * front. Returns -errno; -ENOENT and no words if the log has none. @text is any bytes; it is
 * changed.
 */
int gcr_criu_log_error(char *text, size_t bytes, struct gcr_error *error);

#endif
