/* SPDX-License-Identifier: MIT */
/*
 * The files of a session. A cursor belongs to one thread.
 *
 * Pages that exist are written and read through mappings. A missing page must be zeroed first if it
 * is written through a mapping; not if write(2) fills all of it, but write(2) takes a lock of the
 * whole file. So missing pages are written by write(2) if no other thread is doing that to the same
 * file.
 */
#include "backend/worker/space.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/worker/nontemporal.h"
#include "backend/worker/packed.h"
#include "backend/worker/pin.h"
#include "lib/cleanup.h"
#include "lib/extent.h"
#include "lib/full_io.h"

#ifndef MADV_POPULATE_WRITE /* Linux 5.14, include/uapi/asm-generic/mman-common.h */
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

GCR_DEFINE_CLEANUP(struct gcr_space *, gcr_space_destroy);

int gcr_space_create(int table_fd, size_t count, int directory_fd, struct gcr_space **ret_space,
		     struct gcr_error *error)
{
	_cleanup_(gcr_space_destroy_cleanup) struct gcr_space *space = calloc(1, sizeof(*space));
	int r;

	if (!space)
		return gcr_error_set(error, ENOMEM, "out of memory");
	space->directory = space->tables = space->segments = -1;
	r = gcr_extents_read(table_fd, count, &space->extents, error);
	if (r < 0)
		return r;
	space->starts = calloc(count + 1, sizeof(*space->starts));
	space->writers = calloc(count + 1, sizeof(*space->writers));
	space->pinned = calloc(count + 1, sizeof(*space->pinned));
	if (!space->starts || !space->writers || !space->pinned)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < count; i++) {
		if (space->extents[i].kind != GCR_MEMORY_DEVICE)
			return gcr_error_set(error, EPROTO,
					     "managed memory does not go through the worker");
		space->starts[i + 1] = space->starts[i] + space->extents[i].bytes;
		atomic_flag_clear(&space->writers[i]);
	}
	space->count = count;
	space->directory = directory_fd;
	*ret_space = TAKE_PTR(space);
	return 0;
}

void gcr_space_destroy(struct gcr_space *space)
{
	if (!space)
		return;
	if (space->directory >= 0)
		close(space->directory);
	if (space->tables >= 0)
		close(space->tables);
	if (space->segments >= 0)
		close(space->segments);
	free(space->pinned);
	free(space->writers);
	free(space->starts);
	free(space->extents);
	free(space);
}

/* The extent that contains @offset. */
static size_t find(const struct gcr_space *space, uint64_t offset)
{
	size_t low = 0, high = space->count;

	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;

		if (space->starts[middle] <= offset)
			low = middle;
		else
			high = middle;
	}
	return low;
}

void gcr_space_find_pinned(struct gcr_space *space, struct gcr_pins *pins)
{
	for (size_t i = 0; i < space->count && pins; i++) {
		_cleanup_close_ int fd = -1;
		char name[GCR_EXTENT_NAME_BYTES];

		gcr_extent_name(&space->extents[i], name);
		fd = openat(space->directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
		if (fd >= 0)
			space->pinned[i] = gcr_pins_find(pins, fd, space->extents[i].bytes);
	}
}

bool gcr_space_all_pinned(const struct gcr_space *space)
{
	for (size_t i = 0; i < space->count; i++)
		if (!space->pinned[i])
			return false;
	return true;
}

size_t gcr_space_within(const struct gcr_space *space, uint64_t offset, size_t bytes)
{
	uint64_t left = space->starts[find(space, offset) + 1] - offset;

	return bytes < left ? bytes : left;
}

char *gcr_space_pinned(const struct gcr_space *space, uint64_t offset, size_t *bytes)
{
	size_t index = find(space, offset);

	if (!space->pinned[index])
		return NULL;
	*bytes = gcr_space_within(space, offset, *bytes);
	return space->pinned[index] + (offset - space->starts[index]);
}

void gcr_space_cursor_init(struct gcr_space_cursor *cursor, const struct gcr_space *space)
{
	*cursor = (struct gcr_space_cursor){.space = space, .fd = -1};
}

static void close_file(struct gcr_space_cursor *cursor)
{
	if (cursor->map)
		munmap(cursor->map, cursor->space->extents[cursor->index].bytes);
	if (cursor->fd >= 0)
		close(cursor->fd);
	cursor->map = NULL;
	cursor->fd = -1;
}

void gcr_space_cursor_finish(struct gcr_space_cursor *cursor)
{
	close_file(cursor);
	gcr_packed_destroy(cursor->packed);
	gcr_space_cursor_init(cursor, cursor->space);
}

static int fail(const struct gcr_space_cursor *cursor, int number, const char *what,
		struct gcr_error *error)
{
	char name[GCR_EXTENT_NAME_BYTES];

	gcr_extent_name(&cursor->space->extents[cursor->index], name);
	if (number == ENOSPC)
		return gcr_error_set(error, ENOSPC, "the store is full: %s cannot be %s", name,
				     what);
	return gcr_error_set(error, EIO, "%s in the store cannot be %s: %s", name, what,
			     number == EBADMSG ? "what is packed of it is damaged"
					       : strerror(number));
}

/* Selects the table of packed pieces of the file that the cursor has open. */
static int seek_packed(struct gcr_space_cursor *cursor, ino_t ino, struct gcr_error *error)
{
	const struct gcr_space *space = cursor->space;
	int r = 0;

	if (space->tables < 0)
		return 0;
	if (!cursor->packed)
		r = gcr_packed_create(space->tables, space->segments, &cursor->packed);
	if (r < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	r = gcr_packed_open(cursor->packed, ino, space->extents[cursor->index].bytes);
	if (r == 0)
		return 0;
	fail(cursor, -r, "read", error);
	close_file(cursor);
	return -EIO;
}

/* Makes the cursor have the file open that contains @offset. */
static int seek(struct gcr_space_cursor *cursor, uint64_t offset, bool write,
		struct gcr_error *error)
{
	const struct gcr_space *space = cursor->space;
	size_t index = find(space, offset);
	const struct gcr_extent *extent = &space->extents[index];
	char name[GCR_EXTENT_NAME_BYTES];
	struct stat status;
	void *map;

	if (cursor->fd >= 0 && cursor->index == index)
		return 0;
	close_file(cursor);
	cursor->index = index;
	gcr_extent_name(extent, name);
	cursor->fd = openat(space->directory, name,
			    (write ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (cursor->fd < 0)
		return fail(cursor, errno, "opened", error);
	if (fstat(cursor->fd, &status) < 0)
		return fail(cursor, errno, "opened", error);
	if (!S_ISREG(status.st_mode) || (uint64_t)status.st_size != extent->bytes) {
		close_file(cursor);
		return gcr_error_set(error, EIO,
				     "%s in the store has %" PRId64 " bytes, not %" PRIu64, name,
				     (int64_t)status.st_size, extent->bytes);
	}
	/*
	 * Reading a hole through the mapping would take memory that the store has not counted. The
	 * number of blocks does not tell, as there may be some beyond the end of the file.
	 */
	cursor->dense = !write && (uint64_t)status.st_blocks * 512 >= extent->bytes &&
			lseek(cursor->fd, 0, SEEK_HOLE) >= (off_t)extent->bytes;
	/* Without a mapping read(2) and write(2) are used. */
	map = mmap(NULL, extent->bytes, PROT_READ | (write ? PROT_WRITE : 0), MAP_SHARED,
		   cursor->fd, 0);
	if (map != MAP_FAILED)
		cursor->map = map;
	return seek_packed(cursor, status.st_ino, error);
}

static __thread sigjmp_buf bus_return;
static __thread volatile sig_atomic_t bus_expected;

static void on_bus_error(int number)
{
	if (bus_expected)
		siglongjmp(bus_return, 1);
	/* Not raised by our copy: the signal is raised again and ends the process. */
	signal(number, SIG_DFL);
}

void gcr_space_catch_bus_errors(void)
{
	struct sigaction action = {.sa_handler = on_bus_error, .sa_flags = SA_NODEFER};

	sigaction(SIGBUS, &action, NULL);
}

/*
 * Copies from or to a mapping after populating its pages. @advice: how madvise(2) populates them.
 * -errno: the pages cannot be had.
 */
static int copy_mapped(char *to, const char *from, size_t bytes, char *mapped, int advice,
		       void (*copy)(void *to, const void *from, size_t bytes))
{
	/* A missing page is an error here, but a signal at the first access to it. */
	if (madvise(mapped, bytes, advice) < 0)
		return -errno;
	if (sigsetjmp(bus_return, 0)) {
		bus_expected = 0;
		return -EIO;
	}
	bus_expected = 1;
	copy(to, from, bytes);
	bus_expected = 0;
	return 0;
}

static void cached_copy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

static int write_file(struct gcr_space_cursor *cursor, uint64_t at, const char *from, size_t bytes,
		      struct gcr_error *error)
{
	int result = gcr_pwrite_all(cursor->fd, from, bytes, at);

	return result < 0 ? fail(cursor, -result, "written", error) : 0;
}

static int read_file(struct gcr_space_cursor *cursor, uint64_t at, char *to, size_t bytes,
		     struct gcr_error *error)
{
	ssize_t got = gcr_pread_all(cursor->fd, to, bytes, at);

	if (got == (ssize_t)bytes)
		return 0;
	return fail(cursor, got < 0 ? (int)-got : ENODATA, "read", error);
}

/*
 * Is the range a hole, within the file? lseek(2) takes a lock of the whole file, and searches as
 * far as necessary; so this function is called only for files with holes.
 */
static bool is_hole(int fd, uint64_t at, size_t bytes)
{
	off_t data = lseek(fd, (off_t)at, SEEK_DATA);
	struct stat status;

	if (data >= 0)
		return (uint64_t)data >= at + bytes;
	return errno == ENXIO && fstat(fd, &status) == 0 && (uint64_t)status.st_size >= at + bytes;
}

/* Is the page at @at of a mapping missing from memory? Takes no lock of the file. */
static bool is_fresh(char *at)
{
	unsigned char there;

	return mincore(at, 1, &there) == 0 && !(there & 1);
}

/* Writes @bytes at @at of the open file. */
static int write_here(struct gcr_space_cursor *cursor, uint64_t at, const char *from, size_t bytes,
		      struct gcr_error *error)
{
	atomic_flag *writer = &cursor->space->writers[cursor->index];
	struct stat status;
	size_t done = 0;
	int r;

	if (cursor->map && is_fresh(cursor->map + at) && !atomic_flag_test_and_set(writer)) {
		r = write_file(cursor, at, from, bytes, error);
		atomic_flag_clear(writer);
		return r;
	}
	for (size_t part; cursor->map && done < bytes; done += part) {
		char *to = cursor->map + at + done;

		part = GCR_SPACE_PIECE_BYTES - (at + done) % GCR_SPACE_PIECE_BYTES;
		if (part > bytes - done)
			part = bytes - done;
		/* A page that has just been zeroed is in the cache. */
		r = copy_mapped(to, from + done, part, to, MADV_POPULATE_WRITE,
				is_fresh(to) ? cached_copy : gcr_nontemporal_write);
		if (r < 0)
			break;
	}
	if (done == bytes)
		return 0;
	if (fstat(cursor->fd, &status) < 0 || (uint64_t)status.st_size < at + bytes)
		return fail(cursor, ENODATA, "written", error);
	/* write(2) either returns the cause or succeeds: kernels before 5.14 cannot populate. */
	return write_file(cursor, at + done, from + done, bytes - done, error);
}

/* Reads one piece of the open file, or sets *ret_hole. */
static int read_here(struct gcr_space_cursor *cursor, uint64_t at, char *to, size_t bytes,
		     bool *ret_hole, struct gcr_error *error)
{
	enum gcr_packed_what what = GCR_PACKED_NOT;
	int r = 0;

	if (cursor->packed)
		r = gcr_packed_read(cursor->packed, at / GCR_SPACE_PIECE_BYTES, to, &what);
	if (r < 0)
		return fail(cursor, -r, "read", error);
	*ret_hole = what == GCR_PACKED_ZEROS;
	if (what != GCR_PACKED_NOT)
		return 0;
	*ret_hole = !cursor->dense && is_hole(cursor->fd, at, bytes);
	if (*ret_hole)
		return 0;
	/* Touching a hole in a mapping would allocate it. */
	if (cursor->dense && cursor->map &&
	    copy_mapped(to, cursor->map + at, bytes, cursor->map + at, MADV_POPULATE_READ,
			gcr_nontemporal_read) == 0)
		return 0;
	return read_file(cursor, at, to, bytes, error);
}

int gcr_space_write(struct gcr_space_cursor *cursor, uint64_t offset, const void *from,
		    size_t bytes, struct gcr_error *error)
{
	const uint64_t *starts = cursor->space->starts;

	for (size_t done = 0, part; done < bytes; done += part) {
		uint64_t left;
		int r;

		r = seek(cursor, offset + done, true, error);
		if (r < 0)
			return r;
		left = starts[cursor->index + 1] - (offset + done);
		part = bytes - done < left ? bytes - done : left;
		r = write_here(cursor, offset + done - starts[cursor->index],
			       (const char *)from + done, part, error);
		if (r < 0)
			return r;
	}
	return 0;
}

int gcr_space_punch(struct gcr_space_cursor *cursor, uint64_t offset, uint64_t bytes,
		    struct gcr_error *error)
{
	const uint64_t *starts = cursor->space->starts;

	for (uint64_t done = 0, part; done < bytes; done += part) {
		uint64_t at, left;
		int r;

		r = seek(cursor, offset + done, true, error);
		if (r < 0)
			return r;
		at = offset + done - starts[cursor->index];
		left = starts[cursor->index + 1] - (offset + done);
		part = bytes - done < left ? bytes - done : left;
		while (fallocate(cursor->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
				 (off_t)part) < 0)
			if (errno != EINTR)
				return fail(cursor, errno, "punched", error);
	}
	return 0;
}

int gcr_space_read(struct gcr_space_cursor *cursor, uint64_t offset, void *to, size_t bytes,
		   uint64_t *ret_holes, struct gcr_error *error)
{
	uint64_t holes = 0;

	for (size_t done = 0; done < bytes; done += GCR_SPACE_PIECE_BYTES) {
		bool hole = false;
		int r;

		r = seek(cursor, offset + done, false, error);
		if (r < 0)
			return r;
		r = read_here(cursor, offset + done - cursor->space->starts[cursor->index],
			      (char *)to + done, GCR_SPACE_PIECE_BYTES, &hole, error);
		if (r < 0)
			return r;
		if (hole)
			holes |= UINT64_C(1) << done / GCR_SPACE_PIECE_BYTES;
	}
	*ret_holes = holes;
	return 0;
}
