/* SPDX-License-Identifier: MIT */
/* For tests of HIP on the simulator: like sim.h, with HIP's functions. */
#ifndef GPUCR_TEST_SIM_HIP_H
#define GPUCR_TEST_SIM_HIP_H

#include "backend/rocm/hip_api.h"
#include "test/unit/sim.h"

static inline void *sim_hip_symbol(const char *name)
{
	static void *library;

	return find_in_driver(&library, getenv("GPUCR_SIM_HIP_LIB"), dlsym, name);
}

#define HIP(name) ((__typeof__(name) *)sim_hip_symbol(#name))

static inline void sim_hip_begin(const char *gpus, const char *vram)
{
	sim_begin(gpus, vram);
	if (!getenv("GPUCR_SIM_HIP_LIB"))
		SKIP("GPUCR_SIM_HIP_LIB is not set");
	unsetenv("GPUCR_SIM_HIP_GPUS");
	unsetenv("GPUCR_SIM_HIP_VERSION");
	unsetenv("GPUCR_SIM_HIP_ARCH");
	unsetenv("GPUCR_SIM_HIP_GRANULARITY");
	unsetenv("HIP_VISIBLE_DEVICES");
	unsetenv("ROCR_VISIBLE_DEVICES");
}

static inline size_t sim_hip_free_bytes(void)
{
	size_t free_bytes, total;

	OK(HIP(hipMemGetInfo)(&free_bytes, &total));
	return free_bytes;
}

static inline hipMemAllocationProp sim_hip_prop(int device)
{
	return (hipMemAllocationProp){.type = hipMemAllocationTypePinned,
				      .requestedHandleType = hipMemHandleTypePosixFileDescriptor,
				      .location = {.type = hipMemLocationTypeDevice, .id = device}};
}

/* Maps a handle for one device, at an address of the driver's choice. */
static inline void *sim_hip_map(hipMemGenericAllocationHandle_t handle, size_t size, int device)
{
	hipMemAccessDesc access = {.location = {.type = hipMemLocationTypeDevice, .id = device},
				   .flags = hipMemAccessFlagsProtReadWrite};
	void *pointer;

	OK(HIP(hipMemAddressReserve)(&pointer, size, 0, NULL, 0));
	OK(HIP(hipMemMap)(pointer, size, 0, handle, 0));
	OK(HIP(hipMemSetAccess)(pointer, size, &access, 1));
	return pointer;
}

static inline unsigned sim_hip_word(const void *pointer)
{
	unsigned word;

	OK(HIP(hipMemcpy)(&word, pointer, sizeof(word), hipMemcpyDefault));
	return word;
}

static const char sim_hip_code[] = "gpucrfs simulated code\nkernel gpucr_fill\nkernel gpucr_add\n"
				   "kernel gpucr_checksum\nkernel gpucr_spin\n";

static inline hipFunction_t sim_hip_kernel(const char *name)
{
	static hipModule_t module;
	hipFunction_t function;

	if (!module)
		OK(HIP(hipModuleLoadData)(&module, sim_hip_code));
	OK(HIP(hipModuleGetFunction)(&function, module, name));
	return function;
}

static inline hipError_t sim_hip_launch(hipFunction_t function, hipStream_t stream, void **params)
{
	return HIP(hipModuleLaunchKernel)(function, 1, 1, 1, 64, 1, 1, 0, stream, params, NULL);
}

/* Returns the number in a file below the state directory; -1 if the file does not exist. */
static inline long long sim_hip_number(const char *name)
{
	char path[256];
	long long number = -1;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", sim_state_directory, name);
	file = fopen(path, "re");
	if (!file)
		return -1;
	CHECK(fscanf(file, "%lld", &number) == 1);
	fclose(file);
	return number;
}

#endif
