/* SPDX-License-Identifier: MIT */
/*
 * The preflight for HIP: finds uses of the GPU that a freeze would break, or that would keep
 * accessing memory after its removal. Programs that use ROCm's lower library (libhsa-runtime64)
 * directly cannot be distinguished, because HIP itself uses that library.
 */
#include "backend/rocm/preflight.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/procfs.h"

#define GRAPHICS_WHY "memory shared with graphics does not come back"
#define GRAPHICS_DO  "only programs that do not use graphics on the GPU can be frozen"
#define VIDEO_WHY    "nobody has shown that a video session comes back"
#define VIDEO_DO     "run it without that library"
#define TOOL_WHY                                                                                 \
	"a debugger or profiler stands between the program and the GPU, with queues and memory " \
	"of its own"
#define TOOL_DO "run it without that tool"

#define DMABUF "/dmabuf:"

/*
 * The preload library keeps its descriptors of GPU memory, which are dma-bufs, at high numbers, to
 * avoid the range of select(2), or near the limit; see fs/process/children.c.
 */
#define LOWEST_KEPT 200

const struct gcr_obstacle gcr_hip_obstacles[] = {
	{GCR_OBSTACLE_OPEN, "/dev/infiniband/uverbs", 0,
	 "a network card may write to GPU memory, which after a thaw is other memory at the same "
	 "address",
	 "close its RDMA connections (RCCL: NCCL_IB_DISABLE=1)"},
	{GCR_OBSTACLE_OPEN, "/dev/dri/card", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_OBSTACLE_OPEN, "anon_inode:kfd_smi_ev", 0,
	 "events of the GPU are lost while it is frozen", "end what monitors the GPU in it"},

	{GCR_OBSTACLE_MAPPED, "libvulkan_radeon.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_OBSTACLE_MAPPED, "amdvlk64.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_OBSTACLE_MAPPED, "radeonsi_dri.so", 0, GRAPHICS_WHY, GRAPHICS_DO},
	{GCR_OBSTACLE_MAPPED, "radeonsi_drv_video.so", 0, VIDEO_WHY, VIDEO_DO},
	{GCR_OBSTACLE_MAPPED, "librocdecode.so", 0, VIDEO_WHY, VIDEO_DO},
	/*
	 * Libraries that such tools load into the program. libroctracer64, librocprofiler-register
	 * and librocprofiler-sdk are also loaded in programs that are not being observed.
	 */
	{GCR_OBSTACLE_MAPPED, "librocm-debug-agent.so", 0, TOOL_WHY, TOOL_DO},
	{GCR_OBSTACLE_MAPPED, "librocprofiler-sdk-tool.so", 0, TOOL_WHY, TOOL_DO},
	{GCR_OBSTACLE_MAPPED, "librocprofiler_tool.so", 0, TOOL_WHY, TOOL_DO},
	{GCR_OBSTACLE_MAPPED, "librocprof-sys-dl.so", 0, TOOL_WHY, TOOL_DO},
};
const size_t gcr_hip_obstacles_count = GCR_ARRAY_SIZE(gcr_hip_obstacles);

/*
 * Refuses a process that was started with HSA_TOOLS_LIB: ROCm's run time loads every library named
 * there, and passes all calls and queues to them. -EOPNOTSUPP.
 */
static int check_environment(const struct gcr_look *look)
{
	_cleanup_free_ char *tools = NULL;
	int r = gcr_proc_environ(look->pid, "HSA_TOOLS_LIB", &tools);

	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (!*tools)
		return 0;
	return gcr_error_set(look->error, EOPNOTSUPP,
			     "process %d was started with HSA_TOOLS_LIB=%.64s: " TOOL_WHY
			     "; " TOOL_DO,
			     (int)look->pid, tools);
}

/*
 * Refuses a dma-buf that is not the preload library's: it is the program's, and may be shared with
 * another process. -EOPNOTSUPP.
 */
static int check_export(int fd, const char *target, void *data)
{
	const struct gcr_look *look = data;

	if (fd >= LOWEST_KEPT || strncmp(target, DMABUF, strlen(DMABUF)) != 0)
		return 0;
	return gcr_error_set(look->error, EOPNOTSUPP,
			     "process %d has open " DMABUF
			     " (descriptor %d): GPU memory may be exported as a dma-buf, whose "
			     "users would not notice that it moved; close the dma-buf descriptors "
			     "first",
			     (int)look->pid, fd);
}

int gcr_hip_preflight(pid_t pid, const char *device_directory, const char *driver_version,
		      struct gcr_error *error)
{
	_cleanup_(gcr_look_finish) struct gcr_look look = {
		.pid = pid,
		.device_directory = device_directory,
		.obstacles = gcr_hip_obstacles,
		.obstacles_count = gcr_hip_obstacles_count,
		.if_stopped = "its preload library could not answer",
		.error = error,
	};
	int r = gcr_look_at_process(&look);

	if (r == 0)
		r = gcr_proc_each_link(look.pid, check_export, &look);
	if (r == 0)
		r = check_environment(&look);
	return gcr_look_explain(r, &look);
}
