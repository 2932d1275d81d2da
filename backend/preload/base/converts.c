/* SPDX-License-Identifier: MIT */
#include "backend/preload/base/converts.h"

#include <stdlib.h>
#include <string.h>

bool gcr_memory_converts(void)
{
	static int known; /* 1 yes, 2 no */
	int is = __atomic_load_n(&known, __ATOMIC_RELAXED);

	if (!is) {
		const char *value = secure_getenv("GPUCR_PRELOAD_VMM");

		is = value && strcmp(value, "0") == 0 ? 2 : 1;
		__atomic_store_n(&known, is, __ATOMIC_RELAXED);
	}
	return is == 1;
}
