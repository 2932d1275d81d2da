/* SPDX-License-Identifier: MIT */
/*
 * The store with packed snapshots: how they are counted, how they survive a killed daemon, and that
 * nothing of them is left after their removal.
 */
#include "fs/store/subtree_private.h"

#include <sys/resource.h>

#include "fs/base/digest_buffer.h"
#include "fs/pack/pack_table.h"
#include "fs/store/pack_work.h"
#include "test/unit/store/pack.h"

/* Files 0 to 3 of create(), which a worker fills, are packed. */
#define PACKED 4

/* Creates a snapshot whose files each have a pattern of their own, counted as after a freeze. */
static struct gcr_snapshot *create_full(pid_t pid, const char *generation)
{
	struct gcr_snapshot *snapshot = create(pid, generation);

	for (size_t i = 0; i < COUNT; i++)
		write_pattern(snapshot, i, (unsigned char)i);
	gcr_snapshot_finish(snapshot);
	return snapshot;
}

static struct gcr_packs *pack_files(struct gcr_snapshot *snapshot)
{
	struct gcr_packs *packs = begin_packing(snapshot);

	for (size_t i = 0; i < PACKED; i++) {
		struct gcr_subtree_file *file = open_to_pack(snapshot, i);

		CHECK(pack_all(packs, file) == sizes[i] / PAGE);
		gcr_subtree_close(file);
	}
	return packs;
}

static void check_files(struct gcr_snapshot *snapshot)
{
	for (size_t i = 0; i < COUNT; i++)
		check_pattern(snapshot, i, (unsigned char)i);
}

static uint64_t packs_bytes(void)
{
	struct gcr_packs_figures found;

	gcr_store_packs_figures(store, &found);
	return found.memory_bytes;
}

static void wait_removed(void)
{
	pthread_mutex_lock(&store->lock);
	while (store->removals || store->removing)
		pthread_cond_wait(&store->changed, &store->lock);
	pthread_mutex_unlock(&store->lock);
}

/* Packing reduces the used bytes, and unpacking increases them again. */
static void test_account(void)
{
	struct gcr_subtree_file *file;
	struct gcr_snapshot *snapshot;
	struct gcr_digest_buffer *digests = NULL;
	uint64_t before;
	uint64_t tables;

	daemon_.options.keep_bytes = 256 * MIB;
	start(256 * MIB, 128 * MIB);
	snapshot = create_full(getpid(), GENERATION);
	before = figures().used_bytes;
	pack_files(snapshot);
	check_account(snapshot);
	tables = sum(gcr_subtree_tables(gcr_snapshot_subtree(snapshot)));
	CHECK(packs_bytes() && tables);
	/*
	 * The unpacked rest, and the room for the metadata, which this test does not write, stay
	 * counted.
	 */
	CHECK(figures().used_bytes <= before - 50 * MIB + packs_bytes() + tables);
	check_files(snapshot);
	file = open_to_pack(snapshot, 2);
	for (uint64_t piece = 0; piece < gcr_subtree_pieces(file); piece++)
		CHECK(!gcr_subtree_unpack_piece(file, piece));
	gcr_subtree_close(file);
	check_account(snapshot);
	check_files(snapshot);
	CHECK(figures().used_bytes >= 36 * MIB);
	/* A packed snapshot is not kept, and its files do not go into the pool. */
	CHECK(!gcr_digest_buffer_create(gcr_snapshot_first_chunk(snapshot, COUNT), &digests));
	CHECK(gcr_store_keep(snapshot, &digests) == -ENOSPC);
	gcr_digest_buffer_destroy(digests);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	CHECK(!packs_bytes() && !figures().pool_bytes);
	stop();
	daemon_.options.keep_bytes = 0;
}

/* Chunks that two snapshots of a user share are stored once, until both snapshots are removed. */
static void test_shared(void)
{
	struct gcr_snapshot *first;
	struct gcr_snapshot *second;
	uint64_t bytes;

	start(256 * MIB, 0);
	first = create_full(getpid(), GENERATION);
	second = create_full(getpid(), GENERATION2);
	pack_files(first);
	bytes = packs_bytes();
	pack_files(second);
	CHECK(packs_bytes() == bytes);
	gcr_snapshot_discard(first);
	wait_removed();
	CHECK(packs_bytes() == bytes);
	check_files(second);
	check_account(second);
	gcr_snapshot_discard(second);
	wait_used(0);
	CHECK(!packs_bytes());
	stop();
}

/*
 * A reader of a discarded snapshot can continue; the chunks are removed after it has closed the
 * file.
 */
static void test_open_when_discarded(void)
{
	struct gcr_subtree_file *file;
	struct gcr_snapshot *snapshot;

	start(256 * MIB, 0);
	snapshot = create_full(getpid(), GENERATION);
	pack_files(snapshot);
	CHECK(!open_outside(snapshot, 2, O_RDONLY, &file));
	gcr_snapshot_discard(snapshot);
	wait_removed();
	CHECK(packs_bytes() && has_pattern(file, sizes[2], 2));
	gcr_subtree_close(file);
	wait_used(0);
	CHECK(!packs_bytes());
	stop();
}

/* Creates a snapshot, and another one that adopts its file 2. */
static void create_two(struct gcr_snapshot **ret_snapshot, struct gcr_snapshot **ret_other)
{
	struct gcr_error error;

	start(256 * MIB, 0);
	*ret_snapshot = create_full(getpid(), GENERATION);
	CHECK(!gcr_snapshot_adopt(store, getpid(), our_ticks, GENERATION2,
				  gcr_snapshot_extent(*ret_snapshot, 2), 1,
				  (*ret_snapshot)->files_fd, ret_other, &error));
}

static void discard_two(struct gcr_snapshot *snapshot, struct gcr_snapshot *other)
{
	gcr_snapshot_discard(other);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/*
 * While a reader has a file open by a removed name of another snapshot, no holes are made in the
 * file.
 */
static void test_open_by_other_name(void)
{
	struct gcr_subtree_file *reader, *file;
	struct gcr_snapshot *snapshot, *other;
	struct gcr_packs *packs;

	create_two(&snapshot, &other);
	CHECK(!open_outside(other, 0, O_RDONLY, &reader));
	packs = begin_packing(snapshot);
	file = open_to_pack(snapshot, 2);
	CHECK(pack_piece(packs, file, 0) == -EMLINK);
	remove_file(other, 0);
	CHECK(pack_piece(packs, file, 0) == -ETXTBSY);
	CHECK(has_pattern(reader, sizes[2], 2));
	gcr_subtree_close(reader);
	CHECK(!pack_piece(packs, file, 0));
	gcr_subtree_close(file);
	discard_two(snapshot, other);
}

/*
 * The packing subtree loses its own name of the file. The file still has a name in the other
 * subtree, which has no table.
 */
static void test_own_name_removed(void)
{
	struct gcr_subtree_file *reader, *file;
	struct gcr_snapshot *snapshot, *other;
	struct gcr_packs *packs;

	create_two(&snapshot, &other);
	packs = begin_packing(snapshot);
	file = open_to_pack(snapshot, 2);
	remove_file(snapshot, 2);
	CHECK(pack_piece(packs, file, 0) == -EMLINK);
	gcr_subtree_close(file);
	CHECK(!open_outside(other, 0, O_RDONLY, &reader));
	CHECK(has_pattern(reader, sizes[2], 2));
	gcr_subtree_close(reader);
	discard_two(snapshot, other);
}

/* ---- a daemon that is killed ---- */

static void be_killed(void)
{
	struct gcr_snapshot *snapshot;
	char *bytes = malloc(sizes[0]);
	int fd;

	start(256 * MIB, 0);
	snapshot = create_full(LEFT_PID, GENERATION);
	fd = gcr_snapshot_open_file(snapshot, 0, true);
	CHECK(bytes && fd >= 0 && pread(fd, bytes, sizes[0], 0) == (ssize_t)sizes[0]);
	pack_files(snapshot);
	/*
	 * Leave pieces that are packed but not yet punched, and a file that is shorter than its
	 * table.
	 */
	CHECK(pwrite(fd, bytes, 3 * MIB, 0) == 3 * MIB);
	close(fd);
	/*
	 * A piece that was being unpacked: the first page that is written makes all of a huge page
	 * data, and the rest of it is zeros.
	 */
	memset(bytes, 0, sizes[1]);
	fd = gcr_snapshot_open_file(snapshot, 1, true);
	CHECK(pwrite(fd, bytes, sizes[1], 0) == (ssize_t)sizes[1]);
	close(fd);
	fd = gcr_snapshot_open_file(snapshot, 3, true);
	CHECK(!ftruncate(fd, 2 * MIB));
	close(fd);
	free(bytes);
}

static void test_killed(void)
{
	struct gcr_subtree_file *file;
	struct gcr_snapshot *snapshot;
	struct gcr_pack_figures found;
	uint64_t bytes;

	in_killed_daemon();
	start(256 * MIB, 0);
	bytes = packs_bytes();
	CHECK(bytes && figures().used_bytes >= bytes);
	snapshot = open_left();
	gcr_subtree_pack_figures(gcr_snapshot_subtree(snapshot), &found);
	CHECK(found.packed_bytes == 50 * MIB);
	/* Bytes that are both in the file and in chunks are the same. */
	for (size_t i = 0; i < 3; i++)
		check_pattern(snapshot, i, (unsigned char)i);
	check_account(snapshot);
	file = open_to_pack(snapshot, 0);
	check_account(snapshot);
	CHECK(lseek(gcr_subtree_file_fd(file), 0, SEEK_DATA) < 0);
	check_pattern(snapshot, 0, 0);
	CHECK(pack_all(gcr_subtree_packs(gcr_snapshot_subtree(snapshot)), file) == 0);
	gcr_subtree_close(file);
	/* Nothing is read beyond the end of the file, also after the end has been moved. */
	CHECK(!open_outside(snapshot, 3, O_RDWR, &file));
	CHECK(has_pattern(file, 2 * MIB, 3) && read_size(file, 2 * MIB, 1) == 0);
	CHECK(!gcr_subtree_truncate(file, 4 * MIB));
	CHECK(gcr_subtree_seek(file, 2 * MIB, SEEK_DATA) == -ENXIO);
	CHECK(packs_bytes() < bytes);
	gcr_subtree_close(file);
	check_account(snapshot);
	/* Open the same snapshot again, under the same daemon. */
	gcr_snapshot_unref(snapshot);
	snapshot = open_left();
	check_pattern(snapshot, 2, 2);
	check_account(snapshot);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	CHECK(!packs_bytes());
	stop();
}

/* A snapshot that was never opened is swept, and its chunks with it. */
static void test_swept(void)
{
	in_killed_daemon();
	start(256 * MIB, 0);
	CHECK(packs_bytes());
	gcr_store_sweep(store);
	wait_used(0);
	CHECK(!packs_bytes());
	stop();
}

static void set_descriptors(rlim_t most)
{
	struct rlimit limit;

	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = most;
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
}

/*
 * Without descriptors the daemon cannot read which chunks a snapshot has. The chunks are removed
 * when descriptors are available again, or by the next daemon.
 */
static void test_removed_without_descriptors(bool was_opened, bool is_stopped)
{
	struct gcr_snapshot *snapshot;
	struct rlimit before;

	in_killed_daemon();
	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	start(256 * MIB, 0);
	snapshot = was_opened ? open_left() : NULL;
	set_descriptors(3);
	if (was_opened)
		gcr_snapshot_discard(snapshot);
	else
		gcr_store_drop_left(store, LEFT_PID, LEFT_TICKS);
	wait_left_removal();
	CHECK(packs_bytes());
	if (is_stopped)
		stop();
	set_descriptors(before.rlim_cur);
	if (is_stopped) {
		start(256 * MIB, 0);
		gcr_store_sweep(store);
	}
	wait_used(0);
	CHECK(!packs_bytes());
	stop();
}

/*
 * A daemon with too small a limit of descriptors loses nothing: it either does not start, or has
 * everything.
 */
static void test_no_descriptors(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_error error = {0};
	struct rlimit before;
	struct rlimit few;
	unsigned int failed = 0;

	in_killed_daemon();
	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	few = before;
	for (few.rlim_cur = 4; !store; few.rlim_cur++) {
		CHECK(few.rlim_cur < 100 && !setrlimit(RLIMIT_NOFILE, &few));
		failed += gcr_store_create(&daemon_, &store, &error) < 0;
	}
	CHECK(failed > 2 && !setrlimit(RLIMIT_NOFILE, &before));
	snapshot = open_left();
	for (size_t i = 0; i < 3; i++)
		check_pattern(snapshot, i, (unsigned char)i);
	gcr_snapshot_unref(snapshot);
	stop();
	/* Nor does the daemon take a table that it cannot open for a missing one. */
	start(256 * MIB, 0);
	for (few.rlim_cur = 4;; few.rlim_cur++) {
		CHECK(few.rlim_cur < 100 && !setrlimit(RLIMIT_NOFILE, &few));
		if (!gcr_snapshot_open(store, LEFT_PID, LEFT_TICKS, GENERATION, &snapshot, &error))
			break;
	}
	CHECK(!setrlimit(RLIMIT_NOFILE, &before));
	for (size_t i = 0; i < 3; i++)
		check_pattern(snapshot, i, (unsigned char)i);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* ---- whole snapshots ---- */

static struct gcr_pack_work *begin_work(struct gcr_snapshot *snapshot, bool unpack)
{
	struct gcr_pack_work *work;
	struct gcr_error error;

	CHECK(!gcr_pack_work_create(snapshot, unpack, false, &work, &error));
	return work;
}

/* Works to the end; returns the error of single files, with a message. */
static int end_work(struct gcr_pack_work *work, struct gcr_error *error)
{
	struct gcr_pack_worker *worker;
	int result = 1;

	CHECK(!gcr_pack_worker_create(&worker));
	while (result > 0)
		result = gcr_pack_work_step(work, worker, NULL, error);
	CHECK(!result);
	result = gcr_pack_work_result(work, error);
	gcr_pack_worker_destroy(worker);
	gcr_pack_work_destroy(work);
	return result;
}

/*
 * Unpacking a snapshot without packed files changes nothing: it has no packs, and is not touched.
 */
static void test_unpack_of_nothing(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_error error;

	start(256 * MIB, 0);
	snapshot = create_full(getpid(), GENERATION);
	CHECK(!end_work(begin_work(snapshot, true), &error));
	CHECK(!gcr_subtree_is_touched(gcr_snapshot_subtree(snapshot)));
	CHECK(!gcr_subtree_packs(gcr_snapshot_subtree(snapshot)));
	check_files(snapshot);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* ---- many files ---- */

/* Many more files than the limit of descriptors; more still if all tests are run. */
#define MANY	    ((size_t)test_few(300, TEST_SLOW > 1 ? 300 : 3000))
#define WRITTEN	    100000 /* bytes of each file; the rest are zeros */
#define DESCRIPTORS 64

/* Number of tables that are mapped at the moment. */
static unsigned int count_tables(void)
{
	FILE *file = fopen("/proc/self/maps", "re");
	unsigned int count = 0;
	char *line = NULL;
	size_t size = 0;

	CHECK(file);
	while (getline(&line, &size, file) >= 0)
		count += strstr(line, "/" GCR_PACK_TABLES_NAME) != NULL;
	free(line);
	fclose(file);
	return count;
}

static struct gcr_snapshot *create_many(void)
{
	struct gcr_extent *extents = calloc(MANY, sizeof(*extents));
	struct gcr_snapshot *snapshot;
	struct gcr_error error = {0};

	CHECK(extents);
	for (size_t i = 0; i < MANY; i++)
		extents[i] = (struct gcr_extent){.address = (i + 1) * PAGE,
						 .bytes = PAGE,
						 .id = i + 1,
						 .kind = GCR_MEMORY_DEVICE};
	CHECK(!gcr_snapshot_create(store, LEFT_PID, LEFT_TICKS, GENERATION, extents, MANY,
				   &snapshot, &error));
	free(extents);
	return snapshot;
}

static void write_some(struct gcr_snapshot *snapshot, size_t index)
{
	static uint64_t words[WRITTEN / sizeof(uint64_t)];
	_cleanup_close_ int fd = gcr_snapshot_open_file(snapshot, index, true);

	for (uint64_t i = 0; i < GCR_ARRAY_SIZE(words); i++)
		words[i] = pattern(i * sizeof(*words), (unsigned char)index);
	CHECK(fd >= 0 && pwrite(fd, words, sizeof(words), 0) == sizeof(words));
}

/* Writes and packs each file before the next one: with huge pages all together would take 6 GiB. */
static void pack_many(struct gcr_snapshot *snapshot)
{
	struct gcr_packs *packs = begin_packing(snapshot);

	for (size_t i = 0; i < MANY; i++) {
		struct gcr_subtree_file *file;
		struct stat stat;

		/* Count the pages as if the file had had them before. */
		write_some(snapshot, i);
		CHECK(!gcr_snapshot_stat(snapshot, i, &stat));
		gcr_room_recount(gcr_snapshot_subtree(snapshot)->room, 0, 0,
				 (uint64_t)stat.st_blocks * 512);
		file = open_to_pack(snapshot, i);
		CHECK(!pack_piece(packs, file, 0) && (i % 500 || count_tables() == 1));
		gcr_subtree_close(file);
	}
}

static void check_many(struct gcr_snapshot *snapshot)
{
	struct gcr_pack_figures found;

	for (size_t i = 0; i < MANY; i++) {
		struct gcr_subtree_file *file;

		CHECK(!open_outside(snapshot, i, O_RDONLY, &file));
		CHECK(has_pattern(file, WRITTEN, (unsigned char)i));
		gcr_subtree_close(file);
	}
	gcr_subtree_pack_figures(gcr_snapshot_subtree(snapshot), &found);
	CHECK(found.pieces == MANY && found.packed_bytes == MANY * PAGE);
}

static void unpack_some(struct gcr_snapshot *snapshot)
{
	for (size_t i = 0; i < MANY; i += 100) {
		struct gcr_subtree_file *file = open_to_pack(snapshot, i);
		struct gcr_subtree_file *reader;

		CHECK(!gcr_subtree_unpack_piece(file, 0));
		gcr_subtree_close(file);
		CHECK(!open_outside(snapshot, i, O_RDONLY, &reader));
		CHECK(has_pattern(reader, WRITTEN, (unsigned char)i));
		gcr_subtree_close(reader);
		file = open_to_pack(snapshot, i);
		CHECK(!pack_piece(gcr_subtree_packs(gcr_snapshot_subtree(snapshot)), file, 0));
		gcr_subtree_close(file);
	}
}

/* Packed files that are not in use occupy neither descriptors nor mappings. */
static void test_many(void)
{
	struct gcr_snapshot *snapshot;
	struct rlimit before;
	struct rlimit few;

	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	few = before;
	few.rlim_cur = DESCRIPTORS;
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	start(16384 * MIB, 0);
	snapshot = create_many();
	pack_many(snapshot);
	check_many(snapshot);
	check_account(snapshot);
	CHECK(!count_tables());
	gcr_snapshot_unref(snapshot);
	stop();
	start(16384 * MIB, 0);
	snapshot = open_left();
	check_many(snapshot);
	unpack_some(snapshot);
	check_many(snapshot);
	check_account(snapshot);
	CHECK(!count_tables());
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	CHECK(!packs_bytes());
	stop();
	CHECK(!setrlimit(RLIMIT_NOFILE, &before));
}

/* ---- damaged tables ---- */

/* Without the table the daemon knows neither the content of the file nor its chunks. */
static void remove_table(struct gcr_snapshot *snapshot, size_t index)
{
	char name[GCR_PACK_TABLE_NAME_BYTES];
	struct stat stat;

	CHECK(!gcr_snapshot_stat(snapshot, index, &stat));
	gcr_pack_table_name(stat.st_ino, name);
	CHECK(!unlinkat(gcr_subtree_tables(gcr_snapshot_subtree(snapshot)), name, 0));
}

/*
 * A packed file without its table is not readable (-EIO). Its chunks are removed at the next start,
 * and those of other files stay.
 */
static void test_no_table(void)
{
	struct gcr_subtree_entry vram;
	struct gcr_subtree_file *file;
	struct gcr_snapshot *snapshot;
	char name[GCR_EXTENT_NAME_BYTES];
	uint64_t bytes;

	start(256 * MIB, 0);
	snapshot = create_full(LEFT_PID, GENERATION);
	pack_files(snapshot);
	bytes = packs_bytes();
	remove_table(snapshot, 2);
	CHECK(open_outside(snapshot, 2, O_RDONLY, &file) == -EIO);
	CHECK(gcr_snapshot_open_to_pack(snapshot, 2, &file) == -EIO);
	gcr_extent_name(gcr_snapshot_extent(snapshot, 2), name);
	CHECK(!gcr_subtree_lookup(gcr_snapshot_subtree(snapshot), GCR_SUBTREE_ROOT, "vram", &vram));
	CHECK(!gcr_subtree_remove(gcr_snapshot_subtree(snapshot), vram.item, name, false));
	gcr_subtree_forget(gcr_snapshot_subtree(snapshot), vram.item, 1);
	CHECK(packs_bytes() == bytes);
	check_account(snapshot);
	for (size_t i = 0; i < 2; i++)
		check_pattern(snapshot, i, (unsigned char)i);
	gcr_snapshot_unref(snapshot);
	stop();
	start(256 * MIB, 0);
	CHECK(packs_bytes() < bytes);
	gcr_store_drop_left(store, LEFT_PID, LEFT_TICKS);
	wait_used(0);
	CHECK(!packs_bytes());
	stop();
}

/* Makes a chunk of the first piece of file @index refer to a segment that does not exist. */
static void damage(struct gcr_snapshot *snapshot, size_t index, size_t chunk)
{
	size_t at = sizeof(struct gcr_pack_table_header) + chunk * sizeof(struct gcr_pack_entry) +
		    offsetof(struct gcr_pack_entry, segment);
	char name[GCR_PACK_TABLE_NAME_BYTES];
	const uint32_t segment = 999;
	struct stat stat;
	int fd;

	CHECK(!gcr_snapshot_stat(snapshot, index, &stat));
	gcr_pack_table_name(stat.st_ino, name);
	fd = openat(gcr_subtree_tables(gcr_snapshot_subtree(snapshot)), name, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && pwrite(fd, &segment, sizeof(segment), (off_t)at) == sizeof(segment));
	close(fd);
}

/*
 * The damaged chunk is lost for its file only. Another snapshot that shares the other chunks keeps
 * them.
 */
static void test_damaged(void)
{
	struct gcr_snapshot *damaged;
	struct gcr_snapshot *whole;
	struct gcr_subtree_bytes bytes;
	struct gcr_subtree_file *file;
	struct gcr_error error = {0};

	start(256 * MIB, 0);
	damaged = create_full(LEFT_PID, GENERATION);
	whole = create_full(getpid(), GENERATION2);
	pack_files(damaged);
	pack_files(whole);
	damage(damaged, 2, 5);
	gcr_snapshot_unref(damaged);
	gcr_snapshot_unref(whole);
	stop();
	start(256 * MIB, 0);
	damaged = open_left();
	check_pattern(damaged, 1, 1);
	CHECK(!open_outside(damaged, 2, O_RDONLY, &file));
	CHECK(gcr_subtree_read(file, 5 * 65536ull, 1, &bytes) == -EIO);
	CHECK(!gcr_subtree_read(file, 6 * 65536ull, 65536, &bytes) &&
	      *(const uint64_t *)bytes.bytes == pattern(6 * 65536ull, 2));
	gcr_subtree_read_done(file, &bytes);
	gcr_subtree_close(file);
	gcr_snapshot_unref(damaged);
	gcr_store_drop_left(store, LEFT_PID, LEFT_TICKS);
	wait_removed();
	CHECK(!gcr_snapshot_open(store, getpid(), our_ticks, GENERATION2, &whole, &error));
	check_files(whole);
	check_account(whole);
	gcr_snapshot_discard(whole);
	wait_used(0);
	CHECK(!packs_bytes());
	stop();
}

static bool names(const struct gcr_error *error, const struct gcr_snapshot *snapshot, size_t index)
{
	char name[GCR_EXTENT_NAME_BYTES];

	gcr_extent_name(gcr_snapshot_extent(snapshot, index), name);
	return strstr(error->words, name);
}

/* Two files cannot be unpacked: the other files are, and the message names the first of the two. */
static void test_some_fail(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_pack_figures found;
	struct gcr_error error;

	start(256 * MIB, 0);
	snapshot = create_full(LEFT_PID, GENERATION);
	CHECK(!end_work(begin_work(snapshot, false), &error));
	check_files(snapshot);
	damage(snapshot, 0, 5);
	remove_table(snapshot, 3);
	CHECK(end_work(begin_work(snapshot, true), &error) == -EIO && error.number == EIO);
	CHECK(names(&error, snapshot, 0) && strstr(error.words, "1 more"));
	for (size_t i = 1; i < 3; i++)
		check_pattern(snapshot, i, (unsigned char)i);
	gcr_subtree_pack_figures(gcr_snapshot_subtree(snapshot), &found);
	CHECK(found.packed_bytes == sizes[0] + sizes[3]);
	gcr_snapshot_unref(snapshot);
	stop();
	/* Chunks that no table claims are removed at the next start. */
	start(256 * MIB, 0);
	gcr_store_drop_left(store, LEFT_PID, LEFT_TICKS);
	wait_used(0);
	CHECK(!packs_bytes());
	stop();
}

/* Its owner has made a file so long that its table would fill the store: the others are packed. */
static void test_lengthened(void)
{
	struct gcr_subtree_file *file;
	struct gcr_snapshot *snapshot;
	struct gcr_error error;
	uint64_t used;

	start(256 * MIB, 0);
	snapshot = create_full(LEFT_PID, GENERATION);
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	CHECK(!gcr_subtree_truncate(file, 1ull << 38) &&
	      gcr_subtree_table_bytes(1ull << 38) > 100 * MIB);
	used = figures().used_bytes;
	CHECK(end_work(begin_work(snapshot, false), &error) == -EFBIG);
	CHECK(names(&error, snapshot, 0));
	CHECK(figures().used_bytes < used + 32 * MIB);
	/* A length for which no memory would do. */
	CHECK(!gcr_subtree_truncate(file, 1ull << 62));
	CHECK(end_work(begin_work(snapshot, false), &error) == -EFBIG);
	CHECK(!gcr_subtree_truncate(file, sizes[0]));
	gcr_subtree_close(file);
	CHECK(!end_work(begin_work(snapshot, false), &error));
	for (size_t i = 0; i < 3; i++)
		check_pattern(snapshot, i, (unsigned char)i);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

static void tests(void)
{
	test_account();
	test_shared();
	test_open_when_discarded();
	test_open_by_other_name();
	test_own_name_removed();
	test_killed();
	test_swept();
	for (int i = 0; i < 4; i++)
		test_removed_without_descriptors(i & 1, i & 2);
	test_no_descriptors();
	test_lengthened();
	test_unpack_of_nothing();
	test_many();
	test_no_table();
	test_damaged();
	test_some_fail();
}

int main(int argc, char **argv)
{
	test_copies_unchecked(argv);
	return run_tests(argv, tests, be_killed);
}
