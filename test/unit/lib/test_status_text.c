/* SPDX-License-Identifier: MIT */
/* The keys of a status: whole words at the beginning of a line, up to the first empty line. */
#include <stdio.h>
#include <string.h>

#include "lib/status_text.h"

static int failures;

static void is_number(const char *text, const char *key, uint64_t expected)
{
	uint64_t found = gcr_status_number(text, key);

	if (found == expected)
		return;
	printf("%s in '%s': %llu, expected %llu\n", key, text, (unsigned long long)found,
	       (unsigned long long)expected);
	failures++;
}

static void is_value(const char *text, const char *key, const char *expected)
{
	size_t length = 0;
	const char *value = gcr_status_value(text, key, &length);

	if (value ? expected && length == strlen(expected) && !memcmp(value, expected, length)
		  : !expected)
		return;
	printf("%s in '%s': '%.*s'\n", key, text, (int)length, value ? value : "(none)");
	failures++;
}

int main(void)
{
	const char *text = "version 1\ncomm a b 7\nvram_bytes 512\nvram_bytes_max 9\nempty \n"
			   "large 18446744073709551616\nlast 7\n\nid x\nbelow 3\n";

	is_value(text, "version", "1");
	is_value(text, "comm", "a b 7");
	is_value(text, "empty", "");
	is_value(text, "vram", NULL);
	is_value(text, "b", NULL);
	is_value(text, "below", NULL);
	is_value("", "version", NULL);
	is_value("key", "key", NULL);
	is_value("key 1", "key", "1");
	is_number(text, "vram_bytes", 512);
	is_number(text, "last", 7);
	is_number(text, "comm", GCR_STATUS_UNKNOWN);
	is_number(text, "empty", GCR_STATUS_UNKNOWN);
	is_number(text, "large", GCR_STATUS_UNKNOWN);
	is_number("a -\nb 12x\nc -3\nd 18446744073709551614", "a", GCR_STATUS_UNKNOWN);
	is_number("a -\nb 12x\nc -3\nd 18446744073709551614", "b", GCR_STATUS_UNKNOWN);
	is_number("a -\nb 12x\nc -3\nd 18446744073709551614", "c", GCR_STATUS_UNKNOWN);
	is_number("a -\nb 12x\nc -3\nd 18446744073709551614", "d", UINT64_MAX - 1);
	return failures != 0;
}
