/* SPDX-License-Identifier: MIT */
/* Queries and caches the properties of each GPU that the memory functions need. */
#include "backend/preload/memory/device.h"

#include <pthread.h>
#include <string.h>

#include "backend/preload/gate/driver_error.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/base/listener.h"
#ifdef GCR_HIP
#include "backend/rocm/adapt.h"
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gcr_device devices[GCR_GPUS_MAX];
static bool known[GCR_GPUS_MAX];

static bool attribute(CUdevice_attribute which, int ordinal)
{
	int value = 0;

	return GCR_REAL(cuDeviceGetAttribute) &&
	       GCR_REAL(cuDeviceGetAttribute)(&value, which, ordinal) == CUDA_SUCCESS && value;
}

static CUresult ask_uuid(int ordinal, uint8_t ret_uuid[GCR_UUID_BYTES])
{
	CUresult result;
	CUuuid uuid;

	if (!GCR_REAL(cuDeviceGetUuid_v2))
		return CUDA_ERROR_NOT_FOUND;
	result = GCR_REAL(cuDeviceGetUuid_v2)(&uuid, ordinal);
	if (result == CUDA_SUCCESS)
		memcpy(ret_uuid, uuid.bytes, GCR_UUID_BYTES);
	return result;
}

/*
 * Does the driver have the functions used here? Drivers before CUDA 10.2 lack cuMemCreate, those
 * before 11.0 cuMemRetain...: 570 has all functions, so this check also stands for those that are
 * not named.
 */
static bool has_functions(void)
{
	return GCR_REAL(cuMemCreate) && GCR_REAL(cuMemRelease) && GCR_REAL(cuMemAddressReserve) &&
	       GCR_REAL(cuMemAddressFree) && GCR_REAL(cuMemMap) && GCR_REAL(cuMemUnmap) &&
	       GCR_REAL(cuMemSetAccess) && GCR_REAL(cuMemExportToShareableHandle) &&
	       GCR_REAL(cuMemImportFromShareableHandle);
}

const struct gcr_device *gcr_device_get(int ordinal)
{
	struct gcr_device device = {0};

	if (ordinal < 0 || ordinal >= GCR_GPUS_MAX)
		return NULL;
	if (__atomic_load_n(&known[ordinal], __ATOMIC_ACQUIRE))
		return &devices[ordinal];
	if (ask_uuid(ordinal, device.uuid) != CUDA_SUCCESS)
		return NULL;
	device.exportable =
		has_functions() &&
		attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal) &&
		attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ordinal);
	device.rdma =
		attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, ordinal);
	pthread_mutex_lock(&lock);
	if (!known[ordinal])
		devices[ordinal] = device;
	__atomic_store_n(&known[ordinal], true, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return &devices[ordinal];
}

void gcr_device_use(int ordinal)
{
#ifdef GCR_HIP
	GCR_REAL(cuCtxSetCurrent)(gcr_hip_context(ordinal));
#endif
}

int gcr_device_refresh(struct gcr_error *error)
{
	uint8_t uuid[GCR_UUID_BYTES];

	for (int i = 0; i < GCR_GPUS_MAX; i++) {
		CUresult result;

		if (!__atomic_load_n(&known[i], __ATOMIC_ACQUIRE))
			continue;
		result = ask_uuid(i, uuid);
		/* With the old UUID the next freeze would look for the memory on the former GPU. */
		if (result != CUDA_SUCCESS)
			return gcr_driver_failed(error, "cuDeviceGetUuid", result);
		memcpy(devices[i].uuid, uuid, sizeof(uuid));
	}
	return 0;
}

static void forget(void)
{
	pthread_mutex_init(&lock, NULL);
	memset(known, 0, sizeof(known));
}

GCR_LISTEN(fork, forget);
