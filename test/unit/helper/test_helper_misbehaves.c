/* SPDX-License-Identifier: MIT */
/*
 * fs/helper/helper.c and fs/helper/helpers.c with helpers that misbehave: this program, under a
 * helper's name.
 */
#include "test/unit/helper/helper.h"

static const struct gcr_backend backend = {
	.name = "test",
	.control_program = "gpucr-control",
	.worker_program = "gpucr-worker",
};

static char fake_directory[] = "/tmp/gpucr-test-XXXXXX";

/* ---- the misbehaving helper ---- */

static void say_hello(void)
{
	struct gcr_hello hello = {.api_version = 13000, .driver_version = "1.2.3"};

	memset(hello.words, 'x', sizeof(hello.words)); /* not terminated */
	gcr_message_send(3, GCR_MESSAGE_HELLO, 0, &hello, sizeof(hello), NULL, 0);
}

static void answer(uint16_t type, uint32_t sequence)
{
	static struct gcr_gpus_reply reply;
	struct gcr_result result;

	memset(&result, 0xff, sizeof(result));
	memset(&reply, 0xff, sizeof(reply));
	if (type == GCR_MESSAGE_GPUS)
		gcr_message_send(3, type, sequence, &reply, sizeof(reply), (int[]){1, 2}, 2);
	else
		gcr_message_send(3, type, sequence, &result, sizeof(result), (int[]){1, 2}, 2);
}

static int be_fake_helper(const char *mode)
{
	static struct gcr_message request;

	if (strcmp(mode, "exit") == 0)
		return 3;
	if (strcmp(mode, "crash") == 0)
		raise(SIGKILL);
	if (strcmp(mode, "noise") == 0)
		CHECK(write(3, "this is no message, is it?", 26) == 26);
	if (strcmp(mode, "refuse") == 0) {
		struct gcr_hello hello = {.error = ENODEV, .words = "no GPU\nin here"};

		gcr_message_send(3, GCR_MESSAGE_HELLO, 0, &hello, sizeof(hello), NULL, 0);
		return 1;
	}
	if (strcmp(mode, "noise") == 0 || strcmp(mode, "mute") == 0)
		for (;;)
			pause();
	say_hello();
	while (gcr_message_receive(3, -1, -1, &request) == 0) {
		uint32_t sequence = request.header.sequence;

		if (strcmp(mode, "sequence") == 0)
			answer(GCR_MESSAGE_RESULT, sequence - 1);
		else if (strcmp(mode, "type") == 0)
			answer(GCR_MESSAGE_HELLO, sequence);
		else if (request.header.type == GCR_MESSAGE_QUERY)
			answer(GCR_MESSAGE_GPUS, sequence);
		else
			answer(GCR_MESSAGE_RESULT, sequence);
	}
	if (strcmp(mode, "stay") == 0)
		for (;;)
			pause();
	return 0;
}

static void make_fake_directory(void)
{
	static const char *const names[] = {"gpucr-control", "gpucr-worker"};
	char self[4096], path[64];
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

	CHECK(length > 0);
	self[length] = '\0';
	CHECK(mkdtemp(fake_directory));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(names); i++) {
		snprintf(path, sizeof(path), "%s/%s", fake_directory, names[i]);
		CHECK(symlink(self, path) == 0);
	}
}

/* Creates a pool whose helpers all behave as `mode`. */
static struct gcr_helpers *make_fake_pool(const char *mode, int64_t idle_usec)
{
	CHECK(setenv("GPUCR_TEST_MODE", mode, 1) == 0);
	return make_pool(&backend, fake_directory, NULL, idle_usec);
}

static bool is_running(int pidfd)
{
	struct pollfd end = {.fd = pidfd, .events = POLLIN};

	return poll(&end, 1, 0) == 0;
}

static pid_t wait_child(const char *comm)
{
	int64_t deadline_usec = gcr_clock_usec() + PATIENCE_USEC;
	pid_t pid;

	while (!(pid = find_child(comm))) {
		CHECK(gcr_clock_usec() < deadline_usec);
		usleep(1000);
	}
	return pid;
}

/* ---- helpers that misbehave ---- */

static void test_bad_hellos(void)
{
	static const struct {
		const char *mode;
		int result;
		const char *words;
	} cases[] = {
		{"exit", -EIO, "exit status 3"},
		{"crash", -EIO, "killed by signal 9"},
		{"noise", -EIO, "killed by signal 9"},
		{"refuse", -ENODEV, "no GPU?in here"},
		{"mute", -ETIMEDOUT, "has not come up in time"},
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cases); i++) {
		int64_t timeout_usec = cases[i].result == -ETIMEDOUT ? GCR_USEC_PER_MSEC
								     : PATIENCE_USEC;
		struct gcr_helpers *helpers = make_fake_pool(cases[i].mode, 0);
		struct gcr_helper *helper = NULL;
		struct gcr_hello hello;
		struct gcr_error error;

		CHECK(gcr_helpers_take_control(helpers, timeout_usec, -1, &helper, &error) ==
		      cases[i].result);
		CHECK(!helper);
		CHECK(error.number == -cases[i].result);
		CHECK(strstr(error.words, cases[i].words));
		CHECK(gcr_helpers_take_worker(helpers, (uint8_t[GCR_UUID_BYTES]){1}, false,
					      WAIT(timeout_usec, -1), &helper,
					      &error) == cases[i].result);
		CHECK(strstr(error.words, cases[i].words));
		CHECK(!gcr_helpers_hello(helpers, &hello));
		gcr_helpers_destroy(helpers);
		CHECK(find_child("gpucr-control") == 0 && find_child("gpucr-worker") == 0);
	}
}

static void test_no_program(void)
{
	struct gcr_helpers *helpers = make_pool(&backend, "/nonexistent", NULL, 0);
	struct gcr_helper *helper;
	struct gcr_error error;

	CHECK(gcr_helpers_take_control(helpers, PATIENCE_USEC, -1, &helper, &error) == -EIO);
	CHECK(strstr(error.words, "/nonexistent/gpucr-control"));
	CHECK(gcr_helpers_take_worker(helpers, (uint8_t[GCR_UUID_BYTES]){1}, false,
				      WAIT(PATIENCE_USEC, -1), &helper, &error) == -EIO);
	gcr_helpers_destroy(helpers);
}

/* The wake descriptor interrupts the wait for a starting helper. */
static void test_wake_while_starting(void)
{
	struct gcr_helpers *helpers = make_fake_pool("mute", 0);
	struct gcr_helper *helper;
	struct gcr_error error;
	int pipes[2];

	CHECK(pipe2(pipes, O_CLOEXEC) == 0);
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(gcr_helpers_take_control(helpers, PATIENCE_USEC, pipes[0], &helper, &error) ==
	      -EINTR);
	CHECK(error.number == EINTR);
	close(pipes[0]);
	close(pipes[1]);
	gcr_helpers_destroy(helpers);
}

/* A helper that answers with a wrong type or sequence number is killed. */
static void test_bad_answers(void)
{
	static const char *const modes[] = {"sequence", "type"};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(modes); i++) {
		struct gcr_helpers *helpers = make_fake_pool(modes[i], 0);
		struct gcr_helper *helper = take(helpers);
		struct gcr_result result;
		struct gcr_error error;

		CHECK(gcr_helper_request(helper, GCR_MESSAGE_STATE, NULL, 0, &error) == 0);
		CHECK(gcr_helper_result(helper, PATIENCE_USEC, -1, &result) == -EPIPE);
		CHECK(gcr_helper_result(helper, PATIENCE_USEC, -1, &result) == -EPIPE);
		CHECK(gcr_helper_request(helper, GCR_MESSAGE_STATE, NULL, 0, &error) == -EPIPE);
		CHECK(strstr(error.words, "killed by signal 9"));
		gcr_helper_put(helper);
		gcr_helpers_destroy(helpers);
	}
}

/* Answers that are well-formed, with all bits set in numbers and texts. */
static void test_wild_answers(void)
{
	static struct gcr_gpus_reply reply;
	struct gcr_helpers *helpers = make_fake_pool("wild", 0);
	struct gcr_helper *helper = take(helpers);
	struct gcr_result result;
	struct gcr_hello hello;
	struct gcr_error error;

	CHECK(gcr_helpers_hello(helpers, &hello));
	CHECK(strcmp(hello.driver_version, "1.2.3") == 0 && hello.api_version == 13000);
	CHECK(strlen(hello.words) == GCR_WORDS_BYTES - 1);

	CHECK(gcr_helper_result(helper, 0, -1, &result) == -EINVAL);
	CHECK(gcr_helper_request(helper, GCR_MESSAGE_STATE, NULL, 0, &error) == 0);
	CHECK(gcr_helper_request(helper, GCR_MESSAGE_STATE, NULL, 0, &error) == -EBUSY);
	CHECK(gcr_helper_result(helper, PATIENCE_USEC, -1, &result) == 0);
	CHECK(result.error == EIO && result.state == GCR_CONTROL_UNKNOWN);
	CHECK(strlen(result.words) == GCR_WORDS_BYTES - 1);

	CHECK(gcr_helper_request(helper, GCR_MESSAGE_QUERY, NULL, 0, &error) == 0);
	CHECK(gcr_helper_gpus(helper, PATIENCE_USEC, -1, &reply) == 0);
	CHECK(reply.error == EIO && reply.gpus_count == GCR_GPUS_MAX);
	CHECK(reply.processes_count == 0);
	CHECK(strlen(reply.gpus[GCR_GPUS_MAX - 1].name) == GCR_NAME_BYTES - 1);
	gcr_helper_put(helper);
	gcr_helpers_destroy(helpers);
}

/* A helper inherits nothing of the caller's state but the socket. */
static void test_surroundings(void)
{
	_cleanup_close_ int leaked = open("/dev/null", O_RDONLY); /* not close-on-exec */
	struct gcr_helpers *helpers;
	struct gcr_helper *helper;
	struct gcr_proc_status status;
	char path[64], name[64], link[64];
	sigset_t blocked, old;
	char *value;
	ssize_t length;
	pid_t pid;

	CHECK(leaked >= 0);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &blocked, &old);
	signal(SIGHUP, SIG_IGN);
	CHECK(setenv("LD_PRELOAD", "", 1) == 0 && setenv("CUDA_VISIBLE_DEVICES", "3", 1) == 0);
	helpers = make_fake_pool("wild", 0);
	helper = take(helpers);
	pid = gcr_helper_pid(helper);
	unsetenv("LD_PRELOAD");
	unsetenv("CUDA_VISIBLE_DEVICES");
	signal(SIGHUP, SIG_DFL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);

	CHECK(gcr_helpers_owns(helpers, pid) && !gcr_helpers_owns(helpers, getpid()));
	CHECK(getsid(pid) == pid && getpgid(pid) == pid);
	CHECK(gcr_proc_status(pid, &status) == 0 && status.signals_blocked == 0);
	CHECK(gcr_proc_environ(pid, "LD_PRELOAD", &value) == -ENOENT);
	CHECK(gcr_proc_environ(pid, "CUDA_VISIBLE_DEVICES", &value) == -ENOENT);
	CHECK(gcr_proc_environ(pid, "GPUCR_TEST_MODE", &value) == 0);
	free(value);
	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	{
		_cleanup_fclose_ FILE *file = fopen(path, "re");
		unsigned long long ignored = 1;

		CHECK(file);
		while (fscanf(file, "%63s", name) == 1)
			if (strcmp(name, "SigIgn:") == 0)
				CHECK(fscanf(file, "%llx", &ignored) == 1);
		/* Signals 32 and 33 are the C library's own: posix_spawn(3) leaves them ignored. */
		CHECK((ignored & ~(3ull << 31)) == 0);
	}
	for (int fd = 0; fd < 64; fd++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
		length = readlink(path, link, sizeof(link) - 1);
		if (fd > 3) {
			CHECK(length < 0);
			continue;
		}
		if (length < 0)
			length = 0;
		link[length] = '\0';
		if (fd < 2)
			CHECK(strcmp(link, "/dev/null") == 0);
		if (fd == 3)
			CHECK(strncmp(link, "socket:", 7) == 0);
	}
	gcr_helper_put(helper);
	gcr_helpers_destroy(helpers);
}

/* A helper that was given back and does not exit is killed. */
static void test_put_kills(void)
{
	struct gcr_helpers *helpers = make_fake_pool("stay", 0);
	struct gcr_helper *helper = take(helpers);
	pid_t pid = gcr_helper_pid(helper);
	_cleanup_close_ int pidfd = open_pidfd(pid);

	gcr_helper_put(helper);
	CHECK(gcr_helpers_owns(helpers, pid));
	wait_end(pidfd);
	gcr_helpers_destroy(helpers);

	helpers = make_fake_pool("stay", 0);
	helper = take(helpers);
	pid = gcr_helper_pid(helper);
	gcr_helper_put(helper);
	gcr_helpers_destroy(helpers);
	CHECK(find_child("gpucr-control") == 0);
}

/* The pool keeps a spare helper on request, and a while after a verb. */
static void test_spare(void)
{
	struct gcr_helpers *helpers = make_fake_pool("wild", 0);
	struct gcr_helper *helper;
	_cleanup_close_ int pidfd = -1;
	pid_t spare;

	gcr_helpers_keep_spare(helpers, true);
	spare = wait_child("gpucr-control");
	helper = take(helpers);
	CHECK(gcr_helper_pid(helper) == spare);
	/* When the spare is taken, the pool starts the next one. */
	gcr_helper_put(helper);
	while (find_child("gpucr-control") == spare)
		usleep(1000);
	spare = wait_child("gpucr-control");
	pidfd = open_pidfd(spare);
	gcr_helpers_keep_spare(helpers, false);
	wait_end(pidfd);
	gcr_helpers_destroy(helpers);

	/* After a verb a helper is kept for a while, without a request for a spare. */
	helpers = make_fake_pool("wild", FOREVER_USEC);
	helper = take(helpers);
	close(TAKE_FD(pidfd));
	pidfd = open_pidfd(gcr_helper_pid(helper));
	gcr_helper_put(helper);
	wait_end(pidfd);
	spare = wait_child("gpucr-control");
	gcr_helpers_keep_spare(helpers, true);
	gcr_helpers_keep_spare(helpers, false);
	CHECK(find_child("gpucr-control") == spare);
	helper = take(helpers);
	CHECK(gcr_helper_pid(helper) == spare);
	gcr_helper_put(helper);
	gcr_helpers_destroy(helpers);
	CHECK(find_child("gpucr-control") == 0);
}

/* A spare that died unnoticed does not fail the next verb. */
static void test_dead_spare(void)
{
	struct gcr_helpers *helpers = make_fake_pool("crash", 0);
	_cleanup_close_ int pidfd = -1;
	struct gcr_helper *helper;
	pid_t spare;

	gcr_helpers_keep_spare(helpers, true);
	CHECK(setenv("GPUCR_TEST_MODE", "wild", 1) == 0);
	helper = take(helpers);
	gcr_helper_put(helper);
	gcr_helpers_destroy(helpers);

	helpers = make_fake_pool("wild", 0);
	gcr_helpers_keep_spare(helpers, true);
	spare = wait_child("gpucr-control");
	pidfd = open_pidfd(spare);
	CHECK(kill(spare, SIGKILL) == 0);
	wait_end(pidfd);
	helper = take(helpers);
	CHECK(gcr_helper_pid(helper) != spare);
	gcr_helper_put(helper);
	gcr_helpers_destroy(helpers);
}

/* The daemon is killed: its helpers see the socket close and exit. */
static void test_daemon_dies(void)
{
	_cleanup_close_ int end = -1, pidfd = -1;
	pid_t daemon, pid;
	int status;

	daemon = fork_daemon(&end);
	if (daemon == 0)
		say_helper(end, take(make_fake_pool("wild", 0)));
	pid = hear_helper(end);
	pidfd = open_pidfd(pid);
	CHECK(is_running(pidfd));
	CHECK(kill(daemon, SIGKILL) == 0);
	CHECK(waitpid(daemon, &status, 0) == daemon);
	wait_end(pidfd);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 0) == 0);
}

/* Many threads take control helpers, and one worker, at the same time. */
static void *take_and_put(void *data)
{
	struct gcr_helpers *helpers = data;

	for (int i = 0; i < 5; i++) {
		struct gcr_helper *helper = take(helpers);
		struct gcr_result result;
		struct gcr_error error;

		CHECK(gcr_helper_request(helper, GCR_MESSAGE_STATE, NULL, 0, &error) == 0);
		CHECK(gcr_helper_result(helper, PATIENCE_USEC, -1, &result) == 0);
		CHECK(gcr_helpers_owns(helpers, gcr_helper_pid(helper)));
		gcr_helper_put(helper);
		CHECK(gcr_helpers_take_worker(helpers, (uint8_t[GCR_UUID_BYTES]){1}, false,
					      WAIT(PATIENCE_USEC, -1), &helper, &error) == 0);
		CHECK(gcr_helper_request(helper, GCR_MESSAGE_QUERY, NULL, 0, &error) == 0);
		if (i % 2)
			gcr_helper_kill(helper);
		gcr_helper_put(helper);
	}
	return NULL;
}

static void test_threads(void)
{
	struct gcr_helpers *helpers = make_fake_pool("wild", 0);
	pthread_t threads[4];

	for (size_t i = 0; i < GCR_ARRAY_SIZE(threads); i++)
		CHECK(pthread_create(&threads[i], NULL, take_and_put, helpers) == 0);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(threads); i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	gcr_helpers_destroy(helpers);
	CHECK(find_child("gpucr-control") == 0 && find_child("gpucr-worker") == 0);
}

int main(int argc, char **argv)
{
	const char *mode = getenv("GPUCR_TEST_MODE");

	if (mode && strncmp(argv[0], "gpucr-", 6) == 0)
		return be_fake_helper(mode);
	make_fake_directory();
	test_daemon_dies(); /* forks: before there are threads */
	test_bad_hellos();
	test_no_program();
	test_wake_while_starting();
	test_bad_answers();
	test_wild_answers();
	test_surroundings();
	test_put_kills();
	test_spare();
	test_dead_spare();
	test_threads();
	remove_directory(fake_directory);
	return 0;
}
