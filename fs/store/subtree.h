/* SPDX-License-Identifier: MIT */
/*
 * A subtree: an ordinary tree of directories and files of the store, as users of the mount see and
 * change it. An item is an entry that the kernel knows: a name in a directory, which is another
 * item, with a number. Items have no descriptors; an item's path is resolved at each use, never
 * through a symbolic link and never out of the subtree. Modes and owners are those of the tree
 * itself; the kernel has checked permissions before it sends a request, and gcr_subtree_open_as()
 * checks them again.
 *
 * A verb takes precedence over writers: when it begins, files that are open for writing become
 * read-only for good, and nothing is changed until the verb has ended. Readers are not affected.
 */
#ifndef GCR_FS_STORE_SUBTREE_H
#define GCR_FS_STORE_SUBTREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

struct gcr_access;
struct gcr_subtree;	 /* reference-counted, thread-safe */
struct gcr_subtree_file; /* one open file of a subtree */
struct gcr_pack_entry;
struct gcr_pack_figures;
struct gcr_packs;
struct gcr_room;
struct gcr_store;

#define GCR_SUBTREE_ROOT	 0 /* the item of the subtree's own directory */
#define GCR_SUBTREE_NUMBER_BITS	 24
#define GCR_SUBTREE_BLOCK_BYTES	 (1 << 20) /* the maximum of one read or write request */
/* Smaller files are read faster through the daemon than passed to the kernel. */
#define GCR_SUBTREE_PASSED_BYTES (1 << 20)

struct gcr_subtree_config {
	int root_fd;		 /* the subtree's directory; stays the caller's */
	struct gcr_store *store; /* the store that counts the tree; NULL: not counted */
	uid_t owner;		 /* for whom the tree counts if its directory is root's */
	pid_t pid;		 /* of the process whose snapshot the tree is; 0: a place's */
	uint64_t start_ticks;	 /* that process's start time */
	uint32_t adopter;	 /* number of gcr_inodes_link() for names of its files; 0: none */
	/*
	 * Called before the first change, and again if it has failed, with no other lock held than
	 * the subtree's touch_lock: makes the account of the tree, which stays the subtree's until
	 * gcr_subtree_take_room(). May be NULL, like @store.
	 */
	int (*touch)(void *data, struct gcr_room **ret_room);
	void *data;
};

/* -ENOMEM, -EMFILE, -ENFILE. */
int gcr_subtree_create(const struct gcr_subtree_config *config, struct gcr_subtree **ret_subtree);
struct gcr_subtree *gcr_subtree_ref(struct gcr_subtree *subtree);
void gcr_subtree_unref(struct gcr_subtree *subtree); /* NULL is allowed */

/*
 * A number of GCR_SUBTREE_NUMBER_BITS, unique among the existing subtrees and those of which the
 * kernel knows items.
 */
uint32_t gcr_subtree_number(const struct gcr_subtree *subtree);
/*
 * The process whose snapshot the subtree is, for as long as the subtree exists, whoever has the
 * snapshot at present; 0: none, the subtree is a place's.
 */
pid_t gcr_subtree_process(const struct gcr_subtree *subtree, uint64_t *ret_start_ticks);
/* Returns a reference to the subtree of this number, or -ESTALE. */
int gcr_subtree_find(uint32_t number, struct gcr_subtree **ret_subtree);

/* ---- verbs ---- */

/*
 * Wait for the changes under way, and make every further change fail with -EBUSY. Files that are
 * open for writing fail with -EBUSY from now on, also after the verb. Verbs may overlap.
 */
void gcr_subtree_begin_verb(struct gcr_subtree *subtree);
void gcr_subtree_end_verb(struct gcr_subtree *subtree);
/* Has any user ever changed anything in the subtree? */
bool gcr_subtree_is_touched(const struct gcr_subtree *subtree);
/* Mark the subtree as changed. Errors are those of config->touch. */
int gcr_subtree_touch(struct gcr_subtree *subtree);

/*
 * For a verb that writes files of the subtree by itself. Take room for @bytes more, within the
 * limits of the subtree's owner; 0 without an account. -ENOSPC, -EDQUOT, -ESTALE.
 */
int gcr_subtree_take_growth(struct gcr_subtree *subtree, uint64_t bytes);
/*
 * The file with this inode number now has @bytes allocated. To be called for each of the files
 * before gcr_subtree_finish_growth(), which ends promises of @taken_bytes in all: the files had
 * @before_bytes together, and now have @after_bytes.
 */
void gcr_subtree_recount(struct gcr_subtree *subtree, ino_t ino, uint64_t bytes);
void gcr_subtree_finish_growth(struct gcr_subtree *subtree, uint64_t taken_bytes,
			       uint64_t before_bytes, uint64_t after_bytes);

/*
 * For a verb, too: move the regular file @name from the directory @from_fd, which no user reaches,
 * into the subtree's own directory. A file of this name is replaced, as if a user had removed it.
 * The new file counts from then on; no room is taken for it. -EISDIR, -ENOSPC, ...
 */
int gcr_subtree_put(struct gcr_subtree *subtree, int from_fd, const char *name);
/* Remove a file of the root, also during a verb. Returns 0 also if there is none. -EISDIR, ... */
int gcr_subtree_take_out(struct gcr_subtree *subtree, const char *name);

/* The user for whom the subtree's bytes count. */
uid_t gcr_subtree_owner(const struct gcr_subtree *subtree);
/* Memory that its files take according to its account; 0 without an account. */
uint64_t gcr_subtree_resident_bytes(struct gcr_subtree *subtree);

/* ---- the end ---- */

/* The tree is about to be removed: lookups, opens and changes return -ESTALE from now on. */
void gcr_subtree_retire(struct gcr_subtree *subtree);
/* Take the account of a retired subtree, which is the caller's then; NULL: there is none. */
struct gcr_room *gcr_subtree_take_room(struct gcr_subtree *subtree);
/* Is the file with this inode number open? */
bool gcr_subtree_has_open(struct gcr_subtree *subtree, ino_t ino);
/*
 * A file of the subtree has been removed. Returns true if the file is open: the subtree then passes
 * @bytes to gcr_store_let_go() when the file is closed.
 */
bool gcr_subtree_orphan(struct gcr_subtree *subtree, ino_t ino, uint64_t bytes);
/*
 * The whole tree of a retired subtree is about to be removed: drop its packed chunks while its
 * tables still exist. Chunks of open files are dropped when these are closed. -EMFILE, -ENFILE,
 * -ENOMEM: some chunks may be left, and the caller retries.
 */
int gcr_subtree_discard_packed(struct gcr_subtree *subtree);
/*
 * The whole tree has been removed: as gcr_subtree_orphan() for all open files. Returns the sum of
 * their bytes.
 */
uint64_t gcr_subtree_orphan_all(struct gcr_subtree *subtree);

/* ---- names ---- */

struct gcr_subtree_entry {
	uint32_t item;
	uint64_t
		generation; /* of the item, whose number may be reused; unique among all subtrees */
	struct stat stat;
};

/*
 * Names in the directory @parent. Lookup, mkdir and create return an item and count one lookup of
 * it by the kernel; gcr_subtree_forget() subtracts lookups that the kernel has forgotten. Errors as
 * of the system calls, -EBUSY during a verb, -ESTALE when the subtree or the directory has been
 * removed, -ENAMETOOLONG also for directories that are nested too deep.
 */
int gcr_subtree_lookup(struct gcr_subtree *subtree, uint32_t parent, const char *name,
		       struct gcr_subtree_entry *ret_entry);
void gcr_subtree_forget(struct gcr_subtree *subtree, uint32_t item, uint64_t count);
/* The same for the subtree of this number, which may be gone: its number is free after the last. */
void gcr_subtree_forget_of(uint32_t number, uint32_t item, uint64_t count);
int gcr_subtree_mkdir(struct gcr_subtree *subtree, uint32_t parent, const char *name, mode_t mode,
		      uid_t uid, gid_t gid, struct gcr_subtree_entry *ret_entry);
int gcr_subtree_remove(struct gcr_subtree *subtree, uint32_t parent, const char *name,
		       bool is_directory);
/* @flags: RENAME_NOREPLACE, RENAME_EXCHANGE. */
int gcr_subtree_rename(struct gcr_subtree *subtree, uint32_t parent, const char *name,
		       uint32_t new_parent, const char *new_name, unsigned int flags);
/* Calls @add for each name except "." and ".."; stops at a non-zero result and returns that. */
int gcr_subtree_list(struct gcr_subtree *subtree, uint32_t item,
		     int (*add)(void *data, const char *name, ino_t ino, mode_t mode), void *data);

/* ---- attributes ---- */

int gcr_subtree_stat(struct gcr_subtree *subtree, uint32_t item, struct stat *ret_stat);

struct gcr_subtree_attributes {
	bool has_mode;
	mode_t mode;
	uid_t uid; /* -1: unchanged */
	gid_t gid;
	struct timespec times[2]; /* of access and modification, as for utimensat(2) */
	bool is_by_root;	  /* the rights apply also to users who have the file open */
};
int gcr_subtree_set(struct gcr_subtree *subtree, uint32_t item,
		    const struct gcr_subtree_attributes *attributes);

/* ---- files (subtree_io.c, subtree_change.c) ---- */

/* @flags as of open(2): access mode, O_TRUNC, O_APPEND. */
int gcr_subtree_open(struct gcr_subtree *subtree, uint32_t item, int flags,
		     struct gcr_subtree_file **ret_file);
/*
 * The same for a user's process, which the kernel has permitted to open the file: checks that its
 * present owner and mode permit that still (gcr_access_check()), before O_TRUNC and for all later
 * changes. -EACCES: root has taken the file away since. No lock held.
 */
int gcr_subtree_open_as(struct gcr_subtree *subtree, uint32_t item, int flags,
			const struct gcr_access *caller, struct gcr_subtree_file **ret_file);
/* Create a file: -EEXIST. */
int gcr_subtree_create_file(struct gcr_subtree *subtree, uint32_t parent, const char *name,
			    int flags, mode_t mode, uid_t uid, gid_t gid,
			    struct gcr_subtree_entry *ret_entry,
			    struct gcr_subtree_file **ret_file);
void gcr_subtree_close(struct gcr_subtree_file *file);	      /* NULL is allowed */
int gcr_subtree_file_fd(const struct gcr_subtree_file *file); /* stays the file's */
/*
 * Sets the user who has created the file, before the file's first use (gcr_subtree_open_as() sets
 * the user who opens it). If root later changes the file's owner or mode, only root may still
 * write, and the owner if the mode allows that; writes of others fail with -EPERM.
 */
void gcr_subtree_opened_by(struct gcr_subtree_file *file, uid_t uid);
/*
 * May the kernel read the file without the daemon (passthrough), so that processes may map it? True
 * only for a file of GCR_SUBTREE_PASSED_BYTES or more, in a directory below the root (the daemon
 * rewrites the files of the root), without another name, by which it could be changed at this
 * moment, and without holes: a mapping would fill them, uncounted. After true, no holes are made in
 * the file by any operation, through this name or another. Nor are they made in a file of an
 * earlier daemon, which may have passed it.
 */
bool gcr_subtree_pass(struct gcr_subtree_file *file);

/* The result of a read: valid until gcr_subtree_read_done(), which has to follow soon. */
struct gcr_subtree_bytes {
	const void *bytes;
	size_t size;
	void *buffer; /* allocated for this read; NULL: @bytes are in the file's mapping */
};
int gcr_subtree_read(struct gcr_subtree_file *file, uint64_t offset, size_t size,
		     struct gcr_subtree_bytes *ret_bytes);
void gcr_subtree_read_done(struct gcr_subtree_file *file, struct gcr_subtree_bytes *bytes);

/*
 * Returns the number of bytes written, or -errno and the file is unchanged: -ENOSPC, -EDQUOT,
 * -EFBIG; -EBUSY: a verb is under way or has begun since the file was opened; -ESTALE: the subtree
 * has been retired; -EPERM: the file has been given to another user.
 */
ssize_t gcr_subtree_write(struct gcr_subtree_file *file, const void *bytes, size_t size,
			  uint64_t offset);
int gcr_subtree_truncate(struct gcr_subtree_file *file, uint64_t bytes);
/* The state of one fallocate(2), which may take long and so is done in steps. */
struct gcr_subtree_allocation {
	int mode;
	uint64_t offset; /* where the next step begins */
	uint64_t end;
	bool has_begun;
};
/*
 * Carry out one step: 1, more is to be done; 0, finished. Others may change the file between two
 * steps. -ENOSPC and -EDQUOT come from the first step, with nothing changed; the changes of others
 * are not undone. -EOPNOTSUPP: tmpfs has no such mode; -EFBIG, and errors of gcr_subtree_write().
 */
int gcr_subtree_allocate_some(struct gcr_subtree_file *file,
			      struct gcr_subtree_allocation *allocation);
/* Carry out all steps. */
int gcr_subtree_allocate(struct gcr_subtree_file *file, int mode, uint64_t offset, uint64_t bytes);
/* As lseek(2) with SEEK_DATA or SEEK_HOLE: the offset, or -errno. */
int64_t gcr_subtree_seek(struct gcr_subtree_file *file, int64_t offset, int whence);

/*
 * ---- packed pieces (subtree_pack.c, subtree_packed.c, subtree_unpack.c); their format in the
 * store is that of lib/pack_file.h ----
 */

/*
 * Allow packed pieces in the subtree's files, with @packs for their chunks. Files that have a table
 * in the directory @tables_fd (taken on success) have packed pieces already, and references to
 * these chunks exist. The subtree has to be touched, and either not in use yet or without tables.
 * Once. -ENOMEM, -EMFILE, ...
 */
int gcr_subtree_attach_packs(struct gcr_subtree *subtree, struct gcr_packs *packs, int tables_fd);
/* NULL: gcr_subtree_attach_packs() has not been called. */
struct gcr_packs *gcr_subtree_packs(struct gcr_subtree *subtree);
/* The directory of the tables, which stays the subtree's; -1: none. */
int gcr_subtree_tables(struct gcr_subtree *subtree);
/* The sum of the figures of all its files. */
void gcr_subtree_pack_figures(struct gcr_subtree *subtree, struct gcr_pack_figures *ret_figures);
/* Calls gcr_pack_table_each() for the tables of all its files. -ENOMEM, -EMFILE, ... */
int gcr_subtree_each_packed(struct gcr_subtree *subtree,
			    void (*visit)(const struct gcr_pack_entry *entries, void *data),
			    void *data);

/*
 * Open a file for the functions below; others may read and write it at the same time. Once a verb
 * has begun, those functions return -EBUSY for this file. @bytes: the length of the file as it was
 * made; a user may make it longer, and its table with it. Errors as of gcr_subtree_open().
 */
int gcr_subtree_open_to_pack(struct gcr_subtree *subtree, uint32_t item, uint64_t bytes,
			     struct gcr_subtree_file **ret_file);
/* Number of its pieces, those beyond the length as it was made not counted. */
uint64_t gcr_subtree_pieces(const struct gcr_subtree_file *file);
/*
 * Read a piece into @ret_bytes, which has room for GCR_PACK_PIECE_BYTES; the last piece may be
 * shorter. *ret_writes is for gcr_subtree_pack_piece(). -ENODATA: the piece is a hole, packed
 * already, or beyond the end; -EBUSY a verb, -EIO.
 */
int gcr_subtree_read_piece(struct gcr_subtree_file *file, uint64_t piece, void *ret_bytes,
			   size_t *ret_size, uint64_t *ret_writes);
/* The most that packing one piece may take of the store, for gcr_snapshot_begin_piece(). */
uint64_t gcr_subtree_piece_cost(struct gcr_subtree_file *file);
/*
 * Replace the piece by these chunks (GCR_PACK_PIECE_CHUNKS entries), whose references become the
 * file's, and free the piece's memory. @writes is the number that gcr_subtree_read_piece()
 * returned. -EAGAIN: the file has been written to since then; -ETXTBSY: the file is open or mapped
 * outside this subtree; -EMLINK: the file has another name, whose readers would not see the chunks;
 * -EFBIG: the file has become longer than it was made; -EBUSY a verb; -ENOSPC, -ENOMEM the table;
 * -EIO. With errors nothing has changed.
 */
int gcr_subtree_pack_piece(struct gcr_subtree_file *file, uint64_t piece,
			   const struct gcr_pack_entry *entries, uint64_t writes);
/*
 * Write a packed piece back into the file. -ENODATA: the piece is not packed; -ENOSPC: there is no
 * room, and the piece stays packed; -EBUSY a verb; -EIO its chunks cannot be read.
 */
int gcr_subtree_unpack_piece(struct gcr_subtree_file *file, uint64_t piece);

#endif
