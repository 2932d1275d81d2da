/* SPDX-License-Identifier: MIT */
/* The simulator's libnvidia-ml.so.1 shows the activity of the simulated processes. */
#include "test/unit/sim.h"

#include <limits.h>

#include "backend/cuda/nvml_api.h"

static void *nvml_symbol(const char *name)
{
	static void *library;

	if (!library) {
		char path[PATH_MAX];
		char *slash;

		snprintf(path, sizeof(path), "%s", getenv("GPUCR_SIM_LIB"));
		slash = strrchr(path, '/');
		snprintf(slash ? slash + 1 : path, 32, "libnvidia-ml.so.1");
		library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	}
	CHECK(library && dlsym(library, name));
	return dlsym(library, name);
}

#define NVML(name) ((__typeof__(name) *)nvml_symbol(#name))

static void user(int fd)
{
	CUcheckpointLockArgs lock = {.timeoutMs = 5000};
	CUdeviceptr pointer;

	sim_context();
	OK(CU(cuMemAlloc_v2)(&pointer, 10 * MIB));
	say_byte(fd, 'r');
	hear_byte(fd);
	/* A process can be its own controller, since its restore thread does the work. */
	OK(CU(cuCheckpointProcessLock)(getpid(), &lock));
	OK(CU(cuCheckpointProcessCheckpoint)(getpid(), NULL));
	say_byte(fd, 'c');
	hear_byte(fd);
}

static bool state_mapped(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	bool found = false;
	char line[512];

	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		found = found || strstr(line, sim_state_directory);
	fclose(maps);
	return found;
}

int main(void)
{
	nvmlProcessInfo_t processes[4];
	unsigned count, minor, current, pending;
	nvmlMemory_v2_t memory_v2 = {.version = nvmlMemory_v2};
	nvmlMemory_t memory;
	nvmlComputeMode_t mode;
	nvmlDevice_t device;
	struct child child;
	char text[96];

	sim_begin("2", "64M");
	child = child_start(user);
	CHECK(hear_byte(child.fd) == 'r');
	RESULT(NVML(nvmlDeviceGetCount_v2)(&count), NVML_ERROR_UNINITIALIZED);
	OK(NVML(nvmlInit_v2)());
	OK(NVML(nvmlDeviceGetCount_v2)(&count));
	CHECK(count == 2);
	RESULT(NVML(nvmlDeviceGetHandleByIndex_v2)(2, &device), NVML_ERROR_INVALID_ARGUMENT);
	OK(NVML(nvmlDeviceGetHandleByIndex_v2)(1, &device));
	OK(NVML(nvmlDeviceGetMinorNumber)(device, &minor));
	CHECK(minor == 1);
	count = 4;
	OK(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, processes));
	CHECK(count == 0);
	OK(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device));
	OK(NVML(nvmlDeviceGetName)(device, text, sizeof(text)));
	CHECK(!strcmp(text, "Simulated GPU"));
	RESULT(NVML(nvmlDeviceGetUUID)(device, text, 10), NVML_ERROR_INSUFFICIENT_SIZE);
	OK(NVML(nvmlDeviceGetUUID)(device, text, sizeof(text)));
	CHECK(strlen(text) == 40 && !strncmp(text, "GPU-", 4) && text[12] == '-');
	OK(NVML(nvmlSystemGetDriverVersion)(text, sizeof(text)));
	CHECK(!strcmp(text, "580.159.04"));
	OK(NVML(nvmlDeviceGetMigMode)(device, &current, &pending));
	CHECK(current == NVML_DEVICE_MIG_DISABLE);
	OK(NVML(nvmlDeviceGetComputeMode)(device, &mode));
	CHECK(mode == NVML_COMPUTEMODE_DEFAULT);

	OK(NVML(nvmlDeviceGetMemoryInfo)(device, &memory));
	CHECK(memory.total == 64 * MIB && memory.used == 14 * MIB && memory.free == 50 * MIB);
	OK(NVML(nvmlDeviceGetMemoryInfo_v2)(device, &memory_v2));
	CHECK(memory_v2.used == 14 * MIB);
	count = 0;
	RESULT(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, NULL),
	       NVML_ERROR_INSUFFICIENT_SIZE);
	CHECK(count == 1);
	OK(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, processes));
	CHECK(processes[0].pid == (unsigned)child.pid);
	CHECK(processes[0].usedGpuMemory == 14 * MIB);

	say_byte(child.fd, 'c');
	CHECK(hear_byte(child.fd) == 'c');
	OK(NVML(nvmlDeviceGetMemoryInfo)(device, &memory));
	CHECK(memory.used == 0);
	count = 4;
	OK(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, processes));
	CHECK(count == 0);
	child_kill(&child);

	/*
	 * The last shutdown detaches from the simulated machine; a handle is valid again after the
	 * next initialisation.
	 */
	OK(NVML(nvmlInit_v2)());
	OK(NVML(nvmlShutdown)());
	CHECK(state_mapped());
	OK(NVML(nvmlShutdown)());
	CHECK(!state_mapped());
	RESULT(NVML(nvmlDeviceGetMemoryInfo)(device, &memory), NVML_ERROR_UNINITIALIZED);
	OK(NVML(nvmlInit_v2)());
	OK(NVML(nvmlDeviceGetMemoryInfo)(device, &memory));
	CHECK(memory.total == 64 * MIB && memory.used == 0);
	OK(NVML(nvmlShutdown)());
	return 0;
}
