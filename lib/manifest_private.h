/* SPDX-License-Identifier: MIT */
/* What the files of the manifest share: how texts are written, and how it ends. */
#ifndef GCR_MANIFEST_PRIVATE_H
#define GCR_MANIFEST_PRIVATE_H

#include <stddef.h>

#include "lib/digest.h"

/* The last bytes: the digits of the digest, then this. */
#define GCR_MANIFEST_END       "\"\n}\n"
#define GCR_MANIFEST_END_BYTES (GCR_DIGEST_TEXT_BYTES - 1 + sizeof(GCR_MANIFEST_END) - 1)

/* manifest_text.c */
/* Any bytes as UTF-8 (see manifest.h); NULL: no memory. The caller's (free). */
char *gcr_manifest_encode(const char *text);
/* And back, in place. -EINVAL: no such text. */
int gcr_manifest_decode(char *text);

#endif
