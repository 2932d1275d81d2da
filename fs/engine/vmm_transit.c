/* SPDX-License-Identifier: MIT */
/* Copies managed memory between the library, which has transit files, and the store. */
#include "fs/engine/vmm.h"

#include <errno.h>
#include <string.h>

#include "fs/base/log.h"

static bool has_managed(const struct gcr_vmm *vmm)
{
	return vmm->device_count < vmm->count;
}

/*
 * Charges the descriptors of the transit files, and in a thaw of vmm->handles, to @uid. A thaw is
 * possible at least for a user who has no other ones.
 */
static int charge(struct gcr_vmm *vmm, enum gcr_transit_way way, uid_t uid, struct gcr_error *error)
{
	struct gcr_quota *quota = vmm->driver.daemon->quota;
	uint64_t count = way == GCR_TRANSIT_IN ? vmm->device_count : 0;
	uint64_t files = vmm->count - vmm->device_count;

	/* The files of one message have a second descriptor while the library has not answered. */
	if (gcr_transit_is_apart(vmm->snapshot))
		count += files + (files < GCR_MESSAGE_FDS_MAX ? files : GCR_MESSAGE_FDS_MAX);
	if (!count)
		return 0;
	if (way == GCR_TRANSIT_IN)
		return gcr_quota_take_alone(quota, GCR_QUOTA_DESCRIPTORS, uid, count,
					    &vmm->descriptors_charge, error);
	return gcr_quota_take(quota, GCR_QUOTA_DESCRIPTORS, uid, count, &vmm->descriptors_charge,
			      error);
}

int gcr_vmm_make_transit(struct gcr_vmm *vmm, enum gcr_transit_way way, struct gcr_error *error)
{
	struct gcr_quota *quota = vmm->driver.daemon->quota;
	uid_t uid = vmm->driver.process->counted;
	int result = charge(vmm, way, uid, error);

	if (!result && way == GCR_TRANSIT_IN)
		result = gcr_quota_check_descriptors(quota, uid, vmm->device_count, error);
	if (result < 0 || !has_managed(vmm))
		return result;
	result = gcr_transit_create(vmm->snapshot, vmm->device_count, quota, uid, way,
				    &vmm->transit, error);
	/*
	 * Once its memory is held, the bytes that the program writes to the files exist nowhere
	 * else.
	 */
	vmm->needs_transit = !result && way == GCR_TRANSIT_OUT;
	return result;
}

int gcr_vmm_begin_transit(struct gcr_vmm *vmm, enum gcr_transit_way way, struct gcr_error *error)
{
	int result = vmm->transit ? gcr_transit_begin(vmm->transit, way) : 0;

	return result ? gcr_error_set(error, -result, "its managed memory cannot be copied: %s",
				      strerror(-result))
		      : 0;
}

static bool is_to_stop(void *data)
{
	struct gcr_vmm *vmm = data;

	gcr_driver_check_answer(&vmm->driver);
	return gcr_task_stopped(vmm->driver.task) || gcr_driver_session_must_leave(&vmm->driver);
}

int gcr_vmm_end_transit(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int result = vmm->transit ? gcr_transit_end(vmm->transit, is_to_stop, vmm, error) : 0;

	if (result == -ECANCELED && gcr_task_stopped(vmm->driver.task))
		return gcr_driver_session_stopped(error);
	return result;
}

int gcr_vmm_return_transit(struct gcr_vmm *vmm, struct gcr_error *error)
{
	int result;

	if (!vmm->transit)
		return 0;
	gcr_transit_stop(vmm->transit);
	result = gcr_vmm_begin_transit(vmm, GCR_TRANSIT_BACK, error);
	if (!result)
		result = gcr_transit_end(vmm->transit, NULL, NULL, error);
	/*
	 * If the copy fails, the library has the only copy of its threads' changes, unless it has
	 * truncated its files (-EIO). Memory for which its user has no room is not left to it.
	 */
	vmm->needs_transit = result < 0 && result != -EIO && result != -EDQUOT &&
			     result != -ENOSPC && result != -EBUSY;
	return result;
}

void gcr_vmm_drop_transit(struct gcr_vmm *vmm)
{
	gcr_transit_destroy(TAKE_PTR(vmm->transit), vmm->needs_transit);
}
