/* SPDX-License-Identifier: MIT */
/* Bytes as two lower-case hexadecimal digits each. */
#ifndef GCR_HEX_H
#define GCR_HEX_H

#include <stdint.h>

/* Writes the two digits of @byte and returns the position after them; no NUL. */
static inline char *gcr_hex_put(char *to, uint8_t byte)
{
	static const char digits[] = "0123456789abcdef";

	*to++ = digits[byte >> 4];
	*to++ = digits[byte & 0xf];
	return to;
}

/* The value of a digit; -1: not a digit. */
static inline int gcr_hex_digit(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/*
 * The byte that the first two characters of @text stand for, or -1. No character after a NUL is
 * read.
 */
static inline int gcr_hex_byte(const char *text)
{
	int high = gcr_hex_digit(text[0]);
	int low = high < 0 ? -1 : gcr_hex_digit(text[1]);

	return low < 0 ? -1 : high << 4 | low;
}

#endif
