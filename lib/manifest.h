/* SPDX-License-Identifier: MIT */
/*
 * The file `manifest` of a snapshot: a description of the snapshot as JSON. The manifest is written
 * last, so a snapshot that has one is complete. A manifest may have been copied from anywhere, so
 * every member is checked when the file is read. The file ends with the digest of all preceding
 * bytes, and contains the digest of the file `digests`, which in turn holds those of the snapshot's
 * files.
 *
 * Texts are UTF-8. In them '%', control characters, and bytes that are not valid UTF-8 (a process's
 * name may hold any) are written as '%' and two hexadecimal digits.
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
/* The vendor in manifests that do not name one: they were written when there was no other. */
#define GCR_MANIFEST_FIRST_VENDOR     "nvidia"

/* CRIU's images: it writes a few for each task and file table of a tree. */
#define GCR_MANIFEST_IMAGES	      "criu" /* the directory with them */
#define GCR_MANIFEST_IMAGES_MAX	      65536
#define GCR_MANIFEST_IMAGE_NAME_BYTES 64

/* More memory than any machine has: bounds the sizes that a forged manifest can claim. */
#define GCR_MANIFEST_ALLOCATED_MAX (UINT64_C(1) << 46)

struct gcr_manifest_gpu {
	uint32_t index; /* below GCR_GPUS_MAX, each once */
	uint8_t uuid[GCR_UUID_BYTES];
	char name[GCR_NAME_BYTES];
	uint64_t memory_bytes; /* 0 if not known */
	/* The target that its kernels are compiled for: "9.0", or "gfx90a"; "" if not known. */
	char compute_capability[GCR_MANIFEST_CAPABILITY_BYTES];
	/*
	 * VRAM that the driver needs on this GPU, besides the allocations; 0: not known (not
	 * dumped)
	 */
	uint64_t control_bytes;
};

/* One of CRIU's images. Root restores them as they are, so each is covered whole by its digest. */
struct gcr_manifest_image {
	/*
	 * a-z, A-Z, 0-9, '-', '_', '.' (not as first character); ends with ".img"; strictly
	 * ascending order
	 */
	char name[GCR_MANIFEST_IMAGE_NAME_BYTES];
	uint64_t bytes;
	struct gcr_digest digest;
};

struct gcr_manifest {
	char generation[GCR_GENERATION_BYTES]; /* a UUID as text */
	/*
	 * The engine that froze the process: a-z, 0-9, '-', '_'. "" if the process is the root of a
	 * dumped tree and does not use a GPU itself: then there are no GPUs and allocations, and
	 * `digests` is a header only.
	 */
	char engine[GCR_MANIFEST_ENGINE_BYTES];
	bool data; /* frozen by `freeze data`: the driver's state stayed */
	/* The vendor of the GPUs: "nvidia", "amd"; a-z, 0-9. "" if `engine` is "". */
	char vendor[GCR_MANIFEST_VENDOR_BYTES];

	pid_t pid;
	uint64_t start_ticks;
	uid_t uid;
	char comm[GCR_COMM_BYTES];
	char exe[PATH_MAX]; /* "" if not known */

	struct gcr_manifest_gpu gpus[GCR_GPUS_MAX];
	size_t gpus_count;
	char driver_version[GCR_NAME_BYTES];
	uint32_t api_version; /* the driver's API version as CUDA counts: 13000 */

	struct gcr_digest digests; /* digest of the whole file `digests` */

	/*
	 * In the form that gcr_extents_read() returns; the gpu of each is one of gpus[], by index
	 * and UUID.
	 */
	struct gcr_extent *allocations;
	size_t allocations_count;

	/*
	 * Of a dumped process. NULL and 0 if the process is only frozen; the manifest then has
	 * neither member.
	 */
	struct gcr_manifest_image *images;
	size_t images_count;
	struct gcr_manifest_tree *tree;
};

/* Sets the vendor, converted to small letters and cut to fit. */
void gcr_manifest_set_vendor(struct gcr_manifest *manifest, const char *vendor);

/* Frees the manifest with its allocations, images and tree. NULL is allowed. */
void gcr_manifest_free(struct gcr_manifest *manifest);
GCR_DEFINE_CLEANUP(struct gcr_manifest *, gcr_manifest_free);

/* The sum of the sizes of all allocations. */
uint64_t gcr_manifest_allocated_bytes(const struct gcr_manifest *manifest);
/* The number of digests of the snapshot's files. */
uint64_t gcr_manifest_digests_count(const struct gcr_manifest *manifest);

/*
 * Checks that every member is valid and that the members are consistent. Errors, with a message
 * that begins with the name of the wrong member: -EPROTO, -E2BIG more than the maximum, -ENOMEM.
 */
int gcr_manifest_check(const struct gcr_manifest *manifest, struct gcr_error *error);

/*
 * Checks the manifest and prints it as text, which the caller frees. The same manifest always gives
 * the same text. Errors, with a message: those of gcr_manifest_check().
 */
int gcr_manifest_print(const struct gcr_manifest *manifest, char **ret_text, size_t *ret_bytes,
		       struct gcr_error *error);

/*
 * Writes the file atomically: whole or not at all. `digests` and the files of vram/ and criu/ must
 * exist before. Errors, with a message: those of gcr_manifest_check(), and errors of writing.
 */
int gcr_manifest_write(int directory_fd, const struct gcr_manifest *manifest,
		       struct gcr_error *error);

/*
 * Parses @size bytes of untrusted input. Errors, with a message that names the wrong member:
 * -EFBIG, -EPROTO not a manifest or an invalid one, -EBADMSG it has been changed, -EPROTONOSUPPORT
 * another format, version, hash or chunk size, -E2BIG, -ENOMEM.
 */
int gcr_manifest_parse(const void *bytes, size_t size, struct gcr_manifest **ret_manifest,
		       struct gcr_error *error);

/* Reads and parses the file. Errors: those of gcr_manifest_parse() and gcr_beneath_read(). */
int gcr_manifest_read(int directory_fd, struct gcr_manifest **ret_manifest,
		      struct gcr_error *error);

#endif
