/* SPDX-License-Identifier: MIT */
/*
 * The text of the files of a GPU. The figures of the vendor's tools have been requested beforehand
 * (fs/process/gpus.h).
 */
#include "fs/mount/render.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>

#include "fs/process/gpus.h"
#include "fs/process/totals.h"
#include "lib/cleanup.h"
#include "lib/gpu_list.h"
#include "lib/uuid.h"

/* Copies one GPU's entry. False: there is no such GPU. */
static bool look_at_gpu(struct gcr_daemon *daemon, unsigned int index, struct gcr_gpu_info *ret)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));

	if (!reply)
		return false;
	gcr_gpus_snapshot(daemon->gpus, reply);
	if (index >= reply->gpus_count)
		return false;
	*ret = reply->gpus[index];
	return true;
}

void gcr_render_gpu_uuid(struct gcr_daemon *daemon, unsigned int index, FILE *stream)
{
	const struct gcr_vendor *vendor = gcr_gpus_vendor(daemon->gpus, index);
	char text[GCR_GPU_UUID_TEXT_BYTES];
	struct gcr_gpu_info gpu;

	if (!vendor || !look_at_gpu(daemon, index, &gpu))
		return;
	gcr_gpu_uuid_format(gpu.uuid, vendor->backend->has_text_uuids, text);
	fprintf(stream, "%s\n", text);
}

void gcr_render_gpu_name(struct gcr_daemon *daemon, unsigned int index, FILE *stream)
{
	struct gcr_gpu_info gpu;

	if (look_at_gpu(daemon, index, &gpu))
		fprintf(stream, "%.*s\n", (int)sizeof(gpu.name) - 1, gpu.name);
}

const char *const gcr_render_gpu_keys[] = {
	"vendor",
	"architecture",
	"minor",
	"mig",
	"vram_total_bytes",
	"vram_used_bytes",
	"vram_free_bytes",
	"vram_processes_bytes",
	"held_bytes",
	"pids",
	NULL,
};

/* Sums over the processes of the mount that are, or were before a freeze, on this GPU. */
static void render_gpu_sums(struct gcr_daemon *daemon, const struct gcr_gpus_reply *reply,
			    unsigned int index, FILE *stream)
{
	_cleanup_free_ struct gcr_totals *totals = calloc(1, sizeof(*totals));

	if (!totals || gcr_totals_make(daemon, reply, totals) < 0) {
		fputs("vram_processes_bytes -\nheld_bytes -\n", stream);
		return;
	}
	if (gcr_gpu_list_has_all(&reply->gpus[index]))
		fprintf(stream, "vram_processes_bytes %" PRIu64 "\n",
			totals->gpus[index].processes_bytes);
	else
		fputs("vram_processes_bytes -\n", stream);
	fprintf(stream, "held_bytes %" PRIu64 "\n", totals->gpus[index].held_bytes);
}

void gcr_render_gpu_status(struct gcr_daemon *daemon, unsigned int index, FILE *stream)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	char architecture[GCR_ARCHITECTURE_BYTES];
	const struct gcr_vendor *vendor;
	const struct gcr_gpu_info *gpu;
	unsigned int count = 0;

	if (!reply)
		return;
	gcr_gpus_snapshot(daemon->gpus, reply);
	if (index >= reply->gpus_count)
		return;
	gpu = &reply->gpus[index];
	vendor = gcr_gpus_vendor(daemon->gpus, index);
	if (!vendor)
		return;
	fputs("vendor ", stream);
	for (const char *letter = vendor->backend->vendor; *letter; letter++)
		fputc(tolower((unsigned char)*letter), stream);
	vendor->backend->format_architecture(gpu, architecture);
	fprintf(stream, "\narchitecture %s\n", *architecture ? architecture : "-");
	fprintf(stream, "minor %d\nmig %s\n", gpu->minor, gpu->flags & GCR_GPU_MIG ? "on" : "off");
	if (gpu->flags & GCR_GPU_MEMORY)
		fprintf(stream,
			"vram_total_bytes %" PRIu64 "\nvram_used_bytes %" PRIu64
			"\nvram_free_bytes %" PRIu64 "\n",
			gpu->total_bytes, gpu->used_bytes, gpu->free_bytes);
	else
		fputs("vram_total_bytes -\nvram_used_bytes -\nvram_free_bytes -\n", stream);
	render_gpu_sums(daemon, reply, index, stream);
	fputs("pids", stream);
	for (uint32_t i = 0; i < reply->processes_count; i++)
		if (reply->processes[i].gpu == index)
			fprintf(stream, " %d", (int)reply->processes[i].pid), count++;
	fputs(count ? "\n" : " -\n", stream);
}
