/* SPDX-License-Identifier: MIT */
/*
 * For tests of gpucr-worker: a process with a copy of the content of its memory, which may change
 * between its sessions.
 */
#ifndef GPUCR_TEST_WORKER_IMAGE_H
#define GPUCR_TEST_WORKER_IMAGE_H

#include "test/unit/worker/worker.h"

#define PIECE	     (2 * MIB)
#define CHUNK	     ((uint64_t)GCR_CHUNK_BYTES)
#define PIECE_CHUNKS (PIECE / CHUNK)
#define IMAGE_MAX    8

/* ---- a process and the content of its memory ---- */

struct image {
	struct process process;
	char *memory[IMAGE_MAX];
};

static uint64_t random_state = 1;

static inline uint64_t any(uint64_t below)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (random_state >> 33) % below;
}

/* Makes bytes that occur nowhere else, and are never all zeros. */
UNSEEN static inline void make_new(char *memory, uint64_t bytes)
{
	uint64_t word = any(1u << 30) | 1;

	for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
		word = word * 6364136223846793005u + 1442695040888963407u;
		memcpy(memory + at, &word, 8);
	}
	memory[0] |= 1;
}

static inline uint64_t bytes_of(const struct image *image, size_t index)
{
	return image->process.extents[index].bytes;
}

static inline struct image image_create(const uint64_t *bytes, size_t count)
{
	struct image image = {.process = process_create(store, 1, 0, bytes, count)};

	CHECK(count <= IMAGE_MAX);
	for (size_t i = 0; i < count; i++) {
		image.memory[i] = malloc(bytes[i]);
		CHECK(image.memory[i]);
		make_new(image.memory[i], bytes[i]);
	}
	return image;
}

static inline void image_destroy(struct image *image)
{
	for (size_t i = 0; i < image->process.count; i++)
		free(image->memory[i]);
	process_destroy(&image->process);
}

/* Copies image->memory into the VRAM of the process, which is allocated if there is none. */
static inline void image_put(struct image *image)
{
	for (size_t i = 0; i < image->process.count; i++) {
		if (image->process.handles[i])
			process_put(&image->process, i, image->memory[i]);
		else
			process_allocate_piece(&image->process, i, image->memory[i]);
	}
}

/* Writes to a file without the worker's knowledge. */
static inline void write_file(const struct image *image, size_t index, uint64_t at,
			      const void *bytes, size_t count)
{
	_cleanup_close_ int fd = process_open(&image->process, index);

	CHECK(pwrite(fd, bytes, count, (off_t)at) == (ssize_t)count);
}

/* ---- sessions ---- */

/* Copies the memory out of VRAM; the process keeps its VRAM. */
static inline void go_out(struct worker *worker, struct image *image)
{
	image_put(image);
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_OUT, &image->process, 0));
	DONE(session_import(worker, &image->process));
	DONE(worker_do(worker, GCR_MESSAGE_COPY));
	DONE(worker_do(worker, GCR_MESSAGE_END));
}

/* Releases the VRAM, copies the files into new VRAM, and compares that with image->memory. */
static inline void come_in(struct worker *worker, struct image *image)
{
	struct process *process = &image->process;

	process_release(process, true);
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_IN, process, 0));
	DONE(worker_do(worker, GCR_MESSAGE_CREATE));
	DONE(worker_do(worker, GCR_MESSAGE_COPY));
	DONE(session_export(worker, process));
	for (size_t i = 0; i < process->count; i++) {
		_cleanup_free_ char *memory = NULL;

		OK(CU(cuMemImportFromShareableHandle)(&process->handles[i],
						      (void *)(intptr_t)process->fds[i],
						      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		memory = process_read_handle(process, i, process->handles[i]);
		CHECK(!memcmp(memory, image->memory[i], bytes_of(image, i)));
	}
	DONE(worker_do(worker, GCR_MESSAGE_END));
}

#endif
