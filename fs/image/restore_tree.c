/* SPDX-License-Identifier: MIT */
/*
 * The restored tree, which CRIU makes, and leaves stopped when it has been checked. Each GPU
 * process is entered into the process table, frozen, with links to its files, before it runs: so
 * its library finds a daemon that knows the process.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "criu-glue/criu.h"
#include "fs/base/errand.h"
#include "fs/base/log.h"
#include "fs/base/mountpoint.h"
#include "fs/engine/engine.h"
#include "fs/helper/helper.h"
#include "fs/image/criu_run.h"
#include "fs/image/restore_private.h"
#include "fs/image/restored_cgroup.h"
#include "fs/process/vendor.h"
#include "fs/store/record.h"
#include "fs/store/store.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_tree.h"

#define CRIU_LOOK_USEC (50 * GCR_USEC_PER_MSEC)
#define END_USEC       (60 * GCR_USEC_PER_SEC)
#define LEFT_END_USEC  GCR_USEC_PER_SEC /* if CRIU itself does not end */

/* ---- the cgroup ---- */

/*
 * Makes the tree's cgroup. Returns a descriptor of its cgroup.procs, the caller's. -1: the tree
 * will be in our cgroup, as the log says.
 */
static int make_cgroup(struct gcr_restore *restore)
{
	struct gcr_error error;
	int fd;

	if (!gcr_restored_cgroup_make(restore->place->name, &restore->cgroup,
				      &restore->cgroup_inode, &fd, &error))
		return fd;
	restore->cgroup = NULL;
	gcr_log(LOG_WARNING, 0, "%s gets no cgroup of its own: %s", restore->place->name,
		error.words);
	return -1;
}

static void drop_cgroup(struct gcr_restore *restore)
{
	char *cgroup = TAKE_PTR(restore->cgroup);
	int result = cgroup ? gcr_restored_cgroup_remove(cgroup, 0) : 0;

	/* A CRIU that was starting may have entered the cgroup after its processes were killed. */
	if (result == -EBUSY && !restore->is_left &&
	    !gcr_restored_cgroup_kill(cgroup, restore->cgroup_inode, END_USEC))
		result = gcr_restored_cgroup_remove(cgroup, 0);
	if (result < 0)
		gcr_log(LOG_WARNING, 0, "%s stays", cgroup);
	free(cgroup);
}

/* ---- the mark for a next daemon ---- */

int gcr_restore_mark(struct gcr_restore *restore, enum gcr_place_progress progress,
		     struct gcr_error *error)
{
	/* Before the thaw all that a new pid namespace has is to be ended. */
	bool is_all = progress == GCR_PLACE_RESTORING && restore->namespace_init > 0;
	struct gcr_place_made made = {
		.progress = progress,
		.since_ticks = restore->since_ticks,
		.root = is_all ? restore->namespace_init : restore->root,
		.root_ticks = is_all ? restore->namespace_init_ticks : restore->root_ticks,
		.cgroup = restore->cgroup,
		.cgroup_inode = restore->cgroup_inode,
	};

	/*
	 * A process that another program has restored is not ours to end, and the place is not its
	 * name.
	 */
	if (restore->job.command.restored)
		return 0;
	return gcr_place_mark(restore->place, &made, error);
}

/* ---- CRIU ---- */

static int start_criu(struct gcr_restore *restore, const struct gcr_supplies *supplies,
		      int cgroup_fd, struct gcr_criu_job **ret_job, struct gcr_error *error)
{
	const struct gcr_tree_options *told = &restore->manifest->tree->options;
	struct gcr_daemon *daemon = restore->job.daemon;
	_cleanup_free_ char *guard = NULL;
	_cleanup_free_ char *drain = NULL;
	_cleanup_free_ char *plugins = NULL;
	_cleanup_free_ char *pidns = NULL;
	_cleanup_(gcr_restore_close_images) struct gcr_restore_images images = {.fd = -1};
	_cleanup_close_ int work_fd = -1;
	const struct gcr_criu_program *program;
	char subject[GCR_CRIU_SUBJECT_BYTES];
	struct gcr_criu_options options = {
		.action = GCR_CRIU_RESTORE,
		.log_name = GCR_CRIU_LOG_NAME,
		.after = GCR_CRIU_AFTER_STOPPED,
		.tcp = (enum gcr_criu_tcp)told->tcp,
		.shell_job = told->shell_job,
		.file_locks = told->file_locks,
		.ext_unix_sockets = told->ext_unix_sockets,
		.link_remap = told->link_remap,
		.inherits = supplies->inherits,
		.inherits_count = supplies->count,
		.asks = true,
	};
	int result = gcr_vendor_program(daemon, GCR_CRIU_GUARD, &guard, error);

	if (!result)
		result = gcr_vendor_program(daemon, GCR_DRAIN_PROGRAM, &drain, error);
	if (!result)
		result = gcr_criu_program(daemon, &program, error);
	if (!result)
		result = gcr_criu_plugins(daemon, restore->vendors, &plugins, error);
	if (result < 0)
		return result;
	options.guard = guard;
	options.log_program = drain;
	gcr_criu_subject_of_place(restore->place->name, subject);
	work_fd = gcr_criu_log_directory(restore->job.daemon, subject, restore->place->stat.st_uid,
					 error);
	if (work_fd < 0)
		return work_fd;
	/* The owner can change his directories until CRIU opens the tree's files in them. */
	result = gcr_restore_open_images(restore, &images, error);
	if (result < 0)
		return result;
	options.owner = images.owner;
	options.dumpable = images.dumpable;
	options.dumpable_count = images.dumpable_count;
	if (restore->job.command.new_pids) {
		result = gcr_vendor_program(daemon, GCR_PIDNS_PROGRAM, &pidns, error);
		if (result < 0)
			return result;
		options.pidns_program = pidns;
		options.unwanted_mounts[0] = gcr_mountpoint_device(restore->job.daemon);
		options.unwanted_mounts[1] = gcr_store_mount_device(restore->job.daemon->store);
	}
	options.cgroup_procs_fd = cgroup_fd;
	options.images_fd = images.fd;
	options.work_fd = work_fd;
	options.libdir = plugins;
	return gcr_criu_start(program, &options, ret_job, error);
}

/*
 * Gets the start time of @pid. -ESRCH: the process has ended. That is so too if the pid is that of
 * a process that is older than the restore.
 */
static int get_ticks(const struct gcr_restore *restore, pid_t pid, uint64_t *ret_ticks)
{
	struct gcr_proc_stat stat;
	int result = gcr_proc_stat(pid, &stat);

	if (result < 0)
		return result;
	if (stat.start_ticks < restore->since_ticks)
		return -ESRCH;
	*ret_ticks = stat.start_ticks;
	return 0;
}

/*
 * Determines the start times of the processes of which CRIU reports only the pids, and forgets
 * processes that have ended.
 */
static int identify(struct gcr_restore *restore, struct gcr_error *error)
{
	pid_t root = restore->root;
	int result = 0;

	if (restore->namespace_init &&
	    get_ticks(restore, restore->namespace_init, &restore->namespace_init_ticks) == -ESRCH)
		restore->namespace_init = -1;
	if (root)
		result = get_ticks(restore, root, &restore->root_ticks);
	if (result == -ESRCH)
		restore->root = 0;
	return result ? gcr_error_set(error, EIO, "process %d, which CRIU has restored: %s",
				      (int)root,
				      result == -ESRCH ? "it has ended" : strerror(-result))
		      : 0;
}

static int is_stopped(void *data)
{
	return gcr_restore_stopped(data);
}

/*
 * Takes a slot that bounds the number of restores under way, because each of them may hang in CRIU.
 */
static int begin_errand(struct gcr_restore *restore, struct gcr_errand **ret_errand,
			struct gcr_error *error)
{
	struct gcr_errand_wait wait = {.is_stopped = is_stopped, .data = restore};
	int result = gcr_errand_begin(restore->job.daemon->quota, GCR_ERRAND_CRIU, 0, &wait,
				      ret_errand, error);

	return result == -ECANCELED ? gcr_restore_check_stop(restore, error) : result;
}

static void end_errand(void *data)
{
	gcr_errand_end(data);
}

GCR_DEFINE_CLEANUP(struct gcr_errand *, gcr_errand_end);

/*
 * Leaves a killed CRIU behind: it ends when the kernel call that blocks it returns, and makes no
 * more processes.
 */
static int leave_criu(struct gcr_restore *restore, struct gcr_criu_job *job,
		      struct gcr_errand *errand, struct gcr_error *error)
{
	pid_t pid = gcr_criu_pid(job);

	restore->is_left = true;
	gcr_errand_leave(errand);
	gcr_criu_leave(job, end_errand, errand);
	return gcr_error_set(error, ETIMEDOUT,
			     "criu (process %d) was killed, and does not end: a filesystem that "
			     "the dumped processes use does not answer",
			     (int)pid);
}

/*
 * CRIU has made the tree, holds all of it by ptrace(2), and asks whether it may run. If not, the
 * tree is killed, and CRIU with it. Later its owner can continue it at any time, by SIGCONT.
 */
static int check_tree(struct gcr_restore *restore, struct gcr_criu_job *job,
		      struct gcr_error *error)
{
	int result = gcr_criu_made(job, &restore->root, error);

	restore->namespace_init = gcr_criu_namespace_init(job);
	if (!result)
		result = identify(restore, error);
	if (!result)
		result = gcr_restore_hold_all(restore, error);
	if (!result)
		result = gcr_restore_check_creds(restore, error);
	if (!result)
		result = gcr_restore_mark(restore, GCR_PLACE_RESTORING, error);
	if (!result) {
		gcr_criu_answer(job, true);
		return 0;
	}
	gcr_restore_kill_held(restore);
	gcr_criu_answer(job, false);
	return result;
}

/*
 * Waits for CRIU's end, which it causes if the restore is to be stopped or the tree may not run.
 * -ETIMEDOUT: CRIU was killed, and does not end. *ret_verdict: that of check_tree(); an error too
 * if CRIU has not asked.
 */
static int await_criu(struct gcr_restore *restore, struct gcr_criu_job *job,
		      struct gcr_error *ret_verdict)
{
	bool is_refused = false;
	int result;

	gcr_error_set(ret_verdict, EIO,
		      "criu has not asked whether what it has restored may run: its "
		      "guard, " GCR_CRIU_GUARD ", has not been loaded");
	for (;;) {
		result = gcr_criu_wait(job, CRIU_LOOK_USEC, gcr_criu_hook_fd(job));
		if (result != -ETIMEDOUT && result != -EINTR)
			return 0;
		if (result == -EINTR) {
			is_refused = check_tree(restore, job, ret_verdict) < 0;
			if (!is_refused)
				*ret_verdict = (struct gcr_error){0};
		}
		if (is_refused || gcr_restore_stopped(restore))
			return gcr_criu_stop(job, 0); /* cancelling CRIU means killing it */
	}
}

int gcr_restore_run_criu(struct gcr_restore *restore, struct gcr_error *error)
{
	_cleanup_(gcr_errand_end_cleanup) struct gcr_errand *errand = NULL;
	_cleanup_(gcr_supplies_finish) struct gcr_supplies supplies = {0};
	_cleanup_(gcr_criu_destroy_cleanup) struct gcr_criu_job *job = NULL;
	_cleanup_close_ int cgroup_fd = -1;
	struct gcr_error verdict, unused;
	bool was_asked;
	pid_t told = 0;
	int result;

	gcr_restore_set_phase(restore, "criu");
	result = begin_errand(restore, &errand, error);
	if (result < 0)
		return result;
	restore->since_ticks = gcr_clock_ticks();
	cgroup_fd = make_cgroup(restore);
	result = gcr_restore_mark(restore, GCR_PLACE_RESTORING, error);
	if (!result)
		result = gcr_restore_supply(restore, cgroup_fd, &supplies, error);
	if (!result)
		result = start_criu(restore, &supplies, cgroup_fd, &job, error);
	if (result < 0) {
		gcr_restore_drop_images(restore);
		return result;
	}
	result = await_criu(restore, job, &verdict);
	if (result == -ETIMEDOUT) {
		gcr_restore_drop_images(restore);
		return leave_criu(restore, TAKE_PTR(job), TAKE_PTR(errand), error);
	}
	was_asked = gcr_criu_hook_fd(job) < 0;
	result = gcr_criu_finish(job, &told, error);
	/* What has not asked has to be ended. */
	if (!was_asked) {
		restore->root = told;
		restore->namespace_init = gcr_criu_namespace_init(job);
		identify(restore, &unused);
	}
	gcr_restore_drop_images(restore);
	if (result == -ECANCELED || !result)
		result = gcr_restore_check_stop(restore, error);
	if (verdict.number && (!result || was_asked)) {
		*error = verdict;
		return -verdict.number;
	}
	return result;
}

/* ---- members ---- */

/*
 * Does the process have the pid @inside? That pid is one of the tree's own pid namespace if it has
 * one, else one of ours.
 */
static bool is_pid_of(const struct gcr_restore *restore, const struct gcr_restore_held *held,
		      pid_t inside)
{
	struct gcr_proc_status status;

	if (!restore->namespace_init)
		return held->pid == inside;
	return !gcr_proc_status(held->pid, &status) && status.ns_pids_count &&
	       status.ns_pids[status.ns_pids_count - 1] == inside;
}

/*
 * Finds the process of the tree that had the pid @inside when it was dumped; NULL: there is none.
 * The process can end and its pid be reused: call has_ended() once the process has been claimed.
 */
static const struct gcr_restore_held *find_held(const struct gcr_restore *restore, pid_t inside)
{
	for (size_t i = 0; i < restore->held_count; i++)
		if (restore->held[i].pidfd >= 0 && is_pid_of(restore, &restore->held[i], inside))
			return &restore->held[i];
	return NULL;
}

static bool has_ended(const struct gcr_restore_held *held)
{
	struct pollfd end = {.fd = held->pidfd, .events = POLLIN};

	return poll(&end, 1, 0) != 0;
}

static const uint8_t *destination(const struct gcr_restore *restore, const uint8_t *uuid)
{
	for (unsigned int i = 0; i < restore->moves_count; i++)
		if (!memcmp(restore->moves[i].from, uuid, GCR_UUID_BYTES))
			return restore->moves[i].to;
	return uuid;
}

/* Fills in the process table's entry of the member, as if the process had been frozen here. */
static void fill_in(struct gcr_restore *restore, const struct gcr_restore_member *member,
		    const struct gcr_manifest *manifest, struct gcr_snapshot *snapshot)
{
	struct gcr_process *process = member->process;

	pthread_mutex_lock(&process->lock);
	snprintf(process->generation, sizeof(process->generation), "%.36s", manifest->generation);
	snprintf(process->engine, sizeof(process->engine), "%s", manifest->engine);
	process->shares_count = 0;
	process->held_bytes = snapshot ? gcr_snapshot_bytes(snapshot) : 0;
	for (size_t i = 0; i < manifest->gpus_count; i++) {
		struct gcr_share *share = &process->shares[process->shares_count];

		/* VRAM that CRIU's plugin has restored needs no room any more. */
		if (!manifest->gpus[i].control_bytes || !process->vendor->backend->has_control)
			continue;
		memcpy(share->uuid, manifest->gpus[i].uuid, GCR_UUID_BYTES);
		share->bytes = manifest->gpus[i].control_bytes;
		process->held_bytes += share->bytes;
		process->shares_count++;
	}
	process->moves_count = restore->moves_count;
	memcpy(process->moves, restore->moves, sizeof(process->moves));
	process->is_restored = true;
	process->was_handed_over = snapshot;
	process->snapshot = snapshot;
	pthread_mutex_unlock(&process->lock);
	gcr_process_set_state(process, GCR_STATE_FROZEN);
}

static int write_record(struct gcr_restore *restore, const struct gcr_restore_member *member,
			const struct gcr_manifest *manifest, struct gcr_error *error)
{
	struct gcr_process *process = member->process;
	struct gcr_record record = {
		.pid = process->pid,
		.start_ticks = process->start_ticks,
		.state = GCR_RECORD_FROZEN,
		.since_usec = gcr_clock_real_usec(),
	};
	int result;

	snprintf(record.generation, sizeof(record.generation), "%.36s", manifest->generation);
	snprintf(record.engine, sizeof(record.engine), "%s", manifest->engine);
	for (size_t i = 0; i < manifest->gpus_count; i++) {
		if (!manifest->gpus[i].control_bytes || !process->vendor->backend->has_control)
			continue;
		memcpy(record.gpus[record.gpus_count].uuid,
		       destination(restore, manifest->gpus[i].uuid), GCR_UUID_BYTES);
		record.gpus[record.gpus_count++].bytes = manifest->gpus[i].control_bytes;
	}
	pthread_mutex_lock(&process->lock);
	memcpy(record.comm, process->comm, sizeof(record.comm));
	pthread_mutex_unlock(&process->lock);
	result = gcr_record_write(restore->job.daemon->runtime_fd, &record);
	return result ? gcr_error_set(error, -result, "its record cannot be written: %s",
				      strerror(-result))
		      : 0;
}

/* Makes links to the VRAM files, with metadata that names the process as it is now. */
static int adopt_bytes(struct gcr_restore *restore, const struct gcr_restore_member *member,
		       struct gcr_manifest *manifest, struct gcr_snapshot **ret_snapshot,
		       struct gcr_error *error)
{
	struct gcr_process *process = member->process;
	struct gcr_manifest *metadata;
	_cleanup_close_ int vram_fd = -1;
	int result;

	vram_fd = gcr_beneath_open(member->root_fd, GCR_MANIFEST_FILES, O_RDONLY | O_DIRECTORY);
	if (vram_fd < 0)
		return gcr_error_set(error, EIO, "vram: %s", strerror(-vram_fd));
	result = gcr_snapshot_adopt(restore->job.daemon->store, process->pid, process->start_ticks,
				    manifest->generation, manifest->allocations,
				    manifest->allocations_count, vram_fd, ret_snapshot, error);
	if (result < 0)
		return result;
	metadata = malloc(sizeof(*metadata));
	if (!metadata)
		return gcr_error_set(error, ENOMEM, "out of memory");
	/* Copied without the lists, which belong to @manifest and stay there. */
	*metadata = *manifest;
	metadata->images = NULL;
	metadata->images_count = 0;
	metadata->tree = NULL;
	metadata->allocations = NULL;
	metadata->allocations_count = 0;
	result = gcr_snapshot_seal(*ret_snapshot, metadata, member->digests, error);
	free(metadata);
	return result;
}

/*
 * Discards bytes that the process has in the store from a failed attempt, in which it stayed
 * frozen. `pid=N` may name any process: -EBUSY if the process has other bytes, or a verb.
 */
static int forget_bytes(struct gcr_process *process, const char *generation,
			struct gcr_error *error)
{
	struct gcr_snapshot *snapshot = NULL;
	bool is_other;

	pthread_mutex_lock(&process->lock);
	is_other = process->task ||
		   (process->state != GCR_STATE_RUNNING && process->state != GCR_STATE_FROZEN) ||
		   (process->snapshot && strcmp(process->generation, generation) != 0);
	if (!is_other)
		snapshot = TAKE_PTR(process->snapshot);
	pthread_mutex_unlock(&process->lock);
	if (is_other)
		return gcr_error_set(error, EBUSY, "process %d has bytes of its own in the store",
				     (int)process->pid);
	gcr_snapshot_discard(snapshot);
	return 0;
}

/*
 * Claims the member's process for the verb. The process holds no GPU, and its library may not have
 * connected yet: until the process is marked as frozen, the scan would take it for one that has
 * released its GPU.
 */
static int adopt_process(struct gcr_restore *restore, struct gcr_restore_member *member,
			 uint64_t start_ticks, const struct gcr_manifest *manifest,
			 struct gcr_error *error)
{
	struct gcr_vendor *vendor = gcr_vendor_of_engine(restore->job.daemon, manifest->engine);
	struct gcr_process *process;
	int result = gcr_processes_claim(restore->job.daemon->processes, member->pid, start_ticks,
					 vendor, GCR_CLAIM_VERB, &process);

	if (result < 0)
		return gcr_error_set(error, result == -ESRCH ? EIO : -result,
				     "process %d, which CRIU has restored: %s", (int)member->pid,
				     result == -ESRCH ? "it has ended" : strerror(-result));
	if (process->vendor != vendor) {
		result = gcr_error_set(error, EOPNOTSUPP,
				       "process %d uses a GPU of %s, and what was dumped used one "
				       "of %s",
				       (int)member->pid, process->vendor->backend->vendor,
				       vendor->backend->vendor);
		gcr_process_unclaim(process, GCR_CLAIM_VERB);
		gcr_process_unref(process);
		return result;
	}
	member->process = process;
	return 0;
}

/* For `pid=N`: claims the process that has this pid now. */
static int adopt_named(struct gcr_restore *restore, struct gcr_restore_member *member,
		       const struct gcr_manifest *manifest, struct gcr_error *error)
{
	int result;

	member->pid = restore->job.command.restored;
	result = adopt_process(restore, member, 0, manifest, error);
	if (!result)
		restore->root_ticks = member->process->start_ticks;
	return result;
}

static int adopt_held(struct gcr_restore *restore, struct gcr_restore_member *member,
		      const struct gcr_manifest *manifest, struct gcr_error *error)
{
	const struct gcr_restore_held *held = find_held(restore, member->described->pid);
	int result;

	if (!held)
		return gcr_error_set(error, EIO,
				     "CRIU has not restored process %d, or it has ended",
				     (int)member->described->pid);
	member->pid = held->pid;
	result = adopt_process(restore, member, held->start_ticks, manifest, error);
	if (result < 0 || !has_ended(held))
		return result;
	gcr_process_unclaim(member->process, GCR_CLAIM_VERB);
	return gcr_error_set(error, EIO, "process %d, which CRIU has restored, has ended",
			     (int)member->pid);
}

static int adopt(struct gcr_restore *restore, struct gcr_restore_member *member,
		 struct gcr_error *error)
{
	struct gcr_manifest *manifest = member->manifest ? member->manifest : restore->manifest;
	struct gcr_snapshot *snapshot = NULL;
	int result;

	result = restore->job.command.restored ? adopt_named(restore, member, manifest, error)
					       : adopt_held(restore, member, manifest, error);
	if (result < 0)
		return result;
	result = forget_bytes(member->process, manifest->generation, error);
	if (!result && gcr_engine_has_files(manifest->engine))
		result = adopt_bytes(restore, member, manifest, &snapshot, error);
	if (!result)
		result = write_record(restore, member, manifest, error);
	if (result < 0)
		gcr_snapshot_discard(snapshot);
	else
		fill_in(restore, member, manifest, snapshot);
	gcr_process_unclaim(member->process, GCR_CLAIM_VERB);
	return result;
}

int gcr_restore_adopt(struct gcr_restore *restore, struct gcr_error *error)
{
	int result = 0;

	gcr_restore_set_phase(restore, "adopt");
	/* The first process of the list is the root. */
	if (!restore->job.command.restored && has_ended(&restore->held[0]))
		return gcr_error_set(error, EIO, "process %d, which CRIU has restored, has ended",
				     (int)restore->root);
	for (size_t i = 0; i < restore->members_count && !result; i++)
		result = adopt(restore, &restore->members[i], error);
	return result;
}

/* ---- continuing and ending ---- */

void gcr_restore_signal_all(pid_t root, uint64_t root_ticks, int number)
{
	_cleanup_free_ struct gcr_proc_member *tree = NULL;
	struct gcr_error error;
	size_t count;

	if (gcr_proc_tree(root, &tree, &count, &error) < 0) {
		gcr_log(LOG_ERR, root, "its processes may stay stopped: %s", error.words);
		return;
	}
	if (tree[0].start_ticks != root_ticks)
		return;
	for (size_t i = count; i-- > 0;) {
		_cleanup_close_ int pidfd = -1;

		if (!gcr_proc_open(tree[i].pid, tree[i].start_ticks, &pidfd))
			syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0);
	}
}

void gcr_restore_let_run(struct gcr_restore *restore, bool all)
{
	/* The members are on their new GPUs now; the next freeze finds them there. */
	for (size_t i = 0; i < restore->members_count && all; i++) {
		struct gcr_process *process = restore->members[i].process;

		pthread_mutex_lock(&process->lock);
		process->moves_count = 0;
		pthread_mutex_unlock(&process->lock);
	}
	if (restore->job.command.restored)
		return;
	for (size_t i = restore->held_count; i-- > 0 && all;)
		if (restore->held[i].pidfd >= 0)
			syscall(SYS_pidfd_send_signal, restore->held[i].pidfd, SIGCONT, NULL, 0);
	for (size_t i = 0; i < restore->members_count && !all; i++)
		syscall(SYS_pidfd_send_signal, restore->members[i].process->pidfd, SIGCONT, NULL,
			0);
}

/* Kills the processes, children first: so no process gets another parent before it is killed. */
int gcr_restore_end_below(pid_t root, uint64_t root_ticks)
{
	_cleanup_free_ struct gcr_proc_member *tree = NULL;
	int64_t until_usec = gcr_clock_usec() + END_USEC;
	_cleanup_free_ int *pidfds = NULL;
	struct gcr_error error;
	size_t count;
	int result;

	result = gcr_proc_tree(root, &tree, &count, &error);
	if (result < 0) {
		if (result == -ESRCH)
			return 0;
		gcr_log(LOG_ERR, root, "what was restored cannot be ended: %s", error.words);
		return result;
	}
	if (!root_ticks)
		gcr_log(LOG_ERR, root, "may be what was restored, and is not ended");
	if (tree[0].start_ticks != root_ticks)
		return root_ticks ? 0 : -EBUSY;
	pidfds = calloc(count, sizeof(*pidfds));
	if (!pidfds)
		return -ENOMEM;
	for (size_t i = count; i-- > 0;) {
		if (gcr_proc_open(tree[i].pid, tree[i].start_ticks, &pidfds[i]) < 0)
			pidfds[i] = -1;
		else
			syscall(SYS_pidfd_send_signal, pidfds[i], SIGKILL, NULL, 0);
	}
	for (size_t i = 0; i < count; i++) {
		struct pollfd end = {.fd = pidfds[i], .events = POLLIN};
		int64_t left_usec = until_usec - gcr_clock_usec();

		if (pidfds[i] < 0)
			continue;
		if (poll(&end, 1, left_usec > 0 ? (int)(left_usec / GCR_USEC_PER_MSEC) : 0) != 1) {
			gcr_log(LOG_ERR, tree[i].pid, "was restored in vain, and does not end");
			result = -ETIMEDOUT;
		}
		close(pidfds[i]);
	}
	return result;
}

/*
 * For a restore without a cgroup whose CRIU has ended before it has asked. If CRIU fails, it ends
 * what it has made; if it is killed from outside, something may be left. That has its pid and its
 * name, but so may a process of somebody else's, which has got the pid and so made CRIU fail: it is
 * not killed. -EBUSY: there is such a process, which the log names. With `pid=new` there is none:
 * all end with the init of their namespace, which was not told of CRIU's success.
 */
static int look_for_made(struct gcr_restore *restore)
{
	pid_t pid;

	if (restore->job.command.new_pids || !restore->since_ticks)
		return 0;
	pid = gcr_restore_find_made(restore->manifest->tree, restore->since_ticks);
	if (!pid)
		return 0;
	gcr_log(LOG_ERR, pid, "may be what was restored of %s, and is not ended",
		restore->place->name);
	return -EBUSY;
}

int gcr_restore_end_tree(struct gcr_restore *restore)
{
	int64_t end_usec = restore->is_left ? LEFT_END_USEC : END_USEC;
	int result = 0;

	if (restore->job.command.restored)
		return 0;
	/* Including processes that were left by a CRIU that failed or was killed. */
	if (restore->cgroup)
		result = gcr_restored_cgroup_kill(restore->cgroup, restore->cgroup_inode, end_usec);
	/* The init itself is the last to end. */
	if (restore->namespace_init > 0 && !restore->cgroup)
		result = gcr_restore_end_below(restore->namespace_init,
					       restore->namespace_init_ticks);
	if (restore->root && (!restore->cgroup || result < 0))
		result = gcr_restore_end_below(restore->root, restore->root_ticks);
	if (!restore->cgroup || result < 0)
		result = gcr_restore_end_held(restore, end_usec) < 0 ? -ETIMEDOUT : result;
	if (!restore->root && !restore->cgroup && !result)
		result = look_for_made(restore);
	/* Without a cgroup CRIU itself may still be alive. */
	if (restore->is_left && !result)
		result = -ETIMEDOUT;
	if (result < 0 && result != -EBUSY)
		gcr_log(LOG_ERR, restore->root, "%s: what was restored in vain does not end: %s",
			restore->place->name, strerror(-result));
	/* Ended processes leave the table, and their links and records are removed. */
	for (size_t i = 0; i < restore->members_count; i++)
		if (restore->members[i].process)
			gcr_process_has_ended(restore->members[i].process);
	drop_cgroup(restore);
	restore->root = 0;
	return result;
}
