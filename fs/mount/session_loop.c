/* SPDX-License-Identifier: MIT */
/* The threads that answer the kernel, and how they are stopped. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "fs/base/turns.h"
#include "fs/mount/session.h"
#include "fs/mount/tree.h"

/* Interrupts the sleep of the loop's thread; the handler does nothing. */
#define WAKE_SIGNAL   SIGUSR1
#define WAKE_MSEC_MAX 50

static struct {
	pthread_t thread;
	atomic_bool running;
} loop;

static void wake_handler(int signal_number)
{
}

int gcr_session_run(struct gcr_daemon *daemon)
{
	const struct sigaction wake = {.sa_handler = wake_handler};
	struct fuse_loop_config *config;
	sigset_t signals;
	int result;

	sigaction(WAKE_SIGNAL, &wake, NULL);
	/* The program that started the daemon may have blocked the signal. */
	sigemptyset(&signals);
	sigaddset(&signals, WAKE_SIGNAL);
	pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
	config = fuse_loop_cfg_create();
	if (!config)
		return -ENOMEM;
	fuse_loop_cfg_set_max_threads(config, GCR_TURNS_THREADS);
	fuse_loop_cfg_set_idle_threads(config, 4);
	loop.thread = pthread_self();
	atomic_store(&loop.running, true);
	result = fuse_session_loop_mt(daemon->session, config);
	atomic_store(&loop.running, false);
	fuse_loop_cfg_destroy(config);
	/*
	 * The mount was unmounted from outside. libfuse handles ENODEV as that; a thread that is
	 * just receiving a request gets ECONNABORTED instead (fuse_dev_do_read() in Linux).
	 */
	if (result == -ECONNABORTED)
		return 0;
	return result < 0 ? result : 0;
}

void gcr_session_stop(struct gcr_daemon *daemon)
{
	int msec = 1;

	fuse_session_exit(daemon->session);
	/*
	 * libfuse sleeps on a semaphore that fuse_session_exit() does not post in every version.
	 * One signal is nearly always enough. The sleep starts short because the daemon's end waits
	 * for this loop.
	 */
	while (atomic_load(&loop.running)) {
		pthread_kill(loop.thread, WAKE_SIGNAL);
		poll(NULL, 0, msec);
		if (msec < WAKE_MSEC_MAX)
			msec *= 2;
	}
}
