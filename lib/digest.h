/* SPDX-License-Identifier: MIT */
/*
 * Digests: XXH3 of 128 bits, seed 0, of chunks of 64 KiB, and the file `digests` that holds those
 * of a snapshot. All of this is done on the host, by libxxhash; no function has a state, any thread
 * may call them.
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

/* In its canonical form: big-endian, byte by byte what `xxhsum -H2` prints. */
struct gcr_digest {
	uint8_t bytes[GCR_DIGEST_BYTES];
};

void gcr_digest_of(const void *bytes, uint64_t size, struct gcr_digest *ret_digest);

/*
 * A hash for tables in memory (XXH3 of 64 bits). With a secret @seed nobody can choose bytes that
 * have the same one.
 */
uint64_t gcr_digest_hash(const void *bytes, size_t size, uint64_t seed);

/* How many chunks a file of so many bytes has; the last may be shorter. */
static inline uint64_t gcr_digest_count(uint64_t bytes)
{
	return bytes / GCR_CHUNK_BYTES + (bytes % GCR_CHUNK_BYTES != 0);
}

/* Of each chunk of @bytes, which begin with a chunk: gcr_digest_count(@size) of them. */
void gcr_digest_chunks(const void *bytes, uint64_t size, struct gcr_digest *ret_digests);

/* Of a chunk of so many zeros, at most GCR_CHUNK_BYTES: that of a whole chunk is a constant. */
void gcr_digest_of_zeros(size_t size, struct gcr_digest *ret_digest);

/* Of pieces that come one after the other. NULL: no memory. */
struct gcr_digest_stream;
struct gcr_digest_stream *gcr_digest_stream_create(void);
void gcr_digest_stream_add(struct gcr_digest_stream *stream, const void *bytes, size_t size);
/* Of all that was added; the stream begins anew then. */
void gcr_digest_stream_end(struct gcr_digest_stream *stream, struct gcr_digest *ret_digest);
void gcr_digest_stream_destroy(struct gcr_digest_stream *stream);
GCR_DEFINE_CLEANUP(struct gcr_digest_stream *, gcr_digest_stream_destroy);

/* From the beginning of the file to its end; the file offset stays. @ret_bytes may be NULL. */
int gcr_digest_file(int fd, uint64_t *ret_bytes, struct gcr_digest *ret_digest);

/* -EIO, with words: the @chunk-th chunk of a snapshot's file @name is not what it was. */
int gcr_digest_mismatch(const char *name, uint64_t chunk, struct gcr_error *error);

bool gcr_digest_equal(const struct gcr_digest *left, const struct gcr_digest *right);
/* Is it that of these bytes? */
bool gcr_digest_is_of(const struct gcr_digest *digest, const void *bytes, uint64_t size);

/* 32 lower-case digits. */
void gcr_digest_format(const struct gcr_digest *digest, char ret_text[GCR_DIGEST_TEXT_BYTES]);
/* The first 32 bytes of @text, which need not end there: -EINVAL. */
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

/* @generation is a UUID as text. */
void gcr_digests_header_fill(const char *generation, uint64_t count,
			     uint8_t ret_header[GCR_DIGESTS_HEADER_BYTES]);

/*
 * Check a header, and that it is that of @generation with @count digests. Errors, with words:
 * -EPROTO, -EPROTONOSUPPORT another version or size of chunks, -ESTALE another generation.
 */
int gcr_digests_header_check(const uint8_t header[GCR_DIGESTS_HEADER_BYTES], const char *generation,
			     uint64_t count, struct gcr_error *error);

/* What there is in a header that can be read at all: the same errors, but -ESTALE. */
int gcr_digests_header_parse(const uint8_t header[GCR_DIGESTS_HEADER_BYTES],
			     char ret_generation[GCR_GENERATION_BYTES], uint64_t *ret_count,
			     struct gcr_error *error);

/*
 * Write the file, whole or not at all; @ret_digest is that of the file, for the manifest. Errors,
 * with words.
 */
int gcr_digests_write(int directory_fd, const char *generation, const struct gcr_digest *digests,
		      uint64_t count, struct gcr_digest *ret_digest, struct gcr_error *error);

/*
 * Read it and check all of it: it is @count digests of @generation, and @expected is its digest.
 * The array is the caller's (free): 1/4096 of the memory it is about, so @count has to be bounded
 * first. Errors, with words: those of gcr_digests_header_check() and gcr_beneath_read(), -EPROTO
 * wrong length, -EBADMSG changed.
 */
int gcr_digests_read(int directory_fd, const char *generation, uint64_t count,
		     const struct gcr_digest *expected, struct gcr_digest **ret_digests,
		     struct gcr_error *error);

#endif
