/* SPDX-License-Identifier: MIT */
/*
 * libnvidia-ml.so.1 of the simulator: the same shared state, read-only. Needs no cuInit and does
 * not make the caller a GPU process.
 */
#include "backend/cuda/nvml_api.h"
#include "backend/sim/shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;

nvmlReturn_t nvmlInit_v2(void)
{
	int r;

	pthread_mutex_lock(&init_lock);
	r = users ? 0 : shared_attach();
	if (!r)
		users++;
	pthread_mutex_unlock(&init_lock);
	return r ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t result = NVML_SUCCESS;

	pthread_mutex_lock(&init_lock);
	if (!users)
		result = NVML_ERROR_UNINITIALIZED;
	else if (!--users)
		shared_detach();
	pthread_mutex_unlock(&init_lock);
	return result;
}

static bool initialized(void)
{
	bool yes;

	pthread_mutex_lock(&init_lock);
	yes = users > 0;
	pthread_mutex_unlock(&init_lock);
	return yes;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS:
		return "Success";
	case NVML_ERROR_UNINITIALIZED:
		return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT:
		return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED:
		return "Not Supported";
	case NVML_ERROR_NOT_FOUND:
		return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE:
		return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED:
		return "Driver Not Loaded";
	default:
		return "Unknown Error";
	}
}

static nvmlReturn_t text_copy(char *to, unsigned length, const char *from)
{
	if (!to)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(from) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(to, from, strlen(from) + 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	return initialized() ? text_copy(version, length, "580.159.04") : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
	if (!initialized())
		return NVML_ERROR_UNINITIALIZED;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = shared->gpu_count;
	return NVML_SUCCESS;
}

/*
 * A handle is the address of the GPU's element in this array; handles stay valid across a shutdown
 * and a new initialisation.
 */
static char handles[SIM_MAX_GPUS];

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	if (!initialized())
		return NVML_ERROR_UNINITIALIZED;
	if (!device || index >= shared->gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = (nvmlDevice_t)&handles[index];
	return NVML_SUCCESS;
}

static nvmlReturn_t gpu_of(nvmlDevice_t device, unsigned *ret_gpu)
{
	if (!initialized())
		return NVML_ERROR_UNINITIALIZED;
	for (unsigned i = 0; i < shared->gpu_count; i++)
		if ((nvmlDevice_t)&handles[i] == device) {
			*ret_gpu = i;
			return NVML_SUCCESS;
		}
	return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
	char text[NVML_DEVICE_UUID_BUFFER_SIZE] = "GPU-";
	size_t at = 4;
	unsigned gpu;
	nvmlReturn_t result = gpu_of(device, &gpu);

	if (result)
		return result;
	for (unsigned i = 0; i < 16; i++) {
		snprintf(text + at, sizeof(text) - at, "%02x", shared->gpus[gpu].uuid[i]);
		at += 2;
		if (i == 3 || i == 5 || i == 7 || i == 9)
			text[at++] = '-';
	}
	return text_copy(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
	unsigned gpu;
	nvmlReturn_t result = gpu_of(device, &gpu);

	return result ? result : text_copy(name, length, shared->gpus[gpu].name);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *number)
{
	unsigned gpu;
	nvmlReturn_t result = gpu_of(device, &gpu);

	if (!result && !number)
		result = NVML_ERROR_INVALID_ARGUMENT;
	if (!result)
		*number = gpu;
	return result;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	unsigned gpu;
	nvmlReturn_t result = gpu_of(device, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	/* Same as in device.c. */
	*major = 9;
	*minor = 0;
	return NVML_SUCCESS;
}

static nvmlReturn_t memory_info(nvmlDevice_t device, uint64_t *total, uint64_t *used)
{
	unsigned gpu;
	nvmlReturn_t result = gpu_of(device, &gpu);

	if (result)
		return result;
	shared_lock();
	shared_reclaim();
	*used = shared_gpu_used_bytes(gpu);
	*total = shared->gpus[gpu].capacity_bytes;
	shared_unlock();
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	uint64_t total, used;
	nvmlReturn_t result = memory ? memory_info(device, &total, &used)
				     : NVML_ERROR_INVALID_ARGUMENT;

	if (!result)
		*memory = (nvmlMemory_t){.total = total, .free = total - used, .used = used};
	return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	uint64_t total, used;
	nvmlReturn_t result = memory && memory->version == nvmlMemory_v2
				      ? memory_info(device, &total, &used)
				      : NVML_ERROR_INVALID_ARGUMENT;

	if (!result) {
		memory->total = total;
		memory->reserved = 0;
		memory->free = total - used;
		memory->used = used;
	}
	return result;
}

/* Adds an entry, which is only counted if there is no room for it. */
static void list_process(nvmlProcessInfo_t *infos, unsigned room, unsigned *found, unsigned pid,
			 uint64_t used)
{
	if (infos && *found < room)
		infos[*found] = (nvmlProcessInfo_t){.pid = pid,
						    .usedGpuMemory = used,
						    .gpuInstanceId = ~0u,
						    .computeInstanceId = ~0u};
	++*found;
}

/* Lists processes of others, which are not there otherwise: no process has such an id. */
static void list_others(nvmlProcessInfo_t *infos, unsigned room, unsigned *found)
{
	const char *others = getenv("GPUCR_SIM_OTHERS");
	unsigned long count = others ? strtoul(others, NULL, 10) : 0;

	for (unsigned i = 0; i < count; i++)
		list_process(infos, room, found, (1u << 30) + i, 1 << 20);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
						     nvmlProcessInfo_t *infos)
{
	const char *unlisted = getenv("GPUCR_SIM_UNLISTED");
	unsigned gpu, found = 0;
	bool is_container;
	nvmlReturn_t result = gpu_of(device, &gpu);

	if (result)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (unlisted && strtoul(unlisted, NULL, 10) == gpu)
		return NVML_ERROR_UNKNOWN;
	is_container = getenv("GPUCR_SIM_CONTAINER");
	list_others(infos, *count, &found);
	shared_lock();
	shared_reclaim();
	for (unsigned i = 0; i < SIM_MAX_PROCESSES && !is_container; i++) {
		const struct shared_process *process = &shared->processes[i];

		/* A process without a context, such as a checkpointed one, is not listed. */
		if (!process->pid || !process->context_bytes[gpu] ||
		    !shared_process_running(process))
			continue;
		list_process(infos, *count, &found, (unsigned)process->pid,
			     shared_process_used_bytes(i, gpu));
	}
	shared_unlock();
	result = found > (infos ? *count : 0) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
	*count = found;
	return result;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
	unsigned gpu;
	nvmlReturn_t result = gpu_of(device, &gpu);

	if (!result && !mode)
		result = NVML_ERROR_INVALID_ARGUMENT;
	if (!result)
		*mode = NVML_COMPUTEMODE_DEFAULT;
	return result;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	const char *mig = getenv("GPUCR_SIM_MIG");
	unsigned gpu;
	nvmlReturn_t result = gpu_of(device, &gpu);

	if (!result && (!current || !pending))
		result = NVML_ERROR_INVALID_ARGUMENT;
	if (!result)
		*current = *pending = mig && *mig == '1' ? NVML_DEVICE_MIG_ENABLE
							 : NVML_DEVICE_MIG_DISABLE;
	return result;
}
