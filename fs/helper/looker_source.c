/* SPDX-License-Identifier: MIT */
/* The source of lib/proc_source.h: each function sends one request to a helper. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/helper/looker.h"
#include "fs/helper/looker_private.h"
#include "lib/cleanup.h"
#include "lib/proc_file.h"
#include "lib/proc_page.h"
#include "lib/procfs.h"

#define SUMMING_USEC (20 * GCR_USEC_PER_SEC) /* for smaps_rollup, which is slow by itself */

#define SENT_USEC (200 * GCR_USEC_PER_MSEC)

#define HEAD_BYTES offsetof(struct gcr_looker_request, fds)

static int set_name(struct gcr_looker_request *request, const char *name)
{
	if (strlen(name) >= sizeof(request->name))
		return -ENAMETOOLONG;
	strcpy(request->name, name);
	return 0;
}

static enum gcr_silent_kind kind_of(const char *name)
{
	const char *slash = strrchr(name, '/');

	return !strcmp(slash ? slash + 1 : name, "stat") ? GCR_SILENT_ALL : GCR_SILENT_MEMORY;
}

/* A look with the default deadline, that sends only the head of @request, without a memfd. */
static struct gcr_one_look look_for(struct gcr_looker_request *request)
{
	return (struct gcr_one_look){
		.request = request,
		.request_bytes = HEAD_BYTES,
		.fd = -1,
		.kind = GCR_SILENT_ALL,
		.deadline_usec = GCR_LOOK_DEADLINE_USEC,
	};
}

/* Sets up a look at the file @name of /proc/PID; NULL: at no file. -ENAMETOOLONG. */
static int look_at_file(struct gcr_one_look *look, struct gcr_looker_request *request,
			const char *name)
{
	if (!name)
		return 0;
	look->kind = kind_of(name);
	if (!strcmp(name, "smaps_rollup"))
		look->deadline_usec = SUMMING_USEC;
	return set_name(request, name);
}

/* Gets the text that @verb asks for as a memfd; *ret_fd is at its beginning. */
static int get_file(enum gcr_looker_verb verb, pid_t pid, const char *name, int *ret_fd)
{
	struct gcr_looker_request request = {.verb = verb, .pid = pid};
	_cleanup_close_ int fd = memfd_create("gpucr-look", MFD_CLOEXEC);
	struct gcr_one_look look = look_for(&request);
	int r = fd < 0 ? -errno : look_at_file(&look, &request, name);

	look.fd = fd;
	if (r == 0)
		r = gcr_one_look_perform(&look);
	if (r < 0)
		return r;
	gcr_one_look_finish(&look);
	if (lseek(fd, 0, SEEK_SET) < 0)
		return -errno;
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static int get_file_text(enum gcr_looker_verb verb, pid_t pid, const char *name, char **ret_text,
			 size_t *ret_bytes)
{
	char path[GCR_PROC_PATH_BYTES];
	_cleanup_close_ int fd = -1;
	int r = get_file(verb, pid, name, &fd);

	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return gcr_file_read(path, ret_text, ret_bytes);
}

/* Gets a text; a short one is part of the reply. */
static int get_text(enum gcr_looker_verb verb, pid_t pid, const char *name, char **ret_text,
		    size_t *ret_bytes)
{
	struct gcr_looker_request request = {.verb = verb, .pid = pid};
	struct gcr_one_look look = look_for(&request);
	char *text;
	int r = look_at_file(&look, &request, name);

	if (r < 0)
		return r;
	look.has_data = true;
	r = gcr_one_look_perform(&look);
	if (r == -EMSGSIZE)
		return get_file_text(verb, pid, name, ret_text, ret_bytes);
	if (r < 0)
		return r;
	text = malloc(look.reply.bytes + 1);
	if (text) {
		memcpy(text, gcr_one_look_data(&look), look.reply.bytes);
		text[look.reply.bytes] = '\0';
		if (ret_bytes)
			*ret_bytes = look.reply.bytes;
		*ret_text = text;
	}
	gcr_one_look_finish(&look);
	return text ? 0 : -ENOMEM;
}

static int source_read(pid_t pid, const char *name, char **ret_text, size_t *ret_bytes)
{
	return get_text(GCR_LOOKER_READ, pid, name, ret_text, ret_bytes);
}

static int source_open(pid_t pid, const char *name, int *ret_fd)
{
	return get_file(GCR_LOOKER_READ, pid, name, ret_fd);
}

static int source_links(pid_t pid, char **ret_text, size_t *ret_bytes)
{
	return get_text(GCR_LOOKER_LINKS, pid, NULL, ret_text, ret_bytes);
}

static int source_link(pid_t pid, const char *name, char *ret_target, size_t target_bytes)
{
	struct gcr_looker_request request = {.verb = GCR_LOOKER_LINK, .pid = pid};
	struct gcr_one_look look = look_for(&request);
	int r = set_name(&request, name);

	look.has_data = true;
	if (r == 0)
		r = gcr_one_look_perform(&look);
	if (r < 0)
		return r;
	snprintf(ret_target, target_bytes, "%.*s", (int)look.reply.bytes,
		 (const char *)gcr_one_look_data(&look));
	gcr_one_look_finish(&look);
	return 0;
}

/* Recognises a namespace by the kernel's name of the open file, without asking a filesystem. */
static bool is_namespace(int fd, const char *name)
{
	char path[GCR_PROC_PATH_BYTES];
	char target[64];
	size_t length = strlen(name);
	ssize_t got;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	got = readlink(path, target, sizeof(target) - 1);
	target[got > 0 ? got : 0] = '\0';
	return !strncmp(target, name, length) && !strncmp(target + length, ":[", 2);
}

static int source_open_namespace(pid_t pid, const char *name, int *ret_fd)
{
	struct gcr_looker_request request = {.verb = GCR_LOOKER_NAMESPACE, .pid = pid};
	struct gcr_one_look look = look_for(&request);
	int r = set_name(&request, name);

	if (r == 0)
		r = gcr_one_look_perform(&look);
	if (r < 0)
		return r;
	r = -EIO;
	if (look.looker->message.fds_count == 1 &&
	    is_namespace(look.looker->message.fds[0], name)) {
		*ret_fd = TAKE_FD(look.looker->message.fds[0]);
		r = 0;
	}
	gcr_one_look_finish(&look);
	return r;
}

/* A look whose reply must be exactly @bytes long. -EIO: another length. */
static int get_data(struct gcr_one_look *look, void *ret, size_t bytes)
{
	int r;

	look->has_data = true;
	r = gcr_one_look_perform(look);
	if (r < 0)
		return r;
	if (look->reply.bytes == bytes)
		memcpy(ret, gcr_one_look_data(look), bytes);
	else
		r = -EIO;
	gcr_one_look_finish(look);
	return r;
}

/* A look whose reply has no data. */
static int get_done(struct gcr_one_look *look)
{
	int r = gcr_one_look_perform(look);

	if (r == 0)
		gcr_one_look_finish(look);
	return r;
}

static int source_peek(pid_t pid, uintptr_t address, void *ret, size_t bytes)
{
	struct gcr_looker_request request = {
		.verb = GCR_LOOKER_PEEK, .pid = pid, .address = address, .count = (uint32_t)bytes};
	struct gcr_one_look look = look_for(&request);

	if (bytes > GCR_LOOKER_DATA_MAX)
		return -E2BIG;
	look.kind = GCR_SILENT_MEMORY;
	return get_data(&look, ret, bytes);
}

static int source_unpark_pages(pid_t pid)
{
	struct gcr_looker_request request = {.verb = GCR_LOOKER_UNPARK, .pid = pid};
	struct gcr_one_look look = look_for(&request);

	return get_done(&look);
}

/* A look at a file in memory that a process has sent us; normally it takes microseconds. */
static struct gcr_one_look look_for_sent(struct gcr_looker_request *request, int fd)
{
	struct gcr_one_look look = look_for(request);

	look.fd = fd;
	look.kind = GCR_SILENT_SENT;
	look.deadline_usec = SENT_USEC;
	return look;
}

static int source_unpark_page(pid_t pid, int fd)
{
	struct gcr_looker_request request = {.verb = GCR_LOOKER_UNPARK, .pid = pid};
	struct gcr_one_look look = look_for_sent(&request, fd);

	return get_done(&look);
}

static int source_page_facts(pid_t pid, int fd, struct gcr_page_facts *ret_facts)
{
	struct gcr_looker_request request = {.verb = GCR_LOOKER_PAGE, .pid = pid};
	struct gcr_one_look look = look_for_sent(&request, fd);

	return get_data(&look, ret_facts, sizeof(*ret_facts));
}

static int source_copy_file(pid_t pid, int fd, int *ret_fd)
{
	struct gcr_looker_request request = {.verb = GCR_LOOKER_COPY, .pid = pid};
	struct gcr_one_look look = look_for_sent(&request, fd);
	int r;

	look.deadline_usec = GCR_LOOK_DEADLINE_USEC;
	r = gcr_one_look_perform(&look);
	if (r < 0)
		return r;
	if (look.looker->message.fds_count == 1)
		*ret_fd = TAKE_FD(look.looker->message.fds[0]);
	else
		r = -EIO;
	gcr_one_look_finish(&look);
	return r;
}

_Static_assert(GCR_LOOKER_FDS_MAX >= GCR_PROC_SAME_MAX, "room for all");

/*
 * kcmp(2) waits for both processes, and does not tell for which one. The process of the verb, @pid,
 * pays, although its child @other may be at fault: its owner or root has written the verb. If the
 * child paid, a user could hold the parent and have the child's owner pay: root, if the child is a
 * set-user-ID program that has become root's. The kind is one of its own, since other looks at @pid
 * may be answered.
 */
static int source_same_files(pid_t pid, pid_t other, const int *fds, size_t count, bool *ret_same)
{
	struct gcr_looker_request request = {.verb = GCR_LOOKER_SAME_FILES,
					     .pid = pid,
					     .other = other,
					     .count = (uint32_t)count};
	struct gcr_one_look look = look_for(&request);
	int r;

	look.kind = GCR_SILENT_COMPARED;
	look.request_bytes += count * sizeof(request.fds[0]);
	look.has_data = true;
	memcpy(request.fds, fds, count * sizeof(*fds));
	r = gcr_one_look_perform(&look);
	if (r < 0)
		return r;
	r = look.reply.bytes == count ? 0 : -EIO;
	for (size_t i = 0; r == 0 && i < count; i++)
		ret_same[i] = gcr_one_look_data(&look)[i] != 0;
	gcr_one_look_finish(&look);
	return r;
}

int gcr_looker_devices(pid_t pid, const struct gcr_scan_wanted *wanted, unsigned int *ret_devices,
		       uint64_t *ret_start_ticks)
{
	struct gcr_looker_request request = {
		.verb = GCR_LOOKER_DEVICES, .pid = pid, .wanted = *wanted};
	struct gcr_one_look look = look_for(&request);
	int r;

	look.request_bytes += sizeof(*wanted);
	look.kind = GCR_SILENT_MEMORY;
	r = gcr_one_look_perform(&look);
	if (r < 0)
		return r;
	*ret_devices = look.reply.devices & ((1u << GCR_SCAN_DEVICES_MAX) - 1);
	*ret_start_ticks = look.reply.start_ticks;
	gcr_one_look_finish(&look);
	return 0;
}

const struct gcr_proc_source gcr_looker_source = {
	.read = source_read,
	.open = source_open,
	.links = source_links,
	.link = source_link,
	.open_namespace = source_open_namespace,
	.peek = source_peek,
	.unpark_pages = source_unpark_pages,
	.unpark_page = source_unpark_page,
	.page_facts = source_page_facts,
	.copy_file = source_copy_file,
	.same_files = source_same_files,
};
