/* SPDX-License-Identifier: MIT */
/*
 * Legacy CUDA IPC for allocations of the library: the contents of a CUipcMemHandle, and the
 * messages on the socket at which the exporting process listens. (The exporter: the process whose
 * memory a handle stands for. The importer: a process that opens the handle.)
 */
#ifndef GCR_PRELOAD_IPC_H
#define GCR_PRELOAD_IPC_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/cuda_api.h"

#define GCR_IPC_MAGIC 0x3243504972636721ull /* "!gcrIPC2" */

/* Always the same for one allocation, since programs compare handles. */
struct gcr_ipc_token {
	uint64_t magic;
	uint8_t process[16]; /* random: the name of the exporter's socket, which all users see */
	uint64_t id;	     /* of the memory in the exporter's table */
	uint64_t address;    /* in the exporter */
	uint64_t bytes;	     /* as it was allocated */
	int32_t pid;	     /* of the exporter, for messages */
	uint8_t secret[12];  /* random: the exporter's, for those to whom it has given a handle */
};
_Static_assert(sizeof(struct gcr_ipc_token) == CU_IPC_HANDLE_SIZE, "fills a CUipcMemHandle");

/*
 * A request of an importer. An importer has one connection to each exporter, for all memory of that
 * exporter which it has open, and closes the connection with the last piece. OPEN is answered, and
 * if `error` is 0 the answer comes with a descriptor of the memory; CLOSE is not answered.
 */
struct gcr_ipc_request {
	uint32_t kind;	/* enum gcr_ipc_kind */
	uint32_t count; /* CLOSE: number of pieces closed */
	struct gcr_ipc_token token;
};

enum gcr_ipc_kind {
	GCR_IPC_OPEN = 1,
	GCR_IPC_CLOSE = 2,
};

struct gcr_ipc_answer {
	int32_t error; /* positive errno; EAGAIN: the exporter's gate is closed, retry later */
	uint32_t reserved;
	uint64_t mapped_bytes;
};

/*
 * Opens the exporter's socket and its thread if needed, and fills in the token's `process` and
 * `secret`; -errno.
 */
int gcr_ipc_listen(struct gcr_ipc_token *token);
/* Is @process the name of this process's socket? */
bool gcr_ipc_is_own(const uint8_t process[16]);
/* Is there a socket from which other processes can get this process's memory? */
bool gcr_ipc_is_listening(void);

/* Fills in the address of the socket called @process. Returns the length of the address. */
struct sockaddr_un;
unsigned int gcr_ipc_address(const uint8_t process[16], struct sockaddr_un *ret_address);

/* ---- ipc_ask.c: the importer's half ---- */

struct gcr_ipc_exporter;

/*
 * Requests the memory of @token from its exporter. Called inside the gate by one thread at a time.
 * Returns 0: *ret_fd is a descriptor of the memory, the caller's; *ret_exporter counts one more
 * open piece until gcr_ipc_give_back(). -EAGAIN: the exporter is frozen, or this process's gate is
 * about to close: leave the gate and retry after a pause. Another -errno: the exporter has ended,
 * or does not have the memory any more.
 */
int gcr_ipc_ask(const struct gcr_ipc_token *token, struct gcr_ipc_exporter **ret_exporter,
		uint64_t *ret_mapped_bytes, int *ret_fd);

/*
 * Gives back one piece that was closed; @exporter may be NULL. Any thread may call this; it never
 * blocks for long.
 */
void gcr_ipc_give_back(struct gcr_ipc_exporter *exporter);

/* ---- ipc.c ---- */

/*
 * Called around a driver call that frees the driver's own memory at @address, which may have been
 * exported. begin_end() removes the note of the export before the call, since another thread can
 * get the same address right after the call. The memory counts as shared until finish_end() knows
 * that the call succeeded.
 */
struct gcr_ipc_end {
	CUdeviceptr start;
	CUcontext context;
	bool is_exported;
};
struct gcr_ipc_end gcr_ipc_begin_end(CUdeviceptr address);
void gcr_ipc_finish_end(const struct gcr_ipc_end *end, CUresult result);

#endif
