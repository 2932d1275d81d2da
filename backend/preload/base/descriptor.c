/* SPDX-License-Identifier: MIT */
/*
 * The library's own descriptors in the program. Thread-safe; the lock is held for a few system
 * calls, or from gcr_descriptor_raise_limit() to gcr_descriptor_lower_limit(). The child of a fork
 * calls gcr_descriptor_forget().
 */
#include "backend/preload/base/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"

/*
 * Numbers are not higher than necessary: the kernel's table reaches up to the highest number in
 * use, and every fork copies the table (8 bytes per number).
 */
#define START_MAX 65536

/*
 * Raises of the soft limit, made by one thread at a time. A child that is forked during a raise
 * would keep the raised limit. The kernel copies the limits before the memory, so the child sees in
 * its memory whether a raise was under way at any time since before the fork, and undoes the last
 * one.
 */
static struct {
	pthread_mutex_t lock;
	atomic_uint started, finished;
	struct rlimit before, wide;
} raised = {.lock = PTHREAD_MUTEX_INITIALIZER};

static __thread unsigned finished_before_fork;

static bool same_limit(const struct rlimit *one, const struct rlimit *other)
{
	return one->rlim_cur == other->rlim_cur && one->rlim_max == other->rlim_max;
}

/*
 * Sets the soft limit to the hard one, in @limit. Lock: raised, here and in lower(). 0 or -errno.
 */
static int raise_to_hard(const struct rlimit *limit)
{
	raised.before = *limit;
	raised.wide = (struct rlimit){.rlim_cur = limit->rlim_max, .rlim_max = limit->rlim_max};
	atomic_fetch_add(&raised.started, 1);
	return setrlimit(RLIMIT_NOFILE, &raised.wide) < 0 ? -errno : 0;
}

/* Restores the soft limit, unless the program has set a limit of its own since. */
static void lower(void)
{
	struct rlimit now;

	if (getrlimit(RLIMIT_NOFILE, &now) == 0 && same_limit(&now, &raised.wide))
		setrlimit(RLIMIT_NOFILE, &raised.before);
}

/*
 * Duplicates @fd, close-on-exec, to the first free number from @start on; raises the soft limit if
 * needed. Lock: raised. Returns the number or -errno.
 */
static int duplicate(int fd, rlim_t start, const struct rlimit *limit)
{
	int high = fcntl(fd, F_DUPFD_CLOEXEC, (int)start);

	/* EINVAL: @start is not below the soft limit. EMFILE: no number is free below the limit. */
	if (high >= 0 || (errno != EINVAL && errno != EMFILE))
		return high < 0 ? -errno : high;
	if (limit->rlim_max <= limit->rlim_cur)
		return -EMFILE;
	high = raise_to_hard(limit);
	if (high == 0 && (high = fcntl(fd, F_DUPFD_CLOEXEC, (int)start)) < 0)
		high = errno == EINVAL ? -EMFILE : -errno;
	lower();
	atomic_fetch_add(&raised.finished, 1);
	return high;
}

/* Returns the number from which to look for a free one first. */
static rlim_t first_choice(const struct rlimit *limit)
{
	rlim_t soft = limit->rlim_cur;

	if (limit->rlim_max <= soft || soft > START_MAX)
		soft = soft > START_MAX ? START_MAX : soft - soft / 16;
	return soft > FD_SETSIZE ? soft : FD_SETSIZE;
}

static int duplicate_high(int fd)
{
	struct rlimit limit;
	int high;

	/* The limit can be read only while no thread has raised it. */
	pthread_mutex_lock(&raised.lock);
	high = getrlimit(RLIMIT_NOFILE, &limit) < 0 ? -errno : 0;
	if (!high)
		high = duplicate(fd, first_choice(&limit), &limit);
	if (high == -EMFILE)
		high = duplicate(fd, FD_SETSIZE, &limit);
	pthread_mutex_unlock(&raised.lock);
	return high;
}

/*
 * Duplicates @fd to a high number. If the limits leave none above FD_SETSIZE, uses one in the
 * highest sixteenth of those below it.
 */
static int duplicate_anywhere(int fd)
{
	struct rlimit limit;
	int high = duplicate_high(fd);

	if (high != -EMFILE || getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return high;
	if (limit.rlim_cur > FD_SETSIZE)
		limit.rlim_cur = FD_SETSIZE;
	high = fcntl(fd, F_DUPFD_CLOEXEC, (int)(limit.rlim_cur - limit.rlim_cur / 16));
	return high < 0 ? -EMFILE : high;
}

static int keep(int fd, int high, struct gcr_descriptor *ret_descriptor)
{
	_cleanup_close_ int old = fd;
	_cleanup_close_ int kept = high;
	struct stat status;

	if (high < 0)
		return high;
	if (fstat(kept, &status) < 0)
		return -errno;
	*ret_descriptor = (struct gcr_descriptor){
		.fd = TAKE_FD(kept), .device = status.st_dev, .inode = status.st_ino};
	return 0;
}

int gcr_descriptor_take(int *fd)
{
	int taken = *fd;

	*fd = -1;
	atomic_signal_fence(memory_order_seq_cst);
	return taken;
}

int gcr_descriptor_keep(int fd, struct gcr_descriptor *ret_descriptor)
{
	return keep(fd, duplicate_high(fd), ret_descriptor);
}

int gcr_descriptor_keep_anywhere(int fd, struct gcr_descriptor *ret_descriptor)
{
	return keep(fd, duplicate_anywhere(fd), ret_descriptor);
}

bool gcr_descriptor_valid(const struct gcr_descriptor *descriptor)
{
	struct stat status;

	return descriptor->fd >= 0 && fstat(descriptor->fd, &status) == 0 &&
	       status.st_dev == descriptor->device && status.st_ino == descriptor->inode;
}

void gcr_descriptor_restored(struct gcr_descriptor *descriptor, const char *name)
{
	char path[48], target[256];
	struct stat status;
	ssize_t length;

	if (descriptor->fd < 0)
		return;
	snprintf(path, sizeof(path), "/proc/thread-self/fd/%d", descriptor->fd);
	length = readlink(path, target, sizeof(target));
	if (length != (ssize_t)strlen(name) || memcmp(target, name, (size_t)length) != 0 ||
	    fstat(descriptor->fd, &status) < 0)
		return;
	descriptor->device = status.st_dev;
	descriptor->inode = status.st_ino;
}

void gcr_descriptor_close(struct gcr_descriptor *descriptor)
{
	if (gcr_descriptor_valid(descriptor))
		close(descriptor->fd);
	descriptor->fd = -1;
}

void gcr_descriptor_raise_limit(void)
{
	struct rlimit limit;

	pthread_mutex_lock(&raised.lock);
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
		raise_to_hard(&limit);
	else
		atomic_fetch_add(&raised.started, 1);
}

void gcr_descriptor_lower_limit(void)
{
	lower();
	atomic_fetch_add(&raised.finished, 1);
	pthread_mutex_unlock(&raised.lock);
}

void gcr_descriptor_before_fork(void)
{
	finished_before_fork = atomic_load(&raised.finished);
}

void gcr_descriptor_forget(void)
{
	unsigned started = atomic_load(&raised.started);

	if (started != finished_before_fork)
		lower();
	atomic_store(&raised.finished, started);
	raised.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
