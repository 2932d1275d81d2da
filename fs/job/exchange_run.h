/* SPDX-License-Identifier: MIT */
/* What an operation does with the two tasks of an exchange (fs/engine/exchange.h). */
#ifndef GCR_FS_JOB_EXCHANGE_RUN_H
#define GCR_FS_JOB_EXCHANGE_RUN_H

#include "fs/engine/exchange.h"

/* -EOPNOTSUPP, with words: one of them has no engine whose bytes go through workers. */
int gcr_exchange_check(struct gcr_process *thawed, struct gcr_process *frozen,
		       struct gcr_error *error);

/* Carry out the task's part; it has ended for the other one too when this returns. */
int gcr_exchange_carry_out(struct gcr_task *task, enum gcr_state *ret_state,
			   struct gcr_error *error);

/* The task has come to its end, perhaps without having begun; its thread does nothing any more. */
void gcr_exchange_end(struct gcr_task *task, int result, struct gcr_error *error);

#endif
