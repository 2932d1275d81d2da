/* SPDX-License-Identifier: MIT */
/* Build ids, in the notes of ELF files (elf(5)). The contents of a file are untrusted. */
#include "lib/build_id.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"

#define NOTES_BYTES_MAX 65536u
#define HEADERS_MAX	256u

/* Finds the build id in the notes of one segment. Returns its length, 0: none. */
static size_t find(const uint8_t *notes, size_t bytes, uint8_t ret_build_id[GCR_BUILD_ID_BYTES])
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
			return 0;
		if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
		    memcmp(notes, "GNU", 4) == 0 && note.n_descsz > 0) {
			size_t length = note.n_descsz < GCR_BUILD_ID_BYTES ? note.n_descsz
									   : GCR_BUILD_ID_BYTES;

			memcpy(ret_build_id, notes + name_bytes, length);
			return length;
		}
		notes += name_bytes + words_bytes;
		bytes -= name_bytes + words_bytes;
	}
	return 0;
}

static size_t read_notes(int fd, const Elf64_Phdr *segment,
			 uint8_t ret_build_id[GCR_BUILD_ID_BYTES])
{
	_cleanup_free_ uint8_t *notes = NULL;
	ssize_t got;

	if (segment->p_filesz > NOTES_BYTES_MAX || segment->p_offset > INT64_MAX - NOTES_BYTES_MAX)
		return 0;
	notes = malloc(NOTES_BYTES_MAX);
	got = notes ? pread(fd, notes, segment->p_filesz, (off_t)segment->p_offset) : 0;
	return got > 0 ? find(notes, (size_t)got, ret_build_id) : 0;
}

/* Only 64-bit files: other programs have no GPU work here. */
size_t gcr_build_id_read(int fd, uint8_t ret_build_id[GCR_BUILD_ID_BYTES])
{
	Elf64_Ehdr header;
	size_t bytes = 0;

	if (pread(fd, &header, sizeof(header), 0) != sizeof(header) ||
	    memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
	    header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof(Elf64_Phdr) ||
	    header.e_phoff > INT64_MAX / 2)
		return 0;
	for (size_t i = 0; i < header.e_phnum && i < HEADERS_MAX && !bytes; i++) {
		Elf64_Phdr segment;

		if (pread(fd, &segment, sizeof(segment),
			  (off_t)(header.e_phoff + i * sizeof(segment))) != sizeof(segment))
			return 0;
		if (segment.p_type == PT_NOTE)
			bytes = read_notes(fd, &segment, ret_build_id);
	}
	return bytes;
}
