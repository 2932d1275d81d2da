/* SPDX-License-Identifier: MIT */
/*
 * Managed memory out and in: the agent's side, with the gate closed and the GPU idle. The program's
 * threads run all the while; from when its memory is freed, who touches it sleeps (hold.h).
 *
 * Whether memory comes back where it was is tried before any is freed, with memory that lies the
 * same way in chunks elsewhere. Not with the program's own: its threads could see what is in it
 * meanwhile, and if it did not come back, there would be no way back either.
 *
 * What can fail, and what is left then:
 *   trial         it would not come back, or no privilege: nothing has happened
 *   contents out  a copy, a full store, a thread that writes all the time: nothing has happened
 *   free          what is out already comes back, from the files
 *   in            an allocation, its address, a copy: all is freed and held again; the files stay
 */
#include "backend/preload/managed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/preload/entry_points.h"
#include "backend/preload/hold.h"
#include "backend/preload/managed_table.h"
#include "backend/preload/place.h"
#include "backend/preload/quiet.h"
#include "backend/preload/steer.h"
#include "lib/cleanup.h"

/* Copies go through memory of ours: whatever the file's state, that is no SIGBUS. */
#define BOUNCE_BYTES (8ull << 20)
/* How often memory is copied that the CPU writes to meanwhile. */
#define ROUNDS	     4

static struct {
	bool is_out; /* some of it */
	/* All allocations as in the table, in the same order, and their chunks. */
	struct gcr_place *places;
	size_t count;
	struct gcr_place_chunk *chunks;
	size_t chunk_count;
	struct gcr_managed *const *allocations;
	struct gcr_managed_piece *pieces;
	size_t piece_count;
} move;

/* What copies need. */
struct bounce {
	char *memory;
	char *compared;
};

static int driver_error(struct gcr_error *error, const char *call, CUresult result)
{
	const char *name = NULL;

	if (GCR_REAL(cuGetErrorName))
		GCR_REAL(cuGetErrorName)(result, &name);
	return gcr_error_set(error, EIO, "%s: %s (%d)", call, name ? name : "unknown error",
			     (int)result);
}

static void forget_plan(void)
{
	free(move.places);
	free(move.chunks);
	memset(&move, 0, sizeof(move));
}

/* ---- what there is ---- */

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
	if (!gcr_steer_chunk(managed->start, &range))
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

/* ---- the trial ---- */

/* Address space for a chunk, held. */
static int hold_somewhere(size_t bytes, uintptr_t *ret_start, struct gcr_error *error)
{
	void *memory = mmap(NULL, bytes + GCR_CHUNK_BYTES, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uintptr_t start, aligned;
	int r;

	if (memory == MAP_FAILED)
		return gcr_error_set(error, errno, "no address space for a trial: %s",
				     strerror(errno));
	start = (uintptr_t)memory;
	aligned = (start + GCR_CHUNK_BYTES - 1) / GCR_CHUNK_BYTES * GCR_CHUNK_BYTES;
	if (aligned > start)
		munmap(memory, aligned - start);
	if (start + GCR_CHUNK_BYTES > aligned)
		munmap((void *)(aligned + bytes), start + GCR_CHUNK_BYTES - aligned);
	r = gcr_hold(aligned, bytes);
	if (r < 0) {
		munmap((void *)aligned, bytes);
		return gcr_error_set(error, -r, "addresses cannot be held: %s", strerror(-r));
	}
	*ret_start = aligned;
	return 0;
}

/* Made, freed and held, made again. */
static int try_places(struct gcr_place *places, struct gcr_place_chunk *chunks,
		      struct gcr_error *error)
{
	int r = gcr_places_make(places, move.count, chunks, move.chunk_count, error);

	if (r == 0)
		r = gcr_places_free(places, move.count, true, error);
	for (size_t i = 0; i < move.chunk_count && r == 0; i++)
		if (!gcr_hold_covers(chunks[i].range.start, chunks[i].range.bytes))
			r = gcr_error_set(error, EADDRNOTAVAIL,
					  "addresses that this driver gave back are not held");
	if (r == 0)
		r = gcr_places_make(places, move.count, chunks, move.chunk_count, error);
	if (r == 0)
		return gcr_places_free(places, move.count, false, error);
	gcr_places_free(places, move.count, false, NULL);
	return r;
}

static int try_elsewhere(struct gcr_error *error)
{
	_cleanup_free_ struct gcr_place *places = calloc(move.count, sizeof(*places));
	_cleanup_free_ struct gcr_place_chunk *chunks = calloc(move.chunk_count, sizeof(*chunks));
	int r = 0;

	if (!places || !chunks)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < move.chunk_count && r == 0; i++) {
		const struct gcr_place_chunk *chunk = &move.chunks[i];
		uintptr_t start = 0;

		r = hold_somewhere(chunk->range.bytes, &start, error);
		chunks[i] = *chunk;
		chunks[i].range.start = start;
		for (size_t j = chunk->first; j < chunk->first + chunk->count && r == 0; j++) {
			places[j] = move.places[j];
			places[j].start = move.places[j].start - chunk->range.start + start;
			places[j].is_there = false;
		}
	}
	if (r == 0)
		r = try_places(places, chunks, error);
	gcr_steer_release();
	if (r == 0)
		return 0;
	gcr_error_prefix(error, "managed memory, in a trial");
	/* Nothing of the program's has been touched, whatever it was. */
	return r == -ENOMEM ? r : -EOPNOTSUPP;
}

/* ---- contents ---- */

static bool is_zero(const char *memory, size_t bytes)
{
	return !memory[0] && memcmp(memory, memory + 1, bytes - 1) == 0;
}

/* Is there nothing of the file in the range? */
static bool is_hole(int fd, off_t offset, size_t bytes)
{
	off_t data = lseek(fd, offset, SEEK_DATA);

	return data < 0 ? errno == ENXIO : data >= offset + (off_t)bytes;
}

static int write_all(int fd, const char *memory, size_t bytes, off_t offset,
		     struct gcr_error *error)
{
	while (bytes > 0) {
		ssize_t length = pwrite(fd, memory, bytes, offset);

		if (length < 0 && errno == EINTR)
			continue;
		if (length <= 0)
			return gcr_error_set(error, errno,
					     "writing managed memory to the store: %s",
					     strerror(errno));
		memory += length;
		offset += length;
		bytes -= (size_t)length;
	}
	return 0;
}

static int read_all(int fd, char *memory, size_t bytes, off_t offset, struct gcr_error *error)
{
	while (bytes > 0) {
		ssize_t length = pread(fd, memory, bytes, offset);

		if (length < 0 && errno == EINTR)
			continue;
		if (length <= 0)
			return gcr_error_set(error, EIO,
					     "reading managed memory from the store: %s",
					     length ? strerror(errno) : "it is too short");
		memory += length;
		offset += length;
		bytes -= (size_t)length;
	}
	return 0;
}

/* Some of an allocation to its file; @changed: only if it differs, and then set. */
static int write_some(const struct bounce *bounce, CUdeviceptr from, size_t bytes, int fd,
		      off_t offset, bool *changed, struct gcr_error *error)
{
	CUresult result = GCR_REAL(cuMemcpyDtoH_v2)(bounce->memory, from, bytes);
	int r;

	if (result)
		return driver_error(error, "cuMemcpyDtoH", result);
	if (changed) {
		r = read_all(fd, bounce->compared, bytes, offset, error);
		if (r < 0 || memcmp(bounce->memory, bounce->compared, bytes) == 0)
			return r;
		*changed = true;
	} else if (is_zero(bounce->memory, bytes) && is_hole(fd, offset, bytes)) {
		return 0;
	}
	return write_all(fd, bounce->memory, bytes, offset, error);
}

/* What of the file is not a hole, to memory that is zero. */
static int read_some(const struct bounce *bounce, CUdeviceptr to, size_t bytes, int fd,
		     off_t offset, struct gcr_error *error)
{
	CUresult result;
	int r;

	if (is_hole(fd, offset, bytes))
		return 0;
	r = read_all(fd, bounce->memory, bytes, offset, error);
	if (r < 0)
		return r;
	result = GCR_REAL(cuMemcpyHtoD_v2)(to, bounce->memory, bytes);
	return result ? driver_error(error, "cuMemcpyHtoD", result) : 0;
}

static const struct gcr_managed_piece *piece_of(CUdeviceptr address)
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

enum direction {
	CONTENTS_OUT,
	CONTENTS_COMPARED, /* and out where they differ */
	CONTENTS_IN,
};

static int copy_one(const struct bounce *bounce, const struct gcr_place *place,
		    enum direction direction, bool *changed, struct gcr_error *error)
{
	const struct gcr_managed_piece *piece = piece_of(place->start);
	CUresult result = GCR_REAL(cuCtxSetCurrent)(place->context);
	int r = 0;

	if (result)
		return driver_error(error, "cuCtxSetCurrent", result);
	if (!gcr_descriptor_valid(&piece->file))
		return gcr_error_set(error, EIO,
				     "the program has closed the file of its managed memory at "
				     "0x%llx",
				     place->start);
	for (size_t at = 0; at < place->bytes && r == 0; at += BOUNCE_BYTES) {
		off_t offset = (off_t)(place->start - piece->start + at);
		size_t bytes = place->bytes - at < BOUNCE_BYTES ? place->bytes - at : BOUNCE_BYTES;

		if (direction == CONTENTS_IN)
			r = read_some(bounce, place->start + at, bytes, piece->file.fd, offset,
				      error);
		else
			r = write_some(bounce, place->start + at, bytes, piece->file.fd, offset,
				       direction == CONTENTS_OUT ? NULL : changed, error);
	}
	return r;
}

static int copy_chunk(const struct bounce *bounce, const struct gcr_place_chunk *chunk,
		      enum direction direction, bool *changed, struct gcr_error *error)
{
	int r = 0;

	for (size_t i = chunk->first; i < chunk->first + chunk->count && r == 0; i++)
		r = copy_one(bounce, &move.places[i], direction, changed, error);
	return r;
}

/*
 * Copy again what has changed since it was copied, until nothing has. What never stops changing
 * cannot be saved.
 */
static int settle_chunk(const struct bounce *bounce, const struct gcr_place_chunk *chunk,
			struct gcr_error *error)
{
	for (int round = 0; round < ROUNDS; round++) {
		bool changed = false;
		int r = copy_chunk(bounce, chunk, CONTENTS_COMPARED, &changed, error);

		if (r < 0 || !changed)
			return r;
	}
	return gcr_error_set(error, EBUSY,
			     "a thread of the program goes on writing to its managed memory at "
			     "0x%llx",
			     move.places[chunk->first].start);
}

/* ---- what was said about it ---- */

/* A hint: what the driver does not take, it does not take. */
static void advise(const struct gcr_policy *policy)
{
	__typeof__(cuMemAdvise) *advise_old = GCR_REAL(cuMemAdvise);
	__typeof__(cuMemAdvise_v2) *advise_new = GCR_REAL(cuMemAdvise_v2);
	size_t bytes = policy->end - policy->start;

	if (policy->preferred.type == CU_MEM_LOCATION_TYPE_DEVICE)
		advise_old(policy->start, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
			   policy->preferred.id);
	else if (policy->preferred.type == CU_MEM_LOCATION_TYPE_HOST)
		advise_old(policy->start, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
			   CU_DEVICE_CPU);
	else if (policy->preferred.type != CU_MEM_LOCATION_TYPE_INVALID && advise_new)
		advise_new(policy->start, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
			   policy->preferred);
	for (int device = 0; device < 64; device++)
		if (policy->accessed_by >> device & 1)
			advise_old(policy->start, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
	if (policy->accessed_by_cpu)
		advise_old(policy->start, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU);
	if (policy->read_mostly)
		advise_old(policy->start, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, 0);
}

static int attach(const struct gcr_managed *managed, struct gcr_error *error)
{
	CUresult result;

	if (!managed->attached)
		return 0;
	result = GCR_REAL(cuStreamAttachMemAsync)(managed->stream, managed->start, 0,
						  managed->attached);
	if (!result)
		result = GCR_REAL(cuStreamSynchronize)(managed->stream);
	return result ? driver_error(error, "cuStreamAttachMemAsync", result) : 0;
}

/* ---- out and in ---- */

static int get_bounce(struct bounce *ret_bounce, struct gcr_error *error)
{
	ret_bounce->memory = malloc(2 * BOUNCE_BYTES);
	if (!ret_bounce->memory)
		return gcr_error_set(error, ENOMEM, "out of memory");
	ret_bounce->compared = ret_bounce->memory + BOUNCE_BYTES;
	return 0;
}

/* All that is not there, as it was. */
static int bring_in(const struct bounce *bounce, struct gcr_error *error)
{
	_cleanup_free_ bool *was_there = calloc(move.count, sizeof(*was_there));
	int r;

	if (!was_there)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < move.count; i++)
		was_there[i] = move.places[i].is_there;
	r = gcr_places_make(move.places, move.count, move.chunks, move.chunk_count, error);
	if (r < 0)
		return r;
	for (size_t i = 0; i < move.count && r == 0; i++) {
		const struct gcr_managed *managed = move.allocations[i];

		if (was_there[i])
			continue;
		for (const struct gcr_policy *policy = managed->policies; policy;
		     policy = policy->next)
			advise(policy);
		r = copy_one(bounce, &move.places[i], CONTENTS_IN, NULL, error);
		if (r == 0)
			r = attach(managed, error);
	}
	if (r < 0 && gcr_places_free(move.places, move.count, true, NULL) < 0) {
		gcr_error_prefix(error, "managed memory came back in part only");
		return -ENOTRECOVERABLE;
	}
	return r;
}

static void finish(void)
{
	gcr_steer_release();
	gcr_hold_end();
	forget_plan();
}

/* All contents, before anything is freed; *@before is from before that. */
static int save_all(const struct bounce *bounce, struct gcr_quiet *before, struct gcr_error *error)
{
	int r = 0;

	gcr_quiet_look(before);
	for (size_t i = 0; i < move.chunk_count && r == 0; i++)
		r = copy_chunk(bounce, &move.chunks[i], CONTENTS_OUT, NULL, error);
	for (size_t i = 0; i < move.chunk_count && r == 0 && !gcr_quiet_since(before); i++)
		r = settle_chunk(bounce, &move.chunks[i], error);
	return r;
}

/* From where every thread has slept since its contents were copied, or they are compared again. */
static int take_out(const struct bounce *bounce, struct gcr_error *error)
{
	_cleanup_(gcr_quiet_free) struct gcr_quiet before = {0};
	int r = save_all(bounce, &before, error);

	for (size_t i = 0; i < move.chunk_count && r == 0; i++) {
		struct gcr_place_chunk *chunk = &move.chunks[i];

		before.is_quiet = gcr_quiet_since(&before);
		if (!before.is_quiet)
			r = settle_chunk(bounce, chunk, error);
		if (r < 0)
			break;
		move.is_out = true;
		r = gcr_places_free(move.places + chunk->first, chunk->count, true, error);
		chunk->stays = !gcr_hold_covers(chunk->range.start, chunk->range.bytes);
	}
	return r;
}

static int out(struct gcr_error *error)
{
	_cleanup_free_ char *memory = NULL;
	struct gcr_error second = {0};
	struct bounce bounce;
	int r = plan(error);

	if (r < 0 || !move.count)
		return r;
	r = check_files(error);
	if (r == 0)
		r = get_bounce(&bounce, error);
	if (r < 0)
		return r;
	memory = bounce.memory;
	r = gcr_hold_begin(error);
	if (r == 0)
		r = try_elsewhere(error);
	if (r == 0)
		r = take_out(&bounce, error);
	if (r == 0) {
		gcr_hold_pause();
		return 0;
	}
	if (bring_in(&bounce, &second) < 0) {
		gcr_error_prefix(&second, "%.200s; and it did not come back",
				 error ? error->words : "");
		if (error)
			*error = second;
		gcr_hold_pause();
		return -ENOTRECOVERABLE;
	}
	finish();
	return r;
}

static int in(struct gcr_error *error)
{
	_cleanup_free_ char *memory = NULL;
	struct bounce bounce;
	int r = get_bounce(&bounce, error);

	if (r < 0)
		return r;
	memory = bounce.memory;
	r = gcr_hold_begin(error);
	if (r == 0)
		r = bring_in(&bounce, error);
	if (r < 0) {
		gcr_hold_pause();
		return r;
	}
	finish();
	return 0;
}

/* The thread may be one of the program's, with a context of its own. */
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

int gcr_managed_out(struct gcr_error *error)
{
	int r;

	if (move.is_out)
		return 0;
	r = with_context_kept(out, error);
	if (!move.is_out)
		forget_plan();
	return r;
}

int gcr_managed_in(struct gcr_error *error)
{
	return move.is_out ? with_context_kept(in, error) : 0;
}

void gcr_managed_move_forget(void)
{
	memset(&move, 0, sizeof(move));
	gcr_hold_forget();
	gcr_steer_forget();
}
