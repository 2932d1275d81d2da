/* SPDX-License-Identifier: MIT */
/*
 * How the worker cuts the data to copy into transfers: every byte exactly once, no transfer larger
 * than allowed, short runs gathered, and long runs divided into lanes.
 */
#include <stdint.h>
#include <string.h>

#include "backend/worker/cut.h"
#include "test/unit/test.h"

#define MIB    (1ull << 20)
#define KIB    (1ull << 10)
#define UNIT   (64 * KIB) /* all offsets and sizes are multiples of it */
#define PIECE  GCR_SPACE_PIECE_BYTES
#define FILES  9
#define PIECES 512
#define UNITS  (PIECES * PIECE / UNIT)

static struct gcr_space space; /* empty: the cutter only passes it on */
static uint64_t starts[FILES + 1];
static bool is_registered[FILES];
static char registered_memory[1]; /* pretended address of all files; never accessed */

static size_t file_of(uint64_t offset)
{
	size_t file = 0;

	while (starts[file + 1] <= offset)
		file++;
	return file;
}

static char *address_of(uint64_t offset)
{
	return (char *)((uintptr_t)registered_memory + offset);
}

/* Replaces the function of the space. */
char *gcr_space_pinned(const struct gcr_space *of, uint64_t offset, size_t *bytes)
{
	size_t file = file_of(offset);

	CHECK(of == &space);
	if (!is_registered[file])
		return NULL;
	if (*bytes > starts[file + 1] - offset)
		*bytes = starts[file + 1] - offset;
	return address_of(offset);
}

static uint64_t random_state;

static uint64_t any(uint64_t below)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (random_state >> 33) % below;
}

enum { NOTHING, BYTES, ZEROS };

static unsigned char to_do[UNITS]; /* values of the enum above */

static void check_part(const struct gcr_cutter_config *config, const struct gcr_transfer *transfer,
		       const struct gcr_transfer_part *part)
{
	uint64_t end = part->offset + part->bytes;
	size_t file = file_of(part->offset);

	CHECK(part->bytes > 0 && part->bytes % UNIT == 0 && part->offset % UNIT == 0);
	CHECK(end <= PIECES * PIECE);
	for (uint64_t unit = part->offset / UNIT; unit < end / UNIT; unit++) {
		CHECK(to_do[unit] == (transfer->is_zeros ? ZEROS : BYTES));
		to_do[unit] = NOTHING;
	}
	if (transfer->is_zeros || !is_registered[file] || end > starts[file + 1])
		CHECK(!part->direct);
	else
		CHECK(part->direct == address_of(part->offset));
	if (config->all_direct && !transfer->is_zeros)
		CHECK(end <= starts[file + 1]);
}

static void check_transfer(const struct gcr_cutter_config *config,
			   const struct gcr_transfer *transfer)
{
	bool is_direct = true;
	size_t bytes = 0;

	CHECK(transfer->parts_count > 0 && transfer->parts_count <= GCR_TRANSFER_PARTS_MAX);
	for (unsigned int i = 0; i < transfer->parts_count; i++) {
		check_part(config, transfer, &transfer->parts[i]);
		is_direct &= transfer->parts[i].direct != NULL;
		bytes += transfer->parts[i].bytes;
	}
	CHECK(transfer->bytes == bytes && transfer->is_direct == is_direct);
	CHECK(!config->all_direct || transfer->is_zeros || transfer->is_direct);
	if (!transfer->is_zeros)
		CHECK(bytes <= (config->all_direct ? config->direct_bytes : config->bytes));
	else
		CHECK(transfer->parts_count == 1 && bytes % PIECE == 0);
}

/* Cuts all that is left and returns the number of transfers; checks that nothing remains to do. */
static unsigned int cut_all(struct gcr_cutter *cutter)
{
	struct gcr_transfer transfer;
	unsigned int count = 0;

	while (gcr_cutter_has(cutter)) {
		gcr_cutter_next(cutter, &transfer);
		check_transfer(&cutter->config, &transfer);
		count++;
	}
	for (uint64_t unit = 0; unit < UNITS; unit++)
		CHECK(to_do[unit] == NOTHING);
	return count;
}

static void add(struct gcr_cutter *cutter, bool is_zeros, uint64_t offset, uint64_t bytes)
{
	CHECK(!gcr_cutter_add(cutter, is_zeros, offset, bytes));
	memset(to_do + offset / UNIT, is_zeros ? ZEROS : BYTES, bytes / UNIT);
}

/* Runs of all lengths, in any order, added while earlier runs are being cut. */
static void test_random(void)
{
	struct gcr_cutter cutter = {0};

	random_state = 1;
	for (unsigned int round = 0; round < 400; round++) {
		struct gcr_cutter_config config = {
			.bytes = PIECE << any(4),
			.direct_bytes = 16 * MIB << any(3),
			.lanes = 1 + (unsigned int)any(17),
			.all_direct = any(2),
		};
		uint64_t longest = 1ull << any(11);
		struct gcr_transfer transfer;

		for (size_t i = 1; i < FILES; i++)
			starts[i] = starts[i - 1] + PIECE * (1 + any(2 * PIECES / FILES - 1));
		starts[FILES] = PIECES * PIECE;
		for (size_t i = 0; i < FILES; i++)
			is_registered[i] = config.all_direct || any(2);
		gcr_cutter_start(&cutter, &space, &config);
		CHECK(!gcr_cutter_has(&cutter));
		for (uint64_t unit = 0, units; unit < UNITS; unit += units) {
			bool is_zeros = any(5) == 0 && unit % (PIECE / UNIT) == 0;

			units = 1 + any(longest);
			if (is_zeros)
				units *= PIECE / UNIT;
			if (units > UNITS - unit)
				units = UNITS - unit;
			if (is_zeros || any(3) > 0)
				add(&cutter, is_zeros, unit * UNIT, units * UNIT);
			if (any(7) == 0 && gcr_cutter_has(&cutter)) {
				gcr_cutter_next(&cutter, &transfer);
				check_transfer(&config, &transfer);
			}
		}
		cut_all(&cutter);
	}
	gcr_cutter_finish(&cutter);
	CHECK(!gcr_cutter_has(&cutter));
}

static void use_one_file(bool registered)
{
	for (size_t i = 0; i < FILES; i++) {
		starts[i] = i ? (PIECES - FILES + i) * PIECE : 0;
		is_registered[i] = registered;
	}
	starts[FILES] = PIECES * PIECE;
}

static void test_gather(void)
{
	struct gcr_cutter_config config = {.bytes = 8 * MIB, .direct_bytes = 64 * MIB, .lanes = 16};
	struct gcr_cutter cutter = {0};

	for (int is_direct = 0; is_direct < 2; is_direct++) {
		config.all_direct = is_direct;
		use_one_file(is_direct);
		/* 300 single chunks: each transfer gathers as many as it may have parts. */
		gcr_cutter_start(&cutter, &space, &config);
		for (uint64_t i = 0; i < 300; i++)
			add(&cutter, false, i * 3 * UNIT, UNIT);
		CHECK(cut_all(&cutter) ==
		      (300 + GCR_TRANSFER_PARTS_MAX - 1) / GCR_TRANSFER_PARTS_MAX);
		/* No more than the bytes of a transfer: of five runs, two, two and one. */
		gcr_cutter_start(&cutter, &space, &config);
		for (uint64_t i = 0; i < 5; i++)
			add(&cutter, false, i * 8 * MIB, 3 * MIB);
		CHECK(cut_all(&cutter) == (is_direct ? 1 : 3));
		/*
		 * Runs are not gathered across zeros, nor with a run that is longer than a
		 * transfer.
		 */
		gcr_cutter_start(&cutter, &space, &config);
		add(&cutter, false, 0, UNIT);
		add(&cutter, true, 2 * MIB, PIECE);
		add(&cutter, false, 4 * MIB, UNIT);
		add(&cutter, false, 8 * MIB, 128 * MIB);
		add(&cutter, false, 300 * MIB, UNIT);
		CHECK(cut_all(&cutter) == (is_direct ? 4 + 2 : 4 + 16));
	}
	gcr_cutter_finish(&cutter);
}

/* A large run of zeros is cut into several transfers, so that several threads can punch it. */
static void test_zeros(void)
{
	struct gcr_cutter_config config = {.bytes = 8 * MIB, .direct_bytes = 64 * MIB, .lanes = 16};
	struct gcr_cutter cutter = {0};

	use_one_file(false);
	gcr_cutter_start(&cutter, &space, &config);
	add(&cutter, true, 0, 514 * MIB);
	CHECK(cut_all(&cutter) == 9);
	gcr_cutter_finish(&cutter);
}

/* Transfers under way at the same time are far from each other. */
static void test_lanes(void)
{
	static const unsigned int expected[] = {0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8};
	struct gcr_cutter_config config = {.bytes = 8 * MIB, .direct_bytes = 64 * MIB, .lanes = 4};
	struct gcr_cutter cutter = {0};
	struct gcr_transfer transfer;

	use_one_file(false);
	gcr_cutter_start(&cutter, &space, &config);
	/* Eleven turns in four lanes: the last lane is shorter, and so is the last turn. */
	add(&cutter, false, 2 * MIB, 10 * 8 * MIB + UNIT);
	for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
		CHECK(gcr_cutter_has(&cutter));
		gcr_cutter_next(&cutter, &transfer);
		check_transfer(&config, &transfer);
		CHECK(transfer.parts_count == 1);
		CHECK(transfer.parts[0].offset == 2 * MIB + expected[i] * 8 * MIB);
		CHECK(transfer.bytes == (expected[i] == 10 ? UNIT : 8 * MIB));
	}
	CHECK(cut_all(&cutter) == 0);
	gcr_cutter_finish(&cutter);
}

int main(void)
{
	test_random();
	test_gather();
	test_zeros();
	test_lanes();
	return 0;
}
