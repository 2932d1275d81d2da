/* SPDX-License-Identifier: MIT */
/* The functions of the fake HIP library, each with HIP's prototype. */
#include "test/unit/rocm/adapt_hip.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "lib/cleanup.h"
#include "test/unit/test.h"

struct adapt_hip adapt_hip;

void adapt_hip_reset(int version)
{
	memset(&adapt_hip, 0, sizeof(adapt_hip));
	adapt_hip.version = version;
	adapt_hip.devices = 3;
}

#define ANSWER()                                \
	do {                                    \
		adapt_hip.calls++;              \
		if (adapt_hip.error)            \
			return adapt_hip.error; \
	} while (0)

static hipError_t fake_hipRuntimeGetVersion(int *version)
{
	*version = adapt_hip.version;
	return hipSuccess;
}

static hipError_t fake_hipGetDeviceCount(int *count)
{
	ANSWER();
	*count = adapt_hip.devices;
	return adapt_hip.devices ? hipSuccess : hipErrorNoDevice;
}

static hipError_t fake_hipGetDevice(int *device)
{
	ANSWER();
	*device = adapt_hip.current;
	return hipSuccess;
}

static hipError_t fake_hipSetDevice(int device)
{
	ANSWER();
	if (device < 0 || device >= adapt_hip.devices)
		return hipErrorInvalidDevice;
	adapt_hip.set_devices[adapt_hip.set_count++ % 8] = device;
	adapt_hip.current = device;
	return hipSuccess;
}

static hipError_t fake_hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device)
{
	ANSWER();
	adapt_hip.number = attribute;
	adapt_hip.device = device;
	*value = 1000 + (int)attribute;
	return hipSuccess;
}

static hipError_t fake_hipDeviceGetUuid(hipUUID *uuid, hipDevice_t device)
{
	ANSWER();
	memcpy(uuid->bytes, adapt_hip.uuid, sizeof(uuid->bytes));
	return hipSuccess;
}

static hipError_t fake_hipDeviceGetPCIBusId(char *place, int room, int device)
{
	ANSWER();
	snprintf(place, (size_t)room, "%s", adapt_hip.place);
	return hipSuccess;
}

static hipError_t fake_hipDeviceGetLimit(size_t *value, enum hipLimit_t limit)
{
	ANSWER();
	adapt_hip.number = limit;
	*value = 77;
	return hipSuccess;
}

static hipError_t fake_hipDeviceSetLimit(enum hipLimit_t limit, size_t value)
{
	ANSWER();
	adapt_hip.number = 100 * limit + value;
	return hipSuccess;
}

static hipError_t fake_hipDeviceEnablePeerAccess(int device, unsigned int flags)
{
	ANSWER();
	adapt_hip.device = device;
	adapt_hip.flags = flags;
	return hipSuccess;
}

static hipError_t fake_hipDeviceDisablePeerAccess(int device)
{
	ANSWER();
	adapt_hip.device = device;
	return hipSuccess;
}

static hipError_t fake_hipStreamGetDevice(hipStream_t stream, hipDevice_t *device)
{
	ANSWER();
	/* HIP would dereference the stream here: the special values 0 to 2 must not get here. */
	CHECK((uintptr_t)stream > 2);
	adapt_hip.pointer = stream;
	*device = 2;
	return hipSuccess;
}

static const char *fake_hipGetErrorName(hipError_t error)
{
	return error == hipErrorNotReady ? "hipErrorNotReady" : "hipErrorUnknown";
}

static const char *fake_hipGetErrorString(hipError_t error)
{
	return error == hipErrorNotReady ? "device not ready" : "unknown error";
}

static hipError_t fake_hipHostMalloc(void **pointer, size_t size, unsigned int flags)
{
	ANSWER();
	adapt_hip.flags = flags;
	adapt_hip.number = size;
	*pointer = &adapt_hip;
	return hipSuccess;
}

static hipError_t fake_hipHostRegister(void *pointer, size_t size, unsigned int flags)
{
	ANSWER();
	adapt_hip.flags = flags;
	adapt_hip.number = size;
	adapt_hip.pointer = pointer;
	return hipSuccess;
}

static hipError_t fake_hipMemGetAllocationGranularity(size_t *bytes,
						      const hipMemAllocationProp *properties,
						      hipMemAllocationGranularity_flags option)
{
	ANSWER();
	adapt_hip.device = properties->location.id;
	*bytes = adapt_hip.number;
	return hipSuccess;
}

static hipError_t fake_hipMemCreate(hipMemGenericAllocationHandle_t *handle, size_t size,
				    const hipMemAllocationProp *properties,
				    unsigned long long flags)
{
	ANSWER();
	CHECK(properties->type == hipMemAllocationTypePinned);
	CHECK(properties->requestedHandleType == hipMemHandleTypePosixFileDescriptor);
	CHECK(properties->location.type == hipMemLocationTypeDevice);
	adapt_hip.device = adapt_hip.current; /* HIP allocates on the current device */
	adapt_hip.number = size;
	*handle = (hipMemGenericAllocationHandle_t)(uintptr_t)0x5000;
	return hipSuccess;
}

static hipError_t fake_hipMemExportToShareableHandle(void *os_handle,
						     hipMemGenericAllocationHandle_t handle,
						     hipMemAllocationHandleType type,
						     unsigned long long flags)
{
	ANSWER();
	adapt_hip.pointer = handle;
	adapt_hip.number = type;
	*(int *)os_handle = 42;
	return hipSuccess;
}

static hipError_t fake_hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t *handle,
						       void *os_handle,
						       hipMemAllocationHandleType type)
{
	ANSWER();
	if (!os_handle)
		return hipErrorInvalidValue;
	adapt_hip.imported_as_value = (uintptr_t)os_handle < 4096;
	adapt_hip.imported_fd = adapt_hip.imported_as_value ? (int)(intptr_t)os_handle
							    : *(int *)os_handle;
	CHECK(fcntl(adapt_hip.imported_fd, F_GETFD) >= 0);
	*handle = (hipMemGenericAllocationHandle_t)(uintptr_t)0x6000;
	return hipSuccess;
}

static struct mapping *mapping_of(const char *at)
{
	for (size_t i = 0; i < MAPPINGS_MAX; i++)
		if (adapt_hip.mappings[i].bytes && at >= adapt_hip.mappings[i].start &&
		    at < adapt_hip.mappings[i].start + adapt_hip.mappings[i].bytes)
			return &adapt_hip.mappings[i];
	return NULL;
}

static hipError_t fake_hipMemGetAddressRange(hipDeviceptr_t *base, size_t *bytes,
					     hipDeviceptr_t pointer)
{
	struct mapping *mapping = mapping_of(pointer);

	ANSWER();
	if (adapt_hip.range_error)
		return adapt_hip.range_error;
	if (!mapping)
		return hipErrorNotFound;
	*base = mapping->start; /* HIP writes both; the pointers must not be NULL */
	*bytes = mapping->bytes;
	return hipSuccess;
}

static hipError_t fake_hipMemMap(void *start, size_t size, size_t offset,
				 hipMemGenericAllocationHandle_t handle, unsigned long long flags)
{
	ANSWER();
	CHECK(!offset && !flags && handle == (hipMemGenericAllocationHandle_t)(uintptr_t)0x5000);
	if (!adapt_hip.is_quiet)
		adapt_hip.mappings[3] = (struct mapping){start, size};
	return hipSuccess;
}

static hipError_t fake_hipMemSetAccess(void *start, size_t size, const hipMemAccessDesc *access,
				       size_t count)
{
	ANSWER();
	adapt_hip.pointer = start;
	adapt_hip.number = size;
	return hipSuccess;
}

/* Accepts only the range of one whole mapping. */
static hipError_t fake_hipMemUnmap(void *start, size_t size)
{
	struct mapping *mapping = mapping_of(start);

	ANSWER();
	CHECK(mapping);
	if (mapping->start != start || mapping->bytes != size)
		return hipErrorInvalidValue;
	if (adapt_hip.is_quiet)
		return hipSuccess;
	adapt_hip.unmapped[adapt_hip.unmapped_count] = start;
	adapt_hip.unmapped_bytes[adapt_hip.unmapped_count++] = size;
	mapping->bytes = 0;
	return hipSuccess;
}

static hipError_t fake_hipMemcpyPeer(void *to, int to_device, const void *from, int from_device,
				     size_t size)
{
	ANSWER();
	adapt_hip.number = size;
	adapt_hip.device = 10 * to_device + from_device;
	return hipSuccess;
}

static hipError_t fake_hipMemcpyPeerAsync(void *to, int to_device, const void *from,
					  int from_device, size_t size, hipStream_t stream)
{
	ANSWER();
	adapt_hip.number = size;
	adapt_hip.device = 10 * to_device + from_device;
	adapt_hip.pointer = stream;
	return hipSuccess;
}

static hipError_t fake_hipMemAdvise(const void *pointer, size_t size, hipMemoryAdvise advice,
				    int device)
{
	ANSWER();
	adapt_hip.number = advice;
	adapt_hip.device = device;
	return hipSuccess;
}

static hipError_t fake_hipMemPrefetchAsync(const void *pointer, size_t size, int device,
					   hipStream_t stream)
{
	ANSWER();
	adapt_hip.number = size;
	adapt_hip.device = device;
	adapt_hip.pointer = stream;
	return hipSuccess;
}

static hipError_t fake_hipPointerGetAttribute(void *data, hipPointer_attribute attribute,
					      hipDeviceptr_t pointer)
{
	ANSWER();
	adapt_hip.number = attribute;
	memcpy(data, adapt_hip.answer, adapt_hip.answer_bytes);
	return hipSuccess;
}

static hipError_t fake_hipGetDevicePropertiesR0600(struct gcr_hip_properties *properties,
						   int device)
{
	ANSWER();
	memset(properties, 'x', sizeof(*properties));
	memset(properties->gcnArchName, 0, sizeof(properties->gcnArchName));
	strncpy(properties->gcnArchName, adapt_hip.architecture,
		sizeof(properties->gcnArchName) - 1);
	return hipSuccess;
}

static hipError_t fake_hipGetDeviceProperties(struct gcr_hip_properties_5 *properties, int device)
{
	ANSWER();
	memset(properties, 'x', sizeof(*properties));
	memset(properties->gcnArchName, 0, sizeof(properties->gcnArchName));
	strncpy(properties->gcnArchName, "gfx906:old", sizeof(properties->gcnArchName) - 1);
	return hipSuccess;
}

/* hipGetDevice() of a second library. */
static hipError_t other_hipGetDevice(int *device)
{
	*device = 7;
	return hipSuccess;
}

static const struct {
	const char *name;
	void *function;
} fakes[] = {
#define FAKE(name)                         \
	{                                  \
#name, (void *)fake_##name \
	}
	FAKE(hipDeviceDisablePeerAccess),
	FAKE(hipDeviceEnablePeerAccess),
	FAKE(hipDeviceGetAttribute),
	FAKE(hipDeviceGetLimit),
	FAKE(hipDeviceGetPCIBusId),
	FAKE(hipDeviceGetUuid),
	FAKE(hipDeviceSetLimit),
	FAKE(hipGetDevice),
	FAKE(hipGetDeviceCount),
	FAKE(hipGetDeviceProperties),
	FAKE(hipGetDevicePropertiesR0600),
	FAKE(hipGetErrorName),
	FAKE(hipGetErrorString),
	FAKE(hipHostMalloc),
	FAKE(hipHostRegister),
	FAKE(hipMemAdvise),
	FAKE(hipMemCreate),
	FAKE(hipMemExportToShareableHandle),
	FAKE(hipMemGetAddressRange),
	FAKE(hipMemGetAllocationGranularity),
	FAKE(hipMemImportFromShareableHandle),
	FAKE(hipMemMap),
	FAKE(hipMemPrefetchAsync),
	FAKE(hipMemSetAccess),
	FAKE(hipMemUnmap),
	FAKE(hipMemcpyPeer),
	FAKE(hipMemcpyPeerAsync),
	FAKE(hipPointerGetAttribute),
	FAKE(hipRuntimeGetVersion),
	FAKE(hipSetDevice),
	FAKE(hipStreamGetDevice),
};

void *adapt_hip_look_up(void *argument, const char *name)
{
	bool is_other = argument != NULL;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(adapt_hip.absent); i++)
		if (adapt_hip.absent[i] && !strcmp(adapt_hip.absent[i], name))
			return NULL;
	if (is_other && !strcmp(name, "hipGetDevice"))
		return (void *)other_hipGetDevice;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(fakes); i++)
		if (!strcmp(fakes[i].name, name))
			return fakes[i].function;
	return NULL;
}

void *adapt_hip_look_up_any(void *argument, const char *name)
{
	*(const char **)argument = name;
	return (void *)(uintptr_t)0x1234;
}
