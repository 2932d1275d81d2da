/* SPDX-License-Identifier: MIT */
/*
 * A pipe to the agent. Both ends belong to the library, but the program could close either: so each
 * is checked before its use, and SIGPIPE of a pipe without a reader is hidden from the program. No
 * lock: the pipe is neither made nor closed while threads may write to it.
 */
#include "backend/preload/base/wakeup.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backend/preload/base/descriptor.h"
#include "backend/preload/base/listener.h"

static struct {
	struct gcr_descriptor reader, writer;
} wakeup = {.reader = {.fd = -1}, .writer = {.fd = -1}};

void gcr_wakeup_prepare(void)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return;
	if (gcr_descriptor_keep_anywhere(ends[0], &wakeup.reader) < 0)
		wakeup.reader.fd = -1;
	if (gcr_descriptor_keep_anywhere(ends[1], &wakeup.writer) < 0)
		wakeup.writer.fd = -1;
}

static bool is_there(void)
{
	return gcr_descriptor_valid(&wakeup.reader) && gcr_descriptor_valid(&wakeup.writer);
}

void gcr_wakeup_send(void)
{
	const struct timespec at_once = {0};
	sigset_t broken, before;
	int cancel_before;

	if (!is_there())
		return;
	sigemptyset(&broken);
	sigaddset(&broken, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &broken, &before);
	/* The caller is in the middle of a driver call and must not be cancelled here. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_before);
	/* A full pipe wakes the agent as well. */
	if (write(wakeup.writer.fd, "", 1) < 0 && errno == EPIPE)
		sigtimedwait(&broken, NULL, &at_once);
	pthread_setcancelstate(cancel_before, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int gcr_wakeup_fd(void)
{
	return is_there() ? wakeup.reader.fd : -1;
}

void gcr_wakeup_drain(void)
{
	char rings[64];

	while (is_there() && read(wakeup.reader.fd, rings, sizeof(rings)) > 0)
		;
}

/* See wakeup.h. CRIU gives a pipe another inode, the same for both ends. */
void gcr_wakeup_restored(void)
{
	struct stat reader, writer;

	if (fstat(wakeup.reader.fd, &reader) < 0 || fstat(wakeup.writer.fd, &writer) < 0 ||
	    !S_ISFIFO(reader.st_mode) || reader.st_ino != writer.st_ino)
		return;
	wakeup.reader.device = wakeup.writer.device = reader.st_dev;
	wakeup.reader.inode = wakeup.writer.inode = reader.st_ino;
}

static void forget(void)
{
	gcr_descriptor_close(&wakeup.reader);
	gcr_descriptor_close(&wakeup.writer);
}

GCR_LISTEN(fork, forget);
