/* SPDX-License-Identifier: MIT */
/*
 * The files that must be there when the tree is restored: path, size, time, and the build-id of
 * programs and libraries, by which the linker names what it has made.
 */
#include "criu-glue/opens_private.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#define NOTES_BYTES_MAX 65536u
#define HEADERS_MAX	256u

static int compare_paths(const void *a, const void *b)
{
	const struct gcr_open_file *left = a, *right = b;

	return strcmp(left->path, right->path);
}

/* Of the notes of one segment. Everything in them may be wrong. */
static void find_build_id(const uint8_t *notes, size_t bytes, struct gcr_open_file *file)
{
	while (bytes >= sizeof(Elf64_Nhdr)) {
		Elf64_Nhdr note;
		size_t name_bytes, words_bytes;

		memcpy(&note, notes, sizeof(note));
		notes += sizeof(note);
		bytes -= sizeof(note);
		name_bytes = ((size_t)note.n_namesz + 3) & ~(size_t)3;
		words_bytes = ((size_t)note.n_descsz + 3) & ~(size_t)3;
		if (name_bytes > bytes || words_bytes > bytes - name_bytes)
			return;
		if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
		    memcmp(notes, "GNU", 4) == 0 && note.n_descsz > 0) {
			file->build_id_bytes = note.n_descsz < sizeof(file->build_id)
						       ? note.n_descsz
						       : sizeof(file->build_id);
			memcpy(file->build_id, notes + name_bytes, file->build_id_bytes);
			return;
		}
		notes += name_bytes + words_bytes;
		bytes -= name_bytes + words_bytes;
	}
}

static void read_notes(int fd, uint64_t offset, uint64_t bytes, struct gcr_open_file *file)
{
	_cleanup_free_ uint8_t *notes = NULL;
	ssize_t got;

	if (bytes > NOTES_BYTES_MAX || offset > INT64_MAX - NOTES_BYTES_MAX)
		return;
	notes = malloc(NOTES_BYTES_MAX);
	got = notes ? pread(fd, notes, bytes, (off_t)offset) : 0;
	if (got > 0)
		find_build_id(notes, (size_t)got, file);
}

/* Programs for other machines than 64-bit ones have no GPU work here. */
static void read_build_id(int fd, struct gcr_open_file *file)
{
	Elf64_Ehdr header;

	if (pread(fd, &header, sizeof(header), 0) != sizeof(header) ||
	    memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
	    header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof(Elf64_Phdr))
		return;
	for (size_t i = 0; i < header.e_phnum && i < HEADERS_MAX && !file->build_id_bytes; i++) {
		Elf64_Phdr segment;

		if (header.e_phoff > INT64_MAX / 2 ||
		    pread(fd, &segment, sizeof(segment),
			  (off_t)(header.e_phoff + i * sizeof(segment))) != sizeof(segment))
			return;
		if (segment.p_type == PT_NOTE)
			read_notes(fd, segment.p_offset, segment.p_filesz, file);
	}
}

void opens_list_file(struct opens_scan *scan, const struct opens_file *file, bool is_mapped)
{
	struct gcr_open_file *entry = calloc(1, sizeof(*entry));
	_cleanup_close_ int fd = -1;
	struct gcr_open_file **slot;
	long long flags = 0;
	struct stat status;

	if (entry)
		entry->path = strdup(file->link);
	slot = entry && entry->path ? tsearch(entry, &scan->files_seen, compare_paths) : NULL;
	if (!slot) {
		scan->failed = true;
		if (entry)
			free(entry->path);
		free(entry);
		return;
	}
	opens_number(file->info, "flags", 8, &flags);
	flags = (flags & O_ACCMODE) == O_WRONLY && flags & O_APPEND;
	if (*slot != entry) {
		(*slot)->is_mapped |= is_mapped;
		(*slot)->is_append_only &= flags != 0;
		free(entry->path);
		free(entry);
		return;
	}
	entry->is_mapped = is_mapped;
	entry->is_append_only = flags != 0;
	entry->size_bytes = file->status.stx_size;
	entry->mtime_ns = (int64_t)file->status.stx_mtime.tv_sec * INT64_C(1000000000) +
			  file->status.stx_mtime.tv_nsec;
	scan->opens->files_count++;
	if (!is_mapped || file->status.stx_size < sizeof(Elf64_Ehdr))
		return;
	/* It was a regular file; that nothing else has come in its place is looked at again. */
	fd = open(file->proc_path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
	    status.st_ino == file->status.stx_ino)
		read_build_id(fd, entry);
}

static void collect(const void *node, VISIT visit, void *data)
{
	struct gcr_opens *opens = data;

	if (visit == postorder || visit == leaf)
		opens->files[opens->files_count++] = **(struct gcr_open_file *const *)node;
}

void opens_list_finish(struct opens_scan *scan)
{
	struct gcr_opens *opens = scan->opens;

	opens->files = calloc(opens->files_count + 1, sizeof(*opens->files));
	if (!opens->files) {
		scan->failed = true;
		opens->files_count = 0;
		return;
	}
	opens->files_count = 0;
	twalk_r(scan->files_seen, collect, opens);
	/* The paths are the list's now; the tree is freed by its owner. */
}
