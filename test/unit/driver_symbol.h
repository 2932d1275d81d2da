/* SPDX-License-Identifier: MIT */
/* For tests that call a driver by its symbols. */
#ifndef GCR_TEST_DRIVER_SYMBOL_H
#define GCR_TEST_DRIVER_SYMBOL_H

#include <dlfcn.h>

#include "backend/cuda/cuda_api.h"
#include "test/unit/test.h"

/*
 * Returns what @find finds by @name in the library at @path; @library keeps the library, which is
 * loaded if that is NULL.
 */
static inline void *find_in_driver(void **library, const char *path,
				   void *(*find)(void *library, const char *name), const char *name)
{
	void *symbol;

	if (!*library)
		*library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!*library) {
		fprintf(stderr, "%s: %s\n", path, dlerror());
		exit(1);
	}
	symbol = find(*library, name);
	if (!symbol) {
		fprintf(stderr, "no symbol %s\n", name);
		exit(1);
	}
	return symbol;
}

/* The call must return the expected number; OK() expects success. */
#define RESULT(call, expected)                                                                \
	do {                                                                                  \
		int result_ = (int)(call);                                                    \
		if (result_ != (int)(expected)) {                                             \
			fprintf(stderr, "%s:%d: %s: %d, not %d\n", __FILE__, __LINE__, #call, \
				result_, (int)(expected));                                    \
			exit(1);                                                              \
		}                                                                             \
	} while (0)
#define OK(call) RESULT(call, CUDA_SUCCESS)

#endif
