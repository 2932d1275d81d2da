/* SPDX-License-Identifier: MIT */
/* The program's handles for memory, for every wrapper of a function that takes or makes one. */
#ifndef GCR_PRELOAD_HANDLE_H
#define GCR_PRELOAD_HANDLE_H

#include "backend/preload/table.h"

/*
 * The memory that @handle of the program's stands for, with a reference for gcr_table_put(), and
 * what the driver calls it. NULL: the table does not know it, and *@ret_real is what to give the
 * driver all the same.
 */
struct gcr_memory *gcr_handle_get(CUmemGenericAllocationHandle handle,
				  CUmemGenericAllocationHandle *ret_real);

/*
 * Watch memory that the driver has made and calls *@handle, which becomes the program's handle. It
 * may be known already: the driver may have one handle for what was imported twice. Without memory
 * for that the program goes on unwatched, but for @obstacle and the sharing, which then stay for
 * good.
 */
void gcr_handle_watch(CUmemGenericAllocationHandle *handle, int device, size_t bytes,
		      enum gcr_obstacle obstacle, bool shared);

GCR_DEFINE_CLEANUP(struct gcr_memory *, gcr_table_put);

#endif
