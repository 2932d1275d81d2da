/* SPDX-License-Identifier: MIT */
/* Names in the directory on a disk, shared by its files (spill_name.c). */
#ifndef GCR_FS_PACK_SPILL_PRIVATE_H
#define GCR_FS_PACK_SPILL_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GCR_SPILL_PREFIX	"gpucrfs-"
/*
 * Length of the identifiers of a machine and of a boot: half of their digits suffice to distinguish
 * them, and a link of at most 127 bytes takes no page of the store, which may be full.
 */
#define GCR_SPILL_ID_LENGTH	16
#define GCR_SPILL_RANDOM_LENGTH 16
#define GCR_SPILL_NAME_LENGTH \
	(sizeof(GCR_SPILL_PREFIX) - 1 + 2 * (GCR_SPILL_ID_LENGTH + 1) + GCR_SPILL_RANDOM_LENGTH)
#define GCR_SPILL_NUMBER_BYTES 16
/* <number>-<random>: a number may be reused after a restart, a path never is. */
#define GCR_SPILL_FILE_BYTES   (GCR_SPILL_NUMBER_BYTES + 1 + GCR_SPILL_RANDOM_LENGTH)

/* The identifiers of this machine and this boot, as used in names. */
struct gcr_spill_identity {
	char machine[GCR_SPILL_ID_LENGTH + 1];
	char boot[GCR_SPILL_ID_LENGTH + 1];
	bool has_machine;
};

/*
 * Reads the identifiers. Without a machine identifier no directory counts as this machine's.
 * -errno.
 */
int gcr_spill_identify(struct gcr_spill_identity *ret_identity);

/* Is this the name of a store's directory? */
bool gcr_spill_is_name(const char *name);
/* Does such a name contain this machine's, or this boot's, identifier? */
bool gcr_spill_is_of_machine(const char *name, const struct gcr_spill_identity *identity);
bool gcr_spill_is_of_boot(const char *name, const struct gcr_spill_identity *identity);
/* Makes a new name. -EIO. */
int gcr_spill_make_name(const struct gcr_spill_identity *identity,
			char ret_name[GCR_SPILL_NAME_LENGTH + 1]);

/* Parses the number of a user or of a segment in the store. -1: not in the form that we write. */
int64_t gcr_spill_parse_number(const char *name);
/* The number of a segment, from the name of its file. -1: not such a name. */
int64_t gcr_spill_parse_file_name(const char *name);
/* Makes a new file name. -EIO. */
int gcr_spill_make_file_name(uint32_t number, char ret_name[GCR_SPILL_FILE_BYTES]);

/* A path .../<directory of a store>/<uid>/<file>, as the offsets of its parts. */
struct gcr_spill_place {
	size_t home;
	size_t user;
	size_t file;
};
/* Splits a path of this form. False: the path has another form. */
bool gcr_spill_find_place(const char *path, struct gcr_spill_place *ret_place);

#endif
