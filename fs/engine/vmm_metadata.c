/* SPDX-License-Identifier: MIT */
/*
 * The metadata of a snapshot: written at the end of a freeze, before COMMIT, so that a snapshot
 * without a manifest is incomplete; and read at the beginning of a thaw. The workers make and
 * compare the digests of device memory on the GPU; those of managed memory are made here, on the
 * host.
 */
#include "fs/engine/vmm.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/helper/helper.h"
#include "fs/process/gpus.h"
#include "fs/process/history.h"
#include "lib/cleanup.h"
#include "lib/digest.h"
#include "lib/extent.h"
#include "lib/manifest.h"
#include "lib/proc_file.h"

static struct gcr_digest *digests_of(const struct gcr_vmm *vmm)
{
	return gcr_digest_buffer_digests(vmm->digests);
}

int gcr_vmm_make_digests(struct gcr_vmm *vmm, struct gcr_error *error)
{
	if (!vmm->digests)
		vmm->digests = gcr_snapshot_take_known(vmm->snapshot);
	if (!vmm->digests &&
	    gcr_digest_buffer_create(gcr_snapshot_first_chunk(vmm->snapshot, vmm->count),
				     &vmm->digests) < 0)
		return gcr_error_set(error, ENOMEM, "no memory for the digests");
	return 0;
}

/* ---- the manifest ---- */

static void describe_gpus(struct gcr_vmm *vmm, struct gcr_manifest *manifest,
			  const struct gcr_gpus_reply *reply)
{
	for (uint32_t i = 0; i < reply->gpus_count; i++) {
		const struct gcr_gpu_info *info = &reply->gpus[i];
		struct gcr_manifest_gpu *gpu;
		size_t first = 0;

		while (first < vmm->count &&
		       memcmp(vmm->extents[first].gpu, info->uuid, sizeof(info->uuid)) != 0)
			first++;
		if (first == vmm->count)
			continue;
		gpu = &manifest->gpus[manifest->gpus_count++];
		gpu->index = vmm->extents[first].gpu_index;
		gcr_gpu_describe(vmm->driver.vendor->backend, info, gpu);
	}
}

static void describe_process(struct gcr_process *process, struct gcr_manifest *manifest)
{
	gid_t gid;

	pthread_mutex_lock(&process->lock);
	memcpy(manifest->comm, process->comm, sizeof(manifest->comm));
	pthread_mutex_unlock(&process->lock);
	gcr_proc_owner(process->pid, &manifest->uid, &gid);
	gcr_proc_link(process->pid, "exe", manifest->exe, sizeof(manifest->exe));
}

static int write_metadata(struct gcr_vmm *vmm, struct gcr_error *error)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest =
		calloc(1, sizeof(*manifest));
	_cleanup_free_ struct gcr_gpus_reply *reply = malloc(sizeof(*reply));
	const struct gcr_backend *backend = vmm->driver.vendor->backend;
	struct gcr_hello hello = {0};

	if (!manifest || !reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	gcr_gpus_snapshot(vmm->driver.daemon->gpus, reply);
	gcr_helpers_hello(vmm->driver.vendor->helpers, &hello);
	describe_gpus(vmm, manifest, reply);
	describe_process(vmm->driver.process, manifest);
	snprintf(manifest->engine, sizeof(manifest->engine), "%s", vmm->driver.engine);
	/* Not noted for a vendor whose driver's state always stays. */
	manifest->data = vmm->driver.task->command->data && backend->has_control;
	gcr_manifest_set_vendor(manifest, backend->vendor);
	memcpy(manifest->driver_version, hello.driver_version, sizeof(hello.driver_version));
	manifest->api_version = hello.api_version;
	return gcr_snapshot_seal(vmm->snapshot, manifest, digests_of(vmm), error);
}

/* ---- freeze ---- */

static int digest_managed(struct gcr_vmm *vmm, struct gcr_digest *ret_digests,
			  struct gcr_error *error)
{
	int result = 0;

	ret_digests += gcr_snapshot_first_chunk(vmm->snapshot, vmm->device_count);
	for (size_t i = vmm->device_count; i < vmm->count && !result; i++) {
		result = gcr_snapshot_digest_file(vmm->snapshot, i, ret_digests, error);
		ret_digests += gcr_digest_count(vmm->extents[i].bytes);
	}
	return result;
}

int gcr_vmm_seal(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int result = digest_managed(vmm, digests_of(vmm), error);

	/* Chunks that have not changed since the last freeze keep its time. */
	if (!result)
		gcr_history_apply(vmm->driver.process, vmm->snapshot, digests_of(vmm));
	if (!result)
		result = write_metadata(vmm, error);
	if (!result)
		gcr_snapshot_finish(vmm->snapshot);
	return result;
}

/* ---- thaw ---- */

int gcr_vmm_read_digests(struct gcr_vmm *vmm, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_digest *digests = NULL;
	int result;

	result = gcr_vmm_make_digests(vmm, error);
	if (result < 0 || vmm->driver.task->command->unverified)
		return result;
	result = gcr_snapshot_read_digests(vmm->snapshot, &digests, error);
	if (result < 0)
		return result;
	/*
	 * This is a private copy of the file's digests, which no other process can change any more.
	 */
	memcpy(digests_of(vmm), digests, gcr_digest_buffer_count(vmm->digests) * sizeof(*digests));
	gcr_history_begin(vmm->driver.process, vmm->snapshot, digests);
	return 0;
}

/*
 * Checks the size of the file of one extent of managed memory; the workers check the other files.
 * -EIO.
 */
static int check_size(struct gcr_vmm *vmm, size_t index, struct gcr_error *error)
{
	uint64_t bytes = vmm->extents[index].bytes;
	char name[GCR_EXTENT_NAME_BYTES];
	struct stat stat;
	int result = gcr_snapshot_stat(vmm->snapshot, index, &stat);

	gcr_extent_name(&vmm->extents[index], name);
	if (result < 0)
		return gcr_error_set(error, EIO, "vram/%s cannot be opened: %s", name,
				     strerror(-result));
	if ((uint64_t)stat.st_size != bytes)
		return gcr_error_set(error, EIO, "vram/%s has %" PRIu64 " bytes, not %" PRIu64,
				     name, (uint64_t)stat.st_size, bytes);
	return 0;
}

int gcr_vmm_verify_managed(struct gcr_vmm *vmm, struct gcr_error *error)
{
	const struct gcr_digest *expected =
		digests_of(vmm) + gcr_snapshot_first_chunk(vmm->snapshot, vmm->device_count);
	int result = 0;

	for (size_t i = vmm->device_count; i < vmm->count && !result; i++)
		result = check_size(vmm, i, error);
	if (vmm->driver.task->command->unverified)
		return result;
	for (size_t i = vmm->device_count; i < vmm->count && !result; i++) {
		uint64_t count = gcr_digest_count(vmm->extents[i].bytes);
		_cleanup_free_ struct gcr_digest *digests = calloc(count, sizeof(*digests));
		char name[GCR_EXTENT_NAME_BYTES];

		if (!digests)
			return gcr_error_set(error, ENOMEM, "out of memory");
		result = gcr_snapshot_digest_file(vmm->snapshot, i, digests, error);
		gcr_extent_name(&vmm->extents[i], name);
		for (uint64_t chunk = 0; chunk < count && !result; chunk++)
			if (!gcr_digest_equal(&digests[chunk], &expected[chunk]))
				result = gcr_digest_mismatch(name, chunk, error);
		expected += count;
	}
	return result;
}

int gcr_vmm_seal_again(struct gcr_vmm *vmm, struct gcr_error *error)
{
	_cleanup_(gcr_manifest_free_cleanup) struct gcr_manifest *manifest = NULL;
	int result;

	/* A file that was edited on purpose stays as it is, with metadata that does not match. */
	if (vmm->driver.task->command->unverified || vmm->device_count == vmm->count ||
	    !vmm->digests)
		return 0;
	result = gcr_snapshot_read_manifest(vmm->snapshot, &manifest, error);
	if (!result)
		result = digest_managed(vmm, digests_of(vmm), error);
	if (!result)
		result = gcr_snapshot_seal(vmm->snapshot, manifest, digests_of(vmm), error);
	return result;
}
