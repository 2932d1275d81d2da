/* SPDX-License-Identifier: MIT */
/*
 * Recovers from a daemon that died during a dump: a CRIU at work, a stopped tree, a place whose
 * tree still lives. The process that a place was made of is recorded in the place's directory,
 * published or not.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "criu-glue/criu.h"
#include "fs/base/log.h"
#include "fs/image/dump.h"
#include "fs/image/dump_private.h"
#include "fs/image/place.h"
#include "fs/image/place_origin.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/*
 * How long CRIU gets to release the tree once it cannot write any more, and to end once it is
 * killed.
 */
#define CRIU_GRACE_MSEC 10000
#define CRIU_KILL_MSEC	5000

/* ---- CRIU ---- */

/*
 * Is @pid a CRIU at work in the directory @images? Processes of other users are not CRIU, and
 * looking at them can block. A descriptor of root's can be of a file whose filesystem does not
 * answer, so no filesystem is asked.
 */
static bool works_in(pid_t pid, const struct stat *images)
{
	struct gcr_proc_status status;
	struct statx found;
	char path[64];

	if (gcr_proc_status(pid, &status) < 0 || status.real_uid != getuid())
		return false;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, GCR_CRIU_IMAGES_FD);
	return !statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, STATX_INO, &found) &&
	       makedev(found.stx_dev_major, found.stx_dev_minor) == images->st_dev &&
	       found.stx_ino == images->st_ino;
}

/* Ends CRIU as gcr_criu_stop() does, but CRIU is not our child here. */
static void end_criu(pid_t pid, const struct stat *images)
{
	_cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd end = {.fd = pidfd, .events = POLLIN};
	const struct rlimit none = {0, 0};

	if (pidfd < 0 || !works_in(pid, images))
		return;
	gcr_log(LOG_NOTICE, pid, "criu of a dump that was given up is told to end");
	prlimit(pid, RLIMIT_FSIZE, &none, NULL);
	if (poll(&end, 1, CRIU_GRACE_MSEC) == 1)
		return;
	syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
	if (poll(&end, 1, CRIU_KILL_MSEC) != 1)
		gcr_log(LOG_ERR, pid, "criu does not end");
}

/* Ends CRIU, and processes that CRIU has started, at work in this place. */
static void end_criu_of(int place_fd)
{
	_cleanup_closedir_ DIR *dir = opendir("/proc");
	const struct dirent *entry;
	struct stat images;

	if (!dir || fstatat(place_fd, "snapshot/criu", &images, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	while ((entry = readdir(dir))) {
		pid_t pid = isdigit((unsigned char)*entry->d_name) ? atoi(entry->d_name) : 0;

		if (pid > 0 && pid != getpid() && works_in(pid, &images))
			end_criu(pid, &images);
	}
}

/* ---- the tree ---- */

/*
 * Lists the tree whose root is @root, started at @start_ticks, into @dump. -ESRCH: the tree has
 * ended.
 */
static int find_tree(struct gcr_dump *dump, pid_t root, uint64_t start_ticks)
{
	struct gcr_error error;
	int result;

	*dump = (struct gcr_dump){.root = root};
	result = root > 0 ? gcr_dump_find_tree(dump, &error) : -ESRCH;
	if (!result && dump->members[0].proc.start_ticks != start_ticks) {
		gcr_dump_forget_tree(dump);
		result = -ESRCH;
	}
	if (result < 0 && result != -ESRCH)
		gcr_log(LOG_ERR, root, "its dump was not brought to an end: %s", error.words);
	return result;
}

static void let_run(pid_t root, uint64_t start_ticks)
{
	struct gcr_dump dump;

	if (find_tree(&dump, root, start_ticks) < 0)
		return;
	gcr_dump_let_run(&dump);
	gcr_dump_forget_tree(&dump);
}

/* Ends the tree of which @place was dumped. 0: the tree has ended; else -errno. */
static int end_tree(struct gcr_daemon *daemon, const struct gcr_place *place)
{
	pid_t root = place->origin.pid;
	struct gcr_error error;
	struct gcr_dump dump;
	int result = find_tree(&dump, root, place->origin.start_ticks);

	if (result < 0)
		return result == -ESRCH ? 0 : result;
	gcr_log(LOG_NOTICE, root, "was dumped by an earlier daemon, and is ended");
	result = gcr_dump_end_tree(&dump, &error);
	if (result < 0) {
		gcr_log(LOG_ERR, root, "%s", error.words);
		gcr_dump_leave_tree(&dump, daemon->places, place->name);
	}
	gcr_dump_forget_tree(&dump);
	return result;
}

static void recover_begun(const char *name, int fd, void *data)
{
	uint64_t start_ticks;
	pid_t root;

	(void)data;
	if (gcr_place_origin_read_begun(fd, &root, &start_ticks) < 0)
		return;
	gcr_log(LOG_NOTICE, root, "was being dumped to %s by an earlier daemon, and goes on", name);
	end_criu_of(fd);
	let_run(root, start_ticks);
}

struct unfinished {
	struct gcr_place **list;
	size_t count;
};

static int note_unfinished(struct gcr_place *place, void *data)
{
	struct unfinished *unfinished = data;
	struct gcr_place **list;

	if (!place->origin.is_ending && !place->origin.is_staying)
		return 0;
	list = reallocarray(unfinished->list, unfinished->count + 1, sizeof(struct gcr_place *));
	if (!list)
		return -ENOMEM;
	unfinished->list = list;
	list[unfinished->count++] = gcr_place_ref(place);
	return 0;
}

static void recover_published(struct gcr_daemon *daemon, const struct gcr_place *place)
{
	int result = 0;

	if (place->origin.is_ending)
		result = end_tree(daemon, place);
	else
		let_run(place->origin.pid, place->origin.start_ticks);
	if (!result)
		gcr_place_ended(daemon->places, place->name);
}

void gcr_dump_recover(struct gcr_daemon *daemon)
{
	struct unfinished unfinished = {0};

	if (gcr_place_each(daemon->places, note_unfinished, &unfinished) < 0)
		gcr_log(LOG_ERR, 0, "dumps of an earlier daemon: out of memory");
	for (size_t i = 0; i < unfinished.count; i++) {
		recover_published(daemon, unfinished.list[i]);
		gcr_place_unref(unfinished.list[i]);
	}
	free(unfinished.list);
	gcr_store_end_begun_places(daemon->store, recover_begun, NULL);
}
