/* SPDX-License-Identifier: MIT */
/*
 * Shared by the tests of packed pieces: packs a piece in the same steps as the code that packs a
 * snapshot.
 */
#ifndef GCR_TEST_PACK_H
#define GCR_TEST_PACK_H

#include "fs/store/subtree.h"
#include "fs/pack/packs.h"
#include "fs/store/store_private.h"
#include "lib/digest.h"
#include "lib/pack.h"
#include "test/unit/store/store.h"

/* Adds the chunks of a piece to @packs; each entry holds a reference. */
static inline void add_chunks(struct gcr_packs *packs, const char *bytes, size_t size,
			      struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS])
{
	static __thread char packed[GCR_PACK_MAX_BYTES];
	struct gcr_packer *packer;

	memset(entries, 0, GCR_PACK_PIECE_CHUNKS * sizeof(*entries));
	CHECK(!gcr_packer_create(&packer));
	for (size_t i = 0; i * GCR_CHUNK_BYTES < size; i++) {
		size_t rest = size - i * GCR_CHUNK_BYTES;
		const char *chunk = bytes + i * GCR_CHUNK_BYTES;
		size_t length = rest < GCR_CHUNK_BYTES ? rest : GCR_CHUNK_BYTES;
		struct gcr_digest digest;
		enum gcr_pack_form form;
		size_t packed_size;

		if (gcr_pack_is_zero(chunk, length)) {
			gcr_packs_zeros(length, &entries[i]);
			continue;
		}
		gcr_digest_of(chunk, length, &digest);
		if (!gcr_packs_share(packs, packer, &digest, chunk, length, &entries[i]))
			continue;
		packed_size = gcr_pack(packer, chunk, length, packed, &form);
		CHECK(!gcr_packs_add(packs, &digest, length, form, packed, packed_size,
				     &entries[i]));
	}
	gcr_packer_destroy(packer);
}

/*
 * Packs one piece; returns the errors of the packing functions (-ENODATA, -EAGAIN, ...) unchanged.
 */
static inline int pack_piece(struct gcr_packs *packs, struct gcr_subtree_file *file, uint64_t piece)
{
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];
	char *buffer = malloc(GCR_PACK_PIECE_BYTES);
	uint64_t writes;
	size_t size;
	int result;

	CHECK(buffer);
	result = gcr_subtree_read_piece(file, piece, buffer, &size, &writes);
	if (!result) {
		add_chunks(packs, buffer, size, entries);
		result = gcr_subtree_pack_piece(file, piece, entries, writes);
		if (result < 0)
			gcr_packs_drop(packs, entries, GCR_PACK_PIECE_CHUNKS);
	}
	free(buffer);
	return result;
}

/* Packs every piece that has data; returns the number of pieces packed. */
static inline uint64_t pack_all(struct gcr_packs *packs, struct gcr_subtree_file *file)
{
	uint64_t count = 0;

	for (uint64_t piece = 0; piece < gcr_subtree_pieces(file); piece++) {
		int result = pack_piece(packs, file, piece);

		CHECK(!result || result == -ENODATA);
		count += !result;
	}
	return count;
}

static inline struct gcr_packs *begin_packing(struct gcr_snapshot *snapshot)
{
	struct gcr_error error = {0};

	if (gcr_snapshot_begin_packing(snapshot, &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
	return gcr_subtree_packs(gcr_snapshot_subtree(snapshot));
}

static inline struct gcr_subtree_file *open_to_pack(struct gcr_snapshot *snapshot, size_t index)
{
	struct gcr_subtree_file *file;

	CHECK(!gcr_snapshot_open_to_pack(snapshot, index, &file));
	return file;
}

static inline uint64_t sum(int fd)
{
	struct gcr_tree_sum found;

	CHECK(!gcr_store_sum_tree(fd, &found));
	return found.bytes;
}

/* Bytes used by the symbolic links below a directory of directories: a long link uses a page. */
static inline uint64_t sum_links(int fd)
{
	int own_fd = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fdopendir(own_fd);
	const struct dirent *entry;
	uint64_t bytes = 0;
	struct stat stat;

	CHECK(dir);
	while ((entry = readdir(dir))) {
		CHECK(!fstatat(own_fd, entry->d_name, &stat, AT_SYMLINK_NOFOLLOW));
		if (S_ISLNK(stat.st_mode)) {
			bytes += (uint64_t)stat.st_blocks * 512;
		} else if (S_ISDIR(stat.st_mode) && *entry->d_name != '.') {
			int below_fd = openat(own_fd, entry->d_name, O_RDONLY | O_DIRECTORY);

			CHECK(below_fd >= 0);
			bytes += sum_links(below_fd);
			close(below_fd);
		}
	}
	closedir(dir);
	return bytes;
}

/* The accounted bytes must be those that the file system has in use. */
static inline void check_account(struct gcr_snapshot *snapshot)
{
	struct gcr_subtree *subtree = gcr_snapshot_subtree(snapshot);
	int tables = gcr_subtree_tables(subtree);
	struct gcr_packs_figures packs;
	uint64_t there = sum(gcr_snapshot_root(snapshot)) + (tables < 0 ? 0 : sum(tables));
	int fd = openat(store->fd, GCR_PACKS_NAME, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (gcr_subtree_resident_bytes(subtree) != there)
		fprintf(stderr, "counted %" PRIu64 ", there %" PRIu64 "\n",
			gcr_subtree_resident_bytes(subtree), there);
	CHECK(gcr_subtree_resident_bytes(subtree) == there);
	gcr_store_packs_figures(store, &packs);
	CHECK(gcr_room_resident_bytes(store->packs_room) == packs.memory_bytes);
	if (fd >= 0) {
		CHECK(sum(fd) - sum_links(fd) == packs.memory_bytes);
		close(fd);
	}
}

/* The process of the snapshot that a killed daemon leaves. */
#define LEFT_PID   1
#define LEFT_TICKS 77

/* The result is the snapshot that a killed daemon has left. */
static inline struct gcr_snapshot *open_left(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_error error = {0};

	if (gcr_snapshot_open(store, LEFT_PID, LEFT_TICKS, GENERATION, &snapshot, &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
	return snapshot;
}

#endif
