/* SPDX-License-Identifier: MIT */
/*
 * The store: memory-backed files that hold what frozen processes had in VRAM. A tmpfs of its own
 * (huge=always, noswap where known) on `store` in the runtime directory, mounted where it outlives
 * the daemon; a daemon without the privilege uses a directory of the shared memory file system.
 * A snapshot is the directory of one process in it; it is known by pid, start time and generation.
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

#define GCR_STORE_PAGE_BYTES (2ull << 20) /* a huge page: what a byte of a file may cost */

struct gcr_store;    /* thread-safe */
struct gcr_snapshot; /* reference-counted, thread-safe */
struct gcr_room;     /* thread-safe */
struct gcr_folder;
struct gcr_folder_file;
struct gcr_packs;
struct gcr_packs_figures;
struct gcr_quota;
struct gcr_quota_held;

int gcr_store_create(struct gcr_daemon *daemon, struct gcr_store **ret_store,
		     struct gcr_error *error);
/*
 * For the start: whose quota limits what is stored of a process with this id, where several users
 * have the same one.
 */
typedef uid_t gcr_store_counting(pid_t pid, uid_t uid);
void gcr_store_count_by(struct gcr_store *store, gcr_store_counting *counted);
/* Leaves the files where they are if any process is frozen, so that the next daemon finds them. */
void gcr_store_destroy(struct gcr_store *store);

/* st_dev of the tmpfs that the store has mounted for itself; 0: it has none. */
dev_t gcr_store_mount_device(const struct gcr_store *store);

struct gcr_store_figures {
	uint64_t size_bytes;	/* the limit */
	uint64_t reserve_bytes; /* of these: for packing only */
	uint64_t used_bytes;	/* snapshots, pool and what is promised */
	uint64_t free_bytes;	/* the rest; a snapshot may also take the place of the pool */
	uint64_t pool_bytes;	/* of these: kept warm */
	uint64_t kept_bytes;	/* of these: of processes that run, the first to go */
	uint64_t pending_bytes; /* of these: no memory taken yet, MemAvailable still has them */
	bool survives_restart;
};
void gcr_store_figures(struct gcr_store *store, struct gcr_store_figures *ret_figures);

/*
 * Room for @extents (gpu_index filled in; copied): a directory with a sparse file of the right
 * size for each, or one of the process's pool that has its pages already, and in them whatever this
 * process had in VRAM before: every byte has to be written. What is kept of the process is used
 * up: see gcr_snapshot_is_known(). Either all the room
 * is there and promised, or nothing is changed: -ENOSPC, -ENOMEM (host memory), -EDQUOT (if it was
 * claimed for a user), with figures.
 */
int gcr_snapshot_create(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
			const char *generation, const struct gcr_extent *extents, size_t count,
			struct gcr_snapshot **ret_snapshot, struct gcr_error *error);

/*
 * What an earlier daemon has left: -ENOENT, or -EPROTO if it is not ours or has no table. Whether
 * the files are what the table says is for who uses them: they are their owner's to change.
 */
int gcr_snapshot_open(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		      const char *generation, struct gcr_snapshot **ret_snapshot,
		      struct gcr_error *error);

/*
 * One of what is in a place: its files are hard links to those in the directory @vram_fd, whose
 * bytes count there and not here, and nobody writes to them. Its metadata is still to be written.
 * Errors, with words: -EIO a file is not there, or of another size, ...
 */
int gcr_snapshot_adopt(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		       const char *generation, const struct gcr_extent *extents, size_t count,
		       int vram_fd, struct gcr_snapshot **ret_snapshot, struct gcr_error *error);

/* What there is below a directory. */
struct gcr_tree_sum {
	uint64_t bytes;		   /* memory that the files have taken */
	uint64_t entries;	   /* files and directories */
	struct timespec last_made; /* when the last one of them was made; 0: nobody knows */
};

#define GCR_ROOM_ENTRIES_MAX (1 << 20)

/*
 * The account of a tree that users write to. @paid_bytes of it are promised already, @sum is taken.
 * Names beyond @own_entries and some more count as a page each, which the kernel may need for them.
 * -ENOMEM.
 */
int gcr_room_create(struct gcr_store *store, uint64_t paid_bytes, const struct gcr_tree_sum *sum,
		    uint64_t own_entries, struct gcr_room **ret_room);
void gcr_room_destroy(struct gcr_room *room); /* NULL is allowed */
/* Whose the tree is: what it takes counts for this user. */
void gcr_room_set_owner(struct gcr_room *room, uid_t uid);
/*
 * Promise @bytes to user @uid (0: us), to be settled: -ENOSPC, -ESTALE (it is closed), -EDQUOT (the
 * owner has too much). The pool gives way, and what is being removed is waited for, but not for
 * long.
 */
int gcr_room_take(struct gcr_room *room, uid_t uid, uint64_t bytes);
/*
 * The same for what gcr_snapshot_begin_piece() has promised: it is only counted, and nothing waited
 * for. -ENOSPC: whatever was promised, the store would become larger than it may be.
 */
int gcr_room_take_promised(struct gcr_room *room, uint64_t bytes);
/*
 * A name more, by user @uid, or one less. -ENOSPC: there are too many, or what does not give way is
 * full; -EDQUOT.
 */
int gcr_room_add_entry(struct gcr_room *room, uid_t uid);
void gcr_room_remove_entry(struct gcr_room *room);
/* Nobody waits for more of it from now on. */
void gcr_room_close(struct gcr_room *room);
/* Of what was taken nothing more will be used; files had @before_bytes and have @after_bytes. */
void gcr_room_settle(struct gcr_room *room, uint64_t taken_bytes, uint64_t before_bytes,
		     uint64_t after_bytes);
/* It will not need so much of what was promised, also by others. */
void gcr_room_shrink(struct gcr_room *room, uint64_t bytes);
/* What its files take. */
uint64_t gcr_room_resident_bytes(const struct gcr_room *room);
/* Nobody writes just now: what was taken in advance goes back. */
void gcr_room_trim(struct gcr_room *room);
/*
 * Bytes of a removed file that somebody still has count as going from gcr_store_hold() to
 * gcr_store_let_go().
 */
void gcr_store_hold(struct gcr_store *store, uint64_t bytes);
void gcr_store_let_go(struct gcr_store *store, uint64_t bytes);

/* ---- store_claim.c: room that is made before a snapshot is (see fs/verb/reclaim.h) ---- */

/* What the snapshot of these will take. */
uint64_t gcr_snapshot_cost(const struct gcr_extent *extents, size_t count);
/* Whose quota limits a claim, and then the snapshot. */
struct gcr_store_payer {
	uid_t uid; /* 0: nobody's */
	/* Of the process that is thawed by the same verb: what it holds comes back. 0: none */
	pid_t thawed_pid;
	uint64_t thawed_start_ticks;
};

/*
 * Is there room for @bytes more for this process, without what others have claimed, and what is
 * kept of others? Then they are claimed: until gcr_snapshot_create() for it, or
 * gcr_store_end_claim(). One for each process, the last one. Errors of gcr_snapshot_create(), and
 * *ret_missing is how much; -EDQUOT, and nothing is missing.
 */
int gcr_store_claim(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		    const struct gcr_store_payer *payer, uint64_t bytes, uint64_t *ret_missing,
		    struct gcr_error *error);
/* So much of it has been taken by now: it counts no longer twice. */
void gcr_store_use_claim(struct gcr_store *store, pid_t pid, uint64_t start_ticks, uint64_t bytes);
void gcr_store_end_claim(struct gcr_store *store, pid_t pid, uint64_t start_ticks); /* if any */
/*
 * Wait a moment for what is being removed, or also for those who may have what was removed just
 * now. False: there is nothing to wait for.
 */
bool gcr_store_wait_going(struct gcr_store *store, bool with_held);

/* ---- store_users.c: what each user holds (see fs/base/quota.h) ---- */

/* May user @uid hold @bytes more? -EDQUOT, with words. */
int gcr_store_check_user(struct gcr_store *store, uid_t uid, uint64_t bytes,
			 struct gcr_error *error);
/* An entry for each id that holds something, root's not; the array is the caller's. -ENOMEM. */
int gcr_store_users(struct gcr_store *store, struct gcr_quota_held **ret_held, size_t *ret_count);
/* NULL: there are none. */
struct gcr_quota *gcr_store_quota(const struct gcr_store *store);

/* ---- store_packs.c: what is packed (see fs/pack/packs.h) ---- */

/* The chunks of a user; a reference of the caller's. Errors of gcr_packs_open(). */
int gcr_store_packs(struct gcr_store *store, uid_t uid, struct gcr_packs **ret_packs,
		    struct gcr_error *error);
void gcr_store_packs_figures(struct gcr_store *store, struct gcr_packs_figures *ret_figures);

/*
 * The files of a snapshot may be packed from now on (see fs/store/folder.h): it is touched, so it
 * is not kept, nor do its files go to the pool. One at a time. Errors, with words: -ENOSPC,
 * -ENOMEM, ...
 */
int gcr_snapshot_begin_packing(struct gcr_snapshot *snapshot, struct gcr_error *error);
/* Whose its packed chunks are: the id that they count for. With none, that of its owner. */
uid_t gcr_snapshot_packed_uid(const struct gcr_snapshot *snapshot);
/* Is the work still wanted? Asked with no lock held, from any thread. NULL: always. */
struct gcr_wanted {
	bool (*is_wanted)(void *data);
	void *data;
};
/*
 * reserve.c: before one of its pieces is packed, and no lock is held: room for what that may take
 * at most, @bytes (see gcr_folder_piece_cost()), out of the reserve if need be. Others who pack are
 * waited for, and what is kept gives way. -ENOSPC, -ENOMEM: there is none; -ECANCELED: it is no
 * longer @wanted.
 */
int gcr_snapshot_begin_piece(struct gcr_snapshot *snapshot, uint64_t bytes,
			     const struct gcr_wanted *wanted);
/* What that may be for one whose file needs a table of so much (0: it has one). */
uint64_t gcr_store_piece_cost(uint64_t table_bytes);
/* It is packed, or not. */
void gcr_snapshot_end_piece(struct gcr_snapshot *snapshot, uint64_t bytes);
/* The file @index of it, by its name. Errors of gcr_folder_open_to_pack(). */
int gcr_snapshot_open_to_pack(struct gcr_snapshot *snapshot, size_t index,
			      struct gcr_folder_file **ret_file);

/* ---- store_spill.c: packed bytes on a disk (see fs/pack/spill.h) ---- */

/* Is there a directory for them? */
bool gcr_store_can_spill(const struct gcr_store *store);
/*
 * Move segments that have chunks of this snapshot to the disk, those with the most of it first,
 * until about @wanted_bytes of the store's memory are free. *ret_freed_bytes 0: nothing (more) of
 * it can go. Blocks on the disk, without a lock. Errors, with words: -EOPNOTSUPP there is no
 * -o spill, -EIO, -ENOMEM, ...; what was moved before stays there, and counts in *ret_freed_bytes
 * with errors, too. -ENOSPC the disk or the limit is full, -EDQUOT the user's is: only if not even
 * a smaller segment could go. Nothing is lost in any case.
 */
int gcr_snapshot_spill(struct gcr_snapshot *snapshot, uint64_t wanted_bytes,
		       uint64_t *ret_freed_bytes, struct gcr_error *error);
/*
 * How much of what its own chunks take packed stands on the disk (as packed_to_bytes of
 * gcr_folder_pack_figures()). All of its tables are read for it: some ms for 16 GiB. -ENOMEM
 */
int gcr_snapshot_spilled_bytes(struct gcr_snapshot *snapshot, uint64_t *ret_bytes);

/* ---- store_place.c: trees that users bring (see fs/image/place.h) ---- */

/*
 * One that is not there yet, as a descriptor of its directory, with an empty `snapshot` in it: it
 * is published when all is in it, or given up. *ret_number is for gcr_snapshot_link(). -EEXIST:
 * another one is being made under this name.
 */
int gcr_store_begin_place(struct gcr_store *store, const char *name, uint32_t *ret_number);
int gcr_store_publish_place(struct gcr_store *store, const char *name, uid_t uid, gid_t gid);
/* It has been published and opened, so its folder counts the files that were linked into it. */
void gcr_store_count_place(struct gcr_store *store, uint32_t number);
/* What cannot be removed at once is by the store's thread: another one can be begun. */
void gcr_store_abort_place(struct gcr_store *store, const char *name, uint32_t number);

/* An empty one, with this owner. -EEXIST, -ENOSPC, ... */
int gcr_store_make_place(struct gcr_store *store, const char *name, uid_t uid, gid_t gid);
/* Calls @visit with the name of each until it returns non-zero, and returns that. */
int gcr_store_each_place(struct gcr_store *store, int (*visit)(const char *name, void *data),
			 void *data);
/*
 * At the start: those that an earlier daemon has begun and not published. @visit is called with a
 * descriptor of the directory of each, which is removed then.
 */
int gcr_store_end_begun_places(struct gcr_store *store,
			       void (*visit)(const char *name, int fd, void *data), void *data);
/*
 * Its tree, what its own directory says, and a descriptor of that, the caller's: once for each.
 */
int gcr_store_open_place(struct gcr_store *store, const char *name, struct stat *ret_stat,
			 int *ret_fd, struct gcr_folder **ret_folder);
/* The daemon ends: nothing can be done with it any more, and it stays. */
void gcr_store_close_place(struct gcr_folder *folder);
/*
 * It is removed, by the store's thread. @folder is NULL if it was not opened; @number is that of
 * gcr_store_begin_place() if gcr_store_count_place() was not called, else 0. -ENOMEM.
 */
int gcr_store_drop_place(struct gcr_store *store, const char *name, uint32_t number,
			 struct gcr_folder *folder);
/* Remove @name and, if it is a directory, what is in it. 0 if there is none. */
int gcr_store_remove_directory(int parent_fd, const char *name);
/*
 * The same of a tree of the store whose files may be open or mapped by other names. @adopter, if
 * not 0, is that of gcr_inodes_link() for names of its files.
 */
int gcr_store_remove_tree(struct gcr_store *store, int parent_fd, const char *name,
			  uint32_t adopter);
/*
 * The same of a tree that was being made in the store, of which nothing counts: what cannot be
 * removed at once gets another name, and is the store's thread's.
 */
void gcr_store_remove_tree_or_later(struct gcr_store *store, const char *name, uint32_t adopter);
/*
 * For each in the tree @name that is no directory; @visit may remove it, and ends all of it by a
 * non-zero result, which is that of the call. -EMFILE, -ENOMEM, ...; that @name is gone, or no
 * directory, is no error.
 */
typedef int gcr_store_visit(void *data, int directory_fd, const char *name,
			    const struct stat *stat);
int gcr_store_each_file(int parent_fd, const char *name, gcr_store_visit *visit, void *data);

/* Descriptors or memory are missing at the moment; other threads give some back soon. */
static inline bool gcr_store_may_try_again(int result)
{
	return result == -EMFILE || result == -ENFILE || result == -ENOMEM;
}

/* Directories that users of the mount make may be nested so deep. */
#define GCR_STORE_DEPTH_MAX 32

/* Remove what earlier daemons have left and no process has a record of. Once, at the start. */
void gcr_store_sweep(struct gcr_store *store);
/* The process has ended: what nobody holds of its snapshots goes. */
void gcr_store_drop_left(struct gcr_store *store, pid_t pid, uint64_t start_ticks);

/*
 * Start threads that fault the pages in, ahead of whoever writes them; returns at once. They end
 * by themselves; a page that cannot be had is left to the writer to find out.
 */
void gcr_snapshot_populate(struct gcr_snapshot *snapshot);
/* No further pages: returns when those that are being made now are there. */
void gcr_snapshot_stop_populating(struct gcr_snapshot *snapshot);

/* All is written: what has become holes in its files is not promised to it any longer. */
void gcr_snapshot_settle(struct gcr_snapshot *snapshot);

/* The directory `snapshot`, which is what there is to see of it; stays the snapshot's. */
int gcr_snapshot_root(const struct gcr_snapshot *snapshot);
/* The directory `vram` in it, which holds the files; likewise. */
int gcr_snapshot_directory(const struct gcr_snapshot *snapshot);

/*
 * A file of it gets its name in @to_fd, too, a directory in a place that was begun with @number.
 * -errno: it has not got it.
 */
int gcr_snapshot_link(const struct gcr_snapshot *snapshot, size_t index, int to_fd,
		      uint32_t number);

size_t gcr_snapshot_count(const struct gcr_snapshot *snapshot);
const struct gcr_extent *gcr_snapshot_extent(const struct gcr_snapshot *snapshot, size_t index);
/* st_size, st_blocks, times of one file: 0 or -errno. */
int gcr_snapshot_stat(const struct gcr_snapshot *snapshot, size_t index, struct stat *ret_stat);
/* A descriptor for reading (or also writing: the managed files'); the caller's. */
int gcr_snapshot_open_file(const struct gcr_snapshot *snapshot, size_t index, bool writable);
uint64_t gcr_snapshot_bytes(const struct gcr_snapshot *snapshot);

/* ---- snapshot_metadata.c: `digests` and `manifest` ---- */

/* Did the file come with the bytes that its memory had at the last freeze? */
bool gcr_snapshot_is_known(const struct gcr_snapshot *snapshot, size_t index);
/*
 * Those of the files that came with their bytes, in their places, and of no meaning elsewhere; the
 * caller's. NULL: none did.
 */
struct gcr_digest_buffer;
struct gcr_digest_buffer *gcr_snapshot_take_known(struct gcr_snapshot *snapshot);

/* The digests of all files are in one array, in the order of the extents: where a file's begin. */
uint64_t gcr_snapshot_first_chunk(const struct gcr_snapshot *snapshot, size_t index);

/* Digests of the bytes that a file has now, made here. -EIO, -ENOMEM, with words. */
struct gcr_digest;
int gcr_snapshot_digest_file(const struct gcr_snapshot *snapshot, size_t index,
			     struct gcr_digest *ret_digests, struct gcr_error *error);

/*
 * Write the metadata: @digests of everything, and @manifest, of which generation, pid, start time,
 * allocations (for as long as it takes) and the digest of the digests are filled in here. Errors,
 * with words: -ENOSPC ...
 */
struct gcr_manifest;
int gcr_snapshot_seal(struct gcr_snapshot *snapshot, struct gcr_manifest *manifest,
		      const struct gcr_digest *digests, struct gcr_error *error);

/*
 * The digests, for the caller to free. Both files of metadata are checked: -EIO: they are not this
 * snapshot's; -ENOMEM; with words.
 */
int gcr_snapshot_read_digests(const struct gcr_snapshot *snapshot, struct gcr_digest **ret_digests,
			      struct gcr_error *error);

/* When the content of a file last changed. */
struct timespec;
int gcr_snapshot_set_time(const struct gcr_snapshot *snapshot, size_t index,
			  const struct timespec *time);

/* The tree as users of the mount see and change it; stays the snapshot's. */
struct gcr_folder *gcr_snapshot_folder(const struct gcr_snapshot *snapshot);
/*
 * For a verb's whole time nobody changes it. -EIO, with words: there is no directory `vram` any
 * more; gcr_snapshot_end_verb() follows then, too.
 */
int gcr_snapshot_begin_verb(struct gcr_snapshot *snapshot, struct gcr_error *error);
void gcr_snapshot_end_verb(struct gcr_snapshot *snapshot);

/*
 * The snapshot is no longer needed: its files go back to the process's pool as far as -o pool=
 * allows, the others are unlinked by a thread of the store (16 GiB take a while). Open files stay
 * readable; their bytes count until they are closed. Drops the caller's reference.
 */
void gcr_snapshot_discard(struct gcr_snapshot *snapshot);

/*
 * Its process runs again: keep it (-o keep=) for the next freeze, which then copies only what has
 * changed. Its files have the digests *@digests, as its metadata says. 0: the caller's reference is
 * taken, and those are; -ENOSPC.
 */
int gcr_store_keep(struct gcr_snapshot *snapshot, struct gcr_digest_buffer **digests);
/* What is kept of a process, a reference of the caller's; NULL: nothing. */
struct gcr_snapshot *gcr_store_find_kept(struct gcr_store *store, pid_t pid, uint64_t start_ticks);
/* It has ended; of pid 0: what has been kept for longest, of anybody. */
void gcr_store_drop_kept(struct gcr_store *store, pid_t pid, uint64_t start_ticks);
/* What has been kept for longest, but not of this one. False: there is none. */
bool gcr_store_drop_kept_of_others(struct gcr_store *store, pid_t pid, uint64_t start_ticks);

/* Somebody may write to its files even when it is discarded: they are not used again. */
void gcr_snapshot_taint(struct gcr_snapshot *snapshot);

struct gcr_snapshot *gcr_snapshot_ref(struct gcr_snapshot *snapshot);
void gcr_snapshot_unref(struct gcr_snapshot *snapshot); /* NULL is allowed; the files stay */

/*
 * A running process has these allocations now: have files of those sizes ready for it, pages
 * faulted in, within -o pool= (0: nothing is kept). In the background; never another user's pages.
 * Not when a freeze of it has begun: the files would be made while it is frozen. A leaf of locks,
 * so the process can be held.
 */
void gcr_store_pool(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		    const struct gcr_extent *extents, size_t count);
/*
 * Those of which nothing is kept, moved to the front: how many. What is kept of a process
 * (gcr_store_find_kept(), NULL is allowed) needs no other files.
 */
size_t gcr_store_not_kept(const struct gcr_snapshot *kept, struct gcr_extent *extents,
			  size_t count);
/* How far that is: bytes of its files, and of those that have all their pages. */
struct gcr_pool_figures {
	uint64_t bytes;
	uint64_t ready_bytes;
};
void gcr_store_pool_figures(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
			    struct gcr_pool_figures *ret_figures);
/*
 * The numbers of its files, when all are ready; *ret_numbers is the caller's (free). -EAGAIN: some
 * are not yet, or there are none; -ENOMEM.
 */
int gcr_store_pool_files(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
			 uint64_t **ret_numbers, size_t *ret_count);
/* A descriptor of one of them, the caller's. -ENOENT: it is in use, or gone, by now. */
int gcr_store_open_pool_file(struct gcr_store *store, uint64_t number);
/* It has ended. */
void gcr_store_pool_drop(struct gcr_store *store, pid_t pid, uint64_t start_ticks);

#endif
