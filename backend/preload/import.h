/* SPDX-License-Identifier: MIT */
/* Standing between one library and the functions that it imports from others. */
#ifndef GCR_PRELOAD_IMPORT_H
#define GCR_PRELOAD_IMPORT_H

#include <stddef.h>

struct gcr_import {
	const char *name;
	void *replacement;
	size_t replaced; /* places where it now stands */
};

/*
 * In the library that @function is in, let every import of one of these names lead to its
 * replacement, from now on and for that library alone. Counts where. Errors: -ENOENT there is no
 * such library, -ENOSYS not on this architecture, -EACCES a place cannot be written.
 */
int gcr_imports_replace(const void *function, struct gcr_import *imports, size_t count);

#endif
