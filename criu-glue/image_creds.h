/* SPDX-License-Identifier: MIT */
/* The credentials of a thread, as CRIU's image core-N.img tells them. */
#ifndef GCR_CRIU_GLUE_IMAGE_CREDS_H
#define GCR_CRIU_GLUE_IMAGE_CREDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Indexes into `ids`, in the order of creds_entry in CRIU's images/creds.proto. */
enum {
	GCR_CREDS_UID,
	GCR_CREDS_GID,
	GCR_CREDS_EUID,
	GCR_CREDS_EGID,
	GCR_CREDS_SUID,
	GCR_CREDS_SGID,
	GCR_CREDS_FSUID,
	GCR_CREDS_FSGID,
	GCR_CREDS_IDS,
};

/* Indexes into `capabilities`. */
enum {
	GCR_CREDS_INHERITABLE,
	GCR_CREDS_PERMITTED,
	GCR_CREDS_EFFECTIVE,
	GCR_CREDS_BOUNDING,
	GCR_CREDS_AMBIENT,
	GCR_CREDS_SETS,
};

struct gcr_image_creds {
	bool is_dead; /* of a process that had ended: nothing else is set */
	uint32_t ids[GCR_CREDS_IDS];
	uint64_t capabilities[GCR_CREDS_SETS];
	bool has_ambient; /* CRIU 3 does not dump these */
	bool no_new_privs;
	uint32_t securebits; /* prctl(2), PR_SET_SECUREBITS; the kernel does not tell a thread's */
	uint32_t *groups;    /* the supplementary groups, ascending */
	size_t groups_count;
};

/*
 * Parses an image core-N.img, from anywhere. The caller frees *ret_creds, also after an error.
 * -EIO: the image is damaged, or a thread that was alive has no credentials in it; -ENOMEM.
 */
int gcr_image_creds_parse(const uint8_t *image, size_t bytes, struct gcr_image_creds *ret_creds);
void gcr_image_creds_finish(struct gcr_image_creds *creds);

/* Adds a group. The caller sorts the groups with gcr_image_creds_sort() in the end. -ENOMEM. */
int gcr_image_creds_add_group(struct gcr_image_creds *creds, uint32_t group);
void gcr_image_creds_sort(struct gcr_image_creds *creds);
bool gcr_image_creds_has_group(const struct gcr_image_creds *creds, uint32_t group);

#endif
