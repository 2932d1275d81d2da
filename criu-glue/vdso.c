/* SPDX-License-Identifier: MIT */
/*
 * A vdso is a small shared library. Where CRIU looks for symbols: criu/pie/util-vdso.c of CRIU 4.
 * The messages of the images are those of images/mm.proto and vma.proto.
 */
#include "criu-glue/vdso.h"

#include <elf.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "criu-glue/image.h"
#include "criu-glue/image_memory.h"
#include "criu-glue/protobuf.h"
#include "lib/cleanup.h"

/* At least what CRIU writes at a symbol. */
#define JUMP_BYTES 32
/* No kernel's is that large. */
#define VDSO_MAX   (1u << 20)

/* Field numbers of mm_entry and vma_entry. */
enum {
	FIELD_VMAS = 14,

	FIELD_START = 1,
	FIELD_END = 2,
	FIELD_STATUS = 7,
};

#define STATUS_VDSO (1u << 3)

#define NOWHERE UINT64_MAX

/* ---- the library ---- */

struct library {
	const uint8_t *start;
	size_t bytes;
	bool is_64;
	uint64_t address; /* at which it was linked */
	/* Where its tables are; NOWHERE: there is none. */
	uint64_t symbols, hash, gnu_hash;
};

static bool is_inside(const struct library *library, uint64_t at, uint64_t bytes)
{
	return at <= library->bytes && bytes <= library->bytes - at;
}

/* Reads a number of @bytes at the offset @at. False: the number is not wholly inside the vdso. */
static bool get(const struct library *library, uint64_t at, size_t bytes, uint64_t *ret_number)
{
	if (!is_inside(library, at, bytes))
		return false;
	*ret_number = 0;
	memcpy(ret_number, library->start + at, bytes);
	return true;
}

/*
 * Reads a number as long as an address, at @offset_64 or @offset_32 behind @at for a file of 64 or
 * 32 bits. False: see get().
 */
static bool get_address(const struct library *library, uint64_t at, size_t offset_64,
			size_t offset_32, uint64_t *ret_number)
{
	return library->is_64 ? get(library, at + offset_64, 8, ret_number)
			      : get(library, at + offset_32, 4, ret_number);
}

#define GET_ADDRESS(library, at, kind, member, ret_number)                                       \
	get_address(library, at, offsetof(Elf64_##kind, member), offsetof(Elf32_##kind, member), \
		    ret_number)
#define SIZE(library, kind) ((library)->is_64 ? sizeof(Elf64_##kind) : sizeof(Elf32_##kind))

/*
 * Finds the only segment and the only dynamic section. False: either is missing, is there twice, or
 * is not inside.
 */
static bool find_segments(struct library *library, uint64_t *ret_dynamic, uint64_t *ret_bytes)
{
	size_t loads = 0, dynamics = 0;
	uint64_t at, count, kind;

	if (!GET_ADDRESS(library, 0, Ehdr, e_phoff, &at) ||
	    !get(library,
		 library->is_64 ? offsetof(Elf64_Ehdr, e_phnum) : offsetof(Elf32_Ehdr, e_phnum), 2,
		 &count))
		return false;
	for (uint64_t i = 0; i < count; i++, at += SIZE(library, Phdr)) {
		bool is_good = get(library, at, 4, &kind);

		if (is_good && kind == PT_LOAD)
			is_good = !loads++ &&
				  GET_ADDRESS(library, at, Phdr, p_vaddr, &library->address);
		else if (is_good && kind == PT_DYNAMIC)
			is_good = !dynamics++ &&
				  GET_ADDRESS(library, at, Phdr, p_offset, ret_dynamic) &&
				  GET_ADDRESS(library, at, Phdr, p_filesz, ret_bytes);
		if (!is_good)
			return false;
	}
	return loads && dynamics;
}

/* Finds the tables that the dynamic section names; the last of several counts. False: damaged. */
static bool find_tables(struct library *library, uint64_t at, uint64_t bytes)
{
	size_t size = SIZE(library, Dyn);
	uint64_t tag, value;

	for (uint64_t i = 0; i < bytes / size; i++, at += size) {
		if (!GET_ADDRESS(library, at, Dyn, d_tag, &tag) ||
		    !GET_ADDRESS(library, at, Dyn, d_un, &value))
			return false;
		if (tag == DT_NULL)
			break;
		value -= library->address;
		if (tag == DT_SYMTAB)
			library->symbols = value;
		else if (tag == DT_HASH)
			library->hash = value;
		else if (tag == DT_GNU_HASH)
			library->gnu_hash = value;
	}
	return library->symbols < library->bytes;
}

static bool is_sound_symbol(const struct library *library, uint64_t number)
{
	uint64_t at = library->symbols + number * SIZE(library, Sym), value;

	return number < library->bytes && GET_ADDRESS(library, at, Sym, st_value, &value) &&
	       (!value || (library->bytes > JUMP_BYTES &&
			   value - library->address <= library->bytes - JUMP_BYTES));
}

/* Checks the symbols of a DT_HASH: buckets and a chain. */
static bool check_hash(const struct library *library)
{
	uint64_t buckets, count;

	if (!get(library, library->hash, 4, &buckets) ||
	    !get(library, library->hash + 4, 4, &count) || !buckets ||
	    !is_inside(library, library->hash + 8, 4 * (buckets + count)))
		return false;
	for (uint64_t i = 0; i < count; i++)
		if (!is_sound_symbol(library, i))
			return false;
	return true;
}

/* Checks the symbols of a DT_GNU_HASH that are reached from a bucket. */
static bool check_bucket(const struct library *library, uint64_t symbol, uint64_t first,
			 uint64_t chain)
{
	uint64_t hash = 0;

	if (!symbol)
		return true;
	for (; !(hash & 1); symbol++)
		if (symbol < first || !is_sound_symbol(library, symbol) ||
		    !get(library, chain + 4 * (symbol - first), 4, &hash))
			return false;
	return true;
}

static bool check_gnu_hash(const struct library *library)
{
	uint64_t buckets, first, filters, at, symbol;

	if (!get(library, library->gnu_hash, 4, &buckets) ||
	    !get(library, library->gnu_hash + 4, 4, &first) ||
	    !get(library, library->gnu_hash + 8, 4, &filters) || !buckets)
		return false;
	at = library->gnu_hash + 16 + filters * (library->is_64 ? 8 : 4);
	for (uint64_t i = 0; i < buckets; i++)
		if (!get(library, at + 4 * i, 4, &symbol) ||
		    !check_bucket(library, symbol, first, at + 4 * buckets))
			return false;
	return true;
}

bool gcr_vdso_is_sound(const uint8_t *vdso, size_t bytes)
{
	struct library library = {
		.start = vdso,
		.bytes = bytes,
		.symbols = NOWHERE,
		.hash = NOWHERE,
		.gnu_hash = NOWHERE,
	};
	uint64_t dynamic, dynamic_bytes;

	if (bytes < EI_NIDENT || memcmp(vdso, ELFMAG, SELFMAG) != 0)
		return false;
	library.is_64 = vdso[EI_CLASS] == ELFCLASS64;
	if (!find_segments(&library, &dynamic, &dynamic_bytes) ||
	    !find_tables(&library, dynamic, dynamic_bytes))
		return false;
	return library.hash != NOWHERE ? check_hash(&library) : check_gnu_hash(&library);
}

/* ---- its image ---- */

/* The memory of a mapping. */
struct area {
	uint64_t start, end, status;
};

static int parse_area(const uint8_t *at, const uint8_t *end, struct area *area)
{
	struct gcr_protobuf_field start = {0}, behind = {0}, status = {0};

	if (!gcr_protobuf_find(at, end, FIELD_START, GCR_PROTOBUF_VARINT, &start) ||
	    !gcr_protobuf_find(at, end, FIELD_END, GCR_PROTOBUF_VARINT, &behind) ||
	    !gcr_protobuf_find(at, end, FIELD_STATUS, GCR_PROTOBUF_VARINT, &status))
		return -EIO;
	*area = (struct area){start.value, behind.value, status.value};
	return 0;
}

static int check_area(int images_fd, pid_t pid, const struct area *area, struct gcr_error *error)
{
	_cleanup_(gcr_image_close_memory) struct gcr_image_memory memory = {.pages_fd = -1};
	_cleanup_free_ uint8_t *contents = NULL;
	uint64_t bytes = area->end - area->start;
	size_t found;
	int result;

	if (area->end <= area->start || bytes > VDSO_MAX)
		return gcr_error_set(error, EIO, "the vdso of process %d in CRIU's images is odd",
				     (int)pid);
	contents = malloc(bytes);
	if (!contents)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_image_open_memory(images_fd, pid, false, &memory, error);
	if (!result)
		result =
			gcr_image_read_memory(&memory, area->start, contents, bytes, &found, error);
	if (result < 0 || gcr_vdso_is_sound(contents, bytes))
		return result;
	return gcr_error_set(error, EPERM,
			     "process %d has changed the kernel's functions in its memory (vdso): "
			     "CRIU would write as root to where they say",
			     (int)pid);
}

/* Checks the areas of mm-PID.img. A process that had ended has none. */
static int check_process(int images_fd, pid_t pid, struct gcr_error *error)
{
	_cleanup_free_ void *image = NULL;
	const uint8_t *at, *end, *message;
	struct gcr_protobuf_field field;
	char name[GCR_CRIU_NAME_BYTES];
	size_t size;
	int result;

	result = gcr_criu_mm_read(images_fd, pid, name, &image, &size, error);
	if (result < 0 || !image)
		return result;
	end = (const uint8_t *)image + size;
	if (gcr_criu_image_begin(image, size, GCR_CRIU_MM, &at) < 0 ||
	    gcr_criu_image_next(&at, end, &message) < 0)
		return gcr_criu_image_fail(error, -EIO, name);
	for (end = at, at = message; at < end && !result;) {
		struct area area = {0};

		if (!gcr_protobuf_next(&at, end, &field) ||
		    (field.number == FIELD_VMAS &&
		     (field.wire != GCR_PROTOBUF_BYTES ||
		      parse_area(field.content, field.content + field.content_bytes, &area) < 0)))
			return gcr_criu_image_fail(error, -EIO, name);
		if (area.status & STATUS_VDSO)
			result = check_area(images_fd, pid, &area, error);
	}
	return result;
}

int gcr_criu_check_vdso(int images_fd, struct gcr_error *error)
{
	_cleanup_(gcr_criu_tree_finish) struct gcr_criu_tree tree = {0};
	int result = gcr_criu_tree_read(images_fd, &tree, error);

	for (size_t i = 0; !result && i < tree.count; i++)
		result = check_process(images_fd, tree.processes[i].pid, error);
	return result;
}
