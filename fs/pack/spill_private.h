/* SPDX-License-Identifier: MIT */
/* What the files of the directory on a disk share: its names (spill_name.c). */
#ifndef GCR_FS_PACK_SPILL_PRIVATE_H
#define GCR_FS_PACK_SPILL_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GCR_SPILL_PREFIX	"gpucrfs-"
/*
 * Of the identifier of a machine, and of a boot: half of their digits are enough to tell, and a
 * link of at most 127 bytes takes no page of the store, which may be full.
 */
#define GCR_SPILL_ID_LENGTH	16
#define GCR_SPILL_RANDOM_LENGTH 16
#define GCR_SPILL_NAME_LENGTH \
	(sizeof(GCR_SPILL_PREFIX) - 1 + 2 * (GCR_SPILL_ID_LENGTH + 1) + GCR_SPILL_RANDOM_LENGTH)
#define GCR_SPILL_NUMBER_BYTES 16
/* <number>-<random>: a number may come again, after a restart, a path never does. */
#define GCR_SPILL_FILE_BYTES   (GCR_SPILL_NUMBER_BYTES + 1 + GCR_SPILL_RANDOM_LENGTH)

/* Those of this machine and this boot, as they stand in a name. */
struct gcr_spill_identity {
	char machine[GCR_SPILL_ID_LENGTH + 1];
	char boot[GCR_SPILL_ID_LENGTH + 1];
	bool has_machine;
};

/* Without a machine's identifier nothing is taken for its own. -errno */
int gcr_spill_identify(struct gcr_spill_identity *ret_identity);

/* Of the directory of a store. */
bool gcr_spill_is_name(const char *name);
/* Of such a name. */
bool gcr_spill_is_of_machine(const char *name, const struct gcr_spill_identity *identity);
bool gcr_spill_is_of_boot(const char *name, const struct gcr_spill_identity *identity);
/* A new one. -EIO */
int gcr_spill_make_name(const struct gcr_spill_identity *identity,
			char ret_name[GCR_SPILL_NAME_LENGTH + 1]);

/* Of a user, or of a segment in the store. -1: it is no number as we write them. */
int64_t gcr_spill_parse_number(const char *name);
/* The number of a segment, by the name of its file. -1: it is no such name. */
int64_t gcr_spill_parse_file_name(const char *name);
/* A new one. -EIO */
int gcr_spill_make_file_name(uint32_t number, char ret_name[GCR_SPILL_FILE_BYTES]);

/* .../<directory of a store>/<uid>/<file>: where the parts of it begin. */
struct gcr_spill_place {
	size_t home;
	size_t user;
	size_t file;
};
/* False: it is no such path. */
bool gcr_spill_find_place(const char *path, struct gcr_spill_place *ret_place);

#endif
