/* SPDX-License-Identifier: MIT */
/*
 * Starting CRIU from a program outside the daemon's service. Restored processes inherit the
 * restrictions of the CRIU that made them for ever, and the service's restrictions are meant for
 * the daemon alone. The other end is gpucr-launch (fs/helper/gpucr_launch.c), one for each
 * connection, which systemd starts from gpucrfs-criu.socket.
 *
 * A conversation over a SOCK_STREAM socket, with fields in the machine's representation:
 *
 *   daemon:   struct gcr_launch_request, with a memfd of `data_bytes` bytes
 *   daemon:   descriptors_count descriptors, in order, at most GCR_LAUNCH_FDS_MAX with each
 *             GCR_LAUNCH_MORE byte
 *   launcher: struct gcr_launch_reply READY
 *   daemon:   GCR_LAUNCH_GO. If the connection ends before, nothing is started.
 *   launcher: STARTED, with the program's pidfd; or FAILED. If the connection ends before STARTED
 *             could be sent, nothing is started, or the program is killed at once.
 *   daemon:   GCR_LAUNCH_NO_WRITES at any time: from then on the program can write to no file.
 *             It is the launcher that knows whose the pid still is.
 *   launcher: ENDED
 *
 * If the daemon closes the connection after STARTED, the program keeps running, as it would if the
 * daemon had started it and then ended (but see GCR_LAUNCH_ENDS_WITH_DAEMON).
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
#define GCR_LAUNCH_NO_WRITES 'w'
#define GCR_LAUNCH_DATA_MAX  (16u << 20) /* execve(2) takes two megabytes */
#define GCR_LAUNCH_COUNT_MAX (1u << 20)
#define GCR_LAUNCH_WAIT_MSEC 10000 /* for the other end, in steps that cannot take long */

#define GCR_LAUNCH_HAS_CGROUP	    1u /* the last descriptor is cgroup_procs_fd */
#define GCR_LAUNCH_ENDS_WITH_DAEMON 2u /* the program is killed when the connection ends */

struct gcr_launch_request {
	uint32_t magic;
	uint32_t version;
	/*
	 * Contents of the memfd: path, arguments, environment, each with its NUL; then `fds_count`
	 * bytes.
	 */
	uint32_t data_bytes;
	uint32_t arguments_count;
	uint32_t environment_count;
	/* As in struct gcr_program. A byte of 1: that descriptor is sent; 0: /dev/null. */
	uint32_t fds_count;
	uint32_t descriptors_count; /* descriptors sent, including that of the cgroup */
	uint32_t flags;		    /* GCR_LAUNCH_HAS_CGROUP, ... */
	int32_t ignored_signal;
};

enum gcr_launch_word {
	GCR_LAUNCH_READY = 1,
	GCR_LAUNCH_STARTED, /* value: the pid */
	GCR_LAUNCH_FAILED,  /* value: -errno, of gcr_program_start() */
	GCR_LAUNCH_ENDED,   /* value: the status of waitpid(2) */
};

struct gcr_launch_reply {
	uint32_t word; /* enum gcr_launch_word */
	int32_t value;
};

/*
 * gcr_program_start() by the launcher that listens at @socket_path. *ret_connection, the caller's,
 * becomes readable when the program or the launcher has ended. Each answer is waited for
 * GCR_LAUNCH_WAIT_MSEC. Errors, with a message: those of gcr_program_start(), and -ECONNREFUSED if
 * there is no launcher: nothing has been started; -EPROTO the launcher has ended, does not answer,
 * or its answer is invalid. After GO the program may then be running, or start later, and its end
 * is not reported. The caller must act as if the program were running: a dump gives the hook no
 * answer, and a restore kills its cgroup.
 */
int gcr_launch(const char *socket_path, const struct gcr_program *program, pid_t *ret_pid,
	       int *ret_pidfd, int *ret_connection, struct gcr_error *error);

/*
 * Gets the status of a program that was started, as of waitpid(2); never waits. -EAGAIN: the
 * program has not ended; -EPIPE: the launcher has ended, or its answer is invalid, so the status is
 * lost.
 */
int gcr_launch_status(int connection, int *ret_wait_status);

/* Lets the program write to no file any more (RLIMIT_FSIZE 0), if it has not ended. */
void gcr_launch_stop_writes(int connection);

/* ---- for both ends ---- */

/* Sends all of @bytes, with up to GCR_LAUNCH_FDS_MAX descriptors. -EPIPE, -ETIMEDOUT. */
int gcr_launch_send(int connection, const void *bytes, size_t size, const int *fds, size_t count);
/*
 * Receives exactly @size bytes and @count descriptors, which are the caller's and close-on-exec.
 * Errors as gcr_launch_send(); -EPROTO: another number of descriptors came.
 */
int gcr_launch_receive(int connection, void *bytes, size_t size, int *ret_fds, size_t count,
		       int timeout_msec);

#endif
