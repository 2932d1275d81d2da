/* SPDX-License-Identifier: MIT */
/*
 * Digests shared by the daemon and the workers: a memfd(2), mapped, with the layout of the file
 * `digests`. During a freeze the workers write the digests that they make, and compare them with
 * the buffer's for files that came with their bytes; during a thaw they only compare. A buffer
 * takes 1/4096 of the memory that it describes, charged to no quota; each kept snapshot has one.
 */
#ifndef GCR_FS_BASE_DIGEST_BUFFER_H
#define GCR_FS_BASE_DIGEST_BUFFER_H

#include <stdint.h>

#include "lib/cleanup.h"
#include "lib/digest.h"

struct gcr_digest_buffer;

/* Creates a buffer of zeros for the digests of @chunks chunks. -ENOMEM. */
int gcr_digest_buffer_create(uint64_t chunks, struct gcr_digest_buffer **ret_buffer);
/* NULL is allowed. */
void gcr_digest_buffer_destroy(struct gcr_digest_buffer *buffer);
GCR_DEFINE_CLEANUP(struct gcr_digest_buffer *, gcr_digest_buffer_destroy);

/* All digests; workers that have the descriptor may be writing to them. */
struct gcr_digest *gcr_digest_buffer_digests(const struct gcr_digest_buffer *buffer);
uint64_t gcr_digest_buffer_count(const struct gcr_digest_buffer *buffer);
/* The descriptor for the workers; owned by the buffer. */
int gcr_digest_buffer_fd(const struct gcr_digest_buffer *buffer);

#endif
