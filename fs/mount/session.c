/* SPDX-License-Identifier: MIT */
/*
 * The low-level FUSE operations. They look up, read, parse and reply; none of them waits for a GPU.
 * A request that can only be answered later (a verb, a status that needs fresh figures) is answered
 * by the thread that obtains the result.
 */
#include "fs/mount/session.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/event.h"
#include "fs/base/log.h"
#include "fs/base/passthrough.h"
#include "fs/base/quota.h"
#include "fs/image/place.h"
#include "fs/mount/control.h"
#include "fs/mount/reach.h"
#include "fs/mount/render_turn.h"
#include "fs/mount/session_listing.h"
#include "fs/mount/session_quota.h"
#include "fs/mount/session_subtree.h"
#include "fs/mount/session_turn.h"
#include "fs/mount/session_watch.h"
#include "fs/mount/tree.h"
#include "fs/process/gpus.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"

/* An open file or directory. */
struct file {
	atomic_int references; /* one for the open file, and one for each read being answered */
	fuse_ino_t node;
	struct gcr_credentials opener;
	struct gcr_process *process; /* NULL: the node belongs to none */
	struct gcr_place *place;     /* likewise */
	char *text;		     /* of a control file, as when opened */
	size_t size;
	struct gcr_event_reader *reader; /* of an events file */
	struct gcr_subtree_file *item;	 /* of a file in a subtree */
	bool is_passthrough_told;	 /* registered with fs/base/passthrough.h */
	struct gcr_listing *listing;	 /* of a directory */
	struct gcr_quota_charge opened;	 /* quota for the open file */
	struct gcr_quota_charge held;	 /* quota for the text */
};

static void (*ready_function)(struct gcr_daemon *daemon);

static struct gcr_daemon *daemon_of(fuse_req_t request)
{
	return fuse_req_userdata(request);
}

static struct file *file_of(const struct fuse_file_info *info)
{
	return (struct file *)(uintptr_t)info->fh;
}

static void file_unref(struct file *file)
{
	if (!file || atomic_fetch_sub(&file->references, 1) != 1)
		return;
	gcr_event_reader_destroy(file->reader);
	if (file->is_passthrough_told)
		gcr_passthrough_close(file->node);
	gcr_subtree_close(file->item);
	gcr_process_unref(file->process);
	gcr_place_unref(file->place);
	gcr_credentials_finish(&file->opener);
	free(file->text);
	gcr_listing_destroy(file->listing);
	gcr_quota_release(&file->held);
	gcr_quota_release(&file->opened);
	free(file);
}

GCR_DEFINE_CLEANUP(struct file *, file_unref);

static void do_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry;
	int result;

	result = gcr_tree_lookup(daemon_of(request), fuse_req_ctx(request), parent, name, &entry);
	if (result < 0)
		fuse_reply_err(request, -result);
	else
		gcr_session_reply_entry(request, &entry);
}

static void do_forget(fuse_req_t request, fuse_ino_t node, uint64_t lookups)
{
	gcr_tree_forget(node, lookups);
	fuse_reply_none(request);
}

static void do_forget_multi(fuse_req_t request, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		gcr_tree_forget(forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(request);
}

static void do_getattr(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	struct stat stat;
	int result = gcr_tree_getattr(daemon_of(request), node, &stat);

	if (result < 0)
		fuse_reply_err(request, -result);
	else
		fuse_reply_attr(request, &stat, 0);
}

static void do_setattr(fuse_req_t request, fuse_ino_t node, struct stat *stat, int valid,
		       struct fuse_file_info *info)
{
	enum gcr_node_kind kind = gcr_node_kind(node);

	/*
	 * Truncating a ctl file is accepted and has no effect; no other attribute of a control file
	 * can be set.
	 */
	if (gcr_node_is_in_subtree(kind))
		gcr_session_set(request, node, stat, valid, info ? file_of(info)->item : NULL);
	else if (gcr_node_is_ctl(kind) && valid & FUSE_SET_ATTR_SIZE && !stat->st_size &&
		 !(valid & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)))
		do_getattr(request, node, info);
	else
		fuse_reply_err(request, EPERM);
}

static void do_readlink(fuse_req_t request, fuse_ino_t node)
{
	const struct fuse_ctx *caller = fuse_req_ctx(request);
	struct gcr_proc_status status;
	char target[16];

	struct gcr_place *place;

	if (gcr_node_kind(node) == GCR_NODE_PID) {
		if (gcr_tree_place(daemon_of(request), node, &place) < 0) {
			fuse_reply_err(request, ENOENT);
			return;
		}
		fuse_reply_readlink(request, place->name);
		gcr_place_unref(place);
	} else if (gcr_node_kind(node) != GCR_NODE_SELF) {
		fuse_reply_err(request, EINVAL);
	} else if (!caller->pid || gcr_proc_status(caller->pid, &status) < 0) {
		fuse_reply_err(request, ENOENT);
	} else {
		snprintf(target, sizeof(target), "%d", (int)status.thread_group);
		fuse_reply_readlink(request, target);
	}
}

/* Makes an open file for @node. @flags as of open(2). */
static int file_create(fuse_req_t request, fuse_ino_t node, int flags, struct file **ret_file)
{
	_cleanup_(file_unref_cleanup) struct file *file = calloc(1, sizeof(*file));
	const struct fuse_ctx *caller = fuse_req_ctx(request);
	struct gcr_daemon *daemon = daemon_of(request);
	enum gcr_node_kind kind = gcr_node_kind(node);
	int result;

	if (!file)
		return -ENOMEM;
	atomic_init(&file->references, 1);
	file->node = node;
	/* A descriptor of a ctl file may be passed on: writes are judged by opener and writer. */
	if (gcr_node_is_ctl(kind) && (flags & O_ACCMODE) != O_RDONLY)
		gcr_credentials_take(caller, &file->opener);
	else
		gcr_credentials_take_ids(caller, &file->opener);
	result = gcr_session_take_open(daemon, file->opener.counted, node, &file->opened);
	if (result < 0)
		return result;
	result = gcr_tree_process(daemon, node, &file->process);
	if (result < 0 && result != -EINVAL)
		return result;
	result = gcr_tree_place(daemon, node, &file->place);
	if (result < 0 && result != -EINVAL)
		return result;
	result = gcr_reach_check(daemon, caller, node);
	if (result < 0)
		return result;
	if (gcr_node_is_events(kind)) {
		result = gcr_event_reader_create(
			file->process ? file->process->events
			: file->place ? file->place->events
				      : daemon->events,
			gcr_quota_owner(daemon->quota, file->opener.counted), &file->reader);
		if (result < 0)
			return result;
	}
	*ret_file = TAKE_PTR(file);
	return 0;
}

static int render(struct gcr_daemon *daemon, const struct fuse_ctx *caller, struct file *file)
{
	FILE *stream = open_memstream(&file->text, &file->size);
	int result;

	if (!stream)
		return -ENOMEM;
	result = gcr_tree_render(daemon, caller, file->opener.counted, file->node, file->process,
				 stream);
	if (fclose(stream))
		return -ENOMEM;
	return result < 0 ? result
			  : gcr_session_take_text(daemon, file->opener.counted, file->node,
						  file->size, &file->held);
}

/* An open that waits for fresh figures, and then for its owner's turn. */
struct pending_open {
	struct gcr_render_turn turn; /* must be the first member */
	fuse_req_t request;
	struct fuse_file_info info;
	struct file *file;
};

/*
 * May the opener keep reading what is about the process? Not if the process has become another
 * user's: its events and its status are that user's from then on.
 */
static bool may_read_on(const struct file *file)
{
	return !file->process || !file->opener.uid ||
	       gcr_process_is_still_of(file->process, file->opener.uid);
}

/*
 * May the caller still have the text of a file that the kernel has permitted him to open? While the
 * open has waited, the file's process may have become another user's, by execve(2), and root may
 * have given its place to another user. A caller that is not the owner has the capability to read
 * the file, or not. 0, -EACCES, -ESRCH.
 */
static int check_reader(fuse_req_t request, const struct file *file)
{
	if (gcr_node_is_ctl(gcr_node_kind(file->node)) || (!file->place && may_read_on(file)))
		return 0;
	return gcr_session_may_read(request, file->node);
}

/* The callback gcr_render_turn.run. */
static void finish_open(struct gcr_render_turn *turn, int result)
{
	_cleanup_free_ struct pending_open *pending = (struct pending_open *)turn;
	_cleanup_(file_unref_cleanup) struct file *file = pending->file;

	fuse_req_interrupt_func(pending->request, NULL, NULL);
	if (!result)
		result = check_reader(pending->request, file);
	if (!result)
		result = render(daemon_of(pending->request), fuse_req_ctx(pending->request), file);
	/* Again, since the text may be that of the other user's program. */
	if (!result)
		result = check_reader(pending->request, file);
	if (result < 0) {
		fuse_reply_err(pending->request, -result);
		return;
	}
	pending->info.fh = (uintptr_t)file;
	if (!fuse_reply_open(pending->request, &pending->info))
		TAKE_PTR(file); /* else the open was interrupted, and the kernel sends no release */
}

static void interrupt_open(fuse_req_t request, void *data)
{
	struct pending_open *pending = data;

	gcr_render_turns_interrupt(daemon_of(request)->render_turns, &pending->turn);
}

static void wait_for_turn(void *data)
{
	struct pending_open *pending = data;

	fuse_req_interrupt_func(pending->request, interrupt_open, pending);
	gcr_render_turns_add(daemon_of(pending->request)->render_turns, &pending->turn);
}

/*
 * Registers an open item for passthrough. Returns the kernel's id of the backing file; 0: none;
 * -errno.
 */
static int tell_passthrough(struct file *file, int flags)
{
	bool wants = (flags & O_ACCMODE) == O_RDONLY && gcr_passthrough_is_on() &&
		     !gcr_passthrough_is_plain(file->node) && gcr_subtree_pass(file->item);
	int backing =
		gcr_passthrough_open(file->node, gcr_subtree_file_fd(file->item), flags, wants);

	file->is_passthrough_told = backing >= 0;
	return backing;
}

static void open_item(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	_cleanup_(file_unref_cleanup) struct file *file = NULL;
	struct gcr_passthrough_answer answer;
	int backing = 0;
	int result = file_create(request, node, info->flags, &file);

	if (!result && (info->flags & O_ACCMODE) == O_RDWR)
		result = gcr_passthrough_wait(
			node, gcr_quota_owner(daemon_of(request)->quota, file->opener.counted));
	if (!result)
		result = gcr_session_open(request, node, info->flags & ~O_TRUNC, &file->item);
	if (!result)
		result = backing = tell_passthrough(file, info->flags);
	/* Truncate last, so that an open that is refused has changed nothing. */
	if (result >= 0 && info->flags & O_TRUNC)
		result = gcr_session_truncate(request, node, info->flags, file->item);
	if (result < 0) {
		fuse_reply_err(request, -result);
		return;
	}
	info->direct_io = 1;
	info->fh = (uintptr_t)file;
	answer = gcr_passthrough_answer(info->fh, backing, (info->flags & O_ACCMODE) == O_RDONLY);
	if (!(backing ? fuse_reply_buf(request, (const char *)&answer, sizeof(answer))
		      : fuse_reply_open(request, info)))
		TAKE_PTR(file);
}

static void do_create(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *info)
{
	_cleanup_(file_unref_cleanup) struct file *file = NULL;
	struct fuse_entry_param entry;
	int result = file_create(request, parent, info->flags, &file);

	if (!result)
		result = gcr_session_create_file(request, parent, name, mode, info->flags, &entry,
						 &file->item);
	if (!result) {
		file->node = entry.ino;
		result = tell_passthrough(file, info->flags);
		if (result < 0)
			gcr_tree_forget(entry.ino, 1);
	}
	if (result < 0) {
		fuse_reply_err(request, -result);
		return;
	}
	info->direct_io = 1;
	info->fh = (uintptr_t)file;
	if (!fuse_reply_create(request, &entry, info))
		TAKE_PTR(file);
	else
		gcr_tree_forget(entry.ino, 1);
}

static void do_open(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	struct gcr_daemon *daemon = daemon_of(request);
	_cleanup_(file_unref_cleanup) struct file *file = NULL;
	enum gcr_node_kind kind = gcr_node_kind(node);
	struct pending_open *pending;
	int result;

	if (kind == GCR_NODE_ITEM) {
		open_item(request, node, info);
		return;
	}
	if ((info->flags & O_ACCMODE) != O_RDONLY && !gcr_node_is_ctl(kind)) {
		fuse_reply_err(request, EPERM);
		return;
	}
	result = file_create(request, node, info->flags, &file);
	if (result < 0) {
		fuse_reply_err(request, -result);
		return;
	}
	info->direct_io = 1;
	pending = calloc(1, sizeof(*pending));
	if (!pending) {
		fuse_reply_err(request, ENOMEM);
		return;
	}
	*pending = (struct pending_open){
		.turn = {.owner = gcr_quota_owner(daemon->quota, file->opener.counted),
			 .run = finish_open},
		.request = request,
		.info = *info,
	};
	pending->file = TAKE_PTR(file);
	if (gcr_node_needs_gpus(kind))
		gcr_gpus_when_fresh(daemon->gpus, wait_for_turn, pending);
	else
		finish_open(&pending->turn, 0);
}

static void do_read(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
		    struct fuse_file_info *info)
{
	/*
	 * Once the read is answered, another thread may release the file at any time: keep a
	 * reference.
	 */
	_cleanup_(file_unref_cleanup) struct file *file = file_of(info);
	_cleanup_free_ char *buffer = NULL;

	atomic_fetch_add(&file->references, 1);
	if (file->item) {
		gcr_session_read(request, file->item, size, (uint64_t)offset);
		return;
	}
	if (file->reader && !may_read_on(file)) {
		fuse_reply_err(request, EPERM);
		return;
	}
	if (file->reader) {
		buffer = malloc(size);
		if (!buffer)
			fuse_reply_err(request, ENOMEM);
		else
			fuse_reply_buf(request, buffer,
				       gcr_event_reader_read(file->reader, (uint64_t)offset, buffer,
							     size));
		return;
	}
	if ((size_t)offset >= file->size)
		fuse_reply_buf(request, NULL, 0);
	else if (size > file->size - (size_t)offset)
		fuse_reply_buf(request, file->text + offset, file->size - (size_t)offset);
	else
		fuse_reply_buf(request, file->text + offset, size);
}

/* Handles SEEK_DATA and SEEK_HOLE; the kernel itself handles the other values of @whence. */
static void do_lseek(fuse_req_t request, fuse_ino_t node, off_t offset, int whence,
		     struct fuse_file_info *info)
{
	struct file *file = file_of(info);
	struct stat stat;
	int64_t found;

	if (file->item) {
		found = gcr_subtree_seek(file->item, offset, whence);
	} else {
		/* As in a filesystem without holes. */
		found = gcr_tree_getattr(daemon_of(request), node, &stat);
		if (!found && (offset < 0 || offset >= stat.st_size))
			found = -ENXIO;
		if (!found)
			found = whence == SEEK_HOLE ? stat.st_size : offset;
	}
	if (found < 0)
		fuse_reply_err(request, (int)-found);
	else
		fuse_reply_lseek(request, found);
}

static void do_write(fuse_req_t request, fuse_ino_t node, const char *bytes, size_t size,
		     off_t offset, struct fuse_file_info *info)
{
	_cleanup_(file_unref_cleanup) struct file *file = file_of(info);

	/* Keep a reference, as in do_read(). */
	atomic_fetch_add(&file->references, 1);
	if (file->item)
		gcr_session_write(request, file->item, bytes, size, (uint64_t)offset);
	else if (file->place && gcr_node_is_ctl(gcr_node_kind(node)))
		gcr_session_write_place(request, &file->opener, file->place, bytes, size,
					info->flags & O_NONBLOCK);
	else if (!gcr_node_is_ctl(gcr_node_kind(node)))
		fuse_reply_err(request, EPERM);
	else
		gcr_control_write(request, &file->opener, file->process, bytes, size,
				  info->flags & O_NONBLOCK);
}

/* Implements struct gcr_session_turns, which runs fallocate in steps. */
static bool allocate_some(fuse_req_t request, struct gcr_subtree_allocation *allocation,
			  struct fuse_file_info *info)
{
	_cleanup_(file_unref_cleanup) struct file *file = file_of(info);
	int result = -EPERM;

	atomic_fetch_add(&file->references, 1);
	if (file->item)
		result = gcr_subtree_allocate_some(file->item, allocation);
	if (result > 0)
		return false;
	fuse_reply_err(request, -result);
	return true;
}

static uid_t opener_of(const struct fuse_file_info *info)
{
	return file_of(info)->opener.counted;
}

static const struct gcr_session_turns turns = {
	.opener = opener_of,
	.allocate_some = allocate_some,
};

static void do_release(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	struct file *file = file_of(info);

	/* The reference of a read that was just answered may still exist, so unregister here. */
	if (file->is_passthrough_told)
		gcr_passthrough_close(file->node);
	file->is_passthrough_told = false;
	file_unref(file);
	fuse_reply_err(request, 0);
}

static void do_poll(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info,
		    struct fuse_pollhandle *handle)
{
	struct file *file = file_of(info);

	if (!file->reader) {
		if (handle)
			fuse_pollhandle_destroy(handle);
		fuse_reply_poll(request, POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM);
		return;
	}
	fuse_reply_poll(request,
			gcr_event_reader_poll(file->reader, handle) ? POLLIN | POLLRDNORM : 0);
}

static void do_opendir(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	struct gcr_daemon *daemon = daemon_of(request);
	_cleanup_(file_unref_cleanup) struct file *file = NULL;
	enum gcr_node_kind kind = gcr_node_kind(node);
	int result;

	result = file_create(request, node, info->flags, &file);
	if (!result)
		result = gcr_listing_create(daemon, fuse_req_ctx(request), file->opener.counted,
					    node, &file->listing);
	/* The listing may have waited for its turn, and root has taken the directory away. */
	if (!result && gcr_node_is_in_subtree(kind))
		result = gcr_session_may_read(request, node);
	if (result < 0) {
		fuse_reply_err(request, -result);
		return;
	}
	info->fh = (uintptr_t)file;
	if (!fuse_reply_open(request, info))
		TAKE_PTR(file);
}

static void do_readdir(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
		       struct fuse_file_info *info)
{
	gcr_listing_reply(file_of(info)->listing, request, size, offset);
}

static void do_statfs(fuse_req_t request, fuse_ino_t node)
{
	struct statvfs statfs = {.f_bsize = 4096, .f_frsize = 4096, .f_namemax = 255};
	struct gcr_store_figures figures;
	uint64_t used_bytes;

	gcr_store_counted_figures(daemon_of(request)->store, &figures);
	used_bytes = figures.used_bytes < figures.size_bytes ? figures.used_bytes
							     : figures.size_bytes;
	statfs.f_blocks = figures.size_bytes / statfs.f_frsize;
	/* Space that is reserved for packing is free, but not available to writers. */
	statfs.f_bavail = figures.free_bytes / statfs.f_frsize;
	statfs.f_bfree = (figures.size_bytes - used_bytes) / statfs.f_frsize;
	fuse_reply_statfs(request, &statfs);
}

/* mknod, symlink and link are refused everywhere, also in a subtree. */
static void do_mknod(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode,
		     dev_t device)
{
	fuse_reply_err(request, EPERM);
}

static void do_symlink(fuse_req_t request, const char *target, fuse_ino_t parent, const char *name)
{
	fuse_reply_err(request, EPERM);
}

static void do_link(fuse_req_t request, fuse_ino_t node, fuse_ino_t new_parent,
		    const char *new_name)
{
	fuse_reply_err(request, EPERM);
}

/*
 * The number of background requests (readahead, closes) that the kernel sends at once, for all
 * users together. The kernel's default of 12 could be used up by one user. Requests of one user
 * wait for each other in session_turn.c instead. Asynchronous reads and writes (io_submit(2)) are
 * excluded by clearing FUSE_CAP_ASYNC_DIO: the kernel would send more of them at once than may wait
 * there.
 */
#define MAX_BACKGROUND 4096

static void do_init(void *data, struct fuse_conn_info *connection)
{
	connection->want &= ~(unsigned int)FUSE_CAP_ASYNC_DIO;
	connection->max_background = MAX_BACKGROUND;
	connection->congestion_threshold = MAX_BACKGROUND;
	ready_function(data);
}

static const struct fuse_lowlevel_ops operations = {
	.init = do_init,
	.lookup = do_lookup,
	.forget = do_forget,
	.forget_multi = do_forget_multi,
	.getattr = do_getattr,
	.setattr = do_setattr,
	.readlink = do_readlink,
	.mknod = do_mknod,
	.mkdir = gcr_session_mkdir,
	.unlink = gcr_session_unlink,
	.rmdir = gcr_session_rmdir,
	.symlink = do_symlink,
	.rename = gcr_session_rename,
	.link = do_link,
	.open = do_open,
	.read = do_read,
	.lseek = do_lseek,
	.write = do_write,
	.release = do_release,
	.opendir = do_opendir,
	.readdir = do_readdir,
	.releasedir = do_release,
	.statfs = do_statfs,
	.create = do_create,
	.poll = do_poll,
};

int gcr_session_create(struct gcr_daemon *daemon, void (*ready)(struct gcr_daemon *daemon),
		       struct gcr_error *error)
{
	struct fuse_args arguments = FUSE_ARGS_INIT(0, NULL);
	int result = 0;

	ready_function = ready;
	if (fuse_opt_add_arg(&arguments, "gpucrfs") ||
	    fuse_opt_add_arg(&arguments, "-ofsname=gpucrfs,subtype=gpucrfs,default_permissions") ||
	    (daemon->only_uid == (uid_t)-1 && fuse_opt_add_arg(&arguments, "-oallow_other")))
		result = gcr_error_set(error, ENOMEM, "out of memory");
	if (!result) {
		daemon->session = fuse_session_new(
			&arguments, gcr_session_in_turn(gcr_session_watched(&operations), &turns),
			sizeof(operations), daemon);
		if (!daemon->session)
			result = gcr_error_set(error, EIO, "cannot start a FUSE session");
	}
	fuse_opt_free_args(&arguments);
	if (result < 0)
		return result;
	if (fuse_session_mount(daemon->session, daemon->options.mountpoint)) {
		fuse_session_destroy(daemon->session);
		daemon->session = NULL;
		return gcr_error_set(error, EIO, "cannot mount on %s", daemon->options.mountpoint);
	}
	/*
	 * No passthrough if the store reuses files for other processes: an existing mapping would
	 * show their contents. Without passthrough the daemon serves the reads.
	 */
	if (!daemon->options.no_passthrough && !daemon->options.pool_bytes &&
	    !daemon->options.keep_bytes)
		gcr_passthrough_start(daemon->session);
	return 0;
}

void gcr_session_unmount(struct gcr_daemon *daemon)
{
	fuse_session_unmount(daemon->session);
}

void gcr_session_destroy(struct gcr_daemon *daemon)
{
	if (!daemon->session)
		return;
	fuse_session_unmount(daemon->session);
	fuse_session_destroy(daemon->session);
	gcr_passthrough_stop();
	daemon->session = NULL;
}
