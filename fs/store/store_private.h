/* SPDX-License-Identifier: MIT */
/*
 * What the files of the store share: its objects and who does what to them. store->lock guards
 * everything that changes; it is a leaf and is not held while files are made, filled or removed.
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
#define GCR_STORE_PACKED_UNIT 4096ull	    /* what chunks and tables take: small pages */

/* Of the host's memory the store leaves so much to others. */
#define GCR_STORE_MEMORY_MARGIN_BYTES (256ull << 20)

#define GCR_SNAPSHOT_NAME_BYTES 80 /* "<pid>-<start_ticks>-<generation>" and NUL */
#define GCR_STORE_NAME_BYTES	96 /* the same with a prefix */
#define GCR_STORE_POOL		"pool"
#define GCR_STORE_PLACE		"incoming-"
/* While it is being made. */
#define GCR_STORE_NEW_PLACE	".new-" GCR_STORE_PLACE

/* Memory that a file of @bytes may take. */
static inline uint64_t gcr_store_cost(uint64_t bytes)
{
	return (bytes + GCR_STORE_PAGE_BYTES - 1) / GCR_STORE_PAGE_BYTES * GCR_STORE_PAGE_BYTES;
}

/* Files of a snapshot that are of one GPU and one kind; populated side by side with the others. */
struct gcr_store_group {
	size_t next; /* the file that is populated now */
	size_t end;
	uint64_t offset; /* and from where */
};

struct gcr_snapshot_file {
	uint64_t cost_bytes; /* what it counts in the store */
	bool is_known;	     /* it came with its bytes */
	bool has_pages;	     /* it came from the pool with them */
	bool unlinked;	     /* or gone to the pool */
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
	int files_fd;			    /* and `vram` in that; -1: there is none */
	struct gcr_extent *extents;
	size_t count;
	uint64_t bytes;
	uint64_t cost_bytes; /* of files and table */
	struct gcr_folder *folder;
	/* Of one that is kept, and of files that came with their bytes; NULL: none. */
	struct gcr_digest_buffer *digests;

	/* the store's, guarded by its lock */
	struct gcr_snapshot *next; /* in store->snapshots until it is discarded */
	struct gcr_snapshot *next_kept;
	struct gcr_snapshot_file *files;
	uid_t uid;	/* whose it is: its directory's owner, or root_uid where that is root */
	uid_t root_uid; /* for whom root's files count: GCR_QUOTA_OTHER_ROOT in a container */
	bool discarded;
	bool is_tainted; /* its files do not go to the pool */
	bool is_adopted; /* they are a place's, too, which counts them */
	bool is_touched; /* somebody may have changed its tree: the folder has the account */
	bool has_pages;	 /* all of its files */

	/* populating: likewise */
	struct gcr_snapshot *next_job;
	struct gcr_store_group *groups;
	size_t groups_count;
	size_t next_group;
	unsigned int pieces_under_way;
	bool populating;
};

/* A snapshot of an earlier daemon, or of this one, that nobody holds now. */
struct gcr_store_leftover {
	struct gcr_store_leftover *next;
	uint64_t cost_bytes;
	uid_t uid;    /* its directory's owner */
	bool claimed; /* somebody has held it, or will: not to be swept */
	char name[GCR_STORE_NAME_BYTES];
};

/* To be removed by the store's thread: a snapshot, or else a directory by its name. */
struct gcr_store_removal {
	struct gcr_store_removal *next;
	struct gcr_snapshot *snapshot;
	struct gcr_folder *folder; /* what of its files is open counts on; a reference, or NULL */
	uint64_t cost_bytes;
	uid_t uid;	  /* for whom they count; with a folder, that says it */
	int64_t due_usec; /* monotonic: of one that has failed, when it is tried again */
	bool is_logged;	  /* that it has failed */
	uint32_t adopter; /* of gcr_inodes_link(), for names of its files; 0: there are none */
	char name[GCR_STORE_NAME_BYTES];
};

struct gcr_pool_file {
	struct gcr_pool_file *next;
	uint64_t bytes;
	uint64_t cost_bytes;
	uint64_t number; /* its name, if it has been made */
	bool made;
	bool is_known; /* it has the bytes of its extent, as they were at the last freeze */
	bool has_pages;
};

/* The files that are ready for one process. */
struct gcr_pool {
	struct gcr_pool *next;
	pid_t pid;
	uint64_t start_ticks;
	struct gcr_pool_file *files;
	uint64_t *wanted; /* sizes, those that matter most first; NULL: it stays as it is */
	size_t wanted_count;
};

/* The account of one tree; all but `store` guarded by its lock. */
struct gcr_room {
	struct gcr_store *store;
	struct gcr_room *next;
	uint64_t paid_bytes; /* promised by others to whom the tree belongs */
	uint64_t
		*payer_bytes; /* of which they count it, in store->snapshots_bytes; NULL: none do */
	uint64_t extra_bytes; /* promised beyond that; in store->rooms_bytes */
	uint64_t resident_bytes; /* what its files have taken */
	uint64_t promised_bytes; /* to changes that are under way */
	uint64_t entries;
	uid_t uid;	       /* the tree's owner */
	uint64_t entries_free; /* so many of them cost nothing */
	bool is_closed;
};

/* What the verb of a process is about to need. */
struct gcr_store_claim {
	struct gcr_store_claim *next;
	pid_t pid;
	uint64_t start_ticks;
	uint64_t bytes;
	struct gcr_store_payer payer;
};

/* What the packed chunks of a user take; in memory it is in the account of all. */
struct gcr_store_packed {
	struct gcr_store_packed *next;
	uid_t uid;
	uint64_t bytes;
	uint64_t spilled_bytes; /* that are on the disk of -o spill, and in no account of the store
				 */
};

struct gcr_store {
	/* fixed for life */
	char *path;
	char *mountpoint; /* a tmpfs of our own is mounted there; else NULL */
	int fd;
	int pool_fd;
	int runtime_fd;		     /* the daemon's */
	struct gcr_quota *quota;     /* likewise; NULL: none */
	gcr_store_counting *counted; /* likewise; NULL: each id counts for itself */
	bool survives_restart;
	bool may_swap; /* memory of its mount */
	uint64_t pool_limit_bytes;
	uint64_t keep_limit_bytes;
	unsigned int user_spill_percent; /* of -o spill's room, what a user may have; 0: not so */
	unsigned int threads_max;

	pthread_mutex_t lock;	/* guards what follows */
	pthread_cond_t changed; /* there is something to do, or to be had */
	bool stopping;
	uint64_t size_bytes;
	uint64_t reserve_bytes;	  /* of these: only packing gets them; fixed for life */
	uint64_t packing_bytes;	  /* promised to pieces that are being packed, in no sum of these */
	uint64_t snapshots_bytes; /* of snapshots and leftovers */
	uint64_t going_bytes;	  /* discarded, and not yet unlinked or still open */
	/*
	 * Monotonic: when a file last was, or somebody was last seen to let go of one. A worker may
	 * have it yet.
	 */
	int64_t unlinked_usec;
	uint64_t held_free_blocks; /* the most that were free since; 0: not looked yet */
	uint64_t pool_bytes;
	uint64_t rooms_bytes; /* see struct gcr_room */
	struct gcr_room *rooms;
	struct gcr_room *packs_room;   /* of the packed chunks; fixed for life */
	struct gcr_packs_users *packs; /* likewise */
	struct gcr_spill *spill;       /* likewise; NULL as the store is made */
	uint32_t last_number;	       /* see gcr_store_next_number_locked() */
	uint64_t last_pool_number;
	struct gcr_snapshot *snapshots;
	struct gcr_store_leftover *leftovers;
	unsigned int places_count;

	struct gcr_store_removal *removals;
	struct gcr_store_removal **removals_end;
	struct gcr_store_removal *left_removals; /* that have failed, in no order */
	bool removing;
	bool remover_started;
	pthread_t remover;

	struct gcr_store_claim *claims;
	struct gcr_store_packed *packed; /* in packs_room */

	struct gcr_snapshot *kept; /* the oldest first */
	uint64_t kept_bytes;	   /* of these, in snapshots_bytes */

	struct gcr_snapshot *jobs; /* to be populated */
	unsigned int populators;

	struct gcr_pool *pools;
	unsigned int reserving;		/* freezes that look for room: nobody takes it meanwhile */
	struct gcr_pool_file *given_up; /* to be removed; still count */
	unsigned int pool_removers;	/* threads that have taken some, and not removed them yet */
	bool pools_changed;		/* what is wanted, or the room for it */
	int64_t retry_usec;		/* monotonic: no file is made before this; 0: they are */
	struct gcr_pool_file *filling;	/* the thread of the pool is at it; NULL when taken away */
	uint64_t filling_number;	/* of the file that it still has open, taken away or not */
	bool filler_started;
	pthread_t filler;
};

/* Lock: store. */
static inline uint64_t gcr_store_used_locked(const struct gcr_store *store)
{
	return store->snapshots_bytes + store->going_bytes + store->pool_bytes + store->rooms_bytes;
}

/* Is something being removed? Whoever has done so says it. Lock: store. */
static inline bool gcr_store_is_removing_locked(const struct gcr_store *store)
{
	return store->removals || store->removing || store->pool_removers;
}

/*
 * store_room.c: make @missing bytes of room, a step of it: give up what has been kept for longest,
 * then what is in pools; what goes already is waited for before anything that is kept has to go,
 * until @deadline_usec. False: there is nothing more to give up. Lock: store; let go meanwhile.
 */
bool gcr_store_make_room_locked(struct gcr_store *store, uint64_t missing, int64_t deadline_usec);

/*
 * store.c: may @bytes more be promised, @fresh_bytes of which have no memory yet? If not, -ENOSPC
 * or -ENOMEM with figures, and so much is missing. Lock: store.
 */
int gcr_store_check_room_locked(struct gcr_store *store, uint64_t bytes, uint64_t fresh_bytes,
				uint64_t *ret_missing, struct gcr_error *error);
/*
 * The same for packing: @bytes in small pages, the reserve included, besides what is promised to
 * other pieces. Lock: store.
 */
int gcr_store_check_packing_locked(struct gcr_store *store, uint64_t bytes, uint64_t *ret_missing);

/*
 * store.c: the number of a snapshot, a place that is being made, or a removal: never 0, and no
 * other's since the daemon began. Lock: store.
 */
uint32_t gcr_store_next_number_locked(struct gcr_store *store);

/* store_reserve.c */
/* Once the size is known. */
void gcr_store_set_reserve(struct gcr_store *store);
/* What all but packing may use of the store. Lock: store. */
uint64_t gcr_store_limit_locked(const struct gcr_store *store);

/* store_claim.c */
/*
 * Wait a moment for what is being removed and, @with_held, for those who may have what was removed
 * a moment ago. False: there is nothing to wait for. Lock: store.
 */
bool gcr_store_wait_going_locked(struct gcr_store *store, bool with_held);
/* A file has been unlinked that somebody may still have open. Lock: store. */
void gcr_store_note_unlinked_locked(struct gcr_store *store);
/*
 * Of one that was claimed for a user: may he have @bytes, what was claimed included? It may have
 * grown since. -EDQUOT, with words. Lock: store.
 */
int gcr_store_check_claim_locked(struct gcr_store *store, pid_t pid, uint64_t start_ticks,
				 uint64_t bytes, struct gcr_error *error);
void gcr_store_end_claim_locked(struct gcr_store *store, pid_t pid, uint64_t start_ticks);

/* store_users.c */
/*
 * May the user @uid hold @bytes more? 0 for who is not limited; -EDQUOT with words. Lock: store.
 */
int gcr_store_check_user_locked(struct gcr_store *store, uid_t uid, uint64_t bytes,
				struct gcr_error *error);
int gcr_store_check_payer_locked(struct gcr_store *store, const struct gcr_store_payer *payer,
				 uint64_t bytes, struct gcr_error *error);
/* What a user's packed chunks take, whatever the limit says: GCR_QUOTA_STORE or GCR_QUOTA_SPILL. */
void gcr_store_count_packed(struct gcr_store *store, uid_t uid, enum gcr_quota_kind kind,
			    uint64_t more, uint64_t less);
/* So many bytes of the disk for @uid. -EDQUOT, -ENOMEM, with words. */
int gcr_store_take_spilled(struct gcr_store *store, uid_t uid, uint64_t bytes,
			   struct gcr_error *error);

/* store_mount.c: fills path, mountpoint, fd, survives_restart, size_bytes. */
int gcr_store_attach(struct gcr_daemon *daemon, struct gcr_store *store, struct gcr_error *error);
/*
 * Of a store with a mount: the root of another tmpfs, of at most @bytes, which has no name, and
 * goes when the last descriptor in it does. The descriptor is the caller's. -errno.
 */
int gcr_store_mount_apart(struct gcr_store *store, uint64_t bytes, int *ret_fd);
/* Takes the mount or the directory away, which has to be empty but for files that are open. */
void gcr_store_detach(struct gcr_store *store);

/* store_tree.c */
/* A descriptor for reading, whatever the directory's mode says; the caller's. -errno. */
int gcr_store_open_directory(int parent_fd, const char *name);
/* Memory that the files below a directory have taken, and how many names there are. -errno. */
int gcr_store_sum_tree(int directory_fd, struct gcr_tree_sum *ret_sum);

/* store_packs.c */
/* All that is packed in leftovers is claimed; what nobody claims goes. -ENOMEM, ... */
int gcr_store_start_packs(struct gcr_store *store);
/* What is packed stays so. */
void gcr_store_stop_packs(struct gcr_store *store);
/*
 * The directory of tables in the snapshot's directory @name, and whose chunks they name; the
 * caller's. -ENOENT: there is none.
 */
int gcr_store_find_tables(struct gcr_store *store, const char *name, uid_t *ret_uid);
/*
 * Nobody has opened this snapshot, which is about to be removed: its references to chunks go.
 * -EMFILE, -ENFILE, -ENOMEM: some may be left, and this is to be called again.
 */
int gcr_store_drop_tables(struct gcr_store *store, const char *name);
/* To a snapshot that is just being opened. */
int gcr_snapshot_attach_tables(struct gcr_snapshot *snapshot, struct gcr_error *error);

/* store_spill.c: before the packs, and after them. Errors of gcr_spill_open(), with words. */
int gcr_store_start_spill(struct gcr_store *store, const struct gcr_options *options,
			  struct gcr_error *error);
void gcr_store_stop_spill(struct gcr_store *store);

/* store_room.c */
/* Until somebody says that something has changed, or the time has come. Lock: store. */
void gcr_store_wait_until_locked(struct gcr_store *store, int64_t deadline_usec);
/* What it has beyond what was paid for is no longer counted, but returned. Lock: store. */
uint64_t gcr_room_destroy_locked(struct gcr_room *room);
/* Promised, and not taken from the machine's memory yet. Lock: store. */
uint64_t gcr_room_pending_locked(const struct gcr_room *room);

/* store_remove.c */
/* Under which name what is removed waits for the thread: no daemon takes it for anything. */
void gcr_store_name_removal_locked(struct gcr_store *store, struct gcr_store_removal *removal);
/* Have the thread do it. Takes @removal. Lock: store. */
void gcr_store_remove_later_locked(struct gcr_store *store, struct gcr_store_removal *removal);
int gcr_store_start_remover(struct gcr_store *store);
/* All that was given to it is removed first. */
void gcr_store_stop_remover(struct gcr_store *store);

/* store_populate.c */
/* Fault in a piece of a file. -errno. */
int gcr_store_populate_piece(int fd, uint64_t offset, uint64_t bytes);
void gcr_store_stop_populating_locked(struct gcr_snapshot *snapshot);

/* store_table.c */
int gcr_store_write_table(int directory_fd, const struct gcr_snapshot *snapshot);
uint64_t gcr_store_table_bytes(size_t count);
/* Fills extents and count of @snapshot, whose identity must be what the table says. */
int gcr_store_read_table(int directory_fd, struct gcr_snapshot *snapshot, struct gcr_error *error);

/* store_pool.c */
#define GCR_POOL_NAME_BYTES 24
void gcr_store_pool_file_name(const struct gcr_pool_file *file, char ret_name[GCR_POOL_NAME_BYTES]);
/* The files of a pool, the largest first; NULL if there are none. The array is the caller's. */
struct gcr_pool_file **gcr_store_sort_pool(const struct gcr_pool *pool, size_t *ret_count);
/* To be removed by the thread. Lock: store. */
void gcr_store_give_up_locked(struct gcr_store *store, struct gcr_pool_file *file);
void gcr_store_drop_pool_locked(struct gcr_store *store, struct gcr_pool **link);
/*
 * For each extent of a snapshot that is being made, a file of the pool of its process, or NULL: of
 * the same size, else of the nearest that is left. They leave the pool, but not its sum of bytes.
 * Lock: store.
 */
void gcr_store_take_from_pool_locked(struct gcr_snapshot *snapshot, struct gcr_pool_file **files);
/* They go back. Lock: store. */
void gcr_store_return_to_pool_locked(struct gcr_snapshot *snapshot, struct gcr_pool_file **files);
/*
 * Take what is given up, and files of at least @bytes out of the pools, or all that there are, to
 * be removed by gcr_store_remove_pool_files(). NULL: there are none. Lock: store.
 */
struct gcr_pool_file *gcr_store_shrink_pool_locked(struct gcr_store *store, uint64_t bytes);
/* Unlink and free these (NULL is allowed); then their bytes are free. No lock. */
void gcr_store_remove_pool_files(struct gcr_store *store, struct gcr_pool_file *files);
void gcr_store_unlink_pool_file(struct gcr_store *store, const struct gcr_pool_file *file);
/* Move the file @index of a snapshot, which is @file's from now on, and see to its pages. -errno */
int gcr_store_move_to_pool(struct gcr_snapshot *snapshot, size_t index, struct gcr_pool_file *file);
int gcr_store_stat_pool_file(struct gcr_store *store, const struct gcr_pool_file *file,
			     struct stat *ret_stat);
/* Move files of a discarded snapshot to the pool of its process. No lock. */
void gcr_store_return_to_pool(struct gcr_snapshot *snapshot);

/* store_keep.c */
void gcr_store_drop_all_kept(struct gcr_store *store);
/* What is kept of a process is the caller's now; NULL. */
struct gcr_snapshot *gcr_store_take_kept(struct gcr_store *store, pid_t pid, uint64_t start_ticks);
/*
 * Files of @old become those of @snapshot, which is being made, as of a pool: in @files, with
 * their digests in snapshot->digests. No lock.
 */
void gcr_store_reuse_kept(struct gcr_snapshot *snapshot, struct gcr_snapshot *old,
			  struct gcr_pool_file **files);

/* store_fill.c */
int gcr_store_start_filler(struct gcr_store *store);
/* Removes all pools. */
void gcr_store_stop_filler(struct gcr_store *store);

/* snapshot_metadata.c: what the table and the metadata of these may take. */
uint64_t gcr_snapshot_metadata_bytes(const struct gcr_extent *extents, size_t count);
/* snapshot_folder.c */
int gcr_snapshot_attach_folder(struct gcr_snapshot *snapshot);
/* Does somebody have it open, or may have it mapped? Then its bytes must not change. */
bool gcr_snapshot_is_file_read(const struct gcr_snapshot *snapshot, size_t index);

/* snapshot.c */
void gcr_snapshot_name(pid_t pid, uint64_t start_ticks, const char *generation,
		       char ret_name[GCR_SNAPSHOT_NAME_BYTES]);
/* Memory that the files have taken; is it all that they can take? Lock: store. */
uint64_t gcr_snapshot_resident_bytes(const struct gcr_snapshot *snapshot, bool *ret_complete);
/* A reference, unless the last one is just being dropped. Lock: store. */
bool gcr_snapshot_try_ref(struct gcr_snapshot *snapshot);

GCR_DEFINE_CLEANUP(struct gcr_snapshot *, gcr_snapshot_unref);

#endif
