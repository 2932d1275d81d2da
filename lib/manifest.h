/* SPDX-License-Identifier: MIT */
/*
 * The file `manifest` of a snapshot: what the snapshot is, as JSON. It is written last, so that
 * what has one is whole; it comes back from anywhere, so that everything in it is checked. It ends
 * with the digest of all that stands before that; `digests` is covered by it, and covers the files.
 *
 * Texts are UTF-8. In them '%', control characters, and bytes that are no UTF-8 (a process's name
 * may hold any) are written as '%' and two hexadecimal digits.
 */
#ifndef GCR_MANIFEST_H
#define GCR_MANIFEST_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/cleanup.h"
#include "lib/digest.h"
#include "lib/error.h"
#include "lib/manifest_tree.h"
#include "lib/procfs.h"
#include "lib/protocol.h"

#define GCR_MANIFEST_NAME	      "manifest"
#define GCR_MANIFEST_FORMAT	      "gpucrfs-snapshot"
#define GCR_MANIFEST_VERSION	      1
#define GCR_MANIFEST_HASH	      "xxh3-128"
#define GCR_MANIFEST_FILES	      "vram" /* the directory with a file for each allocation */
#define GCR_MANIFEST_BYTES_MAX	      (64u << 20)
#define GCR_MANIFEST_ENGINE_BYTES     16
#define GCR_MANIFEST_CAPABILITY_BYTES 16
#define GCR_MANIFEST_VENDOR_BYTES     16
/* Of manifests that do not say it: they were written when there was no other. */
#define GCR_MANIFEST_FIRST_VENDOR     "nvidia"

/* Images of CRIU, which has a few for each task and file table of a tree. */
#define GCR_MANIFEST_IMAGES	      "criu" /* the directory with them */
#define GCR_MANIFEST_IMAGES_MAX	      65536
#define GCR_MANIFEST_IMAGE_NAME_BYTES 64

/* More memory than any machine has: what a forged manifest can at most make a reader count with. */
#define GCR_MANIFEST_ALLOCATED_MAX (UINT64_C(1) << 46)

struct gcr_manifest_gpu {
	uint32_t index; /* below GCR_GPUS_MAX, each once */
	uint8_t uuid[GCR_UUID_BYTES];
	char name[GCR_NAME_BYTES];
	uint64_t memory_bytes; /* 0 if not known */
	/* What its kernels are compiled for: "9.0", or "gfx90a"; "" if not known. */
	char compute_capability[GCR_MANIFEST_CAPABILITY_BYTES];
	/* VRAM that the driver needs there, besides the allocations; 0: not known (not dumped) */
	uint64_t control_bytes;
};

/* One of CRIU's images, which root restores as they are: all of each is covered by its digest. */
struct gcr_manifest_image {
	/* a-z, A-Z, 0-9, '-', '_', '.', not first; ends with ".img"; each is greater than the last
	 */
	char name[GCR_MANIFEST_IMAGE_NAME_BYTES];
	uint64_t bytes;
	struct gcr_digest digest;
};

struct gcr_manifest {
	char generation[GCR_GENERATION_BYTES]; /* a UUID as text */
	/*
	 * That it was frozen by: a-z, 0-9, '-', '_'. "" if it is the root of a dumped tree and uses
	 * no GPU itself: then there are no GPUs and allocations, and `digests` is a header only.
	 */
	char engine[GCR_MANIFEST_ENGINE_BYTES];
	bool data; /* by `freeze data`: the driver's state stayed */
	/* Whose GPUs it uses: "nvidia", "amd"; a-z, 0-9. "" if `engine` is. */
	char vendor[GCR_MANIFEST_VENDOR_BYTES];

	pid_t pid;
	uint64_t start_ticks;
	uid_t uid;
	char comm[GCR_COMM_BYTES];
	char exe[PATH_MAX]; /* "" if not known */

	struct gcr_manifest_gpu gpus[GCR_GPUS_MAX];
	size_t gpus_count;
	char driver_version[GCR_NAME_BYTES];
	uint32_t api_version; /* of the driver, as CUDA counts: 13000 */

	struct gcr_digest digests; /* of the whole file `digests` */

	/* As gcr_extents_read() has them; the gpu of each is one of gpus[], by index and UUID. */
	struct gcr_extent *allocations;
	size_t allocations_count;

	/* Of a dumped process; none and NULL: it is only frozen, and neither is in the manifest. */
	struct gcr_manifest_image *images;
	size_t images_count;
	struct gcr_manifest_tree *tree;
};

/* @vendor in small letters. */
void gcr_manifest_set_vendor(struct gcr_manifest *manifest, const char *vendor);

/* With its allocations, images and tree. NULL is allowed. */
void gcr_manifest_free(struct gcr_manifest *manifest);
GCR_DEFINE_CLEANUP(struct gcr_manifest *, gcr_manifest_free);

uint64_t gcr_manifest_allocated_bytes(const struct gcr_manifest *manifest);
/* How many digests there are of its files. */
uint64_t gcr_manifest_digests_count(const struct gcr_manifest *manifest);

/*
 * Is everything in it possible, and does it go together? Errors, with words that begin with the
 * member that is wrong: -EPROTO, -E2BIG more than there can be, -ENOMEM.
 */
int gcr_manifest_check(const struct gcr_manifest *manifest, struct gcr_error *error);

/*
 * The text of it, checked first, for the caller to free. The same manifest is always the same
 * text. Errors, with words: those of gcr_manifest_check().
 */
int gcr_manifest_print(const struct gcr_manifest *manifest, char **ret_text, size_t *ret_bytes,
		       struct gcr_error *error);

/*
 * Write the file, whole or not at all. `digests` and the files of vram/ and criu/ have to be there.
 * Errors, with words: those of gcr_manifest_check(), and what writing gives.
 */
int gcr_manifest_write(int directory_fd, const struct gcr_manifest *manifest,
		       struct gcr_error *error);

/*
 * Parse @size bytes that may be anything. Errors, with words that name the member that is wrong:
 * -EFBIG, -EPROTO it is no manifest or one that cannot be, -EBADMSG it has been changed,
 * -EPROTONOSUPPORT another format, version, hash or size of chunks, -E2BIG, -ENOMEM.
 */
int gcr_manifest_parse(const void *bytes, size_t size, struct gcr_manifest **ret_manifest,
		       struct gcr_error *error);

/* Read and parse the file. Errors: these, and those of gcr_beneath_read(). */
int gcr_manifest_read(int directory_fd, struct gcr_manifest **ret_manifest,
		      struct gcr_error *error);

#endif
