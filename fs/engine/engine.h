/* SPDX-License-Identifier: MIT */
/* How a process is frozen and thawed: the engines, chosen per process by what is there. */
#ifndef GCR_FS_ENGINE_ENGINE_H
#define GCR_FS_ENGINE_ENGINE_H

#include "fs/verb/task.h"
#include "lib/page.h"

struct gcr_engine {
	const char *name;

	/*
	 * Carry out the task's verb. 0: done. Otherwise -errno with words, and *ret_state is where
	 * the process is now: normally where it came from; frozen after a failed freeze that could
	 * not be rolled back; failed if it is lost. Both set *ret_state in every case.
	 */
	int (*freeze)(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error);
	int (*thaw)(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error);

	/* Find out where an earlier daemon left the process, and bring it to a settled state. */
	int (*recover)(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error);
};

/* The driver's own checkpoint, with the VRAM in the process's host memory. */
extern const struct gcr_engine gcr_engine_driver;

/* VRAM handed over to workers and copied into the store, the rest by the driver. */
extern const struct gcr_engine gcr_engine_vmm;

/*
 * The same for a vendor whose driver checkpoints nothing: the rest stays where it is. Its `freeze`
 * is what `freeze data` is.
 */
extern const struct gcr_engine gcr_engine_hip;

/* Nothing can be done for it. */
extern const struct gcr_engine gcr_engine_none;

/*
 * For what needs a freeze later on: -EOPNOTSUPP, with words, if it runs and nothing can freeze it.
 * A library that is in the program and not connected yet may come.
 */
int gcr_engine_check(struct gcr_process *process, struct gcr_error *error);

/* Does the engine of this name move VRAM into files? */
bool gcr_engine_has_files(const char *name);

/* The engine that the process was frozen by. Never NULL. */
const struct gcr_engine *gcr_engine_of(struct gcr_process *process);

/* The engine for this process, and in *ret_reason (static) why not a better one. Never NULL. */
const struct gcr_engine *gcr_engine_choose(struct gcr_process *process, const char **ret_reason);

/* The same by what is known of its preload library; @facts is NULL if there is none connected. */
const struct gcr_engine *gcr_engine_choose_by(struct gcr_process *process,
					      const struct gcr_page_facts *facts,
					      const char **ret_reason);

/*
 * Freeze it with that engine: a library that is in the program and not connected yet is waited for,
 * three seconds at most. As freeze() of struct gcr_engine; -ECANCELED if it is stopped meanwhile.
 */
int gcr_engine_freeze(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error);

#endif
