/* SPDX-License-Identifier: MIT */
/*
 * What the files of a folder share. folder->lock guards items, names, open inodes and verbs; the
 * tree's names change only under it. An inode's change_lock comes before it, its map_lock after;
 * its pack_lock after the change_lock, and the folder's is not taken under it.
 * The store's lock is not taken under any of them; that of the table of inodes is, and comes last.
 */
#ifndef GCR_FS_STORE_FOLDER_PRIVATE_H
#define GCR_FS_STORE_FOLDER_PRIVATE_H

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "fs/base/quota.h"
#include "fs/pack/pack_table.h"
#include "fs/store/folder.h"
#include "lib/cleanup.h"

struct gcr_packer;

#define GCR_FOLDER_NONE UINT32_MAX

/* A name that the kernel knows, or a free place in the table. */
struct gcr_folder_item {
	char *name; /* NULL: it has been removed, or is the root */
	uint32_t parent;
	uint32_t next;	   /* with the same hash; of the free ones */
	uint32_t children; /* items whose parent it is: it stays as long as they do */
	uint64_t lookups;
	uint64_t generation;
	struct gcr_folder_inode *inode; /* it is open; NULL: it is not */
	struct stat *removed;		/* the attributes of a removed file; NULL: it has a name */
};

/*
 * A file that has packed pieces, open or not: whose table is called as its inode's number. There
 * may be more of them than the daemon may have descriptors and mappings.
 */
struct gcr_folder_packed {
	struct gcr_folder_packed *next;
	ino_t ino;
	struct gcr_pack_table *table;	 /* as long as the file is open; NULL: it is not */
	struct gcr_pack_figures figures; /* of what has no table */
	uint64_t file_bytes;		 /* that the table is for */
	uint64_t memory_bytes;		 /* that the table takes: it does not become shorter */
	bool is_left; /* an earlier daemon had it: the file may have what is packed */
};

/* A file that is open, any number of times. */
struct gcr_folder_inode {
	struct gcr_folder_inode *next;
	ino_t ino;
	uint32_t item;
	unsigned int files;
	unsigned int writers;
	int fd;			       /* for its attributes */
	atomic_uint changes_of_rights; /* how often root has changed who may write to it */
	bool is_unlinked;
	bool is_orphan;
	uint64_t orphan_bytes;
	struct gcr_quota_charge orphan_charge; /* of the owner, who still has it open */

	pthread_mutex_t change_lock; /* one change at a time; guards what follows */
	uint64_t counted_bytes;	     /* what the account has for it, with its table */
	uint64_t writes; /* how many changes there have been, and one that is under way */

	/*
	 * Shared by who reads; who has the change_lock too changes what it guards: which pieces are
	 * packed.
	 */
	pthread_rwlock_t pack_lock;
	struct gcr_folder_packed *packed; /* NULL: none is */

	pthread_mutex_t map_lock; /* guards what follows */
	pthread_cond_t is_read;
	unsigned int changes;	   /* under way or waiting */
	unsigned int mapped_reads; /* being answered from the mapping */
	bool was_looked_at;	   /* whether it can be mapped, since the last change */
	void *mapping;
	size_t mapping_bytes;
};

struct gcr_folder {
	/* fixed for life */
	atomic_int references;
	struct gcr_folder *next; /* of all */
	uint32_t number;
	int root_fd;
	atomic_uint owner; /* for whom it counts */
	uid_t root_owner;  /* the same when its directory is root's */
	bool gives_away;   /* we may make files somebody else's */
	uint32_t adopter;  /* of gcr_inodes_link(), for names of its files; 0: there are none */
	struct gcr_store *store;
	int (*touch)(void *data, struct gcr_room **ret_room);
	void *data;

	pthread_mutex_t touch_lock; /* before all others */
	atomic_bool is_touched;

	pthread_mutex_t lock;
	pthread_cond_t is_settled;
	bool is_retired;
	unsigned int verbs;
	uint64_t epoch;	      /* how many there have been */
	unsigned int changes; /* of contents, and of accounts, that are under way */
	unsigned int writers;
	uint64_t directories_made; /* or moved: how often */
	struct gcr_room *room;
	struct gcr_folder_inode *inodes;
	struct gcr_packs *packs; /* NULL: nothing is packed */
	int tables_fd;
	bool is_going;			  /* what is packed goes with who has it open */
	struct gcr_folder_packed *packed; /* each file that is, some time or other */
	struct gcr_folder_item *items;
	uint32_t items_count;
	uint32_t free_item;
	uint32_t *buckets;
	uint32_t buckets_count; /* a power of two */
	uint32_t named_count;	/* items in them */
};

struct gcr_folder_file {
	struct gcr_folder *folder;
	struct gcr_folder_inode *inode;
	int fd;
	int flags;
	bool is_writable;
	bool is_packer; /* its descriptor is for writing, but nobody writes to the file by it */
	uint64_t epoch; /* of the folder when it was opened */
	uid_t opener;	/* -1: us */
	unsigned int changes_of_rights; /* of the inode when it was opened */
};

/* ---- folder_items.c: the table, all with the folder's lock held ---- */

int gcr_folder_items_init(struct gcr_folder *folder);
void gcr_folder_items_finish(struct gcr_folder *folder);
/* The item of this name, or GCR_FOLDER_NONE. */
uint32_t gcr_folder_item_find(const struct gcr_folder *folder, uint32_t parent, const char *name);
/* The same, made if there is none, and known once more. -ENOMEM. */
int gcr_folder_item_get(struct gcr_folder *folder, uint32_t parent, const char *name,
			uint32_t *ret_item);
void gcr_folder_item_forget(struct gcr_folder *folder, uint32_t item, uint64_t count);
/*
 * The file or directory of @item has been removed; the item loses its name. @stat, which is copied,
 * has its attributes: they can be read and set until the kernel forgets the item. NULL: they
 * cannot.
 */
void gcr_folder_item_remove(struct gcr_folder *folder, uint32_t item, const struct stat *stat);
/* It has another name, which no other item has. -ENOMEM: nothing is changed. */
int gcr_folder_item_move(struct gcr_folder *folder, uint32_t item, uint32_t parent,
			 const char *name);
/* Two exchange their names. */
void gcr_folder_item_exchange(struct gcr_folder *folder, uint32_t left, uint32_t right);
/* -ESTALE: there is no such item, or it has been removed. */
int gcr_folder_item_check(const struct gcr_folder *folder, uint32_t item);
/* Its path below the root, "." for that, and how many names it has. -ESTALE, -ENAMETOOLONG. */
int gcr_folder_item_path(const struct gcr_folder *folder, uint32_t item, char path[PATH_MAX],
			 unsigned int *ret_depth);

/* ---- folder.c ---- */

/* Before any change of contents; on 0 gcr_folder_end_change() has to follow. -EBUSY, -ESTALE. */
int gcr_folder_begin_change(struct gcr_folder *folder, uint64_t epoch);
void gcr_folder_end_change(struct gcr_folder *folder);
/* For a change of names: on 0 the lock is held. */
int gcr_folder_lock_names(struct gcr_folder *folder);
/* Its account has a name more, or one less. -ENOSPC. Lock: folder. */
int gcr_folder_add_entry(struct gcr_folder *folder, uid_t uid);
void gcr_folder_remove_entry(struct gcr_folder *folder);
/* A descriptor of an item. Lock: folder. */
int gcr_folder_open_item(struct gcr_folder *folder, uint32_t item, int flags);
/* The same of a directory, for names in it. */
int gcr_folder_open_directory(struct gcr_folder *folder, uint32_t item);
/* Make what has just been made its owner's. */
int gcr_folder_give(const struct gcr_folder *folder, int parent_fd, int fd, mode_t mode, uid_t uid,
		    gid_t gid);
/* The entry of a file that @fd is; the kernel knows it once more. Lock: folder. */
int gcr_folder_make_entry(struct gcr_folder *folder, uint32_t parent, const char *name, int fd,
			  struct gcr_folder_entry *ret_entry);

/* Memory that a file has taken. */
static inline uint64_t gcr_folder_blocks_bytes(const struct stat *stat)
{
	return (uint64_t)stat->st_blocks * 512;
}

/* ---- folder_io.c ---- */

/* The open inode of this number, or NULL. Lock: folder. */
struct gcr_folder_inode *gcr_folder_inode_find(struct gcr_folder *folder, ino_t ino);
/*
 * gcr_inodes_removed(), or gcr_inodes_close(), of the file of @fd, whose @bytes the folder is about
 * to count no longer: whoever still has it may. No lock.
 */
void gcr_folder_settle_inode(const struct gcr_folder *folder, int fd, uint64_t bytes, bool closes);
/* @is_packer: see struct gcr_folder_file. Lock: folder. */
int gcr_folder_open_locked(struct gcr_folder *folder, uint32_t item, int flags, bool is_packer,
			   struct gcr_folder_file **ret_file);
/*
 * Has another folder a name of the file; and, for gcr_folder_is_shared(), or has it the file open?
 * @stat says which file it is. No lock of a folder.
 */
bool gcr_folder_has_other_name(const struct gcr_folder_file *file);
bool gcr_folder_is_shared(const struct gcr_folder_file *file, const struct stat *stat);
/*
 * May somebody read it without this folder: by a mapping, or by another folder? Then it gets no
 * holes. Lock: the inode's change_lock.
 */
bool gcr_folder_is_passed(const struct gcr_folder_file *file);
/* From here on nobody is answered from a mapping; those who are have their answer first. */
void gcr_folder_unmap(struct gcr_folder_inode *inode);
void gcr_folder_may_map(struct gcr_folder_inode *inode);
/* All of it, or up to the end of the file: -EIO, ... */
int gcr_folder_read_file(int fd, uint64_t offset, size_t size, char *ret_bytes, size_t *ret_size);

/* ---- folder_change.c ---- */

/* A long change is given up when a verb has begun. */
bool gcr_folder_is_unwanted(struct gcr_folder *folder);
/* It has changed, and of what was taken nothing more will be used. Lock: change_lock. */
void gcr_folder_settle_room(struct gcr_folder_file *file, uint64_t taken_bytes);
/* How many were written, or -errno. */
ssize_t gcr_folder_write_file(int fd, const char *bytes, size_t size, uint64_t offset);

/* ---- folder_packed.c ---- */

/* The packed file of this inode number, or NULL; it is the list's, or, taken, the caller's. Lock:
 * folder. */
struct gcr_folder_packed *gcr_folder_packed_find(const struct gcr_folder *folder, ino_t ino);
struct gcr_folder_packed *gcr_folder_packed_take(struct gcr_folder *folder, ino_t ino);
/*
 * A file of so many bytes gets a table, of which nothing is packed yet; it is in the list then.
 * -ENOSPC, -ENOMEM, ...
 */
int gcr_folder_packed_create(struct gcr_folder *folder, ino_t ino, uint64_t file_bytes,
			     struct gcr_folder_packed **ret_packed);
/*
 * A file of this inode number is being opened: if it is packed (else *ret_packed is NULL), it has
 * its table from now on, which is for @file_bytes then. -EIO: that is not what it was; -ENOSPC,
 * -ENOMEM, -EMFILE, ... Lock: folder.
 */
int gcr_folder_packed_open(struct gcr_folder *folder, ino_t ino, uint64_t file_bytes,
			   struct gcr_folder_packed **ret_packed);
/* Its file is not open any more. The table, for gcr_pack_table_unref() without the lock. */
struct gcr_pack_table *gcr_folder_packed_close(struct gcr_folder_packed *packed);
/* Its file is gone: what it has of chunks goes, and its table. NULL is allowed. No lock. */
void gcr_folder_packed_discard(struct gcr_folder *folder, struct gcr_folder_packed *packed);
/* The end of the folder: what is packed stays so. */
void gcr_folder_packed_finish(struct gcr_folder *folder);
/* These pieces are not packed any more. Lock: pack_lock, or nobody has it open. */
void gcr_folder_packed_drop(struct gcr_folder *folder, struct gcr_folder_packed *packed,
			    uint64_t first, uint64_t end);
/* Memory of the table of a file of @bytes. */
uint64_t gcr_folder_table_bytes(uint64_t bytes);
/* Memory of its table; of NULL none. */
uint64_t gcr_folder_packed_bytes(const struct gcr_folder_packed *packed);
/* Its file is so long. -ENOSPC, -ENOMEM. Nobody reads it. */
int gcr_folder_packed_resize(struct gcr_folder *folder, struct gcr_folder_packed *packed,
			     uint64_t bytes);
/* fstat(2), as if nothing were packed. Lock: folder. */
int gcr_folder_stat_fd(const struct gcr_folder *folder, int fd, struct stat *ret_stat);

/* Of an inode that has packed pieces; its pack_lock is held. */
int gcr_folder_read_packed(struct gcr_folder_file *file, uint64_t offset, size_t size, char *buffer,
			   size_t *ret_size);
int64_t gcr_folder_seek_packed(struct gcr_folder_file *file, int64_t offset, int whence);
/* Bytes of a packed piece, from @offset in it on; they are all in it. */
int gcr_folder_read_in_piece(struct gcr_packs *packs, struct gcr_packer *packer,
			     const struct gcr_pack_entry *entries, uint64_t offset, size_t size,
			     char *ret_bytes);
/* Is there data in this piece because it is packed? */
bool gcr_folder_packed_has_data(const struct gcr_pack_table *table, uint64_t piece);

/* ---- folder_pack.c ---- */

enum gcr_folder_change {
	GCR_FOLDER_WRITE,
	GCR_FOLDER_TRUNCATE,
	GCR_FOLDER_PUNCH,
	GCR_FOLDER_ALLOCATE,
	GCR_FOLDER_ALLOCATE_WITHIN, /* or beyond the end, which stays where it is */
};

struct gcr_folder_pieces {
	uint64_t first;
	uint64_t end; /* behind the last */
};

/* What a change does to packed pieces of the file. */
struct gcr_folder_plan {
	struct gcr_folder_pieces unpacked[2]; /* they have to be in the file */
	struct gcr_folder_pieces gone;	      /* nothing of them is left */
	uint64_t file_bytes;		      /* its length then */
	uint64_t further_bytes; /* of memory, beyond what the changed bytes themselves may take */
};

/*
 * The inode has packed pieces. Lock: change_lock. Bytes up to @end are changed; for a truncation
 * @offset is the same.
 */
int gcr_folder_plan(struct gcr_folder_file *file, enum gcr_folder_change kind, uint64_t offset,
		    uint64_t end, struct gcr_folder_plan *ret_plan);
/*
 * Before the change, with the room for it taken. -ENOSPC, -ENOMEM, -EIO, -EBUSY: all bytes are as
 * they were, but some may be unpacked.
 */
int gcr_folder_carry_out(struct gcr_folder_file *file, const struct gcr_folder_plan *plan);
/* After it, before anybody reads. Lock: pack_lock, too. */
void gcr_folder_drop_gone(struct gcr_folder_file *file, const struct gcr_folder_plan *plan);
/* At the end: a table is as long as its file, and one of nothing goes. Lock: change_lock. */
void gcr_folder_settle_packed(struct gcr_folder_file *file);

GCR_DEFINE_CLEANUP(struct gcr_folder *, gcr_folder_unref);
GCR_DEFINE_CLEANUP(struct gcr_folder_file *, gcr_folder_close);

#endif
