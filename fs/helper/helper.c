/* SPDX-License-Identifier: MIT */
/*
 * One helper process: starting it and exchanging messages with it. Its messages are not trusted; a
 * helper that breaks the protocol is killed and counts as dead. No locks here: a helper is used by
 * one thread at a time.
 */
#include "fs/helper/helper_process.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/helper/stop.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/message.h"
#include "lib/program.h"

#define HELPER_SOCKET 3 /* the helper's descriptor of the socket */

/* A process whose socket has closed is about to end: time to wait for its exit status. */
#define LAST_WORDS_USEC (200 * GCR_USEC_PER_MSEC)

GCR_DEFINE_CLEANUP(struct gcr_helper *, gcr_helper_free);

/*
 * The daemon's environment without variables that load foreign code into a helper or hide GPUs from
 * it.
 */
static char **make_environment(const char *simulator_directory)
{
	static const char *const unwanted[] = {"LD_PRELOAD",	      "CUDA_VISIBLE_DEVICES",
					       "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
					       "GPU_DEVICE_ORDINAL",  "LD_LIBRARY_PATH"};
	_cleanup_(gcr_environment_free_cleanup) char **environment = NULL;
	const char *library_path = getenv("LD_LIBRARY_PATH");
	size_t used;

	environment = gcr_environment_copy(
		unwanted, GCR_ARRAY_SIZE(unwanted) - (simulator_directory ? 0 : 1), &used);
	if (!environment)
		return NULL;
	if (simulator_directory) {
		bool has_old = library_path && *library_path;

		if (asprintf(&environment[used], "LD_LIBRARY_PATH=%s%s%s", simulator_directory,
			     has_old ? ":" : "", has_old ? library_path : "") < 0) {
			environment[used] = NULL;
			return NULL;
		}
	}
	return TAKE_PTR(environment);
}

int gcr_helper_find(const char *directories, const char *program, char **ret_path,
		    struct gcr_error *error)
{
	const char *rest = directories;
	const char *end = strrchr(program, '.');
	bool is_library = end && !strcmp(end, ".so");
	_cleanup_free_ char *path = NULL;
	int number = 0;

	do {
		size_t length = strcspn(rest, ":");

		/* A relative one would be below whatever directory we were started in. */
		if (*rest == '/') {
			free(path);
			if (asprintf(&path, "%.*s/%s", (int)length, rest, program) < 0) {
				path = NULL;
				return gcr_error_set(error, ENOMEM, "out of memory for %s",
						     program);
			}
			/* Distributions install libraries with mode 0644. */
			if (!access(path, is_library ? R_OK : X_OK)) {
				*ret_path = TAKE_PTR(path);
				return 0;
			}
			number = errno;
		}
		rest += length + (rest[length] == ':');
	} while (*rest);
	if (!path)
		return gcr_error_set(error, EIO,
				     "%s is looked for in no directory: '%s' has no path that "
				     "begins with '/'",
				     program, directories);
	return gcr_error_set(error, EIO, "%s cannot be %s: %s (%s is looked for in %s)", path,
			     is_library ? "loaded" : "started", strerror(number), program,
			     directories);
}

static void format_uuid(const uint8_t uuid[GCR_UUID_BYTES], char text[2 * GCR_UUID_BYTES + 1])
{
	for (size_t i = 0; i < GCR_UUID_BYTES; i++)
		snprintf(text + 2 * i, 3, "%02x", uuid[i]);
}

int gcr_helper_start(const struct gcr_helpers_config *config, enum gcr_helper_kind kind,
		     const uint8_t *uuid, struct gcr_helper **ret_helper, struct gcr_error *error)
{
	const char *const programs[] = {
		[GCR_HELPER_CONTROL] = config->backend->control_program,
		[GCR_HELPER_WORKER] = config->backend->worker_program,
		[GCR_HELPER_HALT] = GCR_STOP_PROGRAM,
	};
	const char *program = programs[kind];
	_cleanup_(gcr_helper_free_cleanup) struct gcr_helper *helper = NULL;
	_cleanup_(gcr_environment_free_cleanup) char **environment = NULL;
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int theirs = -1;
	char gpu[2 * GCR_UUID_BYTES + 1];
	char *arguments[3] = {NULL};
	int pair[2];
	int r;

	helper = calloc(1, sizeof(*helper));
	if (!helper)
		return gcr_error_set(error, ENOMEM, "out of memory for a helper process");
	helper->kind = kind;
	helper->pidfd = -1;
	helper->socket = -1;
	helper->program = strdup(program);
	environment = make_environment(config->simulator_directory);
	if (!helper->program || !environment)
		return gcr_error_set(error, ENOMEM, "out of memory for a helper process");
	r = gcr_helper_find(config->helper_directory, program, &path, error);
	if (r < 0)
		return r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return gcr_error_set(error, EIO, "no socket for %s: %s", program, strerror(errno));
	helper->socket = pair[0];
	theirs = pair[1];

	arguments[0] = helper->program;
	if (uuid) {
		format_uuid(uuid, gpu);
		arguments[1] = gpu;
	}
	/*
	 * A daemon in the background must not leave its starter's stderr open in helpers: a reader
	 * of it through a pipe would wait for the helpers' end.
	 */
	r = gcr_program_start(
		&(struct gcr_program){
			.path = path,
			.arguments = arguments,
			.environment = environment,
			.fds = (const int[]){-1, -1, config->keep_stderr ? STDERR_FILENO : -1,
					     [HELPER_SOCKET] = theirs},
			.fds_count = HELPER_SOCKET + 1,
		},
		&helper->pid, &helper->pidfd);
	if (r < 0)
		return gcr_error_set(error, r == -ENOMEM || r == -EAGAIN ? ENOMEM : EIO,
				     "%s cannot be started: %s", path, strerror(-r));
	*ret_helper = TAKE_PTR(helper);
	return 0;
}

void gcr_helper_free(struct gcr_helper *helper)
{
	if (!helper)
		return;
	if (helper->socket >= 0)
		close(helper->socket);
	if (helper->pidfd >= 0)
		close(helper->pidfd);
	free(helper->program);
	free(helper);
}

void gcr_helper_hang_up(struct gcr_helper *helper)
{
	if (helper->socket >= 0)
		close(TAKE_FD(helper->socket));
}

bool gcr_helper_reap(struct gcr_helper *helper)
{
	pid_t pid;

	if (helper->reaped)
		return true;
	pid = waitpid(helper->pid, &helper->wait_status, WNOHANG);
	if (pid == 0)
		return false;
	if (pid < 0)
		helper->wait_status = -1;
	helper->reaped = true;
	return true;
}

void gcr_helper_kill(struct gcr_helper *helper)
{
	/* The helper must not be used any more, even if freeing its memory takes long. */
	helper->dead = true;
	/* By pidfd: once the pool has reaped the helper, the pid may be reused. */
	syscall(SYS_pidfd_send_signal, helper->pidfd, SIGKILL, NULL, 0);
}

int gcr_helper_await_end(struct gcr_helper *helper, int64_t timeout_usec)
{
	struct pollfd end = {.fd = helper->pidfd, .events = POLLIN};
	int64_t until_usec = gcr_clock_usec() + timeout_usec;
	int64_t left_usec = timeout_usec;

	do {
		if (poll(&end, 1, (int)(left_usec / GCR_USEC_PER_MSEC)) == 1)
			return 0;
		left_usec = until_usec - gcr_clock_usec();
	} while (left_usec > 0);
	return -ETIMEDOUT;
}

pid_t gcr_helper_pid(const struct gcr_helper *helper)
{
	return helper->pid;
}

bool gcr_helper_usable(const struct gcr_helper *helper)
{
	struct pollfd polls[2] = {
		{.fd = helper->socket, .events = POLLIN},
		{.fd = helper->pidfd, .events = POLLIN},
	};

	if (helper->dead || helper->pending || helper->socket < 0)
		return false;
	/* No message is due: readable means end of file, or an invalid message. */
	return poll(polls, 2, 0) == 0;
}

/* Describes the end of the helper, for a message. */
static void describe_end(struct gcr_helper *helper, char words[static 64])
{
	struct pollfd end = {.fd = helper->pidfd, .events = POLLIN};
	int status;

	poll(&end, 1, (int)(LAST_WORDS_USEC / GCR_USEC_PER_MSEC));
	if (!gcr_helpers_reap_one(helper, &status))
		snprintf(words, 64, "it hung up");
	else if (status == -1)
		snprintf(words, 64, "it ended");
	else if (WIFSIGNALED(status))
		snprintf(words, 64, "killed by signal %d", WTERMSIG(status));
	else
		snprintf(words, 64, "exit status %d", WEXITSTATUS(status));
}

/*
 * Receives one message of type @type. -ETIMEDOUT, -EINTR as gcr_message_receive(). On any other
 * failure the helper is killed: -EPIPE.
 */
static int receive(struct gcr_helper *helper, uint16_t type, uint32_t sequence,
		   int64_t timeout_usec, int wake_fd, struct gcr_message *ret_message)
{
	int r;

	if (helper->dead)
		return -EPIPE;
	r = gcr_message_receive(helper->socket, timeout_usec, wake_fd, ret_message);
	if (r == -ETIMEDOUT || r == -EINTR)
		return r;
	if (r == 0 && ret_message->header.type == type && ret_message->header.sequence == sequence)
		return 0;
	if (r == 0)
		gcr_message_close_fds(ret_message);
	gcr_helper_kill(helper);
	return -EPIPE;
}

/* Limits an untrusted errno to 0 and values that strerror() knows. */
static int32_t checked_errno(int32_t number)
{
	return number >= 0 && number < 4096 ? number : EIO;
}

int gcr_helper_greet(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
		     struct gcr_error *error)
{
	struct gcr_message message;
	struct gcr_hello hello;
	int r;

	if (helper->said_hello)
		return 0;
	r = receive(helper, GCR_MESSAGE_HELLO, 0, timeout_usec, wake_fd, &message);
	if (r == -ETIMEDOUT)
		return gcr_error_set(error, ETIMEDOUT,
				     "%s (pid %d) has not come up in time: does the GPU's driver "
				     "answer?",
				     helper->program, (int)helper->pid);
	if (r == -EINTR)
		return gcr_error_set(error, EINTR, "stopped while %s was starting",
				     helper->program);
	if (r < 0) {
		char end[64];

		describe_end(helper, end);
		return gcr_error_set(error, EIO, "%s (pid %d) did not come up: %s", helper->program,
				     (int)helper->pid, end);
	}
	gcr_message_close_fds(&message);
	gcr_message_payload(&message, &hello, sizeof(hello));
	gcr_message_terminate(hello.driver_version);
	gcr_message_terminate(hello.words);
	hello.error = checked_errno(hello.error);
	if (hello.error != 0) {
		helper->dead = true;
		return gcr_error_set(error, hello.error, "%s", hello.words);
	}
	helper->hello = hello;
	helper->said_hello = true;
	return 0;
}

int gcr_helper_request(struct gcr_helper *helper, uint16_t type, const void *payload,
		       size_t payload_bytes, struct gcr_error *error)
{
	return gcr_helper_request_fds(helper, type, payload, payload_bytes, NULL, 0, error);
}

int gcr_helper_request_fds(struct gcr_helper *helper, uint16_t type, const void *payload,
			   size_t payload_bytes, const int *fds, size_t fds_count,
			   struct gcr_error *error)
{
	int r = -EPIPE;

	if (helper->pending)
		return gcr_error_set(error, EBUSY, "%s (pid %d) has not answered the last request",
				     helper->program, (int)helper->pid);
	if (!helper->dead)
		r = gcr_message_send(helper->socket, type, helper->sequence + 1, payload,
				     payload_bytes, fds, fds_count);
	if (r == -EPIPE) {
		char end[64];

		helper->dead = true;
		describe_end(helper, end);
		return gcr_error_set(error, EPIPE, "%s (pid %d) is gone: %s", helper->program,
				     (int)helper->pid, end);
	}
	if (r < 0)
		return gcr_error_set(error, -r, "%s (pid %d) cannot be asked: %s", helper->program,
				     (int)helper->pid, strerror(-r));
	helper->sequence++;
	helper->request_type = type;
	helper->pending = true;
	if (type == GCR_MESSAGE_RESERVE)
		helper->has_reservation = true;
	if (type == GCR_MESSAGE_SESSION_OUT || type == GCR_MESSAGE_SESSION_IN)
		helper->in_session = true;
	if (type == GCR_MESSAGE_IMPORT)
		helper->has_imported = true;
	return 0;
}

/* Receives the answer to the request under way. */
static int receive_answer(struct gcr_helper *helper, uint16_t type, int64_t timeout_usec,
			  int wake_fd, struct gcr_message *ret_message)
{
	int r;

	if (!helper->pending)
		return helper->dead ? -EPIPE : -EINVAL;
	r = receive(helper, type, helper->sequence, timeout_usec, wake_fd, ret_message);
	if (r == 0 || r == -EPIPE)
		helper->pending = false;
	return r;
}

int gcr_helper_result(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
		      struct gcr_result *ret_result)
{
	int fds[GCR_MESSAGE_FDS_MAX];
	size_t fds_count = 0;
	int r = gcr_helper_result_fds(helper, timeout_usec, wake_fd, ret_result, fds, &fds_count);

	/* No descriptors were requested. */
	for (size_t i = 0; !r && i < fds_count; i++)
		close(fds[i]);
	return r;
}

int gcr_helper_result_fds(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
			  struct gcr_result *ret_result, int ret_fds[GCR_MESSAGE_FDS_MAX],
			  size_t *ret_fds_count)
{
	struct gcr_message message;
	int r;

	r = receive_answer(helper, GCR_MESSAGE_RESULT, timeout_usec, wake_fd, &message);
	if (r < 0)
		return r;
	memcpy(ret_fds, message.fds, message.fds_count * sizeof(*ret_fds));
	*ret_fds_count = message.fds_count;
	gcr_message_payload(&message, ret_result, sizeof(*ret_result));
	gcr_message_terminate(ret_result->words);
	ret_result->error = checked_errno(ret_result->error);
	if (ret_result->state > GCR_CONTROL_FAILED)
		ret_result->state = GCR_CONTROL_UNKNOWN;
	if (helper->request_type == GCR_MESSAGE_RELEASE && ret_result->error == 0)
		helper->has_reservation = false;
	if (helper->request_type == GCR_MESSAGE_END && ret_result->error == 0)
		helper->in_session = false;
	return 0;
}

int gcr_helper_gpus(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
		    struct gcr_gpus_reply *ret_reply)
{
	struct gcr_message message;
	uint32_t kept = 0;
	int r;

	r = receive_answer(helper, GCR_MESSAGE_GPUS, timeout_usec, wake_fd, &message);
	if (r < 0)
		return r;
	gcr_message_close_fds(&message);
	gcr_message_payload(&message, ret_reply, sizeof(*ret_reply));
	gcr_message_terminate(ret_reply->words);
	ret_reply->error = checked_errno(ret_reply->error);
	if (ret_reply->gpus_count > GCR_GPUS_MAX)
		ret_reply->gpus_count = GCR_GPUS_MAX;
	if (ret_reply->processes_count > GCR_GPU_PROCESSES_MAX)
		ret_reply->processes_count = GCR_GPU_PROCESSES_MAX;
	for (uint32_t i = 0; i < ret_reply->gpus_count; i++)
		gcr_message_terminate(ret_reply->gpus[i].name);
	/* Drops invalid entries, since users of the list index gpus[] with `gpu`. */
	for (uint32_t i = 0; i < ret_reply->processes_count; i++)
		if (ret_reply->processes[i].gpu < ret_reply->gpus_count)
			ret_reply->processes[kept++] = ret_reply->processes[i];
	ret_reply->processes_count = kept;
	return 0;
}
