/* SPDX-License-Identifier: MIT */
/* Translates requests of the kernel to operations on subtrees, and the results back. */
#include "fs/mount/session_subtree.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/access.h"
#include "fs/base/log.h"
#include "fs/image/place.h"
#include "fs/image/restore.h"
#include "fs/mount/reach.h"
#include "fs/mount/session_quota.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"

GCR_DEFINE_CLEANUP(struct gcr_subtree *, gcr_subtree_unref);
GCR_DEFINE_CLEANUP(struct gcr_subtree_file *, gcr_subtree_close);

/*
 * If a change was refused because the user holds too much of the store, stores a message about
 * that.
 */
static int tell_quota(fuse_req_t request, int result)
{
	struct gcr_daemon *daemon = fuse_req_userdata(request);
	uid_t uid = fuse_req_ctx(request)->uid;
	struct gcr_error error;

	if (result == -EDQUOT && gcr_store_check_user(daemon->store, uid, 1 << 20, &error) < 0)
		gcr_session_tell_refusal(daemon, uid, &error);
	return result;
}

/* find() for a caller that has been checked. */
static int find_checked(fuse_req_t request, fuse_ino_t node, struct gcr_subtree **ret_subtree,
			uint32_t *ret_item)
{
	int result = gcr_tree_subtree(fuse_req_userdata(request), node, ret_subtree, ret_item);

	return result == -ENOENT ? -EPERM : result;
}

/*
 * Finds the subtree and item of @node. -EPERM: nothing can be changed there (a process without
 * anything in the store, or a node outside subtrees).
 */
static int find(fuse_req_t request, fuse_ino_t node, struct gcr_subtree **ret_subtree,
		uint32_t *ret_item)
{
	int result = gcr_reach_check(fuse_req_userdata(request), fuse_req_ctx(request), node);

	return result < 0 ? result : find_checked(request, node, ret_subtree, ret_item);
}

void gcr_session_reply_entry(fuse_req_t request, const struct fuse_entry_param *entry)
{
	fuse_ino_t node = entry->ino;

	if (fuse_reply_entry(request, entry))
		gcr_tree_forget(node, 1);
}

/* mkdir in the root: makes a place for a snapshot from elsewhere. */
static void make_place(fuse_req_t request, const char *name)
{
	struct gcr_daemon *daemon = fuse_req_userdata(request);
	const struct fuse_ctx *caller = fuse_req_ctx(request);
	struct gcr_place *place;
	struct fuse_entry_param entry;
	struct gcr_error error = {0};
	int result = -EPERM;

	/* Root of a container has no places here: such a place would not be visible to it. */
	if (caller->uid || gcr_tree_is_local(caller))
		result = gcr_place_make(daemon->places, name, caller->uid, caller->gid, &place,
					&error);
	if (error.number)
		gcr_session_tell_refusal(daemon, caller->uid, &error);
	if (result < 0) {
		fuse_reply_err(request, -result);
		return;
	}
	result = gcr_tree_make_place_entry(place, &entry);
	gcr_place_unref(place);
	if (result < 0)
		fuse_reply_err(request, ENOENT);
	else
		gcr_session_reply_entry(request, &entry);
}

/*
 * May @caller drop the place? 0, -ENOENT, -EPERM. The kernel has checked the inode that it had
 * looked up, but another place may have taken the name since; and the kernel permits callers with
 * CAP_FOWNER.
 */
static int check_drop(const struct fuse_ctx *caller, struct gcr_place *place)
{
	if (!gcr_tree_shows_place(caller, place))
		return -ENOENT;
	return caller->uid		   ? caller->uid == place->stat.st_uid ? 0 : -EPERM
	       : gcr_tree_is_local(caller) ? 0
					   : -EPERM;
}

static void drop_place(fuse_req_t request, const char *name)
{
	struct gcr_daemon *daemon = fuse_req_userdata(request);
	struct gcr_place *place;
	int result = gcr_place_find(daemon->places, name, &place);

	if (result < 0) {
		fuse_reply_err(request, EPERM);
		return;
	}
	result = check_drop(fuse_req_ctx(request), place);
	/*
	 * A place never changes its owner, and is dropped only if it is still listed under its
	 * name.
	 */
	if (!result)
		result = gcr_place_drop(place);
	gcr_place_unref(place);
	fuse_reply_err(request, -result);
}

void gcr_session_write_place(fuse_req_t request, const struct gcr_credentials *opener,
			     struct gcr_place *place, const char *bytes, size_t size,
			     bool nonblocking)
{
	_cleanup_(gcr_credentials_finish) struct gcr_credentials writer;
	const struct gcr_parties parties = {opener, &writer};

	gcr_credentials_take(fuse_req_ctx(request), &writer);
	if (gcr_parties_own_place(&parties, place->stat.st_uid))
		gcr_restore_write(request, &parties, place, bytes, size, nonblocking);
	else
		fuse_reply_err(request, EPERM);
}

void gcr_session_mkdir(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	const struct fuse_ctx *caller = fuse_req_ctx(request);
	struct gcr_subtree_entry made;
	struct fuse_entry_param entry;
	uint32_t item;
	int result;

	if (parent == FUSE_ROOT_ID) {
		make_place(request, name);
		return;
	}
	result = find(request, parent, &subtree, &item);
	if (!result)
		result = gcr_subtree_mkdir(subtree, item, name, mode, caller->uid, caller->gid,
					   &made);
	if (result < 0) {
		fuse_reply_err(request, -tell_quota(request, result));
		return;
	}
	gcr_tree_make_entry(subtree, &made, &entry);
	gcr_session_reply_entry(request, &entry);
}

static void remove_name(fuse_req_t request, fuse_ino_t parent, const char *name, bool is_directory)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	uint32_t item;
	int result;

	result = find(request, parent, &subtree, &item);
	if (!result)
		result = gcr_subtree_remove(subtree, item, name, is_directory);
	fuse_reply_err(request, -result);
}

void gcr_session_unlink(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	remove_name(request, parent, name, false);
}

void gcr_session_rmdir(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	if (parent == FUSE_ROOT_ID)
		drop_place(request, name);
	else
		remove_name(request, parent, name, true);
}

void gcr_session_rename(fuse_req_t request, fuse_ino_t parent, const char *name,
			fuse_ino_t new_parent, const char *new_name, unsigned int flags)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *new_subtree = NULL;
	struct gcr_daemon *daemon = fuse_req_userdata(request);
	const struct fuse_ctx *caller = fuse_req_ctx(request);
	uint32_t item;
	uint32_t new_item;
	int result;

	/* One check does for both directories, which are in one subtree or nothing is changed. */
	result = parent == new_parent ? gcr_reach_check(daemon, caller, parent)
				      : gcr_reach_check_locked(daemon, caller, parent);
	if (!result)
		result = find_checked(request, parent, &subtree, &item);
	if (!result)
		result = find_checked(request, new_parent, &new_subtree, &new_item);
	if (!result && subtree != new_subtree)
		result = -EXDEV;
	if (!result)
		result = gcr_subtree_rename(subtree, item, name, new_item, new_name, flags);
	fuse_reply_err(request, -result);
}

static struct timespec time_of(int valid, int flag, int now_flag, const struct timespec *time)
{
	if (valid & now_flag)
		return (struct timespec){.tv_nsec = UTIME_NOW};
	return valid & flag ? *time : (struct timespec){.tv_nsec = UTIME_OMIT};
}

static struct gcr_access access_of(fuse_req_t request)
{
	const struct fuse_ctx *caller = fuse_req_ctx(request);

	return (struct gcr_access){.pid = caller->pid, .uid = caller->uid, .gid = caller->gid};
}

static int truncate_item(fuse_req_t request, struct gcr_subtree *subtree, uint32_t item,
			 uint64_t bytes, struct gcr_subtree_file *file)
{
	_cleanup_(gcr_subtree_close_cleanup) struct gcr_subtree_file *opened = NULL;
	const struct gcr_access caller = access_of(request);
	int result = file ? 0 : gcr_subtree_open_as(subtree, item, O_WRONLY, &caller, &opened);

	return result ? result : gcr_subtree_truncate(file ? file : opened, bytes);
}

static bool attributes_are_owners(int valid)
{
	return valid & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID);
}

#define MODE_BITS 07777

/*
 * May user @uid change the attributes @valid of the item? The item's present owner decides: the
 * kernel has checked the attributes that it had cached. A change by another user that only clears
 * S_ISUID or S_ISGID is allowed: the kernel does that itself when such a user writes. 0, -EPERM, or
 * an error of gcr_subtree_stat().
 */
static int check_owner(struct gcr_subtree *subtree, uint32_t item, uid_t uid, int valid,
		       mode_t mode)
{
	struct stat stat;
	int result = uid ? gcr_subtree_stat(subtree, item, &stat) : 0;
	mode_t changed;

	if (result < 0 || !uid || uid == stat.st_uid)
		return result;
	if (valid & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
		return -EPERM;
	changed = (mode ^ stat.st_mode) & MODE_BITS;
	return changed & ~(mode_t)(S_ISUID | S_ISGID) || changed & mode ? -EPERM : 0;
}

void gcr_session_set(fuse_req_t request, fuse_ino_t node, const struct stat *stat, int valid,
		     struct gcr_subtree_file *file)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	const int others = FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID |
			   FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW |
			   FUSE_SET_ATTR_MTIME_NOW;
	struct gcr_subtree_attributes attributes = {
		.has_mode = valid & FUSE_SET_ATTR_MODE,
		.mode = stat->st_mode,
		.uid = valid & FUSE_SET_ATTR_UID ? stat->st_uid : (uid_t)-1,
		.gid = valid & FUSE_SET_ATTR_GID ? stat->st_gid : (gid_t)-1,
		.is_by_root = !fuse_req_ctx(request)->uid,
		.times = {time_of(valid, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW,
				  &stat->st_atim),
			  time_of(valid, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW,
				  &stat->st_mtim)},
	};
	struct stat now;
	uint32_t item;
	int result;

	result = find(request, node, &subtree, &item);
	if (!result && attributes_are_owners(valid))
		result = check_owner(subtree, item, fuse_req_ctx(request)->uid, valid,
				     stat->st_mode);
	if (!result && valid & FUSE_SET_ATTR_SIZE)
		result = truncate_item(request, subtree, item, (uint64_t)stat->st_size, file);
	if (!result && valid & others)
		result = gcr_subtree_set(subtree, item, &attributes);
	if (!result)
		result = gcr_tree_getattr(fuse_req_userdata(request), node, &now);
	if (result < 0)
		fuse_reply_err(request, -tell_quota(request, result));
	else
		fuse_reply_attr(request, &now, 0);
}

void gcr_session_read(fuse_req_t request, struct gcr_subtree_file *file, size_t size,
		      uint64_t offset)
{
	struct gcr_subtree_bytes bytes;
	int result = gcr_subtree_read(file, offset, size, &bytes);

	if (result < 0) {
		fuse_reply_err(request, -result);
		return;
	}
	fuse_reply_buf(request, bytes.bytes, bytes.size);
	gcr_subtree_read_done(file, &bytes);
}

void gcr_session_write(fuse_req_t request, struct gcr_subtree_file *file, const char *bytes,
		       size_t size, uint64_t offset)
{
	ssize_t written = gcr_subtree_write(file, bytes, size, offset);

	if (written < 0)
		fuse_reply_err(request, -tell_quota(request, (int)written));
	else
		fuse_reply_write(request, (size_t)written);
}

int gcr_session_open(fuse_req_t request, fuse_ino_t node, int flags,
		     struct gcr_subtree_file **ret_file)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	const struct gcr_access caller = access_of(request);
	uint32_t item;
	int result = find(request, node, &subtree, &item);

	if (!result)
		result = gcr_subtree_open_as(subtree, item, flags, &caller, ret_file);
	return result;
}

int gcr_session_may_read(fuse_req_t request, fuse_ino_t node)
{
	const struct gcr_access caller = access_of(request);
	struct stat stat;
	int result = gcr_tree_getattr(fuse_req_userdata(request), node, &stat);

	return result < 0 ? result : gcr_access_check(&caller, &stat, R_OK);
}

int gcr_session_truncate(fuse_req_t request, fuse_ino_t node, int flags,
			 struct gcr_subtree_file *file)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	uint32_t item;
	int result = find_checked(request, node, &subtree, &item);

	/*
	 * open(2) allows O_TRUNC with O_RDONLY if the caller may write: open the item again for
	 * writing.
	 */
	return result ? result
		      : truncate_item(request, subtree, item, 0,
				      (flags & O_ACCMODE) == O_RDONLY ? NULL : file);
}

int gcr_session_create_file(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode,
			    int flags, struct fuse_entry_param *ret_entry,
			    struct gcr_subtree_file **ret_file)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	const struct fuse_ctx *caller = fuse_req_ctx(request);
	struct gcr_subtree_entry entry;
	uint32_t item;
	int result;

	result = find(request, parent, &subtree, &item);
	if (!result)
		result = gcr_subtree_create_file(subtree, item, name, flags, mode, caller->uid,
						 caller->gid, &entry, ret_file);
	if (!result) {
		gcr_subtree_opened_by(*ret_file, caller->uid);
		gcr_tree_make_entry(subtree, &entry, ret_entry);
	}
	return tell_quota(request, result);
}
