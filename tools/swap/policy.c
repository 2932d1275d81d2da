/* SPDX-License-Identifier: MIT */
/*
 * The policy. Waiting programs are served in the order in which they began to want their GPU. A
 * waiting program that can get a place blocks its GPUs for later ones, so that small programs do
 * not overtake it; a program that cannot be thawed now blocks none. Other programs are frozen only
 * if the figures say that the waiting program fits afterwards, and no more of them than needed.
 *
 * A thaw may need more VRAM than its figures say (`extra_bytes`), and a freeze may free less,
 * because the driver's context stays (`kept_bytes`). Both values are learned from past verbs,
 * believed only for a limited time (`doubt_usec`), and then learned again.
 */
#include "tools/swap/policy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/sum.h"
#include "tools/swap/policy_private.h"

#define CONFIRM_USEC   (500 * GCR_USEC_PER_MSEC) /* after this delay the figures are reliable */
#define PATIENCE_USEC  (10 * GCR_USEC_PER_SEC)	 /* a longer verb is no longer waited for */
#define MUTE_USEC      (5 * GCR_USEC_PER_SEC)	 /* a new preload library may still be connecting */
#define LOOK_USEC      (5 * GCR_USEC_PER_SEC)	 /* other users may have freed VRAM */
#define SUSPECT_USEC   (5 * GCR_USEC_PER_SEC)	 /* spared for this long after retry_usec */
#define DOUBT_USEC     (5 * GCR_USEC_PER_SEC)
#define DOUBT_MAX_USEC (120 * GCR_USEC_PER_SEC)
#define BLIND_USEC     (60 * GCR_USEC_PER_SEC)
#define STEP_MIN_BYTES (1ull << 20)

static void soon(struct look *look, int64_t usec)
{
	if (usec > look->now_usec && usec < look->decision->next_usec)
		look->decision->next_usec = usec;
}

/* ---- facts ---- */

static bool is_ours(const struct look *look, const struct swap_process *process)
{
	uint32_t gpus = look->policy->config.gpus;

	/* A process that may be on any GPU is not known to be on one of these. */
	return gpus == SWAP_ALL_GPUS || (process->gpus != SWAP_ALL_GPUS && process->gpus & gpus);
}

static bool is_moving(const struct look *look, size_t i)
{
	return look->is_acted[i] || look->memories[i]->action.verb ||
	       look->situation->processes[i].state == SWAP_MOVING;
}

/* Returns true if the process has a verb under way that has not yet exceeded PATIENCE_USEC. */
static bool is_awaited(const struct look *look, size_t i)
{
	const struct memory *memory = look->memories[i];
	int64_t begun_usec = memory->action.verb ? memory->begun_usec : memory->since_usec;

	return look->is_acted[i] ||
	       (is_moving(look, i) && look->now_usec < begun_usec + PATIENCE_USEC);
}

static int64_t idle_usec(const struct look *look, size_t i)
{
	int64_t had_usec = look->now_usec - look->memories[i]->since_usec;
	int64_t said_usec = look->situation->processes[i].idle_usec;

	if (said_usec < 0)
		return 0;
	return said_usec < had_usec ? said_usec : had_usec;
}

/* Returns the time until which the process keeps its place although others want the GPU. */
static int64_t slice_end(const struct look *look, size_t i)
{
	const struct swap_config *config = &look->policy->config;

	if (idle_usec(look, i) >= config->idle_usec)
		return look->now_usec;
	return look->memories[i]->since_usec + config->slice_usec;
}

/* Returns true if the process could be frozen to make room, now or later. */
static bool is_candidate(const struct look *look, size_t i)
{
	const struct swap_process *process = &look->situation->processes[i];

	return process->state == SWAP_RUNNING && !is_moving(look, i) && process->can_tell &&
	       is_ours(look, process);
}

/*
 * Returns the VRAM freed on @gpu by freezing process @i: at best if @is_hopeful, otherwise less the
 * VRAM kept by its last freeze.
 */
static uint64_t gives(const struct look *look, size_t i, unsigned int gpu, bool is_hopeful)
{
	const struct swap_process *process = &look->situation->processes[i];
	uint64_t bytes = gcr_sum(process->vram_bytes[gpu], process->unplaced_bytes);
	uint64_t kept = look->memories[i]->kept_bytes;

	if (is_hopeful || process->gpus == SWAP_ALL_GPUS)
		return bytes;
	kept /= (uint64_t)__builtin_popcount(process->gpus | 1u << gpu);
	return bytes > kept ? bytes - kept : 0;
}

static uint32_t gpus_of(const struct look *look, const struct swap_process *process)
{
	return process->gpus == SWAP_ALL_GPUS ? look->situation->gpus : process->gpus;
}

static bool is_blind(const struct look *look, uint32_t gpus)
{
	for (unsigned int gpu = 0; gpu < SWAP_GPUS_MAX; gpu++)
		if (gpus & 1u << gpu && look->situation->free_bytes[gpu] == SWAP_UNKNOWN)
			return true;
	return false;
}

/* ---- a process that wants its GPU ---- */

struct wanter {
	size_t index;
	const struct swap_process *process;
	struct memory *memory;
	struct swap_note *note;
	uint32_t gpus;
	bool is_hopeful; /* learned figures are ignored */
};

static void note(const struct wanter *wanter, enum swap_why why, int other, int64_t until_usec)
{
	*wanter->note = (struct swap_note){.why = why, .other = other, .until_usec = until_usec};
}

/* Reserves the wanter's GPUs: later wanters of these GPUs wait. */
static void hold(struct look *look, const struct wanter *wanter)
{
	for (unsigned int gpu = 0; gpu < SWAP_GPUS_MAX; gpu++)
		if (wanter->gpus & ~look->held & 1u << gpu)
			look->holder[gpu] = wanter->process->pid;
	look->held |= wanter->gpus;
}

static uint64_t need(const struct wanter *wanter, unsigned int gpu)
{
	uint64_t bytes = wanter->process->need_bytes[gpu];

	return bytes && !wanter->is_hopeful ? gcr_sum(bytes, wanter->memory->extra_bytes) : bytes;
}

/*
 * Returns the first GPU with too little VRAM, counting the current victims, or -1. No victims give
 * more than the GPU has, whatever the figures say.
 */
static int short_gpu(const struct look *look, const struct wanter *wanter)
{
	for (unsigned int gpu = 0; gpu < SWAP_GPUS_MAX; gpu++) {
		uint64_t bytes = look->free_bytes[gpu];
		uint64_t total = look->situation->total_bytes[gpu];

		if (!(wanter->gpus & 1u << gpu) || bytes == SWAP_UNKNOWN)
			continue;
		for (size_t i = 0; i < look->situation->count; i++)
			if (look->is_victim[i])
				bytes = gcr_sum(bytes, gives(look, i, gpu, wanter->is_hopeful));
		if (total && bytes > total)
			bytes = total;
		if (bytes < need(wanter, gpu))
			return (int)gpu;
	}
	return -1;
}

static bool shares(const struct look *look, size_t i, uint32_t gpus)
{
	return look->situation->processes[i].gpus & gpus;
}

static void act(struct look *look, size_t i, enum swap_verb verb, int for_pid)
{
	look->decision->actions[look->decision->actions_count++] = (struct swap_action){
		.pid = look->situation->processes[i].pid,
		.verb = verb,
		.for_pid = for_pid,
		.idle_usec = idle_usec(look, i),
	};
	look->decision->notes[i] = (struct swap_note){.why = SWAP_WHY_GOES};
	look->is_acted[i] = true;
}

/* Subtracts from the free VRAM the needs of a thaw, including the learned extra bytes. */
static void reserve(struct look *look, const struct swap_process *process,
		    const struct memory *memory)
{
	for (unsigned int gpu = 0; gpu < SWAP_GPUS_MAX; gpu++) {
		uint64_t bytes = process->need_bytes[gpu];

		if (!bytes || look->free_bytes[gpu] == SWAP_UNKNOWN)
			continue;
		bytes = gcr_sum(bytes, memory->extra_bytes);
		look->free_bytes[gpu] -= bytes < look->free_bytes[gpu] ? bytes
								       : look->free_bytes[gpu];
	}
}

static void thaw(struct look *look, const struct wanter *wanter)
{
	wanter->memory->has_room = false;
	act(look, wanter->index, SWAP_THAW, 0);
	reserve(look, wanter->process, wanter->memory);
}

/*
 * The candidates that count: those that may be frozen now, those still in their slice too, or all.
 */
enum reach { REACH_NOW, REACH_SLICES, REACH_ALL };

static bool is_within(const struct look *look, size_t i, enum reach reach, int64_t until_usec)
{
	if (!is_candidate(look, i))
		return false;
	if (reach == REACH_ALL)
		return true;
	if (look->memories[i]->retry_usec > look->now_usec)
		return false;
	return slice_end(look, i) <= (reach == REACH_NOW ? look->now_usec : until_usec);
}

/* Chooses all candidates within @reach as victims. Returns a GPU that is short even then, or -1. */
static int choose_all(struct look *look, const struct wanter *wanter, enum reach reach,
		      int64_t until_usec)
{
	for (size_t i = 0; i < look->situation->count; i++)
		look->is_victim[i] = i != wanter->index && shares(look, i, wanter->gpus) &&
				     is_within(look, i, reach, until_usec);
	return short_gpu(look, wanter);
}

/*
 * Returns true if a freeze of the process failed recently; after SUSPECT_USEC the process is
 * treated as the others are.
 */
static bool is_suspect(const struct look *look, size_t i)
{
	const struct memory *memory = look->memories[i];

	return memory->failures && look->now_usec < memory->retry_usec + SUSPECT_USEC;
}

/*
 * Returns true if @first is to be spared rather than @other: recently failed processes, then less
 * idle ones.
 */
static bool is_spared(const struct look *look, size_t first, size_t other)
{
	if (is_suspect(look, first) != is_suspect(look, other))
		return is_suspect(look, first);
	return idle_usec(look, first) < idle_usec(look, other);
}

/* Removes all victims that are not needed, beginning with those that is_spared() prefers. */
static void spare(struct look *look, const struct wanter *wanter)
{
	size_t count = look->situation->count, tried = 0;
	_cleanup_free_ bool *is_tried = calloc(count, sizeof(*is_tried));

	while (is_tried && tried++ < count) {
		size_t best = count;

		for (size_t i = 0; i < count; i++)
			if (look->is_victim[i] && !is_tried[i] &&
			    (best == count || is_spared(look, i, best)))
				best = i;
		if (best == count)
			return;
		is_tried[best] = true;
		look->is_victim[best] = false;
		if (short_gpu(look, wanter) >= 0)
			look->is_victim[best] = true;
	}
}

/*
 * Freezes the victims. If some failed to freeze recently, only these are tried first, so that no
 * other program is frozen in vain.
 */
static void freeze_victims(struct look *look, const struct wanter *wanter)
{
	bool has_suspects = false;

	for (size_t i = 0; i < look->situation->count; i++)
		has_suspects |= look->is_victim[i] && is_suspect(look, i);
	for (size_t i = 0; i < look->situation->count; i++)
		if (look->is_victim[i] && (!has_suspects || is_suspect(look, i)))
			act(look, i, SWAP_FREEZE, wanter->process->pid);
	wanter->memory->has_room = !has_suspects;
	note(wanter, SWAP_WHY_ROOM, 0, 0);
	hold(look, wanter);
}

/* Waits until enough candidates have used up their slice. */
static void wait_slices(struct look *look, const struct wanter *wanter)
{
	int64_t best_usec = SWAP_NEVER;
	int other = 0;

	for (size_t i = 0; i < look->situation->count; i++) {
		int64_t end_usec = is_candidate(look, i) ? slice_end(look, i) : 0;

		if (end_usec > look->now_usec && end_usec < best_usec &&
		    choose_all(look, wanter, REACH_SLICES, end_usec) < 0) {
			best_usec = end_usec;
			other = look->situation->processes[i].pid;
		}
	}
	note(wanter, SWAP_WHY_SLICE, other, best_usec);
	soon(look, best_usec);
	hold(look, wanter);
}

/*
 * Called if there is enough VRAM only with a process that could not be frozen: no other process is
 * frozen before that one can be retried.
 */
static void wait_unable(struct look *look, const struct wanter *wanter)
{
	int64_t best_usec = SWAP_NEVER;
	int other = 0;

	for (size_t i = 0; i < look->situation->count; i++)
		if (is_candidate(look, i) && shares(look, i, wanter->gpus) &&
		    look->memories[i]->retry_usec > look->now_usec &&
		    look->memories[i]->retry_usec < best_usec) {
			best_usec = look->memories[i]->retry_usec;
			other = look->situation->processes[i].pid;
		}
	note(wanter, SWAP_WHY_UNABLE, other, best_usec);
	soon(look, best_usec);
}

static void wait_for_more(struct look *look, const struct wanter *wanter, int gpu)
{
	note(wanter, SWAP_WHY_TOO_LARGE, gpu, 0);
	soon(look, look->now_usec + LOOK_USEC);
}

/* Returns the VRAM that could be free on the wanter's GPUs at best. */
static uint64_t most_bytes(struct look *look, const struct wanter *wanter)
{
	uint64_t sum = 0;

	for (unsigned int gpu = 0; gpu < SWAP_GPUS_MAX; gpu++) {
		if (!(wanter->gpus & 1u << gpu) || look->free_bytes[gpu] == SWAP_UNKNOWN)
			continue;
		sum = gcr_sum(sum, look->free_bytes[gpu]);
		for (size_t i = 0; i < look->situation->count; i++)
			if (i != wanter->index && is_candidate(look, i) &&
			    shares(look, i, wanter->gpus))
				sum = gcr_sum(sum, gives(look, i, gpu, true));
	}
	return sum;
}

/*
 * Called if the wanter fits by its own figures (and if victims keep no VRAM), but not by the
 * learned ones. The learned figures are believed until @doubt_usec, or until a fiftieth more VRAM
 * could be free; then they are ignored for one attempt. Returns true while they are believed: no
 * thaw now.
 */
static bool doubts(struct look *look, struct wanter *wanter)
{
	struct memory *memory = wanter->memory;
	uint64_t most = most_bytes(look, wanter);
	bool is_more = memory->most_bytes && most > memory->most_bytes + memory->most_bytes / 50 &&
		       look->now_usec >= memory->doubt_usec - memory->doubted_usec + DOUBT_USEC;

	if (!memory->doubt_usec) {
		memory->doubted_usec = DOUBT_USEC;
		memory->doubt_usec = look->now_usec + DOUBT_USEC;
		memory->most_bytes = most;
	}
	if (look->now_usec < memory->doubt_usec && !is_more) {
		soon(look, memory->doubt_usec);
		return true;
	}
	memory->doubted_usec = is_more ? DOUBT_USEC : 2 * memory->doubted_usec;
	if (memory->doubted_usec > DOUBT_MAX_USEC)
		memory->doubted_usec = DOUBT_MAX_USEC;
	memory->doubt_usec = look->now_usec + memory->doubted_usec;
	memory->most_bytes = most;
	memory->extra_bytes = 0;
	memory->shortages = 1;
	memory->is_optimistic = true;
	return false;
}

/*
 * Called if the figures say that the wanter does not fit. A single reading may be wrong: returns
 * true if the figures must be read again before they are believed.
 */
static bool is_unconfirmed(struct look *look, const struct wanter *wanter)
{
	struct memory *memory = wanter->memory;

	if (!memory->large_usec)
		memory->large_usec = look->now_usec;
	if (look->now_usec >= memory->large_usec + CONFIRM_USEC)
		return false;
	note(wanter, SWAP_WHY_FIGURES, 0, memory->large_usec + CONFIRM_USEC);
	soon(look, memory->large_usec + CONFIRM_USEC);
	hold(look, wanter);
	return true;
}

static void thaw_or_make_room(struct look *look, struct wanter *wanter);

static void make_room(struct look *look, struct wanter *wanter)
{
	enum reach reach = REACH_ALL;
	int gpu;

	wanter->is_hopeful = true;
	gpu = choose_all(look, wanter, REACH_ALL, 0);
	if (gpu >= 0) {
		if (!is_unconfirmed(look, wanter))
			wait_for_more(look, wanter, gpu);
		return;
	}
	wanter->is_hopeful = wanter->memory->is_optimistic;
	gpu = choose_all(look, wanter, REACH_ALL, 0);
	if (gpu >= 0) {
		if (is_unconfirmed(look, wanter))
			return;
		if (doubts(look, wanter))
			note(wanter, SWAP_WHY_TOO_LARGE, gpu, wanter->memory->doubt_usec);
		else
			thaw_or_make_room(look, wanter);
		return;
	}
	wanter->memory->large_usec = 0;
	if (choose_all(look, wanter, REACH_NOW, 0) < 0)
		reach = REACH_NOW;
	else if (choose_all(look, wanter, REACH_SLICES, SWAP_NEVER) < 0)
		reach = REACH_SLICES;
	if (reach == REACH_NOW) {
		spare(look, wanter);
		freeze_victims(look, wanter);
	} else if (reach == REACH_SLICES) {
		wait_slices(look, wanter);
	} else {
		wait_unable(look, wanter);
	}
}

/* On GPUs without figures, victims are frozen one at a time, the longest idle first. */
static void make_blind_room(struct look *look, const struct wanter *wanter)
{
	size_t count = look->situation->count, best = count, later = count;

	for (size_t i = 0; i < count; i++) {
		look->is_victim[i] = false;
		if (i == wanter->index || !shares(look, i, wanter->gpus))
			continue;
		if (is_within(look, i, REACH_NOW, 0) && (best == count || is_spared(look, best, i)))
			best = i;
		else if (is_within(look, i, REACH_SLICES, SWAP_NEVER) &&
			 (later == count || slice_end(look, i) < slice_end(look, later)))
			later = i;
	}
	if (best < count) {
		look->is_victim[best] = true;
		freeze_victims(look, wanter);
		wanter->memory->has_room = true;
	} else if (later < count) {
		note(wanter, SWAP_WHY_SLICE, look->situation->processes[later].pid,
		     slice_end(look, later));
		soon(look, slice_end(look, later));
		hold(look, wanter);
	} else {
		wanter->memory->is_blind_short = false;
		wanter->memory->retry_usec = look->now_usec + BLIND_USEC;
		note(wanter, SWAP_WHY_FAILED, 0, wanter->memory->retry_usec);
		soon(look, wanter->memory->retry_usec);
	}
}

/*
 * Learns from fresh figures a lower bound of the VRAM that the failed thaw needed beyond its
 * figures.
 */
static void learn_shortage(struct look *look, const struct wanter *wanter)
{
	struct memory *memory = wanter->memory;
	uint64_t least = SWAP_UNKNOWN, sum = 0;

	memory->was_short = false;
	for (unsigned int gpu = 0; gpu < SWAP_GPUS_MAX; gpu++) {
		uint64_t bytes = wanter->process->need_bytes[gpu];

		if (!bytes || look->free_bytes[gpu] == SWAP_UNKNOWN)
			continue;
		sum = gcr_sum(sum, bytes);
		if (look->free_bytes[gpu] < bytes)
			return; /* the figures alone explain the failure */
		if (look->free_bytes[gpu] - bytes < least)
			least = look->free_bytes[gpu] - bytes;
	}
	/* A single failure may be chance. */
	if (memory->shortages < 2 || least == SWAP_UNKNOWN)
		return;
	least += STEP_MIN_BYTES + sum / 100;
	if (least > memory->extra_bytes)
		memory->extra_bytes = least;
}

static void thaw_or_make_room(struct look *look, struct wanter *wanter)
{
	memset(look->is_victim, 0, look->situation->count * sizeof(*look->is_victim));
	wanter->is_hopeful = wanter->memory->is_optimistic;
	if (short_gpu(look, wanter) >= 0)
		make_room(look, wanter);
	else
		thaw(look, wanter);
}

/*
 * Returns a process with a verb under way on the wanter's GPUs, whose figures are therefore not
 * reliable yet, or -1.
 */
static int find_moving(const struct look *look, const struct wanter *wanter)
{
	for (size_t i = 0; i < look->situation->count; i++)
		if (i != wanter->index && shares(look, i, wanter->gpus) && is_awaited(look, i))
			return (int)i;
	return -1;
}

static bool is_fit(struct look *look, struct wanter *wanter)
{
	memset(look->is_victim, 0, look->situation->count * sizeof(*look->is_victim));
	wanter->is_hopeful = wanter->memory->is_optimistic;
	return short_gpu(look, wanter) < 0;
}

static bool waits_for_figures(struct look *look, const struct wanter *wanter)
{
	int64_t until_usec = 0;

	for (unsigned int gpu = 0; gpu < SWAP_GPUS_MAX; gpu++)
		if (wanter->gpus & 1u << gpu && look->policy->figures_usec[gpu] > until_usec)
			until_usec = look->policy->figures_usec[gpu];
	if (until_usec <= look->now_usec)
		return false;
	note(wanter, SWAP_WHY_FIGURES, 0, until_usec);
	soon(look, until_usec);
	hold(look, wanter);
	return true;
}

static void find_place(struct look *look, struct wanter *wanter)
{
	struct memory *memory = wanter->memory;
	bool is_fitting = !memory->was_short && is_fit(look, wanter);
	int moving = find_moving(look, wanter);

	memory->is_blind = is_blind(look, wanter->gpus);
	if (moving >= 0 && !(is_fitting && !memory->has_room && !memory->is_blind_short)) {
		note(wanter, SWAP_WHY_MOVING, look->situation->processes[moving].pid, 0);
		soon(look, look->now_usec + PATIENCE_USEC);
		hold(look, wanter);
	} else if (memory->has_room) {
		thaw(look, wanter);
	} else if (memory->is_blind) {
		if (memory->is_blind_short)
			make_blind_room(look, wanter);
		else
			thaw(look, wanter);
	} else if (is_fitting) {
		thaw(look, wanter);
	} else if (!waits_for_figures(look, wanter)) {
		if (memory->was_short)
			learn_shortage(look, wanter);
		thaw_or_make_room(look, wanter);
	}
}

static void serve(struct look *look, size_t i)
{
	struct wanter wanter = {
		.index = i,
		.process = &look->situation->processes[i],
		.memory = look->memories[i],
		.note = &look->decision->notes[i],
		.gpus = gpus_of(look, &look->situation->processes[i]),
	};

	if (wanter.memory->retry_usec > look->now_usec) {
		note(&wanter, SWAP_WHY_FAILED, 0, wanter.memory->retry_usec);
		soon(look, wanter.memory->retry_usec);
	} else if (wanter.gpus & look->held) {
		note(&wanter, SWAP_WHY_BEHIND,
		     look->holder[__builtin_ctz(wanter.gpus & look->held)], 0);
		hold(look, &wanter);
	} else {
		find_place(look, &wanter);
	}
}

static bool wants(const struct look *look, size_t i)
{
	const struct swap_process *process = &look->situation->processes[i];

	return process->state == SWAP_FROZEN && process->wanted &&
	       process->wanted != SWAP_UNKNOWN && !is_moving(look, i) && is_ours(look, process) &&
	       process->gpus;
}

/* Serves the processes that want their GPU, the longest waiting first. */
static void serve_all(struct look *look)
{
	uint64_t wanted = 0;
	size_t done = 0;

	for (;;) {
		uint64_t next = SWAP_UNKNOWN;

		for (size_t i = 0; i < look->situation->count; i++)
			if (wants(look, i) && look->situation->processes[i].wanted > wanted &&
			    look->situation->processes[i].wanted < next)
				next = look->situation->processes[i].wanted;
		if (next == SWAP_UNKNOWN)
			return;
		for (size_t i = 0; i < look->situation->count; i++)
			if (wants(look, i) && look->situation->processes[i].wanted == next) {
				serve(look, i);
				done++;
			}
		wanted = next;
	}
}

/* ---- all processes ---- */

static void freeze_idle(struct look *look)
{
	int64_t limit_usec = look->policy->config.idle_usec;

	for (size_t i = 0; i < look->situation->count; i++) {
		int64_t its_usec = idle_usec(look, i);

		if (!is_candidate(look, i) || look->situation->processes[i].idle_usec < 0)
			continue;
		if (its_usec < limit_usec)
			soon(look, look->now_usec + limit_usec - its_usec);
		else if (look->memories[i]->retry_usec > look->now_usec)
			soon(look, look->memories[i]->retry_usec);
		else
			act(look, i, SWAP_FREEZE, 0);
	}
}

/* Sets the notes of all processes that are not served. */
static void note_rest(struct look *look)
{
	for (size_t i = 0; i < look->situation->count; i++) {
		const struct swap_process *process = &look->situation->processes[i];
		struct memory *memory = look->memories[i];
		struct swap_note *its = &look->decision->notes[i];

		its->why = SWAP_WHY_NOTHING;
		if (!is_ours(look, process))
			its->why = SWAP_WHY_NOT_OURS;
		else if (is_moving(look, i))
			its->why = SWAP_WHY_GOES;
		else if (process->state == SWAP_RUNNING && memory->mute_usec &&
			 look->now_usec >= memory->mute_usec + MUTE_USEC)
			its->why = SWAP_WHY_MUTE;
		else if (process->state == SWAP_RUNNING && memory->mute_usec)
			soon(look, memory->mute_usec + MUTE_USEC);
		else if (process->state == SWAP_RUNNING && memory->retry_usec > look->now_usec)
			*its = (struct swap_note){SWAP_WHY_FAILED, 0, memory->retry_usec};
	}
}

static void promise(struct look *look)
{
	memcpy(look->free_bytes, look->situation->free_bytes, sizeof(look->free_bytes));
	for (size_t i = 0; i < look->situation->count; i++)
		if (look->memories[i]->action.verb == SWAP_THAW && is_awaited(look, i))
			reserve(look, &look->situation->processes[i], look->memories[i]);
}

int swap_policy_decide(struct swap_policy *policy, const struct swap_situation *situation,
		       int64_t now_usec, struct swap_decision *decision)
{
	_cleanup_free_ struct memory **memories = calloc(situation->count + 1, sizeof(*memories));
	_cleanup_free_ bool *is_victim = calloc(situation->count + 1, sizeof(*is_victim));
	_cleanup_free_ bool *is_acted = calloc(situation->count + 1, sizeof(*is_acted));
	struct look look = {
		.policy = policy,
		.situation = situation,
		.decision = decision,
		.memories = memories,
		.is_victim = is_victim,
		.is_acted = is_acted,
		.now_usec = now_usec,
	};

	decision->actions_count = 0;
	decision->next_usec = SWAP_NEVER;
	if (!memories || !is_victim || !is_acted || swap_policy_remember(&look) < 0)
		return -ENOMEM;
	promise(&look);
	note_rest(&look);
	serve_all(&look);
	freeze_idle(&look);
	return 0;
}
