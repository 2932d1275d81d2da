/* SPDX-License-Identifier: MIT */
/*
 * The preflight for CUDA: reads /proc/PID and refuses processes that could not be restored. Two
 * tables list the obstacles; the other checks concern the process as a whole (backend/look.c, and
 * MPS here). Managed memory is not checked: it cannot be seen from outside (every context maps
 * nvidia-uvm), and the driver itself refuses it without harm (CUDA_ERROR_NOT_SUPPORTED, measured).
 */
#include "backend/cuda/preflight.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
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

const struct gcr_obstacle gcr_cuda_obstacles[] = {
	/*
	 * Memory can be registered with a network card only through uverbs; libraries open rdma_cm
	 * and the rest of /dev/infiniband even if they then find no card.
	 */
	{GCR_OBSTACLE_OPEN, "/dev/infiniband/uverbs", 0,
	 "a network card may write to GPU memory, which after a thaw is other memory at the same "
	 "address",
	 "close its RDMA connections (NCCL: NCCL_IB_DISABLE=1)"},
	{GCR_OBSTACLE_OPEN, "/dev/gdrdrv", 0, "GDRCopy maps GPU memory by its physical address",
	 "run it without GDRCopy (NCCL_GDRCOPY_ENABLE=0, UCX_TLS=^gdr_copy)"},
	{GCR_OBSTACLE_DEVICE, "nvidia-fs", 0, "GPUDirect Storage writes to GPU memory by itself",
	 "close its cuFile driver, or set CUFILE_FORCE_COMPAT_MODE=true"},
	/*
	 * The link of a descriptor exported by cuMemGetHandleForAddressRange is "/dmabuf:"
	 * (580.159).
	 */
	{GCR_OBSTACLE_OPEN, "/dmabuf:", 0,
	 "GPU memory may be exported as a dma-buf, whose users would not notice that it moved",
	 "close the dma-buf descriptors first"},
	{GCR_OBSTACLE_OPEN, "/dev/dri/", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_OBSTACLE_DEVICE, "nvidia-modeset", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_OBSTACLE_DEVICE, "nvidia-caps-imex-channels/", 0,
	 "memory shared over an IMEX channel is in use by other machines",
	 "run it without fabric memory (NCCL_MNNVL_ENABLE=0)"},
	/*
	 * nvidia-cap1 and nvidia-cap2 are MIG's configuration and monitoring: NVML opens both in
	 * every process of root, also on GPUs without MIG (580.159). Access to instances begins
	 * with number 3.
	 */
	{GCR_OBSTACLE_DEVICE, "nvidia-caps/nvidia-cap", 3, MIG_WHY, MIG_DO},

	{GCR_OBSTACLE_MAPPED, "nvidia-cuda-mps-", 0, "it is a part of MPS itself",
	 "freeze programs, started without MPS, instead"},
	{GCR_OBSTACLE_MAPPED, "libGLX_nvidia.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_OBSTACLE_MAPPED, "libEGL_nvidia.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_OBSTACLE_MAPPED, "libnvidia-glcore.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_OBSTACLE_MAPPED, "libnvidia-eglcore.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_OBSTACLE_MAPPED, "libnvidia-glvkspirv.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_OBSTACLE_MAPPED, "libnvidia-vulkan-producer.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_OBSTACLE_MAPPED, "libnvcuvid.so", 0, VIDEO_WHY, VIDEO_DO},
	{GCR_OBSTACLE_MAPPED, "libnvidia-encode.so", 0, VIDEO_WHY, VIDEO_DO},
	{GCR_OBSTACLE_MAPPED, "libnvidia-opticalflow.so", 0, VIDEO_WHY, VIDEO_DO},
	{GCR_OBSTACLE_MAPPED, "libnvoptix.so", 0, VIDEO_WHY, VIDEO_DO},
};
const size_t gcr_cuda_obstacles_count = GCR_ARRAY_SIZE(gcr_cuda_obstacles);

/* Drivers, from `first` to `last`, that cannot checkpoint or are known to kill the target. */
static const struct bad_driver {
	const char *first;
	const char *last;
	const char *why;
} bad_drivers[] = {
	/* cuCheckpointProcess* came with CUDA 12.8, driver 570. */
	{"0", "569.9999.9999", "has no checkpoint interface; gpucrfs needs 570 or later"},
	/*
	 * github.com/NVIDIA/cuda-checkpoint/issues/58: cuCheckpointProcessLock jumps through a bad
	 * pointer inside the target, a service with many threads, and kills it with SIGSEGV.
	 */
	{"610.57.04", "610.57.04",
	 "is known to kill processes with many threads when it locks them; install another one"},
};

const struct gcr_obstacle *gcr_cuda_obstacle_find(const char *path, bool is_mapping,
						  const char *device_directory)
{
	return gcr_obstacle_find(gcr_cuda_obstacles, gcr_cuda_obstacles_count, path, is_mapping,
				 device_directory);
}

static int compare_numbers(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a;
	uint64_t right = *(const uint64_t *)b;

	return left < right ? -1 : left > right;
}

/* The relevant fields of a row of /proc/net/unix; only for SEQPACKET sockets. */
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

/* Is @path a name that the kernel chose: a NUL and five hexadecimal digits? */
static bool is_autobound(const char *path)
{
	return path[0] == '@' && strspn(path + 1, "0123456789abcdef") == 5 && path[6] == '\0';
}

struct unix_scan {
	bool client;   /* the process has a connected socket with a name from the kernel */
	bool listener; /* a control daemon listens in this network namespace */
};

static int scan_unix_sockets(const char *table, const struct gcr_look *look, struct unix_scan *scan)
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
		/* Only the control daemon has a socket of this second name beside "control". */
		if (row.listens && length > 19 &&
		    strcmp(row.path + length - 19, "/control_privileged") == 0)
			scan->listener = true;
	}
	return 0;
}

/*
 * A client of MPS looks like any other CUDA process except for two connected SEQPACKET sockets
 * whose names the kernel chose (580.159); /proc does not show their peers. A process with such a
 * socket is taken for a client if a control daemon listens in its network namespace or in that of
 * the checking process, or if its environment names a pipe directory (the control daemon may be in
 * a container of its own).
 */
static int check_mps(struct gcr_look *look)
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

static int check_environment(const struct gcr_look *look)
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
	_cleanup_(gcr_look_finish) struct gcr_look look = {
		.pid = pid,
		.device_directory = device_directory,
		.obstacles = gcr_cuda_obstacles,
		.obstacles_count = gcr_cuda_obstacles_count,
		.if_stopped = "the driver's call would wait for ever",
		.error = error,
	};
	int r;

	r = check_driver(driver_version, error);
	if (r == 0)
		r = gcr_look_at_process(&look);
	if (r == 0)
		r = check_environment(&look);
	if (r == 0)
		r = check_mps(&look);
	return gcr_look_explain(r, &look);
}
