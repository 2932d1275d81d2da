/* SPDX-License-Identifier: MIT */
/*
 * A process that cannot be inspected, because a FUSE filesystem of its own user does not answer:
 * held HOW MOUNTPOINT DEVICE [UID]. The process has the file DEVICE open and mapped, as a GPU
 * program has its GPU's.
 *
 * HOW is "exec": the process is held in execve(2), which closes a file of that filesystem while it
 * has the lock for which readers of maps and environ, process_vm_readv(2) and kcmp(2) wait.
 *
 * HOW is "page": the process maps a file named like the preload library's page, and the filesystem
 * does not answer the read of the file.
 *
 * HOW is "lock": the process is held in mmap(2), which waits, with the lock of its address space,
 * until dirty pages of the file are written.
 *
 * The process becomes UID, whose filesystem this then stands for: /dev/fuse may be root's alone.
 * The process prints its pid, and the filesystem prints "held" when the process is held. SIGUSR1
 * releases the process; SIGTERM ends all.
 */
#define FUSE_USE_VERSION 314
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NAME  "memfd:gpucr-page (deleted)" /* as in lib/protocol.h */
#define FILE_NODE  2
#define FILE_BYTES (1 << 20)
#define FILE_MODE  0666
#define HELD_MAX   64

#include "test/fs/one_file.h"

static struct {
	pthread_mutex_t lock;
	const char *how;
	bool holds;
	bool is_told;
	pid_t pid;
	struct {
		fuse_req_t request;
		size_t bytes;
	} held[HELD_MAX];
	size_t count;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .holds = true};

static struct fuse_session *session;
static const char *mountpoint;

static void fail(const char *what)
{
	fprintf(stderr, "held: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static void tell(void)
{
	if (state.is_told)
		return;
	state.is_told = true;
	puts("held");
	fflush(stdout);
}

static void answer(fuse_req_t request, size_t bytes)
{
	static const char zeros[FILE_BYTES];

	if (!strcmp(state.how, "exec"))
		fuse_reply_err(request, 0);
	else if (!strcmp(state.how, "lock"))
		fuse_reply_write(request, bytes);
	else
		fuse_reply_buf(request, zeros, bytes);
}

/*
 * Handles a request of the kind @how: answers now, or in let_go() if requests of this kind are
 * held.
 */
static void hold(const char *how, fuse_req_t request, size_t bytes)
{
	pthread_mutex_lock(&state.lock);
	if (state.holds && !strcmp(state.how, how) && state.count < HELD_MAX) {
		state.held[state.count].request = request;
		state.held[state.count++].bytes = bytes;
		tell();
		request = NULL;
	}
	pthread_mutex_unlock(&state.lock);
	if (request)
		answer(request, bytes);
}

static void let_go(void)
{
	pthread_mutex_lock(&state.lock);
	state.holds = false;
	while (state.count) {
		state.count--;
		answer(state.held[state.count].request, state.held[state.count].bytes);
	}
	pthread_mutex_unlock(&state.lock);
}

static void do_open(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	info->direct_io = info->flags & O_APPEND ? 1 : 0;
	fuse_reply_open(request, info);
}

static void do_read(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
		    struct fuse_file_info *info)
{
	static const char zeros[FILE_BYTES];

	if (strcmp(state.how, "page") != 0)
		fuse_reply_buf(request, zeros, size);
	else
		hold("page", request, size);
}

static void do_write(fuse_req_t request, fuse_ino_t node, const char *bytes, size_t size,
		     off_t offset, struct fuse_file_info *info)
{
	if (strcmp(state.how, "lock") != 0)
		fuse_reply_write(request, size);
	else
		hold("lock", request, size);
}

static void do_flush(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	if (strcmp(state.how, "exec") != 0)
		fuse_reply_err(request, 0);
	else
		hold("exec", request, 0);
}

static const struct fuse_lowlevel_ops operations = {
	.lookup = do_lookup,
	.getattr = do_getattr,
	.open = do_open,
	.read = do_read,
	.write = do_write,
	.flush = do_flush,
};

static void *take_signals(void *data)
{
	sigset_t *signals = data;
	int number;

	while (!sigwait(signals, &number)) {
		let_go();
		if (number != SIGUSR1) {
			kill(state.pid, SIGKILL);
			fuse_session_exit(session);
			fuse_session_unmount(session);
			_exit(0);
		}
	}
	return NULL;
}

/* ---- the process that is held ---- */

static void be_held_in_exec(int fd)
{
	char program[] = "/bin/sleep", seconds[] = "1000";
	char *const arguments[] = {program, seconds, NULL};

	if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		fail("file");
	execv(program, arguments);
	fail("/bin/sleep");
}

/* After a lazy unmount the name of the file does not contain the mountpoint. */
static void map_page(int fd, int ready_fd)
{
	if (mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
		fail("page");
	if (write(ready_fd, "", 1) != 1)
		fail("pipe");
	for (;;)
		pause();
}

/*
 * The second descriptor uses direct I/O: mapping the file through it drops cached pages of the
 * file, which have to be written first.
 */
static void be_held_with_lock(int fd, const char *path)
{
	char *start = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int direct_fd = open(path, O_RDWR | O_CLOEXEC | O_APPEND);

	if (start == MAP_FAILED || direct_fd < 0)
		fail("mmap");
	memset(start, 1, 4096);
	mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, direct_fd, 0);
	for (;;)
		pause();
}

static void await_signal(void)
{
	sigset_t signals;
	int number;

	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR2);
	sigwait(&signals, &number);
}

static void be_process(const char *how, const char *device, uid_t uid, int ready_fd)
{
	char path[4096];
	int device_fd, fd;

	if (uid && (setgroups(0, NULL) || setgid(uid) || setuid(uid)))
		fail("user");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_DUMPABLE, 1);
	device_fd = open(device, O_RDWR);
	snprintf(path, sizeof(path), "%s/" FILE_NAME, mountpoint);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (device_fd < 0 || fd < 0)
		fail("files");
	if (mmap(NULL, 4096, PROT_READ, MAP_SHARED, device_fd, 0) == MAP_FAILED)
		fail(device);
	printf("%d\n", (int)getpid());
	fflush(stdout);
	await_signal();
	if (!strcmp(how, "exec"))
		be_held_in_exec(fd);
	else if (!strcmp(how, "page"))
		map_page(fd, ready_fd);
	else
		be_held_with_lock(fd, path);
}

static void *wait_for_process(void *data)
{
	char byte;

	if (read(*(int *)data, &byte, 1) == 1) {
		umount2(mountpoint, MNT_DETACH);
		pthread_mutex_lock(&state.lock);
		tell();
		pthread_mutex_unlock(&state.lock);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	char with_others[] = "-oallow_other";
	char *fuse_arguments[] = {argv[0], with_others, NULL};
	struct fuse_args arguments = FUSE_ARGS_INIT(argc == 5 ? 2 : 1, fuse_arguments);
	pthread_t signal_thread, ready_thread;
	sigset_t signals;
	int fds[2];

	if (argc != 4 && argc != 5)
		return 2;
	state.how = argv[1];
	mountpoint = argv[2];
	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR1);
	sigaddset(&signals, SIGTERM);
	session = fuse_session_new(&arguments, &operations, sizeof(operations), NULL);
	if (!session || fuse_session_mount(session, argv[2]) || pipe2(fds, O_CLOEXEC) < 0)
		return 1;
	sigaddset(&signals, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	state.pid = fork();
	if (!state.pid) {
		close(fds[0]);
		/* Else the filesystem would not end with the process that serves it. */
		close(fuse_session_fd(session));
		be_process(argv[1], argv[3], argc == 5 ? (uid_t)atoi(argv[4]) : 0, fds[1]);
	}
	close(fds[1]);
	sigdelset(&signals, SIGUSR2);
	if (state.pid < 0 || pthread_create(&signal_thread, NULL, take_signals, &signals) ||
	    pthread_create(&ready_thread, NULL, wait_for_process, &fds[0]))
		fail("start");
	fuse_session_loop(session);
	fuse_session_unmount(session);
	kill(state.pid, SIGKILL);
	return 0;
}
