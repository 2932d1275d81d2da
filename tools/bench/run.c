/* SPDX-License-Identifier: MIT */
/* Freezing and thawing for the bench: timing starts only when all conditions of the row are met. */
#include "tools/bench/run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "tools/bench/subject.h"

#define MIB (UINT64_C(1) << 20)

#define COLD_IDLE_SEC	 0
#define WARM_IDLE_SEC	 3600
#define WARM_UP_BYTES	 (64 * MIB)
#define SLACK_BYTES	 (1024 * MIB) /* room for small allocations and partly used pages */
#define POOL_SLACK_BYTES (64 * MIB)

#define VERB_USEC	(120 * GCR_USEC_PER_SEC)
#define BYTES_PER_USEC	500 /* minimum speed of a verb, for its time limit */
#define FOUND_USEC	(10 * GCR_USEC_PER_SEC)
#define HELPERS_USEC	(15 * GCR_USEC_PER_SEC)
#define POOL_USEC	(120 * GCR_USEC_PER_SEC)
#define POOL_STILL_USEC (5 * GCR_USEC_PER_SEC)
#define PINNED_USEC	(30 * GCR_USEC_PER_SEC)
#define LOOK_AGAIN_USEC 20000

static bool needs_preload(const struct bench_row *row)
{
	return row->kind->engine == BENCH_VMM || row->kind->engine == BENCH_DATA;
}

static bool is_warm(const struct bench_row *row)
{
	return row->kind->start == BENCH_WARM || row->kind->start == BENCH_AGAIN;
}

static int64_t verb_limit(uint64_t bytes)
{
	return VERB_USEC + (int64_t)(bytes / BYTES_PER_USEC);
}

/* ---- waiting for a row's conditions ---- */

/*
 * Gets the bytes of host memory that the daemon's store uses: from statvfs if the store is a
 * separate file system, else from the root's status, read into @text. False: not known.
 */
static bool store_bytes(const struct bench_mount *mount, char *text, double *ret_bytes)
{
	_cleanup_free_ char *path = NULL;
	struct stat inside, outside;
	struct statvfs store;

	if (mount->runtime && asprintf(&path, "%s/store", mount->runtime) > 0 &&
	    !stat(path, &inside) && !stat(mount->runtime, &outside) &&
	    inside.st_dev != outside.st_dev && !statvfs(path, &store)) {
		*ret_bytes = (double)(store.f_blocks - store.f_bfree) * (double)store.f_frsize;
		return true;
	}
	return !bench_mount_read(mount, 0, "status", text, NULL) &&
	       bench_text_number(text, "store_used_bytes", ret_bytes);
}

/*
 * Waits until the store has @least to @most bytes; returns false on timeout, or if the size no
 * longer changes.
 */
static bool wait_for_store(const struct bench_mount *mount, uint64_t least, uint64_t most,
			   int64_t timeout_usec)
{
	_cleanup_free_ char *text = malloc(BENCH_TEXT_MAX);
	int64_t started_usec = gcr_clock_usec(), changed_usec = started_usec;
	double bytes = 0, before = -1;

	while (text && store_bytes(mount, text, &bytes)) {
		int64_t now_usec = gcr_clock_usec();

		if (bytes >= (double)least && bytes <= (double)most)
			return true;
		if (bytes < before || bytes > before)
			changed_usec = now_usec;
		before = bytes;
		if (now_usec - started_usec > timeout_usec ||
		    now_usec - changed_usec > POOL_STILL_USEC || bench_pause(LOOK_AGAIN_USEC) < 0)
			return false;
	}
	return true;
}

static bool wait_for_no_helpers(const struct bench_mount *mount, const char *name)
{
	int64_t until_usec = gcr_clock_usec() + HELPERS_USEC;
	pid_t pids[BENCH_HELPERS_MAX];

	while (bench_mount_helpers(mount, name, pids))
		if (gcr_clock_usec() > until_usec || bench_pause(LOOK_AGAIN_USEC) < 0)
			return false;
	return true;
}

/* Waits until the worker has finished its preparations; returns false on timeout. */
static bool wait_until_pinned(const struct bench_mount *mount, pid_t pid, char *text)
{
	int64_t until_usec = gcr_clock_usec() + PINNED_USEC;
	char value[8];

	while (!bench_mount_read(mount, pid, "status", text, NULL) &&
	       bench_text_value(text, "pinned", value, sizeof(value)) && strcmp(value, "yes"))
		if (gcr_clock_usec() > until_usec || bench_pause(LOOK_AGAIN_USEC) < 0)
			return false;
	return true;
}

int bench_run_find(const struct bench *bench, enum bench_engine wanted,
		   const struct bench_mount *mount, pid_t pid, char *text, struct gcr_error *error)
{
	const char *engine = wanted == BENCH_DRIVER ? "driver" : bench->options.hip ? "hip" : "vmm";
	int64_t until_usec = gcr_clock_usec() + FOUND_USEC;
	char value[32] = "", reason[256] = "";
	int result;

	for (;;) {
		result = bench_mount_read(mount, pid, "status", text, error);
		if (!result && bench_text_value(text, "engine", value, sizeof(value)) &&
		    !strcmp(value, engine))
			return 0;
		if (gcr_clock_usec() > until_usec || result == -ETIMEDOUT)
			break;
		if (bench_pause(LOOK_AGAIN_USEC) < 0)
			return -EINTR;
	}
	if (result < 0)
		return result;
	bench_text_value(text, "engine_reason", reason, sizeof(reason));
	return gcr_error_set(error, EOPNOTSUPP, "the engine here is %s, not %s: %s", value, engine,
			     reason);
}

/* ---- the daemon ---- */

/* Freezes and thaws a small program once, so that the helpers run. */
static int warm_up(struct bench *bench, const struct bench_row *row,
		   const struct bench_mount *mount, struct gcr_error *error)
{
	_cleanup_free_ char *text = malloc(BENCH_TEXT_MAX);
	uint64_t bytes = row->bytes && row->bytes < WARM_UP_BYTES ? row->bytes : WARM_UP_BYTES;
	struct bench_subject subject;
	double usec;
	int result;

	if (!text)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = bench_subject_start(bench, bytes, false, needs_preload(row), mount, &subject,
				     error);
	if (result < 0)
		return result;
	result = bench_run_find(bench, row->kind->engine, mount, subject.pid, text, error);
	if (!result)
		result = bench_mount_verb(mount, subject.pid, "freeze", verb_limit(bytes), &usec,
					  error);
	if (!result)
		result = bench_mount_verb(mount, subject.pid, "thaw", verb_limit(bytes), &usec,
					  error);
	bench_subject_end(&subject);
	return result;
}

int bench_run_prepare(struct bench *bench, const struct bench_row *row,
		      struct bench_mount *ret_mount, struct gcr_error *error)
{
	bool warm = is_warm(row);
	/* A command's size is unknown: as much memory as available. */
	uint64_t store = row->bytes ? 2 * row->bytes + SLACK_BYTES
				    : bench->machine.host_room_bytes / 10 * 9;
	uint64_t pool = row->bytes ? row->bytes + POOL_SLACK_BYTES
				   : bench->machine.host_room_bytes / 2;
	char options[128];
	size_t length;
	int result;

	if (row->kind->engine == BENCH_BARE)
		return 0;
	if (bench->options.mount)
		return bench_mount_find(bench->options.mount, ret_mount, error);
	length = (size_t)snprintf(options, sizeof(options), "worker_idle=%d",
				  warm ? WARM_IDLE_SEC : COLD_IDLE_SEC);
	if (needs_preload(row))
		length += (size_t)snprintf(options + length, sizeof(options) - length,
					   ",store_size=%" PRIu64, store);
	if (needs_preload(row) && warm)
		length += (size_t)snprintf(options + length, sizeof(options) - length,
					   ",pool=%" PRIu64, pool);
	/* Kept files are not in the pool as well. */
	if (row->kind->start == BENCH_AGAIN)
		snprintf(options + length, sizeof(options) - length, ",keep=%" PRIu64, pool);
	result = bench_mount_start(&bench->paths, ++bench->mounts, options, ret_mount, error);
	if (!result && warm)
		result = warm_up(bench, row, ret_mount, error);
	return result;
}

/* ---- one run ---- */

struct run {
	struct bench *bench;
	struct bench_row *row;
	const struct bench_mount *mount; /* NULL: the peer */
	struct bench_subject subject;
	struct bench_child peer;
	char *text;
	uint64_t used_before; /* VRAM in use by all processes before the run */
	double freeze_usec, thaw_usec;
	char what[64];
};

static void warn(struct run *run, unsigned int number, const char *words)
{
	/* Reported once per row, not for each run. */
	if (!number && !bench_interrupted)
		bench_note(run->bench, run->what, "%s", words);
}

static int prepare(struct run *run, unsigned int number, struct gcr_error *error)
{
	enum bench_start start = run->row->kind->start;
	int result;

	if (!run->mount) {
		char line[BENCH_LINE_MAX];

		result = bench_role_start(run->bench, NULL, false, (const char *[]){"peer", NULL},
					  &run->peer, error);
		if (!result)
			result = bench_child_answer(&run->bench->paths, &run->peer, VERB_USEC, line,
						    error);
		return result;
	}
	result = bench_run_find(run->bench, run->row->kind->engine, run->mount, run->subject.pid,
				run->text, error);
	if (result < 0)
		return result;
	if (start == BENCH_COLD && !wait_for_no_helpers(run->mount, NULL))
		warn(run, number, "not cold: a helper program does not end");
	if (is_warm(run->row) && needs_preload(run->row) && run->row->bytes &&
	    !wait_for_store(run->mount, run->row->bytes, UINT64_MAX, POOL_USEC))
		warn(run, number, "not warm: the pool does not fill");
	if (is_warm(run->row) && needs_preload(run->row) && !run->row->bytes)
		wait_for_store(run->mount, UINT64_MAX, UINT64_MAX, POOL_USEC);
	if (is_warm(run->row) && needs_preload(run->row) &&
	    !wait_until_pinned(run->mount, run->subject.pid, run->text))
		warn(run, number, "not warm: the worker has not registered the pool");
	return 0;
}

static void add_host_memory(struct run *run)
{
	double bytes;

	if (!run->mount)
		return;
	if (run->mount->daemon.pid)
		bench_series_add(&run->row->daemon_host,
				 (double)bench_mount_host_bytes(run->mount));
	if (store_bytes(run->mount, run->text, &bytes))
		bench_series_add(&run->row->store_host, bytes);
}

static double helpers_vram(const struct run *run, const struct bench_vram *vram)
{
	pid_t pids[BENCH_HELPERS_MAX];
	size_t count = run->mount ? bench_mount_helpers(run->mount, NULL, pids) : 0;
	uint64_t bytes = 0;

	for (size_t i = 0; i < count; i++)
		bytes += bench_vram_of(vram, pids[i]);
	return (double)bytes;
}

/* Records the VRAM in use while frozen: now, and (cold) after the worker has ended. */
static void add_vram(struct run *run, unsigned int number)
{
	struct bench_row *row = run->row;
	struct bench_vram vram;

	if (!bench_vram_read(run->bench, &vram)) {
		bench_series_add(&row->frozen_vram, (double)bench_vram_of(&vram, run->subject.pid));
		bench_series_add(&row->helpers_vram, helpers_vram(run, &vram));
	}
	if (row->kind->start != BENCH_COLD)
		return;
	if (!wait_for_no_helpers(run->mount, "gpucr-worker"))
		warn(run, number, "not cold: the worker does not end");
	if (!bench_vram_read(run->bench, &vram)) {
		bench_series_add(&row->idle_vram, helpers_vram(run, &vram));
		bench_series_add(&row->idle_more_vram,
				 (double)vram.used_bytes - (double)run->used_before);
	}
}

static int do_verb(struct run *run, bool of_thaw, double *ret_usec, struct gcr_error *error)
{
	bool of_data = run->row->kind->engine == BENCH_DATA;
	char line[BENCH_LINE_MAX], question[64];
	int result;

	if (run->mount)
		return bench_mount_verb(run->mount, run->subject.pid,
					of_thaw	  ? "thaw"
					: of_data ? "freeze data"
						  : "freeze",
					verb_limit(run->row->bytes), ret_usec, error);
	snprintf(question, sizeof(question), "%s %d", of_thaw ? "thaw" : "freeze",
		 (int)run->subject.pid);
	result = bench_child_ask(&run->bench->paths, &run->peer, 2 * verb_limit(run->row->bytes),
				 question, line, error);
	if (!result && !bench_answer_number(line, "usec", ret_usec))
		result = gcr_error_set(error, EPROTO, "an answer that is none: %s", line);
	return result;
}

/*
 * Records the parts of both verbs from the status. Not called between them: reading the status
 * starts a helper program, which the thaw would then find running.
 */
static void add_parts(struct run *run)
{
	double number;

	if (!run->mount ||
	    bench_mount_read(run->mount, run->subject.pid, "status", run->text, NULL) < 0)
		return;
	for (size_t i = 0; i < BENCH_PARTS; i++)
		if (bench_text_number(run->text, bench_parts[i].key, &number))
			bench_series_add(&run->row->parts_usec[i], number);
	if (needs_preload(run->row) && bench_text_number(run->text, "last_freeze_bytes", &number) &&
	    number > 0)
		bench_series_add(&run->row->moved_bytes, number);
	if (needs_preload(run->row) &&
	    bench_text_number(run->text, "last_freeze_copied_bytes", &number))
		bench_series_add(&run->row->copied_bytes, number);
	/* If the host made the digests at least once, "host" is kept. */
	if (needs_preload(run->row) && strcmp(run->bench->digests, "host") != 0)
		bench_text_value(run->text, "last_freeze_digests", run->bench->digests,
				 sizeof(run->bench->digests));
}

/*
 * Freezes and thaws a program once that is then frozen again. Its files are registered with the
 * driver while it is frozen; kept files stay registered. On an AMD GPU no files are registered: the
 * worker ends with the freeze.
 */
static int freeze_before(struct run *run, unsigned int number, struct gcr_error *error)
{
	double kept = 0, usec;
	int result;

	result = do_verb(run, false, &usec, error);
	if (result < 0)
		return result;
	if (!run->bench->options.hip && !wait_until_pinned(run->mount, run->subject.pid, run->text))
		warn(run, number, "not warm: the worker has not registered the files");
	bench_subject_forget(run->bench, &run->subject);
	result = do_verb(run, true, &usec, error);
	if (!result)
		result = bench_subject_change(run->bench, &run->subject, error);
	if (result == -EBADMSG)
		gcr_error_prefix(error, "WRONG CONTENT");
	if (!result)
		result = bench_mount_read(run->mount, run->subject.pid, "status", run->text, error);
	if (result < 0)
		return result;
	bench_text_number(run->text, "kept_bytes", &kept);
	if (kept <= 0)
		warn(run, number, "nothing has been kept of the first freeze");
	return 0;
}

static int freeze_and_thaw(struct run *run, unsigned int number, struct gcr_error *error)
{
	struct bench_vram vram;
	int result;

	if (run->row->kind->start == BENCH_AGAIN) {
		result = freeze_before(run, number, error);
		if (result < 0)
			return result;
	}
	if (!needs_preload(run->row) && !bench_vram_read(run->bench, &vram))
		bench_series_add(&run->row->moved_bytes,
				 (double)bench_vram_of(&vram, run->subject.pid));
	add_host_memory(run);
	/* Last, because reading the status above may have started a helper. */
	if (run->row->kind->start == BENCH_COLD)
		wait_for_no_helpers(run->mount, NULL);
	result = do_verb(run, false, &run->freeze_usec, error);
	if (result < 0)
		return result;
	add_vram(run, number);
	bench_subject_forget(run->bench, &run->subject);
	result = do_verb(run, true, &run->thaw_usec, error);
	if (result < 0)
		return result;
	result = bench_subject_verify(run->bench, &run->subject, error);
	if (result == -EBADMSG)
		gcr_error_prefix(error, "WRONG CONTENT");
	if (!result)
		add_parts(run);
	return result;
}

/*
 * Restores the conditions of this run for the next one: the store is empty, the program's VRAM is
 * free.
 */
static void restore_conditions(const struct run *run)
{
	int64_t until_usec = gcr_clock_usec() + HELPERS_USEC;
	struct bench_vram vram;

	if (run->mount && run->row->kind->start == BENCH_COLD && needs_preload(run->row))
		wait_for_store(run->mount, 0, 16 * MIB, POOL_USEC);
	while (!bench_vram_read(run->bench, &vram) && bench_vram_of(&vram, run->subject.pid))
		if (gcr_clock_usec() > until_usec || bench_pause(LOOK_AGAIN_USEC) < 0)
			break;
}

int bench_run(struct bench *bench, struct bench_row *row, const struct bench_mount *mount,
	      unsigned int number)
{
	struct run run = {
		.bench = bench,
		.row = row,
		.mount = row->kind->engine == BENCH_BARE ? NULL : mount,
	};
	struct gcr_error error = {0};
	struct bench_vram vram;
	bool was_ready = false;
	int result;

	bench_format_row(bench, row, run.what, sizeof(run.what));
	run.text = malloc(BENCH_TEXT_MAX);
	if (!run.text) {
		bench_fail(bench, run.what, "out of memory");
		return -ENOMEM;
	}
	/* Memory of an earlier run's helpers must not count as in use before. */
	if (run.mount && row->kind->start == BENCH_COLD)
		wait_for_no_helpers(run.mount, NULL);
	if (!bench_vram_read(bench, &vram))
		run.used_before = vram.used_bytes;
	result = bench_subject_start(bench, row->bytes, row->is_command, needs_preload(row),
				     run.mount, &run.subject, &error);
	if (!result) {
		result = prepare(&run, number, &error);
		was_ready = !result;
		if (!result)
			result = freeze_and_thaw(&run, number, &error);
		bench_child_end(&run.peer);
		bench_subject_end(&run.subject);
		restore_conditions(&run);
	}
	if (!result) {
		bench_series_add(&row->freeze_usec, run.freeze_usec);
		bench_series_add(&row->thaw_usec, run.thaw_usec);
		bench_progress(bench, "%s, run %u: freeze %.3f s, thaw %.3f s", run.what,
			       number + 1, run.freeze_usec / 1e6, run.thaw_usec / 1e6);
	} else if (!was_ready && (result == -ENOMEM || result == -EOPNOTSUPP)) {
		bench_note(bench, run.what, "left out: %s", error.words);
	} else if (row->is_command && !run.mount && result == -EIO) {
		/* The driver alone does not support the command. */
		bench_note(bench, run.what, "%s", error.words);
	} else if (result != -EINTR) {
		bench_fail(bench, run.what, "run %u: %s", number + 1, error.words);
	}
	free(run.text);
	return result;
}
