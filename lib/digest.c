/* SPDX-License-Identifier: MIT */
/* Digests by libxxhash, and the file that holds them (see digest.h). */
#include "lib/digest.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/full_io.h"
#include "lib/hex.h"
#include "lib/uuid.h"

#define MAGIC	   "GCRDIGST"
#define READ_BYTES (1u << 20)

struct header {
	char magic[8];
	uint32_t version;
	uint32_t chunk_bytes;
	char generation[GCR_GENERATION_BYTES];
	uint64_t count;
};
static_assert(sizeof(struct header) == GCR_DIGESTS_HEADER_BYTES, "the header has no holes");
static_assert(sizeof(struct gcr_digest) == sizeof(XXH128_canonical_t), "the canonical form");

static const uint8_t zeros[GCR_CHUNK_BYTES];
static const struct gcr_digest digest_of_zero_chunk = {{0xfd, 0x5e, 0xe0, 0x61, 0xc8, 0x43, 0x3a,
							0x0f, 0x33, 0xb2, 0x02, 0xd3, 0x02, 0xb6,
							0x5c, 0xaa}};

static void make_canonical(XXH128_hash_t hash, struct gcr_digest *ret_digest)
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, hash);
	memcpy(ret_digest->bytes, canonical.digest, sizeof(ret_digest->bytes));
}

void gcr_digest_of(const void *bytes, uint64_t size, struct gcr_digest *ret_digest)
{
	make_canonical(XXH3_128bits(bytes, size), ret_digest);
}

uint64_t gcr_digest_hash(const void *bytes, size_t size, uint64_t seed)
{
	return XXH3_64bits_withSeed(bytes, size, seed);
}

void gcr_digest_chunks(const void *bytes, uint64_t size, struct gcr_digest *ret_digests)
{
	const uint8_t *chunk = bytes;

	while (size) {
		uint64_t length = size < GCR_CHUNK_BYTES ? size : GCR_CHUNK_BYTES;

		gcr_digest_of(chunk, length, ret_digests++);
		chunk += length;
		size -= length;
	}
}

void gcr_digest_of_zeros(size_t size, struct gcr_digest *ret_digest)
{
	if (size == GCR_CHUNK_BYTES)
		*ret_digest = digest_of_zero_chunk;
	else
		gcr_digest_of(zeros, size, ret_digest);
}

/* A stream is a libxxhash state, cast to a type of our own. */
struct gcr_digest_stream *gcr_digest_stream_create(void)
{
	XXH3_state_t *state = XXH3_createState();

	if (state)
		XXH3_128bits_reset(state);
	return (struct gcr_digest_stream *)state;
}

void gcr_digest_stream_add(struct gcr_digest_stream *stream, const void *bytes, size_t size)
{
	XXH3_128bits_update((XXH3_state_t *)stream, bytes, size);
}

void gcr_digest_stream_end(struct gcr_digest_stream *stream, struct gcr_digest *ret_digest)
{
	make_canonical(XXH3_128bits_digest((XXH3_state_t *)stream), ret_digest);
	XXH3_128bits_reset((XXH3_state_t *)stream);
}

void gcr_digest_stream_destroy(struct gcr_digest_stream *stream)
{
	XXH3_freeState((XXH3_state_t *)stream);
}

int gcr_digest_file(int fd, uint64_t *ret_bytes, struct gcr_digest *ret_digest)
{
	_cleanup_(gcr_digest_stream_destroy_cleanup) struct gcr_digest_stream *stream =
		gcr_digest_stream_create();
	_cleanup_free_ char *buffer = malloc(READ_BYTES);
	uint64_t bytes = 0;
	ssize_t got;

	if (!stream || !buffer)
		return -ENOMEM;
	while ((got = gcr_pread_all(fd, buffer, READ_BYTES, bytes)) > 0) {
		gcr_digest_stream_add(stream, buffer, (size_t)got);
		bytes += (uint64_t)got;
	}
	if (got < 0)
		return (int)got;
	gcr_digest_stream_end(stream, ret_digest);
	if (ret_bytes)
		*ret_bytes = bytes;
	return 0;
}

int gcr_digest_mismatch(const char *name, uint64_t chunk, struct gcr_error *error)
{
	return gcr_error_set(error, EIO,
			     "vram/%s is not what was frozen: the digest of the chunk at offset "
			     "%" PRIu64 " is another",
			     name, chunk * GCR_CHUNK_BYTES);
}

bool gcr_digest_equal(const struct gcr_digest *left, const struct gcr_digest *right)
{
	return !memcmp(left->bytes, right->bytes, sizeof(left->bytes));
}

bool gcr_digest_is_of(const struct gcr_digest *digest, const void *bytes, uint64_t size)
{
	struct gcr_digest found;

	gcr_digest_of(bytes, size, &found);
	return gcr_digest_equal(&found, digest);
}

void gcr_digest_format(const struct gcr_digest *digest, char ret_text[GCR_DIGEST_TEXT_BYTES])
{
	for (size_t i = 0; i < GCR_DIGEST_BYTES; i++)
		ret_text = gcr_hex_put(ret_text, digest->bytes[i]);
	*ret_text = '\0';
}

int gcr_digest_parse(const char *text, struct gcr_digest *ret_digest)
{
	struct gcr_digest digest;

	for (size_t i = 0; i < GCR_DIGEST_BYTES; i++) {
		int byte = gcr_hex_byte(text + 2 * i);

		if (byte < 0)
			return -EINVAL;
		digest.bytes[i] = (uint8_t)byte;
	}
	*ret_digest = digest;
	return 0;
}

void gcr_digests_header_fill(const char *generation, uint64_t count,
			     uint8_t ret_header[GCR_DIGESTS_HEADER_BYTES])
{
	struct header header = {
		.version = htole32(GCR_DIGESTS_VERSION),
		.chunk_bytes = htole32(GCR_CHUNK_BYTES),
		.count = htole64(count),
	};

	memcpy(header.magic, MAGIC, sizeof(header.magic));
	memcpy(header.generation, generation, strnlen(generation, sizeof(header.generation) - 1));
	memcpy(ret_header, &header, sizeof(header));
}

int gcr_digests_header_parse(const uint8_t bytes[GCR_DIGESTS_HEADER_BYTES],
			     char ret_generation[GCR_GENERATION_BYTES], uint64_t *ret_count,
			     struct gcr_error *error)
{
	static const char nothing[GCR_GENERATION_BYTES - GCR_UUID_TEXT_BYTES + 1];
	struct header header;

	memcpy(&header, bytes, sizeof(header));
	if (memcmp(header.magic, MAGIC, sizeof(header.magic)) != 0)
		return gcr_error_set(error, EPROTO, "it does not begin with " MAGIC);
	if (le32toh(header.version) != GCR_DIGESTS_VERSION)
		return gcr_error_set(error, EPROTONOSUPPORT,
				     "it is of version %" PRIu32 ", known is %d",
				     le32toh(header.version), GCR_DIGESTS_VERSION);
	if (le32toh(header.chunk_bytes) != GCR_CHUNK_BYTES)
		return gcr_error_set(error, EPROTONOSUPPORT,
				     "it is of chunks of %" PRIu32 " bytes, known are %u",
				     le32toh(header.chunk_bytes), GCR_CHUNK_BYTES);
	if (memcmp(header.generation + GCR_UUID_TEXT_BYTES - 1, nothing, sizeof(nothing)) != 0 ||
	    gcr_uuid_parse(header.generation, NULL) < 0)
		return gcr_error_set(error, EPROTO, "its generation is no UUID");
	memcpy(ret_generation, header.generation, sizeof(header.generation));
	*ret_count = le64toh(header.count);
	return 0;
}

int gcr_digests_header_check(const uint8_t header[GCR_DIGESTS_HEADER_BYTES], const char *generation,
			     uint64_t count, struct gcr_error *error)
{
	char found[GCR_GENERATION_BYTES];
	uint64_t found_count = 0;
	int result = gcr_digests_header_parse(header, found, &found_count, error);

	if (result < 0)
		return result;
	if (strcmp(found, generation) != 0)
		return gcr_error_set(error, ESTALE,
				     "it is of another generation (%s) than the manifest (%s)",
				     found, generation);
	if (found_count != count)
		return gcr_error_set(error, EPROTO,
				     "it has %" PRIu64 " digests, the manifest's files need "
				     "%" PRIu64,
				     found_count, count);
	return 0;
}

int gcr_digests_write(int directory_fd, const char *generation, const struct gcr_digest *digests,
		      uint64_t count, struct gcr_digest *ret_digest, struct gcr_error *error)
{
	_cleanup_(gcr_digest_stream_destroy_cleanup) struct gcr_digest_stream *stream =
		gcr_digest_stream_create();
	uint8_t header[GCR_DIGESTS_HEADER_BYTES];
	/* The cast removes const; the array is only read. */
	struct iovec parts[] = {
		{.iov_base = header, .iov_len = sizeof(header)},
		{.iov_base = (void *)(uintptr_t)digests, .iov_len = count * sizeof(*digests)},
	};
	int result;

	if (!stream)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (gcr_uuid_parse(generation, NULL) < 0)
		return gcr_error_set(error, EINVAL, "the generation is no UUID");
	gcr_digests_header_fill(generation, count, header);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(parts); i++)
		gcr_digest_stream_add(stream, parts[i].iov_base, parts[i].iov_len);
	result = gcr_beneath_replace(directory_fd, GCR_DIGESTS_NAME, parts, GCR_ARRAY_SIZE(parts),
				     error);
	if (!result)
		gcr_digest_stream_end(stream, ret_digest);
	return result;
}

/*
 * Sets and returns the error for a file `digests` of another length than expected: -ESTALE if the
 * file belongs to another snapshot, else -EPROTO, or the error of opening the file.
 */
static int tell_length(int directory_fd, const char *generation, uint64_t count,
		       struct gcr_error *error)
{
	_cleanup_close_ int fd = gcr_beneath_open_file(directory_fd, GCR_DIGESTS_NAME, error);
	uint8_t header[GCR_DIGESTS_HEADER_BYTES];

	if (fd < 0)
		return fd;
	if (pread(fd, header, sizeof(header), 0) == sizeof(header) &&
	    gcr_digests_header_check(header, generation, count, error) == -ESTALE)
		return -ESTALE;
	return gcr_error_set(error, EPROTO, "it is not of the length that the manifest says");
}

int gcr_digests_read(int directory_fd, const char *generation, uint64_t count,
		     const struct gcr_digest *expected, struct gcr_digest **ret_digests,
		     struct gcr_error *error)
{
	_cleanup_free_ void *file = NULL;
	struct gcr_digest found;
	uint64_t bytes = 0;
	size_t size = 0;
	int result;

	if (__builtin_mul_overflow(count, sizeof(found), &bytes) ||
	    __builtin_add_overflow(bytes, GCR_DIGESTS_HEADER_BYTES, &bytes) || bytes > INT64_MAX)
		return gcr_error_set(error, E2BIG, "there cannot be so many digests");
	result = gcr_beneath_read(directory_fd, GCR_DIGESTS_NAME, bytes, &file, &size, error);
	if (result == -EFBIG)
		return tell_length(directory_fd, generation, count, error);
	if (result < 0)
		return result;
	if (size != bytes)
		return tell_length(directory_fd, generation, count, error);
	gcr_digest_of(file, size, &found);
	if (!gcr_digest_equal(&found, expected)) {
		/* -ESTALE is the more precise error: files of two snapshots are mixed. */
		if (gcr_digests_header_check(file, generation, count, error) == -ESTALE)
			return -ESTALE;
		return gcr_error_set(error, EBADMSG,
				     "it has been changed: its digest is not that in the manifest");
	}
	result = gcr_digests_header_check(file, generation, count, error);
	if (result < 0)
		return result;
	memmove(file, (char *)file + GCR_DIGESTS_HEADER_BYTES, size - GCR_DIGESTS_HEADER_BYTES);
	*ret_digests = TAKE_PTR(file);
	return 0;
}
