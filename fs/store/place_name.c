/* SPDX-License-Identifier: MIT */
#include "fs/store/place_name.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/root_entries.h"
#include "lib/cleanup.h"

static bool is_first(char byte)
{
	return isalpha((unsigned char)byte) || byte == '_';
}

static bool is_other(char byte)
{
	return isalnum((unsigned char)byte) || (byte && strchr("._-", byte));
}

bool gcr_place_name_is_good(const char *name, size_t length)
{
#define NAME(kind, name, mode) name,
	static const char *const taken[] = {GCR_ROOT_ENTRIES(NAME)};
#undef NAME

	if (!length || length >= GCR_PLACE_NAME_BYTES || !is_first(*name))
		return false;
	for (size_t i = 0; i < length; i++)
		if (!is_other(name[i]))
			return false;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(taken); i++)
		if (strlen(taken[i]) == length && !memcmp(taken[i], name, length))
			return false;
	return true;
}

void gcr_place_name_of(const char *comm, pid_t pid, uint64_t start_ticks,
		       char ret_name[GCR_PLACE_NAME_BYTES])
{
	snprintf(ret_name, GCR_PLACE_NAME_BYTES, "%.16s-%d-%" PRIu64, comm, (int)pid, start_ticks);
	if (!is_first(*ret_name))
		*ret_name = '_';
	for (char *byte = ret_name; *byte; byte++)
		if (!is_other(*byte))
			*byte = '_';
}
