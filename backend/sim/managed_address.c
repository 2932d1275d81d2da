/* SPDX-License-Identifier: MIT */
/*
 * Addresses of managed memory. As measured with the real driver: chunks of whole 32 MiB are mapped
 * where the kernel's mmap(2) finds room, and aligned within; large allocations are pieces of chunks
 * on 2 MiB boundaries, small ones are cut from 2 MiB blocks on 512-byte boundaries. An empty chunk
 * is unmapped. Whether memory that is freed and allocated again gets the same address therefore
 * depends on the order and on other mappings made in between. All functions require sim.lock.
 */
#include "backend/sim/sim.h"

#include <sys/mman.h>

#define CHUNK_BYTES (32ull << 20)
#define PIECE_BYTES 512ull
#define PAGE_BYTES  4096ull

struct chunk {
	struct chunk *next;
	CUdeviceptr start;
	size_t size_bytes;
	struct span_table pieces; /* object: the small block, or NULL */
};

struct small_block {
	struct span_table pieces;
};

static struct chunk *chunks; /* newest first, in the order of searching */

/*
 * Returns the first gap of `size_bytes` that starts on a multiple of `alignment`; 0 if there is
 * none.
 */
static CUdeviceptr gap_find(const struct span_table *pieces, CUdeviceptr start, CUdeviceptr end,
			    size_t size_bytes, size_t alignment)
{
	for (size_t i = 0; i <= pieces->count; i++) {
		CUdeviceptr next = i < pieces->count ? pieces->items[i].start : end;

		if (next >= start && next - start >= size_bytes)
			return start;
		if (i < pieces->count)
			start = round_up(next + pieces->items[i].size_bytes, alignment);
	}
	return 0;
}

static struct chunk *chunk_new(size_t size_bytes)
{
	struct chunk *chunk = calloc(1, sizeof(*chunk));
	size_t room = round_up(size_bytes, CHUNK_BYTES) + CHUNK_BYTES - PAGE_BYTES;
	CUdeviceptr at, end;
	void *address;

	if (!chunk)
		return NULL;
	address = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (address == MAP_FAILED) {
		free(chunk);
		return NULL;
	}
	at = (CUdeviceptr)address;
	end = at + room;
	chunk->start = round_up(at, CHUNK_BYTES);
	chunk->size_bytes = round_up(size_bytes, CHUNK_BYTES);
	if (chunk->start > at)
		munmap(address, chunk->start - at);
	if (end > chunk->start + chunk->size_bytes)
		munmap((void *)(chunk->start + chunk->size_bytes),
		       end - chunk->start - chunk->size_bytes);
	chunk->next = chunks;
	chunks = chunk;
	return chunk;
}

static void chunk_give(struct chunk *chunk)
{
	if (chunk->pieces.count)
		return;
	for (struct chunk **link = &chunks; *link; link = &(*link)->next)
		if (*link == chunk) {
			*link = chunk->next;
			break;
		}
	munmap((void *)chunk->start, chunk->size_bytes);
	free(chunk->pieces.items);
	free(chunk);
}

static CUresult piece_map(struct chunk *chunk, CUdeviceptr at, size_t size_bytes, void *object)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (!span_insert(&chunk->pieces, at, size_bytes, object)) {
		result = mapping_add(at, size_bytes, NULL, 0, ACCESS_PEERS);
		if (result)
			span_remove(&chunk->pieces, at);
	}
	if (result)
		chunk_give(chunk);
	return result;
}

/* Takes a piece with its own mapping. */
static CUresult large_take(size_t size_bytes, void *object, CUdeviceptr *ret_start)
{
	struct chunk *chunk;
	CUdeviceptr at = 0;

	size_bytes = round_up(size_bytes, PAGE_BYTES);
	for (chunk = chunks; chunk; chunk = chunk->next) {
		at = gap_find(&chunk->pieces, chunk->start, chunk->start + chunk->size_bytes,
			      size_bytes, SIM_BLOCK_BYTES);
		if (at)
			break;
	}
	if (!chunk) {
		chunk = chunk_new(size_bytes);
		if (!chunk)
			return CUDA_ERROR_OUT_OF_MEMORY;
		at = chunk->start;
	}
	*ret_start = at;
	return piece_map(chunk, at, size_bytes, object);
}

static CUresult small_take(size_t size_bytes, CUdeviceptr *ret_start)
{
	struct small_block *block;
	CUdeviceptr start;
	CUresult result;

	size_bytes = round_up(size_bytes, PIECE_BYTES);
	for (struct chunk *chunk = chunks; chunk; chunk = chunk->next)
		for (size_t i = 0; i < chunk->pieces.count; i++) {
			start = chunk->pieces.items[i].start;
			block = chunk->pieces.items[i].object;
			if (!block)
				continue;
			*ret_start = gap_find(&block->pieces, start, start + SIM_BLOCK_BYTES,
					      size_bytes, PIECE_BYTES);
			if (*ret_start)
				return span_insert(&block->pieces, *ret_start, size_bytes, NULL)
					       ? CUDA_ERROR_OUT_OF_MEMORY
					       : CUDA_SUCCESS;
		}
	block = calloc(1, sizeof(*block));
	if (!block)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = large_take(SIM_BLOCK_BYTES, block, ret_start);
	if (result) {
		free(block);
		return result;
	}
	return span_insert(&block->pieces, *ret_start, size_bytes, NULL) ? CUDA_ERROR_OUT_OF_MEMORY
									 : CUDA_SUCCESS;
}

CUresult managed_address_take(size_t size_bytes, CUdeviceptr *ret_start)
{
	return size_bytes < SIM_BLOCK_BYTES ? small_take(size_bytes, ret_start)
					    : large_take(size_bytes, NULL, ret_start);
}

void managed_address_give(CUdeviceptr start)
{
	for (struct chunk *chunk = chunks; chunk; chunk = chunk->next) {
		struct span *piece = span_find(&chunk->pieces, start);
		struct small_block *block = piece ? piece->object : NULL;

		if (!piece)
			continue;
		if (block) {
			span_remove(&block->pieces, start);
			if (block->pieces.count)
				return;
			start = piece->start;
			free(block->pieces.items);
			free(block);
		}
		mapping_remove(start);
		span_remove(&chunk->pieces, start);
		chunk_give(chunk);
		return;
	}
}
