/* SPDX-License-Identifier: MIT */
/*
 * `thaw swap=PID`: one process is thawed while another one is frozen, so that both directions of
 * the link are used. One operation with two tasks, of which the second is the freeze. What the thaw
 * finds no VRAM for it takes when the freeze is out; the freeze commits alone, and is taken back if
 * the thaw fails after that.
 */
#ifndef GCR_FS_ENGINE_EXCHANGE_H
#define GCR_FS_ENGINE_EXCHANGE_H

#include <stdbool.h>

#include "fs/verb/task.h"

struct gcr_drive;
struct gcr_snapshot;

/* How far the two are; shared by their threads, lives as long as the operation. */
struct gcr_exchange;

/* For the thaw @command. NULL: no memory. */
struct gcr_exchange *gcr_exchange_create(const struct gcr_command *command);
void gcr_exchange_destroy(struct gcr_exchange *exchange);

/* The command of the freeze. */
const struct gcr_command *gcr_exchange_freeze(const struct gcr_exchange *exchange);

/* Is the task one of an exchange, and which? */
bool gcr_exchange_freezes(const struct gcr_task *task);
bool gcr_exchange_thaws(const struct gcr_task *task);

/*
 * gcr_task_commit(), which it is for a task of no exchange. The freeze waits for nobody; the thaw
 * until the freeze is out, and after it nothing stops the two.
 */
int gcr_exchange_commit(struct gcr_task *task);

/* ---- for engines; what is of no exchange is not held up by any of these ---- */

/*
 * The freeze, before anything is touched: until the thaw is the only one on its GPUs, so that what
 * becomes free is its. -ECANCELED.
 */
int gcr_exchange_wait_turn(struct gcr_task *task);

/*
 * The thaw, which is the only one on its GPUs: until the freeze has its workers, whose contexts
 * must find room. -ECANCELED.
 */
int gcr_exchange_begin_thaw(struct gcr_task *task);

/* The freeze has its workers. */
void gcr_exchange_begin_freeze(struct gcr_task *task);

/*
 * The freeze, before what it may have to take again becomes free: from now on its place is kept to
 * its end. -ECANCELED: it is so no more.
 */
int gcr_exchange_begin_letting_go(struct gcr_task *task);

/* Does the thaw need workers of its own, as the freeze still has the GPUs' first ones? */
bool gcr_exchange_needs_second(const struct gcr_task *task);

/* The GPUs of the other one, which may need them again: a mask, for the thaw. */
uint32_t gcr_exchange_gpus(const struct gcr_task *task);

/*
 * The admission of the thaw (see fs/process/gpus.h; a mask, 0: none), which needs it no more: until
 * the two are decided it is there for whoever goes back, and nobody else takes VRAM on these GPUs.
 */
void gcr_exchange_keep_admission(struct gcr_task *task, uint32_t mask);

/* What is kept becomes the caller's. */
uint32_t gcr_exchange_take_admission(struct gcr_task *task);

/* May more VRAM become free for the thaw than there is now? */
bool gcr_exchange_may_wait(const struct gcr_task *task);

/* Wait until there may be more. -ECANCELED. */
int gcr_exchange_wait_room(struct gcr_task *task);

/*
 * The freeze is being taken back, and has waited long enough for what others have; or the daemon is
 * stopping, and the next one does it.
 */
bool gcr_exchange_gives_up(const struct gcr_task *task);

/*
 * The process of one of the two does not answer, and others get the GPUs: what is kept of the
 * admission becomes a need (fs/engine/admission.h) of the one that may come back, with @snapshot
 * (NULL: what it has). An exchange whose freeze stands still fails, as long as it is not decided;
 * one whose thaw does so lets the other go, as it is, some time after the deadline.
 */
void gcr_exchange_let_others(struct gcr_drive *drive, const struct gcr_snapshot *snapshot);

/*
 * The freeze has failed, and is about to go back: first the thaw gives up what it has taken, unless
 * it does not answer. Not if the process has ended, since then its VRAM is free.
 */
void gcr_exchange_fail(struct gcr_task *task, struct gcr_error *error);

#endif
