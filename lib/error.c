/* SPDX-License-Identifier: MIT */
/* struct gcr_error: filling it in, and keeping foreign bytes from forging a line. */
#include "lib/error.h"

#include <string.h>

#include "lib/printable.h"

int gcr_error_set(struct gcr_error *error, int number, const char *format, ...)
{
	va_list arguments;

	if (!error)
		return -number;
	error->number = number;
	va_start(arguments, format);
	vsnprintf(error->words, sizeof(error->words), format, arguments);
	va_end(arguments);
	gcr_make_printable(error->words);
	return -number;
}

void gcr_error_print(const struct gcr_error *error, FILE *stream)
{
	if (error->number)
		fprintf(stream, "%s: %s\n", gcr_error_name(error->number), error->words);
	else
		fputs("ok\n", stream);
}

void gcr_error_prefix(struct gcr_error *error, const char *format, ...)
{
	char old[GCR_ERROR_WORDS_MAX];
	va_list arguments;
	int length;

	if (!error)
		return;
	memcpy(old, error->words, sizeof(old));
	va_start(arguments, format);
	length = vsnprintf(error->words, sizeof(error->words), format, arguments);
	va_end(arguments);
	if (length >= 0 && length < GCR_ERROR_WORDS_MAX - 2)
		snprintf(error->words + length, sizeof(error->words) - (size_t)length, ": %.*s",
			 GCR_ERROR_WORDS_MAX - length - 3, old);
	gcr_make_printable(error->words);
}

const char *gcr_error_name(int number)
{
	const char *name = strerrorname_np(number);

	return name ? name : "E?";
}
