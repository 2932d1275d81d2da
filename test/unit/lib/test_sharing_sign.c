/* SPDX-License-Identifier: MIT */
/*
 * The mapped files that indicate that a process may share GPU memory, and similar names that do
 * not.
 */
#include "lib/sharing_sign.h"

#include <string.h>

#include "lib/cleanup.h"
#include "test/unit/test.h"

static const struct {
	const char *path;
	enum gcr_sharer sharer;
} paths[] = {
	{"/usr/lib/x86_64-linux-gnu/libnccl.so.2", GCR_SHARER_NCCL},
	{"/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.3 (deleted)", GCR_SHARER_NCCL},
	{"/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2", GCR_SHARER_NCCL},
	{"/opt/aws-ofi-nccl/lib/libnccl-net.so", GCR_SHARER_NCCL},
	{"/dev/shm/nccl-AbCdEf", GCR_SHARER_NCCL},
	{"/dev/shm/nccl-AbCdEf (deleted)", GCR_SHARER_NCCL},
	{"/usr/lib/libnvshmem_host.so.3", GCR_SHARER_NVSHMEM},
	{"/libnvshmem_bootstrap_uid.so", GCR_SHARER_NVSHMEM},
	{"/opt/mscclpp/lib/libmscclpp.so.0", GCR_SHARER_MSCCLPP},
	{"/usr/lib/ucx/libuct_cuda.so.0", GCR_SHARER_UCX},
	{"/venv/nixl.libs/ucx/libuct_cuda-5c8e0a1d.so.0.0.0", GCR_SHARER_UCX},
	{"/usr/lib/openmpi/lib/openmpi3/mca_btl_smcuda.so", GCR_SHARER_OPEN_MPI},
	{"/usr/lib/libcuda.so.1", GCR_SHARER_NONE},
	{"/venv/torch/lib/libtorch_cuda.so", GCR_SHARER_NONE},
	{"/usr/lib/ucx/libuct.so.0", GCR_SHARER_NONE},
	{"/home/user/shm/nccl-AbCdEf", GCR_SHARER_NONE},
	{"/dev/shm/my-nccl-AbCdEf", GCR_SHARER_NONE},
	{"/home/user/libnccl.so.2/data", GCR_SHARER_NONE},
	{"/home/user/mylibnccl.so", GCR_SHARER_NONE},
	{"[heap]", GCR_SHARER_NONE},
	{"libnccl.so.2", GCR_SHARER_NONE},
	{"/", GCR_SHARER_NONE},
	{"", GCR_SHARER_NONE},
};

int main(void)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(paths); i++)
		CHECK(gcr_sharing_sign(paths[i].path) == paths[i].sharer);
	for (int i = GCR_SHARER_NONE + 1; i < GCR_SHARERS; i++)
		CHECK(strlen(gcr_sharer_name((enum gcr_sharer)i)) > 0);
	return 0;
}
