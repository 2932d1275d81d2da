/* SPDX-License-Identifier: MIT */
/*
 * gpucr-control-hip: reports AMD GPUs to the daemon, from sysfs. The program loads no AMD library.
 * HIP has no calls for a process's control state, as gpucr-control uses for NVIDIA: such requests
 * are refused.
 */
#include <errno.h>
#include <stdio.h>

#include "backend/rocm/kfd.h"
#include "backend/worker/serve.h"
#include "lib/confine.h"

static void handle(struct gcr_message *request, struct gcr_answer *answer, void *data)
{
	struct gcr_error error;

	switch (request->header.type) {
	case GCR_MESSAGE_STATE:
	case GCR_MESSAGE_LOCK:
	case GCR_MESSAGE_CHECKPOINT:
	case GCR_MESSAGE_RESTORE:
	case GCR_MESSAGE_UNLOCK:
		gcr_error_set(&error, EOPNOTSUPP,
			      "HIP has no calls that checkpoint a process: its queues and its "
			      "context stay on the GPU until CRIU takes them (dump)");
		break;
	default:
		gcr_error_set(&error, EOPNOTSUPP, "gpucr-control-hip does not know this request");
	}
	gcr_serve_fail(&answer->result, CUDA_SUCCESS, &error);
}

int main(void)
{
	static struct gcr_gpus_reply reply;
	struct gcr_driver driver = {0};
	struct gcr_error error = {0};

	if (gcr_confine(GCR_CONFINE_CONTROL, &error) < 0) {
		fprintf(stderr, "gpucr-control-hip: %s\n", error.words);
		return 2;
	}
	if (gcr_kfd_list(&reply, 0, &error) == 0 && reply.gpus_count == 0)
		gcr_error_set(&error, ENODEV, "the AMD GPU driver (amdgpu, KFD) shows no GPU");
	/* The simulator's files certainly exist only now. */
	gcr_serve_prepare();
	if (gcr_serve_hello(&driver, &error) < 0) {
		fprintf(stderr, "gpucr-control-hip: only gpucrfs starts this program\n");
		return 2;
	}
	if (error.number)
		return 1;
	gcr_serve(&(struct gcr_service){.driver = &driver, .handle = handle});
	return 0;
}
