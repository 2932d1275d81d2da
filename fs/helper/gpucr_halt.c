/* SPDX-License-Identifier: MIT */
/*
 * gpucr-halt: stops the threads of one program on the daemon's behalf, once. When the daemon says
 * so it lets them go and ends. When the daemon dies first, the program's library may be in the
 * midst of taking its managed memory or of bringing it back, and threads that ran now would see
 * memory without its contents, or write to memory that is read no more: then they stay stopped
 * until the library is through, the program has been killed, or a time is up.
 *
 * Whether it is in the midst, its page says (is_moving). The library first sets that, then looks
 * whether its connection to the daemon is still open and its threads are stopped, and only then
 * touches anything. We first see that the daemon is gone with all its descriptors, then look at the
 * page. So if we find it not set, and let go, then the library sets it later than we have looked,
 * and its connection has been closed by then: it does nothing. And if the library goes on, we find
 * it set.
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

/* Between looks without a daemon. */
#define LOOK_USEC   GCR_USEC_PER_MSEC
/* Who was being started by a daemon that dies has copies of its descriptors until then. */
#define COPIES_USEC (100 * GCR_USEC_PER_MSEC)

static struct gcr_message message;

/* What is sent to all processes of a terminal or a service is not meant for us. */
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

/* One that cannot be read may be. */
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
	if (r < 0 || message.header.type != GCR_MESSAGE_HALT || message.fds_count != 2) {
		fprintf(stderr, "gpucr-halt: only gpucrfs starts this program\n");
		return 2;
	}
	gcr_message_payload(&message, &request, sizeof(request));
	daemon = message.fds[0];
	page = message.fds[1];
	r = gcr_page_read(page, &facts);
	if (r < 0)
		r = gcr_error_set(&error, -r, "its preload library's page cannot be read");
	else
		r = gcr_stop_begin(request.pid, &stop, &error);
	answer(r, &error);
	if (r < 0)
		return 1;
	if (gcr_message_receive(SOCKET, -1, -1, &message) < 0)
		outlive_daemon(stop, page, daemon, request.limit_ms * GCR_USEC_PER_MSEC);
	gcr_stop_end(stop);
	return 0;
}
