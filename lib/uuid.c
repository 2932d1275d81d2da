/* SPDX-License-Identifier: MIT */
/* UUIDs as text, both ways. */
#include "lib/uuid.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

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
