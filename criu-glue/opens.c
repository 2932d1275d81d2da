/* SPDX-License-Identifier: MIT */
/*
 * Scans a tree's /proc: each process's tasks, namespaces, descriptors and mappings, once. Files are
 * examined with AT_STATX_DONT_SYNC, so that a file system that does not answer (our own, which is
 * busy with this dump; a server that is down) cannot block the scan.
 */
#include "criu-glue/opens_private.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "lib/procfs.h"

struct mounts {
	int *ids;
	size_t count;
};

bool opens_has_pid(const struct opens_scan *scan, pid_t pid)
{
	for (size_t i = 0; i < scan->pids_count; i++)
		if (scan->pids[i] == pid)
			return true;
	return false;
}

bool opens_is_over(const struct opens_scan *scan)
{
	const atomic_bool *cancel = scan->options->cancel;

	return scan->failed || scan->is_too_large || (cancel && atomic_load(cancel));
}

bool opens_count_nameless(struct opens_scan *scan)
{
	scan->is_too_large |= ++scan->nameless_count > GCR_OPENS_NAMELESS_MAX;
	return !scan->is_too_large;
}

bool opens_is_plugins(const struct opens_scan *scan, const char *link)
{
	const char *const *start = scan->options->plugin_files;

	while (start && *start && strncmp(link, *start, strlen(*start)) != 0)
		start++;
	return start && *start;
}

struct gcr_open_finding *opens_add_finding(struct opens_scan *scan, enum gcr_open_verdict verdict,
					   pid_t pid, int fd)
{
	struct gcr_opens *opens = scan->opens;
	struct gcr_open_finding *finding;

	if (opens->findings_count == GCR_OPENS_FINDINGS_MAX) {
		/* A refusal must not get lost: the last finding is replaced. */
		opens->findings_lost++;
		if (verdict != GCR_OPEN_REFUSED)
			return NULL;
		finding = &opens->findings[opens->findings_count - 1];
	} else {
		if ((opens->findings_count & (opens->findings_count + 1)) == 0) {
			finding = reallocarray(opens->findings, (opens->findings_count + 1) * 2,
					       sizeof(*finding));
			if (!finding) {
				scan->failed = true;
				return NULL;
			}
			opens->findings = finding;
		}
		finding = &opens->findings[opens->findings_count++];
	}
	*finding = (struct gcr_open_finding){
		.verdict = verdict,
		.pid = pid,
		.fd = fd >= 0 ? fd : -1,
	};
	return finding;
}

void opens_refuse(struct opens_scan *scan, pid_t pid, int fd, int number, const char *format, ...)
{
	struct gcr_open_finding *finding = opens_add_finding(scan, GCR_OPEN_REFUSED, pid, fd);
	char words[GCR_ERROR_WORDS_MAX];
	va_list values;

	if (!finding)
		return;
	va_start(values, format);
	vsnprintf(words, sizeof(words), format, values);
	va_end(values);
	finding->is_stdio = fd >= 0 && fd <= 2;
	if (fd >= 0)
		gcr_error_set(&finding->error, number, "descriptor %d of process %d %s", fd,
			      (int)pid, words);
	else
		gcr_error_set(&finding->error, number, "%sprocess %d%s %s",
			      fd == OPENS_UNNAMED ? "a file that " : "", (int)pid,
			      fd == OPENS_UNNAMED ? " uses" : "", words);
}

bool opens_number(const char *text, const char *name, int base, long long *ret_number)
{
	size_t length = strlen(name);

	while (text && *text) {
		char *end;

		if (strncmp(text, name, length) == 0 && text[length] == ':') {
			long long number = strtoll(text + length + 1, &end, base);

			if (end == text + length + 1)
				return false;
			*ret_number = number;
			return true;
		}
		text = strchr(text, '\n');
		text = text ? text + 1 : NULL;
	}
	return false;
}

/* ---- tasks and namespaces ---- */

static int compare_ints(const void *a, const void *b)
{
	const int *left = a, *right = b;

	return *left < *right ? -1 : *left > *right;
}

/*
 * Reads the ids of the mounts that a process has. CRIU refuses a file on any other mount ("Can't
 * lookup mount"): on those of a namespace that the process has left, a POSIX message queue, secret
 * memory, a lazily unmounted file system.
 */
static void read_mounts(pid_t pid, struct mounts *mounts)
{
	_cleanup_free_ char *text = NULL;
	char *rest;
	size_t lines = 0;

	if (gcr_proc_read(pid, "mountinfo", &text, NULL) < 0)
		return;
	for (const char *c = text; *c; c++)
		lines += *c == '\n';
	mounts->ids = calloc(lines + 1, sizeof(*mounts->ids));
	if (!mounts->ids)
		return;
	rest = text;
	while (rest && *rest && mounts->count < lines) {
		const char *line = strsep(&rest, "\n");

		if (isdigit((unsigned char)*line))
			mounts->ids[mounts->count++] = atoi(line);
	}
	qsort(mounts->ids, mounts->count, sizeof(*mounts->ids), compare_ints);
}

static void free_mounts(struct mounts *mounts)
{
	free(mounts->ids);
}

static bool has_mount(const struct mounts *mounts, uint64_t id)
{
	int wanted = (int)id;

	/* Unknown mounts are accepted here: CRIU will refuse them. */
	return mounts->count == 0 ||
	       bsearch(&wanted, mounts->ids, mounts->count, sizeof(*mounts->ids), compare_ints);
}

/* Is @pid's namespace of this kind different from ours? False if that cannot be determined. */
static bool is_apart(pid_t pid, const char *name)
{
	char theirs[GCR_PROC_PATH_BYTES];
	char ours[GCR_PROC_PATH_BYTES];
	struct stat their_status, our_status;

	gcr_proc_path(theirs, pid, name);
	gcr_proc_path(ours, getpid(), name);
	return stat(theirs, &their_status) == 0 && stat(ours, &our_status) == 0 &&
	       (their_status.st_ino != our_status.st_ino ||
		their_status.st_dev != our_status.st_dev);
}

static void judge_namespaces(struct opens_scan *scan, pid_t pid)
{
	struct gcr_proc_status status;

	if (gcr_proc_status(pid, &status) == 0 && status.ns_pids_count > 1)
		opens_refuse(
			scan, pid, -1, EOPNOTSUPP,
			"is in a pid namespace of its own: use the checkpoint of the container "
			"engine (podman, runc, crun) that made it");
	else if (is_apart(pid, "ns/net"))
		opens_refuse(scan, pid, OPENS_NO_FD, EOPNOTSUPP,
			     "is in a network namespace of its own: use the checkpoint of the "
			     "container engine that made it");
	else if (is_apart(pid, "ns/user"))
		opens_refuse(
			scan, pid, -1, EOPNOTSUPP,
			"is in a user namespace of its own: use the checkpoint of the container "
			"engine that made it");
}

/* Refuses a process of which any thread has a debugger. */
static void judge_tasks(struct opens_scan *scan, pid_t pid)
{
	_cleanup_closedir_ DIR *tasks = NULL;
	char path[GCR_PROC_PATH_BYTES];
	struct dirent *task;

	gcr_proc_path(path, pid, "task");
	tasks = opendir(path);
	while (tasks && !opens_is_over(scan) && (task = readdir(tasks))) {
		_cleanup_free_ char *status = NULL;
		char name[64];
		long long tracer;

		if (!isdigit((unsigned char)task->d_name[0]))
			continue;
		snprintf(name, sizeof(name), "task/%.20s/status", task->d_name);
		if (gcr_proc_read(pid, name, &status, NULL) < 0)
			continue;
		if (!opens_number(status, "TracerPid", 10, &tracer) || tracer == 0)
			continue;
		opens_refuse(scan, pid, OPENS_NO_FD, EBUSY,
			     "is traced by process %lld (thread %.20s): end the debugger", tracer,
			     task->d_name);
		return;
	}
}

/* ---- files ---- */

/*
 * Examines the file into file->status. False, with errno: the file is gone, or may not be examined.
 */
static bool ask_status(struct opens_file *file)
{
	return statx(AT_FDCWD, file->proc_path, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT,
		     STATX_BASIC_STATS | STATX_MNT_ID, &file->status) == 0;
}

/* Does the file have a path, on a mount that the process does not have? */
static bool is_on_no_mount(const struct opens_file *file, const struct mounts *mounts)
{
	return file->link[0] == '/' && strncmp(file->link, "/memfd:", 7) != 0 &&
	       strncmp(file->link, "/dev/zero (deleted)", 19) != 0 &&
	       file->status.stx_mask & STATX_MNT_ID && !has_mount(mounts, file->status.stx_mnt_id);
}

static void refuse_mount(struct opens_scan *scan, const struct opens_file *file)
{
	opens_refuse(scan, file->pid, file->fd, EOPNOTSUPP,
		     "is on a mount that the process does not have (%s): close it", file->link);
}

/*
 * Notes a lock of a file that a plugin handles. CRIU may look for locks before the plugin has
 * handled the file. Locks that CRIU then cannot assign to a file are skipped if --file-locks is
 * set.
 */
static void note_plugins_lock(struct opens_scan *scan, pid_t pid, int fd)
{
	_cleanup_free_ char *info = NULL;
	char name[64];

	snprintf(name, sizeof(name), "fdinfo/%d", fd);
	if (!gcr_proc_read(pid, name, &info, NULL) && strstr(info, "\nlock:"))
		scan->opens->file_locks = true;
}

static void judge_descriptor(struct opens_scan *scan, pid_t pid, int directory, const char *name,
			     const struct mounts *mounts)
{
	struct opens_file file = {.pid = pid, .fd = atoi(name), .info = ""};
	_cleanup_free_ char *info = NULL;
	char link[OPENS_LINK_BYTES + 1];
	ssize_t length = readlinkat(directory, name, link, sizeof(link) - 1);
	char info_name[64];

	if (length < 0)
		return; /* closed in between */
	link[length] = '\0';
	if (opens_is_plugins(scan, link)) {
		note_plugins_lock(scan, pid, file.fd);
		return;
	}
	file.link = link;
	snprintf(file.proc_path, sizeof(file.proc_path), "/proc/%d/fd/%d", (int)pid, file.fd);
	if (!ask_status(&file))
		return;
	snprintf(info_name, sizeof(info_name), "fdinfo/%d", file.fd);
	/* fdinfo of sockets has nothing that is needed here. */
	if (!S_ISSOCK(file.status.stx_mode) && gcr_proc_read(pid, info_name, &info, NULL) == 0)
		file.info = info;
	if (is_on_no_mount(&file, mounts))
		refuse_mount(scan, &file);
	else
		opens_judge(scan, &file);
}

static int judge_descriptors(struct opens_scan *scan, pid_t pid, const struct mounts *mounts)
{
	_cleanup_closedir_ DIR *directory = NULL;
	char path[GCR_PROC_PATH_BYTES];
	struct dirent *entry;

	gcr_proc_path(path, pid, "fd");
	directory = opendir(path);
	if (!directory)
		return gcr_proc_error(errno);
	while (!opens_is_over(scan) && (entry = readdir(directory)))
		if (isdigit((unsigned char)entry->d_name[0]))
			judge_descriptor(scan, pid, dirfd(directory), entry->d_name, mounts);
	return 0;
}

/* Judges the working directory, the root and the executable. */
static void judge_places(struct opens_scan *scan, pid_t pid)
{
	static const char *const names[] = {"cwd", "root", "exe"};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(names); i++) {
		struct opens_file file = {.pid = pid, .fd = OPENS_UNNAMED, .info = ""};
		char link[OPENS_LINK_BYTES + 1];
		ssize_t length;

		snprintf(file.proc_path, sizeof(file.proc_path), "/proc/%d/%s", (int)pid, names[i]);
		length = readlink(file.proc_path, link, sizeof(link) - 1);
		if (length < 0 || !ask_status(&file))
			continue;
		link[length] = '\0';
		file.link = link;
		if (!S_ISREG(file.status.stx_mode) || !opens_judge_rights(scan, &file, false))
			opens_judge_regular(scan, &file);
	}
}

/* Judges the file of one line of maps: "START-END PERMS OFFSET MAJ:MIN INODE   PATH". */
static void judge_mapping(struct opens_scan *scan, pid_t pid, const char *line, const char *path,
			  const struct mounts *mounts)
{
	struct opens_file file = {.pid = pid, .fd = OPENS_UNNAMED, .info = "", .link = path};
	unsigned long start, end;

	if (sscanf(line, "%lx-%lx", &start, &end) != 2 || opens_is_plugins(scan, path))
		return;
	if (strncmp(path, "/SYSV", 5) == 0) {
		opens_refuse(scan, pid, OPENS_NO_FD, EOPNOTSUPP,
			     "has System V shared memory, which CRIU dumps only with an IPC "
			     "namespace: detach it");
		return;
	}
	snprintf(file.proc_path, sizeof(file.proc_path), "/proc/%d/map_files/%lx-%lx", (int)pid,
		 start, end);
	if (!ask_status(&file)) {
		/*
		 * map_files needs a capability that root does not always have. After any other
		 * error the mapping is gone, and its path may lead to another file.
		 */
		if (errno != EPERM && errno != EACCES)
			return;
		snprintf(file.proc_path, sizeof(file.proc_path), "/proc/%d/root%.4000s", (int)pid,
			 path);
		if (!ask_status(&file))
			return;
	}
	if (is_on_no_mount(&file, mounts))
		refuse_mount(scan, &file);
	else if (S_ISCHR(file.status.stx_mode) && file.status.stx_rdev_major != 1)
		opens_refuse(scan, pid, OPENS_NO_FD, EOPNOTSUPP,
			     "has mapped the device %s, which CRIU cannot dump: close it", path);
	else if (S_ISREG(file.status.stx_mode) && strncmp(path, "/dev/zero (deleted)", 19) != 0 &&
		 !opens_judge_rights(scan, &file, false) && !opens_judge_regular(scan, &file))
		opens_list_file(scan, &file, true);
}

/*
 * Judges the files of all mappings. Reads one line at a time, since there can be millions.
 * Consecutive lines of the same file are judged once.
 */
static void judge_mappings(struct opens_scan *scan, pid_t pid, const struct mounts *mounts)
{
	_cleanup_fclose_ FILE *maps = NULL;
	_cleanup_free_ char *line = NULL;
	_cleanup_free_ char *last = strdup("");
	char path[GCR_PROC_PATH_BYTES];
	size_t line_bytes = 0;

	gcr_proc_path(path, pid, "maps");
	maps = fopen(path, "re");
	while (maps && last && !opens_is_over(scan) && getline(&line, &line_bytes, maps) >= 0) {
		char *name = line;

		for (int column = 0; column < 5; column++) {
			name += strcspn(name, " ");
			name += strspn(name, " ");
		}
		/* "[heap]", "[anon:...]" and the like are not files */
		if (*name != '/')
			continue;
		name[strcspn(name, "\n")] = '\0';
		if (strcmp(name, last) == 0)
			continue;
		free(last);
		last = strdup(name);
		judge_mapping(scan, pid, line, name, mounts);
	}
	if (!last)
		scan->failed = true;
}

/* ---- the tree ---- */

static int scan_process(struct opens_scan *scan, pid_t pid, struct gcr_error *error)
{
	_cleanup_(free_mounts) struct mounts mounts = {};
	bool is_root = pid == scan->pids[0];
	struct gcr_proc_stat stat;
	int r = gcr_proc_stat(pid, &stat);

	/* Descendants of the root can start and end if the tree runs. */
	if (r < 0 || stat.state == 'Z' || stat.state == 'X') {
		if (!is_root)
			return 0;
		return gcr_error_set(error, r < 0 ? -r : ESRCH, "process %d has ended", (int)pid);
	}
	judge_namespaces(scan, pid);
	judge_tasks(scan, pid);
	read_mounts(pid, &mounts);
	r = judge_descriptors(scan, pid, &mounts);
	if (r == -ESRCH && !is_root)
		return 0;
	if (r < 0)
		return gcr_error_set(error, -r, "what process %d has open cannot be read: %s",
				     (int)pid, strerror(-r));
	judge_places(scan, pid);
	judge_mappings(scan, pid, &mounts);
	return 0;
}

static void free_seen_file(void *entry)
{
	free(entry); /* its path is owned by the list */
}

static void free_seen_file_and_path(void *data)
{
	struct gcr_open_file *entry = data;

	free(entry->path);
	free(entry);
}

void gcr_opens_destroy(struct gcr_opens *opens)
{
	if (!opens)
		return;
	for (size_t i = 0; opens->files && i < opens->files_count; i++)
		free(opens->files[i].path);
	free(opens->files);
	free(opens->findings);
	free(opens);
}

/*
 * Sets the error of a scan that is over before its end: -E2BIG, -ENOMEM, -ECANCELED without a
 * message.
 */
static int fail(const struct opens_scan *scan, struct gcr_error *error)
{
	if (scan->is_too_large)
		return gcr_error_set(error, E2BIG,
				     "the processes have too many files, pipes and sockets open or "
				     "mapped: close some");
	if (scan->failed)
		return gcr_error_set(error, ENOMEM, "out of memory for what the program has open");
	return gcr_error_set(error, ECANCELED, "%s", "");
}

int gcr_opens_scan(const pid_t *pids, size_t pids_count, const struct gcr_opens_options *options,
		   struct gcr_opens **ret_opens, struct gcr_error *error)
{
	_cleanup_(gcr_opens_destroy_cleanup) struct gcr_opens *opens = calloc(1, sizeof(*opens));
	struct opens_scan scan = {
		.pids = pids,
		.pids_count = pids_count,
		.options = options,
		.opens = opens,
	};
	pid_t session;
	int r = 0;

	if (!opens || pids_count == 0)
		return gcr_error_set(error, opens ? EINVAL : ENOMEM, "no processes, or no memory");
	/* CRIU needs this option for the root only; the others may be in any session. */
	session = getsid(pids[0]);
	opens->shell_job = session >= 0 && session != pids[0];
	for (size_t i = 0; i < pids_count && r == 0 && !opens_is_over(&scan); i++)
		r = scan_process(&scan, pids[i], error);
	if (r == 0 && !opens_is_over(&scan))
		opens_judge_ends(&scan);
	if (r == 0)
		opens_list_finish(&scan);
	else
		opens->files_count = 0;
	if (scan.files_seen)
		tdestroy(scan.files_seen, opens->files ? free_seen_file : free_seen_file_and_path);
	if (scan.ends_seen)
		tdestroy(scan.ends_seen, free);
	free(scan.ends);
	opens_forget_contents(&scan);
	opens_forget_tcp(&scan);
	if (r == 0 && opens_is_over(&scan))
		r = fail(&scan, error);
	if (r < 0)
		return r;
	*ret_opens = TAKE_PTR(opens);
	return 0;
}

int gcr_opens_refusal(const struct gcr_opens *opens, struct gcr_error *error)
{
	size_t externals = opens->findings_lost;

	for (size_t i = 0; i < opens->findings_count; i++) {
		const struct gcr_open_finding *finding = &opens->findings[i];

		if (finding->verdict == GCR_OPEN_REFUSED)
			return gcr_error_set(error, finding->error.number, "%s",
					     finding->error.words);
		externals++;
	}
	if (externals > GCR_OPENS_EXTERNALS_MAX)
		return gcr_error_set(error, E2BIG,
				     "the processes have more than %d pipes, sockets and terminals "
				     "open whose other ends are outside: close some",
				     GCR_OPENS_EXTERNALS_MAX);
	return 0;
}
