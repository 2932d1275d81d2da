/* SPDX-License-Identifier: MIT */
/*
 * Cutting. A long run is divided into lanes, which take turns: so threads that work at the same
 * time are in different files, if the run has several. Short runs are gathered into one transfer,
 * so that scattered changed chunks do not each cost a wait for the GPU.
 */
#include "backend/worker/cut.h"

#include <errno.h>
#include <stdlib.h>

/* Size of the hole that one thread makes at a time: the kernel frees some 30 GB/s. */
#define ZEROS_BYTES (64ull << 20)

struct gcr_cutter_run {
	bool is_zeros;
	uint64_t offset;
	uint64_t bytes;
};

void gcr_cutter_start(struct gcr_cutter *cutter, const struct gcr_space *space,
		      const struct gcr_cutter_config *config)
{
	cutter->space = space;
	cutter->config = *config;
	cutter->runs_count = 0;
	cutter->run = 0;
	cutter->run_step = 0;
}

void gcr_cutter_finish(struct gcr_cutter *cutter)
{
	free(cutter->runs);
	*cutter = (struct gcr_cutter){0};
}

int gcr_cutter_add(struct gcr_cutter *cutter, bool is_zeros, uint64_t offset, uint64_t bytes)
{
	struct gcr_cutter_run *longer;

	/* Doubled at every power of two. */
	if (!(cutter->runs_count & (cutter->runs_count - 1))) {
		longer = reallocarray(cutter->runs, cutter->runs_count ? 2 * cutter->runs_count : 1,
				      sizeof(*longer));
		if (!longer)
			return -ENOMEM;
		cutter->runs = longer;
	}
	cutter->runs[cutter->runs_count++] = (struct gcr_cutter_run){is_zeros, offset, bytes};
	return 0;
}

bool gcr_cutter_has(const struct gcr_cutter *cutter)
{
	return cutter->run < cutter->runs_count;
}

static uint64_t smaller(uint64_t left, uint64_t right)
{
	return left < right ? left : right;
}

static uint64_t divide_up(uint64_t number, uint64_t by)
{
	return (number + by - 1) / by;
}

static void next_run(struct gcr_cutter *cutter)
{
	cutter->run++;
	cutter->run_step = 0;
}

static void add_part(struct gcr_transfer *transfer, uint64_t offset, size_t bytes, char *direct)
{
	transfer->parts[transfer->parts_count++] =
		(struct gcr_transfer_part){offset, bytes, direct};
	transfer->bytes += bytes;
	transfer->is_direct &= direct != NULL;
}

/*
 * Returns the address of the range in a registered file; NULL: the range is not in a registered
 * file as a whole, and goes through the ring.
 */
static char *find_direct(const struct gcr_cutter *cutter, uint64_t offset, size_t bytes)
{
	size_t direct_bytes = bytes;
	char *direct = gcr_space_pinned(cutter->space, offset, &direct_bytes);

	return direct_bytes == bytes ? direct : NULL;
}

/* Cuts the next hole of a run of zeros, in order. */
static void cut_zeros(struct gcr_cutter *cutter, const struct gcr_cutter_run *run,
		      struct gcr_transfer *transfer)
{
	uint64_t bytes = smaller(run->bytes - cutter->run_step, ZEROS_BYTES);

	transfer->is_zeros = true;
	add_part(transfer, run->offset + cutter->run_step, bytes, NULL);
	cutter->run_step += bytes;
	if (cutter->run_step == run->bytes)
		next_run(cutter);
}

/*
 * Cuts the next part, of at most @most bytes, of a run. No threads write files side by side here,
 * so bytes are cut in order, each part within one file.
 */
static void cut_direct(struct gcr_cutter *cutter, const struct gcr_cutter_run *run,
		       struct gcr_transfer *transfer, uint64_t most)
{
	uint64_t offset = run->offset + cutter->run_step;
	size_t bytes = smaller(run->bytes - cutter->run_step, most);
	char *direct = gcr_space_pinned(cutter->space, offset, &bytes);

	add_part(transfer, offset, bytes, direct);
	cutter->run_step += bytes;
	if (cutter->run_step == run->bytes)
		next_run(cutter);
}

/*
 * The offset in the run of the current turn of the lanes; beyond the end if the last lanes are
 * shorter.
 */
static uint64_t place_of(const struct gcr_cutter *cutter, const struct gcr_cutter_run *run,
			 bool *ret_is_last)
{
	uint64_t turns = divide_up(run->bytes, cutter->config.bytes);
	uint64_t lanes = smaller(turns, cutter->config.lanes);
	uint64_t depth = divide_up(turns, lanes);
	uint64_t step = cutter->run_step;

	*ret_is_last = step + 1 == lanes * depth;
	return (step % lanes * depth + step / lanes) * cutter->config.bytes;
}

/* Cuts the next turn of the lanes; if it was the last, goes to the next run. */
static void cut_lane(struct gcr_cutter *cutter, const struct gcr_cutter_run *run,
		     struct gcr_transfer *transfer)
{
	bool is_last;
	uint64_t at = place_of(cutter, run, &is_last);
	uint64_t bytes = smaller(run->bytes - at, cutter->config.bytes);

	add_part(transfer, run->offset + at, bytes, find_direct(cutter, run->offset + at, bytes));
	while (!is_last) {
		cutter->run_step++;
		if (place_of(cutter, run, &is_last) < run->bytes)
			return;
	}
	next_run(cutter);
}

static bool may_gather(const struct gcr_cutter *cutter, const struct gcr_transfer *transfer,
		       uint64_t most)
{
	const struct gcr_cutter_run *run = &cutter->runs[cutter->run];

	return gcr_cutter_has(cutter) && !run->is_zeros && !cutter->run_step &&
	       transfer->parts_count < GCR_TRANSFER_PARTS_MAX &&
	       run->bytes <= most - transfer->bytes;
}

void gcr_cutter_next(struct gcr_cutter *cutter, struct gcr_transfer *ret_transfer)
{
	uint64_t most = cutter->config.all_direct ? cutter->config.direct_bytes
						  : cutter->config.bytes;
	const struct gcr_cutter_run *run = &cutter->runs[cutter->run];

	ret_transfer->is_zeros = false;
	ret_transfer->is_direct = true;
	ret_transfer->bytes = 0;
	ret_transfer->parts_count = 0;
	if (run->is_zeros) {
		cut_zeros(cutter, run, ret_transfer);
		return;
	}
	if (run->bytes > most || cutter->run_step) {
		if (cutter->config.all_direct)
			cut_direct(cutter, run, ret_transfer, most);
		else
			cut_lane(cutter, run, ret_transfer);
		return;
	}
	while (may_gather(cutter, ret_transfer, most)) {
		run = &cutter->runs[cutter->run];
		if (cutter->config.all_direct) {
			cut_direct(cutter, run, ret_transfer, most);
			/* A run that is in two files: the rest is cut by the next call. */
			if (cutter->run_step)
				return;
			continue;
		}
		add_part(ret_transfer, run->offset, run->bytes,
			 find_direct(cutter, run->offset, run->bytes));
		next_run(cutter);
	}
}
