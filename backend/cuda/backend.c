/* SPDX-License-Identifier: MIT */
/* NVIDIA GPUs as the daemon sees them. Nothing here, or linked with it, touches the driver. */
#include "backend/backend.h"
#include "backend/cuda/preflight.h"

const struct gcr_backend gcr_backend_cuda = {
	.name = "cuda",
	.control_program = "gpucr-control",
	.worker_program = "gpucr-worker",
	/* cuInit and NVML open it; a context maps it (measured, driver 580.159). */
	.compute_device = "nvidia-uvm",
	.no_device_words =
		"there is no /dev/nvidia-uvm: no NVIDIA GPU, or its driver is not loaded "
		"(nvidia-modprobe -u -c 0 creates the device)",
	.preflight = gcr_cuda_preflight,
};
