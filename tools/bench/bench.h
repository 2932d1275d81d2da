/* SPDX-License-Identifier: MIT */
/*
 * What gpucr-bench measures and what came of it: filled by measure.c, printed by
 * report.c and json.c. One thread.
 */
#ifndef GCR_TOOLS_BENCH_BENCH_H
#define GCR_TOOLS_BENCH_BENCH_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/error.h"
#include "lib/protocol.h"
#include "tools/bench/child.h"

#define BENCH_RUNS_MAX	  100
#define BENCH_SIZES_MAX	  16
#define BENCH_REMARKS_MAX 64
#define BENCH_CHUNKS	  64 /* allocations at most that a size is shared out to, as a model's are */

/* The same thing measured several times. */
struct bench_series {
	unsigned int count;
	double values[BENCH_RUNS_MAX];
};

void bench_series_add(struct bench_series *series, double value);
/* 0 if there is no value. */
double bench_series_median(const struct bench_series *series);
double bench_series_min(const struct bench_series *series);
double bench_series_max(const struct bench_series *series);

enum bench_engine {
	BENCH_BARE,   /* cuCheckpointProcess* called as cuda-checkpoint does: the peer */
	BENCH_DRIVER, /* gpucrfs, the program without the preload library */
	BENCH_VMM,    /* and hip: the fast engine of the vendor */
	BENCH_DATA, /* the same, `freeze data`: the driver's control state stays, as it does on AMD
		     */
	BENCH_ENGINES,
};

enum bench_start {
	BENCH_AS_IT_IS, /* bare, or a mount that was there: nothing of ours decides it */
	BENCH_COLD,	/* helper programs not running, no pages kept */
	BENCH_WARM,	/* helper programs running, `-o pool=` filled */
	BENCH_AGAIN,	/* warm, and frozen and thawed before with `-o keep=` */
};

/* One line of the tables. */
struct bench_kind {
	const char *name;	       /* for --rows and JSON */
	const char *words, *hip_words; /* NULL: there is no such row on an AMD GPU */
	enum bench_engine engine;
	enum bench_start start;
};

extern const struct bench_kind bench_kinds[];
extern const size_t bench_kinds_count;

/* A part of a verb's duration: a key of the process's status. */
struct bench_part {
	const char *key;
	const char *words;
	bool of_thaw;
};

#define BENCH_PARTS 7
extern const struct bench_part bench_parts[BENCH_PARTS];

struct bench_row {
	const struct bench_kind *kind;
	uint64_t bytes; /* 0: of the command */
	bool is_command;
	struct bench_series freeze_usec, thaw_usec;
	struct bench_series parts_usec[BENCH_PARTS];
	struct bench_series moved_bytes;  /* as its status says, else its VRAM as the driver does */
	struct bench_series copied_bytes; /* of these, out of VRAM by the freeze */
	/* VRAM in use: of the process and of our helpers after the freeze; of helpers later */
	struct bench_series frozen_vram, helpers_vram, idle_vram;
	/* VRAM that is in use beyond what was before the program started, after helpers' idle time
	 */
	struct bench_series idle_more_vram;
	/* host memory while the program runs: of daemon and helpers, of the store */
	struct bench_series daemon_host, store_host;
};

enum bench_way {
	BENCH_COPY_OUT, /* a frozen process's files, out of the mount */
	BENCH_COPY_IN,	/* the same files, into an incoming snapshot */
	BENCH_WAYS,
};

struct bench_way_words {
	const char *name; /* for --rows and JSON */
	const char *words;
};
extern const struct bench_way_words bench_ways[BENCH_WAYS];

struct bench_copies {
	uint64_t bytes;
	char place[64];	     /* the other side: what kind of file system */
	bool is_passthrough; /* the kernel reads the mount's files by itself */
	/* bytes a second, and of the same copy from one file to another there */
	struct bench_series rate[BENCH_WAYS], bare_rate[BENCH_WAYS];
};

/* Two programs of this size that change places; us. */
struct bench_exchange {
	uint64_t bytes;
	struct bench_series apart_usec; /* a freeze, and then a thaw */
	struct bench_series exchange_usec;
};

/* What is measured with and without the preload library. */
enum bench_call {
	BENCH_CALL_GET,	   /* cuCtxGetCurrent */
	BENCH_CALL_SET,	   /* cuCtxSetCurrent, of what is current */
	BENCH_CALL_LAUNCH, /* cuLaunchKernel of a kernel that does nothing */
	BENCH_CALL_ALLOC_SMALL,
	BENCH_CALL_FREE_SMALL,
	BENCH_CALL_ALLOC_LARGE,
	BENCH_CALL_FREE_LARGE,
	BENCH_CALL_STEP, /* many kernels and a synchronise */
	BENCH_CALLS,
};

struct bench_call_words {
	const char *name;	       /* in the child's answer and JSON */
	const char *words, *hip_words; /* for the table */
};
extern const struct bench_call_words bench_calls[BENCH_CALLS];

struct bench_machine {
	char gpu[GCR_NAME_BYTES];
	char driver[GCR_NAME_BYTES];
	uint8_t uuid[GCR_UUID_BYTES];
	uint64_t vram_bytes, vram_free_bytes; /* free beside one context */
	uint64_t host_bytes, host_room_bytes;
	char host_limit[128]; /* what sets the room */
	long processors;
};

struct bench_options {
	uint64_t sizes[BENCH_SIZES_MAX];
	unsigned int sizes_count;
	bool sizes_given;
	unsigned int runs, slow_runs; /* slow: rows in which the driver moves the bytes */
	bool kinds[16];		      /* of bench_kinds */
	bool copies[BENCH_WAYS];
	bool exchange;
	unsigned int changed_percent; /* of the VRAM, between a thaw and a freeze again */
	bool calls;
	bool busy;
	bool progress;
	bool simulator;
	bool hip;	 /* an AMD GPU */
	bool lacks_rows; /* some that were asked for are not there on it */
	int gpu;
	int64_t limit_usec; /* 0: none */
	const char *mount;  /* NULL: daemons of our own */
	const char *json;   /* a file, "-" for stdout; NULL: no JSON */
	const char *command, *ready, *check;
	bool pack;	       /* measure packing, and nothing else */
	const char *pack_file; /* the same, of this file; NULL: none */
};

/* What there is to say beside the figures. */
struct bench_remark {
	char what[64];
	char words[GCR_ERROR_WORDS_MAX];
};

/* Copies between so much VRAM and pinned memory; bytes a second. */
struct bench_rate {
	uint64_t bytes;
	double out, in;
};

struct bench {
	struct bench_options options;
	struct bench_paths paths;
	struct bench_machine machine;
	struct bench_child figures; /* asks NVML, or KFD */
	bool has_figures;
	int64_t started_usec;
	unsigned int mounts; /* numbers the directories of our daemons */

	struct bench_rate rates[BENCH_SIZES_MAX + 1];
	unsigned int rates_count;
	struct bench_series control_freeze_usec, control_thaw_usec;

	struct bench_row *rows;
	size_t rows_count;
	char digests[8]; /* who made them: as last_freeze_digests; "": not known */
	struct bench_copies copies;
	struct bench_exchange exchanges[BENCH_SIZES_MAX];
	unsigned int exchanges_count;
	struct bench_series calls_without_ns[BENCH_CALLS], calls_with_ns[BENCH_CALLS];

	struct bench_remark notes[BENCH_REMARKS_MAX], failures[BENCH_REMARKS_MAX];
	unsigned int notes_count, failures_count;
};

/* measure.c: 0, or -errno if nothing can be measured here, with words. */
int bench_measure(struct bench *bench, struct gcr_error *error);

/* copy.c: fill bench->copies, or say why not. */
void bench_measure_copies(struct bench *bench);

/* exchange.c: fill bench->exchanges, or say why not. */
void bench_measure_exchanges(struct bench *bench);

/* Has the time passed after which nothing is to be started? */
bool bench_is_late(const struct bench *bench);

/* Host memory that is wanted beside the bytes. */
uint64_t bench_host_margin(const struct bench *bench);

/* The row of the same size (or of the command) that is measured with cuCheckpoint alone. */
const struct bench_row *bench_peer(const struct bench *bench, const struct bench_row *row);

/*
 * What no engine can beat here: the time that the bytes take at the rate of pinned copies, or the
 * control state alone, if that is longer and is moved too. Freezing again moves hardly any bytes:
 * the control state alone, and nothing is known where that stays. 0 if it is not known.
 */
double bench_limit_usec(const struct bench *bench, const struct bench_row *row, bool of_thaw);

/* A line on stderr, if it is wanted. */
void bench_progress(const struct bench *bench, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Something was left out, or went wrong: said now and again at the end. */
void bench_note(struct bench *bench, const char *what, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void bench_fail(struct bench *bench, const char *what, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* "16 GiB", "1536 MiB", "100 B": exact. */
void bench_format_bytes(uint64_t bytes, char *ret_text, size_t room);

/* What a row is about: "16 GiB vmm, warm". */
void bench_format_row(const struct bench *bench, const struct bench_row *row, char *ret_text,
		      size_t room);

void bench_print(const struct bench *bench, FILE *stream);
int bench_print_json(const struct bench *bench, FILE *stream);

#endif
