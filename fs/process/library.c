/* SPDX-License-Identifier: MIT */
/*
 * Communication with preload libraries. library->lock guards `taken`, `dead` and reads by the loop;
 * the thread that has taken the library reads and writes without the lock. Messages from a library
 * are not trusted: the library is part of a user's program.
 */
#include "fs/process/library.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
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
#include "lib/proc_source.h"
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
/* Interval of looking at the program while the library does not answer. */
#define LOOK_USEC      (250 * GCR_USEC_PER_MSEC)

struct gcr_library {
	atomic_int references;
	struct gcr_process *process;
	int fd;
	uint32_t number;
	int page_fd;
	struct gcr_proc_program program;
	uid_t owner; /* of the process when it had that program */
	char generation[40];

	pthread_mutex_t facts_lock;  /* a leaf */
	struct gcr_page_facts facts; /* the last contents that could be read */

	pthread_mutex_t lock;
	bool taken;
	bool dead;
	/* Of the connection, after the registry has ended it. */
	struct gcr_quota_charge charge;

	/* Of the last request; used only by the thread that has taken the library. */
	uint32_t sequence;
	uint16_t request;      /* its message type */
	unsigned int messages; /* received since then */
	int64_t looked_usec;   /* monotonic: when its program was looked at, by this thread */
};

struct gcr_library *gcr_library_ref(struct gcr_library *library)
{
	atomic_fetch_add(&library->references, 1);
	return library;
}

void gcr_library_unref(struct gcr_library *library)
{
	if (!library || atomic_fetch_sub(&library->references, 1) != 1)
		return;
	close(library->page_fd);
	gcr_receiver_close(library->fd, &library->charge);
	pthread_mutex_destroy(&library->facts_lock);
	pthread_mutex_destroy(&library->lock);
	gcr_process_unref(library->process);
	free(library);
}

GCR_DEFINE_CLEANUP(struct gcr_library *, gcr_library_unref);

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

/*
 * Notes the program of a library that registers now. Returns true if the process had another one.
 * Lock: process.
 */
static bool note_program_locked(struct gcr_process *process, const struct gcr_proc_program *program)
{
	bool is_new = gcr_proc_program_differs(&process->program, program);

	if (is_new && process->state == GCR_STATE_RUNNING && !process->snapshot)
		gcr_process_forget_program_locked(process);
	process->program = *program;
	return is_new;
}

int gcr_library_create(struct gcr_process *process, int fd, uint32_t number,
		       const struct gcr_proc_program *program, uid_t owner,
		       const struct gcr_register *registration, int page_fd,
		       const struct gcr_page_facts *facts, struct gcr_library **ret_library)
{
	_cleanup_close_ int page = page_fd;
	struct gcr_library *library;
	struct gcr_library *before;
	bool is_new;

	library = calloc(1, sizeof(*library));
	if (!library)
		return -ENOMEM;
	atomic_init(&library->references, 2); /* the connection's and the process's */
	pthread_mutex_init(&library->lock, NULL);
	pthread_mutex_init(&library->facts_lock, NULL);
	library->process = gcr_process_ref(process);
	library->fd = fd;
	library->page_fd = TAKE_FD(page);
	library->number = number;
	library->program = *program;
	library->owner = owner;
	library->facts = *facts;
	copy_generation(library->generation, registration->generation);
	pthread_mutex_lock(&process->lock);
	is_new = note_program_locked(process, program);
	before = process->library;
	process->library = library;
	pthread_mutex_unlock(&process->lock);
	if (is_new)
		gcr_process_drop_kept(process);
	gcr_library_unref(before);
	*ret_library = library;
	return 0;
}

void gcr_library_end(struct gcr_library *library, struct gcr_quota_charge *charge)
{
	struct gcr_process *process;
	bool was_current;

	if (!library)
		return;
	process = library->process;
	pthread_mutex_lock(&library->lock);
	library->dead = true;
	gcr_loop_remove(process->daemon->loop, library->fd);
	library->charge = *charge;
	*charge = (struct gcr_quota_charge){0};
	pthread_mutex_unlock(&library->lock);
	pthread_mutex_lock(&process->lock);
	was_current = process->library == library;
	if (was_current)
		process->library = NULL;
	pthread_mutex_unlock(&process->lock);
	if (was_current)
		gcr_library_unref(library);
	gcr_library_unref(library);
}

int gcr_library_look(struct gcr_library *library, struct gcr_message *message)
{
	int result = -ETIMEDOUT;

	pthread_mutex_lock(&library->lock);
	if (!library->taken)
		result = gcr_receiver_receive(library->fd, 0, -1, false, message);
	pthread_mutex_unlock(&library->lock);
	return result;
}

/*
 * Has the process got another program since the library connected? If /proc does not tell the
 * program, the owner of /proc/PID decides: a program with more rights has another owner.
 */
static bool has_other_program(const struct gcr_library *library)
{
	struct gcr_proc_program program;
	uid_t owner;
	gid_t group;
	int result = gcr_proc_program(library->process->pid, &program);

	if (gcr_proc_is_silent(result))
		return !gcr_process_find_owner(library->process, &owner, &group) &&
		       owner != library->owner;
	return !result && !gcr_proc_program_is(&program, &library->program);
}

/*
 * Does the connection belong to an earlier program of the process? Then ends the connection, which
 * the loop drops. Another process may share the connection and keep it open, and must not speak for
 * the present program, which may have other rights.
 */
static bool is_of_other_program(struct gcr_library *library)
{
	if (!has_other_program(library))
		return false;
	shutdown(library->fd, SHUT_RDWR);
	return true;
}

/* The process's library, with a reference; NULL if none is connected. */
static struct gcr_library *current(struct gcr_process *process)
{
	struct gcr_library *library;

	pthread_mutex_lock(&process->lock);
	library = process->library ? gcr_library_ref(process->library) : NULL;
	pthread_mutex_unlock(&process->lock);
	return library;
}

/* Has the library closed its end? The loop hears of that a moment later, on a busy machine. */
static bool has_ended(const struct gcr_library *library)
{
	struct pollfd end = {.fd = library->fd, .events = POLLRDHUP};

	return poll(&end, 1, 0) != 0;
}

bool gcr_library_is_live(struct gcr_process *process)
{
	_cleanup_(gcr_library_unref_cleanup) struct gcr_library *library = current(process);

	return library && !has_ended(library) && !is_of_other_program(library);
}

/* Reads the page of the library, and keeps the contents for gcr_library_last_facts(). */
static int read_facts(struct gcr_library *library, struct gcr_page_facts *ret_facts)
{
	int r = gcr_proc_page_facts(library->process->pid, library->page_fd, ret_facts);

	if (r == 0) {
		GCR_LOCK_SCOPE(&library->facts_lock);
		library->facts = *ret_facts;
	}
	return r;
}

int gcr_library_facts(struct gcr_process *process, struct gcr_page_facts *ret_facts)
{
	_cleanup_(gcr_library_unref_cleanup) struct gcr_library *library = current(process);

	return library ? read_facts(library, ret_facts) : -ENOTCONN;
}

int gcr_library_last_facts(struct gcr_process *process, struct gcr_page_facts *ret_facts)
{
	_cleanup_(gcr_library_unref_cleanup) struct gcr_library *library = current(process);

	if (!library)
		return -ENOTCONN;
	if (read_facts(library, ret_facts) < 0) {
		GCR_LOCK_SCOPE(&library->facts_lock);
		*ret_facts = library->facts;
	}
	return 0;
}

bool gcr_library_is_ending(struct gcr_process *process)
{
	struct gcr_page_facts facts;

	return gcr_library_last_facts(process, &facts) == 0 && facts.flags & GCR_PAGE_ENDING;
}

/* ---- a library that is not connected ---- */

struct look {
	pid_t pid;
	const struct gcr_vendor *vendor;
	struct gcr_page_facts facts;
	bool is_found;
};

/*
 * Returns 1 at the page of this vendor's library, and at one that may be that page but cannot be
 * read or recognised; 0: the search goes on.
 */
static int stop_at_page(uintptr_t start, uintptr_t end, void *data)
{
	const struct look *look = data;
	struct gcr_page_head head;

	if (end - start < GCR_PAGE_BYTES_LEAST)
		return 0;
	return gcr_proc_peek(look->pid, start, &head, sizeof(head)) < 0 ||
	       head.magic != GCR_PAGE_MAGIC || gcr_vendor_has_library(look->vendor, head.flags);
}

bool gcr_library_is_due(struct gcr_process *process)
{
	struct look look = {.pid = process->pid, .vendor = process->vendor};
	bool is_there;
	int result;

	pthread_mutex_lock(&process->lock);
	is_there = process->library;
	pthread_mutex_unlock(&process->lock);
	if (is_there)
		return false;
	result = gcr_proc_each_range(process->pid, GCR_PAGE_FILE_NAME, stop_at_page, &look);
	/* A process that could not be looked at in time may have a library. */
	return result == 1 || result == -ETIMEDOUT || result == -EBUSY;
}

/*
 * Parses a page, and returns 1 if the page is that of this vendor's library. 0: the search goes on;
 * the program may also have another vendor's library, which does not concern this entry. -EPROTO:
 * the page has another version and cannot be interpreted, or cannot be read; -ENOMEM, ...
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

int gcr_library_facts_unconnected(struct gcr_process *process, struct gcr_page_facts *ret_facts)
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

int gcr_library_generation(struct gcr_process *process, char ret_generation[40])
{
	_cleanup_(gcr_library_unref_cleanup) struct gcr_library *library = current(process);

	if (!library)
		return -ENOTCONN;
	memcpy(ret_generation, library->generation, sizeof(library->generation));
	return 0;
}

const struct gcr_proc_program *gcr_library_program(const struct gcr_library *library)
{
	return &library->program;
}

int gcr_library_page_fd(const struct gcr_library *library)
{
	return library->page_fd;
}

/*
 * Takes the library, unless another thread has it (-EBUSY) or the connection has ended (-ENOTCONN).
 */
static int try_take(struct gcr_process *process, struct gcr_library **ret_library)
{
	_cleanup_(gcr_library_unref_cleanup) struct gcr_library *library = current(process);
	int result = 0;

	if (!library)
		return -ENOTCONN;
	pthread_mutex_lock(&library->lock);
	if (library->dead)
		result = -ENOTCONN;
	else if (library->taken)
		result = -EBUSY;
	else if (has_ended(library))
		result = -ENOTCONN;
	else
		library->taken = true;
	pthread_mutex_unlock(&library->lock);
	if (result < 0)
		return result;
	/* Without the lock: the look may take a while. */
	library->looked_usec = gcr_clock_usec();
	if (is_of_other_program(library)) {
		pthread_mutex_lock(&library->lock);
		library->taken = false;
		pthread_mutex_unlock(&library->lock);
		return -ENOTCONN;
	}
	gcr_loop_remove(process->daemon->loop, library->fd);
	*ret_library = TAKE_PTR(library);
	return 0;
}

int gcr_library_take(struct gcr_process *process, int64_t timeout_usec,
		     struct gcr_library **ret_library, struct gcr_error *error)
{
	int64_t deadline_usec = gcr_clock_usec() + timeout_usec;
	int result;

	for (;;) {
		struct pollfd end = {.fd = process->pidfd, .events = POLLIN};

		result = try_take(process, ret_library);
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

void gcr_library_put(struct gcr_library *library)
{
	if (!library)
		return;
	pthread_mutex_lock(&library->lock);
	library->taken = false;
	/*
	 * The loop is level-triggered: messages that arrived, or the end, are seen at once. The
	 * number of a dead connection may have been reused for another.
	 */
	if (!library->dead)
		gcr_loop_add(library->process->daemon->loop, library->fd, GCR_LOOP_CONNECTION,
			     library->number);
	pthread_mutex_unlock(&library->lock);
	gcr_library_unref(library);
}

int gcr_library_request(struct gcr_library *library, uint16_t type, const void *payload,
			size_t payload_bytes, const int *fds, size_t fds_count,
			struct gcr_error *error)
{
	int result;

	library->request = type;
	library->messages = 0;
	result = gcr_message_send(library->fd, type, ++library->sequence, payload, payload_bytes,
				  fds, fds_count);
	if (result == -EPIPE)
		return gcr_error_set(error, EPIPE, "its preload library is gone");
	if (result < 0)
		return gcr_error_set(error, -result, "its preload library cannot be asked: %s",
				     strerror(-result));
	return 0;
}

/*
 * Is the program to be looked at after a gcr_receiver_receive() with @result? Yes after the last
 * message of a request, and every LOOK_USEC while no message arrives: a look takes a tenth of a
 * millisecond, and longer on a busy machine. The other messages of a request contain nothing of the
 * program's but descriptors, which the daemon drops if it does not accept the last message.
 */
static bool is_look_due(struct gcr_library *library, int result, const struct gcr_message *message)
{
	int64_t now_usec = gcr_clock_usec();

	if (result ? result != -ETIMEDOUT || now_usec < library->looked_usec + LOOK_USEC
		   : message->header.type != GCR_MESSAGE_RESULT)
		return false;
	library->looked_usec = now_usec;
	return true;
}

int gcr_library_receive(struct gcr_library *library, int64_t timeout_usec,
			struct gcr_message *ret_message)
{
	int64_t deadline_usec = gcr_clock_usec() + timeout_usec;

	for (;;) {
		struct pollfd end = {.fd = library->process->pidfd, .events = POLLIN};
		int64_t left_usec = deadline_usec - gcr_clock_usec();
		int result;

		if (library->messages >= MESSAGES_FREE)
			poll(&end, 1, PAUSE_MSEC);
		result = gcr_receiver_receive(
			library->fd, left_usec > 0 ? left_usec : 0, library->process->pidfd,
			library->request == GCR_MESSAGE_HAND_OVER, ret_message);
		if (is_look_due(library, result, ret_message) && is_of_other_program(library)) {
			if (!result)
				gcr_message_close_fds(ret_message);
			return -EPIPE;
		}
		if (result < 0)
			return result;
		if (library->messages < MESSAGES_FREE)
			library->messages++;
		if (ret_message->header.sequence == library->sequence)
			return 0;
		/* The answer to an abandoned request. There may be endlessly many. */
		gcr_message_close_fds(ret_message);
		if (left_usec <= 0)
			return -ETIMEDOUT;
	}
}

int gcr_library_answer(const struct gcr_message *message, uint32_t *ret_state,
		       struct gcr_error *error)
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
