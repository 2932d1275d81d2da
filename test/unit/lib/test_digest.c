/* SPDX-License-Identifier: MIT */
/*
 * lib/digest.c: digests as xxhsum prints them, and a file of digests in which every change is
 * detected.
 */
#include "lib/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "test/unit/test.h"

#define GENERATION "0f8fad5b-d9cb-469f-a165-70867728950e"
#define OTHER	   "0f8fad5b-d9cb-469f-a165-70867728950f"
#define COUNT	   5

static char directory[] = "/tmp/gcr-digest-XXXXXX";
static int directory_fd;

static void check_is(const struct gcr_digest *digest, const char *expected)
{
	char text[GCR_DIGEST_TEXT_BYTES];

	gcr_digest_format(digest, text);
	CHECK(!strcmp(text, expected));
}

/* Expected values are the output of `xxhsum -H2` (0.8.1). */
static void test_known(void)
{
	static uint8_t bytes[3 * GCR_CHUNK_BYTES + 100];
	struct gcr_digest digests[4], whole;

	gcr_digest_of("", 0, &whole);
	check_is(&whole, "99aa06d3014798d86001c324468d497f");
	gcr_digest_of_zeros(1, &whole);
	check_is(&whole, "a6cd5e9392000f6ac44bdff4074eecdb");
	gcr_digest_of_zeros(4096, &whole);
	check_is(&whole, "3ee8dc4f9e7ee49593d76fe148c689ba");
	gcr_digest_of_zeros(GCR_CHUNK_BYTES, &whole);
	check_is(&whole, "fd5ee061c8433a0f33b202d302b65caa");
	gcr_digest_of(bytes, GCR_CHUNK_BYTES, digests);
	CHECK(gcr_digest_equal(&whole, digests));

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 7 + i / 256 + i / GCR_CHUNK_BYTES);
	memset(digests, 0, sizeof(digests));
	gcr_digest_chunks(bytes, sizeof(bytes), digests);
	for (size_t i = 0; i < 4; i++) {
		gcr_digest_of(bytes + i * GCR_CHUNK_BYTES, i < 3 ? GCR_CHUNK_BYTES : 100, &whole);
		CHECK(gcr_digest_equal(&whole, &digests[i]));
		CHECK(!i || !gcr_digest_equal(&digests[i - 1], &digests[i]));
	}
	CHECK(gcr_digest_count(0) == 0 && gcr_digest_count(1) == 1);
	CHECK(gcr_digest_count(GCR_CHUNK_BYTES) == 1);
	CHECK(gcr_digest_count(GCR_CHUNK_BYTES + 1) == 2);
	CHECK(gcr_digest_count(UINT64_MAX) == UINT64_MAX / GCR_CHUNK_BYTES + 1);
}

static void test_text(void)
{
	struct gcr_digest digest, again;
	char text[GCR_DIGEST_TEXT_BYTES];

	for (size_t i = 0; i < GCR_DIGEST_BYTES; i++)
		digest.bytes[i] = (uint8_t)(i * 17);
	gcr_digest_format(&digest, text);
	CHECK(!strcmp(text, "00112233445566778899aabbccddeeff"));
	CHECK(!gcr_digest_parse(text, &again) && gcr_digest_equal(&digest, &again));
	for (size_t i = 0; i < GCR_DIGEST_TEXT_BYTES - 1; i++)
		for (int byte = 0; byte < 256; byte++) {
			char changed[GCR_DIGEST_TEXT_BYTES];
			bool is_digit = byte && strchr("0123456789abcdef", byte);

			memcpy(changed, text, sizeof(changed));
			changed[i] = (char)byte;
			CHECK(gcr_digest_parse(changed, &again) == (is_digit ? 0 : -EINVAL));
		}
}

static void test_file(void)
{
	_cleanup_free_ uint8_t *bytes = malloc(5u << 20);
	_cleanup_close_ int fd = memfd_create("digest", MFD_CLOEXEC);
	struct gcr_digest expected, found;
	uint64_t found_bytes = 0;

	CHECK(bytes && fd >= 0);
	for (size_t i = 0; i < 5u << 20; i++)
		bytes[i] = (uint8_t)(i * i >> 9);
	CHECK(write(fd, bytes, (5u << 20) - 3) == (5 << 20) - 3);
	gcr_digest_of(bytes, (5u << 20) - 3, &expected);
	CHECK(lseek(fd, 7, SEEK_SET) == 7);
	CHECK(!gcr_digest_file(fd, &found_bytes, &found));
	CHECK(found_bytes == (5u << 20) - 3 && gcr_digest_equal(&expected, &found));
	CHECK(!gcr_digest_file(fd, NULL, &found) && gcr_digest_equal(&expected, &found));
	CHECK(lseek(fd, 0, SEEK_CUR) == 7);
	CHECK(gcr_digest_file(-1, NULL, &found) == -EBADF);
}

/* The digest does not depend on how the data is divided; the stream can be used again. */
static void test_stream(void)
{
	_cleanup_(gcr_digest_stream_destroy_cleanup) struct gcr_digest_stream *stream =
		gcr_digest_stream_create();
	static uint8_t bytes[3 * GCR_CHUNK_BYTES + 100];
	struct gcr_digest expected, found;

	CHECK(stream);
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 11 + i / 300);
	gcr_digest_of("", 0, &expected);
	gcr_digest_stream_end(stream, &found);
	CHECK(gcr_digest_equal(&expected, &found));
	gcr_digest_of(bytes, sizeof(bytes), &expected);
	for (size_t piece = 1; piece < 2 * sizeof(bytes); piece = piece * 3 + 1) {
		for (size_t at = 0; at < sizeof(bytes); at += piece)
			gcr_digest_stream_add(stream, bytes + at,
					      sizeof(bytes) - at < piece ? sizeof(bytes) - at
									 : piece);
		gcr_digest_stream_end(stream, &found);
		CHECK(gcr_digest_equal(&expected, &found));
	}
}

static void test_header(void)
{
	static const uint8_t expected[GCR_DIGESTS_HEADER_BYTES] =
		"GCRDIGST\x01\0\0\0\0\0\x01\0" GENERATION "\0\0\0\0\x05\x04\x03\x02\x01\0\0";
	uint8_t header[GCR_DIGESTS_HEADER_BYTES];
	char generation[GCR_GENERATION_BYTES];
	struct gcr_error error;
	uint64_t count = 0;

	gcr_digests_header_fill(GENERATION, 0x0102030405, header);
	CHECK(!memcmp(header, expected, sizeof(header)));
	CHECK(!gcr_digests_header_parse(header, generation, &count, &error));
	CHECK(!strcmp(generation, GENERATION) && count == 0x0102030405);
	CHECK(!gcr_digests_header_check(header, GENERATION, count, &error));
	CHECK(gcr_digests_header_check(header, OTHER, count, &error) == -ESTALE);
	CHECK(strstr(error.words, GENERATION) && strstr(error.words, OTHER));
	CHECK(gcr_digests_header_check(header, GENERATION, 7, &error) == -EPROTO);

	for (size_t i = 0; i < sizeof(header); i++)
		for (int change = 1; change < 256; change++) {
			int result;

			header[i] ^= (uint8_t)change;
			error.number = 0;
			result = gcr_digests_header_check(header, GENERATION, count, &error);
			CHECK(result < 0 && error.number == -result && *error.words);
			if (i < 8)
				CHECK(result == -EPROTO);
			else if (i < 16)
				CHECK(result == -EPROTONOSUPPORT);
			else if (i < 56)
				CHECK(result == -EPROTO || result == -ESTALE);
			else
				CHECK(result == -EPROTO);
			header[i] ^= (uint8_t)change;
		}
}

static void fill(struct gcr_digest digests[COUNT])
{
	for (size_t i = 0; i < COUNT; i++)
		gcr_digest_of(&i, sizeof(i), &digests[i]);
}

static int read_back(const struct gcr_digest *digest, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_digest *found = NULL;
	struct gcr_digest expected[COUNT];
	int result = gcr_digests_read(directory_fd, GENERATION, COUNT, digest, &found, error);

	fill(expected);
	if (!result)
		CHECK(!memcmp(found, expected, sizeof(expected)));
	else
		CHECK(!found && error->number == -result && *error->words);
	return result;
}

static void test_write_and_read(void)
{
	struct gcr_digest digests[COUNT], digest, of_file;
	_cleanup_free_ struct gcr_digest *found = NULL;
	struct gcr_error error = {0};
	uint64_t bytes = 0;
	struct stat stat;

	fill(digests);
	CHECK(gcr_digests_write(directory_fd, "x", digests, COUNT, &digest, &error) == -EINVAL);
	CHECK(!gcr_digests_write(directory_fd, GENERATION, digests, COUNT, &digest, &error));
	CHECK(!read_back(&digest, &error));
	CHECK(!fstatat(directory_fd, GCR_DIGESTS_NAME, &stat, AT_SYMLINK_NOFOLLOW));
	CHECK(stat.st_size == 64 + 16 * COUNT && (stat.st_mode & 07777) == 0600);
	CHECK(faccessat(directory_fd, ".digests.new", F_OK, 0) < 0);
	{
		_cleanup_close_ int fd = openat(directory_fd, GCR_DIGESTS_NAME, O_RDWR | O_CLOEXEC);

		CHECK(!gcr_digest_file(fd, &bytes, &of_file));
		CHECK(bytes == (uint64_t)stat.st_size && gcr_digest_equal(&of_file, &digest));
		for (off_t i = 0; i < stat.st_size; i++) {
			uint8_t byte, changed;

			CHECK(pread(fd, &byte, 1, i) == 1);
			for (int bit = 0; bit < 8; bit++) {
				changed = byte ^ (uint8_t)(1 << bit);
				CHECK(pwrite(fd, &changed, 1, i) == 1);
				CHECK(read_back(&digest, &error) < 0);
			}
			CHECK(pwrite(fd, &byte, 1, i) == 1);
		}
		CHECK(!read_back(&digest, &error));
	}
	for (off_t length = 0; length < stat.st_size + 40; length++) {
		_cleanup_close_ int fd = -1;

		CHECK(!gcr_digests_write(directory_fd, GENERATION, digests, COUNT, &digest,
					 &error));
		fd = openat(directory_fd, GCR_DIGESTS_NAME, O_RDWR | O_CLOEXEC);
		CHECK(!ftruncate(fd, length));
		CHECK(read_back(&digest, &error) == (length == stat.st_size ? 0 : -EPROTO));
	}
	CHECK(!gcr_digests_write(directory_fd, OTHER, digests, COUNT, &digest, &error));
	CHECK(read_back(&digest, &error) == -ESTALE);
	CHECK(!gcr_digests_write(directory_fd, GENERATION, NULL, 0, &digest, &error));
	CHECK(!gcr_digests_read(directory_fd, GENERATION, 0, &digest, &found, &error));
	CHECK(gcr_digests_read(directory_fd, GENERATION, UINT64_MAX / 16, &digest, &found,
			       &error) == -E2BIG);
}

/* The file of digests is missing, or something other than a regular file has its name. */
static void test_no_file(void)
{
	struct gcr_digest digest = {{0}};
	struct gcr_error error = {0};

	CHECK(!unlinkat(directory_fd, GCR_DIGESTS_NAME, 0));
	CHECK(read_back(&digest, &error) == -ENOENT);
	CHECK(!symlinkat("/etc/passwd", directory_fd, GCR_DIGESTS_NAME));
	CHECK(read_back(&digest, &error) == -ELOOP);
	CHECK(!unlinkat(directory_fd, GCR_DIGESTS_NAME, 0));
	CHECK(!mkfifoat(directory_fd, GCR_DIGESTS_NAME, 0600));
	CHECK(read_back(&digest, &error) == -EPROTO);
	CHECK(!unlinkat(directory_fd, GCR_DIGESTS_NAME, 0));
	CHECK(!mkdirat(directory_fd, GCR_DIGESTS_NAME, 0700));
	CHECK(read_back(&digest, &error) == -EPROTO);
	CHECK(gcr_digests_write(directory_fd, GENERATION, NULL, 0, &digest, &error) == -EISDIR);
	CHECK(faccessat(directory_fd, ".digests.new", F_OK, 0) < 0);
	CHECK(!unlinkat(directory_fd, GCR_DIGESTS_NAME, AT_REMOVEDIR));
	/* left by a process that ended during the write */
	CHECK(!symlinkat("/etc/passwd", directory_fd, ".digests.new"));
	CHECK(!gcr_digests_write(directory_fd, GENERATION, NULL, 0, &digest, &error));
	CHECK(!unlinkat(directory_fd, GCR_DIGESTS_NAME, 0));
}

int main(void)
{
	CHECK(mkdtemp(directory));
	directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(directory_fd >= 0);
	test_known();
	test_text();
	test_file();
	test_stream();
	test_header();
	test_write_and_read();
	test_no_file();
	close(directory_fd);
	CHECK(!rmdir(directory));
	return 0;
}
