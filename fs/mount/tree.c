/* SPDX-License-Identifier: MIT */
/* The shape of the mount, as a table, and the results of stat(2) and readdir(3). */
#include "fs/mount/tree_private.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "fs/base/credentials.h"
#include "fs/base/event.h"
#include "fs/base/log.h"
#include "fs/base/quota.h"
#include "fs/base/root_entries.h"
#include "fs/base/turns.h"
#include "fs/image/place.h"
#include "fs/mount/ctl_ids.h"
#include "fs/mount/sight.h"
#include "fs/process/gpus.h"
#include "fs/process/scan.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/proc_namespace.h"

GCR_DEFINE_CLEANUP(struct gcr_snapshot *, gcr_snapshot_unref);
GCR_DEFINE_CLEANUP(struct gcr_subtree *, gcr_subtree_unref);

struct shape {
	enum gcr_node_kind parent;
	const char *name; /* NULL: named by a pid, an index or a place */
	mode_t mode;
	bool not_of_launcher; /* a launcher's directory lacks this entry */
};

static const struct shape shapes[GCR_NODE_KINDS_COUNT] = {
	[GCR_NODE_ROOT] = {GCR_NODE_NONE, NULL, S_IFDIR | 01777, false},
	[GCR_NODE_GPU] = {GCR_NODE_GPUS, NULL, S_IFDIR | 0555, false},
	[GCR_NODE_GPU_UUID] = {GCR_NODE_GPU, "uuid", S_IFREG | 0444, false},
	[GCR_NODE_GPU_NAME] = {GCR_NODE_GPU, "name", S_IFREG | 0444, false},
	[GCR_NODE_GPU_STATUS] = {GCR_NODE_GPU, "status", S_IFREG | 0444, false},
	[GCR_NODE_PROCESS] = {GCR_NODE_ROOT, NULL, S_IFDIR | 0700, false},
	[GCR_NODE_CTL] = {GCR_NODE_PROCESS, "ctl", S_IFREG | 0200, false},
	[GCR_NODE_STATUS] = {GCR_NODE_PROCESS, "status", S_IFREG | 0400, false},
	[GCR_NODE_ERROR] = {GCR_NODE_PROCESS, "error", S_IFREG | 0400, false},
	[GCR_NODE_EVENTS] = {GCR_NODE_PROCESS, "events", S_IFREG | 0400, false},
	[GCR_NODE_MAPS] = {GCR_NODE_PROCESS, "maps", S_IFREG | 0400, true},
	[GCR_NODE_CRIU_LOG] = {GCR_NODE_PROCESS, "criu.log", S_IFREG | 0400, false},
	[GCR_NODE_SNAPSHOT] = {GCR_NODE_PROCESS, "snapshot", S_IFDIR | 0700, true},
	[GCR_NODE_PLACE] = {GCR_NODE_ROOT, NULL, S_IFDIR | 0700, false},
	[GCR_NODE_PLACE_CTL] = {GCR_NODE_PLACE, "ctl", S_IFREG | 0200, false},
	[GCR_NODE_PLACE_STATUS] = {GCR_NODE_PLACE, "status", S_IFREG | 0400, false},
	[GCR_NODE_PLACE_ERROR] = {GCR_NODE_PLACE, "error", S_IFREG | 0400, false},
	[GCR_NODE_PLACE_EVENTS] = {GCR_NODE_PLACE, "events", S_IFREG | 0400, false},
	[GCR_NODE_PLACE_CRIU_LOG] = {GCR_NODE_PLACE, "criu.log", S_IFREG | 0400, false},
	[GCR_NODE_PID] = {GCR_NODE_PLACE, NULL, S_IFLNK | 0777, false},
	[GCR_NODE_PLACE_SNAPSHOT] = {GCR_NODE_PLACE, "snapshot", S_IFDIR | 0700, false},
#define ROOT_SHAPE(kind, name, mode) [GCR_NODE_##kind] = {GCR_NODE_ROOT, name, mode, false},
	GCR_ROOT_ENTRIES(ROOT_SHAPE)
#undef ROOT_SHAPE
};

#define EXTRA_SHIFT  40
#define REFRESH_USEC (1 * GCR_USEC_PER_SEC)
_Static_assert(EXTRA_SHIFT + GCR_SUBTREE_NUMBER_BITS == 64, "a subtree has its place in a node");

/* Upper bits of the ids of files, by who looks them up: see gcr_tree_lookup(). */
#define OWNERS	    1u
#define OTHER_ROOTS 2u

static fuse_ino_t make_node(enum gcr_node_kind kind, uint32_t number)
{
	return (fuse_ino_t)kind | (fuse_ino_t)number << 8;
}

const char *gcr_node_name(fuse_ino_t node)
{
	enum gcr_node_kind kind = gcr_node_kind(node);

	switch (kind) {
	case GCR_NODE_NONE:
		return "several files";
	case GCR_NODE_ROOT:
		return "the root";
	case GCR_NODE_GPU:
		return "a GPU's directory";
	case GCR_NODE_PROCESS:
		return "a process's directory";
	case GCR_NODE_PLACE:
		return "an incoming snapshot's directory";
	case GCR_NODE_PID:
		return "a pid's link";
	case GCR_NODE_ITEM:
		return "a file of a snapshot";
	default:
		return shapes[kind].name;
	}
}

bool gcr_node_is_ctl(enum gcr_node_kind kind)
{
	return kind == GCR_NODE_CTL || kind == GCR_NODE_ROOT_CTL || kind == GCR_NODE_PLACE_CTL;
}

bool gcr_node_is_events(enum gcr_node_kind kind)
{
	return kind == GCR_NODE_EVENTS || kind == GCR_NODE_ROOT_EVENTS ||
	       kind == GCR_NODE_PLACE_EVENTS;
}

bool gcr_node_needs_gpus(enum gcr_node_kind kind)
{
	return kind == GCR_NODE_STATUS || kind == GCR_NODE_MAPS || kind == GCR_NODE_ROOT_STATUS ||
	       kind == GCR_NODE_ROOT_METRICS || kind == GCR_NODE_GPU_STATUS;
}

bool gcr_node_is_in_subtree(enum gcr_node_kind kind)
{
	return kind == GCR_NODE_SNAPSHOT || kind == GCR_NODE_PLACE_SNAPSHOT ||
	       kind == GCR_NODE_ITEM;
}

/* Is the kind @above, or below it? */
static bool is_of(enum gcr_node_kind kind, enum gcr_node_kind above)
{
	while (kind != above && kind != GCR_NODE_NONE)
		kind = shapes[kind].parent;
	return kind == above;
}

static bool is_of_process(enum gcr_node_kind kind)
{
	return is_of(kind, GCR_NODE_PROCESS);
}

int gcr_tree_place(struct gcr_daemon *daemon, fuse_ino_t node, struct gcr_place **ret_place)
{
	if (!is_of(gcr_node_kind(node), GCR_NODE_PLACE))
		return -EINVAL;
	return gcr_place_find_serial(daemon->places, gcr_node_number(node), ret_place) ? -ESRCH : 0;
}

int gcr_tree_process(struct gcr_daemon *daemon, fuse_ino_t node, struct gcr_process **ret_process)
{
	if (!is_of_process(gcr_node_kind(node)))
		return -EINVAL;
	return gcr_processes_find_serial(daemon->processes, gcr_node_number(node), ret_process)
		       ? -ESRCH
		       : 0;
}

struct gcr_snapshot *gcr_tree_snapshot(struct gcr_process *process)
{
	struct gcr_snapshot *snapshot;

	pthread_mutex_lock(&process->lock);
	snapshot = process->snapshot ? gcr_snapshot_ref(process->snapshot) : NULL;
	pthread_mutex_unlock(&process->lock);
	return snapshot ? snapshot
			: gcr_store_find_kept(process->daemon->store, process->pid,
					      process->start_ticks);
}

int gcr_tree_subtree(struct gcr_daemon *daemon, fuse_ino_t node, struct gcr_subtree **ret_subtree,
		     uint32_t *ret_item)
{
	_cleanup_(gcr_snapshot_unref_cleanup) struct gcr_snapshot *snapshot = NULL;
	struct gcr_place *place;
	struct gcr_process *process;
	int result;

	if (gcr_node_kind(node) == GCR_NODE_ITEM) {
		*ret_item = gcr_node_number(node);
		return gcr_subtree_find((uint32_t)(node >> EXTRA_SHIFT), ret_subtree);
	}
	if (gcr_node_kind(node) == GCR_NODE_PLACE_SNAPSHOT) {
		result = gcr_tree_place(daemon, node, &place);
		if (result < 0)
			return result;
		*ret_subtree = gcr_subtree_ref(place->subtree);
		*ret_item = GCR_SUBTREE_ROOT;
		gcr_place_unref(place);
		return 0;
	}
	if (gcr_node_kind(node) != GCR_NODE_SNAPSHOT)
		return -EPERM;
	result = gcr_tree_process(daemon, node, &process);
	if (result < 0)
		return result;
	snapshot = gcr_tree_snapshot(process);
	gcr_process_unref(process);
	if (!snapshot)
		return -ENOENT;
	*ret_subtree = gcr_subtree_ref(gcr_snapshot_subtree(snapshot));
	*ret_item = GCR_SUBTREE_ROOT;
	return 0;
}

static ino_t item_ino(ino_t ino)
{
	return ino << 8 | GCR_NODE_ITEM;
}

static void show_item(struct stat *stat)
{
	stat->st_ino = item_ino(stat->st_ino);
	stat->st_blksize = GCR_SUBTREE_BLOCK_BYTES;
}

void gcr_tree_make_entry(const struct gcr_subtree *subtree, const struct gcr_subtree_entry *entry,
			 struct fuse_entry_param *ret_entry)
{
	*ret_entry = (struct fuse_entry_param){
		.ino = make_node(GCR_NODE_ITEM, entry->item) |
		       (fuse_ino_t)gcr_subtree_number(subtree) << EXTRA_SHIFT,
		.generation = entry->generation,
		.attr = entry->stat,
	};
	show_item(&ret_entry->attr);
}

void gcr_tree_forget(fuse_ino_t node, uint64_t count)
{
	if (gcr_node_kind(node) == GCR_NODE_ITEM)
		gcr_subtree_forget_of((uint32_t)(node >> EXTRA_SHIFT), gcr_node_number(node),
				      count);
	else if (gcr_node_is_ctl(gcr_node_kind(node)))
		gcr_ctl_ids_give_back((uint32_t)(node >> EXTRA_SHIFT));
}

bool gcr_tree_reaches(const struct fuse_ctx *caller, pid_t pid)
{
	return caller->pid > 0 && gcr_proc_namespace_reaches(caller->pid, pid) == 1;
}

bool gcr_tree_is_local(const struct fuse_ctx *caller)
{
	return gcr_tree_reaches(caller, getpid());
}

bool gcr_tree_shows_place(const struct fuse_ctx *caller, struct gcr_place *place)
{
	_cleanup_(gcr_sight_finish) struct gcr_sight sight;

	gcr_sight_take(caller, &sight);
	return gcr_sight_shows_place(&sight, place);
}

static void set_time(struct stat *stat, int64_t usec)
{
	stat->st_mtim.tv_sec = usec / GCR_USEC_PER_SEC;
	stat->st_mtim.tv_nsec = usec % GCR_USEC_PER_SEC * 1000;
	stat->st_ctim = stat->st_mtim;
	stat->st_atim = stat->st_mtim;
}

/*
 * The attributes of an item, or of a `snapshot` that contains anything. -ENOENT: the `snapshot` is
 * empty.
 */
static int stat_item(struct gcr_daemon *daemon, fuse_ino_t node, struct stat *ret_stat)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	uint32_t item;
	int result;

	result = gcr_tree_subtree(daemon, node, &subtree, &item);
	if (!result)
		result = gcr_subtree_stat(subtree, item, ret_stat);
	if (!result)
		show_item(ret_stat);
	return result;
}

static int stat_process(struct gcr_daemon *daemon, fuse_ino_t node, struct stat *stat)
{
	struct gcr_process *process;
	int result;

	result = gcr_tree_process(daemon, node, &process);
	if (result < 0)
		return result;
	result = gcr_process_find_owner(process, &stat->st_uid, &stat->st_gid);
	if (!result && gcr_node_kind(node) == GCR_NODE_CRIU_LOG &&
	    gcr_tree_is_process_log_hidden(daemon, process))
		stat->st_uid = stat->st_gid = 0;
	pthread_mutex_lock(&process->lock);
	set_time(stat, process->state_since_usec);
	pthread_mutex_unlock(&process->lock);
	if (gcr_node_kind(node) == GCR_NODE_EVENTS) {
		uint64_t bytes;
		int64_t mtime_usec;

		gcr_event_log_stat(process->events, &bytes, &mtime_usec);
		stat->st_size = (off_t)bytes;
		set_time(stat, mtime_usec);
	}
	stat->st_blocks = (stat->st_size + 511) / 512;
	gcr_process_unref(process);
	return result;
}

static void stat_events(struct gcr_event_log *events, struct stat *stat)
{
	uint64_t bytes;
	int64_t mtime_usec;

	gcr_event_log_stat(events, &bytes, &mtime_usec);
	stat->st_size = (off_t)bytes;
	stat->st_blocks = (stat->st_size + 511) / 512;
	set_time(stat, mtime_usec);
}

static void show_place(const struct gcr_place *place, struct stat *stat)
{
	stat->st_uid = place->stat.st_uid;
	stat->st_gid = place->stat.st_gid;
	stat->st_atim = place->stat.st_mtim;
	stat->st_mtim = place->stat.st_mtim;
	stat->st_ctim = place->stat.st_mtim;
}

static int stat_place(struct gcr_daemon *daemon, fuse_ino_t node, struct stat *stat)
{
	struct gcr_place *place;
	int result = gcr_tree_place(daemon, node, &place);

	if (result < 0)
		return result;
	show_place(place, stat);
	if (gcr_node_kind(node) == GCR_NODE_PLACE_CRIU_LOG &&
	    gcr_tree_is_place_log_hidden(daemon, place))
		stat->st_uid = stat->st_gid = 0;
	if (gcr_node_kind(node) == GCR_NODE_PLACE_EVENTS)
		stat_events(place->events, stat);
	gcr_place_unref(place);
	return 0;
}

int gcr_tree_make_place_entry(struct gcr_place *place, struct fuse_entry_param *ret_entry)
{
	*ret_entry = (struct fuse_entry_param){.ino = make_node(GCR_NODE_PLACE, place->serial)};
	return gcr_tree_getattr(place->daemon, ret_entry->ino, &ret_entry->attr);
}

int gcr_tree_getattr(struct gcr_daemon *daemon, fuse_ino_t node, struct stat *ret_stat)
{
	enum gcr_node_kind kind = gcr_node_kind(node);
	struct stat stat = {0};
	int result = 0;

	if (kind == GCR_NODE_NONE)
		return -ENOENT;
	if (kind == GCR_NODE_ITEM)
		return stat_item(daemon, node, ret_stat);
	if ((kind == GCR_NODE_SNAPSHOT || kind == GCR_NODE_PLACE_SNAPSHOT) &&
	    !stat_item(daemon, node, &stat)) {
		stat.st_ino = node;
		*ret_stat = stat;
		return 0;
	}
	/* Without the upper bits: stat(2) always shows the same inode number of a file. */
	stat.st_ino = node & ((UINT64_C(1) << EXTRA_SHIFT) - 1);
	stat.st_mode = shapes[kind].mode;
	stat.st_nlink = S_ISDIR(stat.st_mode) ? 2 : 1;
	stat.st_blksize = 4096;
	if (daemon->only_uid != (uid_t)-1) {
		stat.st_uid = daemon->only_uid;
		stat.st_gid = getgid();
	}
	if (is_of_process(kind)) {
		result = stat_process(daemon, node, &stat);
	} else if (is_of(kind, GCR_NODE_PLACE)) {
		result = stat_place(daemon, node, &stat);
	} else if (kind == GCR_NODE_ROOT_EVENTS) {
		stat_events(daemon->events, &stat);
	}
	if (!result)
		*ret_stat = stat;
	return result;
}

/* The node of the process if @node is a place that is another name of a process; else @node. */
static fuse_ino_t follow(struct gcr_daemon *daemon, fuse_ino_t node)
{
	struct gcr_place *place;

	if (gcr_node_kind(node) != GCR_NODE_PLACE || gcr_tree_place(daemon, node, &place) < 0)
		return node;
	pthread_mutex_lock(&place->lock);
	if (place->process)
		node = make_node(GCR_NODE_PROCESS, place->process->serial);
	pthread_mutex_unlock(&place->lock);
	gcr_place_unref(place);
	return node;
}

/*
 * Finds the node of the link for a pid, if the pid's process has the name of a place that @caller
 * sees; else false.
 */
static bool find_link(struct gcr_daemon *daemon, const struct fuse_ctx *caller, pid_t pid,
		      struct gcr_process *process, fuse_ino_t *ret_node)
{
	struct gcr_place *place;
	bool is_shown;

	if (gcr_place_find_pid(daemon->places, pid, process, &place) < 0)
		return false;
	is_shown = gcr_tree_shows_place(caller, place);
	if (is_shown)
		*ret_node = make_node(GCR_NODE_PID, place->serial);
	gcr_place_unref(place);
	return is_shown;
}

static int find_place(struct gcr_daemon *daemon, const struct fuse_ctx *caller, const char *name,
		      fuse_ino_t *ret_node)
{
	struct gcr_place *place;
	bool is_shown;

	if (gcr_place_find(daemon->places, name, &place) < 0)
		return -ENOENT;
	is_shown = gcr_tree_shows_place(caller, place);
	if (is_shown)
		*ret_node = make_node(GCR_NODE_PLACE, place->serial);
	gcr_place_unref(place);
	return is_shown ? 0 : -ENOENT;
}

/* Parses a name of digits only, without leading zeros, as a number up to @max. */
static int parse_index(const char *name, uint32_t max, uint32_t *ret_index)
{
	uint64_t index = 0;

	if (!*name || (*name == '0' && name[1]))
		return -ENOENT;
	for (; *name; name++) {
		if (!isdigit((unsigned char)*name))
			return -ENOENT;
		index = index * 10 + (uint64_t)(*name - '0');
		if (index > max)
			return -ENOENT;
	}
	*ret_index = (uint32_t)index;
	return 0;
}

/*
 * Finds the process with this pid; one that is not listed yet is examined. -EBUSY: the caller's
 * user has too many such examinations under way, or they have taken too much time lately.
 */
static int find_process(struct gcr_daemon *daemon, const struct fuse_ctx *caller, pid_t pid,
			struct gcr_process **ret_process)
{
	_cleanup_(gcr_turn_end) struct gcr_turn turn = {0};

	if (!gcr_processes_find_listed(daemon->processes, pid, ret_process))
		return 0;
	if (!gcr_turn_begin_lookup(daemon->quota, gcr_credentials_counted(caller->pid, caller->uid),
				   &turn))
		return -EBUSY;
	return gcr_processes_find(daemon->processes, pid, ret_process);
}

static int lookup_process(struct gcr_daemon *daemon, const struct fuse_ctx *caller,
			  const char *name, fuse_ino_t *ret_node)
{
	struct gcr_process *process;
	uint32_t pid;
	int result;

	result = parse_index(name, INT_MAX, &pid);
	if (result < 0)
		return result;
	result = !pid || !gcr_tree_reaches(caller, (pid_t)pid) ? -ENOENT : 0;
	if (!result)
		result = find_process(daemon, caller, (pid_t)pid, &process);
	if (result == -ENOENT && pid && find_link(daemon, caller, (pid_t)pid, NULL, ret_node))
		return 0;
	if (result < 0)
		return result;
	if (!find_link(daemon, caller, (pid_t)pid, process, ret_node))
		*ret_node = make_node(GCR_NODE_PROCESS, process->serial);
	gcr_process_unref(process);
	return 0;
}

static int lookup_item(struct gcr_daemon *daemon, fuse_ino_t parent, const char *name,
		       struct fuse_entry_param *ret_entry)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	struct gcr_subtree_entry entry;
	uint32_t item;
	int result;

	result = gcr_tree_subtree(daemon, parent, &subtree, &item);
	if (!result)
		result = gcr_subtree_lookup(subtree, item, name, &entry);
	if (result < 0)
		return result == -ESRCH || result == -ESTALE ? -ENOENT : result;
	gcr_tree_make_entry(subtree, &entry, ret_entry);
	return 0;
}

/* Has the directory @parent an entry of this kind? */
static bool has_entry(struct gcr_daemon *daemon, fuse_ino_t parent, enum gcr_node_kind kind)
{
	struct gcr_process *process;
	bool has = true;

	if (shapes[kind].not_of_launcher && !gcr_tree_process(daemon, parent, &process)) {
		has = !process->launcher;
		gcr_process_unref(process);
	}
	return has;
}

/* See gcr_tree_lookup(). */
static uint32_t upper_bits(struct gcr_daemon *daemon, const struct fuse_ctx *caller,
			   fuse_ino_t node)
{
	enum gcr_node_kind kind = gcr_node_kind(node);
	uid_t counted;

	if (!S_ISREG(shapes[kind].mode))
		return 0;
	counted = gcr_credentials_seem_counted(caller->pid, caller->uid);
	if (gcr_node_is_ctl(kind))
		return gcr_ctl_ids_take(daemon->quota, counted, node);
	if (!caller->uid)
		return counted == GCR_QUOTA_OTHER_ROOT ? OTHER_ROOTS : 0;
	return is_of_process(kind) || is_of(kind, GCR_NODE_PLACE) ? OWNERS : 0;
}

static int lookup_in_root(struct gcr_daemon *daemon, const struct fuse_ctx *caller,
			  const char *name, fuse_ino_t *ret_node)
{
	int result = lookup_process(daemon, caller, name, ret_node);

	return result == -ENOENT ? find_place(daemon, caller, name, ret_node) : result;
}

/*
 * As lookup_in_root(). For a caller in another pid namespace helpers look at the caller, and at the
 * process, while the kernel may keep the root locked. -EBUSY: that has taken too much time lately.
 */
static int lookup_in_time(struct gcr_daemon *daemon, const struct fuse_ctx *caller,
			  const char *name, fuse_ino_t *ret_node)
{
	int64_t began_usec = gcr_clock_usec();
	uid_t uid;
	int result;

	if (gcr_tree_is_local(caller))
		return lookup_in_root(daemon, caller, name, ret_node);
	uid = gcr_credentials_counted(caller->pid, caller->uid);
	if (!gcr_turn_may_look_up(daemon->quota, uid))
		return -EBUSY;
	result = lookup_in_root(daemon, caller, name, ret_node);
	gcr_turn_looked_up(daemon->quota, uid, began_usec);
	return result;
}

int gcr_tree_lookup(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t parent,
		    const char *name, struct fuse_entry_param *ret_entry)
{
	enum gcr_node_kind parent_kind;
	struct fuse_entry_param entry = {0};
	uint32_t index;
	int result = 0;

	parent = follow(daemon, parent);
	parent_kind = gcr_node_kind(parent);
	if (gcr_node_is_in_subtree(parent_kind))
		return lookup_item(daemon, parent, name, ret_entry);
	for (int kind = GCR_NODE_ROOT_CTL; kind < GCR_NODE_KINDS_COUNT && !entry.ino; kind++)
		if (shapes[kind].parent == parent_kind && shapes[kind].name &&
		    !strcmp(shapes[kind].name, name) &&
		    has_entry(daemon, parent, (enum gcr_node_kind)kind))
			entry.ino = make_node((enum gcr_node_kind)kind, gcr_node_number(parent));
	if (!entry.ino && parent_kind == GCR_NODE_GPUS) {
		result = parse_index(name, GCR_GPUS_MAX - 1, &index);
		if (!result && index >= gcr_gpus_count(daemon->gpus))
			result = -ENOENT;
		if (!result)
			entry.ino = make_node(GCR_NODE_GPU, index);
	} else if (!entry.ino && parent_kind == GCR_NODE_ROOT) {
		result = lookup_in_time(daemon, caller, name, &entry.ino);
	} else if (!entry.ino) {
		result = -ENOENT;
	}
	if (result < 0)
		return result;
	entry.ino |= (fuse_ino_t)upper_bits(daemon, caller, entry.ino) << EXTRA_SHIFT;
	result = gcr_tree_getattr(daemon, entry.ino, &entry.attr);
	if (result < 0) {
		/* The kernel never hears of the number. */
		gcr_tree_forget(entry.ino, 1);
		return result == -ESRCH || result == -ESTALE ? -ENOENT : result;
	}
	*ret_entry = entry;
	return 0;
}

/*
 * Updates the list of processes that use a GPU. If that takes long, or the caller's user waits for
 * too many examinations already, the list stays as it is.
 */
static void refresh(struct gcr_daemon *daemon, const struct fuse_ctx *caller)
{
	_cleanup_(gcr_turn_end) struct gcr_turn turn = {0};
	int result;

	if (!gcr_turn_begin(daemon->quota, gcr_credentials_counted(caller->pid, caller->uid),
			    &turn))
		return;
	result = gcr_scan_now(daemon->scan, REFRESH_USEC);
	if (result < 0 && result != -ETIMEDOUT)
		gcr_log(LOG_WARNING, 0, "/proc cannot be searched: %s", strerror(-result));
}

static int list_processes(struct gcr_daemon *daemon, const struct fuse_ctx *caller,
			  struct gcr_sight *sight,
			  int (*add)(void *, const char *, fuse_ino_t, mode_t), void *data)
{
	struct gcr_process **list = NULL;
	fuse_ino_t node;
	char name[16];
	size_t count = 0;
	int result;

	refresh(daemon, caller);
	result = gcr_processes_list(daemon->processes, &list, &count);
	for (size_t i = 0; i < count && !result; i++) {
		if (!sight->is_local && !gcr_sight_reaches(sight, list[i]->pid))
			continue;
		snprintf(name, sizeof(name), "%d", (int)list[i]->pid);
		result = find_link(daemon, caller, list[i]->pid, list[i], &node)
				 ? add(data, name, node, S_IFLNK)
				 : add(data, name, make_node(GCR_NODE_PROCESS, list[i]->serial),
				       S_IFDIR);
	}
	gcr_processes_list_free(list, count);
	return result;
}

struct place_list {
	struct gcr_sight *sight;
	int (*add)(void *, const char *, fuse_ino_t, mode_t);
	void *data;
};

/* Lists a place for its owner and for root only. */
static int add_place(struct gcr_place *place, void *data)
{
	const struct place_list *list = data;
	uid_t uid = list->sight->caller->uid;

	if ((uid && uid != place->stat.st_uid) || !gcr_sight_shows_place(list->sight, place))
		return 0;
	return list->add(list->data, place->name, make_node(GCR_NODE_PLACE, place->serial),
			 S_IFDIR);
}

static int list_places(struct gcr_daemon *daemon, struct gcr_sight *sight,
		       int (*add)(void *, const char *, fuse_ino_t, mode_t), void *data)
{
	struct place_list list = {.sight = sight, .add = add, .data = data};

	return gcr_place_each(daemon->places, add_place, &list);
}

static int list_root(struct gcr_daemon *daemon, const struct fuse_ctx *caller,
		     int (*add)(void *, const char *, fuse_ino_t, mode_t), void *data)
{
	_cleanup_(gcr_sight_finish) struct gcr_sight sight;
	int result;

	gcr_sight_take(caller, &sight);
	result = list_processes(daemon, caller, &sight, add, data);
	return result ? result : list_places(daemon, &sight, add, data);
}

/* Arguments of gcr_tree_list(), for the names in a subtree. */
struct item_list {
	int (*add)(void *, const char *, fuse_ino_t, mode_t);
	void *data;
};

static int add_item(void *data, const char *name, ino_t ino, mode_t mode)
{
	const struct item_list *list = data;

	return list->add(list->data, name, item_ino(ino), mode);
}

static int list_items(struct gcr_daemon *daemon, fuse_ino_t node,
		      int (*add)(void *, const char *, fuse_ino_t, mode_t), void *data)
{
	_cleanup_(gcr_subtree_unref_cleanup) struct gcr_subtree *subtree = NULL;
	struct item_list list = {.add = add, .data = data};
	uint32_t item;
	int result;

	result = gcr_tree_subtree(daemon, node, &subtree, &item);
	if (result == -ENOENT)
		return 0;
	return result ? result : gcr_subtree_list(subtree, item, add_item, &list);
}

int gcr_tree_list(struct gcr_daemon *daemon, const struct fuse_ctx *caller, fuse_ino_t node,
		  int (*add)(void *data, const char *name, fuse_ino_t node, mode_t mode),
		  void *data)
{
	fuse_ino_t followed = follow(daemon, node);
	enum gcr_node_kind parent = gcr_node_kind(followed);
	uint32_t number = gcr_node_number(followed);
	char name[16];
	int result;

	if (!S_ISDIR(shapes[parent].mode) && parent != GCR_NODE_ITEM)
		return -ENOTDIR;
	result = add(data, ".", node, S_IFDIR);
	if (!result)
		result = add(data, "..", FUSE_ROOT_ID, S_IFDIR);
	for (int kind = GCR_NODE_ROOT_CTL; kind < GCR_NODE_KINDS_COUNT && !result; kind++)
		if (shapes[kind].parent == parent && shapes[kind].name &&
		    has_entry(daemon, followed, (enum gcr_node_kind)kind))
			result = add(data, shapes[kind].name,
				     make_node((enum gcr_node_kind)kind, number),
				     shapes[kind].mode);
	if (parent == GCR_NODE_GPUS) {
		for (uint32_t i = 0; i < gcr_gpus_count(daemon->gpus) && !result; i++) {
			snprintf(name, sizeof(name), "%u", i);
			result = add(data, name, make_node(GCR_NODE_GPU, i), S_IFDIR);
		}
	}
	if (parent == GCR_NODE_ROOT && !result)
		result = list_root(daemon, caller, add, data);
	if (gcr_node_is_in_subtree(parent) && !result)
		result = list_items(daemon, node, add, data);
	return result;
}
