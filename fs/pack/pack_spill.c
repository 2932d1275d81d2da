/* SPDX-License-Identifier: MIT */
/*
 * Segments on a disk. A segment is copied, and then its file in the store is replaced by a symbolic
 * link to the copy: at any time exactly one of the two is the segment, and references to chunks do
 * not change. The disk is accessed without the lock of the packs; the segment is marked busy for
 * that time: no chunk is appended, and no page is freed. Files on a disk are never mapped: an error
 * of the disk would raise SIGBUS.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/pack/packs_private.h"
#include "fs/pack/spill.h"
#include "lib/full_io.h"

#define BUFFER_BYTES (1u << 20)
/* Limit of dirty pages, which take memory, too. */
#define DIRTY_BYTES  (32u << 20)
/* Name of a link before it replaces the file: this prefix and the segment's number. */
#define LINK_PREFIX  ".link-"
#define NAME_BYTES   24

/* ---- the accounts of the disk ---- */

static void count_of_user(const struct gcr_packs *packs, uint64_t more, uint64_t less)
{
	if (packs->account.count_disk)
		packs->account.count_disk(packs->account.data, packs->uid, more, less);
}

/* Reserves bytes within the user's limit and the limit of all. */
static int take_disk(const struct gcr_packs *packs, uint64_t bytes, struct gcr_error *error)
{
	const struct gcr_packs_account *account = &packs->account;
	int result = account->take_disk
			     ? account->take_disk(account->data, packs->uid, bytes, error)
			     : 0;

	if (result < 0)
		return result;
	result = gcr_spill_take(account->spill, bytes, error);
	if (result < 0)
		count_of_user(packs, 0, bytes);
	return result;
}

void gcr_packs_take_disk_there(const struct gcr_packs *packs, uint64_t bytes)
{
	gcr_spill_take_there(packs->account.spill, bytes);
	count_of_user(packs, bytes, 0);
}

void gcr_packs_give_disk(const struct gcr_packs *packs, uint64_t bytes)
{
	gcr_spill_give(packs->account.spill, bytes);
	count_of_user(packs, 0, bytes);
}

/* ---- leftovers of an earlier daemon ---- */

void gcr_packs_remove_unfinished(int directory_fd, const char *name)
{
	if (!strncmp(name, LINK_PREFIX, sizeof(LINK_PREFIX) - 1))
		unlinkat(directory_fd, name, 0);
}

/* Is this an error of our own resources, which says nothing about the disk? */
static bool is_of_us(int error)
{
	return error == -EMFILE || error == -ENFILE || error == -ENOMEM;
}

/*
 * Opens the target of a link, or the file found in its place, whose path then becomes the
 * segment's. -EPROTO: the target is no segment's path; -errno.
 */
static int open_target(const struct gcr_packs *packs, const char *target,
		       struct gcr_pack_segment *segment)
{
	char *found;
	int fd, found_fd;

	if (!gcr_spill_is_path(target, packs->uid, segment->number))
		return -EPROTO;
	fd = gcr_spill_open_file(packs->account.spill, target);
	if (fd >= 0 || is_of_us(fd))
		return fd;
	found_fd = gcr_spill_find_file(packs->account.spill, target, &found);
	if (found_fd < 0)
		return is_of_us(found_fd) ? found_fd : fd;
	free(segment->path);
	segment->path = found;
	segment->has_moved = true;
	return found_fd;
}

int gcr_pack_segment_follow(const struct gcr_packs *packs, struct gcr_pack_segment *segment)
{
	char target[PATH_MAX];
	char name[NAME_BYTES];
	ssize_t length;
	int fd;

	snprintf(name, sizeof(name), "%" PRIu32, segment->number);
	length = readlinkat(packs->fd, name, target, sizeof(target) - 1);
	if (length < 0)
		return -errno;
	target[length] = '\0';
	segment->path = strdup(target);
	segment->is_sealed = true;
	if (!segment->path)
		return -ENOMEM;
	fd = open_target(packs, target, segment);
	if (is_of_us(fd))
		return fd;
	segment->fd = fd < 0 ? -1 : fd;
	if (fd < 0)
		gcr_log(LOG_WARNING, 0,
			"packed VRAM of user %" PRIu32 " is in %s, which cannot be read now: %s",
			(uint32_t)packs->uid, target,
			fd == -EPROTO ? "it is no segment" : strerror(-fd));
	else
		gcr_pack_segment_find_pages(segment);
	return 0;
}

void gcr_pack_segment_move_link(const struct gcr_packs *packs,
				const struct gcr_pack_segment *segment)
{
	char link[NAME_BYTES];
	char name[NAME_BYTES];

	snprintf(name, sizeof(name), "%" PRIu32, segment->number);
	snprintf(link, sizeof(link), LINK_PREFIX "%" PRIu32, segment->number);
	unlinkat(packs->fd, link, 0);
	if (!symlinkat(segment->path, packs->fd, link) &&
	    !renameat(packs->fd, link, packs->fd, name))
		return;
	gcr_log(LOG_WARNING, 0,
		"packed VRAM in %s cannot be thawed now: no link to it in the store: %s",
		segment->path, strerror(errno));
	unlinkat(packs->fd, link, 0);
}

/* ---- moving ---- */

/* A move of a segment: the data that may be accessed without the lock. */
struct move {
	struct gcr_packs *packs;
	struct gcr_pack_segment *segment;
	uint16_t *pages; /* as at the beginning; they keep their bytes until the end */
	uint64_t bytes;
	char *path;
	int fd;	       /* of the copy */
	bool has_link; /* that has not replaced the file yet */
};

/* The segment, if it can be moved, else NULL. Lock: packs. */
static struct gcr_pack_segment *find_movable_locked(const struct gcr_packs *packs, uint32_t number)
{
	struct gcr_pack_segment *segment = packs->is_known ? gcr_packs_find_segment(packs, number)
							   : NULL;

	return segment && !segment->path && !segment->is_busy && segment->live_bytes ? segment
										     : NULL;
}

/* Bytes that the segment would take on the disk now; 0: there is nothing to move. */
static uint64_t bytes_to_move(struct gcr_packs *packs, uint32_t number)
{
	const struct gcr_pack_segment *segment;

	GCR_PACKS_LOCK_SCOPE(packs);
	segment = find_movable_locked(packs, number);
	return segment ? segment->pages_there * GCR_PACK_PAGE_BYTES : 0;
}

/*
 * Begins a move for which @promised_bytes of the disk are reserved. -ENOENT: there is nothing to
 * move; -EAGAIN: the segment has grown.
 */
static int begin(struct move *move, uint32_t number, uint64_t promised_bytes)
{
	struct gcr_packs *packs = move->packs;
	struct gcr_pack_segment *segment;

	GCR_PACKS_LOCK_SCOPE(packs);
	segment = find_movable_locked(packs, number);
	if (!segment)
		return -ENOENT;
	if (segment->pages_there * GCR_PACK_PAGE_BYTES > promised_bytes)
		return -EAGAIN;
	memcpy(move->pages, segment->pages, GCR_PACK_PAGE_COUNT * sizeof(*move->pages));
	move->bytes = segment->pages_there * GCR_PACK_PAGE_BYTES;
	move->segment = segment;
	segment->is_busy = true;
	segment->is_sealed = true;
	return 0;
}

/*
 * Reserves room on the disk, then begins the move: a refusal changes nothing. -ENOENT: there is
 * nothing to move; other errors with a message.
 */
static int promise_and_begin(struct move *move, uint32_t number, struct gcr_error *error)
{
	struct gcr_packs *packs = move->packs;
	int result = -EAGAIN;

	while (result == -EAGAIN) {
		uint64_t bytes = bytes_to_move(packs, number);

		result = bytes ? take_disk(packs, bytes, error) : -ENOENT;
		if (result < 0)
			break;
		result = begin(move, number, bytes);
		gcr_packs_give_disk(packs, result < 0 ? bytes : bytes - move->bytes);
	}
	return result;
}

static void link_name(const struct move *move, char ret_link[NAME_BYTES])
{
	snprintf(ret_link, NAME_BYTES, LINK_PREFIX "%" PRIu32, move->segment->number);
}

/* Removes a file. True: the file takes no space any more; false: its bytes remain charged. */
static bool remove_file(struct gcr_packs *packs, const char *path)
{
	int result = gcr_spill_remove_file(packs->account.spill, path);

	if (!result || result == -ENOENT)
		return true;
	gcr_log(LOG_WARNING, 0, "%s is not needed, and cannot be removed: %s", path,
		strerror(-result));
	return false;
}

/* Rolls back the move. */
static void undo(struct move *move)
{
	struct gcr_packs *packs = move->packs;
	char link[NAME_BYTES];

	if (move->has_link) {
		link_name(move, link);
		unlinkat(packs->fd, link, 0);
	}
	if (move->fd >= 0)
		close(TAKE_FD(move->fd));
	if (!move->path || remove_file(packs, move->path))
		gcr_packs_give_disk(packs, move->bytes);
	free(TAKE_PTR(move->path));
	GCR_PACKS_LOCK_SCOPE(packs);
	move->segment->is_busy = false;
	move->segment->is_sealed = false;
	gcr_packs_trim(packs);
}

/* Writes the data to the disk and drops it from memory; write errors may be reported only here. */
static int flush(int fd)
{
	if (fsync(fd) < 0)
		return -errno;
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return 0;
}

/* Number of consecutive pages with bytes from @page on, at most a buffer full. */
static uint32_t run_of(const uint16_t *pages, uint32_t page)
{
	uint32_t end = page;

	while (end < GCR_PACK_PAGE_COUNT && pages[end] & GCR_PACK_PAGE_THERE &&
	       (end - page) * GCR_PACK_PAGE_BYTES < BUFFER_BYTES)
		end++;
	return end - page;
}

/*
 * Makes the file one hole. -EOPNOTSUPP: the file system has no holes, and the file would take more
 * than was reserved.
 */
static int make_holes(const struct move *move)
{
	struct stat stat;

	if (ftruncate(move->fd, GCR_PACK_SEGMENT_BYTES) < 0 || fstat(move->fd, &stat) < 0)
		return -errno;
	return (uint64_t)stat.st_blocks * 512 > move->bytes ? -EOPNOTSUPP : 0;
}

static int copy_pages(const struct move *move)
{
	_cleanup_free_ char *buffer = malloc(BUFFER_BYTES);
	size_t dirty_bytes = 0;
	int result = buffer ? 0 : -ENOMEM;

	if (!result)
		result = make_holes(move);
	for (uint32_t page = 0; page < GCR_PACK_PAGE_COUNT && !result;) {
		uint32_t count = run_of(move->pages, page);
		size_t size = (size_t)count * GCR_PACK_PAGE_BYTES;
		uint64_t at = (uint64_t)page * GCR_PACK_PAGE_BYTES;
		ssize_t got;

		page += count ? count : 1;
		if (!count)
			continue;
		/* Not through the mapping: access to an unused page would allocate the page. */
		got = gcr_pread_all(move->segment->fd, buffer, size, at);
		if (got < 0)
			result = (int)got;
		else if ((size_t)got < size)
			result = -EIO;
		else
			result = gcr_pwrite_all(move->fd, buffer, size, at);
		dirty_bytes += size;
		if (!result && dirty_bytes >= DIRTY_BYTES) {
			result = flush(move->fd);
			dirty_bytes = 0;
		}
	}
	return result < 0 ? result : flush(move->fd);
}

/* Creates the link before any copying: a full store may have no room for it. */
static int make_link(struct move *move)
{
	char link[NAME_BYTES];

	link_name(move, link);
	if (unlinkat(move->packs->fd, link, 0) < 0 && errno != ENOENT)
		return -errno;
	if (symlinkat(move->path, move->packs->fd, link) < 0)
		return -errno;
	move->has_link = true;
	return 0;
}

/*
 * Replaces the file by the link: from now on the copy is the segment, for later daemons and
 * workers.
 */
static int put_link(struct move *move)
{
	char link[NAME_BYTES];
	char name[NAME_BYTES];

	link_name(move, link);
	snprintf(name, sizeof(name), "%" PRIu32, move->segment->number);
	if (renameat(move->packs->fd, link, move->packs->fd, name) < 0)
		return -errno;
	move->has_link = false;
	return 0;
}

/* Makes the copy the segment for this daemon, too. */
static void switch_over(struct move *move)
{
	struct gcr_packs *packs = move->packs;
	struct gcr_pack_segment *segment = move->segment;
	void *map;
	int fd;

	gcr_packs_lock(packs);
	map = segment->map;
	fd = segment->fd;
	segment->map = NULL;
	segment->fd = TAKE_FD(move->fd);
	segment->path = TAKE_PTR(move->path);
	while (segment->readers)
		pthread_cond_wait(&packs->changed, &packs->lock);
	pthread_mutex_unlock(&packs->lock);

	/* Frees the memory before it is counted as free. */
	munmap(map, GCR_PACK_SEGMENT_BYTES);
	close(fd);

	gcr_packs_lock(packs);
	gcr_packs_give(packs, move->bytes);
	segment->is_busy = false;
	gcr_packs_trim(packs);
	pthread_mutex_unlock(&packs->lock);
}

static int copy(struct move *move)
{
	int result;

	move->fd = gcr_spill_create_file(move->packs->account.spill, move->packs->uid,
					 move->segment->number, &move->path);
	result = move->fd < 0 ? move->fd : make_link(move);
	if (!result)
		result = copy_pages(move);
	return result < 0 ? result : put_link(move);
}

static int explain(int result, struct gcr_error *error)
{
	const char *why =
		result == -EPERM
			? "others could read it there: the file system has no owners and modes"
		: result == -EOPNOTSUPP ? "the file system has no files with holes"
					: strerror(-result);

	return gcr_error_set(error, -result, "packed VRAM cannot be moved to the disk: %s", why);
}

int gcr_packs_spill(struct gcr_packs *packs, uint32_t number, uint64_t *ret_freed_bytes,
		    struct gcr_error *error)
{
	_cleanup_free_ uint16_t *pages = malloc(GCR_PACK_PAGE_COUNT * sizeof(*pages));
	struct move move = {.packs = packs, .pages = pages, .fd = -1};
	uint64_t moved_bytes;
	int result;

	if (!gcr_spill_is_on(packs->account.spill))
		return gcr_error_set(error, EOPNOTSUPP,
				     "there is no directory for it (see spill in gpucrfs(8))");
	if (!pages)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = promise_and_begin(&move, number, error);
	if (result == -ENOENT) {
		*ret_freed_bytes = 0;
		return 0;
	}
	if (result < 0)
		return result;
	moved_bytes = move.bytes;
	result = copy(&move);
	if (result < 0) {
		undo(&move);
		return explain(result, error);
	}
	switch_over(&move);
	*ret_freed_bytes = moved_bytes;
	return 0;
}

int gcr_packs_spilled(struct gcr_packs *packs, uint32_t **ret_numbers, size_t *ret_count)
{
	uint32_t *numbers;
	size_t count = 0;

	GCR_PACKS_LOCK_SCOPE(packs);
	numbers = calloc(packs->segments_count + 1, sizeof(*numbers));
	if (!numbers)
		return -ENOMEM;
	for (size_t i = 0; i < packs->segments_count; i++)
		if (packs->segments[i]->path)
			numbers[count++] = packs->segments[i]->number;
	*ret_numbers = numbers;
	*ret_count = count;
	return 0;
}

/* ---- freeing disk space ---- */

/* A segment on the disk that is not busy and may have unused pages; NULL: none. Lock: packs. */
static struct gcr_pack_segment *find_loose_locked(struct gcr_packs *packs)
{
	for (size_t i = 0; i < packs->segments_count && packs->is_known; i++) {
		struct gcr_pack_segment *segment = packs->segments[i];

		if (segment->path && !segment->is_busy && gcr_pack_segment_is_loose(segment))
			return segment;
	}
	return NULL;
}

/*
 * Punches holes for unused pages, without the lock: chunks are never added there again. Pages that
 * are holes now are cleared in @pages, the others keep their marks.
 */
static void punch_pages(const struct gcr_pack_segment *segment, uint16_t *pages, uint32_t first,
			uint32_t end)
{
	for (uint32_t page = first; page < end;) {
		uint32_t next = page;

		while (next < end && pages[next - first] == GCR_PACK_PAGE_THERE)
			next++;
		if (next > page && !gcr_pack_segment_punch(segment, page, next))
			memset(&pages[page - first], 0, (next - page) * sizeof(*pages));
		page = next > page ? next : page + 1;
	}
}

/* Takes over the new state of the pages of a busy segment from @first on. Lock: packs. */
static void take_over_pages_locked(struct gcr_packs *packs, struct gcr_pack_segment *segment,
				   const uint16_t *pages, uint32_t first, uint32_t end)
{
	uint64_t count = 0;

	for (uint32_t page = first; page < end; page++)
		if (segment->pages[page] == GCR_PACK_PAGE_THERE && !pages[page - first]) {
			segment->pages[page] = 0;
			count++;
		}
	segment->pages_there -= count;
	gcr_packs_give_disk(packs, count * GCR_PACK_PAGE_BYTES);
}

/*
 * Punches holes for the unused pages of a segment on the disk. Lock: packs, which is released and
 * taken again.
 */
static void trim_locked(struct gcr_packs *packs, struct gcr_pack_segment *segment)
{
	uint32_t first = segment->loose_first;
	uint32_t end = segment->loose_end;
	_cleanup_free_ uint16_t *pages = malloc((end - first) * sizeof(*pages));

	segment->loose_first = segment->loose_end = 0;
	/* The pages are then freed with the whole file, or at the next start. */
	if (!pages || segment->fd < 0)
		return;
	memcpy(pages, &segment->pages[first], (end - first) * sizeof(*pages));
	segment->is_busy = true;
	pthread_mutex_unlock(&packs->lock);
	punch_pages(segment, pages, first, end);
	gcr_packs_lock(packs);
	take_over_pages_locked(packs, segment, pages, first, end);
	segment->is_busy = false;
	gcr_packs_trim(packs);
}

/* Removes an unused file. Called without the lock. */
static void remove_gone(struct gcr_packs *packs, struct gcr_pack_segment *segment)
{
	bool is_away = segment->fd < 0;

	/* On a network file system removing an open file would only rename it. */
	if (!is_away)
		close(TAKE_FD(segment->fd));
	if (gcr_spill_is_path(segment->path, packs->uid, segment->number)) {
		if (is_away)
			gcr_log(LOG_NOTICE, 0, "%s is not needed, and stays where it is not seen",
				segment->path);
		if (remove_file(packs, segment->path))
			gcr_packs_give_disk(packs, segment->pages_there * GCR_PACK_PAGE_BYTES);
	}
	gcr_pack_segment_close(segment);
}

/* The trimmer thread: works until there is nothing to do. */
static void *trim_all(void *data)
{
	struct gcr_packs *packs = data;
	struct gcr_pack_segment *segment;

	GCR_PACKS_LOCK_SCOPE(packs);
	for (;;) {
		segment = packs->gone;
		if (segment) {
			packs->gone = segment->next_gone;
			pthread_mutex_unlock(&packs->lock);
			remove_gone(packs, segment);
			gcr_packs_lock(packs);
			continue;
		}
		segment = find_loose_locked(packs);
		if (!segment)
			break;
		trim_locked(packs, segment);
	}
	packs->is_trimming = false;
	pthread_cond_broadcast(&packs->changed);
	return NULL;
}

/* Joins a trimmer that has finished and no longer needs the lock. Lock: packs. */
static void join_locked(struct gcr_packs *packs)
{
	if (packs->has_trimmer)
		pthread_join(packs->trimmer, NULL);
	packs->has_trimmer = false;
}

void gcr_packs_trim_disk_locked(struct gcr_packs *packs)
{
	if (packs->is_trimming || (!packs->gone && !find_loose_locked(packs)))
		return;
	join_locked(packs);
	/* Without a thread the space is freed at a later drop, or by the next daemon. */
	packs->has_trimmer = !pthread_create(&packs->trimmer, NULL, trim_all, packs);
	packs->is_trimming = packs->has_trimmer;
}

void gcr_packs_wait_disk(struct gcr_packs *packs)
{
	GCR_PACKS_LOCK_SCOPE(packs);
	while (packs->is_trimming)
		pthread_cond_wait(&packs->changed, &packs->lock);
	join_locked(packs);
}

void gcr_packs_finish_disk(struct gcr_packs *packs)
{
	if (packs->has_trimmer)
		pthread_join(packs->trimmer, NULL);
	while (packs->gone) {
		struct gcr_pack_segment *segment = packs->gone;

		packs->gone = segment->next_gone;
		gcr_packs_give_disk(packs, segment->pages_there * GCR_PACK_PAGE_BYTES);
		gcr_pack_segment_close(segment);
	}
}
