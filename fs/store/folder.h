/* SPDX-License-Identifier: MIT */
/*
 * A folder: an ordinary tree of directories and files of the store, as users of the mount see and
 * change it. What the kernel knows of it is an item: a name in the directory that is another item,
 * with a number. No item has a descriptor; its path is resolved anew, never through a symbolic link
 * and never out of the folder. Modes and owners are those of the tree itself; who may do what the
 * kernel has judged before it asks.
 *
 * A verb that begins wins over who writes: files that are open for writing then stay closed to
 * writes for ever, and nothing is changed until the verb has ended. Who reads goes on.
 */
#ifndef GCR_FS_STORE_FOLDER_H
#define GCR_FS_STORE_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

struct gcr_folder;	/* reference-counted, thread-safe */
struct gcr_folder_file; /* one open file of it */
struct gcr_pack_entry;
struct gcr_pack_figures;
struct gcr_packs;
struct gcr_room;
struct gcr_store;

#define GCR_FOLDER_ROOT		0 /* the item that is the folder's own directory */
#define GCR_FOLDER_NUMBER_BITS	24
#define GCR_FOLDER_BLOCK_BYTES	(1 << 20) /* a read or write of so much is one request */
/* Smaller files are read sooner than the kernel is told of them. */
#define GCR_FOLDER_PASSED_BYTES (1 << 20)

struct gcr_folder_config {
	int root_fd;		 /* its directory; stays the caller's */
	struct gcr_store *store; /* whose room it takes; NULL: nobody counts */
	uid_t owner;		 /* for whom it counts when its directory is root's */
	uint32_t adopter;	 /* of gcr_inodes_link(), for names of its files; 0: none */
	/*
	 * Called once, before the first change, with no lock held: the account of the tree, which
	 * stays the folder's until gcr_folder_take_room(). May be NULL, like @store.
	 */
	int (*touch)(void *data, struct gcr_room **ret_room);
	void *data;
};

/* -ENOMEM, -EMFILE. */
int gcr_folder_create(const struct gcr_folder_config *config, struct gcr_folder **ret_folder);
struct gcr_folder *gcr_folder_ref(struct gcr_folder *folder);
void gcr_folder_unref(struct gcr_folder *folder); /* NULL is allowed */

/* Of those that are there it is named by this, of GCR_FOLDER_NUMBER_BITS. */
uint32_t gcr_folder_number(const struct gcr_folder *folder);
/* A reference to the folder of this number: -ESTALE. */
int gcr_folder_find(uint32_t number, struct gcr_folder **ret_folder);

/* ---- verbs ---- */

/*
 * From now on every change is -EBUSY, and what is open for writing stays so; waits for changes that
 * are under way. Verbs may overlap.
 */
void gcr_folder_begin_verb(struct gcr_folder *folder);
void gcr_folder_end_verb(struct gcr_folder *folder);
/* Has anybody ever changed anything in it? */
bool gcr_folder_is_touched(const struct gcr_folder *folder);
/* Do as if. Errors are those of config->touch. */
int gcr_folder_touch(struct gcr_folder *folder);

/* For whom its bytes count. */
uid_t gcr_folder_owner(const struct gcr_folder *folder);
/* What its files take, as its account says; 0 without one. */
uint64_t gcr_folder_resident_bytes(struct gcr_folder *folder);

/* ---- the end ---- */

/* Its tree is going: nothing can be looked up, opened or changed any more (-ESTALE). */
void gcr_folder_retire(struct gcr_folder *folder);
/* Of one that is retired: its account, which is the caller's now; NULL: it had none. */
struct gcr_room *gcr_folder_take_room(struct gcr_folder *folder);
/* Is the file with this inode number open? */
bool gcr_folder_has_open(struct gcr_folder *folder, ino_t ino);
/*
 * The file has been removed. If it is open, @bytes are told to gcr_store_let_go() when it no longer
 * is, and the answer is true.
 */
bool gcr_folder_orphan(struct gcr_folder *folder, ino_t ino, uint64_t bytes);
/*
 * All of the tree of one that is retired is about to be removed: what is packed goes, as long as
 * there are its tables; of what is open when it is closed. -EMFILE, -ENFILE, -ENOMEM: some may be
 * left, and this is to be called again.
 */
int gcr_folder_discard_packed(struct gcr_folder *folder);
/* It has been: as gcr_folder_orphan() for all that is open; the sum of their bytes. */
uint64_t gcr_folder_orphan_all(struct gcr_folder *folder);

/* ---- names ---- */

struct gcr_folder_entry {
	uint32_t item;
	uint64_t generation; /* of the item's number, which may be used again */
	struct stat stat;
};

/*
 * Names in the directory @parent. Lookup, mkdir and create return an item that the kernel now knows
 * once more; gcr_folder_forget() says how often it has forgotten it. Errors as of the system calls,
 * -EBUSY with a verb, -ESTALE when the folder or the directory is gone, -ENAMETOOLONG also for
 * directories that are too deep.
 */
int gcr_folder_lookup(struct gcr_folder *folder, uint32_t parent, const char *name,
		      struct gcr_folder_entry *ret_entry);
void gcr_folder_forget(struct gcr_folder *folder, uint32_t item, uint64_t count);
int gcr_folder_mkdir(struct gcr_folder *folder, uint32_t parent, const char *name, mode_t mode,
		     uid_t uid, gid_t gid, struct gcr_folder_entry *ret_entry);
int gcr_folder_remove(struct gcr_folder *folder, uint32_t parent, const char *name,
		      bool is_directory);
/* @flags: RENAME_NOREPLACE, RENAME_EXCHANGE. */
int gcr_folder_rename(struct gcr_folder *folder, uint32_t parent, const char *name,
		      uint32_t new_parent, const char *new_name, unsigned int flags);
/* Calls @add for each name but the dots; stops with its non-zero result. */
int gcr_folder_list(struct gcr_folder *folder, uint32_t item,
		    int (*add)(void *data, const char *name, ino_t ino, mode_t mode), void *data);

/* ---- attributes ---- */

int gcr_folder_stat(struct gcr_folder *folder, uint32_t item, struct stat *ret_stat);

struct gcr_folder_attributes {
	bool has_mode;
	mode_t mode;
	uid_t uid; /* -1: as it is */
	gid_t gid;
	struct timespec times[2]; /* of access and change, as for utimensat(2) */
	bool is_by_root;	  /* it holds for those too who have the file open */
};
int gcr_folder_set(struct gcr_folder *folder, uint32_t item,
		   const struct gcr_folder_attributes *attributes);

/* ---- files (folder_io.c, folder_change.c) ---- */

/* @flags as of open(2): access mode, O_TRUNC, O_APPEND. */
int gcr_folder_open(struct gcr_folder *folder, uint32_t item, int flags,
		    struct gcr_folder_file **ret_file);
/* A new file: -EEXIST. */
int gcr_folder_create_file(struct gcr_folder *folder, uint32_t parent, const char *name, int flags,
			   mode_t mode, uid_t uid, gid_t gid, struct gcr_folder_entry *ret_entry,
			   struct gcr_folder_file **ret_file);
void gcr_folder_close(struct gcr_folder_file *file);	    /* NULL is allowed */
int gcr_folder_file_fd(const struct gcr_folder_file *file); /* stays its own */
/*
 * Whose it is, before anybody uses it. When root has then given the file to another, or changed its
 * mode, writing goes on for root, and for the owner if the mode allows it; to others it is -EPERM.
 */
void gcr_folder_opened_by(struct gcr_folder_file *file, uid_t uid);
/*
 * May the kernel read it by itself, and others map it? It is GCR_FOLDER_PASSED_BYTES or more, in a
 * directory below the root (what stands in that is written anew by the daemon), has no other name,
 * by which it could be changed at this moment, and no holes: a mapping would fill them, uncounted.
 * On true it gets none from now on, whatever is done to it, by this name or another. A file of an
 * earlier daemon, which may have passed it, gets none either.
 */
bool gcr_folder_pass(struct gcr_folder_file *file);

/* What a read gives: valid until gcr_folder_read_done(), which has to come soon. */
struct gcr_folder_bytes {
	const void *bytes;
	size_t size;
	void *buffer; /* of its own, NULL: it is the file's mapping */
};
int gcr_folder_read(struct gcr_folder_file *file, uint64_t offset, size_t size,
		    struct gcr_folder_bytes *ret_bytes);
void gcr_folder_read_done(struct gcr_folder_file *file, struct gcr_folder_bytes *bytes);

/* How many were written, or -errno: -ENOSPC, and the file is as it was. */
ssize_t gcr_folder_write(struct gcr_folder_file *file, const void *bytes, size_t size,
			 uint64_t offset);
int gcr_folder_truncate(struct gcr_folder_file *file, uint64_t bytes);
/* One fallocate(2), which may be long: so it is done in steps. */
struct gcr_folder_allocation {
	int mode;
	uint64_t offset; /* from where it goes on */
	uint64_t end;
	bool has_begun;
};
/*
 * A step: 1, there is more to do; 0, it is done. Between two of them others change the file.
 * -ENOSPC and -EDQUOT come from the first one, with nothing changed; what others have done is not
 * undone.
 */
int gcr_folder_allocate_some(struct gcr_folder_file *file,
			     struct gcr_folder_allocation *allocation);
/* All of it. */
int gcr_folder_allocate(struct gcr_folder_file *file, int mode, uint64_t offset, uint64_t bytes);
/* lseek(2) with SEEK_DATA or SEEK_HOLE */
int64_t gcr_folder_seek(struct gcr_folder_file *file, int64_t offset, int whence);

/* ---- packed pieces (folder_pack.c, folder_packed.c); what stands in the store: lib/pack_file.h
 * ---- */

/*
 * Its files may have packed pieces from now on, and those that have a table in the directory
 * @tables_fd (taken with success) have them already: their references to chunks are there. @packs
 * has the chunks. It is touched, and nobody uses it yet, or none of its files has a table. Once.
 * -ENOMEM, -EMFILE, ...
 */
int gcr_folder_attach_packs(struct gcr_folder *folder, struct gcr_packs *packs, int tables_fd);
/* NULL: it has not been attached. */
struct gcr_packs *gcr_folder_packs(struct gcr_folder *folder);
/* The directory of the tables, its own; -1: none. */
int gcr_folder_tables(struct gcr_folder *folder);
/* The sum of its files. */
void gcr_folder_pack_figures(struct gcr_folder *folder, struct gcr_pack_figures *ret_figures);
/* gcr_pack_table_each() of all its files. -ENOMEM, -EMFILE, ... */
int gcr_folder_each_packed(struct gcr_folder *folder,
			   void (*visit)(const struct gcr_pack_entry *entries, void *data),
			   void *data);

/*
 * A file, open for what follows; readers and writers go on beside it. From the next verb on all of
 * that is -EBUSY. Errors as of gcr_folder_open().
 */
int gcr_folder_open_to_pack(struct gcr_folder *folder, uint32_t item,
			    struct gcr_folder_file **ret_file);
uint64_t gcr_folder_pieces(const struct gcr_folder_file *file);
/*
 * The bytes of a piece: room for GCR_PACK_PIECE_BYTES; the last piece may be shorter. *ret_writes
 * is for gcr_folder_pack_piece(). -ENODATA: it is a hole, packed already, or beyond the end; -EBUSY
 * a verb, -EIO.
 */
int gcr_folder_read_piece(struct gcr_folder_file *file, uint64_t piece, void *ret_bytes,
			  size_t *ret_size, uint64_t *ret_writes);
/* What packing one of them may take of the store, for gcr_snapshot_begin_piece(). */
uint64_t gcr_folder_piece_cost(struct gcr_folder_file *file);
/*
 * The piece is these chunks (GCR_PACK_PIECE_CHUNKS entries) from now on, whose references are the
 * file's then; the memory that it had goes back. -EAGAIN: somebody has written to the file since it
 * was read; -ETXTBSY: somebody outside has it open or mapped, or, -EMLINK, under another name, who
 * would not see that; -EBUSY a verb; -ENOSPC, -ENOMEM the table; -EIO. With errors nothing has
 * changed.
 */
int gcr_folder_pack_piece(struct gcr_folder_file *file, uint64_t piece,
			  const struct gcr_pack_entry *entries, uint64_t writes);
/*
 * The piece is in the file again. -ENODATA: it is not packed; -ENOSPC: and it stays so; -EBUSY a
 * verb; -EIO its chunks cannot be read.
 */
int gcr_folder_unpack_piece(struct gcr_folder_file *file, uint64_t piece);

#endif
