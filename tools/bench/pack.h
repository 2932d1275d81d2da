/* SPDX-License-Identifier: MIT */
/*
 * Measures the speed of packing and unpacking chunks with the code of daemon and worker
 * (lib/pack.h), and the sizes after packing. Needs no GPU and no daemon.
 */
#ifndef GCR_TOOLS_BENCH_PACK_H
#define GCR_TOOLS_BENCH_PACK_H

#include <stdint.h>
#include <stdio.h>

#include "tools/bench/bench.h"

enum bench_threads {
	BENCH_ONE_THREAD,
	BENCH_ALL_THREADS, /* one per processor available to this process */
	BENCH_THREADS,
};

struct bench_packed {
	const char *name;  /* for JSON */
	const char *words; /* for the table */
	uint64_t bytes;
	uint64_t packed_bytes; /* size after packing: chunks of zeros take none */
	uint64_t zero_bytes;   /* in chunks of zeros */
	/* Unpacked bytes per second. */
	struct bench_series pack_rate[BENCH_THREADS], unpack_rate[BENCH_THREADS];
};

#define BENCH_PACKED_MAX 8

struct bench_packing {
	unsigned int threads;
	struct bench_packed rows[BENCH_PACKED_MAX];
	unsigned int rows_count;
};

/* ---- pack_data.c: synthetic bytes like those of models ---- */

struct bench_content {
	const char *name, *words;
	void (*fill)(uint8_t *bytes, uint64_t size); /* deterministic */
};

#define BENCH_CONTENTS 4
extern const struct bench_content bench_contents[BENCH_CONTENTS];

/* ---- */

/*
 * Returns 0, or -errno with a message. Data that is wrong after unpacking is a failure of the
 * bench.
 */
int bench_measure_packing(struct bench *bench, struct bench_packing *packing,
			  struct gcr_error *error);

/* report.c, json.c */
void bench_print_packing(const struct bench *bench, const struct bench_packing *packing,
			 FILE *stream);
int bench_print_packing_json(const struct bench *bench, const struct bench_packing *packing,
			     FILE *stream);

#endif
