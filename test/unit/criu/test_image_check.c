/* SPDX-License-Identifier: MIT */
/*
 * What images would give a program's user at a restore, and which processes are dumpable by them:
 * images as CRIU writes them, and damaged ones.
 */
#include "criu-glue/image_check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/securebits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "criu-glue/dumpable.h"
#include "lib/cleanup.h"
#include "test/unit/criu/message.h"
#include "test/unit/test.h"

#define USER   1000u
#define PID    10
#define THREAD 11
#define AREA   0x70000020ul
#define BYTES  32u

/* The release of the kernel, for image_check.c. */
static const char *release = "6.18.0";

static char directory[] = "/tmp/gcr-image-check-XXXXXX";
static int images_fd;

int uname(struct utsname *ret_name)
{
	*ret_name = (struct utsname){0};
	strcpy(ret_name->release, release);
	return 0;
}

static void write_image(const char *name, uint32_t kind, const struct message *message)
{
	const uint32_t head[3] = {0x54564319, kind, (uint32_t)message->used};
	int fd = openat(images_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && write(fd, head, sizeof(head)) == sizeof(head));
	CHECK(write(fd, message->bytes, message->used) == (ssize_t)message->used);
	close(fd);
}

static void write_core(pid_t number, uid_t uid, unsigned int bits, uint64_t area)
{
	struct message core = {0}, task = {0}, thread = {0}, creds = {0}, rseq = {0};
	char name[32];

	for (unsigned int i = 1; i <= 8; i++)
		put_number(&creds, i, i % 2 ? uid : 0);
	for (unsigned int set = 9; set <= 12; set++)
		for (int half = 0; half < 2; half++)
			put_number(&creds, set, 0);
	put_number(&creds, 13, bits);
	put_number(&rseq, 1, area);
	put_number(&rseq, 2, BYTES);
	put_number(&rseq, 3, 0x53053053);
	put_number(&task, 1, 1);
	put_message(&thread, 10, &creds);
	if (area)
		put_message(&thread, 15, &rseq);
	put_number(&core, 1, 1);
	put_message(&core, 3, &task);
	put_message(&core, 5, &thread);
	snprintf(name, sizeof(name), "core-%d.img", (int)number);
	write_image(name, 0x55053847, &core);
}

static void put_mapping(struct message *memory, uint64_t start, uint64_t end, unsigned int flags)
{
	struct message mapping = {0};

	put_number(&mapping, 1, start);
	put_number(&mapping, 2, end);
	put_number(&mapping, 5, PROT_READ | PROT_WRITE);
	put_number(&mapping, 6, flags);
	put_message(memory, 14, &mapping);
}

/* The memory of the process, with one mapping around the area. */
static void write_memory(uint64_t end, unsigned int flags, unsigned int dumpable)
{
	struct message memory = {0};

	put_number(&memory, 1, 0x400000);
	put_mapping(&memory, 0x1000, 0x2000, MAP_SHARED);
	put_mapping(&memory, AREA & ~0xffful, end, flags);
	put_number(&memory, 15, dumpable);
	write_image("mm-10.img", 0x57492820, &memory);
}

static void write_ghost(const char *name, uid_t uid)
{
	struct message ghost = {0};

	put_number(&ghost, 1, uid);
	put_number(&ghost, 2, 0);
	put_number(&ghost, 3, 0100600);
	write_image(name, 0x52583605, &ghost);
}

#define PRESENT 4u

static void put_range(int fd, uint64_t address, uint64_t pages, unsigned int flags)
{
	struct message range = {0};
	uint32_t length;

	put_number(&range, 1, address);
	put_number(&range, 2, pages);
	put_number(&range, 4, flags);
	length = (uint32_t)range.used;
	CHECK(write(fd, &length, sizeof(length)) == sizeof(length));
	CHECK(write(fd, range.bytes, length) == (ssize_t)length);
}

/* The thread's area for rseq(2) names code there, in memory that is in the images or not. */
static void write_code(uint64_t code, unsigned int flags)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct message head = {0};
	uint8_t *bytes = calloc(1, page);
	int fd;

	CHECK(bytes);
	memcpy(bytes + AREA % page + 8, &code, sizeof(code));
	put_number(&head, 1, 4);
	write_image("pagemap-10.img", 0x56084025, &head);
	fd = openat(images_fd, "pagemap-10.img", O_WRONLY | O_APPEND | O_CLOEXEC);
	put_range(fd, AREA / page * page, 1, flags);
	close(fd);
	fd = openat(images_fd, "pages-4.img", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	CHECK(write(fd, bytes, page) == (ssize_t)page);
	close(fd);
	free(bytes);
}

/* A process with two threads, in which all is as it should be. */
static void write_all(void)
{
	struct message process = {0};

	put_number(&process, 1, PID);
	put_number(&process, 2, 0);
	put_number(&process, 5, PID);
	put_number(&process, 5, THREAD);
	write_image("pstree.img", 0x50273030, &process);
	write_core(PID, USER, 0, AREA);
	write_core(THREAD, USER, 0, 0);
	write_memory(AREA + BYTES, MAP_PRIVATE | MAP_ANONYMOUS, 1);
	write_code(0, PRESENT);
	write_ghost("ghost-file-1.img", USER);
}

static void expect(int expected, const char *words)
{
	const struct gcr_image_owner owner = {.uid = USER};
	struct gcr_error error = {0};

	CHECK(gcr_image_check(images_fd, &owner, &error) == expected);
	CHECK(!words || strstr(error.words, words));
}

static void test_secure_bits(void)
{
	write_all();
	expect(0, NULL);
	write_core(THREAD, USER, 1u << SECURE_KEEP_CAPS, 0);
	expect(0, NULL);
	for (unsigned int bit = 0; bit < 8; bit++) {
		write_core(THREAD, USER, 1u << bit, 0);
		expect(bit == SECURE_KEEP_CAPS ? 0 : -EACCES,
		       bit == SECURE_KEEP_CAPS ? NULL : "thread 11");
	}
	/* A thread of root's alone has told the truth. */
	write_core(THREAD, 0, SECBIT_NOROOT, 0);
	expect(0, NULL);
}

static void test_area(void)
{
	static const unsigned int flags[] = {MAP_SHARED, MAP_SHARED | MAP_ANONYMOUS};

	write_all();
	for (size_t i = 0; i < GCR_ARRAY_SIZE(flags); i++) {
		write_memory(AREA + BYTES, flags[i], 1);
		expect(-EACCES, "thread 10");
	}
	write_memory(AREA + BYTES - 1, MAP_PRIVATE | MAP_ANONYMOUS, 1);
	expect(-EACCES, "rseq");
	write_memory(AREA, MAP_PRIVATE | MAP_ANONYMOUS, 1);
	expect(-EACCES, "rseq");
	write_memory(AREA + BYTES, MAP_PRIVATE | MAP_ANONYMOUS, 1);
	write_core(PID, USER, 0, UINT64_MAX - 1);
	expect(-EACCES, "rseq");
}

static void test_deleted_files(void)
{
	write_all();
	write_ghost("ghost-file-2.img", 0);
	expect(-EACCES, "user 0");
	write_ghost("ghost-file-2.img", USER);
	expect(0, NULL);
	/* There CRIU makes files as root. */
	write_ghost("mountpoints-12.img", 0);
	expect(-EACCES, "mount namespace");
	CHECK(!unlinkat(images_fd, "mountpoints-12.img", 0));
	expect(0, NULL);
}

static void test_dumpable(void)
{
	struct gcr_error error;

	write_all();
	for (unsigned int dumpable = 0; dumpable < 3; dumpable++) {
		_cleanup_free_ pid_t *pids = NULL, *none = NULL;
		size_t count = 7;

		write_memory(AREA + BYTES, MAP_PRIVATE | MAP_ANONYMOUS, dumpable);
		CHECK(!gcr_criu_find_dumpable(images_fd, &pids, &count, &error));
		CHECK(count == (dumpable == 1) && (!count || pids[0] == PID));
		CHECK(!gcr_criu_clear_dumpable(images_fd, pids, count, &error));
		CHECK(!gcr_criu_find_dumpable(images_fd, &none, &count, &error) && !count);
		/* All else is as it was. */
		expect(0, NULL);
	}
}

static void test_code(void)
{
	struct gcr_error error;

	write_all();
	write_code(0x400000, PRESENT);
	expect(0, NULL);
	release = "6.8.0-45-generic";
	expect(-EACCES, "thread 10");
	/* A dump clears it. */
	CHECK(!gcr_image_clear_rseq(images_fd, &error));
	expect(0, NULL);
	write_code(0x400000, 0);
	CHECK(!gcr_image_clear_rseq(images_fd, &error));
	expect(0, NULL);
	write_code(0, PRESENT);
	expect(0, NULL);
	/* A copy of a file is as good, if CRIU has it. */
	write_memory(AREA + BYTES, MAP_PRIVATE, 1);
	expect(0, NULL);
	write_code(0, 0);
	expect(-EACCES, "shares");
	CHECK(!unlinkat(images_fd, "pagemap-10.img", 0));
	expect(-EIO, "pagemap-10.img");
	release = "6.18.0";
	CHECK(gcr_image_kernel_clears_rseq("6.15.0-rc1") && gcr_image_kernel_clears_rseq("7.0"));
	CHECK(!gcr_image_kernel_clears_rseq("6.14.11") && !gcr_image_kernel_clears_rseq("odd"));
	CHECK(!gcr_image_kernel_clears_rseq("5.15.0"));
}

/* An image that ends anywhere before its end is damaged, and is read no further. */
static void test_damaged(void)
{
	static const char *const names[] = {"core-10.img", "mm-10.img", "ghost-file-1.img"};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(names); i++) {
		off_t size;
		int fd;

		write_all();
		fd = openat(images_fd, names[i], O_RDWR | O_CLOEXEC);
		size = lseek(fd, 0, SEEK_END);
		CHECK(fd >= 0 && size > 0);
		while (size-- > 0) {
			CHECK(!ftruncate(fd, size));
			expect(-EIO, names[i]);
		}
		close(fd);
	}
	write_all();
	CHECK(!unlinkat(images_fd, "core-11.img", 0));
	expect(-EIO, "core-11.img");
}

int main(void)
{
	char command[64];

	CHECK(mkdtemp(directory));
	images_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(images_fd >= 0);
	test_secure_bits();
	test_area();
	test_deleted_files();
	test_dumpable();
	test_code();
	test_damaged();
	close(images_fd);
	snprintf(command, sizeof(command), "rm -r %s", directory);
	CHECK(!system(command));
	return 0;
}
