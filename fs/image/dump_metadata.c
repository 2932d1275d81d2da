/* SPDX-License-Identifier: MIT */
/*
 * The contents of a dump's place besides CRIU's images. VRAM contents are hard links to the files
 * that the processes hold while they are frozen, so that no bytes are copied, and none are lost if
 * the dump fails. The owner, if not root, may read the whole place, but change only VRAM in it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/errand.h"
#include "fs/base/mountpoint.h"
#include "fs/helper/helper.h"
#include "fs/image/dump_private.h"
#include "fs/process/gpus.h"
#include "fs/process/vendor.h"
#include "fs/store/store.h"
#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/extent.h"
#include "lib/manifest.h"
#include "lib/uuid.h"

#define FILES_NAME	  "files"
#define READERS_MAX	  8u
#define READER_LOOK_USEC  (50 * GCR_USEC_PER_MSEC)
#define VRAM_NAME	  GCR_MANIFEST_FILES
#define DIGESTS_MODE	  0440
#define METADATA_DIR_MODE 0750
/*
 * Of what CRIU writes, and what tells of it. CRIU reads the tree as root, while processes outside
 * can still change what it reads: so not even the owner of the tree reads it.
 */
#define SECRET_MODE	  0400
#define SECRET_DIR_MODE	  0700

GCR_DEFINE_CLEANUP(struct gcr_snapshot *, gcr_snapshot_unref);

struct gcr_process *gcr_dump_gpu_process(const struct gcr_dump *dump, pid_t pid)
{
	struct gcr_process *process;

	for (unsigned int i = 0; (process = gcr_task_sibling(dump->task, i)); i++)
		if (process->pid == pid)
			return process;
	return NULL;
}

/* ---- the files that are open ---- */

static int is_stopped(void *data)
{
	const struct gcr_dump *dump = data;

	return atomic_load(&dump->stop_reading);
}

static void leave_errand(void *data)
{
	gcr_errand_leave(data);
}

static void end_errand(void *data)
{
	gcr_errand_end(data);
}

static void *read_files(void *data)
{
	struct gcr_dump *dump = data;
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	struct gcr_identity_options options = {
		.threads = processors > 1 && processors < READERS_MAX ? (unsigned int)processors
			   : processors > 1			      ? READERS_MAX
								      : 1,
		.cancel = &dump->stop_reading,
		/* A place for root alone: files are read with root's rights. */
		.rights = dump->is_private ? NULL : dump->owner_rights,
	};
	struct gcr_errand *errand;

	dump->read_result =
		gcr_errand_begin(dump->daemon->quota, GCR_ERRAND_DIGEST, dump->uid,
				 &(struct gcr_errand_wait){.is_stopped = is_stopped, .data = dump},
				 &errand, &dump->read_error);
	if (dump->read_result < 0)
		return NULL;
	options.left = leave_errand;
	options.over = end_errand;
	options.data = errand;
	options.refused_device = gcr_mountpoint_device(dump->daemon);
	dump->read_result = gcr_file_identities_make(dump->files, dump->files_count, &options,
						     &dump->read_error);
	return NULL;
}

int gcr_dump_begin_reading(struct gcr_dump *dump, struct gcr_error *error)
{
	const struct gcr_opens *opens = dump->opens;
	int result;

	dump->files = calloc(opens->files_count + 1, sizeof(*dump->files));
	if (!dump->files)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < opens->files_count; i++) {
		struct gcr_file_identity *file = &dump->files[dump->files_count];

		/*
		 * Files below /proc exist when their process does. A parked library opens some of
		 * its own at times.
		 */
		if (!strncmp(opens->files[i].path, "/proc/", 6))
			continue;
		file->path = strdup(opens->files[i].path);
		if (!file->path)
			return gcr_error_set(error, ENOMEM, "out of memory");
		file->is_mapped = opens->files[i].is_mapped;
		file->is_append_only = opens->files[i].is_append_only;
		dump->files_count++;
	}
	result = pthread_create(&dump->reader, NULL, read_files, dump);
	if (result)
		return gcr_error_set(error, ENOMEM, "cannot start a thread: %s", strerror(result));
	dump->is_reading = true;
	return 0;
}

/*
 * Waits for the end of @thread, at most @timeout_usec. 0, or (positive) ETIMEDOUT: the thread is
 * still running.
 */
static int join_for(pthread_t thread, int64_t timeout_usec)
{
	int64_t until_usec = gcr_clock_usec() + timeout_usec;
	struct timespec until = gcr_clock_timespec(until_usec);

	return pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until);
}

int gcr_dump_end_reading(struct gcr_dump *dump, struct gcr_error *error)
{
	if (!dump->is_reading)
		return 0;
	/*
	 * When the verb is stopped, threads that wait for a filesystem (perhaps one that the tree
	 * serves) are left behind.
	 */
	while (join_for(dump->reader, READER_LOOK_USEC) == ETIMEDOUT)
		if (gcr_task_stopped(dump->task))
			atomic_store(&dump->stop_reading, true);
	dump->is_reading = false;
	if (dump->read_result < 0)
		*error = dump->read_error;
	if (dump->read_result == -ECANCELED)
		error->words[0] = '\0';
	return dump->read_result;
}

/* ---- directories and files ---- */

static int fail(struct gcr_error *error, int number, const char *what)
{
	return gcr_error_set(error, number, "the place's %s: %s", what, strerror(number));
}

/*
 * Makes the file @name in @fd root's, with @mode, and readable for the group of the place's owner.
 */
static int give(const struct gcr_dump *dump, int fd, const char *name, mode_t mode,
		struct gcr_error *error)
{
	/* Group 0 may have members, so a private place excludes the group. */
	if (dump->is_private)
		mode &= ~(mode_t)(S_IRWXG | S_IRWXO);
	if (fchownat(fd, name, 0, gcr_dump_place_gid(dump), AT_SYMLINK_NOFOLLOW) < 0 ||
	    fchmodat(fd, name, mode, 0) < 0)
		return fail(error, errno, name);
	return 0;
}

/* Makes the file @name in @fd root's, with @mode, which is for no group. */
static int give_to_root(int fd, const char *name, mode_t mode, struct gcr_error *error)
{
	if (fchownat(fd, name, 0, 0, AT_SYMLINK_NOFOLLOW) < 0 || fchmodat(fd, name, mode, 0) < 0)
		return fail(error, errno, name);
	return 0;
}

static int make_directory(const struct gcr_dump *dump, int fd, const char *name, int *ret_fd,
			  struct gcr_error *error)
{
	int result;

	if (mkdirat(fd, name, 0700) < 0)
		return fail(error, errno, name);
	result = give(dump, fd, name, METADATA_DIR_MODE, error);
	if (result < 0)
		return result;
	*ret_fd = gcr_beneath_open(fd, name, O_RDONLY | O_DIRECTORY);
	return *ret_fd < 0 ? fail(error, -*ret_fd, name) : 0;
}

/* ---- one GPU process ---- */

/*
 * Makes the directory `vram` in @root_fd, with hard links to the snapshot's files. The owner may
 * change VRAM there, as while the process is frozen.
 */
static int link_vram(const struct gcr_dump *dump, struct gcr_snapshot *snapshot, int root_fd,
		     struct gcr_error *error)
{
	_cleanup_close_ int vram_fd = -1;
	char name[GCR_EXTENT_NAME_BYTES];
	int result = make_directory(dump, root_fd, VRAM_NAME, &vram_fd, error);

	if (!result && (fchown(vram_fd, gcr_dump_place_uid(dump), gcr_dump_place_gid(dump)) < 0 ||
			fchmod(vram_fd, 0700) < 0))
		result = fail(error, errno, VRAM_NAME);
	/* The place links to these files: the store must not reuse them for another freeze. */
	gcr_snapshot_taint(snapshot);
	for (size_t i = 0; i < gcr_snapshot_count(snapshot) && !result; i++) {
		result = gcr_snapshot_link(snapshot, i, vram_fd, dump->place_hold.number);
		gcr_extent_name(gcr_snapshot_extent(snapshot, i), name);
		if (result < 0)
			result = fail(error, -result, name);
	}
	return result;
}

static int check_manifest(const struct gcr_manifest *manifest, struct gcr_error *error)
{
	return manifest->data ? gcr_error_set(error, EBUSY,
					      "process %d was frozen with `data`, so the driver's "
					      "state is still there: thaw it first",
					      (int)manifest->pid)
			      : 0;
}

int gcr_dump_check_frozen(const struct gcr_dump *dump, struct gcr_error *error)
{
	struct gcr_process *process;
	bool has_moved;
	int result = 0;

	for (unsigned int i = 0; !result && (process = gcr_task_sibling(dump->task, i)); i++) {
		_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = NULL;
		_cleanup_(gcr_snapshot_unref_cleanup) struct gcr_snapshot *snapshot = NULL;

		pthread_mutex_lock(&process->lock);
		snapshot = process->snapshot ? gcr_snapshot_ref(process->snapshot) : NULL;
		has_moved = process->moved.count;
		pthread_mutex_unlock(&process->lock);
		if (has_moved)
			return gcr_error_set(error, EBUSY,
					     "to the driver process %d is on other GPUs than its "
					     "memory, since a thaw with gpu= was undone: thaw it "
					     "first",
					     (int)process->pid);
		if (snapshot)
			result = gcr_snapshot_read_manifest(snapshot, &manifest, error);
		if (result < 0)
			gcr_error_prefix(error, "the manifest of process %d", (int)process->pid);
		/* Users may have put anything there, or removed it. */
		if (result < 0 && result != -ENOMEM)
			result = -(error->number = EIO);
		if (!result && manifest)
			result = check_manifest(manifest, error);
	}
	return result;
}

/* ---- what the manifest says of the process ---- */

/* Sets what the daemon itself knows of the process. @process NULL: a root without a GPU. */
static int describe_process(const struct gcr_dump *dump, const struct gcr_dump_member *member,
			    struct gcr_process *process, struct gcr_manifest *manifest)
{
	const struct gcr_vendor *vendor = process ? process->vendor
						  : gcr_vendor_of_engine(dump->daemon, "");
	struct gcr_hello hello;
	int result = 0;

	if (process) {
		pthread_mutex_lock(&process->lock);
		/* A snapshot's generation has been compared. */
		if (!*manifest->generation)
			snprintf(manifest->generation, sizeof(manifest->generation), "%s",
				 process->generation);
		snprintf(manifest->engine, sizeof(manifest->engine), "%s", process->engine);
		pthread_mutex_unlock(&process->lock);
		gcr_manifest_set_vendor(manifest, vendor->backend->vendor);
	} else {
		result = gcr_uuid_make(manifest->generation);
	}
	manifest->pid = member->proc.pid;
	manifest->start_ticks = member->proc.start_ticks;
	memcpy(manifest->comm, member->proc.comm, sizeof(manifest->comm));
	manifest->exe[0] = '\0';
	gcr_proc_link(member->proc.pid, "exe", manifest->exe, sizeof(manifest->exe));
	if (gcr_helpers_hello(vendor->helpers, &hello)) {
		memcpy(manifest->driver_version, hello.driver_version,
		       sizeof(hello.driver_version));
		manifest->api_version = hello.api_version;
	}
	return result;
}

static struct gcr_manifest_gpu *find_gpu(struct gcr_manifest_gpu *gpus, size_t count,
					 const uint8_t *uuid)
{
	for (size_t i = 0; i < count; i++)
		if (!memcmp(gpus[i].uuid, uuid, GCR_UUID_BYTES))
			return &gpus[i];
	return NULL;
}

static const struct gcr_gpu_info *find_info(const struct gcr_gpus_reply *reply, const uint8_t *uuid)
{
	for (uint32_t i = 0; i < reply->gpus_count; i++)
		if (!memcmp(reply->gpus[i].uuid, uuid, GCR_UUID_BYTES))
			return &reply->gpus[i];
	return NULL;
}

/*
 * Sets the manifest's allocations to those of the snapshot, and its GPUs to theirs. A GPU's entry
 * in the manifest stays only if the daemon does not know that GPU now. -ENOMEM.
 */
static int describe_allocations(const struct gcr_dump *dump, struct gcr_process *process,
				const struct gcr_snapshot *snapshot, struct gcr_manifest *manifest)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = malloc(sizeof(*reply));
	_cleanup_free_ struct gcr_manifest_gpu *said = malloc(sizeof(manifest->gpus));
	size_t said_count = manifest->gpus_count;

	if (!reply || !said)
		return -ENOMEM;
	memcpy(said, manifest->gpus, sizeof(manifest->gpus));
	memset(manifest->gpus, 0, sizeof(manifest->gpus));
	manifest->gpus_count = 0;
	gcr_gpus_snapshot(dump->daemon->gpus, reply);
	for (size_t i = 0; i < manifest->allocations_count; i++) {
		const struct gcr_extent *extent = gcr_snapshot_extent(snapshot, i);
		const struct gcr_gpu_info *info = find_info(reply, extent->gpu);
		const struct gcr_manifest_gpu *old = find_gpu(said, said_count, extent->gpu);
		struct gcr_manifest_gpu *gpu;

		manifest->allocations[i] = *extent;
		if (find_gpu(manifest->gpus, manifest->gpus_count, extent->gpu) ||
		    (!info && !old) || manifest->gpus_count == GCR_ARRAY_SIZE(manifest->gpus))
			continue;
		gpu = &manifest->gpus[manifest->gpus_count++];
		if (info)
			gcr_gpu_describe(process->vendor->backend, info, gpu);
		else
			*gpu = *old;
		gpu->index = extent->gpu_index;
		gpu->control_bytes = 0;
	}
	return 0;
}

/*
 * Reads the metadata that the freeze has written, and writes the digests for the place. The owner
 * of the process may have written another manifest: only its digest of the digests is used, which
 * the digests are checked against, and nothing that the daemon knows itself.
 */
static int take_metadata(const struct gcr_dump *dump, const struct gcr_dump_member *member,
			 struct gcr_process *process, struct gcr_snapshot *snapshot, int root_fd,
			 struct gcr_manifest **ret_manifest, struct gcr_error *error)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = NULL;
	_cleanup_free_ struct gcr_digest *digests = NULL;
	struct gcr_digest written;
	gid_t unused;
	int result = gcr_snapshot_read_digests(snapshot, &digests, error);

	if (!result)
		result = gcr_snapshot_read_manifest(snapshot, &manifest, error);
	if (!result)
		result = check_manifest(manifest, error);
	if (!result)
		result = gcr_digests_write(
			root_fd, manifest->generation, digests,
			gcr_snapshot_first_chunk(snapshot, gcr_snapshot_count(snapshot)), &written,
			error);
	if (!result)
		result = give(dump, root_fd, GCR_DIGESTS_NAME, DIGESTS_MODE, error);
	/* Another manifest may have been put there between the two reads. */
	if (!result && (!gcr_digest_equal(&written, &manifest->digests) ||
			manifest->allocations_count != gcr_snapshot_count(snapshot)))
		result = gcr_error_set(error, EIO, "the manifest was changed meanwhile");
	if (result < 0)
		return result;
	/* Only the manifest of a dump has these two. */
	gcr_manifest_tree_free(TAKE_PTR(manifest->tree));
	free(TAKE_PTR(manifest->images));
	manifest->images_count = 0;
	if (describe_process(dump, member, process, manifest) < 0 ||
	    describe_allocations(dump, process, snapshot, manifest) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (gcr_proc_owner(member->proc.pid, &manifest->uid, &unused) < 0)
		manifest->uid = dump->uid;
	*ret_manifest = TAKE_PTR(manifest);
	return 0;
}

/*
 * Makes a manifest (*ret_manifest, the caller's) for a process that the driver alone has frozen, or
 * for a root without a GPU.
 */
static int make_metadata(const struct gcr_dump *dump, const struct gcr_dump_member *member,
			 struct gcr_process *process, int root_fd,
			 struct gcr_manifest **ret_manifest, struct gcr_error *error)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest =
		calloc(1, sizeof(*manifest));
	int result;

	if (!manifest)
		return gcr_error_set(error, ENOMEM, "out of memory");
	manifest->uid = dump->uid;
	if (describe_process(dump, member, process, manifest) < 0)
		return gcr_error_set(error, EIO, "the kernel gives no random numbers");
	result = gcr_digests_write(root_fd, manifest->generation, NULL, 0, &manifest->digests,
				   error);
	if (!result)
		result = give(dump, root_fd, GCR_DIGESTS_NAME, DIGESTS_MODE, error);
	if (!result)
		*ret_manifest = TAKE_PTR(manifest);
	return result;
}

/* Returns @index if no GPU of the manifest has it, else another index that none has. */
static uint32_t free_index(const struct gcr_manifest *manifest, uint32_t index)
{
	uint32_t taken = 0;

	_Static_assert(GCR_GPUS_MAX <= 32, "a bit for each GPU");
	for (size_t i = 0; i < manifest->gpus_count; i++)
		taken |= 1u << manifest->gpus[i].index;
	while (taken & 1u << index)
		index = (index + 1) % GCR_GPUS_MAX;
	return index;
}

/*
 * Sets the need of the GPU with this UUID in its entry of the manifest, which is added if there was
 * none; not if the daemon knows no such GPU. -E2BIG: there are too many GPUs.
 */
static int set_need(const struct gcr_backend *backend, struct gcr_manifest *manifest,
		    const struct gcr_gpus_reply *reply, const uint8_t *uuid, uint64_t bytes)
{
	struct gcr_manifest_gpu *gpu = find_gpu(manifest->gpus, manifest->gpus_count, uuid);
	const struct gcr_gpu_info *info = find_info(reply, uuid);

	if (!gpu && !info)
		return 0;
	if (!gpu) {
		if (manifest->gpus_count == GCR_ARRAY_SIZE(manifest->gpus))
			return -E2BIG;
		gpu = &manifest->gpus[manifest->gpus_count];
		gpu->index = free_index(manifest, (uint32_t)(info - reply->gpus));
		manifest->gpus_count++;
		gcr_gpu_describe(backend, info, gpu);
	}
	gpu->control_bytes = bytes;
	return 0;
}

/*
 * Adds to the manifest the VRAM of process @pid that remains on the GPUs, which CRIU's plugin for
 * the vendor dumps. -E2BIG.
 */
static int add_kept(const struct gcr_backend *backend, pid_t pid, struct gcr_manifest *manifest,
		    const struct gcr_gpus_reply *reply)
{
	int result = 0;

	for (uint32_t i = 0; i < reply->processes_count && !result; i++) {
		const struct gcr_gpu_process *user = &reply->processes[i];

		if (user->pid == pid && user->gpu < reply->gpus_count)
			result = set_need(backend, manifest, reply, reply->gpus[user->gpu].uuid,
					  user->bytes);
	}
	return result;
}

/*
 * Adds to the manifest the VRAM that the driver itself will need on each GPU; another machine
 * cannot determine it.
 */
static int add_needs(const struct gcr_dump *dump, struct gcr_process *process,
		     struct gcr_manifest *manifest, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = malloc(sizeof(*reply));
	const struct gcr_backend *backend = process->vendor->backend;
	int result = 0;

	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	gcr_gpus_snapshot(dump->daemon->gpus, reply);
	if (!backend->has_control && dump->kept)
		result = add_kept(backend, process->pid, manifest, dump->kept);
	pthread_mutex_lock(&process->lock);
	for (unsigned int i = 0; i < process->shares_count && !result; i++)
		result = set_need(backend, manifest, reply, process->shares[i].uuid,
				  process->shares[i].bytes);
	pthread_mutex_unlock(&process->lock);
	return result ? gcr_error_set(error, EIO, "process %d uses too many GPUs",
				      (int)process->pid)
		      : 0;
}

/* Writes a member's VRAM and digests into @root_fd, and returns its manifest, not written yet. */
static int take_member(const struct gcr_dump *dump, const struct gcr_dump_member *member,
		       int root_fd, struct gcr_manifest **ret_manifest, struct gcr_error *error)
{
	struct gcr_process *process = gcr_dump_gpu_process(dump, member->proc.pid);
	_cleanup_(gcr_snapshot_unref_cleanup) struct gcr_snapshot *snapshot = NULL;
	int result;

	if (process) {
		pthread_mutex_lock(&process->lock);
		snapshot = process->snapshot ? gcr_snapshot_ref(process->snapshot) : NULL;
		pthread_mutex_unlock(&process->lock);
	}
	if (!snapshot) {
		result = make_metadata(dump, member, process, root_fd, ret_manifest, error);
	} else {
		result = link_vram(dump, snapshot, root_fd, error);
		if (!result)
			result = take_metadata(dump, member, process, snapshot, root_fd,
					       ret_manifest, error);
	}
	if (!result && process)
		result = add_needs(dump, process, *ret_manifest, error);
	return result;
}

static int write_manifest(const struct gcr_dump *dump, int root_fd, struct gcr_manifest *manifest,
			  struct gcr_error *error)
{
	int result = gcr_manifest_write(root_fd, manifest, error);

	return result ? result : give_to_root(root_fd, GCR_MANIFEST_NAME, SECRET_MODE, error);
}

/* Writes the directory of a GPU process other than the root. */
static int write_member(const struct gcr_dump *dump, const struct gcr_dump_member *member,
			int processes_fd, struct gcr_tree_process *described,
			struct gcr_error *error)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = NULL;
	_cleanup_close_ int root_fd = -1;
	char name[16];
	int result;

	snprintf(name, sizeof(name), "%d", (int)member->proc.pid);
	result = make_directory(dump, processes_fd, name, &root_fd, error);
	if (!result)
		result = take_member(dump, member, root_fd, &manifest, error);
	if (!result)
		result = write_manifest(dump, root_fd, manifest, error);
	if (!result)
		memcpy(described->generation, manifest->generation, sizeof(described->generation));
	if (!result)
		snprintf(described->engine, sizeof(described->engine), "%s", manifest->engine);
	return result;
}

/* ---- the tree ---- */

static int describe_processes(const struct gcr_dump *dump, const struct gcr_manifest *top,
			      struct gcr_manifest_tree *tree, struct gcr_error *error)
{
	_cleanup_close_ int processes_fd = -1;
	int result = 0;

	tree->processes = calloc(dump->count, sizeof(*tree->processes));
	if (!tree->processes)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < dump->count && !result; i++) {
		const struct gcr_dump_member *member = &dump->members[i];
		struct gcr_tree_process *described = &tree->processes[i];

		described->pid = member->proc.pid;
		described->parent = i ? member->proc.parent : 0;
		memcpy(described->comm, member->proc.comm, sizeof(described->comm));
		described->has_gpu = gcr_dump_gpu_process(dump, member->proc.pid);
		tree->processes_count++;
		if (!described->has_gpu)
			continue;
		if (!i) {
			memcpy(described->generation, top->generation,
			       sizeof(described->generation));
			snprintf(described->engine, sizeof(described->engine), "%s", top->engine);
			continue;
		}
		if (processes_fd < 0)
			result = make_directory(dump, dump->root_fd, GCR_TREE_PROCESSES,
						&processes_fd, error);
		if (!result)
			result = write_member(dump, member, processes_fd, described, error);
	}
	return result;
}

static int describe_tree(struct gcr_dump *dump, const struct gcr_manifest *top,
			 struct gcr_manifest_tree **ret_tree, struct gcr_error *error)
{
	_cleanup_(gcr_manifest_tree_free_cleanup) struct gcr_manifest_tree *tree =
		calloc(1, sizeof(*tree));
	const struct gcr_opens *opens = dump->opens;
	int result;

	if (!tree)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_host_read(NULL, &tree->host, error);
	if (result < 0)
		return result;
	tree->host.criu_version = dump->criu_version;
	tree->options = (struct gcr_tree_options){
		.shell_job = opens->shell_job,
		.file_locks = opens->file_locks,
		.link_remap = opens->link_remap,
		.ext_unix_sockets = opens->ext_unix_sockets,
		.tcp = (enum gcr_tree_tcp)dump->task->command->tcp,
	};
	tree->supplies = calloc(opens->findings_count + 1, sizeof(*tree->supplies));
	if (!tree->supplies)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < opens->findings_count; i++) {
		const struct gcr_open_finding *finding = &opens->findings[i];
		struct gcr_tree_supply *supply = &tree->supplies[tree->supplies_count];
		size_t known = 0;

		if (finding->verdict != GCR_OPEN_EXTERNAL)
			continue;
		while (known < tree->supplies_count &&
		       strcmp(tree->supplies[known].key, finding->key) != 0)
			known++;
		if (known < tree->supplies_count) {
			tree->supplies[known].is_writer |= finding->is_writer;
			tree->supplies[known].is_stdio |= finding->is_stdio;
			continue;
		}
		snprintf(supply->key, sizeof(supply->key), "%s", finding->key);
		supply->is_writer = finding->is_writer;
		supply->is_stdio = finding->is_stdio;
		tree->supplies_count++;
	}
	tree->files = dump->files;
	tree->files_count = dump->files_count;
	dump->files = NULL;
	dump->files_count = 0;
	result = describe_processes(dump, top, tree, error);
	if (!result)
		*ret_tree = TAKE_PTR(tree);
	return result;
}

/* ---- CRIU's images ---- */

static int compare_images(const void *left, const void *right)
{
	const struct gcr_manifest_image *a = left, *b = right;

	return strcmp(a->name, b->name);
}

static int describe_image(int fd, const char *name, struct gcr_manifest_image *ret_image,
			  struct gcr_error *error)
{
	_cleanup_close_ int image_fd = -1;
	int result;

	if (strlen(name) >= sizeof(ret_image->name))
		return gcr_error_set(error, EIO,
				     "CRIU's image %.64s has a longer name than we know", name);
	image_fd = gcr_beneath_open_file(fd, name, error);
	if (image_fd < 0)
		return image_fd;
	snprintf(ret_image->name, sizeof(ret_image->name), "%s", name);
	result = gcr_digest_file(image_fd, &ret_image->bytes, &ret_image->digest);
	return result < 0 ? fail(error, -result, name) : 0;
}

static bool is_image(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot && !strcmp(dot, ".img");
}

static int describe_images(struct gcr_dump *dump, struct gcr_manifest *manifest,
			   struct gcr_error *error)
{
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *entry;
	int result = gcr_beneath_list(dump->images_fd, ".", &dir);

	if (result < 0)
		return fail(error, -result, GCR_MANIFEST_IMAGES);
	while (!result && (entry = readdir(dir))) {
		struct gcr_manifest_image *images;

		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		if (!is_image(entry->d_name)) {
			unlinkat(dump->images_fd, entry->d_name, 0);
			continue;
		}
		images =
			reallocarray(manifest->images, manifest->images_count + 1, sizeof(*images));
		if (!images)
			return gcr_error_set(error, ENOMEM, "out of memory");
		manifest->images = images;
		result = describe_image(dump->images_fd, entry->d_name,
					&images[manifest->images_count], error);
		if (!result)
			result = give_to_root(dump->images_fd, entry->d_name, SECRET_MODE, error);
		manifest->images_count += !result;
		if (!result && gcr_task_stopped(dump->task))
			result = gcr_error_set(error, ECANCELED, "%s", "");
	}
	if (!result)
		qsort(manifest->images, manifest->images_count, sizeof(*manifest->images),
		      compare_images);
	return result;
}

static int write_list(struct gcr_dump *dump, struct gcr_error *error)
{
	_cleanup_free_ char *text = NULL;
	struct iovec part;
	size_t left_out;
	int result;

	if (gcr_file_identities_list(dump->files, dump->files_count, &text, &part.iov_len,
				     &left_out) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	part.iov_base = text;
	result = gcr_beneath_replace(dump->root_fd, FILES_NAME, &part, 1, error);
	return result ? result : give_to_root(dump->root_fd, FILES_NAME, SECRET_MODE, error);
}

int gcr_dump_write_metadata(struct gcr_dump *dump, struct gcr_error *error)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = NULL;
	int result = gcr_dump_end_reading(dump, error);

	if (!result)
		result = write_list(dump, error);
	if (!result)
		result = take_member(dump, &dump->members[0], dump->root_fd, &manifest, error);
	if (!result)
		result = describe_images(dump, manifest, error);
	if (!result)
		result = describe_tree(dump, manifest, &manifest->tree, error);
	if (!result)
		result = give_to_root(dump->root_fd, GCR_MANIFEST_IMAGES, SECRET_DIR_MODE, error);
	if (!result)
		result = write_manifest(dump, dump->root_fd, manifest, error);
	if (!result && (fchown(dump->root_fd, 0, gcr_dump_place_gid(dump)) < 0 ||
			fchmod(dump->root_fd, dump->is_private ? 0700 : METADATA_DIR_MODE) < 0))
		result = fail(error, errno, "directory");
	return result;
}
