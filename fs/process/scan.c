/* SPDX-License-Identifier: MIT */
/*
 * The scan's thread, which decides when to look for holders of device files and makes all passes
 * (fs/process/scan_pass.c). `lock` guards the counters of passes; a pass itself runs without it. No
 * code here opens a device file: the open would wake the scan.
 */
#include "fs/process/scan.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "fs/process/scan_pass.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/procfs.h"

#define FIRST_USEC   (50 * GCR_USEC_PER_MSEC)
#define BETWEEN_USEC (250 * GCR_USEC_PER_MSEC)
#define QUIET_USEC   (300 * GCR_USEC_PER_MSEC)
#define SAFETY_USEC  (30 * GCR_USEC_PER_SEC)
#define NEVER	     INT64_MAX

/* The watched files of one of config.devices. */
struct device {
	char *path;	  /* NULL: none */
	char *directory;  /* of the file */
	const char *name; /* of the file in `directory` */
	char *sibling;	  /* NULL: none */
	int watch;	  /* inotify watch of the file, -1: none */
	int directory_watch;
};

struct gcr_scan {
	struct gcr_scan_config config;
	struct gcr_scan_wanted wanted;
	struct device devices[GCR_SCAN_DEVICES_MAX];

	struct gcr_pass *pass;

	pthread_mutex_t lock;
	pthread_cond_t done; /* a full pass has ended */
	bool is_asked;	     /* a pass is requested now */
	bool is_due;	     /* a pass is due, within the rate limit */
	uint64_t begun;	     /* full passes, including the current one */
	uint64_t ended;	     /* full passes */
	int result;	     /* of the last full pass */

	pthread_t thread;
	bool thread_runs;
	int stop_fd;
	int wake_fd;	/* signals is_asked or is_due */
	int inotify_fd; /* -1: no watching, only periodic passes */
};

/* Makes a pass over all processes (@known: see gcr_pass_run()). On the scan's thread. */
static void make_pass(struct gcr_scan *scan, bool known)
{
	int r;

	pthread_mutex_lock(&scan->lock);
	scan->begun += !known;
	pthread_mutex_unlock(&scan->lock);
	r = gcr_pass_run(scan->pass, known);
	if (known)
		return;
	pthread_mutex_lock(&scan->lock);
	scan->ended = scan->begun;
	scan->result = r;
	pthread_cond_broadcast(&scan->done);
	pthread_mutex_unlock(&scan->lock);
}

int gcr_scan_now(struct gcr_scan *scan, int64_t timeout_usec)
{
	int64_t deadline_usec = gcr_clock_usec() + timeout_usec;
	uint64_t wanted;
	int r = 0;

	GCR_LOCK_SCOPE(&scan->lock);
	wanted = scan->begun + 1;
	scan->is_asked = true;
	eventfd_write(scan->wake_fd, 1);
	while (scan->ended < wanted && r == 0)
		r = gcr_cond_wait_until(&scan->done, &scan->lock, deadline_usec);
	return scan->ended >= wanted ? scan->result : r;
}

void gcr_scan_wake(struct gcr_scan *scan)
{
	GCR_LOCK_SCOPE(&scan->lock);
	scan->is_due = true;
	eventfd_write(scan->wake_fd, 1);
}

static void is_changed(void *data)
{
	gcr_scan_wake(data);
}

int gcr_scan_unknown(struct gcr_scan *scan, pid_t **ret_pids, size_t *ret_count)
{
	return gcr_pass_unknown(scan->pass, ret_pids, ret_count);
}

size_t gcr_scan_put_off(struct gcr_scan *scan)
{
	return gcr_pass_put_off(scan->pass);
}

void gcr_scan_look_again(struct gcr_scan *scan, const pid_t *pids, size_t count,
			 bool *ret_holds_none)
{
	gcr_pass_look_again(scan->pass, pids, count, ret_holds_none);
}

int gcr_scan_probe_many(struct gcr_scan *scan, const pid_t *pids, size_t count, int64_t budget_usec,
			struct gcr_scan_holder *ret_holders, int *ret_results)
{
	return gcr_pass_probe_many(scan->pass, pids, count, budget_usec, ret_holders, ret_results);
}

int gcr_scan_probe(struct gcr_scan *scan, pid_t pid, struct gcr_scan_holder *ret_holder)
{
	_cleanup_close_ int process_fd = -1;
	struct gcr_proc_status status;
	struct gcr_scan_holder holder;
	char path[32];
	int r;

	r = gcr_proc_status(pid, &status);
	if (r < 0)
		return r;
	if (status.thread_group != pid)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	process_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (process_fd < 0)
		return errno == ENOENT ? -ESRCH : -errno;
	r = gcr_pass_holds_device(scan->pass, process_fd, pid, &holder);
	if (r == 1 && ret_holder)
		*ret_holder = holder;
	return r;
}

/*
 * Watches the GPUs' own files (nvidia0 and so on), whose opens only trigger a pass: a program may
 * create a context, and open these files, long after cuInit has opened the compute device.
 */
static void watch_siblings(struct gcr_scan *scan, const struct device *device)
{
	size_t length = device->sibling ? strlen(device->sibling) : 0;
	_cleanup_closedir_ DIR *directory = length ? opendir(device->directory) : NULL;
	struct dirent *entry;

	while (directory && (entry = readdir(directory))) {
		_cleanup_free_ char *path = NULL;

		if (strncmp(entry->d_name, device->sibling, length) ||
		    !isdigit((unsigned char)entry->d_name[length]) ||
		    asprintf(&path, "%s/%s", device->directory, entry->d_name) < 0)
			continue;
		inotify_add_watch(scan->inotify_fd, path, IN_OPEN | IN_CLOSE);
	}
}

/*
 * Watches a device file and its directory (again), as far as they exist. True if the file is new.
 */
static bool watch_device(struct gcr_scan *scan, struct device *device)
{
	int old = device->watch;

	/* Adding an existing watch is harmless and returns the same number. */
	device->directory_watch = inotify_add_watch(scan->inotify_fd, device->directory,
						    IN_CREATE | IN_MOVED_TO | IN_ONLYDIR);
	device->watch = inotify_add_watch(scan->inotify_fd, device->path,
					  IN_OPEN | IN_CLOSE | IN_MOVE_SELF | IN_DELETE_SELF);
	if (old >= 0 && old != device->watch)
		inotify_rm_watch(scan->inotify_fd, old);
	watch_siblings(scan, device);
	return device->watch >= 0 && device->watch != old;
}

static bool watch(struct gcr_scan *scan)
{
	bool is_new = false;

	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX && scan->inotify_fd >= 0; i++)
		if (scan->devices[i].path)
			is_new |= watch_device(scan, &scan->devices[i]);
	return is_new;
}

/*
 * Is the event about a device's file, or a sibling, in a watched directory? *ret_is_directory: the
 * event is from a watched directory.
 */
static bool is_of_device(const struct gcr_scan *scan, const struct inotify_event *event,
			 bool *ret_is_directory)
{
	bool is_it = false;

	*ret_is_directory = false;
	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX; i++) {
		const struct device *device = &scan->devices[i];

		if (!device->path || event->wd != device->directory_watch)
			continue;
		*ret_is_directory = true;
		if (event->len)
			is_it |= strcmp(event->name, device->name) == 0 ||
				 (device->sibling && strncmp(event->name, device->sibling,
							     strlen(device->sibling)) == 0);
	}
	return is_it;
}

/* The device whose file this watch belongs to, or NULL. */
static struct device *find_watched(struct gcr_scan *scan, int watch_number)
{
	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX; i++)
		if (scan->devices[i].path && scan->devices[i].watch == watch_number)
			return &scan->devices[i];
	return NULL;
}

/* Reads the inotify events. True if a device file was opened, closed, created or replaced. */
static bool read_events(struct gcr_scan *scan)
{
	char buffer[16384] __attribute__((aligned(__alignof__(struct inotify_event))));
	bool relevant = false;
	bool rewatch = false;
	ssize_t got;

	while ((got = read(scan->inotify_fd, buffer, sizeof(buffer))) > 0) {
		const char *position = buffer;

		while (position < buffer + got) {
			const struct inotify_event *event = (const void *)position;
			struct device *device = find_watched(scan, event->wd);
			bool is_directory;

			position += sizeof(*event) + event->len;
			if (event->mask & IN_Q_OVERFLOW) {
				relevant = rewatch = true;
			} else if (is_of_device(scan, event, &is_directory)) {
				rewatch = true;
			} else if (device) {
				relevant = true;
				if (event->mask & IN_IGNORED)
					device->watch = -1;
				if (event->mask & (IN_IGNORED | IN_MOVE_SELF))
					rewatch = true;
			} else if (!is_directory) {
				relevant = true; /* a sibling */
			}
		}
	}
	if (rewatch)
		relevant |= watch(scan);
	return relevant;
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t later_of(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static int milliseconds_until(int64_t time_usec)
{
	int64_t left_usec = time_usec - gcr_clock_usec();

	return left_usec <= 0 ? 0 : (int)(left_usec / GCR_USEC_PER_MSEC) + 1;
}

/*
 * Takes the requests for passes. Returns whether a pass is requested now; *@ret_is_due: a pass is
 * to be made within the rate limit.
 */
static bool take_asked(struct gcr_scan *scan, bool *ret_is_due)
{
	eventfd_t unused;
	bool is_asked;

	GCR_LOCK_SCOPE(&scan->lock);
	eventfd_read(scan->wake_fd, &unused);
	is_asked = scan->is_asked;
	*ret_is_due = scan->is_due;
	scan->is_asked = scan->is_due = false;
	return is_asked;
}

static void *scan_thread(void *data)
{
	struct gcr_scan *scan = data;
	struct pollfd fds[3] = {
		{.fd = scan->stop_fd, .events = POLLIN},
		{.fd = scan->inotify_fd, .events = POLLIN}, /* -1 is ignored */
		{.fd = scan->wake_fd, .events = POLLIN},
	};
	int64_t due_usec = 0; /* the first pass */
	int64_t quiet_usec = NEVER;
	int64_t safety_usec = NEVER;
	int64_t began_usec = 0;

	for (;;) {
		int64_t next_usec = least(least(due_usec, quiet_usec), safety_usec);
		bool is_asked = false;
		bool is_due = false;
		int64_t now_usec;

		if (poll(fds, GCR_ARRAY_SIZE(fds), milliseconds_until(next_usec)) < 0 &&
		    errno != EINTR)
			return NULL;
		if (fds[0].revents)
			return NULL;
		now_usec = gcr_clock_usec();
		if (fds[1].revents && read_events(scan)) {
			if (due_usec == NEVER)
				due_usec =
					later_of(now_usec + FIRST_USEC, began_usec + BETWEEN_USEC);
			quiet_usec = now_usec + QUIET_USEC;
		}
		if (fds[2].revents)
			is_asked = take_asked(scan, &is_due);
		if (is_due)
			due_usec = least(due_usec, later_of(now_usec, began_usec + BETWEEN_USEC));
		if (is_asked || now_usec >= least(due_usec, quiet_usec)) {
			began_usec = now_usec;
			if (now_usec >= quiet_usec)
				quiet_usec = NEVER;
			due_usec = NEVER;
			make_pass(scan, false);
		} else if (now_usec >= safety_usec) {
			watch(scan);
			began_usec = now_usec;
			make_pass(scan, true);
		} else {
			continue;
		}
		safety_usec = gcr_clock_usec() + SAFETY_USEC;
	}
}

static int start_watching(struct gcr_scan *scan)
{
	scan->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	/* The user's inotify instances are used up: the scan notices changes later, but works. */
	if (scan->inotify_fd < 0 && errno != EMFILE && errno != ENOSYS)
		return -errno;
	watch(scan);
	return 0;
}

/* Blocks all signals in the thread: the daemon's other threads handle them. */
static int start_thread(struct gcr_scan *scan)
{
	sigset_t all;
	sigset_t old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = -pthread_create(&scan->thread, NULL, scan_thread, scan);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	scan->thread_runs = r == 0;
	return r;
}

/* Copies the paths of a device. -ENAMETOOLONG: a path is too long, or there are too many paths. */
static int copy_wanted(const struct gcr_scan_device *from, struct gcr_scan_wanted_device *to)
{
	if (strlen(from->path) >= sizeof(to->path))
		return -ENAMETOOLONG;
	strcpy(to->path, from->path);
	for (size_t i = 0; from->mapped && from->mapped[i]; i++) {
		if (i == GCR_SCAN_MAPPED_MAX || strlen(from->mapped[i]) >= sizeof(to->mapped[i]))
			return -ENAMETOOLONG;
		strcpy(to->mapped[i], from->mapped[i]);
	}
	return 0;
}

static int copy_device(const struct gcr_scan_device *from, struct device *to)
{
	char *slash;

	to->path = strdup(from->path);
	to->directory = strdup(from->path);
	to->sibling = from->sibling ? strdup(from->sibling) : NULL;
	if (!to->path || !to->directory || (from->sibling && !to->sibling))
		return -ENOMEM;
	slash = strrchr(to->directory, '/');
	slash[slash == to->directory] = '\0';
	to->name = strrchr(to->path, '/') + 1;
	return 0;
}

int gcr_scan_create(const struct gcr_scan_config *config, struct gcr_scan **ret_scan)
{
	struct gcr_scan *scan;
	int r = 0;

	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX; i++)
		if (config->devices[i].path && config->devices[i].path[0] != '/')
			return -EINVAL;
	scan = calloc(1, sizeof(*scan));
	if (!scan)
		return -ENOMEM;
	scan->config = *config;
	if (!scan->config.look)
		scan->config.look = gcr_scan_look;
	scan->stop_fd = scan->inotify_fd = scan->wake_fd = -1;
	pthread_mutex_init(&scan->lock, NULL);
	pthread_cond_init(&scan->done, NULL);
	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX; i++) {
		scan->devices[i].watch = scan->devices[i].directory_watch = -1;
		if (config->devices[i].path && r == 0)
			r = copy_wanted(&config->devices[i], &scan->wanted.devices[i]);
		if (config->devices[i].path && r == 0)
			r = copy_device(&config->devices[i], &scan->devices[i]);
	}
	if (r < 0)
		goto fail;
	scan->stop_fd = eventfd(0, EFD_CLOEXEC);
	scan->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (scan->stop_fd < 0 || scan->wake_fd < 0) {
		r = -errno;
		goto fail;
	}
	r = gcr_pass_create(&scan->config, &scan->wanted, is_changed, scan, &scan->pass);
	if (r < 0)
		goto fail;
	r = start_watching(scan);
	if (r < 0)
		goto fail;
	/* Before the first pass, whose callback may probe. */
	*ret_scan = scan;
	r = start_thread(scan);
	if (r < 0) {
		*ret_scan = NULL;
		goto fail;
	}
	return 0;
fail:
	gcr_scan_destroy(scan);
	return r;
}

void gcr_scan_destroy(struct gcr_scan *scan)
{
	if (!scan)
		return;
	if (scan->thread_runs) {
		eventfd_write(scan->stop_fd, 1);
		pthread_join(scan->thread, NULL);
	}
	gcr_pass_destroy(scan->pass);
	if (scan->inotify_fd >= 0)
		close(scan->inotify_fd);
	if (scan->stop_fd >= 0)
		close(scan->stop_fd);
	if (scan->wake_fd >= 0)
		close(scan->wake_fd);
	pthread_cond_destroy(&scan->done);
	pthread_mutex_destroy(&scan->lock);
	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX; i++) {
		free(scan->devices[i].path);
		free(scan->devices[i].directory);
		free(scan->devices[i].sibling);
	}
	free(scan);
}
