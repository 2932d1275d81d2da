/* SPDX-License-Identifier: MIT */
/*
 * Scans the files that the tree of a dump has open. Files are accessed by their names, and a user's
 * own filesystem need not answer: so a thread does the scan, and is left behind if it does not end.
 * The number of such threads is bounded (fs/base/errand.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/credentials.h"
#include "fs/base/errand.h"
#include "fs/base/mountpoint.h"
#include "fs/image/dump_private.h"
#include "fs/job/operation.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"

/* The largest unlinked file that CRIU may copy into its images. */
#define GHOST_BYTES_MAX	 (256ull << 20)
#define PLUGIN_FILES_MAX 8

#define LOOK_USEC (30 * GCR_USEC_PER_SEC)
#define STOP_USEC (50 * GCR_USEC_PER_MSEC) /* between checks whether the verb is to stop */

/* Shared by the verb and the thread: the last user frees it. Contains no pointers into the dump. */
struct job {
	pthread_mutex_t lock;
	pthread_cond_t done;
	bool is_done;
	bool is_left;		   /* the verb no longer waits */
	atomic_bool cancel;	   /* the same, for the scan */
	struct gcr_errand *errand; /* NULL: ended, or not begun */
	pid_t *pids;
	size_t count;
	char *plugin_files[PLUGIN_FILES_MAX + 1];
	struct gcr_file_rights reader;
	struct gcr_opens_options options;
	struct gcr_opens *opens;
	int result;
	struct gcr_error error;
};

static void free_job(struct job *job)
{
	if (!job)
		return;
	for (size_t i = 0; i < PLUGIN_FILES_MAX; i++)
		free(job->plugin_files[i]);
	gcr_errand_end(job->errand);
	free(job->reader.groups);
	free(job->pids);
	gcr_opens_destroy(job->opens);
	pthread_cond_destroy(&job->done);
	pthread_mutex_destroy(&job->lock);
	free(job);
}

GCR_DEFINE_CLEANUP(struct job *, free_job);

/*
 * Prefixes of the paths (link targets) of files that CRIU's plugins handle; NULL ends the list.
 * -ENOMEM.
 */
static int list_plugin_files(const struct gcr_dump *dump, char *paths[PLUGIN_FILES_MAX + 1])
{
	const char *directory = dump->daemon->device_directory;
	size_t count = 0;

	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++) {
		const struct gcr_backend *backend = gcr_backends[i];

		if (!(dump->vendors & 1u << i) || !backend->criu_plugin)
			continue;
		/* All files that the simulator has in its device directory. */
		if (dump->daemon->options.simulator) {
			if (asprintf(&paths[0], "%s/", directory) >= 0)
				return 0;
			paths[0] = NULL;
			return -ENOMEM;
		}
		for (size_t j = 0; backend->memory_links[j] && count < PLUGIN_FILES_MAX; j++)
			if (!(paths[count++] = strdup(backend->memory_links[j])))
				return -ENOMEM;
		for (size_t j = 0; backend->criu_devices[j] && count < PLUGIN_FILES_MAX; j++)
			if (asprintf(&paths[count++], "%s/%s", directory,
				     backend->criu_devices[j]) < 0) {
				paths[count - 1] = NULL;
				return -ENOMEM;
			}
	}
	return 0;
}

static void *work(void *data)
{
	struct job *job = data;
	bool is_left;

	job->result =
		gcr_opens_scan(job->pids, job->count, &job->options, &job->opens, &job->error);
	pthread_mutex_lock(&job->lock);
	job->is_done = true;
	is_left = job->is_left;
	gcr_errand_end(TAKE_PTR(job->errand));
	pthread_cond_signal(&job->done);
	pthread_mutex_unlock(&job->lock);
	if (is_left)
		free_job(job);
	return NULL;
}

/* Do all processes of the tree belong to root of the host? Root of a container does not count. */
static bool is_roots_tree(const struct gcr_dump *dump)
{
	for (size_t i = 0; i < dump->count; i++)
		if (gcr_credentials_are_contained(dump->members[i].proc.pid))
			return false;
	return !dump->uid && !dump->is_of_several && geteuid() == 0;
}

static int make_job(struct gcr_dump *dump, struct job **ret_job)
{
	_cleanup_(free_job_cleanup) struct job *job = calloc(1, sizeof(*job));
	const struct gcr_file_rights *reader = dump->owner_rights;

	if (!job)
		return -ENOMEM;
	pthread_mutex_init(&job->lock, NULL);
	pthread_cond_init(&job->done, NULL);
	atomic_init(&job->cancel, false);
	job->pids = calloc(dump->count, sizeof(*job->pids));
	if (!job->pids || list_plugin_files(dump, job->plugin_files) < 0)
		return -ENOMEM;
	for (job->count = 0; job->count < dump->count; job->count++)
		job->pids[job->count] = dump->members[job->count].proc.pid;
	job->options = (struct gcr_opens_options){
		.tcp = dump->task->command->tcp,
		.ghost_limit_max_bytes = GHOST_BYTES_MAX,
		.criu_version = dump->criu_version,
		.plugin_files = (const char *const *)job->plugin_files,
		.may_be_private = gcr_command_is_root(dump->task->command),
		.may_link = is_roots_tree(dump),
		.cancel = &job->cancel,
	};
	if (reader) {
		job->reader = *reader;
		job->reader.groups = calloc(reader->groups_count + 1, sizeof(*reader->groups));
		if (!job->reader.groups)
			return -ENOMEM;
		if (reader->groups_count)
			memcpy(job->reader.groups, reader->groups,
			       reader->groups_count * sizeof(*reader->groups));
		job->options.reader = &job->reader;
	}
	job->options.mount_device = gcr_mountpoint_device(dump->daemon);
	*ret_job = TAKE_PTR(job);
	return 0;
}

/*
 * Starts the scan in a thread of its own, in which all signals are blocked: other threads of the
 * daemon handle them.
 */
static int start_thread(struct job *job)
{
	sigset_t all, old;
	pthread_t thread;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = -pthread_create(&thread, NULL, work, job);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r == 0)
		pthread_detach(thread);
	return r;
}

/*
 * Waits for the end of the scan. -ETIMEDOUT, -ECANCELED: the wait was given up, and the thread owns
 * the job from then on.
 */
static int await(struct gcr_dump *dump, struct job *job)
{
	int64_t deadline_usec = gcr_clock_usec() + LOOK_USEC;
	int result = 0;

	pthread_mutex_lock(&job->lock);
	while (!job->is_done && !result) {
		gcr_cond_wait_until(&job->done, &job->lock, gcr_clock_usec() + STOP_USEC);
		if (job->is_done)
			break;
		if (gcr_task_stopped(dump->task))
			result = -ECANCELED;
		else if (gcr_clock_usec() >= deadline_usec)
			result = -ETIMEDOUT;
	}
	job->is_left = result < 0;
	atomic_store(&job->cancel, job->is_left);
	/* Under the lock, before the thread can end. */
	if (job->is_left)
		gcr_errand_leave(job->errand);
	pthread_mutex_unlock(&job->lock);
	return result;
}

static bool is_gone(const struct gcr_dump *dump, pid_t pid)
{
	for (size_t i = 0; i < dump->count; i++)
		if (dump->members[i].proc.pid == pid)
			return gcr_dump_is_gone(&dump->members[i]);
	return true;
}

/*
 * Removes the refusals that name processes which have ended. Such a process prevents no dump, and
 * the scan may have looked at another process that was given its pid. A process that has not been
 * waited for had its pid during the whole scan.
 */
static void drop_gone(const struct gcr_dump *dump, struct gcr_opens *opens)
{
	size_t kept = 0;

	for (size_t i = 0; i < opens->findings_count; i++)
		if (opens->findings[i].verdict != GCR_OPEN_REFUSED ||
		    !is_gone(dump, opens->findings[i].pid))
			opens->findings[kept++] = opens->findings[i];
	opens->findings_count = kept;
}

static int is_stopped(void *data)
{
	return gcr_task_stopped(data);
}

int gcr_dump_look_at_opens(struct gcr_dump *dump, struct gcr_opens **ret_opens,
			   struct gcr_error *error)
{
	_cleanup_(free_job_cleanup) struct job *job = NULL;
	int result;

	result = make_job(dump, &job);
	if (result < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_errand_begin(dump->daemon->quota, GCR_ERRAND_LOOK, dump->uid,
				  &(struct gcr_errand_wait){
					  .is_stopped = is_stopped,
					  .data = dump->task,
					  .deadline_usec = gcr_clock_usec() + LOOK_USEC,
				  },
				  &job->errand, error);
	if (result < 0)
		return result;
	result = start_thread(job);
	if (result < 0)
		return gcr_error_set(error, -result, "cannot start a thread: %s",
				     strerror(-result));
	result = await(dump, job);
	if (result < 0)
		TAKE_PTR(job);
	if (result == -ECANCELED)
		return gcr_error_set(error, ECANCELED, "%s", "");
	if (result < 0)
		return gcr_error_set(error, ETIMEDOUT,
				     "what the processes have open cannot be seen: a filesystem "
				     "that they use does not answer, or one of them is held in "
				     "execve(2)");
	if (job->result < 0) {
		*error = job->error;
		return job->result;
	}
	drop_gone(dump, job->opens);
	*ret_opens = TAKE_PTR(job->opens);
	return 0;
}
