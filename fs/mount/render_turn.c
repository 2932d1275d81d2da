/* SPDX-License-Identifier: MIT */
/*
 * The lines, and the threads that serve them. The lines are listed in the order in which they are
 * served next: a line that has been served goes to the end of the list. turns->lock is a leaf lock;
 * texts are written without it.
 */
#include "fs/mount/render_turn.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "lib/cleanup.h"
#include "lib/lock.h"

/* Turns in order of arrival. */
struct queue {
	struct gcr_render_turn *first, *last;
};

/* The queue of one owner: the opens of that user that wait or are being served. */
struct gcr_render_line {
	struct gcr_render_line *next;
	uid_t owner;
	bool is_limited;
	unsigned int running;
	struct queue waiting;
};

struct gcr_render_turns {
	struct gcr_quota *quota;
	pthread_t threads[GCR_RENDER_THREADS];
	unsigned int threads_count;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool stopping;
	unsigned int limited_running;
	struct gcr_render_line *lines;
	struct queue interrupted; /* removed from their lines, to be answered with -EINTR */
};

static void append(struct queue *queue, struct gcr_render_turn *turn)
{
	turn->next = NULL;
	turn->previous = queue->last;
	if (queue->last)
		queue->last->next = turn;
	else
		queue->first = turn;
	queue->last = turn;
}

static void take_out(struct queue *queue, struct gcr_render_turn *turn)
{
	if (turn->previous)
		turn->previous->next = turn->next;
	else
		queue->first = turn->next;
	if (turn->next)
		turn->next->previous = turn->previous;
	else
		queue->last = turn->previous;
	turn->next = turn->previous = NULL;
}

/* The owner's line, created at the end of the list if there is none. NULL: out of memory. */
static struct gcr_render_line *line_of_locked(struct gcr_render_turns *turns, uid_t owner)
{
	struct gcr_render_line **link = &turns->lines;

	while (*link && (*link)->owner != owner)
		link = &(*link)->next;
	if (!*link)
		*link = calloc(1, sizeof(**link));
	if (*link) {
		(*link)->owner = owner;
		(*link)->is_limited = gcr_quota_is_limited(turns->quota, owner);
	}
	return *link;
}

static void drop_if_empty_locked(struct gcr_render_turns *turns, struct gcr_render_line *line)
{
	struct gcr_render_line **link = &turns->lines;

	if (line->running || line->waiting.first)
		return;
	while (*link != line)
		link = &(*link)->next;
	*link = line->next;
	free(line);
}

static bool may_run_locked(const struct gcr_render_turns *turns, const struct gcr_render_line *line)
{
	return line->waiting.first &&
	       (!line->is_limited || (line->running < GCR_RENDER_OWNER_MAX &&
				      turns->limited_running < GCR_RENDER_LIMITED));
}

static void move_to_end_locked(struct gcr_render_turns *turns, struct gcr_render_line *line)
{
	struct gcr_render_line **link = &turns->lines;

	while (*link != line)
		link = &(*link)->next;
	*link = line->next;
	while (*link)
		link = &(*link)->next;
	line->next = NULL;
	*link = line;
}

/* The first line of which a turn may run; NULL: there is none. */
static struct gcr_render_line *next_line_locked(const struct gcr_render_turns *turns)
{
	struct gcr_render_line *line = turns->lines;

	while (line && !may_run_locked(turns, line))
		line = line->next;
	return line;
}

/*
 * Takes the next turn for a thread. *ret_line: its line, which now counts the turn as running;
 * NULL: the turn was interrupted. Returns NULL if there is nothing to do.
 */
static struct gcr_render_turn *take_locked(struct gcr_render_turns *turns,
					   struct gcr_render_line **ret_line)
{
	struct gcr_render_turn *turn = turns->interrupted.first;
	struct gcr_render_line *line = NULL;

	if (turn) {
		take_out(&turns->interrupted, turn);
	} else {
		line = next_line_locked(turns);
		if (!line)
			return NULL;
		turn = line->waiting.first;
		take_out(&line->waiting, turn);
		turn->line = NULL;
		line->running++;
		turns->limited_running += line->is_limited;
		move_to_end_locked(turns, line);
	}
	*ret_line = line;
	return turn;
}

/* The text of a turn that take_locked() has returned is written. */
static void end_locked(struct gcr_render_turns *turns, struct gcr_render_line *line)
{
	line->running--;
	turns->limited_running -= line->is_limited;
	drop_if_empty_locked(turns, line);
}

static void *serve(void *data)
{
	struct gcr_render_turns *turns = data;

	pthread_mutex_lock(&turns->lock);
	while (!turns->stopping) {
		struct gcr_render_line *line;
		struct gcr_render_turn *turn = take_locked(turns, &line);

		if (!turn) {
			pthread_cond_wait(&turns->changed, &turns->lock);
			continue;
		}
		/* Each thread that finds more work wakes another thread. */
		if (turns->interrupted.first || next_line_locked(turns))
			pthread_cond_signal(&turns->changed);
		pthread_mutex_unlock(&turns->lock);
		turn->run(turn, line ? 0 : -EINTR);
		pthread_mutex_lock(&turns->lock);
		if (line)
			end_locked(turns, line);
	}
	pthread_mutex_unlock(&turns->lock);
	return NULL;
}

int gcr_render_turns_create(struct gcr_quota *quota, struct gcr_render_turns **ret_turns)
{
	struct gcr_render_turns *turns = calloc(1, sizeof(*turns));
	int result = 0;

	if (!turns)
		return -ENOMEM;
	turns->quota = quota;
	pthread_mutex_init(&turns->lock, NULL);
	pthread_cond_init(&turns->changed, NULL);
	while (turns->threads_count < GCR_RENDER_THREADS && !result) {
		result = -pthread_create(&turns->threads[turns->threads_count], NULL, serve, turns);
		turns->threads_count += !result;
	}
	if (result < 0) {
		gcr_render_turns_stop(turns);
		gcr_render_turns_destroy(turns);
		return result;
	}
	*ret_turns = turns;
	return 0;
}

/* Takes one of all waiting turns, regardless of limits. NULL: none. */
static struct gcr_render_turn *take_any(struct gcr_render_turns *turns)
{
	struct gcr_render_turn *turn;
	struct gcr_render_line *line;

	GCR_LOCK_SCOPE(&turns->lock);
	turn = turns->interrupted.first;
	line = turns->lines;
	if (turn) {
		take_out(&turns->interrupted, turn);
	} else if (line) {
		turn = line->waiting.first;
		take_out(&line->waiting, turn);
		drop_if_empty_locked(turns, line);
	}
	return turn;
}

void gcr_render_turns_stop(struct gcr_render_turns *turns)
{
	struct gcr_render_turn *turn;

	if (!turns)
		return;
	pthread_mutex_lock(&turns->lock);
	turns->stopping = true;
	pthread_cond_broadcast(&turns->changed);
	pthread_mutex_unlock(&turns->lock);
	while (turns->threads_count)
		pthread_join(turns->threads[--turns->threads_count], NULL);
	while ((turn = take_any(turns)))
		turn->run(turn, -ECONNABORTED);
}

void gcr_render_turns_destroy(struct gcr_render_turns *turns)
{
	if (!turns)
		return;
	pthread_cond_destroy(&turns->changed);
	pthread_mutex_destroy(&turns->lock);
	free(turns);
}

/* 0: the turn waits in its line; else the -errno with which the open is to be answered. */
static int add_locked(struct gcr_render_turns *turns, struct gcr_render_turn *turn)
{
	struct gcr_render_line *line;

	if (turns->stopping)
		return -ECONNABORTED;
	line = line_of_locked(turns, turn->owner);
	if (!line)
		return -ENOMEM;
	if (turn->is_interrupted && (line->running || line->waiting.first))
		return -EINTR;
	turn->line = line;
	append(&line->waiting, turn);
	pthread_cond_signal(&turns->changed);
	return 0;
}

void gcr_render_turns_add(struct gcr_render_turns *turns, struct gcr_render_turn *turn)
{
	int result;

	pthread_mutex_lock(&turns->lock);
	result = add_locked(turns, turn);
	pthread_mutex_unlock(&turns->lock);
	if (result < 0)
		turn->run(turn, result);
}

void gcr_render_turns_interrupt(struct gcr_render_turns *turns, struct gcr_render_turn *turn)
{
	struct gcr_render_line *line;

	GCR_LOCK_SCOPE(&turns->lock);
	line = turn->line;
	turn->is_interrupted = true;
	if (!line)
		return;
	turn->line = NULL;
	take_out(&line->waiting, turn);
	append(&turns->interrupted, turn);
	drop_if_empty_locked(turns, line);
	pthread_cond_signal(&turns->changed);
}
