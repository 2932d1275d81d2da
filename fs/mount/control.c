/* SPDX-License-Identifier: MIT */
/*
 * The way from the bytes of a write to a running operation. A refusal here is reported to the
 * process's `error` file and the event logs like a verb that failed later.
 */
#include "fs/mount/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/cancellation.h"
#include "fs/base/counters.h"
#include "fs/base/event.h"
#include "fs/base/log.h"
#include "fs/base/quota.h"
#include "fs/base/refusals.h"
#include "fs/base/turns.h"
#include "fs/base/waiter.h"
#include "fs/image/dump.h"
#include "fs/job/swap_run.h"
#include "fs/job/operation.h"
#include "fs/mount/tree.h"
#include "fs/verb/ctl.h"
#include "fs/verb/packing.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/procfs.h"

/*
 * Time to find all processes of one write. A thread of the mount does this, and looks below each
 * launcher for half a second at most; fs/mount/session_turn.h says how many threads a user has.
 */
#define FIND_USEC (5 * GCR_USEC_PER_SEC)

/* The processes of one write, with references. */
struct targets {
	struct gcr_process **list;
	/* Of each process, before opener and writer were checked; start_stack 0: not known. */
	struct gcr_proc_program *programs;
	size_t count;
	/* The first process whose program was not looked at, and the reason; 0: none. */
	pid_t unseen_pid;
	int unseen_result;
	int64_t until_usec; /* monotonic: no further process is looked for */
};

static void targets_finish(struct targets *targets)
{
	gcr_processes_list_free(targets->list, targets->count);
	free(targets->programs);
}

/*
 * Sets and returns the error for a request whose opener or writer could not be examined; the
 * process itself is not at fault.
 */
static int explain_unknown(struct gcr_error *error)
{
	return gcr_error_set(
		error, ETIMEDOUT,
		"the opener or the writer of this file could not be looked at in time; "
		"open the file again");
}

/*
 * Checks that opener and writer are each root, or the owner of /proc/PID, whom the kernel would let
 * look into the process. Errors, with a message.
 */
static int check_parties(const struct gcr_parties *parties, struct gcr_process *process,
			 struct gcr_error *error)
{
	uid_t uid;
	gid_t gid;

	if (!gcr_parties_are_known(parties))
		return explain_unknown(error);
	if (!gcr_parties_reach(parties, process->pid) ||
	    gcr_process_find_owner(process, &uid, &gid) < 0)
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)process->pid);
	if (!gcr_parties_own(parties, uid))
		return gcr_error_set(error, EPERM, "process %d belongs to another user",
				     (int)process->pid);
	return gcr_parties_check_tracing(parties, process->pid, uid, error);
}

/* @program: what gcr_proc_program() said, with @result. */
static int add_target(struct targets *targets, struct gcr_process *process,
		      const struct gcr_proc_program *program, int result)
{
	struct gcr_proc_program *programs;
	struct gcr_process **list;

	for (size_t i = 0; i < targets->count; i++)
		if (targets->list[i] == process)
			return 0;
	list = reallocarray(targets->list, targets->count + 1, sizeof(struct gcr_process *));
	if (!list)
		return -ENOMEM;
	targets->list = list;
	programs = reallocarray(targets->programs, targets->count + 1, sizeof(*programs));
	if (!programs)
		return -ENOMEM;
	targets->programs = programs;
	if (result < 0 && !targets->unseen_result) {
		targets->unseen_pid = process->pid;
		targets->unseen_result = result;
	}
	programs[targets->count] = *program;
	list[targets->count++] = gcr_process_ref(process);
	return 0;
}

/*
 * Adds @process to the targets if opener and writer may have it, or only checks that for a
 * launcher. They are compared with the program that the process has now: a verb locks no other one.
 */
static int check_target(struct targets *targets, const struct gcr_parties *parties,
			struct gcr_process *process, struct gcr_error *error)
{
	struct gcr_proc_program program = {0};
	int seen = gcr_proc_program(process->pid, &program);
	int result = check_parties(parties, process, error);

	if (!result && !process->launcher && add_target(targets, process, &program, seen) < 0)
		result = gcr_error_set(error, ENOMEM, "out of memory");
	return result;
}

/*
 * Adds @process to the targets. A launcher stands for the GPU processes below it; @with_tree, every
 * process stands for itself and all GPU processes below it.
 */
static int add_targets(struct targets *targets, const struct gcr_parties *parties,
		       struct gcr_process *process, bool with_tree, struct gcr_error *error)
{
	struct gcr_process **members = NULL;
	size_t count = 0;
	int result;

	if (gcr_process_has_ended(process))
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)process->pid);
	result = check_target(targets, parties, process, error);
	if (result < 0 || (!process->launcher && !with_tree))
		return result;
	result = gcr_process_members(process, &members, &count);
	if (result == -ETIMEDOUT)
		result = gcr_error_set(error, ETIMEDOUT,
				       "the GPU processes below process %d could not be listed in "
				       "time; try again",
				       (int)process->pid);
	else if (result < 0)
		result = gcr_error_set(error, -result,
				       "the GPU processes below process %d cannot be listed: %s",
				       (int)process->pid, strerror(-result));
	if (!result && !count && process->launcher)
		result = gcr_error_set(error, ESRCH, "there is no GPU process below %d any more",
				       (int)process->pid);
	for (size_t i = 0; i < count && !result; i++)
		result = check_target(targets, parties, members[i], error);
	gcr_processes_list_free(members, count);
	return result;
}

/* Adds the process with one pid of a write to the root's ctl. */
static int find_target(struct gcr_daemon *daemon, const struct gcr_parties *parties, pid_t pid,
		       struct targets *targets, struct gcr_error *error)
{
	_cleanup_(gcr_turn_end) struct gcr_turn turn = {0};
	struct gcr_proc_status status;
	struct gcr_process *process;
	int result;

	if (!gcr_parties_are_known(parties))
		return explain_unknown(error);
	if (gcr_clock_usec() > targets->until_usec)
		return gcr_error_set(error, ETIMEDOUT,
				     "process %d and those after it could not be looked for in "
				     "time; write fewer at once",
				     (int)pid);
	if (!gcr_parties_reach(parties, pid) || gcr_proc_status(pid, &status) < 0)
		return gcr_error_set(error, ESRCH, "there is no process %d", (int)pid);
	if (status.thread_group != pid)
		return gcr_error_set(error, EOPNOTSUPP,
				     "%d is a thread of process %d; write that number", (int)pid,
				     (int)status.thread_group);
	result = gcr_processes_find_listed(daemon->processes, pid, &process);
	if (result < 0 &&
	    !gcr_turn_begin(daemon->quota, gcr_parties_rights(parties).counted, &turn))
		return gcr_error_set(error, EBUSY,
				     "process %d is not known yet, and its writer has others wait "
				     "for looks at processes; try again",
				     (int)pid);
	if (result < 0)
		result = gcr_processes_find(daemon->processes, pid, &process);
	if (result == -ENOENT)
		return gcr_error_set(error, ESRCH, "process %d does not use a GPU", (int)pid);
	if (result < 0)
		return gcr_error_set(error, -result, "process %d: %s", (int)pid, strerror(-result));
	result = add_targets(targets, parties, process, false, error);
	gcr_process_unref(process);
	return result;
}

/* Adds the process of swap=, which is frozen, after the process that is thawed. */
static int add_swapped(struct gcr_daemon *daemon, const struct gcr_parties *parties,
		       const struct gcr_command *command, struct targets *targets,
		       struct gcr_error *error)
{
	size_t count = targets->count;
	int result = find_target(daemon, parties, command->swap, targets, error);

	if (result < 0)
		return result;
	if (targets->count == count)
		return gcr_error_set(error, EINVAL, "swap=%d is the process itself",
				     (int)command->swap);
	if (count != 1 || targets->count != 2)
		return gcr_error_set(error, EINVAL,
				     "swap= exchanges one process for one other; these are %zu",
				     targets->count);
	return gcr_swap_check(targets->list[0], targets->list[1], error);
}

/*
 * Cancels all verbs under way for any of the targets; @waiter is answered when all of these have
 * ended.
 */
static int cancel(const struct targets *targets, const struct gcr_rights *rights,
		  struct gcr_waiter *waiter, struct gcr_error *error)
{
	struct gcr_cancellation *cancellation = NULL;
	bool is_denied = false;
	size_t found;

	if (waiter && gcr_cancellation_create(waiter, &cancellation) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	found = gcr_packing_cancel(targets->list, targets->count, rights, cancellation, &is_denied);
	found += gcr_operation_cancel(targets->list, targets->count, rights, cancellation,
				      &is_denied);
	if (!found) {
		gcr_cancellation_destroy(cancellation);
		if (is_denied)
			return gcr_error_set(error, EPERM,
					     "the verb was started by another user, on process %d "
					     "and others",
					     (int)targets->list[0]->pid);
		return gcr_error_set(error, EBUSY, "no verb is under way; process %d is %s",
				     (int)targets->list[0]->pid,
				     gcr_state_name(gcr_process_state(targets->list[0])));
	}
	if (waiter) {
		gcr_waiter_arm(waiter, &(struct gcr_waited){});
		gcr_cancellation_end(cancellation, 0);
	}
	return 0;
}

/*
 * Starts the verb. *ret_done: the verb is done already, and the caller answers the request, as no
 * waiter will be answered. Errors, with a message.
 */
static int start_verb(struct gcr_daemon *daemon, const struct gcr_command *command,
		      const struct targets *targets, struct gcr_waiter *waiter, bool *ret_done,
		      struct gcr_error *error)
{
	*ret_done = false;
	if (command->verb == GCR_VERB_CANCEL)
		return cancel(targets, &command->rights, waiter, error);
	if (gcr_verb_is_packing(command->verb))
		return gcr_packing_start(daemon, command, targets->list, targets->count, waiter,
					 error);
	/* Else a later program could not be told from the one that was compared with the writer. */
	if (targets->unseen_result && !gcr_rights_are_roots(&command->rights))
		return gcr_error_set(error, -targets->unseen_result,
				     "the program of process %d could not be looked at (%s)",
				     (int)targets->unseen_pid, strerror(-targets->unseen_result));
	return gcr_operation_start(daemon, command, targets->list, targets->programs,
				   targets->count, waiter, ret_done, error);
}

/*
 * Prepares a dump of @process. -EPERM unless root wants it, by -o allow_user_dumps or by dumping
 * the program itself: its user can make the program hostile, and CRIU, which works inside it, is
 * root.
 */
static int prepare_dump(const struct gcr_daemon *daemon, const struct gcr_process *process,
			struct gcr_command *command, struct gcr_error *error)
{
	if (!process)
		return gcr_error_set(error, EINVAL, "dump is written to one process's ctl");
	if (!daemon->options.allow_user_dumps && geteuid() == 0 &&
	    !gcr_rights_are_roots(&command->rights))
		return gcr_error_set(error, EPERM,
				     "only root outside of containers may dump, unless gpucrfs is "
				     "started with -o allow_user_dumps");
	command->work = gcr_dump;
	command->root = process->pid;
	return 0;
}

/*
 * Finds the targets of @command and starts the verb. On 0 the request has been answered, or will be
 * by a waiter. Errors, with a message.
 */
static int start(fuse_req_t request, const struct gcr_parties *parties, struct gcr_process *process,
		 struct gcr_command *command, size_t length, bool nonblocking,
		 struct gcr_error *error)
{
	_cleanup_(targets_finish) struct targets targets = {
		.until_usec = gcr_clock_usec() + FIND_USEC,
	};
	struct gcr_daemon *daemon = fuse_req_userdata(request);
	struct gcr_waiter *waiter = NULL;
	bool done;
	int result = 0;

	if (command->verb == GCR_VERB_DUMP)
		result = prepare_dump(daemon, process, command, error);
	else if (command->park)
		command->work = gcr_freeze_and_park;
	if (result < 0)
		return result;
	if (command->verb == GCR_VERB_THAW &&
	    (command->new_pids || command->restored || *command->stdio))
		return gcr_error_set(error, EINVAL,
				     "pid= and stdio= are for a process that has been dumped");
	if (process)
		result = add_targets(&targets, parties, process, command->verb == GCR_VERB_DUMP,
				     error);
	for (unsigned int i = 0; i < command->pids_count && !result; i++)
		result = find_target(daemon, parties, command->pids[i], &targets, error);
	if (!result && command->swap)
		result = add_swapped(daemon, parties, command, &targets, error);
	if (!result && !nonblocking &&
	    gcr_waiter_create(daemon->waiters, request,
			      gcr_quota_owner(daemon->quota, command->rights.counted), length,
			      &waiter) < 0)
		result = gcr_error_set(error, ENOMEM, "out of memory");
	if (result < 0)
		return result;

	result = start_verb(daemon, command, &targets, waiter, &done, error);
	if (!result && (nonblocking || done))
		fuse_reply_write(request, length);
	gcr_waiter_unref(waiter);
	return result;
}

/*
 * Reports the refusal of a write that is not about one process. The message goes to the writing
 * user's `error` only.
 */
static void report_at_root(struct gcr_daemon *daemon, uid_t uid, const char *verb,
			   const struct gcr_error *error)
{
	const char *name = gcr_error_name(error->number);

	if (uid == geteuid())
		gcr_event_log_append(daemon->events, "- - verb %s %s", verb, name);
	gcr_refusals_log(daemon->refusals, gcr_quota_owner(daemon->quota, uid), 0, "%s: %s: %s",
			 verb, name, error->words);
}

void gcr_control_write(fuse_req_t request, const struct gcr_credentials *opener,
		       struct gcr_process *process, const char *bytes, size_t length,
		       bool nonblocking)
{
	_cleanup_(gcr_credentials_finish) struct gcr_credentials writer;
	const struct gcr_parties parties = {opener, &writer};
	struct gcr_daemon *daemon = fuse_req_userdata(request);
	struct gcr_command command;
	struct gcr_error error = {0};
	const char *verb = "-";
	int result;

	gcr_credentials_take(fuse_req_ctx(request), &writer);
	result = gcr_command_parse(bytes, length, !process, &command, &error);
	command.writer = fuse_req_ctx(request)->pid;
	command.rights = gcr_parties_rights(&parties);
	if (!result) {
		verb = gcr_verb_name(command.verb);
		result = gcr_quota_check_timeout(daemon->quota, command.rights.counted,
						 command.timeout_usec, &error);
	}
	if (!result)
		result = start(request, &parties, process, &command, length, nonblocking, &error);
	/* Who may not have the process may not read its `error`. */
	if (!process || result == -EPERM)
		gcr_refusals_note(
			daemon->refusals, gcr_quota_owner(daemon->quota, command.rights.counted),
			gcr_quota_known_owner(daemon->quota, command.rights.counted), &error);
	if (result >= 0)
		return;
	gcr_counters_refusal(daemon->counters, -result);
	if (process)
		gcr_process_report_refusal(process, command.rights.counted, verb, &error);
	else
		report_at_root(daemon, command.rights.counted, verb, &error);
	fuse_reply_err(request, -result);
}
