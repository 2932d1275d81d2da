/* SPDX-License-Identifier: MIT */
/*
 * CRIU started by a program outside the daemon's service. What is restored inherits for ever what
 * its CRIU is restricted to; the service's restrictions are for the daemon alone. The other end is
 * gpucr-launch (fs/helper/gpucr_launch.c), one for each connection, which systemd starts from
 * gpucrfs-criu.socket.
 *
 * A conversation over a SOCK_STREAM socket, with fields as the machine has them:
 *   daemon:   struct gcr_launch_request, with a memfd of `data_bytes` bytes
 *   daemon:   descriptors_count descriptors, in order, at most GCR_LAUNCH_FDS_MAX with each
 *             GCR_LAUNCH_MORE byte
 *   launcher: struct gcr_launch_reply READY
 *   daemon:   GCR_LAUNCH_GO. Until then an end of the connection starts nothing.
 *   launcher: STARTED, with the program's pidfd; or FAILED
 *   launcher: ENDED
 * When the daemon closes the connection after GO the program goes on, as it would if the daemon
 * that has started it ended.
 */
#ifndef GCR_CRIU_GLUE_LAUNCH_H
#define GCR_CRIU_GLUE_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"
#include "lib/program.h"

#define GCR_LAUNCH_MAGIC     0x6c726367u /* "gcrl" */
#define GCR_LAUNCH_VERSION   1u
#define GCR_LAUNCH_FDS_MAX   128u /* below SCM_MAX_FD, 253 */
#define GCR_LAUNCH_MORE	     'm'
#define GCR_LAUNCH_GO	     'g'
#define GCR_LAUNCH_DATA_MAX  (16u << 20) /* two megabytes is what execve(2) takes */
#define GCR_LAUNCH_COUNT_MAX (1u << 20)
#define GCR_LAUNCH_WAIT_MSEC 10000 /* for the other end, where nothing can take long */

#define GCR_LAUNCH_HAS_CGROUP	    1u /* the last descriptor is cgroup_procs_fd */
#define GCR_LAUNCH_ENDS_WITH_DAEMON 2u /* the program is killed when the connection ends */

struct gcr_launch_request {
	uint32_t magic;
	uint32_t version;
	/* In the memfd: path, arguments, environment, each with its NUL; then `fds_count` bytes. */
	uint32_t data_bytes;
	uint32_t arguments_count;
	uint32_t environment_count;
	/* Of struct gcr_program. A byte of 1: that descriptor comes along; 0: /dev/null. */
	uint32_t fds_count;
	uint32_t descriptors_count; /* that come along, with that of the cgroup */
	uint32_t flags;		    /* GCR_LAUNCH_HAS_CGROUP, ... */
	int32_t ignored_signal;
};

enum gcr_launch_word {
	GCR_LAUNCH_READY = 1,
	GCR_LAUNCH_STARTED, /* value: the pid */
	GCR_LAUNCH_FAILED,  /* value: -errno, of gcr_program_start() */
	GCR_LAUNCH_ENDED,   /* value: as waitpid(2) tells it */
};

struct gcr_launch_reply {
	uint32_t word; /* enum gcr_launch_word */
	int32_t value;
};

/*
 * gcr_program_start() by the launcher that listens at @socket_path. *ret_connection, the caller's,
 * is readable when the program has ended or the launcher has. Errors, with words: those of
 * gcr_program_start(); -ECONNREFUSED there is no launcher, -EPROTO it does not answer as it should;
 * nothing has been started then.
 */
int gcr_launch(const char *socket_path, const struct gcr_program *program, pid_t *ret_pid,
	       int *ret_pidfd, int *ret_connection, struct gcr_error *error);

/*
 * How the program has ended; never waits. 0, and its status as of waitpid(2); -EAGAIN: it has not;
 * -EPIPE: the launcher has ended, and nobody will tell.
 */
int gcr_launch_status(int connection, int *ret_wait_status);

/* ---- for both ends ---- */

/* Send or receive it whole, with up to GCR_LAUNCH_FDS_MAX descriptors. -EPIPE, -ETIMEDOUT. */
int gcr_launch_send(int connection, const void *bytes, size_t size, const int *fds, size_t count);
/* *ret_fds are the caller's and close-on-exec; -EPROTO: others than @count came. */
int gcr_launch_receive(int connection, void *bytes, size_t size, int *ret_fds, size_t count,
		       int timeout_msec);

#endif
