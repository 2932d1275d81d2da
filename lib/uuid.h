/* SPDX-License-Identifier: MIT */
/*
 * UUIDs as text: 36 lower-case characters, as "0f3c9a52-7d1e-4b8a-9c64-1e2d3f405162"; and the ids
 * of GPUs, which are UUIDs for one vendor and a few characters for another.
 */
#ifndef GCR_UUID_H
#define GCR_UUID_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/protocol.h"

#define GCR_UUID_TEXT_BYTES 37 /* with its NUL */

void gcr_uuid_format(const uint8_t uuid[GCR_UUID_BYTES], char ret_text[GCR_UUID_TEXT_BYTES]);

/* Parses @text, which must be a UUID and nothing else. @ret_uuid may be NULL. -EINVAL */
int gcr_uuid_parse(const char *text, uint8_t *ret_uuid);

#define GCR_GPU_UUID_TEXT_BYTES (sizeof("GPU-") - 1 + GCR_UUID_TEXT_BYTES)

/*
 * Formats a GPU's id: "GPU-" and the UUID, as nvidia-smi prints it; or (@is_text) the bytes as
 * characters, without NULs at their end, as ROCR_VISIBLE_DEVICES takes them:
 * "GPU-0123456789abcdef". Bytes that are not such characters are printed as a UUID even then.
 */
void gcr_gpu_uuid_format(const uint8_t uuid[GCR_UUID_BYTES], bool is_text,
			 char ret_text[GCR_GPU_UUID_TEXT_BYTES]);

/* Parses either form. -EINVAL */
int gcr_gpu_uuid_parse(const char *text, uint8_t ret_uuid[GCR_UUID_BYTES]);

/* Makes a random UUID (version 4 of RFC 9562). -errno: the kernel has no random numbers. */
int gcr_uuid_make(char ret_text[GCR_UUID_TEXT_BYTES]);

#endif
