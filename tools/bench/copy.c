/* SPDX-License-Identifier: MIT */
/*
 * Measures copying the files of a frozen process out of the mount, and into an incoming snapshot;
 * one program is frozen for all runs. A separate process copies (copier.c), because a hanging
 * daemon would block the caller.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "tools/bench/bench.h"
#include "tools/bench/mount.h"
#include "tools/bench/run.h"
#include "tools/bench/subject.h"

#define MIB (UINT64_C(1) << 20)

#define BYTES_MAX      (4096 * MIB)
#define UNIT_BYTES     (2 * MIB)    /* sizes are multiples of this */
#define SLACK_BYTES    (1024 * MIB) /* additional room in the store, as for the rows */
#define ANSWER_USEC    (120 * GCR_USEC_PER_SEC)
#define BYTES_PER_USEC 50 /* minimum speed of a copy, for its time limit */
#define WHAT	       "copies"
#define INCOMING       "copied" /* name in the mount */

const struct bench_way_words bench_ways[BENCH_WAYS] = {
	[BENCH_COPY_OUT] = {"copy-out", "copy out"},
	[BENCH_COPY_IN] = {"copy-in", "copy in"},
};

struct copying {
	struct bench *bench;
	struct bench_mount mount;
	struct bench_subject subject;
	struct bench_child copier;
	char *frozen, *incoming, *files; /* paths in the mount */
};

static int64_t time_limit(const struct copying *copying)
{
	return ANSWER_USEC + (int64_t)(copying->bench->copies.bytes / BYTES_PER_USEC);
}

/*
 * Returns a size for which memory suffices three times (four with the simulator): in the mount, in
 * the tmpfs, and another copy in either.
 */
static uint64_t choose_bytes(const struct bench *bench)
{
	uint64_t times = bench->options.simulator ? 4 : 3;
	uint64_t bytes = bench->options.sizes[0];

	bytes = bytes < BYTES_MAX ? bytes : BYTES_MAX;
	while (bytes && times * bytes + bench_host_margin(bench) > bench->machine.host_room_bytes)
		bytes = bytes / 2 / UNIT_BYTES * UNIT_BYTES;
	return bytes;
}

/* ---- one run ---- */

static int ask(struct copying *copying, const char *verb, const char *path, char *ret_line,
	       struct gcr_error *error)
{
	_cleanup_free_ char *question = NULL;
	int result;

	if (asprintf(&question, "%s %s", verb, path) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = bench_child_ask(&copying->bench->paths, &copying->copier, time_limit(copying),
				 question, ret_line, error);
	if (result == -EBADMSG)
		gcr_error_prefix(error, "WRONG CONTENT");
	else if (result < 0)
		gcr_error_prefix(error, "%s", verb);
	return result;
}

/* Runs a copy and returns its rate in bytes per second. */
static int measure(struct copying *copying, const char *verb, const char *path, double *ret_rate,
		   struct gcr_error *error)
{
	char line[BENCH_LINE_MAX];
	double bytes, usec;
	int result = ask(copying, verb, path, line, error);

	if (result < 0)
		return result;
	if (!bench_answer_number(line, "bytes", &bytes) ||
	    !bench_answer_number(line, "usec", &usec))
		return gcr_error_set(error, EPROTO, "an answer that is none: %s", line);
	if ((uint64_t)bytes != copying->bench->copies.bytes)
		return gcr_error_set(error, EBADMSG,
				     "WRONG CONTENT: %s: %.0f bytes, %" PRIu64 " are expected",
				     verb, bytes, copying->bench->copies.bytes);
	*ret_rate = bytes * 1e6 / (usec > 0 ? usec : 1);
	return 0;
}

/*
 * Makes one copy out and, if wanted, one copy in. The copy in uses the files from the copy out,
 * which is therefore always made. Rates in bytes per second.
 */
static int copy(struct copying *copying, double rate[BENCH_WAYS], double bare_rate[BENCH_WAYS],
		struct gcr_error *error)
{
	char line[BENCH_LINE_MAX];
	int result;

	result = measure(copying, "out", copying->frozen, &rate[BENCH_COPY_OUT], error);
	if (!result)
		result = measure(copying, "bare", "", &bare_rate[BENCH_COPY_OUT], error);
	if (result < 0 || !copying->bench->options.copies[BENCH_COPY_IN])
		return result;
	result = ask(copying, "make", copying->incoming, line, error);
	if (!result)
		result = measure(copying, "in", copying->files, &rate[BENCH_COPY_IN], error);
	if (!result)
		result = ask(copying, "compare", copying->files, line, error);
	if (!result)
		result = ask(copying, "remove", copying->incoming, line, error);
	if (!result)
		result = measure(copying, "bare", "", &bare_rate[BENCH_COPY_IN], error);
	return result;
}

static int run(struct copying *copying, unsigned int number, struct gcr_error *error)
{
	struct bench *bench = copying->bench;
	double rate[BENCH_WAYS], bare_rate[BENCH_WAYS];
	int result = copy(copying, rate, bare_rate, error);

	for (size_t way = 0; way < BENCH_WAYS && !result; way++) {
		if (!bench->options.copies[way])
			continue;
		bench_series_add(&bench->copies.rate[way], rate[way]);
		bench_series_add(&bench->copies.bare_rate[way], bare_rate[way]);
		bench_progress(bench, "%s, run %u: %.2f GB/s, bare %.2f GB/s",
			       bench_ways[way].words, number + 1, rate[way] / 1e9,
			       bare_rate[way] / 1e9);
	}
	return result;
}

/* ---- preparations ---- */

static int start_copier(struct copying *copying, struct gcr_error *error)
{
	struct bench *bench = copying->bench;
	_cleanup_free_ char *place = NULL;
	char size[32], line[BENCH_LINE_MAX];
	const char *words;
	int result;

	if (asprintf(&place, "%s/copies", bench->paths.work) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (mkdir(place, 0700) < 0)
		return gcr_error_set(error, errno, "%s: %s", place, strerror(errno));
	snprintf(size, sizeof(size), "%" PRIu64, bench->copies.bytes);
	result = bench_role_start(bench, NULL, false, (const char *[]){"copy", place, size, NULL},
				  &copying->copier, error);
	if (!result)
		result = bench_child_answer(&bench->paths, &copying->copier, ANSWER_USEC, line,
					    error);
	if (result < 0)
		return result;
	words = strstr(line, " place ");
	snprintf(bench->copies.place, sizeof(bench->copies.place), "%s",
		 words ? words + strlen(" place ") : "place");
	return 0;
}

static int name_paths(struct copying *copying, struct gcr_error *error)
{
	const char *directory = copying->mount.directory;

	if (asprintf(&copying->frozen, "%s/%d/snapshot/vram", directory,
		     (int)copying->subject.pid) < 0 ||
	    asprintf(&copying->incoming, "%s/" INCOMING, directory) < 0 ||
	    asprintf(&copying->files, "%s/" INCOMING "/snapshot", directory) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	return 0;
}

/* Starts the daemon, a program, and the copier. */
static int prepare(struct copying *copying, struct gcr_error *error)
{
	struct bench *bench = copying->bench;
	_cleanup_free_ char *text = malloc(BENCH_TEXT_MAX);
	char options[64], passthrough[8];
	int result;

	if (!text)
		return gcr_error_set(error, ENOMEM, "out of memory");
	snprintf(options, sizeof(options), "worker_idle=0,store_size=%" PRIu64,
		 2 * bench->copies.bytes + SLACK_BYTES);
	result = bench_mount_start(&bench->paths, ++bench->mounts, options, &copying->mount, error);
	if (!result)
		result = bench_subject_start(bench, bench->copies.bytes, false, true,
					     &copying->mount, &copying->subject, error);
	if (!result)
		result = bench_run_find(bench, BENCH_VMM, &copying->mount, copying->subject.pid,
					text, error);
	if (!result)
		result = bench_mount_read(&copying->mount, 0, "status", text, error);
	if (!result)
		bench->copies.is_passthrough =
			bench_text_value(text, "passthrough", passthrough, sizeof(passthrough)) &&
			!strcmp(passthrough, "yes");
	if (!result)
		result = name_paths(copying, error);
	/* Last, because the copier must see the mount. */
	return result ? result : start_copier(copying, error);
}

static int copy_often(struct copying *copying, struct gcr_error *error)
{
	struct bench *bench = copying->bench;
	pid_t pid = copying->subject.pid;
	unsigned int runs = bench->options.runs;
	double usec;
	int result;

	result =
		bench_mount_verb(&copying->mount, pid, "freeze", time_limit(copying), &usec, error);
	for (unsigned int i = 0; i < runs && !result && !bench_interrupted; i++) {
		if (i && bench_is_late(bench)) {
			bench_note(bench, WHAT, "%u of %u runs: the time is up", i, runs);
			break;
		}
		result = run(copying, i, error);
	}
	if (result < 0 || bench_interrupted)
		return result;
	result = bench_mount_verb(&copying->mount, pid, "thaw", time_limit(copying), &usec, error);
	if (!result)
		result = bench_subject_verify(bench, &copying->subject, error);
	if (result == -EBADMSG)
		gcr_error_prefix(error, "WRONG CONTENT");
	return result;
}

void bench_measure_copies(struct bench *bench)
{
	struct copying copying = {.bench = bench};
	struct gcr_error error = {0};
	bool is_wanted = false;
	int result;

	for (size_t way = 0; way < BENCH_WAYS; way++)
		is_wanted |= bench->options.copies[way];
	if (!is_wanted || !bench->options.sizes_count)
		return;
	if (bench_is_late(bench)) {
		bench_note(bench, WHAT, "left out: the time is up");
		return;
	}
	bench->copies.bytes = choose_bytes(bench);
	if (!bench->copies.bytes) {
		bench_note(bench, WHAT, "left out: too little host memory");
		return;
	}
	result = prepare(&copying, &error);
	if (result < 0 && !bench_interrupted)
		bench_note(bench, WHAT, "left out: %s", error.words);
	if (!result) {
		result = copy_often(&copying, &error);
		if (result < 0 && !bench_interrupted)
			bench_fail(bench, WHAT, "%s", error.words);
	}
	bench_child_end(&copying.copier);
	bench_subject_end(&copying.subject);
	bench_mount_stop(&bench->paths, &copying.mount);
	free(copying.frozen);
	free(copying.incoming);
	free(copying.files);
}
