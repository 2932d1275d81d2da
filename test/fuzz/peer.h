/* SPDX-License-Identifier: MIT */
/*
 * What the target `peer` is made of: the daemon's parts in this process, helpers that are functions
 * instead of programs (peer_helpers.c), and programs whose preload library is a thread of ours
 * (peer_program.c). VRAM is memory files.
 */
#ifndef GCR_TEST_FUZZ_PEER_H
#define GCR_TEST_FUZZ_PEER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/message.h"
#include "lib/protocol.h"

#define PEER_GPUS	  2
#define PEER_EXTENT_BYTES (2u << 20)
#define PEER_EXTENTS_MAX  8

/* ---- peer_helpers.c ---- */

/* The id of a GPU. */
void peer_gpu_uuid(unsigned int gpu, uint8_t ret_uuid[GCR_UUID_BYTES]);
/* The driver knows this process, which runs and has some VRAM on this GPU; or forgets it. */
void peer_driver_add(pid_t pid, unsigned int gpu);
void peer_driver_remove(pid_t pid);

/* ---- peer_program.c ---- */

/* How a library lies, byte by byte: each request it gets takes some. */
struct peer_script {
	const uint8_t *bytes;
	size_t count;
	size_t used;
};

struct peer_memory {
	struct gcr_extent extent;
	int fd; /* of VRAM, or of the file of managed memory; -1: it is not here */
};

struct peer_program {
	pid_t pid;
	unsigned int gpu;
	struct peer_script script; /* empty: it is honest */
	struct peer_memory memory[PEER_EXTENTS_MAX];
	size_t count, device_count;
	uint64_t seed; /* of its contents */

	int socket, page_fd;
	struct gcr_page *page;
	uint32_t phase; /* enum gcr_preload_phase */
	char generation[40];
	uint32_t stubborn; /* it answers all requests with this errno */

	pthread_t thread;
	int stop_fd; /* an eventfd that ends the thread */
	struct gcr_message message;
	void *stack;
};

/* A process that is connected to the socket at @path, and a library in it that is registered. */
struct peer_program *peer_program_start(const char *path, unsigned int gpu, size_t device_count,
					size_t managed_count, const uint8_t *script, size_t bytes);
/* It is killed. */
void peer_program_kill(struct peer_program *program);
/* And what is left of it goes. */
void peer_program_end(struct peer_program *program);
/* Are the contents what they were when it was started? Only while it runs. */
bool peer_program_is_right(const struct peer_program *program);

#endif
