/* SPDX-License-Identifier: MIT */
#include "fs/process/listed.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "fs/process/gpus.h"
#include "lib/cleanup.h"
#include "lib/sum.h"

int gcr_listed_check(struct gcr_daemon *daemon, struct gcr_extent *extents, size_t count,
		     struct gcr_error *error)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	uint64_t device_bytes[GCR_GPUS_MAX] = {0};
	uint64_t managed_most = gcr_host_bytes();
	uint64_t managed_bytes = 0;

	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < count; i++) {
		int index = gcr_gpus_index(daemon->gpus, extents[i].gpu);
		uint64_t *sum;

		if (index < 0)
			return gcr_error_set(error, ENODEV,
					     "it has memory on a GPU that is not known here");
		extents[i].gpu_index = (uint32_t)index;
		sum = extents[i].kind == GCR_MEMORY_DEVICE ? &device_bytes[index] : &managed_bytes;
		*sum = gcr_sum(*sum, extents[i].bytes);
	}
	gcr_gpus_snapshot(daemon->gpus, reply);
	for (uint32_t i = 0; i < reply->gpus_count; i++) {
		/* A GPU that does not report its memory has no known limit. */
		if (!(reply->gpus[i].flags & GCR_GPU_MEMORY)) {
			managed_most = UINT64_MAX;
			continue;
		}
		managed_most = gcr_sum(managed_most, reply->gpus[i].total_bytes);
		if (device_bytes[i] > reply->gpus[i].total_bytes)
			return gcr_error_set(error, EPROTO,
					     "its preload library lists %" PRIu64
					     " MiB on GPU %u, which has %" PRIu64 " MiB",
					     device_bytes[i] >> 20, i,
					     reply->gpus[i].total_bytes >> 20);
	}
	if (managed_bytes > managed_most)
		return gcr_error_set(error, EPROTO,
				     "its preload library lists %" PRIu64
				     " MiB of managed memory; GPUs and host have %" PRIu64 " MiB",
				     managed_bytes >> 20, managed_most >> 20);
	return 0;
}
