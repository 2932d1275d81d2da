/* SPDX-License-Identifier: MIT */
/*
 * The parts of the target `peer`: the daemon's code in this process, helpers that are functions
 * instead of programs (peer_helpers.c), and programs whose preload library is a thread of this
 * process (peer_program.c). VRAM is memory files.
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

/* Returns the UUID of a GPU. */
void peer_gpu_uuid(unsigned int gpu, uint8_t ret_uuid[GCR_UUID_BYTES]);
/*
 * Adds a running process with some VRAM on this GPU to the driver's list, or removes the process.
 */
void peer_driver_add(pid_t pid, unsigned int gpu);
void peer_driver_remove(pid_t pid);

/* ---- peer_program.c ---- */

/* Controls how a lying library lies: each request consumes some bytes. */
struct peer_script {
	const uint8_t *bytes;
	size_t count;
	size_t used;
};

struct peer_memory {
	struct gcr_extent extent;
	int fd; /* of VRAM, or of a file of managed memory; -1: not here at present */
};

struct peer_program {
	pid_t pid;
	unsigned int gpu;
	struct peer_script script; /* empty: the library is honest */
	struct peer_memory memory[PEER_EXTENTS_MAX];
	size_t count, device_count;
	uint64_t seed; /* of the pattern in its memory */

	int socket, page_fd;
	struct gcr_page *page;
	uint32_t phase; /* enum gcr_preload_phase */
	char generation[40];
	uint32_t stubborn; /* if not 0, the library answers every request with this errno */

	pthread_t thread;
	int stop_fd; /* eventfd that ends the library's thread */
	struct gcr_message message;
	void *stack;
};

/* Starts a process connected to the socket at @path, with a registered library. */
struct peer_program *peer_program_start(const char *path, unsigned int gpu, size_t device_count,
					size_t managed_count, const uint8_t *script, size_t bytes);
/* Kills the process. */
void peer_program_kill(struct peer_program *program);
/* Releases the rest: the library's thread, descriptors and memory. */
void peer_program_end(struct peer_program *program);
/*
 * Returns whether the contents are those written at the start. Valid only while the program runs.
 */
bool peer_program_is_right(const struct peer_program *program);

#endif
