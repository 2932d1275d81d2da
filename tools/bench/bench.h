/* SPDX-License-Identifier: MIT */
/*
 * The options and results of gpucr-bench: filled in by measure.c, printed by report.c and json.c.
 * Single-threaded.
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
#define BENCH_CHUNKS	  64 /* maximum number of allocations that share a size, as in a model */

/* The values of one measurement that is repeated. */
struct bench_series {
	unsigned int count;
	double values[BENCH_RUNS_MAX];
};

void bench_series_add(struct bench_series *series, double value);
/* Return the median, the minimum and the maximum; 0 if there is no value. */
double bench_series_median(const struct bench_series *series);
double bench_series_min(const struct bench_series *series);
double bench_series_max(const struct bench_series *series);

enum bench_engine {
	BENCH_BARE,   /* cuCheckpointProcess* as cuda-checkpoint calls them: the baseline */
	BENCH_DRIVER, /* gpucrfs, program without the preload library */
	BENCH_VMM,    /* the vendor's fast engine: vmm, or hip */
	/* BENCH_VMM with `freeze data`: the driver's control state stays, as always on AMD. */
	BENCH_DATA,
	BENCH_ENGINES,
};

enum bench_start {
	BENCH_AS_IT_IS, /* bare, or an existing mount: the bench has no influence */
	BENCH_COLD,	/* helper programs not running, no pages kept */
	BENCH_WARM,	/* helper programs running, `-o pool=` filled */
	BENCH_AGAIN,	/* BENCH_WARM after a freeze and thaw with `-o keep=` */
};

/* A kind of row in the tables. */
struct bench_kind {
	const char *name;	       /* for --rows and JSON */
	const char *words, *hip_words; /* NULL: no such row on an AMD GPU */
	enum bench_engine engine;
	enum bench_start start;
};

extern const struct bench_kind bench_kinds[];
extern const size_t bench_kinds_count;

/* A part of a verb's duration, with the key of the process's status. */
struct bench_part {
	const char *key;
	const char *words;
	bool of_thaw;
};

#define BENCH_PARTS 7
extern const struct bench_part bench_parts[BENCH_PARTS];

struct bench_row {
	const struct bench_kind *kind;
	uint64_t bytes; /* 0: row of the command */
	bool is_command;
	struct bench_series freeze_usec, thaw_usec;
	struct bench_series parts_usec[BENCH_PARTS];
	struct bench_series moved_bytes;  /* by the process's status, else VRAM by the driver */
	struct bench_series copied_bytes; /* part of that: out of VRAM by the freeze */
	/* VRAM in use: by the process and by the helpers after the freeze; by the helpers later. */
	struct bench_series frozen_vram, helpers_vram, idle_vram;
	/* VRAM in use beyond that before the program started, after the helpers' idle time. */
	struct bench_series idle_more_vram;
	/* Host memory while the program runs: of daemon and helpers, and of the store. */
	struct bench_series daemon_host, store_host;
};

enum bench_way {
	BENCH_COPY_OUT, /* files of a frozen process, out of the mount */
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
	char place[64];	     /* type of the file system on the other side */
	bool is_passthrough; /* the kernel reads the mount's files directly (FUSE passthrough) */
	/* Bytes per second; bare: of a copy between two files on the other side. */
	struct bench_series rate[BENCH_WAYS], bare_rate[BENCH_WAYS];
};

/* Two programs of this size that are swapped; times in microseconds. */
struct bench_exchange {
	uint64_t bytes;
	struct bench_series apart_usec; /* a freeze followed by a thaw */
	struct bench_series exchange_usec;
};

/* Calls measured with and without the preload library. */
enum bench_call {
	BENCH_CALL_GET,	   /* cuCtxGetCurrent */
	BENCH_CALL_SET,	   /* cuCtxSetCurrent of the current context */
	BENCH_CALL_LAUNCH, /* cuLaunchKernel of an empty kernel */
	BENCH_CALL_ALLOC_SMALL,
	BENCH_CALL_FREE_SMALL,
	BENCH_CALL_ALLOC_LARGE,
	BENCH_CALL_FREE_LARGE,
	BENCH_CALL_STEP, /* many kernels and a synchronisation */
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
	uint64_t vram_bytes, vram_free_bytes; /* free in addition to one context */
	uint64_t host_bytes, host_room_bytes;
	char host_limit[128]; /* the limit that determines host_room_bytes */
	long processors;
};

struct bench_options {
	uint64_t sizes[BENCH_SIZES_MAX];
	unsigned int sizes_count;
	bool sizes_given;
	unsigned int runs, slow_runs; /* slow: for rows in which the driver moves the bytes */
	bool kinds[16];		      /* by index in bench_kinds */
	bool copies[BENCH_WAYS];
	bool exchange;
	unsigned int changed_percent; /* of the VRAM, changed between a thaw and the next freeze */
	bool calls;
	bool busy;
	bool progress;
	bool simulator;
	bool hip;	 /* an AMD GPU */
	bool lacks_rows; /* some requested rows do not exist on an AMD GPU */
	int gpu;
	int64_t limit_usec; /* 0: no limit */
	const char *mount;  /* NULL: the bench starts its own daemons */
	const char *json;   /* a file, "-": stdout; NULL: no JSON */
	const char *command, *ready, *check;
	bool pack;	       /* measure only packing, of synthetic bytes */
	const char *pack_file; /* measure only packing, of this file; NULL: none */
};

/* A remark beside the figures. */
struct bench_remark {
	char what[64];
	char words[GCR_ERROR_WORDS_MAX];
};

/* Rates of copies between this much VRAM and pinned memory, in bytes per second. */
struct bench_rate {
	uint64_t bytes;
	double out, in;
};

struct bench {
	struct bench_options options;
	struct bench_paths paths;
	struct bench_machine machine;
	struct bench_child figures; /* process that queries NVML or KFD */
	bool has_figures;
	int64_t started_usec;
	unsigned int mounts; /* numbers the directories of the bench's daemons */

	struct bench_rate rates[BENCH_SIZES_MAX + 1];
	unsigned int rates_count;
	struct bench_series control_freeze_usec, control_thaw_usec;

	struct bench_row *rows;
	size_t rows_count;
	char digests[8]; /* made by: as last_freeze_digests; "": unknown */
	struct bench_copies copies;
	struct bench_exchange exchanges[BENCH_SIZES_MAX];
	unsigned int exchanges_count;
	struct bench_series calls_without_ns[BENCH_CALLS], calls_with_ns[BENCH_CALLS];

	struct bench_remark notes[BENCH_REMARKS_MAX], failures[BENCH_REMARKS_MAX];
	unsigned int notes_count, failures_count;
};

/*
 * measure.c: runs all measurements. Returns 0, or -errno with a message if nothing can be measured
 * here.
 */
int bench_measure(struct bench *bench, struct gcr_error *error);

/* copy.c: fills in bench->copies, or reports why not. */
void bench_measure_copies(struct bench *bench);

/* exchange.c: fills in bench->exchanges, or reports why not. */
void bench_measure_exchanges(struct bench *bench);

/* Returns true after the time limit: no further measurement is to be started. */
bool bench_is_late(const struct bench *bench);

/* Returns the host memory needed in addition to the bytes. */
uint64_t bench_host_margin(const struct bench *bench);

/* Returns the row of the same size (or the command) measured with cuCheckpoint alone, or NULL. */
const struct bench_row *bench_peer(const struct bench *bench, const struct bench_row *row);

/*
 * Returns a lower bound for any engine on this machine, in microseconds: the time to move the bytes
 * at the rate of pinned copies, or the time for the control state if longer and if the control
 * state is moved too. A repeated freeze moves hardly any bytes: then the bound is the control state
 * alone, or unknown if the control state stays. 0: unknown.
 */
double bench_limit_usec(const struct bench *bench, const struct bench_row *row, bool of_thaw);

/* Prints a line on stderr, if progress was requested. */
void bench_progress(const struct bench *bench, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Report an omission (note) or a failure: printed now, and again at the end. */
void bench_note(struct bench *bench, const char *what, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void bench_fail(struct bench *bench, const char *what, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Formats a size exactly: "16 GiB", "1536 MiB", "100 B". */
void bench_format_bytes(uint64_t bytes, char *ret_text, size_t room);

/* Formats the row's title: "16 GiB vmm, warm". */
void bench_format_row(const struct bench *bench, const struct bench_row *row, char *ret_text,
		      size_t room);

void bench_print(const struct bench *bench, FILE *stream);
int bench_print_json(const struct bench *bench, FILE *stream);

#endif
