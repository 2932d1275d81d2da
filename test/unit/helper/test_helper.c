/* SPDX-License-Identifier: MIT */
/*
 * fs/helper/helper.c and fs/helper/helpers.c with the real helpers on the simulator, acting on a
 * process that uses a simulated GPU (this program, too).
 *
 * GPUCR_TEST_HELPERS is the directory of the real programs, GPUCR_TEST_SIMULATOR that of the
 * simulator's libraries.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "backend/cuda/cuda_api.h"
#include "test/unit/helper/helper.h"

#define BUFFER_BYTES (4u << 20)

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

static struct gcr_helpers *make_real_pool(const char *programs, int64_t idle_usec)
{
	return make_pool(is_hip ? &hip_backend : &backend, programs, getenv("GPUCR_TEST_SIMULATOR"),
			 idle_usec);
}

/*
 * A process with VRAM. Writes 'r' when the VRAM is filled; at the end of its input, checks the
 * bytes.
 */
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

static struct gcr_result control_by(struct gcr_helper *helper, uint16_t type, pid_t pid, int pidfd)
{
	struct gcr_control_request request = {.pid = pid, .timeout_ms = 10000};
	struct gcr_result result;
	struct gcr_error error;

	CHECK(gcr_helper_request_fds(helper, type, &request, sizeof(request), &pidfd, 1, &error) ==
	      0);
	CHECK(gcr_helper_result(helper, PATIENCE_USEC, -1, &result) == 0);
	if (result.error)
		fprintf(stderr, "request %d: %s\n", type, result.words);
	return result;
}

static struct gcr_result control(struct gcr_helper *helper, uint16_t type, pid_t pid)
{
	_cleanup_close_ int pidfd = open_pidfd(pid);

	return control_by(helper, type, pid, pidfd);
}

static void expect(struct gcr_helper *helper, uint16_t type, pid_t pid, uint32_t state)
{
	struct gcr_result result = control(helper, type, pid);

	CHECK(result.error == 0 && result.driver_result == 0);
	CHECK(result.state == state);
}

static void test_verbs(const char *programs)
{
	struct gcr_helpers *helpers = make_real_pool(programs, 0);
	struct gcr_control_request request = {0};
	struct gcr_helper *helper = take(helpers);
	struct gcr_result result;
	struct gcr_hello hello;
	struct gcr_error error;
	int input, pidfd;
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
	/* Another helper may continue the operation. */
	gcr_helper_put(helper);
	helper = take(helpers);
	expect(helper, GCR_MESSAGE_STATE, pid, GCR_CONTROL_CHECKPOINTED);
	expect(helper, GCR_MESSAGE_RESTORE, pid, GCR_CONTROL_LOCKED);
	expect(helper, GCR_MESSAGE_UNLOCK, pid, GCR_CONTROL_RUNNING);
	pidfd = open_pidfd(pid);
	end_gpu_user(pid, input);

	result = control_by(helper, GCR_MESSAGE_LOCK, pid, pidfd);
	CHECK(result.error == ESRCH && result.state == GCR_CONTROL_UNKNOWN);
	/* The number may be another's by now, who lives. */
	pid = start_gpu_user(&input);
	result = control_by(helper, GCR_MESSAGE_LOCK, pid, pidfd);
	CHECK(result.error == ESRCH && result.state == GCR_CONTROL_UNKNOWN);
	expect(helper, GCR_MESSAGE_STATE, pid, GCR_CONTROL_RUNNING);
	end_gpu_user(pid, input);
	close(pidfd);
	result = control(helper, GCR_MESSAGE_STATE, getpid());
	CHECK(result.error != 0 && result.state == GCR_CONTROL_UNKNOWN);
	pidfd = open_pidfd(getpid());
	result = control_by(helper, GCR_MESSAGE_LOCK, 0, pidfd);
	CHECK(result.error == EINVAL);
	CHECK(gcr_helper_request(helper, GCR_MESSAGE_STATE,
				 &(struct gcr_control_request){.pid = getpid()},
				 sizeof(struct gcr_control_request), &error) == 0);
	CHECK(gcr_helper_result(helper, PATIENCE_USEC, -1, &result) == 0);
	CHECK(result.error == EINVAL);
	result = control(helper, GCR_MESSAGE_RESERVE, getpid());
	CHECK(result.error == EOPNOTSUPP);
	request.pid = getpid();
	request.pairs_count = GCR_GPUS_MAX + 1;
	CHECK(gcr_helper_request_fds(helper, GCR_MESSAGE_RESTORE, &request, sizeof(request), &pidfd,
				     1, &error) == 0);
	close(pidfd);
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

/* A helper is killed, or stopped, in the middle of a request. */
static void test_silence(const char *programs)
{
	struct gcr_helpers *helpers = make_real_pool(programs, 0);
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
	pidfd = open_pidfd(pid);
	CHECK(kill(pid, SIGSTOP) == 0);
	CHECK(gcr_helper_request(helper, GCR_MESSAGE_QUERY, NULL, 0, &error) == 0);
	CHECK(gcr_helper_gpus(helper, 5 * GCR_USEC_PER_MSEC, -1, &reply) == -ETIMEDOUT);
	CHECK(write(waker, "x", 1) == 1);
	CHECK(gcr_helper_gpus(helper, PATIENCE_USEC, wake, &reply) == -EINTR);
	CHECK(gcr_helper_request(helper, GCR_MESSAGE_QUERY, NULL, 0, &error) == -EBUSY);
	/* The helper was only slow: its late answer is accepted. */
	CHECK(kill(pid, SIGCONT) == 0);
	CHECK(gcr_helper_gpus(helper, PATIENCE_USEC, -1, &reply) == 0);
	CHECK(reply.gpus_count >= 1);
	CHECK(kill(pid, SIGSTOP) == 0);
	CHECK(gcr_helper_request(helper, GCR_MESSAGE_QUERY, NULL, 0, &error) == 0);
	gcr_helper_kill(helper);
	CHECK(gcr_helper_gpus(helper, PATIENCE_USEC, -1, &reply) == -EPIPE);
	gcr_helper_put(helper);
	wait_end(pidfd);

	/* A helper that is given back while stopped is killed by the pool. */
	helper = take(helpers);
	close(TAKE_FD(pidfd));
	pidfd = open_pidfd(gcr_helper_pid(helper));
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

	r = gcr_helpers_take_worker(helpers, gpu->uuid, false, WAIT(PATIENCE_USEC, -1), &helper,
				    &error);
	if (r < 0)
		fprintf(stderr, "take_worker: %s\n", error.words);
	CHECK(r == 0);
	return helper;
}

static void test_worker(const char *programs)
{
	struct gcr_helpers *helpers = make_real_pool(programs, FOREVER_USEC);
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
	CHECK(gcr_helpers_take_worker(helpers, nobody, false, WAIT(PATIENCE_USEC, -1), &helper,
				      &error) == -ENODEV);

	helper = take_worker(helpers, gpu);
	pid = gcr_helper_pid(helper);
	list(helper, &before);

	/* Reserved VRAM is missing from the free bytes until its release. */
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

	/* A GPU has one worker at a time. */
	CHECK(pipe2(pipes, O_CLOEXEC) == 0);
	wake = pipes[0];
	waker = pipes[1];
	CHECK(gcr_helpers_take_worker(helpers, gpu->uuid, false, WAIT(0, wake), &other, &error) ==
	      -ETIMEDOUT);
	CHECK(write(waker, "x", 1) == 1);
	CHECK(gcr_helpers_take_worker(helpers, gpu->uuid, false, WAIT(PATIENCE_USEC, wake), &other,
				      &error) == -EINTR);
	gcr_helper_put(helper);

	/* The idle worker is used again, unless it has died. */
	helper = take_worker(helpers, gpu);
	CHECK(gcr_helper_pid(helper) == pid);
	pidfd = open_pidfd(pid);
	gcr_helper_put(helper);
	CHECK(kill(pid, SIGKILL) == 0);
	wait_end(pidfd);
	helper = take_worker(helpers, gpu);
	CHECK(gcr_helper_pid(helper) != pid);

	/* A worker given back with VRAM, or in the middle of a request, is not used again. */
	pid = gcr_helper_pid(helper);
	close(TAKE_FD(pidfd));
	pidfd = open_pidfd(pid);
	CHECK(reserve(helper, 1 << 20) == 0);
	gcr_helper_put(helper);
	wait_end(pidfd);
	helper = take_worker(helpers, gpu);
	close(TAKE_FD(pidfd));
	pidfd = open_pidfd(gcr_helper_pid(helper));
	CHECK(kill(gcr_helper_pid(helper), SIGSTOP) == 0);
	CHECK(gcr_helper_request(helper, GCR_MESSAGE_RELEASE, NULL, 0, &error) == 0);
	gcr_helper_put(helper);
	wait_end(pidfd);
	gcr_helpers_destroy(helpers);
}

static void test_idle_worker(const char *programs)
{
	struct gcr_helpers *helpers = make_real_pool(programs, 0);
	static struct gcr_gpus_reply before, after;
	struct gcr_helper *helper = take(helpers);
	_cleanup_close_ int pidfd = -1;

	list(helper, &before);
	gcr_helper_put(helper);
	helper = take_worker(helpers, &before.gpus[0]);
	pidfd = open_pidfd(gcr_helper_pid(helper));
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

/* A thread that takes the worker once, notes its number in the order of turns, and puts it back. */
struct turn {
	struct gcr_helpers *helpers;
	const uint8_t *uuid;
	uint64_t client;
	atomic_uint *count;
	unsigned int order;
};

static void *take_turn(void *data)
{
	struct turn *turn = data;
	struct gcr_worker_wait wait = {
		.client = turn->client, .timeout_usec = PATIENCE_USEC, .wake_fd = -1};
	struct gcr_helper *helper;
	struct gcr_error error;

	CHECK(gcr_helpers_take_worker(turn->helpers, turn->uuid, false, &wait, &helper, &error) ==
	      0);
	CHECK(wait.queued_usec > 0);
	turn->order = atomic_fetch_add(turn->count, 1);
	gcr_helper_put(helper);
	return NULL;
}

static bool stop_at_once(void *data)
{
	++*(int *)data;
	return true;
}

/* The turn at a worker goes round among clients, and is not lost with those that give up. */
static void test_turns(const char *programs)
{
	struct gcr_helpers *helpers = make_real_pool(programs, FOREVER_USEC);
	struct gcr_helper *helper = take(helpers), *other;
	static struct gcr_gpus_reply reply;
	const uint8_t *uuid = reply.gpus[0].uuid;
	struct gcr_worker_wait wait = {.client = 1, .timeout_usec = -1, .wake_fd = -1};
	struct rlimit limit, low;
	size_t taken_count = 0;
	int taken[64];
	struct turn turns[5];
	pthread_t threads[5];
	atomic_uint count = 0;
	struct gcr_error error;
	int asked = 0;

	list(helper, &reply);
	gcr_helper_put(helper);
	CHECK(gcr_helpers_take_worker(helpers, uuid, false, &wait, &helper, &error) == 0);
	/* The last one is another client. */
	for (unsigned int i = 0; i < GCR_ARRAY_SIZE(turns); i++) {
		turns[i] = (struct turn){
			.helpers = helpers, .uuid = uuid, .client = i < 4 ? 1 : 2, .count = &count};
		CHECK(!pthread_create(&threads[i], NULL, take_turn, &turns[i]));
		/* Time to come before the next one. */
		usleep(50 * GCR_USEC_PER_MSEC);
	}
	wait.is_to_stop = stop_at_once;
	wait.data = &asked;
	CHECK(gcr_helpers_take_worker(helpers, uuid, false, &wait, &other, &error) == -ECANCELED);
	CHECK(asked == 1 && error.number == ECANCELED);
	gcr_helper_put(helper);
	for (unsigned int i = 0; i < GCR_ARRAY_SIZE(turns); i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(turns[4].order == 0);
	for (unsigned int i = 0; i < 4; i++)
		CHECK(turns[i].order == i + 1);

	/* Without a descriptor for its wait, a waiter has its turn all the same. */
	helper = take_worker(helpers, &reply.gpus[0]);
	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	low = limit;
	low.rlim_cur = GCR_ARRAY_SIZE(taken);
	CHECK(!setrlimit(RLIMIT_NOFILE, &low));
	while ((taken[taken_count] = dup(STDERR_FILENO)) >= 0)
		taken_count++;
	CHECK(errno == EMFILE);
	wait.timeout_usec = 50 * GCR_USEC_PER_MSEC;
	wait.is_to_stop = NULL;
	CHECK(gcr_helpers_take_worker(helpers, uuid, false, &wait, &other, &error) == -ETIMEDOUT);
	CHECK(!pthread_create(&threads[0], NULL, take_turn, &turns[0]));
	usleep(50 * GCR_USEC_PER_MSEC);
	gcr_helper_put(helper);
	CHECK(!pthread_join(threads[0], NULL));
	while (taken_count)
		close(taken[--taken_count]);
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	gcr_helper_put(take_worker(helpers, &reply.gpus[0]));
	gcr_helpers_destroy(helpers);
}

static void *put_later(void *helper)
{
	usleep(50 * GCR_USEC_PER_MSEC);
	gcr_helper_put(helper);
	return NULL;
}

/* Whoever ends an idle worker waits for one that is borrowed, not for one that is taken. */
static void test_borrowed_worker(const char *programs)
{
	struct gcr_helpers *helpers = make_real_pool(programs, FOREVER_USEC);
	struct gcr_helper *helper = take(helpers), *other = NULL;
	static struct gcr_gpus_reply reply;
	const uint8_t *uuid = reply.gpus[0].uuid;
	pthread_t thread;
	pid_t pid;

	list(helper, &reply);
	gcr_helper_put(helper);
	CHECK(gcr_helpers_borrow_worker(helpers, uuid, false, &other) == -EAGAIN);
	CHECK(gcr_helpers_take_idle_worker(helpers, uuid, false, 0, FOREVER_USEC, &other) ==
	      -EAGAIN);
	helper = take_worker(helpers, &reply.gpus[0]);
	pid = gcr_helper_pid(helper);
	CHECK(gcr_helpers_borrow_worker(helpers, uuid, false, &other) == -EAGAIN);
	CHECK(gcr_helpers_take_idle_worker(helpers, uuid, false, 0, FOREVER_USEC, &other) ==
	      -EAGAIN);
	gcr_helper_put(helper);

	CHECK(gcr_helpers_borrow_worker(helpers, uuid, false, &helper) == 0);
	CHECK(gcr_helpers_borrow_worker(helpers, uuid, false, &other) == -EAGAIN);
	CHECK(gcr_helpers_take_idle_worker(helpers, uuid, false, 0, 0, &other) == -EAGAIN);
	CHECK(!pthread_create(&thread, NULL, put_later, helper));
	CHECK(gcr_helpers_take_idle_worker(helpers, uuid, false, 0, PATIENCE_USEC, &other) == 0);
	CHECK(!pthread_join(thread, NULL) && gcr_helper_pid(other) == pid);
	/* It is taken now, and not borrowed. */
	CHECK(gcr_helpers_take_idle_worker(helpers, uuid, false, 0, FOREVER_USEC, &helper) ==
	      -EAGAIN);

	/* A borrowed worker that does not come back alive. */
	gcr_helper_put(other);
	CHECK(gcr_helpers_borrow_worker(helpers, uuid, false, &helper) == 0);
	gcr_helper_kill(helper);
	CHECK(!pthread_create(&thread, NULL, put_later, helper));
	CHECK(gcr_helpers_take_idle_worker(helpers, uuid, false, 0, PATIENCE_USEC, &other) ==
	      -EAGAIN);
	CHECK(!pthread_join(thread, NULL));
	gcr_helper_put(take_worker(helpers, &reply.gpus[0]));
	gcr_helpers_destroy(helpers);
}

/* Make the simulated driver misbehave; "" ends that. */
static void set_faults(const char *rules)
{
	char path[128];
	_cleanup_fclose_ FILE *file = NULL;

	snprintf(path, sizeof(path), "%s/faults", getenv("GPUCR_SIM_DIR"));
	file = fopen(path, "we");
	CHECK(file && fputs(rules, file) >= 0);
}

/*
 * Start a daemon whose helper checkpoints @user, and kill the daemon after @wait_ms milliseconds,
 * the helper before the daemon if @kill_helper. Returns when both have ended.
 */
static void die_in_call(const char *programs, bool kill_helper, pid_t user, unsigned int wait_ms)
{
	_cleanup_close_ int end = -1, pidfd = -1;
	pid_t daemon, pid, ended;
	char rules[64];
	int status;

	snprintf(rules, sizeof(rules), "cuCheckpointProcessCheckpoint delay_ms=%u\n", 3 * wait_ms);
	set_faults(rules);
	daemon = fork_daemon(&end);
	if (daemon == 0) {
		struct gcr_control_request request = {.pid = user};
		int user_fd = open_pidfd(user);
		struct gcr_helper *helper;

		helper = take(make_real_pool(programs, 0));
		expect(helper, GCR_MESSAGE_LOCK, user, GCR_CONTROL_LOCKED);
		CHECK(gcr_helper_request_fds(helper, GCR_MESSAGE_CHECKPOINT, &request,
					     sizeof(request), &user_fd, 1, NULL) == 0);
		say_helper(end, helper);
	}
	pid = hear_helper(end);
	pidfd = open_pidfd(pid);
	/* By then the call has begun, and continues in the target. */
	usleep(wait_ms * 1000);
	if (kill_helper)
		CHECK(kill(pid, SIGKILL) == 0);
	CHECK(kill(daemon, SIGKILL) == 0);
	CHECK(waitpid(daemon, &status, 0) == daemon);
	wait_end(pidfd);
	/*
	 * This process reaps the helper, unless the daemon's pool did so before the daemon was
	 * killed.
	 */
	ended = waitpid(pid, &status, 0);
	if (kill_helper)
		CHECK(ended == pid || (ended < 0 && errno == ECHILD));
	else
		CHECK(ended == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 0) == 0);
	set_faults("");
}

/*
 * The daemon, or the helper, is killed while the driver checkpoints: the operation continues in the
 * target, and another daemon's helper restores the target.
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
		helpers = make_real_pool(programs, 0);
		helper = take(helpers);
		/* This request waits for the call under way. */
		result = control(helper, GCR_MESSAGE_STATE, user);
		if (result.error || result.state != GCR_CONTROL_LOCKED || wait_ms > 1000)
			break;
		/* On a busy machine the call had not begun: try again with a longer wait. */
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

/* The error of cuInit is reported to the caller that takes a helper. */
static void test_init_fails(const char *programs)
{
	struct gcr_helpers *helpers = make_real_pool(programs, 0);
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
	CHECK(gcr_helpers_take_worker(helpers, reply.gpus[0].uuid, false, WAIT(PATIENCE_USEC, -1),
				      &helper, &error) == -ENOMEM);
	CHECK(setenv("GPUCR_SIM_FAULTS", "cuInit action=hang", 1) == 0);
	CHECK(gcr_helpers_take_control(helpers, 50 * GCR_USEC_PER_MSEC, -1, &helper, &error) ==
	      -ETIMEDOUT);
	unsetenv("GPUCR_SIM_FAULTS");
	gcr_helpers_destroy(helpers);
	CHECK(find_child("gpucr-control") == 0);
}

/* HIP's errors are reported by the worker only: control helpers do not call HIP. */
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
	struct gcr_helpers *helpers = make_real_pool(programs, 0);
	static struct gcr_gpus_reply reply;
	struct gcr_helper *helper;
	struct gcr_error error;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cases); i++) {
		CHECK(setenv("GPUCR_SIM_FAULTS", cases[i].rule, 1) == 0);
		helper = take(helpers);
		list(helper, &reply);
		gcr_helper_put(helper);
		CHECK(gcr_helpers_take_worker(helpers, reply.gpus[0].uuid, false,
					      WAIT(PATIENCE_USEC, -1), &helper,
					      &error) == -cases[i].number);
		CHECK(strstr(error.words, cases[i].words));
	}
	unsetenv("GPUCR_SIM_FAULTS");
	/* Older versions cannot import memory exported by another process. */
	CHECK(setenv("GPUCR_SIM_HIP_VERSION", "6.1", 1) == 0);
	CHECK(gcr_helpers_take_worker(helpers, reply.gpus[0].uuid, false, WAIT(PATIENCE_USEC, -1),
				      &helper, &error) == -EOPNOTSUPP);
	CHECK(strstr(error.words, "ROCm 6.3.2, 6.4.2 or newer"));
	unsetenv("GPUCR_SIM_HIP_VERSION");
	/* This worker is left time to start, and ends with the pool. */
	CHECK(setenv("GPUCR_SIM_FAULTS", "hipInit action=hang", 1) == 0);
	CHECK(gcr_helpers_take_worker(helpers, reply.gpus[0].uuid, false,
				      WAIT(50 * GCR_USEC_PER_MSEC, -1), &helper,
				      &error) == -ETIMEDOUT);
	unsetenv("GPUCR_SIM_FAULTS");
	gcr_helpers_destroy(helpers);
	CHECK(find_child("gpucr-worker") == 0 && find_child("gpucr-worker-hi") == 0);
}

/*
 * Without NVML the GPUs are the driver's list, and memory is known only of the GPU that has a
 * context.
 */
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
		/* This machine has its own NVML, which would be found: skip. */
		dlclose(nvml);
		free(simulator);
		return;
	}
	CHECK(mkdtemp(only_cuda));
	snprintf(from, sizeof(from), "%s/libcuda.so.1", simulator);
	snprintf(to, sizeof(to), "%s/libcuda.so.1", only_cuda);
	CHECK(symlink(from, to) == 0);
	CHECK(setenv("GPUCR_TEST_SIMULATOR", only_cuda, 1) == 0);
	helpers = make_real_pool(programs, 0);
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

	test_on_simulator(test_verbs, programs);
	test_on_simulator(test_silence, programs);
	test_on_simulator(test_worker, programs);
	test_on_simulator(test_idle_worker, programs);
	test_on_simulator(test_borrowed_worker, programs);
	test_on_simulator(test_turns, programs);
	test_on_simulator(test_daemon_dies_in_call, programs);
	test_on_simulator(test_helper_dies_in_call, programs);
	test_on_simulator(test_init_fails, programs);
	CHECK(setenv("GPUCR_SIM_GPUS", "2", 1) == 0);
	test_on_simulator(test_no_nvml, programs);
	return 0;
}
