/* SPDX-License-Identifier: MIT */
/*
 * Legacy CUDA IPC on allocations of ours: what a CUipcMemHandle holds, and what is said over the
 * socket that the exporter listens at.
 */
#ifndef GCR_PRELOAD_IPC_H
#define GCR_PRELOAD_IPC_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"

#define GCR_IPC_MAGIC 0x3143504972636721ull /* "!gcrIPC1" */

/* Of one allocation always the same: programs compare handles. */
struct gcr_ipc_token {
	uint64_t magic;
	uint8_t process[16]; /* random: the name of the exporter's socket */
	uint64_t id;	     /* of the memory in the exporter's table */
	uint64_t address;    /* in the exporter */
	uint64_t bytes;	     /* as it was allocated */
	int32_t pid;	     /* of the exporter, for people */
	uint32_t reserved[3];
};
_Static_assert(sizeof(struct gcr_ipc_token) == CU_IPC_HANDLE_SIZE, "fills a CUipcMemHandle");

/*
 * The importer sends a token; the answer has a descriptor of the memory if `error` is 0. The
 * connection then stays open as long as the importer has the memory mapped.
 */
struct gcr_ipc_answer {
	int32_t error; /* positive errno */
	uint32_t reserved;
	uint64_t mapped_bytes;
};

/* Listen, and say by which name; -errno. The thread that answers is started the first time. */
int gcr_ipc_listen(uint8_t ret_process[16]);
/* Is that this process's name? */
bool gcr_ipc_is_own(const uint8_t process[16]);
/* Is there a socket by which others get memory of ours? */
bool gcr_ipc_is_listening(void);

/* The address of the socket of @process. Returns its length. */
struct sockaddr_un;
unsigned int gcr_ipc_address(const uint8_t process[16], struct sockaddr_un *ret_address);

/* Is the process at the other end of @socket one of this user's, or root's? */
int gcr_ipc_trusted(int socket);

/* Memory of the driver's own at @address has been freed. */
void gcr_ipc_freed(CUdeviceptr address);
void gcr_ipc_context_gone(CUcontext context);

/* In the child of a fork. */
void gcr_ipc_forget(void);
void gcr_ipc_server_forget(void);

#endif
