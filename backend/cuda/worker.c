/* SPDX-License-Identifier: MIT */
/*
 * gpucr-worker UUID: the only one of us with a context on that GPU, and so with VRAM. It ends
 * when the daemon closes its socket, and everything it holds goes with it.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/driver.h"
#include "backend/cuda/serve.h"
#include "lib/clock.h"

struct worker {
	struct gcr_driver driver;
	uint8_t uuid[GCR_UUID_BYTES];
	CUdevice device;
	bool has_context;
	CUmemGenericAllocationHandle *reserved;
	size_t reserved_count;
};

static int parse_uuid(const char *text, uint8_t ret_uuid[GCR_UUID_BYTES])
{
	if (strspn(text, "0123456789abcdef") != 2 * GCR_UUID_BYTES || text[2 * GCR_UUID_BYTES])
		return -EINVAL;
	for (size_t i = 0; i < GCR_UUID_BYTES; i++) {
		char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};

		ret_uuid[i] = (uint8_t)strtoul(digits, NULL, 16);
	}
	return 0;
}

static int open_gpu(struct worker *worker, struct gcr_error *error)
{
	const struct gcr_driver *driver = &worker->driver;
	CUcontext context;
	int r;

	r = gcr_driver_open(&worker->driver, error);
	if (r < 0)
		return r;
	r = gcr_driver_find(driver, worker->uuid, &worker->device, error);
	if (r < 0)
		return r;
	r = gcr_driver_check(driver, driver->cuDevicePrimaryCtxRetain(&context, worker->device),
			     "cuDevicePrimaryCtxRetain", error);
	if (r < 0)
		return r;
	worker->has_context = true;
	return gcr_driver_check(driver, driver->cuCtxSetCurrent(context), "cuCtxSetCurrent", error);
}

static CUresult release(struct worker *worker)
{
	CUresult first = CUDA_SUCCESS;

	while (worker->reserved_count > 0) {
		CUresult result =
			worker->driver.cuMemRelease(worker->reserved[--worker->reserved_count]);

		if (first == CUDA_SUCCESS)
			first = result;
	}
	return first;
}

static void close_gpu(struct worker *worker)
{
	release(worker);
	free(worker->reserved);
	if (worker->has_context)
		worker->driver.cuDevicePrimaryCtxRelease_v2(worker->device);
}

/* Physical memory without an address: all that a reservation is for. */
static CUresult create(const struct worker *worker, uint64_t bytes,
		       CUmemGenericAllocationHandle *ret_handle)
{
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = worker->device},
	};
	size_t granularity, rounded;
	CUresult result;

	result = worker->driver.cuMemGetAllocationGranularity(&granularity, &properties,
							      CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (result != CUDA_SUCCESS)
		return result;
	if (__builtin_add_overflow(bytes, granularity - 1, &rounded))
		return CUDA_ERROR_OUT_OF_MEMORY;
	rounded -= rounded % granularity;
	return worker->driver.cuMemCreate(ret_handle, rounded, &properties, 0);
}

static CUresult reserve(struct worker *worker, uint64_t bytes)
{
	CUmemGenericAllocationHandle *longer;
	CUresult result;

	if (bytes == 0)
		return CUDA_SUCCESS;
	longer = reallocarray(worker->reserved, worker->reserved_count + 1, sizeof(*longer));
	if (!longer)
		return CUDA_ERROR_OUT_OF_MEMORY;
	worker->reserved = longer;
	result = create(worker, bytes, &longer[worker->reserved_count]);
	if (result == CUDA_SUCCESS)
		worker->reserved_count++;
	return result;
}

static void handle(const struct gcr_message *request, struct gcr_result *result, void *data)
{
	struct worker *worker = data;
	struct gcr_reserve_request asked;
	CUresult driver_result;
	struct gcr_error error;
	int64_t start_usec = gcr_clock_usec();
	const char *call;

	switch (request->header.type) {
	case GCR_MESSAGE_RESERVE:
		gcr_message_payload(request, &asked, sizeof(asked));
		call = "cuMemCreate";
		driver_result = reserve(worker, asked.bytes);
		break;
	case GCR_MESSAGE_RELEASE:
		call = "cuMemRelease";
		driver_result = release(worker);
		break;
	default:
		gcr_error_set(&error, EOPNOTSUPP, "gpucr-worker does not know this request");
		gcr_serve_fail(result, CUDA_SUCCESS, &error);
		return;
	}
	result->duration_usec = (uint64_t)(gcr_clock_usec() - start_usec);
	if (gcr_driver_check(&worker->driver, driver_result, call, &error) < 0)
		gcr_serve_fail(result, driver_result, &error);
}

/* Without NVML only a context tells how much memory is free, and we have one here. */
static void complete(struct gcr_gpus_reply *reply, void *data)
{
	const struct worker *worker = data;
	size_t free_bytes, total_bytes;

	if (worker->driver.cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS)
		return;
	for (uint32_t i = 0; i < reply->gpus_count; i++) {
		struct gcr_gpu_info *gpu = &reply->gpus[i];

		if (memcmp(gpu->uuid, worker->uuid, sizeof(gpu->uuid)) != 0)
			continue;
		gpu->total_bytes = total_bytes;
		gpu->free_bytes = free_bytes;
		gpu->used_bytes = total_bytes - free_bytes;
		gpu->flags |= GCR_GPU_MEMORY;
	}
}

int main(int argc, char **argv)
{
	struct gcr_error error = {0};
	struct worker worker = {0};

	if (argc != 2 || parse_uuid(argv[1], worker.uuid) < 0) {
		fprintf(stderr, "usage: gpucr-worker UUID (32 hexadecimal digits)\n");
		return 2;
	}
	open_gpu(&worker, &error);
	if (gcr_serve_hello(&worker.driver, &error) < 0)
		fprintf(stderr, "gpucr-worker: only gpucrfs starts this program\n");
	else if (!error.number)
		gcr_serve(&worker.driver, handle, complete, &worker);
	close_gpu(&worker);
	return error.number ? 1 : 0;
}
