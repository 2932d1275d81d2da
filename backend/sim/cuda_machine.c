/* SPDX-License-Identifier: MIT */
/* A machine with NVIDIA GPUs: device files and GPU names. */
#include "backend/sim/shared.h"

static void uuid_make(unsigned char uuid[16])
{
	uuid[6] = (uuid[6] & 0x0f) | 0x40;
	uuid[8] = (uuid[8] & 0x3f) | 0x80;
}

static void files_make(const struct shared_state *state)
{
	char path[PATH_MAX];

	for (unsigned i = 0; i < state->gpu_count; i++) {
		shared_device_path(path, "nvidia%u", i);
		shared_make_file(path);
	}
	shared_device_path(path, "nvidiactl");
	shared_make_file(path);
	shared_device_path(path, "nvidia-uvm");
	shared_make_file(path);
}

const struct shared_machine shared_machine = {
	.directory = "",
	.gpu_name = "Simulated GPU",
	.uuid_make = uuid_make,
	.files_make = files_make,
};
