/* SPDX-License-Identifier: MIT */
/*
 * Digests: XXH3 of 128 bits, seed 0, of chunks of 64 KiB, and the file `digests` that holds the
 * digests of a snapshot. All digests here are computed on the host, by libxxhash. No function has
 * global state; all may be called from any thread.
 */
#ifndef GCR_DIGEST_H
#define GCR_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/cleanup.h"
#include "lib/error.h"

#define GCR_CHUNK_BYTES	      65536u
#define GCR_DIGEST_BYTES      16
#define GCR_DIGEST_TEXT_BYTES 33 /* in hexadecimal, with its NUL */
#define GCR_GENERATION_BYTES  40 /* a UUID as text, padded with NULs */

/* A digest in its canonical form: big-endian, the byte order that `xxhsum -H2` prints. */
struct gcr_digest {
	uint8_t bytes[GCR_DIGEST_BYTES];
};

/* Digests @size bytes, of any length. */
void gcr_digest_of(const void *bytes, uint64_t size, struct gcr_digest *ret_digest);

/*
 * A hash for tables in memory (XXH3 of 64 bits). With a secret @seed an attacker cannot choose
 * bytes with colliding hashes.
 */
uint64_t gcr_digest_hash(const void *bytes, size_t size, uint64_t seed);

/* The number of chunks of a file of @bytes; the last chunk may be shorter. */
static inline uint64_t gcr_digest_count(uint64_t bytes)
{
	return bytes / GCR_CHUNK_BYTES + (bytes % GCR_CHUNK_BYTES != 0);
}

/* Digests @size bytes chunk by chunk. @ret_digests has room for gcr_digest_count(@size) digests. */
void gcr_digest_chunks(const void *bytes, uint64_t size, struct gcr_digest *ret_digests);

/*
 * The digest of a chunk of @size zeros, at most GCR_CHUNK_BYTES. That of a whole chunk is a
 * constant.
 */
void gcr_digest_of_zeros(size_t size, struct gcr_digest *ret_digest);

/* A digest of data that is added piece by piece. Create returns NULL if there is no memory. */
struct gcr_digest_stream;
struct gcr_digest_stream *gcr_digest_stream_create(void);
void gcr_digest_stream_add(struct gcr_digest_stream *stream, const void *bytes, size_t size);
/* Returns the digest of everything added since the last call, and resets the stream. */
void gcr_digest_stream_end(struct gcr_digest_stream *stream, struct gcr_digest *ret_digest);
void gcr_digest_stream_destroy(struct gcr_digest_stream *stream);
GCR_DEFINE_CLEANUP(struct gcr_digest_stream *, gcr_digest_stream_destroy);

/*
 * Digests a whole file from its beginning to its end; the file offset does not change. *ret_bytes
 * is the number of bytes that were digested; @ret_bytes may be NULL. -ENOMEM, or the error of
 * pread(2).
 */
int gcr_digest_file(int fd, uint64_t *ret_bytes, struct gcr_digest *ret_digest);

/* Returns -EIO with a message: chunk number @chunk of the snapshot's file @name has changed. */
int gcr_digest_mismatch(const char *name, uint64_t chunk, struct gcr_error *error);

bool gcr_digest_equal(const struct gcr_digest *left, const struct gcr_digest *right);
/* Is @digest the digest of these bytes? */
bool gcr_digest_is_of(const struct gcr_digest *digest, const void *bytes, uint64_t size);

/* Writes the digest as 32 lower-case hexadecimal digits. */
void gcr_digest_format(const struct gcr_digest *digest, char ret_text[GCR_DIGEST_TEXT_BYTES]);
/* Parses the first 32 bytes of @text, which may be longer. -EINVAL: they are not a digest. */
int gcr_digest_parse(const char *text, struct gcr_digest *ret_digest);

/*
 * The file `digests`: a header of 64 bytes, then the digests of all chunks, files in the order of
 * the manifest. Numbers are little-endian.
 *
 *  0   8  "GCRDIGST"
 *  8   4  version, 1
 * 12   4  bytes of a chunk, 65536
 * 16  40  generation, padded with NULs
 * 56   8  how many digests follow
 */
#define GCR_DIGESTS_NAME	 "digests"
#define GCR_DIGESTS_VERSION	 1
#define GCR_DIGESTS_HEADER_BYTES 64

/* Makes the header of a file with @count digests. @generation is a UUID as text. */
void gcr_digests_header_fill(const char *generation, uint64_t count,
			     uint8_t ret_header[GCR_DIGESTS_HEADER_BYTES]);

/*
 * Checks that a header is valid and belongs to @generation with @count digests. Errors, with a
 * message: -EPROTO invalid, or another number of digests; -EPROTONOSUPPORT another version or chunk
 * size; -ESTALE another generation.
 */
int gcr_digests_header_check(const uint8_t header[GCR_DIGESTS_HEADER_BYTES], const char *generation,
			     uint64_t count, struct gcr_error *error);

/*
 * Returns generation and count of a valid header. Errors as gcr_digests_header_check(), without
 * -ESTALE.
 */
int gcr_digests_header_parse(const uint8_t header[GCR_DIGESTS_HEADER_BYTES],
			     char ret_generation[GCR_GENERATION_BYTES], uint64_t *ret_count,
			     struct gcr_error *error);

/*
 * Writes the file atomically: whole or not at all. @ret_digest is the digest of the file itself,
 * for the manifest. Errors come with a message.
 */
int gcr_digests_write(int directory_fd, const char *generation, const struct gcr_digest *digests,
		      uint64_t count, struct gcr_digest *ret_digest, struct gcr_error *error);

/*
 * Reads the file and checks that it holds @count digests of @generation and that its own digest is
 * @expected. The caller bounds @count before, since the array takes 16 bytes for each digest, and
 * frees *ret_digests. Errors, with a message: those of gcr_digests_header_check() and
 * gcr_beneath_read(), -EPROTO wrong length, -EBADMSG the file has changed, -E2BIG no file can hold
 * so many digests.
 */
int gcr_digests_read(int directory_fd, const char *generation, uint64_t count,
		     const struct gcr_digest *expected, struct gcr_digest **ret_digests,
		     struct gcr_error *error);

#endif
