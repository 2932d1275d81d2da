/* SPDX-License-Identifier: MIT */
/* One gpucr-look as fs/helper/looker.c has it: started, asked, killed. Used by one thread at a
 * time. */
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
	struct gcr_message message; /* what it has said last */
};

/* -EIO, -ENOMEM, ... as of execve(2). */
int gcr_looker_process_start(const char *path, bool keep_stderr, struct gcr_looker **ret_looker);

/* Send a request; @fd (-1: none) goes with it and stays the caller's. -EPIPE: it has ended. */
int gcr_looker_process_send(struct gcr_looker *looker, const struct gcr_looker_request *request,
			    size_t bytes, int fd);

/*
 * Its reply to that, whose head goes to @ret_reply; the data is in `message` behind it, and
 * .bytes of it are there if @has_data is expected. -ETIMEDOUT: not yet, ask again. -EPIPE: it
 * has ended; -EPROTO: it says what it must not. After these two it is of no more use.
 */
int gcr_looker_process_receive(struct gcr_looker *looker, int64_t timeout_usec, bool has_data,
			       struct gcr_looker_reply *ret_reply);

/* Is it running, so that it would answer if it were given the time? Else it waits in the kernel. */
bool gcr_looker_process_runs(const struct gcr_looker *looker);

/* Kill it, and wait for a moment. True: it has ended and is freed. */
bool gcr_looker_process_kill(struct gcr_looker *looker, int64_t wait_usec);

/* Of one that was killed: has it ended by now? Then it is freed. */
bool gcr_looker_process_reap(struct gcr_looker *looker);

/* Free the object, whatever the process does. */
void gcr_looker_process_free(struct gcr_looker *looker);

#endif
