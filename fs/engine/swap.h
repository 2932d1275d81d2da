/* SPDX-License-Identifier: MIT */
/*
 * A swap (`thaw swap=PID`): one process is thawed while another one is frozen, so that both
 * directions of the link between GPU and host are used. A swap is one operation with two tasks, of
 * which the second is the freeze. Where the thaw finds no free VRAM, it waits for the VRAM that the
 * freeze releases. The freeze commits alone, and is undone if the thaw fails after that.
 */
#ifndef GCR_FS_ENGINE_SWAP_H
#define GCR_FS_ENGINE_SWAP_H

#include <stdbool.h>

#include "fs/verb/task.h"

struct gcr_admission;
struct gcr_driver_session;
struct gcr_snapshot;

/* Progress of the two tasks. Shared by their threads; lives as long as the operation. */
struct gcr_swap;

/*
 * Creates the swap of the thaw @command. @admission: the daemon's, which lives longer than the
 * swap. NULL: out of memory. gcr_swap_destroy() frees the swap, and ends its need.
 */
struct gcr_swap *gcr_swap_create(const struct gcr_command *command,
				 struct gcr_admission *admission);
void gcr_swap_destroy(struct gcr_swap *swap); /* NULL is allowed */

/* The command of the freeze. It belongs to the swap. */
const struct gcr_command *gcr_swap_freeze(const struct gcr_swap *swap);

/* Is the task the freeze, or the thaw, of a swap? */
bool gcr_swap_freezes(const struct gcr_task *task);
bool gcr_swap_thaws(const struct gcr_task *task);

/*
 * The vote of a task that may be in a swap; outside a swap it is gcr_task_commit(). The freeze
 * commits without waiting. The thaw waits until the freeze is done; after its commit nothing stops
 * the two. -ECANCELED: the two are to stop.
 */
int gcr_swap_commit(struct gcr_task *task);

/* ---- for engines; tasks outside a swap return at once. -ECANCELED: the two are to stop ---- */

/*
 * Called by the freeze before it touches anything: waits until the thaw has the admission of its
 * GPUs, so that the VRAM that the freeze releases is left to the thaw. -ECANCELED.
 */
int gcr_swap_wait_turn(struct gcr_task *task);

/*
 * Called by the thaw, which has the admission of its GPUs: waits until the freeze has its workers,
 * whose contexts must find VRAM. -ECANCELED.
 */
int gcr_swap_begin_thaw(struct gcr_task *task);

/* Called by the freeze when it has its workers. */
void gcr_swap_begin_freeze(struct gcr_task *task);

/*
 * Called by the freeze before it releases VRAM that it may have to take again: from now to its end
 * the admission is kept for it. -ECANCELED: the admission is no longer kept.
 */
int gcr_swap_begin_letting_go(struct gcr_task *task);

/* Does the thaw need workers of its own, because the freeze still has the GPUs' first ones? */
bool gcr_swap_needs_second(const struct gcr_task *task);

/*
 * Called by the thaw: the GPUs of the process to be frozen, which may have to return to them, as a
 * mask (bit = index).
 */
uint32_t gcr_swap_gpus(const struct gcr_task *task);

/*
 * Keeps @mask (0: none), the admission that the task no longer needs (fs/engine/admission.h). Until
 * the swap is decided, the admission is kept so that either process can roll back, and no other
 * process takes VRAM on these GPUs.
 */
void gcr_swap_keep_admission(struct gcr_task *task, uint32_t mask);

/* Takes over the admission that the swap has kept; returns its mask, 0 if there is none. */
uint32_t gcr_swap_take_admission(struct gcr_task *task);

/* May more VRAM become free for the thaw than is free now? */
bool gcr_swap_may_wait(const struct gcr_task *task);

/* Called by the thaw: waits until the freeze may have released more VRAM. -ECANCELED. */
int gcr_swap_wait_room(struct gcr_task *task);

/*
 * Is the undo of the freeze to stop waiting for admission and workers? True if it has waited long
 * enough, or if the daemon is stopping; then the next daemon undoes the freeze.
 */
bool gcr_swap_gives_up(const struct gcr_task *task);

/*
 * Called when the process of one of the two tasks does not answer, and others get the GPUs. The
 * kept admission becomes a need (fs/engine/admission.h) of the process that may come back, with
 * @snapshot (NULL: the process's own). If the freeze does not answer, the swap fails, unless it is
 * decided. If the thaw does not answer, the freeze ends, with its process left frozen, some time
 * after the deadline.
 */
void gcr_swap_let_others(struct gcr_driver_session *driver, const struct gcr_snapshot *snapshot);

/*
 * Called by the freeze when it has failed with @error and is about to roll back: stops the thaw,
 * and waits until the thaw has given up its VRAM, unless the thaw does not answer. Does nothing if
 * the process has ended, since then its VRAM is free.
 */
void gcr_swap_fail(struct gcr_task *task, struct gcr_error *error);

#endif
