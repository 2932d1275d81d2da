/* SPDX-License-Identifier: MIT */
/*
 * gpucr-halt: stops the threads of one program for the daemon, once. On the daemon's request the
 * helper lets the threads run again and ends. If the daemon dies first, the program's library may
 * be taking its managed memory or bringing it back. Threads that ran now would see memory without
 * its contents, or write to memory that is not read any more. So they stay stopped until the
 * library has finished, the program has been killed, or the time limit is over.
 *
 * The library's page tells whether the library is taking or bringing back memory (is_moving). The
 * library first sets is_moving, then checks that its connection to the daemon is still open and
 * that its threads are stopped, and only then touches any memory. The helper first makes sure that
 * the daemon and all its descriptors are gone, then reads the page. So if is_moving is found clear
 * and the threads are released, the library can only set it later, when its connection is already
 * closed: the library then touches nothing. And if the library passes its check, the helper finds
 * is_moving set.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/helper/stop.h"
#include "lib/clock.h"
#include "lib/confine.h"
#include "lib/message.h"
#include "lib/page.h"

#define SOCKET 3

/* Interval of reading the page without a daemon. */
#define LOOK_USEC   GCR_USEC_PER_MSEC
/* A child that the daemon was starting when it died has copies of its descriptors for this long. */
#define COPIES_USEC (100 * GCR_USEC_PER_MSEC)

static struct gcr_message message;

/* Ignores signals that a terminal or a service manager sends to all its processes. */
static void ignore_signals(void)
{
	static const int signals[] = {SIGHUP,  SIGINT,	SIGQUIT, SIGTERM, SIGPIPE,
				      SIGALRM, SIGUSR1, SIGUSR2, SIGTSTP};

	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		signal(signals[i], SIG_IGN);
}

static int answer(int r, const struct gcr_error *error)
{
	struct gcr_result result = {.error = -r};

	if (r < 0)
		snprintf(result.words, sizeof(result.words), "%.*s", (int)sizeof(result.words) - 1,
			 error->words);
	return gcr_message_send(SOCKET, GCR_MESSAGE_RESULT, message.header.sequence, &result,
				sizeof(result), NULL, 0);
}

/* Does the page say that managed memory is being moved? True also if the page cannot be read. */
static bool is_moving(int page)
{
	struct gcr_page_facts facts;

	return gcr_page_read(page, &facts) < 0 || facts.is_moving;
}

static void outlive_daemon(struct gcr_stop *stop, int page, int daemon, int64_t limit_usec)
{
	struct pollfd end = {.fd = daemon, .events = POLLIN};
	int64_t deadline_usec = gcr_clock_usec() + limit_usec;

	while (poll(&end, 1, 1) == 0 && !gcr_stop_is_over(stop) && gcr_clock_usec() < deadline_usec)
		;
	usleep(COPIES_USEC);
	while (is_moving(page) && !gcr_stop_is_over(stop) && gcr_clock_usec() < deadline_usec)
		usleep(LOOK_USEC);
}

int main(void)
{
	struct gcr_halt_request request;
	struct gcr_proc_program program;
	struct gcr_stop *stop = NULL;
	struct gcr_error error = {0};
	struct gcr_page_facts facts;
	int r, page, daemon;

	ignore_signals();
	if (gcr_confine(GCR_CONFINE_HALT, &error) < 0) {
		fprintf(stderr, "gpucr-halt: %s\n", error.words);
		return 2;
	}
	r = gcr_message_receive(SOCKET, -1, -1, &message);
	if (r == -EPIPE)
		return 0;
	if (r < 0 || message.header.type != GCR_MESSAGE_HALT || message.fds_count != 3) {
		fprintf(stderr, "gpucr-halt: only gpucrfs starts this program\n");
		return 2;
	}
	gcr_message_payload(&message, &request, sizeof(request));
	program = (struct gcr_proc_program){request.start_code, request.start_stack};
	daemon = message.fds[0];
	page = message.fds[1];
	r = gcr_page_read(page, &facts);
	if (r < 0)
		r = gcr_error_set(&error, -r, "its preload library's page cannot be read");
	else
		r = gcr_stop_begin(request.pid, message.fds[2], &program, &stop, &error);
	answer(r, &error);
	if (r < 0)
		return 1;
	if (gcr_message_receive(SOCKET, -1, -1, &message) < 0)
		outlive_daemon(stop, page, daemon, request.limit_ms * GCR_USEC_PER_MSEC);
	gcr_stop_end(stop);
	return 0;
}
