/* SPDX-License-Identifier: MIT */
/* Transit files, named by their extent's index, and the threads that copy them. */
#include "fs/engine/transit.h"

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

#include "fs/engine/emptying.h"
#include "fs/store/inodes.h"
#include "fs/store/store_private.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/full_io.h"
#include "lib/lock.h"
#include "lib/pack.h"
#include "lib/proc_cgroup.h"

#define THREADS_MAX   8
/*
 * SHARE_BYTES: as many bytes justify one more thread. PIECE_BYTES: a thread takes as many at a
 * time.
 */
#define SHARE_BYTES   (64ull << 20)
#define PIECE_BYTES   (32ull << 20)
#define BUFFER_BYTES  (1ull << 20) /* fits into a processor's cache */
#define GRAIN_BYTES   (64u << 10)  /* least run of zeros that becomes a hole */
#define NAME_BYTES    24
/* How many files are made before the descriptors in use are counted again. */
#define FILES_CHECKED 64
#define LOOK_USEC     (50 * GCR_USEC_PER_MSEC)

struct gcr_transit {
	/* constant after creation */
	struct gcr_snapshot *snapshot; /* a reference */
	size_t first;
	uid_t uid; /* the user to whom the process counts */
	int fd;	   /* the directory; -1: the files are the store's own */
	/*
	 * Descriptors of the files from @first on, kept until the end: while the daemon has a file
	 * open for writing, no library can take a lease on it, for which another open(2) would have
	 * to wait.
	 */
	int *fds;
	size_t fds_count;
	unsigned int *openings; /* pieces of each file that are copied back; guarded by lock */

	/* the copy */
	pthread_t threads[THREADS_MAX];
	unsigned int threads_count;
	unsigned int running_count; /* threads that have not ended; guarded by lock */
	pthread_cond_t ended;	    /* used with lock */
	enum gcr_transit_way way;
	atomic_bool is_over;   /* stop copying: the copy has failed, or is given up */
	bool is_counted;       /* taken_bytes are yet to be recounted */
	uint64_t before_bytes; /* of the store's files, when the copy began */

	pthread_mutex_t lock; /* guards the following fields */
	uint64_t taken_bytes; /* room that was taken for the copy */
	size_t next;	      /* extent and offset of the next piece */
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

/* ---- creating the files ---- */

/* Sum of the sizes in bytes, each file's rounded up as in the store. */
static uint64_t size_of(const struct gcr_transit *transit)
{
	uint64_t bytes = 0;

	for (size_t i = transit->first; i < transit->snapshot->count; i++)
		bytes += gcr_store_cost(bytes_of(transit, i));
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

/*
 * Is there host memory for the copy? -ENOMEM. In a freeze no memory is allocated yet: the program
 * fills the transit files, the daemon those of the store.
 */
static int check_memory(const struct gcr_transit *transit, enum gcr_transit_way way,
			struct gcr_error *error)
{
	uint64_t bytes = size_of(transit);
	int result;

	if (way == GCR_TRANSIT_IN)
		return check_room_of(getpid(),
				     gcr_snapshot_files_bytes(transit->snapshot, transit->first),
				     error);
	result = check_room_of(transit->snapshot->pid, bytes, error);
	return result ? result : check_room_of(getpid(), 2 * bytes, error);
}

/* Makes the empty files and their descriptors. Sets @error. */
static int make_files(struct gcr_transit *transit, struct gcr_quota *quota, struct gcr_error *error)
{
	size_t count = transit->snapshot->count - transit->first;
	int result = 0;

	transit->fds = calloc(count, sizeof(*transit->fds));
	transit->openings = calloc(count, sizeof(*transit->openings));
	if (!transit->fds || !transit->openings)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < count; i++) {
		size_t left = count - i;
		int fd;

		/* Other verbs make files at the same time. */
		if (i % FILES_CHECKED == 0)
			result = gcr_quota_check_descriptors(
				quota, transit->uid, left < FILES_CHECKED ? left : FILES_CHECKED,
				error);
		if (result < 0)
			return result;
		fd = open_named(transit, transit->first + i, O_RDWR | O_CREAT | O_EXCL);
		if (fd >= 0)
			transit->fds[transit->fds_count++] = fd;
		if (fd < 0 || ftruncate(fd, (off_t)bytes_of(transit, transit->first + i)) < 0)
			return gcr_error_set(error, fd < 0 ? -fd : errno,
					     "files for its managed memory cannot be made: %s",
					     strerror(fd < 0 ? -fd : errno));
	}
	return 0;
}

static int make(struct gcr_transit *transit, enum gcr_transit_way way, struct gcr_quota *quota,
		struct gcr_error *error)
{
	const struct gcr_snapshot *snapshot = transit->snapshot;
	int result;

	if (!gcr_transit_is_apart(snapshot) || transit->first == snapshot->count)
		return 0;
	result = gcr_emptying_check(transit->uid, error);
	if (!result)
		result = check_memory(transit, way, error);
	if (result < 0)
		return result;
	result = gcr_store_mount_apart(snapshot->store, size_of(transit), &transit->fd);
	if (result < 0)
		return gcr_error_set(error, -result,
				     "files for its managed memory cannot be made: %s",
				     strerror(-result));
	return make_files(transit, quota, error);
}

int gcr_transit_create(struct gcr_snapshot *snapshot, size_t first, struct gcr_quota *quota,
		       uid_t uid, enum gcr_transit_way way, struct gcr_transit **ret_transit,
		       struct gcr_error *error)
{
	struct gcr_transit *transit = calloc(1, sizeof(*transit));
	int result;

	if (!transit)
		return gcr_error_set(error, ENOMEM, "out of memory");
	transit->snapshot = gcr_snapshot_ref(snapshot);
	transit->first = first;
	transit->uid = uid;
	transit->fd = -1;
	atomic_init(&transit->is_over, false);
	pthread_mutex_init(&transit->lock, NULL);
	pthread_cond_init(&transit->ended, NULL);
	result = make(transit, way, quota, error);
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

uint64_t gcr_transit_held_bytes(const struct gcr_transit *transit)
{
	uint64_t sum = 0;

	if (transit->fd < 0)
		return gcr_snapshot_files_bytes(transit->snapshot, transit->first);
	for (size_t i = 0; i < transit->fds_count; i++) {
		uint64_t most = bytes_of(transit, transit->first + i);
		struct stat stat;
		uint64_t held;

		if (fstat(transit->fds[i], &stat) < 0)
			continue;
		held = (uint64_t)stat.st_blocks * 512;
		sum += held < most ? held : most;
	}
	return sum;
}

/* ---- copying ---- */

/* A piece of one extent's file, which one thread copies. */
struct piece {
	size_t index;
	uint64_t offset;
	uint64_t end;
	bool keeps_memory;   /* the store's file may be mapped, so no hole is made in it */
	bool grows;	     /* room has to be taken before memory is allocated in it */
	bool is_shared;	     /* another subtree has counted the file as it is */
	uint64_t paid_until; /* for the pages before, room has been taken */
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

/*
 * Reads bytes of @fd from @offset up to @end, as many (*ret_bytes) as one read returns, and
 * BUFFER_BYTES at most. -EIO: end of file.
 */
static int read_some(int fd, char *buffer, uint64_t offset, uint64_t end, size_t *ret_bytes)
{
	size_t most = end - offset < BUFFER_BYTES ? end - offset : BUFFER_BYTES;
	ssize_t got;

	do
		got = pread(fd, buffer, most, (off_t)offset);
	while (got < 0 && errno == EINTR);
	if (got <= 0)
		return got < 0 ? -errno : -EIO;
	*ret_bytes = (size_t)got;
	return 0;
}

static int punch(int fd, uint64_t offset, uint64_t bytes)
{
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
			 (off_t)bytes) < 0
		       ? -errno
		       : 0;
}

/*
 * Length in bytes of the run of grains at the start of @buffer that are all zero (*ret_zero is
 * true) or all non-zero.
 */
static size_t run_of(const char *buffer, size_t bytes, bool *ret_zero)
{
	size_t end = 0;

	while (end < bytes) {
		size_t grain = bytes - end < GRAIN_BYTES ? bytes - end : GRAIN_BYTES;
		bool zero = gcr_pack_is_zero(buffer + end, grain);

		if (end && zero != *ret_zero)
			break;
		*ret_zero = zero;
		end += grain;
	}
	return end;
}

/*
 * Charges the store for the pages of its file @fd that the next write of @bytes at @offset will
 * allocate. -EDQUOT, -ENOSPC: there is no room; -EBUSY: the file is shared with another subtree;
 * -errno of lseek(2).
 */
static int pay(struct gcr_transit *transit, struct piece *piece, int fd, uint64_t offset,
	       uint64_t bytes)
{
	uint64_t first = offset / GCR_STORE_PAGE_BYTES * GCR_STORE_PAGE_BYTES;
	uint64_t end = gcr_store_cost(offset + bytes);
	off_t hole;
	int result;

	if (!piece->grows)
		return 0;
	if (first < piece->paid_until)
		first = piece->paid_until;
	if (first >= end)
		return 0;
	hole = lseek(fd, (off_t)offset, SEEK_HOLE);
	if (hole < 0 && errno != ENXIO)
		return -errno;
	if (hole >= 0 && (uint64_t)hole >= offset + bytes)
		return 0;
	if (piece->is_shared)
		return -EBUSY;
	result = gcr_snapshot_take_growth(transit->snapshot, end - first);
	if (result < 0)
		return result;
	piece->paid_until = end;
	GCR_LOCK_SCOPE(&transit->lock);
	transit->taken_bytes += end - first;
	return 0;
}

/*
 * Copies from a file that a library may have open for writing. Only read(2) takes no lock that the
 * library can hold for ever: lseek(2) and all calls that change the file take the inode's lock,
 * which a write holds while it reads the writer's memory. Therefore zeros are found in the bytes
 * read, and become holes in the store, whatever was there before.
 */
static int copy_out(struct gcr_transit *transit, int from_fd, int to_fd, struct piece *piece,
		    char *buffer)
{
	uint64_t offset = piece->offset;
	int result = 0;

	while (offset < piece->end && !result) {
		size_t bytes = 0, run;

		result = read_some(from_fd, buffer, offset, piece->end, &bytes);
		for (size_t at = 0; at < bytes && !result; at += run) {
			bool zero = false;

			run = run_of(buffer + at, bytes - at, &zero);
			if (zero) {
				result = piece->keeps_memory
						 ? gcr_store_write_zeros(to_fd, offset + at,
									 offset + at + run, NULL)
						 : punch(to_fd, offset + at, run);
				continue;
			}
			result = pay(transit, piece, to_fd, offset + at, run);
			if (!result)
				result = gcr_pwrite_all(to_fd, buffer + at, run, offset + at);
		}
		offset += bytes;
	}
	return result;
}

/* Copies from the store's file into an empty one that no library has yet: holes stay holes. */
static int copy_in(int from_fd, int to_fd, const struct piece *piece, char *buffer)
{
	uint64_t offset = piece->offset;
	int result = 0;

	while (offset < piece->end && !result) {
		off_t data = lseek(from_fd, (off_t)offset, SEEK_DATA);
		off_t hole = data < 0 ? -1 : lseek(from_fd, data, SEEK_HOLE);
		uint64_t end;

		if (data < 0)
			return errno == ENXIO ? 0 : -errno;
		if (hole < 0)
			return -errno;
		end = (uint64_t)hole < piece->end ? (uint64_t)hole : piece->end;
		for (offset = (uint64_t)data; offset < end && !result;) {
			size_t bytes = 0;

			result = read_some(from_fd, buffer, offset, end, &bytes);
			if (!result)
				result = gcr_pwrite_all(to_fd, buffer, bytes, offset);
			offset += bytes;
		}
	}
	return result;
}

/*
 * Enters the file as open into the table of inodes: once, however many of its pieces are copied at
 * a time.
 */
static int open_back(struct gcr_transit *transit, const struct piece *piece, int to_fd)
{
	unsigned int *openings = &transit->openings[piece->index - transit->first];
	int result = 0;
	GCR_LOCK_SCOPE(&transit->lock);

	if (!*openings)
		result = gcr_inodes_open(to_fd);
	if (!result)
		++*openings;
	return result;
}

static void close_back(struct gcr_transit *transit, const struct piece *piece, int to_fd)
{
	bool is_last;

	pthread_mutex_lock(&transit->lock);
	is_last = !--transit->openings[piece->index - transit->first];
	if (is_last)
		gcr_inodes_leave(to_fd);
	pthread_mutex_unlock(&transit->lock);
	if (is_last)
		gcr_inodes_close(to_fd, &(struct gcr_inodes_bytes){0});
}

/*
 * Copies into a file of the store that users may have open. The table of inodes counts the file as
 * open until the piece is copied, so that no user begins to map the file during the copy.
 */
static int copy_back(struct gcr_transit *transit, int from_fd, int to_fd, struct piece *piece,
		     char *buffer)
{
	struct stat stat;
	int result = open_back(transit, piece, to_fd);

	if (result < 0)
		return result;
	if (fstat(to_fd, &stat) < 0)
		result = -errno;
	piece->grows = true;
	piece->is_shared = !result && (stat.st_nlink != 1 || gcr_inodes_subtrees(&stat) > 2);
	piece->keeps_memory = !result && (piece->is_shared || gcr_inodes_is_passed(&stat));
	if (!result)
		result = copy_out(transit, from_fd, to_fd, piece, buffer);
	close_back(transit, piece, to_fd);
	return result;
}

static int copy_one(struct gcr_transit *transit, struct piece *piece, char *buffer)
{
	bool is_out = transit->way != GCR_TRANSIT_IN;
	_cleanup_close_ int inside_fd =
		gcr_snapshot_open_file(transit->snapshot, piece->index, is_out);
	int outside_fd = transit->fds[piece->index - transit->first];
	struct stat stat;

	if (inside_fd < 0)
		return inside_fd;
	if (transit->way == GCR_TRANSIT_BACK)
		return copy_back(transit, outside_fd, inside_fd, piece, buffer);
	if (is_out)
		return copy_out(transit, outside_fd, inside_fd, piece, buffer);
	/* Past the end of the file everything would be a hole. */
	if (fstat(inside_fd, &stat) < 0)
		return -errno;
	if ((uint64_t)stat.st_size < piece->end)
		return -EIO;
	return copy_in(inside_fd, outside_fd, piece, buffer);
}

static void note_failure(struct gcr_transit *transit, size_t index, int result)
{
	char name[GCR_EXTENT_NAME_BYTES];
	GCR_LOCK_SCOPE(&transit->lock);

	gcr_extent_name(&transit->snapshot->extents[index], name);
	if (!transit->error.number)
		gcr_error_set(&transit->error, -result, "vram/%s cannot be copied %s the store: %s",
			      name, transit->way == GCR_TRANSIT_IN ? "from" : "to",
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
	int result = 0;

	if (transit->fd < 0)
		return 0;
	if (way == GCR_TRANSIT_BACK)
		result = gcr_snapshot_begin_growth(transit->snapshot, transit->first,
						   &transit->before_bytes);
	if (result < 0)
		return result;
	transit->is_counted = way == GCR_TRANSIT_BACK;
	transit->taken_bytes = 0;
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
		result = start_thread(transit);
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
		if (gcr_cond_wait_until(&transit->ended, &transit->lock,
					gcr_clock_usec() + LOOK_USEC) == 0 ||
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
	if (transit->is_counted)
		gcr_snapshot_finish_growth(transit->snapshot, transit->first, transit->taken_bytes,
					   transit->before_bytes);
	transit->is_counted = false;
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
 * Does no other process have the file open, or a descriptor of it in a message? Only then the
 * kernel grants a lease.
 */
static bool is_ours_alone(int fd)
{
	return fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
}

/*
 * Closes the files; each is freed with its last descriptor. For files that the library keeps open,
 * unless @keeps, the memory that the daemon has put into them is freed by gpucr-empty; memory that
 * the library allocates in them later is its own, as in a memfd.
 */
static void close_files(struct gcr_transit *transit, bool keeps)
{
	bool is_kept = false;

	for (size_t i = 0; i < transit->fds_count; i++)
		is_kept = !is_ours_alone(transit->fds[i]) || is_kept;
	if (is_kept && !keeps)
		gcr_emptying_begin(transit->fd, transit->uid);
	for (size_t i = 0; i < transit->fds_count; i++)
		close(transit->fds[i]);
	free(transit->fds);
	free(transit->openings);
	close(transit->fd);
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
	if (transit->fd >= 0)
		close_files(transit, keeps);
	gcr_snapshot_unref(transit->snapshot);
	pthread_cond_destroy(&transit->ended);
	pthread_mutex_destroy(&transit->lock);
	free(transit);
}
