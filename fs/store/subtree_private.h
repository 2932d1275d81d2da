/* SPDX-License-Identifier: MIT */
/*
 * Shared by the files of a subtree. subtree->lock guards items, names, open inodes and verbs; the
 * names of the tree change only under it. Lock order: an inode's change_lock, the subtree's lock,
 * the inode's map_lock. The inode's pack_lock comes after its change_lock and its map_lock, and
 * the subtree's lock is not taken under the pack_lock. The store's lock is not taken under any of
 * them; the lock of the table of inodes is, and comes last.
 */
#ifndef GCR_FS_STORE_SUBTREE_PRIVATE_H
#define GCR_FS_STORE_SUBTREE_PRIVATE_H

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "fs/base/quota.h"
#include "fs/pack/pack_table.h"
#include "fs/store/subtree.h"
#include "lib/cleanup.h"

struct gcr_packer;

#define GCR_SUBTREE_NONE UINT32_MAX

/* An item: a name that the kernel knows, or a free slot of the table. */
struct gcr_subtree_item {
	char *name; /* NULL: a removed name, or the root */
	uint32_t parent;
	uint32_t next;	   /* in the same hash bucket, or in the list of free slots */
	uint32_t children; /* items whose parent this is, which keep it in the table */
	uint64_t lookups;
	uint64_t generation;
	struct gcr_subtree_inode *inode; /* NULL: not open */
	struct stat *removed;		 /* the attributes of a removed file; NULL: not removed */
};

/*
 * A file that has packed pieces, open or not. Its table is named after the inode number. There may
 * be more such files than the daemon may have descriptors and mappings.
 */
struct gcr_subtree_packed {
	struct gcr_subtree_packed *next;
	ino_t ino;
	struct gcr_pack_table *table;	 /* while the file is open; NULL: not open */
	struct gcr_pack_figures figures; /* while there is no table */
	uint64_t file_bytes;		 /* length of the file that the table is made for */
	uint64_t memory_bytes;		 /* memory of the table, which never becomes shorter */
	bool is_left; /* left by an earlier daemon: the file may still have packed bytes */
};

/* A file that is open once or several times. */
struct gcr_subtree_inode {
	struct gcr_subtree_inode *next;
	ino_t ino;
	uint32_t item;
	unsigned int files;
	unsigned int writers;
	int fd;			       /* for its attributes */
	atomic_uint changes_of_rights; /* how often root has changed its owner or mode */
	bool is_unlinked;
	bool is_orphan;
	uint64_t orphan_bytes;
	struct gcr_quota_charge orphan_charge; /* of the owner, as long as the file is open */

	pthread_mutex_t change_lock; /* one change at a time; guards the fields below */
	uint64_t counted_bytes;	     /* bytes that the account has for the file and its table */
	uint64_t writes;	     /* number of changes, including one under way */

	/*
	 * Held shared by readers. The set of packed pieces is changed with this lock and the
	 * change_lock held.
	 */
	pthread_rwlock_t pack_lock;
	struct gcr_subtree_packed *packed; /* NULL: no piece is packed */

	pthread_mutex_t map_lock; /* guards the fields below */
	pthread_cond_t is_read;
	unsigned int changes;	   /* under way or waiting */
	unsigned int mapped_reads; /* reads that use the mapping now */
	bool was_looked_at;	   /* mapping was tried since the last change */
	void *mapping;
	size_t mapping_bytes;
};

struct gcr_subtree {
	/* fixed for life */
	atomic_int references;
	struct gcr_subtree *next; /* in the list of all subtrees */
	uint32_t number;
	int root_fd;
	atomic_uint owner; /* the user for whom the subtree counts */
	uid_t root_owner;  /* that user if the subtree's directory is root's */
	pid_t pid;	   /* of the process whose snapshot it is; 0: a place's */
	uint64_t start_ticks;
	bool gives_away;  /* the daemon may change owners */
	uint32_t adopter; /* number of gcr_inodes_link() for names of its files; 0: none */
	struct gcr_store *store;
	int (*touch)(void *data, struct gcr_room **ret_room);
	void *data;

	pthread_mutex_t touch_lock; /* before all other locks */
	atomic_bool is_touched;

	pthread_mutex_t lock;
	pthread_cond_t has_no_change;
	bool is_retired;
	unsigned int verbs;
	uint64_t epoch;	      /* number of verbs that have begun */
	unsigned int changes; /* number under way, of contents or accounts */
	unsigned int writers;
	uint64_t directories_made; /* number of directories made or moved */
	struct gcr_room *room;
	struct gcr_subtree_inode *inodes;
	struct gcr_packs *packs; /* NULL: nothing is packed */
	int tables_fd;
	bool is_going;			   /* the packed pieces of a file go when it is closed */
	struct gcr_subtree_packed *packed; /* every file with packed pieces, open or not */
	struct gcr_subtree_known *known;   /* for when the subtree is gone; fixed for life */
	uint64_t lookups;		   /* of all items but the root */
	struct gcr_subtree_item *items;
	uint32_t items_count;
	uint64_t items_bytes; /* memory of the table that the account has */
	uint32_t free_item;
	uint32_t *buckets;
	uint32_t buckets_count; /* a power of two */
	uint32_t named_count;	/* items in the buckets */
};

struct gcr_subtree_file {
	struct gcr_subtree *subtree;
	struct gcr_subtree_inode *inode;
	int fd;
	int flags;
	bool is_writable;
	bool is_packer;	      /* for packing: a writable descriptor, not for users' writes */
	uint64_t packed_most; /* of a packer: a longer file is not packed */
	uint64_t epoch;	      /* the subtree's, when the file was opened */
	uid_t opener;	      /* -1: the daemon */
	unsigned int changes_of_rights; /* the inode's, when the file was opened */
};

/* The open inode of this number, or NULL. Lock: subtree. */
static inline struct gcr_subtree_inode *gcr_subtree_inode_find(struct gcr_subtree *subtree,
							       ino_t ino)
{
	struct gcr_subtree_inode *inode = subtree->inodes;

	while (inode && inode->ino != ino)
		inode = inode->next;
	return inode;
}

/* ---- subtree_items.c: the table of items; all with the subtree's lock held ---- */

int gcr_subtree_items_init(struct gcr_subtree *subtree);
void gcr_subtree_items_finish(struct gcr_subtree *subtree);
/* Finds the item of this name; GCR_SUBTREE_NONE if there is none. */
uint32_t gcr_subtree_item_find(const struct gcr_subtree *subtree, uint32_t parent,
			       const char *name);
/* Finds or makes the item of this name, and counts one lookup more. -ENOMEM. */
int gcr_subtree_item_get(struct gcr_subtree *subtree, uint32_t parent, const char *name,
			 uint32_t *ret_item);
void gcr_subtree_item_forget(struct gcr_subtree *subtree, uint32_t item, uint64_t count);
/*
 * The file or directory of @item has been removed; the item loses its name. @stat (copied) are its
 * attributes, which can be read and set until the kernel forgets the item; with NULL they cannot.
 */
void gcr_subtree_item_remove(struct gcr_subtree *subtree, uint32_t item, const struct stat *stat);
/* Give the item another name, which no other item has. -ENOMEM: nothing is changed. */
int gcr_subtree_item_move(struct gcr_subtree *subtree, uint32_t item, uint32_t parent,
			  const char *name);
/* Two items exchange their names. */
void gcr_subtree_item_exchange(struct gcr_subtree *subtree, uint32_t left, uint32_t right);
/* -ESTALE: there is no such item, or its name has been removed. */
int gcr_subtree_item_check(const struct gcr_subtree *subtree, uint32_t item);
/*
 * The path of an item below the root ("." for the root), and the number of its components. -ESTALE,
 * -ENAMETOOLONG.
 */
int gcr_subtree_item_path(const struct gcr_subtree *subtree, uint32_t item, char path[PATH_MAX],
			  unsigned int *ret_depth);

/* ---- subtree_verbs.c ---- */

/*
 * Begin a change of contents; on 0 gcr_subtree_end_change() has to follow. @epoch is that of the
 * open file. -EBUSY, -ESTALE.
 */
int gcr_subtree_begin_change(struct gcr_subtree *subtree, uint64_t epoch);
void gcr_subtree_end_change(struct gcr_subtree *subtree);
/* Begin a change of names: on 0 the subtree's lock is held. */
int gcr_subtree_lock_names(struct gcr_subtree *subtree);
/* Has a verb begun, or has the subtree been retired? A long change is given up then. */
bool gcr_subtree_is_unwanted(struct gcr_subtree *subtree);

/* ---- subtree.c ---- */

/* For tests: the number of the next subtree is the first free one after this. */
void gcr_subtree_set_last_number(uint32_t number);
/* Count one name more, or one less, in the subtree's account. -ENOSPC, -EDQUOT. Lock: subtree. */
int gcr_subtree_add_entry(struct gcr_subtree *subtree, uid_t uid);
void gcr_subtree_remove_entry(struct gcr_subtree *subtree);
/*
 * Opens an item and returns the descriptor, the caller's. -ESTALE: the item or the subtree has been
 * removed; errors of open(2). Lock: subtree.
 */
int gcr_subtree_open_item(struct gcr_subtree *subtree, uint32_t item, int flags);
/* The same for a directory whose names are to be used. */
int gcr_subtree_open_directory(struct gcr_subtree *subtree, uint32_t item);
/* Set the owner and mode of a new file or directory; S_ISGID of the parent is respected. */
int gcr_subtree_give(const struct gcr_subtree *subtree, int parent_fd, int fd, mode_t mode,
		     uid_t uid, gid_t gid);
/*
 * Makes the entry of the file of @fd, and counts one lookup more. -ENOENT: users do not see files
 * of this kind; -ENOMEM. Lock: subtree.
 */
int gcr_subtree_make_entry(struct gcr_subtree *subtree, uint32_t parent, const char *name, int fd,
			   struct gcr_subtree_entry *ret_entry);

/* Memory that a file has allocated. */
static inline uint64_t gcr_subtree_blocks_bytes(const struct stat *stat)
{
	return (uint64_t)stat->st_blocks * 512;
}

/* ---- subtree_io.c ---- */

/*
 * Calls gcr_inodes_close() if @closes, else gcr_inodes_removed(), for the file of @fd, whose @bytes
 * the subtree stops counting; if the file is still in use elsewhere, the table of inodes may take
 * them over. No lock.
 */
void gcr_subtree_uncount_inode(const struct gcr_subtree *subtree, int fd, uint64_t bytes,
			       bool closes);
/*
 * Opens an item as gcr_subtree_open() does. @is_packer: see struct gcr_subtree_file. -EBUSY: @flags
 * ask to write during a verb; -EISDIR; -EPERM: the item is neither a directory nor a regular file;
 * -ENOMEM, ... Lock: subtree.
 */
int gcr_subtree_open_locked(struct gcr_subtree *subtree, uint32_t item, int flags, bool is_packer,
			    struct gcr_subtree_file **ret_file);
/*
 * Does the file have a name outside this subtree? gcr_subtree_is_shared(): or does another subtree
 * have the file open? @stat: the file's attributes. Called without the lock of any subtree.
 */
bool gcr_subtree_has_other_name(const struct gcr_subtree_file *file);
bool gcr_subtree_is_shared(const struct gcr_subtree_file *file, const struct stat *stat);
/*
 * Can the file be read without this subtree, through a mapping or another subtree? If so, no holes
 * are made in it. Lock: the inode's change_lock.
 */
bool gcr_subtree_is_passed(const struct gcr_subtree_file *file);
/*
 * Wait for reads from the mapping, remove the mapping and prevent new ones until
 * gcr_subtree_may_map().
 */
void gcr_subtree_unmap(struct gcr_subtree_inode *inode);
void gcr_subtree_may_map(struct gcr_subtree_inode *inode);

/* ---- subtree_change.c ---- */

/*
 * The file has changed: recount its memory and end the promise of @taken_bytes. Lock: change_lock.
 */
void gcr_subtree_recount_room(struct gcr_subtree_file *file, uint64_t taken_bytes);

/* ---- subtree_packed.c ---- */

/*
 * The packed file of this inode number, or NULL. gcr_subtree_packed_find() leaves the entry in the
 * list; gcr_subtree_packed_take() removes the entry for the caller. Lock: subtree.
 */
struct gcr_subtree_packed *gcr_subtree_packed_find(const struct gcr_subtree *subtree, ino_t ino);
struct gcr_subtree_packed *gcr_subtree_packed_take(struct gcr_subtree *subtree, ino_t ino);
/*
 * Make an empty table for a file of @file_bytes and add the file to the list. -ENOSPC, -ENOMEM, ...
 */
int gcr_subtree_packed_create(struct gcr_subtree *subtree, ino_t ino, uint64_t file_bytes,
			      struct gcr_subtree_packed **ret_packed);
/*
 * The file of this inode number is being opened: if it has packed pieces (else *ret_packed is
 * NULL), open its table and adapt it to @file_bytes. -EIO: the table is missing or damaged;
 * -ENOSPC, -ENOMEM, -EMFILE, ... Lock: subtree.
 */
int gcr_subtree_packed_open(struct gcr_subtree *subtree, ino_t ino, uint64_t file_bytes,
			    struct gcr_subtree_packed **ret_packed);
/* The file is not open any more. Returns the table, for gcr_pack_table_unref() without the lock. */
struct gcr_pack_table *gcr_subtree_packed_close(struct gcr_subtree_packed *packed);
/* The file has been removed: drop its chunks and its table. NULL is allowed. No lock. */
void gcr_subtree_packed_discard(struct gcr_subtree *subtree, struct gcr_subtree_packed *packed);
/* Free the subtree's packing state; the files stay packed. */
void gcr_subtree_packed_finish(struct gcr_subtree *subtree);
/*
 * These pieces are not packed any more: drop their chunks. Lock: pack_lock, unless the file is not
 * open.
 */
void gcr_subtree_packed_drop(struct gcr_subtree *subtree, struct gcr_subtree_packed *packed,
			     uint64_t first, uint64_t end);
/* Memory of the table of a file of @bytes. */
uint64_t gcr_subtree_table_bytes(uint64_t bytes);
/* Memory of this file's table; 0 for NULL. */
uint64_t gcr_subtree_packed_bytes(const struct gcr_subtree_packed *packed);
/* Adapt the table to a file of @bytes. -ENOSPC, -ENOMEM. No thread may be reading the file. */
int gcr_subtree_packed_resize(struct gcr_subtree *subtree, struct gcr_subtree_packed *packed,
			      uint64_t bytes);
/* fstat(2), with packed pieces counted as allocated. Lock: subtree. */
int gcr_subtree_stat_fd(const struct gcr_subtree *subtree, int fd, struct stat *ret_stat);

/*
 * For an inode that has packed pieces, with its pack_lock held. Returns the number of bytes read,
 * which is less than @size only at the end of the file; or -EIO, ...
 */
ssize_t gcr_subtree_read_packed(struct gcr_subtree_file *file, uint64_t offset, size_t size,
				char *ret_bytes);
int64_t gcr_subtree_seek_packed(struct gcr_subtree_file *file, int64_t offset, int whence);
/* Read bytes of a packed piece from @offset in the piece on; the range lies within the piece. */
int gcr_subtree_read_in_piece(struct gcr_packs *packs, struct gcr_packer *packer,
			      const struct gcr_pack_entry *entries, uint64_t offset, size_t size,
			      char *ret_bytes);
/* Does the piece have data that is packed? */
bool gcr_subtree_packed_has_data(const struct gcr_pack_table *table, uint64_t piece);

/* ---- subtree_unpack.c ---- */

enum gcr_subtree_change {
	GCR_SUBTREE_WRITE,
	GCR_SUBTREE_TRUNCATE,
	GCR_SUBTREE_PUNCH,
	GCR_SUBTREE_ALLOCATE,
	GCR_SUBTREE_ALLOCATE_WITHIN, /* may reach beyond the end, which does not move */
};

struct gcr_subtree_pieces {
	uint64_t first;
	uint64_t end; /* one past the last */
};

/* The effects of a change on the packed pieces of the file. */
struct gcr_subtree_plan {
	struct gcr_subtree_pieces unpacked[2]; /* pieces to be unpacked first */
	struct gcr_subtree_pieces gone;	       /* pieces of which nothing is left */
	uint64_t file_bytes;		       /* its length after the change */
	uint64_t further_bytes; /* memory needed in addition to that of the changed bytes */
};

/*
 * Plan a change up to @end of an inode that has packed pieces; for a truncation @offset equals
 * @end. Lock: change_lock.
 */
int gcr_subtree_plan(struct gcr_subtree_file *file, enum gcr_subtree_change kind, uint64_t offset,
		     uint64_t end, struct gcr_subtree_plan *ret_plan);
/*
 * Unpack the pieces of the plan before the change, with the room for it taken. -ENOSPC, -ENOMEM,
 * -EIO, -EBUSY: all bytes are unchanged, but some pieces may be unpacked.
 */
int gcr_subtree_carry_out(struct gcr_subtree_file *file, const struct gcr_subtree_plan *plan);
/*
 * Drop the pieces that are gone, after the change and before any read. Lock: change_lock,
 * pack_lock.
 */
void gcr_subtree_drop_gone(struct gcr_subtree_file *file, const struct gcr_subtree_plan *plan);
/*
 * At the end of a change: resize the table to its file, and remove an empty one. Lock: change_lock.
 */
void gcr_subtree_trim_packed(struct gcr_subtree_file *file);
/* Restore the times of a file of which the content is unchanged. */
void gcr_subtree_keep_times(int fd, const struct stat *before);

GCR_DEFINE_CLEANUP(struct gcr_subtree *, gcr_subtree_unref);
GCR_DEFINE_CLEANUP(struct gcr_subtree_file *, gcr_subtree_close);

#endif
