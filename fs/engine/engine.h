/* SPDX-License-Identifier: MIT */
/* Engines: the ways in which a process is frozen and thawed, chosen for each process. */
#ifndef GCR_FS_ENGINE_ENGINE_H
#define GCR_FS_ENGINE_ENGINE_H

#include "fs/verb/task.h"
#include "lib/page.h"

/* One way to freeze and thaw. The functions run on the task's thread. */
struct gcr_engine {
	const char *name;

	/*
	 * Carry out the task's verb. 0: done. Otherwise -errno with a message. *ret_state is set in
	 * every case to the state of the process: after an error normally the state before the
	 * verb; frozen after a failed freeze that could not be rolled back; failed if the process
	 * is lost.
	 */
	int (*freeze)(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error);
	int (*thaw)(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error);

	/*
	 * Find out how an earlier daemon left the process, and bring it to a state without a verb.
	 */
	int (*recover)(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error);
};

/* The driver's own checkpoint; VRAM goes into the process's host memory. */
extern const struct gcr_engine gcr_engine_driver;

/*
 * VRAM is handed over to workers and copied into the store; the driver checkpoints its own state.
 */
extern const struct gcr_engine gcr_engine_vmm;

/*
 * As gcr_engine_vmm, for a vendor whose driver has no checkpoint: the driver's own state stays
 * where it is, so that `freeze` does the same as `freeze data`.
 */
extern const struct gcr_engine gcr_engine_hip;

/* Refuses all verbs: there is no way to freeze the process. */
extern const struct gcr_engine gcr_engine_none;

/*
 * Can the process be frozen later? -EOPNOTSUPP, with a message, if it runs and no engine can freeze
 * it. A library that is in the program but not connected yet counts as usable.
 */
int gcr_engine_check(struct gcr_process *process, struct gcr_error *error);

/* Does the engine named @name move VRAM into files? */
bool gcr_engine_has_files(const char *name);

/* The engine that the process was frozen by. Never NULL. Takes process->lock. */
const struct gcr_engine *gcr_engine_of(struct gcr_process *process);

/*
 * Chooses the engine for this process. Never NULL. *ret_reason (a static string) says why no better
 * engine was chosen; "-": there is none better. For a process that is not running the engine is the
 * one that froze it.
 */
const struct gcr_engine *gcr_engine_choose(struct gcr_process *process, const char **ret_reason);

/*
 * As gcr_engine_choose(), from the facts of the process's preload library; @facts is NULL if no
 * library is connected.
 */
const struct gcr_engine *gcr_engine_choose_by(struct gcr_process *process,
					      const struct gcr_page_facts *facts,
					      const char **ret_reason);

/*
 * Freeze the process with the engine that is chosen for it, after waiting at most three seconds for
 * a library that is in the program but not connected yet. Returns as freeze() of struct gcr_engine;
 * -ECANCELED if the task is stopped during the wait.
 */
int gcr_engine_freeze(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error);

#endif
