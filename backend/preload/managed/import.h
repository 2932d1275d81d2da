/* SPDX-License-Identifier: MIT */
/* Replaces functions that one loaded library imports from others. */
#ifndef GCR_PRELOAD_IMPORT_H
#define GCR_PRELOAD_IMPORT_H

#include <stddef.h>

struct gcr_import {
	const char *name;
	void *replacement;
	size_t replaced; /* number of places that were changed to the replacement */
};

/*
 * Redirects every import of one of the names to its replacement, in the library that contains
 * @function, permanently and for that library only; counts the changed places. -ENOENT: there is no
 * such library; -ENOSYS: not supported on this architecture; -EACCES: a place cannot be made
 * writable.
 */
int gcr_imports_replace(const void *function, struct gcr_import *imports, size_t count);

#endif
