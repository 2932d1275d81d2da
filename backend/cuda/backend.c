/* SPDX-License-Identifier: MIT */
/*
 * NVIDIA GPUs as the daemon sees them. This file does not touch the driver, and neither does any
 * code linked with it.
 */
#include "backend/backend.h"
#include "backend/cuda/preflight.h"

#include <stdio.h>

/* cuInit and NVML open this device; a context maps it (measured, driver 580.159). */
#define COMPUTE_DEVICE "nvidia-uvm"

static const char *const mapped_devices[] = {COMPUTE_DEVICE, NULL};
/*
 * Links of descriptors of exported GPU memory: such a descriptor is one of /dev/nvidiactl, or a
 * dma-buf.
 */
static const char *const memory_links[] = {"nvidia", "/dmabuf:", NULL};
static const char *const no_devices[] = {NULL};

static void format_architecture(const struct gcr_gpu_info *gpu,
				char ret_text[GCR_ARCHITECTURE_BYTES])
{
	ret_text[0] = '\0';
	if (gpu->capability_major)
		snprintf(ret_text, GCR_ARCHITECTURE_BYTES, "%u.%u", gpu->capability_major,
			 gpu->capability_minor);
}

const struct gcr_backend gcr_backend_cuda = {
	.name = "cuda",
	.api = "CUDA",
	.vendor = "NVIDIA",
	.engine = "vmm",
	.has_control = true,
	.control_program = "gpucr-control",
	.worker_program = "gpucr-worker",
	.compute_device = COMPUTE_DEVICE,
	.mapped_devices = mapped_devices,
	.gpu_device = "nvidia",
	.memory_links = memory_links,
	.pci_vendor = 0x10de,
	.no_device_words =
		"there is no /dev/nvidia-uvm: no NVIDIA GPU, or its driver is not loaded "
		"(nvidia-modprobe -u -c 0 creates the device)",
	.criu_devices = no_devices,
	.format_architecture = format_architecture,
	.preflight = gcr_cuda_preflight,
};
