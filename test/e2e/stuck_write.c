/* SPDX-License-Identifier: MIT */
/*
 * A write into an open file that never gets its bytes, and keeps the file's lock. Usage:
 * stuck_write MOUNTPOINT FD UID. The source of the write is a page of a FUSE filesystem, mounted
 * here, that does not answer. The write runs with the user id UID and stands for one from the
 * user's own filesystem; the mount is made here because /dev/fuse may be accessible to root only.
 *
 * The program prints "stuck" when the write waits. SIGTERM ends the program.
 */
#define FUSE_USE_VERSION 314
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILE_NAME  "source"
#define FILE_NODE  2
#define FILE_BYTES 4096
#define FILE_MODE  0666

#include "test/fs/one_file.h"

static void fail(const char *what)
{
	fprintf(stderr, "stuck_write: %s: %s\n", what, strerror(errno));
	_exit(1);
}

/*
 * The kernel keeps the page: otherwise open(2) of the file would wait for the read that is never
 * answered.
 */
static void do_open(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	info->keep_cache = 1;
	fuse_reply_open(request, info);
}

/* Never answer a read. When the filesystem ends, the kernel completes the read. */
static void do_read(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
		    struct fuse_file_info *info)
{
	puts("stuck");
	fflush(stdout);
}

static const struct fuse_lowlevel_ops operations = {
	.lookup = do_lookup,
	.getattr = do_getattr,
	.open = do_open,
	.read = do_read,
};

static void write_page(const char *mountpoint, int target_fd, uid_t uid)
{
	char path[4096];
	void *page;
	int fd;

	if (setgroups(0, NULL) || setgid(uid) || setuid(uid))
		fail("user");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(path, sizeof(path), "%s/" FILE_NAME, mountpoint);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	page = fd < 0 ? MAP_FAILED : mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		fail(path);
	if (pwrite(target_fd, page, FILE_BYTES, 0) < 0 && errno != EFAULT)
		fail("write");
	_exit(0);
}

int main(int argc, char **argv)
{
	char with_others[] = "-oallow_other";
	char *fuse_arguments[] = {argv[0], with_others, NULL};
	struct fuse_args arguments = FUSE_ARGS_INIT(2, fuse_arguments);
	struct fuse_session *session;
	int target_fd;
	pid_t pid;

	if (argc != 4)
		return 2;
	target_fd = atoi(argv[2]);
	session = fuse_session_new(&arguments, &operations, sizeof(operations), NULL);
	if (!session || fuse_set_signal_handlers(session) || fuse_session_mount(session, argv[1]))
		return 1;
	pid = fork();
	if (!pid) {
		/* Otherwise the filesystem would not end with the serving process. */
		close(fuse_session_fd(session));
		write_page(argv[1], target_fd, (uid_t)atoi(argv[3]));
	}
	close(target_fd);
	if (pid > 0)
		fuse_session_loop(session);
	fuse_session_unmount(session);
	fuse_session_destroy(session);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	return 0;
}
