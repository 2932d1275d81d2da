/* SPDX-License-Identifier: MIT */
/*
 * The steps of a dump: every GPU process of the tree is frozen by a task of its own; the first task
 * parks their libraries, scans the files that the tree has open, runs CRIU, which holds the tree
 * stopped, writes the metadata, publishes the place, and tells CRIU to end the tree. Points at
 * which a process could be lost: each freeze, parking, open files, room, CRIU's start, CRIU's
 * failure, CRIU's end by a signal, a cancel in it, metadata, publishing, the tree's end, and the
 * daemon's death in each.
 */
#include "fs/image/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "criu-glue/image_check.h"
#include "criu-glue/parent_death.h"
#include "criu-glue/session.h"
#include "fs/base/log.h"
#include "fs/engine/engine.h"
#include "fs/engine/park.h"
#include "fs/helper/helper.h"
#include "fs/image/criu_run.h"
#include "fs/image/dump_private.h"
#include "fs/image/place.h"
#include "fs/image/restored_cgroup.h"
#include "fs/process/gpus.h"
#include "fs/process/library.h"
#include "fs/process/vendor.h"
#include "fs/store/store.h"
#include "fs/verb/reclaim.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_source.h"

/* How long after the verb's deadline a parked library reconnects by itself. */
#define PARK_MARGIN_MSEC 60000
/*
 * How long a library stays parked after `freeze park` (for a CRIU of another program), unless
 * `thaw` ends that before.
 */
#define PARK_MSEC	 1800000

/* ---- before CRIU ---- */

/*
 * Does the process have a preload library? Also checks for a connection, because a process that was
 * frozen by the driver alone may have a library too, whose socket is open.
 */
static bool has_library(struct gcr_process *process)
{
	bool has;

	pthread_mutex_lock(&process->lock);
	has = process->snapshot || process->library;
	pthread_mutex_unlock(&process->lock);
	return has;
}

static int park_all(struct gcr_dump *dump, struct gcr_error *error)
{
	int64_t left_msec =
		(gcr_task_deadline_usec(dump->task) - gcr_clock_usec()) / GCR_USEC_PER_MSEC;
	struct gcr_process *process;
	int result = 0;

	/* The deadline can have passed by now: the dump ends soon, and unparks them. */
	if (left_msec < 0)
		left_msec = 0;

	for (unsigned int i = 0; !result && (process = gcr_task_sibling(dump->task, i)); i++) {
		if (has_library(process))
			result = gcr_park(process, (uint32_t)left_msec + PARK_MARGIN_MSEC, error);
		if (result < 0)
			gcr_error_prefix(error, "process %d", (int)process->pid);
	}
	return result;
}

static void unpark_all(struct gcr_dump *dump)
{
	struct gcr_process *process;

	for (unsigned int i = 0; (process = gcr_task_sibling(dump->task, i)); i++)
		gcr_unpark(process);
}

/*
 * Refuses open files of the processes without a GPU that cannot be dumped. GPU processes are
 * checked later, because a freeze may close files of theirs. Sets contents_bytes and
 * contents_count.
 */
static int check_opens_of_others(struct gcr_dump *dump, struct gcr_error *error)
{
	_cleanup_(gcr_opens_destroy_cleanup) struct gcr_opens *opens = NULL;
	int result = gcr_dump_look_at_opens(dump, &opens, error);

	for (size_t i = 0; !result && i < opens->findings_count; i++) {
		const struct gcr_open_finding *finding = &opens->findings[i];

		if (finding->verdict != GCR_OPEN_REFUSED ||
		    gcr_dump_gpu_process(dump, finding->pid))
			continue;
		*error = finding->error;
		result = -finding->error.number;
	}
	if (!result) {
		dump->contents_bytes = opens->contents_bytes;
		dump->contents_count = opens->contents_count;
	}
	return result;
}

/* ---- after CRIU has ended ---- */

static void tell_state(struct gcr_dump *dump, enum gcr_state state)
{
	struct gcr_process *process;

	for (unsigned int i = 0; (process = gcr_task_sibling(dump->task, i)); i++)
		gcr_process_set_state(process, state);
}

/*
 * CRIU failed to end the tree. If CRIU has begun to, returns 0: the daemon is to end the rest. If
 * the whole tree lives, it has gone on, and would be thrown back to the time of the images: then
 * withdraws the place, so that the tree continues to run, and returns -EIO. If CRIU has made names
 * for files that have none (link_remap), it has removed these names by now, and the place cannot be
 * restored: then the root's life is enough for that.
 */
static int recover_failed_end(struct gcr_dump *dump, struct gcr_error *error)
{
	gcr_log(LOG_WARNING, dump->root, "dumped, but %s", error->words);
	if (!gcr_dump_goes_on(dump) && (!dump->opens->link_remap || gcr_dump_root_has_ended(dump)))
		return 0;
	gcr_place_withdraw(dump->daemon->places, dump->name);
	tell_state(dump, GCR_STATE_DUMPING);
	return gcr_error_set(error, EIO,
			     "criu has ended before it had ended the tree, which goes on");
}

/* ---- the place ---- */

static int make_place(struct gcr_dump *dump, struct gcr_error *error)
{
	const struct gcr_command *command = dump->task->command;
	const struct gcr_proc_member *root = &dump->members[0].proc;
	bool may_rename = false;
	int result;

	if (*command->name)
		snprintf(dump->name, sizeof(dump->name), "%s", command->name);
	else if (!gcr_place_name_of_process(dump->daemon->places, root->pid, root->start_ticks,
					    dump->name)) {
		gcr_place_name_of(root->comm, root->pid, root->start_ticks, dump->name);
		may_rename = true;
	}
	result = gcr_place_begin(dump->daemon->places, dump->name, may_rename, root->pid,
				 root->start_ticks, command->rights.uid, &dump->place_fd,
				 &dump->place_hold, error);
	if (result < 0)
		return result;
	dump->root_fd = openat(dump->place_fd, "snapshot", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dump->root_fd < 0 || mkdirat(dump->root_fd, "criu", 0700) < 0)
		return gcr_error_set(error, errno, "the place cannot be made: %s", strerror(errno));
	dump->images_fd = openat(dump->root_fd, "criu", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dump->images_fd < 0)
		return gcr_error_set(error, errno, "the place cannot be made: %s", strerror(errno));
	return 0;
}

/*
 * Reserves room in the store for CRIU's images. Called again after the freeze, for the growth since
 * the first call: the driver may have moved VRAM into the processes' memory. -ENOSPC, -EDQUOT.
 */
static int take_room(struct gcr_dump *dump, struct gcr_error *error)
{
	const struct gcr_tree_sum nothing = {0};
	struct gcr_process *process;
	uint64_t held_bytes = 0;
	uint64_t images;
	uint64_t bytes;
	bool unused;
	int result = gcr_dump_memory(dump, &bytes, &images, error);

	if (result < 0)
		return result;
	for (unsigned int i = 0; (process = gcr_task_sibling(dump->task, i)); i++) {
		pthread_mutex_lock(&process->lock);
		held_bytes += process->held_bytes;
		pthread_mutex_unlock(&process->lock);
	}
	bytes += dump->kept_bytes + dump->contents_bytes;
	gcr_task_set_bytes(dump->task, held_bytes + bytes);
	if (!dump->room && gcr_room_create(dump->daemon->store, 0, &nothing, 0, &dump->room) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	bytes += (images + dump->contents_count) * GCR_STORE_PAGE_BYTES;
	if (bytes <= dump->room_bytes)
		return 0;
	gcr_dump_set_phase(dump, "room");
	result = gcr_reclaim(dump->task, bytes - dump->room_bytes, &unused, error);
	if (result == -ECANCELED || result == -EDQUOT)
		return result;
	gcr_room_set_owner(dump->room, gcr_dump_place_uid(dump));
	result = gcr_room_take(dump->room, 0, bytes - dump->room_bytes);
	gcr_store_end_claim(dump->daemon->store, dump->task->process->pid,
			    dump->task->process->start_ticks);
	if (result < 0)
		return gcr_error_set(error, -result,
				     "the store has no room for the %llu MiB that CRIU writes",
				     (unsigned long long)(bytes >> 20));
	dump->room_bytes = bytes;
	return 0;
}

static int publish(struct gcr_dump *dump, struct gcr_error *error)
{
	const struct gcr_proc_member *root = &dump->members[0].proc;
	bool is_staying = dump->task->command->leave;

	gcr_dump_set_phase(dump, "publish");
	return gcr_place_publish(&dump->place_hold, dump->name, dump->place_fd,
				 &(struct gcr_place_origin){
					 .pid = root->pid,
					 .start_ticks = root->start_ticks,
					 .dumped_ticks = gcr_clock_ticks(),
					 .uid = gcr_dump_place_uid(dump),
					 .gid = gcr_dump_place_gid(dump),
					 .is_ending = !is_staying,
					 .is_staying = is_staying,
				 },
				 &dump->cgroup, error);
}

/*
 * Checks the open files again for the rights of the owner. CRIU holds the tree now, so no more
 * files can be opened: the images contain the files that are open now, including those that other
 * processes of the tree have opened since the first scan.
 */
static int look_at_rights(struct gcr_dump *dump, struct gcr_error *error)
{
	_cleanup_(gcr_opens_destroy_cleanup) struct gcr_opens *opens = NULL;
	int result;

	if (!dump->owner_rights)
		return 0;
	result = gcr_dump_look_at_opens(dump, &opens, error);
	for (size_t i = 0; !result && i < opens->findings_count; i++)
		if (opens->findings[i].verdict == GCR_OPEN_REFUSED &&
		    opens->findings[i].error.number == EPERM) {
			*error = opens->findings[i].error;
			result = -EPERM;
		}
	if (!result && opens->is_private)
		gcr_dump_make_private(dump);
	return result;
}

/*
 * Removes from the images the dependence on a session outside the tree, which CRIU could not
 * restore. To be called before the images are digested.
 */
static int leave_session(struct gcr_dump *dump, struct gcr_error *error)
{
	_cleanup_free_ pid_t *pids = calloc(dump->count, sizeof(*pids));

	if (!pids)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < dump->count; i++)
		pids[i] = dump->members[i].proc.pid;
	return gcr_criu_leave_session(dump->images_fd, pids, dump->count, error);
}

/*
 * Lets the owner of the tree read CRIU's log of his own dump. To be called when no process of the
 * tree has other rights than his.
 */
static void show_own_log(const struct gcr_dump *dump)
{
	if (!gcr_command_is_root(dump->task->command) && dump->work_fd >= 0)
		gcr_criu_show_log(dump->work_fd);
}

/* Is each process of the tree still there? One that has ended does not tell which rights it had. */
static bool is_whole(const struct gcr_dump *dump)
{
	for (size_t i = 0; i < dump->count; i++)
		if (gcr_dump_is_gone(&dump->members[i]))
			return false;
	return true;
}

/*
 * Runs CRIU. If CRIU fails, the owner may read why, unless the tree has, or may have had, other
 * rights than his.
 */
static int run_criu(struct gcr_dump *dump, struct gcr_criu_job **ret_job, struct gcr_error *error)
{
	int result = gcr_dump_run_criu(dump, ret_job, error);
	struct gcr_error unused;

	if (result < 0 && is_whole(dump) && !gcr_dump_find_tree(dump, &unused) &&
	    !gcr_dump_check_owner(dump, &unused))
		show_own_log(dump);
	return result;
}

/*
 * Makes the place and publishes it, with the tree frozen and parked. The caller rolls back on an
 * error.
 */
static int write_place(struct gcr_dump *dump, struct gcr_error *error)
{
	_cleanup_(gcr_criu_destroy_cleanup) struct gcr_criu_job *job = NULL;
	struct gcr_error criu_error = {0};
	bool is_ending;
	int result;

	gcr_dump_set_phase(dump, "open-files");
	result = gcr_dump_look_at_opens(dump, &dump->opens, error);
	if (!result)
		result = gcr_opens_refusal(dump->opens, error);
	if (!result && dump->opens->is_private)
		gcr_dump_make_private(dump);
	if (!result) {
		dump->contents_bytes = dump->opens->contents_bytes;
		dump->contents_count = dump->opens->contents_count;
		result = take_room(dump, error);
	}
	if (!result && dump->opens->link_remap && dump->task->command->leave)
		result = gcr_error_set(error, EOPNOTSUPP,
				       "an open file has lost its name and has another one: CRIU "
				       "keeps what it makes of that only if the process ends");
	if (!result)
		result = gcr_dump_begin_reading(dump, error);
	if (!result)
		result = run_criu(dump, &job, error);
	/*
	 * Processes that were started since the tree was listed are stopped too, and must be ended.
	 */
	if (!result)
		result = gcr_dump_await_stop(dump, error);
	/* The tree is stopped: from here on no process can change its user. */
	if (!result)
		result = gcr_dump_check_owner(dump, error);
	if (!result)
		show_own_log(dump);
	if (!result)
		result = gcr_dump_check_members(dump, error);
	if (!result)
		result = look_at_rights(dump, error);
	/* Before this check the files that CRIU might name in the log were not known. */
	if (!result && !dump->is_private)
		gcr_criu_show_log(dump->work_fd);
	if (!result)
		result = gcr_dump_check_images(dump, error);
	if (!result)
		result = leave_session(dump, error);
	if (!result)
		result = gcr_image_clear_rseq(dump->images_fd, error);
	/*
	 * Also before the digests: a process with a parent-death signal whose parent is outside the
	 * tree would be killed when CRIU ends after the restore.
	 */
	if (!result)
		result = gcr_criu_clear_parent_death(dump->images_fd, error);
	gcr_dump_set_phase(dump, "metadata");
	if (!result)
		result = gcr_dump_write_metadata(dump, error);
	if (!result && gcr_task_decide(dump->task) < 0)
		result = gcr_dump_stopped(dump, error);
	/* Last of all: whoever can have CRIU killed must not have the tree run while it is checked.
	 */
	if (!result)
		result = gcr_dump_check_held(dump, gcr_criu_pid(job), error);
	if (!result)
		result = publish(dump, error);
	is_ending = !result && !dump->task->command->leave;
	if (is_ending) {
		gcr_dump_hand_log_on(dump);
		tell_state(dump, GCR_STATE_DUMPED);
	} else if (!result) {
		gcr_dump_tie_log(dump);
	}
	if (job && gcr_dump_answer_criu(dump, job, !result, &criu_error) < 0 && is_ending) {
		result = recover_failed_end(dump, &criu_error);
		if (result < 0)
			*error = criu_error;
	}
	return result;
}

/* ---- the part of the first task ---- */

static void finish(struct gcr_dump *dump)
{
	struct gcr_error unused;

	if (!dump)
		return;
	atomic_store(&dump->stop_reading, true);
	gcr_dump_end_reading(dump, &unused);
	gcr_file_identities_free(dump->files, dump->files_count);
	gcr_opens_destroy(dump->opens);
	gcr_dump_forget_tree(dump);
	gcr_file_rights_destroy(dump->first_rights);
	free(dump->kept);
	gcr_room_destroy(dump->room);
	gcr_place_release(&dump->place_hold);
	/* With `leave` the processes live on in this cgroup. */
	if (dump->cgroup && !dump->task->command->leave)
		gcr_restored_cgroup_remove(dump->cgroup, 0);
	free(dump->cgroup);
	if (dump->work_fd >= 0)
		close(dump->work_fd);
	if (dump->images_fd >= 0)
		close(dump->images_fd);
	if (dump->root_fd >= 0)
		close(dump->root_fd);
	if (dump->place_fd >= 0)
		close(dump->place_fd);
	free(dump);
}

GCR_DEFINE_CLEANUP(struct gcr_dump *, finish);

/*
 * Ends all processes of the tree, whatever CRIU has done. If a process does not end in time, the
 * place cannot be used until it has.
 */
static void end_tree(struct gcr_dump *dump)
{
	struct gcr_error error;

	if (!gcr_dump_end_tree(dump, &error)) {
		gcr_place_ended(dump->daemon->places, dump->name);
		return;
	}
	gcr_log(LOG_ERR, dump->members[0].proc.pid, "dumped, but %s", error.words);
	gcr_dump_leave_tree(dump, dump->daemon->places, dump->name);
}

/*
 * Checks of each GPU process that an engine can freeze it: -EOPNOTSUPP. This check comes first, so
 * that its message is not hidden by other obstacles.
 */
static int check_engines(struct gcr_dump *dump, struct gcr_error *error)
{
	struct gcr_process *process;
	int result = 0;

	for (unsigned int i = 0; !result && (process = gcr_task_sibling(dump->task, i)); i++)
		result = gcr_engine_check(process, error);
	return result;
}

/*
 * Refuses GPU memory that is neither handed over nor of the driver's usual kind. CRIU's plugin
 * dumps such memory only on kernels that report it to the plugin (AMDGPU_GEM_LIST_HANDLES). In
 * processes without the preload library such memory cannot be detected.
 */
static int check_apart(struct gcr_dump *dump, struct gcr_error *error)
{
	struct gcr_process *process;

	for (unsigned int i = 0; (process = gcr_task_sibling(dump->task, i)); i++) {
		struct gcr_page_facts facts;
		int r;

		if (!process->vendor->backend->criu_plugin)
			continue;
		r = gcr_library_facts(process, &facts);
		if (gcr_proc_is_silent(r))
			return gcr_error_set(
				error, -r,
				"process %d: the page of its preload library cannot be "
				"read in time",
				(int)process->pid);
		if (r < 0 || !facts.apart_bytes)
			continue;
		return gcr_error_set(
			error, EOPNOTSUPP,
			"process %d has %" PRIu64
			" KiB of GPU memory made by hipMemCreate that is not handed over "
			"(not a multiple of 2 MiB, or of a special kind), and CRIU's "
			"plugin may not see it",
			(int)process->pid, (facts.apart_bytes + 1023) >> 10);
	}
	return 0;
}

/*
 * Refuses to keep TCP connections (-EPERM) unless root asks: for each connection that is kept, CRIU
 * blocks the packets by firewall rules until the process is restored, and only root may restore.
 */
static int check_tcp(const struct gcr_command *command, struct gcr_error *error)
{
	if (command->tcp != GCR_CRIU_TCP_KEEP || gcr_command_is_root(command))
		return 0;
	return gcr_error_set(error, EPERM,
			     "only root may write tcp=keep, which holds back packets of the "
			     "machine until somebody thaws: write tcp=close");
}

/* Checks before the freeze that the plugins which CRIU needs are installed. -EOPNOTSUPP. */
static int check_plugins(struct gcr_dump *dump, struct gcr_error *error)
{
	struct gcr_process *process;
	int result = 0;

	for (unsigned int i = 0; (process = gcr_task_sibling(dump->task, i)); i++)
		dump->vendors |= 1u << process->vendor->index;
	for (size_t i = 0; i < GCR_BACKENDS_COUNT && !result; i++) {
		_cleanup_free_ char *path = NULL;

		if (dump->vendors & 1u << i && gcr_backends[i]->criu_plugin)
			result = gcr_criu_plugin_find(dump->daemon, gcr_backends[i], &path, error);
	}
	return result;
}

/*
 * Called when all processes are frozen: determines the VRAM that remains (*ret_bytes), which CRIU's
 * plugins will dump.
 */
static int take_stock(struct gcr_dump *dump, uint64_t *ret_bytes, struct gcr_error *error)
{
	struct gcr_process *process;
	int result = 0;

	*ret_bytes = 0;
	/* Such memory may have been allocated between the first check and the freeze. */
	result = check_apart(dump, error);
	for (size_t i = 0; i < GCR_BACKENDS_COUNT && !result; i++)
		if (dump->vendors & 1u << i && gcr_backends[i]->criu_plugin)
			result = gcr_gpus_ask(dump->daemon->gpus, &dump->daemon->vendors[i], error);
	if (result < 0)
		return result;
	if (!dump->kept)
		dump->kept = malloc(sizeof(*dump->kept));
	if (!dump->kept)
		return gcr_error_set(error, ENOMEM, "out of memory");
	gcr_gpus_snapshot(dump->daemon->gpus, dump->kept);
	for (unsigned int i = 0; (process = gcr_task_sibling(dump->task, i)); i++)
		if (process->vendor->backend->criu_plugin)
			*ret_bytes += gcr_gpus_process_bytes(dump->daemon->gpus, process->pid);
	return 0;
}

/*
 * All checks that are possible before the freeze, so that no process is stopped for a dump that
 * cannot succeed. On success the place's name and the room are reserved.
 */
static int prepare(struct gcr_task *task, struct gcr_dump **ret_dump, struct gcr_error *error)
{
	_cleanup_(finish_cleanup) struct gcr_dump *dump = calloc(1, sizeof(*dump));
	const struct gcr_criu_program *program;
	int result;

	if (!dump)
		return gcr_error_set(error, ENOMEM, "out of memory");
	dump->task = task;
	dump->daemon = task->process->daemon;
	dump->root = task->command->root;
	dump->place_fd = dump->root_fd = dump->images_fd = dump->work_fd = -1;
	gcr_dump_set_phase(dump, "tree");
	result = check_tcp(task->command, error);
	if (!result)
		result = gcr_dump_find_tree(dump, error);
	if (!result)
		result = gcr_dump_check_tree(dump, error);
	if (!result)
		result = gcr_dump_check_members(dump, error);
	if (!result)
		result = gcr_dump_check_frozen(dump, error);
	if (!result)
		result = check_engines(dump, error);
	if (!result)
		result = gcr_criu_program(dump->daemon, &program, error);
	if (result < 0)
		return result;
	dump->criu_version = program->version;
	result = check_apart(dump, error);
	if (!result)
		result = check_plugins(dump, error);
	if (!result)
		result = check_opens_of_others(dump, error);
	if (!result)
		result = take_room(dump, error);
	if (!result)
		result = make_place(dump, error);
	if (result < 0 && dump->place_fd >= 0)
		gcr_place_abort(&dump->place_hold, dump->name);
	if (!result)
		*ret_dump = TAKE_PTR(dump);
	return result;
}

/*
 * Returns -ESRCH instead of @result if a process of the dump is ending, since that explains any
 * error.
 */
static int explain(struct gcr_dump *dump, int result, struct gcr_error *error)
{
	struct gcr_process *process;

	for (unsigned int i = 0; (process = gcr_task_sibling(dump->task, i)); i++)
		if (gcr_process_is_going(process))
			return gcr_error_set(error, ESRCH, "process %d has ended",
					     (int)process->pid);
	return result;
}

/* Rolls back: the tree continues to run, and the place is removed. */
static void give_up(struct gcr_dump *dump)
{
	unpark_all(dump);
	gcr_place_abort(&dump->place_hold, dump->name);
}

/*
 * Dumps the tree, whose GPU processes are frozen: finds and checks the tree, takes room, parks the
 * processes and writes the place; then ends the tree, or unparks it (`leave`).
 */
static int dump_tree(struct gcr_dump *dump, struct gcr_error *error)
{
	int result;

	gcr_dump_set_phase(dump, "tree");
	result = gcr_dump_find_tree(dump, error);
	if (!result)
		result = gcr_dump_check_tree(dump, error);
	if (!result)
		result = gcr_dump_check_members(dump, error);
	if (!result)
		result = take_stock(dump, &dump->kept_bytes, error);
	if (!result)
		result = take_room(dump, error);
	gcr_dump_set_phase(dump, "park");
	if (!result)
		result = park_all(dump, error);
	if (!result)
		result = write_place(dump, error);
	if (result < 0)
		return result;
	if (!dump->task->command->leave) {
		end_tree(dump);
		return 0;
	}
	gcr_place_ended(dump->daemon->places, dump->name);
	unpark_all(dump);
	return 0;
}

/* ---- the part of each task ---- */

/*
 * Returns the process to the state that the verb found. If that fails, the message is appended to
 * that of the first error.
 */
static void go_back(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	struct gcr_error back_error = {0};
	char first[GCR_ERROR_WORDS_MAX];

	if (task->from != GCR_STATE_RUNNING || *ret_state != GCR_STATE_FROZEN)
		return;
	atomic_store(&task->phase, "rollback");
	task->from = GCR_STATE_FROZEN;
	task->is_undoing = true;
	if (gcr_engine_of(task->process)->thaw(task, ret_state, &back_error) < 0) {
		snprintf(first, sizeof(first), "%s", error->words);
		gcr_error_set(error, error->number, "%s%s%s", first, *first ? "; " : "",
			      back_error.words);
		gcr_log(LOG_ERR, task->process->pid, "roll-back: %s", back_error.words);
	}
	task->from = GCR_STATE_RUNNING;
	task->is_undoing = false;
}

static int freeze(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	*ret_state = task->from;
	if (task->from == GCR_STATE_RUNNING)
		return gcr_engine_freeze(task, ret_state, error);
	/* The process is already frozen: the task only takes part in the vote of the tasks. */
	return gcr_task_commit(task);
}

/*
 * Three stages, at whose ends the tasks wait for each other: the first task prepares, all tasks
 * freeze their processes, the first task dumps the tree.
 */
int gcr_dump(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	_cleanup_(finish_cleanup) struct gcr_dump *dump = NULL;
	int result = 0;

	*ret_state = task->from;
	if (gcr_task_is_first(task))
		result = prepare(task, &dump, error);
	result = gcr_task_barrier(task, result, error);
	if (!result)
		result = gcr_task_barrier(task, freeze(task, ret_state, error), error);
	if (result < 0 && dump)
		give_up(dump);
	if (!result) {
		if (dump)
			result = dump_tree(dump, error);
		/* Unpark before the barrier: the other tasks need their libraries to roll back. */
		if (result < 0) {
			result = explain(dump, result, error);
			give_up(dump);
		}
		result = gcr_task_barrier(task, result, error);
	}
	if (result < 0)
		go_back(task, ret_state, error);
	else if (!task->command->leave)
		*ret_state = GCR_STATE_DUMPED;
	return result;
}

int gcr_freeze_and_park(struct gcr_task *task, enum gcr_state *ret_state, struct gcr_error *error)
{
	int result = freeze(task, ret_state, error);

	result = gcr_task_barrier(task, result, error);
	if (!result) {
		atomic_store(&task->phase, "park");
		if (has_library(task->process))
			result = gcr_park(task->process, PARK_MSEC, error);
		result = gcr_task_barrier(task, result, error);
	}
	if (result < 0) {
		gcr_unpark(task->process);
		go_back(task, ret_state, error);
	}
	return result;
}
