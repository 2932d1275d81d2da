/* SPDX-License-Identifier: MIT */
/* Loads the driver's library and looks up its functions by either vendor's names. */
#include "tools/gpu/gpu_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "backend/rocm/adapt.h"
#include "backend/rocm/hip_api.h"
#include "lib/cleanup.h"
#include "tools/gpu/hip_kernels.h"
#include "tools/gpu/kernels.h"

/*
 * The plain name exists on development machines; the others are those of ROCm's releases. The last
 * is the path of AMD's packages, which the dynamic linker may not search.
 */
static const char *const names[] = {"libamdhip64.so",	"libamdhip64.so.10",
				    "libamdhip64.so.9", "libamdhip64.so.8",
				    "libamdhip64.so.7", "libamdhip64.so.6",
				    "libamdhip64.so.5", "/opt/rocm/lib/libamdhip64.so"};

int gcr_gpu_library_open(bool is_hip, struct gcr_gpu_library *ret_library, struct gcr_error *error)
{
	struct gcr_gpu_library library = {.is_hip = is_hip, .name = "libcuda.so.1"};

	if (!is_hip)
		library.handle = dlopen(library.name, RTLD_NOW | RTLD_GLOBAL);
	for (size_t i = 0; is_hip && i < GCR_ARRAY_SIZE(names) && !library.handle; i++) {
		library.name = names[i];
		library.handle = dlopen(library.name, RTLD_NOW | RTLD_GLOBAL);
	}
	if (!library.handle)
		return gcr_error_set(error, ENOENT, "%s", dlerror());
	*ret_library = library;
	return 0;
}

static void *look_up(void *argument, const char *name)
{
	const struct gcr_gpu_library *library = argument;

	return dlsym(library->handle, name);
}

void *gcr_gpu_library_find(const struct gcr_gpu_library *library, const char *cuda_name)
{
	struct gcr_gpu_library copy = *library;

	return library->is_hip ? gcr_hip_find(cuda_name, look_up, &copy)
			       : dlsym(library->handle, cuda_name);
}

const char *gcr_gpu_library_word(const struct gcr_gpu_library *library, const char *cuda_name)
{
	const char *name = library->is_hip ? gcr_hip_name(cuda_name) : NULL;

	return name ? name : cuda_name;
}

/* Returns the current GPU's architecture, "gfx90a:sramecc+:xnack-"; "" if unavailable. */
static void find_architecture(const struct gcr_gpu_library *library, char ret_name[256])
{
	__typeof__(hipGetDevice) *get_device = dlsym(library->handle, "hipGetDevice");
	gcr_hip_get_properties *get = dlsym(library->handle, "hipGetDevicePropertiesR0600");
	gcr_hip_get_properties_5 *get_5 = dlsym(library->handle, "hipGetDeviceProperties");
	struct gcr_hip_properties_5 properties_5 = {{0}};
	struct gcr_hip_properties properties = {{0}};
	int device;

	*ret_name = '\0';
	if (!get_device || get_device(&device))
		return;
	if (get && !get(&properties, device))
		snprintf(ret_name, 256, "%s", properties.gcnArchName);
	else if (!get && get_5 && !get_5(&properties_5, device))
		snprintf(ret_name, 256, "%s", properties_5.gcnArchName);
}

int gcr_gpu_library_kernels(const struct gcr_gpu_library *library, void **ret_code,
			    struct gcr_error *error)
{
	char architecture[256];
	size_t bytes;

	if (library->is_hip) {
		find_architecture(library, architecture);
		return gcr_hip_kernels(library->handle, *architecture ? architecture : NULL,
				       ret_code, &bytes, error);
	}
	*ret_code = strdup(gcr_demo_ptx);
	return *ret_code ? 0 : gcr_error_set(error, ENOMEM, "out of memory");
}
