/* SPDX-License-Identifier: MIT */
/* A launcher that gets the word to start a program, and then ends or never answers. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu-glue/launch.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "test/unit/test.h"

enum mode { ENDS_BEFORE_GO, ENDS_AFTER_GO, IS_SILENT };

/* Plays the launcher for one connection. */
static void serve(int listener, enum mode mode)
{
	int connection = accept(listener, NULL, NULL);
	struct gcr_launch_reply ready = {.word = GCR_LAUNCH_READY};
	struct gcr_launch_request request;
	int data_fd;
	char go;

	CHECK(connection >= 0);
	CHECK(!gcr_launch_receive(connection, &request, sizeof(request), &data_fd, 1, 10000));
	if (mode == ENDS_BEFORE_GO)
		_exit(0);
	CHECK(!gcr_launch_send(connection, &ready, sizeof(ready), NULL, 0));
	CHECK(!gcr_launch_receive(connection, &go, 1, NULL, 0, 10000));
	CHECK(go == GCR_LAUNCH_GO);
	if (mode == ENDS_AFTER_GO)
		_exit(0);
	/* The daemon gives the connection up. */
	CHECK(read(connection, &go, 1) == 0);
	_exit(0);
}

static void try(int listener, const char *path, enum mode mode, const char *words)
{
	static char program_path[] = "/bin/true";
	char *const arguments[] = {program_path, NULL};
	char *const environment[] = {NULL};
	const struct gcr_program program = {
		.path = program_path,
		.arguments = arguments,
		.environment = environment,
	};
	int64_t since_usec = gcr_clock_usec();
	struct gcr_error error = {0};
	int pidfd, connection, status;
	pid_t launcher = fork();
	pid_t pid;

	if (!launcher) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		serve(listener, mode);
	}
	CHECK(gcr_launch(path, &program, &pid, &pidfd, &connection, &error) == -EPROTO);
	fprintf(stderr, "%s\n", error.words);
	CHECK(strstr(error.words, words));
	CHECK(gcr_clock_usec() - since_usec < 3 * GCR_LAUNCH_WAIT_MSEC * GCR_USEC_PER_MSEC);
	CHECK(waitpid(launcher, &status, 0) == launcher && status == 0);
}

int main(void)
{
	char directory[] = "/tmp/gpucrfs-launch-XXXXXX";
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(mkdtemp(directory));
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", directory);
	CHECK(!bind(listener, (const struct sockaddr *)&address, sizeof(address)));
	CHECK(!listen(listener, 8));
	/* Without a limit the wait for the silent one never ends. */
	alarm(60);
	try(listener, address.sun_path, ENDS_BEFORE_GO, "has not started it");
	try(listener, address.sun_path, ENDS_AFTER_GO, "does not tell whether");
	try(listener, address.sun_path, IS_SILENT, "does not tell whether");
	unlink(address.sun_path);
	rmdir(directory);
	return 0;
}
