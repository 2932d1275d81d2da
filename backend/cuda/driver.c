/* SPDX-License-Identifier: MIT */
/* Loads the driver's library and translates its result codes. One thread. */
#include "backend/cuda/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "lib/cleanup.h"
#ifdef GCR_HIP
#include "backend/rocm/adapt.h"
#endif

#define MAJOR(version) ((version) / 1000)
#define MINOR(version) ((version) % 1000 / 10)

struct call {
	const char *name;
	size_t offset; /* in struct gcr_driver */
};

#define CALL(name) {#name, offsetof(struct gcr_driver, name)},
static const struct call calls[] = {GCR_DRIVER_CALLS(CALL)};
#ifndef GCR_HIP
static const struct call checkpoint_calls[] = {GCR_DRIVER_CHECKPOINT_CALLS(CALL)};
#endif
#undef CALL

static const struct {
	CUresult result;
	int number;
} errnos[] = {
	{CUDA_ERROR_INVALID_VALUE, EINVAL},
	{CUDA_ERROR_OUT_OF_MEMORY, ENOMEM},
	{CUDA_ERROR_STUB_LIBRARY, ENODEV},
	{CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, EOPNOTSUPP},
	{CUDA_ERROR_NO_DEVICE, ENODEV},
	{CUDA_ERROR_INVALID_DEVICE, ENODEV},
	{CUDA_ERROR_ILLEGAL_STATE, EBUSY},
	{CUDA_ERROR_NOT_READY, ETIMEDOUT},
	{CUDA_ERROR_NOT_PERMITTED, EACCES},
	{CUDA_ERROR_NOT_SUPPORTED, EOPNOTSUPP},
	{CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, EOPNOTSUPP},
	{CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, EOPNOTSUPP},
	{CUDA_ERROR_TIMEOUT, ETIMEDOUT},
};

static int errno_of(CUresult result)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(errnos); i++)
		if (errnos[i].result == result)
			return errnos[i].number;
	return EIO;
}

#ifdef GCR_HIP
static void *look_up_hip(void *library, const char *name)
{
	return dlsym(library, name);
}

static void *find(void *library, const char *name)
{
	return gcr_hip_find(name, look_up_hip, library);
}

/*
 * Opens the driver's library, also where ld.so does not search. All versions have the functions
 * used here. NULL, with a message: there is none.
 */
static void *open_library(struct gcr_error *error)
{
	static const char *const names[] = {
		"libamdhip64.so",
		"libamdhip64.so.7",
		"libamdhip64.so.6",
		"libamdhip64.so.5",
		"/opt/rocm/lib/libamdhip64.so",
		"/opt/rocm/lib/libamdhip64.so.7",
		"/opt/rocm/lib/libamdhip64.so.6",
		"/opt/rocm/lib/libamdhip64.so.5",
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(names); i++) {
		void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);

		if (library)
			return library;
		if (i == 0)
			gcr_error_set(error, ENODEV, "AMD's HIP library cannot be loaded: %s",
				      dlerror());
	}
	return NULL;
}

static int fail_missing(const char *name, struct gcr_error *error)
{
	const char *hip_name = gcr_hip_name(name);

	return gcr_error_set(error, EOPNOTSUPP,
			     "HIP has no %s here: it is too old; ROCm 6.3.2 or newer is needed",
			     hip_name ? hip_name : name);
}
#else
static void *find(void *library, const char *name)
{
	return dlsym(library, name);
}

static void *open_library(struct gcr_error *error)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		gcr_error_set(error, ENODEV, "the NVIDIA driver's library cannot be loaded: %s",
			      dlerror());
	return library;
}

static int fail_missing(const char *name, struct gcr_error *error)
{
	return gcr_error_set(error, EOPNOTSUPP,
			     "the driver has no %s: it is too old; 570 or newer is needed", name);
}
#endif

/* Returns the name of the first entry point that is missing, or NULL. */
static const char *look_up(void *library, struct gcr_driver *driver, const struct call *list,
			   size_t count)
{
	const char *missing = NULL;

	for (size_t i = 0; i < count; i++) {
		void *symbol = find(library, list[i].name);

		if (!symbol && !missing)
			missing = list[i].name;
		memcpy((char *)driver + list[i].offset, &symbol, sizeof(symbol));
	}
	return missing;
}

int gcr_driver_open(struct gcr_driver *ret_driver, struct gcr_error *error)
{
	struct gcr_driver driver = {0};
#ifdef GCR_HIP
	const char *unsuitable;
#endif
	const char *missing;
	void *library;
	int r;

	/* Never closed: the driver leaves threads and device files behind. */
	library = open_library(error);
	if (!library)
		return -ENODEV;
	missing = look_up(library, &driver, calls, GCR_ARRAY_SIZE(calls));
	if (missing)
		return fail_missing(missing, error);
#ifdef GCR_HIP
	driver.library = library;
	unsuitable = gcr_hip_unsuitable(gcr_hip_version());
	if (unsuitable)
		return gcr_error_set(error, EOPNOTSUPP, "%s", unsuitable);
#else
	look_up(library, &driver, checkpoint_calls, GCR_ARRAY_SIZE(checkpoint_calls));
#endif

	r = gcr_driver_check(&driver, driver.cuDriverGetVersion(&driver.api_version),
			     "cuDriverGetVersion", error);
	if (r < 0)
		return r;
	r = gcr_driver_check(&driver, driver.cuInit(0), "cuInit", error);
	if (r < 0)
		return r;
	*ret_driver = driver;
	return 0;
}

#ifdef GCR_HIP
int gcr_driver_architecture(const struct gcr_driver *driver, CUdevice device,
			    char ret_name[GCR_DRIVER_ARCHITECTURE_BYTES])
{
	int r;

	r = gcr_hip_architecture(device, look_up_hip, driver->library, ret_name,
				 GCR_DRIVER_ARCHITECTURE_BYTES);
	if (r < 0)
		return r;
	ret_name[strcspn(ret_name, ":")] = '\0';
	return 0;
}
#else
int gcr_driver_check_checkpoint(const struct gcr_driver *driver, struct gcr_error *error)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(checkpoint_calls); i++) {
		void *symbol;

		memcpy(&symbol, (const char *)driver + checkpoint_calls[i].offset, sizeof(symbol));
		if (!symbol)
			return gcr_error_set(error, EOPNOTSUPP,
					     "driver API version %d.%d has no checkpoint calls; "
					     "driver 570 or newer is needed",
					     MAJOR(driver->api_version),
					     MINOR(driver->api_version));
	}
	return 0;
}
#endif

/* Returns the name of @call for messages: "cuMemcpyDtoHAsync", without the version at its end. */
static const char *name_of(const char *call)
{
#ifdef GCR_HIP
	const char *name = gcr_hip_name(call);
	char versioned[64];

	if (!name && snprintf(versioned, sizeof(versioned), "%s_v2", call) < (int)sizeof(versioned))
		name = gcr_hip_name(versioned);
	return name ? name : call;
#else
	return call;
#endif
}

int gcr_driver_check(const struct gcr_driver *driver, CUresult result, const char *call,
		     struct gcr_error *error)
{
	const char *name = NULL, *description = NULL;

	if (result == CUDA_SUCCESS)
		return 0;
	driver->cuGetErrorName(result, &name);
	driver->cuGetErrorString(result, &description);
	return gcr_error_set(error, errno_of(result), "%s: %s (%d): %s", name_of(call),
			     name ? name : "unknown error", (int)result,
			     description ? description : "no description");
}

int gcr_driver_find(const struct gcr_driver *driver, const uint8_t uuid[GCR_UUID_BYTES],
		    CUdevice *ret_device, struct gcr_error *error)
{
	int count = 0;
	int r;

	r = gcr_driver_check(driver, driver->cuDeviceGetCount(&count), "cuDeviceGetCount", error);
	if (r < 0)
		return r;
	for (int ordinal = 0; ordinal < count; ordinal++) {
		CUdevice device;
		CUuuid other;

		if (driver->cuDeviceGet(&device, ordinal) != CUDA_SUCCESS ||
		    driver->cuDeviceGetUuid_v2(&other, device) != CUDA_SUCCESS)
			continue;
		if (memcmp(other.bytes, uuid, GCR_UUID_BYTES) == 0) {
			*ret_device = device;
			return 0;
		}
	}
	return gcr_error_set(error, ENODEV, "the driver shows no GPU with this UUID");
}
