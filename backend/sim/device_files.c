/* SPDX-License-Identifier: MIT */
/* The device files that the process has open, and its mapping of the compute file. */
#include "backend/sim/sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

static int open_device(const char *name)
{
	char path[PATH_MAX];

	shared_device_path(path, "%s", name);
	return shared_open_file(path, O_RDWR);
}

/*
 * A process with a context has one mapping of the compute file, which its children do not inherit
 * (measured with nvidia-uvm). The mapping distinguishes a process that computes from one that only
 * queries.
 */
static int compute_map(bool wanted)
{
	if (wanted && !sim.compute_mapping) {
		void *mapping = mmap(NULL, 4096, PROT_NONE, MAP_SHARED, sim.compute_fd, 0);

		if (mapping == MAP_FAILED || madvise(mapping, 4096, MADV_DONTFORK) < 0)
			return -EIO;
		sim.compute_mapping = mapping;
	} else if (!wanted && sim.compute_mapping) {
		munmap(TAKE_PTR(sim.compute_mapping), 4096);
	}
	return 0;
}

/* Returns the length of sim.device_fd: all GPUs of the machine, or the process's devices. */
static unsigned device_file_count(void)
{
	return sim_vendor.opens_all_devices ? shared->gpu_count : sim.device_count;
}

int device_files_open(void)
{
	bool any_context = false;
	char name[32];

	if (sim_vendor.control_file && sim.control_fd < 0)
		sim.control_fd = open_device(sim_vendor.control_file);
	if (sim.compute_fd < 0)
		sim.compute_fd = open_device(sim_vendor.compute_file);
	if ((sim_vendor.control_file && sim.control_fd < 0) || sim.compute_fd < 0)
		return -EIO;
	for (unsigned i = 0; i < sim.device_count; i++)
		any_context = any_context || device_has_context((int)i);
	for (unsigned i = 0; i < device_file_count(); i++) {
		bool wanted = sim_vendor.opens_all_devices || device_has_context((int)i);
		unsigned gpu = sim_vendor.opens_all_devices ? i : sim.gpu_of_device[i];

		if (wanted && sim.device_fd[i] < 0) {
			snprintf(name, sizeof(name), "%s%u", sim_vendor.device_file,
				 sim_vendor.device_file_first + gpu);
			sim.device_fd[i] = open_device(name);
		} else if (!wanted && sim.device_fd[i] >= 0) {
			close(TAKE_FD(sim.device_fd[i]));
		}
	}
	return compute_map(any_context);
}

void device_files_close(void)
{
	compute_map(false);
	for (unsigned i = 0; i < SIM_MAX_GPUS; i++)
		if (sim.device_fd[i] >= 0)
			close(TAKE_FD(sim.device_fd[i]));
	if (sim.compute_fd >= 0)
		close(TAKE_FD(sim.compute_fd));
	if (sim.control_fd >= 0)
		close(TAKE_FD(sim.control_fd));
}
