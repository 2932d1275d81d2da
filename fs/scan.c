/* SPDX-License-Identifier: MIT */
/*
 * The scan: walking /proc for holders of device files, and the thread that knows when to.
 * `lock` guards the numbers of passes and who is making one; a pass itself runs without it, and
 * `last` belongs to whoever makes it. Nothing here opens a device file: that would wake us.
 */
#include "fs/scan.h"

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
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_source.h"
#include "lib/procfs.h"

#define FIRST_USEC   (50 * GCR_USEC_PER_MSEC)
#define BETWEEN_USEC (250 * GCR_USEC_PER_MSEC)
#define SETTLED_USEC (300 * GCR_USEC_PER_MSEC)
#define SAFETY_USEC  (30 * GCR_USEC_PER_SEC)
#define NEVER	     INT64_MAX

struct holders {
	struct gcr_scan_holder *list;
	size_t count;
	size_t room;
};

/* One of config.devices. */
struct device {
	char *path;	  /* NULL: none */
	char *directory;  /* of the file */
	const char *name; /* its name there */
	char *sibling;	  /* NULL: none */
	int watch;	  /* of the file, -1: none */
	int directory_watch;
};

struct gcr_scan {
	struct gcr_scan_config config;
	struct gcr_scan_wanted wanted;
	struct device devices[GCR_SCAN_DEVICES_MAX];

	pthread_mutex_t lock;
	pthread_cond_t done; /* a pass has ended */
	bool passing;
	uint64_t begun; /* passes that look at everybody, the one under way included */
	uint64_t ended; /* likewise */
	int result;	/* of the last of these */

	struct holders last; /* what the last pass reported */

	pthread_t thread;
	bool thread_runs;
	int stop_fd;
	int inotify_fd; /* -1: no watching, only safety passes */
};

static void free_holders(struct holders *holders)
{
	free(holders->list);
}

static int add_holder(struct holders *holders, const struct gcr_scan_holder *holder)
{
	if (holders->count == holders->room) {
		size_t room = holders->room ? holders->room * 2 : 64;
		struct gcr_scan_holder *larger;

		larger = reallocarray(holders->list, room, sizeof(*larger));
		if (!larger)
			return -ENOMEM;
		holders->list = larger;
		holders->room = room;
	}
	holders->list[holders->count++] = *holder;
	return 0;
}

static int compare_holders(const void *a, const void *b)
{
	const struct gcr_scan_holder *left = a;
	const struct gcr_scan_holder *right = b;

	return left->pid < right->pid ? -1 : left->pid > right->pid;
}

/* One that does not say is taken for the same: a pidfd tells of its end. */
static bool start_is(pid_t pid, uint64_t start_ticks)
{
	struct gcr_proc_stat stat;
	int r = gcr_proc_stat(pid, &stat);

	return r == 0 ? stat.start_ticks == start_ticks : gcr_proc_is_silent(r);
}

/*
 * Does the process behind the directory @process_fd (/proc/PID) hold and map a device? 1, 0,
 * -errno (-ESRCH: it has ended or is about to). It is asked between two looks at that directory,
 * which does not outlive its process.
 */
static int holds_device(struct gcr_scan *scan, int process_fd, pid_t pid,
			struct gcr_scan_holder *ret_holder)
{
	struct gcr_scan_holder holder = {.pid = pid};
	struct stat status;
	int r;

	if (fstat(process_fd, &status) < 0)
		return -errno;
	if (scan->config.only_uid != (uid_t)-1 && status.st_uid != scan->config.only_uid)
		return 0;
	r = scan->config.look(pid, &scan->wanted, &holder.devices, &holder.start_ticks);
	if (r < 0)
		return r;
	if (!holder.devices || (scan->config.ignore && scan->config.ignore(pid, scan->config.data)))
		return 0;
	if (faccessat(process_fd, "stat", F_OK, 0) < 0)
		return -ESRCH;
	*ret_holder = holder;
	return 1;
}

/* Look at everybody, or (@known) take over who was reported before, if it is still there. */
static int walk(struct gcr_scan *scan, bool known, struct holders *found)
{
	_cleanup_closedir_ DIR *proc = opendir("/proc");

	if (!proc)
		return -errno;
	for (;;) {
		_cleanup_close_ int process_fd = -1;
		struct gcr_scan_holder key = {};
		struct gcr_scan_holder holder;
		const struct gcr_scan_holder *old = NULL;
		struct dirent *entry;
		int r;

		errno = 0;
		entry = readdir(proc);
		if (!entry) {
			if (errno)
				return -errno;
			break;
		}
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		key.pid = (pid_t)strtol(entry->d_name, NULL, 10);
		if (scan->last.count)
			old = bsearch(&key, scan->last.list, scan->last.count, sizeof(key),
				      compare_holders);
		if (known && old && start_is(key.pid, old->start_ticks)) {
			r = add_holder(found, old);
			if (r < 0)
				return r;
			continue;
		}
		process_fd = openat(dirfd(proc), entry->d_name, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (process_fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
			return -errno;
		if (process_fd < 0)
			continue;
		r = holds_device(scan, process_fd, key.pid, &holder);
		if (r == 1)
			r = add_holder(found, &holder);
		else if (gcr_proc_is_silent(r) && old)
			r = add_holder(found, old);
		/* Ended, or not ours to look at: no holder. Without descriptors or memory: no pass.
		 */
		if (r == -EMFILE || r == -ENFILE || r == -ENOMEM)
			return r;
	}
	if (found->count)
		qsort(found->list, found->count, sizeof(*found->list), compare_holders);
	return 0;
}

/* Make a pass; the caller has set `passing`. */
static int make_pass(struct gcr_scan *scan, bool known)
{
	_cleanup_(free_holders) struct holders found = {};
	int r;

	r = walk(scan, known, &found);
	if (r < 0)
		return r;
	free_holders(&scan->last);
	scan->last = found;
	found = (struct holders){};
	scan->config.pass(scan->last.list, scan->last.count, scan->config.data);
	return 0;
}

/*
 * Look at everybody (@known: at those not known yet). Waits for the pass under way; if meanwhile
 * another thread has looked at everybody, having begun after this call, that is enough.
 */
static int pass_now(struct gcr_scan *scan, bool known)
{
	uint64_t wanted;
	int r;

	pthread_mutex_lock(&scan->lock);
	wanted = scan->begun + 1;
	while (scan->passing && scan->ended < wanted)
		pthread_cond_wait(&scan->done, &scan->lock);
	if (scan->ended >= wanted) {
		r = scan->result;
		pthread_mutex_unlock(&scan->lock);
		return r;
	}
	scan->passing = true;
	if (!known)
		scan->begun++;
	pthread_mutex_unlock(&scan->lock);

	r = make_pass(scan, known);

	pthread_mutex_lock(&scan->lock);
	scan->passing = false;
	if (!known) {
		scan->ended = scan->begun;
		scan->result = r;
	}
	pthread_cond_broadcast(&scan->done);
	pthread_mutex_unlock(&scan->lock);
	return r;
}

int gcr_scan_now(struct gcr_scan *scan)
{
	return pass_now(scan, false);
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
	r = holds_device(scan, process_fd, pid, &holder);
	if (r == 1 && ret_holder)
		*ret_holder = holder;
	return r;
}

/*
 * A context may come long after cuInit opened the compute device: what is opened then is the GPU's
 * own file, nvidia0 and so on. Their events say "look again", no more.
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

/* (Re)watch a device file and its directory, as far as they exist. True if the file is new. */
static bool watch_device(struct gcr_scan *scan, struct device *device)
{
	int old = device->watch;

	/* Watching what is watched already is harmless and gives the same number. */
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

/* What is in a directory that has changed: a device's file, or one beside it? */
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

/* The device whose file this event is about, NULL. */
static struct device *find_watched(struct gcr_scan *scan, int watch_number)
{
	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX; i++)
		if (scan->devices[i].path && scan->devices[i].watch == watch_number)
			return &scan->devices[i];
	return NULL;
}

/* Read what inotify has. True if a device file was opened, closed, made or replaced. */
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

static void *scan_thread(void *data)
{
	struct gcr_scan *scan = data;
	struct pollfd fds[2] = {
		{.fd = scan->stop_fd, .events = POLLIN},
		{.fd = scan->inotify_fd, .events = POLLIN}, /* -1 is passed over */
	};
	int64_t due_usec = 0; /* the first pass */
	int64_t settled_usec = NEVER;
	int64_t safety_usec = NEVER;
	int64_t began_usec = 0;

	for (;;) {
		int64_t next_usec = least(least(due_usec, settled_usec), safety_usec);
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
			settled_usec = now_usec + SETTLED_USEC;
		}
		if (now_usec >= least(due_usec, settled_usec)) {
			began_usec = now_usec;
			if (now_usec >= settled_usec)
				settled_usec = NEVER;
			due_usec = NEVER;
			pass_now(scan, false);
		} else if (now_usec >= safety_usec) {
			watch(scan);
			began_usec = now_usec;
			pass_now(scan, true);
		} else {
			continue;
		}
		safety_usec = gcr_clock_usec() + SAFETY_USEC;
	}
}

static int start_watching(struct gcr_scan *scan)
{
	scan->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	/* The user's inotify instances are used up: slower to notice, but no reason not to serve.
	 */
	if (scan->inotify_fd < 0 && errno != EMFILE && errno != ENOSYS)
		return -errno;
	watch(scan);
	return 0;
}

/* Signals are for the daemon's other threads. */
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

/* -ENAMETOOLONG. */
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
	scan->stop_fd = scan->inotify_fd = -1;
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
	if (scan->stop_fd < 0) {
		r = -errno;
		goto fail;
	}
	r = start_watching(scan);
	if (r < 0)
		goto fail;
	/* before the first pass, whose callback may want to probe */
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
	if (scan->inotify_fd >= 0)
		close(scan->inotify_fd);
	if (scan->stop_fd >= 0)
		close(scan->stop_fd);
	pthread_cond_destroy(&scan->done);
	pthread_mutex_destroy(&scan->lock);
	free_holders(&scan->last);
	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX; i++) {
		free(scan->devices[i].path);
		free(scan->devices[i].directory);
		free(scan->devices[i].sibling);
	}
	free(scan);
}
