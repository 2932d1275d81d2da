/* SPDX-License-Identifier: MIT */
/*
 * The table behind memory.h: physical memory, its mappings, and the program's handles for it. A
 * handle of the program is the driver's own value, so that code which bypasses this library or is
 * newer keeps working: functions unknown to the library, private tables, structures that contain
 * handles. Only a freeze separates the two: after the thaw the driver has a new handle for the
 * memory, the program still uses the old one, and the table maps between them. The program gets a
 * number made by the library if, by then, the driver's handle is the program's name for other
 * memory.
 *
 * One lock, held for look-ups and changes only, never while the driver is called.
 */
#ifndef GCR_PRELOAD_TABLE_H
#define GCR_PRELOAD_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/base/descriptor.h"
#include "backend/preload/memory/obstacle.h"
#include "lib/cleanup.h"

/*
 * The size of physical memory is a multiple of this: lib/protocol.h requires that of DEVICE
 * extents, and it is the smallest granularity of cuMemCreate on all GPUs since Pascal.
 */
#define GCR_MEMORY_GRANULARITY (2ull << 20)

enum gcr_memory_origin {
	GCR_MEMORY_ALLOCATED = 1, /* made by the library, for a cuMemAlloc */
	GCR_MEMORY_CREATED = 2,	  /* the program's cuMemCreate, exportable without its knowledge */
	GCR_MEMORY_APART = 3,	  /* cannot be handed over; tracked for the obstacle that it is */
	GCR_MEMORY_OPENED = 4, /* another process's, mapped by the library for cuIpcOpenMemHandle */
};

struct gcr_ipc_exporter;

/* Physical memory, alive while it has handles or mappings, or a call is using it. */
struct gcr_memory {
	uint64_t id; /* never reused */
	enum gcr_memory_origin origin;
	int device; /* ordinal */
	uint64_t bytes;
	CUmemAllocationProp asked; /* CREATED: the properties that the program asked for */

	/*
	 * The driver's handle. The library releases it, except for APART, where each handle has its
	 * own. 0: released, frozen.
	 */
	CUmemGenericAllocationHandle real;
	bool imported; /* `real` was imported: it cannot be exported, the descriptor is kept */
	struct gcr_descriptor descriptor;
	/* OPENED: called with @exporter when the memory is released; NULL: nothing to call */
	void (*give_back)(struct gcr_ipc_exporter *exporter);
	struct gcr_ipc_exporter *exporter;

	CUmemGenericAllocationHandle number; /* the program's handle, if it has one, not APART */
	bool shared;			     /* counted in the page's sharings */
	bool is_exported;		     /* ALLOCATED: by cuIpcGetMemHandle */
	enum gcr_obstacle obstacle;	     /* counted as this obstacle */
	unsigned references;
	struct gcr_mapping *mappings;
	size_t index; /* in the list of all */
	struct gcr_memory *next_dead;
};

/* Makes a mapping look as if cuMemAlloc had returned it. */
struct gcr_allocation {
	CUdeviceptr companion; /* real memory of cuMemAlloc_v2, see allocation.c */
	CUcontext context;
	size_t bytes; /* as requested */
	bool freeing;
	unsigned opened; /* OPENED: how many times */
};

/* Is this memory one of the extents? */
static inline bool gcr_memory_joins(const struct gcr_memory *memory)
{
	return memory->origin == GCR_MEMORY_ALLOCATED || memory->origin == GCR_MEMORY_CREATED;
}

/* One mapping of physical memory. The table's lock guards it. */
struct gcr_mapping {
	CUdeviceptr start;
	size_t bytes;
	size_t offset; /* in the memory */
	struct gcr_memory *memory;
	struct gcr_mapping *next; /* of the same memory */
	bool mapped;		  /* false while frozen */
	bool waits;		  /* mapped, but its access is not set yet: see hip_access.h */
	bool is_bare;		  /* mapped without its access, by a step that failed */
	CUmemAccessDesc *access;  /* one for each location that ever had access */
	size_t access_count, access_room;
	struct gcr_allocation *allocation; /* NULL: the program mapped it itself */
};

void gcr_table_lock(void);
void gcr_table_unlock(void);

static inline int gcr_table_locked(void)
{
	gcr_table_lock();
	return 0;
}

static inline void gcr_table_unlock_cleanup(int *unused)
{
	gcr_table_unlock();
}

/* Holds the lock to the end of the block. */
#define GCR_TABLE_LOCK()                    \
	_cleanup_(gcr_table_unlock_cleanup) \
		__attribute__((unused)) int table_lock_ = gcr_table_locked()

/* ---- the following functions require the lock ---- */

/*
 * Adds memory to the table; the caller gets a reference. The memory owns @real from here on unless
 * it is APART. NULL: out of memory, and the caller still owns @real.
 */
struct gcr_memory *gcr_table_add_memory(enum gcr_memory_origin origin, int device, uint64_t bytes,
					CUmemGenericAllocationHandle real);
/* Counts the memory as shared with other processes, once, until it leaves the table. */
void gcr_table_share(struct gcr_memory *memory);
/* Counts the memory as this obstacle, instead of an earlier one, until it leaves the table. */
void gcr_table_obstruct(struct gcr_memory *memory, enum gcr_obstacle obstacle);
/* From here on the real handle is an imported one. */
void gcr_table_set_imported(struct gcr_memory *memory);

/*
 * Drops a reference. If it was the last, the memory leaves the table and joins the list @dead: pass
 * that to gcr_table_release_dead(), without the lock.
 */
void gcr_table_unref(struct gcr_memory *memory, struct gcr_memory **dead);

/*
 * Gives the program a handle for @memory, or another count of the one it has; takes a reference.
 * @real is the driver's handle of this call: a new handle gets this value if it is free, and for
 * memory that is APART it also selects the handle. -ENOMEM.
 */
int gcr_table_add_handle(struct gcr_memory *memory, CUmemGenericAllocationHandle real,
			 CUmemGenericAllocationHandle *ret_value);
/*
 * The memory that the program's handle @value stands for, and the driver's handle for it; NULL:
 * none.
 */
struct gcr_memory *gcr_table_find_handle(CUmemGenericAllocationHandle value,
					 CUmemGenericAllocationHandle *ret_real);
/* Memory that is APART and for which the program has a handle that the driver calls @real. */
struct gcr_memory *gcr_table_find_apart(CUmemGenericAllocationHandle real);
/* The program's handle for memory that is not APART; false: the program has none. */
bool gcr_table_has_handle(const struct gcr_memory *memory, CUmemGenericAllocationHandle *ret_value);
/* Drops one count of the handle, and its reference. */
void gcr_table_drop_handle(CUmemGenericAllocationHandle value, struct gcr_memory **dead);
/*
 * Is @value no handle of the program's (any more), although the driver would accept it as a handle
 * of the library's memory?
 */
bool gcr_table_is_hidden(CUmemGenericAllocationHandle value);
/* A value that no driver accepts as a handle. */
#define GCR_TABLE_NO_HANDLE 0x6763720000000000ull

/*
 * Translates the arguments of a call to an unknown function: each word that is a handle of the
 * program's with another value in the driver is replaced by the driver's value. Takes the lock
 * itself.
 */
void gcr_table_translate(uint64_t *words, size_t count);

/*
 * Adds @mapping, which takes a reference to its memory; the table owns it from then on. Older
 * mappings in the table at the same addresses are dropped. -ENOMEM: the caller still owns @mapping.
 */
int gcr_table_add_mapping(struct gcr_mapping *mapping, struct gcr_memory **dead);
/* Removes the mapping from the table and frees it. */
void gcr_table_drop_mapping(struct gcr_mapping *mapping, struct gcr_memory **dead);
/* The mapping that contains @address, or NULL. */
struct gcr_mapping *gcr_table_find_mapping(CUdeviceptr address);
/* The first mapping that ends above @address; to iterate, pass the end of the last one. */
struct gcr_mapping *gcr_table_next_mapping(CUdeviceptr address);
/* The allocation at @address; not for addresses behind the requested bytes. */
struct gcr_mapping *gcr_table_find_allocation(CUdeviceptr address);
/* Does an allocation made by the library overlap this range? */
bool gcr_table_has_allocation(CUdeviceptr start, size_t bytes);

/* Access rights, as cuMemSetAccess changes them. First reserve room, which may fail: -ENOMEM. */
int gcr_table_room_for_access(struct gcr_mapping *mapping, size_t count);
void gcr_table_set_access(struct gcr_mapping *mapping, const CUmemAccessDesc *access, size_t count);

/* All memory, in no order. */
struct gcr_memory *const *gcr_table_all(size_t *ret_count);
/* Returns a counter that increases with every change that an extent could show. */
uint64_t gcr_table_changes(void);

/* ---- the following functions are called without the lock ---- */

/* Makes a mapping that is not in the table yet. NULL: out of memory. */
struct gcr_mapping *gcr_table_new_mapping(CUdeviceptr start, size_t bytes, size_t offset);
void gcr_table_free_mapping(struct gcr_mapping *mapping);
GCR_DEFINE_CLEANUP(struct gcr_mapping *, gcr_table_free_mapping);

/* Drops a reference, and releases the memory if that was the last one. Takes the lock. */
void gcr_table_put(struct gcr_memory *memory);
/* Releases the real handles and descriptors of memory that has no users left. */
void gcr_table_release_dead(struct gcr_memory *dead);

#endif
