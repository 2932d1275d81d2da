/* SPDX-License-Identifier: MIT */
/*
 * A user's GPU program that maps a file of a FUSE filesystem of his own, named like the page of the
 * preload library, and that executes another program at the moment at which the file is read:
 * false_page MOUNTPOINT UID PROGRAM, where PROGRAM is a set-user-ID copy of this program.
 *
 * The first program prints "ready PID"; after a line on its standard input it maps the file and
 * prints "mapped". When the file is read, the process executes PROGRAM, and the read is answered
 * only when PROGRAM runs. PROGRAM has memory where the file was mapped, as a program without a
 * random layout has. PROGRAM prints "runs EUID", and at the end of its standard input "intact", or
 * "changed OFFSET". If the file has not been read by then, the first program prints "unread".
 */
#define FUSE_USE_VERSION 314
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <grp.h>
#include <poll.h>
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

#include "backend/cuda/cuda_api.h"
#include "lib/protocol.h"
#include "test/e2e/vendor.h"

#define FILE_NAME  "memfd:" GCR_PAGE_NAME " (deleted)"
#define FILE_NODE  2
#define FILE_BYTES (1 << 20)
#define FILE_MODE  0777
#define ADDRESS	   ((void *)0x10000000)
#define FILLER	   0x41

#include "test/fs/one_file.h"

static int read_fds[2]; /* written when the file is read */
static int runs_fds[2]; /* written when the other program runs */

static void fail(const char *name)
{
	fprintf(stderr, "false_page: %s: %s\n", name, strerror(errno));
	_exit(1);
}

static void say(const char *word, long number)
{
	printf("%s %ld\n", word, number);
	fflush(stdout);
}

static void send_byte(int fd)
{
	if (write(fd, "", 1) != 1)
		fail("pipe");
}

/* ---- the filesystem ---- */

static void do_open(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	fuse_reply_open(request, info);
}

static void do_read(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
		    struct fuse_file_info *info)
{
	static const struct gcr_page page = {
		.magic = GCR_PAGE_MAGIC, .version = GCR_PAGE_VERSION, .phase = 1, .is_parked = 1};
	static char bytes[FILE_BYTES];
	static bool is_read;
	char byte;

	if (!is_read) {
		is_read = true;
		send_byte(read_fds[1]);
		if (read(runs_fds[0], &byte, 1) != 1)
			fail("the other program");
	}
	memcpy(bytes, &page, sizeof(page));
	if (size > FILE_BYTES - (size_t)offset)
		size = FILE_BYTES - (size_t)offset;
	fuse_reply_buf(request, bytes + offset, size);
}

static const struct fuse_lowlevel_ops operations = {
	.lookup = do_lookup,
	.getattr = do_getattr,
	.open = do_open,
	.read = do_read,
};

/* ---- the two programs ---- */

static void use_gpu(void)
{
	CUcontext context;
	CUdeviceptr memory;
	CUdevice device;

	vendor_open();
	OK(CU(cuInit)(0));
	OK(CU(cuDeviceGet)(&device, 0));
	OK(CU(cuCtxCreate_v2)(&context, 0, device));
	OK(CU(cuMemAlloc_v2)(&memory, 8 << 20));
}

static void become(uid_t uid)
{
	if (setgroups(0, NULL) || setgid(uid) || setuid(uid))
		fail("user");
	prctl(PR_SET_DUMPABLE, 1);
}

static void run_first(int fd, char *program)
{
	struct pollfd fds[] = {{.fd = read_fds[0], .events = POLLIN},
			       {.fd = STDIN_FILENO, .events = POLLIN}};
	char line[16], number[16], name[] = "other";
	char *const arguments[] = {name, number, NULL};

	use_gpu();
	say("ready", getpid());
	if (read(STDIN_FILENO, line, sizeof(line)) <= 0)
		fail("standard input");
	/*
	 * Without close-on-exec: closing the file in exec would send a request to the filesystem,
	 * which waits for this process.
	 */
	if (mmap(ADDRESS, FILE_BYTES, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) !=
	    ADDRESS)
		fail("mmap");
	say("mapped", fd);
	if (poll(fds, 2, -1) < 0)
		fail("poll");
	if (!fds[0].revents) {
		say("unread", 0);
		return;
	}
	snprintf(number, sizeof(number), "%d", runs_fds[1]);
	execv(program, arguments);
	fail(program);
}

static int run_other(int ready_fd)
{
	unsigned char *memory = mmap(ADDRESS, FILE_BYTES, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	char byte;

	if (memory != ADDRESS)
		fail("mmap");
	memset(memory, FILLER, FILE_BYTES);
	say("runs", geteuid());
	send_byte(ready_fd);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	for (long i = 0; i < FILE_BYTES; i++)
		if (memory[i] != FILLER) {
			say("changed", i);
			return 0;
		}
	say("intact", 0);
	return 0;
}

int main(int argc, char **argv)
{
	char with_others[] = "-oallow_other";
	char *fuse_arguments[] = {argv[0], with_others, NULL};
	struct fuse_args arguments = FUSE_ARGS_INIT(2, fuse_arguments);
	struct fuse_session *session;
	char path[4096];
	pid_t server;
	int fd;

	if (argc == 2)
		return run_other(atoi(argv[1]));
	if (argc != 4)
		return 2;
	session = fuse_session_new(&arguments, &operations, sizeof(operations), NULL);
	if (!session || fuse_session_mount(session, argv[1]) || pipe(read_fds) < 0 ||
	    pipe(runs_fds) < 0)
		fail(argv[1]);
	server = fork();
	if (!server) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		become((uid_t)atoi(argv[2]));
		fuse_session_loop(session);
		_exit(0);
	}
	close(fuse_session_fd(session));
	snprintf(path, sizeof(path), "%s/" FILE_NAME, argv[1]);
	fd = open(path, O_RDWR);
	if (server < 0 || fd < 0)
		fail(path);
	/* After a lazy unmount the names of the files do not contain the mountpoint. */
	umount2(argv[1], MNT_DETACH);
	become((uid_t)atoi(argv[2]));
	run_first(fd, argv[3]);
	kill(server, SIGKILL);
	/* A frozen program would hang in the driver's exit handler. */
	_exit(0);
}
