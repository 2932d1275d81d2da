/* SPDX-License-Identifier: MIT */
/*
 * A snapshot's metadata with any byte changed are refused with a message; unchanged, they are read
 * as written. The changes are random: GPUCR_TEST_SEED sets the seed, argument 1 the number of
 * tries.
 */
#include <time.h>

#include "lib/digest.h"
#include "lib/manifest.h"
#include "test/unit/store/store.h"

#define TRIES 6000

static uint64_t random_state;
static unsigned int tries = TRIES / TEST_SLOW;

static uint64_t any(uint64_t below)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (random_state >> 33) % below;
}

/* Write metadata as a freeze does. */
static void seal(struct gcr_snapshot *snapshot, struct gcr_digest *digests, uint64_t count)
{
	struct gcr_manifest *manifest = calloc(1, sizeof(*manifest));
	struct gcr_error error = {0};

	CHECK(manifest);
	*manifest = (struct gcr_manifest){
		.engine = "vmm",
		.uid = geteuid(),
		.comm = "test",
		.exe = "/usr/bin/test",
		.gpus_count = 2,
		.gpus = {{.index = 0, .name = "Simulated GPU", .compute_capability = "9.0"},
			 {.index = 1, .uuid = {1}, .name = "Simulated GPU"}},
		.driver_version = "580.65.06",
		.api_version = 13000,
	};
	for (uint64_t i = 0; i < count; i++)
		gcr_digest_of(&i, sizeof(i), &digests[i]);
	if (gcr_snapshot_seal(snapshot, manifest, digests, &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
	gcr_manifest_free(manifest);
}

static void check_right(const struct gcr_snapshot *snapshot, const struct gcr_digest *digests,
			uint64_t count)
{
	_cleanup_free_ struct gcr_digest *found = NULL;
	struct gcr_error error = {0};

	CHECK(!gcr_snapshot_read_digests(snapshot, &found, &error));
	CHECK(!memcmp(found, digests, count * sizeof(*digests)));
}

/* The error's message must begin with the file's name. */
static void check_refused(const struct gcr_snapshot *snapshot, const char *name)
{
	struct gcr_digest *found = NULL;
	struct gcr_error error = {0};

	CHECK(gcr_snapshot_read_digests(snapshot, &found, &error) == -EIO);
	CHECK(!found && error.number == EIO);
	if (strncmp(error.words, name, strlen(name)) != 0)
		fprintf(stderr, "of %s: %s\n", name, error.words);
	CHECK(!strncmp(error.words, name, strlen(name)));
}

/* Any other value of a byte at any place. */
static void change_bytes(const struct gcr_snapshot *snapshot, const char *name, unsigned int count)
{
	_cleanup_close_ int fd = openat(gcr_snapshot_root(snapshot), name, O_RDWR | O_CLOEXEC);
	struct stat stat;

	CHECK(fd >= 0 && !fstat(fd, &stat));
	for (unsigned int i = 0; i < count; i++) {
		off_t at = (off_t)any((uint64_t)stat.st_size);
		unsigned char right, wrong;

		CHECK(pread(fd, &right, 1, at) == 1);
		wrong = right ^ (unsigned char)(1 + any(255));
		CHECK(pwrite(fd, &wrong, 1, at) == 1);
		check_refused(snapshot, name);
		CHECK(pwrite(fd, &right, 1, at) == 1);
	}
}

/* The last byte is missing, or one byte too many is there. */
static void change_size(const struct gcr_snapshot *snapshot, const char *name)
{
	_cleanup_close_ int fd = openat(gcr_snapshot_root(snapshot), name, O_RDWR | O_CLOEXEC);
	struct stat stat;
	char last;

	CHECK(fd >= 0 && !fstat(fd, &stat));
	CHECK(pread(fd, &last, 1, stat.st_size - 1) == 1);
	CHECK(!ftruncate(fd, stat.st_size + 1));
	check_refused(snapshot, name);
	CHECK(!ftruncate(fd, stat.st_size - 1));
	check_refused(snapshot, name);
	CHECK(pwrite(fd, &last, 1, stat.st_size - 1) == 1);
}

/* A manifest longer than one of this snapshot can be is refused, although its digest is right. */
static void check_long(const struct gcr_snapshot *snapshot)
{
	_cleanup_close_ int fd =
		openat(gcr_snapshot_root(snapshot), GCR_MANIFEST_NAME, O_RDWR | O_CLOEXEC);
	size_t more = 256u << 10, at;
	_cleanup_free_ char *text = NULL;
	char digits[GCR_DIGEST_TEXT_BYTES];
	struct gcr_digest *found = NULL;
	struct gcr_error error = {0};
	struct gcr_digest digest;
	struct stat stat;

	CHECK(fd >= 0 && !fstat(fd, &stat));
	text = malloc((size_t)stat.st_size + more);
	/* Blanks after the first character, in which it begins as an object. */
	CHECK(text && pread(fd, text, 1, 0) == 1 && *text == '{');
	memset(text + 1, ' ', more);
	CHECK(pread(fd, text + 1 + more, (size_t)stat.st_size - 1, 1) == stat.st_size - 1);
	at = (size_t)stat.st_size + more - strlen("\"\n}\n") - (GCR_DIGEST_TEXT_BYTES - 1);
	gcr_digest_of(text, at, &digest);
	gcr_digest_format(&digest, digits);
	memcpy(text + at, digits, GCR_DIGEST_TEXT_BYTES - 1);
	CHECK(pwrite(fd, text, (size_t)stat.st_size + more, 0) == stat.st_size + (off_t)more);
	CHECK(gcr_snapshot_read_digests(snapshot, &found, &error) == -EIO && !found);
	CHECK(strstr(error.words, "larger than"));
}

static void run_changes(void)
{
	struct gcr_extent extents[COUNT];
	struct gcr_snapshot *snapshot;
	struct gcr_error error = {0};
	struct gcr_digest *digests;
	uint64_t count, start_ticks;

	start(256 * MIB, 0);
	fill_extents(extents);
	for (size_t i = 0; i < COUNT; i++)
		extents[i].gpu[0] = (uint8_t)extents[i].gpu_index;
	CHECK(!gcr_snapshot_create(store, 4711, 77, GENERATION, extents, COUNT, &snapshot, &error));
	/* Its subtree tells whose it is, as long as somebody has it. */
	CHECK(gcr_subtree_process(gcr_snapshot_subtree(snapshot), &start_ticks) == 4711);
	CHECK(start_ticks == 77);
	count = gcr_snapshot_first_chunk(snapshot, COUNT);
	digests = calloc(count, sizeof(*digests));
	CHECK(digests);
	seal(snapshot, digests, count);
	check_right(snapshot, digests, count);
	change_bytes(snapshot, GCR_MANIFEST_NAME, tries / 2);
	change_size(snapshot, GCR_MANIFEST_NAME);
	change_bytes(snapshot, GCR_DIGESTS_NAME, tries / 2);
	change_size(snapshot, GCR_DIGESTS_NAME);
	check_right(snapshot, digests, count);
	check_long(snapshot);
	seal(snapshot, digests, count);
	check_right(snapshot, digests, count);
	free(digests);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* No daemon is killed in this test. */
static void killed(void)
{
}

int main(int argc, char **argv)
{
	const char *seed = getenv("GPUCR_TEST_SEED");

	random_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
	if (argc > 1)
		tries = (unsigned int)strtoul(argv[1], NULL, 0);
	fprintf(stderr, "seed %" PRIu64 ", %u changes\n", random_state, tries);
	return run_tests(argv, run_changes, killed);
}
