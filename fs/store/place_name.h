/* SPDX-License-Identifier: MIT */
/*
 * Names of places. A place is a directory of the mount's root that is not a process: a dumped
 * process, or a directory that a user has made.
 */
#ifndef GCR_FS_STORE_PLACE_NAME_H
#define GCR_FS_STORE_PLACE_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define GCR_PLACE_NAME_BYTES 65 /* including the NUL */

/*
 * Is the name valid: [A-Za-z_][A-Za-z0-9._-]*, shorter than GCR_PLACE_NAME_BYTES, and not the name
 * of one of the root's own files?
 */
bool gcr_place_name_is_good(const char *name, size_t length);

/*
 * Builds the name `<comm>-<pid>-<start_ticks>`; bytes of @comm that a name cannot contain become
 * '_'.
 */
void gcr_place_name_of(const char *comm, pid_t pid, uint64_t start_ticks,
		       char ret_name[GCR_PLACE_NAME_BYTES]);

#endif
