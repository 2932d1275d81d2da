/* SPDX-License-Identifier: MIT */
/*
 * A user's FUSE filesystem with one file, "file", that never answers STATFS, FLUSH nor, once the
 * file has been opened, GETATTR. With "dirty" the filesystem answers FLUSH and GETATTR, but never
 * the WRITE of data in the kernel's cache, for which the kernel waits whenever the file is closed:
 * unflushed MOUNTPOINT [dirty]. SIGTERM answers all requests and ends the program.
 */
#define FUSE_USE_VERSION 314
#include <errno.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NODE 2
#define HELD_MAX  4096

static struct {
	pthread_mutex_t lock;
	bool holds;
	bool is_dirty;
	bool is_open;
	fuse_req_t held[HELD_MAX];
	size_t count;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .holds = true};

static struct fuse_session *session;

static void hold(fuse_req_t request)
{
	pthread_mutex_lock(&state.lock);
	if (state.holds && state.count < HELD_MAX) {
		state.held[state.count++] = request;
		request = NULL;
	}
	pthread_mutex_unlock(&state.lock);
	if (request)
		fuse_reply_err(request, EIO);
}

static struct stat stat_of(fuse_ino_t node)
{
	return (struct stat){
		.st_ino = node,
		.st_mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0666,
		.st_nlink = 1,
		.st_size = node == FUSE_ROOT_ID ? 0 : 4096,
	};
}

static void do_init(void *data, struct fuse_conn_info *connection)
{
	if (state.is_dirty)
		connection->want |= connection->capable & FUSE_CAP_WRITEBACK_CACHE;
}

static void do_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = {.ino = FILE_NODE, .attr = stat_of(FILE_NODE)};

	if (strcmp(name, "file") != 0)
		fuse_reply_err(request, ENOENT);
	else
		fuse_reply_entry(request, &entry);
}

static void do_getattr(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	struct stat stat = stat_of(node);

	if (node == FILE_NODE && state.is_open)
		hold(request);
	else
		fuse_reply_attr(request, &stat, 0);
}

static void do_open(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	state.is_open = !state.is_dirty;
	fuse_reply_open(request, info);
}

static void do_read(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
		    struct fuse_file_info *info)
{
	static const char zeros[4096];

	fuse_reply_buf(request, zeros, size < sizeof(zeros) ? size : sizeof(zeros));
}

static void do_write(fuse_req_t request, fuse_ino_t node, const char *bytes, size_t size,
		     off_t offset, struct fuse_file_info *info)
{
	hold(request);
}

static void do_flush(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	if (state.is_dirty)
		fuse_reply_err(request, 0);
	else
		hold(request);
}

static void do_statfs(fuse_req_t request, fuse_ino_t node)
{
	hold(request);
}

static const struct fuse_lowlevel_ops operations = {
	.init = do_init,
	.lookup = do_lookup,
	.getattr = do_getattr,
	.open = do_open,
	.read = do_read,
	.write = do_write,
	.flush = do_flush,
	.statfs = do_statfs,
};

static void *take_signals(void *data)
{
	sigset_t *signals = data;
	int number;

	sigwait(signals, &number);
	pthread_mutex_lock(&state.lock);
	state.holds = false;
	while (state.count)
		fuse_reply_err(state.held[--state.count], EIO);
	pthread_mutex_unlock(&state.lock);
	/* Waiting processes close their files now, or write the next page. */
	sleep(1);
	fuse_session_unmount(session);
	_exit(0);
}

int main(int argc, char **argv)
{
	char with_others[] = "-oallow_other";
	char *fuse_arguments[] = {argv[0], with_others, NULL};
	struct fuse_args arguments = FUSE_ARGS_INIT(2, fuse_arguments);
	pthread_t thread;
	sigset_t signals;

	if (argc != 2 && argc != 3)
		return 2;
	state.is_dirty = argc == 3;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	session = fuse_session_new(&arguments, &operations, sizeof(operations), NULL);
	if (!session || fuse_session_mount(session, argv[1]) ||
	    pthread_create(&thread, NULL, take_signals, &signals))
		return 1;
	puts("mounted");
	fflush(stdout);
	fuse_session_loop(session);
	return 0;
}
