/* SPDX-License-Identifier: MIT */
/* The daemon's side of a halt; fs/helper/gpucr_halt.c is the helper's side. */
#include "fs/helper/halt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"

#define END_USEC (2 * GCR_USEC_PER_SEC)

struct gcr_halt {
	struct gcr_helper *helper;
};

static int ask(struct gcr_halt *halt, pid_t pid, int pidfd, int page_fd,
	       const struct gcr_proc_program *program, int64_t limit_usec, struct gcr_error *error)
{
	struct gcr_halt_request request = {
		.pid = pid,
		.limit_ms = (uint32_t)(limit_usec / GCR_USEC_PER_MSEC),
		.start_code = program->start_code,
		.start_stack = program->start_stack,
	};
	_cleanup_close_ int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	const int fds[] = {self, page_fd, pidfd};

	if (self < 0)
		return gcr_error_set(error, EIO, "no pidfd: %s", strerror(errno));
	return gcr_helper_request_fds(halt->helper, GCR_MESSAGE_HALT, &request, sizeof(request),
				      fds, GCR_ARRAY_SIZE(fds), error);
}

int gcr_halt_begin(struct gcr_helpers *helpers, pid_t pid, int pidfd, int page_fd,
		   const struct gcr_proc_program *program, int64_t limit_usec,
		   struct gcr_halt **ret_halt, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_halt *halt = calloc(1, sizeof(*halt));
	int r;

	if (!halt)
		return gcr_error_set(error, ENOMEM, "out of memory");
	r = gcr_helpers_take_halt(helpers, &halt->helper, error);
	if (r < 0)
		return r;
	r = ask(halt, pid, pidfd, page_fd, program, limit_usec, error);
	if (r < 0) {
		gcr_helper_put(halt->helper);
		return r;
	}
	*ret_halt = TAKE_PTR(halt);
	return 0;
}

int gcr_halt_wait(struct gcr_halt *halt, int64_t timeout_usec, int wake_fd, struct gcr_error *error)
{
	struct gcr_result result;
	int r = gcr_helper_result(halt->helper, timeout_usec, wake_fd, &result);

	if (r == -ETIMEDOUT || r == -EINTR)
		return r;
	if (r < 0)
		return gcr_error_set(error, EIO,
				     "the helper that stops its threads has died (process %d)",
				     (int)gcr_helper_pid(halt->helper));
	return result.error ? gcr_error_set(error, result.error, "%s", result.words) : 0;
}

void gcr_halt_give_up(struct gcr_halt *halt)
{
	if (!halt)
		return;
	gcr_helper_kill(halt->helper);
	gcr_helper_put(halt->helper);
	free(halt);
}

/*
 * All threads run again only when the helper has ended, so its end is waited for, not just its
 * answer.
 */
void gcr_halt_end(struct gcr_halt *halt)
{
	struct gcr_error error;

	if (!halt)
		return;
	if (gcr_helper_request(halt->helper, GCR_MESSAGE_HALT_END, NULL, 0, &error) < 0 ||
	    gcr_helper_await_end(halt->helper, END_USEC) < 0)
		gcr_helper_kill(halt->helper);
	gcr_helper_put(halt->helper);
	free(halt);
}
