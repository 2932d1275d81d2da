/* SPDX-License-Identifier: MIT */
/* Names of places: directories of the mount's root that are not processes. */
#ifndef GCR_FS_STORE_PLACE_NAME_H
#define GCR_FS_STORE_PLACE_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define GCR_PLACE_NAME_BYTES 65 /* with its NUL */

/* [A-Za-z_][A-Za-z0-9._-]*, and nothing that the mount's root has itself. */
bool gcr_place_name_is_good(const char *name, size_t length);

/* `<comm>-<pid>-<start_ticks>`; bytes of @comm that no name has become '_'. */
void gcr_place_name_of(const char *comm, pid_t pid, uint64_t start_ticks,
		       char ret_name[GCR_PLACE_NAME_BYTES]);

#endif
