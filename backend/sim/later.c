/* SPDX-License-Identifier: MIT */
/*
 * Functions that are in no table, like those of a newer driver: returned by cuGetProcAddress and
 * not exported. They take handles of memory in the ways that a driver's functions do (in a
 * register, on the stack, in a list), and refuse invalid handles.
 */
#include "backend/sim/sim.h"

static CUresult device_of(int *device, CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp prop;
	CUresult result;

	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuMemGetAllocationPropertiesFromHandle(&prop, handle);
	if (result == CUDA_SUCCESS)
		*device = prop.location.id;
	return result;
}

static CUresult mem_get_device(int *device, CUmemGenericAllocationHandle handle)
{
	return device_of(device, handle);
}

/* The last two arguments are on the stack on every processor. */
static CUresult mem_get_device_last(int *device, long a, long b, long c, long d, long e, long f,
				    long g, CUmemGenericAllocationHandle handle,
				    CUmemGenericAllocationHandle other)
{
	CUresult result = device_of(device, other);

	return result || a + b + c + d + e + f + g != 28 ? CUDA_ERROR_INVALID_VALUE
							 : device_of(device, handle);
}

static CUresult mem_get_devices(int *devices, const CUmemGenericAllocationHandle *handles,
				size_t count)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; i < count && !result; i++)
		result = device_of(&devices[i], handles[i]);
	return result;
}

static CUresult mem_bind(CUmemGenericAllocationHandle handle)
{
	int device;

	return device_of(&device, handle);
}

void *later_find(const char *name)
{
	static const struct {
		const char *name;
		void *function;
	} functions[] = {
		{"cuSimMemBind", (void *)mem_bind},
		{"cuSimMemGetDevice", (void *)mem_get_device},
		{"cuSimMemGetDeviceLast", (void *)mem_get_device_last},
		{"cuSimMemGetDevices", (void *)mem_get_devices},
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(functions); i++)
		if (strcmp(functions[i].name, name) == 0)
			return functions[i].function;
	return NULL;
}
