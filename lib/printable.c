/* SPDX-License-Identifier: MIT */
/* Making text printable: UTF-8 by RFC 3629, without characters that control a terminal. */
#include "lib/printable.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BYTES_MAX 4 /* of a UTF-8 character */

static const struct range {
	uint32_t first, last;
} UNSAFE[] = {
	{0x00, 0x1f},	  {0x7f, 0x9f},	    {0x61c, 0x61c},   {0x200e, 0x200f},
	{0x2028, 0x202e}, {0x2066, 0x2069}, {0xd800, 0xdfff}, {0x110000, UINT32_MAX},
};

static bool is_safe(uint32_t character)
{
	for (size_t i = 0; i < sizeof(UNSAFE) / sizeof(UNSAFE[0]); i++)
		if (character >= UNSAFE[i].first && character <= UNSAFE[i].last)
			return false;
	return true;
}

/* The length in bytes of the character at @at if it is safe and in its shortest form; else 0. */
static size_t safe_length(const unsigned char *at)
{
	static const uint32_t FIRST_OF_LENGTH[BYTES_MAX + 1] = {0, 0, 0x80, 0x800, 0x10000};
	size_t length = at[0] < 0x80   ? 1
			: at[0] < 0xc0 ? 0
			: at[0] < 0xe0 ? 2
			: at[0] < 0xf0 ? 3
				       : 4;
	uint32_t character = length == 1 ? at[0] : at[0] & (0x7fU >> length);

	if (at[0] >= 0xf8)
		return 0;
	/* The final NUL is not a continuation byte. */
	for (size_t i = 1; i < length; i++) {
		if ((at[i] & 0xc0) != 0x80)
			return 0;
		character = character << 6 | (at[i] & 0x3f);
	}
	return character >= FIRST_OF_LENGTH[length] && is_safe(character) ? length : 0;
}

/* Replaces the character at @at if it is not safe; returns the position after it. */
static unsigned char *make_safe(unsigned char *at)
{
	size_t length = safe_length(at);

	if (length)
		return at + length;
	*at = '?';
	return at + 1;
}

void gcr_make_printable(char *words)
{
	unsigned char *at = (unsigned char *)words;

	while (*at)
		at = make_safe(at);
}

void gcr_make_lines_printable(char *text, size_t bytes)
{
	unsigned char *at = (unsigned char *)text, *end = at + bytes;

	while (at < end)
		at = *at == '\n' || *at == '\t' ? at + 1 : make_safe(at);
}
