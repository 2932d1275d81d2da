/* SPDX-License-Identifier: MIT */
/* The part of an operation that carries out the two tasks of a swap (fs/engine/swap.h). */
#ifndef GCR_FS_JOB_SWAP_RUN_H
#define GCR_FS_JOB_SWAP_RUN_H

#include "fs/engine/swap.h"

/*
 * Can the two processes be swapped? -EOPNOTSUPP, with a message, if the engine of one of them does
 * not move VRAM with workers.
 */
int gcr_swap_check(struct gcr_process *thawed, struct gcr_process *frozen, struct gcr_error *error);

/*
 * Carry out the task's half of the swap: the freeze or the thaw. Returns as freeze() and thaw() of
 * struct gcr_engine. The thaw calls gcr_swap_end() itself; a freeze whose thaw fails thaws its
 * process again, and returns -ECANCELED, without a message.
 */
int gcr_swap_carry_out(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error);

/*
 * The task has ended, perhaps without having begun: tells the other task of the swap its result,
 * and gives the kept admission up. A thaw that has failed first waits up to 2 s for the freeze to
 * react.
 */
void gcr_swap_end(struct gcr_task *task, int result, struct gcr_error *error);

#endif
