/* SPDX-License-Identifier: MIT */
/* The kernel's functions in a process, as they are, as a program has changed them, and damaged. */
#include "criu-glue/vdso.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/unit/test.h"

#define PAGES_MAX 16u
#define ADDRESS	  0x7000u

static size_t page;
static uint8_t vdso[PAGES_MAX << 16];
static size_t vdso_bytes;

/* Our own, which has as many pages as can be read. False: there is none. */
static bool read_own(void)
{
	unsigned long own = getauxval(AT_SYSINFO_EHDR), start, end;
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];

	page = (size_t)sysconf(_SC_PAGESIZE);
	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start == own &&
		    end - start <= sizeof(vdso))
			vdso_bytes = end - start;
	if (maps)
		fclose(maps);
	if (vdso_bytes)
		memcpy(vdso, (const void *)own, vdso_bytes);
	return vdso_bytes;
}

/* The value of the first symbol that has one. */
static uint64_t *find_value(void)
{
	const Elf64_Ehdr *header = (const Elf64_Ehdr *)(void *)vdso;
	const Elf64_Phdr *segment = (const Elf64_Phdr *)(void *)(vdso + header->e_phoff);
	const Elf64_Dyn *entry;
	Elf64_Sym *symbol = NULL;

	while (segment->p_type != PT_DYNAMIC)
		segment++;
	for (entry = (const Elf64_Dyn *)(void *)(vdso + segment->p_offset); entry->d_tag; entry++)
		if (entry->d_tag == DT_SYMTAB)
			symbol = (Elf64_Sym *)(void *)(vdso + entry->d_un.d_ptr);
	CHECK(symbol);
	while (!symbol->st_value)
		symbol++;
	return &symbol->st_value;
}

static void test_symbols(void)
{
	uint64_t *value = find_value(), old = *value;

	CHECK(gcr_vdso_is_sound(vdso, vdso_bytes));
	for (*value = vdso_bytes - 1; *value > vdso_bytes / 2; *value *= 2)
		CHECK(!gcr_vdso_is_sound(vdso, vdso_bytes));
	*value = (uint64_t)-64;
	CHECK(!gcr_vdso_is_sound(vdso, vdso_bytes));
	*value = old;
}

/* Whatever is in it, nothing outside is read: a sanitizer would say so. */
static void test_damaged(void)
{
	for (size_t size = 0; size < page; size += 8) {
		uint8_t *copy = malloc(size + 1);

		CHECK(copy);
		memcpy(copy, vdso, size);
		gcr_vdso_is_sound(copy, size);
		free(copy);
	}
	for (size_t at = 0; at < page; at++) {
		uint8_t old = vdso[at];

		for (unsigned int bit = 0; bit < 8; bit += 7) {
			vdso[at] = (uint8_t)(old ^ 1u << bit);
			gcr_vdso_is_sound(vdso, vdso_bytes);
		}
		vdso[at] = old;
	}
}

/* ---- images ---- */

struct text {
	uint8_t bytes[512];
	size_t used;
};

static void add_byte(struct text *text, unsigned int byte)
{
	CHECK(text->used < sizeof(text->bytes));
	text->bytes[text->used++] = (uint8_t)byte;
}

static void add_number(struct text *text, unsigned int field, uint64_t value)
{
	add_byte(text, field << 3);
	for (; value >= 0x80; value >>= 7)
		add_byte(text, (value & 0x7f) | 0x80);
	add_byte(text, (unsigned int)value);
}

static void add_word(struct text *text, uint32_t word)
{
	for (unsigned int shift = 0; shift < 32; shift += 8)
		add_byte(text, word >> shift & 0xff);
}

static void add_message(struct text *image, const struct text *message)
{
	add_word(image, (uint32_t)message->used);
	for (size_t i = 0; i < message->used; i++)
		add_byte(image, message->bytes[i]);
}

static struct text begin(uint32_t kind)
{
	struct text image = {0};

	add_word(&image, 0x54564319u);
	add_word(&image, kind);
	return image;
}

static void write_file(int directory, const char *name, const void *bytes, size_t size)
{
	int fd = openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
	close(fd);
}

static struct text make_run(uint64_t address, uint64_t pages, uint64_t flags)
{
	struct text run = {0};

	add_number(&run, 1, address);
	add_number(&run, 2, pages);
	add_number(&run, 4, flags);
	return run;
}

/* Process 5, with the vdso behind a page of something else, and pages that are in no file. */
static void write_images(int fd)
{
	struct text tree = begin(0x50273030u), mm = begin(0x57492820u), map = begin(0x56084025u);
	struct text process = {0}, head = {0}, area = {0}, memory = {0}, run;
	uint8_t other[1 << 16] = {0};

	add_number(&process, 1, 5);
	add_message(&tree, &process);
	write_file(fd, "pstree.img", tree.bytes, tree.used);
	add_number(&area, 1, ADDRESS * page);
	add_number(&area, 2, ADDRESS * page + vdso_bytes);
	add_number(&area, 7, 1 | 1 << 3);
	add_byte(&memory, 14 << 3 | 2);
	add_byte(&memory, (unsigned int)area.used);
	for (size_t i = 0; i < area.used; i++)
		add_byte(&memory, area.bytes[i]);
	add_message(&mm, &memory);
	write_file(fd, "mm-5.img", mm.bytes, mm.used);
	add_number(&head, 1, 3);
	add_message(&map, &head);
	run = make_run(page, 7, 0);
	add_message(&map, &run);
	run = make_run(ADDRESS * page - page, 1 + vdso_bytes / page, 4);
	add_message(&map, &run);
	write_file(fd, "pagemap-5.img", map.bytes, map.used);
	CHECK(page <= sizeof(other));
	write_file(fd, "pages-3.img", other, page);
	fd = openat(fd, "pages-3.img", O_WRONLY | O_APPEND | O_CLOEXEC);
	CHECK(fd >= 0 && write(fd, vdso, vdso_bytes) == (ssize_t)vdso_bytes);
	close(fd);
}

static void test_images(void)
{
	char path[] = "/tmp/gpucr-vdso-XXXXXX", command[64];
	uint64_t *value = find_value(), old = *value;
	struct gcr_error error = {0};
	int fd;

	CHECK(mkdtemp(path));
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(fd >= 0);
	write_images(fd);
	CHECK(!gcr_criu_check_vdso(fd, &error));
	*value = 0x10000000;
	write_images(fd);
	CHECK(gcr_criu_check_vdso(fd, &error) == -EPERM && strstr(error.words, "process 5"));
	*value = old;
	write_images(fd);
	CHECK(!unlinkat(fd, "pages-3.img", 0));
	CHECK(gcr_criu_check_vdso(fd, &error) == -EIO);
	/* A process that had ended. */
	CHECK(!unlinkat(fd, "mm-5.img", 0));
	CHECK(!gcr_criu_check_vdso(fd, &error));
	close(fd);
	snprintf(command, sizeof(command), "rm -r %s", path);
	CHECK(!system(command));
}

int main(void)
{
	if (!read_own() || sizeof(void *) != 8)
		return 77;
	test_symbols();
	test_damaged();
	test_images();
	return 0;
}
