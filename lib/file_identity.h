/* SPDX-License-Identifier: MIT */
/*
 * The identity of a file that a dumped process had open or mapped: data by which a restore, perhaps
 * on another machine, tells whether the file is the same. Identities are made and checked by
 * several threads. A path may go through symbolic links, as the program's own access did. The file
 * at its end is opened only after it is known to be a regular file on a file system other than our
 * mount, so that no FIFO, device or driver is touched and no thread waits for our own mount.
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

/* A file of at most this size is digested whole; of a larger one GCR_IDENTITY_PIECES pieces are. */
#define GCR_IDENTITY_WHOLE_MAX	 (UINT64_C(64) << 20)
#define GCR_IDENTITY_PIECES	 64u
#define GCR_IDENTITY_PIECE_BYTES 65536u
#define GCR_IDENTITY_THREADS_MAX 64

enum gcr_identity_kind {
	GCR_IDENTITY_BUILD_ID, /* `bytes` and `build_id`: an ELF file that has a build id */
	GCR_IDENTITY_DIGEST,   /* `bytes`, and `digest` of the whole file */
	/*
	 * `bytes`, and `digest` of GCR_IDENTITY_PIECES pieces of GCR_IDENTITY_PIECE_BYTES each,
	 * concatenated. The Nth piece begins at N * (bytes - 65536) / 63, rounded down: the first
	 * at the beginning of the file, the last at its end.
	 */
	GCR_IDENTITY_SAMPLE,
	/* Only the file's existence: a file of /proc, /sys or the like; `bytes` is 0. */
	GCR_IDENTITY_NAME,
	GCR_IDENTITY_KINDS, /* number of kinds */
};

struct gcr_file_identity {
	char *path; /* absolute, below PATH_MAX bytes */
	bool is_mapped;
	/*
	 * The file may have grown: only its first `bytes` are compared. Never
	 * GCR_IDENTITY_BUILD_ID.
	 */
	bool is_append_only;

	enum gcr_identity_kind kind;
	uint64_t bytes;
	uint32_t build_id_bytes;
	uint8_t build_id[GCR_BUILD_ID_BYTES];
	struct gcr_digest digest;
};

struct gcr_identity_options {
	unsigned int threads; /* 0: one thread */
	dev_t refused_device; /* the device number of our mount; 0: none */
	/*
	 * Polled often; may be NULL. When it is set, threads that wait for a file system that does
	 * not answer are left behind after some seconds; they end when the file system answers.
	 */
	const atomic_bool *cancel;
	int64_t deadline_usec; /* monotonic: as @cancel, but -ETIMEDOUT; 0: none */
	/*
	 * Callbacks about the threads as a whole; either may be NULL. left() is called before the
	 * call returns if threads are left behind. over() is called exactly once, when the last
	 * thread has finished: before the call returns, or later on that thread. Neither may wait
	 * long for a lock.
	 */
	void (*left)(void *data);
	void (*over)(void *data);
	void *data;
	/* Files are looked up and opened with these rights; NULL: with our own. */
	const struct gcr_file_rights *rights;
};

/*
 * Fills in kind, bytes and the kind's data of files whose path, is_mapped and is_append_only are
 * set. Returns the error, with a message that begins with the path, of the first file in the list
 * that has one: -EOPNOTSUPP the file is on refused_device, -ESTALE the file is not a regular file
 * or has become shorter during the call, -ENOMEM, and errors of opening and reading; -ECANCELED. On
 * error some of the files are filled in.
 */
int gcr_file_identities_make(struct gcr_file_identity *files, size_t count,
			     const struct gcr_identity_options *options, struct gcr_error *error);

/*
 * Checks that all files are still the same. Returns the error, with a message that begins with the
 * path, of the first that is not: -ENOENT it does not exist, -ESTALE it is a different file, and
 * the errors of gcr_file_identities_make().
 */
int gcr_file_identities_check(const struct gcr_file_identity *files, size_t count,
			      const struct gcr_identity_options *options, struct gcr_error *error);

/* Frees the array with its paths. NULL is allowed. */
void gcr_file_identities_free(struct gcr_file_identity *files, size_t count);

/*
 * Makes the text for `rsync --files-from`: one path a line, in the order of the list, without those
 * of kind GCR_IDENTITY_NAME. A path with a newline or a carriage return cannot be expressed: it is
 * left out and counted in @ret_left_out. The caller frees the text. -ENOMEM.
 */
int gcr_file_identities_list(const struct gcr_file_identity *files, size_t count, char **ret_text,
			     size_t *ret_bytes, size_t *ret_left_out);

#endif
