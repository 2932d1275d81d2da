/* SPDX-License-Identifier: MIT */
/* Signs that a process may share GPU memory with others: the libraries that it has mapped. */
#ifndef GCR_SHARING_SIGN_H
#define GCR_SHARING_SIGN_H

/* Libraries whose processes find each other and share GPU memory. */
enum gcr_sharer {
	GCR_SHARER_NONE,
	GCR_SHARER_NCCL,
	GCR_SHARER_NVSHMEM,
	GCR_SHARER_MSCCLPP,
	GCR_SHARER_UCX,
	GCR_SHARER_OPEN_MPI,
	GCR_SHARERS,
};

/* "NCCL" */
const char *gcr_sharer_name(enum gcr_sharer sharer);

/* The library that the file @path in /proc/PID/maps belongs to; GCR_SHARER_NONE: none of them. */
enum gcr_sharer gcr_sharing_sign(const char *path);

#endif
