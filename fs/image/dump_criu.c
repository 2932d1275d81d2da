/* SPDX-License-Identifier: MIT */
/*
 * CRIU's part of the dump: starting CRIU, watching the size of the images, answering CRIU, its log.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/image/criu_run.h"
#include "fs/image/dump_private.h"
#include "fs/process/vendor.h"
#include "fs/store/store.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/* Time that CRIU gets to release the tree once it has been told to give up. */
#define CRIU_GRACE_USEC (10 * GCR_USEC_PER_SEC)
#define CRIU_LOOK_USEC	(50 * GCR_USEC_PER_MSEC)
/* How much more room is taken from the store at a time, when the images outgrow their room. */
#define MORE_BYTES	(16ull << 20)

static int start_criu(struct gcr_dump *dump, struct gcr_criu_job **ret_job, int *ret_work_fd,
		      struct gcr_error *error)
{
	const struct gcr_opens *opens = dump->opens;
	_cleanup_free_ const char **externals = calloc(opens->findings_count + 1, sizeof(char *));
	_cleanup_free_ char *hook = NULL;
	_cleanup_free_ char *guard = NULL;
	_cleanup_free_ char *drain = NULL;
	_cleanup_free_ char *plugins = NULL;
	const struct gcr_criu_program *program;
	char subject[GCR_CRIU_SUBJECT_BYTES];
	struct gcr_criu_options options = {
		.action = GCR_CRIU_DUMP,
		.pid = dump->members[0].proc.pid,
		.pidfd = dump->members[0].pidfd,
		.images_fd = dump->images_fd,
		.log_name = GCR_CRIU_LOG_NAME,
		.after = dump->task->command->leave ? GCR_CRIU_AFTER_RUNNING
						    : GCR_CRIU_AFTER_DEFAULT,
		.tcp = dump->task->command->tcp,
		.shell_job = opens->shell_job,
		.file_locks = opens->file_locks,
		.ext_unix_sockets = opens->ext_unix_sockets,
		.link_remap = opens->link_remap,
		.ghost_limit_bytes = opens->ghost_limit_bytes,
		.externals = externals,
	};
	int result;

	if (!externals)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_vendor_program(dump->daemon, GCR_CRIU_HOOK_PROGRAM, &hook, error);
	if (!result)
		result = gcr_vendor_program(dump->daemon, GCR_CRIU_GUARD, &guard, error);
	if (!result)
		result = gcr_vendor_program(dump->daemon, GCR_DRAIN_PROGRAM, &drain, error);
	if (result < 0)
		return result;
	/* If it ends from here on, the guard keeps CRIU from the next process with its pid. */
	if (gcr_dump_is_gone(&dump->members[0]))
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)options.pid);
	for (size_t i = 0; i < opens->findings_count; i++)
		if (opens->findings[i].verdict == GCR_OPEN_EXTERNAL &&
		    opens->findings[i].has_option)
			externals[options.externals_count++] = opens->findings[i].option;
	result = gcr_criu_program(dump->daemon, &program, error);
	if (!result)
		result = gcr_criu_plugins(dump->daemon, dump->vendors, &plugins, error);
	if (result < 0)
		return result;
	gcr_criu_subject_of_process(dump->members[0].proc.pid, dump->members[0].proc.start_ticks,
				    subject);
	/* An earlier log may be hidden; the new log need not be. */
	gcr_criu_forget(dump->daemon, subject);
	*ret_work_fd = gcr_criu_log_directory(dump->daemon, subject, dump->uid, error);
	if (*ret_work_fd < 0)
		return *ret_work_fd;
	/* A process may get other rights, and CRIU would tell its addresses and its files. */
	if (dump->uid)
		result = gcr_criu_hide_log(*ret_work_fd, error);
	if (result < 0)
		return result;
	options.hook_program = hook;
	options.guard = guard;
	options.log_program = drain;
	options.work_fd = *ret_work_fd;
	options.libdir = plugins;
	return gcr_criu_start(program, &options, ret_job, error);
}

/* Bytes of the store that the images take now. */
static uint64_t images_bytes(const struct gcr_dump *dump)
{
	_cleanup_closedir_ DIR *images = NULL;
	const struct dirent *entry;
	uint64_t bytes = 0;
	struct stat stat;

	if (gcr_beneath_list(dump->images_fd, ".", &images) < 0)
		return 0;
	while ((entry = readdir(images)))
		if (!fstatat(dirfd(images), entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) &&
		    S_ISREG(stat.st_mode))
			bytes += (uint64_t)stat.st_blocks * 512;
	return bytes;
}

/*
 * Compares the size of the images with the reserved room: CRIU writes to the store without the
 * daemon. The room is an upper bound for the tree as last listed, except for CRIU's lists of files
 * and mappings. If the images are larger, reserves more room; if there is none, CRIU has to give
 * up. -ENOSPC, -EDQUOT, which set @error.
 */
static int watch_images(struct gcr_dump *dump, struct gcr_error *error)
{
	uid_t counted = dump->task->command->rights.counted;
	uint64_t bytes = images_bytes(dump);
	uint64_t more;
	int result;

	if (bytes <= dump->room_bytes)
		return 0;
	more = bytes - dump->room_bytes + MORE_BYTES;
	result = gcr_room_take(dump->room, counted, more);
	if (!result) {
		dump->room_bytes += more;
		return 0;
	}
	if (result == -EDQUOT &&
	    gcr_store_check_user(dump->daemon->store, gcr_dump_place_uid(dump), more, error) < 0)
		return -EDQUOT;
	return gcr_error_set(error, -result,
			     "CRIU writes more than the tree had when it was looked at (%llu MiB "
			     "by now), and the store has no room for it: %s",
			     (unsigned long long)(bytes >> 20), strerror(-result));
}

int gcr_dump_run_criu(struct gcr_dump *dump, struct gcr_criu_job **ret_job, struct gcr_error *error)
{
	_cleanup_(gcr_criu_destroy_cleanup) struct gcr_criu_job *job = NULL;
	int64_t look_usec = 0;
	bool is_stopped;
	int room = 0;
	int result;

	gcr_dump_set_phase(dump, "criu");
	result = start_criu(dump, &job, &dump->work_fd, error);
	if (result < 0)
		return result;
	do {
		result = gcr_criu_wait(job, CRIU_LOOK_USEC, gcr_criu_hook_fd(job));
		is_stopped = result == -ETIMEDOUT && gcr_task_stopped(dump->task);
		/*
		 * A long directory takes long to list: spend at most a tenth of the time on that.
		 */
		if (result != -ETIMEDOUT || gcr_clock_usec() >= look_usec) {
			int64_t since_usec = gcr_clock_usec();

			room = watch_images(dump, error);
			look_usec = gcr_clock_usec() + 10 * (gcr_clock_usec() - since_usec);
		}
		if (is_stopped || room < 0) {
			gcr_criu_stop(job, CRIU_GRACE_USEC);
			return is_stopped ? gcr_dump_stopped(dump, error) : room;
		}
	} while (result == -ETIMEDOUT);
	if (result == -EINTR) {
		result = gcr_criu_check_guard(job, error);
		if (result < 0)
			gcr_criu_stop(job, CRIU_GRACE_USEC);
		else
			*ret_job = TAKE_PTR(job);
		return result;
	}
	result = gcr_criu_finish(job, NULL, error);
	return result ? result : gcr_error_set(error, EIO, "criu has ended before it asked");
}

int gcr_dump_answer_criu(struct gcr_dump *dump, struct gcr_criu_job *job, bool is_yes,
			 struct gcr_error *error)
{
	int result;

	gcr_dump_set_phase(dump, "end");
	gcr_criu_answer(job, is_yes);
	if (gcr_criu_wait(job, CRIU_GRACE_USEC, -1) < 0)
		gcr_criu_kill(job);
	result = gcr_criu_finish(job, NULL, error);
	return is_yes ? result : 0;
}

void gcr_dump_hand_log_on(const struct gcr_dump *dump)
{
	const struct gcr_proc_member *root = &dump->members[0].proc;
	char from[GCR_CRIU_SUBJECT_BYTES], to[GCR_CRIU_SUBJECT_BYTES];

	gcr_criu_subject_of_process(root->pid, root->start_ticks, from);
	gcr_criu_subject_of_place(dump->name, to);
	gcr_criu_hand_on(dump->daemon, from, to);
}

void gcr_dump_tie_log(const struct gcr_dump *dump)
{
	gcr_criu_tie_log(dump->work_fd, dump->name);
}
