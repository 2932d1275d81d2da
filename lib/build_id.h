/* SPDX-License-Identifier: MIT */
/* The build id: what a linker calls a program or library that it has made. */
#ifndef GCR_LIB_BUILD_ID_H
#define GCR_LIB_BUILD_ID_H

#include <stddef.h>
#include <stdint.h>

#define GCR_BUILD_ID_BYTES 20 /* a SHA-1, what linkers make; of a longer one, its beginning */

/*
 * Of the open file @fd, which may be anything that pread(2) works on. Returns how many bytes of
 * @ret_build_id are filled in; 0: it is no 64-bit ELF file, has none, or could not be read.
 */
size_t gcr_build_id_read(int fd, uint8_t ret_build_id[GCR_BUILD_ID_BYTES]);

#endif
