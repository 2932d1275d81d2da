/* SPDX-License-Identifier: MIT */
/*
 * Finds the imports of a loaded library by its relocations (ELF gABI, "Dynamic Linking"; the
 * relocation types are defined in the processor supplements). The dynamic linker has made part of
 * the table read-only (PT_GNU_RELRO): a page of that part is made read-only again after a change.
 */
#include "backend/preload/managed/import.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define IMPORTS(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT)
#elif defined(__aarch64__)
#define IMPORTS(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#else
#define IMPORTS(type) false
#endif

struct library {
	uintptr_t wanted; /* an address in the library */
	uintptr_t base;
	const ElfW(Dyn) * dynamic;
	uintptr_t relro_start, relro_end;
};

static int look_at(struct dl_phdr_info *info, size_t size, void *context)
{
	struct library *library = context;
	const ElfW(Dyn) *dynamic = NULL;
	uintptr_t relro_start = 0, relro_end = 0;
	bool found = false;

	for (size_t i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *header = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + header->p_vaddr;

		if (header->p_type == PT_LOAD && library->wanted >= start &&
		    library->wanted - start < header->p_memsz)
			found = true;
		if (header->p_type == PT_DYNAMIC)
			dynamic = (const ElfW(Dyn) *)start;
		if (header->p_type == PT_GNU_RELRO) {
			relro_start = start;
			relro_end = start + header->p_memsz;
		}
	}
	if (!found || !dynamic)
		return 0;
	library->base = info->dlpi_addr;
	library->dynamic = dynamic;
	library->relro_start = relro_start;
	library->relro_end = relro_end;
	return 1;
}

/*
 * Returns the pointer that @entry of the dynamic section holds. Depending on the C library the base
 * is added already or not.
 */
static const void *pointer(const struct library *library, const ElfW(Dyn) * entry)
{
	uintptr_t value = entry->d_un.d_ptr;

	return (const void *)(value < library->base ? library->base + value : value);
}

static int replace(const struct library *library, void **place, void *replacement)
{
	uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t page = (uintptr_t)place & ~(page_bytes - 1);
	bool is_read_only = (uintptr_t)place >= library->relro_start &&
			    (uintptr_t)place < library->relro_end;

	if (is_read_only && mprotect((void *)page, page_bytes, PROT_READ | PROT_WRITE) < 0)
		return -EACCES;
	__atomic_store_n(place, replacement, __ATOMIC_RELEASE);
	if (is_read_only)
		mprotect((void *)page, page_bytes, PROT_READ);
	return 0;
}

static int replace_in(const struct library *library, const ElfW(Rela) * relocations, size_t bytes,
		      const ElfW(Sym) * symbols, const char *names, struct gcr_import *imports,
		      size_t count)
{
	for (size_t i = 0; i < bytes / sizeof(*relocations); i++) {
		const char *name;

		if (!IMPORTS(ELF64_R_TYPE(relocations[i].r_info)))
			continue;
		name = names + symbols[ELF64_R_SYM(relocations[i].r_info)].st_name;
		for (size_t j = 0; j < count; j++) {
			int r;

			if (strcmp(name, imports[j].name) != 0)
				continue;
			r = replace(library, (void **)(library->base + relocations[i].r_offset),
				    imports[j].replacement);
			if (r < 0)
				return r;
			imports[j].replaced++;
		}
	}
	return 0;
}

int gcr_imports_replace(const void *function, struct gcr_import *imports, size_t count)
{
	struct library library = {.wanted = (uintptr_t)function};
	const ElfW(Rela) *jumps = NULL, *others = NULL;
	const ElfW(Sym) *symbols = NULL;
	size_t jumps_bytes = 0, others_bytes = 0;
	const char *names = NULL;
	int r;

	if (!IMPORTS(R_X86_64_JUMP_SLOT) && !IMPORTS(R_AARCH64_JUMP_SLOT))
		return -ENOSYS;
	if (!dl_iterate_phdr(look_at, &library))
		return -ENOENT;
	for (const ElfW(Dyn) *entry = library.dynamic; entry->d_tag != DT_NULL; entry++)
		switch (entry->d_tag) {
		case DT_JMPREL:
			jumps = pointer(&library, entry);
			break;
		case DT_PLTRELSZ:
			jumps_bytes = entry->d_un.d_val;
			break;
		case DT_RELA:
			others = pointer(&library, entry);
			break;
		case DT_RELASZ:
			others_bytes = entry->d_un.d_val;
			break;
		case DT_SYMTAB:
			symbols = pointer(&library, entry);
			break;
		case DT_STRTAB:
			names = pointer(&library, entry);
			break;
		default:
			break;
		}
	if (!symbols || !names)
		return -ENOENT;
	r = jumps ? replace_in(&library, jumps, jumps_bytes, symbols, names, imports, count) : 0;
	if (r == 0 && others)
		r = replace_in(&library, others, others_bytes, symbols, names, imports, count);
	return r;
}
