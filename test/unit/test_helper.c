/* SPDX-License-Identifier: MIT */
/*
 * fs/helper/helper.c and fs/helper/helpers.c. First with helpers that misbehave, which are this
 * very program under the name of one; then with the real ones on the simulator, acting on a process
 * that uses a simulated GPU, which is this program too.
 *
 * GPUCR_TEST_HELPERS is where the real programs are, GPUCR_TEST_SIMULATOR where the simulator's
 * libraries are.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "fs/helper/helper.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/message.h"
#include "lib/procfs.h"
#include "test/unit/test.h"

#define PATIENCE_USEC (30 * GCR_USEC_PER_SEC) /* for what must happen; never waited for in vain */
#define FOREVER_USEC  (3600 * GCR_USEC_PER_SEC)
#define BUFFER_BYTES  (4u << 20)

static const struct gcr_backend backend = {
	.name = "test",
	.control_program = "gpucr-control",
	.worker_program = "gpucr-worker",
};

static const struct gcr_backend hip_backend = {
	.name = "test of HIP",
	.control_program = "gpucr-control-hip",
	.worker_program = "gpucr-worker-hip",
};

static bool is_hip; /* the real helpers are those for HIP: GPUCR_TEST_VENDOR */

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

/* ---- what all tests use ---- */

/*
 * For a child that would not end by itself: go when the test has failed. One that stays keeps
 * our stderr open, and who reads that from a pipe waits for it.
 */
static void end_with_parent(void)
{
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *where)
{
	return remove(path);
}

static void remove_directory(const char *path)
{
	CHECK(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0);
}

static struct gcr_helpers *make_pool(const char *directory, int64_t idle_usec)
{
	const char *simulator = getenv("GPUCR_TEST_SIMULATOR");
	struct gcr_helpers_config config = {
		.backend = is_hip && directory != fake_directory ? &hip_backend : &backend,
		.helper_directory = directory,
		.simulator_directory = directory == fake_directory ? NULL : simulator,
		.idle_usec = idle_usec,
	};
	struct gcr_helpers *helpers;

	CHECK(gcr_helpers_create(&config, &helpers) == 0);
	return helpers;
}

/* A pool of helpers that all behave as @mode. */
static struct gcr_helpers *make_fake_pool(const char *mode, int64_t idle_usec)
{
	CHECK(setenv("GPUCR_TEST_MODE", mode, 1) == 0);
	return make_pool(fake_directory, idle_usec);
}

static struct gcr_helper *take(struct gcr_helpers *helpers)
{
	struct gcr_helper *helper = NULL;
	struct gcr_error error;
	int r;

	r = gcr_helpers_take_control(helpers, PATIENCE_USEC, -1, &helper, &error);
	if (r < 0)
		fprintf(stderr, "take_control: %s\n", error.words);
	CHECK(r == 0);
	return helper;
}

static int open_process(pid_t pid)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);

	CHECK(pidfd >= 0);
	return pidfd;
}

/* Wait until the process behind @pidfd has ended. */
static void wait_end(int pidfd)
{
	struct pollfd end = {.fd = pidfd, .events = POLLIN};

	CHECK(poll(&end, 1, (int)(PATIENCE_USEC / 1000)) == 1);
}

static bool is_running(int pidfd)
{
	struct pollfd end = {.fd = pidfd, .events = POLLIN};

	return poll(&end, 1, 0) == 0;
}

/* Our child with the name @comm, 0 if there is none. */
static pid_t find_child(const char *comm)
{
	_cleanup_closedir_ DIR *dir = opendir("/proc");
	struct dirent *entry;

	CHECK(dir);
	while ((entry = readdir(dir))) {
		pid_t pid = (pid_t)atoi(entry->d_name);
		struct gcr_proc_stat status;

		if (pid > 0 && gcr_proc_stat(pid, &status) == 0 && status.parent == getpid() &&
		    strcmp(status.comm, comm) == 0 && status.state != 'Z')
			return pid;
	}
	return 0;
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
					      timeout_usec, -1, &helper,
					      &error) == cases[i].result);
		CHECK(strstr(error.words, cases[i].words));
		CHECK(!gcr_helpers_hello(helpers, &hello));
		gcr_helpers_destroy(helpers);
		CHECK(find_child("gpucr-control") == 0 && find_child("gpucr-worker") == 0);
	}
}

static void test_no_program(void)
{
	struct gcr_helpers *helpers = make_pool("/nonexistent", 0);
	struct gcr_helper *helper;
	struct gcr_error error;

	CHECK(gcr_helpers_take_control(helpers, PATIENCE_USEC, -1, &helper, &error) == -EIO);
	CHECK(strstr(error.words, "/nonexistent/gpucr-control"));
	CHECK(gcr_helpers_take_worker(helpers, (uint8_t[GCR_UUID_BYTES]){1}, false, PATIENCE_USEC,
				      -1, &helper, &error) == -EIO);
	gcr_helpers_destroy(helpers);
}

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

/* Well-formed, and all ones where numbers and texts are. */
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

/* How a helper is set up: nothing of ours but the socket. */
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
		/* 32 and 33 are the C library's own: posix_spawn(3) leaves them ignored. */
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

/* One that was given back and does not go. */
static void test_put_kills(void)
{
	struct gcr_helpers *helpers = make_fake_pool("stay", 0);
	struct gcr_helper *helper = take(helpers);
	pid_t pid = gcr_helper_pid(helper);
	_cleanup_close_ int pidfd = open_process(pid);

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
	/* A taken one is followed by the next. */
	gcr_helper_put(helper);
	while (find_child("gpucr-control") == spare)
		usleep(1000);
	spare = wait_child("gpucr-control");
	pidfd = open_process(spare);
	gcr_helpers_keep_spare(helpers, false);
	wait_end(pidfd);
	gcr_helpers_destroy(helpers);

	/* Kept for a while after a verb, without being asked for. */
	helpers = make_fake_pool("wild", FOREVER_USEC);
	helper = take(helpers);
	close(TAKE_FD(pidfd));
	pidfd = open_process(gcr_helper_pid(helper));
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

/* A spare that has died unseen is no reason to fail a verb. */
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
	pidfd = open_process(spare);
	CHECK(kill(spare, SIGKILL) == 0);
	wait_end(pidfd);
	helper = take(helpers);
	CHECK(gcr_helper_pid(helper) != spare);
	gcr_helper_put(helper);
	gcr_helpers_destroy(helpers);
}

/* The daemon is killed: its helpers see the socket close and go by themselves. */
static void test_daemon_dies(void)
{
	_cleanup_close_ int from = -1, to = -1, pidfd = -1;
	pid_t daemon, pid;
	int pipes[2], status;

	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	CHECK(pipe2(pipes, O_CLOEXEC) == 0);
	from = pipes[0];
	to = pipes[1];
	daemon = fork();
	CHECK(daemon >= 0);
	if (daemon == 0) {
		struct gcr_helper *helper;

		end_with_parent();
		helper = take(make_fake_pool("wild", 0));
		pid = gcr_helper_pid(helper);
		CHECK(write(to, &pid, sizeof(pid)) == sizeof(pid));
		for (;;)
			pause();
	}
	close(TAKE_FD(to));
	CHECK(read(from, &pid, sizeof(pid)) == sizeof(pid));
	pidfd = open_process(pid);
	CHECK(is_running(pidfd));
	CHECK(kill(daemon, SIGKILL) == 0);
	CHECK(waitpid(daemon, &status, 0) == daemon);
	wait_end(pidfd);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 0) == 0);
}

/* Many takers at once, of control helpers and of one worker. */
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
					      PATIENCE_USEC, -1, &helper, &error) == 0);
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

/* ---- the real helpers on the simulator ---- */

/* A process with VRAM. Says 'r' when it is there; at the end of its input, looks at its bytes. */
static int use_gpu(void)
{
	_cleanup_free_ unsigned char *bytes = malloc(BUFFER_BYTES), *after = malloc(BUFFER_BYTES);
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	CUdeviceptr pointer;
	CUcontext context;
	char byte;

	CHECK(bytes && after);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
#define DRIVER(name) __typeof__(name) *driver_##name = (__typeof__(name) *)dlsym(library, #name)
	DRIVER(cuInit);
	DRIVER(cuDevicePrimaryCtxRetain);
	DRIVER(cuCtxSetCurrent);
	DRIVER(cuMemAlloc_v2);
	DRIVER(cuMemcpyHtoD_v2);
	DRIVER(cuMemcpyDtoH_v2);
#undef DRIVER
	for (size_t i = 0; i < BUFFER_BYTES; i++)
		bytes[i] = (unsigned char)(i * 31 + i / 4096);
	CHECK(driver_cuInit(0) == CUDA_SUCCESS);
	CHECK(driver_cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
	CHECK(driver_cuCtxSetCurrent(context) == CUDA_SUCCESS);
	CHECK(driver_cuMemAlloc_v2(&pointer, BUFFER_BYTES) == CUDA_SUCCESS);
	CHECK(driver_cuMemcpyHtoD_v2(pointer, bytes, BUFFER_BYTES) == CUDA_SUCCESS);
	CHECK(write(STDOUT_FILENO, "r", 1) == 1);
	CHECK(read(STDIN_FILENO, &byte, 1) == 0);
	CHECK(driver_cuMemcpyDtoH_v2(after, pointer, BUFFER_BYTES) == CUDA_SUCCESS);
	CHECK(memcmp(bytes, after, BUFFER_BYTES) == 0);
	return 0;
}

static pid_t start_gpu_user(int *ret_input)
{
	int input[2], output[2];
	char byte;
	pid_t pid;

	CHECK(pipe2(input, O_CLOEXEC) == 0 && pipe2(output, O_CLOEXEC) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		end_with_parent();
		dup2(input[0], STDIN_FILENO);
		dup2(output[1], STDOUT_FILENO);
		setenv("LD_LIBRARY_PATH", getenv("GPUCR_TEST_SIMULATOR"), 1);
		execl("/proc/self/exe", "test_helper", "use-gpu", (char *)NULL);
		_exit(127);
	}
	close(input[0]);
	close(output[1]);
	CHECK(read(output[0], &byte, 1) == 1);
	close(output[0]);
	*ret_input = input[1];
	return pid;
}

static void end_gpu_user(pid_t pid, int input)
{
	int status;

	close(input);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static struct gcr_result control(struct gcr_helper *helper, uint16_t type, pid_t pid)
{
	struct gcr_control_request request = {.pid = pid, .timeout_ms = 10000};
	struct gcr_result result;
	struct gcr_error error;

	CHECK(gcr_helper_request(helper, type, &request, sizeof(request), &error) == 0);
	CHECK(gcr_helper_result(helper, PATIENCE_USEC, -1, &result) == 0);
	if (result.error)
		fprintf(stderr, "request %d: %s\n", type, result.words);
	return result;
}

static void expect(struct gcr_helper *helper, uint16_t type, pid_t pid, uint32_t state)
{
	struct gcr_result result = control(helper, type, pid);

	CHECK(result.error == 0 && result.driver_result == 0);
	CHECK(result.state == state);
}

static void test_verbs(const char *programs)
{
	struct gcr_helpers *helpers = make_pool(programs, 0);
	struct gcr_control_request request = {0};
	struct gcr_helper *helper = take(helpers);
	struct gcr_result result;
	struct gcr_hello hello;
	struct gcr_error error;
	int input;
	pid_t pid = start_gpu_user(&input);

	CHECK(gcr_helpers_hello(helpers, &hello));
	CHECK(hello.api_version >= 12080 && hello.error == 0);

	expect(helper, GCR_MESSAGE_STATE, pid, GCR_CONTROL_RUNNING);
	result = control(helper, GCR_MESSAGE_CHECKPOINT, pid);
	CHECK(result.error == EBUSY && result.driver_result == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(result.state == GCR_CONTROL_RUNNING);
	CHECK(strncmp(result.words, "cuCheckpointProcessCheckpoint: CUDA_ERROR_ILLEGAL_STATE (401)",
		      61) == 0);
	expect(helper, GCR_MESSAGE_LOCK, pid, GCR_CONTROL_LOCKED);
	expect(helper, GCR_MESSAGE_UNLOCK, pid, GCR_CONTROL_RUNNING);
	expect(helper, GCR_MESSAGE_LOCK, pid, GCR_CONTROL_LOCKED);
	expect(helper, GCR_MESSAGE_CHECKPOINT, pid, GCR_CONTROL_CHECKPOINTED);
	/* Whoever goes on may be another helper. */
	gcr_helper_put(helper);
	helper = take(helpers);
	expect(helper, GCR_MESSAGE_STATE, pid, GCR_CONTROL_CHECKPOINTED);
	expect(helper, GCR_MESSAGE_RESTORE, pid, GCR_CONTROL_LOCKED);
	expect(helper, GCR_MESSAGE_UNLOCK, pid, GCR_CONTROL_RUNNING);
	end_gpu_user(pid, input);

	result = control(helper, GCR_MESSAGE_LOCK, pid);
	CHECK(result.error == ESRCH && result.state == GCR_CONTROL_UNKNOWN);
	result = control(helper, GCR_MESSAGE_STATE, getpid());
	CHECK(result.error != 0 && result.state == GCR_CONTROL_UNKNOWN);
	result = control(helper, GCR_MESSAGE_LOCK, 0);
	CHECK(result.error == EINVAL);
	result = control(helper, GCR_MESSAGE_RESERVE, getpid());
	CHECK(result.error == EOPNOTSUPP);
	request.pid = getpid();
	request.pairs_count = GCR_GPUS_MAX + 1;
	CHECK(gcr_helper_request(helper, GCR_MESSAGE_RESTORE, &request, sizeof(request), &error) ==
	      0);
	CHECK(gcr_helper_result(helper, PATIENCE_USEC, -1, &result) == 0);
	CHECK(result.error == EINVAL);
	gcr_helper_put(helper);
	gcr_helpers_destroy(helpers);
}

static void list(struct gcr_helper *helper, struct gcr_gpus_reply *ret_reply)
{
	struct gcr_error error;

	CHECK(gcr_helper_request(helper, GCR_MESSAGE_QUERY, NULL, 0, &error) == 0);
	CHECK(gcr_helper_gpus(helper, PATIENCE_USEC, -1, ret_reply) == 0);
	CHECK(ret_reply->error == 0 && ret_reply->gpus_count >= 1);
}

/* A helper that is killed, or stops, in the middle of a request. */
static void test_silence(const char *programs)
{
	struct gcr_helpers *helpers = make_pool(programs, 0);
	static struct gcr_gpus_reply reply;
	struct gcr_helper *helper = take(helpers);
	_cleanup_close_ int wake = -1, waker = -1, pidfd = -1;
	struct gcr_error error;
	int pipes[2];
	pid_t pid;

	CHECK(pipe2(pipes, O_CLOEXEC) == 0);
	wake = pipes[0];
	waker = pipes[1];

	CHECK(kill(gcr_helper_pid(helper), SIGSTOP) == 0);
	CHECK(gcr_helper_request(helper, GCR_MESSAGE_QUERY, NULL, 0, &error) == 0);
	CHECK(kill(gcr_helper_pid(helper), SIGKILL) == 0);
	CHECK(gcr_helper_gpus(helper, PATIENCE_USEC, -1, &reply) == -EPIPE);
	gcr_helper_put(helper);

	helper = take(helpers);
	pid = gcr_helper_pid(helper);
	pidfd = open_process(pid);
	CHECK(kill(pid, SIGSTOP) == 0);
	CHECK(gcr_helper_request(helper, GCR_MESSAGE_QUERY, NULL, 0, &error) == 0);
	CHECK(gcr_helper_gpus(helper, 5 * GCR_USEC_PER_MSEC, -1, &reply) == -ETIMEDOUT);
	CHECK(write(waker, "x", 1) == 1);
	CHECK(gcr_helper_gpus(helper, PATIENCE_USEC, wake, &reply) == -EINTR);
	CHECK(gcr_helper_request(helper, GCR_MESSAGE_QUERY, NULL, 0, &error) == -EBUSY);
	/* It was only slow. */
	CHECK(kill(pid, SIGCONT) == 0);
	CHECK(gcr_helper_gpus(helper, PATIENCE_USEC, -1, &reply) == 0);
	CHECK(reply.gpus_count >= 1);
	CHECK(kill(pid, SIGSTOP) == 0);
	CHECK(gcr_helper_request(helper, GCR_MESSAGE_QUERY, NULL, 0, &error) == 0);
	gcr_helper_kill(helper);
	CHECK(gcr_helper_gpus(helper, PATIENCE_USEC, -1, &reply) == -EPIPE);
	gcr_helper_put(helper);
	wait_end(pidfd);

	/* Given back while it is stopped: the pool kills it. */
	helper = take(helpers);
	close(TAKE_FD(pidfd));
	pidfd = open_process(gcr_helper_pid(helper));
	CHECK(kill(gcr_helper_pid(helper), SIGSTOP) == 0);
	gcr_helper_put(helper);
	wait_end(pidfd);
	gcr_helpers_destroy(helpers);
}

static int reserve(struct gcr_helper *helper, uint64_t bytes)
{
	struct gcr_reserve_request request = {.bytes = bytes};
	struct gcr_result result;
	struct gcr_error error;

	CHECK(gcr_helper_request(helper, GCR_MESSAGE_RESERVE, &request, sizeof(request), &error) ==
	      0);
	CHECK(gcr_helper_result(helper, PATIENCE_USEC, -1, &result) == 0);
	CHECK((result.error == 0) == (result.words[0] == '\0'));
	return result.error;
}

static int release(struct gcr_helper *helper)
{
	struct gcr_result result;
	struct gcr_error error;

	CHECK(gcr_helper_request(helper, GCR_MESSAGE_RELEASE, NULL, 0, &error) == 0);
	CHECK(gcr_helper_result(helper, PATIENCE_USEC, -1, &result) == 0);
	return result.error;
}

static struct gcr_helper *take_worker(struct gcr_helpers *helpers, const struct gcr_gpu_info *gpu)
{
	struct gcr_helper *helper;
	struct gcr_error error;
	int r;

	r = gcr_helpers_take_worker(helpers, gpu->uuid, false, PATIENCE_USEC, -1, &helper, &error);
	if (r < 0)
		fprintf(stderr, "take_worker: %s\n", error.words);
	CHECK(r == 0);
	return helper;
}

static void test_worker(const char *programs)
{
	struct gcr_helpers *helpers = make_pool(programs, FOREVER_USEC);
	static struct gcr_gpus_reply before, after;
	struct gcr_helper *helper = take(helpers), *other;
	_cleanup_close_ int pidfd = -1, wake = -1, waker = -1;
	uint8_t nobody[GCR_UUID_BYTES] = {0xff};
	const struct gcr_gpu_info *gpu = &before.gpus[0];
	struct gcr_error error;
	int pipes[2];
	pid_t pid;

	list(helper, &before);
	gcr_helper_put(helper);
	CHECK(gpu->flags & GCR_GPU_MEMORY);
	CHECK(gpu->name[0] != '\0');
	CHECK(gcr_helpers_take_worker(helpers, nobody, false, PATIENCE_USEC, -1, &helper, &error) ==
	      -ENODEV);

	helper = take_worker(helpers, gpu);
	pid = gcr_helper_pid(helper);
	list(helper, &before);

	/* VRAM taken is VRAM gone, and comes back. */
	CHECK(reserve(helper, 0) == 0);
	CHECK(reserve(helper, 1) == 0);
	CHECK(reserve(helper, gpu->free_bytes / 2) == 0);
	list(helper, &after);
	CHECK(after.gpus[0].free_bytes <= gpu->free_bytes - gpu->free_bytes / 2);
	CHECK(reserve(helper, gpu->free_bytes) == ENOMEM);
	CHECK(reserve(helper, UINT64_MAX) == ENOMEM);
	CHECK(reserve(helper, UINT64_MAX - 4096) == ENOMEM);
	CHECK(release(helper) == 0);
	CHECK(release(helper) == 0);
	list(helper, &after);
	CHECK(after.gpus[0].free_bytes == gpu->free_bytes);

	/* One at a time. */
	CHECK(pipe2(pipes, O_CLOEXEC) == 0);
	wake = pipes[0];
	waker = pipes[1];
	CHECK(gcr_helpers_take_worker(helpers, gpu->uuid, false, 0, wake, &other, &error) ==
	      -ETIMEDOUT);
	CHECK(write(waker, "x", 1) == 1);
	CHECK(gcr_helpers_take_worker(helpers, gpu->uuid, false, PATIENCE_USEC, wake, &other,
				      &error) == -EINTR);
	gcr_helper_put(helper);

	/* The idle one is used again, unless it has died. */
	helper = take_worker(helpers, gpu);
	CHECK(gcr_helper_pid(helper) == pid);
	pidfd = open_process(pid);
	gcr_helper_put(helper);
	CHECK(kill(pid, SIGKILL) == 0);
	wait_end(pidfd);
	helper = take_worker(helpers, gpu);
	CHECK(gcr_helper_pid(helper) != pid);

	/* Given back with VRAM, or in the middle of a request: not used again. */
	pid = gcr_helper_pid(helper);
	close(TAKE_FD(pidfd));
	pidfd = open_process(pid);
	CHECK(reserve(helper, 1 << 20) == 0);
	gcr_helper_put(helper);
	wait_end(pidfd);
	helper = take_worker(helpers, gpu);
	close(TAKE_FD(pidfd));
	pidfd = open_process(gcr_helper_pid(helper));
	CHECK(kill(gcr_helper_pid(helper), SIGSTOP) == 0);
	CHECK(gcr_helper_request(helper, GCR_MESSAGE_RELEASE, NULL, 0, &error) == 0);
	gcr_helper_put(helper);
	wait_end(pidfd);
	gcr_helpers_destroy(helpers);
}

static void test_idle_worker(const char *programs)
{
	struct gcr_helpers *helpers = make_pool(programs, 0);
	static struct gcr_gpus_reply before, after;
	struct gcr_helper *helper = take(helpers);
	_cleanup_close_ int pidfd = -1;

	list(helper, &before);
	gcr_helper_put(helper);
	helper = take_worker(helpers, &before.gpus[0]);
	pidfd = open_process(gcr_helper_pid(helper));
	list(helper, &after);
	CHECK(after.gpus[0].free_bytes < before.gpus[0].free_bytes);
	gcr_helper_put(helper);
	wait_end(pidfd);
	/* An idle daemon uses no VRAM. */
	helper = take(helpers);
	list(helper, &after);
	CHECK(after.gpus[0].free_bytes == before.gpus[0].free_bytes);
	gcr_helper_put(helper);
	gcr_helpers_destroy(helpers);
}

/* Make the simulated driver misbehave; "" ends it. */
static void set_faults(const char *rules)
{
	char path[128];
	_cleanup_fclose_ FILE *file = NULL;

	snprintf(path, sizeof(path), "%s/faults", getenv("GPUCR_SIM_DIR"));
	file = fopen(path, "we");
	CHECK(file && fputs(rules, file) >= 0);
}

/*
 * A daemon has a helper checkpoint @user, and is killed @wait_ms later, after its helper if
 * @kill_helper. Returns when both have ended.
 */
static void die_in_call(const char *programs, bool kill_helper, pid_t user, unsigned int wait_ms)
{
	_cleanup_close_ int from = -1, to = -1, pidfd = -1;
	pid_t daemon, pid, ended;
	int pipes[2], status;
	char rules[64];

	snprintf(rules, sizeof(rules), "cuCheckpointProcessCheckpoint delay_ms=%u\n", 3 * wait_ms);
	set_faults(rules);
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	CHECK(pipe2(pipes, O_CLOEXEC) == 0);
	from = pipes[0];
	to = pipes[1];
	daemon = fork();
	CHECK(daemon >= 0);
	if (daemon == 0) {
		struct gcr_control_request request = {.pid = user};
		struct gcr_helper *helper;

		end_with_parent();
		helper = take(make_pool(programs, 0));
		expect(helper, GCR_MESSAGE_LOCK, user, GCR_CONTROL_LOCKED);
		CHECK(gcr_helper_request(helper, GCR_MESSAGE_CHECKPOINT, &request, sizeof(request),
					 NULL) == 0);
		pid = gcr_helper_pid(helper);
		CHECK(write(to, &pid, sizeof(pid)) == sizeof(pid));
		for (;;)
			pause();
	}
	close(TAKE_FD(to));
	CHECK(read(from, &pid, sizeof(pid)) == sizeof(pid));
	pidfd = open_process(pid);
	/* Once the call has begun: from then on it is the target's. */
	usleep(wait_ms * 1000);
	if (kill_helper)
		CHECK(kill(pid, SIGKILL) == 0);
	CHECK(kill(daemon, SIGKILL) == 0);
	CHECK(waitpid(daemon, &status, 0) == daemon);
	wait_end(pidfd);
	/* Ours to reap, unless the daemon's pool has reaped its helper before it was killed. */
	ended = waitpid(pid, &status, 0);
	if (kill_helper)
		CHECK(ended == pid || (ended < 0 && errno == ECHILD));
	else
		CHECK(ended == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 0) == 0);
	set_faults("");
}

/*
 * The daemon dies, or the helper is killed, while the driver checkpoints: the operation goes on
 * in the target, and another helper of another daemon brings it back.
 */
static void test_death_in_call(const char *programs, bool kill_helper)
{
	struct gcr_helpers *helpers;
	struct gcr_helper *helper;
	struct gcr_result result;
	int input;
	pid_t user = start_gpu_user(&input);

	for (unsigned int wait_ms = 100;; wait_ms *= 4) {
		die_in_call(programs, kill_helper, user, wait_ms);
		helpers = make_pool(programs, 0);
		helper = take(helpers);
		/* This waits for the call under way. */
		result = control(helper, GCR_MESSAGE_STATE, user);
		if (result.error || result.state != GCR_CONTROL_LOCKED || wait_ms > 1000)
			break;
		/* On a busy machine the call had not begun by then. */
		expect(helper, GCR_MESSAGE_UNLOCK, user, GCR_CONTROL_RUNNING);
		gcr_helper_put(helper);
		gcr_helpers_destroy(helpers);
	}
	CHECK(result.error == 0 && result.state == GCR_CONTROL_CHECKPOINTED);
	expect(helper, GCR_MESSAGE_RESTORE, user, GCR_CONTROL_LOCKED);
	expect(helper, GCR_MESSAGE_UNLOCK, user, GCR_CONTROL_RUNNING);
	gcr_helper_put(helper);
	gcr_helpers_destroy(helpers);
	end_gpu_user(user, input);
}

static void test_daemon_dies_in_call(const char *programs)
{
	test_death_in_call(programs, false);
}

static void test_helper_dies_in_call(const char *programs)
{
	test_death_in_call(programs, true);
}

/* What the driver says to cuInit is what the taker is told. */
static void test_init_fails(const char *programs)
{
	struct gcr_helpers *helpers = make_pool(programs, 0);
	static struct gcr_gpus_reply reply;
	struct gcr_helper *helper;
	struct gcr_error error;

	CHECK(setenv("GPUCR_SIM_FAULTS", "cuInit error=CUDA_ERROR_NO_DEVICE", 1) == 0);
	CHECK(gcr_helpers_take_control(helpers, PATIENCE_USEC, -1, &helper, &error) == -ENODEV);
	CHECK(strncmp(error.words, "cuInit: CUDA_ERROR_NO_DEVICE (100): ", 36) == 0);
	CHECK(setenv("GPUCR_SIM_FAULTS", "cuDevicePrimaryCtxRetain error=CUDA_ERROR_OUT_OF_MEMORY",
		     1) == 0);
	helper = take(helpers);
	list(helper, &reply);
	gcr_helper_put(helper);
	CHECK(gcr_helpers_take_worker(helpers, reply.gpus[0].uuid, false, PATIENCE_USEC, -1,
				      &helper, &error) == -ENOMEM);
	CHECK(setenv("GPUCR_SIM_FAULTS", "cuInit action=hang", 1) == 0);
	CHECK(gcr_helpers_take_control(helpers, 50 * GCR_USEC_PER_MSEC, -1, &helper, &error) ==
	      -ETIMEDOUT);
	unsetenv("GPUCR_SIM_FAULTS");
	gcr_helpers_destroy(helpers);
	CHECK(find_child("gpucr-control") == 0);
}

/* What HIP says: to the worker only, as nobody else asks it. */
static void test_hip_fails(const char *programs)
{
	static const struct {
		const char *rule;
		int number;
		const char *words;
	} cases[] = {
		{"hipInit error=100", ENODEV, "hipInit: hipErrorNoDevice (100): "},
		{"hipGetDeviceCount error=100", ENODEV, "shows no GPU"},
		{"hipSetDevice error=101", ENODEV, "hipSetDevice: hipErrorInvalidDevice (101): "},
		{"hipStreamSynchronize error=2", ENOMEM,
		 "hipStreamSynchronize: hipErrorOutOfMemory"},
	};
	struct gcr_helpers *helpers = make_pool(programs, 0);
	static struct gcr_gpus_reply reply;
	struct gcr_helper *helper;
	struct gcr_error error;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cases); i++) {
		CHECK(setenv("GPUCR_SIM_FAULTS", cases[i].rule, 1) == 0);
		helper = take(helpers);
		list(helper, &reply);
		gcr_helper_put(helper);
		CHECK(gcr_helpers_take_worker(helpers, reply.gpus[0].uuid, false, PATIENCE_USEC, -1,
					      &helper, &error) == -cases[i].number);
		CHECK(strstr(error.words, cases[i].words));
	}
	unsetenv("GPUCR_SIM_FAULTS");
	/* Older versions cannot import what another process has exported. */
	CHECK(setenv("GPUCR_SIM_HIP_VERSION", "6.1", 1) == 0);
	CHECK(gcr_helpers_take_worker(helpers, reply.gpus[0].uuid, false, PATIENCE_USEC, -1,
				      &helper, &error) == -EOPNOTSUPP);
	CHECK(strstr(error.words, "ROCm 6.3.2, 6.4.2 or newer"));
	unsetenv("GPUCR_SIM_HIP_VERSION");
	/* That one is left the time to come up, and ends with the pool. */
	CHECK(setenv("GPUCR_SIM_FAULTS", "hipInit action=hang", 1) == 0);
	CHECK(gcr_helpers_take_worker(helpers, reply.gpus[0].uuid, false, 50 * GCR_USEC_PER_MSEC,
				      -1, &helper, &error) == -ETIMEDOUT);
	unsetenv("GPUCR_SIM_FAULTS");
	gcr_helpers_destroy(helpers);
	CHECK(find_child("gpucr-worker") == 0 && find_child("gpucr-worker-hi") == 0);
}

/* Without NVML the driver's list, and the memory of the one GPU that has a context. */
static void test_no_nvml(const char *programs)
{
	char *simulator = strdup(getenv("GPUCR_TEST_SIMULATOR"));
	char only_cuda[] = "/tmp/gpucr-test-XXXXXX", from[4096], to[64];
	static struct gcr_gpus_reply reply;
	struct gcr_helpers *helpers;
	struct gcr_helper *helper;
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);

	CHECK(simulator);
	if (nvml) {
		/* This machine has one of its own that would be found. */
		dlclose(nvml);
		free(simulator);
		return;
	}
	CHECK(mkdtemp(only_cuda));
	snprintf(from, sizeof(from), "%s/libcuda.so.1", simulator);
	snprintf(to, sizeof(to), "%s/libcuda.so.1", only_cuda);
	CHECK(symlink(from, to) == 0);
	CHECK(setenv("GPUCR_TEST_SIMULATOR", only_cuda, 1) == 0);
	helpers = make_pool(programs, 0);
	CHECK(setenv("GPUCR_TEST_SIMULATOR", simulator, 1) == 0);
	free(simulator);

	helper = take(helpers);
	list(helper, &reply);
	gcr_helper_put(helper);
	CHECK(reply.gpus_count == 2 && reply.gpus[1].name[0] && reply.gpus[1].total_bytes > 0);
	CHECK(reply.gpus[0].flags == 0 && reply.gpus[1].flags == 0 && reply.gpus[1].minor == -1);
	helper = take_worker(helpers, &reply.gpus[1]);
	list(helper, &reply);
	CHECK(reply.gpus[0].flags == 0 && reply.gpus[1].flags == GCR_GPU_MEMORY);
	CHECK(reply.gpus[1].used_bytes > 0 && reply.gpus[1].free_bytes > 0);
	gcr_helper_put(helper);
	gcr_helpers_destroy(helpers);
	remove_directory(only_cuda);
}

/* ---- */

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

static void test_on_simulator(void (*test)(const char *programs), const char *programs)
{
	char state[] = "/tmp/gpucr-test-sim-XXXXXX";

	CHECK(mkdtemp(state));
	CHECK(setenv("GPUCR_SIM_DIR", state, 1) == 0);
	test(programs);
	remove_directory(state);
}

int main(int argc, char **argv)
{
	const char *programs = getenv("GPUCR_TEST_HELPERS");
	const char *mode = getenv("GPUCR_TEST_MODE");

	if (mode && strncmp(argv[0], "gpucr-", 6) == 0)
		return be_fake_helper(mode);
	if (argc == 2 && strcmp(argv[1], "use-gpu") == 0)
		return use_gpu();
	CHECK(programs && getenv("GPUCR_TEST_SIMULATOR"));
	is_hip = getenv("GPUCR_TEST_VENDOR") && !strcmp(getenv("GPUCR_TEST_VENDOR"), "hip");
	CHECK(setenv("GPUCR_SIM_VRAM", "2G", 1) == 0);
	if (is_hip) {
		CHECK(setenv("GPUCR_SIM_HIP_GPUS", "1", 1) == 0);
		test_on_simulator(test_silence, programs);
		test_on_simulator(test_worker, programs);
		test_on_simulator(test_idle_worker, programs);
		test_on_simulator(test_hip_fails, programs);
		return 0;
	}

	make_fake_directory();
	test_daemon_dies(); /* forks: while there are no threads */
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

	test_on_simulator(test_verbs, programs);
	test_on_simulator(test_silence, programs);
	test_on_simulator(test_worker, programs);
	test_on_simulator(test_idle_worker, programs);
	test_on_simulator(test_daemon_dies_in_call, programs);
	test_on_simulator(test_helper_dies_in_call, programs);
	test_on_simulator(test_init_fails, programs);
	CHECK(setenv("GPUCR_SIM_GPUS", "2", 1) == 0);
	test_on_simulator(test_no_nvml, programs);
	return 0;
}
