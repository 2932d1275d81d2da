/* SPDX-License-Identifier: MIT */
/* Files in transit, named by their extent's index, and the threads that copy them. */
#include "fs/transit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/log.h"
#include "fs/store_private.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/proc_cgroup.h"

#define THREADS_MAX  8
/* A thread for each so many bytes, and what it takes at a time. */
#define SHARE_BYTES  (64ull << 20)
#define PIECE_BYTES  (32ull << 20)
#define BUFFER_BYTES (1ull << 20) /* stays in a processor's cache */
#define NAME_BYTES   24
#define LOOK_USEC    (50 * GCR_USEC_PER_MSEC)

struct gcr_transit {
	/* fixed for life */
	struct gcr_snapshot *snapshot; /* a reference */
	size_t first;
	int fd; /* the directory; -1: the files are the store's own */

	/* of the copy */
	pthread_t threads[THREADS_MAX];
	unsigned int threads_count;
	unsigned int running_count; /* of these, that have not come to their end; lock */
	pthread_cond_t ended;	    /* with lock */
	enum gcr_transit_way way;
	atomic_bool is_over; /* nothing more is to be copied: it has failed, or is given up */

	pthread_mutex_t lock; /* guards what follows */
	size_t next;	      /* the extent, and from where */
	uint64_t offset;
	struct gcr_error error;
};

static void file_name(size_t index, char ret_name[NAME_BYTES])
{
	snprintf(ret_name, NAME_BYTES, "%zu", index);
}

static int open_named(const struct gcr_transit *transit, size_t index, int flags)
{
	char name[NAME_BYTES];
	int fd;

	file_name(index, name);
	fd = openat(transit->fd, name, flags | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

static uint64_t bytes_of(const struct gcr_transit *transit, size_t index)
{
	return transit->snapshot->extents[index].bytes;
}

/* ---- making them ---- */

/* What its files are rounded up to counts in the store as well. */
static uint64_t size_of(const struct gcr_transit *transit)
{
	uint64_t bytes = 0;

	for (size_t i = transit->first; i < transit->snapshot->count; i++)
		bytes += gcr_store_cost(bytes_of(transit, i));
	return bytes;
}

static uint64_t resident_bytes(const struct gcr_transit *transit)
{
	uint64_t bytes = 0;
	struct stat stat;

	for (size_t i = transit->first; i < transit->snapshot->count; i++)
		if (!gcr_snapshot_stat(transit->snapshot, i, &stat))
			bytes += (uint64_t)stat.st_blocks * 512;
	return bytes;
}

static int check_room_of(pid_t pid, uint64_t needed, struct gcr_error *error)
{
	_cleanup_free_ char *what = NULL;
	uint64_t room;

	if (gcr_proc_memory_room(pid, &room, &what) < 0 || room >= needed)
		return 0;
	return gcr_error_set(error, ENOMEM,
			     "to move its managed memory takes %" PRIu64
			     " MiB of memory for a moment, but %s leaves %" PRIu64 " MiB",
			     needed >> 20, what, room >> 20);
}

/* On the way out nobody has the memory yet: it is the program that fills it, and we the store. */
static int check_memory(const struct gcr_transit *transit, enum gcr_transit_way way,
			struct gcr_error *error)
{
	uint64_t bytes = size_of(transit);
	int result;

	if (way == GCR_TRANSIT_IN)
		return check_room_of(getpid(), resident_bytes(transit), error);
	result = check_room_of(transit->snapshot->pid, bytes, error);
	return result ? result : check_room_of(getpid(), 2 * bytes, error);
}

static int make_files(const struct gcr_transit *transit)
{
	for (size_t i = transit->first; i < transit->snapshot->count; i++) {
		_cleanup_close_ int fd = open_named(transit, i, O_RDWR | O_CREAT | O_EXCL);

		if (fd < 0)
			return fd;
		if (ftruncate(fd, (off_t)bytes_of(transit, i)) < 0)
			return -errno;
	}
	return 0;
}

int gcr_transit_create(struct gcr_snapshot *snapshot, size_t first, enum gcr_transit_way way,
		       struct gcr_transit **ret_transit, struct gcr_error *error)
{
	struct gcr_transit *transit = calloc(1, sizeof(*transit));
	int result = 0;

	if (!transit)
		return gcr_error_set(error, ENOMEM, "out of memory");
	transit->snapshot = gcr_snapshot_ref(snapshot);
	transit->first = first;
	transit->fd = -1;
	atomic_init(&transit->is_over, false);
	pthread_mutex_init(&transit->lock, NULL);
	pthread_cond_init(&transit->ended, NULL);
	if (gcr_transit_is_apart(snapshot) && first < snapshot->count) {
		result = check_memory(transit, way, error);
		if (!result) {
			result = gcr_store_mount_apart(snapshot->store, size_of(transit),
						       &transit->fd);
			if (!result)
				result = make_files(transit);
			if (result < 0)
				gcr_error_set(error, -result,
					      "files for its managed memory cannot be made: %s",
					      strerror(-result));
		}
	}
	if (result < 0) {
		gcr_transit_destroy(transit, false);
		return result;
	}
	*ret_transit = transit;
	return 0;
}

int gcr_transit_open(const struct gcr_transit *transit, size_t index)
{
	return transit->fd < 0 ? gcr_snapshot_open_file(transit->snapshot, index, true)
			       : open_named(transit, index, O_RDWR);
}

/* ---- copying ---- */

/* A piece of one extent's file. */
struct piece {
	size_t index;
	uint64_t offset;
	uint64_t end;
};

static bool next_piece(struct gcr_transit *transit, struct piece *ret_piece)
{
	uint64_t bytes;
	GCR_LOCK_SCOPE(&transit->lock);

	if (atomic_load(&transit->is_over) || transit->next == transit->snapshot->count)
		return false;
	bytes = bytes_of(transit, transit->next);
	*ret_piece = (struct piece){.index = transit->next, .offset = transit->offset};
	ret_piece->end = bytes - transit->offset > PIECE_BYTES ? transit->offset + PIECE_BYTES
							       : bytes;
	transit->offset = ret_piece->end;
	if (transit->offset == bytes) {
		transit->next++;
		transit->offset = 0;
	}
	return true;
}

static int copy_data(int from_fd, int to_fd, uint64_t offset, uint64_t end, char *buffer)
{
	while (offset < end) {
		size_t size = end - offset < BUFFER_BYTES ? (size_t)(end - offset) : BUFFER_BYTES;
		ssize_t got = pread(from_fd, buffer, size, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -EIO;
		for (ssize_t at = 0; at < got;) {
			ssize_t put =
				pwrite(to_fd, buffer + at, (size_t)(got - at), (off_t)offset + at);

			if (put < 0 && errno == EINTR)
				continue;
			if (put <= 0)
				return put < 0 ? -errno : -EIO;
			at += put;
		}
		offset += (uint64_t)got;
	}
	return 0;
}

/*
 * What is a hole there is one here, whatever was here before. The other side may change while it is
 * looked at, and is never taken at its word for where to go on.
 */
static int copy_piece(int from_fd, int to_fd, uint64_t offset, uint64_t end, char *buffer)
{
	int result = 0;

	while (offset < end && !result) {
		off_t data = lseek(from_fd, (off_t)offset, SEEK_DATA);
		uint64_t first = data < (off_t)offset || (uint64_t)data > end ? end
									      : (uint64_t)data;
		off_t hole;

		if (data < 0 && errno != ENXIO)
			return -errno;
		if (first > offset && fallocate(to_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
						(off_t)offset, (off_t)(first - offset)) < 0)
			return -errno;
		if (first == end)
			break;
		hole = lseek(from_fd, (off_t)first, SEEK_HOLE);
		offset = hole <= (off_t)first || (uint64_t)hole > end ? end : (uint64_t)hole;
		result = copy_data(from_fd, to_fd, first, offset, buffer);
	}
	return result;
}

static int copy_one(struct gcr_transit *transit, const struct piece *piece, char *buffer)
{
	bool is_out = transit->way == GCR_TRANSIT_OUT;
	_cleanup_close_ int inside_fd =
		gcr_snapshot_open_file(transit->snapshot, piece->index, is_out);
	_cleanup_close_ int outside_fd = open_named(transit, piece->index, O_RDWR);
	int from_fd = is_out ? outside_fd : inside_fd;
	struct stat stat;

	if (inside_fd < 0 || outside_fd < 0)
		return inside_fd < 0 ? inside_fd : outside_fd;
	if (fstat(from_fd, &stat) < 0)
		return -errno;
	/* Past its end all would be a hole. */
	if ((uint64_t)stat.st_size < piece->end)
		return -EIO;
	return copy_piece(from_fd, is_out ? inside_fd : outside_fd, piece->offset, piece->end,
			  buffer);
}

static void note_failure(struct gcr_transit *transit, size_t index, int result)
{
	char name[GCR_EXTENT_NAME_BYTES];
	GCR_LOCK_SCOPE(&transit->lock);

	gcr_extent_name(&transit->snapshot->extents[index], name);
	if (!transit->error.number)
		gcr_error_set(&transit->error, -result, "vram/%s cannot be copied %s the store: %s",
			      name, transit->way == GCR_TRANSIT_OUT ? "to" : "from",
			      result == -EIO ? "its file has been cut" : strerror(-result));
	atomic_store(&transit->is_over, true);
}

static void *copy_all(void *data)
{
	struct gcr_transit *transit = data;
	_cleanup_free_ char *buffer = malloc(BUFFER_BYTES);
	struct piece piece;

	while (next_piece(transit, &piece)) {
		int result = buffer ? copy_one(transit, &piece, buffer) : -ENOMEM;

		if (result < 0)
			note_failure(transit, piece.index, result);
	}
	GCR_LOCK_SCOPE(&transit->lock);
	transit->running_count--;
	pthread_cond_broadcast(&transit->ended);
	return NULL;
}

static int start_thread(struct gcr_transit *transit)
{
	GCR_LOCK_SCOPE(&transit->lock);
	int result =
		pthread_create(&transit->threads[transit->threads_count], NULL, copy_all, transit);

	if (result)
		return -result;
	transit->threads_count++;
	transit->running_count++;
	return 0;
}

int gcr_transit_begin(struct gcr_transit *transit, enum gcr_transit_way way)
{
	uint64_t shares;
	unsigned int most;

	if (transit->fd < 0)
		return 0;
	shares = size_of(transit) / SHARE_BYTES + 1;
	most = transit->snapshot->store->threads_max;
	if (most > THREADS_MAX)
		most = THREADS_MAX;
	if (most > shares)
		most = (unsigned int)shares;
	transit->way = way;
	transit->next = transit->first;
	transit->offset = 0;
	transit->error = (struct gcr_error){0};
	atomic_store(&transit->is_over, false);
	while (transit->threads_count < most || !transit->threads_count) {
		int result = start_thread(transit);

		if (result < 0 && !transit->threads_count)
			return result;
		if (result < 0)
			break;
	}
	return 0;
}

int gcr_transit_end(struct gcr_transit *transit, bool (*is_to_stop)(void *data), void *data,
		    struct gcr_error *error)
{
	bool is_stopped = false;

	pthread_mutex_lock(&transit->lock);
	while (transit->running_count) {
		int64_t until_usec = gcr_clock_usec() + LOOK_USEC;
		const struct timespec until = {
			.tv_sec = (time_t)(until_usec / GCR_USEC_PER_SEC),
			.tv_nsec = (long)(until_usec % GCR_USEC_PER_SEC) * 1000,
		};

		if (pthread_cond_clockwait(&transit->ended, &transit->lock, CLOCK_MONOTONIC,
					   &until) != ETIMEDOUT ||
		    is_stopped || !is_to_stop)
			continue;
		pthread_mutex_unlock(&transit->lock);
		is_stopped = is_to_stop(data);
		if (is_stopped)
			atomic_store(&transit->is_over, true);
		pthread_mutex_lock(&transit->lock);
	}
	pthread_mutex_unlock(&transit->lock);
	while (transit->threads_count)
		pthread_join(transit->threads[--transit->threads_count], NULL);
	if (is_stopped && !transit->error.number)
		return gcr_error_set(error, ECANCELED,
				     "the copy of its managed memory was given up");
	if (!transit->error.number)
		return 0;
	*error = transit->error;
	return -transit->error.number;
}

/* ---- the end ---- */

/*
 * The memory that we have put into them goes. What a library writes to one that it keeps is its
 * own, as in a memfd.
 */
static void empty(const struct gcr_transit *transit)
{
	for (size_t i = transit->first; i < transit->snapshot->count; i++) {
		_cleanup_close_ int fd = open_named(transit, i, O_RDWR);
		char name[NAME_BYTES];

		file_name(i, name);
		if (fd >= 0 && ftruncate(fd, 0) < 0)
			gcr_log(LOG_WARNING, transit->snapshot->pid,
				"what its managed memory had on the way cannot be freed: %s",
				strerror(errno));
		unlinkat(transit->fd, name, 0);
	}
}

void gcr_transit_stop(struct gcr_transit *transit)
{
	struct gcr_error unused;

	atomic_store(&transit->is_over, true);
	gcr_transit_end(transit, NULL, NULL, &unused);
}

bool gcr_transit_is_apart(const struct gcr_snapshot *snapshot)
{
	return snapshot->store->mountpoint;
}

void gcr_transit_destroy(struct gcr_transit *transit, bool keeps)
{
	if (!transit)
		return;
	gcr_transit_stop(transit);
	if (transit->fd >= 0) {
		if (!keeps)
			empty(transit);
		close(transit->fd);
	}
	gcr_snapshot_unref(transit->snapshot);
	pthread_cond_destroy(&transit->ended);
	pthread_mutex_destroy(&transit->lock);
	free(transit);
}
