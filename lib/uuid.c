/* SPDX-License-Identifier: MIT */
/* Formatting and parsing UUIDs. */
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

/*
 * Returns the number of characters of an id that is a text, padded with NULs; 0: the bytes are no
 * such text.
 */
static size_t count_characters(const uint8_t uuid[GCR_UUID_BYTES])
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				      "0123456789:._-";
	size_t count = 0;

	while (count < GCR_UUID_BYTES && uuid[count] && strchr(allowed, uuid[count]))
		count++;
	for (size_t i = count; i < GCR_UUID_BYTES; i++)
		if (uuid[i])
			return 0;
	return count;
}

void gcr_gpu_uuid_format(const uint8_t uuid[GCR_UUID_BYTES], bool is_text,
			 char ret_text[GCR_GPU_UUID_TEXT_BYTES])
{
	size_t count = is_text ? count_characters(uuid) : 0;

	if (count) {
		snprintf(ret_text, GCR_GPU_UUID_TEXT_BYTES, "GPU-%.*s", (int)count,
			 (const char *)uuid);
		return;
	}
	memcpy(ret_text, "GPU-", 4);
	gcr_uuid_format(uuid, ret_text + 4);
}

int gcr_gpu_uuid_parse(const char *text, uint8_t ret_uuid[GCR_UUID_BYTES])
{
	uint8_t uuid[GCR_UUID_BYTES] = {0};
	size_t length;

	if (strncmp(text, "GPU-", 4) != 0)
		return -EINVAL;
	text += 4;
	length = strlen(text);
	if (length == GCR_UUID_TEXT_BYTES - 1)
		return gcr_uuid_parse(text, ret_uuid);
	if (length > GCR_UUID_BYTES)
		return -EINVAL;
	memcpy(uuid, text, length);
	if (!length || count_characters(uuid) != length)
		return -EINVAL;
	memcpy(ret_uuid, uuid, sizeof(uuid));
	return 0;
}

int gcr_uuid_make(char ret_text[GCR_UUID_TEXT_BYTES])
{
	uint16_t parts[8];

	/* Not from a file: there may be no free descriptor. */
	if (getrandom(parts, sizeof(parts), 0) != sizeof(parts))
		return errno ? -errno : -EIO;
	parts[3] = (uint16_t)((parts[3] & 0x0fff) | 0x4000);
	parts[4] = (uint16_t)((parts[4] & 0x3fff) | 0x8000);
	snprintf(ret_text, GCR_UUID_TEXT_BYTES, "%04x%04x-%04x-%04x-%04x-%04x%04x%04x", parts[0],
		 parts[1], parts[2], parts[3], parts[4], parts[5], parts[6], parts[7]);
	return 0;
}
