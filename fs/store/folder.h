/* SPDX-License-Identifier: MIT */
/*
 * A folder: an ordinary tree of directories and files of the store, as users of the mount see and
 * change it. An item is an entry that the kernel knows: a name in a directory, which is another
 * item, with a number. Items have no descriptors; an item's path is resolved at each use, never
 * through a symbolic link and never out of the folder. Modes and owners are those of the tree
 * itself; the kernel has checked permissions before it sends a request.
 *
 * A verb takes precedence over writers: when it begins, files that are open for writing become
 * read-only for good, and nothing is changed until the verb has ended. Readers are not affected.
 */
#ifndef GCR_FS_STORE_FOLDER_H
#define GCR_FS_STORE_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

struct gcr_folder;	/* reference-counted, thread-safe */
struct gcr_folder_file; /* one open file of a folder */
struct gcr_pack_entry;
struct gcr_pack_figures;
struct gcr_packs;
struct gcr_room;
struct gcr_store;

#define GCR_FOLDER_ROOT		0 /* the item of the folder's own directory */
#define GCR_FOLDER_NUMBER_BITS	24
#define GCR_FOLDER_BLOCK_BYTES	(1 << 20) /* the maximum of one read or write request */
/* Smaller files are read faster through the daemon than passed to the kernel. */
#define GCR_FOLDER_PASSED_BYTES (1 << 20)

struct gcr_folder_config {
	int root_fd;		 /* the folder's directory; stays the caller's */
	struct gcr_store *store; /* the store that counts the tree; NULL: not counted */
	uid_t owner;		 /* for whom the tree counts if its directory is root's */
	uint32_t adopter;	 /* number of gcr_inodes_link() for names of its files; 0: none */
	/*
	 * Called before the first change, and again if it has failed, with no other lock held than
	 * the folder's touch_lock: makes the account of the tree, which stays the folder's until
	 * gcr_folder_take_room(). May be NULL, like @store.
	 */
	int (*touch)(void *data, struct gcr_room **ret_room);
	void *data;
};

/* -ENOMEM, -EMFILE, -ENFILE. */
int gcr_folder_create(const struct gcr_folder_config *config, struct gcr_folder **ret_folder);
struct gcr_folder *gcr_folder_ref(struct gcr_folder *folder);
void gcr_folder_unref(struct gcr_folder *folder); /* NULL is allowed */

/*
 * A number of GCR_FOLDER_NUMBER_BITS, unique among the existing folders and those of which the
 * kernel knows items.
 */
uint32_t gcr_folder_number(const struct gcr_folder *folder);
/* Returns a reference to the folder of this number, or -ESTALE. */
int gcr_folder_find(uint32_t number, struct gcr_folder **ret_folder);

/* ---- verbs ---- */

/*
 * Wait for the changes under way, and make every further change fail with -EBUSY. Files that are
 * open for writing fail with -EBUSY from now on, also after the verb. Verbs may overlap.
 */
void gcr_folder_begin_verb(struct gcr_folder *folder);
void gcr_folder_end_verb(struct gcr_folder *folder);
/* Has any user ever changed anything in the folder? */
bool gcr_folder_is_touched(const struct gcr_folder *folder);
/* Mark the folder as changed. Errors are those of config->touch. */
int gcr_folder_touch(struct gcr_folder *folder);

/*
 * For a verb that writes files of the folder by itself. Take room for @bytes more, within the
 * limits of the folder's owner; 0 without an account. -ENOSPC, -EDQUOT, -ESTALE.
 */
int gcr_folder_take_growth(struct gcr_folder *folder, uint64_t bytes);
/*
 * The file with this inode number now has @bytes allocated. To be called for each of the files
 * before gcr_folder_settle_growth(), which ends promises of @taken_bytes in all: the files had
 * @before_bytes together, and now have @after_bytes.
 */
void gcr_folder_recount(struct gcr_folder *folder, ino_t ino, uint64_t bytes);
void gcr_folder_settle_growth(struct gcr_folder *folder, uint64_t taken_bytes,
			      uint64_t before_bytes, uint64_t after_bytes);

/*
 * For a verb, too: move the regular file @name from the directory @from_fd, which no user reaches,
 * into the folder's own directory. A file of this name is replaced, as if a user had removed it.
 * The new file counts from then on; no room is taken for it. -EISDIR, -ENOSPC, ...
 */
int gcr_folder_put(struct gcr_folder *folder, int from_fd, const char *name);
/* Remove a file of the root, also during a verb. Returns 0 also if there is none. -EISDIR, ... */
int gcr_folder_take_out(struct gcr_folder *folder, const char *name);

/* The user for whom the folder's bytes count. */
uid_t gcr_folder_owner(const struct gcr_folder *folder);
/* Memory that its files take according to its account; 0 without an account. */
uint64_t gcr_folder_resident_bytes(struct gcr_folder *folder);

/* ---- the end ---- */

/* The tree is about to be removed: lookups, opens and changes return -ESTALE from now on. */
void gcr_folder_retire(struct gcr_folder *folder);
/* Take the account of a retired folder, which is the caller's then; NULL: there is none. */
struct gcr_room *gcr_folder_take_room(struct gcr_folder *folder);
/* Is the file with this inode number open? */
bool gcr_folder_has_open(struct gcr_folder *folder, ino_t ino);
/*
 * A file of the folder has been removed. Returns true if the file is open: the folder then passes
 * @bytes to gcr_store_let_go() when the file is closed.
 */
bool gcr_folder_orphan(struct gcr_folder *folder, ino_t ino, uint64_t bytes);
/*
 * The whole tree of a retired folder is about to be removed: drop its packed chunks while its
 * tables still exist. Chunks of open files are dropped when these are closed. -EMFILE, -ENFILE,
 * -ENOMEM: some chunks may be left, and the caller retries.
 */
int gcr_folder_discard_packed(struct gcr_folder *folder);
/*
 * The whole tree has been removed: as gcr_folder_orphan() for all open files. Returns the sum of
 * their bytes.
 */
uint64_t gcr_folder_orphan_all(struct gcr_folder *folder);

/* ---- names ---- */

struct gcr_folder_entry {
	uint32_t item;
	uint64_t generation; /* of the item, whose number may be reused; unique among all folders */
	struct stat stat;
};

/*
 * Names in the directory @parent. Lookup, mkdir and create return an item and count one lookup of
 * it by the kernel; gcr_folder_forget() subtracts lookups that the kernel has forgotten. Errors as
 * of the system calls, -EBUSY during a verb, -ESTALE when the folder or the directory has been
 * removed, -ENAMETOOLONG also for directories that are nested too deep.
 */
int gcr_folder_lookup(struct gcr_folder *folder, uint32_t parent, const char *name,
		      struct gcr_folder_entry *ret_entry);
void gcr_folder_forget(struct gcr_folder *folder, uint32_t item, uint64_t count);
/* The same for the folder of this number, which may be gone: its number is free after the last. */
void gcr_folder_forget_of(uint32_t number, uint32_t item, uint64_t count);
int gcr_folder_mkdir(struct gcr_folder *folder, uint32_t parent, const char *name, mode_t mode,
		     uid_t uid, gid_t gid, struct gcr_folder_entry *ret_entry);
int gcr_folder_remove(struct gcr_folder *folder, uint32_t parent, const char *name,
		      bool is_directory);
/* @flags: RENAME_NOREPLACE, RENAME_EXCHANGE. */
int gcr_folder_rename(struct gcr_folder *folder, uint32_t parent, const char *name,
		      uint32_t new_parent, const char *new_name, unsigned int flags);
/* Calls @add for each name except "." and ".."; stops at a non-zero result and returns that. */
int gcr_folder_list(struct gcr_folder *folder, uint32_t item,
		    int (*add)(void *data, const char *name, ino_t ino, mode_t mode), void *data);

/* ---- attributes ---- */

int gcr_folder_stat(struct gcr_folder *folder, uint32_t item, struct stat *ret_stat);

struct gcr_folder_attributes {
	bool has_mode;
	mode_t mode;
	uid_t uid; /* -1: unchanged */
	gid_t gid;
	struct timespec times[2]; /* of access and modification, as for utimensat(2) */
	bool is_by_root;	  /* the rights apply also to users who have the file open */
};
int gcr_folder_set(struct gcr_folder *folder, uint32_t item,
		   const struct gcr_folder_attributes *attributes);

/* ---- files (folder_io.c, folder_change.c) ---- */

/* @flags as of open(2): access mode, O_TRUNC, O_APPEND. */
int gcr_folder_open(struct gcr_folder *folder, uint32_t item, int flags,
		    struct gcr_folder_file **ret_file);
/* Create a file: -EEXIST. */
int gcr_folder_create_file(struct gcr_folder *folder, uint32_t parent, const char *name, int flags,
			   mode_t mode, uid_t uid, gid_t gid, struct gcr_folder_entry *ret_entry,
			   struct gcr_folder_file **ret_file);
void gcr_folder_close(struct gcr_folder_file *file);	    /* NULL is allowed */
int gcr_folder_file_fd(const struct gcr_folder_file *file); /* stays the file's */
/*
 * Set the user who has opened the file, before its first use. If root later changes the file's
 * owner or mode, writes are still allowed to root, and to the owner if the mode allows; for others
 * they fail with -EPERM.
 */
void gcr_folder_opened_by(struct gcr_folder_file *file, uid_t uid);
/*
 * May the kernel read the file without the daemon (passthrough), so that processes may map it? True
 * only for a file of GCR_FOLDER_PASSED_BYTES or more, in a directory below the root (the daemon
 * rewrites the files of the root), without another name, by which it could be changed at this
 * moment, and without holes: a mapping would fill them, uncounted. After true, no holes are made in
 * the file by any operation, through this name or another. Nor are they made in a file of an
 * earlier daemon, which may have passed it.
 */
bool gcr_folder_pass(struct gcr_folder_file *file);

/* The result of a read: valid until gcr_folder_read_done(), which has to follow soon. */
struct gcr_folder_bytes {
	const void *bytes;
	size_t size;
	void *buffer; /* allocated for this read; NULL: @bytes are in the file's mapping */
};
int gcr_folder_read(struct gcr_folder_file *file, uint64_t offset, size_t size,
		    struct gcr_folder_bytes *ret_bytes);
void gcr_folder_read_done(struct gcr_folder_file *file, struct gcr_folder_bytes *bytes);

/*
 * Returns the number of bytes written, or -errno and the file is unchanged: -ENOSPC, -EDQUOT,
 * -EFBIG; -EBUSY: a verb is under way or has begun since the file was opened; -ESTALE: the folder
 * has been retired; -EPERM: the file has been given to another user.
 */
ssize_t gcr_folder_write(struct gcr_folder_file *file, const void *bytes, size_t size,
			 uint64_t offset);
int gcr_folder_truncate(struct gcr_folder_file *file, uint64_t bytes);
/* The state of one fallocate(2), which may take long and so is done in steps. */
struct gcr_folder_allocation {
	int mode;
	uint64_t offset; /* where the next step begins */
	uint64_t end;
	bool has_begun;
};
/*
 * Carry out one step: 1, more is to be done; 0, finished. Others may change the file between two
 * steps. -ENOSPC and -EDQUOT come from the first step, with nothing changed; the changes of others
 * are not undone.
 */
int gcr_folder_allocate_some(struct gcr_folder_file *file,
			     struct gcr_folder_allocation *allocation);
/* Carry out all steps. */
int gcr_folder_allocate(struct gcr_folder_file *file, int mode, uint64_t offset, uint64_t bytes);
/* As lseek(2) with SEEK_DATA or SEEK_HOLE: the offset, or -errno. */
int64_t gcr_folder_seek(struct gcr_folder_file *file, int64_t offset, int whence);

/*
 * ---- packed pieces (folder_pack.c, folder_packed.c); their format in the store: lib/pack_file.h
 * ----
 */

/*
 * Allow packed pieces in the folder's files, with @packs for their chunks. Files that have a table
 * in the directory @tables_fd (taken on success) have packed pieces already, and references to
 * these chunks exist. The folder has to be touched, and either not in use yet or without tables.
 * Once. -ENOMEM, -EMFILE, ...
 */
int gcr_folder_attach_packs(struct gcr_folder *folder, struct gcr_packs *packs, int tables_fd);
/* NULL: gcr_folder_attach_packs() has not been called. */
struct gcr_packs *gcr_folder_packs(struct gcr_folder *folder);
/* The directory of the tables, which stays the folder's; -1: none. */
int gcr_folder_tables(struct gcr_folder *folder);
/* The sum of the figures of all its files. */
void gcr_folder_pack_figures(struct gcr_folder *folder, struct gcr_pack_figures *ret_figures);
/* Calls gcr_pack_table_each() for the tables of all its files. -ENOMEM, -EMFILE, ... */
int gcr_folder_each_packed(struct gcr_folder *folder,
			   void (*visit)(const struct gcr_pack_entry *entries, void *data),
			   void *data);

/*
 * Open a file for the functions below; others may read and write it at the same time. Once a verb
 * has begun, those functions return -EBUSY for this file. @bytes: the length of the file as it was
 * made; a user may make it longer, and its table with it. Errors as of gcr_folder_open().
 */
int gcr_folder_open_to_pack(struct gcr_folder *folder, uint32_t item, uint64_t bytes,
			    struct gcr_folder_file **ret_file);
/* Number of its pieces, those beyond the length as it was made not counted. */
uint64_t gcr_folder_pieces(const struct gcr_folder_file *file);
/*
 * Read a piece into @ret_bytes, which has room for GCR_PACK_PIECE_BYTES; the last piece may be
 * shorter. *ret_writes is for gcr_folder_pack_piece(). -ENODATA: the piece is a hole, packed
 * already, or beyond the end; -EBUSY a verb, -EIO.
 */
int gcr_folder_read_piece(struct gcr_folder_file *file, uint64_t piece, void *ret_bytes,
			  size_t *ret_size, uint64_t *ret_writes);
/* The most that packing one piece may take of the store, for gcr_snapshot_begin_piece(). */
uint64_t gcr_folder_piece_cost(struct gcr_folder_file *file);
/*
 * Replace the piece by these chunks (GCR_PACK_PIECE_CHUNKS entries), whose references become the
 * file's, and free the piece's memory. @writes is the number that gcr_folder_read_piece() returned.
 * -EAGAIN: the file has been written to since then; -ETXTBSY: the file is open or mapped outside
 * this folder; -EMLINK: the file has another name, whose readers would not see the chunks; -EFBIG:
 * the file has become longer than it was made; -EBUSY a verb; -ENOSPC, -ENOMEM the table; -EIO.
 * With errors nothing has changed.
 */
int gcr_folder_pack_piece(struct gcr_folder_file *file, uint64_t piece,
			  const struct gcr_pack_entry *entries, uint64_t writes);
/*
 * Write a packed piece back into the file. -ENODATA: the piece is not packed; -ENOSPC: there is no
 * room, and the piece stays packed; -EBUSY a verb; -EIO its chunks cannot be read.
 */
int gcr_folder_unpack_piece(struct gcr_folder_file *file, uint64_t piece);

#endif
