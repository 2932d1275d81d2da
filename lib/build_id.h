/* SPDX-License-Identifier: MIT */
/* The build id: the identifier that a linker writes into a program or library. */
#ifndef GCR_LIB_BUILD_ID_H
#define GCR_LIB_BUILD_ID_H

#include <stddef.h>
#include <stdint.h>

/* A SHA-1, the linkers' default; a longer build id is cut to this length. */
#define GCR_BUILD_ID_BYTES 20

/*
 * Reads the build id of the open file @fd, which may be anything that pread(2) works on. Returns
 * the number of bytes of @ret_build_id that are filled in; 0: the file is no 64-bit ELF file, has
 * no build id, or could not be read.
 */
size_t gcr_build_id_read(int fd, uint8_t ret_build_id[GCR_BUILD_ID_BYTES]);

#endif
