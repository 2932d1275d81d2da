/* SPDX-License-Identifier: MIT */
/*
 * Shared by the files of the store: its objects, and the functions that each file offers to the
 * others. store->lock guards everything that changes; the lock is a leaf and is not held while
 * files are made, filled or removed.
 */
#ifndef GCR_FS_STORE_STORE_PRIVATE_H
#define GCR_FS_STORE_STORE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/base/quota.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/extent.h"

#define GCR_STORE_PIECE_BYTES (32ull << 20) /* faulted in at once, in some 5 ms */
#define GCR_STORE_PACKED_UNIT 4096ull	    /* chunks and tables count in small pages */

/* Host memory that the store leaves to other processes. */
#define GCR_STORE_MEMORY_MARGIN_BYTES (256ull << 20)

#define GCR_SNAPSHOT_NAME_BYTES 80 /* "<pid>-<start_ticks>-<generation>" and NUL */
#define GCR_STORE_NAME_BYTES	96 /* the same with a prefix */
#define GCR_STORE_POOL		"pool"
#define GCR_STORE_PLACE		"incoming-"
/* The prefix of a place that is being made. */
#define GCR_STORE_NEW_PLACE	".new-" GCR_STORE_PLACE

/* The most memory that a file of @bytes can take. */
static inline uint64_t gcr_store_cost(uint64_t bytes)
{
	return (bytes + GCR_STORE_PAGE_BYTES - 1) / GCR_STORE_PAGE_BYTES * GCR_STORE_PAGE_BYTES;
}

/* Files of a snapshot on one GPU and of one kind; groups are populated side by side. */
struct gcr_store_group {
	size_t next; /* the file that is populated now */
	size_t end;
	uint64_t offset; /* the next byte to populate in it */
};

struct gcr_snapshot_file {
	uint64_t cost_bytes; /* bytes that the file counts in the store */
	bool is_known;	     /* the file holds the bytes of the last freeze */
	bool has_pages;	     /* the file came from the pool with its pages */
	bool unlinked;	     /* or moved to the pool */
};

struct gcr_snapshot {
	/* fixed for life */
	struct gcr_store *store;
	atomic_int references;
	uint32_t number;
	pid_t pid;
	uint64_t start_ticks;
	char generation[40];
	char name[GCR_SNAPSHOT_NAME_BYTES]; /* of its directory */
	int root_fd;			    /* the directory `snapshot` in it */
	int files_fd;			    /* and `vram` in that; -1: missing */
	struct gcr_extent *extents;
	size_t count;
	uint64_t bytes;
	uint64_t cost_bytes; /* of files and metadata */
	struct gcr_subtree *subtree;
	/*
	 * The digests of a kept snapshot, and of files that hold their bytes of the last freeze;
	 * NULL: none.
	 */
	struct gcr_digest_buffer *digests;

	/* guarded by the store's lock */
	struct gcr_snapshot *next; /* in store->snapshots until it is discarded */
	/*
	 * The entry that stays in the list when the snapshot is closed; allocated before, so that
	 * closing needs no memory.
	 */
	struct gcr_store_leftover *leftover;
	struct gcr_snapshot *next_kept;
	struct gcr_snapshot_file *files;
	uid_t uid;	/* the owner: its directory's owner, or root_uid where that is root */
	uid_t root_uid; /* for whom root's files count: the process's user, see gcr_store_count_by()
			 */
	bool discarded;
	bool is_tainted; /* its files do not go to the pool */
	bool is_adopted; /* the files also belong to a place, which counts them */
	bool is_touched; /* a user may have changed its tree: the subtree has the account */
	bool has_pages;	 /* all of its files have their pages */
	/* Memory that its files had when they were looked at, and when that may be done again. */
	uint64_t seen_bytes;
	int64_t look_usec;

	/* populating: guarded by the store's lock, too */
	struct gcr_snapshot *next_job;
	struct gcr_store_group *groups;
	size_t groups_count;
	size_t next_group;
	unsigned int pieces_under_way;
	bool populating;
};

/* A snapshot of an earlier daemon, or of this one, that is not open now. */
struct gcr_store_leftover {
	struct gcr_store_leftover *next;
	uint64_t cost_bytes;
	uid_t uid;    /* its directory's owner */
	bool claimed; /* has been or will be opened: not to be swept */
	char name[GCR_STORE_NAME_BYTES];
};

/* A removal for the store's thread: of a snapshot, or else of a directory by its name. */
struct gcr_store_removal {
	struct gcr_store_removal *next;
	struct gcr_snapshot *snapshot;
	struct gcr_subtree *subtree; /* open files of it keep counting; a reference, or NULL */
	uint64_t cost_bytes;
	uid_t uid;	  /* for whom the bytes count, if there is no subtree */
	int64_t due_usec; /* monotonic: when a failed removal is tried again */
	bool is_logged;	  /* the failure has been logged */
	bool is_left;	  /* of an earlier daemon: its packed chunks are claimed by nobody */
	uid_t owner;	  /* whose turn it is, with all his subordinate ids */
	uint64_t round;	  /* see gcr_store_remove_later_locked() */
	uint32_t adopter; /* number of gcr_inodes_link() for names of its files; 0: none */
	char name[GCR_STORE_NAME_BYTES];
};

struct gcr_pool_file {
	struct gcr_pool_file *next;
	uint64_t bytes;
	uint64_t cost_bytes;
	uint64_t number; /* its name, if the file has been made */
	bool made;
	bool is_known; /* holds the bytes of its extent as of the last freeze */
	bool has_pages;
};

/* The files that are ready for one process. */
struct gcr_pool {
	struct gcr_pool *next;
	pid_t pid;
	uint64_t start_ticks;
	struct gcr_pool_file *files;
	uint64_t *wanted; /* sizes, in order of importance; NULL: the pool stays as it is */
	size_t wanted_count;
};

/* The account of one tree; everything but `store` is guarded by the store's lock. */
struct gcr_room {
	struct gcr_store *store;
	struct gcr_room *next;
	uint64_t paid_bytes;	 /* promised to the snapshot that owns the tree */
	uint64_t *payer_bytes;	 /* in that snapshot, part of snapshots_bytes; NULL: none */
	uint64_t extra_bytes;	 /* promised beyond that; in store->rooms_bytes */
	uint64_t resident_bytes; /* allocated by its files */
	uint64_t promised_bytes; /* to changes under way */
	uint64_t entries;
	uid_t uid;	       /* the tree's owner */
	uint64_t entries_free; /* number of entries that cost nothing */
	bool is_closed;
};

/* The room that the verb of a process is about to need. */
struct gcr_store_claim {
	struct gcr_store_claim *next;
	pid_t pid;
	uint64_t start_ticks;
	uint64_t bytes;
	struct gcr_store_payer payer;
};

/*
 * The memory of a user's packed chunks; in memory they are part of packs_room, the account of all
 * users.
 */
struct gcr_store_packed {
	struct gcr_store_packed *next;
	uid_t uid;
	uint64_t bytes;
	uint64_t spilled_bytes; /* on the disk of -o spill; in no account of the store */
};

struct gcr_store {
	/* fixed for life */
	char *path;
	char *mountpoint; /* where a tmpfs of our own is mounted; else NULL */
	int fd;
	int pool_fd;
	int runtime_fd;		     /* the daemon's */
	struct gcr_quota *quota;     /* the daemon's; NULL: none */
	gcr_store_counting *counted; /* set once at the start; NULL: each id counts for itself */
	/* gcr_store_make_room_locked(), for rooms: keep.c and pool.c are above them */
	bool (*make_room_locked)(struct gcr_store *store, uint64_t missing, int64_t deadline_usec);
	bool survives_restart;
	bool may_swap; /* the memory of its mount may be swapped */
	uint64_t pool_limit_bytes;
	uint64_t keep_limit_bytes;
	unsigned int user_spill_percent; /* one user's share of -o spill's room; 0: no such limit */
	unsigned int threads_max;

	pthread_mutex_t lock;	/* guards the fields below */
	pthread_cond_t changed; /* there is new work, or room has become free */
	bool stopping;
	uint64_t size_bytes;
	uint64_t reserve_bytes;	  /* of size_bytes: for packing only; fixed for life */
	uint64_t packing_bytes;	  /* promised to pieces being packed; in none of the sums below */
	uint64_t snapshots_bytes; /* of snapshots and leftovers */
	uint64_t going_bytes;	  /* discarded, and not yet unlinked or still open */
	/*
	 * Monotonic: when a file was last unlinked, or an unlinked file was last seen to be freed.
	 * A worker may still have such a file open.
	 */
	int64_t unlinked_usec;
	uint64_t held_free_blocks; /* maximum of free blocks since then; 0: not read yet */
	uint64_t pool_bytes;
	uint64_t rooms_bytes; /* see struct gcr_room */
	struct gcr_room *rooms;
	struct gcr_room *packs_room;   /* for the packed chunks; fixed for life */
	struct gcr_packs_users *packs; /* fixed for life */
	struct gcr_spill *spill;       /* fixed for life; NULL while the store is being created */
	uint32_t last_number;	       /* see gcr_store_next_number_locked() */
	uint64_t last_pool_number;
	struct gcr_snapshot *snapshots;
	struct gcr_store_leftover *leftovers;
	unsigned int places_count;

	struct gcr_store_removal *removals; /* by their rounds */
	/* Of the removal that is or was carried out last. */
	uint64_t removal_round;
	uid_t removal_owner;
	int64_t removals_until_usec;		 /* monotonic: at the end of the daemon */
	struct gcr_store_removal *left_removals; /* failed ones, in no order */
	bool removing;
	bool remover_started;
	pthread_t remover;

	struct gcr_store_claim *claims;
	struct gcr_store_packed *packed; /* packed chunks by user, in packs_room */

	struct gcr_snapshot *kept; /* the oldest first */
	uint64_t kept_bytes;	   /* of these, in snapshots_bytes */

	struct gcr_snapshot *jobs; /* to be populated */
	unsigned int populators;

	struct gcr_pool *pools;
	unsigned int reserving;		/* freezes that look for room: the pool takes none */
	struct gcr_pool_file *given_up; /* to be removed; still count */
	unsigned int pool_removers;	/* threads that have taken given_up files to remove */
	bool pools_changed;		/* the wanted files have changed, or the room for them */
	int64_t retry_usec;		/* monotonic: no file is made before this; 0: no pause */
	struct gcr_pool_file *filling;	/* the pool thread fills it; NULL when taken away */
	uint64_t filling_number;	/* the file that this thread has open, taken away or not */
	bool filler_started;
	pthread_t filler;
};

/* The bytes that count in the store, promised ones included. Lock: store. */
static inline uint64_t gcr_store_used_locked(const struct gcr_store *store)
{
	return store->snapshots_bytes + store->going_bytes + store->pool_bytes + store->rooms_bytes;
}

/*
 * Is a removal under way? The remover broadcasts store->changed when it has finished. Lock: store.
 */
static inline bool gcr_store_is_removing_locked(const struct gcr_store *store)
{
	return store->removals || store->removing || store->pool_removers;
}

/*
 * make_room.c: one step towards @missing bytes of room: drop the snapshot that has been kept for
 * longest; without one, give up files of the pools. While removals are under way, the step waits
 * for them; a kept snapshot is then dropped only from half a second before @deadline_usec on.
 * Returns false if there is nothing to give up, or at the deadline. Lock: store; released during
 * the step.
 */
bool gcr_store_make_room_locked(struct gcr_store *store, uint64_t missing, int64_t deadline_usec);

/* account.c */
/*
 * May @bytes more be promised, @fresh_bytes of which have no memory yet? If not, returns -ENOSPC or
 * -ENOMEM with figures, and *ret_missing is the shortfall. Lock: store.
 */
int gcr_store_check_room_locked(struct gcr_store *store, uint64_t bytes, uint64_t fresh_bytes,
				uint64_t *ret_missing, struct gcr_error *error);
/*
 * The same for packing: @bytes in small pages, in addition to the promises to other pieces; the
 * reserve may be used. Lock: store.
 */
int gcr_store_check_packing_locked(struct gcr_store *store, uint64_t bytes, uint64_t *ret_missing);
/* Sets reserve_bytes; called once the size of the store is known. */
void gcr_store_set_reserve(struct gcr_store *store);
/* The limit of the store for everything but packing. Lock: store. */
uint64_t gcr_store_limit_locked(const struct gcr_store *store);
/*
 * A new number for a snapshot, a place that is being made, or a removal: never 0, and different
 * from all others of this daemon. Lock: store.
 */
uint32_t gcr_store_next_number_locked(struct gcr_store *store);
/* Wait for store->changed, until the deadline at most. Lock: store. */
void gcr_store_wait_until_locked(struct gcr_store *store, int64_t deadline_usec);

/* claim.c */
/*
 * Wait briefly for removals under way and, @with_held, for workers that may still have removed
 * files open. Returns false if there is nothing to wait for. Lock: store.
 */
bool gcr_store_wait_going_locked(struct gcr_store *store, bool with_held);
/*
 * May the user for whom this process's claim was made have @bytes, those claimed included? The need
 * may have grown since the claim. -EDQUOT, with a message. Lock: store.
 */
int gcr_store_check_claim_locked(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
				 uint64_t bytes, struct gcr_error *error);
void gcr_store_end_claim_locked(struct gcr_store *store, pid_t pid, uint64_t start_ticks);

/* users.c */
/*
 * May the user @uid hold @bytes more? 0 if the user has no limit; -EDQUOT with a message. Lock:
 * store.
 */
int gcr_store_check_user_locked(struct gcr_store *store, uid_t uid, uint64_t bytes,
				struct gcr_error *error);
int gcr_store_check_payer_locked(struct gcr_store *store, const struct gcr_store_payer *payer,
				 uint64_t bytes, struct gcr_error *error);
/*
 * Count @more and @less packed bytes of a user, without a check of the limit: GCR_QUOTA_STORE or
 * GCR_QUOTA_SPILL.
 */
void gcr_store_count_packed(struct gcr_store *store, uid_t uid, enum gcr_quota_kind kind,
			    uint64_t more, uint64_t less);
/* Count @bytes of the disk for @uid. -EDQUOT, -ENOMEM, with a message. */
int gcr_store_take_spilled(struct gcr_store *store, uid_t uid, uint64_t bytes,
			   struct gcr_error *error);

/*
 * mount.c: mounts or opens the store, and fills in path, mountpoint, fd, survives_restart,
 * size_bytes. Errors, with a message.
 */
int gcr_store_attach(struct gcr_daemon *daemon, struct gcr_store *store, struct gcr_error *error);
/*
 * For a store with a mount: mount another tmpfs of at most @bytes without a name, which disappears
 * with the last descriptor in it. *ret_fd is its root, the caller's. -errno.
 */
int gcr_store_mount_apart(struct gcr_store *store, uint64_t bytes, int *ret_fd);
/*
 * Remove the store's mount or directory, which has to be empty except for removed files that are
 * open.
 */
void gcr_store_detach(struct gcr_store *store);

/* tree.c */
/* Returns a descriptor for reading, whatever the directory's mode; the caller's. -errno. */
int gcr_store_open_directory(int parent_fd, const char *name);
/* Memory that the files below a directory have allocated, and the number of names. -errno. */
int gcr_store_sum_tree(int directory_fd, struct gcr_tree_sum *ret_sum);

/* packs.c */
/* Claim the packed chunks of all leftovers; chunks without a claim are removed. -ENOMEM, ... */
int gcr_store_start_packs(struct gcr_store *store);
/* The packed chunks stay stored. */
void gcr_store_stop_packs(struct gcr_store *store);
/*
 * Returns a descriptor, the caller's, of the directory of tables in the snapshot's directory @name.
 * *ret_uid is the user whose chunks the tables name. -ENOENT: there is none.
 */
int gcr_store_find_tables(struct gcr_store *store, const char *name, uid_t *ret_uid);
/*
 * Drop the references to chunks of a snapshot that is not open and is about to be removed. -EMFILE,
 * -ENFILE, -ENOMEM: some references may be left, and the caller retries.
 */
int gcr_store_drop_tables(struct gcr_store *store, const char *name);
/*
 * Attaches the tables, if there are any, to a snapshot that is being opened. Errors, with a
 * message.
 */
int gcr_snapshot_attach_tables(struct gcr_snapshot *snapshot, struct gcr_error *error);

/*
 * spill.c: to be started before the packs and stopped after them. Errors of gcr_spill_open(), with
 * a message.
 */
int gcr_store_start_spill(struct gcr_store *store, const struct gcr_options *options,
			  struct gcr_error *error);
void gcr_store_stop_spill(struct gcr_store *store);

/* room.c */
/* The bytes that are promised to a room, with those of its snapshot. Lock: store. */
static inline uint64_t gcr_room_paid_locked(const struct gcr_room *room)
{
	return room->paid_bytes + room->extra_bytes;
}
/*
 * Destroy the room. The bytes beyond those paid for are no longer counted, but returned. Lock:
 * store.
 */
uint64_t gcr_room_destroy_locked(struct gcr_room *room);

/* removals.c */
/* Note that a file has been unlinked that may still be open. Lock: store. */
void gcr_store_note_unlinked_locked(struct gcr_store *store);
/*
 * Set the name under which a tree waits for the thread; no daemon takes such a name for a snapshot
 * or a place.
 */
void gcr_store_name_removal_locked(struct gcr_store *store, struct gcr_store_removal *removal);
/* Is this such a name, of any daemon? *ret_number: the number in it. */
bool gcr_store_removal_number(const char *name, uint32_t *ret_number);
/*
 * Queue a removal for the thread, which takes @removal. Each user has one removal, or a step of it,
 * in a round, so that his many files do not keep the memory of others. Lock: store.
 */
void gcr_store_remove_later_locked(struct gcr_store *store, struct gcr_store_removal *removal);

/* remove.c */
int gcr_store_start_remover(struct gcr_store *store);
/*
 * Stops the thread, which first carries out the removals that are queued. Removals that take long
 * are left to the next daemon, or go with the mount of the store.
 */
void gcr_store_stop_remover(struct gcr_store *store);

/* populate.c */
/* Fault in a piece of a file. -errno. */
int gcr_store_populate_piece(int fd, uint64_t offset, uint64_t bytes);

/* table.c */
int gcr_store_write_table(int directory_fd, const struct gcr_snapshot *snapshot);
uint64_t gcr_store_table_bytes(size_t count);
/*
 * Reads the table into extents and count of @snapshot, whose identity must match the table.
 * -EPROTO, ..., with a message: the table is missing, damaged or another snapshot's.
 */
int gcr_store_read_table(int directory_fd, struct gcr_snapshot *snapshot, struct gcr_error *error);

/* pool.c */
#define GCR_POOL_NAME_BYTES 24
void gcr_store_pool_file_name(const struct gcr_pool_file *file, char ret_name[GCR_POOL_NAME_BYTES]);
/* The files of a pool, the largest first; NULL if there are none. The caller frees the array. */
struct gcr_pool_file **gcr_store_sort_pool(const struct gcr_pool *pool, size_t *ret_count);
/* Queue the file for removal by the pool's thread. Lock: store. */
void gcr_store_give_up_locked(struct gcr_store *store, struct gcr_pool_file *file);
void gcr_store_drop_pool_locked(struct gcr_store *store, struct gcr_pool **link);
/*
 * For each extent of a snapshot that is being made, take a file from the pool of its process: of
 * the same size, else a larger one, to be cut; else NULL. The files leave the pool, but keep
 * counting in pool_bytes. Lock: store.
 */
void gcr_store_take_from_pool_locked(struct gcr_snapshot *snapshot, struct gcr_pool_file **files);
/* Give these files back to the pool. Lock: store. */
void gcr_store_return_to_pool_locked(struct gcr_snapshot *snapshot, struct gcr_pool_file **files);
/*
 * Take files out of the pools for gcr_store_remove_pool_files(): all given_up ones, and others
 * until their sum is at least @bytes. NULL: there are none. Lock: store.
 */
struct gcr_pool_file *gcr_store_shrink_pool_locked(struct gcr_store *store, uint64_t bytes);
/* Unlink and free these files (NULL is allowed) and release their bytes. No lock. */
void gcr_store_remove_pool_files(struct gcr_store *store, struct gcr_pool_file *files);
void gcr_store_unlink_pool_file(struct gcr_store *store, const struct gcr_pool_file *file);
/*
 * Move the file @index of a snapshot, which is @file's from now on, to the pool and find out
 * whether it has all its pages. -errno
 */
int gcr_store_move_to_pool(struct gcr_snapshot *snapshot, size_t index, struct gcr_pool_file *file);
int gcr_store_stat_pool_file(struct gcr_store *store, const struct gcr_pool_file *file,
			     struct stat *ret_stat);
/* Move files of a discarded snapshot to the pool of its process. No lock. */
void gcr_store_return_to_pool(struct gcr_snapshot *snapshot);

/* keep.c */
void gcr_store_drop_all_kept(struct gcr_store *store);
/* Take the kept snapshot of a process: the reference is the caller's. NULL: there is none. */
struct gcr_snapshot *gcr_store_take_kept(struct gcr_store *store, pid_t pid, uint64_t start_ticks);
/*
 * Reuse files of the kept snapshot @old for @snapshot, which is being made, like files of a pool:
 * returned in @files, with their digests in snapshot->digests. No lock.
 */
void gcr_store_reuse_kept(struct gcr_snapshot *snapshot, struct gcr_snapshot *old,
			  struct gcr_pool_file **files);

/* fill.c */
int gcr_store_start_filler(struct gcr_store *store);
/* Removes all pools. */
void gcr_store_stop_filler(struct gcr_store *store);

/* snapshot_files.c */
/* Memory that the files have allocated. *ret_complete: they have all their pages. Lock: store. */
uint64_t gcr_snapshot_resident_bytes(const struct gcr_snapshot *snapshot, bool *ret_complete);
/* The most that the table and the metadata of these extents take. */
uint64_t gcr_snapshot_metadata_bytes(const struct gcr_extent *extents, size_t count);
/* The most that the text of a manifest of @count allocations takes, without a tree and images. */
uint64_t gcr_snapshot_manifest_bytes(size_t count);
/* snapshot_subtree.c */
int gcr_snapshot_attach_subtree(struct gcr_snapshot *snapshot);
/* May a user have the file open or mapped? Then its bytes must not change. */
bool gcr_snapshot_is_file_read(const struct gcr_snapshot *snapshot, size_t index);

/* snapshot.c */
/* Takes the snapshot out of the list of those that are populated. Lock: store. */
void gcr_snapshot_unlink_job_locked(struct gcr_snapshot *snapshot);
/* The same, and no further piece of it is begun. Lock: store. */
void gcr_store_stop_populating_locked(struct gcr_snapshot *snapshot);
/*
 * A new snapshot without extents and files, with one reference, not listed. -EINVAL: no such pid or
 * generation; -ENOMEM.
 */
int gcr_snapshot_new(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
		     const char *generation, struct gcr_snapshot **ret_snapshot,
		     struct gcr_error *error);
/* Frees a snapshot that is not listed; its files stay. */
void gcr_snapshot_free(struct gcr_snapshot *snapshot);
GCR_DEFINE_CLEANUP(struct gcr_snapshot *, gcr_snapshot_free);
/* Computes the bytes that the snapshot of these extents takes at most. -ENOMEM. */
int gcr_snapshot_set_cost(struct gcr_snapshot *snapshot);
/* Adds the snapshot to the store's list, with a number, and removes it. Lock: store. */
void gcr_snapshot_list_locked(struct gcr_snapshot *snapshot);
void gcr_snapshot_unlist_locked(struct gcr_snapshot *snapshot);
void gcr_snapshot_name(pid_t pid, uint64_t start_ticks, const char *generation,
		       char ret_name[GCR_SNAPSHOT_NAME_BYTES]);
/* Takes a reference, unless the last one is just being dropped. Lock: store. */
bool gcr_snapshot_try_ref(struct gcr_snapshot *snapshot);

GCR_DEFINE_CLEANUP(struct gcr_snapshot *, gcr_snapshot_unref);

#endif
