/* SPDX-License-Identifier: MIT */
/*
 * Recovers restores that an earlier daemon had not finished. No process may exist twice: a tree
 * whose thaw had not begun has not run, so it is ended, and the place is as before. A tree whose
 * thaw had begun is the process, if it lives; its frozen processes have records and their own links
 * to their bytes. The only exception are trees that were being moved to other GPUs: these are ended
 * in either case, because the records do not contain the moves.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/image/restore.h"
#include "fs/image/restore_private.h"
#include "fs/image/restored_cgroup.h"
#include "fs/process/process.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_file.h"
#include "lib/proc_source.h"

#define END_USEC  (60 * GCR_USEC_PER_SEC)
#define LOOK_USEC (5 * GCR_USEC_PER_MSEC)

/*
 * How long to wait for the program that drains the tree's output, which ends a moment after the
 * tree.
 */
#define MOMENT_USEC GCR_USEC_PER_SEC

static bool is_root_alive(const struct gcr_place_made *made)
{
	_cleanup_close_ int pidfd = -1;

	int result = made->root ? gcr_proc_open(made->root, made->root_ticks, &pidfd) : -ESRCH;

	return !result || gcr_proc_is_silent(result);
}

pid_t gcr_restore_find_made(const struct gcr_manifest_tree *tree, uint64_t since_ticks)
{
	for (size_t i = 0; i < tree->processes_count; i++) {
		const struct gcr_tree_process *process = &tree->processes[i];
		struct gcr_proc_stat stat;

		/* A main thread may have ended alone. */
		if (!gcr_proc_stat(process->pid, &stat) && stat.start_ticks >= since_ticks &&
		    !strcmp(stat.comm, process->comm) &&
		    (!strchr("ZX", stat.state) || !gcr_proc_has_ended(process->pid)))
			return process->pid;
	}
	return 0;
}

/*
 * Finds a process of a restore without a cgroup whose root CRIU had not reported yet, by the
 * place's metadata. Returns its pid; 0: none.
 */
static pid_t find_by_metadata(struct gcr_place *place, const struct gcr_place_made *made)
{
	_cleanup_close_ int fd = gcr_beneath_open(place->fd, "snapshot", O_RDONLY | O_DIRECTORY);
	struct gcr_manifest *manifest = NULL;
	struct gcr_error unused;
	pid_t found = 0;

	if (fd < 0 || gcr_manifest_read(fd, &manifest, &unused) < 0)
		return 0;
	if (manifest->tree)
		found = gcr_restore_find_made(manifest->tree, made->since_ticks);
	gcr_manifest_free(manifest);
	return found;
}

/*
 * Are there, or may there be, processes in the cgroup of the restore? Another tree's may have its
 * path by now: another daemon removes an empty one, and makes its own.
 */
static bool is_cgroup_used(const struct gcr_place_made *made)
{
	return made->cgroup && gcr_restored_cgroup_is_used(made->cgroup, made->cgroup_inode);
}

/* Ends the processes in the cgroup of the restore, and removes it. As end_made(). */
static int end_cgroup(const struct gcr_place_made *made, struct gcr_error *error)
{
	int result = 0;

	if (!made->cgroup_inode && is_cgroup_used(made))
		return gcr_error_set(error, EBUSY,
				     "what runs in %s may be what an earlier daemon was restoring: "
				     "end it before a thaw",
				     made->cgroup);
	if (made->cgroup_inode)
		result = gcr_restored_cgroup_kill(made->cgroup, made->cgroup_inode, END_USEC);
	if (result < 0)
		return gcr_error_set(error, -result,
				     "what an earlier daemon was restoring does not end: see %s",
				     made->cgroup);
	if (gcr_restored_cgroup_remove(made->cgroup, made->cgroup_inode) < 0)
		gcr_log(LOG_WARNING, 0, "%s stays", made->cgroup);
	return 0;
}

/*
 * Ends the processes that the restore had made, and removes their cgroup. 0: none is alive; else
 * -errno with a message: -EBUSY a process may be one of them, but is not known to be.
 */
static int end_made(struct gcr_place *place, const struct gcr_place_made *made,
		    struct gcr_error *error)
{
	pid_t other;
	int result = 0;

	if (made->cgroup) {
		return end_cgroup(made, error);
	} else if (is_root_alive(made)) {
		result = gcr_restore_end_below(made->root, made->root_ticks);
		if (result < 0)
			return gcr_error_set(error, -result,
					     "process %d, which an earlier daemon was restoring, "
					     "does not end",
					     (int)made->root);
	} else if (!made->root && (other = find_by_metadata(place, made))) {
		return gcr_error_set(error, EBUSY,
				     "process %d may be what an earlier daemon was restoring: end "
				     "it before a thaw",
				     (int)other);
	}
	return 0;
}

int gcr_restore_check_left(struct gcr_restore *restore, struct gcr_error *error)
{
	struct gcr_place *place = restore->place;
	struct gcr_place_made made = {0};
	pid_t other = 0;
	int result;

	if (restore->from != GCR_STATE_FAILED)
		return 0;
	result = gcr_place_read_mark(place, &made, error);
	if (result < 0)
		return result;
	if (is_cgroup_used(&made))
		result = gcr_error_set(error, EBUSY, "what was restored of it lives on in %s",
				       made.cgroup);
	else if (is_root_alive(&made))
		other = made.root;
	else if (!made.cgroup && !made.root)
		other = find_by_metadata(place, &made);
	if (other)
		result = gcr_error_set(error, EBUSY,
				       "process %d may be what was restored of it: end that first",
				       (int)other);
	free(made.cgroup);
	if (!result)
		restore->from = place->origin.pid ? GCR_STATE_DUMPED : GCR_STATE_INCOMING;
	return result;
}

static void go_back(struct gcr_place *place, const struct gcr_error *failed)
{
	struct gcr_error error = *failed;

	if (!error.number && gcr_place_mark(place, NULL, &error) < 0)
		gcr_log(LOG_WARNING, 0, "%s: %s", place->name, error.words);
	gcr_place_set_state(place, failed->number      ? GCR_STATE_FAILED
				   : place->origin.pid ? GCR_STATE_DUMPED
						       : GCR_STATE_INCOMING);
	if (!failed->number)
		gcr_error_set(&error, ECANCELED, "thaw was rolled back: the daemon had died in it");
	gcr_place_report(place, "recover", &error);
}

/* A list of places that an earlier daemon left in the state restoring, with references. */
struct left {
	struct gcr_place **places;
	size_t count;
};

/*
 * Adds a reference to @place to the list @data (struct left) if an earlier daemon was restoring the
 * place. -ENOMEM.
 */
static int note(struct gcr_place *place, void *data)
{
	struct left *left = data;
	struct gcr_place **places;

	if (place->state != GCR_STATE_RESTORING)
		return 0;
	places = reallocarray(left->places, left->count + 1, sizeof(*places));
	if (!places)
		return -ENOMEM;
	left->places = places;
	places[left->count++] = gcr_place_ref(place);
	return 0;
}

static void each_left(struct gcr_daemon *daemon,
		      void (*visit)(struct gcr_place *place, const struct gcr_place_made *made))
{
	struct left left = {0};

	if (gcr_place_each(daemon->places, note, &left) < 0)
		gcr_log(LOG_ERR, 0, "out of memory: not every place is recovered");
	for (size_t i = 0; i < left.count; i++) {
		struct gcr_place *place = left.places[i];
		struct gcr_place_made made = {0};
		struct gcr_error error = {0};

		if (gcr_place_read_mark(place, &made, &error) < 0)
			go_back(place, &error);
		else
			visit(place, &made);
		free(made.cgroup);
		gcr_place_unref(place);
	}
	free(left.places);
}

static void recover_unthawed(struct gcr_place *place, const struct gcr_place_made *made)
{
	struct gcr_error error = {0};

	if (made->progress == GCR_PLACE_THAWING)
		return;
	end_made(place, made, &error);
	go_back(place, &error);
}

/*
 * Called when the root has ended. The other processes end in a moment; if they do not, the daemon
 * may not end them, and the place is marked as failed.
 */
static void look_for_rest(struct gcr_place *place, const struct gcr_place_made *made)
{
	int64_t until_usec = gcr_clock_usec() + MOMENT_USEC;
	struct gcr_error error = {0};

	while (is_cgroup_used(made) && gcr_clock_usec() < until_usec)
		usleep(LOOK_USEC);
	if (is_cgroup_used(made))
		gcr_error_set(&error, EBUSY,
			      "some of what was restored of it runs, in %s: end that before a thaw",
			      made->cgroup);
	else if (made->cgroup)
		gcr_restored_cgroup_remove(made->cgroup, made->cgroup_inode);
	go_back(place, &error);
}

static void recover_thawed(struct gcr_place *place, const struct gcr_place_made *made)
{
	struct gcr_process *process;

	if (!is_root_alive(made)) {
		look_for_rest(place, made);
		return;
	}
	gcr_restore_signal_all(made->root, made->root_ticks, SIGCONT);
	/* Its preload library may not have connected yet. */
	if (gcr_processes_find(place->daemon->processes, made->root, &process) < 0 &&
	    gcr_processes_add(place->daemon->processes, made->root, made->root_ticks, NULL,
			      &process) < 0) {
		look_for_rest(place, made);
		return;
	}
	pthread_mutex_lock(&place->lock);
	place->cgroup = made->cgroup ? strdup(made->cgroup) : NULL;
	pthread_mutex_unlock(&place->lock);
	gcr_log(LOG_NOTICE, 0, "%s was being thawed by an earlier daemon: process %d goes on",
		place->name, (int)made->root);
	gcr_place_became(place, process);
	gcr_process_unref(process);
}

void gcr_restores_recover(struct gcr_daemon *daemon)
{
	each_left(daemon, recover_unthawed);
}

void gcr_restores_recover_thawed(struct gcr_daemon *daemon)
{
	each_left(daemon, recover_thawed);
	gcr_restored_cgroup_sweep();
}
