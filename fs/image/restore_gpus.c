/* SPDX-License-Identifier: MIT */
/*
 * Chooses the GPUs for a restore: of the same vendor, the same GPUs as before or others of their
 * model, with enough VRAM. Nothing is reserved yet.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fs/image/criu_run.h"
#include "fs/image/restore_private.h"
#include "fs/process/gpus.h"
#include "fs/process/vendor.h"
#include "lib/cleanup.h"

const struct gcr_manifest *gcr_restore_manifest_of(const struct gcr_restore *restore,
						   const struct gcr_restore_member *member)
{
	return member->manifest ? member->manifest : restore->manifest;
}

/* Lists the names of the vendors whose GPUs are present, for a message. */
static void name_vendors(const struct gcr_daemon *daemon, char ret_text[64])
{
	size_t used = 0;

	ret_text[0] = '\0';
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		if (daemon->vendors[i].is_here)
			used += (size_t)snprintf(ret_text + used, 64 - used, "%s%s",
						 used ? " and " : "",
						 daemon->vendors[i].backend->vendor);
}

static int check_vendor(struct gcr_restore *restore, struct gcr_restore_member *member,
			struct gcr_error *error)
{
	const struct gcr_manifest *manifest = gcr_restore_manifest_of(restore, member);
	const struct gcr_backend *backend = gcr_backend_of_vendor(manifest->vendor);
	struct gcr_vendor *vendor = gcr_vendor_of_engine(restore->job.daemon, manifest->engine);
	char here[64];

	if (!backend)
		return gcr_error_set(error, EOPNOTSUPP,
				     "it used GPUs of a vendor that is not known here (%s)",
				     manifest->vendor);
	if (backend != vendor->backend)
		return gcr_error_set(error, EIO, "no engine %s freezes on GPUs of %s",
				     manifest->engine, backend->vendor);
	name_vendors(restore->job.daemon, here);
	if (!vendor->is_here)
		return gcr_error_set(error, EOPNOTSUPP,
				     "it used GPUs of %s, and here are those of %s",
				     backend->vendor, here);
	member->vendor = vendor;
	restore->vendors |= 1u << vendor->index;
	return 0;
}

int gcr_restore_check_vendors(struct gcr_restore *restore, struct gcr_error *error)
{
	int result = 0;

	restore->vendors = 0;
	for (size_t i = 0; i < restore->members_count && !result; i++)
		result = check_vendor(restore, &restore->members[i], error);
	for (size_t i = 0; i < GCR_BACKENDS_COUNT && !result; i++) {
		_cleanup_free_ char *path = NULL;

		if (restore->vendors & 1u << i && gcr_backends[i]->criu_plugin &&
		    !restore->job.command.restored)
			result = gcr_criu_plugin_find(restore->job.daemon, gcr_backends[i], &path,
						      error);
	}
	return result;
}

static bool is_taken(const struct gcr_restore *restore, const uint8_t *uuid)
{
	for (unsigned int i = 0; i < restore->moves_count; i++)
		if (!memcmp(restore->moves[i].to, uuid, GCR_UUID_BYTES))
			return true;
	return false;
}

static int same_model(const struct gcr_backend *backend, const struct gcr_manifest_gpu *then,
		      const struct gcr_gpu_info *now, struct gcr_error *error)
{
	char architecture[GCR_ARCHITECTURE_BYTES];

	backend->format_architecture(now, architecture);
	/*
	 * GPUs of one name may differ in architecture, and the program's kernels are made for one.
	 */
	if (!backend->has_control && *then->compute_capability &&
	    strcmp(then->compute_capability, architecture) != 0)
		return gcr_error_set(error, EOPNOTSUPP, "GPU %u was a %s, and here is a %s",
				     then->index, then->compute_capability, architecture);
	if (strcmp(then->name, now->name) != 0)
		return gcr_error_set(error, EOPNOTSUPP, "GPU %u was a %.60s, and here is a %.60s",
				     then->index, then->name, now->name);
	if (then->memory_bytes && now->total_bytes < then->memory_bytes)
		return gcr_error_set(error, EOPNOTSUPP,
				     "GPU %u had %" PRIu64
				     " bytes of memory, and here are %" PRIu64,
				     then->index, then->memory_bytes, now->total_bytes);
	return 0;
}

/* Does the GPU with this index belong to @vendor? */
static bool is_of(const struct gcr_restore *restore, const struct gcr_vendor *vendor,
		  uint32_t index)
{
	return gcr_gpus_vendor(restore->job.daemon->gpus, index) == vendor;
}

/* Returns the GPU of @vendor with the lowest index. NULL: there is none. */
static const struct gcr_gpu_info *first_of(const struct gcr_restore *restore,
					   const struct gcr_vendor *vendor,
					   const struct gcr_gpus_reply *reply)
{
	for (uint32_t i = 0; i < reply->gpus_count; i++)
		if (is_of(restore, vendor, i))
			return &reply->gpus[i];
	return NULL;
}

static unsigned int count_of(const struct gcr_restore *restore, const struct gcr_vendor *vendor,
			     const struct gcr_gpus_reply *reply)
{
	unsigned int count = 0;

	for (uint32_t i = 0; i < reply->gpus_count; i++)
		count += is_of(restore, vendor, i);
	return count;
}

/*
 * Refuses to move a GPU whose contents CRIU's plugin restores if there are several to choose from:
 * the plugin itself makes that choice. The plugin leaves contents dumped on this machine where they
 * were.
 */
static int check_choice(const struct gcr_restore *restore, const struct gcr_vendor *vendor,
			const struct gcr_manifest_gpu *then, const struct gcr_gpu_info *to,
			const struct gcr_gpus_reply *reply, struct gcr_error *error)
{
	if (vendor->backend->has_control || !memcmp(to->uuid, then->uuid, GCR_UUID_BYTES) ||
	    count_of(restore, vendor, reply) == 1)
		return 0;
	return gcr_error_set(error, EOPNOTSUPP,
			     "GPU %u, which it used, is not here, and which of the others it would "
			     "get CRIU's plugin decides",
			     then->index);
}

/*
 * Chooses the destination of one GPU's contents: the GPU given by gpu=, the same GPU, or another
 * one of its model.
 */
static int place_gpu(struct gcr_restore *restore, const struct gcr_vendor *vendor,
		     const struct gcr_manifest_gpu *then, const struct gcr_gpus_reply *reply,
		     struct gcr_error *error)
{
	const struct gcr_command *command = &restore->job.command;
	struct gcr_gpu_pair *move = &restore->moves[restore->moves_count];
	const struct gcr_gpu_info *to = NULL;
	int result;

	for (unsigned int i = 0; i < restore->moves_count; i++)
		if (!memcmp(restore->moves[i].from, then->uuid, GCR_UUID_BYTES))
			return 0;
	if (restore->moves_count == GCR_GPUS_MAX)
		return gcr_error_set(error, E2BIG, "it has more GPUs than there can be");
	for (unsigned int i = 0; i < command->gpu_pairs_count; i++)
		if (command->gpu_pairs[i].from == then->index) {
			if (command->gpu_pairs[i].to >= reply->gpus_count)
				return gcr_error_set(error, ENODEV, "there are %u GPUs here",
						     reply->gpus_count);
			if (!is_of(restore, vendor, command->gpu_pairs[i].to))
				return gcr_error_set(error, EOPNOTSUPP,
						     "GPU %u was of %s, and GPU %u here is not",
						     then->index, vendor->backend->vendor,
						     command->gpu_pairs[i].to);
			to = &reply->gpus[command->gpu_pairs[i].to];
		}
	for (uint32_t i = 0; i < reply->gpus_count && !to; i++)
		if (!memcmp(reply->gpus[i].uuid, then->uuid, GCR_UUID_BYTES))
			to = &reply->gpus[i];
	for (uint32_t i = 0; i < reply->gpus_count && !to; i++)
		if (is_of(restore, vendor, i) && !is_taken(restore, reply->gpus[i].uuid) &&
		    !same_model(vendor->backend, then, &reply->gpus[i], NULL))
			to = &reply->gpus[i];
	if (!to && first_of(restore, vendor, reply)) {
		result = same_model(vendor->backend, then, first_of(restore, vendor, reply), error);
		return result ? result
			      : gcr_error_set(
					error, ENODEV,
					"it used more GPUs of this model than there are here");
	}
	if (!to)
		return gcr_error_set(error, ENODEV, "there is no GPU here");
	result = check_choice(restore, vendor, then, to, reply, error);
	if (result < 0)
		return result;
	if (is_taken(restore, to->uuid))
		return gcr_error_set(error, ENODEV, "two of its GPUs cannot become the same");
	memcpy(move->from, then->uuid, GCR_UUID_BYTES);
	memcpy(move->to, to->uuid, GCR_UUID_BYTES);
	restore->moves_count++;
	return same_model(vendor->backend, then, to, error);
}

static bool is_moved(const struct gcr_restore *restore, const uint8_t *uuid)
{
	for (unsigned int i = 0; i < restore->moves_count; i++)
		if (!memcmp(restore->moves[i].from, uuid, GCR_UUID_BYTES))
			return true;
	return false;
}

static bool is_here(const struct gcr_gpus_reply *reply, const uint8_t *uuid)
{
	for (uint32_t i = 0; i < reply->gpus_count; i++)
		if (!memcmp(reply->gpus[i].uuid, uuid, GCR_UUID_BYTES))
			return true;
	return false;
}

static bool is_free(const struct gcr_restore *restore, const struct gcr_vendor *vendor,
		    const struct gcr_gpus_reply *reply, uint32_t index)
{
	return is_of(restore, vendor, index) && !is_taken(restore, reply->gpus[index].uuid);
}

/*
 * NVIDIA's driver requires a destination for every GPU that the program could see, and each may be
 * used once. For a dump of this machine these are our GPUs: those not mapped yet stay where they
 * are (first round) or take one that is left (second round).
 */
static void place_others(struct gcr_restore *restore, const struct gcr_vendor *vendor,
			 const struct gcr_gpus_reply *reply)
{
	for (unsigned int i = 0; i < restore->moves_count; i++)
		if (!is_here(reply, restore->moves[i].from))
			return;
	for (int round = 0; round < 2; round++)
		for (uint32_t i = 0; i < reply->gpus_count; i++) {
			struct gcr_gpu_pair *move = &restore->moves[restore->moves_count];
			uint32_t to = i;

			if (!is_of(restore, vendor, i) || is_moved(restore, reply->gpus[i].uuid))
				continue;
			while (round && to < i + reply->gpus_count &&
			       !is_free(restore, vendor, reply, to % reply->gpus_count))
				to++;
			if (!is_free(restore, vendor, reply, to % reply->gpus_count) ||
			    restore->moves_count == GCR_GPUS_MAX)
				continue;
			memcpy(move->from, reply->gpus[i].uuid, GCR_UUID_BYTES);
			memcpy(move->to, reply->gpus[to % reply->gpus_count].uuid, GCR_UUID_BYTES);
			restore->moves_count++;
		}
}

/* Returns the UUID of the GPU here to which the contents of the dump's GPU @uuid go. */
static const uint8_t *place_of(const struct gcr_restore *restore, const uint8_t *uuid)
{
	for (unsigned int i = 0; i < restore->moves_count; i++)
		if (!memcmp(restore->moves[i].from, uuid, GCR_UUID_BYTES))
			return restore->moves[i].to;
	return uuid;
}

/* VRAM that all members together will need on a GPU. */
static uint64_t need_of(const struct gcr_restore *restore, const uint8_t *uuid)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < restore->members_count; i++) {
		const struct gcr_manifest *manifest =
			gcr_restore_manifest_of(restore, &restore->members[i]);

		for (size_t gpu = 0; gpu < manifest->gpus_count; gpu++)
			if (!memcmp(place_of(restore, manifest->gpus[gpu].uuid), uuid,
				    GCR_UUID_BYTES))
				bytes += manifest->gpus[gpu].control_bytes;
		for (size_t j = 0; j < manifest->allocations_count; j++)
			if (manifest->allocations[j].kind == GCR_MEMORY_DEVICE &&
			    !memcmp(place_of(restore, manifest->allocations[j].gpu), uuid,
				    GCR_UUID_BYTES))
				bytes += manifest->allocations[j].bytes;
	}
	return bytes;
}

/*
 * See restore_private.h. VRAM that CRIU's plugins take is not subject to admission
 * (fs/engine/admission.h).
 */
int gcr_restore_check_room(struct gcr_restore *restore, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = malloc(sizeof(*reply));
	int result = 0;

	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < GCR_BACKENDS_COUNT && !result; i++)
		if (restore->vendors & 1u << i && gcr_backends[i]->criu_plugin)
			result = gcr_gpus_ask(restore->job.daemon->gpus,
					      &restore->job.daemon->vendors[i], error);
	if (result < 0)
		return result;
	gcr_gpus_snapshot(restore->job.daemon->gpus, reply);
	for (uint32_t i = 0; i < reply->gpus_count; i++) {
		const struct gcr_vendor *vendor = gcr_gpus_vendor(restore->job.daemon->gpus, i);
		const struct gcr_gpu_info *gpu = &reply->gpus[i];
		uint64_t bytes;

		if (!vendor || !vendor->backend->criu_plugin || !(gpu->flags & GCR_GPU_MEMORY))
			continue;
		bytes = need_of(restore, gpu->uuid);
		if (gpu->free_bytes < bytes)
			return gcr_error_set(error, ENOMEM,
					     "GPU %u has %" PRIu64
					     " MiB free and the process needs %" PRIu64
					     " MiB; freeze or end another process, then try again",
					     i, gpu->free_bytes >> 20, bytes >> 20);
	}
	return 0;
}

/*
 * Refuses a manifest by which the driver needs more VRAM on one GPU than the GPU has here:
 * -EOPNOTSUPP. That much VRAM is kept from others while the process is thawed.
 */
static int check_control(const struct gcr_restore *restore, const struct gcr_manifest_gpu *then,
			 const struct gcr_gpus_reply *reply, struct gcr_error *error)
{
	const uint8_t *uuid = place_of(restore, then->uuid);

	for (uint32_t i = 0; i < reply->gpus_count; i++)
		if (!memcmp(reply->gpus[i].uuid, uuid, GCR_UUID_BYTES) &&
		    reply->gpus[i].total_bytes && then->control_bytes > reply->gpus[i].total_bytes)
			return gcr_error_set(error, EOPNOTSUPP,
					     "the driver needed %" PRIu64
					     " MiB on GPU %u, and GPU %u here has %" PRIu64,
					     then->control_bytes >> 20, then->index, i,
					     reply->gpus[i].total_bytes >> 20);
	return 0;
}

int gcr_restore_place_gpus(struct gcr_restore *restore, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = malloc(sizeof(*reply));
	bool is_other = false;
	int result = 0;

	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	gcr_gpus_snapshot(restore->job.daemon->gpus, reply);
	for (size_t i = 0; i < restore->members_count; i++) {
		const struct gcr_restore_member *member = &restore->members[i];
		const struct gcr_manifest *manifest = gcr_restore_manifest_of(restore, member);

		for (size_t gpu = 0; gpu < manifest->gpus_count && !result; gpu++) {
			result = place_gpu(restore, member->vendor, &manifest->gpus[gpu], reply,
					   error);
			if (!result)
				result = check_control(restore, &manifest->gpus[gpu], reply, error);
		}
	}
	for (unsigned int i = 0; i < restore->moves_count; i++)
		is_other |= memcmp(restore->moves[i].from, restore->moves[i].to, GCR_UUID_BYTES);
	if (!is_other)
		restore->moves_count = 0;
	for (size_t i = 0; i < GCR_BACKENDS_COUNT && is_other; i++)
		if (restore->vendors & 1u << i && gcr_backends[i]->has_control)
			place_others(restore, &restore->job.daemon->vendors[i], reply);
	return result;
}
