/* SPDX-License-Identifier: MIT */
/* Mapped files that say that a process may share GPU memory with others. */
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

/* Which of them a file that a process has mapped belongs to, by its @path in /proc/PID/maps. */
enum gcr_sharer gcr_sharing_sign(const char *path);

#endif
