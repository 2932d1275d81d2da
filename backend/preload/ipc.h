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

#define GCR_IPC_MAGIC 0x3243504972636721ull /* "!gcrIPC2" */

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
 * What an importer sends. It has one connection for all that it opens of one exporter, which stays
 * open as long as it has some of that mapped. OPEN is answered, and the answer has a descriptor of
 * the memory if `error` is 0; CLOSE is not.
 */
struct gcr_ipc_request {
	uint32_t kind;	/* enum gcr_ipc_kind */
	uint32_t count; /* CLOSE: so many are closed */
	struct gcr_ipc_token token;
};

enum gcr_ipc_kind {
	GCR_IPC_OPEN = 1,
	GCR_IPC_CLOSE = 2,
};

struct gcr_ipc_answer {
	int32_t error; /* positive errno; EAGAIN: the exporter's gate is closed, ask again later */
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

/* ---- ipc_ask.c: the importer's half ---- */

struct gcr_ipc_exporter;

/*
 * Ask the exporter for the memory that @token is about, inside the gate and one thread at a time.
 * 0: *ret_fd is a descriptor of it, the caller's, and *ret_exporter knows that one more piece is
 * open here until gcr_ipc_give_back(). -EAGAIN: the exporter is frozen, or this process's gate is
 * about to close: leave the gate, and ask again after a pause. Another -errno: it has ended, or has
 * the memory no more.
 */
int gcr_ipc_ask(const struct gcr_ipc_token *token, struct gcr_ipc_exporter **ret_exporter,
		uint64_t *ret_mapped_bytes, int *ret_fd);

/* A piece is open no more. NULL is allowed. Any thread; waits for nothing long. */
void gcr_ipc_give_back(struct gcr_ipc_exporter *exporter);

/* In the child of a fork. */
void gcr_ipc_ask_forget(void);

/* ---- ipc.c ---- */

/*
 * Around the driver's call that frees memory of its own at @address, which may have been exported.
 * The note of that is taken away before the call, since another thread can be given the address at
 * once; the memory counts as shared until it is known that the call succeeded.
 */
struct gcr_ipc_end {
	CUdeviceptr start;
	CUcontext context;
	bool is_exported;
};
struct gcr_ipc_end gcr_ipc_begin_end(CUdeviceptr address);
void gcr_ipc_finish_end(const struct gcr_ipc_end *end, CUresult result);
void gcr_ipc_context_gone(CUcontext context);

/* In the child of a fork. */
void gcr_ipc_forget(void);
void gcr_ipc_server_forget(void);

#endif
