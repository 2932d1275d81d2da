/* SPDX-License-Identifier: MIT */
/*
 * Parking takes one request to the library. The daemon keeps the library's page, through which it
 * lets the library connect again.
 */
#include "fs/engine/park.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/process/library.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_page.h"

/*
 * How long to wait for a library that is not connected: one without a daemon looks for a daemon
 * every two seconds.
 */
#define CONNECT_USEC (5 * GCR_USEC_PER_SEC)
#define ANSWER_USEC  (5 * GCR_USEC_PER_SEC)

static int ask(struct gcr_library *library, uint32_t limit_ms, struct gcr_error *error)
{
	const struct gcr_park request = {.limit_ms = limit_ms};
	_cleanup_free_ struct gcr_message *message = malloc(sizeof(*message));
	int64_t until_usec;
	int result;

	if (!message)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_library_request(library, GCR_MESSAGE_PARK, &request, sizeof(request), NULL, 0,
				     error);
	if (result < 0)
		return result;
	/* One limit for all messages: a library could send others without end. */
	until_usec = gcr_clock_usec() + ANSWER_USEC;
	do {
		int64_t left_usec = until_usec - gcr_clock_usec();

		result = left_usec > 0 ? gcr_library_receive(library, left_usec, message)
				       : -ETIMEDOUT;
		if (result == -EINTR)
			return gcr_error_set(error, ESRCH, "it has ended");
		if (result == -ETIMEDOUT)
			return gcr_error_set(error, ETIMEDOUT,
					     "its preload library does not answer");
		if (result < 0)
			return gcr_error_set(error, ENOTCONN, "its preload library is gone");
		gcr_message_close_fds(message);
	} while (message->header.type != GCR_MESSAGE_RESULT);
	return gcr_library_answer(message, NULL, error);
}

/*
 * Waits until the library has closed its connection, which it does only after its answer. Until
 * then the connection is a socket that leads out of the process tree, with which CRIU cannot dump
 * the process.
 */
static int wait_for_end(struct gcr_library *library, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_message *message = malloc(sizeof(*message));
	int64_t until_usec = gcr_clock_usec() + ANSWER_USEC;
	int result;

	if (!message)
		return gcr_error_set(error, ENOMEM, "out of memory");
	do {
		result = gcr_library_receive(library, until_usec - gcr_clock_usec(), message);
		if (!result)
			gcr_message_close_fds(message);
	} while (!result && gcr_clock_usec() < until_usec);
	if (result == -EINTR)
		return gcr_error_set(error, ESRCH, "it has ended");
	if (!result || result == -ETIMEDOUT)
		return gcr_error_set(error, ETIMEDOUT,
				     "its preload library does not close its connection");
	return 0;
}

static void keep_page(struct gcr_process *process, int page_fd)
{
	pthread_mutex_lock(&process->lock);
	if (process->parked_page_fd >= 0)
		close(process->parked_page_fd);
	process->parked_page_fd = page_fd;
	pthread_mutex_unlock(&process->lock);
}

int gcr_park(struct gcr_process *process, uint32_t limit_ms, struct gcr_error *error)
{
	_cleanup_close_ int page_fd = -1;
	struct gcr_library *library;
	bool is_parked;
	int result;

	pthread_mutex_lock(&process->lock);
	is_parked = process->parked_page_fd >= 0 && !process->library;
	pthread_mutex_unlock(&process->lock);
	if (is_parked)
		return 0;
	result = gcr_library_take(process, CONNECT_USEC, &library, error);
	if (result < 0)
		return result;
	page_fd = fcntl(gcr_library_page_fd(library), F_DUPFD_CLOEXEC, 0);
	result = page_fd < 0 ? gcr_error_set(error, EMFILE, "too many files are open")
			     : ask(library, limit_ms, error);
	if (!result) {
		/* Even if this fails the library is parked, and can be unparked. */
		keep_page(process, TAKE_FD(page_fd));
		result = wait_for_end(library, error);
	}
	gcr_library_put(library);
	return result;
}

void gcr_unpark_left(pid_t pid)
{
	int result = gcr_proc_unpark_pages(pid);

	if (result < 0 && result != -ESRCH)
		gcr_log(LOG_WARNING, pid, "if it is parked, it stays so for a while: %s",
			strerror(-result));
}

void gcr_unpark(struct gcr_process *process)
{
	bool is_connected;
	int page_fd;
	int result;

	pthread_mutex_lock(&process->lock);
	is_connected = process->library;
	page_fd = process->parked_page_fd;
	process->parked_page_fd = -1;
	pthread_mutex_unlock(&process->lock);
	if (page_fd < 0) {
		if (!is_connected)
			gcr_unpark_left(process->pid);
		return;
	}
	/* If this fails, the library's own time limit ends the parking. */
	result = gcr_proc_unpark_page(process->pid, page_fd);
	if (result < 0)
		gcr_log(LOG_WARNING, process->pid, "stays parked for a while: %s",
			strerror(-result));
	close(page_fd);
}
