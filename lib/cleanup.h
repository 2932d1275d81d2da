/* SPDX-License-Identifier: MIT */
/*
 * Scope-bound resources. Every local variable that owns something is declared with one of the
 * attributes below and passes its ownership on with TAKE_PTR or TAKE_FD.
 */
#ifndef GCR_CLEANUP_H
#define GCR_CLEANUP_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/*
 * Defines FUNCTION_cleanup(), the argument for _cleanup_(): it calls @function with the variable's
 * value unless that is NULL.
 */
#define GCR_DEFINE_CLEANUP(type, function)                   \
	static inline void function##_cleanup(type *pointer) \
	{                                                    \
		if (*pointer)                                \
			function(*pointer);                  \
	}                                                    \
	struct gcr_cleanup_needs_semicolon

static inline void gcr_free_cleanup(void *pointer)
{
	free(*(void **)pointer);
}

static inline void gcr_close_cleanup(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static inline void gcr_fclose_cleanup(FILE **file)
{
	if (*file)
		fclose(*file);
}

static inline void gcr_closedir_cleanup(DIR **dir)
{
	if (*dir)
		closedir(*dir);
}

#define _cleanup_(f)	   __attribute__((cleanup(f)))
#define _cleanup_free_	   _cleanup_(gcr_free_cleanup)
#define _cleanup_close_	   _cleanup_(gcr_close_cleanup)
#define _cleanup_fclose_   _cleanup_(gcr_fclose_cleanup)
#define _cleanup_closedir_ _cleanup_(gcr_closedir_cleanup)

/* Pass ownership on: the value is returned, and the variable becomes NULL (or -1). */
#define TAKE_PTR(pointer)                                  \
	({                                                 \
		__typeof__(pointer) take_ptr_ = (pointer); \
		(pointer) = NULL;                          \
		take_ptr_;                                 \
	})

#define TAKE_FD(fd)                  \
	({                           \
		int take_fd_ = (fd); \
		(fd) = -1;           \
		take_fd_;            \
	})

#define GCR_ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))

#endif
