/* SPDX-License-Identifier: MIT */
/* Blocks: mapped device memory that is divided into allocations. */
#include "backend/sim/sim.h"

static struct block *block_new(int device, size_t size_bytes, enum mapping_access access,
			       CUresult *ret_result)
{
	struct block *block = calloc(1, sizeof(*block));
	struct phys *phys;

	*ret_result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!block)
		return NULL;
	block->size_bytes = size_bytes;
	*ret_result = phys_create(device, size_bytes, NULL, &phys);
	if (*ret_result) {
		free(block);
		return NULL;
	}
	block->start = range_reserve(size_bytes, 0, 0);
	*ret_result = block->start ? mapping_add(block->start, size_bytes, phys, 0, access)
				   : CUDA_ERROR_OUT_OF_MEMORY;
	phys_unref(phys);
	if (*ret_result) {
		if (block->start)
			range_release(block->start);
		free(block);
		return NULL;
	}
	return block;
}

static void block_free(struct block *block)
{
	mapping_remove(block->start);
	range_release(block->start);
	free(block->pieces.items);
	free(block);
}

/* First fit between the existing pieces; returns 0 if nothing fits. */
static CUdeviceptr block_cut(struct block *block, size_t size_bytes)
{
	CUdeviceptr start = block->start;

	for (size_t i = 0; i <= block->pieces.count; i++) {
		CUdeviceptr end = i < block->pieces.count ? block->pieces.items[i].start
							  : block->start + block->size_bytes;

		if (end - start >= size_bytes) {
			if (span_insert(&block->pieces, start, size_bytes, NULL))
				return 0;
			block->used_bytes += size_bytes;
			return start;
		}
		if (i < block->pieces.count)
			start = end + block->pieces.items[i].size_bytes;
	}
	return 0;
}

CUdeviceptr block_take(struct block **blocks, int device, size_t size_bytes,
		       enum mapping_access access, struct block **ret_block, CUresult *ret_result)
{
	struct block *block, **tail = blocks;
	CUdeviceptr start;

	size_bytes = round_up(size_bytes, SIM_SUBALLOCATION_BYTES);
	for (block = *blocks; block; block = block->next) {
		start = block_cut(block, size_bytes);
		if (start) {
			*ret_block = block;
			return start;
		}
		tail = &block->next;
	}
	block = block_new(device, round_up(size_bytes, SIM_BLOCK_BYTES), access, ret_result);
	if (!block)
		return 0;
	start = block_cut(block, size_bytes);
	if (!start) {
		block_free(block);
		*ret_result = CUDA_ERROR_OUT_OF_MEMORY;
		return 0;
	}
	*tail = block;
	*ret_block = block;
	return start;
}

void block_give(struct block *block, CUdeviceptr start)
{
	struct span *piece = span_find(&block->pieces, start);

	block->used_bytes -= piece->size_bytes;
	span_remove(&block->pieces, start);
}

uint64_t blocks_trim(struct block **blocks, uint64_t keep_bytes)
{
	uint64_t reserved = 0;

	for (struct block *block = *blocks; block; block = block->next)
		reserved += block->size_bytes;
	for (struct block **link = blocks; *link;) {
		struct block *block = *link;

		if (block->pieces.count || reserved - block->size_bytes < keep_bytes) {
			link = &block->next;
			continue;
		}
		*link = block->next;
		reserved -= block->size_bytes;
		block_free(block);
	}
	return reserved;
}
