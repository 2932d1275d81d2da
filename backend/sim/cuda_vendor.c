/* SPDX-License-Identifier: MIT */
/* Specific to NVIDIA: names, the environment variable, and the format of a module's image. */
#include "backend/sim/sim.h"

#include <stdio.h>

#define FATBIN_MAGIC	     0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u

static void choose(void)
{
	devices_choose(getenv("CUDA_VISIBLE_DEVICES"));
}

static void uuid_text(const unsigned char u[16], char text[SIM_UUID_TEXT_BYTES])
{
	snprintf(text, SIM_UUID_TEXT_BYTES,
		 "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
		 u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
		 u[15]);
}

/*
 * Returns the image's text with NULs replaced by spaces, because the header of a fat binary
 * contains NULs.
 */
static char *image_text(const void *image)
{
	const unsigned char *bytes = image;
	size_t length;
	uint32_t magic;
	char *text;

	memcpy(&magic, bytes, sizeof(magic));
	if (magic == FATBIN_WRAPPER_MAGIC) {
		memcpy(&bytes, bytes + 8, sizeof(bytes));
		memcpy(&magic, bytes, sizeof(magic));
	}
	if (magic == FATBIN_MAGIC) {
		uint16_t header;
		uint64_t size;

		memcpy(&header, bytes + 6, sizeof(header));
		memcpy(&size, bytes + 8, sizeof(size));
		length = header + size;
	} else if (!memcmp(bytes, "\177ELF", 4)) {
		return NULL;
	} else {
		length = strlen((const char *)bytes);
	}
	text = malloc(length + 1);
	if (!text)
		return NULL;
	for (size_t i = 0; i < length; i++)
		text[i] = bytes[i] ? (char)bytes[i] : ' ';
	text[length] = '\0';
	return text;
}

static size_t granularity_bytes(void)
{
	return SIM_BLOCK_BYTES;
}

const struct sim_vendor sim_vendor = {
	.control_file = "nvidiactl",
	.compute_file = "nvidia-uvm",
	.device_file = "nvidia",
	.server_thread_name = "cuda00001400006",
	.stream_thread_name = "cuda-EvtHandlr",
	.granularity_bytes = granularity_bytes,
	.devices_choose = choose,
	.uuid_text = uuid_text,
	.image_text = image_text,
};
