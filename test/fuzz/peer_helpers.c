/* SPDX-License-Identifier: MIT */
/*
 * An implementation of fs/helper/helper.h without programs: each request is carried out at once.
 * Workers copy between memory files and the store, with digests, and reject a descriptor that is
 * not a memory file, as a driver rejects one that is not a handle. The driver's states are kept by
 * pid.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/helper/helper.h"
#include "fs/helper/receiver.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/digest.h"
#include "lib/extent.h"
#include "lib/lock.h"
#include "test/fuzz/fuzz.h"
#include "test/fuzz/peer.h"

#define PIDS_MAX   16
#define VRAM_BYTES (1ull << 30)
#define OWN_BYTES  (16ull << 20)

struct gcr_helper {
	struct gcr_helpers *helpers;
	enum gcr_helper_kind kind;
	unsigned int gpu;
	bool is_second, is_aside, is_dead;
	struct gcr_result result;
	int result_fds[GCR_MESSAGE_FDS_MAX];
	size_t result_fds_count;

	/* a worker's session */
	uint16_t session;
	struct gcr_session told;
	struct gcr_extent *extents;
	int *handles;
	int directory_fd, digests_fd;
};

struct gcr_helpers {
	struct gcr_helper *workers[PEER_GPUS][2]; /* workers that are in use */
	unsigned int ended;
	pthread_mutex_t lock;
	pthread_cond_t changed;
};

static struct driver_process {
	pid_t pid;
	unsigned int gpu;
	enum gcr_control_state state;
} driver[PIDS_MAX];
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;

void peer_gpu_uuid(unsigned int gpu, uint8_t ret_uuid[GCR_UUID_BYTES])
{
	memset(ret_uuid, 0x40 + (int)gpu, GCR_UUID_BYTES);
}

static struct driver_process *find_locked(pid_t pid)
{
	for (size_t i = 0; i < PIDS_MAX; i++)
		if (driver[i].pid == pid)
			return &driver[i];
	return NULL;
}

void peer_driver_add(pid_t pid, unsigned int gpu)
{
	struct driver_process *place;

	GCR_LOCK_SCOPE(&driver_lock);
	place = find_locked(0);
	CHECK(place);
	*place = (struct driver_process){.pid = pid, .gpu = gpu, .state = GCR_CONTROL_RUNNING};
}

void peer_driver_remove(pid_t pid)
{
	struct driver_process *place;

	GCR_LOCK_SCOPE(&driver_lock);
	place = find_locked(pid);
	if (place)
		place->pid = 0;
}

/* ---- the work of helpers ---- */

static void control(uint16_t type, const struct gcr_control_request *request,
		    struct gcr_result *result)
{
	static const struct {
		uint16_t type;
		enum gcr_control_state from, to;
	} steps[] = {
		{GCR_MESSAGE_LOCK, GCR_CONTROL_RUNNING, GCR_CONTROL_LOCKED},
		{GCR_MESSAGE_CHECKPOINT, GCR_CONTROL_LOCKED, GCR_CONTROL_CHECKPOINTED},
		{GCR_MESSAGE_RESTORE, GCR_CONTROL_CHECKPOINTED, GCR_CONTROL_LOCKED},
		{GCR_MESSAGE_UNLOCK, GCR_CONTROL_LOCKED, GCR_CONTROL_RUNNING},
	};
	struct driver_process *process;

	GCR_LOCK_SCOPE(&driver_lock);
	process = find_locked(request->pid);
	if (!process) {
		result->error = ESRCH;
		snprintf(result->words, sizeof(result->words), "the driver does not know it");
		return;
	}
	for (size_t i = 0; i < GCR_ARRAY_SIZE(steps); i++)
		if (steps[i].type == type && steps[i].from == process->state) {
			process->state = steps[i].to;
			result->state = process->state;
			return;
		}
	result->state = process->state;
	if (type != GCR_MESSAGE_STATE)
		result->error = EBUSY;
}

static void end_session(struct gcr_helper *helper)
{
	for (uint32_t i = 0; helper->handles && i < helper->told.count; i++)
		if (helper->handles[i] >= 0)
			close(helper->handles[i]);
	free(helper->handles);
	free(helper->extents);
	helper->handles = NULL;
	helper->extents = NULL;
	if (helper->session) {
		close(helper->directory_fd);
		close(helper->digests_fd);
	}
	helper->session = 0;
}

static int begin_session(struct gcr_helper *helper, uint16_t type, const void *payload,
			 const int *fds, size_t fds_count)
{
	struct gcr_error error;
	int result;

	if (helper->session || fds_count < 3)
		return -EBUSY;
	helper->told = *(const struct gcr_session *)payload;
	result = gcr_extents_read(fds[0], helper->told.count, &helper->extents, &error);
	if (result < 0)
		return result;
	helper->handles = malloc((helper->told.count + 1) * sizeof(int));
	CHECK(helper->handles);
	for (uint32_t i = 0; i < helper->told.count; i++)
		helper->handles[i] = -1;
	helper->directory_fd = fcntl(fds[1], F_DUPFD_CLOEXEC, 0);
	helper->digests_fd = fcntl(fds[2], F_DUPFD_CLOEXEC, 0);
	CHECK(helper->directory_fd >= 0 && helper->digests_fd >= 0);
	helper->session = type;
	return 0;
}

static bool is_vram(int fd, uint64_t bytes)
{
	struct stat stat;

	return fcntl(fd, F_GET_SEALS) >= 0 && !fstat(fd, &stat) && S_ISREG(stat.st_mode) &&
	       (uint64_t)stat.st_size >= bytes;
}

static int import(struct gcr_helper *helper, const struct gcr_range *range, const int *fds,
		  size_t fds_count)
{
	if (helper->session != GCR_MESSAGE_SESSION_OUT || fds_count != range->count ||
	    range->first > helper->told.count || range->count > helper->told.count - range->first)
		return -EPROTO;
	for (uint32_t i = 0; i < range->count; i++) {
		uint32_t at = range->first + i;

		if (helper->handles[at] >= 0 || !is_vram(fds[i], helper->extents[at].bytes))
			return -EINVAL;
		helper->handles[at] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
		CHECK(helper->handles[at] >= 0);
	}
	return 0;
}

static int create(struct gcr_helper *helper)
{
	if (helper->session != GCR_MESSAGE_SESSION_IN)
		return -EPROTO;
	for (uint32_t i = 0; i < helper->told.count; i++) {
		if (helper->extents[i].bytes > VRAM_BYTES)
			return -ENOMEM;
		if (helper->handles[i] < 0)
			helper->handles[i] = memfd_create("vram", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		CHECK(helper->handles[i] >= 0 &&
		      !ftruncate(helper->handles[i], (off_t)helper->extents[i].bytes));
	}
	return 0;
}

static int copy_one(struct gcr_helper *helper, uint32_t i, uint64_t *chunk)
{
	bool is_out = helper->session == GCR_MESSAGE_SESSION_OUT;
	static _Thread_local uint8_t bytes[GCR_CHUNK_BYTES];
	char name[GCR_EXTENT_NAME_BYTES];
	_cleanup_close_ int file = -1;
	int from, to;

	gcr_extent_name(&helper->extents[i], name);
	file = openat(helper->directory_fd, name, (is_out ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	if (file < 0 || helper->handles[i] < 0)
		return file < 0 ? -errno : -EINVAL;
	from = is_out ? helper->handles[i] : file;
	to = is_out ? file : helper->handles[i];
	for (uint64_t at = 0; at < helper->extents[i].bytes; at += sizeof(bytes), ++*chunk) {
		off_t place = (off_t)(GCR_DIGESTS_HEADER_BYTES + *chunk * GCR_DIGEST_BYTES);
		struct gcr_digest digest, known;

		if (pread(from, bytes, sizeof(bytes), (off_t)at) != sizeof(bytes))
			return -EIO;
		gcr_digest_of(bytes, sizeof(bytes), &digest);
		if (!is_out &&
		    (pread(helper->digests_fd, &known, sizeof(known), place) != sizeof(known) ||
		     (!gcr_digest_equal(&known, &digest) &&
		      !(helper->told.flags & GCR_SESSION_UNVERIFIED))))
			return -EIO;
		if (pwrite(to, bytes, sizeof(bytes), (off_t)at) != sizeof(bytes))
			return -errno;
		if (is_out &&
		    pwrite(helper->digests_fd, &digest, sizeof(digest), place) != sizeof(digest))
			return -errno;
	}
	helper->result.copied_bytes += helper->extents[i].bytes;
	return 0;
}

static int copy(struct gcr_helper *helper)
{
	uint64_t chunk = helper->told.first_chunk;
	int result = helper->session ? 0 : -EPROTO;

	for (uint32_t i = 0; i < helper->told.count && !result; i++)
		result = copy_one(helper, i, &chunk);
	return result;
}

static int export(struct gcr_helper *helper, const struct gcr_range *range)
{
	if (helper->session != GCR_MESSAGE_SESSION_IN || range->count > GCR_MESSAGE_FDS_MAX ||
	    range->first > helper->told.count || range->count > helper->told.count - range->first)
		return -EPROTO;
	for (uint32_t i = 0; i < range->count; i++) {
		int fd = fcntl(helper->handles[range->first + i], F_DUPFD_CLOEXEC, 0);

		CHECK(fd >= 0);
		helper->result_fds[helper->result_fds_count++] = fd;
	}
	return 0;
}

static int do_work(struct gcr_helper *helper, uint16_t type, const void *payload, const int *fds,
		   size_t fds_count)
{
	switch (type) {
	case GCR_MESSAGE_SESSION_OUT:
	case GCR_MESSAGE_SESSION_IN:
		return begin_session(helper, type, payload, fds, fds_count);
	case GCR_MESSAGE_IMPORT:
		return import(helper, payload, fds, fds_count);
	case GCR_MESSAGE_CREATE:
		return create(helper);
	case GCR_MESSAGE_COPY:
		return copy(helper);
	case GCR_MESSAGE_EXPORT:
		return export(helper, payload);
	case GCR_MESSAGE_END:
		end_session(helper);
		return 0;
	default: /* RESERVE, RELEASE, PIN, UNPIN, HALT, HALT_END */
		return 0;
	}
}

/* ---- fs/helper/helper.h ---- */

int gcr_helpers_create(const struct gcr_helpers_config *config, struct gcr_helpers **ret_helpers)
{
	struct gcr_helpers *helpers = calloc(1, sizeof(*helpers));

	(void)config;
	CHECK(helpers);
	pthread_mutex_init(&helpers->lock, NULL);
	pthread_cond_init(&helpers->changed, NULL);
	*ret_helpers = helpers;
	return 0;
}

void gcr_helpers_destroy(struct gcr_helpers *helpers)
{
	free(helpers);
}

void gcr_helpers_keep_spare(struct gcr_helpers *helpers, bool wanted)
{
	(void)helpers;
	(void)wanted;
}

static struct gcr_helper *make(struct gcr_helpers *helpers, enum gcr_helper_kind kind)
{
	struct gcr_helper *helper = calloc(1, sizeof(*helper));

	CHECK(helper);
	helper->helpers = helpers;
	helper->kind = kind;
	return helper;
}

int gcr_helpers_take_control(struct gcr_helpers *helpers, int64_t timeout_usec, int wake_fd,
			     struct gcr_helper **ret_helper, struct gcr_error *error)
{
	(void)timeout_usec;
	(void)wake_fd;
	(void)error;
	*ret_helper = make(helpers, GCR_HELPER_CONTROL);
	return 0;
}

int gcr_helpers_take_halt(struct gcr_helpers *helpers, struct gcr_helper **ret_helper,
			  struct gcr_error *error)
{
	(void)error;
	*ret_helper = make(helpers, GCR_HELPER_HALT);
	return 0;
}

static unsigned int gpu_of(const uint8_t uuid[GCR_UUID_BYTES])
{
	unsigned int gpu = uuid[0] - 0x40u;

	CHECK(gpu < PEER_GPUS);
	return gpu;
}

int gcr_helpers_take_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			    bool is_second, struct gcr_worker_wait *wait,
			    struct gcr_helper **ret_helper, struct gcr_error *error)
{
	unsigned int gpu = gpu_of(uuid);
	struct gcr_helper **slot = &helpers->workers[gpu][is_second];
	int64_t until_usec = wait->timeout_usec < 0 ? INT64_MAX
						    : gcr_clock_usec() + wait->timeout_usec;

	(void)error;
	GCR_LOCK_SCOPE(&helpers->lock);
	while (*slot) {
		struct pollfd wake = {.fd = wait->wake_fd, .events = POLLIN};

		if (wait->wake_fd >= 0 && poll(&wake, 1, 0) == 1)
			return -EINTR;
		if (wait->is_to_stop && wait->is_to_stop(wait->data))
			return -ECANCELED;
		if (gcr_clock_usec() >= until_usec)
			return -ETIMEDOUT;
		gcr_cond_wait_until(&helpers->changed, &helpers->lock,
				    gcr_clock_usec() + 10 * GCR_USEC_PER_MSEC);
	}
	*slot = make(helpers, GCR_HELPER_WORKER);
	(*slot)->gpu = gpu;
	(*slot)->is_second = is_second;
	*ret_helper = *slot;
	return 0;
}

void gcr_helper_set_user(struct gcr_helper *helper, pid_t pid)
{
	(void)helper;
	(void)pid;
}

static void leave_slot_locked(struct gcr_helper *helper)
{
	if (!helper->is_aside)
		helper->helpers->workers[helper->gpu][helper->is_second] = NULL;
	helper->is_aside = true;
	pthread_cond_broadcast(&helper->helpers->changed);
}

void gcr_helper_set_aside(struct gcr_helper *helper)
{
	GCR_LOCK_SCOPE(&helper->helpers->lock);
	leave_slot_locked(helper);
}

unsigned int gcr_helpers_users(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			       struct gcr_helper_user *ret_users, unsigned int most)
{
	(void)helpers;
	(void)uuid;
	(void)ret_users;
	(void)most;
	return 0;
}

static void drop_result(struct gcr_helper *helper)
{
	for (size_t i = 0; i < helper->result_fds_count; i++)
		close(helper->result_fds[i]);
	helper->result_fds_count = 0;
}

void gcr_helper_put_calling(struct gcr_helper *helper, int64_t usec)
{
	gcr_helper_put(helper);
}

void gcr_helper_put(struct gcr_helper *helper)
{
	struct gcr_helpers *helpers;

	if (!helper)
		return;
	helpers = helper->helpers;
	drop_result(helper);
	end_session(helper);
	if (helper->kind == GCR_HELPER_WORKER) {
		GCR_LOCK_SCOPE(&helpers->lock);
		helpers->ended += helper->is_dead;
		leave_slot_locked(helper);
	}
	free(helper);
}

int gcr_helper_find(const char *directories, const char *program, char **ret_path,
		    struct gcr_error *error)
{
	(void)directories;
	*ret_path = strdup(program);
	return *ret_path ? 0 : gcr_error_set(error, ENOMEM, "out of memory");
}

int gcr_helpers_program(const struct gcr_helpers *helpers, const char *name, char **ret_path,
			struct gcr_error *error)
{
	(void)helpers;
	return gcr_helper_find("", name, ret_path, error);
}

bool gcr_helpers_hello(struct gcr_helpers *helpers, struct gcr_hello *ret_hello)
{
	(void)helpers;
	*ret_hello = (struct gcr_hello){.api_version = 13000, .driver_version = "580.159.04"};
	return true;
}

bool gcr_helpers_owns(struct gcr_helpers *helpers, pid_t pid)
{
	(void)helpers;
	(void)pid;
	return false;
}

void gcr_helpers_start_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES])
{
	(void)helpers;
	(void)uuid;
}

pid_t gcr_helpers_idle_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			      bool is_second)
{
	unsigned int gpu = gpu_of(uuid);

	GCR_LOCK_SCOPE(&helpers->lock);
	return helpers->workers[gpu][is_second] ? 0 : getpid();
}

bool gcr_helpers_has_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			    bool is_second)
{
	(void)helpers;
	(void)uuid;
	return !is_second;
}

int gcr_helpers_borrow_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
			      bool is_second, struct gcr_helper **ret_helper)
{
	struct gcr_worker_wait wait = {.wake_fd = -1};
	struct gcr_error error;

	return gcr_helpers_take_worker(helpers, uuid, is_second, &wait, ret_helper, &error) < 0
		       ? -EAGAIN
		       : 0;
}

int gcr_helpers_take_idle_worker(struct gcr_helpers *helpers, const uint8_t uuid[GCR_UUID_BYTES],
				 bool is_second, uint64_t client, int64_t wait_usec,
				 struct gcr_helper **ret_helper)
{
	(void)client;
	(void)wait_usec;
	return gcr_helpers_borrow_worker(helpers, uuid, is_second, ret_helper);
}

unsigned int gcr_helpers_workers_ended(struct gcr_helpers *helpers)
{
	GCR_LOCK_SCOPE(&helpers->lock);
	return helpers->ended;
}

unsigned int gcr_helpers_workers(struct gcr_helpers *helpers)
{
	(void)helpers;
	return PEER_GPUS;
}

int gcr_helper_request_fds(struct gcr_helper *helper, uint16_t type, const void *payload,
			   size_t payload_bytes, const int *fds, size_t fds_count,
			   struct gcr_error *error)
{
	int result = 0;

	(void)payload_bytes;
	if (helper->is_dead)
		return gcr_error_set(error, EPIPE, "the helper is gone");
	drop_result(helper);
	helper->result = (struct gcr_result){0};
	if (type >= GCR_MESSAGE_STATE && type <= GCR_MESSAGE_UNLOCK)
		control(type, payload, &helper->result);
	else if (helper->kind == GCR_HELPER_WORKER)
		result = do_work(helper, type, payload, fds, fds_count);
	if (result < 0) {
		helper->result.error = -result;
		snprintf(helper->result.words, sizeof(helper->result.words), "request %u: %s", type,
			 strerror(-result));
	}
	return 0;
}

int gcr_helper_request(struct gcr_helper *helper, uint16_t type, const void *payload,
		       size_t payload_bytes, struct gcr_error *error)
{
	return gcr_helper_request_fds(helper, type, payload, payload_bytes, NULL, 0, error);
}

int gcr_helper_result_fds(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
			  struct gcr_result *ret_result, int ret_fds[GCR_MESSAGE_FDS_MAX],
			  size_t *ret_fds_count)
{
	(void)timeout_usec;
	(void)wake_fd;
	if (helper->is_dead)
		return -EPIPE;
	*ret_result = helper->result;
	memcpy(ret_fds, helper->result_fds, helper->result_fds_count * sizeof(int));
	*ret_fds_count = helper->result_fds_count;
	helper->result_fds_count = 0;
	return 0;
}

int gcr_helper_result(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
		      struct gcr_result *ret_result)
{
	(void)timeout_usec;
	(void)wake_fd;
	*ret_result = helper->result;
	return helper->is_dead ? -EPIPE : 0;
}

int gcr_helper_gpus(struct gcr_helper *helper, int64_t timeout_usec, int wake_fd,
		    struct gcr_gpus_reply *ret_reply)
{
	(void)timeout_usec;
	(void)wake_fd;
	if (helper->is_dead)
		return -EPIPE;
	*ret_reply = (struct gcr_gpus_reply){.gpus_count = PEER_GPUS};
	for (unsigned int i = 0; i < PEER_GPUS; i++) {
		struct gcr_gpu_info *gpu = &ret_reply->gpus[i];

		peer_gpu_uuid(i, gpu->uuid);
		gpu->minor = (int)i;
		gpu->flags = GCR_GPU_MEMORY | GCR_GPU_PROCESSES;
		gpu->total_bytes = VRAM_BYTES;
		gpu->free_bytes = VRAM_BYTES / 2;
		gpu->used_bytes = VRAM_BYTES / 2;
		snprintf(gpu->name, sizeof(gpu->name), "of a test");
	}
	GCR_LOCK_SCOPE(&driver_lock);
	for (size_t i = 0; i < PIDS_MAX; i++)
		if (driver[i].pid)
			ret_reply->processes[ret_reply->processes_count++] =
				(struct gcr_gpu_process){.pid = driver[i].pid,
							 .gpu = driver[i].gpu,
							 .bytes = OWN_BYTES};
	return 0;
}

void gcr_helper_kill(struct gcr_helper *helper)
{
	helper->is_dead = true;
	drop_result(helper);
	end_session(helper);
}

int gcr_helper_await_end(struct gcr_helper *helper, int64_t timeout_usec)
{
	(void)helper;
	(void)timeout_usec;
	return 0;
}

pid_t gcr_helper_pid(const struct gcr_helper *helper)
{
	(void)helper;
	return getpid();
}

/* ---- messages of the preload library ---- */

/* Receives directly: all descriptors of these programs are of files whose close does not block. */
int gcr_receiver_receive(int socket, int64_t timeout_usec, int wake_fd, bool awaits_handles,
			 struct gcr_message *ret_message)
{
	return gcr_message_receive(socket, timeout_usec, wake_fd, ret_message);
}

void gcr_receiver_close(int socket, struct gcr_quota_charge *charge)
{
	if (socket >= 0)
		close(socket);
}
