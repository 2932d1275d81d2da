/* SPDX-License-Identifier: MIT */
/* Processes killed at any instant leave nothing behind: no lock held, no memory in use. */
#include "test/unit/sim.h"

#define PROCESSES 4
#define ROUNDS	  60

static void worker(int fd)
{
	CUmemAllocationProp prop = sim_prop();
	unsigned seed = (unsigned)getpid();
	CUdeviceptr pointer;

	sim_context();
	say_byte(fd, 'r');
	for (;;) {
		CUmemGenericAllocationHandle handle;
		size_t size = (1 + (size_t)rand_r(&seed) % 3) * 2 * MIB;
		int shareable;

		if (!CU(cuMemAlloc_v2)(&pointer, size))
			OK(CU(cuMemFree_v2)(pointer));
		if (CU(cuMemCreate)(&handle, size, &prop, 0))
			continue;
		OK(CU(cuMemExportToShareableHandle)(&shareable, handle,
						    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		close(shareable);
		OK(CU(cuMemRelease)(handle));
	}
}

int main(void)
{
	struct child children[PROCESSES];
	unsigned seed = 1;

	sim_begin("1", "64M");
	for (int i = 0; i < PROCESSES; i++)
		children[i] = child_start(worker);
	for (int round = 0; round < ROUNDS; round++) {
		struct child *child = &children[round % PROCESSES];

		CHECK(hear_byte(child->fd) == 'r');
		usleep((useconds_t)rand_r(&seed) % 5000);
		child_kill(child);
		*child = child_start(worker);
	}
	for (int i = 0; i < PROCESSES; i++)
		child_kill(&children[i]);
	sim_context();
	CHECK(sim_free_bytes() == 60 * MIB);
	return 0;
}
