/* SPDX-License-Identifier: MIT */
/*
 * Files with packed pieces are read and changed like any others: random operations, compared with a
 * plain buffer (GPUCR_TEST_SEED repeats a run); readers while another thread packs; changes that
 * find no room; files that processes may have mapped; and changes interrupted by a verb.
 */
#include "fs/store/subtree_private.h"
#include "fs/store/inodes.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "fs/pack/pack_table.h"
#include "test/unit/store/pack.h"

#define PIECE	  ((uint64_t)GCR_PACK_PIECE_BYTES)
#define MOST	  (11 * MIB)
#define LENGTH	  (8 * MIB + 300008)
#define STEPS	  (TEST_SLOW > 1 ? 80 : 500)
#define ROUNDS	  (TEST_SLOW > 1 ? 4 : 30)
#define THREADS	  3
#define WRITE_MAX (3 * MIB)

static uint64_t seed;

static uint64_t chance(uint64_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (seed * UINT64_C(0x2545f4914f6cdd1d) >> 16) % below;
}

static struct gcr_snapshot *snapshot;
static struct gcr_subtree *subtree;
static struct gcr_packs *packs;
static struct gcr_subtree_file *packer;

/* For a file that may become longer than it was made. */
static struct gcr_subtree_file *open_packer(void)
{
	struct gcr_subtree_file *opened = open_to_pack(snapshot, 0);

	opened->packed_most = UINT64_MAX;
	return opened;
}

/* Makes a snapshot with a file as a freeze writes it. */
static void begin(uint64_t store_bytes, uint64_t bytes)
{
	struct gcr_error error;

	start(store_bytes, 0);
	CHECK(!try_create(1, bytes, &snapshot, &error));
	write_pattern(snapshot, 0, 7);
	subtree = gcr_snapshot_subtree(snapshot);
	packs = begin_packing(snapshot);
	packer = open_packer();
}

static void end(void)
{
	struct gcr_packs_figures found;

	gcr_subtree_close(TAKE_PTR(packer));
	gcr_snapshot_discard(TAKE_PTR(snapshot));
	wait_used(0);
	gcr_store_packs_figures(store, &found);
	CHECK(!found.chunks && !found.memory_bytes && !found.unpacked_bytes);
	stop();
}

/* ---- compared with a plain buffer ---- */

static struct gcr_subtree_file *file;
static char *expected; /* MOST + WRITE_MAX bytes; zeros beyond the file's end */
static uint64_t length;
static bool has_more; /* memory is allocated beyond the file's end */

static void check_read(uint64_t offset, size_t size)
{
	size_t rest = offset < length ? (size_t)(length - offset) : 0;
	struct gcr_subtree_bytes bytes;

	CHECK(!gcr_subtree_read(file, offset, size, &bytes));
	CHECK(bytes.size == (rest < size ? rest : size));
	CHECK(!bytes.size || !memcmp(bytes.bytes, expected + offset, bytes.size));
	gcr_subtree_read_done(file, &bytes);
}

static uint64_t some_offset(void)
{
	static const uint64_t some[] = {0, 1, 65536, PIECE - 1, PIECE, 2 * PIECE, 3 * PIECE + 5};
	uint64_t which = chance(2 * GCR_ARRAY_SIZE(some));

	return which < GCR_ARRAY_SIZE(some) ? some[which] : chance(MOST);
}

static uint64_t some_size(void)
{
	static const uint64_t some[] = {1, 4096, 65536, 70000, PIECE, WRITE_MAX};
	uint64_t which = chance(2 * GCR_ARRAY_SIZE(some));

	return which < GCR_ARRAY_SIZE(some) ? some[which] : 1 + chance(WRITE_MAX);
}

/* Fills the bytes with one kind: zeros, words that pack well, or noise. */
UNSEEN static void fill(char *bytes, size_t size)
{
	uint64_t kind = chance(4);
	uint64_t value = chance(1000);

	for (size_t i = 0; i < size; i++)
		bytes[i] = (char)(kind == 0   ? 0
				  : kind == 1 ? (i / 8 + value) % 251
				  : kind == 2 ? (i % 4 == 3 ? 63 : i * i + value)
					      : (i * 2654435761u + value) >> 13);
}

static void step_write(void)
{
	uint64_t offset = some_offset();
	size_t size = (size_t)some_size();

	fill(expected + offset, size);
	CHECK(gcr_subtree_write(file, expected + offset, size, offset) == (ssize_t)size);
	length = length < offset + size ? offset + size : length;
}

static void step_truncate(void)
{
	uint64_t bytes = chance(3) ? length - chance(length + 1) / 2 : some_offset();

	CHECK(!gcr_subtree_truncate(file, bytes));
	if (bytes < length) {
		memset(expected + bytes, 0, length - bytes);
		has_more = false;
	}
	length = bytes;
}

static void step_punch(void)
{
	uint64_t offset = some_offset();
	uint64_t size = some_size();

	CHECK(!gcr_subtree_allocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
				    size));
	memset(expected + offset, 0, size);
}

static void step_allocate(void)
{
	uint64_t offset = some_offset();
	uint64_t size = some_size();
	int mode = chance(2) ? FALLOC_FL_KEEP_SIZE : 0;

	CHECK(!gcr_subtree_allocate(file, mode, offset, size));
	if (length < offset + size && mode)
		has_more = true;
	else if (length < offset + size)
		length = offset + size;
}

UNSEEN static void step_seek(void)
{
	uint64_t offset = some_offset();
	int64_t data = gcr_subtree_seek(file, (int64_t)offset, SEEK_DATA);
	int64_t hole = gcr_subtree_seek(file, (int64_t)offset, SEEK_HOLE);

	if (offset >= length) {
		CHECK(data == -ENXIO && hole == -ENXIO);
		return;
	}
	CHECK(hole >= (int64_t)offset && hole <= (int64_t)length);
	CHECK(data == -ENXIO || (data >= (int64_t)offset && data < (int64_t)length));
	CHECK((data == (int64_t)offset) == (hole > (int64_t)offset));
	for (uint64_t at = offset; at < (data < 0 ? length : (uint64_t)data); at++)
		CHECK(!expected[at]);
	if (hole < (int64_t)length)
		CHECK(!expected[hole]);
}

static void step_stat(void)
{
	struct gcr_subtree_entry vram;
	struct gcr_subtree_entry entry;
	char name[GCR_EXTENT_NAME_BYTES];

	gcr_extent_name(gcr_snapshot_extent(snapshot, 0), name);
	CHECK(!gcr_subtree_lookup(subtree, GCR_SUBTREE_ROOT, "vram", &vram));
	CHECK(!gcr_subtree_lookup(subtree, vram.item, name, &entry));
	CHECK((uint64_t)entry.stat.st_size == length);
	CHECK(!gcr_subtree_stat(subtree, entry.item, &entry.stat));
	CHECK((uint64_t)entry.stat.st_size == length);
	gcr_subtree_forget(subtree, entry.item, 1);
	gcr_subtree_forget(subtree, vram.item, 1);
}

/* The data ranges of a file, and the memory that stat(2) reports. */
struct shape {
	blkcnt_t blocks;
	unsigned int count;
	int64_t edges[4096];
};

static void look(struct shape *shape)
{
	struct stat stat;
	int64_t at = 0;

	shape->count = 0;
	pthread_mutex_lock(&subtree->lock);
	CHECK(!gcr_subtree_stat_fd(subtree, packer->fd, &stat));
	pthread_mutex_unlock(&subtree->lock);
	shape->blocks = stat.st_blocks;
	while ((at = gcr_subtree_seek(packer, at, SEEK_DATA)) >= 0) {
		CHECK(shape->count + 2 <= GCR_ARRAY_SIZE(shape->edges));
		shape->edges[shape->count++] = at;
		at = gcr_subtree_seek(packer, at, SEEK_HOLE);
		shape->edges[shape->count++] = at;
	}
}

/*
 * Compares the shapes before and after an operation on @piece. The last piece may gain or lose a
 * huge page, so its blocks are not compared.
 */
static bool is_same(const struct shape *left, const struct shape *right, uint64_t piece)
{
	bool has_blocks = !has_more && (piece + 1) * PIECE <= length;

	return (!has_blocks || left->blocks == right->blocks) && left->count == right->count &&
	       !memcmp(left->edges, right->edges, left->count * sizeof(*left->edges));
}

/* Returns whether the piece is all data and not all zeros. */
static bool is_full(uint64_t piece)
{
	uint64_t end = (piece + 1) * PIECE < length ? (piece + 1) * PIECE : length;

	return piece * PIECE < length &&
	       gcr_subtree_seek(packer, (int64_t)(piece * PIECE), SEEK_HOLE) >= (int64_t)end &&
	       !gcr_pack_is_zero(expected + piece * PIECE, end - piece * PIECE);
}

static void step_pack(void)
{
	static struct shape before;
	static struct shape after;
	uint64_t piece = chance(MOST / PIECE + 1);
	bool stays = is_full(piece);
	int result;

	look(&before);
	result = pack_piece(packs, packer, piece);
	CHECK(!result || result == -ENODATA);
	look(&after);
	/* Packing must not be visible to users; only zeros may become a hole. */
	CHECK(!(stays || result) || is_same(&before, &after, piece));
}

static void step_pack_all(void)
{
	pack_all(packs, packer);
	CHECK(!pack_all(packs, packer));
}

static void step_unpack(void)
{
	static struct shape before;
	static struct shape after;
	uint64_t piece = chance(MOST / PIECE + 1);
	int result;

	look(&before);
	result = gcr_subtree_unpack_piece(packer, piece);
	CHECK(!result || result == -ENODATA);
	look(&after);
	CHECK(is_same(&before, &after, piece));
}

static void step_reopen(void)
{
	gcr_subtree_close(file);
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
}

static void (*const steps[])(void) = {
	step_write, step_write, step_truncate, step_punch,    step_allocate, step_seek,
	step_stat,  step_pack,	step_pack,     step_pack_all, step_unpack,   step_reopen,
};

static void test_as_any_other(void)
{
	const char *given = getenv("GPUCR_TEST_SEED");

	seed = given ? strtoull(given, NULL, 0) : (uint64_t)gcr_clock_usec() | 1;
	fprintf(stderr, "GPUCR_TEST_SEED=%" PRIu64 "\n", seed);
	expected = calloc(1, MOST + WRITE_MAX + PIECE);
	CHECK(expected);
	begin(256 * MIB, LENGTH);
	length = LENGTH;
	for (uint64_t at = 0; at < length; at += sizeof(uint64_t))
		*(uint64_t *)(void *)(expected + at) = pattern(at, 7);
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	for (int i = 0; i < STEPS; i++) {
		steps[chance(GCR_ARRAY_SIZE(steps))]();
		check_read(some_offset(), (size_t)some_size());
		check_account(snapshot);
		if (i % 16 == 0)
			check_read(0, MOST + WRITE_MAX + 1);
	}
	check_read(0, MOST + WRITE_MAX + 1);
	gcr_subtree_close(file);
	free(expected);
	end();
}

/* ---- together with readers ---- */

static atomic_bool is_over;
static sem_t may_write;

static void *read_on(void *data)
{
	struct gcr_subtree_file *reader = data;
	while (!atomic_load(&is_over))
		CHECK(has_pattern(reader, LENGTH, 7));
	return NULL;
}

/* Writes bytes that the file already has. */
static void *write_on(void *data)
{
	struct gcr_subtree_file *writer = data;
	uint64_t words[512];
	uint64_t at = 0;

	/* Write once for each packed piece: more often, no piece would ever be packed. */
	while (!sem_wait(&may_write) && !atomic_load(&is_over)) {
		for (size_t i = 0; i < GCR_ARRAY_SIZE(words); i++)
			words[i] = pattern(at + i * sizeof(*words), 7);
		CHECK(gcr_subtree_write(writer, words, sizeof(words), at) == sizeof(words));
		at = (at + 777 * sizeof(words)) % (6 * MIB);
	}
	return NULL;
}

static void test_beside_others(void)
{
	struct gcr_subtree_file *files[THREADS + 1];
	pthread_t threads[THREADS + 1];
	unsigned int packed = 0;

	CHECK(!sem_init(&may_write, 0, 0));
	begin(256 * MIB, LENGTH);
	for (int i = 0; i <= THREADS; i++) {
		CHECK(!open_outside(snapshot, 0, i < THREADS ? O_RDONLY : O_RDWR, &files[i]));
		CHECK(!pthread_create(&threads[i], NULL, i < THREADS ? read_on : write_on,
				      files[i]));
	}
	for (int round = 0; round < ROUNDS; round++) {
		for (uint64_t piece = 0; piece < gcr_subtree_pieces(packer); piece++) {
			int result = pack_piece(packs, packer, piece);

			CHECK(!result || result == -EAGAIN || result == -ENODATA);
			packed += !result;
			CHECK(!sem_post(&may_write));
		}
		for (uint64_t piece = 0; piece < gcr_subtree_pieces(packer); piece++) {
			int result = gcr_subtree_unpack_piece(packer, piece);

			CHECK(!result || result == -ENODATA);
		}
	}
	atomic_store(&is_over, true);
	CHECK(!sem_post(&may_write));
	for (int i = 0; i <= THREADS; i++) {
		CHECK(!pthread_join(threads[i], NULL));
		gcr_subtree_close(files[i]);
	}
	CHECK(packed && !sem_destroy(&may_write));
	check_account(snapshot);
	end();
}

/*
 * A piece that has been written since it was read is not packed: stale bytes would replace the new
 * ones. Nothing is packed during a verb.
 */
static void test_pack_and_write(void)
{
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];
	char *buffer = malloc(GCR_PACK_PIECE_BYTES);
	struct gcr_subtree_file *other;
	uint64_t writes;
	size_t size;

	begin(64 * MIB, 4 * MIB);
	CHECK(buffer && !open_outside(snapshot, 0, O_RDWR, &other));
	CHECK(!gcr_subtree_read_piece(packer, 1, buffer, &size, &writes));
	CHECK(size == PIECE && !memcmp(buffer, buffer, size));
	add_chunks(packs, buffer, size, entries);
	CHECK(gcr_subtree_pack_piece(other, 1, entries, writes) == -EBADF);
	CHECK(gcr_subtree_write(other, buffer, 1, 0) == 1);
	CHECK(gcr_subtree_pack_piece(packer, 1, entries, writes) == -EAGAIN);
	CHECK(gcr_subtree_write(other, buffer, 1, 0) == 1);
	CHECK(!gcr_subtree_read_piece(packer, 1, buffer, &size, &writes));
	CHECK(!gcr_subtree_pack_piece(packer, 1, entries, writes));
	CHECK(gcr_subtree_pack_piece(packer, 1, entries, writes) == -EAGAIN);
	CHECK(gcr_subtree_read_piece(packer, 1, buffer, &size, &writes) == -ENODATA);
	CHECK(gcr_subtree_read_piece(packer, 2, buffer, &size, &writes) == -ENODATA);
	gcr_subtree_begin_verb(subtree);
	CHECK(gcr_subtree_read_piece(packer, 0, buffer, &size, &writes) == -EBUSY);
	CHECK(gcr_subtree_pack_piece(packer, 0, entries, writes) == -EBUSY);
	CHECK(gcr_subtree_unpack_piece(packer, 1) == -EBUSY);
	CHECK(gcr_snapshot_open_to_pack(snapshot, 0, &file) == -EBUSY);
	gcr_subtree_end_verb(subtree);
	CHECK(gcr_subtree_unpack_piece(packer, 1) == -EBUSY);
	gcr_subtree_close(packer);
	packer = open_packer();
	CHECK(!gcr_subtree_unpack_piece(packer, 1));
	CHECK(gcr_subtree_unpack_piece(packer, 1) == -ENODATA);
	gcr_subtree_close(other);
	free(buffer);
	end();
}

/* ---- no room ---- */

static void set_limit(uint64_t bytes)
{
	struct rlimit limit;

	CHECK(!getrlimit(RLIMIT_FSIZE, &limit));
	limit.rlim_cur = bytes;
	CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
}

static void test_no_room(void)
{
	const struct gcr_tree_sum nothing = {0};
	struct gcr_pack_figures found;
	struct gcr_room *others;
	uint64_t taken = 0;
	uint64_t own = 0;

	begin(32 * MIB, 8 * MIB);
	CHECK(pack_all(packs, packer) == 4);
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	/*
	 * The limit allows the preceding pages and half of this piece: after the failed change,
	 * which has the limit's error, the file must not be longer.
	 */
	CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
	set_limit(5 * MIB);
	CHECK(gcr_subtree_write(file, &taken, 8, 4 * MIB) == -EFBIG);
	CHECK(gcr_subtree_truncate(file, 4 * MIB + 1) == -EFBIG);
	CHECK(gcr_subtree_unpack_piece(packer, 2) == -EFBIG);
	set_limit(RLIM_INFINITY);
	gcr_subtree_pack_figures(subtree, &found);
	CHECK(found.pieces == 4 && has_pattern(file, 8 * MIB, 7));
	check_account(snapshot);
	/* Take all room of the store: none is reserved for the file, and none is left over. */
	gcr_subtree_close(file);
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	CHECK(!gcr_room_create(store, 0, &nothing, 0, &others));
	while (!gcr_room_take(others, 0, 65536))
		taken += 65536;
	/* Take the room for metadata too, which this test does not write. */
	while (!gcr_room_take(subtree->room, 0, 65536))
		own += 65536;
	CHECK(gcr_subtree_write(file, &taken, 8, 4 * MIB) == -ENOSPC);
	CHECK(gcr_subtree_allocate(file, 0, 3 * MIB, MIB) == -ENOSPC);
	CHECK(gcr_subtree_truncate(file, 4 * MIB + 1) == -ENOSPC);
	CHECK(gcr_subtree_allocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1, 2 * MIB) ==
	      -ENOSPC);
	CHECK(gcr_subtree_unpack_piece(packer, 2) == -ENOSPC);
	gcr_subtree_pack_figures(subtree, &found);
	CHECK(found.pieces == 4 && has_pattern(file, 8 * MIB, 7));
	check_account(snapshot);
	/* Removing whole pieces needs no room. */
	CHECK(!gcr_subtree_truncate(file, 6 * MIB));
	CHECK(!gcr_subtree_allocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * MIB,
				    10 * MIB));
	gcr_subtree_pack_figures(subtree, &found);
	CHECK(found.pieces == 2 && has_pattern(file, 8 * MIB, 7) == false);
	gcr_room_recount(subtree->room, own, 0, 0);
	gcr_room_recount(others, taken, 0, 0);
	gcr_room_destroy(others);
	CHECK(gcr_subtree_write(file, &taken, 8, 2 * MIB) == 8);
	check_account(snapshot);
	gcr_subtree_close(file);
	end();
}

/* ---- files that processes may have mapped ---- */

static void test_mapped(void)
{
	struct gcr_subtree_bytes bytes;
	void *map;
	int fd;

	begin(64 * MIB, 4 * MIB);
	gcr_subtree_close(packer);
	CHECK(!open_outside(snapshot, 0, O_RDONLY, &file));
	CHECK(gcr_subtree_pass(file));
	packer = open_packer();
	CHECK(pack_piece(packs, packer, 0) == -ETXTBSY);
	/* The kernel has the file itself open (passthrough), later only its mapped pages. */
	fd = gcr_snapshot_open_file(snapshot, 0, false);
	map = mmap(NULL, 4 * MIB, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(fd >= 0 && map != MAP_FAILED);
	gcr_subtree_close(file);
	CHECK(pack_piece(packs, packer, 0) == -ETXTBSY);
	close(fd);
	CHECK(pack_piece(packs, packer, 0) == -ETXTBSY);
	check_account(snapshot);
	CHECK(!munmap(map, 4 * MIB));
	CHECK(!pack_piece(packs, packer, 0));
	CHECK(!open_outside(snapshot, 0, O_RDONLY, &file));
	CHECK(!gcr_subtree_pass(file) && has_pattern(file, 4 * MIB, 7));
	CHECK(!pack_piece(packs, packer, 1));
	CHECK(!gcr_subtree_pass(file) && has_pattern(file, 4 * MIB, 7));
	/* The file is as before and is read from the daemon's mapping. */
	CHECK(!gcr_subtree_unpack_piece(packer, 0) && !gcr_subtree_unpack_piece(packer, 1));
	CHECK(!gcr_subtree_read(file, 0, 8, &bytes) && !bytes.buffer);
	gcr_subtree_read_done(file, &bytes);
	CHECK(!pack_piece(packs, packer, 1));
	CHECK(!gcr_subtree_read(file, 0, 8, &bytes) && bytes.buffer);
	gcr_subtree_read_done(file, &bytes);
	CHECK(!gcr_subtree_unpack_piece(packer, 1) && gcr_subtree_pass(file));
	check_account(snapshot);
	gcr_subtree_close(file);
	end();
}

/* The kernel has forgotten a packed file, and looks it up again. */
static void test_looked_up_again(void)
{
	struct gcr_subtree_entry made[2];
	struct stat stat;

	begin(64 * MIB, 4 * MIB);
	for (int i = 0; i < 2; i++) /* takes the item numbers that the file and its directory had */
		CHECK(!gcr_subtree_mkdir(subtree, GCR_SUBTREE_ROOT, i ? "b" : "a", 0700, geteuid(),
					 getegid(), &made[i]));
	CHECK(!open_outside(snapshot, 0, O_RDONLY, &file));
	CHECK(gcr_subtree_pass(file));
	for (int i = 0; i < 2; i++)
		CHECK(!gcr_subtree_stat(subtree, made[i].item, &stat) && S_ISDIR(stat.st_mode));
	gcr_subtree_close(file);
	for (int i = 0; i < 2; i++) {
		CHECK(!gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, i ? "b" : "a", true));
		gcr_subtree_forget(subtree, made[i].item, 1);
	}
	end();
}

/*
 * A file has another hard link outside the snapshot, where no table exists: the file is not packed.
 */
static void test_linked(void)
{
	char name[GCR_EXTENT_NAME_BYTES];
	int vram_fd;

	begin(64 * MIB, 4 * MIB);
	gcr_extent_name(gcr_snapshot_extent(snapshot, 0), name);
	vram_fd = gcr_snapshot_directory(snapshot);
	CHECK(!linkat(vram_fd, name, store->fd, "linked", 0));
	CHECK(pack_piece(packs, packer, 0) == -EMLINK);
	CHECK(lseek(gcr_subtree_file_fd(packer), 0, SEEK_HOLE) == 4 * MIB);
	check_account(snapshot);
	CHECK(!unlinkat(store->fd, "linked", 0));
	CHECK(!pack_piece(packs, packer, 0));
	check_pattern(snapshot, 0, 7);
	end();
}

/* ---- a verb ---- */

#define FRAGMENTS (1 << 20)

static atomic_int fragments_left = -1; /* that lseek() is to invent; -1: none, the real lseek() */
static pthread_t verb;

static void *begin_verb(void *data)
{
	gcr_subtree_begin_verb(data);
	return NULL;
}

static void begin_verb_beside(void)
{
	CHECK(!pthread_create(&verb, NULL, begin_verb, subtree));
	while (!gcr_subtree_is_unwanted(subtree))
		usleep(100);
}

/* Every file appears to have very many fragments, each a page after a one-page hole. */
off_t lseek(int fd, off_t offset, int whence)
{
	if (atomic_load(&fragments_left) < 0)
		return (off_t)syscall(SYS_lseek, fd, offset, whence);
	if (whence == SEEK_DATA)
		return offset + 4096;
	if (atomic_fetch_sub(&fragments_left, 1) == FRAGMENTS / 2)
		begin_verb_beside();
	return offset + 4096;
}

/*
 * An operation on a fragmented file ends early when a verb waits for it; the verb is not delayed.
 */
static void test_fragments(void)
{
	struct gcr_subtree_entry entry;

	begin(256 * MIB, 4 * MIB);
	CHECK(!gcr_subtree_create_file(subtree, GCR_SUBTREE_ROOT, "fragments", O_RDWR, 0600,
				       geteuid(), getegid(), &entry, &file));
	atomic_store(&fragments_left, FRAGMENTS);
	CHECK(gcr_subtree_allocate(file, FALLOC_FL_KEEP_SIZE, 0, 8192ull * FRAGMENTS) == -EBUSY);
	CHECK(atomic_exchange(&fragments_left, -1) > FRAGMENTS / 4);
	CHECK(!pthread_join(verb, NULL));
	gcr_subtree_end_verb(subtree);
	gcr_subtree_close(file);
	end();
}

/* ---- files of an earlier daemon ---- */

/* A file that readers may have mapped gets no holes; its packed pieces are removed all the same. */
static void test_punched_since(void)
{
	struct gcr_pack_figures found;

	begin(512 * MIB, 8 * MIB);
	CHECK(!pack_piece(packs, packer, 0));
	gcr_subtree_close(TAKE_PTR(packer));
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	CHECK(!gcr_subtree_allocate(file, FALLOC_FL_KEEP_SIZE, 8 * MIB, 4 * MIB));
	gcr_subtree_close(file);
	gcr_inodes_begin();
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	CHECK(!gcr_subtree_allocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8 * MIB));
	for (uint64_t at = 0; at < 8 * MIB; at += 4096) {
		struct gcr_subtree_bytes bytes;

		CHECK(!gcr_subtree_read(file, at + 8, 8, &bytes));
		CHECK(!*(const uint64_t *)bytes.bytes);
		gcr_subtree_read_done(file, &bytes);
	}
	gcr_subtree_pack_figures(subtree, &found);
	CHECK(!found.pieces);
	gcr_subtree_close(file);
	end();
}

/* ---- names ---- */

/* A file's table follows renames and is removed with the file; an open file stays usable. */
static void test_names(void)
{
	struct gcr_pack_figures found;
	struct gcr_subtree_entry vram;
	struct gcr_subtree_entry made;
	struct gcr_subtree_file *other;
	char name[GCR_EXTENT_NAME_BYTES];

	begin(64 * MIB, 4 * MIB);
	CHECK(pack_all(packs, packer) == 2);
	gcr_extent_name(gcr_snapshot_extent(snapshot, 0), name);
	CHECK(!gcr_subtree_lookup(subtree, GCR_SUBTREE_ROOT, "vram", &vram));
	CHECK(!gcr_subtree_rename(subtree, vram.item, name, GCR_SUBTREE_ROOT, "moved", 0));
	CHECK(!gcr_subtree_create_file(subtree, vram.item, name, O_RDWR, 0600, geteuid(), getegid(),
				       &made, &other));
	CHECK(gcr_subtree_write(other, "other", 5, 0) == 5);
	CHECK(read_size(other, 0, 100) == 5);
	gcr_subtree_close(other);
	/* Rename back onto the new file: the old file has its name again. */
	CHECK(!gcr_subtree_rename(subtree, GCR_SUBTREE_ROOT, "moved", vram.item, name, 0));
	check_pattern(snapshot, 0, 7);
	check_account(snapshot);
	/* The file is replaced while a reader has it open. */
	CHECK(!open_outside(snapshot, 0, O_RDONLY, &file));
	gcr_subtree_close(packer);
	CHECK(!gcr_subtree_create_file(subtree, GCR_SUBTREE_ROOT, "temporary", O_RDWR, 0600,
				       geteuid(), getegid(), &made, &other));
	gcr_subtree_close(other);
	CHECK(!gcr_subtree_rename(subtree, GCR_SUBTREE_ROOT, "temporary", vram.item, name, 0));
	CHECK(has_pattern(file, 4 * MIB, 7));
	gcr_subtree_pack_figures(subtree, &found);
	CHECK(found.pieces == 2);
	gcr_subtree_close(file);
	gcr_subtree_pack_figures(subtree, &found);
	CHECK(!found.pieces);
	check_account(snapshot);
	/* The file is replaced while it is not open. */
	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	CHECK(gcr_subtree_write(file, "bytes", 5, 0) == 5);
	gcr_subtree_close(file);
	packer = open_packer();
	CHECK(pack_all(packs, packer) == 1);
	gcr_subtree_close(TAKE_PTR(packer));
	CHECK(!gcr_subtree_remove(subtree, vram.item, name, false));
	gcr_subtree_pack_figures(subtree, &found);
	CHECK(!found.pieces);
	check_account(snapshot);
	end();
}

static void tests(void)
{
	test_as_any_other();
	test_beside_others();
	test_pack_and_write();
	test_no_room();
	test_mapped();
	test_looked_up_again();
	test_linked();
	test_fragments();
	test_punched_since();
	test_names();
}

int main(int argc, char **argv)
{
	test_copies_unchecked(argv);
	return run_tests(argv, tests, NULL);
}
