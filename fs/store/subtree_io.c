/* SPDX-License-Identifier: MIT */
/*
 * Open files of a subtree. Files are read from a mapping, which is as fast as reading the tmpfs
 * itself (6.6 of 6.8 GB/s with blocks of 1 MiB); pread takes 1.5 times and splice 6 times as long
 * (measured). The mapping is used only while the file has no holes, which a mapping would fill, and
 * is not open for writing, because a writer might make holes.
 */
#include "fs/store/subtree_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "fs/store/inodes.h"
#include "fs/store/store.h"
#include "lib/full_io.h"
#include "lib/lock.h"

#define MAPPINGS_DEFAULT 65530 /* per process: DEFAULT_MAX_MAP_COUNT in the kernel's mm.h */

static atomic_int mappings; /* of all files; beyond the limit, files are read by pread(2) */

/* ---- inodes ---- */

bool gcr_subtree_has_open(struct gcr_subtree *subtree, ino_t ino)
{
	bool has;

	pthread_mutex_lock(&subtree->lock);
	has = gcr_subtree_inode_find(subtree, ino);
	pthread_mutex_unlock(&subtree->lock);
	return has;
}

/*
 * Charges @bytes of a file to the owner of the subtree: from now on the file exists only for the
 * users who have it open. Lock: subtree.
 */
static void make_orphan(struct gcr_subtree *subtree, struct gcr_subtree_inode *inode,
			uint64_t bytes)
{
	inode->is_orphan = true;
	inode->orphan_bytes = bytes;
	gcr_quota_release(&inode->orphan_charge);
	gcr_quota_count(gcr_store_quota(subtree->store), GCR_QUOTA_STORE,
			atomic_load(&subtree->owner), bytes, &inode->orphan_charge);
}

bool gcr_subtree_orphan(struct gcr_subtree *subtree, ino_t ino, uint64_t bytes)
{
	struct gcr_subtree_inode *inode;

	pthread_mutex_lock(&subtree->lock);
	inode = gcr_subtree_inode_find(subtree, ino);
	if (inode)
		make_orphan(subtree, inode, bytes);
	pthread_mutex_unlock(&subtree->lock);
	return inode;
}

uint64_t gcr_subtree_orphan_all(struct gcr_subtree *subtree)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&subtree->lock);
	for (struct gcr_subtree_inode *inode = subtree->inodes; inode; inode = inode->next) {
		make_orphan(subtree, inode, inode->counted_bytes);
		bytes += inode->counted_bytes;
	}
	pthread_mutex_unlock(&subtree->lock);
	return bytes;
}

/*
 * Counts one mapping more. False: there are too many. Half of the mappings that a process may have
 * are for all subtrees together: the daemon needs some itself.
 */
static bool take_mapping(void)
{
	static atomic_int most;
	int limit = atomic_load(&most);

	if (!limit) {
		_cleanup_fclose_ FILE *file = fopen("/proc/sys/vm/max_map_count", "re");

		if (!file || fscanf(file, "%d", &limit) != 1 || limit < 2)
			limit = MAPPINGS_DEFAULT;
		atomic_store(&most, limit);
	}
	if (atomic_fetch_add(&mappings, 1) < limit / 2)
		return true;
	atomic_fetch_sub(&mappings, 1);
	return false;
}

static void unmap(struct gcr_subtree_inode *inode)
{
	if (!inode->mapping)
		return;
	munmap(TAKE_PTR(inode->mapping), inode->mapping_bytes);
	atomic_fetch_sub(&mappings, 1);
}

static void inode_free(struct gcr_subtree_inode *inode)
{
	unmap(inode);
	if (inode->fd >= 0)
		close(inode->fd);
	pthread_cond_destroy(&inode->is_read);
	pthread_mutex_destroy(&inode->map_lock);
	pthread_rwlock_destroy(&inode->pack_lock);
	pthread_mutex_destroy(&inode->change_lock);
	free(inode);
}

GCR_DEFINE_CLEANUP(struct gcr_subtree_inode *, inode_free);

/*
 * Initialises the lock so that writers are preferred: a constant flow of reads does not block
 * packing for ever.
 */
static void init_pack_lock(pthread_rwlock_t *lock)
{
	pthread_rwlockattr_t attributes;

	pthread_rwlockattr_init(&attributes);
	pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(lock, &attributes);
	pthread_rwlockattr_destroy(&attributes);
}

/* Removes the inode from its item, if the item still has it. Lock: subtree. */
static void leave_item(struct gcr_subtree *subtree, const struct gcr_subtree_inode *inode)
{
	if (inode->item < subtree->items_count && subtree->items[inode->item].inode == inode)
		subtree->items[inode->item].inode = NULL;
}

/*
 * Makes the inode that of @item: the kernel may forget a file that the daemon has open, and look
 * the file up again as another item. Lock: subtree.
 */
static void take_item(struct gcr_subtree *subtree, struct gcr_subtree_inode *inode, uint32_t item)
{
	leave_item(subtree, inode);
	inode->item = item;
	subtree->items[item].inode = inode;
}

/* Find or make the inode of the file of @fd. Lock: subtree. */
static int inode_get(struct gcr_subtree *subtree, uint32_t item, int fd,
		     struct gcr_subtree_inode **ret_inode)
{
	_cleanup_(inode_free_cleanup) struct gcr_subtree_inode *inode = NULL;
	struct stat stat;
	int result;

	if (fstat(fd, &stat) < 0)
		return -errno;
	*ret_inode = gcr_subtree_inode_find(subtree, stat.st_ino);
	if (*ret_inode) {
		take_item(subtree, *ret_inode, item);
		return 0;
	}
	inode = calloc(1, sizeof(*inode));
	if (!inode)
		return -ENOMEM;
	pthread_mutex_init(&inode->change_lock, NULL);
	pthread_mutex_init(&inode->map_lock, NULL);
	pthread_cond_init(&inode->is_read, NULL);
	init_pack_lock(&inode->pack_lock);
	inode->ino = stat.st_ino;
	inode->item = GCR_SUBTREE_NONE;
	inode->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (inode->fd < 0)
		return -errno;
	result = gcr_subtree_packed_open(subtree, inode->ino, (uint64_t)stat.st_size,
					 &inode->packed);
	if (result < 0)
		return result;
	result = gcr_inodes_open(fd);
	if (result < 0) {
		if (inode->packed)
			gcr_pack_table_unref(gcr_subtree_packed_close(inode->packed));
		return result;
	}
	inode->counted_bytes =
		gcr_subtree_blocks_bytes(&stat) + gcr_subtree_packed_bytes(inode->packed);
	inode->next = subtree->inodes;
	subtree->inodes = inode;
	take_item(subtree, inode, item);
	*ret_inode = TAKE_PTR(inode);
	return 0;
}

/* ---- opening and closing ---- */

/* Make an open file of @fd, which is taken on success. Lock: subtree. */
static int make_file(struct gcr_subtree *subtree, uint32_t item, int fd, int flags, bool is_packer,
		     struct gcr_subtree_file **ret_file)
{
	struct gcr_subtree_file *file = calloc(1, sizeof(*file));
	int result = file ? inode_get(subtree, item, fd, &file->inode) : -ENOMEM;

	if (result < 0) {
		free(file);
		return result;
	}
	file->subtree = gcr_subtree_ref(subtree);
	file->fd = fd;
	file->flags = flags;
	file->is_packer = is_packer;
	file->is_writable = !is_packer && (flags & O_ACCMODE) != O_RDONLY;
	file->epoch = subtree->epoch;
	file->opener = (uid_t)-1;
	file->changes_of_rights = atomic_load(&file->inode->changes_of_rights);
	file->inode->files++;
	file->inode->writers += file->is_writable;
	subtree->writers += file->is_writable;
	*ret_file = file;
	return 0;
}

int gcr_subtree_open_locked(struct gcr_subtree *subtree, uint32_t item, int flags, bool is_packer,
			    struct gcr_subtree_file **ret_file)
{
	bool is_writable = (flags & O_ACCMODE) != O_RDONLY;
	_cleanup_close_ int fd = -1;
	struct stat stat;
	int result;

	if (is_writable && subtree->verbs)
		return -EBUSY;
	/* O_RDWR also for O_WRONLY, so that the file's holes can be read. */
	fd = gcr_subtree_open_item(subtree, item, is_writable ? O_RDWR : O_RDONLY);
	if (fd == -EACCES && (flags & O_ACCMODE) == O_WRONLY)
		fd = gcr_subtree_open_item(subtree, item, O_WRONLY);
	if (fd < 0)
		return fd;
	if (fstat(fd, &stat) < 0)
		return -errno;
	if (!S_ISREG(stat.st_mode))
		return S_ISDIR(stat.st_mode) ? -EISDIR : -EPERM;
	result = make_file(subtree, item, fd, flags, is_packer, ret_file);
	if (!result)
		TAKE_FD(fd);
	return result;
}

static int create_locked(struct gcr_subtree *subtree, uint32_t parent, const char *name, int flags,
			 mode_t mode, uid_t uid, gid_t gid, struct gcr_subtree_entry *ret_entry,
			 struct gcr_subtree_file **ret_file)
{
	_cleanup_close_ int parent_fd =
		gcr_subtree_open_item(subtree, parent, O_PATH | O_DIRECTORY);
	_cleanup_close_ int fd = -1;
	struct gcr_subtree_entry entry;
	int result;

	if (parent_fd < 0)
		return parent_fd;
	fd = openat(parent_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	result = gcr_subtree_give(subtree, parent_fd, fd, mode, uid, gid);
	if (!result)
		result = gcr_subtree_make_entry(subtree, parent, name, fd, &entry);
	if (!result) {
		result = make_file(subtree, entry.item, fd, flags, false, ret_file);
		if (result < 0)
			gcr_subtree_item_forget(subtree, entry.item, 1);
	}
	if (result < 0) {
		unlinkat(parent_fd, name, 0);
		return result;
	}
	TAKE_FD(fd);
	*ret_entry = entry;
	return 0;
}

int gcr_subtree_create_file(struct gcr_subtree *subtree, uint32_t parent, const char *name,
			    int flags, mode_t mode, uid_t uid, gid_t gid,
			    struct gcr_subtree_entry *ret_entry, struct gcr_subtree_file **ret_file)
{
	int result = gcr_subtree_lock_names(subtree);

	if (result < 0)
		return result;
	result = gcr_subtree_add_entry(subtree, uid);
	if (!result) {
		result = create_locked(subtree, parent, name, flags, mode, uid, gid, ret_entry,
				       ret_file);
		if (result < 0)
			gcr_subtree_remove_entry(subtree);
	}
	pthread_mutex_unlock(&subtree->lock);
	return result;
}

void gcr_subtree_uncount_inode(const struct gcr_subtree *subtree, int fd, uint64_t bytes,
			       bool closes)
{
	struct gcr_inodes_bytes counted = {
		.bytes = bytes,
		.uid = atomic_load(&subtree->owner),
		.adopter = closes ? 0 : subtree->adopter,
	};
	struct stat stat;
	bool is_held;

	/*
	 * If another subtree may have the file, the bytes count twice for a moment, so that they
	 * are never left uncounted.
	 */
	if (bytes && !fstat(fd, &stat) &&
	    (gcr_inodes_holders(&stat) > (closes ? 1 : 0) || stat.st_nlink))
		counted.store = subtree->store;
	if (counted.store)
		gcr_store_hold(counted.store, bytes);
	is_held = closes ? gcr_inodes_close(fd, &counted) : gcr_inodes_removed(fd, &counted);
	if (counted.store && !is_held)
		gcr_store_let_go(counted.store, bytes);
}

/*
 * Frees an inode of which the last open file has been closed, and which is in no list any more,
 * and stops counting its bytes.
 */
static void let_go(struct gcr_subtree *subtree, struct gcr_subtree_inode *inode,
		   struct gcr_subtree_packed *packed, struct gcr_room *room, bool is_going)
{
	bool is_orphan = inode->is_orphan;
	uint64_t orphan_bytes = inode->orphan_bytes;
	uint64_t gone_bytes = inode->is_unlinked || is_going ? inode->counted_bytes : 0;
	_cleanup_(gcr_quota_release) struct gcr_quota_charge charge = inode->orphan_charge;

	/* The inode gives up its bytes before the room stops counting them. */
	gcr_subtree_uncount_inode(subtree, inode->fd, is_orphan ? orphan_bytes : gone_bytes, true);
	inode_free(inode);
	gcr_subtree_packed_discard(subtree, packed);
	if (is_orphan && subtree->store)
		gcr_store_let_go(subtree->store, orphan_bytes);
	else if (room && gone_bytes)
		gcr_room_recount(room, 0, gone_bytes, 0);
}

void gcr_subtree_close(struct gcr_subtree_file *file)
{
	struct gcr_subtree_packed *packed = NULL;
	struct gcr_pack_table *table = NULL;
	struct gcr_subtree_inode *inode;
	struct gcr_subtree *subtree;
	struct gcr_subtree_inode **link;
	struct gcr_room *room;
	bool is_going;
	bool is_last;
	bool trims;

	if (!file)
		return;
	subtree = file->subtree;
	inode = file->inode;
	close(file->fd);
	pthread_mutex_lock(&subtree->lock);
	inode->writers -= file->is_writable;
	subtree->writers -= file->is_writable;
	is_last = !--inode->files;
	is_going = subtree->is_going;
	if (is_last && (inode->is_unlinked || subtree->is_going))
		packed = gcr_subtree_packed_take(subtree, inode->ino);
	else if (is_last && inode->packed)
		table = gcr_subtree_packed_close(inode->packed);
	if (is_last) {
		for (link = &subtree->inodes; *link != inode; link = &(*link)->next)
			;
		*link = inode->next;
		leave_item(subtree, inode);
		gcr_inodes_leave(inode->fd);
	}
	/*
	 * The pending change delays gcr_subtree_take_room() until the account is no longer used
	 * here.
	 */
	room = subtree->room;
	trims = !subtree->writers;
	subtree->changes++;
	pthread_mutex_unlock(&subtree->lock);
	gcr_pack_table_unref(table);
	if (is_last)
		let_go(subtree, inode, packed, room, is_going);
	if (room && trims)
		gcr_room_trim(room);
	gcr_subtree_end_change(subtree);
	gcr_subtree_unref(subtree);
	free(file);
}

void gcr_subtree_opened_by(struct gcr_subtree_file *file, uid_t uid)
{
	file->opener = uid;
}

int gcr_subtree_file_fd(const struct gcr_subtree_file *file)
{
	return file->fd;
}

bool gcr_subtree_has_other_name(const struct gcr_subtree_file *file)
{
	struct stat stat;

	/* With the lock held, because this subtree may remove its own name at any moment. */
	GCR_LOCK_SCOPE(&file->subtree->lock);
	return fstat(file->fd, &stat) < 0 || stat.st_nlink > (file->inode->is_unlinked ? 0 : 1);
}

bool gcr_subtree_is_shared(const struct gcr_subtree_file *file, const struct stat *stat)
{
	return gcr_subtree_has_other_name(file) || gcr_inodes_subtrees(stat) > 1;
}

bool gcr_subtree_is_passed(const struct gcr_subtree_file *file)
{
	struct stat stat;

	return fstat(file->fd, &stat) < 0 || gcr_subtree_is_shared(file, &stat) ||
	       gcr_inodes_is_passed(&stat);
}

/*
 * Marks the file as passed in the table of inodes. False: not possible, because the file is packed,
 * unlinked or in the root, the subtree is retired, or another subtree has the file open. Lock:
 * change_lock.
 */
static bool mark_passed(const struct gcr_subtree_file *file, const struct stat *stat,
			bool *ret_was_passed)
{
	struct gcr_subtree *subtree = file->subtree;
	const struct gcr_subtree_inode *inode = file->inode;

	GCR_LOCK_SCOPE(&subtree->lock);
	return !inode->packed && !subtree->is_retired && !inode->is_unlinked &&
	       inode->item < subtree->items_count &&
	       subtree->items[inode->item].parent != GCR_SUBTREE_ROOT &&
	       !gcr_inodes_pass(stat, ret_was_passed);
}

/*
 * Marks the file as passed if it is large enough and has one name and no holes. No holes appear in
 * a marked file: changes by this subtree wait for the change_lock, and the table refuses the mark
 * while another subtree has the file open. Lock: change_lock.
 */
static bool pass(const struct gcr_subtree_file *file)
{
	struct stat stat;
	bool was_passed;

	if (fstat(file->fd, &stat) < 0 || stat.st_size < GCR_SUBTREE_PASSED_BYTES ||
	    stat.st_nlink != 1 || !mark_passed(file, &stat, &was_passed))
		return false;
	if (lseek(file->fd, 0, SEEK_HOLE) == stat.st_size)
		return true;
	if (!was_passed)
		gcr_inodes_unpass(&stat);
	return false;
}

bool gcr_subtree_pass(struct gcr_subtree_file *file)
{
	pthread_mutex_t *change_lock = &file->inode->change_lock;
	bool passes;

	/* An open must not wait for a change. */
	if (pthread_mutex_trylock(change_lock))
		return false;
	passes = pass(file);
	pthread_mutex_unlock(change_lock);
	return passes;
}

/* ---- reading ---- */

/*
 * Is a piece of the file packed? Then bytes of that piece in the file may be wrong: a daemon that
 * was killed while it unpacked the piece has written some of them.
 */
static bool has_packed_piece(struct gcr_subtree_inode *inode)
{
	bool has = false;

	pthread_rwlock_rdlock(&inode->pack_lock);
	if (inode->packed) {
		const struct gcr_pack_table *table = inode->packed->table;
		uint64_t pieces = gcr_pack_table_pieces(table);

		for (uint64_t piece = 0; piece < pieces && !has; piece++)
			has = gcr_pack_table_is_packed(table, piece);
	}
	pthread_rwlock_unlock(&inode->pack_lock);
	return has;
}

/* Map the whole file, if it has no holes and no packed pieces. Lock: map_lock. */
static void map(struct gcr_subtree_inode *inode, int fd)
{
	struct stat stat;
	void *mapping;

	if (inode->was_looked_at)
		return;
	inode->was_looked_at = true;
	if (fstat(fd, &stat) < 0 || !stat.st_size || lseek(fd, 0, SEEK_HOLE) != stat.st_size ||
	    has_packed_piece(inode))
		return;
	if (!take_mapping())
		return;
	mapping = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (mapping == MAP_FAILED) {
		atomic_fetch_sub(&mappings, 1);
		return;
	}
	inode->mapping = mapping;
	inode->mapping_bytes = (size_t)stat.st_size;
}

/* Returns whether the read was answered from the mapping. */
static bool read_mapped(struct gcr_subtree_file *file, uint64_t offset, size_t size,
			struct gcr_subtree_bytes *bytes)
{
	struct gcr_subtree_inode *inode = file->inode;
	bool is_mapped = false;
	bool is_written;

	pthread_mutex_lock(&file->subtree->lock);
	is_written = inode->writers;
	pthread_mutex_unlock(&file->subtree->lock);
	if (is_written)
		return false;
	pthread_mutex_lock(&inode->map_lock);
	if (!inode->changes) {
		map(inode, file->fd);
		is_mapped = inode->mapping;
	}
	if (is_mapped) {
		uint64_t rest = offset < inode->mapping_bytes ? inode->mapping_bytes - offset : 0;

		bytes->bytes = rest ? (const char *)inode->mapping + offset : NULL;
		bytes->size = rest < size ? (size_t)rest : size;
		inode->mapped_reads++;
	}
	pthread_mutex_unlock(&inode->map_lock);
	return is_mapped;
}

int gcr_subtree_read(struct gcr_subtree_file *file, uint64_t offset, size_t size,
		     struct gcr_subtree_bytes *ret_bytes)
{
	struct gcr_subtree_inode *inode = file->inode;
	_cleanup_free_ char *buffer = NULL;
	ssize_t got;

	*ret_bytes = (struct gcr_subtree_bytes){0};
	if (read_mapped(file, offset, size, ret_bytes))
		return 0;
	buffer = malloc(size ? size : 1);
	if (!buffer)
		return -ENOMEM;
	/* No piece can be packed while it is read, which would remove its bytes from the file. */
	pthread_rwlock_rdlock(&inode->pack_lock);
	got = inode->packed ? gcr_subtree_read_packed(file, offset, size, buffer)
			    : gcr_pread_all(file->fd, buffer, size, offset);
	pthread_rwlock_unlock(&inode->pack_lock);
	if (got < 0)
		return (int)got;
	ret_bytes->size = (size_t)got;
	ret_bytes->bytes = buffer;
	ret_bytes->buffer = TAKE_PTR(buffer);
	return 0;
}

void gcr_subtree_read_done(struct gcr_subtree_file *file, struct gcr_subtree_bytes *bytes)
{
	struct gcr_subtree_inode *inode = file->inode;

	if (bytes->buffer) {
		free(TAKE_PTR(bytes->buffer));
		return;
	}
	pthread_mutex_lock(&inode->map_lock);
	if (!--inode->mapped_reads)
		pthread_cond_broadcast(&inode->is_read);
	pthread_mutex_unlock(&inode->map_lock);
}

void gcr_subtree_unmap(struct gcr_subtree_inode *inode)
{
	pthread_mutex_lock(&inode->map_lock);
	inode->changes++;
	while (inode->mapped_reads)
		pthread_cond_wait(&inode->is_read, &inode->map_lock);
	unmap(inode);
	pthread_mutex_unlock(&inode->map_lock);
}

void gcr_subtree_may_map(struct gcr_subtree_inode *inode)
{
	pthread_mutex_lock(&inode->map_lock);
	inode->changes--;
	inode->was_looked_at = false;
	pthread_mutex_unlock(&inode->map_lock);
}

int64_t gcr_subtree_seek(struct gcr_subtree_file *file, int64_t offset, int whence)
{
	struct gcr_subtree_inode *inode = file->inode;
	int64_t found;

	pthread_rwlock_rdlock(&inode->pack_lock);
	if (inode->packed) {
		found = gcr_subtree_seek_packed(file, offset, whence);
	} else {
		found = lseek(file->fd, (off_t)offset, whence);
		found = found < 0 ? -errno : found;
	}
	pthread_rwlock_unlock(&inode->pack_lock);
	return found;
}
