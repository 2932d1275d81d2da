/* SPDX-License-Identifier: MIT */
/*
 * Virtual memory management of HIP on the simulator, where it differs from CUDA's; memory shared by
 * descriptors and by legacy handles; and the files that show the memory in use.
 */
#include "test/unit/sim_hip.h"

#define SIZE (4 * MIB)

static const hipMemAccessDesc access_0 = {
	.location = {.type = hipMemLocationTypeDevice, .id = 0},
	.flags = hipMemAccessFlagsProtReadWrite,
};

static void test_arguments(void)
{
	hipMemAllocationProp prop = sim_hip_prop(0), told;
	hipMemGenericAllocationHandle_t handle, same;
	hipMemLocation location = access_0.location;
	hipMemAccessDesc wrong = access_0;
	unsigned long long flags;
	size_t granularity;
	void *range;
	int fd;

	OK(HIP(hipMemGetAllocationGranularity)(&granularity, &prop,
					       hipMemAllocationGranularityMinimum));
	CHECK(granularity == 2 * MIB);
	RESULT(HIP(hipMemGetAllocationGranularity)(&granularity, &prop, 2), hipErrorInvalidValue);
	/* An invalid size returns out of memory. */
	RESULT(HIP(hipMemAddressReserve)(&range, 4097, 0, NULL, 0), hipErrorOutOfMemory);
	RESULT(HIP(hipMemAddressReserve)(&range, 0, 0, NULL, 0), hipErrorOutOfMemory);
	RESULT(HIP(hipMemAddressReserve)(&range, SIZE, 0, NULL, 1), hipErrorInvalidValue);
	OK(HIP(hipMemAddressReserve)(&range, SIZE, 0, NULL, 0));

	prop.location.id = 2;
	RESULT(HIP(hipMemCreate)(&handle, SIZE, &prop, 0), hipErrorInvalidValue);
	prop = sim_hip_prop(0);
	prop.requestedHandleType = hipMemHandleTypeWin32;
	RESULT(HIP(hipMemCreate)(&handle, SIZE, &prop, 0), hipErrorNotSupported);
	prop = sim_hip_prop(0);
	RESULT(HIP(hipMemCreate)(&handle, SIZE + 512, &prop, 0), hipErrorInvalidValue);
	RESULT(HIP(hipMemCreate)(&handle, 1ull << 40, &prop, 0), hipErrorOutOfMemory);
	OK(HIP(hipMemCreate)(&handle, SIZE, &prop, 0));
	OK(HIP(hipMemGetAllocationPropertiesFromHandle)(&told, handle));
	CHECK(!memcmp(&told, &prop, sizeof(prop)));

	/* A handle can only be mapped from its start. */
	RESULT(HIP(hipMemMap)(range, 2 * MIB, 2 * MIB, handle, 0), hipErrorInvalidValue);
	RESULT(HIP(hipMemMap)(NULL, SIZE, 0, handle, 0), hipErrorInvalidValue);
	OK(HIP(hipMemMap)(range, 2 * MIB, 0, handle, 0));
	OK(HIP(hipMemMap)((char *)range + 2 * MIB, 2 * MIB, 0, handle, 0));
	/* Without access a copy returns an unknown error, not an invalid value. */
	RESULT(HIP(hipMemset)(range, 0, 16), hipErrorUnknown);
	RESULT(HIP(hipMemcpy)(&flags, range, 8, hipMemcpyDefault), hipErrorUnknown);
	OK(HIP(hipMemGetAccess)(&flags, &location, range));
	CHECK(flags == hipMemAccessFlagsProtNone);
	wrong.location.id = 5;
	RESULT(HIP(hipMemSetAccess)(range, SIZE, &wrong, 1), hipErrorInvalidValue);
	OK(HIP(hipMemSetAccess)(range, SIZE, &access_0, 1)); /* several mappings in one call */
	OK(HIP(hipMemGetAccess)(&flags, &location, (char *)range + 3 * MIB));
	CHECK(flags == hipMemAccessFlagsProtReadWrite);
	RESULT(HIP(hipMemGetAccess)(&flags, &location, &fd), hipErrorInvalidValue);
	/* Both mappings show the same memory. */
	OK(HIP(hipMemset)(range, 0x5a, 16));
	CHECK(sim_hip_word((char *)range + 2 * MIB) == 0x5a5a5a5a);

	/* A memset must stay within one mapping; since 6.3 within the reservation. */
	setenv("GPUCR_SIM_HIP_VERSION", "6.2", 1);
	RESULT(HIP(hipMemset)(range, 0, SIZE), hipErrorInvalidValue);
	unsetenv("GPUCR_SIM_HIP_VERSION");
	OK(HIP(hipMemset)(range, 0, SIZE));

	/* The call returns the existing handle of an address, without a new reference. */
	OK(HIP(hipMemRetainAllocationHandle)(&same, (char *)range + MIB));
	CHECK(same == handle);
	OK(HIP(hipMemRelease)(handle));
	RESULT(HIP(hipMemRelease)(same), hipErrorInvalidValue);
	OK(HIP(hipMemset)(range, 1, 16)); /* the mappings keep the memory */

	/* Unmapping takes exactly one mapping at a time. */
	RESULT(HIP(hipMemUnmap)(range, SIZE), hipErrorInvalidValue);
	RESULT(HIP(hipMemUnmap)(range, MIB), hipErrorInvalidValue);
	RESULT(HIP(hipMemUnmap)((char *)range + MIB, MIB), hipErrorInvalidValue);
	RESULT(HIP(hipMemAddressFree)(range, SIZE), hipErrorInvalidValue);
	OK(HIP(hipMemUnmap)(range, 2 * MIB));
	RESULT(HIP(hipMemUnmap)(range, 2 * MIB), hipErrorInvalidValue);
	OK(HIP(hipMemUnmap)((char *)range + 2 * MIB, 2 * MIB));
	RESULT(HIP(hipMemRetainAllocationHandle)(&same, range), hipErrorInvalidValue);
	OK(HIP(hipMemAddressFree)(range, SIZE));
}

static void test_export(void)
{
	hipMemAllocationProp prop = sim_hip_prop(1), told;
	hipMemGenericAllocationHandle_t handle, imported;
	void *pointer, *second;
	int fd, again;

	OK(HIP(hipSetDevice)(1));
	OK(HIP(hipMemCreate)(&handle, SIZE, &prop, 0));
	RESULT(HIP(hipMemExportToShareableHandle)(&fd, handle, hipMemHandleTypeNone, 0),
	       hipErrorInvalidValue);
	OK(HIP(hipMemExportToShareableHandle)(&fd, handle, hipMemHandleTypePosixFileDescriptor, 0));
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	pointer = sim_hip_map(handle, SIZE, 1);
	OK(HIP(hipMemset)(pointer, 0x42, 16));
	OK(HIP(hipDeviceSynchronize)()); /* the other device does not wait for the memset */

	/* An imported handle reports the current device, not the device of the memory. */
	OK(HIP(hipSetDevice)(0));
	setenv("GPUCR_SIM_HIP_VERSION", "6.2", 1);
	RESULT(HIP(hipMemImportFromShareableHandle)(&imported, NULL,
						    hipMemHandleTypePosixFileDescriptor),
	       hipErrorInvalidValue);
	OK(HIP(hipMemImportFromShareableHandle)(&imported, &fd,
						hipMemHandleTypePosixFileDescriptor));
	OK(HIP(hipMemGetAllocationPropertiesFromHandle)(&told, imported));
	CHECK(told.location.id == 0);
	second = sim_hip_map(imported, SIZE, 0);
	CHECK(sim_hip_word(second) == 0x42424242);
	/* The imported handle has lost its type; since 6.3 it can be exported again. */
	RESULT(HIP(hipMemExportToShareableHandle)(&again, imported,
						  hipMemHandleTypePosixFileDescriptor, 0),
	       hipErrorInvalidValue);
	OK(HIP(hipMemUnmap)(second, SIZE));
	OK(HIP(hipMemRelease)(imported));

	/* Other releases take the descriptor itself, or nothing. */
	setenv("GPUCR_SIM_HIP_VERSION", "7.1", 1);
	OK(HIP(hipMemImportFromShareableHandle)(&imported, (void *)(intptr_t)fd,
						hipMemHandleTypePosixFileDescriptor));
	OK(HIP(hipMemExportToShareableHandle)(&again, imported, hipMemHandleTypePosixFileDescriptor,
					      0));
	close(again);
	OK(HIP(hipMemRelease)(imported));
	RESULT(HIP(hipMemImportFromShareableHandle)(&imported, &fd,
						    hipMemHandleTypePosixFileDescriptor),
	       hipErrorInvalidValue);
	setenv("GPUCR_SIM_HIP_VERSION", "6.1", 1);
	RESULT(HIP(hipMemImportFromShareableHandle)(&imported, &fd,
						    hipMemHandleTypePosixFileDescriptor),
	       hipErrorNotSupported);
	unsetenv("GPUCR_SIM_HIP_VERSION");
	close(fd);
	OK(HIP(hipMemUnmap)(pointer, SIZE));
	OK(HIP(hipMemRelease)(handle));

	/*
	 * Memory created without a handle type cannot be exported: the types have to be the same.
	 */
	prop.requestedHandleType = hipMemHandleTypeNone;
	OK(HIP(hipMemCreate)(&handle, SIZE, &prop, 0));
	RESULT(HIP(hipMemExportToShareableHandle)(&fd, handle, hipMemHandleTypePosixFileDescriptor,
						  0),
	       hipErrorInvalidValue);
	OK(HIP(hipMemRelease)(handle));
}

/* Later releases are closer to CUDA. */
static void test_later(void)
{
	hipMemGenericAllocationHandle_t handle, same;
	hipMemAllocationProp prop = sim_hip_prop(0);
	void *range;
	int device;

	setenv("GPUCR_SIM_HIP_VERSION", "7.1", 1);
	RESULT(HIP(hipMemAddressReserve)(&range, 4097, 0, NULL, 0), hipErrorInvalidValue);
	OK(HIP(hipMemAddressReserve)(&range, SIZE, 0, NULL, 0));
	OK(HIP(hipMemCreate)(&handle, 2 * MIB, &prop, 0));
	OK(HIP(hipMemMap)(range, 2 * MIB, 0, handle, 0));
	OK(HIP(hipMemMap)((char *)range + 2 * MIB, 2 * MIB, 0, handle, 0));
	OK(HIP(hipMemRetainAllocationHandle)(&same, range));
	CHECK(same == handle);
	OK(HIP(hipMemRelease)(handle));
	OK(HIP(hipMemRelease)(same));
	RESULT(HIP(hipMemRelease)(same), hipErrorInvalidValue);
	RESULT(HIP(hipMemUnmap)(range, 3 * MIB), hipErrorInvalidValue);
	OK(HIP(hipMemUnmap)(range, SIZE));
	OK(HIP(hipMemAddressFree)(range, SIZE));

	/* An error also stays until it is queried. */
	RESULT(HIP(hipSetDevice)(9), hipErrorInvalidDevice);
	OK(HIP(hipGetDevice)(&device));
	RESULT(HIP(hipGetLastError)(), hipErrorInvalidDevice);
	OK(HIP(hipGetLastError)());
	unsetenv("GPUCR_SIM_HIP_VERSION");
}

static void test_granularity(void)
{
	hipMemAllocationProp prop = sim_hip_prop(0);
	hipMemGenericAllocationHandle_t handle;
	size_t granularity;
	void *pointer;

	setenv("GPUCR_SIM_HIP_GRANULARITY", "4K", 1);
	OK(HIP(hipMemGetAllocationGranularity)(&granularity, &prop,
					       hipMemAllocationGranularityRecommended));
	CHECK(granularity == 4096);
	OK(HIP(hipMemCreate)(&handle, 12288, &prop, 0));
	pointer = sim_hip_map(handle, 12288, 0);
	OK(HIP(hipMemset)((char *)pointer + 12284, 0x21, 4));
	CHECK(sim_hip_word((char *)pointer + 12284) == 0x21212121);
	OK(HIP(hipMemUnmap)(pointer, 12288));
	OK(HIP(hipMemRelease)(handle));
	unsetenv("GPUCR_SIM_HIP_GRANULARITY");
}

/* ---- two processes ---- */

static void importer(int fd)
{
	hipMemGenericAllocationHandle_t handle;
	hipIpcMemHandle_t legacy, none = {{0}};
	void *pointer;
	int memory;

	memory = hear_descriptor(fd);
	OK(HIP(hipMemImportFromShareableHandle)(&handle, &memory,
						hipMemHandleTypePosixFileDescriptor));
	close(memory);
	pointer = sim_hip_map(handle, SIZE, 0);
	CHECK(sim_hip_word(pointer) == 0x17171717);
	OK(HIP(hipMemset)(pointer, 0x18, 4));
	OK(HIP(hipDeviceSynchronize)());
	say_byte(fd, 'x');
	hear(fd, &legacy, sizeof(legacy));
	RESULT(HIP(hipIpcOpenMemHandle)(&pointer, legacy, 0), hipErrorInvalidValue);
	RESULT(HIP(hipIpcOpenMemHandle)(&pointer, none, hipIpcMemLazyEnablePeerAccess),
	       hipErrorInvalidValue);
	OK(HIP(hipIpcOpenMemHandle)(&pointer, legacy, hipIpcMemLazyEnablePeerAccess));
	CHECK(sim_hip_word(pointer) == 0x19191919);
	OK(HIP(hipIpcCloseMemHandle)(pointer));
	say_byte(fd, 'y');
	hear_byte(fd); /* until it is killed */
}

/*
 * KFD counts for a process the memory that it has allocated; the device counts all memory in use.
 */
static long long process_bytes(pid_t pid)
{
	char name[96];

	snprintf(name, sizeof(name), "sys/class/kfd/kfd/proc/%d/vram_21001", pid);
	return sim_hip_number(name);
}

static long long used_bytes(void)
{
	return sim_hip_number("sys/class/drm/renderD128/device/mem_info_vram_used");
}

static void test_processes(struct child *child)
{
	hipMemGenericAllocationHandle_t handle;
	hipMemAllocationProp prop = sim_hip_prop(0);
	long long before, childs;
	hipIpcMemHandle_t legacy;
	void *pointer, *memory;
	int fd;

	before = process_bytes(getpid());
	CHECK(before == 4 * (long long)MIB); /* queues and other overhead */
	CHECK(used_bytes() == before);
	OK(HIP(hipMemCreate)(&handle, SIZE, &prop, 0));
	CHECK(process_bytes(getpid()) == before + (long long)SIZE);
	pointer = sim_hip_map(handle, SIZE, 0);
	OK(HIP(hipMemset)(pointer, 0x17, 4));
	OK(HIP(hipDeviceSynchronize)());
	OK(HIP(hipMemExportToShareableHandle)(&fd, handle, hipMemHandleTypePosixFileDescriptor, 0));
	say_descriptor(child->fd, fd);
	CHECK(hear_byte(child->fd) == 'x');
	CHECK(sim_hip_word(pointer) == 0x18181818);
	/*
	 * Of the two processes that have the memory mapped, it counts for the process that created
	 * it.
	 */
	childs = process_bytes(child->pid);
	CHECK(childs == 4 * (long long)MIB);
	CHECK(process_bytes(getpid()) == before + (long long)SIZE);
	CHECK(used_bytes() == before + childs + (long long)SIZE);
	OK(HIP(hipMemUnmap)(pointer, SIZE));
	OK(HIP(hipMemRelease)(handle));
	CHECK(process_bytes(getpid()) == before);
	CHECK(used_bytes() == before + childs + (long long)SIZE); /* the child still has it */
	/* Memory that its creator imports again counts as an import too. */
	OK(HIP(hipMemImportFromShareableHandle)(&handle, &fd, hipMemHandleTypePosixFileDescriptor));
	CHECK(process_bytes(getpid()) == before);
	OK(HIP(hipMemRelease)(handle));
	close(fd);

	OK(HIP(hipMalloc)(&memory, 3 * MIB));
	OK(HIP(hipMemset)(memory, 0x19, 4));
	OK(HIP(hipDeviceSynchronize)());
	OK(HIP(hipIpcGetMemHandle)(&legacy, memory));
	RESULT(HIP(hipIpcOpenMemHandle)(&pointer, legacy, hipIpcMemLazyEnablePeerAccess),
	       hipErrorInvalidContext);
	say(child->fd, &legacy, sizeof(legacy));
	CHECK(hear_byte(child->fd) == 'y');
	OK(HIP(hipFree)(memory));

	/* A killed process cannot update the files; another process has to. */
	child_kill(child);
	CHECK(process_bytes(child->pid) == childs);
	OK(((int (*)(void))sim_hip_symbol("hipSimRefreshSysfs"))());
	CHECK(process_bytes(child->pid) == -1);
	CHECK(used_bytes() == before);
}

static int descriptors_of(const char *name)
{
	char path[256], link[64], target[256];
	int count = 0;

	snprintf(path, sizeof(path), "%s/%s", sim_state_directory, name);
	for (int fd = 0; fd < 256; fd++) {
		ssize_t length;

		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		length = readlink(link, target, sizeof(target) - 1);
		if (length > 0) {
			target[length] = '\0';
			count += !strcmp(target, path);
		}
	}
	return count;
}

static bool is_mapped(const char *name)
{
	char path[256], line[512];
	FILE *maps = fopen("/proc/self/maps", "re");
	bool found = false;

	CHECK(maps);
	snprintf(path, sizeof(path), "%s/%s\n", sim_state_directory, name);
	while (fgets(line, sizeof(line), maps))
		found = found || (strlen(line) > strlen(path) &&
				  !strcmp(line + strlen(line) - strlen(path), path));
	fclose(maps);
	return found;
}

static void test_files(void)
{
	char text[64], path[256];
	int count;
	FILE *file;

	/* A process can read the files without being a process of the simulated machine. */
	OK(((int (*)(void))sim_hip_symbol("hipSimRefreshSysfs"))());
	CHECK(sim_hip_number("sys/class/kfd/kfd/topology/nodes/0/gpu_id") == 0);
	CHECK(sim_hip_number("sys/class/kfd/kfd/topology/nodes/2/gpu_id") == 21102);
	CHECK(sim_hip_number("sys/class/drm/card1/device/mem_info_vram_total") ==
	      64 * (long long)MIB);
	CHECK(!descriptors_of("kfd") && process_bytes(getpid()) == -1);

	OK(HIP(hipGetDeviceCount)(&count));
	CHECK(descriptors_of("kfd") == 1 && descriptors_of("dri/renderD128") == 1 &&
	      descriptors_of("dri/renderD129") == 1);
	CHECK(process_bytes(getpid()) == 0 && !is_mapped("kfd"));
	OK(HIP(hipDeviceSynchronize)());
	CHECK(is_mapped("kfd"));

	/* KFD's number, sysfs's text and HIP's bytes identify the same GPU. */
	snprintf(path, sizeof(path), "%s/sys/class/drm/renderD129/device/unique_id",
		 sim_state_directory);
	file = fopen(path, "re");
	CHECK(file && fscanf(file, "%63s", text) == 1);
	fclose(file);
	hipUUID uuid;

	OK(HIP(hipDeviceGetUuid)(&uuid, 1));
	CHECK(strlen(text) == 16 && !memcmp(text, uuid.bytes, 16));
}

static void visible(int fd)
{
	hipUUID uuid;
	int count;

	setenv("ROCR_VISIBLE_DEVICES", "1,0", 1);
	setenv("HIP_VISIBLE_DEVICES", "0", 1);
	OK(HIP(hipGetDeviceCount)(&count));
	CHECK(count == 1);
	OK(HIP(hipDeviceGetUuid)(&uuid, 0));
	say(fd, &uuid, sizeof(uuid));
}

static void test_visible(struct child *child)
{
	hipUUID uuid, second;

	hear(child->fd, &uuid, sizeof(uuid));
	OK(HIP(hipDeviceGetUuid)(&second, 1));
	CHECK(!memcmp(&uuid, &second, sizeof(uuid)));
	child_finish(child);
}

/* 7.0 to 7.2: the size has to be that of the first mappings of the reservation. */
static void test_access_of_the_first(void)
{
	static const size_t sizes[] = {2 * MIB, 4 * MIB, 2 * MIB};
	hipMemGenericAllocationHandle_t handles[3];
	hipMemAllocationProp prop = sim_hip_prop(0);
	char *range, *at;

	setenv("GPUCR_SIM_HIP_VERSION", "7.0", 1);
	OK(HIP(hipMemAddressReserve)((void **)&range, 10 * MIB, 0, NULL, 0));
	at = range;
	for (size_t i = 0; i < 3; at += sizes[i++]) {
		OK(HIP(hipMemCreate)(&handles[i], sizes[i], &prop, 0));
		OK(HIP(hipMemMap)(at, sizes[i], 0, handles[i], 0));
	}
	OK(HIP(hipMemSetAccess)(range, 2 * MIB, &access_0, 1));
	RESULT(HIP(hipMemSetAccess)(range + 2 * MIB, 4 * MIB, &access_0, 1), hipErrorInvalidValue);
	OK(HIP(hipMemSetAccess)(range + 6 * MIB, 2 * MIB, &access_0,
				1)); /* the size of the first mapping */
	OK(HIP(hipMemSetAccess)(range, 6 * MIB, &access_0, 1));
	OK(HIP(hipMemSetAccess)(range, 8 * MIB, &access_0, 1));
	setenv("GPUCR_SIM_HIP_VERSION", "6.4", 1);
	OK(HIP(hipMemSetAccess)(range + 2 * MIB, 4 * MIB, &access_0, 1));
	at = range;
	for (size_t i = 0; i < 3; at += sizes[i++]) {
		OK(HIP(hipMemUnmap)(at, sizes[i]));
		OK(HIP(hipMemRelease)(handles[i]));
	}
	OK(HIP(hipMemAddressFree)(range, 10 * MIB));
	unsetenv("GPUCR_SIM_HIP_VERSION");
}

static size_t used(void)
{
	size_t free_bytes, total;

	OK(HIP(hipMemGetInfo)(&free_bytes, &total));
	return total - free_bytes;
}

/* 7.2: unmapped memory stays in use as long as its addresses are reserved. */
static void test_stays_mapped(void)
{
	static const char *const versions[] = {"7.1", "7.2", "7.14"};
	hipMemGenericAllocationHandle_t handle;
	hipMemAllocationProp prop = sim_hip_prop(0);
	size_t before;
	void *range;

	OK(HIP(hipSetDevice)(0));
	for (size_t i = 0; i < 3; i++) {
		setenv("GPUCR_SIM_HIP_VERSION", versions[i], 1);
		before = used();
		OK(HIP(hipMemAddressReserve)(&range, SIZE, 0, NULL, 0));
		OK(HIP(hipMemCreate)(&handle, SIZE, &prop, 0));
		OK(HIP(hipMemMap)(range, SIZE, 0, handle, 0));
		OK(HIP(hipMemSetAccess)(range, SIZE, &access_0, 1));
		OK(HIP(hipMemUnmap)(range, SIZE));
		OK(HIP(hipMemRelease)(handle));
		CHECK(used() == before + (i == 1 ? SIZE : 0));
		OK(HIP(hipMemAddressFree)(range, SIZE));
		CHECK(used() == before);
	}
	unsetenv("GPUCR_SIM_HIP_VERSION");
}

/* Up to 6.x a failure may be reported as success. */
static void test_quiet(void)
{
	hipMemGenericAllocationHandle_t handle;
	hipMemAllocationProp prop = sim_hip_prop(0);
	hipDeviceptr_t base;
	size_t bytes;
	void *range;

	OK(HIP(hipMemAddressReserve)(&range, SIZE, 0, NULL, 0));
	OK(HIP(hipMemCreate)(&handle, SIZE, &prop, 0));
	OK(HIP(hipMemMap)(range, SIZE, 0, handle, 0));
	RESULT(HIP(hipMemMap)(range, SIZE, 0, handle, 0), hipErrorInvalidValue);
	setenv("GPUCR_SIM_HIP_QUIET", "1", 1);
	OK(HIP(hipMemMap)(range, SIZE, 0, handle, 0));
	OK(HIP(hipMemGetAddressRange)(&base, &bytes, range));
	unsetenv("GPUCR_SIM_HIP_QUIET");
	OK(HIP(hipMemUnmap)(range, SIZE));
	OK(HIP(hipMemRelease)(handle));
	OK(HIP(hipMemAddressFree)(range, SIZE));
}

int main(void)
{
	sim_hip_begin("2", "64M");

	struct child child = child_start(importer), other = child_start(visible);

	test_files();
	test_visible(&other);
	test_processes(&child);
	test_arguments();
	test_export();
	test_access_of_the_first();
	test_stays_mapped();
	test_quiet();
	test_later();
	test_granularity();
	return 0;
}
