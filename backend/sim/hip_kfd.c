/* SPDX-License-Identifier: MIT */
/*
 * The files that a kernel with AMD's driver shows in /sys, as a tree in the directory `sys`:
 *
 *	class/kfd/kfd/topology/nodes/0 (the CPU), 1... (GPUs):
 *		gpu_id, name, properties, mem_banks/0/properties
 *	class/kfd/kfd/proc/PID/vram_GPUID: VRAM allocated by the process, in bytes
 *	devices/pci0000:c0/BUSID/: unique_id, mem_info_vram_total, mem_info_vram_used...
 *		also as bus/pci/devices/BUSID and class/drm/{cardN,renderDN}/device
 *
 * The kernel generates the contents at each read; here every call that changes the memory in use
 * writes the files, under the shared lock. A killed process cannot do so: see hipSimRefreshSysfs().
 * As in the kernel's counters, memory counts for the process that allocated it, while that process
 * holds it: not for an importer, and for no process while only descriptors are left.
 */
#include "backend/sim/hip.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#define PROC "sys/class/kfd/kfd/proc"
#define BUS  "0000:%02x:00.0"

/*
 * Creates directories in which every user may remove entries: any process that finds another one
 * dead removes its entries.
 */
static void make_directories(const char *path)
{
	char part[PATH_MAX];

	for (const char *end = strchr(path + strlen(shared_directory()) + 1, '/');;
	     end = strchr(end + 1, '/')) {
		size_t length = end ? (size_t)(end - path) : strlen(path);

		memcpy(part, path, length);
		part[length] = '\0';
		if (!mkdir(part, 0777))
			chmod(part, 0777);
		if (!end)
			break;
	}
}

static void __attribute__((format(printf, 1, 2))) directory_make(const char *format, ...)
{
	char below[PATH_MAX / 2], path[PATH_MAX];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(below, sizeof(below), format, arguments);
	va_end(arguments);
	shared_device_path(path, "%s", below);
	make_directories(path);
}

static void file_write(const char *name, const char *text)
{
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX];

	shared_device_path(path, "%s", name);
	fd = shared_open_file(path, O_WRONLY);
	/* If writing fails, the missing file shows it. */
	if (fd < 0 || pwrite(fd, text, strlen(text), 0) < 0)
		return;
}

/*
 * Writes a number with one write(2) and constant length, so that readers never see a partial
 * number.
 */
static void number_write(const char *name, uint64_t number)
{
	char text[32];
	int length = snprintf(text, sizeof(text), "%" PRIu64, number);

	memset(text + length, '\n', 22 - (size_t)length);
	text[22] = '\0';
	file_write(name, text);
}

static void __attribute__((format(printf, 2, 3))) link_make(const char *to, const char *format, ...)
{
	char below[PATH_MAX / 2], path[PATH_MAX];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(below, sizeof(below), format, arguments);
	va_end(arguments);
	shared_device_path(path, "%s", below);
	if (symlink(to, path) < 0)
		return; /* exists from an earlier state */
}

/* Returns KFD's number of the GPUs' architecture: 90010 for gfx90a. */
static unsigned target_version(void)
{
	char digits[16];
	unsigned minor = 0, stepping = 0;
	size_t length;

	snprintf(digits, sizeof(digits), "%s", hip_architecture() + strlen("gfx"));
	length = strcspn(digits, ":");
	digits[length] = '\0';
	if (length < 3)
		return 0;
	sscanf(digits + length - 1, "%1x", &stepping);
	sscanf(digits + length - 2, "%1x", &minor);
	digits[length - 2] = '\0';
	return (unsigned)strtoul(digits, NULL, 10) * 10000 + minor * 100 + stepping;
}

static void cpu_make(void)
{
	directory_make("sys/class/kfd/kfd/topology/nodes/0");
	file_write("sys/class/kfd/kfd/topology/generation_id", "1\n");
	file_write("sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n");
	file_write("sys/class/kfd/kfd/topology/nodes/0/name", "\n");
	file_write("sys/class/kfd/kfd/topology/nodes/0/properties",
		   "cpu_cores_count 2\nsimd_count 0\nmem_banks_count 1\nvendor_id 0\n"
		   "device_id 0\nlocation_id 0\ndomain 0\nunique_id 0\n");
}

static void node_make(unsigned gpu, const char *unique_id, uint64_t capacity_bytes)
{
	char name[160], text[1024];
	unsigned node = gpu + 1;

	directory_make("sys/class/kfd/kfd/topology/nodes/%u/mem_banks/0", node);
	snprintf(name, sizeof(name), "sys/class/kfd/kfd/topology/nodes/%u/gpu_id", node);
	snprintf(text, sizeof(text), "%u\n", hip_gpu_id(gpu));
	file_write(name, text);
	snprintf(name, sizeof(name), "sys/class/kfd/kfd/topology/nodes/%u/name", node);
	file_write(name, "simulated\n");
	snprintf(name, sizeof(name), "sys/class/kfd/kfd/topology/nodes/%u/properties", node);
	snprintf(text, sizeof(text),
		 "cpu_cores_count 0\nsimd_count 8\nmem_banks_count 1\nwave_front_size 64\n"
		 "gfx_target_version %u\nvendor_id 4098\ndevice_id 29857\nlocation_id %u\n"
		 "domain 0\ndrm_render_minor %u\nnum_xcc 1\nunique_id %" PRIu64 "\n",
		 target_version(), hip_gpu_bus(gpu) << 8, HIP_RENDER_MINOR + gpu,
		 (uint64_t)strtoull(unique_id, NULL, 16));
	file_write(name, text);
	snprintf(name, sizeof(name), "sys/class/kfd/kfd/topology/nodes/%u/mem_banks/0/properties",
		 node);
	snprintf(text, sizeof(text),
		 "heap_type 1\nsize_in_bytes %" PRIu64 "\nflags 0\nwidth 8192\n", capacity_bytes);
	file_write(name, text);
}

static void device_make(unsigned gpu, const char *unique_id, uint64_t capacity_bytes)
{
	char directory[96], name[192], text[64];
	const unsigned bus = hip_gpu_bus(gpu), minor = HIP_RENDER_MINOR + gpu;

	snprintf(directory, sizeof(directory), "sys/devices/pci0000:c0/" BUS, bus);
	directory_make("%s", directory);
	snprintf(name, sizeof(name), "%s/unique_id", directory);
	snprintf(text, sizeof(text), "%s\n", unique_id);
	file_write(name, text);
	snprintf(name, sizeof(name), "%s/product_name", directory);
	file_write(name, "Simulated AMD GPU\n");
	snprintf(name, sizeof(name), "%s/vendor", directory);
	file_write(name, "0x1002\n");
	snprintf(name, sizeof(name), "%s/device", directory);
	file_write(name, "0x74a1\n");
	snprintf(name, sizeof(name), "%s/mem_info_vram_total", directory);
	number_write(name, capacity_bytes);
	snprintf(name, sizeof(name), "%s/mem_info_vram_used", directory);
	number_write(name, 0);

	directory_make("sys/bus/pci/devices");
	snprintf(text, sizeof(text), "../../../devices/pci0000:c0/" BUS, bus);
	link_make(text, "sys/bus/pci/devices/" BUS, bus);
	directory_make("sys/class/drm/card%u", gpu);
	directory_make("sys/class/drm/renderD%u", minor);
	link_make(text, "sys/class/drm/card%u/device", gpu);
	link_make(text, "sys/class/drm/renderD%u/device", minor);
}

void hip_kfd_make(const struct shared_state *state)
{
	directory_make(PROC);
	directory_make("sys/module/amdgpu");
	file_write("sys/module/amdgpu/version", "6.8.5\n");
	cpu_make();
	for (unsigned gpu = 0; gpu < state->gpu_count; gpu++) {
		char unique_id[17];

		memcpy(unique_id, state->gpus[gpu].uuid, 16);
		unique_id[16] = '\0';
		node_make(gpu, unique_id, state->gpus[gpu].capacity_bytes);
		device_make(gpu, unique_id, state->gpus[gpu].capacity_bytes);
	}
}

void hip_kfd_process_gone(int pid)
{
	char path[PATH_MAX];
	struct dirent *entry;
	DIR *directory;

	shared_device_path(path, PROC "/%d", pid);
	directory = opendir(path);
	while (directory && (entry = readdir(directory)))
		if (*entry->d_name != '.')
			unlinkat(dirfd(directory), entry->d_name, 0);
	if (directory)
		closedir(directory);
	rmdir(path);
}

static uint64_t allocated_bytes(const struct shared_process *process, unsigned gpu)
{
	uint64_t bytes = process->context_bytes[gpu] + process->managed_bytes[gpu];

	for (unsigned i = 0; i < shared->allocation_high; i++) {
		const struct shared_allocation *allocation = &shared->allocations[i];

		if (allocation->id && allocation->gpu == gpu &&
		    allocation->maker == process->generation &&
		    holder_test(allocation->holders, (unsigned)(process - shared->processes)))
			bytes += allocation->size_bytes;
	}
	return bytes;
}

static void process_tell(struct shared_process *process)
{
	char name[96];

	/* A checkpointed process has closed its device files, so it has no entry. */
	if (!process->pid || process->state == CU_PROCESS_STATE_CHECKPOINTED) {
		if (process->pid && process->is_told)
			hip_kfd_process_gone(process->pid);
		process->is_told = 0;
		return;
	}
	if (!process->is_told)
		directory_make(PROC "/%d", process->pid);
	for (unsigned gpu = 0; gpu < shared->gpu_count; gpu++) {
		uint64_t bytes = allocated_bytes(process, gpu);

		if (process->is_told && process->told_bytes[gpu] == bytes)
			continue;
		snprintf(name, sizeof(name), PROC "/%d/vram_%u", process->pid, hip_gpu_id(gpu));
		number_write(name, bytes);
		process->told_bytes[gpu] = bytes;
	}
	process->is_told = 1;
}

void hip_kfd_update(void)
{
	char name[96];

	for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
		process_tell(&shared->processes[i]);
	for (unsigned gpu = 0; gpu < shared->gpu_count; gpu++) {
		uint64_t used = shared_gpu_used_bytes(gpu);

		if (used == shared->gpus[gpu].told_bytes)
			continue;
		snprintf(name, sizeof(name), "sys/devices/pci0000:c0/" BUS "/mem_info_vram_used",
			 hip_gpu_bus(gpu));
		number_write(name, used);
		shared->gpus[gpu].told_bytes = used;
	}
}
