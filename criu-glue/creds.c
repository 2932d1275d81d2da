/* SPDX-License-Identifier: MIT */
/*
 * core-N.img is that of a thread with the number N in its own pid namespace, the last one of its
 * line NSpid in /proc.
 */
#include "criu-glue/creds.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "criu-glue/image.h"
#include "criu-glue/image_creds.h"
#include "lib/cleanup.h"
#include "lib/proc_file.h"
#include "lib/proc_text.h"
#include "lib/procfs.h"

static const char *const set_names[GCR_CREDS_SETS] = {"CapInh", "CapPrm", "CapEff", "CapBnd",
						      "CapAmb"};

/* A thread that runs. */
struct thread {
	pid_t pid;     /* of its process, in our namespace */
	pid_t number;  /* its own, in its namespace */
	pid_t tid;     /* its own, in ours */
	bool is_found; /* in the images */
};

struct threads {
	struct thread *list;
	size_t count, room;
	bool is_restored; /* the threads come from the images, and not the images from them */
};

static void threads_finish(struct threads *threads)
{
	free(threads->list);
}

/* ---- what the kernel says ---- */

/* Reads the status of a thread; the caller frees *ret_text. -ESRCH: the thread has ended. */
static int read_status(const struct thread *thread, char **ret_text)
{
	char name[64];

	snprintf(name, sizeof(name), "task/%d/status", (int)thread->tid);
	return gcr_proc_read(thread->pid, name, ret_text, NULL);
}

/* The text behind the line's name and white space, or NULL. @name begins with a newline. */
static const char *find_line(const char *text, const char *name)
{
	const char *line = strstr(text, name);

	return line ? line + strlen(name) + strspn(line + strlen(name), " \t") : NULL;
}

static int parse_groups(const char *line, struct gcr_image_creds *creds)
{
	int result = 0;

	while (!result && *line && *line != '\n') {
		char *end;
		unsigned long group = strtoul(line, &end, 10);

		if (end == line)
			return -EIO;
		result = gcr_image_creds_add_group(creds, (uint32_t)group);
		line = end + strspn(end, " \t");
	}
	return result;
}

/* Parses the lines of a status. -EIO: a line is missing; -ENOMEM. */
static int parse_status(const char *text, struct gcr_image_creds *creds)
{
	const char *uids = find_line(text, "\nUid:"), *gids = find_line(text, "\nGid:");
	const char *groups = find_line(text, "\nGroups:");
	const char *no_new_privs = find_line(text, "\nNoNewPrivs:");
	uint32_t *ids = creds->ids;
	int result;

	if (!uids || !gids || !groups || !no_new_privs ||
	    sscanf(uids, "%u %u %u %u", &ids[0], &ids[2], &ids[4], &ids[6]) != 4 ||
	    sscanf(gids, "%u %u %u %u", &ids[1], &ids[3], &ids[5], &ids[7]) != 4)
		return -EIO;
	creds->no_new_privs = *no_new_privs != '0';
	for (size_t i = 0; i < GCR_CREDS_SETS; i++) {
		char name[16];
		const char *set;

		snprintf(name, sizeof(name), "\n%s:", set_names[i]);
		set = find_line(text, name);
		if (!set || sscanf(set, "%" SCNx64, &creds->capabilities[i]) != 1)
			return -EIO;
	}
	creds->has_ambient = true;
	result = parse_groups(groups, creds);
	gcr_image_creds_sort(creds);
	return result;
}

/* Adds the thread, unless it has ended. */
static int add_thread(struct threads *threads, pid_t pid, pid_t tid)
{
	struct thread thread = {.pid = pid, .tid = tid};
	_cleanup_free_ char *text = NULL;
	int result = read_status(&thread, &text);
	struct gcr_proc_status status;

	if (!result)
		result = gcr_proc_parse_status(text, &status);
	if (result < 0)
		return result == -ESRCH ? 0 : result;
	if (status.state == 'Z' || status.state == 'X')
		return 0;
	thread.number = status.ns_pids_count ? status.ns_pids[status.ns_pids_count - 1] : tid;
	if (threads->count == threads->room) {
		size_t room = threads->room ? threads->room * 2 : 64;
		struct thread *list = reallocarray(threads->list, room, sizeof(*list));

		if (!list)
			return -ENOMEM;
		threads->list = list;
		threads->room = room;
	}
	threads->list[threads->count++] = thread;
	return 0;
}

static int add_threads(struct threads *threads, pid_t pid)
{
	_cleanup_closedir_ DIR *directory = NULL;
	char path[GCR_PROC_PATH_BYTES];
	const struct dirent *entry;
	int result = 0;

	gcr_proc_path(path, pid, "task");
	directory = opendir(path);
	if (!directory)
		return errno == ENOENT ? 0 : -errno;
	while (!result && (entry = readdir(directory))) {
		pid_t tid = (pid_t)strtol(entry->d_name, NULL, 10);

		if (tid > 0)
			result = add_thread(threads, pid, tid);
	}
	return result;
}

static int compare_threads(const void *left, const void *right)
{
	const struct thread *a = left, *b = right;

	return (a->number > b->number) - (a->number < b->number);
}

static int find_threads(struct threads *threads, const pid_t *pids, size_t count)
{
	int result = 0;

	for (size_t i = 0; i < count && !result; i++)
		result = add_threads(threads, pids[i]);
	if (threads->count)
		qsort(threads->list, threads->count, sizeof(*threads->list), compare_threads);
	return result;
}

/* ---- the comparison ---- */

/*
 * May a thread with the capabilities of @kernel have these securebits? The kernel does not tell a
 * thread's securebits. All but SECBIT_KEEP_CAPS take CAP_SETPCAP, or come from a program that had
 * it. A user who gets them otherwise has power over set-user-ID programs, which inherit them.
 */
static bool may_have(uint32_t securebits, const struct gcr_image_creds *kernel)
{
	return !(securebits & ~(uint32_t)SECBIT_KEEP_CAPS) ||
	       kernel->capabilities[GCR_CREDS_PERMITTED] & UINT64_C(1) << CAP_SETPCAP;
}

/*
 * Does a set of capabilities differ? CRIU, with few capabilities of its own, cannot give all of the
 * bounding set to a restored thread, which then has less.
 */
static bool differs(const struct gcr_image_creds *image, const struct gcr_image_creds *kernel,
		    unsigned int set, bool is_restored)
{
	if (set == GCR_CREDS_AMBIENT && !image->has_ambient)
		return false;
	return set == GCR_CREDS_BOUNDING && is_restored
		       ? kernel->capabilities[set] & ~image->capabilities[set]
		       : kernel->capabilities[set] != image->capabilities[set];
}

/*
 * The name of the first credentials that differ, for a message. NULL: none differ, or a restored
 * thread only has less.
 */
static const char *find_difference(const struct gcr_image_creds *image,
				   const struct gcr_image_creds *kernel, bool is_restored)
{
	if (memcmp(image->ids, kernel->ids, sizeof(image->ids)) != 0)
		return "user or group ids";
	if (image->groups_count != kernel->groups_count ||
	    (image->groups_count && memcmp(image->groups, kernel->groups,
					   image->groups_count * sizeof(*image->groups)) != 0))
		return "groups";
	for (size_t i = 0; i < GCR_CREDS_SETS; i++)
		if (differs(image, kernel, (unsigned int)i, is_restored))
			return set_names[i];
	return image->no_new_privs == kernel->no_new_privs || (is_restored && kernel->no_new_privs)
		       ? NULL
		       : "no_new_privs";
}

static int fail_ended(pid_t number, struct gcr_error *error)
{
	return gcr_error_set(error, EBUSY,
			     "process or thread %d of the tree has ended since CRIU dumped it, so "
			     "its rights cannot be checked any more: write dump again",
			     (int)number);
}

/*
 * Compares the credentials in the image @name with those of the running thread. Errors, with a
 * message: -EPERM: they differ; -EBUSY: the thread has ended; and errors of /proc.
 */
static int check_thread(const struct gcr_image_creds *image, const struct thread *thread,
			bool is_restored, const char *name, struct gcr_error *error)
{
	_cleanup_(gcr_image_creds_finish) struct gcr_image_creds kernel = {0};
	_cleanup_free_ char *text = NULL;
	const char *difference;
	int result = read_status(thread, &text);

	if (!result)
		result = parse_status(text, &kernel);
	if (result == -ESRCH)
		return fail_ended(thread->number, error);
	if (result < 0)
		return gcr_error_set(error, -result, "process %d: its rights cannot be read: %s",
				     (int)thread->pid, strerror(-result));
	difference = find_difference(image, &kernel, is_restored);
	if (!difference && may_have(image->securebits, &kernel))
		return 0;
	if (!difference)
		return gcr_error_set(error, EPERM,
				     "process %d has securebits in CRIU's %s that it may not set "
				     "itself, and the kernel does not tell whether it has them",
				     (int)thread->pid, name);
	if (is_restored)
		return gcr_error_set(error, EPERM,
				     "process %d has other %s than CRIU's %s says: CRIU has not "
				     "been able to set them",
				     (int)thread->pid, difference, name);
	return gcr_error_set(error, EPERM,
			     "process %d has other %s in CRIU's %s than in /proc: somebody has "
			     "changed what CRIU reads, or the process has got other rights",
			     (int)thread->pid, difference, name);
}

/* The thread with this number; NULL: there is none. */
static struct thread *find_thread(const struct threads *threads, pid_t number)
{
	const struct thread key = {.number = number};

	return threads->count
		       ? bsearch(&key, threads->list, threads->count, sizeof(key), compare_threads)
		       : NULL;
}

static int fail_number(pid_t number, const char *words, struct gcr_error *error)
{
	return gcr_error_set(error, EPERM,
			     "thread %d of the tree %s CRIU's images: somebody has changed what "
			     "CRIU reads",
			     (int)number, words);
}

/*
 * Checks core-N.img of the thread @number, which the images have in @process, and marks the thread
 * as found. The processes themselves have told CRIU these numbers, too, so they are checked as
 * well. Errors of gcr_criu_check_creds().
 */
static int check_image(int images_fd, pid_t number, const struct gcr_criu_process *process,
		       const struct threads *threads, struct gcr_error *error)
{
	_cleanup_(gcr_image_creds_finish) struct gcr_image_creds creds = {0};
	const struct thread *leader = find_thread(threads, process->pid);
	struct thread *thread = find_thread(threads, number);
	_cleanup_free_ void *bytes = NULL;
	char name[GCR_CRIU_NAME_BYTES];
	size_t size;
	int result;

	result = gcr_criu_core_read(images_fd, number, name, &bytes, &size, error);
	if (result < 0)
		return result;
	result = gcr_image_creds_parse(bytes, size, &creds);
	if (result < 0)
		return gcr_criu_image_fail(error, result, name);
	if (creds.is_dead)
		return thread ? fail_number(number, "has ended in", error) : 0;
	if (!thread || !leader)
		return fail_ended(number, error);
	if (thread->is_found)
		return fail_number(number, "is twice in", error);
	if (leader->tid != leader->pid || thread->pid != leader->pid)
		return fail_number(number, "is in another process in", error);
	thread->is_found = true;
	return check_thread(&creds, thread, threads->is_restored, name, error);
}

/* Checks all threads of the images, and that these have all threads that run. */
static int check_images(int images_fd, const struct gcr_criu_tree *tree,
			const struct threads *threads, struct gcr_error *error)
{
	int result = 0;

	for (size_t i = 0; i < tree->count && !result; i++) {
		const struct gcr_criu_process *process = &tree->processes[i];

		for (size_t j = 0; j < process->count && !result; j++)
			result = check_image(images_fd, tree->threads[process->first + j], process,
					     threads, error);
	}
	for (size_t i = 0; i < threads->count && !result; i++)
		if (!threads->list[i].is_found)
			result = fail_number(threads->list[i].number, "is not in", error);
	return result;
}

int gcr_criu_check_creds(int images_fd, const pid_t *pids, size_t count, bool is_restored,
			 struct gcr_error *error)
{
	_cleanup_(gcr_criu_tree_finish) struct gcr_criu_tree tree = {0};
	_cleanup_(threads_finish) struct threads threads = {.is_restored = is_restored};
	int result = gcr_criu_tree_read(images_fd, &tree, error);

	if (result < 0)
		return result;
	result = find_threads(&threads, pids, count);
	if (result < 0)
		return gcr_error_set(error, -result, "the tree's threads cannot be read: %s",
				     strerror(-result));
	return check_images(images_fd, &tree, &threads, error);
}
