/* SPDX-License-Identifier: MIT */
/*
 * XXH3, 128 bits, seed 0, of chunks of 64 KiB in VRAM: bit for bit what XXH3_128bits() of libxxhash
 * gives. OpenCL C, which clang turns into PTX (and for which it has an AMDGCN target too).
 *
 * XXH3 reads a chunk in 64 blocks of 16 stripes of 8 lanes (64-bit words). Inside a block each lane
 * only adds up, so the order does not matter: a work item takes one pair of lanes of one block, and
 * all 64 blocks go side by side. Between blocks the sums are scrambled, which is a chain, but one of
 * 63 steps and independent for each lane: 32 work items do it for four chunks, while other groups
 * read.
 *
 * The last block has 15 stripes and then the last 64 bytes once more, with a part of the secret of
 * its own, as XXH3 has it for every length: they are stripe 15 of that block, so it is a matter of
 * the secret alone.
 *
 * The algorithm and its constants are those of the XXH3 specification
 * (xxHash, doc/xxhash_spec.md); the secret is its default secret as little-endian words.
 */
#if defined(__NVPTX__)
#define LOCAL_ID  ((uint)__nvvm_read_ptx_sreg_tid_x())
#define GROUP_ID  ((uint)__nvvm_read_ptx_sreg_ctaid_x())
#define BARRIER() __syncthreads()
#elif defined(__AMDGCN__)
#define LOCAL_ID ((uint)__builtin_amdgcn_workitem_id_x())
#define GROUP_ID ((uint)__builtin_amdgcn_workgroup_id_x())
#define BARRIER()                                                      \
	do {                                                           \
		__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); \
		__builtin_amdgcn_s_barrier();                          \
		__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup"); \
	} while (0)
#else
/* As a test runs it on the host. */
uint gcr_test_local_id(void);
uint gcr_test_group_id(void);
void gcr_test_barrier(void);
#define LOCAL_ID  gcr_test_local_id()
#define GROUP_ID  gcr_test_group_id()
#define BARRIER() gcr_test_barrier()
#endif

#define CHUNK_BYTES  65536
#define BLOCKS	     64
#define STRIPES	     16 /* of a block */
#define LANES	     8
#define PAIRS	     (LANES / 2)
#define BLOCK_PAIRS  (STRIPES * PAIRS) /* pairs of words in a block */
#define CHUNK_PAIRS  (BLOCKS * BLOCK_PAIRS)
#define GROUP_CHUNKS 4
#define SECRET_WORDS 24

#define PRIME32_1 0x9E3779B1ul
#define PRIME32_2 0x85EBCA77ul
#define PRIME32_3 0xC2B2AE3Dul
#define PRIME64_1 0x9E3779B185EBCA87ul
#define PRIME64_2 0xC2B2AE3D27D4EB4Ful
#define PRIME64_3 0x165667B19E3779F9ul
#define PRIME64_4 0x85EBCA77C2B2AE63ul
#define PRIME64_5 0x27D4EB2F165667C5ul
#define AVALANCHE 0x165667919E3779F9ul

static __constant ulong secret[SECRET_WORDS] = {
	0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de,
	0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82,
	0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c,
	0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
	0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
	0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5,
	0x49daf0b751dd0d17, 0x9e68d429265516d3, 0xfca1477d58be162b,
	0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
};

static __constant ulong lane_starts[LANES] = {
	PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
};

/* The secret from byte @at on, wherever that is. */
static ulong secret_at(uint at)
{
	uint shift = at % 8 * 8;
	ulong low = secret[at / 8];

	return shift ? low >> shift | secret[at / 8 + 1] << (64 - shift) : low;
}

static ulong mix(ulong word, ulong key)
{
	ulong keyed = word ^ key;

	return (keyed & 0xffffffff) * (keyed >> 32);
}

static ulong avalanche(ulong hash)
{
	hash ^= hash >> 37;
	hash *= AVALANCHE;
	return hash ^ hash >> 32;
}

static ulong multiply_high(ulong left, ulong right)
{
	ulong left_low = left & 0xffffffff, left_high = left >> 32;
	ulong right_low = right & 0xffffffff, right_high = right >> 32;
	ulong cross = left_high * right_low + (left_low * right_low >> 32);

	return left_high * right_high + (cross >> 32) +
	       ((left_low * right_high + (cross & 0xffffffff)) >> 32);
}

/* Four folded products of the eight lanes. */
static ulong merge(__local const ulong *lanes, uint at, ulong start)
{
	for (uint i = 0; i < PAIRS; i++) {
		ulong left = lanes[2 * i] ^ secret_at(at + 16 * i);
		ulong right = lanes[2 * i + 1] ^ secret_at(at + 16 * i + 8);

		start += left * right ^ multiply_high(left, right);
	}
	return avalanche(start);
}

/*
 * A group of 256 work items for every four of the @count chunks. @digests: 16 bytes for each chunk
 * in the canonical form, which is big-endian. @zeros: for each, is there nothing but zeros in it?
 */
__attribute__((reqd_work_group_size(BLOCKS * PAIRS, 1, 1)))
__kernel void gpucr_digest(__global const ulong2 *chunks, __global ulong *digests,
			   __global uchar *zeros, ulong count)
{
	__local ulong sums[GROUP_CHUNKS][BLOCKS][LANES];
	__local ulong lanes[GROUP_CHUNKS][LANES];
	__local uint has_data[GROUP_CHUNKS];
	const uint id = LOCAL_ID;
	const uint block = id / PAIRS, pair = id % PAIRS;
	const ulong first = (ulong)GROUP_ID * GROUP_CHUNKS;
	const uint here = count - first < GROUP_CHUNKS ? count - first : GROUP_CHUNKS;

	if (id < GROUP_CHUNKS)
		has_data[id] = 0;
	BARRIER();
	for (uint chunk = 0; chunk < here; chunk++) {
		__global const ulong2 *from =
			chunks + (first + chunk) * CHUNK_PAIRS + block * BLOCK_PAIRS + pair;
		ulong even = 0, odd = 0, any = 0;

#pragma unroll
		for (uint stripe = 0; stripe < STRIPES; stripe++) {
			ulong2 words = from[stripe * PAIRS];
			ulong even_key = secret[stripe + 2 * pair];
			ulong odd_key = secret[stripe + 2 * pair + 1];

			/* The very last stripe: 7 bytes before where the scrambling's secret is. */
			if (stripe == STRIPES - 1 && block == BLOCKS - 1) {
				even_key = secret_at(121 + 16 * pair);
				odd_key = secret_at(121 + 16 * pair + 8);
			}
			any |= words.x | words.y;
			even += words.y + mix(words.x, even_key);
			odd += words.x + mix(words.y, odd_key);
		}
		sums[chunk][block][2 * pair] = even;
		sums[chunk][block][2 * pair + 1] = odd;
		if (any)
			has_data[chunk] = 1; /* whoever comes last, it is the same */
	}
	BARRIER();
	if (id < here * LANES) {
		const uint chunk = id / LANES, own = id % LANES;
		ulong lane = lane_starts[own], key = secret[SECRET_WORDS - LANES + own];

#pragma unroll 9
		for (uint i = 0; i < BLOCKS - 1; i++) {
			lane += sums[chunk][i][own];
			lane = (lane ^ lane >> 47 ^ key) * PRIME32_1;
		}
		lanes[chunk][own] = lane + sums[chunk][BLOCKS - 1][own];
	}
	BARRIER();
	if (id < here)
		zeros[first + id] = !has_data[id];
	if (id < 2 * here) {
		ulong start = ~(CHUNK_BYTES * PRIME64_2);
		uint at = 8 * SECRET_WORDS - 64 - 11;

		/* The high word is the first of the two. */
		if (id % 2) {
			start = CHUNK_BYTES * PRIME64_1;
			at = 11;
		}
		digests[2 * first + id] = __builtin_bswap64(merge(lanes[id / 2], at, start));
	}
}
