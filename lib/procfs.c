/* SPDX-License-Identifier: MIT */
/*
 * Reading /proc. A process can end while it is read: for all results that this gives (ENOENT,
 * ESRCH, an empty file) the functions return -ESRCH. No state.
 */
#include "lib/procfs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <linux/capability.h>
#include <linux/kcmp.h>
#include <search.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/id_map.h"
#include "lib/proc_file.h"
#include "lib/proc_source.h"
#include "lib/proc_text.h"

#define LINK_BYTES	4096 /* the kernel cuts a link's text at one page */
#define TASK_FILE_BYTES 32   /* "task/TID/status" */

#define SIGKILL_MASK (UINT64_C(1) << (SIGKILL - 1))

#define PF_EXITING 0x4ul /* linux/sched.h; /proc/PID/stat shows the flags unchanged */

int gcr_proc_parse_stat(const char *text, size_t bytes, struct gcr_proc_stat *ret_stat)
{
	struct gcr_proc_stat stat = {};
	size_t comm_bytes;
	const char *open_bracket;
	const char *close_bracket;
	const char *field;
	int parent;
	int used = 0;

	/*
	 * The name may hold brackets, blanks and newlines; the text after the name never holds ')'.
	 */
	open_bracket = memchr(text, '(', bytes);
	close_bracket = memrchr(text, ')', bytes);
	if (!open_bracket || !close_bracket || close_bracket < open_bracket)
		return -EPROTO;
	comm_bytes = (size_t)(close_bracket - open_bracket - 1);
	if (comm_bytes >= sizeof(stat.comm))
		comm_bytes = sizeof(stat.comm) - 1;
	memcpy(stat.comm, open_bracket + 1, comm_bytes);

	field = close_bracket + 1;
	if (sscanf(field, " %c %d%n", &stat.state, &parent, &used) != 2)
		return -EPROTO;
	stat.parent = parent;
	field += used;
	/* after field 4; field 9 has the flags, field 22 is the start time */
	for (int number = 5; number <= 22; number++) {
		field += strspn(field, " ");
		if (number == 22)
			break;
		if (number == 9)
			stat.is_exiting = strtoul(field, NULL, 10) & PF_EXITING;
		field += strcspn(field, " ");
	}
	if (sscanf(field, "%" SCNu64, &stat.start_ticks) != 1)
		return -EPROTO;
	if (sscanf(field, "%*u %*u %*d %*u %" SCNu64 " %*u %" SCNu64, &stat.program.start_code,
		   &stat.program.start_stack) != 2)
		stat.program = (struct gcr_proc_program){0};
	*ret_stat = stat;
	return 0;
}

static int read_stat(pid_t pid, const char *name, struct gcr_proc_stat *ret_stat)
{
	_cleanup_free_ char *text = NULL;
	size_t bytes;
	int r = gcr_proc_read(pid, name, &text, &bytes);

	if (r < 0)
		return r;
	return bytes ? gcr_proc_parse_stat(text, bytes, ret_stat) : -ESRCH;
}

int gcr_proc_stat(pid_t pid, struct gcr_proc_stat *ret_stat)
{
	return read_stat(pid, "stat", ret_stat);
}

static void parse_ns_pids(const char *text, struct gcr_proc_status *status)
{
	char *end;

	status->ns_pids_count = 0;
	while (status->ns_pids_count < GCR_NS_PIDS_MAX) {
		long id = strtol(text, &end, 10);

		if (end == text)
			return;
		status->ns_pids[status->ns_pids_count++] = (pid_t)id;
		text = end;
	}
}

#define IDS 4 /* real, effective, saved, for access to files */

/* Are they all equal? */
static bool parse_ids(const char *text, uint32_t ret_ids[IDS])
{
	bool are_equal = true;
	char *end;

	for (int i = 0; i < IDS; i++, text = end) {
		ret_ids[i] = (uint32_t)strtoul(text, &end, 10);
		are_equal = are_equal && ret_ids[i] == ret_ids[0];
	}
	return are_equal;
}

int gcr_proc_parse_status(char *text, struct gcr_proc_status *ret_status)
{
	struct gcr_proc_status status = {.has_one_user = true};
	uint32_t ids[IDS];
	char *rest;

	/* The kernel escapes newlines in the name here, so no line can be forged. */
	rest = text;
	while (rest && *rest) {
		char *line = strsep(&rest, "\n");
		char *value = strchr(line, ':');

		if (!value)
			continue;
		*value++ = '\0';
		if (strcmp(line, "State") == 0) {
			status.state = value[strspn(value, " \t")];
		} else if (strcmp(line, "Tgid") == 0) {
			status.thread_group = (pid_t)strtol(value, NULL, 10);
		} else if (strcmp(line, "PPid") == 0) {
			status.parent = (pid_t)strtol(value, NULL, 10);
		} else if (strcmp(line, "TracerPid") == 0) {
			status.tracer = (pid_t)strtol(value, NULL, 10);
		} else if (strcmp(line, "Uid") == 0) {
			status.has_one_user &= parse_ids(value, ids);
			status.real_uid = ids[0];
			status.effective_uid = ids[1];
		} else if (strcmp(line, "Gid") == 0) {
			status.has_one_user &= parse_ids(value, ids);
			status.real_gid = ids[0];
		} else if (strcmp(line, "NSpid") == 0) {
			parse_ns_pids(value, &status);
		} else if (strcmp(line, "SigPnd") == 0 || strcmp(line, "ShdPnd") == 0) {
			status.signals_pending |= strtoull(value, NULL, 16);
		} else if (strcmp(line, "SigBlk") == 0) {
			status.signals_blocked = strtoull(value, NULL, 16);
		} else if (strcmp(line, "CapEff") == 0) {
			status.effective_capabilities = strtoull(value, NULL, 16);
		} else if (strcmp(line, "CapPrm") == 0) {
			status.permitted_capabilities = strtoull(value, NULL, 16);
		} else if (strcmp(line, "VmSize") == 0) {
			status.has_memory = true;
		} else if (strcmp(line, "RssAnon") == 0) {
			status.rss_anon_bytes = strtoull(value, NULL, 10) * 1024;
		} else if (strcmp(line, "VmSwap") == 0) {
			status.swap_bytes = strtoull(value, NULL, 10) * 1024;
		}
	}
	if (status.thread_group == 0)
		return -ESRCH;
	*ret_status = status;
	return 0;
}

int gcr_proc_status(pid_t pid, struct gcr_proc_status *ret_status)
{
	struct gcr_proc_status status;
	_cleanup_free_ char *text = NULL;
	int r = gcr_proc_read(pid, "status", &text, NULL);

	if (r == 0)
		r = gcr_proc_parse_status(text, &status);
	if (r < 0)
		return r;
	if (status.ns_pids_count == 0) {
		/* a kernel without pid namespaces */
		status.ns_pids[0] = pid;
		status.ns_pids_count = 1;
	}
	*ret_status = status;
	return 0;
}

/* As gcr_proc_stat(), of a thread of @pid: its id is never another process's. */
static int read_thread_stat(pid_t pid, pid_t tid, struct gcr_proc_stat *ret_stat)
{
	char name[TASK_FILE_BYTES];

	snprintf(name, sizeof(name), "task/%d/stat", (int)tid);
	return read_stat(pid, name, ret_stat);
}

/*
 * Reads the status of one thread of @pid, which never waits for the process. -ESRCH: the thread has
 * ended, and is not even a zombie.
 */
static int read_thread_status(pid_t pid, pid_t tid, struct gcr_proc_status *ret_status)
{
	_cleanup_free_ char *text = NULL;
	char name[TASK_FILE_BYTES];
	int r;

	snprintf(name, sizeof(name), "task/%d/status", (int)tid);
	r = gcr_proc_read(pid, name, &text, NULL);
	return r < 0 ? r : gcr_proc_parse_status(text, ret_status);
}

/*
 * Is the thread not exiting? 1; 0: the thread is exiting, or has ended; -errno: that cannot be
 * found out.
 */
static int is_thread_living(pid_t pid, pid_t tid)
{
	_cleanup_free_ char *text = NULL;
	struct gcr_proc_status status;
	struct gcr_proc_stat stat;
	char name[TASK_FILE_BYTES];
	size_t bytes;
	int r;

	/*
	 * Zombies are told by the file that can be read at once: there may be many. When a process
	 * exits, the kernel kills its other threads, which keep running until they see the signal.
	 */
	r = read_thread_status(pid, tid, &status);
	if (r < 0)
		return r == -ESRCH ? 0 : r;
	if (status.state == 'Z' || status.state == 'X' || status.signals_pending & SIGKILL_MASK)
		return 0;
	snprintf(name, sizeof(name), "task/%d/stat", (int)tid);
	r = gcr_proc_read(pid, name, &text, &bytes);
	if (r < 0)
		return r == -ESRCH ? 0 : r;
	return bytes && !gcr_proc_parse_stat(text, bytes, &stat) && !stat.is_exiting;
}

/*
 * Calls @visit with the threads of @pid, at most @most of them, until @visit returns non-zero, and
 * returns that value; else 0, -E2BIG (there are more threads), -ESRCH.
 */
static int each_thread(pid_t pid, int most, int (*visit)(pid_t pid, pid_t tid, void *data),
		       void *data)
{
	_cleanup_closedir_ DIR *directory = NULL;
	char path[GCR_PROC_PATH_BYTES];
	int count = 0;

	gcr_proc_path(path, pid, "task");
	directory = opendir(path);
	if (!directory)
		return gcr_proc_error(errno);
	for (;;) {
		const struct dirent *entry;
		int r;

		errno = 0;
		entry = readdir(directory);
		if (!entry)
			return errno ? gcr_proc_error(errno) : 0;
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		if (count++ == most)
			return -E2BIG;
		r = visit(pid, (pid_t)strtol(entry->d_name, NULL, 10), data);
		if (r)
			return r;
	}
}

static int visit_living(pid_t pid, pid_t tid, void *data)
{
	int r = is_thread_living(pid, tid);

	if (r > 0)
		*(pid_t *)data = tid;
	return r;
}

/*
 * The first thread of @pid that is not exiting. 0: there is none; -errno; -E2BIG: more threads than
 * are examined.
 */
static pid_t find_living_thread(pid_t pid)
{
	pid_t tid = 0;
	int r = each_thread(pid, GCR_PROC_THREADS_LOOKED_AT, visit_living, &tid);

	return r < 0 ? r : tid;
}

int gcr_proc_is_ending(pid_t pid)
{
	pid_t tid = pid > 0 ? find_living_thread(pid) : -ESRCH;

	if (tid == -E2BIG)
		return 0;
	return tid < 0 ? tid : !tid;
}

struct traced {
	pid_t tracer;
	bool is_any;
	bool is_other;
};

/* Notes whether the thread is traced, and stops at one that is not. */
static int visit_traced(pid_t pid, pid_t tid, void *data)
{
	struct traced *traced = data;
	struct gcr_proc_status status;
	int r = read_thread_status(pid, tid, &status);

	if (r < 0)
		return r == -ESRCH ? 0 : r;
	if (status.state == 'Z' || status.state == 'X')
		return 0;
	traced->is_any = true;
	traced->is_other = status.tracer != traced->tracer;
	return traced->is_other;
}

int gcr_proc_is_traced_by(pid_t pid, pid_t tracer)
{
	struct traced traced = {.tracer = tracer};
	int r = each_thread(pid, INT_MAX, visit_traced, &traced);

	if (r < 0)
		return r;
	return traced.is_any ? !traced.is_other : -ESRCH;
}

bool gcr_proc_has_ended(pid_t pid)
{
	int r = gcr_proc_is_ending(pid);

	return r == -ESRCH || r > 0;
}

pid_t gcr_proc_living_thread(pid_t pid)
{
	pid_t tid = pid > 0 ? find_living_thread(pid) : 0;

	return tid < 0 ? 0 : tid;
}

int gcr_proc_program(pid_t pid, struct gcr_proc_program *ret_program)
{
	struct gcr_proc_stat stat;
	int r = gcr_proc_stat(pid, &stat);
	pid_t tid;

	/* 0: the main thread has no memory. Without permission there is at least a 1. */
	if (r == 0 && !stat.program.start_code) {
		tid = gcr_proc_living_thread(pid);
		r = tid > 0 ? read_thread_stat(pid, tid, &stat) : -ESRCH;
	}
	if (gcr_proc_is_silent(r))
		return r;
	if (r < 0 || !stat.program.start_code)
		return -ESRCH;
	*ret_program = stat.program;
	return 0;
}

int gcr_proc_is_secure(pid_t pid)
{
	_cleanup_free_ char *text = NULL;
	unsigned long pair[2];
	size_t bytes = 0;
	int r = gcr_proc_read(pid, "auxv", &text, &bytes);

	for (size_t at = 0; !r && at + sizeof(pair) <= bytes; at += sizeof(pair)) {
		memcpy(pair, text + at, sizeof(pair));
		if (pair[0] == AT_SECURE)
			return pair[1] != 0;
	}
	return r;
}

/*
 * The callback of each_thread() for gcr_proc_owner(): @data gets the owner of the first thread that
 * has its memory. A file of a thread that belongs to the process's user proves that the thread has
 * it. The owner is read before the status: a thread that has its memory afterwards had it when the
 * owner was read.
 */
static int visit_owner(pid_t pid, pid_t tid, void *data)
{
	struct stat *owner = data;
	struct gcr_proc_status status;
	char name[TASK_FILE_BYTES];
	char path[GCR_PROC_PATH_BYTES];
	struct stat inner;
	int r;

	snprintf(name, sizeof(name), "task/%d/status", (int)tid);
	gcr_proc_path(path, pid, name);
	if (stat(path, &inner) < 0)
		return 0;
	if (inner.st_uid == owner->st_uid)
		return 1;
	r = read_thread_status(pid, tid, &status);
	if (r < 0)
		return r == -ESRCH ? 0 : r;
	if (!status.has_memory)
		return 0;
	*owner = inner;
	return 1;
}

/* Has the process our map of user ids? True also if a map cannot be read. */
static bool may_have_our_map(pid_t pid)
{
	return gcr_id_map_is_ours(pid) != 0;
}

static bool has_more_rights(pid_t pid, const struct gcr_proc_status *status)
{
	if (!status->has_one_user)
		return true;
	if (!status->real_uid ||
	    !(status->permitted_capabilities & ~(UINT64_C(1) << CAP_WAKE_ALARM)))
		return false;
	return may_have_our_map(pid) || gcr_id_map_root(pid, "uid_map") != status->real_uid;
}

bool gcr_proc_has_more_rights(pid_t pid)
{
	struct gcr_proc_status status;

	return gcr_proc_status(pid, &status) < 0 || has_more_rights(pid, &status);
}

int gcr_proc_owner(pid_t pid, uid_t *ret_uid, gid_t *ret_gid)
{
	char path[GCR_PROC_PATH_BYTES];
	struct stat status, inner;

	if (pid <= 0)
		return -ESRCH;
	gcr_proc_path(path, pid, "");
	if (stat(path, &status) < 0)
		return gcr_proc_error(errno);
	/*
	 * The directory itself always belongs to the user; its files belong to root if the process
	 * is not dumpable, but also if the thread has already released its memory.
	 */
	gcr_proc_path(path, pid, "stat");
	if (stat(path, &inner) < 0)
		return gcr_proc_error(errno);
	if (inner.st_uid != status.st_uid) {
		int r = each_thread(pid, GCR_PROC_OWNER_THREADS, visit_owner, &status);

		if (r == -ESRCH)
			return -ESRCH;
		/* There are too many threads, or the status of one cannot be read. */
		if (r < 0)
			status = inner;
	}
	if (status.st_uid) {
		struct gcr_proc_status rights;
		int r = gcr_proc_status(pid, &rights);

		if (r < 0)
			return r;
		if (has_more_rights(pid, &rights)) {
			bool is_ours = may_have_our_map(pid);

			status.st_uid = is_ours ? 0 : gcr_id_map_root(pid, "uid_map");
			status.st_gid = is_ours ? 0 : gcr_id_map_root(pid, "gid_map");
		}
	}
	*ret_uid = status.st_uid;
	*ret_gid = status.st_gid;
	return 0;
}

/*
 * Appends one link of /proc/PID/fd to @stream and adds its length to *bytes. Returns 0 also if the
 * descriptor has been closed since. -EFBIG.
 */
static int write_link(int directory_fd, const char *name, FILE *stream, size_t *bytes)
{
	char target[LINK_BYTES + 1];
	ssize_t length = readlinkat(directory_fd, name, target, sizeof(target) - 1);

	if (length < 0)
		return errno == ENOENT || errno == ENAMETOOLONG ? 0 : gcr_proc_error(errno);
	target[length] = '\0';
	*bytes += strlen(name) + strlen(target) + 2;
	if (*bytes > GCR_PROC_LINKS_BYTES_MAX)
		return -EFBIG;
	fprintf(stream, "%s%c%s%c", name, '\0', target, '\0');
	return 0;
}

static int write_links(pid_t pid, FILE *stream)
{
	_cleanup_closedir_ DIR *directory = NULL;
	char path[GCR_PROC_PATH_BYTES];
	size_t bytes = 0;

	gcr_proc_path(path, pid, "fd");
	directory = opendir(path);
	if (!directory)
		return gcr_proc_error(errno);
	for (;;) {
		struct dirent *entry;
		int r;

		errno = 0;
		entry = readdir(directory);
		if (!entry && errno)
			return gcr_proc_error(errno);
		/* readdir also stops without an error if the process has ended: check again */
		if (!entry)
			return access(path, F_OK) < 0 ? gcr_proc_error(errno) : 0;
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		r = write_link(dirfd(directory), entry->d_name, stream, &bytes);
		if (r < 0)
			return r;
	}
}

int gcr_proc_links(pid_t pid, char **ret_text, size_t *ret_bytes)
{
	_cleanup_free_ char *text = NULL;
	size_t bytes;
	FILE *stream;
	int r;

	if (pid <= 0)
		return -ESRCH;
	if (gcr_proc_source())
		return gcr_proc_source()->links(pid, ret_text, ret_bytes);
	stream = open_memstream(&text, &bytes);
	if (!stream)
		return -ENOMEM;
	r = write_links(pid, stream);
	if (fclose(stream) && r == 0)
		r = -ENOMEM;
	if (r < 0)
		return r;
	*ret_text = TAKE_PTR(text);
	*ret_bytes = bytes;
	return 0;
}

int gcr_proc_each_link(pid_t pid, int (*visit)(int fd, const char *target, void *data), void *data)
{
	_cleanup_free_ char *text = NULL;
	size_t bytes = 0;
	const char *end;
	int r = gcr_proc_links(pid, &text, &bytes);

	end = text + bytes;
	/* The text ends with a NUL; each entry is checked to have both parts. */
	for (const char *entry = text; r == 0 && entry < end;) {
		const char *target = entry + strlen(entry) + 1;

		if (target >= end)
			break;
		r = visit(atoi(entry), target, data);
		entry = target + strlen(target) + 1;
	}
	return r;
}

struct file_visit {
	int (*visit)(const char *target, void *data);
	void *data;
};

static int visit_file(int fd, const char *target, void *data)
{
	const struct file_visit *files = data;

	return files->visit(target, files->data);
}

int gcr_proc_each_file(pid_t pid, int (*visit)(const char *target, void *data), void *data)
{
	struct file_visit files = {.visit = visit, .data = data};

	return gcr_proc_each_link(pid, visit_file, &files);
}

int gcr_proc_link(pid_t pid, const char *name, char *ret_target, size_t target_bytes)
{
	char path[GCR_PROC_PATH_BYTES];
	ssize_t length;

	ret_target[0] = '\0';
	if (pid <= 0)
		return -ESRCH;
	if (gcr_proc_source())
		return gcr_proc_source()->link(pid, name, ret_target, target_bytes);
	gcr_proc_path(path, pid, name);
	length = readlink(path, ret_target, target_bytes - 1);
	ret_target[length > 0 ? length : 0] = '\0';
	return length < 0 ? gcr_proc_error(errno) : 0;
}

int gcr_proc_peek(pid_t pid, uintptr_t address, void *ret, size_t bytes)
{
	struct iovec here = {.iov_base = ret, .iov_len = bytes};
	struct iovec there = {.iov_base = (void *)address, .iov_len = bytes};
	ssize_t length;

	if (gcr_proc_source())
		return gcr_proc_source()->peek(pid, address, ret, bytes);
	length = process_vm_readv(pid, &here, 1, &there, 1, 0);
	return length < 0 ? -errno : (size_t)length == bytes ? 0 : -EFAULT;
}

int gcr_proc_same_files(pid_t pid, pid_t other, const int *fds, size_t count, bool *ret_same)
{
	if (count > GCR_PROC_SAME_MAX)
		return -EINVAL;
	if (gcr_proc_source())
		return gcr_proc_source()->same_files(pid, other, fds, count, ret_same);
	for (size_t i = 0; i < count; i++)
		ret_same[i] = syscall(SYS_kcmp, pid, other, KCMP_FILE, (unsigned long)fds[i],
				      (unsigned long)fds[i]) == 0;
	return 0;
}

static int is_file(const char *target, void *path)
{
	return strcmp(target, path) == 0;
}

int gcr_proc_holds_file(pid_t pid, const char *path)
{
	_cleanup_free_ char *copy = strdup(path);

	if (!copy)
		return -ENOMEM;
	return gcr_proc_each_file(pid, is_file, copy);
}

bool gcr_pidfd_has_ended(int pidfd)
{
	struct pollfd end = {.fd = pidfd, .events = POLLIN};

	return poll(&end, 1, 0) != 0;
}

bool gcr_pidfd_is_gone(int pidfd)
{
	return syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) < 0 && errno == ESRCH;
}

int gcr_proc_open(pid_t pid, uint64_t start_ticks, int *ret_pidfd)
{
	_cleanup_close_ int pidfd = -1;
	struct gcr_proc_stat stat;
	int r;

	if (pid <= 0)
		return -ESRCH;
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0)
		return -errno;
	r = gcr_proc_stat(pid, &stat);
	if (r < 0)
		return r;
	if (stat.start_ticks != start_ticks)
		return -ESRCH;
	/* The process still exists, so its pid was not reused before the start time was read. */
	if (gcr_pidfd_is_gone(pidfd))
		return -ESRCH;
	*ret_pidfd = TAKE_FD(pidfd);
	return 0;
}

const char *gcr_proc_parse_environ(const char *text, size_t bytes, const char *name)
{
	size_t length = strlen(name);

	for (const char *entry = text; entry < text + bytes; entry += strlen(entry) + 1)
		if (strncmp(entry, name, length) == 0 && entry[length] == '=')
			return entry + length + 1;
	return NULL;
}

int gcr_proc_environ(pid_t pid, const char *name, char **ret_value)
{
	_cleanup_free_ char *text = NULL;
	const char *found;
	size_t bytes;
	char *value;
	int r;

	r = gcr_proc_read(pid, "environ", &text, &bytes);
	if (r < 0)
		return r;
	found = gcr_proc_parse_environ(text, bytes, name);
	if (!found)
		return -ENOENT;
	value = strdup(found);
	if (!value)
		return -ENOMEM;
	*ret_value = value;
	return 0;
}
