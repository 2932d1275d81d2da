/* SPDX-License-Identifier: MIT */
/*
 * The text of `status`, `error` and `maps`. A process's fields are copied under its lock first, so
 * that one text never mixes two states.
 */
#include "fs/mount/render.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "config.h"
#include "fs/base/passthrough.h"
#include "fs/base/quota.h"
#include "fs/engine/engine.h"
#include "fs/helper/helper.h"
#include "fs/helper/looker.h"
#include "fs/image/place.h"
#include "fs/job/operation.h"
#include "fs/job/sampler.h"
#include "fs/pack/pack_table.h"
#include "fs/pack/packs.h"
#include "fs/process/gpus.h"
#include "fs/process/library.h"
#include "fs/process/scan.h"
#include "fs/store/subtree.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/printable.h"
#include "lib/proc_cgroup.h"
#include "lib/uuid.h"

/* The data for one text: a copy of the process's changing fields, and of its task's. */
struct view {
	struct gcr_process *process;
	enum gcr_state state;
	int64_t state_since_usec;
	char comm[GCR_COMM_BYTES];
	char generation[37];
	const char *verb; /* of the task; "-" if there is none */
	const char *phase;
	int64_t elapsed_usec;
	bool control_pending;
	unsigned int shares_count;
	struct gcr_share shares[GCR_GPUS_MAX];
	uint64_t kept_vram_bytes;
	uint64_t unreturned_vram_bytes;
	uint64_t held_bytes;
	int64_t wanted_usec;
	int64_t last_freeze_usec;
	int64_t last_thaw_usec;
	struct gcr_verb_timing freeze;
	struct gcr_verb_timing thaw;
	struct gcr_pack_figures packed;
	uint32_t snapshot_gpus; /* a mask: the GPUs that the snapshot's contents come from */
	bool is_packing;
	bool is_pinned;
	bool has_library;
	bool has_facts; /* else all facts are 0 */
	struct gcr_page_facts facts;
	struct gcr_process **members; /* of a launcher, for its status */
	size_t members_count;
};

struct status_key {
	const char *name;
	void (*render)(const struct view *view, FILE *stream); /* prints the value, no newline */
	bool of_launcher;				       /* launchers have this key too */
	size_t number; /* without `render`: offset of the value in struct view */
};

/* The GPUs of a snapshot's files, as a mask of indexes. */
static uint32_t gpus_of(struct gcr_gpus *gpus, const struct gcr_snapshot *snapshot)
{
	const uint8_t *last = NULL;
	uint32_t mask = 0;

	for (size_t i = 0; i < gcr_snapshot_count(snapshot); i++) {
		const struct gcr_extent *extent = gcr_snapshot_extent(snapshot, i);
		int index;

		if (extent->kind != GCR_MEMORY_DEVICE ||
		    (last && !memcmp(last, extent->gpu, GCR_UUID_BYTES)))
			continue;
		last = extent->gpu;
		index = gcr_gpus_index(gpus, extent->gpu);
		if (index >= 0)
			mask |= 1u << index;
	}
	return mask;
}

static void look(struct gcr_process *process, struct view *view)
{
	struct gcr_snapshot *snapshot;
	struct gcr_proc_stat stat;
	/* Read before locking: /proc of a hung process can block, and verbs need the lock. */
	bool has_stat = gcr_process_state(process) != GCR_STATE_GONE &&
			!gcr_proc_stat(process->pid, &stat) &&
			stat.start_ticks == process->start_ticks;

	*view = (struct view){.process = process, .verb = "-", .phase = "-"};
	pthread_mutex_lock(&process->lock);
	if (has_stat && process->state != GCR_STATE_GONE)
		memcpy(process->comm, stat.comm, sizeof(process->comm));
	view->state = process->state;
	view->state_since_usec = process->state_since_usec;
	memcpy(view->comm, process->comm, sizeof(view->comm));
	memcpy(view->generation, process->generation, sizeof(view->generation));
	if (process->task) {
		view->verb = process->task->recovery ? "recover"
						     : gcr_verb_name(process->task->command->verb);
		view->phase = atomic_load(&process->task->phase);
		view->elapsed_usec = gcr_clock_usec() - process->task->started_usec;
		view->control_pending = atomic_load(&process->task->control_pending);
	}
	view->shares_count = process->shares_count;
	memcpy(view->shares, process->shares, sizeof(view->shares));
	view->kept_vram_bytes = process->kept_vram_bytes;
	view->unreturned_vram_bytes = process->unreturned_vram_bytes;
	view->held_bytes = process->held_bytes;
	view->wanted_usec = process->wanted_usec;
	view->last_freeze_usec = process->last_freeze_usec;
	view->last_thaw_usec = process->last_thaw_usec;
	view->freeze = process->last_freeze;
	view->thaw = process->last_thaw;
	view->is_packing = process->packing;
	view->is_pinned = process->pinned_by != 0;
	view->has_library = process->claims[GCR_CLAIM_LIBRARY] > 0;
	snapshot = process->snapshot ? gcr_snapshot_ref(process->snapshot) : NULL;
	pthread_mutex_unlock(&process->lock);
	if (snapshot) {
		gcr_subtree_pack_figures(gcr_snapshot_subtree(snapshot), &view->packed);
		view->snapshot_gpus = gpus_of(process->daemon->gpus, snapshot);
	}
	gcr_snapshot_unref(snapshot);
	gcr_make_printable(view->comm);
	for (char *byte = view->comm; *byte; byte++)
		if (*byte == ' ')
			*byte = '?';
}

/* Adds the facts that the preload library reports; only for texts that show them. */
static void look_at_library(struct view *view)
{
	view->has_facts = !gcr_library_last_facts(view->process, &view->facts);
}

static void render_pid(const struct view *view, FILE *stream)
{
	fprintf(stream, "%d", (int)view->process->pid);
}

static void render_ns_pid(const struct view *view, FILE *stream)
{
	struct gcr_proc_status status;

	if (gcr_proc_status(view->process->pid, &status) < 0 || !status.ns_pids_count)
		fputc('-', stream);
	else
		fprintf(stream, "%d", (int)status.ns_pids[status.ns_pids_count - 1]);
}

static void render_start_ticks(const struct view *view, FILE *stream)
{
	fprintf(stream, "%" PRIu64, view->process->start_ticks);
}

static void render_comm(const struct view *view, FILE *stream)
{
	fputs(view->comm, stream);
}

static void render_uid(const struct view *view, FILE *stream)
{
	struct gcr_proc_status status;

	if (gcr_proc_status(view->process->pid, &status) < 0)
		fputc('-', stream);
	else
		fprintf(stream, "%u", (unsigned int)status.effective_uid);
}

static void render_cgroup(const struct view *view, FILE *stream)
{
	_cleanup_free_ char *path = NULL;

	if (gcr_proc_cgroup(view->process->pid, &path) < 0) {
		fputc('-', stream);
		return;
	}
	gcr_make_printable(path);
	fputs(path, stream);
}

static void render_state(const struct view *view, FILE *stream)
{
	fputs(gcr_state_name(view->state), stream);
}

static void render_since(const struct view *view, FILE *stream)
{
	fprintf(stream, "%" PRId64, view->state_since_usec);
}

static void render_verbs(const struct view *view, FILE *stream)
{
	char verbs[128];
	size_t length = gcr_state_verbs(view->state, view->is_packing, verbs, sizeof(verbs));

	fputs(length ? verbs : "-", stream);
}

static void render_verb(const struct view *view, FILE *stream)
{
	fputs(view->verb, stream);
}

static void render_phase(const struct view *view, FILE *stream)
{
	fputs(view->phase, stream);
}

static void render_elapsed(const struct view *view, FILE *stream)
{
	fprintf(stream, "%" PRId64, view->elapsed_usec);
}

static void render_pending(const struct view *view, FILE *stream)
{
	fputs(view->control_pending ? "yes" : "no", stream);
}

static const struct gcr_engine *engine_of(const struct view *view, const char **ret_reason)
{
	return gcr_engine_choose_by(view->process, view->has_facts ? &view->facts : NULL,
				    ret_reason);
}

static void render_engine(const struct view *view, FILE *stream)
{
	const char *reason;

	fputs(engine_of(view, &reason)->name, stream);
}

static void render_engine_reason(const struct view *view, FILE *stream)
{
	const char *reason;

	engine_of(view, &reason);
	fputs(reason, stream);
	if (view->state == GCR_STATE_RUNNING && *view->facts.incomplete)
		fprintf(stream, " (%s)", view->facts.incomplete);
	if (atomic_load(&view->process->has_other_vendor))
		fputs(" (it uses GPUs of two vendors, and can be frozen on neither)", stream);
}

static void render_unknown(const struct view *view, FILE *stream)
{
	bool has_any = view->state == GCR_STATE_RUNNING && *view->facts.unknown;

	fputs(has_any ? view->facts.unknown : "-", stream);
}

static void render_registered(const struct view *view, FILE *stream)
{
	fputs(view->has_library ? "yes" : "no", stream);
}

/* Does /proc of the process answer? */
static void render_answers(const struct view *view, FILE *stream)
{
	fputs(gcr_looker_is_silent(view->process->pid) ? "no" : "yes", stream);
}

/* The GPUs that a running process uses now, or that a frozen process was on. */
static void render_gpus(const struct view *view, FILE *stream)
{
	struct gcr_gpus *gpus = view->process->daemon->gpus;
	uint32_t mask = 0;

	for (unsigned int i = 0; i < view->shares_count; i++) {
		int index = gcr_gpus_index(gpus, view->shares[i].uuid);

		if (index >= 0)
			mask |= 1u << index;
	}
	if (!view->shares_count)
		mask = gcr_gpus_process_mask(gpus, view->process->pid);
	/* The driver's tools do not know a process in a container: use the snapshot's GPUs. */
	if (!mask)
		mask = view->snapshot_gpus;
	if (!mask)
		fputc('-', stream);
	for (unsigned int index = 0, count = 0; index < GCR_GPUS_MAX; index++)
		if (mask & 1u << index)
			fprintf(stream, "%s%u", count++ ? " " : "", index);
}

/*
 * VRAM as the driver counts it, plus the memory that the process has imported, which NVML and KFD
 * leave out. After a thaw by an engine with a worker all large allocations are imported ones. The
 * driver's tools do not know a process in a container: the sum that the library reports is used
 * then. The library's figures count up to what the GPUs have.
 */
static uint64_t vram_bytes(const struct view *view)
{
	struct gcr_process *process = view->process;
	struct gcr_gpus *gpus = process->daemon->gpus;
	uint64_t bytes = gcr_gpus_process_bytes(gpus, process->pid);

	if (view->state != GCR_STATE_RUNNING)
		return bytes;
	return bytes ? bytes + gcr_gpus_bound(gpus, view->facts.imported_bytes)
		     : gcr_gpus_bound(gpus, view->facts.device_bytes);
}

static void render_vram(const struct view *view, FILE *stream)
{
	fprintf(stream, "%" PRIu64, vram_bytes(view));
}

/* VRAM that `freeze data` leaves on the GPU; 0 after a freeze that includes the driver's state. */
static void render_kept_vram(const struct view *view, FILE *stream)
{
	struct gcr_process *process = view->process;
	bool is_frozen = view->state == GCR_STATE_FROZEN || view->state == GCR_STATE_DUMPING;

	fprintf(stream, "%" PRIu64,
		is_frozen ? gcr_gpus_process_bytes(process->daemon->gpus, process->pid) : 0);
}

static void render_idle(const struct view *view, FILE *stream)
{
	int64_t idle_msec = gcr_sampler_idle_msec(view->process);

	if (idle_msec < 0)
		fputc('-', stream);
	else
		fprintf(stream, "%" PRId64, idle_msec);
}

/* "-": no library would report that the process waits for its GPU. */
static void render_wanted(const struct view *view, FILE *stream)
{
	if (!view->wanted_usec && !(view->facts.flags & GCR_PAGE_WANTING))
		fputc('-', stream);
	else
		fprintf(stream, "%" PRId64, view->wanted_usec);
}

/* "-": no freeze has taken place yet, or the driver alone has moved the memory. */
static void render_digests(const struct view *view, FILE *stream)
{
	struct gcr_process *process = view->process;
	bool has_any;
	bool has_host;

	pthread_mutex_lock(&process->lock);
	has_any = process->last_freeze_usec && gcr_engine_has_files(process->engine);
	has_host = process->last_freeze.has_host_digests;
	pthread_mutex_unlock(&process->lock);
	fputs(!has_any ? "-" : has_host ? "host" : "gpu", stream);
}

static void render_kept(const struct view *view, FILE *stream)
{
	struct gcr_process *process = view->process;
	struct gcr_snapshot *kept =
		gcr_store_find_kept(process->daemon->store, process->pid, process->start_ticks);

	fprintf(stream, "%" PRIu64, kept ? gcr_snapshot_bytes(kept) : 0);
	gcr_snapshot_unref(kept);
}

static void render_pool(const struct view *view, FILE *stream)
{
	struct gcr_process *process = view->process;
	struct gcr_pool_figures figures;

	gcr_store_pool_figures(process->daemon->store, process->pid, process->start_ticks,
			       &figures);
	fprintf(stream, "%" PRIu64, figures.bytes);
}

static void render_pool_ready(const struct view *view, FILE *stream)
{
	struct gcr_process *process = view->process;
	struct gcr_pool_figures figures;

	gcr_store_pool_figures(process->daemon->store, process->pid, process->start_ticks,
			       &figures);
	fprintf(stream, "%" PRIu64, figures.ready_bytes);
}

static void render_packing(const struct view *view, FILE *stream)
{
	fputs(view->is_packing ? "yes" : "no", stream);
}

static void render_pinned(const struct view *view, FILE *stream)
{
	fputs(view->is_pinned ? "yes" : "no", stream);
}

static void render_generation(const struct view *view, FILE *stream)
{
	fputs(*view->generation ? view->generation : "-", stream);
}

/* The GPU processes below a launcher; "-" for a GPU process. */
static void render_members(const struct view *view, FILE *stream)
{
	if (!view->members_count)
		fputc('-', stream);
	for (size_t i = 0; i < view->members_count; i++)
		fprintf(stream, "%s%d", i ? " " : "", (int)view->members[i]->pid);
}

/* Durations are never negative, so all numbers can be printed as unsigned. */
static void print_number(const struct view *view, size_t offset, FILE *stream)
{
	uint64_t number;

	memcpy(&number, (const char *)view + offset, sizeof(number));
	fprintf(stream, "%" PRIu64, number);
}

#define NUMBER(name, field)                                     \
	{                                                       \
		name, NULL, false, offsetof(struct view, field) \
	}

static const struct status_key status_keys[] = {
	{"pid", render_pid, true},
	{"ns_pid", render_ns_pid, true},
	{"start_ticks", render_start_ticks, true},
	{"comm", render_comm, true},
	{"uid", render_uid, true},
	{"cgroup", render_cgroup, true},
	{"state", render_state, true},
	{"state_since_usec", render_since, false},
	{"verbs", render_verbs, true},
	{"verb", render_verb, false},
	{"phase", render_phase, false},
	{"verb_elapsed_usec", render_elapsed, false},
	{"control_pending", render_pending, false},
	{"engine", render_engine, false},
	{"engine_reason", render_engine_reason, false},
	{"unknown_functions", render_unknown, false},
	{"registered", render_registered, false},
	{"answers", render_answers, false},
	{"gpus", render_gpus, false},
	{"vram_bytes", render_vram, false},
	{"kept_vram_bytes", render_kept_vram, false},
	NUMBER("unreturned_vram_bytes", unreturned_vram_bytes),
	NUMBER("held_bytes", held_bytes),
	NUMBER("packed_bytes", packed.packed_bytes),
	NUMBER("packed_to_bytes", packed.packed_to_bytes),
	NUMBER("shared_bytes", packed.shared_bytes),
	NUMBER("zero_bytes", packed.zero_bytes),
	{"packing", render_packing, false},
	{"idle_ms", render_idle, false},
	{"wanted_usec", render_wanted, false},
	{"kept_bytes", render_kept, false},
	{"pool_bytes", render_pool, false},
	{"pool_ready_bytes", render_pool_ready, false},
	{"pinned", render_pinned, false},
	{"generation", render_generation, false},
	NUMBER("last_freeze_usec", last_freeze_usec),
	NUMBER("last_freeze_bytes", freeze.bytes),
	NUMBER("last_freeze_copied_bytes", freeze.copied_bytes),
	{"last_freeze_digests", render_digests, false},
	NUMBER("last_freeze_gate_usec", freeze.gate_usec),
	NUMBER("last_freeze_handover_usec", freeze.handover_usec),
	NUMBER("last_freeze_copy_usec", freeze.copy_usec),
	NUMBER("last_freeze_control_usec", freeze.control_usec),
	NUMBER("last_thaw_usec", last_thaw_usec),
	NUMBER("last_thaw_bytes", thaw.bytes),
	NUMBER("last_thaw_copy_usec", thaw.copy_usec),
	NUMBER("last_thaw_control_usec", thaw.control_usec),
	NUMBER("last_thaw_handover_usec", thaw.handover_usec),
	NUMBER("last_thaw_map_usec", thaw.map_usec),
	{"members", render_members, true},
};

const char *gcr_render_status_key(size_t index)
{
	return index < GCR_ARRAY_SIZE(status_keys) ? status_keys[index].name : NULL;
}

/*
 * Lists the members of a launcher, whose state is that of its least frozen member. Errors of
 * gcr_process_members().
 */
static int look_at_members(struct view *view)
{
	int result = gcr_process_members(view->process, &view->members, &view->members_count);

	if (result < 0)
		return result;
	view->state = GCR_STATE_GONE;
	for (size_t i = 0; i < view->members_count; i++) {
		enum gcr_state state = gcr_process_state(view->members[i]);

		if (state < view->state)
			view->state = state;
	}
	return 0;
}

int gcr_render_status(struct gcr_process *process, FILE *stream)
{
	struct view view;
	int result;

	look(process, &view);
	result = process->launcher ? look_at_members(&view) : 0;
	if (result < 0)
		return result;
	look_at_library(&view);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(status_keys); i++) {
		if (process->launcher && !status_keys[i].of_launcher)
			continue;
		fprintf(stream, "%s ", status_keys[i].name);
		if (status_keys[i].render)
			status_keys[i].render(&view, stream);
		else
			print_number(&view, status_keys[i].number, stream);
		fputc('\n', stream);
	}
	gcr_processes_list_free(view.members, view.members_count);
	return 0;
}

void gcr_render_error(struct gcr_process *process, FILE *stream)
{
	struct gcr_error error;
	uint64_t unreturned;

	pthread_mutex_lock(&process->lock);
	error = process->error;
	unreturned = process->state == GCR_STATE_FROZEN ? process->unreturned_vram_bytes : 0;
	pthread_mutex_unlock(&process->lock);
	if (!error.number && unreturned)
		fprintf(stream,
			"ok: frozen, but %" PRIu64
			" MiB of its VRAM are still in use: its %s does not free them\n",
			unreturned >> 20, process->vendor->backend->api);
	else
		gcr_error_print(&error, stream);
}

/* One line for each file of a snapshot. */
static void render_extents(const struct gcr_snapshot *snapshot, FILE *stream)
{
	for (size_t i = 0; i < gcr_snapshot_count(snapshot); i++) {
		const struct gcr_extent *extent = gcr_snapshot_extent(snapshot, i);

		if (extent->address)
			fprintf(stream, "%" PRIx64 "-%" PRIx64, extent->address,
				extent->address + extent->bytes);
		else
			fputc('-', stream);
		fprintf(stream, " %u %s %" PRIu64 " %" PRIu64 " -\n", extent->gpu_index,
			extent->kind == GCR_MEMORY_MANAGED ? "managed" : "device", extent->bytes,
			extent->bytes);
	}
}

/*
 * Writes `maps`: a line for each file in the store. For memory outside the store only the driver
 * knows the allocations: one line per GPU then, with `-` for unknown values.
 */
void gcr_render_maps(struct gcr_process *process, FILE *stream)
{
	struct gcr_gpus *gpus = process->daemon->gpus;
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	struct gcr_snapshot *snapshot = NULL;
	struct view view;

	if (!reply)
		return;
	pthread_mutex_lock(&process->lock);
	if (process->snapshot)
		snapshot = gcr_snapshot_ref(process->snapshot);
	pthread_mutex_unlock(&process->lock);
	look(process, &view);
	if (snapshot && view.held_bytes)
		render_extents(snapshot, stream);
	gcr_snapshot_unref(snapshot);
	gcr_gpus_snapshot(gpus, reply);
	for (uint32_t i = 0; i < reply->processes_count && view.state == GCR_STATE_RUNNING; i++)
		if (reply->processes[i].pid == process->pid)
			fprintf(stream, "- %u driver %" PRIu64 " 0 -\n", reply->processes[i].gpu,
				reply->processes[i].bytes);
	for (unsigned int i = 0; i < view.shares_count && view.held_bytes; i++)
		fprintf(stream, "- %d driver %" PRIu64 " %" PRIu64 " -\n",
			gcr_gpus_index(gpus, view.shares[i].uuid), view.shares[i].bytes,
			view.shares[i].bytes);
}

const char *const gcr_render_root_keys[] = {
	"version",
	"backend",
	"driver_version",
	"gpus",
	"simulator",
	"processes",
	"looks_put_off",
	"held_bytes",
	"store_bytes",
	"store_used_bytes",
	"store_free_bytes",
	"store_reserve_bytes",
	"store_survives_restart",
	"keep_bytes",
	"kept_bytes",
	"pool_bytes",
	"pool_used_bytes",
	"packed_bytes",
	"packed_to_bytes",
	"shared_bytes",
	"spilled_bytes",
	"passthrough",
	"admissions",
	"needs",
	"workers",
	"workers_aside",
	"user",
	NULL,
};

/* A line of the root's table: one word in each column. */
static void render_line(FILE *stream, const char *id, uid_t uid, const char *comm,
			const char *state, uint64_t vram, uint64_t held)
{
	fprintf(stream, "%-8s %-6u %-16s %-9s %14" PRIu64 " %14" PRIu64 "\n", id, (unsigned int)uid,
		*comm ? comm : "-", state, vram, held);
}

struct place_lines {
	struct gcr_sight *sight;
	FILE *stream;
};

static int render_place(struct gcr_place *place, void *data)
{
	const struct place_lines *lines = data;
	enum gcr_state state;

	/* A place with a restored process has the line of that process. */
	if (!gcr_place_is_process(place, &state) && gcr_sight_shows_place(lines->sight, place))
		render_line(lines->stream, place->name, place->stat.st_uid, "-",
			    gcr_state_name(state), 0, gcr_subtree_resident_bytes(place->subtree));
	return 0;
}

/* One word for each vendor whose GPUs are present. */
static void render_vendors(struct gcr_daemon *daemon, FILE *stream)
{
	fputs("backend", stream);
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		if (daemon->vendors[i].is_here)
			fprintf(stream, " %s", daemon->vendors[i].backend->name);
	fputs("\ndriver_version", stream);
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++) {
		struct gcr_hello hello = {0};

		if (!daemon->vendors[i].is_here)
			continue;
		gcr_helpers_hello(daemon->vendors[i].helpers, &hello);
		fprintf(stream, " %s", *hello.driver_version ? hello.driver_version : "-");
	}
	fputc('\n', stream);
}

/* A line for each user who holds anything that a quota limits. */
static void render_users(struct gcr_daemon *daemon, const struct gcr_render_view *reader,
			 FILE *stream)
{
	_cleanup_free_ struct gcr_quota_held *held = NULL;
	size_t count = 0;

	if (!gcr_store_users(daemon->store, &held, &count))
		gcr_quota_render(daemon->quota, held, count, reader->sees_all, reader->uid, stream);
}

void gcr_render_root_status(struct gcr_daemon *daemon, const struct gcr_render_view *reader,
			    FILE *stream)
{
	struct gcr_process **list = NULL;
	struct gcr_packs_figures packs;
	struct gcr_store_figures store;
	uint64_t held_bytes = 0;
	size_t count = 0;

	if (gcr_processes_list(daemon->processes, &list, &count) < 0)
		return;
	for (size_t i = 0; i < count; i++) {
		pthread_mutex_lock(&list[i]->lock);
		held_bytes += list[i]->held_bytes;
		pthread_mutex_unlock(&list[i]->lock);
	}
	fprintf(stream, "version %s\n", GCR_VERSION);
	render_vendors(daemon, stream);
	fprintf(stream, "gpus %u\nsimulator %s\n", gcr_gpus_count(daemon->gpus),
		daemon->options.simulator ? "yes" : "no");
	fprintf(stream, "processes %zu\nlooks_put_off %zu\nheld_bytes %" PRIu64 "\n", count,
		daemon->scan ? gcr_scan_put_off(daemon->scan) : 0, held_bytes);
	gcr_store_figures(daemon->store, &store);
	fprintf(stream,
		"store_bytes %" PRIu64 "\nstore_used_bytes %" PRIu64 "\nstore_free_bytes %" PRIu64
		"\nstore_reserve_bytes %" PRIu64 "\nstore_survives_restart %s\n",
		store.size_bytes, store.used_bytes, store.free_bytes, store.reserve_bytes,
		store.survives_restart ? "yes" : "no");
	fprintf(stream, "keep_bytes %" PRIu64 "\nkept_bytes %" PRIu64 "\n",
		daemon->options.keep_bytes, store.kept_bytes);
	fprintf(stream, "pool_bytes %" PRIu64 "\npool_used_bytes %" PRIu64 "\n",
		daemon->options.pool_bytes, store.pool_bytes);
	gcr_store_packs_figures(daemon->store, &packs);
	fprintf(stream,
		"packed_bytes %" PRIu64 "\npacked_to_bytes %" PRIu64 "\nshared_bytes %" PRIu64
		"\nspilled_bytes %" PRIu64 "\n",
		packs.unpacked_bytes, packs.memory_bytes, packs.shared_bytes, packs.spilled_bytes);
	fprintf(stream, "passthrough %s\n", gcr_passthrough_is_on() ? "yes" : "no");
	gcr_render_holders(daemon, reader->sees_all, stream);
	render_users(daemon, reader, stream);
	fputc('\n', stream);
	fprintf(stream, "%-8s %-6s %-16s %-9s %14s %14s\n", "id", "user", "comm", "state",
		"vram_bytes", "held_bytes");
	for (size_t i = 0; i < count; i++) {
		struct gcr_proc_status status = {0};
		struct view view;
		char id[16];

		if (!gcr_sight_reaches(reader->sight, list[i]->pid))
			continue;
		look(list[i], &view);
		if (view.state == GCR_STATE_RUNNING)
			look_at_library(&view);
		gcr_proc_status(list[i]->pid, &status);
		snprintf(id, sizeof(id), "%d", (int)list[i]->pid);
		render_line(stream, id, status.effective_uid, view.comm, gcr_state_name(view.state),
			    vram_bytes(&view), view.held_bytes);
	}
	gcr_place_each(daemon->places, render_place, &(struct place_lines){reader->sight, stream});
	gcr_processes_list_free(list, count);
}
