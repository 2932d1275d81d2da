/* SPDX-License-Identifier: MIT */
/*
 * backend/rocm/preflight.c against children that hold, map or were started with something that must
 * be refused.
 */
#include "backend/rocm/preflight.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/backend.h"
#include "lib/cleanup.h"
#include "lib/procfs.h"
#include "test/unit/child.h"
#include "test/unit/test.h"

static char directory[] = "/tmp/gcr-preflight-hip-XXXXXX"; /* replaces /dev */

static void refused(pid_t pid, const char *words)
{
	struct gcr_error error = {0};
	int r = gcr_hip_preflight(pid, directory, "6.8.5", &error);

	if (r != -EOPNOTSUPP || error.number != EOPNOTSUPP || !strstr(error.words, words))
		fprintf(stderr, "%d, %d: %s (wanted: %s)\n", r, error.number, error.words, words);
	CHECK(r == -EOPNOTSUPP && error.number == EOPNOTSUPP && strstr(error.words, words));
}

static void accepted(pid_t pid)
{
	struct gcr_error error = {0};
	int r = gcr_hip_preflight(pid, directory, "", &error);

	if (r)
		fprintf(stderr, "%d: %s\n", r, error.words);
	CHECK(r == 0);
}

static void nothing(const char *argument)
{
	(void)argument;
}

static void map(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0 && mmap(NULL, 4096, PROT_NONE, MAP_SHARED, fd, 0) != MAP_FAILED);
	close(fd);
}

static void hold(const char *path)
{
	CHECK(open(path, O_RDWR) >= 0);
}

static void test_libraries(void)
{
	static const struct {
		const char *name;
		const char *words; /* NULL: accepted */
	} cases[] = {
		{"libvulkan_radeon.so", "graphics"},
		{"radeonsi_drv_video.so", "video"},
		{"librocm-debug-agent.so.2", "debugger or profiler"},
		{"librocprofiler-sdk-tool.so.0", "debugger or profiler"},
		{"libamdhip64.so.6", NULL},
		{"libhsa-runtime64.so.1", NULL},
		{"libroctracer64.so.4", NULL},
		{"librocprofiler-register.so.0", NULL},
	};
	char path[128];

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cases); i++) {
		struct child child;

		snprintf(path, sizeof(path), "%s/%s", directory, cases[i].name);
		close(open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600));
		child = start_child(map, path);
		if (cases[i].words)
			refused(child.pid, cases[i].words);
		else
			accepted(child.pid);
		end_child(child);
		/* Open but not mapped, the library is accepted. */
		child = start_child(hold, path);
		accepted(child.pid);
		end_child(child);
		unlink(path);
	}
}

static void test_table(void)
{
	static const struct {
		const char *path;
		bool is_mapping;
		bool is_found;
	} cases[] = {
		{"/dev/infiniband/uverbs0", false, true},
		{"/dev/infiniband/rdma_cm", false, false},
		{"/dev/dri/card0", false, true},
		/* Files that every HIP program has open. */
		{"/dev/dri/renderD128", true, false},
		{"/dev/kfd", true, false},
		{"/dmabuf:", false, false},
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cases); i++)
		CHECK(!!gcr_obstacle_find(gcr_hip_obstacles, gcr_hip_obstacles_count, cases[i].path,
					  cases[i].is_mapping, "/dev") == cases[i].is_found);
	for (size_t i = 0; i < gcr_hip_obstacles_count; i++)
		CHECK(*gcr_hip_obstacles[i].why && *gcr_hip_obstacles[i].what_to_do);
}

/* A stopped process is refused: its preload library could not answer. */
static void test_stopped(void)
{
	struct child child = start_child(nothing, NULL);
	struct gcr_proc_stat stat;

	accepted(child.pid);
	CHECK(kill(child.pid, SIGSTOP) == 0);
	do {
		CHECK(gcr_proc_stat(child.pid, &stat) == 0);
		sched_yield();
	} while (stat.state != 'T');
	refused(child.pid, "its preload library could not answer");
	CHECK(kill(child.pid, SIGCONT) == 0);
	end_child(child);
}

/* Programs with this variable in their initial environment. */
static void test_environment(void)
{
	static const struct {
		const char *value;
		bool is_refused;
	} cases[] = {{"librocprofiler64.so.2", true}, {"", false}};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *seen = NULL;
		int go[2];
		pid_t pid;

		CHECK(pipe2(go, O_CLOEXEC) == 0);
		pid = fork();
		if (pid == 0) {
			dup2(go[0], 0);
			setenv("HSA_TOOLS_LIB", cases[i].value, 1);
			execl("/bin/cat", "cat", (char *)NULL);
			_exit(1);
		}
		close(go[0]);
		while (gcr_proc_environ(pid, "HSA_TOOLS_LIB", &seen) < 0)
			sched_yield();
		if (cases[i].is_refused)
			refused(pid, "HSA_TOOLS_LIB=librocprofiler64.so.2");
		else
			accepted(pid);
		close(go[1]);
		CHECK(waitpid(pid, NULL, 0) == pid);
	}
}

static void test_gone(void)
{
	struct child child = start_child(nothing, NULL);
	struct gcr_error error = {0};

	end_child(child);
	CHECK(gcr_hip_preflight(child.pid, directory, NULL, &error) == -ESRCH);
	CHECK(strstr(error.words, "has ended"));
}

static void test_backends(void)
{
	struct gcr_gpu_info gpu = {.capability_major = 9, .capability_minor = 0};
	char text[GCR_ARCHITECTURE_BYTES];

	CHECK(gcr_backend_of_engine("hip") == &gcr_backend_hip);
	CHECK(gcr_backend_of_engine("vmm") == &gcr_backend_cuda);
	CHECK(gcr_backend_of_engine("driver") == &gcr_backend_cuda);
	CHECK(gcr_backend_of_engine("") == &gcr_backend_cuda);
	CHECK(gcr_backend_of_vendor("amd") == &gcr_backend_hip);
	CHECK(gcr_backend_of_vendor("NVIDIA") == &gcr_backend_cuda);
	CHECK(!gcr_backend_of_vendor("") && !gcr_backend_of_vendor("am"));

	gcr_backend_cuda.format_architecture(&gpu, text);
	CHECK(!strcmp(text, "9.0"));
	gcr_backend_hip.format_architecture(&gpu, text);
	CHECK(!strcmp(text, ""));
	gpu = (struct gcr_gpu_info){.gfx_version = 90010};
	gcr_backend_cuda.format_architecture(&gpu, text);
	CHECK(!strcmp(text, ""));
	gcr_backend_hip.format_architecture(&gpu, text);
	CHECK(!strcmp(text, "gfx90a"));
	gpu.gfx_version = 90402;
	gcr_backend_hip.format_architecture(&gpu, text);
	CHECK(!strcmp(text, "gfx942"));
	gpu.gfx_version = 110001;
	gcr_backend_hip.format_architecture(&gpu, text);
	CHECK(!strcmp(text, "gfx1101"));
	gpu.gfx_version = UINT32_MAX;
	gcr_backend_hip.format_architecture(&gpu, text);
	CHECK(strlen(text) < sizeof(text));
}

int main(void)
{
	CHECK(mkdtemp(directory));
	test_table();
	test_libraries();
	test_stopped();
	test_environment();
	test_gone();
	test_backends();
	CHECK(rmdir(directory) == 0);
	return 0;
}
