/* SPDX-License-Identifier: MIT */
/*
 * Encoding names that may hold any byte as the UTF-8 that JSON needs, decoding them, and checking
 * texts.
 */
#include "lib/manifest_private.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/hex.h"

/*
 * The length of the character at @text in bytes, 0 if it is invalid: not UTF-8, overlong, a
 * surrogate or above U+10FFFF (RFC 3629).
 */
static size_t character_bytes(const char *text)
{
	const unsigned char *bytes = (const unsigned char *)text;
	size_t count = bytes[0] < 0x80	 ? 1
		       : bytes[0] < 0xc2 ? 0
		       : bytes[0] < 0xe0 ? 2
		       : bytes[0] < 0xf0 ? 3
		       : bytes[0] < 0xf5 ? 4
					 : 0;

	for (size_t i = 1; i < count; i++)
		if ((bytes[i] & 0xc0) != 0x80)
			return 0;
	if ((bytes[0] == 0xe0 && bytes[1] < 0xa0) || (bytes[0] == 0xed && bytes[1] > 0x9f) ||
	    (bytes[0] == 0xf0 && bytes[1] < 0x90) || (bytes[0] == 0xf4 && bytes[1] > 0x8f))
		return 0;
	return count;
}

char *gcr_manifest_encode(const char *text)
{
	char *encoded = malloc(3 * strlen(text) + 1);
	char *to = encoded;

	if (!encoded)
		return NULL;
	while (*text) {
		unsigned char byte = (unsigned char)*text;
		size_t count = character_bytes(text);

		if (!count || byte < 0x20 || byte == 0x7f || byte == '%') {
			*to++ = '%';
			to = gcr_hex_put(to, byte);
			text++;
			continue;
		}
		memcpy(to, text, count);
		to += count;
		text += count;
	}
	*to = '\0';
	return encoded;
}

int gcr_manifest_decode(char *text)
{
	char *to = text;

	while (*text) {
		unsigned char byte = (unsigned char)*text++;

		if (byte < 0x20 || byte == 0x7f)
			return -EINVAL;
		if (byte == '%') {
			int value = gcr_hex_byte(text);

			if (value <= 0)
				return -EINVAL;
			byte = (unsigned char)value;
			text += 2;
		}
		*to++ = (char)byte;
	}
	*to = '\0';
	return 0;
}

json_t *gcr_manifest_text_json(const char *text)
{
	_cleanup_free_ char *encoded = gcr_manifest_encode(text);

	return encoded ? json_string(encoded) : NULL;
}

bool gcr_manifest_consists_of(const char *text, size_t room, const char *characters)
{
	size_t length = strnlen(text, room);

	return length < room && strspn(text, characters) == length;
}

bool gcr_manifest_ends(const char *text, size_t room)
{
	return memchr(text, '\0', room);
}

bool gcr_manifest_is_engine(const char *text, size_t room)
{
	return *text &&
	       gcr_manifest_consists_of(text, room, "abcdefghijklmnopqrstuvwxyz0123456789-_");
}
