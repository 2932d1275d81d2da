/* SPDX-License-Identifier: MIT */
/*
 * How fast chunks are packed and unpacked, by the code of daemon and worker (lib/pack.h), and how
 * small they become. Needs no GPU and no daemon.
 */
#ifndef GCR_TOOLS_BENCH_PACK_H
#define GCR_TOOLS_BENCH_PACK_H

#include <stdint.h>
#include <stdio.h>

#include "tools/bench/bench.h"

enum bench_threads {
	BENCH_ONE_THREAD,
	BENCH_ALL_THREADS, /* as many as this process may use processors */
	BENCH_THREADS,
};

struct bench_packed {
	const char *name;  /* for JSON */
	const char *words; /* for the table */
	uint64_t bytes;
	uint64_t packed_bytes; /* that they become: chunks of zeros become none */
	uint64_t zero_bytes;   /* in chunks of zeros */
	/* of what is not packed, bytes a second */
	struct bench_series pack_rate[BENCH_THREADS], unpack_rate[BENCH_THREADS];
};

#define BENCH_PACKED_MAX 8

struct bench_packing {
	unsigned int threads;
	struct bench_packed rows[BENCH_PACKED_MAX];
	unsigned int rows_count;
};

/* ---- pack_data.c: made-up bytes like those of models ---- */

struct bench_content {
	const char *name, *words;
	void (*fill)(uint8_t *bytes, uint64_t size); /* the same ones each time */
};

#define BENCH_CONTENTS 4
extern const struct bench_content bench_contents[BENCH_CONTENTS];

/* ---- */

/* 0, or -errno, with words; what has come back wrong is a failure of the bench. */
int bench_measure_packing(struct bench *bench, struct bench_packing *packing,
			  struct gcr_error *error);

/* report.c, json.c */
void bench_print_packing(const struct bench *bench, const struct bench_packing *packing,
			 FILE *stream);
int bench_print_packing_json(const struct bench *bench, const struct bench_packing *packing,
			     FILE *stream);

#endif
