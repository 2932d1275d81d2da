/* SPDX-License-Identifier: MIT */
/* What digest_amdgcn.h, which compile_amdgcn prints, is made of. */
#ifndef GCR_DIGEST_CODE_OBJECT_H
#define GCR_DIGEST_CODE_OBJECT_H

#include <stddef.h>

/* An ELF file, for hipModuleLoadData(). */
struct gcr_code_object {
	const char *architecture; /* "gfx90a" */
	const void *bytes;
	size_t bytes_count;
};

/* It is read where it is. */
#define GCR_CODE_OBJECT __attribute__((aligned(256)))

#endif
