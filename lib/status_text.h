/* SPDX-License-Identifier: MIT */
/*
 * Reads a `status` of the mount, for programs that show it: lines "key value" up to the first empty
 * line (gpucrfs-status(5)). The values come from other users' programs in part.
 */
#ifndef GCR_LIB_STATUS_TEXT_H
#define GCR_LIB_STATUS_TEXT_H

#include <stddef.h>
#include <stdint.h>

#define GCR_STATUS_UNKNOWN UINT64_MAX

/* The value of @key in @text: the rest of its line, not ended by a NUL. NULL: there is no key. */
const char *gcr_status_value(const char *text, const char *key, size_t *ret_length);

/* The value as a number; GCR_STATUS_UNKNOWN: there is no key, or its value is `-` or too large. */
uint64_t gcr_status_number(const char *text, const char *key);

#endif
