/* SPDX-License-Identifier: MIT */
/*
 * CRIU's images: two magic numbers (criu/include/magic.h of CRIU), then messages in the encoding of
 * protocol buffers, each after its length (32 bits, the host's order). The images are untrusted:
 * they may have been copied from elsewhere.
 */
#ifndef GCR_CRIU_GLUE_IMAGE_H
#define GCR_CRIU_GLUE_IMAGE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"

/* The second magic numbers. */
#define GCR_CRIU_PSTREE	 0x50273030u
#define GCR_CRIU_CORE	 0x55053847u
#define GCR_CRIU_MM	 0x57492820u
#define GCR_CRIU_PAGEMAP 0x56084025u
#define GCR_CRIU_GHOST	 0x52583605u

#define GCR_CRIU_NAME_BYTES	 32 /* of the name of an image of a process or thread */
#define GCR_CRIU_PSTREE_NAME	 "pstree.img"
#define GCR_CRIU_IMAGE_BYTES_MAX (64u << 20) /* of an image that is read into memory */

/*
 * Reads the image @name in the directory @images_fd; the caller frees *ret_bytes. Errors, with a
 * message: -EIO: the image is missing or cannot be read; -ENOMEM.
 */
int gcr_criu_image_read(int images_fd, const char *name, void **ret_bytes, size_t *ret_size,
			struct gcr_error *error);
/*
 * As gcr_criu_image_read(), for the memory image (mm-N.img) of a process; its name is written to
 * @ret_name. A process that had ended has no such image: *ret_bytes is NULL then, and 0 returned.
 */
int gcr_criu_mm_read(int images_fd, pid_t pid, char ret_name[GCR_CRIU_NAME_BYTES], void **ret_bytes,
		     size_t *ret_size, struct gcr_error *error);

/* As gcr_criu_image_read(), for the image of a thread, whose name is written to @ret_name. */
int gcr_criu_core_read(int images_fd, pid_t thread, char ret_name[GCR_CRIU_NAME_BYTES],
		       void **ret_bytes, size_t *ret_size, struct gcr_error *error);

/*
 * Checks that the image is of @kind; *ret_at is its first message. -EIO: the image is of another
 * kind.
 */
int gcr_criu_image_begin(const uint8_t *image, size_t bytes, uint32_t kind, const uint8_t **ret_at);

/*
 * Points *ret_message to the message at *at, and moves *at behind it. @end: of the image. -EIO: the
 * message does not end there.
 */
int gcr_criu_image_next(const uint8_t **at, const uint8_t *end, const uint8_t **ret_message);

/*
 * Sets the message for a failure @result (-EIO or -ENOMEM) to read or parse the image @name.
 * Returns @result.
 */
int gcr_criu_image_fail(struct gcr_error *error, int result, const char *name);

/* A process in pstree.img, with pids of its own pid namespace. */
struct gcr_criu_process {
	pid_t pid;
	pid_t parent; /* 0: not in the tree */
	size_t first; /* its threads begin there in the list, and end where the next one's do; */
	size_t count; /* the main thread is one of them */
};

/* All processes of pstree.img, and all their threads. */
struct gcr_criu_tree {
	struct gcr_criu_process *processes;
	size_t count, room;
	pid_t *threads;
	size_t threads_count, threads_room;
};

/* Parses pstree.img. The caller frees the tree, also after an error. -EIO, -ENOMEM. */
int gcr_criu_tree_parse(const uint8_t *image, size_t bytes, struct gcr_criu_tree *ret_tree);
/*
 * Reads and parses pstree.img. Errors, with a message, as gcr_criu_image_read(). The caller frees
 * the tree by gcr_criu_tree_finish(), also after an error.
 */
int gcr_criu_tree_read(int images_fd, struct gcr_criu_tree *ret_tree, struct gcr_error *error);
void gcr_criu_tree_finish(struct gcr_criu_tree *tree);

#endif
