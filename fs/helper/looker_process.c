/* SPDX-License-Identifier: MIT */
/*
 * One gpucr-look process. Its replies are not trusted, since it reads memory of untrusted programs.
 */
#include "fs/helper/looker_process.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_file.h"
#include "lib/program.h"

int gcr_looker_process_start(const char *path, bool keep_stderr, struct gcr_looker **ret_looker)
{
	_cleanup_free_ struct gcr_looker *looker = calloc(1, sizeof(*looker));
	char name[] = GCR_LOOKER_PROGRAM;
	int r;

	if (!looker)
		return -ENOMEM;
	r = gcr_program_start_connected(path, (char *[]){name, NULL}, GCR_LOOKER_SOCKET,
					keep_stderr, &looker->pid, &looker->pidfd, &looker->socket);
	if (r < 0)
		return r;
	*ret_looker = TAKE_PTR(looker);
	return 0;
}

int gcr_looker_process_send(struct gcr_looker *looker, const struct gcr_looker_request *request,
			    size_t bytes, int fd)
{
	return gcr_message_send(looker->socket, GCR_LOOKER_REQUEST, ++looker->sequence, request,
				bytes, fd >= 0 ? &fd : NULL, fd >= 0);
}

int gcr_looker_process_receive(struct gcr_looker *looker, int64_t timeout_usec, bool has_data,
			       struct gcr_looker_reply *ret_reply)
{
	struct gcr_message *message = &looker->message;
	struct gcr_looker_reply reply;
	size_t data_bytes;
	int r = gcr_message_receive(looker->socket, timeout_usec, -1, message);

	if (r < 0)
		return r;
	gcr_message_payload(message, &reply, sizeof(reply));
	data_bytes = message->payload_bytes - sizeof(reply);
	if (message->header.type != GCR_LOOKER_REPLY ||
	    message->header.sequence != looker->sequence || message->fds_count > 1 ||
	    message->payload_bytes < sizeof(reply) || reply.error < 0 || reply.error > 4095 ||
	    data_bytes != (has_data && !reply.error ? reply.bytes : 0)) {
		gcr_message_close_fds(message);
		return -EPROTO;
	}
	*ret_reply = reply;
	return 0;
}

bool gcr_looker_process_runs(const struct gcr_looker *looker)
{
	_cleanup_free_ char *text = NULL;
	char path[GCR_PROC_PATH_BYTES];
	const char *name_end;

	/* Read directly: the helper is our child, and not in execve(2). */
	gcr_proc_path(path, looker->pid, "stat");
	if (gcr_file_read(path, &text, NULL) < 0)
		return false;
	name_end = strrchr(text, ')');
	return name_end && name_end[2] == 'R';
}

bool gcr_looker_process_reap(struct gcr_looker *looker)
{
	if (waitpid(looker->pid, NULL, WNOHANG) == 0)
		return false;
	gcr_looker_process_free(looker);
	return true;
}

bool gcr_looker_process_kill(struct gcr_looker *looker, int64_t wait_usec)
{
	struct pollfd end = {.fd = looker->pidfd, .events = POLLIN};

	/* shutdown() too: a helper that is not blocked also ends by itself. */
	shutdown(looker->socket, SHUT_RDWR);
	syscall(SYS_pidfd_send_signal, looker->pidfd, SIGKILL, NULL, 0);
	poll(&end, 1, (int)(wait_usec / GCR_USEC_PER_MSEC));
	return gcr_looker_process_reap(looker);
}

void gcr_looker_process_free(struct gcr_looker *looker)
{
	if (!looker)
		return;
	close(looker->socket);
	close(looker->pidfd);
	free(looker);
}
