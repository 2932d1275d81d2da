/* SPDX-License-Identifier: MIT */
/*
 * The store: memory-backed files that hold the VRAM contents of frozen processes. The store is a
 * tmpfs of its own (huge=always, noswap where the kernel knows them) on `store` in the runtime
 * directory, mounted where it outlives the daemon; a daemon without the privilege to mount uses a
 * directory of the shared memory file system.
 *
 * A snapshot is the directory of one process in the store, identified by pid, start time and
 * generation. A place is the directory of a dumped process, or a directory that a user has made in
 * the mount's root. A subtree is the tree of files in a snapshot or place, as users of the mount
 * see it. A room is the account of the memory of such a tree.
 */
#ifndef GCR_FS_STORE_STORE_H
#define GCR_FS_STORE_STORE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include "fs/daemon.h"
#include "fs/store/place_name.h"
#include "lib/error.h"
#include "lib/protocol.h"

#define GCR_STORE_PAGE_BYTES (2ull << 20) /* a huge page: the unit in which files count */

struct gcr_store;    /* thread-safe */
struct gcr_snapshot; /* reference-counted, thread-safe */
struct gcr_room;     /* thread-safe */
struct gcr_subtree;
struct gcr_subtree_file;
struct gcr_packs;
struct gcr_packs_figures;
struct gcr_quota;
struct gcr_quota_held;

int gcr_store_create(struct gcr_daemon *daemon, struct gcr_store **ret_store,
		     struct gcr_error *error);
/*
 * gcr_store_count_by() is called once, at the start. The callback returns the id for whose quota
 * the data of process @pid counts if the files of the process are root's. Those of a process that
 * is not dumpable are, and different users can be root (of a container).
 */
typedef uid_t gcr_store_counting(pid_t pid);
void gcr_store_count_by(struct gcr_store *store, gcr_store_counting *counted);
/*
 * Free the store. The files stay where they are if there is a snapshot, a place or a leftover, so
 * that the next daemon finds them.
 */
void gcr_store_destroy(struct gcr_store *store);

/*
 * st_dev of the tmpfs that the store has mounted for itself; 0: the store has no mount of its own.
 */
dev_t gcr_store_mount_device(const struct gcr_store *store);

struct gcr_store_figures {
	uint64_t size_bytes;	/* the limit */
	uint64_t reserve_bytes; /* of size_bytes: for packing only */
	uint64_t used_bytes;	/* snapshots, pool and promised bytes */
	uint64_t free_bytes;	/* the rest; a snapshot may also take the pool's bytes */
	uint64_t pool_bytes;	/* of used_bytes: pool files */
	uint64_t kept_bytes;	/* of used_bytes: of running processes, dropped first */
	uint64_t pending_bytes; /* of used_bytes: not allocated yet (part of MemAvailable) */
	bool survives_restart;
};
/*
 * pending_bytes: the files of each freeze under way are looked at, with the store's lock held; not
 * by each call if they are many.
 */
void gcr_store_figures(struct gcr_store *store, struct gcr_store_figures *ret_figures);
/* The same with 0 pending_bytes: no file is looked at. */
void gcr_store_counted_figures(struct gcr_store *store, struct gcr_store_figures *ret_figures);

/*
 * Create a snapshot with room for @extents (gpu_index filled in; the array is copied): a directory
 * with one file of the right size for each extent. A file is sparse, or comes from the process's
 * pool with its pages allocated; a file from the pool contains old VRAM contents of this process,
 * so every byte of it has to be written. The kept snapshot of the process is used up: see
 * gcr_snapshot_is_known(). Either all the room is available and promised, or nothing is changed.
 * Errors, with figures: -ENOSPC, -ENOMEM (host memory), -EDQUOT (if the room was claimed for a
 * user).
 */
int gcr_snapshot_create(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
			const char *generation, const struct gcr_extent *extents, size_t count,
			struct gcr_snapshot **ret_snapshot, struct gcr_error *error);

/*
 * Open a snapshot that an earlier daemon has left. -ENOENT, or -EPROTO if its directory is not the
 * daemon's or has no valid table. The files are not compared with the table: their owner may have
 * changed them, so the code that uses them has to check them.
 */
int gcr_snapshot_open(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		      const char *generation, struct gcr_snapshot **ret_snapshot,
		      struct gcr_error *error);

/*
 * Create a snapshot of the files of a place. Its files are hard links to those in the directory
 * @vram_fd; their bytes count for the place and not for the snapshot, and no process writes to
 * them. The caller still has to write the metadata. Errors, with a message: -EIO a file is missing
 * or has another size, ...
 */
int gcr_snapshot_adopt(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		       const char *generation, const struct gcr_extent *extents, size_t count,
		       int vram_fd, struct gcr_snapshot **ret_snapshot, struct gcr_error *error);

/* The sums of the tree below a directory. */
struct gcr_tree_sum {
	uint64_t bytes;		   /* memory that the files have allocated */
	uint64_t entries;	   /* files and directories */
	struct timespec last_made; /* creation time of the newest of them; 0: unknown */
};

#define GCR_ROOM_ENTRIES_MAX (1 << 20)

/*
 * Create the account of a tree that users write to. @paid_bytes are promised already, and @sum is
 * allocated already. Names beyond @own_entries and a fixed allowance count as a page each, because
 * the kernel may need a page for each. -ENOMEM.
 */
int gcr_room_create(struct gcr_store *store, uint64_t paid_bytes, const struct gcr_tree_sum *sum,
		    uint64_t own_entries, struct gcr_room **ret_room);
void gcr_room_destroy(struct gcr_room *room); /* NULL is allowed */
/* Set the owner of the tree: the tree's bytes count for this user. */
void gcr_room_set_owner(struct gcr_room *room, uid_t uid);
/*
 * Promise @bytes to a change by user @uid (0: the daemon); gcr_room_recount() follows. Kept
 * snapshots and pool files are given up if need be, and removals under way are waited for, up to a
 * second. -ENOSPC, -ESTALE (the room is closed), -EDQUOT (the owner has too much).
 */
int gcr_room_take(struct gcr_room *room, uid_t uid, uint64_t bytes);
/*
 * The same for bytes that gcr_snapshot_begin_piece() has promised: they are only counted, and the
 * call does not wait. -ENOSPC: the store would exceed its size, whatever was promised. -ESTALE: the
 * room is closed.
 */
int gcr_room_take_promised(struct gcr_room *room, uint64_t bytes);
/*
 * Count one name more, made by user @uid, or one less. -ENOSPC: there are too many names, or the
 * store is full without the pool and the kept snapshots; -EDQUOT.
 */
int gcr_room_add_entry(struct gcr_room *room, uid_t uid);
void gcr_room_remove_entry(struct gcr_room *room);
/* Close the room: gcr_room_take() returns -ESTALE from now on, also to threads that wait in it. */
void gcr_room_close(struct gcr_room *room);
/*
 * End a promise of @taken_bytes by gcr_room_take(): the change is done, and its files, which had
 * @before_bytes allocated, now have @after_bytes.
 */
void gcr_room_recount(struct gcr_room *room, uint64_t taken_bytes, uint64_t before_bytes,
		      uint64_t after_bytes);
/*
 * Give back up to @bytes of the promised bytes that the tree does not use, including those that a
 * snapshot has paid for.
 */
void gcr_room_shrink(struct gcr_room *room, uint64_t bytes);
/* Memory that the files of the tree have allocated. */
uint64_t gcr_room_resident_bytes(const struct gcr_room *room);
/* No file is open for writing: give back the bytes that were promised in advance. */
void gcr_room_trim(struct gcr_room *room);
/*
 * The @bytes of a removed file that is still open count in going_bytes from gcr_store_hold() to
 * gcr_store_let_go().
 */
void gcr_store_hold(struct gcr_store *store, uint64_t bytes);
void gcr_store_let_go(struct gcr_store *store, uint64_t bytes);

/* ---- claim.c: room that is made before a snapshot is created (see fs/verb/reclaim.h) ---- */

/* Bytes that a snapshot of these extents counts in the store. */
uint64_t gcr_snapshot_cost(const struct gcr_extent *extents, size_t count);
/* The user whose quota limits a claim, and then the snapshot. */
struct gcr_store_payer {
	uid_t uid; /* 0: no quota applies */
	/* The process that the same verb thaws: the bytes that it holds come back. 0: none */
	pid_t thawed_pid;
	uint64_t thawed_start_ticks;
};

/*
 * Claim @bytes for the next freeze of this process. There must be room for them besides the claims
 * of other processes and their kept snapshots. A claim ends with gcr_snapshot_create() for the
 * process or with gcr_store_end_claim(); a new claim of a process replaces its previous one. Errors
 * are those of gcr_snapshot_create(), with the missing bytes in *ret_missing; with -EDQUOT that is
 * 0.
 */
int gcr_store_claim(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		    const struct gcr_store_payer *payer, uint64_t bytes, uint64_t *ret_missing,
		    struct gcr_error *error);
/* Reduce a claim by @bytes that have been allocated by now, so that they do not count twice. */
void gcr_store_use_claim(struct gcr_store *store, pid_t pid, uint64_t start_ticks, uint64_t bytes);
void gcr_store_end_claim(struct gcr_store *store, pid_t pid, uint64_t start_ticks); /* if any */
/*
 * Wait briefly for removals under way or, @with_held, also for workers that may still have removed
 * files open. Returns false if there is nothing to wait for.
 */
bool gcr_store_wait_going(struct gcr_store *store, bool with_held);

/* ---- users.c: bytes that each user holds (see fs/base/quota.h) ---- */

/* May user @uid hold @bytes more? -EDQUOT, with a message. */
int gcr_store_check_user(struct gcr_store *store, uid_t uid, uint64_t bytes,
			 struct gcr_error *error);
/*
 * Lists each id, other than root, that holds something in the store. The caller frees the array.
 * -ENOMEM.
 */
int gcr_store_users(struct gcr_store *store, struct gcr_quota_held **ret_held, size_t *ret_count);
/* NULL: there are no quotas. */
struct gcr_quota *gcr_store_quota(const struct gcr_store *store);

/* ---- packs.c: packed chunks (see fs/pack/packs.h) ---- */

/* Returns a reference to the packed chunks of a user. Errors of gcr_packs_open(). */
int gcr_store_packs(struct gcr_store *store, uid_t uid, struct gcr_packs **ret_packs,
		    struct gcr_error *error);
void gcr_store_packs_figures(struct gcr_store *store, struct gcr_packs_figures *ret_figures);

/*
 * Allow packing of the snapshot's files (see fs/store/subtree.h). The snapshot counts as touched
 * from now on, so it is not kept, and its files do not go to the pool. One thread at a time.
 * Errors, with a message: -ENOSPC, -ENOMEM, ...
 */
int gcr_snapshot_begin_packing(struct gcr_snapshot *snapshot, struct gcr_error *error);
/*
 * The id for which the snapshot's packed chunks count; if nothing is packed, the owner of the
 * snapshot.
 */
uid_t gcr_snapshot_packed_uid(const struct gcr_snapshot *snapshot);
/*
 * Asks whether work is still wanted; called without the store's lock, from any thread. NULL: always
 * wanted.
 */
struct gcr_wanted {
	bool (*is_wanted)(void *data);
	void *data;
};
/*
 * zeros.c: write zeros over the data that a file has from @offset to @end. Its holes stay, so no
 * memory is allocated. @wanted is asked every 64 KiB; NULL: always wanted. -EBUSY: no longer
 * wanted; errors of pwrite(2) and lseek(2). After an error some of the data is zeros.
 */
int gcr_store_write_zeros(int fd, uint64_t offset, uint64_t end, const struct gcr_wanted *wanted);
/*
 * reserve.c: reserve room before one of the snapshot's pieces is packed: @bytes, the most that
 * packing may take (see gcr_subtree_piece_cost()), from the reserve if need be. Called with no lock
 * held. Waits for the pieces of other threads, and drops kept snapshots if need be. -ENOSPC,
 * -ENOMEM: there is no room; -ECANCELED: the work is no longer @wanted.
 */
int gcr_snapshot_begin_piece(struct gcr_snapshot *snapshot, uint64_t bytes,
			     const struct gcr_wanted *wanted);
/*
 * The most that packing a piece may take, if its file needs a table of @table_bytes (0: the file
 * has one).
 */
uint64_t gcr_store_piece_cost(uint64_t table_bytes);
/* Give back the reservation, whether the piece was packed or not. */
void gcr_snapshot_end_piece(struct gcr_snapshot *snapshot, uint64_t bytes);
/* Open the file @index, by its name. Errors of gcr_subtree_open_to_pack(). */
int gcr_snapshot_open_to_pack(struct gcr_snapshot *snapshot, size_t index,
			      struct gcr_subtree_file **ret_file);

/* ---- spill.c: packed bytes on a disk (see fs/pack/spill.h) ---- */

/* Is there a directory for packed bytes on a disk (-o spill)? */
bool gcr_store_can_spill(const struct gcr_store *store);
/*
 * Move segments that contain chunks of this snapshot to the disk, those with the most bytes of the
 * snapshot first, until about @wanted_bytes of the store's memory are free. *ret_freed_bytes 0:
 * nothing more can be moved. Blocks on the disk, without a lock. Errors, with a message:
 * -EOPNOTSUPP there is no -o spill, -EIO, -ENOMEM, ...; segments that were moved before stay on the
 * disk and count in *ret_freed_bytes, also with an error. -ENOSPC (the disk or the limit is full)
 * and -EDQUOT (the user's limit) are returned only if not even a smaller segment could be moved.
 * Nothing is lost in any case.
 */
int gcr_snapshot_spill(struct gcr_snapshot *snapshot, uint64_t wanted_bytes,
		       uint64_t *ret_freed_bytes, struct gcr_error *error);
/*
 * How many packed bytes of the snapshot's own (unshared) chunks are on the disk (counted as
 * packed_to_bytes of gcr_subtree_pack_figures()). The call reads all tables of the snapshot: some
 * ms for 16 GiB. -ENOMEM
 */
int gcr_snapshot_spilled_bytes(struct gcr_snapshot *snapshot, uint64_t *ret_bytes);

/* ---- place.c: places (see fs/image/place.h) ---- */

/*
 * Begin a new place with an empty directory `snapshot` in it. Returns a descriptor of its
 * directory. The caller fills the place, then publishes or aborts it. *ret_number is for
 * gcr_snapshot_link(). -EEXIST: another place is being made under this name.
 */
int gcr_store_begin_place(struct gcr_store *store, const char *name, uint32_t *ret_number);
int gcr_store_publish_place(struct gcr_store *store, const char *name, uid_t uid, gid_t gid);
/*
 * The files that were linked into place @number count for its subtree from now on. Called after the
 * place has been published and opened.
 */
void gcr_store_count_place(struct gcr_store *store, uint32_t number);
/*
 * Remove a place that is not published. The store's thread removes the files that cannot be removed
 * at once; the name is free again at once.
 */
void gcr_store_abort_place(struct gcr_store *store, const char *name, uint32_t number);

/* Make an empty place with this owner. -EEXIST, -ENOSPC, ... */
int gcr_store_make_place(struct gcr_store *store, const char *name, uid_t uid, gid_t gid);
/* Calls @visit with the name of each place until it returns non-zero, and returns that. */
int gcr_store_each_place(struct gcr_store *store, int (*visit)(const char *name, void *data),
			 void *data);
/*
 * At the start: removes the places that an earlier daemon has begun and not published. @visit is
 * called with a descriptor of the directory of each before the removal.
 */
int gcr_store_end_begun_places(struct gcr_store *store,
			       void (*visit)(const char *name, int fd, void *data), void *data);
/* Sum up the files of a place; @fd: its directory. That takes a while if they are many. */
int gcr_store_sum_place(int fd, struct gcr_tree_sum *ret_sum);
/*
 * Open a place: *ret_subtree is its tree, *ret_stat the attributes of its own directory, *ret_fd a
 * descriptor of that directory (the caller's). Once for each place. @sum: of its files; NULL: they
 * are summed up here.
 */
int gcr_store_open_place(struct gcr_store *store, const char *name, const struct gcr_tree_sum *sum,
			 struct stat *ret_stat, int *ret_fd, struct gcr_subtree **ret_subtree);
/* The daemon ends: the subtree is retired, and the place's files stay. */
void gcr_store_close_place(struct gcr_subtree *subtree);
/*
 * Remove a place, on the store's thread. @subtree is NULL if the place was not opened; @number is
 * that of gcr_store_begin_place() if gcr_store_count_place() was not called, else 0. -ENOMEM.
 */
int gcr_store_drop_place(struct gcr_store *store, const char *name, uint32_t number,
			 struct gcr_subtree *subtree);
/* Remove @name and, if it is a directory, the tree below it. Returns 0 if @name does not exist. */
int gcr_store_remove_directory(int parent_fd, const char *name);
/*
 * The same for a tree of the store whose files may be open, or mapped through other names.
 * @adopter, if not 0, is the number under which gcr_inodes_link() made names of its files.
 */
int gcr_store_remove_tree(struct gcr_store *store, int parent_fd, const char *name,
			  uint32_t adopter);
/*
 * The same for an unfinished tree in the store, none of whose bytes count. A tree that cannot be
 * removed at once is renamed, and the store's thread removes it.
 */
void gcr_store_remove_tree_or_later(struct gcr_store *store, const char *name, uint32_t adopter);
/*
 * Remove the tree @name until @until_usec (monotonic); at least one name of it is removed. @visit,
 * if not NULL, removes the regular files. Returns 0 if nothing is left of the tree; -EAGAIN: the
 * time is over; -EMFILE, -ENOMEM, ..., and errors of @visit. A @name that is missing is no error.
 */
typedef int gcr_store_visit(void *data, int directory_fd, const char *name,
			    const struct stat *stat);
int gcr_store_remove_some(int parent_fd, const char *name, int64_t until_usec,
			  gcr_store_visit *visit, void *data);

/* The error means a temporary lack of descriptors or memory: a retry may succeed. */
static inline bool gcr_store_may_try_again(int result)
{
	return result == -EMFILE || result == -ENFILE || result == -ENOMEM;
}

/* Maximum nesting of directories that users of the mount make. */
#define GCR_STORE_DEPTH_MAX 32

/* Remove the snapshots of earlier daemons for which no record exists. Once, at the start. */
void gcr_store_sweep(struct gcr_store *store);
/* The process has ended: remove its snapshots that are not open. */
void gcr_store_drop_left(struct gcr_store *store, pid_t pid, uint64_t start_ticks);

/*
 * Start threads that fault the pages in ahead of the writer; returns at once. The threads end by
 * themselves. A page that cannot be allocated is left for the writer to fail on.
 */
void gcr_snapshot_populate(struct gcr_snapshot *snapshot);
/* Stop faulting in pages: returns when the pieces under way are finished. */
void gcr_snapshot_stop_populating(struct gcr_snapshot *snapshot);

/* All files are written: give back the promise for the bytes that have become holes. */
void gcr_snapshot_finish(struct gcr_snapshot *snapshot);

/* The directory `snapshot`, the part that users see. The descriptor stays the snapshot's. */
int gcr_snapshot_root(const struct gcr_snapshot *snapshot);
/* The directory `vram` in it, which holds the files. The descriptor stays the snapshot's. */
int gcr_snapshot_directory(const struct gcr_snapshot *snapshot);

/*
 * Link the file @index into @to_fd, a directory in a place that was begun with @number. -errno:
 * there is no link.
 */
int gcr_snapshot_link(const struct gcr_snapshot *snapshot, size_t index, int to_fd,
		      uint32_t number);

size_t gcr_snapshot_count(const struct gcr_snapshot *snapshot);
const struct gcr_extent *gcr_snapshot_extent(const struct gcr_snapshot *snapshot, size_t index);
/* st_size, st_blocks and times of one file. Returns 0 or -errno. */
int gcr_snapshot_stat(const struct gcr_snapshot *snapshot, size_t index, struct stat *ret_stat);
/*
 * Returns a descriptor for reading, or also for writing (managed files). The caller closes the
 * descriptor.
 */
int gcr_snapshot_open_file(const struct gcr_snapshot *snapshot, size_t index, bool writable);
uint64_t gcr_snapshot_bytes(const struct gcr_snapshot *snapshot);

/* ---- snapshot_metadata.c: `digests` and `manifest` ---- */

/* Does the file hold the bytes that its memory had at the last freeze? */
bool gcr_snapshot_is_known(const struct gcr_snapshot *snapshot, size_t index);
/*
 * Returns the digests of the files that hold their bytes of the last freeze, each digest at its
 * file's position; other positions are undefined. The buffer is the caller's. NULL: there are no
 * such files.
 */
struct gcr_digest_buffer;
struct gcr_digest_buffer *gcr_snapshot_take_known(struct gcr_snapshot *snapshot);

/*
 * The digests of all files are in one array, in the order of the extents: the index of the first
 * digest of a file.
 */
uint64_t gcr_snapshot_first_chunk(const struct gcr_snapshot *snapshot, size_t index);

/* Computes the digests of a file's current bytes on the host. -EIO, -ENOMEM, with a message. */
struct gcr_digest;
int gcr_snapshot_digest_file(const struct gcr_snapshot *snapshot, size_t index,
			     struct gcr_digest *ret_digests, struct gcr_error *error);

/*
 * Write the metadata: @digests of everything, and @manifest. This function fills in the manifest's
 * generation, pid, start time, digest of the digests and, for the duration of the call,
 * allocations. Errors, with a message: -ENOSPC ...
 */
struct gcr_manifest;
int gcr_snapshot_seal(struct gcr_snapshot *snapshot, struct gcr_manifest *manifest,
		      const struct gcr_digest *digests, struct gcr_error *error);
/*
 * Remove the manifest, also during a verb: the files are not what the program had. Only a thaw that
 * verifies nothing uses them then. -errno.
 */
int gcr_snapshot_unseal(struct gcr_snapshot *snapshot);

/*
 * Read the manifest, which users may have replaced: nothing in it is compared with the snapshot. A
 * file that is larger than a manifest of this snapshot can be is not read. Errors, with a message:
 * those of gcr_manifest_read().
 */
int gcr_snapshot_read_manifest(const struct gcr_snapshot *snapshot,
			       struct gcr_manifest **ret_manifest, struct gcr_error *error);

/*
 * Read the digests; the caller frees them. Checks both metadata files: -EIO: they do not belong to
 * this snapshot; -ENOMEM; with a message.
 */
int gcr_snapshot_read_digests(const struct gcr_snapshot *snapshot, struct gcr_digest **ret_digests,
			      struct gcr_error *error);

/* Set the time at which the content of a file last changed. */
struct timespec;
int gcr_snapshot_set_time(const struct gcr_snapshot *snapshot, size_t index,
			  const struct timespec *time);

/* The tree as users of the mount see and change it. The subtree stays the snapshot's. */
struct gcr_subtree *gcr_snapshot_subtree(const struct gcr_snapshot *snapshot);
/*
 * Block changes of the files by users for the duration of a verb. -EIO, with a message: the
 * directory `vram` is missing; gcr_snapshot_end_verb() is still required then.
 */
int gcr_snapshot_begin_verb(struct gcr_snapshot *snapshot, struct gcr_error *error);
void gcr_snapshot_end_verb(struct gcr_snapshot *snapshot);

/* The memory that the files from @first on have now. */
uint64_t gcr_snapshot_files_bytes(const struct gcr_snapshot *snapshot, size_t first);
/*
 * A verb writes once more to the files of a complete snapshot, those from @first on. Users may have
 * made holes in them since, and use the room for other files, so from now on the files count with
 * the memory that they have, *ret_bytes together. -ENOMEM, -EMFILE, ...
 */
int gcr_snapshot_begin_growth(struct gcr_snapshot *snapshot, size_t first, uint64_t *ret_bytes);
/* Take room for @bytes more of these files: -ENOSPC, -EDQUOT, -ESTALE. From any thread. */
int gcr_snapshot_take_growth(struct gcr_snapshot *snapshot, uint64_t bytes);
/* The files, which had @before_bytes, are written; @taken_bytes were taken for them. */
void gcr_snapshot_finish_growth(struct gcr_snapshot *snapshot, size_t first, uint64_t taken_bytes,
				uint64_t before_bytes);

/*
 * Discard a snapshot that is no longer needed. Its files go back to the process's pool as far as -o
 * pool= allows; a thread of the store unlinks the others (16 GiB take a while). Open files stay
 * readable, and their bytes count until they are closed. Drops the caller's reference.
 */
void gcr_snapshot_discard(struct gcr_snapshot *snapshot);

/*
 * The process runs again: keep its snapshot (-o keep=), so that the next freeze copies only the
 * changes. @digests are the digests of the files, as in the metadata. On 0 the store takes the
 * caller's reference and *digests. -ENOSPC: the snapshot is not kept, and the caller has to discard
 * it, as users may not be able to change its files any more.
 */
int gcr_store_keep(struct gcr_snapshot *snapshot, struct gcr_digest_buffer **digests);
/* Returns a reference to the kept snapshot of a process; NULL: there is none. */
struct gcr_snapshot *gcr_store_find_kept(struct gcr_store *store, pid_t pid, uint64_t start_ticks);
/*
 * The process has ended: drop its kept snapshot. With pid 0: drop the snapshot that has been kept
 * for longest.
 */
void gcr_store_drop_kept(struct gcr_store *store, pid_t pid, uint64_t start_ticks);
/*
 * Drop the snapshot that has been kept for longest, other than this process's. Returns false if
 * there is none.
 */
bool gcr_store_drop_kept_of_others(struct gcr_store *store, pid_t pid, uint64_t start_ticks);

/*
 * A process may write to the files even after the snapshot is discarded: do not use the files
 * again.
 */
void gcr_snapshot_taint(struct gcr_snapshot *snapshot);

struct gcr_snapshot *gcr_snapshot_ref(struct gcr_snapshot *snapshot);
void gcr_snapshot_unref(struct gcr_snapshot *snapshot); /* NULL is allowed; the files stay */

/*
 * A running process has these allocations now: keep files of those sizes with allocated pages ready
 * for it, within -o pool= (0: no pool). The work is done in the background; files are never reused
 * for another user. Not to be called once a freeze of the process has begun: the files would be
 * made while it is frozen. Takes only the store's lock, a leaf, so the caller may hold the
 * process's lock.
 */
void gcr_store_pool(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		    const struct gcr_extent *extents, size_t count);
/*
 * Move the extents that are not in the kept snapshot to the front and return their number. Extents
 * in the kept snapshot (gcr_store_find_kept(), NULL is allowed) need no other files.
 */
size_t gcr_store_not_kept(const struct gcr_snapshot *kept, struct gcr_extent *extents,
			  size_t count);
/* The state of a process's pool: bytes of its files, and of those that have all their pages. */
struct gcr_pool_figures {
	uint64_t bytes;
	uint64_t ready_bytes;
};
void gcr_store_pool_figures(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
			    struct gcr_pool_figures *ret_figures);
/*
 * Returns the numbers of the files in the process's pool, once all of them have their pages. The
 * caller frees *ret_numbers. -EAGAIN: some are not ready, or there are none; -ENOMEM.
 */
int gcr_store_pool_files(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
			 uint64_t **ret_numbers, size_t *ret_count);
/*
 * Returns a descriptor of a pool file, the caller's. -ENOENT: the file is in use or removed by now.
 */
int gcr_store_open_pool_file(struct gcr_store *store, uint64_t number);
/* The process has ended: drop its pool. */
void gcr_store_pool_drop(struct gcr_store *store, pid_t pid, uint64_t start_ticks);

#endif
