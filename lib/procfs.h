/* SPDX-License-Identifier: MIT */
/*
 * Reading facts about a process from /proc. A pid alone does not identify a process; every caller
 * that keeps one also keeps the start time, and a pidfd where a reused pid would do harm.
 */
#ifndef GCR_PROCFS_H
#define GCR_PROCFS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define GCR_COMM_BYTES	64 /* a task's name (16 in the kernel, 64 with workers' descriptions) */
#define GCR_NS_PIDS_MAX 32 /* levels of pid namespaces (MAX_PID_NS_LEVEL) */

/*
 * Which program a process has, told by addresses that the kernel chooses anew in each execve(2):
 * fields 26 and 28 of /proc/PID/stat. They can be equal after an execve(2) only if address space
 * randomization is off: for the process (personality(2)), but not for a program with more rights
 * than its caller, or for the machine (kernel.randomize_va_space). Where we may not read them they
 * are always the same.
 */
struct gcr_proc_program {
	uint64_t start_code;
	uint64_t start_stack; /* 0: unknown, or the thread has no memory any more */
};

/* Is it certain that the two are not the same? Which programs we may read can change by itself. */
static inline bool gcr_proc_program_differs(const struct gcr_proc_program *program,
					    const struct gcr_proc_program *other)
{
	return program->start_stack && other->start_stack &&
	       (program->start_code != other->start_code ||
		program->start_stack != other->start_stack);
}

static inline bool gcr_proc_program_is(const struct gcr_proc_program *program,
				       const struct gcr_proc_program *other)
{
	return program->start_code == other->start_code &&
	       program->start_stack == other->start_stack;
}

struct gcr_proc_stat {
	char comm[GCR_COMM_BYTES]; /* unchanged, may hold any byte but NUL */
	char state;		   /* R S D T t Z X I */
	pid_t parent;
	bool is_exiting;      /* PF_EXITING: about to end, soon or already a zombie */
	uint64_t start_ticks; /* since boot, in clock ticks: field 22 of /proc/PID/stat */
	struct gcr_proc_program program;
};

/* -ESRCH: no such process (or task). Of a process, these are the facts of its main thread. */
int gcr_proc_stat(pid_t pid, struct gcr_proc_stat *ret_stat);

/*
 * The program of a process, also if its main thread has ended. -ESRCH: there is no such process, or
 * no thread of it was found that has its memory; also -ETIMEDOUT and -EBUSY of lib/proc_source.h.
 */
int gcr_proc_program(pid_t pid, struct gcr_proc_program *ret_program);

/*
 * The number of threads of a process that the functions below examine at most, to find one that is
 * not exiting: a tracer can keep any number of threads that have ended, and some callers keep other
 * threads waiting. A thread takes about 20 microseconds; the source of lib/proc_source.h is asked
 * only about a thread that is no zombie.
 */
#define GCR_PROC_THREADS_LOOKED_AT 256

/*
 * Are all threads of @pid dead, killed, or exiting? The main thread can end alone (pthread_exit(3)
 * in main()): it then has state 'Z' and is_exiting, and maps, environ and fd are empty, while the
 * other threads keep running. 1, 0 (also: too many threads have ended to know), -ESRCH: no such
 * process.
 */
int gcr_proc_is_ending(pid_t pid);
/* Is there no such process, or is it ending? False if that cannot be found out. */
bool gcr_proc_has_ended(pid_t pid);

/*
 * The first thread of @pid that is not exiting: @pid itself unless its main thread has ended; 0:
 * none, or none could be found.
 */
pid_t gcr_proc_living_thread(pid_t pid);

/*
 * Is each thread of @pid that has not ended traced (ptrace(2)) by @tracer? 1, 0; -ESRCH: there is
 * no thread that has not ended; -ENOMEM.
 */
int gcr_proc_is_traced_by(pid_t pid, pid_t tracer);

/* Signal sets are those of /proc/TID/status: bit N-1 for signal N. */
struct gcr_proc_status {
	char state;	    /* as in stat, but reading this file never waits for a lock */
	pid_t thread_group; /* Tgid: differs from the id asked for if that is a thread's */
	pid_t parent;
	pid_t tracer; /* TracerPid; 0: none, or in no pid namespace that we see */
	uid_t real_uid;
	uid_t effective_uid;
	gid_t real_gid;
	/* It has one user and one group: all its user ids are equal, and all its group ids are. */
	bool has_one_user;
	pid_t ns_pids[GCR_NS_PIDS_MAX]; /* from the outermost namespace (ours) inwards */
	unsigned int ns_pids_count;
	uint64_t signals_pending; /* SigPnd | ShdPnd */
	uint64_t signals_blocked;
	uint64_t effective_capabilities; /* in its own user namespace */
	uint64_t permitted_capabilities;
	bool has_memory; /* false: a thread that has released it, or the kernel's */
	uint64_t rss_anon_bytes;
	uint64_t swap_bytes; /* of anonymous memory */
};

/* Reads /proc/PID/status of a process or thread. -ESRCH: there is none. */
int gcr_proc_status(pid_t pid, struct gcr_proc_status *ret_status);

/*
 * Has the kernel started the program with more rights than its caller (AT_SECURE of getauxval(3):
 * set-user-ID, set-group-ID, file capabilities)? 1, 0; -EACCES, -ESRCH; -ETIMEDOUT and -EBUSY of
 * lib/proc_source.h.
 */
int gcr_proc_is_secure(pid_t pid);

/*
 * Does the process have rights that its user does not have: another user or group to return to
 * (Uid, Gid of its status), or capabilities without being root of its user namespace? Other
 * processes of the user may not look into it (ptrace(2), "Ptrace access mode checking").
 * CAP_WAKE_ALARM does not count: some systems give it to all users who have logged in. True also if
 * the process has ended.
 */
bool gcr_proc_has_more_rights(pid_t pid);

/*
 * The owner of /proc/PID: root for a process that is not dumpable, and root of its user namespace,
 * if that has an id in ours, else root, for one that has more rights than its user. A process whose
 * threads are all exiting, without memory, belongs to its user. If the main thread has ended, the
 * first thread that has its memory tells; a process with GCR_PROC_OWNER_THREADS ended threads or
 * more before that one belongs to root. Only a tracer keeps threads other than the main one after
 * their end. The function asks the kernel alone, never the source of lib/proc_source.h. -ESRCH.
 */
#define GCR_PROC_OWNER_THREADS 16
int gcr_proc_owner(pid_t pid, uid_t *ret_uid, gid_t *ret_gid);

/*
 * Has @pid the file @path open (a device node: the link's text is compared)? 1 yes, 0 no, -ESRCH,
 * -EACCES.
 */
int gcr_proc_holds_file(pid_t pid, const char *path);

/*
 * Calls @visit with the target of every link in /proc/PID/fd until @visit returns non-zero, and
 * returns that value; else 0, -ESRCH, -EACCES.
 */
int gcr_proc_each_file(pid_t pid, int (*visit)(const char *target, void *data), void *data);

/* As gcr_proc_each_file(), with the descriptor's number. */
int gcr_proc_each_link(pid_t pid, int (*visit)(int fd, const char *target, void *data), void *data);

/*
 * Returns all links at once: for each the number in decimal, a NUL, the target, a NUL. The caller
 * frees the text. -EFBIG: the text would be longer than this limit. A process may have a million
 * descriptors, each of a file whose path takes 4 KiB.
 */
#define GCR_PROC_LINKS_BYTES_MAX (64u << 20)
int gcr_proc_links(pid_t pid, char **ret_text, size_t *ret_bytes);

/*
 * readlink(2) of /proc/PID/NAME. The target always ends with a NUL; "" if there is none. -ESRCH,
 * -EACCES.
 */
int gcr_proc_link(pid_t pid, const char *name, char *ret_target, size_t target_bytes);

/* Reads @bytes of a process's memory. -EFAULT: part of the range is not mapped. -EPERM, -ESRCH. */
int gcr_proc_peek(pid_t pid, uintptr_t address, void *ret, size_t bytes);

/*
 * For each of @fds: do both processes have the same open file there (kcmp(2))? False also if the
 * two cannot be compared.
 */
#define GCR_PROC_SAME_MAX 512 /* maximum of @count */
int gcr_proc_same_files(pid_t pid, pid_t other, const int *fds, size_t count, bool *ret_same);

/*
 * Calls @visit with the path of every mapped file in /proc/PID/maps, by the rules of
 * gcr_proc_each_file(). Each file is visited once, except that some are visited several times if
 * the paths of all mapped files take more than 1 MiB.
 */
int gcr_proc_each_mapping(pid_t pid, int (*visit)(const char *path, void *data), void *data);

/*
 * Calls @visit with every range at which @pid maps the file with the name @path in /proc/PID/maps,
 * by the same rules.
 */
int gcr_proc_each_range(pid_t pid, const char *path,
			int (*visit)(uintptr_t start, uintptr_t end, void *data), void *data);

/* One line of /proc/PID/maps. */
struct gcr_proc_span {
	uintptr_t start, end;
	uint64_t offset; /* offset in the file of the byte at start */
};

/* As gcr_proc_each_range(), for every file whose path begins with @prefix. */
int gcr_proc_each_span(pid_t pid, const char *prefix,
		       int (*visit)(const struct gcr_proc_span *span, void *data), void *data);

/*
 * Has the process of the pidfd ended, as a zombie too? True also if that cannot be found out. Its
 * pid may then be another's.
 */
bool gcr_pidfd_has_ended(int pidfd);

/* Has the process of the pidfd been waited for? Until then no other process has its pid. */
bool gcr_pidfd_is_gone(int pidfd);

/* Opens a pidfd for exactly this process: -ESRCH if the start time is not @start_ticks. */
int gcr_proc_open(pid_t pid, uint64_t start_ticks, int *ret_pidfd);

/* The value of @name in /proc/PID/environ, which the caller frees; -ENOENT not set, -EACCES. */
int gcr_proc_environ(pid_t pid, const char *name, char **ret_value);

#endif
