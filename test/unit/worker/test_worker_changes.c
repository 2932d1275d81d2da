/* SPDX-License-Identifier: MIT */
/*
 * Files of a snapshot with one changed byte anywhere: gpucr-worker never brings the change back
 * into VRAM. Random: GPUCR_TEST_SEED sets the seed, argument 1 the number of tries.
 */
#include <ftw.h>
#include <inttypes.h>
#include <time.h>

#include "test/unit/worker/worker.h"

#define TRIES (TEST_SLOW > 1 ? 100u : 5000u)

static const uint64_t sizes[] = {2 * MIB, 2 * MIB};
#define SIZES GCR_ARRAY_SIZE(sizes)

static uint64_t random_state;

static uint64_t any(uint64_t below)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (random_state >> 33) % below;
}

/* One copy request fails and names the first chunk that differs. */
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
	unsigned int tries = argc > 1 ? (unsigned int)strtoul(argv[1], NULL, 0) : TRIES;
	const char *seed = getenv("GPUCR_TEST_SEED");
	struct worker worker;
	struct process process;
	int fds[SIZES];
	size_t before;

	test_copies_unchecked(argv);
	random_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
	fprintf(stderr, "seed %" PRIu64 ", %u changes\n", random_state, tries);
	worker_test_begin(1);
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

	/*
	 * Each session has a hundred changes: the session may begin to copy as soon as its VRAM is
	 * created, and the copy is repeated within it.
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

	/* All files are as they were: the memory comes back. */
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
