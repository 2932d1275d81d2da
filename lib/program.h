/* SPDX-License-Identifier: MIT */
/*
 * Starting programs: each gets only the descriptors and the environment that the caller gives it,
 * default actions for all signals, and a session of its own (Ctrl-C in our terminal does not reach
 * it).
 */
#ifndef GCR_LIB_PROGRAM_H
#define GCR_LIB_PROGRAM_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "lib/cleanup.h"

/*
 * Copies our environment for a program of ours, or CRIU, with room for GCR_ENVIRONMENT_ROOM more
 * variables before the NULL at the end. Leaves out @unwanted (names, or their beginnings followed
 * by '*') and GPUCR_CRIU_..., by which only we tell CRIU what we know. Another user may have set
 * root's environment (su, sudo -E): of root's only a few variables are copied, whose files
 * gcr_own_environment_check() has checked. *ret_count (NULL: not wanted) is the number of
 * variables. gcr_environment_free() frees the copy. NULL: no memory.
 */
#define GCR_ENVIRONMENT_ROOM 5
char **gcr_environment_copy(const char *const *unwanted, size_t unwanted_count, size_t *ret_count);
void gcr_environment_free(char **environment);
GCR_DEFINE_CLEANUP(char **, gcr_environment_free);

/*
 * The environment for one of our helper programs: gcr_environment_copy() without LD_PRELOAD and
 * LD_LIBRARY_PATH. gcr_environment_free() frees it. NULL: no memory.
 */
char **gcr_helper_environment(void);

struct gcr_program {
	const char *path; /* the program's file: PATH is not searched */
	char *const *arguments;
	char *const *environment;
	/*
	 * The program's descriptors: fds[N] becomes its descriptor N; it gets no others. A negative
	 * number becomes /dev/null. The descriptors stay the caller's, and may be any, in any
	 * order.
	 */
	const int *fds;
	size_t fds_count;
	/* For the launcher (criu-glue/launch.h): its session ends when we end. */
	bool ends_with_starter;
	/*
	 * The program gets a session keyring of its own, where the kernel has keyrings and allows
	 * that: a program that has ours can read our user's keys, whatever rights it has.
	 */
	bool has_own_keyring;
	int ignored_signal; /* a signal that the program ignores from its start; 0: none */
	/*
	 * The file cgroup.procs of a cgroup, open for writing: the program starts in that cgroup,
	 * and so do its children. 0 (which is stdin and cannot be a cgroup) or less: the program
	 * stays in our cgroup.
	 */
	int cgroup_procs_fd;
};

/*
 * Starts the program as our child; the caller closes *ret_pidfd, and has to wait for the end of
 * *ret_pid. -errno: the program is not running. The errors include those of execve(2), and of
 * entering the cgroup (-ENODEV: it has been removed; -EBUSY, -EOPNOTSUPP: it takes no processes).
 */
int gcr_program_start(const struct gcr_program *program, pid_t *ret_pid, int *ret_pidfd);

/*
 * Starts a helper program that we exchange messages with: its descriptor @number (3 or more) is one
 * end of a SOCK_SEQPACKET socket pair; the caller owns the other end, *ret_socket. The environment
 * is that of gcr_helper_environment(). @keep_stderr: the helper inherits our stderr. Errors as
 * gcr_program_start().
 */
int gcr_program_start_connected(const char *path, char *const *arguments, int number,
				bool keep_stderr, pid_t *ret_pid, int *ret_pidfd, int *ret_socket);

#endif
