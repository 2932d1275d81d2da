/* SPDX-License-Identifier: MIT */
/* lib/proc_lineage.c: walks up a long chain of processes. */
#include "lib/proc_lineage.h"

#include <errno.h>
#include <stdint.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "test/unit/chain.h"
#include "test/unit/test.h"

#define NOBODY 0x7ffffff0

static void test_generations(void)
{
	_cleanup_(gcr_proc_lineage_finish) struct gcr_proc_lineage lineage = {
		.until_usec = INT64_MAX,
	};
	const int last = CHAIN - 1;

	CHECK(gcr_proc_is_below(&lineage, chain[last], chain[last - GCR_PROC_GENERATIONS_MAX]) ==
	      1);
	CHECK(gcr_proc_is_below(&lineage, chain[last],
				chain[last - GCR_PROC_GENERATIONS_MAX - 1]) == 0);
	/* A walk that was too long does not hide what is below. */
	CHECK(gcr_proc_is_below(&lineage, chain[last - 1],
				chain[last - GCR_PROC_GENERATIONS_MAX - 1]) == 1);
	CHECK(gcr_proc_is_below(&lineage, chain[0], getpid()) == 1);
	CHECK(gcr_proc_is_below(&lineage, chain[0], chain[0]) == 0);
	CHECK(gcr_proc_is_below(&lineage, chain[0], chain[1]) == 0);
	CHECK(gcr_proc_is_below(&lineage, NOBODY, getpid()) == 0);
	CHECK(gcr_proc_is_below(&lineage, 0, getpid()) == 0);
}

static void test_reads(void)
{
	_cleanup_(gcr_proc_lineage_finish) struct gcr_proc_lineage lineage = {
		.until_usec = INT64_MAX,
	};

	for (int round = 0; round < 3; round++)
		for (int i = 0; i < CHAIN; i++)
			CHECK(gcr_proc_is_below(&lineage, chain[i], chain[0]) ==
			      (i > 0 && i <= GCR_PROC_GENERATIONS_MAX));
	/* the chain, and the ancestors of its first process */
	CHECK(lineage.reads >= CHAIN && lineage.reads <= CHAIN + GCR_PROC_GENERATIONS_MAX);
}

static void test_deadline(void)
{
	_cleanup_(gcr_proc_lineage_finish) struct gcr_proc_lineage lineage = {
		.until_usec = gcr_clock_usec(),
	};

	CHECK(gcr_proc_is_below(&lineage, chain[1], chain[0]) == -ETIMEDOUT && !lineage.reads);
	lineage.until_usec = INT64_MAX;
	CHECK(gcr_proc_is_below(&lineage, chain[1], chain[0]) == 1 && lineage.reads == 1);
	lineage.until_usec = gcr_clock_usec();
	CHECK(gcr_proc_is_below(&lineage, chain[1], chain[0]) == -ETIMEDOUT);
}

int main(void)
{
	make_chain();
	test_generations();
	test_reads();
	test_deadline();
	end_chain();
	return 0;
}
