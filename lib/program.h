/* SPDX-License-Identifier: MIT */
/*
 * Programs that the daemon starts: with the descriptors and the environment that they are given
 * and nothing else, every signal as it is by default, in a session of their own (Ctrl-C in our
 * terminal is not theirs).
 */
#ifndef GCR_LIB_PROGRAM_H
#define GCR_LIB_PROGRAM_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "lib/cleanup.h"

/*
 * A copy of our environment less the variables @unwanted, and with room for one more at the end.
 * @ret_count (may be NULL): how many there are. NULL: no memory.
 */
char **gcr_environment_copy(const char *const *unwanted, size_t unwanted_count, size_t *ret_count);
void gcr_environment_free(char **environment);
GCR_DEFINE_CLEANUP(char **, gcr_environment_free);

/* For a helper program of ours: our environment without what loads libraries. NULL: no memory. */
char **gcr_helper_environment(void);

struct gcr_program {
	const char *path; /* a program's file: PATH is not searched */
	char *const *arguments;
	char *const *environment;
	/*
	 * What the program has open: fds[N] becomes its descriptor N, and there are no others. A
	 * negative number becomes /dev/null. They stay the caller's, and may be any, in any order.
	 */
	const int *fds;
	size_t fds_count;
	/* For the launcher (criu-glue/launch.h): its session does not outlive us. */
	bool ends_with_starter;
	int ignored_signal; /* one that the program begins with ignoring; 0: none */
	/*
	 * A cgroup's cgroup.procs, open for writing: the program begins there, and with it whatever
	 * it starts. 0 (which is stdin, and never that) or less: where we are.
	 */
	int cgroup_procs_fd;
};

/*
 * Start it. -errno: it is not running; what entering the cgroup gave is among them (ENODEV: it has
 * been removed; EBUSY, EOPNOTSUPP: it takes no processes). Its end is the caller's to collect.
 */
int gcr_program_start(const struct gcr_program *program, pid_t *ret_pid, int *ret_pidfd);

/*
 * Start a helper program that we speak to: its descriptor @number (3 or more) is one end of a pair
 * of SOCK_SEQPACKET sockets, *ret_socket the other one, the caller's. Its environment is ours
 * without what loads libraries. @keep_stderr: it has our stderr. Errors as above.
 */
int gcr_program_start_connected(const char *path, char *const *arguments, int number,
				bool keep_stderr, pid_t *ret_pid, int *ret_pidfd, int *ret_socket);

#endif
