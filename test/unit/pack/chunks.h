/* SPDX-License-Identifier: MIT */
/*
 * Shared by the tests of packed chunks in memory: a user's packs, an account of their bytes, and
 * chunks in them.
 */
#ifndef GCR_TEST_CHUNKS_H
#define GCR_TEST_CHUNKS_H

#include "fs/pack/packs.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "test/unit/pack/packs.h"

#define CHUNK GCR_CHUNK_BYTES

static struct gcr_packer *packer;
static struct gcr_pack_entry *left;   /* shared with a child that is killed */
static atomic_uint_least64_t counted; /* bytes charged to the account */
static uint64_t limit = UINT64_MAX;

static inline int count_take(void *data, uid_t uid, uint64_t bytes, bool is_there)
{
	(void)data;
	if (!is_there && counted + bytes > limit)
		return -ENOSPC;
	counted += bytes;
	return 0;
}

static inline void count_give(void *data, uid_t uid, uint64_t bytes)
{
	(void)data;
	CHECK(counted >= bytes);
	counted -= bytes;
}

static inline struct gcr_packs *open_packs(uid_t uid)
{
	const struct gcr_packs_account account = {.take = count_take, .give = count_give};
	struct gcr_packs *packs;
	struct gcr_error error;

	CHECK(!gcr_packs_open(store_fd, uid, &account, &packs, &error));
	return packs;
}

static inline struct gcr_packs_figures figures(struct gcr_packs *packs)
{
	struct gcr_packs_figures figures;

	gcr_packs_figures(packs, &figures);
	return figures;
}

static inline int add(struct gcr_packs *packs, const void *bytes, size_t size,
		      const struct gcr_digest *digest, struct gcr_pack_entry *ret_entry)
{
	_cleanup_(gcr_packer_destroy_cleanup) struct gcr_packer *own = NULL;
	uint8_t packed[GCR_PACK_MAX_BYTES];
	struct gcr_digest real;
	enum gcr_pack_form form;
	size_t packed_size;

	CHECK(!gcr_packer_create(&own));
	gcr_digest_of(bytes, size, &real);
	packed_size = gcr_pack(own, bytes, size, packed, &form);
	return gcr_packs_add(packs, digest ? digest : &real, size, form, packed, packed_size,
			     ret_entry);
}

static inline void add_random(struct gcr_packs *packs, uint64_t seed, size_t size,
			      struct gcr_pack_entry *ret_entry)
{
	uint8_t bytes[CHUNK];

	fill_random(bytes, size, seed);
	CHECK(!add(packs, bytes, size, NULL, ret_entry));
}

static inline bool reads_random(struct gcr_packs *packs, const struct gcr_pack_entry *entry,
				uint64_t seed, size_t size)
{
	uint8_t expected[CHUNK];
	uint8_t bytes[CHUNK];

	fill_random(expected, size, seed);
	return !gcr_packs_read(packs, packer, entry, bytes, size) && !memcmp(bytes, expected, size);
}

/* For main(): mounts the store, and makes room for @count entries in `left`. */
static inline void begin(size_t count)
{
	mount_store("huge=always,size=330m");
	left = mmap(NULL, sizeof(*left) * count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		    -1, 0);
	CHECK(left != MAP_FAILED);
	CHECK(!gcr_packer_create(&packer));
}

static inline void end(void)
{
	gcr_packer_destroy(packer);
	unmount_store();
}

#endif
