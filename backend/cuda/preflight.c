/* SPDX-License-Identifier: MIT */
/*
 * The preflight: reads /proc/PID and refuses what could not come back. Two tables say what is
 * looked for; all else is about the process as a whole (stopped, frozen, a thread, under MPS).
 * Managed memory is not looked for: it cannot be told from outside (every context maps
 * nvidia-uvm), and the driver itself refuses it without harm (CUDA_ERROR_NOT_SUPPORTED, measured).
 */
#include "backend/cuda/preflight.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/proc_cgroup.h"
#include "lib/procfs.h"

#define GRAPHICS_WHY "memory shared with graphics does not come back"
#define GRAPHICS_DO  "only programs that do not use graphics on the GPU can be frozen"
#define MIG_WHY	     "the driver cannot checkpoint a MIG instance"
#define MIG_DO	     "run it on a whole GPU (nvidia-smi -mig 0)"
#define MPS_WHY	     "the driver cannot checkpoint under MPS"
#define MPS_DO                                                                                \
	"start it with CUDA_MPS_PIPE_DIRECTORY naming an empty directory, or after stopping " \
	"nvidia-cuda-mps-control"
#define VIDEO_WHY "nobody has shown that a video or ray-tracing session comes back"
#define VIDEO_DO  "run it without that library"

const struct gcr_cuda_obstacle gcr_cuda_obstacles[] = {
	/*
	 * Memory is registered with a network card through uverbs alone; rdma_cm and the rest of
	 * /dev/infiniband are opened by libraries that then find no card.
	 */
	{GCR_CUDA_OPEN, "/dev/infiniband/uverbs", 0,
	 "a network card may write to GPU memory, which after a thaw is other memory at the same "
	 "address",
	 "close its RDMA connections (NCCL: NCCL_IB_DISABLE=1)"},
	{GCR_CUDA_OPEN, "/dev/gdrdrv", 0, "GDRCopy maps GPU memory by its physical address",
	 "run it without GDRCopy (NCCL_GDRCOPY_ENABLE=0, UCX_TLS=^gdr_copy)"},
	{GCR_CUDA_DEVICE, "nvidia-fs", 0, "GPUDirect Storage writes to GPU memory by itself",
	 "close its cuFile driver, or set CUFILE_FORCE_COMPAT_MODE=true"},
	/* What cuMemGetHandleForAddressRange exports reads "/dmabuf:" (580.159). */
	{GCR_CUDA_OPEN, "/dmabuf:", 0,
	 "GPU memory may be exported as a dma-buf, whose users would not notice that it moved",
	 "close the dma-buf descriptors first"},
	{GCR_CUDA_OPEN, "/dev/dri/", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_CUDA_DEVICE, "nvidia-modeset", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_CUDA_DEVICE, "nvidia-caps-imex-channels/", 0,
	 "memory shared over an IMEX channel is in use by other machines",
	 "run it without fabric memory (NCCL_MNNVL_ENABLE=0)"},
	/*
	 * nvidia-cap1 and nvidia-cap2 are MIG's configuration and monitoring: NVML opens both in
	 * every process of root, on GPUs without MIG too (580.159). Access to instances is 3 and
	 * up.
	 */
	{GCR_CUDA_DEVICE, "nvidia-caps/nvidia-cap", 3, MIG_WHY, MIG_DO},

	{GCR_CUDA_MAPPED, "nvidia-cuda-mps-", 0, "it is a part of MPS itself",
	 "freeze programs, started without MPS, instead"},
	{GCR_CUDA_MAPPED, "libGLX_nvidia.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_CUDA_MAPPED, "libEGL_nvidia.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_CUDA_MAPPED, "libnvidia-glcore.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_CUDA_MAPPED, "libnvidia-eglcore.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_CUDA_MAPPED, "libnvidia-glvkspirv.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_CUDA_MAPPED, "libnvidia-vulkan-producer.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_CUDA_MAPPED, "libnvcuvid.so", 0, VIDEO_WHY, VIDEO_DO},
	{GCR_CUDA_MAPPED, "libnvidia-encode.so", 0, VIDEO_WHY, VIDEO_DO},
	{GCR_CUDA_MAPPED, "libnvidia-opticalflow.so", 0, VIDEO_WHY, VIDEO_DO},
	{GCR_CUDA_MAPPED, "libnvoptix.so", 0, VIDEO_WHY, VIDEO_DO},
};
const size_t gcr_cuda_obstacles_count = GCR_ARRAY_SIZE(gcr_cuda_obstacles);

/* Drivers, from `first` to `last`, that cannot do it or that are known to kill the target. */
static const struct bad_driver {
	const char *first;
	const char *last;
	const char *why;
} bad_drivers[] = {
	/* cuCheckpointProcess* came with CUDA 12.8, driver 570. */
	{"0", "569.9999.9999", "has no checkpoint interface; gpucrfs needs 570 or later"},
	/*
	 * github.com/NVIDIA/cuda-checkpoint/issues/58: cuCheckpointProcessLock jumps through a bad
	 * pointer inside the target, a service with many threads, and ends it with SIGSEGV.
	 */
	{"610.57.04", "610.57.04",
	 "is known to kill processes with many threads when it locks them; install another one"},
};

const struct gcr_cuda_obstacle *gcr_cuda_obstacle_find(const char *path, bool is_mapping,
						       const char *device_directory)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	size_t directory_length = strlen(device_directory);
	const char *device = NULL;

	if (strncmp(path, device_directory, directory_length) == 0 && path[directory_length] == '/')
		device = path + directory_length + 1;
	for (size_t i = 0; i < gcr_cuda_obstacles_count; i++) {
		const struct gcr_cuda_obstacle *row = &gcr_cuda_obstacles[i];
		size_t length = strlen(row->prefix);
		const char *text = path;

		if (row->kind == GCR_CUDA_DEVICE)
			text = device;
		else if (row->kind == GCR_CUDA_MAPPED)
			text = is_mapping ? name : NULL;
		if (!text || strncmp(text, row->prefix, length) != 0)
			continue;
		if (row->first_number && strtoul(text + length, NULL, 10) < row->first_number)
			continue;
		return row;
	}
	return NULL;
}

/* One look at a process: what every step needs. */
struct look {
	pid_t pid;
	const char *device_directory;
	struct gcr_error *error;
	uint64_t *sockets; /* inode numbers of its sockets */
	size_t sockets_count;
};

static void free_look(struct look *look)
{
	free(look->sockets);
}

static int refuse_path(const struct look *look, const struct gcr_cuda_obstacle *row,
		       const char *path, const char *verb)
{
	return gcr_error_set(look->error, EOPNOTSUPP, "process %d %s %.96s: %s; %s", (int)look->pid,
			     verb, path, row->why, row->what_to_do);
}

static int remember_socket(struct look *look, uint64_t inode)
{
	/* grow by doubling: 0, 8, 16, 32, ... */
	if ((look->sockets_count & (look->sockets_count - 1)) == 0 &&
	    (look->sockets_count == 0 || look->sockets_count >= 8)) {
		size_t room = look->sockets_count ? look->sockets_count * 2 : 8;
		uint64_t *larger = reallocarray(look->sockets, room, sizeof(*larger));

		if (!larger)
			return -ENOMEM;
		look->sockets = larger;
	}
	look->sockets[look->sockets_count++] = inode;
	return 0;
}

static int look_at_file(const char *target, void *data)
{
	struct look *look = data;
	const struct gcr_cuda_obstacle *row =
		gcr_cuda_obstacle_find(target, false, look->device_directory);
	uint64_t inode;

	if (row)
		return refuse_path(look, row, target, "has open");
	if (sscanf(target, "socket:[%" SCNu64 "]", &inode) == 1)
		return remember_socket(look, inode);
	return 0;
}

static int look_at_mapping(const char *path, void *data)
{
	struct look *look = data;
	const struct gcr_cuda_obstacle *row =
		gcr_cuda_obstacle_find(path, true, look->device_directory);

	return row ? refuse_path(look, row, path, "has mapped") : 0;
}

/* -EACCES and -ESRCH without words yet get them. */
static int explain(int r, const struct look *look)
{
	if (r == -EACCES)
		return gcr_error_set(look->error, EACCES,
				     "process %d: /proc does not let us look; run the daemon as "
				     "root, or as the process's user",
				     (int)look->pid);
	if (r == -ESRCH)
		return gcr_error_set(look->error, ESRCH, "process %d has ended", (int)look->pid);
	if (r < 0 && r != -EOPNOTSUPP)
		return gcr_error_set(look->error, -r, "process %d: cannot read /proc: %s",
				     (int)look->pid, strerrordesc_np(-r));
	return r;
}

static int compare_numbers(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a;
	uint64_t right = *(const uint64_t *)b;

	return left < right ? -1 : left > right;
}

/* A row of /proc/net/unix that matters here: SEQPACKET sockets alone. */
struct unix_row {
	bool listens;
	bool connected;
	uint64_t inode;
	char path[128]; /* "" if there is none, '@' for the NUL of an abstract name */
};

static bool parse_unix_row(const char *line, struct unix_row *row)
{
	unsigned int flags;
	unsigned int type;
	unsigned int state;

	row->path[0] = '\0';
	if (sscanf(line, "%*[^:]: %*x %*x %x %x %x %" SCNu64 " %127[^\n]", &flags, &type, &state,
		   &row->inode, row->path) < 4)
		return false;
	row->listens = flags & 0x10000; /* __SO_ACCEPTCON */
	row->connected = state == 3;	/* SS_CONNECTED */
	return type == 5;		/* SOCK_SEQPACKET */
}

/* A name that the kernel chose: a NUL and five hexadecimal digits. */
static bool is_autobound(const char *path)
{
	return path[0] == '@' && strspn(path + 1, "0123456789abcdef") == 5 && path[6] == '\0';
}

struct unix_scan {
	bool client;   /* the process has a connected socket with a name from the kernel */
	bool listener; /* a control daemon listens in this network namespace */
};

static int scan_unix_sockets(const char *table, const struct look *look, struct unix_scan *scan)
{
	_cleanup_fclose_ FILE *file = fopen(table, "re");
	_cleanup_free_ char *line = NULL;
	size_t line_bytes = 0;

	/* no such table: no such sockets */
	if (!file)
		return errno == ENOENT || errno == ESRCH ? 0 : -errno;
	while (getline(&line, &line_bytes, file) >= 0) {
		struct unix_row row;
		size_t length;

		if (!parse_unix_row(line, &row))
			continue;
		length = strlen(row.path);
		if (row.connected && is_autobound(row.path) &&
		    bsearch(&row.inode, look->sockets, look->sockets_count, sizeof(row.inode),
			    compare_numbers))
			scan->client = true;
		/* The control daemon alone has a socket of this second name beside "control". */
		if (row.listens && length > 19 &&
		    strcmp(row.path + length - 19, "/control_privileged") == 0)
			scan->listener = true;
	}
	return 0;
}

/*
 * A client of MPS looks like any other CUDA process but for two connected SEQPACKET sockets that
 * the kernel named (580.159); whom they are connected to is not in /proc. With such a socket it is
 * taken for a client if a control daemon listens in its network namespace or in ours, or if its
 * environment names a pipe directory (the daemon may be in a container of its own).
 */
static int check_mps(struct look *look)
{
	struct unix_scan scan = {};
	_cleanup_free_ char *pipe_directory = NULL;
	char table[64];
	int r;

	if (look->sockets_count == 0)
		return 0;
	qsort(look->sockets, look->sockets_count, sizeof(*look->sockets), compare_numbers);
	snprintf(table, sizeof(table), "/proc/%d/net/unix", (int)look->pid);
	r = scan_unix_sockets(table, look, &scan);
	if (r < 0 || !scan.client)
		return r;
	r = scan_unix_sockets("/proc/self/net/unix", look, &scan);
	if (r < 0)
		return r;
	if (!scan.listener) {
		r = gcr_proc_environ(look->pid, "CUDA_MPS_PIPE_DIRECTORY", &pipe_directory);
		if (r < 0)
			return r == -ENOENT ? 0 : r;
	}
	return gcr_error_set(look->error, EOPNOTSUPP, "process %d is a client of MPS: %s; %s",
			     (int)look->pid, MPS_WHY, MPS_DO);
}

static int check_environment(const struct look *look)
{
	_cleanup_free_ char *devices = NULL;
	int r;

	r = gcr_proc_environ(look->pid, "CUDA_VISIBLE_DEVICES", &devices);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (!strstr(devices, "MIG-"))
		return 0;
	return gcr_error_set(look->error, EOPNOTSUPP,
			     "process %d was started with CUDA_VISIBLE_DEVICES=%.64s: %s; %s",
			     (int)look->pid, devices, MIG_WHY, MIG_DO);
}

/* A stopped thread is enough: the driver's own threads in the process have to run. */
static int check_running(const struct look *look)
{
	_cleanup_closedir_ DIR *tasks = NULL;
	struct gcr_proc_stat stat;
	char path[64];
	struct dirent *entry;
	int r;

	r = gcr_proc_stat(look->pid, &stat);
	if (r < 0)
		return r;
	if (stat.state == 'Z' || stat.state == 'X')
		return -ESRCH;
	snprintf(path, sizeof(path), "/proc/%d/task", (int)look->pid);
	tasks = opendir(path);
	if (!tasks)
		return errno == ENOENT ? -ESRCH : -errno;
	while ((entry = readdir(tasks))) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		if (gcr_proc_stat((pid_t)strtol(entry->d_name, NULL, 10), &stat) < 0)
			continue;
		if (stat.state == 'T')
			return gcr_error_set(look->error, EOPNOTSUPP,
					     "process %d is stopped: the driver's call would wait "
					     "for ever; continue it (kill -CONT %d)",
					     (int)look->pid, (int)look->pid);
		if (stat.state == 't')
			return gcr_error_set(look->error, EOPNOTSUPP,
					     "process %d is stopped by a debugger (its thread %s): "
					     "the driver's call would wait for ever; let it go on",
					     (int)look->pid, entry->d_name);
	}
	return 0;
}

static int check_cgroup(const struct look *look)
{
	_cleanup_free_ char *cgroup = NULL;
	int r;

	r = gcr_proc_cgroup_frozen(look->pid);
	if (r <= 0)
		return r;
	r = gcr_proc_cgroup(look->pid, &cgroup);
	return gcr_error_set(look->error, EOPNOTSUPP,
			     "process %d is in a frozen cgroup (%.96s): the driver's call would "
			     "wait for ever; thaw the cgroup first",
			     (int)look->pid, r < 0 ? "?" : cgroup);
}

static int check_thread(const struct look *look)
{
	struct gcr_proc_status status;
	int r;

	r = gcr_proc_status(look->pid, &status);
	if (r < 0 || status.thread_group == look->pid)
		return r;
	return gcr_error_set(look->error, EOPNOTSUPP,
			     "%d is a thread of process %d; freeze the process", (int)look->pid,
			     (int)status.thread_group);
}

struct version {
	unsigned int part[3];
};

static bool parse_version(const char *text, struct version *version)
{
	*version = (struct version){};
	return sscanf(text, "%4u.%4u.%4u", &version->part[0], &version->part[1],
		      &version->part[2]) >= 1;
}

static int compare_versions(const struct version *a, const struct version *b)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(a->part); i++)
		if (a->part[i] != b->part[i])
			return a->part[i] < b->part[i] ? -1 : 1;
	return 0;
}

static int check_driver(const char *text, struct gcr_error *error)
{
	struct version version;

	if (!text || !parse_version(text, &version))
		return 0;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(bad_drivers); i++) {
		struct version first;
		struct version last;

		parse_version(bad_drivers[i].first, &first);
		parse_version(bad_drivers[i].last, &last);
		if (compare_versions(&version, &first) >= 0 &&
		    compare_versions(&version, &last) <= 0)
			return gcr_error_set(error, EOPNOTSUPP, "driver %.32s %s", text,
					     bad_drivers[i].why);
	}
	return 0;
}

int gcr_cuda_preflight(pid_t pid, const char *device_directory, const char *driver_version,
		       struct gcr_error *error)
{
	_cleanup_(free_look) struct look look = {
		.pid = pid, .device_directory = device_directory, .error = error};
	int r;

	r = check_driver(driver_version, error);
	if (r == 0)
		r = check_thread(&look);
	if (r == 0)
		r = check_running(&look);
	if (r == 0)
		r = check_cgroup(&look);
	if (r == 0)
		r = gcr_proc_each_file(pid, look_at_file, &look);
	if (r == 0)
		r = gcr_proc_each_mapping(pid, look_at_mapping, &look);
	if (r == 0)
		r = check_environment(&look);
	if (r == 0)
		r = check_mps(&look);
	return explain(r, &look);
}
