/* SPDX-License-Identifier: MIT */
/* Which GPUs of the machine are the process's devices: those of a list from the environment. */
#include "backend/sim/sim.h"

#include <strings.h>

/* Returns the ordinal in the current list of devices; -1: no such device. */
static int device_by_name(const char *text, size_t length)
{
	char uuid[SIM_UUID_TEXT_BYTES];
	char *end;
	long number;

	if (length >= 4 && !strncasecmp(text, "GPU-", 4)) {
		for (unsigned i = 0; i < sim.device_count; i++) {
			sim_vendor.uuid_text(shared->gpus[sim.gpu_of_device[i]].uuid, uuid);
			if (!strncasecmp(uuid, text + 4, length - 4))
				return (int)i;
		}
		return -1;
	}
	number = strtol(text, &end, 10);
	return end == text || number < 0 || number >= (long)sim.device_count ? -1 : (int)number;
}

/*
 * The list ends at the first name that is not a GPU, as in NVIDIA's programming guide and in AMD's
 * runtime.
 */
void devices_choose(const char *list)
{
	unsigned chosen[SIM_MAX_GPUS], count = 0;

	while (list && *list && count < SIM_MAX_GPUS) {
		size_t length = strcspn(list, ",");
		int device = device_by_name(list, length);

		if (device < 0)
			break;
		chosen[count++] = sim.gpu_of_device[device];
		list += length + (list[length] == ',');
	}
	if (list) {
		memcpy(sim.gpu_of_device, chosen, sizeof(chosen));
		sim.device_count = count;
	}
}
