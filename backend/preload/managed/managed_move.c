/* SPDX-License-Identifier: MIT */
/*
 * Managed memory out and in: the agent's side, with the gate closed and the GPU idle. The program's
 * threads keep running, except for the short time in which its addresses are held (managed_hold.h);
 * from then on a thread that touches the memory sleeps (hold.h).
 *
 * A trial shows whether the memory can come back to its addresses before any is held
 * (managed_trial.h).
 *
 * Possible failures, and the state after each:
 *   trial         the memory would not come back, or a privilege is missing: nothing has changed
 *   contents out  a copy, a full store: nothing has changed
 *   hold          threads that are not stopped, a full store: nothing has changed; if only some
 *                 addresses are held, their contents are in the files: as for free
 *                 threads that are released during the hold (the helper that stops them is killed):
 *                 a lost write cannot be excluded, and the memory stays out for ever;
 *                 no thread gets a page of it
 *   free          the held addresses stay held, and the memory can come back from the files
 *   in            an allocation, its address, a copy: all is freed and held again; the files stay
 *                 threads that are not stopped: nothing has changed
 *                 threads that are released before the pages which they got are away again: as for
 *                 those released during the hold
 *                 threads that are released while the memory comes back, and have touched something
 *                 (the helper is killed): they may have seen memory without its contents, and the
 *                 gate stays closed for ever
 */
#include "backend/preload/managed/managed.h"

#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/preload/gate/driver_error.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/managed/hold.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/managed/managed_file.h"
#include "backend/preload/managed/managed_hold.h"
#include "backend/preload/managed/managed_pages.h"
#include "backend/preload/managed/managed_table.h"
#include "backend/preload/managed/managed_trial.h"
#include "backend/preload/managed/mmap_hook.h"
#include "backend/preload/managed/place.h"
#include "backend/preload/managed/touch.h"
#include "lib/cleanup.h"

/*
 * CUDA's driver has its own names for its threads, which keep running when those of the program are
 * stopped. HIP's threads (ROCm 6) have the program's name, and a call of HIP may wait for one of
 * them while it is stopped.
 */
#ifdef GCR_HIP
#define CAN_MOVE false
#else
#define CAN_MOVE true
#endif

#define BOUNCE_BYTES (8ull << 20)
/* How often a block is copied again because the CPU may have written to it during the copy. */
#define TRIES	     4
/* Small allocations begin at multiples of this (measured). */
#define STEP_BYTES   512

static struct {
	bool is_saved;	  /* all of it is saved, and can be held */
	bool is_held;	  /* some of it: its contents are only in the files */
	bool is_out;	  /* all of it is freed in the driver */
	bool is_doubtful; /* a write may be missing in the files */
	bool tells_touch; /* the kernel reports which pages of such memory the CPU has mapped */
	struct gcr_saved_all saved;
	/* All allocations as in the table, in the same order, and their chunks. */
	struct gcr_place *places;
	size_t count;
	struct gcr_place_chunk *chunks;
	size_t chunk_count;
	struct gcr_managed *const *allocations;
	struct gcr_managed_piece *pieces;
	size_t piece_count;
} move = {.saved = {.watch = GCR_WATCH_NONE}};

static void forget_plan(void)
{
	gcr_saved_finish(&move.saved);
	free(move.places);
	free(move.chunks);
	memset(&move, 0, sizeof(move));
	move.saved = (struct gcr_saved_all){.watch = GCR_WATCH_NONE};
	gcr_touch_end();
}

/* ---- plan ---- */

static int plan_one(struct gcr_place *place, const struct gcr_managed *managed,
		    struct gcr_error *error)
{
	struct gcr_place_chunk *last = move.chunk_count ? &move.chunks[move.chunk_count - 1] : NULL;
	struct gcr_chunk range;

	if (managed->of_thread)
		return gcr_error_set(error, EOPNOTSUPP,
				     "managed memory at 0x%llx is attached to a stream that only "
				     "its thread can name",
				     managed->start);
	if (!gcr_mmap_hook_chunk(managed->start, &range))
		return gcr_error_set(error, EOPNOTSUPP,
				     "managed memory at 0x%llx lies where this driver was not seen "
				     "to put it",
				     managed->start);
	if (!last || last->range.start != range.start) {
		last = &move.chunks[move.chunk_count++];
		*last = (struct gcr_place_chunk){.range = range, .first = move.count};
	}
	last->count++;
	*place = (struct gcr_place){
		.start = managed->start,
		.bytes = managed->bytes,
		.id = managed->id,
		.flags = managed->flags,
		.context = managed->context,
		.chunk = move.chunk_count - 1,
		.is_there = true,
		.is_loaded = true,
	};
	return 0;
}

static int plan(struct gcr_error *error)
{
	size_t count;
	int r;

	forget_plan();
	if (gcr_managed_table(&move.allocations, &count, &move.pieces, &move.piece_count) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (!count)
		return 0;
	if (!CAN_MOVE)
		return gcr_error_set(error, EOPNOTSUPP,
				     "it uses managed memory, %zu allocations: that would have to "
				     "come back while the program's threads are stopped, and HIP's "
				     "own threads cannot be told from those",
				     count);
	move.places = calloc(count, sizeof(*move.places));
	move.chunks = calloc(count, sizeof(*move.chunks));
	if (!move.places || !move.chunks)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (r = 0; move.count < count && r == 0; move.count++)
		r = plan_one(&move.places[move.count], move.allocations[move.count], error);
	return r;
}

static int check_files(struct gcr_error *error)
{
	for (size_t i = 0; i < move.piece_count; i++) {
		struct stat status;

		if (!gcr_descriptor_valid(&move.pieces[i].file) ||
		    fstat(move.pieces[i].file.fd, &status) < 0)
			return gcr_error_set(error, EBADF,
					     "there is no file for managed memory at 0x%llx",
					     move.pieces[i].start);
		if ((uint64_t)status.st_size < move.pieces[i].bytes)
			return gcr_error_set(error, EINVAL,
					     "the file for managed memory at 0x%llx is too short",
					     move.pieces[i].start);
	}
	return 0;
}

/* ---- contents ---- */

static struct gcr_managed_piece *piece_of(CUdeviceptr address)
{
	size_t first = 0, end = move.piece_count;

	while (end - first > 1) {
		size_t middle = first + (end - first) / 2;

		if (move.pieces[middle].start <= address)
			first = middle;
		else
			end = middle;
	}
	return &move.pieces[first];
}

static int use_context(CUcontext context, struct gcr_error *error)
{
	CUresult result = GCR_REAL(cuCtxSetCurrent)(context);

	return result ? gcr_driver_failed(error, "cuCtxSetCurrent", result) : 0;
}

/* Splits all allocations into parts within one block each. -ENOMEM. */
static int make_parts(struct gcr_saved_all *saved, struct gcr_error *error)
{
	size_t room = 0;

	for (size_t i = 0; i < move.count; i++)
		room += (gcr_blocks_end(&move.places[i]) - gcr_block_of(move.places[i].start)) /
			GCR_BLOCK_BYTES;
	saved->parts = calloc(room, sizeof(*saved->parts));
	saved->ranges = calloc(move.count, sizeof(*saved->ranges));
	if (!saved->parts || !saved->ranges)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < move.count; i++) {
		const struct gcr_place *place = &move.places[i];
		const struct gcr_managed_piece *piece = piece_of(place->start);
		uintptr_t end = place->start + place->bytes;

		for (uintptr_t at = place->start; at < end;) {
			uintptr_t next = gcr_block_of(at) + GCR_BLOCK_BYTES;

			next = next < end ? next : end;
			saved->parts[saved->part_count++] = (struct gcr_saved){
				.start = at,
				.bytes = next - at,
				.file = &piece->file,
				.offset = (off_t)(at - piece->start),
				.place = i,
			};
			at = next;
		}
	}
	saved->range_count = gcr_saved_ranges(move.places, move.count, saved->ranges);
	return 0;
}

/*
 * Copies the parts of one block to the files. *ret_mapped: the CPU had some of the block mapped at
 * the beginning. *ret_certain: the CPU cannot have written to the block during the copy. Errors,
 * with a message.
 */
static int save_once(char *bounce, struct gcr_saved *parts, size_t count, bool *ret_mapped,
		     bool *ret_certain, struct gcr_error *error)
{
	CUcontext context = move.places[parts[0].place].context;
	uint64_t faults = gcr_touch_faults();
	bool is_mapped = false;
	int r = use_context(context, error);

	for (size_t i = 0; i < count; i++)
		is_mapped = is_mapped || gcr_touch_is_mapped(parts[i].start, parts[i].bytes);
	for (size_t i = 0; i < count && r == 0; i++) {
		const struct gcr_saved *part = &parts[i];

		if (move.places[part->place].context != context) {
			context = move.places[part->place].context;
			r = use_context(context, error);
		}
		if (r == 0 && !gcr_descriptor_valid(part->file))
			r = gcr_pages_closed_file(part->start, error);
		if (r == 0)
			r = gcr_managed_write(bounce, part->start, part->bytes, part->file->fd,
					      part->offset, error);
	}
	*ret_mapped = is_mapped;
	*ret_certain = move.tells_touch && !is_mapped && gcr_touch_faults() == faults;
	return r;
}

/*
 * Saves all contents. Blocks of which the CPU has a part are compared later, while the threads are
 * stopped.
 */
static int save_all(char *bounce, struct gcr_saved_all *saved, struct gcr_error *error)
{
	size_t count;
	int r = 0;

	for (size_t first = 0; first < saved->part_count && r == 0; first += count) {
		struct gcr_saved *parts = &saved->parts[first];
		bool is_mapped = false, is_certain = false;

		for (count = 1; first + count < saved->part_count; count++)
			if (gcr_block_of(parts[count].start) != gcr_block_of(parts[0].start))
				break;
		for (int try = 0; try < TRIES && r == 0 && !is_mapped && !is_certain; try++)
			r = save_once(bounce, parts, count, &is_mapped, &is_certain, error);
		for (size_t i = 0; i < count; i++)
			parts[i].is_certain = is_certain;
	}
	return r;
}

/* Reads the contents of new memory from its file. */
static int load_one(char *bounce, const struct gcr_place *place, struct gcr_error *error)
{
	const struct gcr_managed_piece *piece = piece_of(place->start);
	int r = use_context(place->context, error);

	if (r == 0 && !gcr_descriptor_valid(&piece->file))
		r = gcr_pages_closed_file(place->start, error);
	for (size_t at = 0; at < place->bytes && r == 0; at += BOUNCE_BYTES) {
		off_t offset = (off_t)(place->start - piece->start + at);
		size_t bytes = place->bytes - at < BOUNCE_BYTES ? place->bytes - at : BOUNCE_BYTES;

		r = gcr_managed_read(bounce, place->start + at, bytes, piece->file.fd, offset,
				     error);
	}
	return r;
}

/* ---- attachment to streams ---- */

static int attach(const struct gcr_managed *managed, struct gcr_error *error)
{
	CUresult result;

	if (!managed->attached)
		return 0;
	result = GCR_REAL(cuStreamAttachMemAsync)(managed->stream, managed->start, 0,
						  managed->attached);
	if (!result)
		result = GCR_REAL(cuStreamSynchronize)(managed->stream);
	return result ? gcr_driver_failed(error, "cuStreamAttachMemAsync", result) : 0;
}

/* ---- out ---- */

static char *get_bounce(struct gcr_error *error)
{
	char *bounce = malloc(BOUNCE_BYTES);

	if (!bounce)
		gcr_error_set(error, ENOMEM, "out of memory");
	return bounce;
}

/*
 * Refuses other memory in [start, end), between places: blocks with small memory are held as a
 * whole, and the driver would neither give back nor map again a block with memory that the library
 * does not know. -EOPNOTSUPP, with a message.
 */
static int check_gap(CUdeviceptr start, CUdeviceptr end, struct gcr_error *error)
{
	for (start = (start + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES; start < end;
	     start += STEP_BYTES) {
		CUdeviceptr base;
		size_t bytes;

		if (GCR_REAL(cuMemGetAddressRange_v2)(&base, &bytes, start) == CUDA_SUCCESS)
			return gcr_error_set(error, EOPNOTSUPP,
					     "between its managed memory lies other memory, at "
					     "0x%llx",
					     start);
	}
	return 0;
}

static int check_gaps(struct gcr_error *error)
{
	int r = 0;

	for (size_t i = 0; i < move.count && r == 0; i++) {
		const struct gcr_place *place = &move.places[i];
		const struct gcr_place *before = i ? place - 1 : NULL;
		CUdeviceptr block = gcr_block_of(place->start), end = gcr_blocks_end(place);
		CUdeviceptr start = block;

		if (place->bytes >= GCR_BLOCK_BYTES)
			continue;
		if (before && before->start + before->bytes > block)
			start = before->start + before->bytes;
		r = use_context(place->context, error);
		if (r == 0)
			r = check_gap(start, place->start, error);
		if (r == 0 && (i + 1 == move.count || move.places[i + 1].start >= end))
			r = check_gap(place->start + place->bytes, end, error);
	}
	return r;
}

static int save(struct gcr_error *error)
{
	_cleanup_free_ char *bounce = NULL;
	int r = plan(error);

	if (r < 0 || !move.count)
		return r;
	r = check_files(error);
	if (r == 0)
		r = check_gaps(error);
	if (r < 0)
		return r;
	bounce = get_bounce(error);
	if (!bounce)
		return -ENOMEM;
	gcr_touch_begin();
	r = gcr_hold_begin(error);
	if (r == 0)
		r = gcr_managed_try(move.places, move.count, move.chunks, move.chunk_count,
				    &move.tells_touch, error);
	if (r == 0)
		r = make_parts(&move.saved, error);
	if (r == 0)
		r = gcr_saved_prepare(&move.saved, error);
	if (r < 0)
		return r;
	return save_all(bounce, &move.saved, error);
}

/* Undoes gcr_managed_save(), unless memory is held. */
static void cancel(void)
{
	if (move.is_held)
		return;
	gcr_hold_end();
	forget_plan();
}

/*
 * Frees the allocations that are held: their pages have been replaced, but the driver does not know
 * yet. @surely: tries twice.
 */
static int free_held(bool surely, struct gcr_error *error)
{
	int r = 0;

	for (size_t i = 0; i < move.count && r == 0; i++) {
		struct gcr_place *place = &move.places[i];

		if (!place->is_there ||
		    !gcr_hold_covers(gcr_block_of(place->start),
				     gcr_blocks_end(place) - gcr_block_of(place->start)))
			continue;
		r = gcr_places_free(place, 1, true, error);
		if (r < 0 && surely)
			r = gcr_places_free(place, 1, true, error);
	}
	for (size_t i = 0; i < move.chunk_count && r == 0; i++)
		move.chunks[i].stays = !gcr_managed_is_given_back(&move.chunks[i]);
	return r;
}

/* ---- in ---- */

/*
 * Holds the blocks of a place that could not be freed, so that no thread sees it without its
 * contents; the driver frees it in the next attempt. Not if a loaded place is in one of the blocks.
 */
static void hold_made(const struct gcr_place *place)
{
	uintptr_t start = gcr_block_of(place->start), end = gcr_blocks_end(place);

	for (size_t i = 0; i < move.count; i++)
		if (move.places[i].is_loaded && gcr_block_of(move.places[i].start) < end &&
		    gcr_blocks_end(&move.places[i]) > start)
			return;
	gcr_hold(start, end - start);
}

/* Frees the places that this attempt has made. Returns the first error. */
static int free_made(const bool *was_there)
{
	int first = 0;

	for (size_t i = 0; i < move.count; i++) {
		struct gcr_place *place = &move.places[i];
		int r = 0;

		if (was_there[i] || !place->is_there)
			continue;
		r = gcr_places_free(place, 1, true, NULL);
		place->is_loaded = place->is_loaded && r < 0;
		if (r < 0 && !place->is_loaded)
			hold_made(place);
		if (first == 0)
			first = r;
	}
	return first;
}

static int load(char *bounce, size_t index, struct gcr_error *error)
{
	const struct gcr_managed *managed = move.allocations[index];
	struct gcr_place *place = &move.places[index];
	int r;

	for (const struct gcr_policy *policy = managed->policies; policy; policy = policy->next)
		gcr_policy_tell(policy);
	r = load_one(bounce, place, error);
	if (r == 0)
		r = attach(managed, error);
	place->is_loaded = r == 0;
	return r;
}

/*
 * Makes and loads all places that are not there, with their old attributes. On errors, with a
 * message, the places that were made are freed again; -ENOTRECOVERABLE if that failed.
 */
static int bring_in(char *bounce, struct gcr_error *error)
{
	_cleanup_free_ bool *was_there = calloc(move.count, sizeof(*was_there));
	int r;

	if (!was_there)
		return gcr_error_set(error, ENOMEM, "out of memory");
	r = free_held(true, error);
	for (size_t i = 0; i < move.count; i++) {
		was_there[i] = move.places[i].is_there;
		move.places[i].is_loaded = move.places[i].is_loaded && was_there[i];
	}
	if (r < 0)
		return r;
	r = gcr_places_make(move.places, move.count, move.chunks, move.chunk_count, error);
	for (size_t i = 0; i < move.count && r == 0; i++)
		if (!move.places[i].is_loaded)
			r = load(bounce, i, error);
	if (r < 0 && free_made(was_there) < 0 && r != -ENOTRECOVERABLE) {
		gcr_error_prefix(error, "managed memory came back in part only");
		return -ENOTRECOVERABLE;
	}
	return r;
}

/* ---- pages that threads get while they are being stopped ---- */

/*
 * Reads a page that a thread has touched from its file to @data: see gcr_hold_serve(). Called by
 * another thread of the library; pieces and files do not change while it may be called. -EBADF: the
 * program has closed the file; -EIO, ...
 */
static int read_page(uintptr_t page, void *data)
{
	const struct gcr_managed_piece *piece = piece_of(page);

	memset(data, 0, GCR_HOLD_PAGE_BYTES);
	/* Held with the rest of its block, but in no allocation. */
	if (page < piece->start || page >= piece->start + piece->bytes)
		return 0;
	if (!gcr_descriptor_valid(&piece->file))
		return -EBADF;
	return gcr_managed_file_read(piece->file.fd, data, GCR_HOLD_PAGE_BYTES,
				     (off_t)(page - piece->start), NULL);
}

static int doubtful(struct gcr_error *error)
{
	return gcr_error_set(error, EIO,
			     "its managed memory may lack what its threads wrote last: they were "
			     "let go while it was being moved");
}

/* As gcr_pages_take(), for all pieces, with a message after every error. */
static int take_pages(const struct gcr_watch *watch, struct gcr_error *error)
{
	int r = gcr_pages_take(move.pieces, move.piece_count, watch, error);

	if (r == -ENOTRECOVERABLE) {
		move.is_doubtful = true;
		doubtful(error);
		error->number = ENOTRECOVERABLE;
	}
	return r;
}

static void finish(void)
{
	for (size_t i = 0; i < move.piece_count; i++) {
		free(move.pieces[i].newer);
		move.pieces[i].newer = NULL;
	}
	gcr_mmap_hook_release();
	gcr_hold_end();
	forget_plan();
}

static int not_stopped(struct gcr_error *error)
{
	return gcr_error_set(error, EBUSY,
			     "threads of the program run that were to be stopped while its managed "
			     "memory comes back");
}

/*
 * Brings all managed memory back. Memory can be seen before its contents are there: if the threads
 * are released before the end, the count of page faults tells whether a thread may have touched it.
 * Errors as of gcr_managed_in().
 */
static int in(struct gcr_error *error)
{
	_cleanup_free_ char *bounce = NULL;
	struct gcr_watch watch = GCR_WATCH_NONE;
	uint64_t faults;
	int r;

	if (move.is_doubtful)
		return doubtful(error);
	bounce = get_bounce(error);
	if (!bounce)
		return -ENOMEM;
	gcr_touch_begin();
	r = gcr_hold_begin(error);
	if (r == 0)
		r = gcr_watch_begin(&watch, error);
	if (r == 0 && !gcr_watch_stopped(&watch))
		r = not_stopped(error);
	if (r == 0)
		r = gcr_pages_write_back(move.pieces, move.piece_count, error);
	gcr_hold_serve(NULL);
	if (r == 0)
		r = take_pages(&watch, error);
	faults = gcr_touch_faults();
	if (r == 0)
		r = bring_in(bounce, error);
	if (r == 0 && !gcr_watch_stopped(&watch) && gcr_touch_faults() != faults) {
		move.is_doubtful = true;
		r = gcr_error_set(
			error, ENOTRECOVERABLE,
			"threads of the program were let go while its managed memory came "
			"back: they may have seen it without its contents");
	}
	gcr_watch_end(&watch);
	if (r < 0) {
		gcr_hold_pause();
		return r;
	}
	finish();
	return 0;
}

static int out(struct gcr_error *error)
{
	int r = free_held(false, error);

	if (r < 0)
		return r;
	gcr_hold_pause();
	move.is_out = true;
	return 0;
}

/* Runs @step and restores the current context: the thread may be the program's. */
static int with_context_kept(int (*step)(struct gcr_error *), struct gcr_error *error)
{
	CUcontext context = NULL;
	int r;

	if (GCR_REAL(cuCtxGetCurrent))
		GCR_REAL(cuCtxGetCurrent)(&context);
	r = step(error);
	if (GCR_REAL(cuCtxSetCurrent))
		GCR_REAL(cuCtxSetCurrent)(context);
	return r;
}

int gcr_managed_save(struct gcr_error *error)
{
	int r;

	if (move.is_held)
		return 0;
	cancel();
	r = with_context_kept(save, error);
	if (r < 0 || !move.count)
		cancel();
	else
		move.is_saved = true;
	return r;
}

int gcr_managed_hold(struct gcr_error *error)
{
	int r;

	if (move.is_held || !move.is_saved)
		return 0;
	r = gcr_saved_hold(&move.saved, &move.is_held, error);
	move.is_doubtful = move.is_held && r == -ENOTRECOVERABLE;
	return r;
}

bool gcr_managed_is_held(void)
{
	return move.is_held;
}

void gcr_managed_cancel(void)
{
	cancel();
}

int gcr_managed_out(struct gcr_error *error)
{
	if (move.is_out)
		return 0;
	if (!move.is_held) {
		ssize_t count = gcr_managed_describe(NULL, 0);

		return count < 0 ? gcr_error_set(error, (int)-count, "out of memory")
		       : count	 ? gcr_error_set(error, EINVAL, "managed memory is not held")
				 : 0;
	}
	return with_context_kept(out, error);
}

static int look_at_library(struct dl_phdr_info *info, size_t size, void *unused)
{
	return 1;
}

static void *do_nothing(void *unused)
{
	return NULL;
}

int gcr_managed_prepare(struct gcr_error *error)
{
	struct gcr_chunk unused;
	pthread_t thread;
	int r;

	if (!move.is_held)
		return 0;
	/* No thread may get a page of a file that lacks what it has written. */
	if (move.is_doubtful)
		return doubtful(error);
#ifdef __GLIBC__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
	/*
	 * mallinfo() takes the locks of all arenas. Its result is not used, and mallinfo2() is too
	 * new.
	 */
	mallinfo();
#pragma GCC diagnostic pop
#endif
	free(malloc(1));
	dl_iterate_phdr(look_at_library, NULL);
	gcr_managed_describe(NULL, 0);
	gcr_mmap_hook_chunk(0, &unused);
	if (pthread_create(&thread, NULL, do_nothing, NULL) == 0)
		pthread_join(thread, NULL);
	r = gcr_hold_begin(error);
	if (r == 0)
		gcr_hold_serve(read_page);
	return r;
}

void gcr_managed_unprepare(void)
{
	gcr_hold_serve(NULL);
}

int gcr_managed_in(struct gcr_error *error)
{
	return move.is_held ? with_context_kept(in, error) : 0;
}

static void forget(void)
{
	gcr_watch_end(&move.saved.watch);
	memset(&move, 0, sizeof(move));
	move.saved = (struct gcr_saved_all){.watch = GCR_WATCH_NONE};
	gcr_touch_end();
}

GCR_LISTEN(fork, forget);
