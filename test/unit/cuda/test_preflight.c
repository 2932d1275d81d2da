/* SPDX-License-Identifier: MIT */
/*
 * backend/cuda/preflight.c against children that hold, map or are something that must be refused.
 */
#include "backend/cuda/preflight.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/procfs.h"
#include "test/unit/child.h"
#include "test/unit/idle_thread.h"
#include "test/unit/test.h"

#define DRIVER "580.159.04"

static char devices[] = "/tmp/gcr-preflight-XXXXXX"; /* replaces /dev */

static int preflight(pid_t pid, struct gcr_error *error)
{
	*error = (struct gcr_error){};
	return gcr_cuda_preflight(pid, devices, DRIVER, error);
}

static void refused(pid_t pid, const char *words)
{
	struct gcr_error error;
	int r = preflight(pid, &error);

	if (r != -EOPNOTSUPP || error.number != EOPNOTSUPP || !strstr(error.words, words))
		fprintf(stderr, "%d, %d: %s (wanted: %s)\n", r, error.number, error.words, words);
	CHECK(r == -EOPNOTSUPP && error.number == EOPNOTSUPP);
	CHECK(strstr(error.words, words));
	CHECK(strlen(error.words) < GCR_ERROR_WORDS_MAX - 1);
}

static void accepted(pid_t pid)
{
	struct gcr_error error;
	int r = preflight(pid, &error);

	if (r)
		fprintf(stderr, "%d: %s\n", r, error.words);
	CHECK(r == 0);
}

static void make_file(const char *path)
{
	int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
	close(fd);
}

static void device_path(char path[128], const char *name)
{
	snprintf(path, 128, "%s/%s", devices, name);
}

static void hold(const char *path)
{
	CHECK(open(path, O_RDWR) >= 0);
}

static void map(const char *path)
{
	int fd = open(path, O_RDWR);

	CHECK(fd >= 0);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
	close(fd);
}

static void test_device(const char *name, const char *words)
{
	static void (*const uses[])(const char *path) = {hold, map};
	struct child child;
	char path[128];

	device_path(path, name);
	make_file(path);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(uses); i++) {
		child = start_child(uses[i], path);
		if (words)
			refused(child.pid, words);
		else
			accepted(child.pid);
		end_child(child);
	}
	unlink(path);
}

static void test_devices(void)
{
	char directory[128];

	device_path(directory, "nvidia-caps");
	CHECK(mkdir(directory, 0700) == 0);
	device_path(directory, "nvidia-caps-imex-channels");
	CHECK(mkdir(directory, 0700) == 0);

	test_device("nvidia0", NULL);
	test_device("nvidiactl", NULL);
	test_device("nvidia-uvm", NULL);
	test_device("nvidia-fs0", "cuFile");
	test_device("nvidia-modeset", "graphics");
	test_device("nvidia-caps/nvidia-cap1", NULL); /* NVML's, without MIG */
	test_device("nvidia-caps/nvidia-cap2", NULL);
	test_device("nvidia-caps/nvidia-cap3", "MIG");
	test_device("nvidia-caps/nvidia-cap20", "MIG");
	test_device("nvidia-caps-imex-channels/channel0", "IMEX");

	device_path(directory, "nvidia-caps");
	CHECK(rmdir(directory) == 0);
	device_path(directory, "nvidia-caps-imex-channels");
	CHECK(rmdir(directory) == 0);
}

static void test_libraries(void)
{
	/*
	 * open but not mapped, the libraries are accepted; under another directory they are
	 * refused, too
	 */
	static const char *const names[] = {"libGLX_nvidia.so.580.159.04",
					    "libEGL_nvidia.so.0",
					    "libnvidia-glcore.so.580.159.04",
					    "libnvidia-eglcore.so.580.159.04",
					    "libnvidia-glvkspirv.so.580.159.04",
					    "libnvcuvid.so.1",
					    "libnvoptix.so.1",
					    "nvidia-cuda-mps-server"};
	static const char *const harmless[] = {"libcuda.so.580.159.04", "libnvidia-ml.so.1",
					       "libnvidia-ptxjitcompiler.so.1", "libcufile.so.0"};
	struct child child;
	char path[128];

	for (size_t i = 0; i < GCR_ARRAY_SIZE(names); i++) {
		device_path(path, names[i]);
		make_file(path);
		child = start_child(map, path);
		refused(child.pid, names[i]);
		end_child(child);
		child = start_child(hold, path);
		accepted(child.pid);
		end_child(child);
		unlink(path);
	}
	for (size_t i = 0; i < GCR_ARRAY_SIZE(harmless); i++)
		test_device(harmless[i], NULL);
}

static void write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

/* Become root in a new user namespace, where the kernel allows that. */
static bool become_root(int namespaces)
{
	char users[32];
	char groups[32];

	snprintf(users, sizeof(users), "0 %u 1", (unsigned int)geteuid());
	snprintf(groups, sizeof(groups), "0 %u 1", (unsigned int)getegid());
	if (unshare(CLONE_NEWUSER | namespaces) < 0)
		return false;
	write_text("/proc/self/setgroups", "deny");
	write_text("/proc/self/uid_map", users);
	write_text("/proc/self/gid_map", groups);
	return true;
}

/* In a new mount namespace, make and hold a device file that this machine may not have. */
static void hold_in_own_dev(const char *path)
{
	char directory[128];

	if (unshare(CLONE_NEWNS) < 0 && !become_root(CLONE_NEWNS))
		return;
	if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("none", "/dev", "tmpfs", 0, NULL) < 0)
		return;
	snprintf(directory, sizeof(directory), "%s", path);
	*strrchr(directory, '/') = '\0';
	if (strcmp(directory, "/dev") != 0)
		CHECK(mkdir(directory, 0700) == 0);
	make_file(path);
	hold(path);
}

static void test_other_devices(void)
{
	static const struct {
		const char *path;
		const char *words;
	} cases[] = {
		{"/dev/infiniband/uverbs0", "NCCL_IB_DISABLE"},
		{"/dev/infiniband/rdma_cm", NULL},
		{"/dev/gdrdrv", "GDRCopy"},
		{"/dev/dri/card0", "graphics"},
		{"/dev/dri/renderD128", "graphics"},
		{"/dev/nvidia-modeset", NULL}, /* the device directory is another one */
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cases); i++) {
		struct child child = start_child(hold_in_own_dev, cases[i].path);

		if (gcr_proc_holds_file(child.pid, cases[i].path) != 1)
			fprintf(stderr, "no mount namespace may be made: %s not tested\n",
				cases[i].path);
		else if (cases[i].words)
			refused(child.pid, cases[i].words);
		else
			accepted(child.pid);
		end_child(child);
	}
}

/* Obstacles that this test cannot create are at least found in the table. */
static void test_table(void)
{
	CHECK(gcr_cuda_obstacle_find("/dmabuf:", false, "/dev"));
	CHECK(gcr_cuda_obstacle_find("/dmabuf:name", true, "/dev"));
	CHECK(!gcr_cuda_obstacle_find("/memfd:/dmabuf:", false, "/dev"));
	CHECK(gcr_cuda_obstacle_find("/dev/nvidia-fs0", false, "/dev"));
	CHECK(!gcr_cuda_obstacle_find("/dev/nvidia-fs0", false, "/elsewhere"));
	CHECK(!gcr_cuda_obstacle_find("/device/nvidia-fs0", false, "/dev"));
	CHECK(!gcr_cuda_obstacle_find("pipe:[1]", false, "/dev"));
	for (size_t i = 0; i < gcr_cuda_obstacles_count; i++)
		CHECK(*gcr_cuda_obstacles[i].why && *gcr_cuda_obstacles[i].what_to_do);
}

static void nothing(const char *argument)
{
	(void)argument;
}

static void wait_for_state(pid_t pid, char state)
{
	struct gcr_proc_stat stat;

	do {
		CHECK(gcr_proc_stat(pid, &stat) == 0);
		sched_yield();
	} while (stat.state != state);
}

/* A stopped, traced or ended process is refused. */
static void test_states(void)
{
	struct child child = start_child(nothing, NULL);
	struct gcr_error error;
	char words[64];

	accepted(child.pid);
	CHECK(kill(child.pid, SIGSTOP) == 0);
	wait_for_state(child.pid, 'T');
	snprintf(words, sizeof(words), "(kill -CONT %d)", (int)child.pid);
	refused(child.pid, words);
	CHECK(kill(child.pid, SIGCONT) == 0);
	wait_for_state(child.pid, 'S');
	accepted(child.pid);

	if (ptrace(PTRACE_SEIZE, child.pid, 0, 0) == 0) {
		CHECK(ptrace(PTRACE_INTERRUPT, child.pid, 0, 0) == 0);
		CHECK(waitpid(child.pid, NULL, 0) == child.pid);
		refused(child.pid, "debugger");
		CHECK(ptrace(PTRACE_DETACH, child.pid, 0, 0) == 0);
		wait_for_state(child.pid, 'S');
		accepted(child.pid);
	}

	close(child.go);
	wait_for_state(child.pid, 'Z');
	CHECK(preflight(child.pid, &error) == -ESRCH && error.number == ESRCH);
	CHECK(waitpid(child.pid, NULL, 0) == child.pid);
	CHECK(preflight(child.pid, &error) == -ESRCH && strstr(error.words, "has ended"));
}

static void test_thread(void)
{
	struct idle_thread thread;
	char words[64];

	idle_thread_start(&thread);
	snprintf(words, sizeof(words), "%d is a thread of process %d", (int)thread.id,
		 (int)getpid());
	refused(thread.id, words);
	idle_thread_end(&thread);
}

/* Versions of the driver that are too old, or known to be faulty, are refused. */
static void test_drivers(void)
{
	static const struct {
		const char *version;
		int result;
	} cases[] = {
		{"580.159.04", 0},
		{"570.86.15", 0},
		{"615.10", 0},
		{"569.99.99", -EOPNOTSUPP},
		{"550.54.14", -EOPNOTSUPP},
		{"470", -EOPNOTSUPP},
		{"610.57.04", -EOPNOTSUPP},
		{"610.57.05", 0},
		{"", 0},
		{"unknown", 0},
		{NULL, 0},
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cases); i++) {
		struct gcr_error error = {};

		CHECK(gcr_cuda_preflight(getpid(), devices, cases[i].version, &error) ==
		      cases[i].result);
		CHECK(gcr_cuda_preflight(getpid(), devices, cases[i].version, NULL) ==
		      cases[i].result);
		CHECK(error.number == -cases[i].result);
	}
}

/* Start a program with this variable in its initial environment. */
static struct child start_program(const char *variable, const char *value)
{
	struct child child;
	char *seen = NULL;
	int go[2];

	CHECK(pipe2(go, O_CLOEXEC) == 0);
	child.pid = fork();
	if (child.pid == 0) {
		dup2(go[0], 0);
		setenv(variable, value, 1);
		execl("/bin/cat", "cat", (char *)NULL);
		_exit(1);
	}
	close(go[0]);
	child.go = go[1];
	while (gcr_proc_environ(child.pid, variable, &seen) < 0)
		sched_yield();
	CHECK(strcmp(seen, value) == 0);
	free(seen);
	return child;
}

static void test_environment(void)
{
	struct child child = start_program("CUDA_VISIBLE_DEVICES", "MIG-1234");

	refused(child.pid, "MIG");
	end_child(child);
	child = start_program("CUDA_VISIBLE_DEVICES", "GPU-1234");
	accepted(child.pid);
	end_child(child);
	child = start_program("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps");
	accepted(child.pid); /* set, but without a connection */
	end_child(child);
}

static int listen_at(const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", devices, name);
	CHECK(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(fd, 4) == 0);
	return fd;
}

/*
 * Connect like libcuda to the control daemon: with SO_PASSCRED the kernel names the client's
 * socket.
 */
static void connect_named(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	int on = 1;

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0);
	CHECK(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
}

static void connect_plainly(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	CHECK(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
}

/* A client of MPS is recognised by its connection to the control daemon. */
static void test_mps(void)
{
	struct child child;
	bool alone = false;
	char path[128];
	int privileged;
	int control;

	/* sockets are visible in the whole network namespace: use a new one if allowed */
	if (unshare(CLONE_NEWNET) == 0)
		alone = true;
	device_path(path, "control");
	control = listen_at("control");
	child = start_child(connect_named, path);
	if (alone)
		accepted(child.pid); /* no control daemon is visible */
	privileged = listen_at("control_privileged");
	refused(child.pid, "client of MPS");
	end_child(child);
	child = start_child(connect_plainly, path); /* like the preload library */
	accepted(child.pid);
	end_child(child);
	close(control);
	close(privileged);
	unlink(path);
	device_path(path, "control_privileged");
	unlink(path);
}

int main(void)
{
	CHECK(mkdtemp(devices));
	test_table();
	test_devices();
	test_libraries();
	test_other_devices();
	test_states();
	test_thread();
	test_drivers();
	test_environment();
	test_mps();
	CHECK(rmdir(devices) == 0);
	return 0;
}
