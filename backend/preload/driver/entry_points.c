/* SPDX-License-Identifier: MIT */
/* The table of the driver's entry points, and looking them up by name. */
#include "backend/preload/driver/entry_points.h"

#include <string.h>

#ifdef GCR_HIP
#define PREFIX "hip"
#else
#define PREFIX "cu"
#endif

const struct gcr_entry_point gcr_entry_points[GCR_ENTRIES] = {
#define ENTRY(class, symbol, name, version, arguments) {#symbol, #name, version, GCR_ENTRY_##class},
#include GCR_ENTRY_POINTS
#undef ENTRY
};

enum gcr_entry gcr_entry_find(const char *symbol)
{
	size_t first = 0, end = GCR_ENTRIES;

	while (first < end) {
		size_t middle = first + (end - first) / 2;
		int order = strcmp(symbol, gcr_entry_points[middle].symbol);

		if (order == 0)
			return (enum gcr_entry)middle;
		if (order < 0)
			end = middle;
		else
			first = middle + 1;
	}
	return GCR_ENTRIES;
}

/* See entry_points.h. True for cuMemAlloc; false for cudaMalloc and cublasCreate. */
bool gcr_entry_is_drivers_name(const char *name)
{
	const size_t length = strlen(PREFIX);

	return strncmp(name, PREFIX, length) == 0 && name[length] >= 'A' && name[length] <= 'Z';
}
