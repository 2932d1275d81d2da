/* SPDX-License-Identifier: MIT */
/* The program's memory handles, for all wrappers that take or return one. */
#ifndef GCR_PRELOAD_HANDLE_H
#define GCR_PRELOAD_HANDLE_H

#include "backend/preload/memory/table.h"

/*
 * Returns the memory that the program's @handle stands for, with a reference that the caller drops
 * by gcr_table_put(). *@ret_real: the driver's handle for the memory. NULL: the table does not know
 * @handle; *@ret_real is still set to the value to pass to the driver.
 */
struct gcr_memory *gcr_handle_get(CUmemGenericAllocationHandle handle,
				  CUmemGenericAllocationHandle *ret_real);

/*
 * Adds memory that the driver has made to the table, to watch it. *@handle is the driver's handle,
 * and becomes the program's. The memory may be in the table already: the driver may return one
 * handle for memory that was imported twice. If the table is out of memory, the memory is not
 * watched; @obstacle and the sharing are then counted for the rest of the process's life.
 */
void gcr_handle_watch(CUmemGenericAllocationHandle *handle, int device, size_t bytes,
		      enum gcr_obstacle obstacle, bool shared);

GCR_DEFINE_CLEANUP(struct gcr_memory *, gcr_table_put);

#endif
