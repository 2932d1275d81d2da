/* SPDX-License-Identifier: MIT */
/*
 * The table of the signs. Only names are compared: a user who maps a file of such a name makes
 * freezes of his own processes fail, but not those of other users.
 */
#include "lib/sharing_sign.h"

#include <stddef.h>
#include <string.h>

#include "lib/cleanup.h"

static const char *const names[GCR_SHARERS] = {
	[GCR_SHARER_NONE] = "",		  [GCR_SHARER_NCCL] = "NCCL",
	[GCR_SHARER_NVSHMEM] = "NVSHMEM", [GCR_SHARER_MSCCLPP] = "MSCCL++",
	[GCR_SHARER_UCX] = "UCX",	  [GCR_SHARER_OPEN_MPI] = "Open MPI",
};

/*
 * A sign matches a file whose name begins with @begins, in a directory that ends in @directory
 * (NULL: any). AMD's RCCL is missing on purpose: no engine freezes an AMD process whose sharing
 * cannot be seen.
 */
static const struct {
	enum gcr_sharer sharer;
	const char *directory;
	const char *begins;
} signs[] = {
	/*
	 * The library, and its plugins (libnccl-net.so ...), which a statically linked NCCL loads
	 * too.
	 */
	{GCR_SHARER_NCCL, NULL, "libnccl"},
	/*
	 * The segments by which the ranks of one host find each other; a statically linked NCCL has
	 * them too.
	 */
	{GCR_SHARER_NCCL, "/dev/shm", "nccl-"},
	{GCR_SHARER_NVSHMEM, NULL, "libnvshmem"},
	{GCR_SHARER_MSCCLPP, NULL, "libmscclpp"},
	/* Contains the transport cuda_ipc; UCX loads it where there is CUDA. */
	{GCR_SHARER_UCX, NULL, "libuct_cuda"},
	/* Open MPI's transport by CUDA IPC, for ranks of one host. */
	{GCR_SHARER_OPEN_MPI, NULL, "mca_btl_smcuda"},
};

const char *gcr_sharer_name(enum gcr_sharer sharer)
{
	return names[sharer];
}

/* Does the part of @path before @end end in @directory? */
static int ends_in(const char *path, const char *end, const char *directory)
{
	size_t length = strlen(directory);

	return (size_t)(end - path) >= length && !memcmp(end - length, directory, length);
}

enum gcr_sharer gcr_sharing_sign(const char *path)
{
	const char *slash = strrchr(path, '/');

	/* Anything else is not a file ("[heap]"). */
	if (*path != '/')
		return GCR_SHARER_NONE;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(signs); i++)
		if (!strncmp(slash + 1, signs[i].begins, strlen(signs[i].begins)) &&
		    (!signs[i].directory || ends_in(path, slash, signs[i].directory)))
			return signs[i].sharer;
	return GCR_SHARER_NONE;
}
