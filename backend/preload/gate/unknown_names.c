/* SPDX-License-Identifier: MIT */
#include "backend/preload/gate/unknown_names.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "backend/preload/base/preload.h"

static char texts[GCR_UNKNOWN_MAX][GCR_UNKNOWN_NAME_BYTES];
static _Atomic(const char *) names[GCR_UNKNOWN_MAX];

const char *gcr_unknown_name(unsigned int number)
{
	return number < GCR_UNKNOWN_MAX ? atomic_load(&names[number]) : NULL;
}

void gcr_unknown_set_name(unsigned int number, const char *name)
{
	if (atomic_load(&names[number]))
		return;
	/* Two threads at the same time write the same. */
	strncpy(texts[number], name, GCR_UNKNOWN_NAME_BYTES - 1);
	atomic_store(&names[number], texts[number]);
}
