/* SPDX-License-Identifier: MIT */
/*
 * Is a file that a dumped process had open or mapped the same now, perhaps on another machine? What
 * is kept of each file to tell, made and checked by several threads. A path may go through symbolic
 * links, as the program's own way to it may; what is at its end is opened only once it is known to
 * be a regular file of another file system than ours, so that no FIFO, device or driver sees us,
 * and nobody waits for our own mount.
 */
#ifndef GCR_LIB_FILE_IDENTITY_H
#define GCR_LIB_FILE_IDENTITY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/build_id.h"
#include "lib/digest.h"
#include "lib/error.h"
#include "lib/rights.h"

/* A file up to here is digested whole; of a larger one so many pieces are. */
#define GCR_IDENTITY_WHOLE_MAX	 (UINT64_C(64) << 20)
#define GCR_IDENTITY_PIECES	 64u
#define GCR_IDENTITY_PIECE_BYTES 65536u
#define GCR_IDENTITY_THREADS_MAX 64

enum gcr_identity_kind {
	GCR_IDENTITY_BUILD_ID, /* `bytes` and `build_id`: an ELF file that has one */
	GCR_IDENTITY_DIGEST,   /* `bytes` and `digest` of all of them */
	/*
	 * `bytes`, and `digest` of pieces one after the other: GCR_IDENTITY_PIECES of
	 * GCR_IDENTITY_PIECE_BYTES each, the Nth beginning at N * (bytes - 65536) / 63, rounded
	 * down: the first at the beginning of the file, the last at its end.
	 */
	GCR_IDENTITY_SAMPLE,
	/* Only that it is there: a file of /proc, /sys or the like; `bytes` is 0. */
	GCR_IDENTITY_NAME,
	GCR_IDENTITY_KINDS, /* how many there are */
};

struct gcr_file_identity {
	char *path; /* absolute, below PATH_MAX bytes */
	bool is_mapped;
	/* May have grown: `bytes` are those that it began with. Never GCR_IDENTITY_BUILD_ID. */
	bool is_append_only;

	enum gcr_identity_kind kind;
	uint64_t bytes;
	uint32_t build_id_bytes;
	uint8_t build_id[GCR_BUILD_ID_BYTES];
	struct gcr_digest digest;
};

struct gcr_identity_options {
	unsigned int threads; /* 0: one */
	dev_t refused_device; /* our mount's; 0: none */
	/*
	 * Looked at often; may be NULL. A file system that does not answer is left alone some
	 * seconds later: the threads that wait for it end when it answers.
	 */
	const atomic_bool *cancel;
	int64_t deadline_usec; /* monotonic: as if cancelled then, but -ETIMEDOUT; 0: none */
	/*
	 * Of the threads as a whole; either may be NULL. left() is called before the call returns
	 * if it leaves some behind; over() once in any case, when the last has done its work:
	 * before the call returns, or later on that thread. No locks may be waited for in them for
	 * long.
	 */
	void (*left)(void *data);
	void (*over)(void *data);
	void *data;
	/* Files are looked up and opened with these, not with ours; NULL: with ours. */
	const struct gcr_file_rights *rights;
};

/*
 * Fill in kind, bytes and what belongs to it of files that have path, is_mapped and is_append_only.
 * Errors, with words that begin with the path, of the first file in the order of the list that
 * has one: -EOPNOTSUPP it is on refused_device, -ESTALE it is no regular file, or has become
 * shorter meanwhile, -ENOMEM, and what opening and reading give; -ECANCELED. Some are filled in
 * then.
 */
int gcr_file_identities_make(struct gcr_file_identity *files, size_t count,
			     const struct gcr_identity_options *options, struct gcr_error *error);

/*
 * Are they all what they were? Errors, with words that begin with the path, of the first that is
 * not: -ENOENT it is not there, -ESTALE it is another, and the errors above.
 */
int gcr_file_identities_check(const struct gcr_file_identity *files, size_t count,
			      const struct gcr_identity_options *options, struct gcr_error *error);

/* With their paths. NULL is allowed. */
void gcr_file_identities_free(struct gcr_file_identity *files, size_t count);

/*
 * The text for `rsync --files-from`: one path a line, in the order of the list, without those of
 * GCR_IDENTITY_NAME. A path with a newline or a carriage return cannot be written in it: it is left
 * out and counted in @ret_left_out. The text is the caller's (free). -ENOMEM.
 */
int gcr_file_identities_list(const struct gcr_file_identity *files, size_t count, char **ret_text,
			     size_t *ret_bytes, size_t *ret_left_out);

#endif
