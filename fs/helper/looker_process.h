/* SPDX-License-Identifier: MIT */
/*
 * One gpucr-look process, for fs/helper/looker.c: starting, asking, killing. Used by one thread at
 * a time.
 */
#ifndef GCR_FS_HELPER_LOOKER_PROCESS_H
#define GCR_FS_HELPER_LOOKER_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/helper/looker_protocol.h"
#include "lib/message.h"

struct gcr_looker {
	pid_t pid;
	int pidfd;
	int socket;
	uint32_t sequence;
	struct gcr_message message; /* the last one received from it */
};

/* Starts a process of the program @path. -EIO, -ENOMEM, ... as execve(2). */
int gcr_looker_process_start(const char *path, bool keep_stderr, struct gcr_looker **ret_looker);

/*
 * Sends a request; @fd (-1: none) is sent with it and stays the caller's. -EPIPE: the process has
 * ended.
 */
int gcr_looker_process_send(struct gcr_looker *looker, const struct gcr_looker_request *request,
			    size_t bytes, int fd);

/*
 * Receives the reply: its head goes to @ret_reply; if @has_data, .bytes of data follow the head in
 * `message`. -ETIMEDOUT: not yet, call again. -EPIPE: the process has ended; -EPROTO: invalid
 * reply. After these two the process is unusable.
 */
int gcr_looker_process_receive(struct gcr_looker *looker, int64_t timeout_usec, bool has_data,
			       struct gcr_looker_reply *ret_reply);

/* Is the process running, so that it would answer in time? If not, it is blocked in the kernel. */
bool gcr_looker_process_runs(const struct gcr_looker *looker);

/* Kills the process and waits up to @wait_usec. True: it has ended, and the object is freed. */
bool gcr_looker_process_kill(struct gcr_looker *looker, int64_t wait_usec);

/* After gcr_looker_process_kill(): has the process ended? If so, the object is freed. */
bool gcr_looker_process_reap(struct gcr_looker *looker);

/* Frees the object; does not touch the process. */
void gcr_looker_process_free(struct gcr_looker *looker);

#endif
