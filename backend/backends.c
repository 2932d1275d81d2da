/* SPDX-License-Identifier: MIT */
/* The table of vendors, and look-ups in it. */
#include "backend/backend.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

const struct gcr_backend *const gcr_backends[GCR_BACKENDS_COUNT] = {
	&gcr_backend_cuda,
	&gcr_backend_hip,
};

const struct gcr_backend *gcr_backend_of_engine(const char *engine)
{
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		if (!strcmp(gcr_backends[i]->engine, engine))
			return gcr_backends[i];
	return &gcr_backend_cuda;
}

const struct gcr_backend *gcr_backend_of_vendor(const char *vendor)
{
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		if (!strcasecmp(gcr_backends[i]->vendor, vendor))
			return gcr_backends[i];
	return NULL;
}
