/* SPDX-License-Identifier: MIT */
/*
 * Digests on their way between daemon and workers: a memfd(2) laid out as the file `digests`, and
 * mapped. On freeze the workers write what they have made, after they have compared it with what
 * was there of files that came with their bytes; on thaw they compare with what is there. It takes
 * 1/4096 of the memory it is about, which counts nowhere; one stays with each snapshot that is
 * kept.
 */
#ifndef GCR_FS_BASE_DIGEST_BUFFER_H
#define GCR_FS_BASE_DIGEST_BUFFER_H

#include <stdint.h>

#include "lib/cleanup.h"
#include "lib/digest.h"

struct gcr_digest_buffer;

/* Zeros, with room for the digests of @chunks chunks. -ENOMEM. */
int gcr_digest_buffer_create(uint64_t chunks, struct gcr_digest_buffer **ret_buffer);
/* NULL is fine. */
void gcr_digest_buffer_destroy(struct gcr_digest_buffer *buffer);
GCR_DEFINE_CLEANUP(struct gcr_digest_buffer *, gcr_digest_buffer_destroy);

/* All of them; who has the descriptor may be writing there. */
struct gcr_digest *gcr_digest_buffer_digests(const struct gcr_digest_buffer *buffer);
uint64_t gcr_digest_buffer_count(const struct gcr_digest_buffer *buffer);
/* For the workers; stays the buffer's. */
int gcr_digest_buffer_fd(const struct gcr_digest_buffer *buffer);

#endif
