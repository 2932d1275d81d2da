/* SPDX-License-Identifier: MIT */
/* A machine with AMD GPUs: device files, sysfs (hip_kfd.c) and GPU names. */
#include "backend/sim/hip.h"

#include <stdio.h>

/*
 * Makes a UUID as ROCr does, from the 8 bytes at its start: the 16 hexadecimal digits of the GPU's
 * unique_id.
 */
static void uuid_make(unsigned char uuid[16])
{
	char text[17];
	uint64_t unique_id;

	memcpy(&unique_id, uuid, sizeof(unique_id));
	snprintf(text, sizeof(text), "%016lx", unique_id | 1);
	memcpy(uuid, text, 16);
}

static void files_make(const struct shared_state *state)
{
	char path[PATH_MAX];

	shared_device_path(path, "dri");
	shared_make_directory(path);
	for (unsigned i = 0; i < state->gpu_count; i++) {
		shared_device_path(path, "dri/renderD%u", HIP_RENDER_MINOR + i);
		shared_make_file(path);
	}
	shared_device_path(path, "kfd");
	shared_make_file(path);
	hip_kfd_make(state);
}

const char *hip_architecture(void)
{
	const char *given = getenv("GPUCR_SIM_HIP_ARCH");

	return given && *given ? given : "gfx90a:sramecc+:xnack-";
}

unsigned hip_gpu_bus(unsigned gpu)
{
	return 0xc1 + gpu;
}

/*
 * Returns the GPU's KFD id. Any number but 0 will do; the real driver derives the id from the GPU's
 * properties.
 */
unsigned hip_gpu_id(unsigned gpu)
{
	return 21001 + 101 * gpu;
}

const struct shared_machine shared_machine = {
	.directory = "hip",
	.gpus_variable = "GPUCR_SIM_HIP_GPUS",
	.gpu_name = "Simulated AMD GPU",
	.uuid_make = uuid_make,
	.files_make = files_make,
	.changed = hip_kfd_update,
	.process_gone = hip_kfd_process_gone,
};

int hipSimRefreshSysfs(void)
{
	int r = shared_attach();

	if (r < 0)
		return r;
	shared_lock();
	shared_reclaim();
	shared_changed();
	shared_unlock();
	shared_detach();
	return 0;
}
