/* SPDX-License-Identifier: MIT */
/*
 * gpucr-demo: buffers of each kind of memory: creation, release, expected contents, and actions
 * other than changing words.
 */
#include "tools/demo/demo.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

/* Maximum size of a segment of a VMM buffer; its bytes pass through the host when it is remade. */
#define SEGMENT_BYTES_MAX (UINT64_C(20) << 20)
#define SEGMENT_TICKS	  4 /* interval at which segments are remade */

const char *buffer_kind_name(const struct buffer *buffer)
{
	static const char *const names[] = {
		[BUFFER_DEVICE] = "device", [BUFFER_MANAGED] = "managed", [BUFFER_VMM] = "own-vmm",
		[BUFFER_PITCH] = "pitch",   [BUFFER_ASYNC] = "async",
	};

	return names[buffer->kind];
}

uint64_t part_words(const struct buffer *buffer, uint64_t part)
{
	uint64_t left = buffer->words - part * PART_WORDS;

	return left < PART_WORDS ? left : PART_WORDS;
}

uint64_t expected_sum(const struct buffer *buffer, uint64_t first, uint64_t count, uint32_t added)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < count; i++)
		sum += ((uint64_t)expected_word(buffer, first + i, added) + 1) * (2 * i + 1);
	return sum;
}

static uint64_t round_up(uint64_t value, uint64_t to)
{
	return (value + to - 1) / to * to;
}

/* Maps a segment with access for every GPU. */
static int segment_map(const struct demo *demo, struct buffer *buffer, uint64_t index)
{
	CUdeviceptr at = buffer->pointer + index * buffer->segment_bytes;
	CUmemAccessDesc access[DEMO_GPUS_MAX] = {{{0}}};
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, demo->gpus[buffer->gpu].device},
	};
	int error;

	for (uint64_t i = 0; i < demo->gpu_count; i++) {
		access[i].location = prop.location;
		access[i].location.id = demo->gpus[i].device;
		access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	}
	if ((error = CU(cuMemCreate, &buffer->segments[index], buffer->segment_bytes, &prop, 0)) <
		    0 ||
	    (error = CU(cuMemMap, at, buffer->segment_bytes, 0, buffer->segments[index], 0)) < 0)
		return error;
	return CU(cuMemSetAccess, at, buffer->segment_bytes, access, demo->gpu_count);
}

static int segment_unmap(struct buffer *buffer, uint64_t index)
{
	int error = CU(cuMemUnmap, buffer->pointer + index * buffer->segment_bytes,
		       buffer->segment_bytes);

	return error < 0 ? error : CU(cuMemRelease, buffer->segments[index]);
}

/*
 * Makes a buffer as allocators with growing segments do: reserves much address space and maps
 * memory as needed.
 */
static int vmm_create(const struct demo *demo, struct buffer *buffer, uint64_t bytes)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, demo->gpus[buffer->gpu].device},
	};
	size_t granularity;
	int error = CU(cuMemGetAllocationGranularity, &granularity, &prop,
		       CU_MEM_ALLOC_GRANULARITY_MINIMUM);

	if (error < 0)
		return error;
	/* A copy must not cross two segments: HIP before 6.3 does not support that. */
	granularity = round_up(granularity, PART_WORDS * sizeof(uint32_t));
	bytes = round_up(bytes, granularity);
	buffer->segment_bytes = round_up((bytes + 2) / 3, granularity);
	if (buffer->segment_bytes > SEGMENT_BYTES_MAX)
		buffer->segment_bytes = round_up(SEGMENT_BYTES_MAX, granularity);
	buffer->segment_count = (bytes + buffer->segment_bytes - 1) / buffer->segment_bytes;
	buffer->segments = calloc(buffer->segment_count, sizeof(*buffer->segments));
	if (!buffer->segments) {
		complain("out of memory");
		return -ENOMEM;
	}
	error = CU(cuMemAddressReserve, &buffer->pointer,
		   buffer->segment_count * buffer->segment_bytes * 2, 0, 0, 0);
	for (uint64_t i = 0; i < buffer->segment_count && !error; i++)
		error = segment_map(demo, buffer, i);
	return error;
}

/* Copies the segment out, frees its memory, maps new memory and copies the bytes back. */
static int segment_remake(const struct demo *demo, struct buffer *buffer, uint64_t index)
{
	CUdeviceptr at = buffer->pointer + index * buffer->segment_bytes;
	_cleanup_free_ void *bytes = malloc(buffer->segment_bytes);
	int error;

	if (!bytes) {
		complain("out of memory");
		return -ENOMEM;
	}
	if ((error = CU(cuMemcpyDtoH_v2, bytes, at, buffer->segment_bytes)) < 0 ||
	    (error = segment_unmap(buffer, index)) < 0 ||
	    (error = segment_map(demo, buffer, index)) < 0)
		return error;
	return CU(cuMemcpyHtoD_v2, at, bytes, buffer->segment_bytes);
}

static int pitch_create(struct buffer *buffer, uint64_t bytes)
{
	size_t pitch, width = bytes > 4000 ? 1000 : 4;
	int error = CU(cuMemAllocPitch_v2, &buffer->pointer, &pitch, width,
		       (bytes + width - 1) / width, 4);

	/* The gaps between the rows are used like the rest. */
	if (!error && buffer->words * sizeof(uint32_t) > (bytes + width - 1) / width * pitch)
		return -EINVAL;
	return error;
}

static int managed_create(const struct demo *demo, struct buffer *buffer, uint64_t bytes)
{
	CUdevice device = demo->gpus[buffer->gpu].device;
	int error = CU(cuMemAllocManaged, &buffer->pointer, bytes, CU_MEM_ATTACH_GLOBAL);

	if (error < 0)
		return error;
	error = CU(cuMemAdvise, buffer->pointer, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
		   device);
	return error < 0 ? error
			 : CU(cuMemAdvise, buffer->pointer, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY,
			      CU_DEVICE_CPU);
}

static int managed_check_advice(const struct demo *demo, const struct buffer *buffer)
{
	uint64_t bytes = buffer->words * sizeof(uint32_t);
	int32_t preferred, accessed_by[DEMO_GPUS_MAX + 1];
	int error;

	if ((error = CU(cuMemRangeGetAttribute, &preferred, sizeof(preferred),
			CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, buffer->pointer, bytes)) < 0 ||
	    (error = CU(cuMemRangeGetAttribute, accessed_by, sizeof(accessed_by),
			CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, buffer->pointer, bytes)) < 0)
		return error;
	if (preferred == demo->gpus[buffer->gpu].device && accessed_by[0] == CU_DEVICE_CPU)
		return 0;
	complain("managed memory at 0x%llx: its advice is lost (preferred location %" PRId32
		 ", accessed by %" PRId32 ")",
		 buffer->pointer, preferred, accessed_by[0]);
	return -EBADMSG;
}

int buffer_create(struct demo *demo, uint64_t index, uint64_t bytes)
{
	struct buffer *buffer = &demo->buffers[index];
	int error = gpu_use(demo, &demo->gpus[buffer->gpu]);

	buffer->words = bytes / sizeof(uint32_t);
	buffer->part_count = (buffer->words + PART_WORDS - 1) / PART_WORDS;
	buffer->seed = (uint32_t)(index + 1) * 0x9e3779b9u;
	buffer->parts = calloc(buffer->part_count, sizeof(*buffer->parts));
	if (!buffer->parts) {
		complain("out of memory");
		return -ENOMEM;
	}
	bytes = buffer->words * sizeof(uint32_t);
	if (!error)
		switch (buffer->kind) {
		case BUFFER_DEVICE:
			error = CU(cuMemAlloc_v2, &buffer->pointer, bytes);
			break;
		case BUFFER_MANAGED:
			error = managed_create(demo, buffer, bytes);
			break;
		case BUFFER_VMM:
			error = vmm_create(demo, buffer, bytes);
			break;
		case BUFFER_PITCH:
			error = pitch_create(buffer, bytes);
			break;
		case BUFFER_ASYNC:
			error = CU(cuMemAllocAsync, &buffer->pointer, bytes, NULL);
			break;
		}
	if (error < 0) {
		complain("no memory for buffer %" PRIu64 " of %" PRIu64 " (%s, %" PRIu64 " bytes)",
			 index, demo->count, buffer_kind_name(buffer), bytes);
		return error;
	}
	return launch(demo->gpus[buffer->gpu].fill, NULL,
		      (void *[]){&buffer->pointer, &buffer->words, &buffer->seed});
}

int buffer_free(struct demo *demo, struct buffer *buffer)
{
	int error = gpu_use(demo, &demo->gpus[buffer->gpu]);

	if (error < 0)
		return error;
	if (buffer->kind == BUFFER_ASYNC)
		return CU(cuMemFreeAsync, buffer->pointer, NULL);
	if (buffer->kind != BUFFER_VMM)
		return CU(cuMemFree_v2, buffer->pointer);
	error = CU(cuCtxSynchronize);
	for (uint64_t i = 0; i < buffer->segment_count && !error; i++)
		error = segment_unmap(buffer, i);
	if (!error)
		error = CU(cuMemAddressFree, buffer->pointer,
			   buffer->segment_count * buffer->segment_bytes * 2);
	return error;
}

int buffer_exercise(struct demo *demo, struct buffer *buffer, uint64_t tick)
{
	if (buffer->kind == BUFFER_MANAGED)
		return managed_check_advice(demo, buffer);
	if (buffer->kind == BUFFER_VMM && tick % SEGMENT_TICKS == 0)
		return segment_remake(demo, buffer, tick / SEGMENT_TICKS % buffer->segment_count);
	return 0;
}

int buffer_look(const struct buffer *buffer, uint64_t tick)
{
	const volatile uint32_t *words = (const volatile uint32_t *)buffer->pointer;

	if (buffer->kind != BUFFER_MANAGED)
		return 0;
	for (uint64_t part = 0; part < buffer->part_count; part++) {
		uint64_t word = part * PART_WORDS + tick % part_words(buffer, part);
		uint32_t expected = expected_word(buffer, word, buffer->parts[part].added);
		uint32_t found = words[word];

		if (found == expected)
			continue;
		complain("tick %" PRIu64 ": the CPU finds 0x%08" PRIx32 " at 0x%llx in managed"
			 " memory, expected 0x%08" PRIx32,
			 tick, found, buffer->pointer + word * sizeof(*words), expected);
		return -EBADMSG;
	}
	return 0;
}
