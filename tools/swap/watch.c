/* SPDX-License-Identifier: MIT */
/*
 * The watcher: one loop that waits for `events`, signals, status requests and the time that the
 * policy named. The loop never waits for a verb: verbs are written with O_NONBLOCK, and `events`
 * reports their ends. Ends missed there are found in the events of the process itself.
 */
#include "tools/swap/swap.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"

#define MISSED_USEC (500 * GCR_USEC_PER_MSEC) /* afterwards, a missed end is looked for */
#define MOUNT_USEC  (200 * GCR_USEC_PER_MSEC) /* interval of retries while the mount is absent */
#define CANCEL_USEC (5 * GCR_USEC_PER_SEC)
#define TEXT_BYTES  65536

/* A process that the mount shows. */
struct peer {
	int pid;
	uint64_t start_ticks;
	uint64_t wanted;
	struct swap_action action; /* action under way, if any */
	int64_t begun_usec;
	char begun_stamp[SWAP_STAMP_BYTES]; /* begun_usec as stamped in events */
	bool is_seen;
	enum swap_why told; /* the last reason for waiting that was reported */
	bool is_mute_told;
};

struct watch {
	const char *mount;
	const struct swap_config *config;
	struct swap_policy *policy;
	struct swap_view view;
	struct swap_action *actions;
	struct swap_note *notes;
	size_t notes_count;
	struct peer *peers;
	size_t peers_count;
	struct swap_counters counters;
	int64_t started_usec;
	int64_t next_usec;
	bool takes_back; /* interrupted: the watcher has cancelled the verbs under way */
	int events_fd, signal_fd, socket_fd;
	off_t events_bytes; /* read up to here */
	size_t used;
	char text[TEXT_BYTES]; /* an incomplete line */
};

static void complain(int pid, const char *verb, const char *words)
{
	fprintf(stderr, "gpucr-swap: %s%s%d: %s\n", verb, *verb ? " " : "", pid, words);
}

/* ---- processes ---- */

static struct peer *find_peer(struct watch *watch, int pid)
{
	for (size_t i = 0; i < watch->peers_count; i++)
		if (watch->peers[i].pid == pid)
			return &watch->peers[i];
	return NULL;
}

static int note_seen(struct watch *watch, const struct swap_process *process)
{
	struct peer *peer = find_peer(watch, process->pid);

	if (!peer) {
		struct peer *more = realloc(watch->peers, (watch->peers_count + 1) * sizeof(*more));

		if (!more)
			return -ENOMEM;
		watch->peers = more;
		peer = &more[watch->peers_count++];
		peer->pid = 0;
	}
	if (!peer->pid || peer->start_ticks != process->start_ticks)
		*peer = (struct peer){.pid = process->pid, .start_ticks = process->start_ticks};
	peer->is_seen = true;
	if (process->wanted && process->wanted != SWAP_UNKNOWN && process->wanted != peer->wanted) {
		peer->wanted = process->wanted;
		watch->counters.waits++;
	}
	return 0;
}

static int meet_all(struct watch *watch)
{
	size_t kept = 0;

	for (size_t i = 0; i < watch->peers_count; i++)
		watch->peers[i].is_seen = false;
	for (size_t i = 0; i < watch->view.situation.count; i++)
		if (note_seen(watch, &watch->view.processes[i]) < 0)
			return -ENOMEM;
	for (size_t i = 0; i < watch->peers_count; i++)
		if (watch->peers[i].is_seen)
			watch->peers[kept++] = watch->peers[i];
	watch->peers_count = kept;
	return 0;
}

/* ---- verbs ---- */

static void count_success(struct watch *watch, struct peer *peer, const struct swap_action *action)
{
	if (action->verb == SWAP_THAW) {
		int64_t waited_usec = gcr_clock_real_usec() - (int64_t)peer->wanted;

		watch->counters.turns++;
		if (peer->wanted && waited_usec > 0)
			watch->counters.wait_usec += waited_usec;
		peer->told = SWAP_WHY_NOTHING;
		printf("%d thawed\n", peer->pid);
	} else if (action->for_pid) {
		watch->counters.room_freezes++;
		printf("%d frozen, to make room\n", peer->pid);
	} else {
		int64_t tenths = action->idle_usec / (GCR_USEC_PER_SEC / 10);

		watch->counters.idle_freezes++;
		printf("%d frozen, idle for %" PRId64 ".%" PRId64 " s\n", peer->pid, tenths / 10,
		       tenths % 10);
	}
	fflush(stdout);
}

static void end_verb(struct watch *watch, struct peer *peer, int number, const char *words)
{
	struct swap_action action = peer->action;

	peer->action.verb = SWAP_NO_VERB;
	if (number)
		watch->counters.failures++;
	else
		count_success(watch, peer, &action);
	if (swap_policy_ended(watch->policy, peer->pid, number, gcr_clock_usec()) &&
	    number != ESRCH && !(number == ECANCELED && watch->takes_back))
		complain(peer->pid, swap_verb_name(action.verb), words);
}

static void begin_verb(struct watch *watch, const struct swap_action *action)
{
	const char *text = swap_verb_text(action->verb, watch->config->is_full);
	struct peer *peer = find_peer(watch, action->pid);
	struct gcr_error error = {0};
	int result;

	if (!peer)
		return;
	peer->action = *action;
	peer->begun_usec = gcr_clock_usec();
	swap_stamp(gcr_clock_real_usec(), peer->begun_stamp);
	swap_policy_begun(watch->policy, action->pid, action, peer->begun_usec);
	result = swap_write_verb(watch->mount, action->pid, text, false, &error);
	if (result < 0)
		end_verb(watch, peer, -result, error.words);
}

/*
 * Called when the status of the process says that no verb is under way but no event has reported
 * the end. Reads the process's own events rather than `error`, which may describe an earlier verb.
 */
static void check_missed(struct watch *watch, const struct swap_process *process, bool has_verb)
{
	struct peer *peer = find_peer(watch, process->pid);
	struct gcr_error error = {0};
	int result;

	if (!peer || !peer->action.verb || has_verb ||
	    gcr_clock_usec() < peer->begun_usec + MISSED_USEC)
		return;
	result = swap_find_end(watch->mount, process->pid, swap_verb_name(peer->action.verb),
			       peer->begun_stamp, &error);
	if (result == -ENOENT) {
		result = 0;
		if (process->state != (peer->action.verb == SWAP_THAW ? SWAP_RUNNING : SWAP_FROZEN))
			result = gcr_error_set(&error, EIO, "it has not taken effect");
	}
	end_verb(watch, peer, -result, error.words);
}

static bool has_verbs(const struct watch *watch)
{
	for (size_t i = 0; i < watch->peers_count; i++)
		if (watch->peers[i].action.verb)
			return true;
	return false;
}

/* ---- events ---- */

/*
 * Handles one line of events, which is modified. Ends of verbs that began before the watcher's own
 * verb are ignored.
 */
static void hear(struct watch *watch, char *line)
{
	struct gcr_error error = {0};
	struct swap_end end;
	struct peer *peer;
	int number;

	if (!swap_parse_end(line, &end))
		return;
	peer = find_peer(watch, end.pid);
	if (!peer || !peer->action.verb ||
	    strcmp(end.verb, swap_verb_name(peer->action.verb)) != 0 ||
	    strcmp(end.stamp, peer->begun_stamp) < 0)
		return;
	number = -swap_end_error(&end, &error);
	end_verb(watch, peer, number, error.words);
}

static void hear_lines(struct watch *watch)
{
	char *start = watch->text, *end;

	while ((end = memchr(start, '\n', watch->used - (size_t)(start - watch->text)))) {
		*end = '\0';
		hear(watch, start);
		start = end + 1;
	}
	watch->used -= (size_t)(start - watch->text);
	memmove(watch->text, start, watch->used);
	if (watch->used == sizeof(watch->text))
		watch->used = 0;
}

/* Reads all new events. Returns 0, or -errno: the daemon has ended. */
static int read_events(struct watch *watch)
{
	for (;;) {
		off_t bytes = lseek(watch->events_fd, 0, SEEK_END);
		ssize_t got;

		if (bytes < 0)
			return -errno;
		/* The daemon cut off the older half: missed ends are found by check_missed(). */
		if (bytes < watch->events_bytes) {
			watch->events_bytes = bytes;
			watch->used = 0;
		}
		got = pread(watch->events_fd, watch->text + watch->used,
			    sizeof(watch->text) - watch->used, watch->events_bytes);
		if (got <= 0)
			return got < 0 ? -errno : 0;
		watch->events_bytes += got;
		watch->used += (size_t)got;
		hear_lines(watch);
	}
}

static int open_events(struct watch *watch)
{
	_cleanup_free_ char *path = NULL;
	if (asprintf(&path, "%s/events", watch->mount) < 0)
		return -ENOMEM;
	watch->events_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (watch->events_fd < 0)
		return -errno;
	watch->events_bytes = lseek(watch->events_fd, 0, SEEK_END);
	watch->used = 0;
	if (watch->events_bytes < 0)
		return -errno;
	return 0;
}

static void close_events(struct watch *watch)
{
	if (watch->events_fd >= 0)
		close(watch->events_fd);
	watch->events_fd = -1;
	watch->peers_count = 0;
	watch->view.situation.count = 0;
	swap_policy_forget(watch->policy);
}

/* ---- deciding ---- */

static struct swap_told told_now(const struct watch *watch)
{
	return (struct swap_told){
		.mount = watch->mount,
		.config = watch->config,
		.view = &watch->view,
		.notes = watch->notes,
		.counters = &watch->counters,
		.started_usec = watch->started_usec,
		.now_usec = gcr_clock_usec(),
	};
}

/* Reports each notable state to the user once. */
static void tell(struct watch *watch)
{
	for (size_t i = 0; i < watch->view.situation.count; i++) {
		struct peer *peer = find_peer(watch, watch->view.processes[i].pid);
		const struct swap_note *its = &watch->notes[i];
		char words[160];

		if (!peer)
			continue;
		if (its->why == SWAP_WHY_MUTE && !peer->is_mute_told) {
			peer->is_mute_told = true;
			complain(peer->pid, "",
				 "it is left alone, as it would not say that it wants its GPU "
				 "back: it was not started by gpucr-run, or its engine is not vmm "
				 "or hip");
		}
		if (its->why == SWAP_WHY_TOO_LARGE && peer->told != its->why) {
			peer->told = its->why;
			snprintf(words, sizeof(words),
				 "it would not fit if all others on its GPUs were frozen (GPU %d), "
				 "so none is",
				 its->other);
			complain(peer->pid, "thaw", words);
		}
	}
}

static int make_room_for_notes(struct watch *watch)
{
	size_t count = watch->view.situation.count;

	if (count > watch->notes_count || !watch->notes) {
		free(watch->notes);
		free(watch->actions);
		watch->notes = calloc(2 * count + 1, sizeof(*watch->notes));
		watch->actions = calloc(2 * count + 1, sizeof(*watch->actions));
		watch->notes_count = watch->notes && watch->actions ? 2 * count : 0;
	}
	return watch->notes && watch->actions ? 0 : -ENOMEM;
}

/* Reads the mount, decides and begins the actions. Returns 0, or -errno: the daemon has ended. */
static int step(struct watch *watch)
{
	struct swap_decision decision;
	int64_t now_usec;
	int result = swap_look(watch->mount, &watch->view);

	if (!result)
		result = meet_all(watch);
	if (!result)
		result = make_room_for_notes(watch);
	if (result < 0) {
		/*
		 * The array of notes may be too small for the processes: show none to status
		 * requests.
		 */
		watch->view.situation.count = 0;
		return result;
	}
	for (size_t i = 0; i < watch->view.situation.count; i++)
		check_missed(watch, &watch->view.processes[i], watch->view.labels[i].has_verb);
	now_usec = gcr_clock_usec();
	decision = (struct swap_decision){.actions = watch->actions, .notes = watch->notes};
	result = swap_policy_decide(watch->policy, &watch->view.situation, now_usec, &decision);
	if (result < 0)
		return result;
	watch->next_usec = decision.next_usec;
	tell(watch);
	for (size_t i = 0; i < decision.actions_count; i++)
		begin_verb(watch, &decision.actions[i]);
	now_usec = gcr_clock_usec();
	/* A verb that was refused at once may change the decision. */
	if (decision.actions_count && !has_verbs(watch))
		watch->next_usec = now_usec;
	else if (has_verbs(watch) && watch->next_usec > now_usec + MISSED_USEC)
		watch->next_usec = now_usec + MISSED_USEC;
	return 0;
}

/* ---- the loop ---- */

/* Waits for an event, a request, a signal or @until_usec. Returns the signal's number, or 0. */
static int wait_for_something(struct watch *watch, int64_t until_usec)
{
	int64_t left_usec = until_usec - gcr_clock_usec();
	struct pollfd fds[] = {
		{.fd = watch->signal_fd, .events = POLLIN},
		{.fd = watch->events_fd, .events = POLLIN},
		{.fd = watch->socket_fd, .events = POLLIN},
	};
	struct signalfd_siginfo info;
	struct timespec time;

	if (left_usec < 0)
		left_usec = 0;
	time = gcr_clock_timespec(left_usec);
	if (ppoll(fds, GCR_ARRAY_SIZE(fds), until_usec == SWAP_NEVER ? NULL : &time, NULL) < 0)
		return 0;
	if (fds[2].revents) {
		struct swap_told told = told_now(watch);

		swap_answer(watch->socket_fd, &told);
	}
	if (fds[0].revents && read(watch->signal_fd, &info, sizeof(info)) == sizeof(info))
		return (int)info.ssi_signo;
	return 0;
}

/* After a signal: cancels the verbs under way and waits for their ends, CANCEL_USEC at most. */
static void take_back(struct watch *watch)
{
	int64_t until_usec = gcr_clock_usec() + CANCEL_USEC;
	struct gcr_error error;

	watch->takes_back = true;
	for (size_t i = 0; i < watch->peers_count; i++)
		if (watch->peers[i].action.verb)
			swap_write_verb(watch->mount, watch->peers[i].pid, "cancel", false, &error);
	while (has_verbs(watch) && gcr_clock_usec() < until_usec) {
		int64_t look_usec = gcr_clock_usec() + MISSED_USEC;

		if (watch->events_fd < 0 || wait_for_something(watch, look_usec) ||
		    read_events(watch) < 0 || swap_look(watch->mount, &watch->view) < 0 ||
		    meet_all(watch) < 0)
			return;
		for (size_t i = 0; i < watch->view.situation.count; i++)
			check_missed(watch, &watch->view.processes[i],
				     watch->view.labels[i].has_verb);
		watch->view.situation.count = 0;
	}
}

static int open_signals(void)
{
	struct sigaction inherited;
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	/* Under nohup(1), SIGHUP stays ignored. */
	if (!sigaction(SIGHUP, NULL, &inherited) && inherited.sa_handler != SIG_IGN)
		sigaddset(&signals, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &signals, NULL) < 0)
		return -errno;
	return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

/*
 * Makes one pass of the loop. Returns the number of a signal that ends the loop, or 0. *is_absent:
 * no daemon has answered, which has been reported.
 */
static int turn(struct watch *watch, bool *is_absent)
{
	int64_t until_usec = gcr_clock_usec() + MOUNT_USEC;
	int result = 0;

	if (watch->events_fd < 0)
		result = open_events(watch);
	else
		result = read_events(watch);
	if (!result)
		result = step(watch);
	if (!result) {
		*is_absent = false;
		until_usec = watch->next_usec;
	} else if (result != -ENOMEM) {
		if (!*is_absent)
			fprintf(stderr,
				"gpucr-swap: %s: no gpucrfs answers there any more; waiting for "
				"one\n",
				watch->mount);
		*is_absent = true;
		close_events(watch);
	}
	return wait_for_something(watch, until_usec);
}

int swap_watch(const char *mount, const struct swap_config *config, struct gcr_error *error)
{
	_cleanup_free_ struct watch *watch = calloc(1, sizeof(*watch));
	_cleanup_free_ char *path = NULL;
	struct gcr_error socket_error = {0};
	bool is_absent = false;
	int number = 0;

	if (watch)
		*watch = (struct watch){
			.mount = mount,
			.config = config,
			.policy = swap_policy_create(config),
			.events_fd = -1,
			.signal_fd = open_signals(),
			.started_usec = gcr_clock_real_usec(),
		};
	if (!watch || !watch->policy || watch->signal_fd < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	watch->socket_fd = swap_listen(&path, &socket_error);
	if (watch->socket_fd < 0)
		fprintf(stderr, "gpucr-swap: it cannot be asked for its status: %s\n",
			socket_error.words);
	while (!number)
		number = turn(watch, &is_absent);
	take_back(watch);
	swap_unlisten(watch->socket_fd, path);
	close_events(watch);
	close(watch->signal_fd);
	swap_policy_destroy(watch->policy);
	swap_view_finish(&watch->view);
	free(watch->actions);
	free(watch->notes);
	free(watch->peers);
	return number;
}
