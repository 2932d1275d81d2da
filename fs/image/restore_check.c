/* SPDX-License-Identifier: MIT */
/*
 * All checks before a restore starts anything. CRIU runs as root and does what its images say, so
 * only root may have written them: only root may restore, and metadata and images must be owned by
 * root and not be writable for others. During the checks no user can change the place.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "criu-glue/image_owner.h"
#include "fs/base/errand.h"
#include "fs/base/mountpoint.h"
#include "fs/helper/helper.h"
#include "fs/image/criu_run.h"
#include "fs/image/restore_private.h"
#include "fs/process/gpus.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/extent.h"
#include "lib/file_identity.h"
#include "lib/host.h"
#include "lib/proc_file.h"
#include "lib/rights.h"

#define READERS_MAX 8u

/*
 * How long to wait for a parent that has not waited for its child yet; normally it does so at once.
 */
#define REAP_USEC      (10 * GCR_USEC_PER_SEC)
#define REAP_LOOK_USEC (10 * GCR_USEC_PER_MSEC)

void gcr_restore_forget_metadata(struct gcr_restore *restore)
{
	for (size_t i = 0; i < restore->held_count; i++)
		if (restore->held[i].pidfd >= 0)
			close(restore->held[i].pidfd);
	free(restore->held);
	restore->held = NULL;
	restore->held_count = 0;
	for (size_t i = 0; i < restore->members_count; i++) {
		struct gcr_restore_member *member = &restore->members[i];

		gcr_manifest_free(member->manifest);
		free(member->digests);
		if (member->root_fd >= 0)
			close(member->root_fd);
		gcr_process_unref(member->process);
	}
	free(restore->members);
	restore->members = NULL;
	restore->members_count = 0;
	gcr_manifest_free(restore->manifest);
	restore->manifest = NULL;
	if (restore->root_fd >= 0)
		close(restore->root_fd);
	restore->root_fd = -1;
}

/* ---- owners and rights ---- */

int gcr_restore_check_rights(const struct gcr_command *command, struct gcr_error *error)
{
	if (geteuid())
		return gcr_error_set(error, EOPNOTSUPP,
				     "CRIU needs root, and the daemon does not run as root");
	if (gcr_rights_are_roots(&command->rights))
		return 0;
	if (!command->rights.uid)
		return gcr_error_set(
			error, EPERM,
			"only root of this machine may have a process restored: in the daemon's "
			"pid and user namespaces, and with CAP_SYS_ADMIN");
	/*
	 * This also holds for trees dumped here. A library in CRIU opens the tree's files with the
	 * rights of its owner (criu-glue/guard_files.c), but CRIU does all else as root.
	 */
	return gcr_error_set(
		error, EPERM,
		"only root may have a process restored, for CRIU does as root what its "
		"images say");
}

/*
 * Checks that only root can have written the file @name in the directory @fd; @shown is its name in
 * messages. -EPERM: others can have; -EOPNOTSUPP: there is no such file; -EIO.
 */
static int check_owner(int fd, const char *name, const char *shown, struct gcr_error *error)
{
	struct stat stat;

	if (fstatat(fd, name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT
			       ? gcr_error_set(error, EOPNOTSUPP, "%s is not there", shown)
			       : gcr_error_set(error, EIO, "%s: %s", shown, strerror(errno));
	if (S_ISLNK(stat.st_mode))
		return gcr_error_set(error, EPERM, "%s is a symbolic link", shown);
	if (stat.st_uid)
		return gcr_error_set(
			error, EPERM,
			"%s belongs to user %u, and CRIU would do as root what it says: "
			"chown it to root if it can be trusted",
			shown, (unsigned int)stat.st_uid);
	if (stat.st_mode & (S_IWGRP | S_IWOTH))
		return gcr_error_set(
			error, EPERM,
			"%s can be written to by others than root: chmod go-w it if it "
			"can be trusted",
			shown);
	return 0;
}

/* ---- metadata ---- */

/*
 * Reads the metadata of one GPU process of the tree, except the digests; @is_root: the root's are
 * the top-level metadata.
 */
static int read_member(struct gcr_restore *restore, struct gcr_restore_member *member,
		       const struct gcr_tree_process *described, bool is_root,
		       struct gcr_error *error)
{
	char path[64];
	int result = 0;

	member->described = described;
	member->pid = described->pid;
	snprintf(path, sizeof(path), GCR_TREE_PROCESSES "/%d", (int)described->pid);
	member->root_fd =
		is_root ? fcntl(restore->root_fd, F_DUPFD_CLOEXEC, 0)
			: gcr_beneath_open_path(restore->root_fd, path, O_RDONLY | O_DIRECTORY);
	if (member->root_fd < 0)
		return gcr_error_set(error, EIO, "%s: %s", is_root ? "snapshot" : path,
				     is_root ? strerror(errno) : strerror(-member->root_fd));
	if (!is_root) {
		result = check_owner(member->root_fd, ".", path, error);
		if (!result)
			result = check_owner(member->root_fd, GCR_MANIFEST_NAME, "its manifest",
					     error);
		if (!result)
			result = gcr_manifest_read(member->root_fd, &member->manifest, error);
		if (!result && (member->manifest->pid != described->pid ||
				strcmp(member->manifest->generation, described->generation) != 0))
			result = gcr_error_set(error, EIO, "its manifest is another process's");
		if (result < 0)
			gcr_error_prefix(error, "%s", path);
	}
	return result;
}

/* Maps errors that mean "the given data are invalid" to -EIO, or to -EOPNOTSUPP for a version. */
static int map_error(int result, struct gcr_error *error)
{
	switch (-result) {
	case EPROTO:
	case EBADMSG:
	case ESTALE:
	case ENOENT:
	case E2BIG:
	case EFBIG:
	case ELOOP:
		error->number = EIO;
		return -EIO;
	case EPROTONOSUPPORT:
		error->number = EOPNOTSUPP;
		return -EOPNOTSUPP;
	default:
		return result;
	}
}

/*
 * Reads the digests of all members. Call check_vram() first: it bounds their number, and they are
 * in memory. Errors as of map_error(), and of check_owner().
 */
static int read_digests(struct gcr_restore *restore, struct gcr_error *error)
{
	int result = 0;

	for (size_t i = 0; i < restore->members_count && !result; i++) {
		struct gcr_restore_member *member = &restore->members[i];
		const struct gcr_manifest *manifest = gcr_restore_manifest_of(restore, member);

		result = check_owner(member->root_fd, GCR_DIGESTS_NAME, GCR_DIGESTS_NAME, error);
		if (!result)
			result = map_error(gcr_digests_read(member->root_fd, manifest->generation,
							    gcr_manifest_digests_count(manifest),
							    &manifest->digests, &member->digests,
							    error),
					   error);
	}
	return result;
}

/*
 * Reads the metadata for `pid=N`: another program's CRIU has dumped and restored the process, and
 * the place has VRAM only.
 */
static int read_alone(struct gcr_restore *restore, struct gcr_error *error)
{
	const struct gcr_manifest *manifest = restore->manifest;
	struct gcr_tree_process *alone = &restore->alone;

	if (manifest->tree)
		return gcr_error_set(error, EINVAL,
				     "pid=%d is for what somebody else's CRIU has dumped",
				     (int)restore->job.command.restored);
	alone->pid = manifest->pid;
	alone->has_gpu = true;
	memcpy(alone->comm, manifest->comm, sizeof(alone->comm));
	memcpy(alone->generation, manifest->generation, sizeof(alone->generation));
	snprintf(alone->engine, sizeof(alone->engine), "%s", manifest->engine);
	restore->members = calloc(1, sizeof(*restore->members));
	if (!restore->members)
		return gcr_error_set(error, ENOMEM, "out of memory");
	restore->members_count = 1;
	restore->members[0].root_fd = -1;
	return map_error(read_member(restore, &restore->members[0], alone, true, error), error);
}

static int read_metadata(struct gcr_restore *restore, struct gcr_error *error)
{
	const struct gcr_manifest_tree *tree;
	int result;

	restore->root_fd = gcr_beneath_open(restore->place->fd, "snapshot", O_RDONLY | O_DIRECTORY);
	if (restore->root_fd < 0)
		return gcr_error_set(error, EIO, "snapshot: %s", strerror(-restore->root_fd));
	result = check_owner(restore->root_fd, ".", "snapshot", error);
	if (!result)
		result = check_owner(restore->root_fd, GCR_MANIFEST_NAME, GCR_MANIFEST_NAME, error);
	if (!result)
		result = map_error(gcr_manifest_read(restore->root_fd, &restore->manifest, error),
				   error);
	if (result < 0)
		return result;
	if (restore->job.command.restored)
		return read_alone(restore, error);
	tree = restore->manifest->tree;
	if (!tree)
		return gcr_error_set(
			error, EOPNOTSUPP,
			"a process cannot be made of it: its CPU side is not there (it "
			"was frozen, not dumped)");
	restore->members = calloc(tree->processes_count, sizeof(*restore->members));
	if (!restore->members)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < tree->processes_count && !result; i++)
		if (tree->processes[i].has_gpu)
			result = map_error(read_member(restore,
						       &restore->members[restore->members_count++],
						       &tree->processes[i], !i, error),
					   error);
	if (!result && !restore->members_count)
		result = gcr_error_set(error, EOPNOTSUPP, "none of its processes uses a GPU");
	return result;
}

/* ---- images ---- */

static int check_image(struct gcr_restore *restore, int fd, const struct gcr_manifest_image *image,
		       struct gcr_error *error)
{
	_cleanup_close_ int image_fd = -1;
	struct gcr_digest digest;
	char shown[GCR_MANIFEST_IMAGE_NAME_BYTES + sizeof("criu/")];
	uint64_t bytes;
	int result;

	snprintf(shown, sizeof(shown), "criu/%s", image->name);
	result = check_owner(fd, image->name, shown, error);
	if (result < 0)
		return result;
	image_fd = gcr_beneath_open_file(fd, image->name, error);
	if (image_fd < 0) {
		gcr_error_prefix(error, "%s", shown);
		return map_error(image_fd, error);
	}
	result = gcr_digest_file(image_fd, &bytes, &digest);
	if (result < 0)
		return gcr_error_set(error, EIO, "%s cannot be read: %s", shown, strerror(-result));
	if (bytes != image->bytes)
		return gcr_error_set(error, EIO, "%s has %" PRIu64 " bytes, not %" PRIu64, shown,
				     bytes, image->bytes);
	if (!gcr_digest_equal(&digest, &image->digest))
		return gcr_error_set(error, EIO, "%s is not what was dumped: its digest is another",
				     shown);
	return gcr_restore_check_stop(restore, error);
}

/* Does the manifest list this image? A binary search, since the manifest lists images in order. */
static bool is_listed(const struct gcr_manifest *manifest, const char *name)
{
	size_t low = 0, high = manifest->images_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(name, manifest->images[middle].name);

		if (!order)
			return true;
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return false;
}

static int check_images(struct gcr_restore *restore, struct gcr_error *error)
{
	const struct gcr_manifest *manifest = restore->manifest;
	_cleanup_close_ int fd =
		gcr_beneath_open(restore->root_fd, GCR_MANIFEST_IMAGES, O_RDONLY | O_DIRECTORY);
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	int result;

	if (fd < 0)
		return gcr_error_set(error, EIO, "criu: %s", strerror(-fd));
	result = check_owner(fd, ".", GCR_MANIFEST_IMAGES, error);
	for (size_t i = 0; i < manifest->images_count && !result; i++)
		result = check_image(restore, fd, &manifest->images[i], error);
	if (result < 0)
		return result;
	result = gcr_beneath_list_fd(TAKE_FD(fd), &dir);
	if (result < 0)
		return gcr_error_set(error, -result, "criu: %s", strerror(-result));
	while ((entry = readdir(dir)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
		    !is_listed(manifest, entry->d_name))
			return gcr_error_set(error, EIO, "criu/%.64s is not of this dump",
					     entry->d_name);
	return 0;
}

/* ---- this machine ---- */

static int check_host(struct gcr_restore *restore, struct gcr_error *error)
{
	const struct gcr_criu_program *program;
	struct gcr_host now;
	int result = gcr_criu_program(restore->job.daemon, &program, error);

	if (!result)
		result = gcr_host_read(NULL, &now, error);
	if (result < 0)
		return result;
	now.criu_version = program->version;
	result = gcr_host_check(&restore->manifest->tree->host, &now, error);
	if (result < 0)
		return result;
	for (size_t i = 0; i < restore->members_count; i++) {
		const struct gcr_manifest *manifest =
			gcr_restore_manifest_of(restore, &restore->members[i]);
		struct gcr_hello hello = {0};

		gcr_helpers_hello(restore->members[i].vendor->helpers, &hello);
		if (*hello.driver_version &&
		    strcmp(manifest->driver_version, hello.driver_version) != 0)
			return gcr_error_set(error, EOPNOTSUPP,
					     "it was dumped with driver %.40s, and here is %.40s",
					     manifest->driver_version, hello.driver_version);
	}
	return 0;
}

static int is_stopped(void *data)
{
	const struct gcr_restore *restore = data;

	return atomic_load(&restore->job.is_stopping);
}

static void leave_errand(void *data)
{
	gcr_errand_leave(data);
}

static void end_errand(void *data)
{
	gcr_errand_end(data);
}

/*
 * Finds the rights with which the tree's files are checked: those of the tree's owner if the place
 * is that user's, else the ids of the place's owner. That user reads the messages, and could put
 * links to files of others at the paths. NULL: root's own, for a place of root's, and for
 * `trusted`. -EIO, -ENOMEM. Call check_images() first.
 */
static int find_reader(struct gcr_restore *restore, struct gcr_file_rights **ret_rights,
		       struct gcr_error *error)
{
	_cleanup_(gcr_image_owner_destroy_cleanup) struct gcr_image_owner *owner = NULL;
	const struct stat *place = &restore->place->stat;
	struct gcr_file_rights rights = {.uid = place->st_uid, .gid = place->st_gid};
	_cleanup_close_ int fd = -1;
	int result;

	*ret_rights = NULL;
	if (!place->st_uid || restore->job.command.trusted)
		return 0;
	fd = gcr_beneath_open(restore->root_fd, GCR_MANIFEST_IMAGES, O_RDONLY | O_DIRECTORY);
	if (fd < 0)
		return gcr_error_set(error, EIO, "criu: %s", strerror(-fd));
	result = gcr_image_owner_find(fd, restore->manifest->tree->processes[0].pid, &owner, error);
	if (result < 0)
		return result;
	if (owner && owner->uid == rights.uid)
		rights = (struct gcr_file_rights){owner->uid, owner->gid, owner->groups,
						  owner->groups_count};
	*ret_rights = gcr_file_rights_copy(&rights);
	return *ret_rights ? 0 : gcr_error_set(error, ENOMEM, "out of memory");
}

static int check_files(struct gcr_restore *restore, struct gcr_error *error)
{
	_cleanup_(gcr_file_rights_destroy_cleanup) struct gcr_file_rights *rights = NULL;
	const struct gcr_manifest_tree *tree = restore->manifest->tree;
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	struct gcr_identity_options options = {
		.threads = processors < 1		    ? 1
			   : processors > (long)READERS_MAX ? READERS_MAX
							    : (unsigned int)processors,
	};
	struct gcr_errand *errand;
	int result = find_reader(restore, &rights, error);

	if (result < 0)
		return result;
	/* The errand counts for the owner of the place: that user has chosen the paths. */
	result = gcr_errand_begin(restore->job.daemon->quota, GCR_ERRAND_DIGEST,
				  restore->place->stat.st_uid,
				  &(struct gcr_errand_wait){
					  .is_stopped = is_stopped,
					  .data = restore,
					  .deadline_usec = restore->job.deadline_usec,
				  },
				  &errand, error);
	if (result < 0)
		return result;
	options.left = leave_errand;
	options.over = end_errand;
	options.data = errand;
	options.cancel = &restore->job.is_stopping;
	options.deadline_usec = restore->job.deadline_usec;
	options.refused_device = gcr_mountpoint_device(restore->job.daemon);
	options.rights = rights;
	return map_error(gcr_file_identities_check(tree->files, tree->files_count, &options, error),
			 error);
}

/* Has the process ended, or is it about to? It keeps its pid until its parent has waited for it. */
static bool is_zombie(const struct gcr_proc_stat *stat)
{
	return stat->state == 'Z' || stat->state == 'X' || stat->is_exiting;
}

/*
 * Waits (REAP_USEC at most) for the pid to become free if its process has ended. -ESRCH: the pid is
 * free; 0: the pid is taken, by the process in *ret_stat.
 */
static int await_number(struct gcr_restore *restore, pid_t number, struct gcr_proc_stat *ret_stat,
			struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + REAP_USEC;
	int result;

	while (!(result = gcr_proc_stat(number, ret_stat)) && is_zombie(ret_stat) &&
	       gcr_clock_usec() < until_usec) {
		result = gcr_restore_check_stop(restore, error);
		if (result < 0)
			return result;
		usleep(REAP_LOOK_USEC);
	}
	return result;
}

/*
 * Checks that no process or thread has this number. @what, for the message: "pid", or "thread's
 * number". -EBUSY.
 */
static int check_number(struct gcr_restore *restore, pid_t number, const char *what,
			struct gcr_error *error)
{
	struct gcr_proc_stat stat, parent = {.comm = "?"};
	int result = await_number(restore, number, &stat, error);
	int has_ended;

	if (result < 0)
		return result == -ESRCH ? 0 : result;
	/* Perhaps only the main thread has ended. */
	has_ended = is_zombie(&stat) ? gcr_proc_is_ending(number) : 0;
	if (has_ended == -ESRCH)
		return 0;
	if (has_ended <= 0)
		return gcr_error_set(error, EBUSY,
				     "its %s %d is another process's now (%s): thaw pid=new, or "
				     "end that",
				     what, (int)number, stat.comm);
	gcr_proc_stat(stat.parent, &parent);
	return gcr_error_set(
		error, EBUSY,
		"its %s %d is still taken: the process that had it (%s) has ended, and "
		"its parent %d (%s) has not waited for it: thaw pid=new, or end that",
		what, (int)number, stat.comm, (int)stat.parent, parent.comm);
}

/* Checks that the ids of all threads are free as well; they are part of the names of images. */
static int check_threads(struct gcr_restore *restore, struct gcr_error *error)
{
	const struct gcr_manifest *manifest = restore->manifest;
	int result = 0;

	for (size_t i = 0; i < manifest->images_count && !result; i++) {
		int number, length = 0;

		if (sscanf(manifest->images[i].name, "core-%9d.img%n", &number, &length) == 1 &&
		    length)
			result = check_number(restore, number, "thread's number", error);
	}
	return result;
}

/*
 * Checks that the pids are free, which CRIU would notice only halfway; and that no process is
 * frozen with the same bytes, because a process must not exist twice.
 */
static int check_pids(struct gcr_restore *restore, struct gcr_error *error)
{
	const struct gcr_manifest_tree *tree = restore->manifest->tree;
	struct gcr_process **list = NULL;
	size_t count = 0;
	int result = 0;

	if (!restore->job.command.new_pids) {
		for (size_t i = 0; i < tree->processes_count && !result; i++)
			result = check_number(restore, tree->processes[i].pid, "pid", error);
		if (!result)
			result = check_threads(restore, error);
	}
	if (result < 0)
		return result;
	if (gcr_processes_list(restore->job.daemon->processes, &list, &count) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < count && !result; i++) {
		enum gcr_state state = gcr_process_state(list[i]);

		/* Skip the dumped process itself, if its end has not been noticed yet. */
		if (gcr_process_has_ended(list[i]))
			continue;
		pthread_mutex_lock(&list[i]->lock);
		for (size_t member = 0; member < restore->members_count; member++)
			if (state != GCR_STATE_RUNNING &&
			    !strcmp(list[i]->generation,
				    restore->members[member].described->generation))
				result = gcr_error_set(error, EBUSY,
						       "process %d is frozen with the same bytes",
						       (int)list[i]->pid);
		pthread_mutex_unlock(&list[i]->lock);
	}
	gcr_processes_list_free(list, count);
	return result;
}

/*
 * Checks that the files exist with their sizes, and that this machine has so much memory: the files
 * may have holes. The thaw verifies their contents.
 */
static int check_vram(struct gcr_restore *restore, struct gcr_error *error)
{
	uint64_t most =
		gcr_gpus_bound(restore->job.daemon->gpus, UINT64_MAX / 2) + gcr_host_bytes();
	uint64_t bytes = 0;

	for (size_t i = 0; i < restore->members_count; i++) {
		const struct gcr_manifest *manifest = restore->members[i].manifest;
		_cleanup_close_ int fd = gcr_beneath_open(
			restore->members[i].root_fd, GCR_MANIFEST_FILES, O_RDONLY | O_DIRECTORY);

		if (!manifest)
			manifest = restore->manifest;
		for (size_t file = 0; file < manifest->allocations_count; file++) {
			const struct gcr_extent *extent = &manifest->allocations[file];
			char name[GCR_EXTENT_NAME_BYTES];
			struct stat stat;

			gcr_extent_name(extent, name);
			if (fd < 0 || fstatat(fd, name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
				return gcr_error_set(error, EIO, "vram/%s is not there", name);
			if (!S_ISREG(stat.st_mode) || (uint64_t)stat.st_size != extent->bytes)
				return gcr_error_set(error, EIO,
						     "vram/%s has %" PRIu64 " bytes, not %" PRIu64,
						     name, (uint64_t)stat.st_size, extent->bytes);
			if (__builtin_add_overflow(bytes, extent->bytes, &bytes) || bytes > most)
				return gcr_error_set(error, EOPNOTSUPP,
						     "its VRAM is more than the %" PRIu64
						     " MiB of this host and all its GPUs",
						     most >> 20);
		}
	}
	return 0;
}

int gcr_restore_check(struct gcr_restore *restore, struct gcr_error *error)
{
	bool is_alone = restore->job.command.restored;
	int result = gcr_restore_check_left(restore, error);

	if (!result)
		result = read_metadata(restore, error);
	if (!result)
		result = gcr_restore_check_vendors(restore, error);
	if (!result)
		result = check_vram(restore, error);
	if (!result)
		result = read_digests(restore, error);
	if (!result && !is_alone)
		result = check_host(restore, error);
	if (!result)
		result = gcr_restore_place_gpus(restore, error);
	if (!result && !is_alone)
		result = gcr_restore_check_room(restore, error);
	if (!result && !is_alone)
		result = check_pids(restore, error);
	if (!result && !is_alone)
		result = check_images(restore, error);
	if (!result && !is_alone)
		result = check_files(restore, error);
	return result ? result : gcr_restore_check_stop(restore, error);
}
