/* SPDX-License-Identifier: MIT */
/*
 * What /proc says about a process. A pid is only a name; every caller that keeps one also keeps
 * the start time, and a pidfd where it must not be fooled.
 */
#ifndef GCR_PROCFS_H
#define GCR_PROCFS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define GCR_COMM_BYTES	64 /* a task's name (16 in the kernel, 64 with workers' descriptions) */
#define GCR_NS_PIDS_MAX 32 /* levels of pid namespaces (MAX_PID_NS_LEVEL) */

struct gcr_proc_stat {
	char comm[GCR_COMM_BYTES]; /* as it is, may hold any byte but NUL */
	char state;		   /* R S D T t Z X I */
	pid_t parent;
	bool is_exiting;      /* PF_EXITING: on its way out, soon or already a zombie */
	uint64_t start_ticks; /* since boot, in clock ticks: field 22 of /proc/PID/stat */
};

/* -ESRCH: no such process (or task). Of a process, this is the line of its main thread. */
int gcr_proc_stat(pid_t pid, struct gcr_proc_stat *ret_stat);

/*
 * Have all threads of @pid ended, or been killed, or are they on their way out? The main thread
 * alone may have (pthread_exit(3) in main()): state 'Z', is_exiting, and nothing in maps, environ
 * and fd, for as long as the others go on. 1, 0, -ESRCH: no such process.
 */
int gcr_proc_is_ending(pid_t pid);

/* The first thread of @pid that goes on: @pid itself unless its main thread has ended; 0: none. */
pid_t gcr_proc_living_thread(pid_t pid);

/* Signal sets are those of /proc/TID/status: bit N-1 for signal N. */
struct gcr_proc_status {
	char state;	    /* as in stat; this file waits for nobody's locks, and that one may */
	pid_t thread_group; /* Tgid: differs from the id asked for if that is a thread */
	pid_t parent;
	uid_t real_uid;
	uid_t effective_uid;
	pid_t ns_pids[GCR_NS_PIDS_MAX]; /* outermost (ours) first */
	unsigned int ns_pids_count;
	uint64_t signals_pending; /* SigPnd | ShdPnd */
	uint64_t signals_blocked;
	uint64_t effective_capabilities; /* in its own user namespace */
	uint64_t rss_anon_bytes;
	uint64_t swap_bytes; /* of anonymous memory */
};

int gcr_proc_status(pid_t pid, struct gcr_proc_status *ret_status);

/*
 * Owner of /proc/PID: root for a process that is not dumpable. One whose threads are all on their
 * way out, without memory, is its user's. -ESRCH.
 */
int gcr_proc_owner(pid_t pid, uid_t *ret_uid, gid_t *ret_gid);

/*
 * Does @pid hold the file @path open (a device node: compared by the link's text)?
 * 1 yes, 0 no, -ESRCH, -EACCES.
 */
int gcr_proc_holds_file(pid_t pid, const char *path);

/*
 * Calls @visit with the target of every link in /proc/PID/fd until it returns non-zero, and returns
 * that; else 0, -ESRCH, -EACCES.
 */
int gcr_proc_each_file(pid_t pid, int (*visit)(const char *target, void *data), void *data);

/* The same with the descriptor's number. */
int gcr_proc_each_link(pid_t pid, int (*visit)(int fd, const char *target, void *data), void *data);

/*
 * All of them at once: for each the number in decimal, a NUL, the target, a NUL. For the caller to
 * free. -EFBIG: these are more bytes than this. A process may have a million descriptors, each of a
 * file whose path takes 4 KiB.
 */
#define GCR_PROC_LINKS_BYTES_MAX (64u << 20)
int gcr_proc_links(pid_t pid, char **ret_text, size_t *ret_bytes);

/* readlink(2) of /proc/PID/NAME: always ends with a NUL; "" if it has none. -ESRCH, -EACCES. */
int gcr_proc_link(pid_t pid, const char *name, char *ret_target, size_t target_bytes);

/* The namespace /proc/PID/ns/NAME ("pid", "user"), open. -ESRCH, -EACCES. */
int gcr_proc_open_namespace(pid_t pid, const char *name, int *ret_fd);

/* Read @bytes of a process's memory. -EFAULT: not so many are there. -EPERM, -ESRCH. */
int gcr_proc_peek(pid_t pid, uintptr_t address, void *ret, size_t bytes);

/*
 * Of each of @fds, is it the same open file in both processes (kcmp(2))? One that cannot be
 * compared is not.
 */
#define GCR_PROC_SAME_MAX 512 /* @count at most */
int gcr_proc_same_files(pid_t pid, pid_t other, const int *fds, size_t count, bool *ret_same);

/*
 * Calls @visit with every mapped file's path in /proc/PID/maps, likewise. Each is visited once, but
 * where a program has mapped files with more than 1 MiB of paths, some are visited several times.
 */
int gcr_proc_each_mapping(pid_t pid, int (*visit)(const char *path, void *data), void *data);

/*
 * Calls @visit with every range at which @pid maps the file that /proc/PID/maps calls @path,
 * likewise.
 */
int gcr_proc_each_range(pid_t pid, const char *path,
			int (*visit)(uintptr_t start, uintptr_t end, void *data), void *data);

/* One line of /proc/PID/maps. */
struct gcr_proc_span {
	uintptr_t start, end;
	uint64_t offset; /* of the file, at start */
};

/* The same for every file whose path begins with @prefix. */
int gcr_proc_each_span(pid_t pid, const char *prefix,
		       int (*visit)(const struct gcr_proc_span *span, void *data), void *data);

/* A pidfd for exactly this process: -ESRCH if the start time is not @start_ticks. */
int gcr_proc_open(pid_t pid, uint64_t start_ticks, int *ret_pidfd);

/*
 * May a caller (task @caller) reach process @target by pid namespaces: is target's namespace the
 * caller's or below it? 1, 0, -errno.
 */
int gcr_proc_namespace_reaches(pid_t caller, pid_t target);

/* The same of whoever is in the pid namespace that @namespace_fd is open for. */
int gcr_proc_namespace_holds(int namespace_fd, pid_t target);

/* Value of NAME in /proc/PID/environ, for the caller to free; -ENOENT if unset, -EACCES. */
int gcr_proc_environ(pid_t pid, const char *name, char **ret_value);

#endif
