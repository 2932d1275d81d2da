/* SPDX-License-Identifier: MIT */
/*
 * A table of packed chunks, and its segments, as a daemon that died may have left them. First byte:
 * the lowest 3 bits give the kind of the segment file; bit 3: the table's header is made valid; bit
 * 4: so are the entries, except for the positions of the chunks; bit 5: the rest of the input is a
 * file name on the disk. The rest is the table, or that name.
 */
#include "fs/pack/pack_table.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/pack/packs.h"
#include "fs/pack/spill.h"
#include "fs/pack/spill_private.h"
#include "lib/cleanup.h"
#include "test/fuzz/fuzz.h"

#define USER	    1000
#define TABLE	    "17"
#define SEGMENT	    "packs/1000/0"
#define CHUNK_BYTES 300

enum segment { NONE, GOOD, SHORT, LINK, DIRECTORY, EMPTY, FOREIGN_LINK, TWO, SEGMENTS };

static char directory[64];
static int directory_fd = -1;

static void prepare(void)
{
	const char *parent = getenv("TMPDIR");

	snprintf(directory, sizeof(directory), "%s/gpucrfs-fuzz-XXXXXX", parent ? parent : "/tmp");
	CHECK(mkdtemp(directory));
	directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(directory_fd >= 0);
}

static int next_fd(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	close(fd);
	return fd;
}

static void clean(void)
{
	unlinkat(directory_fd, TABLE, 0);
	for (int i = 0; i < 3; i++) {
		char name[32];

		snprintf(name, sizeof(name), "packs/%d/%d", USER, i);
		if (unlinkat(directory_fd, name, 0) < 0 && errno == EISDIR)
			unlinkat(directory_fd, name, AT_REMOVEDIR);
	}
	unlinkat(directory_fd, "packs/1000", AT_REMOVEDIR);
	unlinkat(directory_fd, "packs", AT_REMOVEDIR);
}

static void remove_directory(void)
{
	clean();
	rmdir(directory);
}

static void make_file(const char *name, const void *bytes, size_t size, off_t total)
{
	_cleanup_close_ int fd =
		openat(directory_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size && !ftruncate(fd, total));
}

/* Makes a segment that begins with a chunk in the daemon's own format. */
static void make_segment(enum segment kind, const uint8_t *bytes)
{
	CHECK(!mkdirat(directory_fd, "packs", 0700) && !mkdirat(directory_fd, "packs/1000", 0700));
	switch (kind) {
	case TWO:
		make_file("packs/1000/1", bytes, CHUNK_BYTES, GCR_PACK_SEGMENT_BYTES);
		/* fall through */
	case GOOD:
		make_file(SEGMENT, bytes, CHUNK_BYTES, GCR_PACK_SEGMENT_BYTES);
		break;
	case SHORT:
		make_file(SEGMENT, bytes, CHUNK_BYTES, 1 << 20);
		break;
	case EMPTY:
		make_file(SEGMENT, bytes, 0, GCR_PACK_SEGMENT_BYTES);
		break;
	case LINK:
		CHECK(!symlinkat("/etc/passwd", directory_fd, SEGMENT));
		break;
	case FOREIGN_LINK:
		CHECK(!symlinkat("/d/gpucrfs-0123456789abcdef-0123456789abcdef-0123456789abcdef/"
				 "1000/0-0123456789abcdef",
				 directory_fd, SEGMENT));
		break;
	case DIRECTORY:
		CHECK(!mkdirat(directory_fd, SEGMENT, 0700));
		break;
	default:
		break;
	}
}

static void make_right(uint8_t *table, size_t bytes, bool header_too, bool entries_too)
{
	struct gcr_pack_table_header *header = (struct gcr_pack_table_header *)table;
	size_t pieces = (bytes - sizeof(*header)) / sizeof(struct gcr_pack_table_piece);
	struct gcr_pack_entry *entries = (struct gcr_pack_entry *)(header + 1);

	if (header_too) {
		memcpy(header->magic, GCR_PACK_TABLE_MAGIC, sizeof(header->magic));
		header->version = GCR_PACK_TABLE_VERSION;
		header->chunk_bytes = GCR_CHUNK_BYTES;
		header->uid = USER;
		if (header->file_bytes > pieces * GCR_PACK_PIECE_BYTES)
			header->file_bytes = pieces * GCR_PACK_PIECE_BYTES;
	}
	for (size_t i = 0; entries_too && i < pieces * GCR_PACK_PIECE_CHUNKS; i++) {
		entries[i].kind = entries[i].kind % 2 + GCR_PACK_ZEROS;
		entries[i].bytes_less_1 = GCR_CHUNK_BYTES - 1;
	}
}

static void count_piece(const struct gcr_pack_entry *entries, void *data)
{
	uint64_t *count = data;

	CHECK(entries[0].kind != GCR_PACK_NOTHING);
	++*count;
}

/* Uses the table like a later daemon: each chunk is claimed, or lost, and then read. */
static void use_table(struct gcr_pack_table *table, struct gcr_packs *packs,
		      struct gcr_packer *packer)
{
	static uint8_t bytes[GCR_CHUNK_BYTES];
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];
	struct gcr_pack_figures figures;
	uint64_t pieces = 0;

	for (uint64_t i = 0; i < gcr_pack_table_pieces(table); i++) {
		if (!gcr_pack_table_is_packed(table, i))
			continue;
		pieces++;
		gcr_pack_table_read(table, i, entries);
		for (size_t j = 0; j < GCR_PACK_PIECE_CHUNKS; j++) {
			int result = 0;

			if (entries[j].kind != GCR_PACK_STORED)
				continue;
			result = gcr_packs_claim(packs, &entries[j]);
			CHECK(!result || result == -EBADMSG);
			if (result < 0)
				gcr_pack_table_lose(table, i, j, j + 1);
		}
	}
	gcr_packs_sweep(packs);
	gcr_pack_table_figures(table, &figures);
	CHECK(figures.pieces == pieces);
	CHECK(figures.packed_bytes <= pieces * GCR_PACK_PIECE_BYTES);
	CHECK(figures.shared_bytes + figures.zero_bytes <= figures.packed_bytes);
	for (uint64_t i = 0; i < gcr_pack_table_pieces(table); i++) {
		if (!gcr_pack_table_is_packed(table, i))
			continue;
		gcr_pack_table_read(table, i, entries);
		for (size_t j = 0; j < GCR_PACK_PIECE_CHUNKS; j++) {
			int result;

			if (entries[j].kind != GCR_PACK_STORED)
				continue;
			result = gcr_packs_read(packs, packer, &entries[j], bytes,
						gcr_pack_entry_bytes(&entries[j]));
			CHECK(!result || result == -EIO || result == -EBADMSG);
		}
		gcr_pack_table_clear(table, i);
		gcr_packs_drop(packs, entries, GCR_PACK_PIECE_CHUNKS);
	}
	gcr_pack_table_figures(table, &figures);
	CHECK(!figures.pieces && !figures.packed_bytes && !figures.packed_to_bytes);
	CHECK(!gcr_pack_table_resize(table, 3 * GCR_PACK_PIECE_BYTES + 1));
	CHECK(gcr_pack_table_pieces(table) == 4 && gcr_pack_table_piece_bytes(table, 3) == 1);
}

static void check_table(struct gcr_packer *packer, enum segment kind)
{
	_cleanup_(gcr_pack_table_unref_cleanup) struct gcr_pack_table *table = NULL;
	_cleanup_(gcr_packs_unref_cleanup) struct gcr_packs *packs = NULL;
	uint64_t file_bytes = 0, table_bytes = 0, count = 0;
	struct gcr_packs_figures figures;
	struct gcr_error error = {0};
	int result;

	CHECK(!gcr_pack_table_each(directory_fd, TABLE, count_piece, &count));
	result = gcr_pack_table_open_left(directory_fd, TABLE, USER, &table, &file_bytes,
					  &table_bytes);
	CHECK(!result || result == -ENOENT || result == -EPROTO);
	CHECK(!result == (table != NULL));
	result = gcr_packs_open(directory_fd, USER, NULL, &packs, &error);
	/*
	 * A directory in place of a segment is not the result of a crash: the open fails with a
	 * message for the administrator.
	 */
	CHECK(!result == (kind != DIRECTORY));
	CHECK(!result || (error.number == -result && *error.words));
	if (result < 0)
		return;
	if (!table) {
		gcr_packs_sweep(packs);
		return;
	}
	CHECK(gcr_pack_table_bytes(file_bytes) <= table_bytes);
	CHECK(gcr_pack_table_pieces(table) == gcr_pack_pieces(file_bytes));
	use_table(table, packs, packer);
	gcr_packs_wait_disk(packs);
	gcr_packs_figures(packs, &figures);
	CHECK(!figures.chunks && !figures.packed_bytes && !figures.unpacked_bytes);
}

static void check_name(const char *name)
{
	struct gcr_spill_identity identity = {.has_machine = true};
	int64_t number = gcr_spill_parse_number(name);
	int64_t segment = gcr_spill_parse_file_name(name);
	char again[GCR_SPILL_NUMBER_BYTES];
	struct gcr_spill_place place;

	memset(identity.machine, '0', GCR_SPILL_ID_LENGTH);
	memset(identity.boot, '1', GCR_SPILL_ID_LENGTH);
	CHECK(number >= -1 && number <= UINT32_MAX && segment >= -1 && segment <= UINT32_MAX);
	if (number >= 0) {
		snprintf(again, sizeof(again), "%" PRId64, number);
		CHECK(!strcmp(again, name));
	}
	if (segment >= 0)
		CHECK(!strchr(name, '/') && strlen(name) < GCR_SPILL_FILE_BYTES);
	if (gcr_spill_is_name(name)) {
		CHECK(!strchr(name, '/') && strlen(name) == GCR_SPILL_NAME_LENGTH);
		gcr_spill_is_of_machine(name, &identity);
		gcr_spill_is_of_boot(name, &identity);
	}
	if (gcr_spill_find_place(name, &place)) {
		CHECK(place.home && place.home < place.user && place.user < place.file);
		CHECK(place.file <= strlen(name) && !strchr(name + place.file, '/'));
	}
	/* The path contains the id of its user. */
	if (gcr_spill_is_path(name, USER, 3))
		CHECK(*name == '/' && strstr(name, "/" GCR_SPILL_PREFIX) &&
		      strstr(name, "/1000/3-") && !gcr_spill_is_path(name, USER, 4) &&
		      !gcr_spill_is_path(name, USER + 1, 3));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct gcr_packer *packer;
	uint8_t kind;
	uint8_t *copy;
	int fd;

	if (!size || size > 9000)
		return 0;
	if (directory_fd < 0) {
		prepare();
		atexit(remove_directory);
		CHECK(!gcr_packer_create(&packer));
	}
	kind = *data++;
	size--;
	/*
	 * An exact-size copy, so that the sanitizer sees an overrun by one byte; large enough for a
	 * chunk.
	 */
	copy = calloc(1, size + 1 > CHUNK_BYTES ? size + 1 : CHUNK_BYTES);
	CHECK(copy);
	memcpy(copy, data, size);
	if (kind & 32) {
		check_name((char *)copy);
		free(copy);
		return 0;
	}
	if (size >= sizeof(struct gcr_pack_table_header))
		make_right(copy, size, kind & 8, kind & 16);
	make_file(TABLE, copy, size, (off_t)size);
	make_segment(kind % SEGMENTS, copy);
	fd = next_fd();
	check_table(packer, kind % SEGMENTS);
	CHECK(next_fd() == fd);
	clean();
	free(copy);
	return 0;
}
