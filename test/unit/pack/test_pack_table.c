/* SPDX-License-Identifier: MIT */
/*
 * Tables of packed pieces: a later daemon finds a published piece whole or not at all, whatever the
 * step at which the earlier daemon was killed. A full store is an error, not a signal.
 */
#include "fs/pack/pack_table.h"

#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>

#include "test/unit/pack/packs.h"

#define PIECE	   GCR_PACK_PIECE_BYTES
#define CHUNK	   GCR_CHUNK_BYTES
#define FILE_BYTES (3ull * PIECE + 100000) /* the fourth piece has two chunks */
#define UID	   1000

static struct gcr_pack_table *open_table(const char *name, uint64_t file_bytes, bool create)
{
	struct gcr_pack_table *table;
	struct gcr_error error;

	if (gcr_pack_table_open(store_fd, name, file_bytes, UID, create, &table, &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
	return table;
}

static int try_open(const char *name, uint64_t file_bytes, uid_t uid, bool create)
{
	struct gcr_pack_table *table;
	struct gcr_error error;
	int result = gcr_pack_table_open(store_fd, name, file_bytes, uid, create, &table, &error);

	CHECK(result == 0 || (result == -error.number && strstr(error.words, name)));
	if (!result)
		gcr_pack_table_unref(table);
	return result;
}

/* Make the entries of a piece of @bytes: one of zeros, one shared, and others. */
static void fill_entries(struct gcr_pack_entry *entries, uint32_t bytes, uint32_t seed)
{
	memset(entries, 0, sizeof(struct gcr_pack_table_piece));
	for (uint32_t i = 0; bytes; i++) {
		uint32_t part = bytes < CHUNK ? bytes : CHUNK;

		memset(&entries[i].digest, (int)(seed + i), sizeof(entries[i].digest));
		entries[i].kind = i == 3 ? GCR_PACK_ZEROS : GCR_PACK_STORED;
		entries[i].bytes_less_1 = (uint16_t)(part - 1);
		if (i != 3) {
			entries[i].segment = seed;
			entries[i].offset = i * CHUNK;
			entries[i].packed_bytes_less_1 = (uint16_t)(part / 2 - 1);
			entries[i].form = 1;
			entries[i].flags = i == 1 ? GCR_PACK_FLAG_SHARED : 0;
		}
		bytes -= part;
	}
}

static bool has_entries(const struct gcr_pack_table *table, uint64_t piece, uint32_t seed)
{
	struct gcr_pack_entry expected[GCR_PACK_PIECE_CHUNKS];
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];

	fill_entries(expected, gcr_pack_table_piece_bytes(table, piece), seed);
	gcr_pack_table_read(table, piece, entries);
	return gcr_pack_table_is_packed(table, piece) &&
	       !memcmp(entries, expected, sizeof(entries));
}

static int publish(struct gcr_pack_table *table, uint64_t piece, uint32_t seed)
{
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];

	fill_entries(entries, gcr_pack_table_piece_bytes(table, piece), seed);
	return gcr_pack_table_publish(table, piece, entries);
}

static struct gcr_pack_figures figures(struct gcr_pack_table *table)
{
	struct gcr_pack_figures figures;

	gcr_pack_table_figures(table, &figures);
	return figures;
}

static void check_figures(struct gcr_pack_table *table)
{
	struct gcr_pack_figures now = figures(table);

	/* The pieces 1 and 3. */
	CHECK(now.pieces == 2 && now.packed_bytes == PIECE + 100000);
	CHECK(now.zero_bytes == CHUNK && now.hole_bytes == 0);
	CHECK(now.shared_bytes == CHUNK + (100000 - CHUNK));
	CHECK(now.packed_to_bytes == 30 * CHUNK / 2 + CHUNK / 2);
}

static void leave_table(void)
{
	struct gcr_pack_table *table = open_table("left", FILE_BYTES, true);

	CHECK(!publish(table, 1, 10) && !publish(table, 3, 30) && !publish(table, 0, 40));
	gcr_pack_table_clear(table, 0);
}

static void test_pieces(void)
{
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];
	struct gcr_pack_table *table;

	CHECK(try_open("left", FILE_BYTES, UID, false) == -ENOENT);
	in_child(leave_table);
	/* The table's memory: small pages also where files use huge ones. */
	CHECK(store_used() == 8 * KIB);
	table = open_table("left", FILE_BYTES, false);
	CHECK(gcr_pack_table_pieces(table) == 4 && gcr_pack_table_piece_bytes(table, 3) == 100000);
	CHECK(!gcr_pack_table_is_packed(table, 0) && !gcr_pack_table_is_packed(table, 2) &&
	      !gcr_pack_table_is_packed(table, 4) && !gcr_pack_table_is_packed(table, UINT64_MAX));
	CHECK(has_entries(table, 1, 10) && has_entries(table, 3, 30));
	CHECK(!gcr_pack_table_is_hole(table, 1));
	check_figures(table);
	/* A piece already packed, a piece beyond the end, and entries of another piece. */
	CHECK(publish(table, 1, 11) == -EINVAL);
	fill_entries(entries, PIECE, 1);
	CHECK(gcr_pack_table_publish(table, 4, entries) == -EINVAL);
	gcr_pack_table_clear(table, 3);
	CHECK(gcr_pack_table_publish(table, 3, entries) == -EINVAL);
	CHECK(!gcr_pack_table_is_packed(table, 3) && figures(table).pieces == 1);
	CHECK(!publish(table, 3, 30));
	entries[7].kind = GCR_PACK_NOTHING;
	CHECK(gcr_pack_table_publish(table, 2, entries) == -EINVAL);
	/* Nothing but zeros. */
	for (size_t i = 0; i < GCR_PACK_PIECE_CHUNKS; i++)
		entries[i] =
			(struct gcr_pack_entry){.kind = GCR_PACK_ZEROS, .bytes_less_1 = CHUNK - 1};
	CHECK(!gcr_pack_table_publish(table, 2, entries) && gcr_pack_table_is_hole(table, 2));
	CHECK(figures(table).hole_bytes == PIECE && figures(table).pieces == 3);
	gcr_pack_table_clear(table, 2);
	gcr_pack_table_clear(table, 2);
	check_figures(table);
	gcr_pack_table_unref(table);
	/* Another user's table, and files that are no tables. */
	CHECK(try_open("left", FILE_BYTES, UID + 1, true) == -EPROTO);
	CHECK(try_open("left", PIECE, UID, true) == -EPROTO); /* would truncate packed pieces */
	table = open_table("left", FILE_BYTES, true);
	check_figures(table);
	gcr_pack_table_unref(table);
	CHECK(!unlinkat(store_fd, "left", 0) && store_used() == 0);
}

/* ---- a daemon that is killed at each step ---- */

static struct gcr_pack_table_header *map_raw(const char *name)
{
	_cleanup_close_ int fd = openat(store_fd, name, O_RDWR | O_CLOEXEC);
	void *map = mmap(NULL, gcr_pack_table_bytes(FILE_BYTES), PROT_READ | PROT_WRITE, MAP_SHARED,
			 fd, 0);

	CHECK(fd >= 0 && map != MAP_FAILED);
	return map;
}

/* Only the kind of the first entry marks a piece as packed, whatever else is written. */
static void test_killed_as_it_publishes(void)
{
	struct gcr_pack_table_header *raw;
	struct gcr_pack_table_piece whole;
	struct gcr_pack_table *table;
	size_t flag = offsetof(struct gcr_pack_entry, kind);

	in_child(leave_table);
	raw = map_raw("left");
	fill_entries(whole.entries, PIECE, 50);
	for (int step = 0; step < 3; step++) {
		uint8_t *to = (uint8_t *)((struct gcr_pack_table_piece *)(raw + 1) + 2);

		/* Some entries; all but the first; all but the first one's kind. */
		memcpy(to + sizeof(whole.entries[0]), &whole.entries[1],
		       step ? sizeof(whole) - sizeof(whole.entries[0]) : 100);
		if (step == 2) {
			memcpy(to, &whole, flag);
			memcpy(to + flag + 1, (uint8_t *)&whole + flag + 1,
			       sizeof(whole.entries[0]) - flag - 1);
		}
		table = open_table("left", FILE_BYTES, false);
		CHECK(!gcr_pack_table_is_packed(table, 2) && has_entries(table, 1, 10));
		check_figures(table);
		gcr_pack_table_unref(table);
	}
	/* The next daemon can publish the piece again. */
	table = open_table("left", FILE_BYTES, false);
	CHECK(!publish(table, 2, 60) && has_entries(table, 2, 60));
	/* Clearing also changes only this byte. */
	gcr_pack_table_clear(table, 2);
	gcr_pack_table_unref(table);
	CHECK(((uint8_t *)((struct gcr_pack_table_piece *)(raw + 1) + 2))[flag] == 0);
	((uint8_t *)((struct gcr_pack_table_piece *)(raw + 1) + 2))[flag] = GCR_PACK_STORED;
	table = open_table("left", FILE_BYTES, false);
	CHECK(has_entries(table, 2, 60)); /* all other bytes are unchanged */
	gcr_pack_table_unref(table);
	/* Impossible values are refused. */
	((struct gcr_pack_table_piece *)(raw + 1))[2].entries[9].kind = GCR_PACK_NOTHING;
	CHECK(try_open("left", FILE_BYTES, UID, false) == -EPROTO);
	((struct gcr_pack_table_piece *)(raw + 1))[2].entries[9].kind = GCR_PACK_STORED;
	raw->version++;
	CHECK(try_open("left", FILE_BYTES, UID, true) == -EPROTO);
	raw->version--;
	CHECK(!try_open("left", FILE_BYTES, UID, true));
	munmap(raw, gcr_pack_table_bytes(FILE_BYTES));
	CHECK(!unlinkat(store_fd, "left", 0));
}

/* An unfinished table is not opened, and is overwritten by a new one. */
static void test_killed_as_it_is_made(void)
{
	static const uint64_t sizes[] = {0, 100, sizeof(struct gcr_pack_table_header),
					 sizeof(struct gcr_pack_table_header) + 100, 1 << 20};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(sizes); i++) {
		_cleanup_close_ int fd = openat(store_fd, "new", O_RDWR | O_CREAT, 0600);

		CHECK(fd >= 0 && !ftruncate(fd, (off_t)sizes[i]));
		CHECK(try_open("new", FILE_BYTES, UID, false) == -ENOENT);
		CHECK(!try_open("new", FILE_BYTES, UID, true));
		CHECK(!try_open("new", FILE_BYTES, UID, false));
		CHECK(!unlinkat(store_fd, "new", 0));
	}
	CHECK(store_used() == 0);
}

/* ---- closed, and opened again ---- */

static int truncateat(const char *name, off_t bytes)
{
	_cleanup_close_ int fd = openat(store_fd, name, O_RDWR | O_CLOEXEC);

	return fd < 0 ? -1 : ftruncate(fd, bytes);
}

static int try_again(uint64_t file_bytes, uid_t uid, const struct gcr_pack_figures *known)
{
	struct gcr_pack_table *table;
	int result = gcr_pack_table_open_again(store_fd, "left", file_bytes, uid, known, &table);

	if (!result)
		gcr_pack_table_unref(table);
	return result;
}

/* A table closed for a while is opened with the figures known before. */
static void test_again(void)
{
	struct gcr_pack_figures known;
	struct gcr_pack_table *table;

	in_child(leave_table);
	table = open_table("left", FILE_BYTES, false);
	known = figures(table);
	gcr_pack_table_unref(table);
	CHECK(!gcr_pack_table_open_again(store_fd, "left", FILE_BYTES, UID, &known, &table));
	check_figures(table);
	CHECK(has_entries(table, 1, 10) && has_entries(table, 3, 30) && !publish(table, 0, 5));
	gcr_pack_table_clear(table, 0);
	check_figures(table);
	gcr_pack_table_unref(table);
	/* Changed properties are refused. */
	CHECK(try_again(FILE_BYTES + 1, UID, &known) == -EPROTO);
	CHECK(try_again(FILE_BYTES, UID + 1, &known) == -EPROTO);
	CHECK(!truncateat("left", 100) && try_again(FILE_BYTES, UID, &known) == -EPROTO);
	CHECK(!unlinkat(store_fd, "left", 0));
	CHECK(try_again(FILE_BYTES, UID, &known) == -ENOENT);
	CHECK(!symlinkat("other", store_fd, "left"));
	CHECK(try_again(FILE_BYTES, UID, &known) == -EPROTO);
	CHECK(!unlinkat(store_fd, "left", 0) && store_used() == 0);
}

/* ---- sizes ---- */

static void test_resize(void)
{
	struct gcr_pack_table *table = open_table("file", FILE_BYTES, true);
	_cleanup_close_ int fd = -1;

	CHECK(!publish(table, 0, 1) && !publish(table, 3, 3));
	CHECK(gcr_pack_table_resize(table, FILE_BYTES + 1) == -EINVAL); /* ends in the fourth */
	CHECK(gcr_pack_table_resize(table, FILE_BYTES - 1) == -EINVAL);
	gcr_pack_table_clear(table, 3);
	CHECK(gcr_pack_table_resize(table, PIECE - 1) == -EINVAL);
	CHECK(!gcr_pack_table_resize(table, PIECE) && gcr_pack_table_pieces(table) == 1);
	CHECK(!gcr_pack_table_is_packed(table, 3));
	/* Much larger: packed pieces stay, and the new ones are usable. */
	CHECK(!gcr_pack_table_resize(table, 1000ull * PIECE));
	CHECK(has_entries(table, 0, 1) && !publish(table, 999, 9) && figures(table).pieces == 2);
	CHECK(store_used() == 1001 * KIB + 3 * KIB);
	gcr_pack_table_unref(table);
	/* The file's size changed without a resize of the table. */
	table = open_table("file", 1000ull * PIECE + 5, false);
	CHECK(gcr_pack_table_pieces(table) == 1001 && has_entries(table, 999, 9));
	CHECK(gcr_pack_table_piece_bytes(table, 1000) == 5);
	/* No room: the table is unchanged. */
	fd = openat(store_fd, "full", O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0 && !fallocate(fd, 0, 0, (off_t)(15 * MIB - 16 * KIB)));
	CHECK(gcr_pack_table_resize(table, 4000ull * PIECE) == -ENOSPC);
	CHECK(gcr_pack_table_pieces(table) == 1001 && has_entries(table, 999, 9));
	CHECK(try_open("other", 4000ull * PIECE, UID, true) == -ENOSPC);
	CHECK(faccessat(store_fd, "other", F_OK, 0) < 0 && errno == ENOENT);
	CHECK(!try_open("file", 1000ull * PIECE + 5, UID, false));
	CHECK(!unlinkat(store_fd, "full", 0));
	gcr_pack_table_unref(table);
	CHECK(!unlinkat(store_fd, "file", 0) && !close(TAKE_FD(fd)) && store_used() == 0);
}

/* ---- readers beside changes ---- */

static void *look(void *data)
{
	struct gcr_pack_table *table = data;

	for (int i = 0; i < 2000; i++) {
		struct gcr_pack_figures now;

		CHECK(has_entries(table, 1, 10));
		gcr_pack_table_figures(table, &now);
		CHECK(now.pieces == 1 + (now.packed_bytes > PIECE));
		gcr_pack_table_is_packed(table, 0);
	}
	return NULL;
}

static void test_threads(void)
{
	struct gcr_pack_table *table = open_table("file", FILE_BYTES, true);
	pthread_t thread;

	CHECK(!publish(table, 1, 10));
	CHECK(!pthread_create(&thread, NULL, look, gcr_pack_table_ref(table)));
	for (uint32_t i = 0; i < 500; i++) {
		CHECK(!publish(table, 0, i));
		gcr_pack_table_clear(table, 0);
	}
	CHECK(!pthread_join(thread, NULL));
	gcr_pack_table_unref(table);
	gcr_pack_table_unref(table);
	CHECK(!unlinkat(store_fd, "file", 0));
}

int main(void)
{
	mount_store("huge=always,size=16m");
	test_pieces();
	test_killed_as_it_publishes();
	test_killed_as_it_is_made();
	test_again();
	test_resize();
	test_threads();
	unmount_store();
	return 0;
}
