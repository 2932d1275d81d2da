/* SPDX-License-Identifier: MIT */
/*
 * Changes of open files of a subtree: writing, truncating, allocating, unpacking; one change at a
 * time for each file. Data is written with pwrite(2), where a full store is an error and not a
 * signal. The store promises the memory that a change may allocate before the change begins.
 */
#include "fs/store/subtree_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/access.h"
#include "fs/store/store.h"

#define PAGE_BYTES (2ull << 20)	 /* a huge page: the unit of allocation */
#define FILL_BYTES (64ull << 20) /* per step; then a verb may have begun */
#define HOLES_MAX  1024		 /* between checks for a verb; there may be millions */
#define FMODE_EXEC 0x20		 /* in the kernel's flags of an open for execve(2) */

/*
 * The most that the file may allocate to have data everywhere between @offset and @end: the huge
 * pages of each hole. A page that the kernel has allocated counts as a hole until data has been
 * written to it. -EBUSY: a verb has begun.
 */
static int growth(const struct gcr_subtree_file *file, uint64_t offset, uint64_t end,
		  uint64_t *ret_bytes)
{
	uint64_t next_page = 0; /* the pages before are counted */
	uint64_t pages = 0;
	unsigned int holes = 0;
	int fd = file->fd;

	while (offset < end) {
		off_t hole = lseek(fd, (off_t)offset, SEEK_HOLE);
		off_t data;
		uint64_t first;
		uint64_t last;

		if (++holes % HOLES_MAX == 0 && gcr_subtree_is_unwanted(file->subtree))
			return -EBUSY;
		/* Beyond the end of the file everything is a hole. */
		if (hole < 0)
			hole = (off_t)offset;
		if ((uint64_t)hole >= end)
			break;
		data = lseek(fd, hole, SEEK_DATA);
		offset = data < 0 || (uint64_t)data > end ? end : (uint64_t)data;
		first = (uint64_t)hole / PAGE_BYTES;
		last = (offset - 1) / PAGE_BYTES;
		first = first < next_page ? next_page : first;
		if (first <= last)
			pages += last - first + 1;
		next_page = last + 1;
		if (offset <= (uint64_t)hole)
			break;
	}
	*ret_bytes = pages * PAGE_BYTES;
	return 0;
}

/* One change of a file's contents. Its room is taken first. */
struct change {
	struct gcr_subtree_file *file;
	struct gcr_room *room;
	uint64_t taken_bytes;
	bool is_filled; /* the file had old_bytes and was extended */
	off_t old_bytes;
	struct gcr_subtree_plan plan;
};

void gcr_subtree_recount_room(struct gcr_subtree_file *file, uint64_t taken_bytes)
{
	struct gcr_subtree_inode *inode = file->inode;
	struct gcr_room *room = file->subtree->room;
	uint64_t before = inode->counted_bytes;
	struct stat stat;

	if (!fstat(file->fd, &stat))
		inode->counted_bytes =
			gcr_subtree_blocks_bytes(&stat) + gcr_subtree_packed_bytes(inode->packed);
	if (room)
		gcr_room_recount(room, taken_bytes, before, inode->counted_bytes);
}

/* Ends a change that begin() has begun, and recounts the memory of the file. */
static void end(struct change *change)
{
	struct gcr_subtree_file *file = change->file;
	struct gcr_subtree_inode *inode = file->inode;

	gcr_subtree_may_map(inode);
	gcr_subtree_trim_packed(file);
	gcr_subtree_recount_room(file, change->taken_bytes);
	pthread_mutex_unlock(&inode->change_lock);
	gcr_subtree_end_change(file->subtree);
}

/* The user whose quota limits the change; 0: the daemon, without a quota. */
static uid_t writer_of(const struct gcr_subtree_file *file)
{
	return file->opener == (uid_t)-1 ? 0 : file->opener;
}

/* Would the change make the file longer or shorter than @size? */
static bool resizes(enum gcr_subtree_change kind, uint64_t end, uint64_t size)
{
	if (kind == GCR_SUBTREE_TRUNCATE)
		return end != size;
	return (kind == GCR_SUBTREE_WRITE || kind == GCR_SUBTREE_ALLOCATE) && end > size;
}

/*
 * Plans the change of packed pieces, and takes the room that the change may need. -EBUSY: another
 * subtree has the file, and would not count the new length or memory; -ENOSPC, -EDQUOT, ... Lock:
 * the inode's change_lock.
 */
static int take_room(struct change *change, enum gcr_subtree_change kind, uint64_t offset,
		     uint64_t end)
{
	bool takes = kind != GCR_SUBTREE_TRUNCATE && kind != GCR_SUBTREE_PUNCH;
	struct gcr_subtree_file *file = change->file;
	struct stat stat;
	uint64_t bytes = 0;
	int result = 0;
	bool is_shared;

	if (fstat(file->fd, &stat) < 0)
		return -errno;
	/*
	 * Two subtrees with the same file have two locks, so neither may change the length while
	 * the other relies on it. Besides, bytes that one subtree cuts off would be lost to the
	 * other.
	 */
	is_shared = gcr_subtree_is_shared(file, &stat);
	if (is_shared && resizes(kind, end, (uint64_t)stat.st_size))
		return -EBUSY;
	if (file->inode->packed)
		result = gcr_subtree_plan(file, kind, offset, end, &change->plan);
	if (result < 0 || !change->room)
		return result;
	if (takes)
		result = growth(file, offset, end, &bytes);
	if (result < 0)
		return result;
	change->taken_bytes = bytes + change->plan.further_bytes;
	/*
	 * The other subtree has counted the file as it was: memory allocated here would not be
	 * counted.
	 */
	if (change->taken_bytes && is_shared)
		return -EBUSY;
	return gcr_room_take(change->room, writer_of(file), change->taken_bytes);
}

/*
 * After a change of owner or mode by root, users who had the file open may have lost the right to
 * write.
 */
static int check_rights(const struct gcr_subtree_file *file)
{
	struct stat stat;

	if (file->is_packer || !file->opener ||
	    file->changes_of_rights == atomic_load(&file->inode->changes_of_rights))
		return 0;
	if (fstat(file->inode->fd, &stat) < 0)
		return -errno;
	return stat.st_uid == file->opener && stat.st_mode & S_IWUSR ? 0 : -EPERM;
}

/*
 * Begins a change: on 0 its room is taken, and the packed pieces that it affects are unpacked;
 * end() follows. For a truncation @offset equals @end_offset. -EBADF: the file is not open for
 * writing; -EBUSY: a verb; -EPERM: see check_rights(); -ENOSPC, -EDQUOT, ...
 */
static int begin(struct change *change, struct gcr_subtree_file *file, enum gcr_subtree_change kind,
		 uint64_t offset, uint64_t end_offset)
{
	struct gcr_subtree_inode *inode = file->inode;
	int result;

	if (!file->is_writable && !file->is_packer)
		return -EBADF;
	result = gcr_subtree_begin_change(file->subtree, file->epoch);
	if (result < 0)
		return result;
	pthread_mutex_lock(&inode->change_lock);
	inode->writes++;
	*change = (struct change){.file = file, .room = file->subtree->room};
	/* Waiting for other changes may have taken long. */
	result = gcr_subtree_is_unwanted(file->subtree) ? -EBUSY : check_rights(file);
	if (!result)
		result = take_room(change, kind, offset, end_offset);
	if (result < 0) {
		pthread_mutex_unlock(&inode->change_lock);
		gcr_subtree_end_change(file->subtree);
		return result;
	}
	gcr_subtree_unmap(inode);
	if (inode->packed)
		result = gcr_subtree_carry_out(file, &change->plan);
	if (result < 0)
		end(change);
	return result;
}

/* If @result is 0, drop the packed pieces that the change has removed. Unlocks the pack_lock. */
static int drop_gone(struct change *change, int result)
{
	if (!result && change->file->inode->packed)
		gcr_subtree_drop_gone(change->file, &change->plan);
	pthread_rwlock_unlock(&change->file->inode->pack_lock);
	return result;
}

/*
 * Before the file grows to @end: if the file may be mapped elsewhere, fills the new range with
 * counted memory instead of a hole. -EBUSY: a verb has begun; -ENOSPC, -EDQUOT, ...: call unfill().
 */
static int fill_up_to(struct change *change, uint64_t end)
{
	int fd = change->file->fd;
	struct stat stat;
	uint64_t bytes;
	int result;

	if (!gcr_subtree_is_passed(change->file))
		return 0;
	if (fstat(fd, &stat) < 0)
		return -errno;
	if ((uint64_t)stat.st_size >= end)
		return 0;
	if (change->room) {
		result = growth(change->file, (uint64_t)stat.st_size, end, &bytes);
		if (!result)
			result = gcr_room_take(change->room, writer_of(change->file), bytes);
		if (result < 0)
			return result;
		change->taken_bytes += bytes;
	}
	change->is_filled = true;
	change->old_bytes = stat.st_size;
	for (uint64_t at = (uint64_t)stat.st_size; at < end; at += bytes) {
		bytes = end - at < FILL_BYTES ? end - at : FILL_BYTES;
		if (gcr_subtree_is_unwanted(change->file->subtree))
			return -EBUSY;
		if (fallocate(fd, 0, (off_t)at, (off_t)bytes) < 0)
			return -errno;
	}
	return 0;
}

/*
 * After a failure, cuts the file that fill_up_to() has filled back to its old length. Returns
 * @result, or -errno of the cut.
 */
static int unfill(const struct change *change, int result)
{
	if (change->is_filled && ftruncate(change->file->fd, change->old_bytes) < 0)
		return -errno;
	return result;
}

/* Returns the number of bytes written before any error, or -errno if there are none. */
static ssize_t write_some(int fd, const char *bytes, size_t size, uint64_t offset)
{
	size_t written = 0;

	while (written < size) {
		ssize_t more =
			pwrite(fd, bytes + written, size - written, (off_t)(offset + written));

		if (more < 0 && errno == EINTR)
			continue;
		if (more < 0 && !written)
			return -errno;
		if (more <= 0)
			break;
		written += (size_t)more;
	}
	return (ssize_t)written;
}

ssize_t gcr_subtree_write(struct gcr_subtree_file *file, const void *bytes, size_t size,
			  uint64_t offset)
{
	struct change change;
	struct stat stat;
	ssize_t written;
	int result;

	/* The kernel's idea of the file's end may be out of date. */
	if (file->flags & O_APPEND) {
		if (fstat(file->fd, &stat) < 0)
			return -errno;
		offset = (uint64_t)stat.st_size;
	}
	if (offset > INT64_MAX - size)
		return -EFBIG;
	result = begin(&change, file, GCR_SUBTREE_WRITE, offset, offset + size);
	if (result < 0)
		return result;
	result = fill_up_to(&change, offset);
	written = result < 0 ? result : write_some(file->fd, bytes, size, offset);
	if (written < 0)
		written = unfill(&change, (int)written);
	end(&change);
	return written;
}

int gcr_subtree_truncate(struct gcr_subtree_file *file, uint64_t bytes)
{
	struct change change;
	int result;

	if (bytes > INT64_MAX)
		return -EFBIG;
	result = begin(&change, file, GCR_SUBTREE_TRUNCATE, bytes, bytes);
	if (result < 0)
		return result;
	result = fill_up_to(&change, bytes);
	if (!result) {
		pthread_rwlock_wrlock(&file->inode->pack_lock);
		result = drop_gone(&change, ftruncate(file->fd, (off_t)bytes) < 0 ? -errno : 0);
	}
	if (result < 0)
		result = unfill(&change, result);
	end(&change);
	return result;
}

/* Here and not in subtree_io.c, since O_TRUNC changes the file. */
int gcr_subtree_open(struct gcr_subtree *subtree, uint32_t item, int flags,
		     struct gcr_subtree_file **ret_file)
{
	_cleanup_(gcr_subtree_close_cleanup) struct gcr_subtree_file *file = NULL;
	int result;

	pthread_mutex_lock(&subtree->lock);
	result = gcr_subtree_open_locked(subtree, item, flags, false, &file);
	pthread_mutex_unlock(&subtree->lock);
	if (!result && file->is_writable && flags & O_TRUNC)
		result = gcr_subtree_truncate(file, 0);
	if (!result)
		*ret_file = TAKE_PTR(file);
	return result;
}

/*
 * The rights (R_OK, W_OK, X_OK) that open(2) with these flags needs by the file's mode. An open for
 * execve(2) needs no right to read.
 */
static int wanted_by(int flags)
{
	int wanted = (flags & O_ACCMODE) == O_RDONLY   ? R_OK
		     : (flags & O_ACCMODE) == O_WRONLY ? W_OK
						       : R_OK | W_OK;

	if (flags & FMODE_EXEC && wanted == R_OK)
		wanted = X_OK;
	return flags & O_TRUNC ? wanted | W_OK : wanted;
}

/*
 * Do the file's present owner and mode permit @caller to open it with @flags? 0, -EACCES, -errno.
 * check_rights() notices root's later changes of them, since the open file has the number of the
 * earlier ones: all of these are in the attributes that are looked at here.
 */
static int check_opener(const struct gcr_subtree_file *file, int flags,
			const struct gcr_access *caller)
{
	struct stat stat;

	if (fstat(file->inode->fd, &stat) < 0)
		return -errno;
	return gcr_access_check(caller, &stat, wanted_by(flags));
}

int gcr_subtree_open_as(struct gcr_subtree *subtree, uint32_t item, int flags,
			const struct gcr_access *caller, struct gcr_subtree_file **ret_file)
{
	_cleanup_(gcr_subtree_close_cleanup) struct gcr_subtree_file *file = NULL;
	int result = gcr_subtree_open(subtree, item, flags & ~O_TRUNC, &file);

	if (result < 0)
		return result;
	gcr_subtree_opened_by(file, caller->uid);
	result = check_opener(file, flags, caller);
	if (!result && file->is_writable && flags & O_TRUNC)
		result = gcr_subtree_truncate(file, 0);
	if (!result)
		*ret_file = TAKE_PTR(file);
	return result;
}

static bool is_wanted(void *data)
{
	return !gcr_subtree_is_unwanted(data);
}

/*
 * Writes zeros over the range instead of punching it, because the file may be read through a
 * mapping.
 */
static int punch_without_holes(struct change *change, uint64_t offset, uint64_t end)
{
	struct gcr_subtree_file *file = change->file;
	const struct gcr_wanted wanted = {is_wanted, file->subtree};
	int result = gcr_store_write_zeros(file->fd, offset, end, &wanted);

	pthread_rwlock_wrlock(&file->inode->pack_lock);
	return drop_gone(change, result);
}

static int allocate(struct change *change, int mode, uint64_t offset, uint64_t bytes)
{
	struct gcr_subtree_file *file = change->file;
	int result;

	pthread_rwlock_wrlock(&file->inode->pack_lock);
	result = fallocate(file->fd, mode, (off_t)offset, (off_t)bytes) < 0 ? -errno : 0;
	return drop_gone(change, result);
}

/* Is there room for the whole range? The room itself is taken step by step. */
static int check_room(const struct change *change, uint64_t offset, uint64_t end)
{
	const struct gcr_subtree_file *file = change->file;
	uint64_t bytes;
	int result;

	if (!change->room)
		return 0;
	result = growth(file, offset, end, &bytes);
	if (!result)
		result = gcr_room_take(change->room, writer_of(file), bytes);
	if (!result)
		gcr_room_recount(change->room, bytes, file->inode->counted_bytes,
				 file->inode->counted_bytes);
	return result;
}

static bool is_passed(const struct gcr_subtree_file *file)
{
	bool is;

	pthread_mutex_lock(&file->inode->change_lock);
	is = gcr_subtree_is_passed(file);
	pthread_mutex_unlock(&file->inode->change_lock);
	return is;
}

/*
 * The range of the next step. In a file that may be mapped, the step begins at the end of the file,
 * so that no hole is left before the range. Punching beyond the end of the file is one step, as it
 * never takes long.
 */
static int find_step(const struct gcr_subtree_file *file,
		     const struct gcr_subtree_allocation *allocation, uint64_t *ret_offset,
		     uint64_t *ret_end)
{
	bool punches = allocation->mode & FALLOC_FL_PUNCH_HOLE;
	uint64_t offset = allocation->offset;
	uint64_t end = allocation->end;
	struct stat stat;
	uint64_t size;

	if (fstat(file->fd, &stat) < 0)
		return -errno;
	size = (uint64_t)stat.st_size;
	if (!allocation->mode && size < offset && is_passed(file))
		offset = size;
	if ((!punches || offset < size) && (offset / FILL_BYTES + 1) * FILL_BYTES < end)
		end = (offset / FILL_BYTES + 1) * FILL_BYTES;
	/*
	 * Without an account, only the kernel knows whether there is room: allocate the whole range
	 * at once.
	 */
	*ret_offset = offset;
	*ret_end = file->subtree->room || punches ? end : allocation->end;
	return 0;
}

int gcr_subtree_allocate_some(struct gcr_subtree_file *file,
			      struct gcr_subtree_allocation *allocation)
{
	int mode = allocation->mode;
	bool takes = !(mode & FALLOC_FL_PUNCH_HOLE);
	bool grows = takes && !(mode & FALLOC_FL_KEEP_SIZE);
	struct change change;
	uint64_t end_offset = 0;
	uint64_t offset = 0;
	int result;

	/* tmpfs supports no other modes. */
	if (mode & ~(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE))
		return -EOPNOTSUPP;
	if (allocation->end > INT64_MAX || allocation->offset > allocation->end)
		return -EFBIG;
	result = find_step(file, allocation, &offset, &end_offset);
	if (result < 0)
		return result;
	result = begin(&change, file,
		       !takes			    ? GCR_SUBTREE_PUNCH
		       : mode & FALLOC_FL_KEEP_SIZE ? GCR_SUBTREE_ALLOCATE_WITHIN
						    : GCR_SUBTREE_ALLOCATE,
		       offset, end_offset);
	if (result < 0)
		return result;
	if (takes && !allocation->has_begun)
		result = check_room(&change, offset, allocation->end);
	if (!result && grows)
		result = fill_up_to(&change, offset);
	if (!result && !takes && gcr_subtree_is_passed(file))
		result = punch_without_holes(&change, offset, end_offset);
	else if (!result)
		result = allocate(&change, mode, offset, end_offset - offset);
	if (result < 0)
		result = unfill(&change, result);
	end(&change);
	if (result < 0)
		return result;
	allocation->has_begun = true;
	allocation->offset = end_offset;
	return end_offset < allocation->end;
}

int gcr_subtree_allocate(struct gcr_subtree_file *file, int mode, uint64_t offset, uint64_t bytes)
{
	struct gcr_subtree_allocation allocation = {.mode = mode, .offset = offset};
	int result;

	if (offset > INT64_MAX || bytes > INT64_MAX - offset)
		return -EFBIG;
	allocation.end = offset + bytes;
	do
		result = gcr_subtree_allocate_some(file, &allocation);
	while (result > 0);
	return result;
}

int gcr_subtree_unpack_piece(struct gcr_subtree_file *file, uint64_t piece)
{
	struct gcr_subtree_inode *inode = file->inode;
	struct change change;
	bool is_packed;
	int result;

	pthread_rwlock_rdlock(&inode->pack_lock);
	is_packed = inode->packed && gcr_pack_table_is_packed(inode->packed->table, piece);
	pthread_rwlock_unlock(&inode->pack_lock);
	if (!is_packed)
		return -ENODATA;
	/* A change without data only unpacks the piece. */
	result = begin(&change, file, GCR_SUBTREE_ALLOCATE_WITHIN, piece * GCR_PACK_PIECE_BYTES,
		       (piece + 1) * GCR_PACK_PIECE_BYTES);
	if (!result)
		end(&change);
	return result;
}
