/* SPDX-License-Identifier: MIT */
/*
 * Pieces are handed out one after the other, file by file; each piece is packed or unpacked without
 * a lock of this file. work->lock guards the choice of the next piece; a file is closed by the
 * thread that finishes its last piece.
 */
#include "fs/store/pack_work.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fs/pack/packs.h"
#include "fs/store/subtree.h"
#include "fs/store/store.h"
#include "lib/extent.h"
#include "lib/lock.h"

/* Attempts for a piece that is written to all the time; then the piece is left as it is. */
#define ATTEMPTS 3

/*
 * A file that was just closed may still be open for a moment: the total number of retries for open
 * files, and the pause before each.
 */
#define LOOKS	  50
#define LOOK_MSEC 20

/* A file whose pieces are being packed or unpacked. */
struct source {
	struct gcr_subtree_file *file;
	size_t index;	    /* in the snapshot */
	unsigned int users; /* threads, and the work itself while there are pieces to hand out */
	bool is_skipped;    /* the rest of the file is left as it is */
};

struct gcr_pack_work {
	/* fixed for life */
	struct gcr_snapshot *snapshot;
	bool unpack;
	bool is_alone; /* its chunks are not shared with other snapshots */

	pthread_mutex_t lock;  /* guards the fields below */
	size_t next_file;      /* to be opened */
	struct source *source; /* the file that is open; NULL: none */
	uint64_t next_piece;   /* of this file */
	uint64_t pieces;
	unsigned int skipped;
	unsigned int looks;	  /* retries left */
	unsigned int failed;	  /* files with errors */
	struct gcr_error failure; /* the error of the first of them */
};

struct gcr_pack_worker {
	struct gcr_packer *packer;
	uint8_t bytes[GCR_PACK_PIECE_BYTES];
	uint8_t packed[GCR_PACK_MAX_BYTES];
};

unsigned int gcr_pack_work_threads(void)
{
	cpu_set_t set;
	unsigned int count =
		sched_getaffinity(0, sizeof(set), &set) < 0 ? 1 : (unsigned int)CPU_COUNT(&set);

	return count < GCR_PACK_WORK_THREADS_MAX ? count : GCR_PACK_WORK_THREADS_MAX;
}

/* ---- creation and end ---- */

int gcr_pack_work_create(struct gcr_snapshot *snapshot, bool unpack, bool is_alone,
			 struct gcr_pack_work **ret_work, struct gcr_error *error)
{
	struct gcr_pack_work *work;
	int result = unpack ? 0 : gcr_snapshot_begin_packing(snapshot, error);

	if (result < 0)
		return result;
	work = calloc(1, sizeof(*work));
	if (!work)
		return gcr_error_set(error, ENOMEM, "out of memory");
	work->snapshot = gcr_snapshot_ref(snapshot);
	work->unpack = unpack;
	work->is_alone = is_alone;
	work->looks = LOOKS;
	/* Nothing is packed; searching the files would change the snapshot. */
	if (!gcr_subtree_packs(gcr_snapshot_subtree(snapshot)))
		work->next_file = gcr_snapshot_count(snapshot);
	pthread_mutex_init(&work->lock, NULL);
	*ret_work = work;
	return 0;
}

/* Ends one use of the file; the last one closes the file. Lock: work. */
static void put_source_locked(struct source *source)
{
	if (--source->users)
		return;
	gcr_subtree_close(source->file);
	free(source);
}

void gcr_pack_work_destroy(struct gcr_pack_work *work)
{
	if (!work)
		return;
	if (work->source)
		put_source_locked(work->source);
	pthread_mutex_destroy(&work->lock);
	gcr_snapshot_unref(work->snapshot);
	free(work);
}

int gcr_pack_worker_create(struct gcr_pack_worker **ret_worker)
{
	_cleanup_(gcr_pack_worker_destroy_cleanup) struct gcr_pack_worker *worker =
		calloc(1, sizeof(*worker));
	int result = worker ? gcr_packer_create(&worker->packer) : -ENOMEM;

	if (result < 0)
		return result;
	*ret_worker = TAKE_PTR(worker);
	return 0;
}

void gcr_pack_worker_destroy(struct gcr_pack_worker *worker)
{
	if (!worker)
		return;
	gcr_packer_destroy(worker->packer);
	free(worker);
}

struct gcr_snapshot *gcr_pack_work_snapshot(const struct gcr_pack_work *work)
{
	return work->snapshot;
}

unsigned int gcr_pack_work_skipped(struct gcr_pack_work *work)
{
	GCR_LOCK_SCOPE(&work->lock);
	return work->skipped;
}

/* ---- errors ---- */

static int explain(const struct gcr_pack_work *work, size_t index, int result,
		   struct gcr_error *error)
{
	const char *verb = work->unpack ? "unpack" : "pack";
	char name[GCR_EXTENT_NAME_BYTES];

	gcr_extent_name(gcr_snapshot_extent(work->snapshot, index), name);
	switch (-result) {
	case EBUSY:
	case ESTALE:
		return gcr_error_set(error, ECANCELED,
				     "%s has ended: another verb needs the files; what was done "
				     "stays",
				     verb);
	case ENOSPC:
		return gcr_error_set(error, ENOSPC,
				     "the store is full: vram/%s cannot be %sed; what was done "
				     "stays",
				     name, verb);
	default:
		return gcr_error_set(error, -result,
				     "vram/%s cannot be %sed: %s; what was done "
				     "stays",
				     name, verb, strerror(-result));
	}
}

/* Would the other files fail with the same error? */
static bool is_of_all(int result)
{
	switch (-result) {
	case EBUSY:
	case ESTALE:
	case ENOSPC:
	case ENOMEM:
	case EMFILE:
	case ENFILE:
		return true;
	default:
		return false;
	}
}

/*
 * A file has failed: returns 1 if the work continues with the others, or the error, with a message.
 * Lock: work.
 */
static int fail_locked(struct gcr_pack_work *work, size_t index, int result,
		       struct gcr_error *error)
{
	if (is_of_all(result))
		return explain(work, index, result, error);
	if (!work->failed++)
		explain(work, index, result, &work->failure);
	return 1;
}

int gcr_pack_work_result(struct gcr_pack_work *work, struct gcr_error *error)
{
	GCR_LOCK_SCOPE(&work->lock);
	if (work->failed < 2) {
		*error = work->failure;
		return -error->number;
	}
	return gcr_error_set(error, work->failure.number, "%s; so it is with %u more",
			     work->failure.words, work->failed - 1);
}

/* ---- the next piece ---- */

/* Open the next file that exists. 0: there is none. Errors, with a message. Lock: work. */
static int open_next_locked(struct gcr_pack_work *work, struct gcr_error *error)
{
	while (work->next_file < gcr_snapshot_count(work->snapshot)) {
		size_t index = work->next_file++;
		struct gcr_subtree_file *file;
		int result;

		/* The program itself reads managed memory from these files. */
		if (gcr_snapshot_extent(work->snapshot, index)->kind != GCR_MEMORY_DEVICE)
			continue;
		result = gcr_snapshot_open_to_pack(work->snapshot, index, &file);
		/* The owner has removed or renamed the file. */
		if (result == -ENOENT)
			continue;
		if (result < 0) {
			result = fail_locked(work, index, result, error);
			if (result < 0)
				return result;
			continue;
		}
		work->source = calloc(1, sizeof(*work->source));
		if (!work->source) {
			gcr_subtree_close(file);
			return explain(work, index, -ENOMEM, error);
		}
		*work->source = (struct source){.file = file, .index = index, .users = 1};
		work->next_piece = 0;
		work->pieces = gcr_subtree_pieces(file);
		return 1;
	}
	return 0;
}

/*
 * Returns 1 with a piece in *ret_source (to be put back) and *ret_piece; 0: none is left. Errors,
 * with a message.
 */
static int take_piece(struct gcr_pack_work *work, struct source **ret_source, uint64_t *ret_piece,
		      struct gcr_error *error)
{
	int result = 1;

	GCR_LOCK_SCOPE(&work->lock);
	while (!work->source || work->source->is_skipped || work->next_piece == work->pieces) {
		if (work->source)
			put_source_locked(TAKE_PTR(work->source));
		result = open_next_locked(work, error);
		if (result <= 0)
			return result;
	}
	work->source->users++;
	*ret_source = work->source;
	*ret_piece = work->next_piece++;
	return 1;
}

/* ---- packing a piece ---- */

/*
 * Makes the entry of a chunk, including a reference to the chunk, which is stored if no equal one
 * is. -ENOSPC, -ENOMEM, -EIO.
 */
static int pack_chunk(struct gcr_packs *packs, struct gcr_pack_worker *worker, bool is_alone,
		      const uint8_t *bytes, size_t size, struct gcr_pack_entry *ret_entry)
{
	struct gcr_digest digest;
	enum gcr_pack_form form;
	size_t packed_size;
	int result = -ENOENT;

	if (gcr_pack_is_zero(bytes, size)) {
		gcr_packs_zeros(size, ret_entry);
		return 0;
	}
	/* Computed from the bytes: the owner may have changed the file `digests`. */
	gcr_digest_of(bytes, size, &digest);
	if (!is_alone)
		result = gcr_packs_share(packs, worker->packer, &digest, bytes, size, ret_entry);
	if (result != -ENOENT)
		return result;
	packed_size = gcr_pack(worker->packer, bytes, size, worker->packed, &form);
	return (is_alone ? gcr_packs_add_alone : gcr_packs_add)(
		packs, &digest, size, form, worker->packed, packed_size, ret_entry);
}

static int pack_chunks(struct gcr_packs *packs, struct gcr_pack_worker *worker, bool is_alone,
		       size_t size, struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS])
{
	int result = 0;

	memset(entries, 0, GCR_PACK_PIECE_CHUNKS * sizeof(*entries));
	for (size_t i = 0; i * GCR_CHUNK_BYTES < size && !result; i++) {
		size_t left = size - i * GCR_CHUNK_BYTES;

		result = pack_chunk(packs, worker, is_alone, worker->bytes + i * GCR_CHUNK_BYTES,
				    left < GCR_CHUNK_BYTES ? left : GCR_CHUNK_BYTES, &entries[i]);
	}
	return result;
}

/*
 * Packs a piece, with one attempt; on errors the references to its chunks are dropped. Errors of
 * gcr_subtree_read_piece(), gcr_snapshot_begin_piece() and gcr_subtree_pack_piece().
 */
static int try_pack_piece(struct gcr_pack_work *work, struct gcr_pack_worker *worker,
			  struct gcr_subtree_file *file, uint64_t piece,
			  const struct gcr_wanted *wanted)
{
	struct gcr_packs *packs = gcr_subtree_packs(gcr_snapshot_subtree(work->snapshot));
	struct gcr_pack_entry entries[GCR_PACK_PIECE_CHUNKS];
	uint64_t cost_bytes;
	uint64_t writes;
	size_t size;
	int result = gcr_subtree_read_piece(file, piece, worker->bytes, &size, &writes);

	if (result < 0)
		return result;
	cost_bytes = gcr_subtree_piece_cost(file);
	result = gcr_snapshot_begin_piece(work->snapshot, cost_bytes, wanted);
	if (result < 0)
		return result;
	result = pack_chunks(packs, worker, work->is_alone, size, entries);
	if (!result)
		result = gcr_subtree_pack_piece(file, piece, entries, writes);
	if (result < 0)
		gcr_packs_drop(packs, entries, GCR_ARRAY_SIZE(entries));
	gcr_snapshot_end_piece(work->snapshot, cost_bytes);
	return result;
}

/* The file is open elsewhere: wait briefly for its close. False: no retries are left. */
static bool look_again(struct gcr_pack_work *work)
{
	bool may_look;

	pthread_mutex_lock(&work->lock);
	may_look = work->looks > 0;
	work->looks -= may_look;
	pthread_mutex_unlock(&work->lock);
	if (may_look)
		poll(NULL, 0, LOOK_MSEC);
	return may_look;
}

static int pack_piece(struct gcr_pack_work *work, struct gcr_pack_worker *worker,
		      struct gcr_subtree_file *file, uint64_t piece,
		      const struct gcr_wanted *wanted)
{
	int result = -EAGAIN;
	int attempts = 0;

	while ((result == -EAGAIN && attempts++ < ATTEMPTS) ||
	       (result == -ETXTBSY && look_again(work)))
		result = try_pack_piece(work, worker, file, piece, wanted);
	return result == -EAGAIN ? 0 : result;
}

int gcr_pack_work_step(struct gcr_pack_work *work, struct gcr_pack_worker *worker,
		       const struct gcr_wanted *wanted, struct gcr_error *error)
{
	struct source *source;
	uint64_t piece;
	int result = take_piece(work, &source, &piece, error);

	if (result <= 0)
		return result;
	result = work->unpack ? gcr_subtree_unpack_piece(source->file, piece)
			      : pack_piece(work, worker, source->file, piece, wanted);
	GCR_LOCK_SCOPE(&work->lock);
	if (!result || result == -ENODATA)
		result = 1;
	else if (source->is_skipped && !is_of_all(result))
		result = 1; /* another thread has reported the error */
	else if (result == -ETXTBSY || result == -EMLINK) {
		source->is_skipped = true;
		work->skipped++;
		result = 1;
	} else if (result != -ECANCELED || work->unpack) {
		source->is_skipped = true;
		result = fail_locked(work, source->index, result, error);
	}
	put_source_locked(source);
	return result;
}
