/* SPDX-License-Identifier: MIT */
/*
 * Files of a snapshot, changed by somebody at any byte: gpucr-worker lets none of it come back.
 * Seeded: GPUCR_TEST_SEED is another seed, argument 1 another number of tries.
 */
#include <ftw.h>
#include <inttypes.h>
#include <time.h>

#include "test/unit/worker.h"

#define TRIES 5000

static const uint64_t sizes[] = {2 * MIB, 2 * MIB};
#define SIZES GCR_ARRAY_SIZE(sizes)

static uint64_t random_state;

static uint64_t any(uint64_t below)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (random_state >> 33) % below;
}

/* One copy says where the first chunk is that differs; nothing can be exported then. */
static void refuse(struct worker *worker, struct process *process, size_t index, uint64_t at)
{
	char name[GCR_EXTENT_NAME_BYTES], words[160];

	gcr_extent_name(&process->extents[index], name);
	snprintf(words, sizeof(words),
		 "vram/%s is not what was frozen: the digest of the chunk at offset %" PRIu64
		 " is another",
		 name, at / GCR_CHUNK_BYTES * GCR_CHUNK_BYTES);
	REFUSED(worker_do(worker, GCR_MESSAGE_COPY), EIO, words);
}

int main(int argc, char **argv)
{
	unsigned int tries = argc > 1 ? (unsigned int)strtoul(argv[1], NULL, 0) : TRIES / TEST_SLOW;
	const char *seed = getenv("GPUCR_TEST_SEED");
	struct worker worker;
	struct process process;
	int fds[SIZES];
	size_t before;

	random_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
	fprintf(stderr, "seed %" PRIu64 ", %u changes\n", random_state, tries);
	sim_begin("1", "512M");
	alarm(450 * TEST_SLOW);
	store_make();
	OK(CU(cuInit)(0));
	use_gpu(0);
	worker = worker_start(&(struct worker_options){0});
	process = process_create(store, 1, 0, sizes, SIZES);
	before = free_of(0);
	process_allocate(&process);
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0));
	DONE(session_import(&worker, &process));
	DONE(worker_do(&worker, GCR_MESSAGE_COPY));
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process_release(&process, true);
	for (size_t i = 0; i < SIZES; i++)
		fds[i] = process_open(&process, i);

	/* A new session each hundred, it may copy from its beginning on; in one it is tried again.
	 */
	for (unsigned int i = 0; i < tries; i++) {
		size_t index = any(SIZES);
		off_t at = (off_t)any(sizes[index]);
		unsigned char right, wrong;

		CHECK(pread(fds[index], &right, 1, at) == 1);
		wrong = right ^ (unsigned char)(1 + any(255));
		CHECK(pwrite(fds[index], &wrong, 1, at) == 1);
		if (i % 100 == 0) {
			DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 0));
			DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
		}
		refuse(&worker, &process, index, (uint64_t)at);
		CHECK(pwrite(fds[index], &right, 1, at) == 1);
		if (i % 100 == 99 || i + 1 == tries) {
			CHECK(session_export(&worker, &process) == EINVAL);
			DONE(worker_do(&worker, GCR_MESSAGE_END));
			CHECK(free_of(0) == before);
		}
	}

	/* All as it was: it comes back. */
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 0));
	DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
	DONE(worker_do(&worker, GCR_MESSAGE_COPY));
	DONE(session_export(&worker, &process));
	process_receive(&process);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	for (size_t i = 0; i < SIZES; i++)
		close(fds[i]);
	process_destroy(&process);
	CHECK(free_of(0) == before);
	CHECK(worker_leaves(&worker) == 0);
	store_leave();
	return 0;
}
