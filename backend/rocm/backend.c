/* SPDX-License-Identifier: MIT */
/* The backend for AMD GPUs in the daemon. Neither this code nor its libraries access the driver. */
#include "backend/backend.h"

#include <stdio.h>

#include "backend/rocm/preflight.h"

/*
 * ROCm's run time opens kfd and every render node at initialisation, and maps some of them: memory
 * through a render node, the doorbells of queues through kfd (libhsakmt's fmm.c and queues.c). A
 * forked child has the descriptors but none of the mappings, which are made with MADV_DONTFORK or
 * VM_DONTCOPY.
 */
/* Links of descriptors of exported GPU memory: hipMemExportToShareableHandle creates dma-bufs. */
static const char *const memory_links[] = {"/dmabuf:", NULL};
static const char *const mapped_devices[] = {"kfd", "dri/renderD", NULL};

static void format_architecture(const struct gcr_gpu_info *gpu,
				char ret_text[GCR_ARCHITECTURE_BYTES])
{
	uint32_t version = gpu->gfx_version;

	ret_text[0] = '\0';
	/*
	 * Minor version and stepping: two decimal digits each in the number, one hexadecimal digit
	 * each in the text.
	 */
	if (version)
		snprintf(ret_text, GCR_ARCHITECTURE_BYTES, "gfx%u%x%x", version / 10000,
			 version / 100 % 100, version % 100);
}

const struct gcr_backend gcr_backend_hip = {
	.name = "hip",
	.api = "HIP",
	.vendor = "AMD",
	.engine = "hip",
	/* See README.md, "What releases keep". */
	.may_keep_vram = true,
	.page_flag = GCR_PAGE_HIP,
	.control_program = "gpucr-control-hip",
	.worker_program = "gpucr-worker-hip",
	.compute_device = "kfd",
	.mapped_devices = mapped_devices,
	.memory_links = memory_links,
	/* From ROCm 7.2 on (Runtime::MappedHandleAllowedAgent, for the CPU). */
	.memory_device = "dri/renderD",
	.pci_vendor = 0x1002,
	.no_device_words = "there is no /dev/kfd: no AMD GPU, or amdgpu is not loaded",
	.needs_device = true,
	.criu_plugin = "amdgpu_plugin.so",
	.criu_devices = mapped_devices,
	.has_text_uuids = true,
	.format_architecture = format_architecture,
	.preflight = gcr_hip_preflight,
};
