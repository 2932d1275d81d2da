/* SPDX-License-Identifier: MIT */
/* Specific to AMD: names, environment variables, versions. */
#include "backend/sim/hip.h"

#include <stdio.h>

int hip_version(void)
{
	const char *given = getenv("GPUCR_SIM_HIP_VERSION");
	unsigned major = 0, minor = 0, patch = 0;

	if (!given || sscanf(given, "%u.%u.%u", &major, &minor, &patch) < 1)
		return HIP_VERSION_6_4;
	return (int)(major * 10000000 + minor * 100000 + patch);
}

bool hip_has_quirk(const char *name)
{
	const char *list = getenv("GPUCR_SIM_HIP_QUIRKS");
	size_t length = strlen(name);

	while (list && *list) {
		size_t word = strcspn(list, ",");

		if (word == length && !strncmp(list, name, length))
			return true;
		list += word + (list[word] == ',');
	}
	return false;
}

/* ROCr's variable is applied first; the numbers in HIP's variable index the remaining devices. */
static void choose(void)
{
	const char *visible = getenv("HIP_VISIBLE_DEVICES");

	devices_choose(getenv("ROCR_VISIBLE_DEVICES"));
	/* HIP treats an empty variable as unset. */
	if (!visible || !*visible)
		visible = getenv("CUDA_VISIBLE_DEVICES");
	devices_choose(visible && *visible ? visible : NULL);
}

static void uuid_text(const unsigned char uuid[16], char text[SIM_UUID_TEXT_BYTES])
{
	memcpy(text, uuid, 16);
	text[16] = '\0';
}

static size_t granularity_bytes(void)
{
	const char *given = getenv("GPUCR_SIM_HIP_GRANULARITY");

	return given && !strcmp(given, "4K") ? 4096 : SIM_BLOCK_BYTES;
}

const struct sim_vendor sim_vendor = {
	.compute_file = "kfd",
	.device_file = "dri/renderD",
	.device_file_first = HIP_RENDER_MINOR,
	.opens_all_devices = true,
	.server_thread_name = "hip-sim-restore",
	.stream_thread_name = "hip-sim-stream",
	.checkpoints_managed_memory = true,
	.refuses_what_is_lost = true,
	.exports_imported_handles = true,
	.granularity_bytes = granularity_bytes,
	.devices_choose = choose,
	.uuid_text = uuid_text,
	.image_text = hip_image_text,
	.error_by_name = hip_error_by_name,
};
