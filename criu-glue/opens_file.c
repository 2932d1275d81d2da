/* SPDX-License-Identifier: MIT */
/*
 * The kind of file that a descriptor refers to, and how CRIU handles it. Every line of the tables
 * was tested with CRIU 4.1.1 on Linux 6.18: a program with only that file open was dumped.
 */
#include "criu-glue/opens_private.h"

#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#define GHOST_LIMIT_BYTES (UINT64_C(1) << 20) /* CRIU's default, counted in allocated blocks */
#define BLOCK_BYTES	  512		      /* the unit of stx_blocks */

/*
 * Files without a path. Dumped: eventfd, eventpoll, inotify and fanotify (with a handle of the
 * watched file), signalfd, timerfd, pidfd of a task in the tree or of one that has ended. Not an
 * open file, and not an obstacle: an aio ring, seccomp (filter and strict), a task that is not
 * dumpable.
 */
static const char *const anonymous_dumped[] = {
	"[eventfd]",  "[eventpoll]", "inotify", "[fanotify]",
	"[signalfd]", "[timerfd]",   "[pidfd]", "[inotify]",
};

static const struct {
	const char *name; /* prefix of the name */
	const char *words;
} anonymous_refused[] = {
	{"[io_uring]",
	 "is an io_uring, which CRIU cannot dump (send_fds fails with EINVAL): close it, "
	 "or let the program do without (libuv: UV_USE_IO_URING=0)"},
	{"[userfaultfd]", "is a userfaultfd, which CRIU cannot dump: close it"},
	{"[perf_event]", "is an event of perf, which CRIU cannot dump: end the profiler"},
	{"bpf-", "belongs to BPF (a map, a program or a link), which CRIU cannot dump: close it"},
	{"[landlock-ruleset]", "is a landlock ruleset, which CRIU cannot dump: close it"},
};

/*
 * Character devices that CRIU dumps: by path, without any state. /dev/net/tun is dumped only in a
 * network namespace of its own; all others are refused ("Can't dump file ... of that type").
 */
static bool device_is_dumped(uint32_t major, uint32_t minor)
{
	switch (major) {
	case 1: /* null, zero, full, random, urandom, kmsg */
		return minor == 3 || minor == 5 || (minor >= 7 && minor <= 9) || minor == 11;
	case 10: /* autofs */
		return minor == 235;
	default:
		return false;
	}
}

static bool starts_with(const char *text, const char *start)
{
	return strncmp(text, start, strlen(start)) == 0;
}

static bool is_deleted(const char *link)
{
	static const char end[] = " (deleted)";
	size_t length = strlen(link);

	return length >= sizeof(end) && strcmp(link + length - (sizeof(end) - 1), end) == 0;
}

static void judge_anonymous(struct opens_scan *scan, const struct opens_file *file,
			    const char *name)
{
	long long pid;

	if (strcmp(name, "[pidfd]") == 0 && opens_number(file->info, "Pid", 10, &pid) && pid >= 0 &&
	    !opens_has_pid(scan, (pid_t)pid)) {
		opens_refuse(scan, file->pid, file->fd, EBUSY,
			     "is a pidfd of process %lld, which is not in the tree: close it", pid);
		return;
	}
	for (size_t i = 0; i < GCR_ARRAY_SIZE(anonymous_dumped); i++)
		if (strcmp(name, anonymous_dumped[i]) == 0)
			return;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(anonymous_refused); i++) {
		if (!starts_with(name, anonymous_refused[i].name))
			continue;
		opens_refuse(scan, file->pid, file->fd, EOPNOTSUPP, "%s",
			     anonymous_refused[i].words);
		return;
	}
	opens_refuse(scan, file->pid, file->fd, EOPNOTSUPP,
		     "is of a kind that CRIU cannot dump (%s): close it", name);
}

/*
 * Notes an end of a pseudo-terminal, which is dumped if its other end is in the tree. True: the
 * file is one.
 */
static bool judge_terminal(struct opens_scan *scan, const struct opens_file *file)
{
	uint32_t major = file->status.stx_rdev_major;
	uint32_t minor = file->status.stx_rdev_minor;
	struct opens_end end = {
		.pid = file->pid,
		.fd = file->fd,
		.is_stdio = file->fd >= 0 && file->fd <= 2,
		.rdev_major = major,
		.rdev_minor = minor,
		.dev_major = file->status.stx_dev_major,
		.dev_minor = file->status.stx_dev_minor,
	};
	long long flags = O_RDWR, number;

	opens_number(file->info, "flags", 8, &flags);
	end.reads = (flags & O_ACCMODE) != O_WRONLY;
	end.writes = (flags & O_ACCMODE) != O_RDONLY;
	if (major == 5 && minor == 2) {
		if (opens_number(file->info, "tty-index", 10, &number)) {
			end.kind = END_PTY_MASTER;
			end.number = (uint64_t)number;
			opens_note_end(scan, &end);
		}
		return true;
	}
	if (major >= 136 && major <= 143) { /* Documentation/admin-guide/devices.txt */
		end.kind = END_PTY_SLAVE;
		end.number = (uint64_t)(major - 136) * 256 + minor;
		opens_note_end(scan, &end);
		return true;
	}
	return false;
}

static void judge_device(struct opens_scan *scan, const struct opens_file *file)
{
	uint32_t major = file->status.stx_rdev_major;
	uint32_t minor = file->status.stx_rdev_minor;

	if (judge_terminal(scan, file) || device_is_dumped(major, minor))
		return;
	opens_refuse(scan, file->pid, file->fd, EOPNOTSUPP,
		     "is the device %s (%u:%u), which CRIU cannot dump: close it", file->link,
		     major, minor);
}

/*
 * Notes that the file is locked, and refuses a lock that a living process outside the tree has
 * made. The lines "lock:" of fdinfo are "1: FLOCK ADVISORY WRITE PID MAJ:MIN:INODE START END".
 */
static void judge_locks(struct opens_scan *scan, const struct opens_file *file)
{
	const char *line = file->info;

	while ((line = strstr(line, "lock:"))) {
		int pid;

		line += strlen("lock:");
		scan->opens->file_locks = true;
		/*
		 * The pid is that of the process that made the lock, -1 for locks of open file
		 * descriptions. If that process exists and is not in the tree, it shares the open
		 * file: the single lock would become two after a restore, and these would conflict.
		 */
		if (sscanf(line, " %*d: %*s %*s %*s %d", &pid) != 1 || pid <= 0 ||
		    opens_has_pid(scan, pid))
			continue;
		if (kill(pid, 0) == 0 || errno == EPERM) {
			opens_refuse(scan, file->pid, file->fd, EBUSY,
				     "has a file lock that process %d, which is not in the tree, "
				     "has made and shares (%s): end that one, or unlock it",
				     pid, file->link);
			return;
		}
	}
}

static int compare_contents(const void *left, const void *right)
{
	const struct opens_contents *a = left;
	const struct opens_contents *b = right;

	if (a->ino != b->ino)
		return a->ino < b->ino ? -1 : 1;
	if (a->dev_major != b->dev_major)
		return a->dev_major < b->dev_major ? -1 : 1;
	return a->dev_minor < b->dev_minor ? -1 : a->dev_minor > b->dev_minor;
}

/* Counts a file once, however often it is open. */
static void count_contents(struct opens_scan *scan, const struct opens_file *file, uint64_t bytes)
{
	struct opens_contents *contents = malloc(sizeof(*contents));
	void **found;

	if (!contents) {
		scan->failed = true;
		return;
	}
	*contents = (struct opens_contents){
		.dev_major = file->status.stx_dev_major,
		.dev_minor = file->status.stx_dev_minor,
		.ino = file->status.stx_ino,
	};
	found = tsearch(contents, &scan->contents_seen, compare_contents);
	if (found && *(struct opens_contents **)found == contents) {
		opens_count_nameless(scan);
		scan->opens->contents_bytes += bytes;
		scan->opens->contents_count++;
		return;
	}
	free(contents);
	scan->failed |= !found;
}

void opens_forget_contents(struct opens_scan *scan)
{
	tdestroy(scan->contents_seen, free);
}

/* Judges a file whose name was unlinked but which has another name. */
static void judge_lost_name(struct opens_scan *scan, const struct opens_file *file)
{
	if (scan->options->may_link && opens_is_in_roots_directory(file)) {
		scan->opens->link_remap = true;
		return;
	}
	opens_refuse(scan, file->pid, file->fd, EOPNOTSUPP,
		     "has lost the name that it was opened by, and has another one (%s): CRIU, as "
		     "root, would make a name for it in a directory that is not root's alone; "
		     "give it its name again, remove all its names, or close it",
		     file->link);
}

bool opens_judge_regular(struct opens_scan *scan, const struct opens_file *file)
{
	uint64_t bytes = file->status.stx_blocks * BLOCK_BYTES;

	if (scan->options->mount_device &&
	    makedev(file->status.stx_dev_major, file->status.stx_dev_minor) ==
		    scan->options->mount_device) {
		opens_refuse(scan, file->pid, file->fd, EBUSY,
			     "is on this mount (%s): what a dump goes through cannot be dumped; "
			     "close it, or leave the directory",
			     file->link);
		return true;
	}
	if (starts_with(file->link, "/memfd:") && is_deleted(file->link)) {
		count_contents(scan, file, bytes); /* contents of any size go into the images */
		return true;
	}
	if (file->status.stx_nlink > 0 || !S_ISREG(file->status.stx_mode)) {
		if (file->status.stx_nlink > 0 && S_ISREG(file->status.stx_mode) &&
		    is_deleted(file->link)) {
			judge_lost_name(scan, file);
			return true;
		}
		return false;
	}
	count_contents(scan, file, bytes);
	if (bytes <= GHOST_LIMIT_BYTES)
		return true;
	if (bytes > scan->options->ghost_limit_max_bytes)
		opens_refuse(scan, file->pid, file->fd, EFBIG,
			     "is an unlinked file of %llu MiB (%s), and up to %llu MiB go into the "
			     "images: close it, or give it a name",
			     (unsigned long long)((bytes + (1u << 20) - 1) >> 20), file->link,
			     (unsigned long long)(scan->options->ghost_limit_max_bytes >> 20));
	else if (bytes > scan->opens->ghost_limit_bytes)
		scan->opens->ghost_limit_bytes = bytes;
	return true;
}

void opens_judge(struct opens_scan *scan, const struct opens_file *file)
{
	long long flags = O_RDWR;

	if (starts_with(file->link, "anon_inode:")) {
		judge_anonymous(scan, file, file->link + strlen("anon_inode:"));
		return;
	}
	/* newer kernels have a file system for pidfds */
	if (starts_with(file->link, "pidfd:")) {
		judge_anonymous(scan, file, "[pidfd]");
		return;
	}
	switch (file->status.stx_mode & S_IFMT) {
	case S_IFSOCK:
		if (opens_judge_on_its_way(scan, file))
			return;
		opens_judge_socket(scan, file);
		return;
	case S_IFCHR:
		judge_device(scan, file);
		return;
	case S_IFBLK:
		opens_refuse(scan, file->pid, file->fd, EOPNOTSUPP,
			     "is the disk %s, which CRIU cannot dump: close it", file->link);
		return;
	case S_IFIFO:
		if (!starts_with(file->link, "pipe:[")) {
			/* a named pipe: dumped by name, with its contents */
			opens_judge_rights(scan, file, true);
			return;
		}
		opens_number(file->info, "flags", 8, &flags);
		opens_note_end(scan, &(struct opens_end){
					     .kind = END_PIPE,
					     .number = file->status.stx_ino,
					     .pid = file->pid,
					     .fd = file->fd,
					     .is_stdio = file->fd >= 0 && file->fd <= 2,
					     .reads = (flags & O_ACCMODE) != O_WRONLY,
					     .writes = (flags & O_ACCMODE) != O_RDONLY,
				     });
		return;
	default:
		break;
	}
	if (S_ISREG(file->status.stx_mode) && opens_judge_rights(scan, file, true))
		return;
	judge_locks(scan, file);
	if (!opens_judge_regular(scan, file) && S_ISREG(file->status.stx_mode) &&
	    file->link[0] == '/')
		opens_list_file(scan, file, false);
}
