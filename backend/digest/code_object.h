/* SPDX-License-Identifier: MIT */
/* The element type of digest_amdgcn.h, which compile_amdgcn prints. */
#ifndef GCR_DIGEST_CODE_OBJECT_H
#define GCR_DIGEST_CODE_OBJECT_H

#include <stddef.h>

/* An ELF file, for hipModuleLoadData(). */
struct gcr_code_object {
	const char *architecture; /* "gfx90a" */
	const void *bytes;
	size_t bytes_count;
};

/* The object is read in place, hence the alignment. */
#define GCR_CODE_OBJECT __attribute__((aligned(256)))

#endif
