/* SPDX-License-Identifier: MIT */
/*
 * gpucr-drain: what comes from descriptor 0, a terminal's master or a socket, is appended to
 * descriptor 1, until nobody can send anything any more. It goes into the background at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/confine.h"

static int write_all(const char *bytes, size_t size)
{
	while (size) {
		ssize_t written = write(STDOUT_FILENO, bytes, size);

		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			return -1;
		bytes += written;
		size -= (size_t)written;
	}
	return 0;
}

int main(void)
{
	char buffer[65536];
	ssize_t got;
	pid_t pid = fork();

	if (pid)
		return pid < 0;
	/* It goes on without: a program must not stop because its words are not drained. */
	gcr_confine(GCR_CONFINE_DRAIN, NULL);
	/* A full disk loses words, and must not stop the program that says them. */
	while ((got = read(STDIN_FILENO, buffer, sizeof(buffer))) > 0 ||
	       (got < 0 && (errno == EINTR || errno == EAGAIN)))
		if (got > 0)
			write_all(buffer, (size_t)got);
	return EXIT_SUCCESS;
}
