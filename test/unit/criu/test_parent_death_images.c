/* SPDX-License-Identifier: MIT */
/* Parent-death signals in CRIU's images, as written by CRIU and malformed. */
#include "criu-glue/parent_death.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "criu-glue/protobuf.h"
#include "lib/cleanup.h"
#include "test/unit/test.h"

#define PSTREE	     "\x19\x43\x56\x54\x30\x30\x27\x50"
#define CORE	     "\x19\x43\x56\x54\x47\x38\x05\x55"
/* mtype, tc of one byte, and then thread_core: its futex_rla, pdeath_sig, and a sched_nice. */
#define CORE_OF(SIG) CORE "\x0d\0\0\0\x08\x01\x1a\x01\x00\x2a\x06\x08\x07\x40" SIG "\x18\x01"
#define CORE_WITHOUT CORE "\x09\0\0\0\x08\x01\x2a\x05\x08\x07\x10\x05\x18"
/* A root with two threads, and one child. */
#define TREE                                                                \
	PSTREE "\x0c\0\0\0\x08\x0a\x10\x00\x18\x0a\x20\x0a\x28\x0a\x28\x0b" \
	       "\x0a\0\0\0\x08\x14\x10\x0a\x18\x0a\x20\x0a\x28\x14"

#define BYTES(literal) (const uint8_t *)(literal), sizeof(literal) - 1

/* A copy in memory of exactly that size, so that a sanitizer detects an access out of bounds. */
static uint8_t *copy_of(const uint8_t *bytes, size_t size)
{
	uint8_t *copy = malloc(size ? size : 1);

	CHECK(copy);
	memcpy(copy, bytes, size);
	return copy;
}

/* ---- messages ---- */

static void test_fields(void)
{
	static const uint8_t message[] = "\x08\x96\x01\x12\x03"
					 "abc\x1d"
					 "1234\x21"
					 "12345678";
	const uint8_t *at = message, *end = message + sizeof(message) - 1;
	struct gcr_protobuf_field field;

	CHECK(gcr_protobuf_next(&at, end, &field));
	CHECK(field.number == 1 && field.wire == GCR_PROTOBUF_VARINT && field.value == 150);
	CHECK(field.start == message && field.bytes == 3 && field.content_bytes == 2);
	CHECK(gcr_protobuf_next(&at, end, &field));
	CHECK(field.number == 2 && field.wire == GCR_PROTOBUF_BYTES && !field.value);
	CHECK(field.content_bytes == 3 && !memcmp(field.content, "abc", 3) && field.bytes == 5);
	CHECK(gcr_protobuf_next(&at, end, &field));
	CHECK(field.number == 3 && field.wire == GCR_PROTOBUF_32BIT && field.content_bytes == 4);
	CHECK(gcr_protobuf_next(&at, end, &field));
	CHECK(field.number == 4 && field.wire == GCR_PROTOBUF_64BIT && field.content_bytes == 8);
	CHECK(at == end && field.content + 8 == end);
}

static void test_damaged_fields(void)
{
	static const struct {
		const char *bytes;
		size_t size;
	} cases[] = {
		{"", 0},
		{"\x08", 1},						  /* no value */
		{"\x88", 1},						  /* unfinished key */
		{"\x00\x01", 2},					  /* field 0 */
		{"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12}, /* varint too long */
		{"\x12\x02"
		 "a",
		 3},
		{"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11},
		{"\x1d"
		 "123",
		 4},
		{"\x21"
		 "1234567",
		 8},
		{"\x0b\x0c", 2},				      /* group, not supported */
		{"\x0e\x01", 2},				      /* no such wire type */
		{"\x88\x80\x80\x80\x80\x80\x80\x80\x80\x01\x01", 11}, /* field number too large */
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cases); i++) {
		_cleanup_free_ uint8_t *bytes =
			copy_of((const uint8_t *)cases[i].bytes, cases[i].size);
		const uint8_t *at = bytes;
		struct gcr_protobuf_field field;

		CHECK(!gcr_protobuf_next(&at, bytes + cases[i].size, &field));
	}
}

/* ---- the tree ---- */

static int threads_of(const uint8_t *image, size_t size, pid_t **ret_threads, size_t *ret_count)
{
	_cleanup_free_ uint8_t *bytes = copy_of(image, size);

	return gcr_parent_death_threads(bytes, size, ret_threads, ret_count);
}

static void check_threads(const uint8_t *image, size_t size, const char *expected)
{
	_cleanup_free_ pid_t *threads = NULL;
	char found[128] = "";
	size_t count;

	CHECK(!threads_of(image, size, &threads, &count));
	for (size_t i = 0; i < count; i++)
		snprintf(found + strlen(found), sizeof(found) - strlen(found), "%d ",
			 (int)threads[i]);
	if (strcmp(found, expected) != 0)
		fprintf(stderr, "found %s, expected %s\n", found, expected);
	CHECK(!strcmp(found, expected));
}

static void test_tree(void)
{
	static const uint8_t *const tree = (const uint8_t *)TREE;
	pid_t *threads;
	size_t count;

	check_threads(BYTES(TREE), "10 11 ");
	/*
	 * The parent field comes last, threads are packed, and the first is the main one, whatever
	 * its number: CRIU writes none of meaning for a process that has ended.
	 */
	check_threads(BYTES(PSTREE "\x0a\0\0\0\x08\x0a\x2a\x04\x0b\x80\x80\x01\x10\x00"),
		      "10 16384 ");
	check_threads(BYTES(PSTREE "\x0a\0\0\0\x08\x0a\x2a\x04\x00\x80\x80\x01\x10\x00"),
		      "10 16384 ");
	check_threads(BYTES(PSTREE "\x08\0\0\0\x28\x15\x08\x14\x28\x14\x10\x0a"
				   "\x04\0\0\0\x08\x0a\x10\x00"),
		      "10 ");
	/* Two processes without a parent. */
	check_threads(BYTES(PSTREE "\x04\0\0\0\x08\x0a\x10\x00\x04\0\0\0\x08\x0b\x10\x00"),
		      "10 11 ");

	/* A truncated image is an error unless it ends between the two entries. */
	for (size_t size = 0; size < sizeof(TREE) - 1; size++) {
		int result = threads_of(tree, size, &threads, &count);

		CHECK(size == 8 + 4 + 12 ? !result : result == -EIO);
		if (!result)
			free(threads);
	}
	CHECK(threads_of(BYTES(CORE), &threads, &count) == -EIO);
	/* Without a pid, with an impossible pid, and with threads of a wrong wire type. */
	CHECK(threads_of(BYTES(PSTREE "\x02\0\0\0\x10\x00"), &threads, &count) == -EIO);
	CHECK(threads_of(BYTES(PSTREE "\x08\0\0\0\x08\x80\x80\x80\x80\x08\x10\x00"), &threads,
			 &count) == -EIO);
	CHECK(threads_of(BYTES(PSTREE "\x09\0\0\0\x08\x0a\x10\x00\x2d"
				      "1234"),
			 &threads, &count) == -EIO);
	CHECK(threads_of(BYTES(PSTREE "\x08\0\0\0\x08\x0a\x10\x00\x2a\x02\x0b\x80"), &threads,
			 &count) == -EIO);
	/* No process is a root. */
	CHECK(threads_of(BYTES(PSTREE "\x04\0\0\0\x08\x0a\x10\x0b"), &threads, &count) == -EIO);
}

/* ---- a thread ---- */

static void check_core(const uint8_t *before, size_t size, const uint8_t *after, bool expected)
{
	_cleanup_free_ uint8_t *bytes = copy_of(before, size);
	bool had = !expected;

	CHECK(!gcr_parent_death_clear(bytes, size, &had));
	CHECK(had == expected);
	CHECK(!memcmp(bytes, after, size));
}

/* Each occurrence of the signal in thread_core is cleared, and nothing else is changed. */
static void test_core(void)
{
	static const uint8_t twice[] = CORE "\x08\0\0\0\x2a\x02\x40\x09\x2a\x02\x40\x0f";
	static const uint8_t twice_after[] = CORE "\x08\0\0\0\x2a\x02\x40\x00\x2a\x02\x40\x00";
	static const uint8_t far[] = CORE "\x06\0\0\0\x2a\x04\x40\x89\x80\x01";
	static const uint8_t far_after[] = CORE "\x06\0\0\0\x2a\x04\x40\x80\x80\x00";
	/* Field 8 of another message is not the signal. */
	static const uint8_t other[] = CORE "\x04\0\0\0\x1a\x02\x40\x09";
	static const uint8_t *const whole = (const uint8_t *)CORE_OF("\x09");
	bool had;

	check_core(BYTES(CORE_OF("\x09")), (const uint8_t *)CORE_OF("\x00"), true);
	check_core(BYTES(CORE_OF("\x00")), (const uint8_t *)CORE_OF("\x00"), false);
	check_core(twice, sizeof(twice) - 1, twice_after, true);
	check_core(far, sizeof(far) - 1, far_after, true);
	check_core(other, sizeof(other) - 1, other, false);
	check_core(BYTES(CORE), (const uint8_t *)CORE, false);

	for (size_t size = 0; size < sizeof(CORE_OF("\x09")) - 1; size++) {
		_cleanup_free_ uint8_t *bytes = copy_of(whole, size);

		CHECK(gcr_parent_death_clear(bytes, size, &had) == (size == 8 ? 0 : -EIO));
	}
	for (size_t i = 0; i < 2; i++) {
		/* thread_core as a number; the signal as a text. */
		static const uint8_t wrong[2][17] = {CORE "\x02\0\0\0\x28\x09",
						     CORE "\x05\0\0\0\x2a\x03\x42\x01\x09"};
		size_t size = 12 + (size_t)wrong[i][8];
		_cleanup_free_ uint8_t *bytes = copy_of(wrong[i], size);

		CHECK(gcr_parent_death_clear(bytes, size, &had) == -EIO);
	}
}

/* ---- a directory ---- */

static void write_file(int fd, const char *name, const uint8_t *bytes, size_t size)
{
	_cleanup_close_ int file_fd = openat(fd, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	CHECK(file_fd >= 0 && write(file_fd, bytes, size) == (ssize_t)size);
}

static void check_file(int fd, const char *name, const uint8_t *bytes, size_t size)
{
	_cleanup_close_ int file_fd = openat(fd, name, O_RDONLY);
	uint8_t found[64];

	CHECK(file_fd >= 0 && read(file_fd, found, sizeof(found)) == (ssize_t)size);
	CHECK(!memcmp(found, bytes, size));
}

static void check_refused(int fd, const char *name)
{
	struct gcr_error error = {0};
	bool has;

	CHECK(gcr_criu_has_parent_death(fd, &has, &error) == -EIO);
	CHECK(error.number == EIO && strstr(error.words, name));
	CHECK(gcr_criu_clear_parent_death(fd, &error) == -EIO);
}

static void test_directory(void)
{
	static const char *const names[] = {"core-10.img", "core-11.img", "core-20.img", "link",
					    "pstree.img"};
	char path[] = "/tmp/gpucr-test-XXXXXX";
	_cleanup_close_ int fd = -1;
	struct gcr_error error;
	bool has = true;

	CHECK(mkdtemp(path));
	fd = open(path, O_RDONLY | O_DIRECTORY);
	CHECK(fd >= 0);
	check_refused(fd, "pstree.img");
	write_file(fd, "pstree.img", BYTES(TREE));
	write_file(fd, "core-10.img", BYTES(CORE_OF("\x00")));
	check_refused(fd, "core-11.img");
	write_file(fd, "core-11.img", BYTES(CORE_OF("\x00")));
	write_file(fd, "core-20.img", BYTES(CORE_OF("\x09")));
	CHECK(!gcr_criu_has_parent_death(fd, &has, &error) && !has);

	/*
	 * The signal of the second thread is cleared. The child keeps its own, and a link to the
	 * old image keeps the old bytes.
	 */
	write_file(fd, "core-11.img", BYTES(CORE_OF("\x0f")));
	CHECK(!linkat(fd, "core-11.img", fd, "link", 0));
	CHECK(!gcr_criu_has_parent_death(fd, &has, &error) && has);
	check_file(fd, "core-11.img", BYTES(CORE_OF("\x0f")));
	CHECK(!gcr_criu_clear_parent_death(fd, &error));
	check_file(fd, "core-11.img", BYTES(CORE_OF("\x00")));
	check_file(fd, "core-20.img", BYTES(CORE_OF("\x09")));
	check_file(fd, "link", BYTES(CORE_OF("\x0f")));
	CHECK(!gcr_criu_has_parent_death(fd, &has, &error) && !has);

	write_file(fd, "core-11.img", BYTES(CORE_WITHOUT));
	check_refused(fd, "core-11.img");
	CHECK(!unlinkat(fd, "core-11.img", 0) && !symlinkat("core-10.img", fd, "core-11.img"));
	check_refused(fd, "core-11.img");
	for (size_t i = 0; i < GCR_ARRAY_SIZE(names); i++)
		CHECK(!unlinkat(fd, names[i], 0));
	CHECK(!rmdir(path));
}

int main(void)
{
	test_fields();
	test_damaged_fields();
	test_tree();
	test_core();
	test_directory();
	return 0;
}
