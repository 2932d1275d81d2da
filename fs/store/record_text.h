/* SPDX-License-Identifier: MIT */
/*
 * The text of a record (see record.h): the line "gpucrfs-record 1", then a line `key value` for
 * each field. Before the last one, a line of blanks gives all versions of one record the same
 * length.
 */
#ifndef GCR_FS_STORE_RECORD_TEXT_H
#define GCR_FS_STORE_RECORD_TEXT_H

#include <stddef.h>

#include "fs/store/record.h"

#define GCR_BOOT_ID_BYTES 37 /* a UUID as text, with its NUL */

/*
 * Prints @record, of the boot @boot_id (a UUID as text); the caller frees *ret_text, of *ret_bytes
 * without its NUL. -EINVAL: a field is not as record.h describes it; -ENOMEM.
 */
int gcr_record_print(const struct gcr_record *record, const char *boot_id, char **ret_text,
		     size_t *ret_bytes);

/*
 * Parses @text, which is changed, and writes which boot the record is of to @boot_id. -EBADMSG: the
 * text is no record, or not a whole one; nothing is written then.
 */
int gcr_record_parse(char *text, struct gcr_record *ret_record, char boot_id[GCR_BOOT_ID_BYTES]);

#endif
