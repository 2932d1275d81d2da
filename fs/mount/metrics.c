/* SPDX-License-Identifier: MIT */
/*
 * The daemon's figures as OpenMetrics 1.0 text. The metrics are a table with a row for each family.
 * All figures are gathered first, so that those of one text are consistent. No line names a
 * process, a user or a file: all users may read the text, and the number of lines depends on the
 * machine's GPUs only.
 */
#include "fs/mount/metrics.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "fs/base/counters.h"
#include "fs/daemon.h"
#include "fs/helper/helper.h"
#include "fs/image/place.h"
#include "fs/pack/packs.h"
#include "fs/process/gpus.h"
#include "fs/process/totals.h"
#include "fs/store/subtree.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/gpu_list.h"
#include "lib/uuid.h"

/* ---- gathering ---- */

#define NOT_KNOWN UINT64_MAX

struct gpu_figures {
	uint64_t total_bytes; /* this and the next three: NOT_KNOWN if not reported */
	uint64_t used_bytes;
	uint64_t free_bytes;
	uint64_t processes_bytes;
	uint64_t held_bytes;
};

struct figures {
	const struct gcr_daemon *daemon;
	struct gcr_gpus_reply reply;
	struct gcr_totals totals;
	struct gpu_figures gpus[GCR_GPUS_MAX];
	struct gcr_store_figures store;
	struct gcr_packs_figures packs;
	uint64_t survives_restart;
	uint64_t keep_bytes;
	uint64_t pool_bytes;
	uint64_t places[GCR_STATES_COUNT];
	uint64_t places_bytes;
	struct gcr_quota_figures quota;
};

/* A place that a process was restored from is counted as that process. */
static int count_place(struct gcr_place *place, void *data)
{
	struct figures *figures = data;
	enum gcr_state state;

	if (!gcr_place_is_process(place, &state)) {
		figures->places[state]++;
		figures->places_bytes += gcr_subtree_resident_bytes(place->subtree);
	}
	return 0;
}

static int gather(struct gcr_daemon *daemon, struct figures *figures)
{
	int result;

	figures->daemon = daemon;
	gcr_gpus_snapshot(daemon->gpus, &figures->reply);
	result = gcr_totals_make(daemon, &figures->reply, &figures->totals);
	if (result < 0)
		return result;
	for (uint32_t i = 0; i < figures->reply.gpus_count; i++) {
		const struct gcr_gpu_info *gpu = &figures->reply.gpus[i];
		const struct gcr_gpu_totals *totals = &figures->totals.gpus[i];
		bool knows_memory = gpu->flags & GCR_GPU_MEMORY;
		bool knows_processes = gcr_gpu_list_has_all(gpu);

		figures->gpus[i] = (struct gpu_figures){
			.total_bytes = knows_memory ? gpu->total_bytes : NOT_KNOWN,
			.used_bytes = knows_memory ? gpu->used_bytes : NOT_KNOWN,
			.free_bytes = knows_memory ? gpu->free_bytes : NOT_KNOWN,
			.processes_bytes = knows_processes ? totals->processes_bytes : NOT_KNOWN,
			.held_bytes = totals->held_bytes,
		};
	}
	gcr_store_figures(daemon->store, &figures->store);
	gcr_store_packs_figures(daemon->store, &figures->packs);
	figures->survives_restart = figures->store.survives_restart;
	figures->keep_bytes = daemon->options.keep_bytes;
	figures->pool_bytes = daemon->options.pool_bytes;
	result = gcr_place_each(daemon->places, count_place, figures);
	if (result < 0)
		return result;
	gcr_quota_get_figures(daemon->quota, &figures->quota);
	return 0;
}

/* ---- rendering ---- */

struct family {
	const char *name; /* without "_total", which a counter's samples add */
	bool is_counter;
	const char *unit;   /* suffix of the name, or "" */
	const char *labels; /* names of the labels, separated by ',' */
	const char *help;   /* without characters that need escaping */
	void (*render)(const struct family *family, const struct figures *figures, FILE *stream);
	size_t number; /* offset of the number: in the figures, or in those of a GPU */
};

/*
 * Prints a label's value. Backslash, quotation mark and newline are escaped; other control
 * characters and bytes beyond ASCII become `?`, so that the text is UTF-8 whatever a driver calls
 * its GPU.
 */
static void print_value(const char *value, FILE *stream)
{
	for (const char *byte = value; *byte; byte++)
		if (*byte == '\\' || *byte == '"')
			fprintf(stream, "\\%c", *byte);
		else if (*byte == '\n')
			fputs("\\n", stream);
		else
			fputc(*byte >= 0x20 && *byte < 0x7f ? *byte : '?', stream);
}

static void print_sample(const struct family *family, FILE *stream, ...) __attribute__((sentinel));

/*
 * Prints the name and the labels of a sample, before its number. The values of the labels, and
 * NULL, are the last arguments.
 */
static void print_sample(const struct family *family, FILE *stream, ...)
{
	const char *names = family->labels;
	const char *separator = "{";
	const char *value;
	va_list values;

	fprintf(stream, "%s%s", family->name, family->is_counter ? "_total" : "");
	va_start(values, stream);
	while ((value = va_arg(values, const char *))) {
		int length = (int)strcspn(names, ",");

		fprintf(stream, "%s%.*s=\"", separator, length, names);
		print_value(value, stream);
		fputc('"', stream);
		names += length + (names[length] == ',');
		separator = ",";
	}
	va_end(values);
	fputs(*separator == ',' ? "} " : " ", stream);
}

static void print_number(uint64_t number, FILE *stream)
{
	fprintf(stream, "%" PRIu64 "\n", number);
}

static void print_seconds(uint64_t usec, FILE *stream)
{
	fprintf(stream, "%" PRIu64 ".%06" PRIu64 "\n", usec / GCR_USEC_PER_SEC,
		usec % GCR_USEC_PER_SEC);
}

static void render_number(const struct family *family, const struct figures *figures, FILE *stream)
{
	print_sample(family, stream, NULL);
	print_number(*(const uint64_t *)((const char *)figures + family->number), stream);
}

static void render_build(const struct family *family, const struct figures *figures, FILE *stream)
{
	print_sample(family, stream, GCR_VERSION, NULL);
	print_number(1, stream);
}

/* The vendor's name as in the status of a GPU. */
struct vendor_text {
	char text[16];
};

static struct vendor_text vendor_name(const struct gcr_vendor *vendor)
{
	struct vendor_text name = {0};

	for (size_t i = 0; i < sizeof(name.text) - 1 && vendor->backend->vendor[i]; i++)
		name.text[i] = (char)tolower((unsigned char)vendor->backend->vendor[i]);
	return name;
}

static void render_drivers(const struct family *family, const struct figures *figures, FILE *stream)
{
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++) {
		const struct gcr_vendor *vendor = &figures->daemon->vendors[i];
		struct gcr_hello hello = {0};

		if (!vendor->is_here)
			continue;
		gcr_helpers_hello(vendor->helpers, &hello);
		print_sample(family, stream, vendor_name(vendor).text,
			     *hello.driver_version ? hello.driver_version : "-", NULL);
		print_number(1, stream);
	}
}

static void render_start(const struct family *family, const struct figures *figures, FILE *stream)
{
	print_sample(family, stream, NULL);
	print_seconds((uint64_t)figures->daemon->counters->started_usec, stream);
}

static void render_processes(const struct family *family, const struct figures *figures,
			     FILE *stream)
{
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++) {
		const struct gcr_vendor *vendor = &figures->daemon->vendors[i];

		for (size_t state = 0; state < GCR_STATE_GONE && vendor->is_here; state++) {
			print_sample(family, stream, vendor_name(vendor).text,
				     gcr_state_name((enum gcr_state)state), NULL);
			print_number(figures->totals.processes[i][state], stream);
		}
	}
}

static void render_places(const struct family *family, const struct figures *figures, FILE *stream)
{
	static const enum gcr_state states[] = {GCR_STATE_DUMPED, GCR_STATE_INCOMING,
						GCR_STATE_RESTORING, GCR_STATE_FAILED};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(states); i++) {
		print_sample(family, stream, gcr_state_name(states[i]), NULL);
		print_number(figures->places[states[i]], stream);
	}
}

static void render_gpus(const struct family *family, const struct figures *figures, FILE *stream)
{
	for (uint32_t i = 0; i < figures->reply.gpus_count; i++) {
		const struct gcr_vendor *vendor = gcr_gpus_vendor(figures->daemon->gpus, i);
		const struct gcr_gpu_info *gpu = &figures->reply.gpus[i];
		uint64_t number =
			*(const uint64_t *)((const char *)&figures->gpus[i] + family->number);
		char uuid[GCR_GPU_UUID_TEXT_BYTES];
		char index[12];

		if (!vendor || number == NOT_KNOWN)
			continue;
		snprintf(index, sizeof(index), "%" PRIu32, i);
		gcr_gpu_uuid_format(gpu->uuid, vendor->backend->has_text_uuids, uuid);
		print_sample(family, stream, index, uuid, gpu->name, NULL);
		print_number(number, stream);
	}
}

static void render_workers(const struct family *family, const struct figures *figures, FILE *stream)
{
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++) {
		const struct gcr_vendor *vendor = &figures->daemon->vendors[i];

		if (!vendor->is_here)
			continue;
		print_sample(family, stream, vendor_name(vendor).text, NULL);
		print_number(gcr_helpers_workers(vendor->helpers), stream);
	}
}

static void render_verbs(const struct family *family, const struct figures *figures, FILE *stream)
{
	struct gcr_counters *counters = figures->daemon->counters;

	for (size_t verb = 0; verb < GCR_VERB_CANCEL; verb++)
		for (size_t i = 0; i < GCR_COUNTERS_RESULTS; i++) {
			print_sample(family, stream, gcr_verb_name((enum gcr_verb)verb),
				     gcr_counters_result(i), NULL);
			print_number(atomic_load(&counters->verbs[verb].ended[i]), stream);
		}
}

static void render_verb_seconds(const struct family *family, const struct figures *figures,
				FILE *stream)
{
	for (size_t verb = 0; verb < GCR_VERB_CANCEL; verb++) {
		print_sample(family, stream, gcr_verb_name((enum gcr_verb)verb), NULL);
		print_seconds(atomic_load(&figures->daemon->counters->verbs[verb].usec), stream);
	}
}

static void render_verb_bytes(const struct family *family, const struct figures *figures,
			      FILE *stream)
{
	for (size_t verb = 0; verb < GCR_VERB_CANCEL; verb++) {
		print_sample(family, stream, gcr_verb_name((enum gcr_verb)verb), NULL);
		print_number(atomic_load(&figures->daemon->counters->verbs[verb].bytes), stream);
	}
}

static void render_refusals(const struct family *family, const struct figures *figures,
			    FILE *stream)
{
	for (size_t i = 1; i < GCR_COUNTERS_RESULTS; i++) {
		print_sample(family, stream, gcr_counters_result(i), NULL);
		print_number(atomic_load(&figures->daemon->counters->refusals[i]), stream);
	}
}

static void render_user_refusals(const struct family *family, const struct figures *figures,
				 FILE *stream)
{
	for (size_t i = 0; i < GCR_QUOTA_KINDS_COUNT; i++) {
		print_sample(family, stream, gcr_quota_kinds[i].name, NULL);
		print_number(figures->quota.refusals[i], stream);
	}
}

#define FIGURE(name, unit, field, help)                                                     \
	{                                                                                   \
		name, false, unit, "", help, render_number, offsetof(struct figures, field) \
	}
#define GPU_FIGURE(name, field, help)                                       \
	{                                                                   \
		name, false, "bytes", "index,uuid,name", help, render_gpus, \
			offsetof(struct gpu_figures, field)                 \
	}

/*
 * Only gauges and counters, none of OpenMetrics' other types: so programs that know only
 * Prometheus' older format can read the text too.
 */
static const struct family families[] = {
	{"gpucrfs_build_info", false, "", "version", "what serves this mount", render_build, 0},
	{"gpucrfs_driver_info", false, "", "vendor,version", "the drivers of the GPUs",
	 render_drivers, 0},
	{"gpucrfs_start_time_seconds", false, "seconds", "", "when the counters began, since 1970",
	 render_start, 0},
	{"gpucrfs_processes", false, "", "vendor,state", "GPU processes", render_processes, 0},
	FIGURE("gpucrfs_held_bytes", "bytes", totals.held_bytes,
	       "VRAM contents held for frozen processes"),
	GPU_FIGURE("gpucrfs_gpu_vram_bytes", total_bytes, "VRAM of a GPU"),
	GPU_FIGURE("gpucrfs_gpu_vram_used_bytes", used_bytes, "VRAM in use, by whomever"),
	GPU_FIGURE("gpucrfs_gpu_vram_free_bytes", free_bytes, "VRAM not in use"),
	GPU_FIGURE("gpucrfs_gpu_vram_processes_bytes", processes_bytes,
		   "VRAM in use by GPU processes of this mount"),
	GPU_FIGURE("gpucrfs_gpu_held_bytes", held_bytes,
		   "what is held of frozen processes that were on this GPU"),
	{"gpucrfs_workers", false, "", "vendor", "worker processes that run", render_workers, 0},
	{"gpucrfs_places", false, "", "state", "places of which no process has been made",
	 render_places, 0},
	FIGURE("gpucrfs_places_bytes", "bytes", places_bytes,
	       "what the files of these places take"),
	FIGURE("gpucrfs_store_bytes", "bytes", store.size_bytes, "what the store may hold"),
	FIGURE("gpucrfs_store_used_bytes", "bytes", store.used_bytes,
	       "what it holds, the pool included"),
	FIGURE("gpucrfs_store_free_bytes", "bytes", store.free_bytes, "what is free of it"),
	FIGURE("gpucrfs_store_reserve_bytes", "bytes", store.reserve_bytes,
	       "what of it is for packing only"),
	FIGURE("gpucrfs_store_survives_restart", "", survives_restart,
	       "1 if it outlives the daemon"),
	FIGURE("gpucrfs_keep_bytes", "bytes", keep_bytes,
	       "what may be kept of processes that run again"),
	FIGURE("gpucrfs_kept_bytes", "bytes", store.kept_bytes, "what is kept of them"),
	FIGURE("gpucrfs_pool_bytes", "bytes", pool_bytes,
	       "what may be kept ready for running processes"),
	FIGURE("gpucrfs_pool_used_bytes", "bytes", store.pool_bytes, "what is kept ready"),
	FIGURE("gpucrfs_packed_bytes", "bytes", packs.unpacked_bytes,
	       "what stands packed, before it was"),
	FIGURE("gpucrfs_packed_to_bytes", "bytes", packs.memory_bytes, "the memory that it takes"),
	FIGURE("gpucrfs_shared_bytes", "bytes", packs.shared_bytes,
	       "what of it is in chunks that several have"),
	FIGURE("gpucrfs_spilled_bytes", "bytes", packs.spilled_bytes,
	       "what of it stands on a disk, there"),
	{"gpucrfs_verbs", true, "", "verb,result", "verbs that have ended, one per process",
	 render_verbs, 0},
	{"gpucrfs_verb_seconds", true, "seconds", "verb", "time taken by verbs that succeeded",
	 render_verb_seconds, 0},
	{"gpucrfs_verb_bytes", true, "bytes", "verb", "bytes moved by verbs that succeeded",
	 render_verb_bytes, 0},
	{"gpucrfs_refused_writes", true, "", "result", "writes to ctl that were refused",
	 render_refusals, 0},
	FIGURE("gpucrfs_users", "", quota.users,
	       "users with connections, open files, places or verbs, root not counted"),
	{"gpucrfs_user_refusals", true, "", "limit", "what was refused to users at their limits",
	 render_user_refusals, 0},
};

void gcr_metrics_render(struct gcr_daemon *daemon, FILE *stream)
{
	_cleanup_free_ struct figures *figures = calloc(1, sizeof(*figures));

	/* On error the text lacks "# EOF", so readers take it for incomplete. */
	if (!figures || gather(daemon, figures) < 0)
		return;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(families); i++) {
		const struct family *family = &families[i];

		fprintf(stream, "# TYPE %s %s\n", family->name,
			family->is_counter ? "counter" : "gauge");
		if (*family->unit)
			fprintf(stream, "# UNIT %s %s\n", family->name, family->unit);
		fprintf(stream, "# HELP %s %s\n", family->name, family->help);
		family->render(family, figures, stream);
	}
	fputs("# EOF\n", stream);
}

const char *gcr_metrics_family(size_t index, const char **ret_labels, bool *ret_is_counter)
{
	if (index >= GCR_ARRAY_SIZE(families))
		return NULL;
	*ret_labels = families[index].labels;
	*ret_is_counter = families[index].is_counter;
	return families[index].name;
}
