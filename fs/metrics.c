/* SPDX-License-Identifier: MIT */
/* The daemon's counters, and their rendering as Prometheus text. */
#include "fs/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>

#include "fs/daemon.h"
#include "fs/gpus.h"
#include "fs/process.h"
#include "fs/store.h"
#include "lib/cleanup.h"

struct gcr_metrics {
	struct {
		_Atomic uint64_t succeeded;
		_Atomic uint64_t failed;
		_Atomic uint64_t usec; /* of those that succeeded */
		_Atomic uint64_t bytes;
	} verbs[GCR_VERBS_COUNT];
};

int gcr_metrics_create(struct gcr_metrics **ret_metrics)
{
	*ret_metrics = calloc(1, sizeof(**ret_metrics));
	return *ret_metrics ? 0 : -ENOMEM;
}

void gcr_metrics_destroy(struct gcr_metrics *metrics)
{
	free(metrics);
}

void gcr_metrics_verb(struct gcr_metrics *metrics, enum gcr_verb verb, int error_number,
		      int64_t duration_usec, uint64_t bytes)
{
	if (error_number) {
		atomic_fetch_add(&metrics->verbs[verb].failed, 1);
		return;
	}
	atomic_fetch_add(&metrics->verbs[verb].succeeded, 1);
	atomic_fetch_add(&metrics->verbs[verb].usec, (uint64_t)duration_usec);
	atomic_fetch_add(&metrics->verbs[verb].bytes, bytes);
}

static void render_processes(struct gcr_daemon *daemon, FILE *stream)
{
	unsigned int counts[GCR_STATES_COUNT] = {0};
	struct gcr_process **list = NULL;
	uint64_t held_bytes = 0;
	size_t count = 0;

	if (gcr_processes_list(daemon->processes, &list, &count) < 0)
		return;
	for (size_t i = 0; i < count; i++) {
		pthread_mutex_lock(&list[i]->lock);
		counts[list[i]->state]++;
		held_bytes += list[i]->held_bytes;
		pthread_mutex_unlock(&list[i]->lock);
	}
	gcr_processes_list_free(list, count);

	fprintf(stream, "# HELP gpucrfs_processes GPU processes by state\n"
			"# TYPE gpucrfs_processes gauge\n");
	for (size_t state = 0; state < GCR_STATE_GONE; state++)
		fprintf(stream, "gpucrfs_processes{state=\"%s\"} %u\n",
			gcr_state_name((enum gcr_state)state), counts[state]);
	fprintf(stream,
		"# HELP gpucrfs_held_bytes VRAM contents held for frozen processes\n"
		"# TYPE gpucrfs_held_bytes gauge\ngpucrfs_held_bytes %" PRIu64 "\n",
		held_bytes);
}

static void render_store(struct gcr_daemon *daemon, FILE *stream)
{
	struct gcr_store_figures figures;

	gcr_store_figures(daemon->store, &figures);
	fprintf(stream,
		"# HELP gpucrfs_store_bytes what the store may hold\n"
		"# TYPE gpucrfs_store_bytes gauge\ngpucrfs_store_bytes %" PRIu64 "\n",
		figures.size_bytes);
	fprintf(stream,
		"# HELP gpucrfs_store_used_bytes what it holds, the pool included\n"
		"# TYPE gpucrfs_store_used_bytes gauge\ngpucrfs_store_used_bytes %" PRIu64 "\n",
		figures.used_bytes);
	fprintf(stream,
		"# HELP gpucrfs_store_free_bytes what is free of it\n"
		"# TYPE gpucrfs_store_free_bytes gauge\ngpucrfs_store_free_bytes %" PRIu64 "\n",
		figures.free_bytes);
	fprintf(stream,
		"# HELP gpucrfs_store_survives_restart 1 if it outlives the daemon\n"
		"# TYPE gpucrfs_store_survives_restart gauge\n"
		"gpucrfs_store_survives_restart %d\n",
		figures.survives_restart);
	fprintf(stream,
		"# HELP gpucrfs_kept_bytes what is kept of processes that run again\n"
		"# TYPE gpucrfs_kept_bytes gauge\ngpucrfs_kept_bytes %" PRIu64 "\n",
		figures.kept_bytes);
	fprintf(stream,
		"# HELP gpucrfs_pool_bytes what may be kept ready for running processes\n"
		"# TYPE gpucrfs_pool_bytes gauge\ngpucrfs_pool_bytes %" PRIu64 "\n",
		daemon->options.pool_bytes);
	fprintf(stream,
		"# HELP gpucrfs_pool_used_bytes what is kept ready\n"
		"# TYPE gpucrfs_pool_used_bytes gauge\ngpucrfs_pool_used_bytes %" PRIu64 "\n",
		figures.pool_bytes);
}

void gcr_metrics_render(struct gcr_daemon *daemon, FILE *stream)
{
	struct gcr_metrics *metrics = daemon->metrics;

	render_processes(daemon, stream);
	render_store(daemon, stream);
	fprintf(stream, "# HELP gpucrfs_verbs_total verbs that have ended, one per process\n"
			"# TYPE gpucrfs_verbs_total counter\n");
	for (size_t verb = 0; verb < GCR_VERB_CANCEL; verb++) {
		const char *name = gcr_verb_name((enum gcr_verb)verb);

		fprintf(stream, "gpucrfs_verbs_total{verb=\"%s\",result=\"ok\"} %" PRIu64 "\n",
			name, atomic_load(&metrics->verbs[verb].succeeded));
		fprintf(stream, "gpucrfs_verbs_total{verb=\"%s\",result=\"failed\"} %" PRIu64 "\n",
			name, atomic_load(&metrics->verbs[verb].failed));
	}
	fprintf(stream, "# HELP gpucrfs_verb_seconds_total time taken by verbs that succeeded\n"
			"# TYPE gpucrfs_verb_seconds_total counter\n");
	for (size_t verb = 0; verb < GCR_VERB_CANCEL; verb++)
		fprintf(stream, "gpucrfs_verb_seconds_total{verb=\"%s\"} %.6f\n",
			gcr_verb_name((enum gcr_verb)verb),
			(double)atomic_load(&metrics->verbs[verb].usec) / 1e6);
	fprintf(stream, "# HELP gpucrfs_verb_bytes_total bytes moved by verbs that succeeded\n"
			"# TYPE gpucrfs_verb_bytes_total counter\n");
	for (size_t verb = 0; verb < GCR_VERB_CANCEL; verb++)
		fprintf(stream, "gpucrfs_verb_bytes_total{verb=\"%s\"} %" PRIu64 "\n",
			gcr_verb_name((enum gcr_verb)verb),
			atomic_load(&metrics->verbs[verb].bytes));
}
