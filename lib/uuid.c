/* SPDX-License-Identifier: MIT */
/* UUIDs as text, both ways. */
#include "lib/uuid.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "lib/hex.h"

static bool dash_before(size_t byte)
{
	return byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

void gcr_uuid_format(const uint8_t uuid[GCR_UUID_BYTES], char ret_text[GCR_UUID_TEXT_BYTES])
{
	for (size_t i = 0; i < GCR_UUID_BYTES; i++) {
		if (dash_before(i))
			*ret_text++ = '-';
		ret_text = gcr_hex_put(ret_text, uuid[i]);
	}
	*ret_text = '\0';
}

int gcr_uuid_parse(const char *text, uint8_t *ret_uuid)
{
	uint8_t uuid[GCR_UUID_BYTES];

	for (size_t i = 0; i < GCR_UUID_BYTES; i++) {
		int byte;

		if (dash_before(i) && *text++ != '-')
			return -EINVAL;
		byte = gcr_hex_byte(text);
		if (byte < 0)
			return -EINVAL;
		uuid[i] = (uint8_t)byte;
		text += 2;
	}
	if (*text)
		return -EINVAL;
	if (ret_uuid)
		memcpy(ret_uuid, uuid, sizeof(uuid));
	return 0;
}

int gcr_uuid_make(char ret_text[GCR_UUID_TEXT_BYTES])
{
	uint16_t parts[8];

	/* Not from a file: a descriptor may be wanting. */
	if (getrandom(parts, sizeof(parts), 0) != sizeof(parts))
		return errno ? -errno : -EIO;
	parts[3] = (uint16_t)((parts[3] & 0x0fff) | 0x4000);
	parts[4] = (uint16_t)((parts[4] & 0x3fff) | 0x8000);
	snprintf(ret_text, GCR_UUID_TEXT_BYTES, "%04x%04x-%04x-%04x-%04x-%04x%04x%04x", parts[0],
		 parts[1], parts[2], parts[3], parts[4], parts[5], parts[6], parts[7]);
	return 0;
}
