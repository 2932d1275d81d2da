/* SPDX-License-Identifier: MIT */
/*
 * Communication with preload libraries. link->lock guards `taken`, `dead` and reads by the loop;
 * the thread that has taken the link reads and writes without it. Messages from a library are not
 * trusted: the library is part of a user's program.
 */
#include "fs/process/link.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/loop.h"
#include "fs/base/quota.h"
#include "fs/daemon.h"
#include "fs/helper/receiver.h"
#include "fs/process/vendor.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/page.h"
#include "lib/proc_page.h"
#include "lib/printable.h"
#include "lib/procfs.h"

/* Poll interval while waiting for a library to reconnect. */
#define TAKE_LOOK_MSEC 10
/*
 * The number of messages after one request that are received without a pause; before each further
 * one there is a pause. A library that hands over memory sends one message for many allocations.
 */
#define MESSAGES_FREE  1024
#define PAUSE_MSEC     1

struct gcr_link {
	atomic_int references;
	struct gcr_process *process;
	int fd;
	uint32_t number;
	int page_fd;
	char generation[40];

	pthread_mutex_t facts_lock;  /* a leaf */
	struct gcr_page_facts facts; /* the last contents that could be read */

	pthread_mutex_t lock;
	bool taken;
	bool dead;
	/* Of the connection, after the registry has ended the link. */
	struct gcr_quota_charge charge;

	/* Of the last request; used only by the thread that has taken the link. */
	uint32_t sequence;
	uint16_t request;      /* its message type */
	unsigned int messages; /* received since then */
};

struct gcr_link *gcr_link_ref(struct gcr_link *link)
{
	atomic_fetch_add(&link->references, 1);
	return link;
}

void gcr_link_unref(struct gcr_link *link)
{
	if (!link || atomic_fetch_sub(&link->references, 1) != 1)
		return;
	close(link->page_fd);
	gcr_receiver_close(link->fd, &link->charge);
	pthread_mutex_destroy(&link->facts_lock);
	pthread_mutex_destroy(&link->lock);
	gcr_process_unref(link->process);
	free(link);
}

GCR_DEFINE_CLEANUP(struct gcr_link *, gcr_link_unref);

/*
 * Copies a generation if it consists of a UUID's characters, else "": generations appear in events.
 */
static void copy_generation(char to[40], const char from[40])
{
	memcpy(to, from, 40);
	to[39] = '\0';
	if (to[strspn(to, "0123456789abcdef-")])
		to[0] = '\0';
}

int gcr_link_create(struct gcr_process *process, int fd, uint32_t number,
		    const struct gcr_register *registration, int page_fd,
		    const struct gcr_page_facts *facts, struct gcr_link **ret_link)
{
	_cleanup_close_ int page = page_fd;
	struct gcr_link *link;
	struct gcr_link *before;

	link = calloc(1, sizeof(*link));
	if (!link)
		return -ENOMEM;
	atomic_init(&link->references, 2); /* the connection's and the process's */
	pthread_mutex_init(&link->lock, NULL);
	pthread_mutex_init(&link->facts_lock, NULL);
	link->process = gcr_process_ref(process);
	link->fd = fd;
	link->page_fd = TAKE_FD(page);
	link->number = number;
	link->facts = *facts;
	copy_generation(link->generation, registration->generation);
	pthread_mutex_lock(&process->lock);
	before = process->link;
	process->link = link;
	pthread_mutex_unlock(&process->lock);
	gcr_link_unref(before);
	*ret_link = link;
	return 0;
}

void gcr_link_end(struct gcr_link *link, struct gcr_quota_charge *charge)
{
	struct gcr_process *process;
	bool was_current;

	if (!link)
		return;
	process = link->process;
	pthread_mutex_lock(&link->lock);
	link->dead = true;
	gcr_loop_remove(process->daemon->loop, link->fd);
	link->charge = *charge;
	*charge = (struct gcr_quota_charge){0};
	pthread_mutex_unlock(&link->lock);
	pthread_mutex_lock(&process->lock);
	was_current = process->link == link;
	if (was_current)
		process->link = NULL;
	pthread_mutex_unlock(&process->lock);
	if (was_current)
		gcr_link_unref(link);
	gcr_link_unref(link);
}

int gcr_link_look(struct gcr_link *link, struct gcr_message *message)
{
	int result = -ETIMEDOUT;

	pthread_mutex_lock(&link->lock);
	if (!link->taken)
		result = gcr_receiver_receive(link->fd, 0, -1, false, message);
	pthread_mutex_unlock(&link->lock);
	return result;
}

/* The process's link, with a reference; NULL if there is none. */
static struct gcr_link *current(struct gcr_process *process)
{
	struct gcr_link *link;

	pthread_mutex_lock(&process->lock);
	link = process->link ? gcr_link_ref(process->link) : NULL;
	pthread_mutex_unlock(&process->lock);
	return link;
}

/* Has the library closed its end? The loop hears of that a moment later, on a busy machine. */
static bool has_ended(const struct gcr_link *link)
{
	struct pollfd end = {.fd = link->fd, .events = POLLRDHUP};

	return poll(&end, 1, 0) != 0;
}

bool gcr_link_is_live(struct gcr_process *process)
{
	_cleanup_(gcr_link_unref_cleanup) struct gcr_link *link = current(process);

	return link && !has_ended(link);
}

/* Reads the page of the link's library, and keeps the contents for gcr_link_last_facts(). */
static int read_facts(struct gcr_link *link, struct gcr_page_facts *ret_facts)
{
	int r = gcr_proc_page_facts(link->process->pid, link->page_fd, ret_facts);

	if (r == 0) {
		GCR_LOCK_SCOPE(&link->facts_lock);
		link->facts = *ret_facts;
	}
	return r;
}

int gcr_link_facts(struct gcr_process *process, struct gcr_page_facts *ret_facts)
{
	_cleanup_(gcr_link_unref_cleanup) struct gcr_link *link = current(process);

	return link ? read_facts(link, ret_facts) : -ENOTCONN;
}

int gcr_link_last_facts(struct gcr_process *process, struct gcr_page_facts *ret_facts)
{
	_cleanup_(gcr_link_unref_cleanup) struct gcr_link *link = current(process);

	if (!link)
		return -ENOTCONN;
	if (read_facts(link, ret_facts) < 0) {
		GCR_LOCK_SCOPE(&link->facts_lock);
		*ret_facts = link->facts;
	}
	return 0;
}

bool gcr_link_is_ending(struct gcr_process *process)
{
	struct gcr_page_facts facts;

	return gcr_link_last_facts(process, &facts) == 0 && facts.flags & GCR_PAGE_ENDING;
}

/* ---- a library that is not connected ---- */

struct look {
	pid_t pid;
	const struct gcr_vendor *vendor;
	struct gcr_page_facts facts;
	bool is_found;
};

/*
 * Stops at the page of this vendor's library, or at a page that cannot be read and may be that one.
 */
static int stop_at_page(uintptr_t start, uintptr_t end, void *data)
{
	const struct look *look = data;
	struct {
		uint32_t magic, version, phase, flags; /* the beginning of struct gcr_page */
	} head;

	if (end - start < GCR_PAGE_BYTES_LEAST)
		return 0;
	return gcr_proc_peek(look->pid, start, &head, sizeof(head)) < 0 ||
	       head.magic != GCR_PAGE_MAGIC || gcr_vendor_has_library(look->vendor, head.flags);
}

bool gcr_link_is_due(struct gcr_process *process)
{
	struct look look = {.pid = process->pid, .vendor = process->vendor};
	bool is_there;
	int result;

	pthread_mutex_lock(&process->lock);
	is_there = process->link;
	pthread_mutex_unlock(&process->lock);
	if (is_there)
		return false;
	result = gcr_proc_each_range(process->pid, GCR_PAGE_FILE_NAME, stop_at_page, &look);
	/* A process that could not be looked at in time may have a library. */
	return result == 1 || result == -ETIMEDOUT || result == -EBUSY;
}

/*
 * Parses the page of this vendor's library. Pages of another version cannot be interpreted. Those
 * of another vendor's library, which the program may have too, do not concern this entry.
 */
static int look_at_page(uintptr_t start, uintptr_t end, void *data)
{
	struct look *look = data;
	_cleanup_free_ struct gcr_page *page = NULL;
	struct gcr_page_facts facts;
	int r;

	if (end - start < GCR_PAGE_BYTES_LEAST)
		return 0;
	page = malloc(sizeof(*page));
	if (!page)
		return -ENOMEM;
	/* The page of an older library ends before the slots; clear the rest. */
	memset(page->unknown, 0, sizeof(page->unknown));
	r = gcr_proc_peek(look->pid, start, page, offsetof(struct gcr_page, slots));
	if (r < 0)
		return r == -EFAULT ? -EPROTO : r;
	r = gcr_page_parse(page, &facts);
	if (r < 0)
		return r;
	if (!gcr_vendor_has_library(look->vendor, facts.flags))
		return 0;
	look->facts = facts;
	look->is_found = true;
	return 1;
}

int gcr_link_facts_unconnected(struct gcr_process *process, struct gcr_page_facts *ret_facts)
{
	struct look look = {.pid = process->pid, .vendor = process->vendor};
	int r = gcr_proc_each_range(process->pid, GCR_PAGE_FILE_NAME, look_at_page, &look);

	if (r < 0)
		return r;
	if (!look.is_found)
		return -ENOTCONN;
	*ret_facts = look.facts;
	return 0;
}

int gcr_link_generation(struct gcr_process *process, char ret_generation[40])
{
	_cleanup_(gcr_link_unref_cleanup) struct gcr_link *link = current(process);

	if (!link)
		return -ENOTCONN;
	memcpy(ret_generation, link->generation, sizeof(link->generation));
	return 0;
}

int gcr_link_page_fd(const struct gcr_link *link)
{
	return link->page_fd;
}

/* Takes the link, unless another thread has it (-EBUSY) or the connection has ended (-ENOTCONN). */
static int try_take(struct gcr_process *process, struct gcr_link **ret_link)
{
	_cleanup_(gcr_link_unref_cleanup) struct gcr_link *link = current(process);
	int result = 0;

	if (!link)
		return -ENOTCONN;
	pthread_mutex_lock(&link->lock);
	if (link->dead)
		result = -ENOTCONN;
	else if (link->taken)
		result = -EBUSY;
	else if (has_ended(link))
		result = -ENOTCONN;
	else
		link->taken = true;
	pthread_mutex_unlock(&link->lock);
	if (result < 0)
		return result;
	gcr_loop_remove(process->daemon->loop, link->fd);
	*ret_link = TAKE_PTR(link);
	return 0;
}

int gcr_link_take(struct gcr_process *process, int64_t timeout_usec, struct gcr_link **ret_link,
		  struct gcr_error *error)
{
	int64_t deadline_usec = gcr_clock_usec() + timeout_usec;
	int result;

	for (;;) {
		struct pollfd end = {.fd = process->pidfd, .events = POLLIN};

		result = try_take(process, ret_link);
		if (!result)
			return 0;
		if (gcr_clock_usec() >= deadline_usec)
			break;
		if (poll(&end, 1, TAKE_LOOK_MSEC) == 1)
			return gcr_error_set(error, ESRCH, "process %d has ended",
					     (int)process->pid);
	}
	if (result == -EBUSY)
		return gcr_error_set(error, EBUSY, "its preload library is busy");
	return gcr_error_set(error, ENOTCONN, "its preload library is not connected");
}

void gcr_link_put(struct gcr_link *link)
{
	if (!link)
		return;
	pthread_mutex_lock(&link->lock);
	link->taken = false;
	/*
	 * The loop is level-triggered: messages that arrived, or the end, are seen at once. The
	 * number of a dead connection may have been reused for another.
	 */
	if (!link->dead)
		gcr_loop_add(link->process->daemon->loop, link->fd, GCR_LOOP_CONNECTION,
			     link->number);
	pthread_mutex_unlock(&link->lock);
	gcr_link_unref(link);
}

int gcr_link_request(struct gcr_link *link, uint16_t type, const void *payload,
		     size_t payload_bytes, const int *fds, size_t fds_count,
		     struct gcr_error *error)
{
	int result;

	link->request = type;
	link->messages = 0;
	result = gcr_message_send(link->fd, type, ++link->sequence, payload, payload_bytes, fds,
				  fds_count);
	if (result == -EPIPE)
		return gcr_error_set(error, EPIPE, "its preload library is gone");
	if (result < 0)
		return gcr_error_set(error, -result, "its preload library cannot be asked: %s",
				     strerror(-result));
	return 0;
}

int gcr_link_receive(struct gcr_link *link, int64_t timeout_usec, struct gcr_message *ret_message)
{
	int64_t deadline_usec = gcr_clock_usec() + timeout_usec;

	for (;;) {
		struct pollfd end = {.fd = link->process->pidfd, .events = POLLIN};
		int64_t left_usec = deadline_usec - gcr_clock_usec();
		int result;

		if (link->messages >= MESSAGES_FREE)
			poll(&end, 1, PAUSE_MSEC);
		result = gcr_receiver_receive(link->fd, left_usec > 0 ? left_usec : 0,
					      link->process->pidfd,
					      link->request == GCR_MESSAGE_HAND_OVER, ret_message);
		if (result < 0)
			return result;
		if (link->messages < MESSAGES_FREE)
			link->messages++;
		if (ret_message->header.sequence == link->sequence)
			return 0;
		/* The answer to an abandoned request. There may be endlessly many. */
		gcr_message_close_fds(ret_message);
		if (left_usec <= 0)
			return -ETIMEDOUT;
	}
}

int gcr_link_answer(const struct gcr_message *message, uint32_t *ret_state, struct gcr_error *error)
{
	struct gcr_result answer;

	gcr_message_payload(message, &answer, sizeof(answer));
	if (ret_state)
		*ret_state = answer.state;
	if (!answer.error)
		return 0;
	gcr_message_terminate(answer.words);
	gcr_make_printable(answer.words);
	if (answer.error < 0 || answer.error > 4095)
		answer.error = EIO;
	return gcr_error_set(error, answer.error, "%s", answer.words);
}
