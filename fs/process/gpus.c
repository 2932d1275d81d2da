/* SPDX-License-Identifier: MIT */
/*
 * The table of GPUs and the thread that refreshes it. gpus->lock is a leaf; callbacks run with no
 * lock held. The thread keeps its helpers while readers come, and releases them after the idle time
 * of the workers.
 */
#include "fs/process/gpus.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "fs/helper/helper.h"
#include "fs/process/vendor.h"
#include "fs/store/record.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/gpu_list.h"
#include "lib/lock.h"
#include "lib/manifest.h"
#include "lib/procfs.h"

#define FRESH_USEC	  (100 * GCR_USEC_PER_MSEC)
#define READER_WAIT_USEC  (300 * GCR_USEC_PER_MSEC)
#define START_WAIT_USEC	  (30 * GCR_USEC_PER_SEC)
#define QUERY_WAIT_USEC	  (5 * GCR_USEC_PER_SEC)
/* After a failed query, readers get the present figures at once for this long. */
#define FAILED_PAUSE_USEC (5 * GCR_USEC_PER_SEC)

/* Each device's vendor and class, in hexadecimal (Documentation/ABI/testing/sysfs-bus-pci). */
#define PCI_DEVICES	  "/sys/bus/pci/devices"
#define PCI_CLASS_DISPLAY 0x03 /* include/linux/pci_ids.h, PCI_BASE_CLASS_DISPLAY */

struct reader {
	void (*ready)(void *data);
	void *data;
	int64_t until_usec;
	struct reader *next;
};

struct gcr_gpus {
	struct gcr_daemon *daemon;
	pthread_t asker;  /* queries helpers; may block for long */
	pthread_t waiter; /* releases readers whose time is up */

	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool stopping;
	bool asking;			      /* a query is wanted or under way */
	int64_t expired_usec;		      /* replies to earlier queries are out of date */
	struct reader *readers, *last_reader; /* ordered by until_usec */
	struct gcr_gpus_reply reply;	      /* all parts together */
	struct gcr_gpus_part {
		int64_t known_usec; /* when `reply` was requested, monotonic */
		/* When the last query failed; 0: none, or the last one succeeded. */
		int64_t failed_usec;
		uint32_t first; /* index of its first GPU in the whole table */
		struct gcr_gpus_reply reply;
	} parts[GCR_BACKENDS_COUNT]; /* by the vendor's index */
};

/* Appends one vendor's part to those before it, up to the maximum sizes. Lock held. */
static void append_locked(struct gcr_gpus *gpus, struct gcr_gpus_part *part)
{
	struct gcr_gpus_reply *all = &gpus->reply;
	const struct gcr_gpus_reply *reply = &part->reply;

	part->first = all->gpus_count;
	for (uint32_t i = 0; i < reply->gpus_count && all->gpus_count < GCR_GPUS_MAX; i++)
		all->gpus[all->gpus_count++] = reply->gpus[i];
	for (uint32_t i = 0; i < reply->processes_count; i++) {
		struct gcr_gpu_process process = reply->processes[i];

		process.gpu += part->first;
		if (process.gpu < all->gpus_count)
			gcr_gpu_list_add(all, &process, 0);
	}
}

/* Joins the parts of all vendors to one table. Lock held. */
static void join_locked(struct gcr_gpus *gpus)
{
	gpus->reply.gpus_count = gpus->reply.processes_count = 0;
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		if (gpus->daemon->vendors[i].is_here)
			append_locked(gpus, &gpus->parts[i]);
}

/* Has the last query of this part failed recently? Lock held. */
static bool is_pausing_locked(const struct gcr_gpus_part *part, int64_t now_usec)
{
	return part->failed_usec && now_usec - part->failed_usec <= FAILED_PAUSE_USEC;
}

/*
 * Does any part need a query, because it is expired or, if @most_usec is not 0, older than that?
 * Parts whose last query has just failed do not count. Lock held.
 */
static bool is_due_locked(const struct gcr_gpus *gpus, int64_t most_usec)
{
	int64_t now_usec = gcr_clock_usec();

	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++) {
		const struct gcr_gpus_part *part = &gpus->parts[i];

		if (gpus->daemon->vendors[i].is_here && !is_pausing_locked(part, now_usec) &&
		    (part->known_usec <= gpus->expired_usec ||
		     (most_usec && now_usec - part->known_usec > most_usec)))
			return true;
	}
	return false;
}

/* Stores a reply to a query of @asked_usec, unless there is a later one. Lock held. */
static void keep_locked(struct gcr_gpus *gpus, const struct gcr_vendor *vendor,
			const struct gcr_gpus_reply *reply, int64_t asked_usec)
{
	struct gcr_gpus_part *part = &gpus->parts[vendor->index];

	part->failed_usec = 0;
	if (asked_usec < part->known_usec)
		return;
	part->reply = *reply;
	part->known_usec = asked_usec;
	join_locked(gpus);
}

/*
 * Calls back the readers that need not wait any longer, in order. Called with the lock held, which
 * is released during the callbacks.
 */
static void release_readers_locked(struct gcr_gpus *gpus, bool all)
{
	int64_t now_usec = gcr_clock_usec();
	struct reader **link = &gpus->readers;
	struct reader *due = gpus->readers;

	while (*link && (all || (*link)->until_usec <= now_usec))
		link = &(*link)->next;
	if (link == &gpus->readers)
		return;
	gpus->readers = *link;
	if (!gpus->readers)
		gpus->last_reader = NULL;
	*link = NULL;
	pthread_mutex_unlock(&gpus->lock);
	while (due) {
		struct reader *reader = due;

		due = reader->next;
		reader->ready(reader->data);
		free(reader);
	}
	pthread_mutex_lock(&gpus->lock);
}

static void *let_readers_go(void *data)
{
	struct gcr_gpus *gpus = data;

	pthread_mutex_lock(&gpus->lock);
	while (!gpus->stopping) {
		release_readers_locked(gpus, !gpus->asking);
		if (gpus->stopping)
			break;
		/* A reader may have come while the query was ending: then no query is under way. */
		if (!gpus->readers)
			pthread_cond_wait(&gpus->changed, &gpus->lock);
		else if (gpus->asking)
			gcr_cond_wait_until(&gpus->changed, &gpus->lock, gpus->readers->until_usec);
	}
	release_readers_locked(gpus, true);
	pthread_mutex_unlock(&gpus->lock);
	return NULL;
}

/* Makes one query. *helper is kept for the next one; NULL after a failure. */
static int ask(const struct gcr_vendor *vendor, struct gcr_helper **helper, int64_t start_wait_usec,
	       struct gcr_gpus_reply *reply, struct gcr_error *error)
{
	bool is_new = !*helper;
	int result = 0;

	if (is_new)
		result = gcr_helpers_take_control(vendor->helpers, start_wait_usec, -1, helper,
						  error);
	if (!result)
		result = gcr_helper_request(*helper, GCR_MESSAGE_QUERY, NULL, 0, error);
	if (!result) {
		result = gcr_helper_gpus(*helper, QUERY_WAIT_USEC, -1, reply);
		if (result < 0)
			gcr_error_set(error, -result, "the helper did not answer: %s",
				      strerror(-result));
	}
	if (!result && reply->error)
		result = gcr_error_set(error, reply->error, "%s", reply->words);
	if (result < 0 && *helper) {
		gcr_helper_kill(*helper);
		gcr_helper_put(TAKE_PTR(*helper));
	}
	/* A kept helper may have died long ago: retry with a new one. */
	if (result == -EPIPE && !is_new)
		return ask(vendor, helper, start_wait_usec, reply, error);
	return result;
}

/* Queries all vendors, one after the other; helpers that answer are kept, failed vendors pause. */
static void ask_all(struct gcr_gpus *gpus, struct gcr_helper *helpers[GCR_BACKENDS_COUNT],
		    struct gcr_gpus_reply *reply)
{
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++) {
		const struct gcr_vendor *vendor = &gpus->daemon->vendors[i];
		int64_t asked_usec = gcr_clock_usec();
		struct gcr_error error;
		bool is_pausing;
		int result;

		pthread_mutex_lock(&gpus->lock);
		is_pausing = is_pausing_locked(&gpus->parts[i], asked_usec);
		pthread_mutex_unlock(&gpus->lock);
		if (!vendor->is_here || is_pausing)
			continue;
		result = ask(vendor, &helpers[i], QUERY_WAIT_USEC, reply, &error);
		if (result < 0)
			gcr_log(LOG_WARNING, 0, "the GPUs cannot be asked: %s", error.words);
		pthread_mutex_lock(&gpus->lock);
		if (result < 0)
			gpus->parts[i].failed_usec = gcr_clock_usec();
		else
			keep_locked(gpus, vendor, reply, asked_usec);
		pthread_mutex_unlock(&gpus->lock);
	}
}

static void put_all(struct gcr_helper *helpers[GCR_BACKENDS_COUNT])
{
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		gcr_helper_put(TAKE_PTR(helpers[i]));
}

static void *refresh(void *data)
{
	struct gcr_gpus *gpus = data;
	int64_t idle_usec = (int64_t)gpus->daemon->options.worker_idle * GCR_USEC_PER_SEC;
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	struct gcr_helper *helpers[GCR_BACKENDS_COUNT] = {NULL};
	bool has_helpers = false;
	int64_t used_usec = 0;

	pthread_mutex_lock(&gpus->lock);
	while (!gpus->stopping && reply) {
		if (!gpus->asking) {
			if (!has_helpers) {
				pthread_cond_wait(&gpus->changed, &gpus->lock);
			} else if (gcr_clock_usec() >= used_usec + idle_usec) {
				pthread_mutex_unlock(&gpus->lock);
				put_all(helpers);
				has_helpers = false;
				pthread_mutex_lock(&gpus->lock);
			} else {
				gcr_cond_wait_until(&gpus->changed, &gpus->lock,
						    used_usec + idle_usec);
			}
			continue;
		}
		pthread_mutex_unlock(&gpus->lock);
		ask_all(gpus, helpers, reply);
		has_helpers = true;
		used_usec = gcr_clock_usec();
		pthread_mutex_lock(&gpus->lock);
		/* Figures that expired during the query are queried again. */
		gpus->asking = gpus->readers && is_due_locked(gpus, 0);
		pthread_cond_broadcast(&gpus->changed);
	}
	pthread_mutex_unlock(&gpus->lock);
	put_all(helpers);
	return NULL;
}

/* Makes the first query of one vendor. -ENODEV: the vendor has no GPU here. */
static int find_vendor(struct gcr_gpus *gpus, struct gcr_vendor *vendor, struct gcr_error *error)
{
	struct gcr_gpus_part *part = &gpus->parts[vendor->index];
	struct gcr_helper *helper = NULL;
	int result;

	part->known_usec = gcr_clock_usec();
	result = ask(vendor, &helper, START_WAIT_USEC, &part->reply, error);
	gcr_helper_put(helper);
	if (!result && !part->reply.gpus_count)
		result = gcr_error_set(error, ENODEV, "the driver shows no GPU");
	vendor->is_here = !result;
	return result;
}

/* Is a query worthwhile? Not without a device file, nor in the simulator unless configured. */
static bool may_be_here(const struct gcr_daemon *daemon, const struct gcr_vendor *vendor)
{
	const char *simulated = getenv("GPUCR_SIM_HIP_GPUS");
	_cleanup_free_ char *path = NULL;

	if (!vendor->backend->needs_device)
		return true;
	if (daemon->options.simulator)
		return simulated && *simulated && strcmp(simulated, "0") != 0;
	return asprintf(&path, "%s/%s", daemon->device_directory,
			vendor->backend->compute_device) >= 0 &&
	       access(path, F_OK) == 0;
}

static bool read_number(const char *path, unsigned int *ret_number)
{
	_cleanup_fclose_ FILE *file = fopen(path, "re");

	return file && fscanf(file, "%x", ret_number) == 1;
}

/* Is there a PCI card of this vendor, whatever its driver reports? */
static bool has_card(const struct gcr_vendor *vendor)
{
	_cleanup_closedir_ DIR *directory = opendir(PCI_DEVICES);
	const struct dirent *entry;

	while (directory && (entry = readdir(directory))) {
		unsigned int maker = 0, class = 0;
		char path[sizeof(PCI_DEVICES) + 280];

		snprintf(path, sizeof(path), PCI_DEVICES "/%s/vendor", entry->d_name);
		if (!read_number(path, &maker) || maker != vendor->backend->pci_vendor)
			continue;
		snprintf(path, sizeof(path), PCI_DEVICES "/%s/class", entry->d_name);
		if (read_number(path, &class) && class >> 16 == PCI_CLASS_DISPLAY)
			return true;
	}
	return false;
}

static void say_absent(const struct gcr_daemon *daemon, const struct gcr_vendor *vendor, int result,
		       const struct gcr_error *error)
{
	bool may_come = result == -ENODEV && !daemon->options.simulator && has_card(vendor);

	gcr_log(result == -ENODEV && !may_come ? LOG_INFO : LOG_WARNING, 0,
		"no GPU of %s is served: %s%s", vendor->backend->vendor, error->words,
		may_come ? "; there is one: start gpucrfs again when its driver is ready" : "");
}

static int is_of_absent(const struct gcr_record *record, void *data)
{
	_cleanup_close_ int pidfd = -1;

	return !gcr_vendor_of_engine(data, record->engine)->is_here &&
	       gcr_proc_open(record->pid, record->start_ticks, &pidfd) == 0;
}

/*
 * Finds the vendors that are present; 0 if there is any. Fails if the first vendor's driver is
 * present and fails, as it does for a moment while a machine starts, and if a process is frozen on
 * a vendor that is absent: the service manager then tries again.
 */
static int find_vendors(struct gcr_gpus *gpus, struct gcr_error *error)
{
	struct gcr_daemon *daemon = gpus->daemon;
	struct gcr_error own[GCR_BACKENDS_COUNT];
	int found[GCR_BACKENDS_COUNT] = {0};
	int result = -ENODEV;
	bool is_any = false;

	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++) {
		struct gcr_vendor *vendor = &daemon->vendors[i];

		if (!may_be_here(daemon, vendor))
			continue;
		own[i] = (struct gcr_error){0};
		found[i] = find_vendor(gpus, vendor, &own[i]);
		is_any |= !found[i];
		if (found[i] < 0 &&
		    (!error->number || (result == -ENODEV && found[i] != -ENODEV))) {
			result = found[i];
			*error = own[i];
		}
		if (found[i] < 0 && found[i] != -ENODEV && !vendor->backend->needs_device)
			return result;
	}
	if (!is_any)
		return result;
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		if (found[i] < 0)
			say_absent(daemon, &daemon->vendors[i], found[i], &own[i]);
	if (gcr_record_each(daemon->runtime_fd, is_of_absent, NULL, daemon) == 1)
		return gcr_error_set(error, EIO,
				     "a process is frozen that used a GPU of a vendor whose GPUs "
				     "are not there");
	return 0;
}

int gcr_gpus_create(struct gcr_daemon *daemon, struct gcr_gpus **ret_gpus, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_gpus *gpus = calloc(1, sizeof(*gpus));
	int result;

	if (!gpus)
		return gcr_error_set(error, ENOMEM, "out of memory");
	gpus->daemon = daemon;
	*error = (struct gcr_error){0};
	result = find_vendors(gpus, error);
	if (result < 0)
		return result;
	join_locked(gpus);
	pthread_mutex_init(&gpus->lock, NULL);
	pthread_cond_init(&gpus->changed, NULL);
	result = pthread_create(&gpus->asker, NULL, refresh, gpus);
	if (result)
		return gcr_error_set(error, result, "cannot start a thread");
	result = pthread_create(&gpus->waiter, NULL, let_readers_go, gpus);
	if (result) {
		pthread_mutex_lock(&gpus->lock);
		gpus->stopping = true;
		pthread_cond_broadcast(&gpus->changed);
		pthread_mutex_unlock(&gpus->lock);
		pthread_join(gpus->asker, NULL);
		return gcr_error_set(error, result, "cannot start a thread");
	}
	*ret_gpus = TAKE_PTR(gpus);
	return 0;
}

void gcr_gpus_destroy(struct gcr_gpus *gpus)
{
	if (!gpus)
		return;
	pthread_mutex_lock(&gpus->lock);
	gpus->stopping = true;
	pthread_cond_broadcast(&gpus->changed);
	pthread_mutex_unlock(&gpus->lock);
	pthread_join(gpus->asker, NULL);
	pthread_join(gpus->waiter, NULL);
	pthread_cond_destroy(&gpus->changed);
	pthread_mutex_destroy(&gpus->lock);
	free(gpus);
}

void gcr_gpus_when_fresh(struct gcr_gpus *gpus, void (*ready)(void *data), void *data)
{
	struct reader *reader = NULL;

	pthread_mutex_lock(&gpus->lock);
	if (!gpus->stopping && is_due_locked(gpus, FRESH_USEC))
		reader = calloc(1, sizeof(*reader));
	if (reader) {
		*reader = (struct reader){.ready = ready,
					  .data = data,
					  .until_usec = gcr_clock_usec() + READER_WAIT_USEC};
		/* The threads have been woken for earlier readers, whose deadlines are no later. */
		if (!gpus->readers || !gpus->asking)
			pthread_cond_broadcast(&gpus->changed);
		if (gpus->last_reader)
			gpus->last_reader->next = reader;
		else
			gpus->readers = reader;
		gpus->last_reader = reader;
		gpus->asking = true;
	}
	pthread_mutex_unlock(&gpus->lock);
	if (!reader)
		ready(data);
}

void gcr_gpus_snapshot(struct gcr_gpus *gpus, struct gcr_gpus_reply *ret_reply)
{
	pthread_mutex_lock(&gpus->lock);
	*ret_reply = gpus->reply;
	pthread_mutex_unlock(&gpus->lock);
}

struct gcr_vendor *gcr_gpus_vendor(struct gcr_gpus *gpus, unsigned int index)
{
	struct gcr_vendor *vendor = NULL;

	pthread_mutex_lock(&gpus->lock);
	for (size_t i = 0; i < GCR_BACKENDS_COUNT && index < gpus->reply.gpus_count; i++)
		if (gpus->daemon->vendors[i].is_here && index >= gpus->parts[i].first)
			vendor = &gpus->daemon->vendors[i];
	pthread_mutex_unlock(&gpus->lock);
	return vendor;
}

void gcr_gpus_update(struct gcr_gpus *gpus, const struct gcr_vendor *vendor,
		     const struct gcr_gpus_reply *reply, int64_t asked_usec)
{
	pthread_mutex_lock(&gpus->lock);
	keep_locked(gpus, vendor, reply, asked_usec);
	pthread_mutex_unlock(&gpus->lock);
}

int gcr_gpus_ask(struct gcr_gpus *gpus, const struct gcr_vendor *vendor, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_gpus_reply *reply = calloc(1, sizeof(*reply));
	int64_t asked_usec = gcr_clock_usec();
	struct gcr_helper *helper = NULL;
	int result;

	if (!reply)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = ask(vendor, &helper, QUERY_WAIT_USEC, reply, error);
	gcr_helper_put(helper);
	if (!result)
		gcr_gpus_update(gpus, vendor, reply, asked_usec);
	return result;
}

void gcr_gpus_expire(struct gcr_gpus *gpus)
{
	pthread_mutex_lock(&gpus->lock);
	gpus->expired_usec = gcr_clock_usec();
	pthread_mutex_unlock(&gpus->lock);
}

void gcr_gpu_describe(const struct gcr_backend *backend, const struct gcr_gpu_info *info,
		      struct gcr_manifest_gpu *gpu)
{
	memcpy(gpu->uuid, info->uuid, sizeof(gpu->uuid));
	memcpy(gpu->name, info->name, sizeof(gpu->name));
	gpu->memory_bytes = info->total_bytes;
	backend->format_architecture(info, gpu->compute_capability);
}

uint64_t gcr_gpus_process_bytes(struct gcr_gpus *gpus, pid_t pid)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&gpus->lock);
	for (uint32_t i = 0; i < gpus->reply.processes_count; i++)
		if (gpus->reply.processes[i].pid == pid)
			bytes += gpus->reply.processes[i].bytes;
	pthread_mutex_unlock(&gpus->lock);
	return bytes;
}

uint64_t gcr_host_bytes(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t gcr_gpu_most_bytes(const struct gcr_gpu_info *info)
{
	return info->flags & GCR_GPU_MEMORY ? info->total_bytes : gcr_host_bytes();
}

uint64_t gcr_gpus_bound(struct gcr_gpus *gpus, uint64_t bytes)
{
	uint64_t most_bytes = 0;

	pthread_mutex_lock(&gpus->lock);
	for (uint32_t i = 0; i < gpus->reply.gpus_count; i++)
		most_bytes += gcr_gpu_most_bytes(&gpus->reply.gpus[i]);
	pthread_mutex_unlock(&gpus->lock);
	return bytes < most_bytes ? bytes : most_bytes;
}

uint32_t gcr_gpus_process_mask(struct gcr_gpus *gpus, pid_t pid)
{
	uint32_t mask = 0;

	pthread_mutex_lock(&gpus->lock);
	for (uint32_t i = 0; i < gpus->reply.processes_count; i++)
		if (gpus->reply.processes[i].pid == pid)
			mask |= 1u << gpus->reply.processes[i].gpu;
	pthread_mutex_unlock(&gpus->lock);
	return mask;
}

unsigned int gcr_gpus_count(struct gcr_gpus *gpus)
{
	unsigned int count;

	pthread_mutex_lock(&gpus->lock);
	count = gpus->reply.gpus_count;
	pthread_mutex_unlock(&gpus->lock);
	return count;
}

int gcr_gpus_index(struct gcr_gpus *gpus, const uint8_t uuid[GCR_UUID_BYTES])
{
	int index = -ENODEV;

	pthread_mutex_lock(&gpus->lock);
	for (uint32_t i = 0; i < gpus->reply.gpus_count && index < 0; i++)
		if (!memcmp(gpus->reply.gpus[i].uuid, uuid, GCR_UUID_BYTES))
			index = (int)i;
	pthread_mutex_unlock(&gpus->lock);
	return index;
}
