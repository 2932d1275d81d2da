/* SPDX-License-Identifier: MIT */
/*
 * Stopping a program by the helper. The program may call execve(2) all the time: neither the
 * program nor the helper may block on the other. The tests also show the state of the stop after
 * the daemon or the helper was killed.
 */
#include "fs/helper/halt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/backend.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/procfs.h"
#include "lib/protocol.h"
#include "test/unit/child.h"
#include "test/unit/test.h"

#define THREADS	   30
#define TEST_USEC  (3 * GCR_USEC_PER_SEC)
#define HANGS_SEC  60
#define EXEC_USEC  3000
#define PAUSE_USEC 300

#define PATIENCE_USEC (30 * GCR_USEC_PER_SEC)	/* bound for events that must happen */
#define LONG_USEC     (500 * GCR_USEC_PER_MSEC) /* long enough to see an event that must not happen */
#define LIMIT_USEC    (60 * GCR_USEC_PER_SEC)

static const struct gcr_backend backend = {.name = "test"};
static struct gcr_page *page;
static int page_fd;
static char **arguments;

static void make_page(void)
{
	page_fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(page_fd >= 0 && ftruncate(page_fd, sizeof(*page)) == 0);
	CHECK(fcntl(page_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
	CHECK(page != MAP_FAILED);
	page->magic = GCR_PAGE_MAGIC;
	page->version = GCR_PAGE_VERSION;
}

static void set_moving(bool is_moving)
{
	__atomic_store_n(&page->is_moving, is_moving, __ATOMIC_SEQ_CST);
}

static struct gcr_proc_program program_of(pid_t pid)
{
	struct gcr_proc_program program = {0};

	gcr_proc_program(pid, &program);
	return program;
}

static struct gcr_helpers *make_pool(void)
{
	struct gcr_helpers_config config = {
		.backend = &backend,
		.helper_directory = getenv("GPUCR_TEST_HELPERS"),
		.keep_stderr = true,
		.idle_usec = LIMIT_USEC,
	};
	struct gcr_helpers *helpers;

	CHECK(gcr_helpers_create(&config, &helpers) == 0);
	return helpers;
}

static int begin(struct gcr_helpers *helpers, pid_t pid, int64_t limit_usec,
		 struct gcr_halt **ret_halt, struct gcr_error *error)
{
	_cleanup_close_ int pidfd = open_pidfd(pid);
	const struct gcr_proc_program program = program_of(pid);
	struct gcr_halt *halt = NULL;
	int r = gcr_halt_begin(helpers, pid, pidfd, page_fd, &program, limit_usec, &halt, error);

	if (r == 0)
		r = gcr_halt_wait(halt, LIMIT_USEC, -1, error);
	if (r == 0)
		*ret_halt = halt;
	else
		gcr_halt_give_up(halt);
	return r;
}

/* ---- execve(2) ---- */

static void *wait_for_ever(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

static void *begin_again(void *nothing)
{
	usleep((useconds_t)(gcr_clock_usec() % EXEC_USEC));
	execv("/proc/self/exe", arguments);
	return nothing;
}

static void run_target(void)
{
	pthread_t thread;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, begin_again, NULL) == 0);
	wait_for_ever(NULL);
}

static void stop_again_and_again(pid_t pid)
{
	int64_t until_usec = gcr_clock_usec() + TEST_USEC;
	struct gcr_helpers *helpers;
	unsigned int stopped = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(HANGS_SEC);
	helpers = make_pool();
	/* On a slow machine the first ten stops take longer than that. */
	while (gcr_clock_usec() < until_usec || stopped <= 10) {
		struct gcr_halt *halt = NULL;
		struct gcr_error error = {0};
		int r = begin(helpers, pid, LIMIT_USEC, &halt, &error);

		/*
		 * During an execve(2) no process may trace the program; afterwards it is another
		 * one.
		 */
		if (r < 0)
			fprintf(stderr, "%s: %s\n", strerror(-r), error.words);
		CHECK(r == 0 || r == -EOPNOTSUPP || r == -EPERM || r == -ESRCH);
		stopped += r == 0;
		gcr_halt_end(halt);
		usleep(PAUSE_USEC);
	}
	gcr_helpers_destroy(helpers);
	exit(0);
}

/* Stop a program that calls execve(2) all the time. */
static void test_execve(char *name)
{
	pid_t target, stopper;
	int status;

	target = fork();
	CHECK(target >= 0);
	if (target == 0) {
		execl("/proc/self/exe", name, "target", NULL);
		_exit(1);
	}
	/* The stopping process is not the target's parent, like the daemon. */
	stopper = fork();
	CHECK(stopper >= 0);
	if (stopper == 0)
		stop_again_and_again(target);
	CHECK(waitpid(stopper, &status, 0) == stopper);
	CHECK(kill(target, SIGKILL) == 0 && waitpid(target, NULL, 0) == target);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- deaths ---- */

#define WAIT_FOR(condition)                                                  \
	do {                                                                 \
		int64_t until_usec_ = gcr_clock_usec() + PATIENCE_USEC;      \
		while (!(condition)) {                                       \
			CHECK(gcr_clock_usec() < until_usec_ && #condition); \
			usleep(1000);                                        \
		}                                                            \
	} while (0)

/* A process that uses the helper as the daemon does, and may be killed. */
struct daemon {
	pid_t pid;
	int socket;
};

static pid_t start_target(void)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		wait_for_ever(NULL);
	}
	return pid;
}

static void run_daemon(int socket, pid_t target, int64_t limit_usec)
{
	struct gcr_error error = {0};
	struct gcr_helpers *helpers;
	struct gcr_halt *halt;
	char byte = 0;
	int r;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	helpers = make_pool();
	r = begin(helpers, target, limit_usec, &halt, &error);
	if (r < 0)
		fprintf(stderr, "%s: %s\n", strerror(-r), error.words);
	CHECK(r == 0);
	CHECK(write(socket, &byte, 1) == 1 && read(socket, &byte, 1) == 1);
	gcr_halt_end(halt);
	CHECK(write(socket, &byte, 1) == 1);
	gcr_helpers_destroy(helpers);
	exit(0);
}

static struct daemon start_daemon(pid_t target, int64_t limit_usec)
{
	struct daemon daemon;
	int sockets[2];

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
	daemon.pid = fork();
	CHECK(daemon.pid >= 0);
	if (daemon.pid == 0) {
		close(sockets[0]);
		run_daemon(sockets[1], target, limit_usec);
	}
	close(sockets[1]);
	daemon.socket = sockets[0];
	return daemon;
}

static void wait_begun(struct daemon daemon)
{
	char byte;

	CHECK(read(daemon.socket, &byte, 1) == 1);
}

/* End the stop and the daemon in an orderly way. */
static void let_go(struct daemon daemon)
{
	char byte = 0;
	int status;

	CHECK(write(daemon.socket, &byte, 1) == 1 && read(daemon.socket, &byte, 1) == 1);
	CHECK(waitpid(daemon.pid, &status, 0) == daemon.pid && status == 0);
	close(daemon.socket);
}

static void kill_one(pid_t pid)
{
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

static void kill_daemon(struct daemon daemon)
{
	kill_one(daemon.pid);
	close(daemon.socket);
}

static bool is_stopped(pid_t pid)
{
	struct gcr_proc_stat stat;

	CHECK(gcr_proc_stat(pid, &stat) == 0);
	return stat.state == 't';
}

static bool is_alive(pid_t pid)
{
	struct gcr_proc_stat stat;

	return gcr_proc_stat(pid, &stat) == 0 && stat.state != 'Z' && stat.state != 'X';
}

/* The helper's pid: the tracer is one of the helper's threads. */
static pid_t helper_of(pid_t target)
{
	struct gcr_proc_status status;
	char path[64], line[128];
	int tracer = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)target);
	file = fopen(path, "re");
	CHECK(file);
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "TracerPid: %d", &tracer) == 1)
			break;
	fclose(file);
	CHECK(tracer && gcr_proc_status(tracer, &status) == 0);
	return status.thread_group;
}

/* After the end of a stop the program runs and the helper has exited. */
static void test_end(void)
{
	pid_t target = start_target(), helper;
	struct daemon daemon = start_daemon(target, LIMIT_USEC);

	wait_begun(daemon);
	CHECK(is_stopped(target));
	helper = helper_of(target);
	/* The page's is_moving has no meaning while the daemon is alive. */
	set_moving(true);
	let_go(daemon);
	CHECK(!is_stopped(target) && !is_alive(helper));
	set_moving(false);
	kill_one(target);
}

/* The daemon dies while no memory is being moved: the program continues. */
static void test_daemon_dies(void)
{
	pid_t target = start_target(), helper;
	struct daemon daemon = start_daemon(target, LIMIT_USEC);

	wait_begun(daemon);
	helper = helper_of(target);
	kill_daemon(daemon);
	WAIT_FOR(!is_stopped(target));
	WAIT_FOR(!is_alive(helper));
	kill_one(target);
}

/*
 * The daemon dies while memory is being moved: the helper keeps the program stopped until the move
 * is over, despite SIGTERM and similar signals.
 */
static void test_daemon_dies_in_a_move(void)
{
	static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
	pid_t target = start_target(), helper;
	struct daemon daemon = start_daemon(target, LIMIT_USEC), heir;

	wait_begun(daemon);
	helper = helper_of(target);
	CHECK(getpgid(helper) == helper && getsid(helper) == helper);
	set_moving(true);
	kill_daemon(daemon);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(signals); i++)
		CHECK(kill(helper, signals[i]) == 0);
	usleep(LONG_USEC);
	CHECK(is_stopped(target) && is_alive(helper));
	/* The next daemon's stop waits. */
	heir = start_daemon(target, LIMIT_USEC);
	usleep(LONG_USEC);
	CHECK(is_stopped(target) && is_alive(helper));
	CHECK(poll(&(struct pollfd){.fd = heir.socket, .events = POLLIN}, 1, 0) == 0);
	set_moving(false);
	wait_begun(heir);
	WAIT_FOR(!is_alive(helper));
	CHECK(is_stopped(target) && helper_of(target) != helper);
	let_go(heir);
	CHECK(!is_stopped(target));
	kill_one(target);
}

/* The library never finishes moving. */
static void test_limit(void)
{
	pid_t target = start_target(), helper;
	struct daemon daemon = start_daemon(target, LONG_USEC);

	wait_begun(daemon);
	helper = helper_of(target);
	set_moving(true);
	/* The limit applies only after the daemon's death. */
	usleep(2 * LONG_USEC);
	CHECK(is_stopped(target));
	kill_daemon(daemon);
	WAIT_FOR(!is_stopped(target));
	WAIT_FOR(!is_alive(helper));
	set_moving(false);
	kill_one(target);
}

/* The daemon and the program die: the helper exits. */
static void test_all_die(void)
{
	pid_t target = start_target(), helper;
	struct daemon daemon = start_daemon(target, LIMIT_USEC);

	wait_begun(daemon);
	helper = helper_of(target);
	set_moving(true);
	kill_daemon(daemon);
	kill_one(target);
	WAIT_FOR(!is_alive(helper));
	set_moving(false);
}

/* The helper is killed: the program runs again. */
static void test_helper_dies(void)
{
	pid_t target = start_target();
	struct daemon daemon = start_daemon(target, LIMIT_USEC);

	wait_begun(daemon);
	set_moving(true);
	CHECK(kill(helper_of(target), SIGKILL) == 0);
	WAIT_FOR(!is_stopped(target));
	let_go(daemon);
	set_moving(false);
	kill_one(target);
}

static void wait_for_child(void)
{
	/*
	 * Until the child ends, the thread stays in the kernel and only a kill removes it. Not
	 * vfork(3), which TSan replaces by fork(2). The child ends with its parent.
	 */
	if (syscall(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
}

static bool is_in_vfork(pid_t pid)
{
	struct gcr_proc_stat stat;

	return gcr_proc_stat(pid, &stat) == 0 && stat.state == 'D';
}

/* A wait for a program whose thread cannot be stopped times out; the caller can then give up. */
static void test_given_up(void)
{
	struct gcr_helpers *helpers = make_pool();
	struct gcr_proc_program program;
	struct gcr_error error = {0};
	struct gcr_halt *halt;
	pid_t target = fork();
	int pidfd;

	CHECK(target >= 0);
	if (target == 0) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		wait_for_child();
	}
	WAIT_FOR(is_in_vfork(target));
	pidfd = open_pidfd(target);
	program = program_of(target);
	CHECK(gcr_halt_begin(helpers, target, pidfd, page_fd, &program, LIMIT_USEC, &halt,
			     &error) == 0);
	close(pidfd);
	CHECK(gcr_halt_wait(halt, LONG_USEC, -1, &error) == -ETIMEDOUT);
	gcr_halt_give_up(halt);
	gcr_halt_give_up(NULL);
	CHECK(kill(-target, SIGKILL) == 0 && waitpid(target, NULL, 0) == target);
	gcr_helpers_destroy(helpers);
}

/*
 * The process of the pidfd has ended, and the pid belongs to another process: the helper stops no
 * thread of that process.
 */
static void test_pid_of_another(void)
{
	struct gcr_helpers *helpers = make_pool();
	struct gcr_error error = {0};
	struct gcr_halt *halt;
	pid_t ended = start_target(), other = start_target();
	struct gcr_proc_program program;
	int pidfd = open_pidfd(ended);

	CHECK(kill(ended, SIGKILL) == 0 && waitpid(ended, NULL, 0) == ended);
	program = program_of(other);
	CHECK(gcr_halt_begin(helpers, other, pidfd, page_fd, &program, LIMIT_USEC, &halt, &error) ==
	      0);
	CHECK(gcr_halt_wait(halt, LIMIT_USEC, -1, &error) == -ESRCH);
	gcr_halt_give_up(halt);
	CHECK(!is_stopped(other) && strstr(error.words, "has ended"));
	close(pidfd);
	CHECK(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
	gcr_helpers_destroy(helpers);
}

/* The process has got another program since: it is not stopped. */
static void test_other_program(void)
{
	struct gcr_helpers *helpers = make_pool();
	struct gcr_error error = {0};
	struct gcr_halt *halt;
	pid_t target = start_target();
	struct gcr_proc_program program = program_of(target);
	int pidfd = open_pidfd(target);

	program.start_stack -= 16;
	CHECK(gcr_halt_begin(helpers, target, pidfd, page_fd, &program, LIMIT_USEC, &halt,
			     &error) == 0);
	CHECK(gcr_halt_wait(halt, LIMIT_USEC, -1, &error) == -ESRCH);
	gcr_halt_give_up(halt);
	CHECK(!is_stopped(target) && strstr(error.words, "replaced its program"));
	close(pidfd);
	CHECK(kill(target, SIGKILL) == 0 && waitpid(target, NULL, 0) == target);
	gcr_helpers_destroy(helpers);
}

static void test_no_helper(void)
{
	struct gcr_error error = {0};
	struct gcr_proc_program program;
	struct gcr_helpers *helpers;
	struct gcr_halt *halt;

	setenv("GPUCR_TEST_HELPERS", "/nonexistent", 1);
	helpers = make_pool();
	program = program_of(getpid());
	CHECK(gcr_halt_begin(helpers, getpid(), -1, page_fd, &program, LIMIT_USEC, &halt, &error) ==
	      -EIO);
	CHECK(strstr(error.words, "/nonexistent/gpucr-halt"));
	gcr_helpers_destroy(helpers);
}

int main(int argc, char **argv)
{
	arguments = argv;
	if (argc > 1)
		run_target();
	make_page();
	test_execve(argv[0]);
	test_end();
	test_daemon_dies();
	test_daemon_dies_in_a_move();
	test_limit();
	test_all_die();
	test_helper_dies();
	test_pid_of_another();
	test_other_program();
	test_given_up();
	test_no_helper();
	return 0;
}
