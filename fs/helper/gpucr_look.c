/* SPDX-License-Identifier: MIT */
/*
 * gpucr-look: looks at other processes for the daemon. Such a process can block the look for ever
 * (lib/proc_source.h); the daemon then kills this helper and starts another. The helper has one
 * thread, answers one request after the other, and ends when the daemon closes the socket.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/helper/looker_protocol.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/confine.h"
#include "lib/full_io.h"
#include "lib/message.h"
#include "lib/proc_file.h"
#include "lib/proc_namespace.h"
#include "lib/proc_page.h"
#include "lib/procfs.h"

#define COPY_BYTES     65536
/* 100,000 mappings of 335 bytes each; by default the kernel allows a program at most 65,530. */
#define MAPS_BYTES_MAX (32u << 20)
#define COPY_BYTES_MAX ((off_t)(GCR_EXTENTS_MAX * sizeof(struct gcr_extent)))

static struct gcr_message message;
static struct gcr_looker_request request;

static struct {
	struct gcr_looker_reply head;
	uint8_t data[GCR_LOOKER_DATA_MAX];
} reply;

/* Ignores signals that a terminal or a service manager sends to all its processes. */
static void ignore_signals(void)
{
	static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGTSTP};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(signals); i++)
		signal(signals[i], SIG_IGN);
}

/* Writes a text to the memfd, if there is one, else into the reply. */
static int give(const char *text, size_t bytes)
{
	reply.head.bytes = bytes;
	if (message.fds_count)
		return gcr_write_all(message.fds[0], text, bytes);
	if (bytes > sizeof(reply.data)) {
		reply.head.bytes = 0;
		return -EMSGSIZE;
	}
	memcpy(reply.data, text, bytes);
	return 0;
}

/*
 * Copies a file of /proc to the memfd in parts. The size of maps, which can be large, is limited,
 * since the program controls it.
 */
static int copy_file(void)
{
	bool is_maps = !strcmp(request.name, "maps");
	static char buffer[COPY_BYTES];
	_cleanup_close_ int fd = -1;
	int r = gcr_proc_open_file(request.pid, request.name, &fd);

	while (r == 0) {
		ssize_t got = read(fd, buffer, sizeof(buffer));

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? gcr_proc_error(errno) : 0;
		r = gcr_write_all(message.fds[0], buffer, (size_t)got);
		reply.head.bytes += (size_t)got;
		if (is_maps && reply.head.bytes > MAPS_BYTES_MAX)
			r = r < 0 ? r : -EFBIG;
	}
	return r;
}

static int read_text(void)
{
	_cleanup_free_ char *text = NULL;
	size_t bytes = 0;
	int r;

	if (message.fds_count && request.verb == GCR_LOOKER_READ)
		return copy_file();
	r = request.verb == GCR_LOOKER_READ
		    ? gcr_proc_read(request.pid, request.name, &text, &bytes)
		    : gcr_proc_links(request.pid, &text, &bytes);
	return r < 0 ? r : give(text, bytes);
}

static int read_link(void)
{
	char target[4096];
	int r = gcr_proc_link(request.pid, request.name, target, sizeof(target));

	return r < 0 ? r : give(target, strlen(target));
}

static int compare(void)
{
	bool is_same[GCR_LOOKER_FDS_MAX];
	int r;

	if (request.count > GCR_LOOKER_FDS_MAX)
		return -EINVAL;
	r = gcr_proc_same_files(request.pid, request.other, request.fds, request.count, is_same);
	for (uint32_t i = 0; r == 0 && i < request.count; i++)
		reply.data[i] = is_same[i];
	reply.head.bytes = request.count;
	return r;
}

static int peek(void)
{
	if (request.count > sizeof(reply.data))
		return -EINVAL;
	reply.head.bytes = request.count;
	return gcr_proc_peek(request.pid, (uintptr_t)request.address, reply.data, request.count);
}

/*
 * Carries out GCR_LOOKER_MANY: looks at one process after the other until the time is up, at one at
 * least, and no longer than that time at any. 0, or -errno for the reply.
 */
static int look_at_many(void)
{
	int64_t until_usec = gcr_clock_usec() + request.value;

	if (request.count > GCR_LOOKER_PIDS_MAX || !message.fds_count)
		return -EINVAL;
	for (uint32_t i = 0; i < request.count; i++) {
		struct gcr_scan_found found = {0};
		int r;

		if (i && gcr_clock_usec() >= until_usec)
			return 0;
		r = gcr_scan_look_until(request.many.pids[i], &request.many.wanted, until_usec,
					&found.devices, &found.start_ticks);
		if (r < 0)
			found = (struct gcr_scan_found){.error = -r};
		r = gcr_write_all(message.fds[0], (const char *)&found, sizeof(found));
		if (r < 0)
			return r;
		reply.head.bytes += sizeof(found);
	}
	return 0;
}

static int unpark(void)
{
	return message.fds_count ? gcr_page_unpark(message.fds[0])
				 : gcr_proc_unpark_pages(request.pid);
}

static int read_page(void)
{
	struct gcr_page_facts facts;
	int r = message.fds_count ? gcr_page_read(message.fds[0], &facts) : -EINVAL;

	if (r < 0)
		return r;
	memcpy(reply.data, &facts, sizeof(facts));
	reply.head.bytes = sizeof(facts);
	return 0;
}

static int copy_memory(int *ret_fd)
{
	_cleanup_close_ int fd = memfd_create("gpucr-copy", MFD_CLOEXEC);
	static char buffer[COPY_BYTES];
	uint64_t offset = 0;
	ssize_t got;
	int r = 0;

	if (fd < 0 || !message.fds_count)
		return fd < 0 ? -errno : -EINVAL;
	while (r == 0 &&
	       (got = gcr_pread_all(message.fds[0], buffer, sizeof(buffer), offset)) != 0) {
		if (got < 0)
			return (int)got;
		offset += (uint64_t)got;
		r = offset > COPY_BYTES_MAX ? -EFBIG : gcr_write_all(fd, buffer, (size_t)got);
	}
	if (r == 0)
		*ret_fd = TAKE_FD(fd);
	return r;
}

static int look(int *ret_fd)
{
	unsigned int devices = 0;
	int r;

	switch ((enum gcr_looker_verb)request.verb) {
	case GCR_LOOKER_READ:
	case GCR_LOOKER_LINKS:
		return read_text();
	case GCR_LOOKER_LINK:
		return read_link();
	case GCR_LOOKER_NAMESPACE:
		return gcr_proc_open_namespace(request.pid, request.name, ret_fd);
	case GCR_LOOKER_PEEK:
		return peek();
	case GCR_LOOKER_UNPARK:
		return unpark();
	case GCR_LOOKER_PAGE:
		return read_page();
	case GCR_LOOKER_COPY:
		return copy_memory(ret_fd);
	case GCR_LOOKER_SAME_FILES:
		return compare();
	case GCR_LOOKER_DEVICES:
		r = gcr_scan_look(request.pid, &request.wanted, &devices, &reply.head.start_ticks);
		reply.head.devices = devices;
		return r;
	case GCR_LOOKER_MANY:
		return look_at_many();
	case GCR_LOOKER_NONE:
		break;
	}
	return -EINVAL;
}

/* terminate_strings() handles both members through .wanted. */
_Static_assert(offsetof(struct gcr_looker_request, many) ==
		       offsetof(struct gcr_looker_request, wanted),
	       "one place for both");

static void terminate_strings(void)
{
	gcr_message_terminate(request.name);
	if (request.verb != GCR_LOOKER_DEVICES && request.verb != GCR_LOOKER_MANY)
		return;
	for (size_t i = 0; i < GCR_SCAN_DEVICES_MAX; i++) {
		gcr_message_terminate(request.wanted.devices[i].path);
		for (size_t j = 0; j < GCR_SCAN_MAPPED_MAX; j++)
			gcr_message_terminate(request.wanted.devices[i].mapped[j]);
	}
}

static int answer(void)
{
	_cleanup_close_ int fd = -1;
	size_t data_bytes = 0;
	int r;

	gcr_message_payload(&message, &request, sizeof(request));
	terminate_strings();
	reply.head = (struct gcr_looker_reply){0};
	r = look(&fd);
	if (r < 0)
		reply.head = (struct gcr_looker_reply){.error = -r};
	if (r == 0 && (!message.fds_count || request.verb == GCR_LOOKER_PAGE))
		data_bytes = reply.head.bytes;
	gcr_message_close_fds(&message);
	return gcr_message_send(GCR_LOOKER_SOCKET, GCR_LOOKER_REPLY, message.header.sequence,
				&reply, sizeof(reply.head) + data_bytes, fd >= 0 ? &fd : NULL,
				fd >= 0);
}

int main(void)
{
	struct gcr_error error = {0};
	int r;

	ignore_signals();
	if (gcr_confine(GCR_CONFINE_LOOK, &error) < 0) {
		fprintf(stderr, "gpucr-look: %s\n", error.words);
		return 2;
	}
	for (;;) {
		r = gcr_message_receive(GCR_LOOKER_SOCKET, -1, -1, &message);
		if (r == -EPIPE)
			return 0;
		if (r < 0 || message.header.type != GCR_LOOKER_REQUEST || message.fds_count > 1) {
			fprintf(stderr, "gpucr-look: only gpucrfs starts this program\n");
			return 2;
		}
		if (answer() < 0)
			return 0;
	}
}
