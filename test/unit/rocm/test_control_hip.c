/* SPDX-License-Identifier: MIT */
/*
 * gpucr-control-hip as the daemon uses it, with a directory tree that looks like sysfs.
 * GPUCR_TEST_HELPERS is the directory of the helper. No AMD library is installed that the helper
 * could query.
 */
#include <errno.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "lib/clock.h"
#include "lib/message.h"
#include "test/unit/rocm/kfd_tree.h"

#define PATIENCE_USEC (60 * GCR_USEC_PER_SEC)

static struct gcr_message message;
static uint32_t sequence;
static pid_t pid;

/* Starts the helper and returns its socket; *ret_hello is its first message. */
static int start(struct gcr_hello *ret_hello)
{
	char path[4096];
	int pair[2];

	snprintf(path, sizeof(path), "%s/gpucr-control-hip", getenv("GPUCR_TEST_HELPERS"));
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		char *arguments[] = {(char *)(uintptr_t) "gpucr-control-hip", NULL};

		if (dup2(pair[1], 3) != 3 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
			_exit(126);
		execv(path, arguments);
		_exit(127);
	}
	close(pair[1]);
	CHECK(!gcr_message_receive(pair[0], PATIENCE_USEC, -1, &message));
	CHECK(message.header.type == GCR_MESSAGE_HELLO);
	gcr_message_payload(&message, ret_hello, sizeof(*ret_hello));
	return pair[0];
}

static int status_at_end(void)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void ask(int fd, uint16_t type, uint16_t answer)
{
	struct gcr_control_request request = {.pid = getpid(), .timeout_ms = 1000};

	CHECK(!gcr_message_send(fd, type, ++sequence, &request,
				type == GCR_MESSAGE_QUERY ? 0 : sizeof(request), NULL, 0));
	CHECK(!gcr_message_receive(fd, PATIENCE_USEC, -1, &message));
	CHECK(message.header.type == answer && message.header.sequence == sequence);
}

static void list(int fd, struct gcr_gpus_reply *ret_reply)
{
	ask(fd, GCR_MESSAGE_QUERY, GCR_MESSAGE_GPUS);
	gcr_message_payload(&message, ret_reply, sizeof(*ret_reply));
}

static void refused(int fd, uint16_t type, const char *words)
{
	struct gcr_result result;

	ask(fd, type, GCR_MESSAGE_RESULT);
	gcr_message_payload(&message, &result, sizeof(result));
	CHECK(result.error == EOPNOTSUPP && result.driver_result == 0);
	CHECK(result.state == GCR_CONTROL_UNKNOWN && strstr(result.words, words));
}

/*
 * Without the driver, and with a driver but no GPU: the helper reports itself unusable, with the
 * reason.
 */
static void test_no_gpu(void)
{
	struct gcr_hello hello;
	int fd;

	begin();
	CHECK(setenv("GPUCR_SIM_DIR", root, 1) == 0);
	fd = start(&hello);
	CHECK(hello.error == ENODEV && strstr(hello.words, "amdgpu"));
	close(fd);
	CHECK(status_at_end() == 1);

	put(place("sys/" NODES "/0/gpu_id"), "0\n");
	put(place("sys/" NODES "/0/properties"), "cpu_cores_count 4\nsimd_count 0\n");
	fd = start(&hello);
	CHECK(hello.error == ENODEV && strstr(hello.words, "shows no GPU"));
	close(fd);
	CHECK(status_at_end() == 1);
}

static void test_conversation(void)
{
	static const uint16_t verbs[] = {GCR_MESSAGE_STATE, GCR_MESSAGE_LOCK,
					 GCR_MESSAGE_CHECKPOINT, GCR_MESSAGE_RESTORE,
					 GCR_MESSAGE_UNLOCK};
	static struct gcr_gpus_reply reply;
	struct gcr_hello hello;
	int fd;

	begin();
	CHECK(setenv("GPUCR_SIM_DIR", root, 1) == 0);
	put(place("sys/module/amdgpu/version"), "6.8.5\n");
	put(place("sys/" NODES "/1/gpu_id"), "51110\n");
	put(place("sys/" NODES "/1/name"), "aldebaran\n");
	put(place("sys/" NODES "/1/properties"),
	    "simd_count 440\nunique_id 255\ndrm_render_minor 128\ngfx_target_version 90010\n");
	put(place("sys/class/drm/renderD128/device/mem_info_vram_total"), "1000\n");
	put(place("sys/class/drm/renderD128/device/mem_info_vram_used"), "10\n");

	fd = start(&hello);
	CHECK(!hello.error && !hello.words[0] && !hello.api_version);
	CHECK(strcmp(hello.driver_version, "6.8.5") == 0);
	list(fd, &reply);
	CHECK(!reply.error && reply.gpus_count == 1 && !reply.processes_count);
	CHECK(memcmp(reply.gpus[0].uuid, "00000000000000ff", GCR_UUID_BYTES) == 0);
	CHECK(strcmp(reply.gpus[0].name, "aldebaran") == 0 && reply.gpus[0].minor == 128);
	CHECK(reply.gpus[0].gfx_version == 90010 && reply.gpus[0].free_bytes == 990);

	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		refused(fd, verbs[i], "HIP has no calls that checkpoint");
	refused(fd, GCR_MESSAGE_RESERVE, "gpucr-control-hip does not know");

	/* Each list reads the current values. */
	put(place("sys/class/drm/renderD128/device/mem_info_vram_used"), "600\n");
	put(place("sys/" PROC "/77/vram_51110"), "590\n");
	list(fd, &reply);
	CHECK(reply.gpus[0].used_bytes == 600 && reply.processes_count == 1);
	CHECK(reply.processes[0].pid == 77 && reply.processes[0].bytes == 590);
	/* The driver is unloaded. */
	CHECK(rename(place("sys/class"), place("sys/none")) == 0);
	list(fd, &reply);
	CHECK(reply.error == ENODEV && strstr(reply.words, "amdgpu") && !reply.gpus_count);

	close(fd);
	CHECK(status_at_end() == 0);
}

/* A user starts the helper by hand, without a daemon. */
static void test_without_daemon(void)
{
	char command[4096];
	int status;

	snprintf(command, sizeof(command),
		 "'%s/gpucr-control-hip' 3<&- 2>&1 | grep -q 'only gpucrfs starts this program'",
		 getenv("GPUCR_TEST_HELPERS"));
	status = system(command);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
	CHECK(getenv("GPUCR_TEST_HELPERS"));
	atexit(remove_tree);
	test_no_gpu();
	test_conversation();
	test_without_daemon();
	return 0;
}
