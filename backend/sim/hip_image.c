/* SPDX-License-Identifier: MIT */
/*
 * Reads a module's image: a code object (ELF for AMDGCN), a bundle of code objects as compilers
 * make it (__CLANG_OFFLOAD_BUNDLE__), or text from the simulated hiprtc: the first line
 * HIP_TEXT_HEAD, then a line `kernel NAME` per kernel. All are converted to the PTX text that
 * module.c reads. A kernel is recognised by the symbol of its descriptor, NAME.kd; a symbol of type
 * object is a variable.
 */
#include "backend/sim/hip.h"

#include <elf.h>
#include <stdio.h>

#include "backend/sim/hip_text.h"

#define FATBIN_MAGIC   0x48495046u /* "HIPF": the compiler's wrapper of a bundle */
#define BUNDLE_MAGIC   "__CLANG_OFFLOAD_BUNDLE__"
#define AMDGPU_MACHINE 224 /* EM_AMDGPU */
#define MACH_MASK      0xffu

/* EF_AMDGPU_MACH_AMDGCN_*: see "AMDGPU Usage" of LLVM's documentation. */
static const struct {
	unsigned char mach;
	const char *name;
} machines[] = {
	{0x2c, "gfx900"},  {0x2f, "gfx906"},  {0x30, "gfx908"},	 {0x3f, "gfx90a"},
	{0x40, "gfx940"},  {0x4b, "gfx941"},  {0x4c, "gfx942"},	 {0x4f, "gfx950"},
	{0x33, "gfx1010"}, {0x36, "gfx1030"}, {0x37, "gfx1031"}, {0x38, "gfx1032"},
	{0x41, "gfx1100"}, {0x46, "gfx1101"}, {0x47, "gfx1102"}, {0x48, "gfx1200"},
	{0x4e, "gfx1201"},
};

static bool is_architecture(const char *name, size_t length)
{
	return length == strcspn(hip_architecture(), ":") &&
	       !strncmp(hip_architecture(), name, length);
}

static void symbols_print(FILE *text, const unsigned char *image, const Elf64_Shdr *section,
			  const Elf64_Shdr *strings)
{
	const Elf64_Sym *symbols = (const void *)(image + section->sh_offset);
	const char *names = (const char *)image + strings->sh_offset;

	for (size_t i = 0; i < section->sh_size / sizeof(*symbols); i++) {
		const char *name = names + symbols[i].st_name;
		size_t length = symbols[i].st_name < strings->sh_size ? strlen(name) : 0;
		bool is_kernel = length > 3 && !strcmp(name + length - 3, ".kd");

		if (!length || symbols[i].st_shndx == SHN_UNDEF)
			continue;
		if (is_kernel)
			fprintf(text, ".entry %.*s()\n", (int)length - 3, name);
		else if (ELF64_ST_TYPE(symbols[i].st_info) == STT_OBJECT && symbols[i].st_size)
			fprintf(text, ".global .align 16 .b8 %s[%lu];\n", name,
				(unsigned long)symbols[i].st_size);
	}
}

static bool machine_matches(const Elf64_Ehdr *header)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(machines); i++)
		if (machines[i].mach == (header->e_flags & MACH_MASK))
			return is_architecture(machines[i].name, strlen(machines[i].name));
	return false;
}

/* The program must pass a complete code object: there is no size to check against. */
static bool elf_print(FILE *text, const unsigned char *image)
{
	const Elf64_Ehdr *header = (const void *)image;
	const Elf64_Shdr *sections = (const void *)(image + header->e_shoff);

	if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != AMDGPU_MACHINE ||
	    !machine_matches(header))
		return false;
	for (unsigned i = 0; header->e_shoff && i < header->e_shnum; i++)
		if (sections[i].sh_type == SHT_DYNSYM && sections[i].sh_link < header->e_shnum)
			symbols_print(text, image, &sections[i], &sections[sections[i].sh_link]);
	return true;
}

/*
 * Finds the member for this architecture. An entry has a name, such as
 * "hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+", an offset and a size.
 */
static const unsigned char *bundle_member(const unsigned char *image)
{
	const unsigned char *at = image + strlen(BUNDLE_MAGIC);
	uint64_t count;

	memcpy(&count, at, sizeof(count));
	at += sizeof(count);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t numbers[3]; /* offset, size, length of the name */
		const char *name, *architecture;

		memcpy(numbers, at, sizeof(numbers));
		name = (const char *)at + sizeof(numbers);
		architecture = memmem(name, numbers[2], "--gfx", 5);
		at += sizeof(numbers) + numbers[2];
		if (!architecture || !numbers[1])
			continue;
		architecture += 2;
		for (size_t length = 0;; length++)
			if (architecture + length == name + numbers[2] ||
			    architecture[length] == ':') {
				if (is_architecture(architecture, length))
					return image + numbers[0];
				break;
			}
	}
	return NULL;
}

static bool text_print(FILE *text, const char *image)
{
	char name[128];

	for (const char *line = image; (line = strchr(line, '\n')) && *++line;)
		if (sscanf(line, "kernel %127s", name) == 1)
			fprintf(text, ".entry %s()\n", name);
	return true;
}

char *hip_image_text(const void *image)
{
	const unsigned char *bytes = image;
	char *content = NULL;
	size_t size;
	bool good = false;
	uint32_t magic;
	FILE *text;

	memcpy(&magic, bytes, sizeof(magic));
	if (magic == FATBIN_MAGIC)
		memcpy(&bytes, bytes + 8, sizeof(bytes));
	/* Reads no byte after a difference: an image may be shorter than the magic. */
	if (!strncmp((const char *)bytes, BUNDLE_MAGIC, strlen(BUNDLE_MAGIC)))
		bytes = bundle_member(bytes);
	if (!bytes)
		return NULL;
	text = open_memstream(&content, &size);
	if (!text)
		return NULL;
	fprintf(text, ".version 8.0\n");
	if (!memcmp(bytes, ELFMAG, SELFMAG))
		good = elf_print(text, bytes);
	else if (!strncmp((const char *)bytes, HIP_TEXT_HEAD, strlen(HIP_TEXT_HEAD)))
		good = text_print(text, (const char *)bytes);
	fclose(text);
	if (!good) {
		free(content);
		return NULL;
	}
	return content;
}
