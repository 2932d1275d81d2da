/* SPDX-License-Identifier: MIT */
/*
 * The table behind memory.h: physical memory, where it is mapped, and the handles that the program
 * has for it. A handle of the program is the driver's own, so that all works that goes around this
 * library or came after it: functions that nobody here knows, private tables, structures with
 * handles in them. Only a freeze parts the two. After the thaw the driver calls the memory
 * something else, the program still calls it what it did, and the table knows both. The program
 * gets a number of ours where the driver's handle is, by then, the program's name for other memory.
 *
 * One lock, held for look-ups and changes only, never while the driver is called.
 */
#ifndef GCR_PRELOAD_TABLE_H
#define GCR_PRELOAD_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/descriptor.h"
#include "backend/preload/obstacle.h"
#include "lib/cleanup.h"

/* Physical memory comes in pieces of this: lib/protocol.h wants it of DEVICE extents, and it is
 * the smallest granularity of cuMemCreate on all GPUs since Pascal. */
#define GCR_MEMORY_GRANULARITY (2ull << 20)

enum gcr_memory_origin {
	GCR_MEMORY_ALLOCATED = 1, /* made by us, for a cuMemAlloc */
	GCR_MEMORY_CREATED = 2,	  /* the program's cuMemCreate, exportable without its knowledge */
	GCR_MEMORY_APART = 3,	  /* not ours to hand over; watched for what it forbids */
	GCR_MEMORY_OPENED = 4,	  /* another process's, mapped by us for cuIpcOpenMemHandle */
};

/* Physical memory, alive while it has handles, mappings, or a call is busy with it. */
struct gcr_memory {
	uint64_t id; /* never used again */
	enum gcr_memory_origin origin;
	int device; /* ordinal */
	uint64_t bytes;
	CUmemAllocationProp asked; /* CREATED: what the program asked for */

	/* What the driver calls it. Ours to release, but for APART, where each handle has its own.
	 * 0: released, frozen. */
	CUmemGenericAllocationHandle real;
	bool imported; /* `real` was imported: it cannot be exported, the descriptor is kept */
	struct gcr_descriptor descriptor;
	struct gcr_ipc_exporter *exporter; /* OPENED: who has to be told when it is closed */

	CUmemGenericAllocationHandle number; /* the program's handle, if it has one, not APART */
	bool shared;			     /* counted in the page's sharings */
	enum gcr_obstacle obstacle;	     /* counted as such */
	unsigned references;
	struct gcr_mapping *mappings;
	size_t index; /* in the list of all */
	struct gcr_memory *next_dead;
};

/* What makes a mapping look as if cuMemAlloc had returned it. */
struct gcr_allocation {
	CUdeviceptr companion; /* real memory of cuMemAlloc_v2, that answers for this */
	CUcontext context;
	size_t bytes; /* as asked for */
	bool freeing;
	unsigned opened; /* OPENED: so many times */
};

/* Is it one of the extents? */
static inline bool gcr_memory_joins(const struct gcr_memory *memory)
{
	return memory->origin == GCR_MEMORY_ALLOCATED || memory->origin == GCR_MEMORY_CREATED;
}

struct gcr_mapping {
	CUdeviceptr start;
	size_t bytes;
	size_t offset; /* in the memory */
	struct gcr_memory *memory;
	struct gcr_mapping *next; /* of the same memory */
	bool mapped;		  /* not, while frozen */
	bool waits;		  /* mapped, without its access yet: see hip_access.h */
	CUmemAccessDesc *access;  /* one for each location that ever got any */
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

/* To the end of the block. */
#define GCR_TABLE_LOCK()                    \
	_cleanup_(gcr_table_unlock_cleanup) \
		__attribute__((unused)) int table_lock_ = gcr_table_locked()

/* ---- the following want the lock held ---- */

/*
 * Enter memory; the caller has a reference. It owns @real from here on unless it is APART. NULL:
 * out of memory, and @real is still the caller's.
 */
struct gcr_memory *gcr_table_add_memory(enum gcr_memory_origin origin, int device, uint64_t bytes,
					CUmemGenericAllocationHandle real);
void gcr_table_share(struct gcr_memory *memory);
void gcr_table_obstruct(struct gcr_memory *memory, enum gcr_obstacle obstacle);
/* The real handle is an imported one from here on. */
void gcr_table_set_imported(struct gcr_memory *memory);

/*
 * One reference less. If it was the last, the memory is out of the table and joins the list
 * @dead: give that to gcr_table_release_dead(), without the lock.
 */
void gcr_table_unref(struct gcr_memory *memory, struct gcr_memory **dead);

/*
 * The program gets a handle for @memory, or the one that it has once more; takes a reference.
 * @real is what the driver has called it this time: of use for memory that is APART. -ENOMEM.
 */
int gcr_table_add_handle(struct gcr_memory *memory, CUmemGenericAllocationHandle real,
			 CUmemGenericAllocationHandle *ret_value);
/* The memory that the program's handle @value stands for; what the driver calls it. NULL: none. */
struct gcr_memory *gcr_table_find_handle(CUmemGenericAllocationHandle value,
					 CUmemGenericAllocationHandle *ret_real);
/* Memory that is APART, which the program has a handle for that the driver calls @real. */
struct gcr_memory *gcr_table_find_apart(CUmemGenericAllocationHandle real);
/* The program's handle for memory that is not APART; false: it has none. */
bool gcr_table_has_handle(const struct gcr_memory *memory, CUmemGenericAllocationHandle *ret_value);
/* Once less. */
void gcr_table_drop_handle(CUmemGenericAllocationHandle value, struct gcr_memory **dead);
/* Not a handle of the program's (any more), but the driver would take it for memory of ours. */
bool gcr_table_is_hidden(CUmemGenericAllocationHandle value);
/* What no driver takes for a handle. */
#define GCR_TABLE_NO_HANDLE 0x6763720000000000ull

/*
 * Arguments of a call of which nothing is known: those that are a handle of the program's which
 * the driver calls otherwise become what it calls it. Takes the lock itself.
 */
void gcr_table_translate(uint64_t *words, size_t count);

/*
 * Enter @mapping, which takes a reference to its memory and belongs to the table then. What the
 * table believed to be there is forgotten. -ENOMEM: still the caller's.
 */
int gcr_table_add_mapping(struct gcr_mapping *mapping, struct gcr_memory **dead);
/* Out of the table, and freed. */
void gcr_table_drop_mapping(struct gcr_mapping *mapping, struct gcr_memory **dead);
/* The mapping that @address is in, NULL if there is none. */
struct gcr_mapping *gcr_table_find_mapping(CUdeviceptr address);
/* The first mapping that ends above @address; to walk on, its end. */
struct gcr_mapping *gcr_table_next_mapping(CUdeviceptr address);
/* The allocation at @address: not what lies behind the bytes that were asked for. */
struct gcr_mapping *gcr_table_find_allocation(CUdeviceptr address);
/* Does an allocation of ours touch this range? */
bool gcr_table_has_allocation(CUdeviceptr start, size_t bytes);

/* Access rights, as cuMemSetAccess changes them. Room first, which may fail: -ENOMEM. */
int gcr_table_room_for_access(struct gcr_mapping *mapping, size_t count);
void gcr_table_set_access(struct gcr_mapping *mapping, const CUmemAccessDesc *access, size_t count);

/* All memory, in no order. */
struct gcr_memory *const *gcr_table_all(size_t *ret_count);
/* Counts up with every change that an extent could show. */
uint64_t gcr_table_changes(void);

/* ---- without the lock ---- */

struct gcr_mapping *gcr_table_new_mapping(CUdeviceptr start, size_t bytes, size_t offset);
void gcr_table_free_mapping(struct gcr_mapping *mapping);
GCR_DEFINE_CLEANUP(struct gcr_mapping *, gcr_table_free_mapping);

/* Give back a reference. */
void gcr_table_put(struct gcr_memory *memory);
/* Release what nobody has any more: the real handles, the descriptors. */
void gcr_table_release_dead(struct gcr_memory *dead);

/* In the child of a fork. */
void gcr_table_forget(void);

#endif
