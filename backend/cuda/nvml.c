/* SPDX-License-Identifier: MIT */
/* libnvidia-ml.so.1, loaded on first use and kept for the helper's life. One thread. */
#include "backend/cuda/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/nvml_api.h"
#include "lib/cleanup.h"
#include "lib/gpu_list.h"

/* Linux has no more processes than this (PID_MAX_LIMIT), so no list of a GPU is longer. */
#define LISTED_MAX (4u << 20)

#define NVML_CALLS(X)                         \
	X(nvmlInit_v2)                        \
	X(nvmlSystemGetDriverVersion)         \
	X(nvmlDeviceGetCount_v2)              \
	X(nvmlDeviceGetHandleByIndex_v2)      \
	X(nvmlDeviceGetUUID)                  \
	X(nvmlDeviceGetName)                  \
	X(nvmlDeviceGetMinorNumber)           \
	X(nvmlDeviceGetMemoryInfo)            \
	X(nvmlDeviceGetMemoryInfo_v2)         \
	X(nvmlDeviceGetMigMode)               \
	X(nvmlDeviceGetCudaComputeCapability) \
	X(nvmlDeviceGetComputeRunningProcesses_v3)

/*
 * The functions of NVML; NULL: the installed library lacks the function. The newest of them came
 * with driver 510; all others are older than the oldest supported driver.
 */
static struct {
#define NVML_FIELD(name) __typeof__(name) *name;
	NVML_CALLS(NVML_FIELD)
#undef NVML_FIELD
	bool tried;
	bool ready;
} nvml;

static const struct {
	const char *name;
	size_t offset;
} calls[] = {
#define NVML_CALL(name) {#name, offsetof(__typeof__(nvml), name)},
	NVML_CALLS(NVML_CALL)
#undef NVML_CALL
};

/*
 * Loads NVML, trying only once: a driver that is installed later is found by a new helper process.
 */
static bool load(void)
{
	void *library;

	if (nvml.tried)
		return nvml.ready;
	nvml.tried = true;
	library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return false;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(calls); i++) {
		void *symbol = dlsym(library, calls[i].name);

		memcpy((char *)&nvml + calls[i].offset, &symbol, sizeof(symbol));
	}
	nvml.ready = nvml.nvmlInit_v2 && nvml.nvmlDeviceGetCount_v2 &&
		     nvml.nvmlDeviceGetHandleByIndex_v2 && nvml.nvmlDeviceGetUUID &&
		     nvml.nvmlInit_v2() == NVML_SUCCESS;
	return nvml.ready;
}

int gcr_nvml_driver_version(char ret_version[GCR_NAME_BYTES])
{
	if (!load() || !nvml.nvmlSystemGetDriverVersion)
		return -ENOENT;
	if (nvml.nvmlSystemGetDriverVersion(ret_version, GCR_NAME_BYTES) != NVML_SUCCESS)
		return -EIO;
	return 0;
}

/* Parses "GPU-6f1c2d3e-..." or the bare digits and dashes. 0 or -errno. */
static int parse_uuid(const char *text, uint8_t ret_uuid[GCR_UUID_BYTES])
{
	size_t count = 0;

	if (strncmp(text, "GPU-", 4) == 0)
		text += 4;
	while (*text) {
		unsigned int byte;

		if (*text == '-') {
			text++;
			continue;
		}
		if (count == GCR_UUID_BYTES || sscanf(text, "%2x", &byte) != 1 || !text[1])
			return -EINVAL;
		ret_uuid[count++] = (uint8_t)byte;
		text += 2;
	}
	return count == GCR_UUID_BYTES ? 0 : -EINVAL;
}

static void read_memory(nvmlDevice_t device, struct gcr_gpu_info *gpu)
{
	nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
	nvmlMemory_t old;

	/* Version 2 does not count the driver's own reserve as used; nvidia-smi does not either. */
	if (nvml.nvmlDeviceGetMemoryInfo_v2 &&
	    nvml.nvmlDeviceGetMemoryInfo_v2(device, &memory) == NVML_SUCCESS) {
		gpu->total_bytes = memory.total;
		gpu->free_bytes = memory.free;
		gpu->used_bytes = memory.used;
		gpu->flags |= GCR_GPU_MEMORY;
	} else if (nvml.nvmlDeviceGetMemoryInfo &&
		   nvml.nvmlDeviceGetMemoryInfo(device, &old) == NVML_SUCCESS) {
		gpu->total_bytes = old.total;
		gpu->free_bytes = old.free;
		gpu->used_bytes = old.used;
		gpu->flags |= GCR_GPU_MEMORY;
	}
}

/* Gets all processes of a GPU, however many there are: to be freed. NULL: NVML does not say. */
static nvmlProcessInfo_t *list_processes(nvmlDevice_t device, unsigned int *ret_count)
{
	if (!nvml.nvmlDeviceGetComputeRunningProcesses_v3)
		return NULL;
	for (unsigned int room = GCR_GPU_PROCESSES_MAX; room <= LISTED_MAX; room *= 2) {
		_cleanup_free_ nvmlProcessInfo_t *list = calloc(room, sizeof(*list));
		unsigned int count = room;
		nvmlReturn_t result;

		if (!list)
			return NULL;
		result = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list);
		/* No process has memory on a GPU that has fallen off the bus. */
		if (result == NVML_ERROR_GPU_IS_LOST)
			count = 0;
		else if (result == NVML_ERROR_INSUFFICIENT_SIZE)
			continue;
		else if (result != NVML_SUCCESS)
			return NULL;
		*ret_count = count < room ? count : room;
		return TAKE_PTR(list);
	}
	return NULL;
}

static void read_processes(nvmlDevice_t device, uint32_t index, struct gcr_gpus_reply *reply,
			   int32_t asked_pid)
{
	unsigned int count;
	_cleanup_free_ nvmlProcessInfo_t *list = list_processes(device, &count);

	if (!list)
		return;
	reply->gpus[index].flags |= GCR_GPU_PROCESSES;
	for (unsigned int i = 0; i < count; i++) {
		struct gcr_gpu_process process = {.pid = (int32_t)list[i].pid, .gpu = index};

		if (list[i].usedGpuMemory != (unsigned long long)NVML_VALUE_NOT_AVAILABLE)
			process.bytes = list[i].usedGpuMemory;
		gcr_gpu_list_add(reply, &process, asked_pid);
	}
}

/*
 * Reads the constant facts about GPU @index into @gpu, and its handle. They are read once, since a
 * helper is short-lived.
 */
static int read_identity(unsigned int index, nvmlDevice_t *ret_device, struct gcr_gpu_info *gpu)
{
	static struct {
		nvmlDevice_t device; /* NULL: not read yet */
		struct gcr_gpu_info gpu;
	} known[GCR_GPUS_MAX];
	char uuid[GCR_NAME_BYTES] = "";
	nvmlDevice_t device;
	unsigned int minor;
	int capability[2];

	if (index < GCR_GPUS_MAX && known[index].device) {
		*ret_device = known[index].device;
		*gpu = known[index].gpu;
		return 0;
	}
	memset(gpu, 0, sizeof(*gpu));
	gpu->minor = -1;
	if (nvml.nvmlDeviceGetHandleByIndex_v2(index, &device) != NVML_SUCCESS ||
	    nvml.nvmlDeviceGetUUID(device, uuid, sizeof(uuid)) != NVML_SUCCESS ||
	    parse_uuid(uuid, gpu->uuid) < 0)
		return -EIO;
	if (nvml.nvmlDeviceGetName)
		nvml.nvmlDeviceGetName(device, gpu->name, sizeof(gpu->name));
	if (nvml.nvmlDeviceGetMinorNumber &&
	    nvml.nvmlDeviceGetMinorNumber(device, &minor) == NVML_SUCCESS)
		gpu->minor = (int32_t)minor;
	if (nvml.nvmlDeviceGetCudaComputeCapability &&
	    nvml.nvmlDeviceGetCudaComputeCapability(device, &capability[0], &capability[1]) ==
		    NVML_SUCCESS) {
		gpu->capability_major = (uint16_t)capability[0];
		gpu->capability_minor = (uint16_t)capability[1];
	}
	if (index < GCR_GPUS_MAX) {
		known[index].device = device;
		known[index].gpu = *gpu;
	}
	*ret_device = device;
	return 0;
}

static int read_gpu(unsigned int index, struct gcr_gpus_reply *reply, int32_t asked_pid)
{
	struct gcr_gpu_info *gpu = &reply->gpus[reply->gpus_count];
	unsigned int mig, mig_pending;
	nvmlDevice_t device;
	int r;

	r = read_identity(index, &device, gpu);
	if (r < 0)
		return r;
	if (nvml.nvmlDeviceGetMigMode &&
	    nvml.nvmlDeviceGetMigMode(device, &mig, &mig_pending) == NVML_SUCCESS &&
	    mig == NVML_DEVICE_MIG_ENABLE)
		gpu->flags |= GCR_GPU_MIG;
	read_memory(device, gpu);
	read_processes(device, reply->gpus_count, reply, asked_pid);
	reply->gpus_count++;
	return 0;
}

int gcr_nvml_list(struct gcr_gpus_reply *ret_reply, int32_t asked_pid)
{
	unsigned int count;

	if (!load())
		return -ENOENT;
	if (nvml.nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS)
		return -EIO;
	ret_reply->gpus_count = 0;
	ret_reply->processes_count = 0;
	/* A GPU that has fallen off the bus is not listed; the others are. */
	for (unsigned int i = 0; i < count && ret_reply->gpus_count < GCR_GPUS_MAX; i++)
		read_gpu(i, ret_reply, asked_pid);
	return 0;
}
