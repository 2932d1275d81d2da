/* SPDX-License-Identifier: MIT */
/*
 * gpucr-worker with files that the daemon has packed: they come back unchanged, or not at all. The
 * daemon's own code makes the segments and tables. Random: GPUCR_TEST_SEED sets the seed, argument
 * 1 the number of changes.
 */
#include <ftw.h>
#include <inttypes.h>
#include <time.h>

#include "fs/pack/pack_table.h"
#include "fs/pack/packs.h"
#include "fs/pack/spill.h"
#include "test/unit/worker/worker.h"

#define TRIES  40
#define PIECE  GCR_PACK_PIECE_BYTES
#define CHUNK  GCR_CHUNK_BYTES
#define USER   1000
#define TABLES "packed-1000"

static const uint64_t sizes[] = {6 * MIB, 2 * MIB, 4 * MIB, 2 * MIB};
#define SIZES	 GCR_ARRAY_SIZE(sizes)
/* This file is not packed, and has no table. */
#define UNPACKED 1

/* A process, the content of its memory, and its packed chunks. */
struct image {
	struct process process;
	char *memory[SIZES];
	struct gcr_packs *packs;
	struct gcr_packer *packer;
	struct gcr_spill *spill;
	int store_fd;
	char disk[40]; /* the spill directory; on a disk if /tmp is on one */
};

static uint64_t random_state;

static uint64_t any(uint64_t below)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (random_state >> 33) % below;
}

/* ---- packing, as the daemon does ---- */

/*
 * Fills a chunk by @kind: 0 zeros, 1 incompressible bytes, 2 weights, else text, the same in all
 * chunks of the kind.
 */
UNSEEN static void fill_chunk(char *chunk, unsigned int kind)
{
	memset(chunk, 0, CHUNK);
	for (size_t i = 0; i < CHUNK && kind; i++)
		switch (kind) {
		case 1:
			chunk[i] = (char)any(256);
			break;
		case 2:
			chunk[i] = i % 2 ? (char)(0x3c + any(3)) : (char)any(256);
			break;
		default:
			chunk[i] = "a chunk of no interest "[(i + kind) % 23];
		}
}

static void fill(char *memory, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += CHUNK)
		fill_chunk(memory + at, at / PIECE == 1 ? 0 : (unsigned int)any(5));
}

static void pack_chunk(struct image *image, const char *chunk, struct gcr_pack_entry *ret_entry)
{
	static char packed[GCR_PACK_MAX_BYTES];
	struct gcr_digest digest;
	enum gcr_pack_form form;
	size_t bytes;

	if (gcr_pack_is_zero(chunk, CHUNK)) {
		gcr_packs_zeros(CHUNK, ret_entry);
		return;
	}
	gcr_digest_of(chunk, CHUNK, &digest);
	bytes = gcr_pack(image->packer, chunk, CHUNK, packed, &form);
	CHECK(!gcr_packs_add(image->packs, &digest, CHUNK, form, packed, bytes, ret_entry));
}

static void pack_piece(struct image *image, size_t index, uint64_t piece,
		       struct gcr_pack_table *table)
{
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];
	_cleanup_close_ int fd = process_open(&image->process, index);

	for (size_t i = 0; i < GCR_PACK_PIECE_CHUNKS; i++)
		pack_chunk(image, image->memory[index] + piece * PIECE + i * CHUNK, &entries[i]);
	CHECK(!gcr_pack_table_publish(table, piece, entries));
	CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(piece * PIECE),
			 PIECE));
}

static void table_name(const struct image *image, size_t index,
		       char ret_name[GCR_PACK_TABLE_NAME_BYTES])
{
	_cleanup_close_ int fd = process_open(&image->process, index);
	struct stat status;

	CHECK(!fstat(fd, &status));
	gcr_pack_table_name(status.st_ino, ret_name);
}

/*
 * Packs all files except one; at most two pieces of each, so the last piece of a longer file stays
 * unpacked.
 */
static void pack(struct image *image)
{
	struct gcr_error error;

	for (size_t i = 0; i < SIZES; i++) {
		_cleanup_(gcr_pack_table_unref_cleanup) struct gcr_pack_table *table = NULL;
		char name[GCR_PACK_TABLE_NAME_BYTES];

		if (i == UNPACKED)
			continue;
		table_name(image, i, name);
		CHECK(!gcr_pack_table_open(image->process.tables, name, sizes[i], USER, true,
					   &table, &error));
		for (uint64_t piece = 0; piece < sizes[i] / PIECE; piece++)
			if (piece < 2)
				pack_piece(image, i, piece, table);
	}
}

static int open_directory(const char *name)
{
	_cleanup_close_ int fd = open(store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	CHECK(!mkdirat(fd, name, 0700));
	return openat(fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/*
 * Registers a file that is packed later: the registered pages are then no longer those of the file.
 */
static void register_file(struct worker *worker, const struct process *process, size_t index)
{
	_cleanup_close_ int fd = process_open(process, index);

	while (worker_do_fds(worker, GCR_MESSAGE_PIN, NULL, 0, &fd, 1) == EAGAIN)
		;
	CHECK(!worker_result.error);
}

/* Creates a process, frozen by @worker and then packed. */
static void image_create(struct image *image, struct worker *worker)
{
	_cleanup_close_ int fd = open(store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct gcr_spill_options options = {.path = image->disk, .limit_bytes = UINT64_MAX};
	struct gcr_packs_account account = {0};
	struct process *process = &image->process;
	struct gcr_error error;

	snprintf(image->disk, sizeof(image->disk), "/tmp/gpucr-disk-XXXXXX");
	CHECK(mkdtemp(image->disk));
	*process = process_create(store, 1, 0, sizes, SIZES);
	for (size_t i = 0; i < SIZES; i++) {
		image->memory[i] = malloc(sizes[i]);
		fill(image->memory[i], sizes[i]);
		process_allocate_piece(process, i, image->memory[i]);
	}
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_OUT, process, 0));
	DONE(session_import(worker, process));
	DONE(worker_do(worker, GCR_MESSAGE_COPY));
	DONE(worker_do(worker, GCR_MESSAGE_END));
	process_release(process, true);
	register_file(worker, process, SIZES - 1);
	CHECK(!gcr_packer_create(&image->packer));
	image->store_fd = TAKE_FD(fd);
	CHECK(!gcr_spill_open(image->store_fd, &options, &image->spill, &error));
	account.spill = image->spill;
	CHECK(!gcr_packs_open(image->store_fd, USER, &account, &image->packs, &error));
	process->tables = open_directory(TABLES);
	process->segments = gcr_packs_directory(image->packs);
	process->flags = GCR_SESSION_PACKED;
	pack(image);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *ftw)
{
	return remove(path);
}

static void image_destroy(struct image *image)
{
	close(image->process.tables);
	process_destroy(&image->process);
	for (size_t i = 0; i < SIZES; i++)
		free(image->memory[i]);
	gcr_packs_unref(image->packs);
	gcr_spill_close(image->spill);
	close(image->store_fd);
	gcr_packer_destroy(image->packer);
	CHECK(!nftw(image->disk, remove_one, 8, FTW_DEPTH | FTW_PHYS));
}

/* ---- coming back ---- */

static blkcnt_t blocks_of(const struct image *image)
{
	blkcnt_t blocks = 0;

	for (size_t i = 0; i < SIZES; i++) {
		_cleanup_close_ int fd = process_open(&image->process, i);
		struct stat status;

		CHECK(!fstat(fd, &status));
		blocks += status.st_blocks;
	}
	return blocks;
}

static void check_memory(const struct image *image)
{
	const struct process *process = &image->process;

	for (size_t i = 0; i < SIZES; i++) {
		_cleanup_free_ void *memory = NULL;

		OK(CU(cuMemImportFromShareableHandle)(&image->process.handles[i],
						      (void *)(intptr_t)process->fds[i],
						      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		memory = process_read_handle(process, i, process->handles[i]);
		CHECK(!memcmp(memory, image->memory[i], sizes[i]));
	}
}

/* The memory comes back byte by byte, and the files are not changed. */
static void come_back(struct worker *worker, struct image *image)
{
	blkcnt_t blocks = blocks_of(image);

	DONE(session_begin(worker, GCR_MESSAGE_SESSION_IN, &image->process, 0));
	DONE(worker_do(worker, GCR_MESSAGE_CREATE));
	DONE(worker_do(worker, GCR_MESSAGE_COPY));
	DONE(session_export(worker, &image->process));
	check_memory(image);
	DONE(worker_do(worker, GCR_MESSAGE_END));
	process_release(&image->process, true);
	CHECK(blocks_of(image) == blocks);
}

/* The copy is refused with @words, and the session leaves nothing behind. */
static void stay(struct worker *worker, struct image *image, const char *words)
{
	size_t before = free_of(0);

	DONE(session_begin(worker, GCR_MESSAGE_SESSION_IN, &image->process, 0));
	DONE(worker_do(worker, GCR_MESSAGE_CREATE));
	REFUSED(worker_do(worker, GCR_MESSAGE_COPY), EIO, words);
	CHECK(session_export(worker, &image->process) == EINVAL);
	DONE(worker_do(worker, GCR_MESSAGE_END));
	CHECK(free_of(0) == before);
}

static void test_round_trip(struct worker *worker, struct image *image)
{
	blkcnt_t packed = blocks_of(image);

	/* Two pieces each of the first and the third file are packed, and all of the fourth. */
	CHECK(packed * 512 <= (blkcnt_t)(4 * MIB));
	come_back(worker, image);
	come_back(worker, image);
}

/* ---- on a disk ---- */

/* The memory comes back from the disk, but not while the directory is missing. */
static void test_spilled(struct worker *worker, struct image *image)
{
	struct gcr_error error;
	uint64_t bytes;
	char away[64];
	char path[256] = {0};

	CHECK(!gcr_packs_spill(image->packs, 1, &bytes, &error) && bytes);
	come_back(worker, image);
	snprintf(away, sizeof(away), "%s-away", image->disk);
	CHECK(!rename(image->disk, away));
	stay(worker, image, "No such file");
	/* A symbolic link to the directory is in its place. */
	CHECK(!symlink(away, image->disk));
	come_back(worker, image);
	CHECK(!unlink(image->disk) && !rename(away, image->disk));
	come_back(worker, image);
	/* A segment that belongs to another user is refused. */
	if (geteuid() != 0)
		return;
	CHECK(readlinkat(image->process.segments, "1", path, sizeof(path) - 1) > 0);
	CHECK(!chown(path, 1, 1));
	stay(worker, image, "damaged");
	CHECK(!chown(path, 0, 0));
	come_back(worker, image);
}

/* ---- damage ---- */

/*
 * Returns a random stored chunk's entry of the first piece of a file, and its offset in the table.
 */
static struct gcr_pack_entry any_entry(const struct image *image, size_t index, off_t *ret_at)
{
	char name[GCR_PACK_TABLE_NAME_BYTES];
	_cleanup_close_ int fd = -1;
	struct gcr_pack_entry entry;

	table_name(image, index, name);
	fd = openat(image->process.tables, name, O_RDONLY | O_CLOEXEC);
	do {
		*ret_at = (off_t)(sizeof(struct gcr_pack_table_header) +
				  any(GCR_PACK_PIECE_CHUNKS) * sizeof(entry));
		CHECK(pread(fd, &entry, sizeof(entry), *ret_at) == sizeof(entry));
	} while (entry.kind != GCR_PACK_STORED);
	return entry;
}

static bool was_damaged; /* the last refusal was for damaged packed data; else for other digests */

/* A thaw must bring back either the exact memory or nothing. Returns true for nothing. */
static bool is_refused(struct worker *worker, struct image *image)
{
	bool is_refused;

	DONE(session_begin(worker, GCR_MESSAGE_SESSION_IN, &image->process, 0));
	DONE(worker_do(worker, GCR_MESSAGE_CREATE));
	is_refused = worker_do(worker, GCR_MESSAGE_COPY) != 0;
	if (is_refused) {
		was_damaged = strstr(worker_result.words, "what is packed of it is damaged");
		CHECK(worker_result.error == EIO);
		CHECK(was_damaged || strstr(worker_result.words, "is not what was frozen"));
		CHECK(session_export(worker, &image->process) == EINVAL);
	} else {
		DONE(session_export(worker, &image->process));
		check_memory(image);
	}
	DONE(worker_do(worker, GCR_MESSAGE_END));
	process_release(&image->process, true);
	return is_refused;
}

/* A changed byte of an uncompressed chunk on the disk is detected when the chunk is read. */
static void test_changed_on_disk(struct worker *worker, struct image *image)
{
	_cleanup_close_ int fd = openat(image->process.segments, "1", O_RDWR | O_CLOEXEC);
	struct gcr_pack_entry entry;
	uint8_t byte, other;
	off_t at;

	do
		entry = any_entry(image, 0, &at);
	while (entry.form != GCR_PACK_RAW || entry.segment != 1);
	CHECK(pread(fd, &byte, 1, entry.offset + 77) == 1);
	other = byte ^ 1;
	CHECK(pwrite(fd, &other, 1, entry.offset + 77) == 1);
	CHECK(is_refused(worker, image));
	CHECK(was_damaged);
	CHECK(pwrite(fd, &byte, 1, entry.offset + 77) == 1);
	come_back(worker, image);
}

/* Changes any byte of packed chunks. Some changes are harmless, as a text repeats itself. */
static void test_changed_segments(struct worker *worker, struct image *image, unsigned int tries)
{
	unsigned int refused = 0;

	for (unsigned int i = 0; i < tries; i++) {
		unsigned char right, wrong;
		off_t at;
		struct gcr_pack_entry entry = any_entry(image, i % 2 ? 0 : 2, &at);
		off_t place = entry.offset + (off_t)any(gcr_pack_entry_packed_bytes(&entry));
		_cleanup_close_ int fd = -1;
		char name[16];

		snprintf(name, sizeof(name), "%u", entry.segment);
		fd = openat(image->process.segments, name, O_RDWR | O_CLOEXEC);
		CHECK(fd >= 0 && pread(fd, &right, 1, place) == 1);
		wrong = right ^ (unsigned char)(1 + any(255));
		CHECK(pwrite(fd, &wrong, 1, place) == 1);
		refused += is_refused(worker, image);
		CHECK(pwrite(fd, &right, 1, place) == 1);
	}
	CHECK(refused > tries / 2);
	come_back(worker, image);
}

/* A byte of a table, and the words of the error that it is refused with. */
struct change {
	size_t at;
	unsigned char byte;
	const char *words;
};

/* Impossible values in a table are refused; each is restored afterwards. */
static void test_changed_tables(struct worker *worker, struct image *image)
{
	static const struct change changes[] = {
		{offsetof(struct gcr_pack_entry, kind), 3, "damaged"},
		{offsetof(struct gcr_pack_entry, kind), GCR_PACK_ZEROS, "digest"},
		{offsetof(struct gcr_pack_entry, form), 9, "damaged"},
		{offsetof(struct gcr_pack_entry, bytes_less_1), 1, "damaged"},
		{offsetof(struct gcr_pack_entry, segment) + 3, 0x7f, "No such file"},
		{offsetof(struct gcr_pack_entry, offset) + 3, 0xff, "damaged"},
	};
	char name[GCR_PACK_TABLE_NAME_BYTES];
	_cleanup_close_ int fd = -1;

	table_name(image, 0, name);
	fd = openat(image->process.tables, name, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(changes); i++) {
		unsigned char right;
		off_t at;

		any_entry(image, 0, &at);
		at += (off_t)changes[i].at;
		CHECK(pread(fd, &right, 1, at) == 1);
		CHECK(pwrite(fd, &changes[i].byte, 1, at) == 1);
		stay(worker, image, changes[i].words);
		CHECK(pwrite(fd, &right, 1, at) == 1);
	}
	come_back(worker, image);
}

static void test_changed_headers(struct worker *worker, struct image *image)
{
	static const struct change changes[] = {
		{0, 'X', "damaged"},
		{0, 0, "digest"}, /* never finished: the file counts, and has holes */
		{offsetof(struct gcr_pack_table_header, version), 2, "damaged"},
		{offsetof(struct gcr_pack_table_header, chunk_bytes), 1, "damaged"},
		{offsetof(struct gcr_pack_table_header, file_bytes), 1, "damaged"},
	};
	char name[GCR_PACK_TABLE_NAME_BYTES];
	_cleanup_close_ int fd = -1;
	struct stat status;

	table_name(image, 0, name);
	fd = openat(image->process.tables, name, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && !fstat(fd, &status));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(changes); i++) {
		off_t at = (off_t)changes[i].at;
		unsigned char right;

		CHECK(pread(fd, &right, 1, at) == 1);
		CHECK(pwrite(fd, &changes[i].byte, 1, at) == 1);
		stay(worker, image, changes[i].words);
		CHECK(pwrite(fd, &right, 1, at) == 1);
	}
	come_back(worker, image);

	/* Without the table the file's holes are read; a truncated table has no entries. */
	CHECK(!renameat(image->process.tables, name, image->process.tables, "away"));
	stay(worker, image, "digest");
	CHECK(!renameat(image->process.tables, "away", image->process.tables, name));
	come_back(worker, image);
	CHECK(!ftruncate(fd, (off_t)sizeof(struct gcr_pack_table_header) + 100));
	stay(worker, image, "damaged");
}

/* Sessions that the worker refuses to begin. */
static void test_refused(struct worker *worker, struct image *image)
{
	struct process *process = &image->process;
	struct gcr_session asked = {.count = SIZES, .first_chunk = OTHER_CHUNKS};
	_cleanup_close_ int table = gcr_extents_write(process->extents, process->count);
	int fds[] = {table, process->directory, process->digests, process->tables,
		     process->segments};

	REFUSED(session_begin(worker, GCR_MESSAGE_SESSION_OUT, process, 0), EINVAL, "packed");
	REFUSED(worker_do_fds(worker, GCR_MESSAGE_SESSION_IN, &asked, sizeof(asked), fds, 5),
		EPROTO, "three");
	asked.flags = GCR_SESSION_PACKED;
	REFUSED(worker_do_fds(worker, GCR_MESSAGE_SESSION_IN, &asked, sizeof(asked), fds, 3),
		EPROTO, "five");
}

int main(int argc, char **argv)
{
	unsigned int tries = argc > 1 ? (unsigned int)strtoul(argv[1], NULL, 0) : TRIES / TEST_SLOW;
	const char *seed = getenv("GPUCR_TEST_SEED");
	struct image image = {0};
	struct worker worker;
	size_t before;

	random_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
	fprintf(stderr, "seed %" PRIu64 ", %u changes\n", random_state, tries);
	worker_test_begin(1);
	worker = worker_start(&(struct worker_options){0});
	before = free_of(0);
	image_create(&image, &worker);
	test_refused(&worker, &image);
	test_round_trip(&worker, &image);
	test_changed_segments(&worker, &image, tries / 2);
	test_spilled(&worker, &image);
	test_changed_on_disk(&worker, &image);
	test_changed_segments(&worker, &image, tries);
	test_changed_tables(&worker, &image);
	test_changed_headers(&worker, &image);
	CHECK(free_of(0) == before);
	image_destroy(&image);
	CHECK(worker_leaves(&worker) == 0);
	store_leave();
	return 0;
}
