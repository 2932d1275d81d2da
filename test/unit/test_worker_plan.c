/* SPDX-License-Identifier: MIT */
/*
 * What gpucr-worker copies and what it does not: digests, files that are known, zeros, registered
 * files, and what is verified on the way in. A process whose memory changes between its sessions;
 * files, holes and digests are compared with what it has.
 */
#include <ftw.h>

#include "test/unit/worker.h"

#define PIECE	     (2 * MIB)
#define CHUNK	     ((uint64_t)GCR_CHUNK_BYTES)
#define PIECE_CHUNKS (PIECE / CHUNK)
#define IMAGE_MAX    8

static const uint64_t sizes[] = {2 * MIB, 18 * MIB, 6 * MIB, 12 * MIB, 2 * MIB, 6 * MIB};
#define SIZES GCR_ARRAY_SIZE(sizes)

/* ---- a process and what its memory has ---- */

struct image {
	struct process process;
	char *memory[IMAGE_MAX];
};

static uint64_t random_state = 1;

static uint64_t any(uint64_t below)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (random_state >> 33) % below;
}

/* Bytes that were nowhere before; never nothing but zeros. */
UNSEEN static void make_new(char *memory, uint64_t bytes)
{
	uint64_t word = any(1u << 30) | 1;

	for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
		word = word * 6364136223846793005u + 1442695040888963407u;
		memcpy(memory + at, &word, 8);
	}
	memory[0] |= 1;
}

static uint64_t bytes_of(const struct image *image, size_t index)
{
	return image->process.extents[index].bytes;
}

static struct image image_create(const uint64_t *bytes, size_t count)
{
	struct image image = {.process = process_create(store, 1, 0, bytes, count)};

	CHECK(count <= IMAGE_MAX);
	for (size_t i = 0; i < count; i++) {
		image.memory[i] = malloc(bytes[i]);
		CHECK(image.memory[i]);
		make_new(image.memory[i], bytes[i]);
	}
	return image;
}

static void image_destroy(struct image *image)
{
	for (size_t i = 0; i < image->process.count; i++)
		free(image->memory[i]);
	process_destroy(&image->process);
}

/* Its VRAM, which it gets if it has none, has what its memory has. */
static void image_put(struct image *image)
{
	for (size_t i = 0; i < image->process.count; i++) {
		if (image->process.handles[i])
			process_put(&image->process, i, image->memory[i]);
		else
			process_allocate_piece(&image->process, i, image->memory[i]);
	}
}

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

/* Pieces that are zeros are holes, and no others are; those that are not are there as a whole. */
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

/* Write to a file behind the worker's back. */
static void write_file(const struct image *image, size_t index, uint64_t at, const void *bytes,
		       size_t count)
{
	_cleanup_close_ int fd = process_open(&image->process, index);

	CHECK(pwrite(fd, bytes, count, (off_t)at) == (ssize_t)count);
}

static void flip_byte(int fd, off_t at)
{
	unsigned char byte;

	CHECK(pread(fd, &byte, 1, at) == 1);
	byte ^= 0x10;
	CHECK(pwrite(fd, &byte, 1, at) == 1);
}

/* All of its files: bytes of nobody, and no holes. */
static void write_garbage(const struct image *image)
{
	for (size_t i = 0; i < image->process.count; i++) {
		_cleanup_free_ char *garbage = malloc(bytes_of(image, i));

		make_new(garbage, bytes_of(image, i));
		write_file(image, i, 0, garbage, bytes_of(image, i));
	}
}

/* ---- sessions ---- */

/* Out of VRAM, which stays the process's. */
static void go_out(struct worker *worker, struct image *image)
{
	image_put(image);
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_OUT, &image->process, 0));
	DONE(session_import(worker, &image->process));
	DONE(worker_do(worker, GCR_MESSAGE_COPY));
	DONE(worker_do(worker, GCR_MESSAGE_END));
}

/* Into new VRAM, the old is given up first; it has what the memory has. */
static void come_in(struct worker *worker, struct image *image)
{
	struct process *process = &image->process;

	process_release(process, true);
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_IN, process, 0));
	DONE(worker_do(worker, GCR_MESSAGE_CREATE));
	DONE(worker_do(worker, GCR_MESSAGE_COPY));
	DONE(session_export(worker, process));
	for (size_t i = 0; i < process->count; i++) {
		_cleanup_free_ char *memory = NULL;

		OK(CU(cuMemImportFromShareableHandle)(&process->handles[i],
						      (void *)(intptr_t)process->fds[i],
						      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		memory = process_read_handle(process, i, process->handles[i]);
		CHECK(!memcmp(memory, image->memory[i], bytes_of(image, i)));
	}
	DONE(worker_do(worker, GCR_MESSAGE_END));
}

/* In is refused: the words name the file and the offset. All VRAM is free before and afterwards. */
static void refuse_in(struct worker *worker, struct image *image, size_t index, uint64_t offset)
{
	char name[GCR_EXTENT_NAME_BYTES], words[128];
	size_t before = free_of(0);

	gcr_extent_name(&image->process.extents[index], name);
	snprintf(words, sizeof(words), "vram/%s is not what was frozen", name);
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_IN, &image->process, 0));
	DONE(worker_do(worker, GCR_MESSAGE_CREATE));
	REFUSED(worker_do(worker, GCR_MESSAGE_COPY), EIO, words);
	snprintf(words, sizeof(words), "at offset %llu is another", (unsigned long long)offset);
	REFUSED(EIO, EIO, words);
	CHECK(session_export(worker, &image->process) == EINVAL);
	DONE(worker_do(worker, GCR_MESSAGE_END));
	CHECK(free_of(0) == before);
}

/* The worker registers all files without holes; waited for, unless a session is under way. */
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
 * Does the GPU copy from the file itself? One that is larger than a slot of the ring comes in more
 * copies than one if it goes through that.
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
	/* Nothing changed, and one byte did. */
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

/* A chunk that the worker must leave alone: damaged in the file it stays so. */
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
 * What is known and has not changed is not written, what has changed is: a known file's chunks here
 * and there, hundreds in several files; also beside a file of which nothing is known.
 */
static void test_known(void)
{
	enum { FIRST, SCATTERED, UNKNOWN, ZEROS, SAME, EDGES };
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(sizes, SIZES);
	char *files[SIZES]; /* what is going to be in them */
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
	/* One of three single chunks, and a longer run, over the end of a piece. */
	for (uint64_t chunk = 0; chunk < 9 * PIECE_CHUNKS; chunk++) {
		if (chunk % 3 == 1 || (chunk >= 90 && chunk < 120))
			change(&image, files, SCATTERED, chunk, 1, chunk % 12 == 1);
		else
			damage(&image, files, SCATTERED, chunk);
	}
	/* All of this one is written. */
	change(&image, files, UNKNOWN, 40, 1, false);
	write_file(&image, UNKNOWN, 0, "damage", 6);
	write_file(&image, UNKNOWN, 4 * MIB + 5, "damage", 6);
	/* A hole gets one byte, another stays one, a piece becomes one, a chunk is zeros in one. */
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

	/* Nothing is known of them: every damage is made good. */
	set_all_known(&image, false);
	go_out(&worker, &image);
	check_files(&image);
	come_in(&worker, &image);
	for (size_t i = 0; i < SIZES; i++)
		free(files[i]);
	image_destroy(&image);
	CHECK(worker_leaves(&worker) == 0);
}

/* All of it is known: nothing is written if nothing has changed; and all changes, twice. */
static void test_known_all(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(sizes, SIZES);

	/* A new file, and digests that were never written: nothing of it is there. */
	set_all_known(&image, true);
	go_out(&worker, &image);
	check_files(&image);
	/* Nothing has changed: not one page is made of files that are all holes by now. */
	for (size_t i = 0; i < SIZES; i++) {
		_cleanup_close_ int fd = process_open(&image.process, i);
		struct stat status;

		CHECK(!ftruncate(fd, 0) && !ftruncate(fd, (off_t)sizes[i]));
		go_out(&worker, &image);
		CHECK(!fstat(fd, &status) && !status.st_blocks);
	}
	set_all_known(&image, false);
	go_out(&worker, &image);
	check_files(&image);
	/* Everything becomes zeros, all files lose all their pages; and back. */
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

/* Zeros at the beginning, in the middle, at the end, two in a row, a whole file, and nearly. */
static void make_zeros(struct image *image)
{
	memset(image->memory[0], 0, sizes[0]);
	memset(image->memory[1], 0, PIECE);
	memset(image->memory[1] + 3 * PIECE, 0, 2 * PIECE);
	memset(image->memory[1] + 8 * PIECE, 0, PIECE);
	/* Not a piece of the file: half of one and half of the next. */
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

/* Pieces of nothing but zeros are holes, whatever the file had before, also a registered one. */
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
		/* Files of which the digests say what they had, one time. */
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
 * A registered file is used as such until it gets a hole: its new pages are not those that were
 * registered, even if it has all of them again. It can be registered anew.
 */
static void test_registered(void)
{
	static const uint64_t bytes[] = {34 * MIB};
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(bytes, 1);

	go_out(&worker, &image);
	CHECK(!is_used_as_registered(&worker, &image));
	pin_files(&worker, &image, false);
	CHECK(is_used_as_registered(&worker, &image));
	make_new(image.memory[0] + 9 * MIB, 12 * MIB);
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
	/* Before anybody can have looked at the file. */
	write_file(&image, 0, 10 * MIB, image.memory[0] + 10 * MIB, 4 * MIB);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	CHECK(!is_used_as_registered(&worker, &image));
	make_new(image.memory[0] + 11 * MIB, MIB);
	make_new(image.memory[0] + 13 * MIB, MIB);
	go_out(&worker, &image);
	check_files(&image);
	CHECK(!is_used_as_registered(&worker, &image));

	/* Anew; also if that is asked for before the old one has been given up. */
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

/* Users had the files: their pages are what counts. */
static void test_unregistered(void)
{
	static const uint64_t bytes[] = {34 * MIB};
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

static void rename_to(const struct image *image, size_t index, const char *name, bool back)
{
	char own[GCR_EXTENT_NAME_BYTES];

	gcr_extent_name(&image->process.extents[index], own);
	CHECK(!renameat(image->process.directory, back ? name : own, image->process.directory,
			back ? own : name));
}

static void swap_files(const struct image *image, size_t left, size_t right)
{
	char name[GCR_EXTENT_NAME_BYTES];

	gcr_extent_name(&image->process.extents[right], name);
	rename_to(image, left, "left", false);
	rename_to(image, right, "right", false);
	rename_to(image, left, "right", true);
	rename_to(image, right, "left", true);
}

/* What is not what was frozen does not come in, wherever it is; then what is does. */
static void test_verify(void)
{
	static const struct {
		size_t index;
		uint64_t at;
	} places[] = {
		{0, 0},
		{0, CHUNK - 1},
		{0, CHUNK},
		{0, 2 * MIB - 1},
		{1, 0},
		{1, 9 * MIB + 77},
		{1, 18 * MIB - 1},
		{2, 3 * MIB},
		{4, 2 * MIB - CHUNK},
		{5, 6 * MIB - 1},
	};
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(sizes, SIZES);
	size_t before = free_of(0);
	char *memory;
	int fd;

	memset(image.memory[1] + 4 * MIB, 0, PIECE);
	go_out(&worker, &image);
	process_release(&image.process, true);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(places); i++) {
		fd = process_open(&image.process, places[i].index);
		flip_byte(fd, (off_t)places[i].at);
		refuse_in(&worker, &image, places[i].index, places[i].at / CHUNK * CHUNK);
		flip_byte(fd, (off_t)places[i].at);
		close(fd);
	}

	/* A hole gets a byte, and data become a hole. */
	fd = process_open(&image.process, 1);
	write_file(&image, 1, 5 * MIB + 3, "x", 1);
	refuse_in(&worker, &image, 1, 5 * MIB);
	CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * MIB, PIECE));
	CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8 * MIB, PIECE));
	refuse_in(&worker, &image, 1, 8 * MIB);
	write_file(&image, 1, 8 * MIB, image.memory[1] + 8 * MIB, PIECE);
	close(fd);
	/* Two places: the first of them is named. */
	fd = process_open(&image.process, 2);
	flip_byte(fd, 5 * MIB);
	flip_byte(fd, 2 * MIB + 1);
	refuse_in(&worker, &image, 2, 2 * MIB);
	flip_byte(fd, 5 * MIB);
	flip_byte(fd, 2 * MIB + 1);
	close(fd);
	/* The digests themselves: the last byte of one, and the first of all. */
	flip_byte(image.process.digests, process_digests_offset(&image.process, 3) +
						 70 * GCR_DIGEST_BYTES + GCR_DIGEST_BYTES - 1);
	refuse_in(&worker, &image, 3, 70 * CHUNK);
	flip_byte(image.process.digests, process_digests_offset(&image.process, 0));
	refuse_in(&worker, &image, 0, 0);
	flip_byte(image.process.digests, process_digests_offset(&image.process, 0));
	flip_byte(image.process.digests, process_digests_offset(&image.process, 3) +
						 70 * GCR_DIGEST_BYTES + GCR_DIGEST_BYTES - 1);
	swap_files(&image, 2, 5);
	refuse_in(&worker, &image, 2, 0);
	swap_files(&image, 2, 5);

	/* In the same session once more, when the file is right again. */
	fd = process_open(&image.process, 4);
	flip_byte(fd, 100);
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &image.process, 0));
	DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
	REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EIO, "at offset 0 is another");
	REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EIO, "at offset 0 is another");
	flip_byte(fd, 100);
	DONE(worker_do(&worker, GCR_MESSAGE_COPY));
	DONE(session_export(&worker, &image.process));
	OK(CU(cuMemImportFromShareableHandle)(&image.process.handles[4],
					      (void *)(intptr_t)image.process.fds[4],
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	memory = process_read_handle(&image.process, 4, image.process.handles[4]);
	CHECK(!memcmp(memory, image.memory[4], sizes[4]));
	free(memory);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process_release(&image.process, true);
	CHECK(free_of(0) == before);
	come_in(&worker, &image);

	/* Whoever wants edited bytes gets them. */
	image.memory[4][100] ^= 0x10;
	flip_byte(fd, 100);
	close(fd);
	make_new(image.memory[1] + 4 * MIB, PIECE);
	write_file(&image, 1, 4 * MIB, image.memory[1] + 4 * MIB, PIECE);
	image.process.flags = GCR_SESSION_UNVERIFIED;
	come_in(&worker, &image);
	image.process.flags = 0;
	process_release(&image.process, true);
	refuse_in(&worker, &image, 1, 4 * MIB);
	image_destroy(&image);
	CHECK(free_of(0) == before);
	CHECK(worker_leaves(&worker) == 0);
}

/* The store is full in the middle: the files that are known, too, are right when there is room. */
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
		/* 8 MiB of the files are there. */
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

/* One change of any kind, anywhere. */
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
		/* A chunk as there is one elsewhere already. */
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
	enum { ROUNDS = 20 };
	struct worker worker = worker_start(&(struct worker_options){0});
	struct image image = image_create(sizes, SIZES);
	size_t before = free_of(0);
	uint64_t seed = (uint64_t)gcr_clock_usec();

	if (getenv("GPUCR_TEST_SEED"))
		seed = strtoull(getenv("GPUCR_TEST_SEED"), NULL, 0);
	fprintf(stderr, "GPUCR_TEST_SEED=%llu\n", (unsigned long long)seed);
	random_state = seed;
	for (int round = 0; round < ROUNDS; round++) {
		for (uint64_t i = any(12); i > 0; i--)
			change_any(&image);
		set_all_known(&image, round > 0);
		/* Nothing is known any more of a file that somebody has written to. */
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

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{"digests", test_digests},	 {"known", test_known},
	{"known_all", test_known_all},	 {"zeros", test_zeros},
	{"registered", test_registered}, {"unregistered", test_unregistered},
	{"verify", test_verify},	 {"full_store", test_full_store},
	{"random", test_random},
};

/* With a name: only that test. */
int main(int argc, char **argv)
{
	sim_begin("1", "512M");
	alarm(450 * TEST_SLOW);
	store_make();
	OK(CU(cuInit)(0));
	use_gpu(0);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(tests); i++) {
		if (argc > 1 && strcmp(argv[1], tests[i].name))
			continue;
		fprintf(stderr, "%s\n", tests[i].name);
		tests[i].run();
	}
	store_leave();
	return 0;
}
