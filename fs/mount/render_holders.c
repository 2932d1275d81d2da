/* SPDX-License-Identifier: MIT */
/* Lines of the root's status, for root: which process's verb holds which resource of which GPU. */
#include "fs/mount/render.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "fs/engine/admission.h"
#include "fs/helper/helper.h"
#include "fs/job/operation.h"
#include "fs/process/gpus.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

/* The most entries that are shown for one GPU. */
#define HOLDERS_MOST 32

static const char *phase_of(struct gcr_daemon *daemon, pid_t pid)
{
	struct gcr_process *process;
	const char *phase = "-";

	if (!pid || gcr_processes_find(daemon->processes, pid, &process) < 0)
		return phase;
	pthread_mutex_lock(&process->lock);
	if (process->task)
		phase = atomic_load(&process->task->phase);
	pthread_mutex_unlock(&process->lock);
	gcr_process_unref(process);
	return phase;
}

/* Prints one entry: GPU:PID:PHASE:MICROSECONDS. */
static void print(struct gcr_daemon *daemon, unsigned int gpu, pid_t pid, int64_t since_usec,
		  FILE *stream)
{
	fprintf(stream, " %u:%d:%s:%" PRId64, gpu, (int)pid, phase_of(daemon, pid),
		gcr_clock_usec() - since_usec);
}

static unsigned int print_admissions(struct gcr_daemon *daemon, unsigned int gpu, bool are_needs,
				     FILE *stream)
{
	struct gcr_admission_holder holders[HOLDERS_MOST];
	unsigned int count = gcr_admission_holders(daemon->admission, gpu, holders, HOLDERS_MOST);
	unsigned int printed = 0;

	for (unsigned int i = 0; i < count; i++) {
		if (holders[i].is_need != are_needs)
			continue;
		print(daemon, gpu, holders[i].pid, holders[i].since_usec, stream);
		if (are_needs)
			fprintf(stream, ":%" PRIu64, holders[i].need_bytes);
		printed++;
	}
	return printed;
}

static unsigned int print_workers(struct gcr_daemon *daemon, unsigned int gpu, bool are_aside,
				  FILE *stream)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	const struct gcr_vendor *vendor = gcr_gpus_vendor(daemon->gpus, gpu);
	struct gcr_helper_user users[HOLDERS_MOST];
	unsigned int printed = 0;
	unsigned int count;

	if (!reply || !vendor)
		return 0;
	gcr_gpus_snapshot(daemon->gpus, reply);
	if (gpu >= reply->gpus_count)
		return 0;
	count = gcr_helpers_users(vendor->helpers, reply->gpus[gpu].uuid, users, HOLDERS_MOST);
	for (unsigned int i = 0; i < count; i++)
		if (users[i].pid && users[i].is_aside == are_aside) {
			print(daemon, gpu, users[i].pid, users[i].since_usec, stream);
			printed++;
		}
	return printed;
}

void gcr_render_holders(struct gcr_daemon *daemon, bool is_for_root, FILE *stream)
{
	static const struct {
		const char *key;
		unsigned int (*print)(struct gcr_daemon *, unsigned int, bool, FILE *);
		bool argument;
	} lines[] = {
		{"admissions", print_admissions, false},
		{"needs", print_admissions, true},
		{"workers", print_workers, false},
		{"workers_aside", print_workers, true},
	};
	unsigned int gpus_count = is_for_root ? gcr_gpus_count(daemon->gpus) : 0;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(lines); i++) {
		unsigned int count = 0;

		fputs(lines[i].key, stream);
		for (unsigned int gpu = 0; gpu < gpus_count; gpu++)
			count += lines[i].print(daemon, gpu, lines[i].argument, stream);
		fputs(count ? "\n" : " -\n", stream);
	}
}
