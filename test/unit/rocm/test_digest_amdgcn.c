/* SPDX-License-Identifier: MIT */
/*
 * The code objects for AMD GPUs that the HIP worker contains: each can be loaded by HIP on its
 * architecture, and its kernel is the one that the worker calls.
 *
 * Layouts and numbers: ELF, and LLVM's "User Guide for AMDGPU Backend" (code object version 4, its
 * metadata, kernel descriptor); the metadata is MessagePack.
 */
#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "backend/digest/code_object.h"
#include "lib/cleanup.h"
#include "test/unit/test.h"

#ifdef HAVE_DIGEST_AMDGCN
#include "backend/digest/digest_amdgcn.h"

#define KERNEL	    "gpucr_digest"
#define GROUP_ITEMS 256

#ifndef EM_AMDGPU
#define EM_AMDGPU 224
#endif
#define OSABI_AMDGPU_HSA	 64
#define ABI_VERSION_4		 2
#define FLAGS_MACHINE		 0x0ff
#define FLAGS_XNACK		 0x300
#define FLAGS_XNACK_ANY		 0x100
#define FLAGS_SRAMECC		 0xc00
#define FLAGS_SRAMECC_ANY	 0x400
#define NOTE_METADATA		 32
#define DESCRIPTOR_BYTES	 64
#define DESCRIPTOR_GROUP_SEGMENT 0
#define DESCRIPTOR_PRIVATE	 4
#define DESCRIPTOR_ARGUMENTS	 8
#define DESCRIPTOR_ENTRY	 16

static const struct {
	const char *architecture;
	uint32_t machine;
} machines[] = {
	{"gfx900", 0x2c},  {"gfx902", 0x2d},  {"gfx906", 0x2f},	 {"gfx908", 0x30},
	{"gfx90a", 0x3f},  {"gfx90c", 0x32},  {"gfx940", 0x40},	 {"gfx941", 0x4b},
	{"gfx942", 0x4c},  {"gfx950", 0x4f},  {"gfx1010", 0x33}, {"gfx1011", 0x34},
	{"gfx1012", 0x35}, {"gfx1030", 0x36}, {"gfx1031", 0x37}, {"gfx1032", 0x38},
	{"gfx1033", 0x39}, {"gfx1034", 0x3e}, {"gfx1035", 0x3d}, {"gfx1036", 0x45},
	{"gfx1100", 0x41}, {"gfx1101", 0x46}, {"gfx1102", 0x47}, {"gfx1103", 0x44},
	{"gfx1150", 0x43}, {"gfx1151", 0x4a}, {"gfx1152", 0x55}, {"gfx1153", 0x58},
	{"gfx1200", 0x48}, {"gfx1201", 0x4e},
};

/* The arguments as backend/worker/digest.c passes them. */
static const struct {
	uint64_t offset;
	uint64_t bytes;
	const char *kind;
} arguments[] = {
	{0, 8, "global_buffer"},  /* the chunks */
	{8, 8, "global_buffer"},  /* their digests */
	{16, 8, "global_buffer"}, /* flags of chunks that are all zeros */
	{24, 8, "by_value"},	  /* number of chunks */
};

static const struct gcr_code_object *object; /* the object under test */

#define EXPECT(condition)                                                                     \
	do {                                                                                  \
		if (!(condition)) {                                                           \
			fprintf(stderr, "%s:%d: %s: EXPECT(%s) failed\n", __FILE__, __LINE__, \
				object->architecture, #condition);                            \
			exit(1);                                                              \
		}                                                                             \
	} while (0)

static const void *at(uint64_t offset, uint64_t bytes)
{
	EXPECT(offset <= object->bytes_count && bytes <= object->bytes_count - offset);
	return (const char *)object->bytes + offset;
}

/* ---- MessagePack, the subset that the metadata uses ---- */

struct reader {
	const unsigned char *next;
	const unsigned char *end;
};

static const unsigned char *take(struct reader *reader, uint64_t bytes)
{
	const unsigned char *taken = reader->next;

	EXPECT(bytes <= (uint64_t)(reader->end - reader->next));
	reader->next += bytes;
	return taken;
}

static uint64_t take_number(struct reader *reader, unsigned int bytes)
{
	const unsigned char *digits = take(reader, bytes);
	uint64_t number = 0;

	for (unsigned int i = 0; i < bytes; i++)
		number = number << 8 | digits[i];
	return number;
}

enum kind { NUMBER, TEXT, BOOLEAN, LIST, MAP };

struct value {
	enum kind kind;
	uint64_t number; /* or the number of elements, pairs or bytes */
	const char *text;
};

/* Reads the head of the next value; the elements of a list or the pairs of a map follow. */
static struct value take_value(struct reader *reader)
{
	unsigned char head = *take(reader, 1);
	struct value value = {.kind = NUMBER};

	if (head < 0x80) {
		value.number = head;
	} else if (head < 0x90) {
		value = (struct value){MAP, head & 0xf, NULL};
	} else if (head < 0xa0) {
		value = (struct value){LIST, head & 0xf, NULL};
	} else if (head < 0xc0) {
		value = (struct value){TEXT, head & 0x1f, NULL};
	} else if (head == 0xc2 || head == 0xc3) {
		value = (struct value){BOOLEAN, head & 1, NULL};
	} else if (head >= 0xcc && head <= 0xcf) {
		value.number = take_number(reader, 1u << (head - 0xcc));
	} else if (head >= 0xd9 && head <= 0xdb) {
		value = (struct value){TEXT, take_number(reader, 1u << (head - 0xd9)), NULL};
	} else if (head == 0xdc || head == 0xdd) {
		value = (struct value){LIST, take_number(reader, head == 0xdc ? 2 : 4), NULL};
	} else {
		EXPECT(head == 0xde || head == 0xdf);
		value = (struct value){MAP, take_number(reader, head == 0xde ? 2 : 4), NULL};
	}
	if (value.kind == TEXT)
		value.text = (const char *)take(reader, value.number);
	return value;
}

static void skip_value(struct reader *reader)
{
	struct value value = take_value(reader);

	if (value.kind != LIST && value.kind != MAP)
		return;
	for (uint64_t i = 0; i < value.number * (value.kind == MAP ? 2 : 1); i++)
		skip_value(reader);
}

static bool is_text(const struct value *value, const char *text)
{
	return value->kind == TEXT && value->number == strlen(text) &&
	       memcmp(value->text, text, value->number) == 0;
}

/* Returns a reader at the value of @key in the map at @reader. */
static struct reader find_key(struct reader reader, const char *key)
{
	struct value map = take_value(&reader);

	EXPECT(map.kind == MAP);
	for (uint64_t i = 0; i < map.number; i++) {
		struct value name = take_value(&reader);

		if (is_text(&name, key))
			return reader;
		skip_value(&reader);
	}
	fprintf(stderr, "%s: the metadata has no %s\n", object->architecture, key);
	exit(1);
}

static uint64_t number_of(struct reader map, const char *key)
{
	struct reader reader = find_key(map, key);
	struct value value = take_value(&reader);

	EXPECT(value.kind == NUMBER);
	return value.number;
}

static bool has_text(struct reader map, const char *key, const char *text)
{
	struct reader reader = find_key(map, key);
	struct value value = take_value(&reader);

	return is_text(&value, text);
}

/* ---- the file ---- */

static const Elf64_Ehdr *header(void)
{
	return at(0, sizeof(Elf64_Ehdr));
}

static const Elf64_Shdr *section(unsigned int index)
{
	return at(header()->e_shoff + (uint64_t)index * sizeof(Elf64_Shdr), sizeof(Elf64_Shdr));
}

static void check_header(void)
{
	const Elf64_Ehdr *elf = header();
	uint32_t machine = 0;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(machines); i++)
		if (strcmp(machines[i].architecture, object->architecture) == 0)
			machine = machines[i].machine;
	EXPECT(machine);
	EXPECT((uintptr_t)object->bytes % 256 == 0);
	EXPECT(memcmp(elf->e_ident, ELFMAG, SELFMAG) == 0);
	EXPECT(elf->e_ident[EI_CLASS] == ELFCLASS64 && elf->e_ident[EI_DATA] == ELFDATA2LSB);
	EXPECT(elf->e_ident[EI_OSABI] == OSABI_AMDGPU_HSA);
	EXPECT(elf->e_ident[EI_ABIVERSION] == ABI_VERSION_4);
	EXPECT(elf->e_type == ET_DYN && elf->e_machine == EM_AMDGPU);
	EXPECT((elf->e_flags & FLAGS_MACHINE) == machine);
	/* Targets with these settings (XNACK, SRAMECC) must accept either state. */
	EXPECT(!(elf->e_flags & FLAGS_XNACK & ~FLAGS_XNACK_ANY));
	EXPECT(!(elf->e_flags & FLAGS_SRAMECC & ~FLAGS_SRAMECC_ANY));
	EXPECT(elf->e_phnum > 0 && elf->e_phentsize == sizeof(Elf64_Phdr));
	EXPECT(elf->e_shnum > 0 && elf->e_shentsize == sizeof(Elf64_Shdr));
}

/* HIP's loader finds symbols in .dynsym. */
static const Elf64_Sym *find_symbol(const char *name)
{
	for (unsigned int i = 0; i < header()->e_shnum; i++) {
		const Elf64_Shdr *table = section(i);
		const char *names;

		if (table->sh_type != SHT_DYNSYM)
			continue;
		names = at(section(table->sh_link)->sh_offset, section(table->sh_link)->sh_size);
		for (uint64_t at_symbol = 0; at_symbol < table->sh_size;
		     at_symbol += sizeof(Elf64_Sym)) {
			const Elf64_Sym *symbol = at(table->sh_offset + at_symbol, sizeof(*symbol));

			EXPECT(symbol->st_name < section(table->sh_link)->sh_size);
			if (strcmp(names + symbol->st_name, name) == 0)
				return symbol;
		}
	}
	fprintf(stderr, "%s: no symbol %s\n", object->architecture, name);
	exit(1);
}

/* Returns bytes of the image by their address. */
static const void *at_address(uint64_t address, uint64_t bytes)
{
	for (unsigned int i = 0; i < header()->e_phnum; i++) {
		const Elf64_Phdr *segment =
			at(header()->e_phoff + i * sizeof(*segment), sizeof(*segment));

		if (segment->p_type == PT_LOAD && address >= segment->p_vaddr &&
		    address - segment->p_vaddr <= segment->p_filesz - bytes)
			return at(segment->p_offset + (address - segment->p_vaddr), bytes);
	}
	EXPECT(!"a segment has it");
	return NULL;
}

static uint32_t word_at(const unsigned char *bytes)
{
	uint32_t word;

	memcpy(&word, bytes, sizeof(word));
	return word;
}

/* The kernel descriptor points to the code and agrees with the metadata. */
static void check_symbols(void)
{
	const Elf64_Sym *code = find_symbol(KERNEL), *symbol = find_symbol(KERNEL ".kd");
	const unsigned char *descriptor;
	int64_t entry;

	EXPECT(ELF64_ST_TYPE(code->st_info) == STT_FUNC && code->st_size > 0);
	EXPECT(ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT);
	EXPECT(symbol->st_size == DESCRIPTOR_BYTES && symbol->st_value % DESCRIPTOR_BYTES == 0);
	descriptor = at_address(symbol->st_value, DESCRIPTOR_BYTES);
	memcpy(&entry, descriptor + DESCRIPTOR_ENTRY, sizeof(entry));
	EXPECT(symbol->st_value + (uint64_t)entry == code->st_value);
	EXPECT(word_at(descriptor + DESCRIPTOR_ARGUMENTS) == 8 * GCR_ARRAY_SIZE(arguments));
	/* Scratch memory would be VRAM, and there may be none free. */
	EXPECT(word_at(descriptor + DESCRIPTOR_PRIVATE) == 0);
	EXPECT(word_at(descriptor + DESCRIPTOR_GROUP_SEGMENT) <= 65536);
}

static void check_arguments(struct reader kernel)
{
	struct reader reader = find_key(kernel, ".args");
	struct value list = take_value(&reader);

	/* No hidden arguments follow. */
	EXPECT(list.kind == LIST && list.number == GCR_ARRAY_SIZE(arguments));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(arguments); i++) {
		EXPECT(number_of(reader, ".offset") == arguments[i].offset);
		EXPECT(number_of(reader, ".size") == arguments[i].bytes);
		EXPECT(has_text(reader, ".value_kind", arguments[i].kind));
		skip_value(&reader);
	}
	EXPECT(number_of(kernel, ".kernarg_segment_size") == 8 * GCR_ARRAY_SIZE(arguments));
}

static void check_metadata(struct reader metadata)
{
	char target[64];
	struct reader reader = find_key(metadata, "amdhsa.kernels");
	struct value list = take_value(&reader);
	bool is_gcn = strncmp(object->architecture, "gfx9", 4) == 0;

	snprintf(target, sizeof(target), "amdgcn-amd-amdhsa--%s", object->architecture);
	EXPECT(has_text(metadata, "amdhsa.target", target));
	EXPECT(list.kind == LIST && list.number == 1);
	EXPECT(has_text(reader, ".name", KERNEL));
	EXPECT(has_text(reader, ".symbol", KERNEL ".kd"));
	EXPECT(number_of(reader, ".max_flat_workgroup_size") == GROUP_ITEMS);
	EXPECT(number_of(reader, ".wavefront_size") == (is_gcn ? 64 : 32));
	EXPECT(number_of(reader, ".private_segment_fixed_size") == 0);
	check_arguments(reader);

	reader = find_key(reader, ".reqd_workgroup_size");
	list = take_value(&reader);
	EXPECT(list.kind == LIST && list.number == 3);
	EXPECT(take_value(&reader).number == GROUP_ITEMS);
	EXPECT(take_value(&reader).number == 1 && take_value(&reader).number == 1);
}

static void check_notes(void)
{
	for (unsigned int i = 0; i < header()->e_phnum; i++) {
		const Elf64_Phdr *segment =
			at(header()->e_phoff + i * sizeof(*segment), sizeof(*segment));
		const Elf64_Nhdr *note;
		const char *name;

		if (segment->p_type != PT_NOTE)
			continue;
		note = at(segment->p_offset, sizeof(*note));
		name = at(segment->p_offset + sizeof(*note), note->n_namesz);
		EXPECT(note->n_type == NOTE_METADATA && note->n_namesz == sizeof("AMDGPU"));
		EXPECT(memcmp(name, "AMDGPU", sizeof("AMDGPU")) == 0);
		name = at(segment->p_offset + sizeof(*note) + 8, note->n_descsz);
		check_metadata((struct reader){(const unsigned char *)name,
					       (const unsigned char *)name + note->n_descsz});
		return;
	}
	EXPECT(!"there is metadata");
}

int main(void)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(digest_code_objects); i++) {
		object = &digest_code_objects[i];
		for (size_t other = 0; other < i; other++)
			EXPECT(strcmp(digest_code_objects[other].architecture,
				      object->architecture) != 0);
		check_header();
		check_symbols();
		check_notes();
	}
	return 0;
}
#else
int main(void)
{
	SKIP("no clang with its lld was there to compile for AMD's GPUs");
}
#endif
