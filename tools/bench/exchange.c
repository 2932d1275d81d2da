/* SPDX-License-Identifier: MIT */
/*
 * Measures replacing one program on the GPU by another: freeze and then thaw, compared with `thaw
 * swap=`. Two programs of the same size alternate, with helpers running, the pool filled and the
 * files registered.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clock.h"
#include "tools/bench/bench.h"
#include "tools/bench/mount.h"
#include "tools/bench/run.h"
#include "tools/bench/subject.h"

#define MIB (UINT64_C(1) << 20)

#define SLACK_BYTES    (1024 * MIB) /* additional room in the store, as for the rows */
#define IDLE_SEC       3600
#define VERB_USEC      (120 * GCR_USEC_PER_SEC)
#define BYTES_PER_USEC 50 /* minimum speed of a verb, for its time limit */
#define READY_USEC     (60 * GCR_USEC_PER_SEC)
#define LOOK_USEC      (100 * GCR_USEC_PER_MSEC)
#define PINNED_USEC    (2 * GCR_USEC_PER_SEC) /* delay until a change appears in `pinned` */

struct exchanging {
	struct bench *bench;
	struct bench_exchange *exchange;
	struct bench_mount mount;
	struct bench_subject subjects[2];
	unsigned int running; /* index of the running program; the other one is frozen */
	char *text;
	char what[64];
};

static int verb(struct exchanging *exchanging, unsigned int which, const char *words,
		double *ret_usec, struct gcr_error *error)
{
	int64_t limit_usec =
		VERB_USEC + (int64_t)(2 * exchanging->exchange->bytes / BYTES_PER_USEC);

	return bench_mount_verb(&exchanging->mount, exchanging->subjects[which].pid, words,
				limit_usec, ret_usec, error);
}

/*
 * Waits until the files of both programs are registered with the workers; on an AMD GPU they never
 * are.
 */
static void wait_until_ready(struct exchanging *exchanging)
{
	int64_t until_usec = gcr_clock_usec() + READY_USEC;
	char value[8];

	if (exchanging->bench->options.hip || bench_pause(PINNED_USEC) < 0)
		return;
	for (unsigned int i = 0; i < 2; i++)
		while (!bench_mount_read(&exchanging->mount, exchanging->subjects[i].pid, "status",
					 exchanging->text, NULL) &&
		       bench_text_value(exchanging->text, "pinned", value, sizeof(value)) &&
		       strcmp(value, "yes") != 0)
			if (gcr_clock_usec() > until_usec || bench_pause(LOOK_USEC) < 0)
				return;
}

/* Called after a swap: notes which program runs now, and lets that program verify its memory. */
static int turn(struct exchanging *exchanging, struct gcr_error *error)
{
	int result;

	exchanging->running = !exchanging->running;
	result = bench_subject_verify(exchanging->bench, &exchanging->subjects[exchanging->running],
				      error);
	if (result == -EBADMSG)
		gcr_error_prefix(error, "WRONG CONTENT");
	return result;
}

static int one_by_one(struct exchanging *exchanging, double *ret_usec, struct gcr_error *error)
{
	unsigned int frozen = !exchanging->running;
	double freeze_usec, thaw_usec;
	int result;

	wait_until_ready(exchanging);
	bench_subject_forget(exchanging->bench, &exchanging->subjects[frozen]);
	result = verb(exchanging, exchanging->running, "freeze", &freeze_usec, error);
	if (!result)
		result = verb(exchanging, frozen, "thaw", &thaw_usec, error);
	if (result < 0)
		return result;
	*ret_usec = freeze_usec + thaw_usec;
	return turn(exchanging, error);
}

static int at_once(struct exchanging *exchanging, double *ret_usec, struct gcr_error *error)
{
	unsigned int frozen = !exchanging->running;
	char words[64];
	int result;

	wait_until_ready(exchanging);
	bench_subject_forget(exchanging->bench, &exchanging->subjects[frozen]);
	snprintf(words, sizeof(words), "thaw swap=%d",
		 (int)exchanging->subjects[exchanging->running].pid);
	result = verb(exchanging, frozen, words, ret_usec, error);
	return result < 0 ? result : turn(exchanging, error);
}

/* Starts the daemon and both programs; the first is frozen before the second starts. */
static int prepare(struct exchanging *exchanging, struct gcr_error *error)
{
	uint64_t bytes = exchanging->exchange->bytes;
	struct bench *bench = exchanging->bench;
	char options[128];
	double usec;
	int result;

	snprintf(options, sizeof(options), "worker_idle=%d,store_size=%" PRIu64 ",pool=%" PRIu64,
		 IDLE_SEC, 3 * bytes + SLACK_BYTES, bytes + SLACK_BYTES / 2);
	result = bench_mount_start(&bench->paths, ++bench->mounts, options, &exchanging->mount,
				   error);
	for (unsigned int i = 0; i < 2 && !result; i++) {
		result = bench_subject_start(bench, bytes, false, true, &exchanging->mount,
					     &exchanging->subjects[i], error);
		if (!result)
			result = bench_run_find(bench, BENCH_VMM, &exchanging->mount,
						exchanging->subjects[i].pid, exchanging->text,
						error);
		if (!result && !i)
			result = verb(exchanging, i, "freeze", &usec, error);
	}
	exchanging->running = 1;
	/* The first swap starts the second worker. */
	return result ? result : at_once(exchanging, &usec, error);
}

static int run_often(struct exchanging *exchanging, struct gcr_error *error)
{
	struct bench_exchange *exchange = exchanging->exchange;
	struct bench *bench = exchanging->bench;
	unsigned int runs = bench->options.runs;
	int result = 0;

	for (unsigned int i = 0; i < runs && !result && !bench_interrupted; i++) {
		double apart_usec, usec;

		if (i && bench_is_late(bench)) {
			bench_note(bench, exchanging->what, "%u of %u runs: the time is up", i,
				   runs);
			break;
		}
		result = one_by_one(exchanging, &apart_usec, error);
		if (!result)
			result = at_once(exchanging, &usec, error);
		if (result < 0)
			break;
		bench_series_add(&exchange->apart_usec, apart_usec);
		bench_series_add(&exchange->exchange_usec, usec);
		bench_progress(bench, "%s, run %u: freeze, then thaw %.3f s, exchange %.3f s",
			       exchanging->what, i + 1, apart_usec / 1e6, usec / 1e6);
	}
	return result;
}

static void measure(struct bench *bench, uint64_t bytes)
{
	struct exchanging exchanging = {.bench = bench,
					.exchange = &bench->exchanges[bench->exchanges_count]};
	struct gcr_error error = {0};
	char size[32];
	int result;

	exchanging.exchange->bytes = bytes;
	bench_format_bytes(bytes, size, sizeof(size));
	snprintf(exchanging.what, sizeof(exchanging.what), "%s exchange", size);
	if (3 * bytes + bench_host_margin(bench) > bench->machine.host_room_bytes) {
		bench_note(bench, exchanging.what, "left out: too little host memory");
		return;
	}
	exchanging.text = malloc(BENCH_TEXT_MAX);
	if (!exchanging.text) {
		bench_fail(bench, exchanging.what, "out of memory");
		return;
	}
	result = prepare(&exchanging, &error);
	if (!result)
		result = run_often(&exchanging, &error);
	if (result < 0 && !bench_interrupted)
		bench_fail(bench, exchanging.what, "%s", error.words);
	if (exchanging.exchange->exchange_usec.count)
		bench->exchanges_count++;
	for (unsigned int i = 0; i < 2; i++)
		bench_subject_end(&exchanging.subjects[i]);
	bench_mount_stop(&bench->paths, &exchanging.mount);
	free(exchanging.text);
}

void bench_measure_exchanges(struct bench *bench)
{
	for (unsigned int i = 0; i < bench->options.sizes_count; i++)
		if (bench->options.exchange && !bench_interrupted && !bench_is_late(bench))
			measure(bench, bench->options.sizes[i]);
}
