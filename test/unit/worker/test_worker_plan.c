/* SPDX-License-Identifier: MIT */
/*
 * Which data gpucr-worker copies: digests, known files, zeros, and registered files. The memory of
 * a process changes between its sessions; files, holes and digests are compared with that memory.
 */
#include <ftw.h>

#include "test/unit/worker/image.h"

static const uint64_t sizes[] = {2 * MIB, 18 * MIB, 6 * MIB, 12 * MIB, 2 * MIB, 6 * MIB};
#define SIZES GCR_ARRAY_SIZE(sizes)

/* ---- files and digests ---- */

static void set_known(struct image *image, size_t index, bool is_known)
{
	image->process.extents[index].flags = is_known ? GCR_EXTENT_KNOWN : 0;
}

static void set_all_known(struct image *image, bool are_known)
{
	for (size_t i = 0; i < image->process.count; i++)
		set_known(image, i, are_known);
}

static bool is_zeros(const char *memory, uint64_t bytes)
{
	return !memory[0] && !memcmp(memory, memory + 1, bytes - 1);
}

static bool is_hole(int fd, uint64_t at)
{
	off_t data = lseek(fd, (off_t)at, SEEK_DATA);

	return data < 0 ? errno == ENXIO : (uint64_t)data >= at + PIECE;
}

/*
 * Checks that exactly the pieces of zeros are holes, and that all other pieces are fully allocated.
 */
static void check_holes(const struct image *image, size_t index)
{
	_cleanup_close_ int fd = process_open(&image->process, index);
	uint64_t data_bytes = 0;
	struct stat status;

	for (uint64_t at = 0; at < bytes_of(image, index); at += PIECE) {
		bool zeros = is_zeros(image->memory[index] + at, PIECE);

		CHECK(is_hole(fd, at) == zeros);
		data_bytes += zeros ? 0 : PIECE;
		if (!zeros)
			CHECK((uint64_t)lseek(fd, (off_t)at, SEEK_HOLE) >= at + PIECE);
	}
	CHECK(!fstat(fd, &status) && (uint64_t)status.st_blocks * 512 == data_bytes);
}

static void check_file(const struct image *image, size_t index, const char *expected)
{
	_cleanup_free_ char *file = process_read_file(&image->process, index);

	for (uint64_t at = 0; at < bytes_of(image, index); at += CHUNK) {
		if (!memcmp(file + at, expected + at, CHUNK))
			continue;
		fprintf(stderr, "file %zu is wrong at %llu\n", index, (unsigned long long)at);
		exit(1);
	}
}

static void check_digests(const struct image *image)
{
	for (size_t i = 0; i < image->process.count; i++)
		CHECK(process_check_digests(&image->process, i, image->memory[i]));
	CHECK(process_check_other_digests(&image->process));
}

static void check_files(const struct image *image)
{
	for (size_t i = 0; i < image->process.count; i++)
		check_file(image, i, image->memory[i]);
	check_digests(image);
}

/* Fills all files with bytes that no process had, without holes. */
static void write_garbage(const struct image *image)
{
	for (size_t i = 0; i < image->process.count; i++) {
		_cleanup_free_ char *garbage = malloc(bytes_of(image, i));

		make_new(garbage, bytes_of(image, i));
		write_file(image, i, 0, garbage, bytes_of(image, i));
	}
}

/* ---- registered files ---- */

/* The worker registers all files without holes; waits for that, unless a session is under way. */
static void pin_files(struct worker *worker, const struct image *image, bool in_session)
{
	int fds[IMAGE_MAX];
	int r;

	for (size_t i = 0; i < image->process.count; i++)
		fds[i] = process_open(&image->process, i);
	r = worker_do_fds(worker, GCR_MESSAGE_PIN, NULL, 0, fds, image->process.count);
	while (r == EAGAIN && !in_session) {
		sched_yield();
		r = worker_do(worker, GCR_MESSAGE_PIN);
	}
	CHECK(!r || (r == EAGAIN && in_session));
	for (size_t i = 0; i < image->process.count; i++)
		close(fds[i]);
}

/*
 * Does the GPU copy from the file itself? A file that is larger than a slot of the ring takes more
 * than one copy if it goes through the ring.
 */
static bool is_used_as_registered(struct worker *worker, struct image *image)
{
	char path[128], line[160];
	unsigned int copies = 0;
	FILE *log;

	snprintf(path, sizeof(path), "%s/faults.log", sim_state_directory);
	log = fopen(path, "w+e");
	CHECK(log && !fchmod(fileno(log), 0666));
	sim_set_faults("cuMemcpyHtoDAsync comm=" WORKER_COMM "\n");
	come_in(worker, image);
	sim_set_faults(NULL);
	while (fgets(line, sizeof(line), log))
		copies++;
	fclose(log);
	CHECK(!unlink(path) && copies > 0);
	return copies == 1;
}

/* ---- the tests ---- */

static void test_digests(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(sizes, SIZES);
	size_t before = free_of(0);

	go_out(&worker, &image);
	check_files(&image);
	for (size_t i = 0; i < SIZES; i++)
		check_holes(&image, i);
	/* Freeze again with nothing changed, then with one byte changed. */
	go_out(&worker, &image);
	check_files(&image);
	image.memory[3][7 * MIB + 12345] ^= 1;
	go_out(&worker, &image);
	check_files(&image);
	come_in(&worker, &image);
	image_destroy(&image);
	CHECK(free_of(0) == before);
	CHECK(worker_leaves(&worker) == 0);
}

/* Damages a chunk that the worker must not write: the damage must remain in the file. */
static void damage(const struct image *image, char **files, size_t index, uint64_t chunk)
{
	files[index][chunk * CHUNK + 4711] ^= 0x55;
	write_file(image, index, chunk * CHUNK + 4711, files[index] + chunk * CHUNK + 4711, 1);
}

static void change(const struct image *image, char **files, size_t index, uint64_t chunk,
		   uint64_t count, bool to_zeros)
{
	char *memory = image->memory[index] + chunk * CHUNK;

	if (to_zeros)
		memset(memory, 0, count * CHUNK);
	else
		make_new(memory, count * CHUNK);
	memcpy(files[index] + chunk * CHUNK, memory, count * CHUNK);
}

/*
 * Of a known file only the changed chunks are written: scattered ones, hundreds in several files,
 * also beside a file that is not known.
 */
static void test_known(void)
{
	enum { FIRST, SCATTERED, UNKNOWN, ZEROS, SAME, EDGES };
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(sizes, SIZES);
	char *files[SIZES]; /* the expected contents */
	int fd;

	memset(image.memory[ZEROS], 0, PIECE);
	memset(image.memory[ZEROS] + 3 * PIECE, 0, PIECE);
	go_out(&worker, &image);
	check_files(&image);
	for (size_t i = 0; i < SIZES; i++) {
		files[i] = malloc(bytes_of(&image, i));
		memcpy(files[i], image.memory[i], bytes_of(&image, i));
		set_known(&image, i, i != UNKNOWN);
	}

	change(&image, files, FIRST, 0, 1, false);
	damage(&image, files, FIRST, 1);
	damage(&image, files, FIRST, PIECE_CHUNKS - 1);
	/* One of every three chunks, and a longer run that crosses the end of a piece. */
	for (uint64_t chunk = 0; chunk < 9 * PIECE_CHUNKS; chunk++) {
		if (chunk % 3 == 1 || (chunk >= 90 && chunk < 120))
			change(&image, files, SCATTERED, chunk, 1, chunk % 12 == 1);
		else
			damage(&image, files, SCATTERED, chunk);
	}
	/* All of this file is written. */
	change(&image, files, UNKNOWN, 40, 1, false);
	write_file(&image, UNKNOWN, 0, "damage", 6);
	write_file(&image, UNKNOWN, 4 * MIB + 5, "damage", 6);
	/*
	 * One hole gets one byte, another stays; a piece becomes a hole, and a chunk within a piece
	 * zeros.
	 */
	image.memory[ZEROS][5 * CHUNK + 17] = 1;
	memcpy(files[ZEROS], image.memory[ZEROS], PIECE);
	change(&image, files, ZEROS, 2 * PIECE_CHUNKS, PIECE_CHUNKS, true);
	change(&image, files, ZEROS, 4 * PIECE_CHUNKS + 7, 1, true);
	damage(&image, files, ZEROS, 4 * PIECE_CHUNKS + 8);
	damage(&image, files, ZEROS, 1 * PIECE_CHUNKS);
	for (uint64_t chunk = 0; chunk < PIECE_CHUNKS; chunk++)
		damage(&image, files, SAME, chunk);
	change(&image, files, EDGES, 0, 1, false);
	change(&image, files, EDGES, 3 * PIECE_CHUNKS - 1, 1, false);
	for (uint64_t chunk = 1; chunk < 3 * PIECE_CHUNKS - 1; chunk++)
		damage(&image, files, EDGES, chunk);

	go_out(&worker, &image);
	for (size_t i = 0; i < SIZES; i++)
		check_file(&image, i, files[i]);
	check_digests(&image);
	check_holes(&image, UNKNOWN);
	fd = process_open(&image.process, ZEROS);
	for (uint64_t piece = 0; piece < 6; piece++)
		CHECK(is_hole(fd, piece * PIECE) == (piece == 2 || piece == 3));
	close(fd);

	/* No file is known: all damage is overwritten. */
	set_all_known(&image, false);
	go_out(&worker, &image);
	check_files(&image);
	come_in(&worker, &image);
	for (size_t i = 0; i < SIZES; i++)
		free(files[i]);
	image_destroy(&image);
	CHECK(worker_leaves(&worker) == 0);
}

/*
 * All files are known: nothing is written if nothing has changed. Then everything changes, twice.
 */
static void test_known_all(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(sizes, SIZES);

	/* New files, and digests that were never written: everything is written. */
	set_all_known(&image, true);
	go_out(&worker, &image);
	check_files(&image);
	/* Nothing has changed: no page is allocated in files that have become all holes. */
	for (size_t i = 0; i < SIZES; i++) {
		_cleanup_close_ int fd = process_open(&image.process, i);

		CHECK(!ftruncate(fd, 0) && !ftruncate(fd, (off_t)sizes[i]));
	}
	go_out(&worker, &image);
	for (size_t i = 0; i < SIZES; i++) {
		_cleanup_close_ int fd = process_open(&image.process, i);
		struct stat status;

		CHECK(!fstat(fd, &status) && !status.st_blocks);
	}
	set_all_known(&image, false);
	go_out(&worker, &image);
	check_files(&image);
	/*
	 * Everything becomes zeros, so all files lose all pages; then everything gets data again.
	 */
	set_all_known(&image, true);
	for (size_t i = 0; i < SIZES; i++)
		memset(image.memory[i], 0, sizes[i]);
	go_out(&worker, &image);
	check_files(&image);
	for (size_t i = 0; i < SIZES; i++)
		check_holes(&image, i);
	come_in(&worker, &image);
	for (size_t i = 0; i < SIZES; i++)
		make_new(image.memory[i], sizes[i]);
	go_out(&worker, &image);
	check_files(&image);
	come_in(&worker, &image);
	image_destroy(&image);
	CHECK(worker_leaves(&worker) == 0);
}

/*
 * Makes zeros at the beginning, in the middle, at the end, two pieces in a row, a whole file, and
 * almost a whole file.
 */
static void make_zeros(struct image *image)
{
	memset(image->memory[0], 0, sizes[0]);
	memset(image->memory[1], 0, PIECE);
	memset(image->memory[1] + 3 * PIECE, 0, 2 * PIECE);
	memset(image->memory[1] + 8 * PIECE, 0, PIECE);
	/* Zeros that are no whole piece: half of one and half of the next. */
	memset(image->memory[2] + PIECE / 2, 0, PIECE);
	memset(image->memory[3], 0, sizes[3]);
	image->memory[3][sizes[3] - 1] = 1;
	image->memory[3][2 * PIECE] = 1;
	memset(image->memory[5], 0, sizes[5]);
}

static void check_zeros(const struct image *image)
{
	struct stat status;
	int fd;

	check_files(image);
	for (size_t i = 0; i < SIZES; i++)
		check_holes(image, i);
	fd = process_open(&image->process, 5);
	CHECK(!fstat(fd, &status) && status.st_blocks == 0);
	close(fd);
}

/* Pieces of zeros become holes, whatever the file had before, also in a registered file. */
static void test_zeros(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(sizes, SIZES);
	size_t before = free_of(0);

	make_zeros(&image);
	for (int round = 0; round < 4; round++) {
		if (round > 0)
			write_garbage(&image);
		if (round > 1)
			pin_files(&worker, &image, false);
		/* In one round, the digests match the garbage in the files, which are known. */
		if (round == 3) {
			process_digest_files(&image.process);
			set_all_known(&image, true);
		}
		go_out(&worker, &image);
		check_zeros(&image);
		come_in(&worker, &image);
		process_release(&image.process, true);
	}
	image_destroy(&image);
	CHECK(free_of(0) == before);
	CHECK(worker_leaves(&worker) == 0);
}

/*
 * A registered file is used as such until it gets a hole. Its new pages are not the registered
 * ones, even when the file has all pages again. The file can be registered again.
 */
static void test_registered(void)
{
	static const uint64_t bytes[] = {18 * MIB};
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(bytes, 1);

	go_out(&worker, &image);
	CHECK(!is_used_as_registered(&worker, &image));
	pin_files(&worker, &image, false);
	CHECK(is_used_as_registered(&worker, &image));
	make_new(image.memory[0] + 5 * MIB, 12 * MIB);
	go_out(&worker, &image);
	check_files(&image);
	CHECK(is_used_as_registered(&worker, &image));

	memset(image.memory[0] + 10 * MIB, 0, 4 * MIB);
	image_put(&image);
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &image.process, 0));
	DONE(session_import(&worker, &image.process));
	DONE(worker_do(&worker, GCR_MESSAGE_COPY));
	check_files(&image);
	check_holes(&image, 0);
	/* Written before the worker can have examined the file. */
	write_file(&image, 0, 10 * MIB, image.memory[0] + 10 * MIB, 4 * MIB);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	CHECK(!is_used_as_registered(&worker, &image));
	make_new(image.memory[0] + 11 * MIB, MIB);
	make_new(image.memory[0] + 13 * MIB, MIB);
	go_out(&worker, &image);
	check_files(&image);
	CHECK(!is_used_as_registered(&worker, &image));

	/*
	 * Registered again, also if that is requested before the old registration has been given
	 * up.
	 */
	pin_files(&worker, &image, false);
	CHECK(is_used_as_registered(&worker, &image));
	memset(image.memory[0], 0, PIECE);
	image_put(&image);
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &image.process, 0));
	DONE(session_import(&worker, &image.process));
	DONE(worker_do(&worker, GCR_MESSAGE_COPY));
	write_file(&image, 0, 0, image.memory[0], PIECE);
	pin_files(&worker, &image, true);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	pin_files(&worker, &image, false);
	CHECK(is_used_as_registered(&worker, &image));
	check_files(&image);
	image_destroy(&image);
	CHECK(worker_leaves(&worker) == 0);
}

/*
 * With GCR_SESSION_UNREGISTERED, after users had access to the files, their present pages are used.
 */
static void test_unregistered(void)
{
	static const uint64_t bytes[] = {18 * MIB};
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(bytes, 1);
	int fd;

	go_out(&worker, &image);
	pin_files(&worker, &image, false);
	CHECK(is_used_as_registered(&worker, &image));
	image.process.flags = GCR_SESSION_UNREGISTERED;
	CHECK(!is_used_as_registered(&worker, &image));
	fd = process_open(&image.process, 0);
	CHECK(!ftruncate(fd, 0) && !ftruncate(fd, (off_t)bytes[0]));
	make_new(image.memory[0], bytes[0]);
	CHECK(pwrite(fd, image.memory[0], bytes[0], 0) == (ssize_t)bytes[0]);
	close(fd);
	process_digest_files(&image.process);
	CHECK(!is_used_as_registered(&worker, &image));
	image_destroy(&image);
	CHECK(worker_leaves(&worker) == 0);
}

/*
 * The store becomes full during the copy: all files, also known ones, are right once there is room.
 */
static void test_full_store(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(sizes, SIZES);

	if (!own_mount) {
		fprintf(stderr, "not done: a file system cannot be mounted here\n");
		image_destroy(&image);
		CHECK(worker_leaves(&worker) == 0);
		return;
	}
	for (int is_ended = 0; is_ended < 2; is_ended++) {
		/* 8 MiB of the files are allocated. */
		for (size_t i = 0; i < SIZES; i++)
			memset(image.memory[i], 0, sizes[i]);
		make_new(image.memory[1], 4 * MIB);
		make_new(image.memory[3] + 8 * MIB, 4 * MIB);
		set_all_known(&image, false);
		go_out(&worker, &image);
		check_zeros(&image);
		set_all_known(&image, true);

		make_new(image.memory[1] + 3 * MIB, 12 * MIB);
		for (uint64_t chunk = 0; chunk < sizes[3] / CHUNK; chunk += 2)
			make_new(image.memory[3] + chunk * CHUNK, CHUNK);
		memset(image.memory[3] + 8 * MIB, 0, PIECE);
		make_new(image.memory[5], sizes[5]);
		image_put(&image);
		store_resize(14 * MIB);
		DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &image.process, 0));
		DONE(session_import(&worker, &image.process));
		REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), ENOSPC, "store is full");
		if (is_ended) {
			DONE(worker_do(&worker, GCR_MESSAGE_END));
			store_resize(1024 * MIB);
			set_all_known(&image, false);
			go_out(&worker, &image);
		} else {
			store_resize(1024 * MIB);
			DONE(worker_do(&worker, GCR_MESSAGE_COPY));
			DONE(worker_do(&worker, GCR_MESSAGE_END));
		}
		check_files(&image);
		for (size_t i = 0; i < SIZES; i++)
			check_holes(&image, i);
		come_in(&worker, &image);
	}
	image_destroy(&image);
	CHECK(worker_leaves(&worker) == 0);
}

/* Makes one random change anywhere. */
static void change_any(struct image *image)
{
	size_t index = any(image->process.count);
	char *memory = image->memory[index];
	uint64_t pieces = bytes_of(image, index) / PIECE, chunks = pieces * PIECE_CHUNKS;
	uint64_t first, count;

	switch (any(8)) {
	case 0:
		memory[any(bytes_of(image, index))] ^= 1;
		break;
	case 1:
		make_new(memory + any(chunks) * CHUNK, CHUNK);
		break;
	case 2:
		memset(memory + any(chunks) * CHUNK, 0, CHUNK);
		break;
	case 3:
		memset(memory + any(pieces) * PIECE, 0, PIECE);
		break;
	case 4:
		make_new(memory + any(pieces) * PIECE, PIECE);
		break;
	case 5:
		first = any(chunks);
		count = 1 + any(chunks - first);
		for (uint64_t chunk = first; chunk < first + count; chunk += 1 + any(3))
			make_new(memory + chunk * CHUNK, CHUNK);
		break;
	case 6:
		/* A copy of another chunk. */
		memmove(memory + any(chunks) * CHUNK, memory + any(chunks) * CHUNK, CHUNK);
		break;
	default:
		if (any(3) == 0)
			memset(memory, 0, bytes_of(image, index));
		else
			make_new(memory, bytes_of(image, index));
	}
}

static void test_random(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(sizes, SIZES);
	size_t before = free_of(0);
	uint64_t seed = (uint64_t)gcr_clock_usec();
	/* The seed is another each time, so a few rounds are enough for one run. */
	int rounds = test_few(6, 20);

	if (getenv("GPUCR_TEST_SEED"))
		seed = strtoull(getenv("GPUCR_TEST_SEED"), NULL, 0);
	fprintf(stderr, "GPUCR_TEST_SEED=%llu\n", (unsigned long long)seed);
	random_state = seed;
	for (int round = 0; round < rounds; round++) {
		for (uint64_t i = any(12); i > 0; i--)
			change_any(&image);
		set_all_known(&image, round > 0);
		/* A file that a user has written to is not known any more. */
		if (any(2) == 0) {
			size_t index = any(SIZES);

			set_known(&image, index, false);
			write_file(&image, index, any(sizes[index] / PIECE) * PIECE,
				   image.memory[any(SIZES)], PIECE);
		}
		if (any(3) == 0)
			pin_files(&worker, &image, false);
		go_out(&worker, &image);
		check_files(&image);
		for (size_t i = 0; i < SIZES; i++) {
			_cleanup_close_ int fd = process_open(&image.process, i);

			for (uint64_t at = 0; at < sizes[i]; at += PIECE)
				CHECK(is_hole(fd, at) == is_zeros(image.memory[i] + at, PIECE));
		}
		if (any(5) == 0)
			come_in(&worker, &image);
	}
	come_in(&worker, &image);
	image_destroy(&image);
	CHECK(free_of(0) == before);
	CHECK(worker_leaves(&worker) == 0);
}

static const struct worker_test tests[] = {
	{"digests", test_digests},	 {"known", test_known},
	{"known_all", test_known_all},	 {"zeros", test_zeros},
	{"registered", test_registered}, {"unregistered", test_unregistered},
	{"full_store", test_full_store}, {"random", test_random},
};

int main(int argc, char **argv)
{
	test_copies_unchecked(argv);
	return worker_tests_run(argc, argv, 1, tests, GCR_ARRAY_SIZE(tests));
}
