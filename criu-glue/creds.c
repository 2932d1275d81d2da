/* SPDX-License-Identifier: MIT */
/*
 * core-N.img has a message of images/core.proto of CRIU 4, with one of images/creds.proto in it. A
 * thread has the number N in its own pid namespace, the last one of its line NSpid in /proc.
 */
#include "criu-glue/creds.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "criu-glue/image.h"
#include "criu-glue/protobuf.h"
#include "lib/cleanup.h"
#include "lib/proc_file.h"
#include "lib/proc_text.h"
#include "lib/procfs.h"

/* Field numbers of core_entry, task_core_entry, thread_core_entry, and creds_entry. */
enum {
	FIELD_TASK_CORE = 3,
	FIELD_THREAD_CORE = 5,

	FIELD_TASK_STATE = 1,

	FIELD_CREDS = 10,

	FIELD_IDS = 1,		/* to 8 */
	FIELD_CAPABILITIES = 9, /* to 12 */
	FIELD_GROUPS = 14,
	FIELD_NO_NEW_PRIVS = 18,
	FIELD_AMBIENT = 19,
};

#define STATE_DEAD 2 /* TASK_DEAD of CRIU: nothing of the process was dumped */

enum { INHERITABLE, PERMITTED, EFFECTIVE, BOUNDING, AMBIENT, SETS };

static const char *const set_names[SETS] = {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"};

struct creds {
	/* uid, gid, euid, egid, suid, sgid, fsuid, fsgid */
	uint32_t ids[8];
	uint64_t capabilities[SETS];
	bool has_ambient; /* CRIU 3 does not dump these */
	bool no_new_privs;
	uint32_t *groups; /* sorted */
	size_t groups_count;
};

/* A thread that runs. */
struct thread {
	pid_t pid;    /* of its process, in our namespace */
	pid_t number; /* its own, in its namespace */
	pid_t tid;    /* its own, in ours */
};

struct threads {
	struct thread *list;
	size_t count, room;
};

static void creds_finish(struct creds *creds)
{
	free(creds->groups);
}

static void threads_finish(struct threads *threads)
{
	free(threads->list);
}

static int add_group(struct creds *creds, uint64_t group)
{
	uint32_t *groups;

	if (group > UINT32_MAX)
		return -EIO;
	groups = reallocarray(creds->groups, creds->groups_count + 1, sizeof(*groups));
	if (!groups)
		return -ENOMEM;
	creds->groups = groups;
	groups[creds->groups_count++] = (uint32_t)group;
	return 0;
}

static int compare_groups(const void *left, const void *right)
{
	const uint32_t *a = left, *b = right;

	return (*a > *b) - (*a < *b);
}

static void sort_groups(struct creds *creds)
{
	if (creds->groups_count)
		qsort(creds->groups, creds->groups_count, sizeof(*creds->groups), compare_groups);
}

/* ---- what the kernel says ---- */

/* Reads the status of a thread. -ESRCH: it has ended. */
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

static int parse_groups(const char *line, struct creds *creds)
{
	int result = 0;

	while (!result && *line && *line != '\n') {
		char *end;
		unsigned long group = strtoul(line, &end, 10);

		if (end == line)
			return -EIO;
		result = add_group(creds, group);
		line = end + strspn(end, " \t");
	}
	return result;
}

/* Parses the lines of a status. -EIO: a line is missing; -ENOMEM. */
static int parse_status(const char *text, struct creds *creds)
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
	for (size_t i = 0; i < SETS; i++) {
		char name[16];
		const char *set;

		snprintf(name, sizeof(name), "\n%s:", set_names[i]);
		set = find_line(text, name);
		if (!set || sscanf(set, "%" SCNx64, &creds->capabilities[i]) != 1)
			return -EIO;
	}
	creds->has_ambient = true;
	result = parse_groups(groups, creds);
	sort_groups(creds);
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

/* ---- what the image says ---- */

/* A creds_entry as it is read: a set of capabilities consists of two numbers of 32 bits. */
struct reading {
	struct creds *creds;
	unsigned int ids;	   /* bit N: the id with field number N + 1 has been read */
	unsigned int halves[SETS]; /* numbers read of each set */
};

static int take_half(struct reading *reading, unsigned int set, uint64_t value)
{
	if (value > UINT32_MAX || reading->halves[set] == 2)
		return -EIO;
	reading->creds->capabilities[set] |= value << (32 * reading->halves[set]++);
	return 0;
}

static int take_number(struct reading *reading, unsigned int field, uint64_t value)
{
	struct creds *creds = reading->creds;

	if (field >= FIELD_IDS && field < FIELD_IDS + GCR_ARRAY_SIZE(creds->ids)) {
		if (value > UINT32_MAX)
			return -EIO;
		creds->ids[field - FIELD_IDS] = (uint32_t)value;
		reading->ids |= 1u << (field - FIELD_IDS);
		return 0;
	}
	if (field >= FIELD_CAPABILITIES && field < FIELD_CAPABILITIES + AMBIENT)
		return take_half(reading, field - FIELD_CAPABILITIES, value);
	if (field == FIELD_AMBIENT) {
		creds->has_ambient = true;
		return take_half(reading, AMBIENT, value);
	}
	if (field == FIELD_GROUPS)
		return add_group(creds, value);
	if (field == FIELD_NO_NEW_PRIVS)
		creds->no_new_privs = value;
	return 0;
}

/* Takes the numbers of a field, which has one or several packed ones. */
static int take_field(struct reading *reading, const struct gcr_protobuf_field *field)
{
	const uint8_t *at = field->content, *end = at + field->content_bytes;
	int result = 0;

	/* Fields with other numbers are texts, the profiles of security modules. */
	if (field->wire == GCR_PROTOBUF_BYTES && field->number != FIELD_GROUPS &&
	    field->number != FIELD_AMBIENT &&
	    (field->number < FIELD_IDS || field->number >= FIELD_CAPABILITIES + AMBIENT))
		return 0;
	if (field->wire != GCR_PROTOBUF_VARINT && field->wire != GCR_PROTOBUF_BYTES)
		return -EIO;
	while (!result && at < end) {
		uint64_t value;

		result = gcr_protobuf_varint(&at, end, &value)
				 ? take_number(reading, field->number, value)
				 : -EIO;
	}
	return result;
}

static int parse_creds(const uint8_t *at, const uint8_t *end, struct creds *creds)
{
	struct reading reading = {.creds = creds};
	struct gcr_protobuf_field field;
	int result = 0;

	while (!result && at < end)
		result = gcr_protobuf_next(&at, end, &field) ? take_field(&reading, &field) : -EIO;
	if (result < 0)
		return result;
	for (size_t i = 0; i < AMBIENT; i++)
		if (reading.halves[i] != 2)
			return -EIO;
	sort_groups(creds);
	return reading.ids == (1u << GCR_ARRAY_SIZE(creds->ids)) - 1 ? 0 : -EIO;
}

/* What core-N.img tells: the credentials' message, NULL if there is none, and the task's state. */
struct core {
	const uint8_t *creds, *creds_end;
	uint64_t state;
};

/* Looks for one field in a message: at most one, or -EIO. *ret_field stays if there is none. */
static int find_field(const uint8_t *at, const uint8_t *end, unsigned int number,
		      enum gcr_protobuf_wire wire, struct gcr_protobuf_field *ret_field)
{
	struct gcr_protobuf_field field;

	while (at < end) {
		if (!gcr_protobuf_next(&at, end, &field))
			return -EIO;
		if (field.number != number)
			continue;
		/* A reader would take the last one, or merge them. */
		if (field.wire != wire || ret_field->number)
			return -EIO;
		*ret_field = field;
	}
	return 0;
}

static int parse_core(const uint8_t *image, size_t bytes, struct core *ret_core)
{
	struct gcr_protobuf_field task = {0}, thread = {0}, state = {0}, creds = {0};
	const uint8_t *at, *end = image + bytes, *message;
	int result = gcr_criu_image_begin(image, bytes, GCR_CRIU_CORE, &at);

	if (!result)
		result = gcr_criu_image_next(&at, end, &message);
	if (result < 0 || at != end)
		return -EIO;
	result = find_field(message, end, FIELD_TASK_CORE, GCR_PROTOBUF_BYTES, &task);
	if (!result)
		result = find_field(message, end, FIELD_THREAD_CORE, GCR_PROTOBUF_BYTES, &thread);
	if (!result && task.number)
		result = find_field(task.content, task.content + task.content_bytes,
				    FIELD_TASK_STATE, GCR_PROTOBUF_VARINT, &state);
	if (!result && thread.number)
		result = find_field(thread.content, thread.content + thread.content_bytes,
				    FIELD_CREDS, GCR_PROTOBUF_BYTES, &creds);
	*ret_core = (struct core){
		.creds = creds.content,
		.creds_end = creds.content ? creds.content + creds.content_bytes : NULL,
		.state = state.value,
	};
	return result;
}

/* ---- the comparison ---- */

/* The name of what differs, for a message; NULL: nothing does. */
static const char *find_difference(const struct creds *image, const struct creds *kernel)
{
	if (memcmp(image->ids, kernel->ids, sizeof(image->ids)) != 0)
		return "user or group ids";
	if (image->groups_count != kernel->groups_count ||
	    (image->groups_count && memcmp(image->groups, kernel->groups,
					   image->groups_count * sizeof(*image->groups)) != 0))
		return "groups";
	for (size_t i = 0; i < SETS; i++)
		if (image->capabilities[i] != kernel->capabilities[i] &&
		    (i != AMBIENT || image->has_ambient))
			return set_names[i];
	return image->no_new_privs == kernel->no_new_privs ? NULL : "no_new_privs";
}

static int fail_ended(pid_t number, struct gcr_error *error)
{
	return gcr_error_set(error, EBUSY,
			     "process or thread %d of the tree has ended since CRIU dumped it, and "
			     "nobody knows with which rights it ran: write dump again",
			     (int)number);
}

/* Compares what the image tells with the thread that runs. */
static int check_thread(const struct core *core, const struct thread *thread, const char *name,
			struct gcr_error *error)
{
	_cleanup_(creds_finish) struct creds image = {0};
	_cleanup_(creds_finish) struct creds kernel = {0};
	_cleanup_free_ char *text = NULL;
	const char *difference;
	int result;

	if (!core->creds)
		return gcr_criu_image_fail(error, -EIO, name);
	result = parse_creds(core->creds, core->creds_end, &image);
	if (result < 0)
		return gcr_criu_image_fail(error, result, name);
	result = read_status(thread, &text);
	if (!result)
		result = parse_status(text, &kernel);
	if (result == -ESRCH)
		return fail_ended(thread->number, error);
	if (result < 0)
		return gcr_error_set(error, -result, "process %d: its rights cannot be read: %s",
				     (int)thread->pid, strerror(-result));
	difference = find_difference(&image, &kernel);
	if (!difference)
		return 0;
	return gcr_error_set(error, EPERM,
			     "process %d has other %s in CRIU's %s than in /proc: somebody has "
			     "changed what CRIU reads, or the process has got other rights",
			     (int)thread->pid, difference, name);
}

/* Checks core-N.img of the thread @number. */
static int check_image(int images_fd, pid_t number, const struct threads *threads,
		       struct gcr_error *error)
{
	const struct thread *thread = NULL, key = {.number = number};
	_cleanup_free_ void *bytes = NULL;
	struct core core;
	char name[32];
	size_t size;
	int result;

	snprintf(name, sizeof(name), "core-%d.img", (int)number);
	result = gcr_criu_image_read(images_fd, name, &bytes, &size, error);
	if (result < 0)
		return result;
	result = parse_core(bytes, size, &core);
	if (result < 0)
		return gcr_criu_image_fail(error, result, name);
	if (core.state == STATE_DEAD)
		return 0;
	if (threads->count)
		thread = bsearch(&key, threads->list, threads->count, sizeof(key), compare_threads);
	return thread ? check_thread(&core, thread, name, error) : fail_ended(number, error);
}

int gcr_criu_check_creds(int images_fd, const pid_t *pids, size_t count, struct gcr_error *error)
{
	_cleanup_(gcr_criu_tree_finish) struct gcr_criu_tree tree = {0};
	_cleanup_(threads_finish) struct threads threads = {0};
	int result = gcr_criu_tree_read(images_fd, &tree, error);

	if (result < 0)
		return result;
	result = find_threads(&threads, pids, count);
	if (result < 0)
		return gcr_error_set(error, -result, "the tree's threads cannot be read: %s",
				     strerror(-result));
	for (size_t i = 0; i < tree.threads_count && !result; i++)
		result = check_image(images_fd, tree.threads[i], &threads, error);
	return result;
}
