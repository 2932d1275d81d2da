/* SPDX-License-Identifier: MIT */
/*
 * libgpucr-preload.so in a program (this one, started again) that gets cuInit in one of several
 * ways, with a daemon (this program) that listens or does not.
 *
 * GPUCR_TEST_PRELOAD and GPUCR_TEST_NEXT are the libraries, GPUCR_TEST_SIMULATOR the directory of
 * the simulator's.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/message.h"
#include "test/unit/test.h"

#define DIRECTORY_START "/tmp/gpucr-test-"
#define OTHER_UID	65534 /* the user nobody */
#define PATIENCE_USEC	(30 * GCR_USEC_PER_SEC)

/* Bound like in a program linked with libcuda; NULL without the preload library. */
extern __typeof__(cuInit) cuInit __attribute__((weak));

/* ---- the program ---- */

static void *open_driver(int flags)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | flags);

	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
	return library;
}

static __typeof__(cuInit) *ask_v2(void *function, const char *symbol)
{
	__typeof__(cuGetProcAddress_v2) *get = (__typeof__(cuGetProcAddress_v2) *)function;
	CUdriverProcAddressQueryResult status;
	void *found = NULL;

	CHECK(get && get(symbol, &found, 12000, 0, &status) == CUDA_SUCCESS);
	CHECK(found && status == CU_GET_PROC_ADDRESS_SUCCESS);
	return (__typeof__(cuInit) *)found;
}

static __typeof__(cuInit) *find_init(const char *way)
{
	void *found = NULL;

	if (strcmp(way, "dlsym") == 0)
		found = dlsym(open_driver(RTLD_LOCAL), "cuInit");
	if (strcmp(way, "global") == 0 && open_driver(RTLD_GLOBAL))
		found = dlsym(RTLD_DEFAULT, "cuInit");
	if (strcmp(way, "next") == 0 && open_driver(RTLD_GLOBAL))
		found = dlsym(RTLD_NEXT, "cuInit");
	if (strcmp(way, "linked") == 0 && open_driver(RTLD_LOCAL))
		found = (void *)cuInit;
	if (strcmp(way, "proc") == 0)
		return ask_v2(dlsym(open_driver(RTLD_LOCAL), "cuGetProcAddress_v2"), "cuInit");
	if (strcmp(way, "proc-v1") == 0) {
		__typeof__(cuGetProcAddress) *get = (__typeof__(cuGetProcAddress) *)dlsym(
			open_driver(RTLD_LOCAL), "cuGetProcAddress");

		CHECK(get && get("cuInit", &found, 11030, 0) == CUDA_SUCCESS);
	}
	if (strcmp(way, "nested") == 0) {
		found = dlsym(open_driver(RTLD_LOCAL), "cuGetProcAddress_v2");
		found = (void *)ask_v2(found, "cuGetProcAddress");
		return ask_v2(found, "cuInit");
	}
	CHECK(found);
	return (__typeof__(cuInit) *)found;
}

/*
 * Return the descriptor of the connection to the daemon, -1 if there is none. (The driver has other
 * sockets.)
 */
static int find_socket(void)
{
	for (int fd = 3; fd < 1 << 17; fd++) {
		struct sockaddr_un peer = {0};
		socklen_t length = sizeof(peer);

		if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0 &&
		    peer.sun_family == AF_UNIX &&
		    strncmp(peer.sun_path, DIRECTORY_START, strlen(DIRECTORY_START)) == 0)
			return fd;
	}
	return -1;
}

static void in_child(void (*what)(int), int fd)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		what(fd);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void expect_closed(int fd)
{
	CHECK(fcntl(fd, F_GETFD) < 0 && errno == EBADF);
	CHECK(find_socket() < 0);
}

static void expect_open(int fd)
{
	CHECK(fcntl(fd, F_GETFD) >= 0);
}

static void register_child(int fd)
{
	CHECK(find_init("dlsym")(0) == CUDA_SUCCESS);
	CHECK(find_socket() >= 0);
}

/* Without a loaded driver its functions are not found by dlsym(3), and cuInit fails. */
static void expect_absent(void)
{
	void *self = dlopen(NULL, RTLD_NOW);

	dlerror();
	CHECK(!dlsym(RTLD_DEFAULT, "cuInit") && dlerror());
	CHECK(!dlsym(RTLD_NEXT, "cuInit") && dlerror());
	CHECK(!dlsym(self, "cuInit") && dlerror());
	CHECK(!dlsym(self, "cuGetProcAddress_v2") && dlerror());
	CHECK(!dlsym(self, "cuNoSuchFunction") && dlerror());
	CHECK(cuInit && cuInit(0) == CUDA_ERROR_NO_DEVICE);
	CHECK(!dlerror());
	CHECK(dlsym(RTLD_DEFAULT, "getpid") && dlsym(self, "main") && !dlerror());
}

static int run_program(const char *way)
{
	__typeof__(cuInit) *init;
	int fd;

	if (strcmp(way, "absent") == 0) {
		expect_absent();
		return 0;
	}
	if (strcmp(way, "order") == 0) {
		CHECK(getppid() > 1);
		return 0;
	}
	if (strcmp(way, "child") == 0) {
		in_child(register_child, -1);
		return 0;
	}
	if (strcmp(way, "fail") == 0) {
		CHECK(find_init("dlsym")(1) == CUDA_ERROR_INVALID_VALUE);
		CHECK(find_socket() < 0);
		return 0;
	}
	if (strcmp(way, "quiet") == 0) {
		errno = 12345;
		CHECK(find_init("dlsym")(0) == CUDA_SUCCESS);
		CHECK(find_socket() < 0);
		return 0;
	}

	if (strcmp(way, "wait") == 0) {
		CHECK(find_init("dlsym")(0) == CUDA_SUCCESS);
		pause();
		return 1;
	}

	init = find_init(strcmp(way, "fork") == 0 || strcmp(way, "reused") == 0 ? "dlsym" : way);
	CHECK(init(0) == CUDA_SUCCESS);
	fd = find_socket();
	CHECK(fd > 100 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(init(0) == CUDA_SUCCESS);
	if (strcmp(way, "fork") == 0)
		in_child(expect_closed, fd);
	if (strcmp(way, "reused") == 0) {
		/*
		 * The descriptor's number now belongs to the program, and stays open in a child.
		 * The agent uses the number at the same time: a sanitizer would report that,
		 * rightly, as a race.
		 */
		CHECK(syscall(SYS_close, fd) == 0);
		CHECK(syscall(SYS_dup3, STDERR_FILENO, fd, 0) == fd);
		in_child(expect_open, fd);
	}
	return 0;
}

/* ---- the daemon ---- */

static char directory[] = DIRECTORY_START "XXXXXX";
static char socket_path[64];

static int listen_at(const char *path, int backlog)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	CHECK(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(listen(fd, backlog) == 0);
	return fd;
}

static pid_t start(const char *way, const char *variable, const char *value)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		const char *old_options = getenv("ASAN_OPTIONS");
		char preload[8192], options[1024];

		snprintf(preload, sizeof(preload), "%s:%s", getenv("GPUCR_TEST_PRELOAD"),
			 getenv("GPUCR_TEST_NEXT"));
		setenv("LD_LIBRARY_PATH", getenv("GPUCR_TEST_SIMULATOR"), 1);
		/* The preload library must precede the sanitizer's. */
		snprintf(options, sizeof(options), "%s:verify_asan_link_order=0",
			 old_options ? old_options : "");
		setenv("ASAN_OPTIONS", options, 1);
		unsetenv("GPUCR_SOCKET");
		unsetenv("XDG_RUNTIME_DIR");
		setenv(variable, value, 1);
		setenv("LD_PRELOAD", preload, 1);
		execl("/proc/self/exe", "test_preload", way, (char *)NULL);
		_exit(127);
	}
	return pid;
}

static void expect_success(const char *way, pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fprintf(stderr, "%s: status 0x%x\n", way, status);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Expect exactly one registration, of the process @pid; 0: of any process. */
static void expect_registered(int listener, pid_t pid)
{
	static struct gcr_message message;
	struct pollfd coming = {.fd = listener, .events = POLLIN};
	struct gcr_register registered;
	struct ucred peer;
	socklen_t length = sizeof(peer);
	_cleanup_close_ int fd = -1;

	CHECK(poll(&coming, 1, (int)(PATIENCE_USEC / 1000)) == 1);
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(fd >= 0);
	CHECK(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0);
	CHECK(pid == 0 || peer.pid == pid);
	CHECK(gcr_message_receive(fd, PATIENCE_USEC, -1, &message) == 0);
	CHECK(message.header.type == GCR_MESSAGE_REGISTER && message.fds_count == 1);
	gcr_message_close_fds(&message);
	gcr_message_payload(&message, &registered, sizeof(registered));
	CHECK(registered.preload_version >= 2);
	CHECK(registered.phase == GCR_PRELOAD_RUNNING && !registered.generation[0]);
	/* The connection lasts until the process ends. */
	CHECK(gcr_message_receive(fd, PATIENCE_USEC, -1, &message) == -EPIPE);
}

static void expect_nobody(int listener)
{
	CHECK(accept4(listener, NULL, NULL, SOCK_CLOEXEC) < 0 && errno == EAGAIN);
}

static void test_ways(void)
{
	static const char *const ways[] = {"dlsym",   "global", "next", "linked", "proc",
					   "proc-v1", "nested", "fork", "reused"};
	_cleanup_close_ int listener = listen_at(socket_path, 8);

	for (size_t i = 0; i < GCR_ARRAY_SIZE(ways); i++) {
		pid_t pid = start(ways[i], "GPUCR_SOCKET", socket_path);

		expect_registered(listener, pid);
		expect_success(ways[i], pid);
		expect_nobody(listener);
	}
	unlink(socket_path);
}

/* Only the process that uses the GPU registers, not its child. */
static void test_child(void)
{
	_cleanup_close_ int listener = listen_at(socket_path, 8);
	pid_t pid = start("child", "GPUCR_SOCKET", socket_path);

	expect_registered(listener, 0);
	expect_success("child", pid);
	expect_nobody(listener);
	unlink(socket_path);
}

static void test_silent(void)
{
	static const char *const ways[] = {"absent", "order", "fail"};
	_cleanup_close_ int listener = listen_at(socket_path, 8);

	for (size_t i = 0; i < GCR_ARRAY_SIZE(ways); i++) {
		expect_success(ways[i], start(ways[i], "GPUCR_SOCKET", socket_path));
		expect_nobody(listener);
	}
	unlink(socket_path);
}

/* Without a daemon, or with a stuck one, the program runs undisturbed. */
static void test_no_daemon(void)
{
	_cleanup_close_ int listener = -1, waiting = -1;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char long_path[200];

	expect_success("quiet", start("quiet", "GPUCR_SOCKET", socket_path));
	expect_success("quiet", start("quiet", "GPUCR_SOCKET", ""));
	memset(long_path, 'x', sizeof(long_path) - 1);
	long_path[sizeof(long_path) - 1] = '\0';
	expect_success("quiet", start("quiet", "GPUCR_SOCKET", long_path));

	listener = listen_at(socket_path, 0);
	waiting = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", socket_path);
	CHECK(connect(waiting, (struct sockaddr *)&address, sizeof(address)) == 0);
	expect_success("quiet", start("quiet", "GPUCR_SOCKET", socket_path));
	close(TAKE_FD(listener));
	/* No process listens any more, but the socket's name still exists. */
	expect_success("quiet", start("quiet", "GPUCR_SOCKET", socket_path));
	unlink(socket_path);
}

/* Make another user's process the last caller of listen(2): clients see that user as their peer. */
static void listen_as_other(int listener)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		_exit(setresuid(OTHER_UID, OTHER_UID, OTHER_UID) < 0 || listen(listener, 8) < 0);
	expect_success("listen", pid);
}

/*
 * Root's program with another user's XDG_RUNTIME_DIR: the library connects, but sends no message.
 */
static void expect_distrust(int listener)
{
	static struct gcr_message message;
	int fd;

	listen_as_other(listener);
	expect_success("quiet", start("quiet", "XDG_RUNTIME_DIR", directory));
	while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		CHECK(gcr_message_receive(fd, PATIENCE_USEC, -1, &message) == -EPIPE);
		close(fd);
	}
	CHECK(errno == EAGAIN);
}

/* A user's own daemon is used when there is no system-wide one. */
static void test_user_daemon(void)
{
	_cleanup_close_ int listener = -1;
	char user_directory[64], user_path[80];
	pid_t pid;

	if (access("/run/gpucrfs/socket", F_OK) == 0)
		return;
	snprintf(user_directory, sizeof(user_directory), "%s/gpucrfs", directory);
	snprintf(user_path, sizeof(user_path), "%s/socket", user_directory);
	CHECK(mkdir(user_directory, 0700) == 0);
	listener = listen_at(user_path, 8);
	pid = start("dlsym", "XDG_RUNTIME_DIR", directory);
	expect_registered(listener, pid);
	expect_success("dlsym", pid);
	if (geteuid() == 0)
		expect_distrust(listener);
	unlink(user_path);
	rmdir(user_directory);
}

/* ---- parking ---- */

/*
 * Accept the library's connection in @phase with @generation; *ret_page gets the page's descriptor.
 */
static int accept_in(int listener, enum gcr_preload_phase phase, const char *generation,
		     int *ret_page)
{
	static struct gcr_message message;
	struct pollfd coming = {.fd = listener, .events = POLLIN};
	struct gcr_register registered;
	int fd;

	CHECK(poll(&coming, 1, (int)(PATIENCE_USEC / 1000)) == 1);
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(fd >= 0);
	CHECK(gcr_message_receive(fd, PATIENCE_USEC, -1, &message) == 0);
	CHECK(message.header.type == GCR_MESSAGE_REGISTER && message.fds_count == 1);
	*ret_page = message.fds[0];
	gcr_message_payload(&message, &registered, sizeof(registered));
	CHECK(registered.phase == (uint32_t)phase && !strcmp(registered.generation, generation));
	return fd;
}

/* Send a request and return the errno of its result. */
static int ask(int fd, uint16_t type, const void *payload, size_t bytes)
{
	static struct gcr_message message;
	struct gcr_result result;

	CHECK(gcr_message_send(fd, type, 7, payload, bytes, NULL, 0) == 0);
	CHECK(gcr_message_receive(fd, PATIENCE_USEC, -1, &message) == 0);
	CHECK(message.header.type == GCR_MESSAGE_RESULT && message.header.sequence == 7);
	gcr_message_close_fds(&message);
	gcr_message_payload(&message, &result, sizeof(result));
	return result.error;
}

static uint32_t is_parked(int page)
{
	uint32_t parked;

	CHECK(pread(page, &parked, sizeof(parked), offsetof(struct gcr_page, is_parked)) ==
	      sizeof(parked));
	return parked;
}

static void park(int fd, uint32_t limit_ms)
{
	static struct gcr_message message;
	struct gcr_park request = {.limit_ms = limit_ms};

	CHECK(ask(fd, GCR_MESSAGE_PARK, &request, sizeof(request)) == 0);
	CHECK(gcr_message_receive(fd, PATIENCE_USEC, -1, &message) == -EPIPE);
	close(fd);
}

/*
 * While its memory is out, a parked library closes its socket until the daemon wants the connection
 * back.
 */
static void test_park(void)
{
	static const char generation[] = "01234567-89ab-cdef-0123-456789abcdef";
	struct gcr_gate_request gate = {.timeout_ms = 10000};
	struct gcr_park park_request = {.limit_ms = 10000};
	struct gcr_hand_over hand_over = {0};
	_cleanup_close_ int listener = listen_at(socket_path, 8);
	pid_t pid = start("wait", "GPUCR_SOCKET", socket_path);
	struct pollfd coming = {.fd = listener, .events = POLLIN};
	const uint32_t no = 0;
	int64_t begun_usec;
	int page, status;
	int fd = accept_in(listener, GCR_PRELOAD_RUNNING, "", &page);

	memcpy(hand_over.generation, generation, sizeof(generation));

	/*
	 * The library may be parked with its memory in: the driver alone may have frozen the
	 * program.
	 */
	park(fd, 3600000);
	CHECK(is_parked(page) == 1);
	CHECK(pwrite(page, &no, sizeof(no), offsetof(struct gcr_page, is_parked)) == sizeof(no));
	close(page);
	fd = accept_in(listener, GCR_PRELOAD_RUNNING, "", &page);

	CHECK(ask(fd, GCR_MESSAGE_GATE_CLOSE, &gate, sizeof(gate)) == 0);
	CHECK(ask(fd, GCR_MESSAGE_PARK, &park_request, sizeof(park_request)) == EBUSY);
	CHECK(ask(fd, GCR_MESSAGE_HAND_OVER, &hand_over, sizeof(hand_over)) == 0);
	CHECK(ask(fd, GCR_MESSAGE_COMMIT, NULL, 0) == 0);
	CHECK(ask(fd, GCR_MESSAGE_PARK, NULL, 0) == EINVAL && !is_parked(page));

	/* Parked until the daemon clears is_parked. */
	park(fd, 3600000);
	CHECK(is_parked(page) == 1);
	CHECK(poll(&coming, 1, 1000) == 0);
	CHECK(pwrite(page, &no, sizeof(no), offsetof(struct gcr_page, is_parked)) == sizeof(no));
	close(page);
	fd = accept_in(listener, GCR_PRELOAD_OUT, generation, &page);
	CHECK(!is_parked(page));

	/* Parked until the time limit is over. */
	begun_usec = gcr_clock_usec();
	park(fd, 700);
	close(page);
	fd = accept_in(listener, GCR_PRELOAD_OUT, generation, &page);
	CHECK(gcr_clock_usec() - begun_usec >= 700 * GCR_USEC_PER_MSEC && !is_parked(page));

	CHECK(ask(fd, GCR_MESSAGE_FINISH, NULL, 0) == 0);
	CHECK(ask(fd, GCR_MESSAGE_GATE_OPEN, NULL, 0) == 0);
	CHECK(kill(pid, SIGTERM) == 0 && waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	close(fd);
	close(page);
	unlink(socket_path);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *where)
{
	return remove(path);
}

static void remove_directory(const char *path)
{
	CHECK(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0);
}

int main(int argc, char **argv)
{
	char state[] = "/tmp/gpucr-test-sim-XXXXXX";

	if (argc == 2)
		return run_program(argv[1]);
#if !defined(__GLIBC__) || !(defined(__x86_64__) || defined(__aarch64__))
	SKIP("the preload library has no dlsym on this architecture");
#endif
	CHECK(getenv("GPUCR_TEST_PRELOAD") && getenv("GPUCR_TEST_NEXT"));
	CHECK(getenv("GPUCR_TEST_SIMULATOR"));
	CHECK(mkdtemp(directory) && mkdtemp(state));
	CHECK(setenv("GPUCR_SIM_DIR", state, 1) == 0);
	snprintf(socket_path, sizeof(socket_path), "%s/socket", directory);

	test_ways();
	test_child();
	test_silent();
	test_no_daemon();
	test_user_daemon();
	test_park();

	remove_directory(state);
	rmdir(directory);
	return 0;
}
