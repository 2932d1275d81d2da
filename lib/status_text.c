/* SPDX-License-Identifier: MIT */
#include "lib/status_text.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *gcr_status_value(const char *text, const char *key, size_t *ret_length)
{
	size_t key_length = strlen(key);

	while (*text && *text != '\n') {
		size_t length = strcspn(text, "\n");

		if (length > key_length && !memcmp(text, key, key_length) &&
		    text[key_length] == ' ') {
			*ret_length = length - key_length - 1;
			return text + key_length + 1;
		}
		text += length + (text[length] == '\n');
	}
	return NULL;
}

uint64_t gcr_status_number(const char *text, const char *key)
{
	size_t length;
	const char *value = gcr_status_value(text, key, &length);
	uint64_t number;
	char *end;

	if (!value || !isdigit((unsigned char)*value))
		return GCR_STATUS_UNKNOWN;
	errno = 0;
	number = strtoull(value, &end, 10);
	return errno || end != value + length ? GCR_STATUS_UNKNOWN : number;
}
