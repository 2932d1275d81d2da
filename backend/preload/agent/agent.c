/* SPDX-License-Identifier: MIT */
/*
 * The agent: a thread that serves the daemon's requests one after the other and keeps track of
 * where the program's memory is (enum gcr_preload_phase). The agent has all signals blocked, and
 * its own driver calls pass a closed gate.
 */
#include "backend/preload/agent/agent.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "backend/preload/agent/connection.h"
#include "backend/preload/base/descriptor.h"
#include "backend/preload/memory/device.h"
#include "backend/preload/gate/ending.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/gate_close.h"
#include "backend/preload/managed/hold.h"
#include "backend/preload/memory/limit.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/managed/managed.h"
#include "backend/preload/memory/memory.h"
#include "backend/preload/agent/park.h"
#include "backend/preload/base/preload.h"
#include "backend/preload/base/wakeup.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/error.h"
#include "lib/extent.h"
#include "lib/thread_name.h"

/*
 * The stack of the agent: driver functions run on it, and it contains the thread-local data of all
 * libraries, so the agent never gets less than other threads. Unused pages cost nothing.
 */
#define STACK_BYTES (1u << 20)

#define FIRST_BATCH 4 /* descriptors */

/* Pauses between looks for a daemon. Outside RUNNING the first SOON_LOOKS pauses are short. */
#define LOOK_SOON_USEC	(200 * GCR_USEC_PER_MSEC)
#define LOOK_LATER_USEC (2 * GCR_USEC_PER_SEC)
#define SOON_LOOKS	50

static struct {
	_Atomic(bool) is_there; /* a child of fork(2) has none */
	enum gcr_preload_phase phase;
	char generation[40];
	/* End of the grace period, in HANDED without a daemon; 0: none. */
	int64_t grace_ends_usec;
	unsigned looks;	 /* looks for a daemon since the connection was lost */
	bool is_touched; /* a thread sleeps on held memory: counted in the page's `wanting` */
	bool parks;	 /* a PARK request has come; the limit: */
	uint32_t park_limit_ms;
	struct gcr_message message;
} agent = {.phase = GCR_PRELOAD_RUNNING};

static void set_phase(enum gcr_preload_phase phase)
{
	struct gcr_page *page = gcr_gate_page();

	agent.phase = phase;
	if (page)
		__atomic_store_n(&page->phase, (uint32_t)phase, __ATOMIC_RELEASE);
}

/*
 * Counts in the page all threads that sleep on held managed memory as one thread that wants the
 * GPU.
 */
static void count_touch(void)
{
	struct gcr_page *page = gcr_gate_page();
	bool is_touched = gcr_hold_is_touched();

	if (!page || is_touched == agent.is_touched)
		return;
	agent.is_touched = is_touched;
	__atomic_fetch_add(&page->wanting, is_touched ? 1 : -1u, __ATOMIC_SEQ_CST);
}

static void open_gate(void)
{
	gcr_managed_cancel();
	count_touch();
	gcr_managed_close_files();
	gcr_gate_open();
	set_phase(GCR_PRELOAD_RUNNING);
}

/* ---- requests: handlers return -errno and fill in an answer ---- */

struct answer {
	int fd; /* sent with the answer, then closed; -1: none */
	struct gcr_error error;
};

static int close_gate(const struct gcr_message *message, struct answer *answer)
{
	struct gcr_gate_request request;
	int r;

	gcr_message_payload(message, &request, sizeof(request));
	r = gcr_gate_close(request.timeout_ms * GCR_USEC_PER_MSEC, gcr_connection_fd(),
			   &answer->error);
	if (r == -EINTR) {
		gcr_error_prefix(&answer->error, "called away");
		return -ETIMEDOUT;
	}
	if (r == 0)
		set_phase(GCR_PRELOAD_GATED);
	return r;
}

static int handle_open(const struct gcr_message *message, struct answer *answer)
{
	open_gate();
	return 0;
}

/*
 * As gcr_memory_describe(), but also appends the managed extents. *ret_device_count: the number of
 * DEVICE extents, which come first.
 */
static ssize_t describe(struct gcr_extent *extents, size_t room, size_t *ret_device_count)
{
	ssize_t device_count = gcr_memory_describe(extents, room);
	size_t used = device_count < 0 || (size_t)device_count > room ? room : (size_t)device_count;
	ssize_t managed_count;

	if (device_count < 0)
		return device_count;
	managed_count = gcr_managed_describe(extents ? extents + used : NULL, room - used);
	if (managed_count < 0)
		return managed_count;
	*ret_device_count = (size_t)device_count;
	return device_count + managed_count;
}

static int list(const struct gcr_message *message, struct answer *answer)
{
	_cleanup_free_ struct gcr_extent *extents = NULL;
	size_t unused_count, room = 0;
	ssize_t count = describe(NULL, 0, &unused_count);

	/* With the gate open the table may grow between two calls of describe(). */
	while (count >= 0 && (!extents || (size_t)count > room)) {
		free(extents);
		room = (size_t)count + 64;
		extents = calloc(room, sizeof(*extents));
		count = extents ? describe(extents, room, &unused_count) : -ENOMEM;
	}
	if (count < 0)
		return gcr_error_set(&answer->error, (int)-count, "out of memory");
	if (count > GCR_EXTENTS_MAX)
		return gcr_error_set(&answer->error, E2BIG, "there are more than %d allocations",
				     GCR_EXTENTS_MAX);
	answer->fd = gcr_extents_write(extents, (size_t)count);
	if (answer->fd < 0)
		return gcr_error_set(&answer->error, -answer->fd,
				     "the table of allocations: cannot write it");
	return 0;
}

/*
 * Gets the range of a message, which must lie in [first, end), and for each extent of which the
 * message must have a descriptor. -EINVAL.
 */
static int get_range(const struct gcr_message *message, size_t first, size_t end,
		     struct gcr_range *ret_range, struct gcr_error *error)
{
	struct gcr_range range;

	gcr_message_payload(message, &range, sizeof(range));
	if (message->payload_bytes < sizeof(range) || range.count != message->fds_count ||
	    range.first < first || range.first > end || range.count > end - range.first)
		return gcr_error_set(error, EINVAL,
				     "there are no such allocations (%u and %u more)", range.first,
				     range.count);
	*ret_range = range;
	return 0;
}

static int take_files(const struct gcr_message *message, struct answer *answer)
{
	struct gcr_range range;
	size_t device_count;
	ssize_t count = describe(NULL, 0, &device_count);
	int r;

	if (count < 0)
		return gcr_error_set(&answer->error, (int)-count, "out of memory");
	r = get_range(message, device_count, (size_t)count, &range, &answer->error);
	if (r < 0)
		return r;
	return gcr_managed_files(range.first - device_count, range.count, agent.message.fds,
				 &answer->error);
}

/*
 * Sends the descriptors of all DEVICE extents to the daemon, in batches that double: the worker
 * already copies one batch while the next is made, so the first batch is small.
 */
static int send_handles(uint32_t sequence, struct gcr_error *error)
{
	ssize_t described = gcr_memory_describe(NULL, 0);
	size_t count = described < 0 ? 0 : (size_t)described, batch = FIRST_BATCH;
	int fds[GCR_MESSAGE_FDS_MAX];

	if (described < 0)
		return gcr_error_set(error, (int)-described, "out of memory");
	for (size_t first = 0; first < count; first += batch, batch *= 2) {
		struct gcr_range range = {.first = (uint32_t)first};
		int r;

		if (batch > GCR_MESSAGE_FDS_MAX)
			batch = GCR_MESSAGE_FDS_MAX;
		range.count = (uint32_t)(count - first < batch ? count - first : batch);
		r = gcr_memory_export(range.first, range.count, fds, error);
		if (r < 0)
			return r;
		r = gcr_connection_send(GCR_MESSAGE_HANDLES, sequence, &range, sizeof(range), fds,
					range.count);
		if (r < 0) {
			gcr_connection_close();
			return gcr_error_set(error, EPIPE, "the daemon has gone");
		}
	}
	return 0;
}

/*
 * Rolls back by @step after a failure with @r. Returns @r, or -ENOTRECOVERABLE if @step fails too;
 * @error then has the message of the second failure.
 */
static int roll_back(int r, int (*step)(struct gcr_error *), struct gcr_error *error)
{
	struct gcr_error other = {0};
	int back;

	if (r == -ENOTRECOVERABLE)
		return r;
	back = step(&other);
	if (back == 0)
		return r;
	*error = other;
	gcr_error_prefix(error, "going back after a failure");
	error->number = ENOTRECOVERABLE;
	return -ENOTRECOVERABLE;
}

/*
 * Begins to move managed memory, with the program's threads stopped by gpucr-halt. If the daemon is
 * alive after is_moving has been set, the threads stay stopped until end_move(), even if the daemon
 * dies: gpucr-halt reads is_moving in the page. If the daemon died before, gpucr-halt may let the
 * threads run at any moment: returns -EPIPE. The order of the steps is essential; see
 * fs/helper/gpucr_halt.c.
 */
static int begin_move(struct gcr_error *error)
{
	static const char words[] = "the daemon has gone";
	struct gcr_page *page = gcr_gate_page();

	if (page)
		__atomic_store_n(&page->is_moving, 1, __ATOMIC_SEQ_CST);
	if (gcr_connection_is_alive())
		return 0;
	if (page)
		__atomic_store_n(&page->is_moving, 0, __ATOMIC_SEQ_CST);
	/* Not formatted: the stopped threads may hold any lock. */
	error->number = EPIPE;
	memcpy(error->words, words, sizeof(words));
	return -EPIPE;
}

static void end_move(void)
{
	struct gcr_page *page = gcr_gate_page();

	if (page)
		__atomic_store_n(&page->is_moving, 0, __ATOMIC_SEQ_CST);
}

static int save(const struct gcr_message *message, struct answer *answer)
{
	return gcr_managed_save(&answer->error);
}

/* HOLD: threads of the program may be stopped until the answer is sent; see managed_hold.h. */
static int hold(const struct gcr_message *message, struct answer *answer)
{
	int r = begin_move(&answer->error);

	if (r < 0)
		return r;
	r = gcr_managed_hold(&answer->error);
	if (gcr_managed_is_held())
		set_phase(GCR_PRELOAD_HELD);
	end_move();
	return r;
}

/* PREPARE: takes and releases the locks that stopped threads may hold, so blocks while they do. */
static int prepare(const struct gcr_message *message, struct answer *answer)
{
	return gcr_managed_prepare(&answer->error);
}

/*
 * HAND_OVER: frees the managed memory, sends the descriptors of all other memory, and unmaps that.
 * If managed memory is held after a failure, the daemon sends TAKE_BACK, with the threads stopped.
 */
static int move_out(uint32_t sequence, struct gcr_error *error)
{
	int r = gcr_managed_out(error);

	if (gcr_managed_is_held())
		set_phase(GCR_PRELOAD_HELD);
	if (r < 0)
		return r;
	r = send_handles(sequence, error);
	if (r == 0)
		r = gcr_memory_unmap(error);
	/* Even if the export failed and nothing is unmapped, descriptors may have been made. */
	return r < 0 ? roll_back(r, gcr_memory_take_back, error) : 0;
}

static int hand_over(const struct gcr_message *message, struct answer *answer)
{
	struct gcr_hand_over request;
	int r;

	gcr_message_payload(message, &request, sizeof(request));
	gcr_message_terminate(request.generation);
	r = move_out(message->header.sequence, &answer->error);
	/* -ENOTRECOVERABLE: some memory is out and did not come back. Only TAKE_BACK can follow. */
	if (r < 0 && r != -ENOTRECOVERABLE)
		return r;
	if (r == 0 && request.flags & GCR_HAND_OVER_SHRINK)
		gcr_limits_shrink();
	memcpy(agent.generation, request.generation, sizeof(agent.generation));
	count_touch();
	set_phase(GCR_PRELOAD_HANDED);
	return r;
}

static int commit(const struct gcr_message *message, struct answer *answer)
{
	gcr_memory_commit();
	set_phase(GCR_PRELOAD_OUT);
	return 0;
}

static int bring_in(struct gcr_error *error)
{
	int r;

	if (!gcr_managed_is_held())
		return 0;
	r = begin_move(error);
	if (r < 0)
		return r;
	r = gcr_managed_in(error);
	end_move();
	count_touch();
	return r;
}

static int take_back(struct gcr_error *error)
{
	/* First the stacks, for which other processes may have taken the VRAM. */
	int r = gcr_limits_restore(error);

	if (r == 0)
		r = gcr_memory_take_back(error);
	if (r == 0)
		r = bring_in(error);
	if (r == 0)
		set_phase(GCR_PRELOAD_GATED);
	return r;
}

static int handle_take_back(const struct gcr_message *message, struct answer *answer)
{
	return take_back(&answer->error);
}

static int receive(const struct gcr_message *message, struct answer *answer)
{
	ssize_t count = gcr_memory_describe(NULL, 0);
	struct gcr_range range;
	int r;

	if (count < 0)
		return gcr_error_set(&answer->error, (int)-count, "out of memory");
	r = get_range(message, 0, (size_t)count, &range, &answer->error);
	if (r < 0)
		return r;
	set_phase(GCR_PRELOAD_INCOMING);
	return gcr_memory_receive(range.first, range.count, agent.message.fds, &answer->error);
}

static int finish(const struct gcr_message *message, struct answer *answer)
{
	int r;

	if (!gcr_memory_complete(&answer->error)) {
		answer->error.number = EINVAL;
		return -EINVAL;
	}
	set_phase(GCR_PRELOAD_INCOMING);
	/* The program may have been thawed on other GPUs. */
	r = gcr_device_refresh(&answer->error);
	if (r == 0)
		r = gcr_limits_restore(&answer->error);
	if (r == 0)
		r = bring_in(&answer->error);
	if (r == 0)
		set_phase(GCR_PRELOAD_GATED);
	return r;
}

static int let_go(const struct gcr_message *message, struct answer *answer)
{
	int r = gcr_memory_let_go(&answer->error);

	if (r == 0)
		set_phase(GCR_PRELOAD_OUT);
	return r;
}

/* PARK: parking begins after the answer has been sent. */
static int park(const struct gcr_message *message, struct answer *answer)
{
	struct gcr_park request;
	int r;

	gcr_message_payload(message, &request, sizeof(request));
	r = gcr_park_begin(&answer->error);
	if (r == 0)
		agent.park_limit_ms = request.limit_ms;
	agent.parks = r == 0;
	return r;
}

static int driver_gone(const struct gcr_message *message, struct answer *answer)
{
	gcr_ending_begin();
	return gcr_error_set(&answer->error, ESRCH, "the program is ending");
}

#define IN(phase) (1u << GCR_PRELOAD_##phase)
#define ANYWHERE  (IN(RUNNING) | IN(GATED) | IN(HELD) | IN(HANDED) | IN(OUT) | IN(INCOMING))

/* Phases in which a request is carried out, and phases in which its work is done already. */
static const struct request {
	uint16_t type;
	unsigned phases, done;
	size_t payload_bytes; /* minimum */
	int (*handle)(const struct gcr_message *message, struct answer *answer);
} requests[] = {
	{GCR_MESSAGE_GATE_CLOSE, IN(RUNNING), IN(GATED), sizeof(struct gcr_gate_request),
	 close_gate},
	/* RUNNING: after a GATE_CLOSE that failed. */
	{GCR_MESSAGE_GATE_OPEN, IN(RUNNING) | IN(GATED), 0, 0, handle_open},
	{GCR_MESSAGE_LIST, ANYWHERE, 0, 0, list},
	{GCR_MESSAGE_FILES, ANYWHERE & ~IN(RUNNING), 0, sizeof(struct gcr_range), take_files},
	{GCR_MESSAGE_SAVE, IN(GATED), IN(HELD) | IN(HANDED), 0, save},
	{GCR_MESSAGE_HOLD, IN(GATED), IN(HELD) | IN(HANDED), 0, hold},
	{GCR_MESSAGE_PREPARE, ANYWHERE, 0, 0, prepare},
	{GCR_MESSAGE_HAND_OVER, IN(GATED) | IN(HELD), IN(HANDED),
	 offsetof(struct gcr_hand_over, flags), hand_over},
	{GCR_MESSAGE_COMMIT, IN(HANDED), IN(OUT), 0, commit},
	{GCR_MESSAGE_TAKE_BACK, IN(HELD) | IN(HANDED), IN(GATED), 0, handle_take_back},
	{GCR_MESSAGE_RECEIVE, IN(OUT) | IN(INCOMING), 0, sizeof(struct gcr_range), receive},
	/* OUT: a program without device memory receives nothing. */
	{GCR_MESSAGE_FINISH, IN(OUT) | IN(INCOMING), IN(GATED), 0, finish},
	{GCR_MESSAGE_LET_GO, IN(INCOMING), IN(OUT), 0, let_go},
	/* RUNNING: the program was frozen by the driver alone. */
	{GCR_MESSAGE_PARK, IN(OUT) | IN(RUNNING), 0, sizeof(struct gcr_park), park},
	{GCR_MESSAGE_DRIVER_GONE, ANYWHERE, 0, 0, driver_gone},
};

static const char *phase_name(enum gcr_preload_phase phase)
{
	static const char *const names[] = {"?",	"running",   "gated", "handed over",
					    "gone out", "coming in", "held"};

	return names[phase];
}

static int handle(const struct gcr_message *message, struct answer *answer)
{
	const struct request *request = NULL;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(requests); i++)
		if (requests[i].type == message->header.type)
			request = &requests[i];
	if (!request)
		return gcr_error_set(&answer->error, EOPNOTSUPP,
				     "the preload library does not know request %u",
				     message->header.type);
	if (message->payload_bytes < request->payload_bytes)
		return gcr_error_set(&answer->error, EINVAL, "request %u is too short",
				     message->header.type);
	if (request->done & 1u << agent.phase)
		return 0;
	if (!(request->phases & 1u << agent.phase))
		return gcr_error_set(&answer->error, EBUSY,
				     "request %u makes no sense now: the memory is %s",
				     message->header.type, phase_name(agent.phase));
	if (request->type != GCR_MESSAGE_PREPARE && request->type != GCR_MESSAGE_TAKE_BACK &&
	    request->type != GCR_MESSAGE_FINISH)
		gcr_managed_unprepare();
	return request->handle(message, answer);
}

/*
 * Called when a request has failed because the driver has ended with the program. The memory that
 * was taken out is not needed any more, and threads that wait at the gate may be on the way to
 * exit: opens the gate. Returns -ESRCH.
 */
static int let_program_go(struct answer *answer)
{
	static const char words[] = "the program is ending";

	open_gate();
	/* Not formatted: the stopped threads may hold any lock. */
	if (answer->error.number != ESRCH)
		memcpy(answer->error.words, words, sizeof(words));
	answer->error.number = ESRCH;
	return -ESRCH;
}

/* ---- without a daemon ---- */

/*
 * Handles the loss of the daemon: undoes everything that can be undone without a daemon. For the
 * rest, a period of grace begins.
 */
static void lose_daemon(void)
{
	gcr_connection_close();
	gcr_managed_unprepare();
	agent.looks = 0;
	if (agent.phase == GCR_PRELOAD_RUNNING || agent.phase == GCR_PRELOAD_GATED)
		open_gate();
	else if (agent.phase == GCR_PRELOAD_HELD || agent.phase == GCR_PRELOAD_HANDED)
		agent.grace_ends_usec = gcr_clock_usec() + GCR_PRELOAD_GRACE_USEC;
}

static void wait_a_while(void)
{
	int64_t pause_usec = LOOK_LATER_USEC;
	struct timespec pause;

	if (agent.phase != GCR_PRELOAD_RUNNING && agent.looks < SOON_LOOKS)
		pause_usec = LOOK_SOON_USEC;
	pause.tv_sec = (time_t)(pause_usec / GCR_USEC_PER_SEC);
	pause.tv_nsec = (long)(pause_usec % GCR_USEC_PER_SEC) * 1000;
	nanosleep(&pause, NULL);
}

/*
 * Called when no daemon has connected in time: takes the memory back, since the descriptors are
 * still here. On failure the next call tries again.
 */
static void end_grace(void)
{
	struct gcr_error error;

	/* Held memory comes back only with the threads stopped, which takes a daemon. */
	if (gcr_managed_is_held())
		return;
	/* On failure the next look tries again. */
	if (take_back(&error) == 0 || gcr_is_ending()) {
		agent.grace_ends_usec = 0;
		open_gate();
	}
}

static void look_for_daemon(void)
{
	wait_a_while();
	agent.looks++;
	if (gcr_connection_open(agent.phase, agent.generation) == 0) {
		agent.grace_ends_usec = 0;
		return;
	}
	if (agent.grace_ends_usec && gcr_clock_usec() >= agent.grace_ends_usec)
		end_grace();
}

/* ---- the thread ---- */

static void send_result(const struct gcr_message *message, int r, struct answer *answer,
			int64_t started_usec)
{
	_cleanup_close_ int fd = answer->fd;
	struct gcr_result result = {
		.error = -r,
		.state = agent.phase,
		.duration_usec = (uint64_t)(gcr_clock_usec() - started_usec),
	};

	/* Copied, not formatted: after HOLD other threads may be stopped and hold any lock. */
	if (r < 0)
		memccpy(result.words, answer->error.words, '\0', sizeof(result.words) - 1);
	if (!gcr_connection_is_open() ||
	    gcr_connection_send(GCR_MESSAGE_RESULT, message->header.sequence, &result,
				sizeof(result), &fd, fd >= 0 ? 1 : 0) < 0)
		lose_daemon();
}

/*
 * Closes the message's descriptors as gcr_message_close_fds() does, but each is set to -1 first: a
 * child forked in the middle finds no closed descriptor.
 */
static void close_fds(struct gcr_message *message)
{
	for (size_t i = 0; i < message->fds_count; i++) {
		int fd = gcr_descriptor_take(&message->fds[i]);

		if (fd >= 0)
			close(fd);
	}
	message->fds_count = 0;
}

static void serve(struct gcr_message *message)
{
	int64_t started_usec = gcr_clock_usec();
	struct answer answer = {.fd = -1};
	int r = handle(message, &answer);

	close_fds(message);
	if (r < 0 && gcr_is_ending())
		r = let_program_go(&answer);
	send_result(message, r, &answer, started_usec);
	if (!agent.parks)
		return;
	agent.parks = false;
	lose_daemon();
	gcr_park_wait(agent.park_limit_ms);
}

/* A thread wants the GPU: empties the pipe and tells the daemon, which then reads the page. */
static void drain_wakeup(void)
{
	gcr_wakeup_drain();
	count_touch();
	gcr_connection_tell(GCR_MESSAGE_WANTED);
}

/* Answers a message that did not arrive whole, if its header shows that it is a request. */
static void refuse(const struct gcr_message *message)
{
	struct answer answer = {.fd = -1};
	int r;

	if (message->header.magic != GCR_PROTOCOL_MAGIC || !message->header.type)
		return;
	r = gcr_error_set(&answer.error, EPROTO,
			  "request %u did not arrive whole: it makes no sense, or the program's "
			  "limit of open files left no room for its descriptors",
			  message->header.type);
	send_result(message, r, &answer, gcr_clock_usec());
}

static void *run(void *nothing)
{
	prctl(PR_SET_NAME, GCR_THREAD_AGENT);
	gcr_gate_exempt_thread();
	for (;;) {
		int r;

		if (!gcr_connection_is_open()) {
			look_for_daemon();
			continue;
		}
		memset(&agent.message.header, 0, sizeof(agent.message.header));
		r = gcr_connection_receive(&agent.message);
		if (r == 0)
			serve(&agent.message);
		else if (r == -EPROTO)
			refuse(&agent.message);
		else if (r == -EINTR)
			drain_wakeup();
		else
			lose_daemon();
	}
	return NULL;
}

static int start_thread(void)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	size_t stack_bytes = 0;
	pthread_t thread;
	int r;

	r = -pthread_attr_init(&attributes);
	if (r < 0)
		return r;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (pthread_attr_getstacksize(&attributes, &stack_bytes) == 0 && stack_bytes < STACK_BYTES)
		pthread_attr_setstacksize(&attributes, STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = -pthread_create(&thread, &attributes, run, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return r;
}

void gcr_agent_start(void)
{
	int saved_errno = errno;
	bool is_there = false;

	if (gcr_preload_is_copy())
		gcr_preload_forget();
	if (!atomic_compare_exchange_strong(&agent.is_there, &is_there, true))
		return;
	gcr_preload_expect_fork();
	gcr_wakeup_prepare();
	gcr_connection_prepare();
	gcr_connection_open(agent.phase, agent.generation);
	/* No thread will answer the daemon, so the daemon must not see a connection. */
	if (start_thread() < 0)
		gcr_connection_close();
	errno = saved_errno;
}

static void forget(void)
{
	/* Descriptors of a message that the agent was handling: no other code closes them here. */
	close_fds(&agent.message);
	agent.phase = GCR_PRELOAD_RUNNING;
	memset(agent.generation, 0, sizeof(agent.generation));
	agent.grace_ends_usec = 0;
	agent.looks = 0;
	agent.parks = false;
	agent.is_touched = false;
	atomic_store(&agent.is_there, false);
}

GCR_LISTEN(fork, forget);
