/* SPDX-License-Identifier: MIT */
/*
 * Synthetic bytes to pack, used instead of a model: distributed like those of trained models as far
 * as relevant for packing, which exploits exponents that differ little. Each layer, and each
 * channel of a cache, has its own scale.
 */
#include <math.h>
#include <string.h>

#include "tools/bench/pack.h"

#define LAYER_BYTES    (UINT64_C(8) << 20)
#define SEQUENCE_BYTES (UINT64_C(4) << 20) /* of a cache: the memory of one request */
#define CHANNELS       1024

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/*
 * Returns the next random number of a nearly normal distribution with standard deviation 1: the sum
 * of twelve uniform ones.
 */
static float next_normal(uint64_t *state)
{
	uint32_t sum = 0;

	for (int i = 0; i < 3; i++) {
		uint64_t word = next_random(state);

		sum += (uint32_t)(word & 0xffff) + (uint32_t)(word >> 16 & 0xffff) +
		       (uint32_t)(word >> 32 & 0xffff) + (uint32_t)(word >> 48);
	}
	return (float)sum / 65536 - 6;
}

/* Returns a scale a few times smaller or larger than @usual. */
static float next_scale(uint64_t *state, float usual)
{
	return usual * exp2f(next_normal(state));
}

static void put_bf16(uint8_t *to, float number)
{
	uint32_t word;
	uint16_t half;

	memcpy(&word, &number, sizeof(word));
	half = (uint16_t)((word + 0x8000) >> 16);
	memcpy(to, &half, sizeof(half));
}

static void fill_weights(uint8_t *bytes, uint64_t size)
{
	uint64_t state = 1;
	float scale = 0;

	for (uint64_t at = 0; at + 2 <= size; at += 2) {
		if (at % LAYER_BYTES == 0)
			scale = next_scale(&state, 0.02f);
		put_bf16(bytes + at, scale * next_normal(&state));
	}
}

static void fill_first_moments(uint8_t *bytes, uint64_t size)
{
	uint64_t state = 2;
	float scale = 0;

	for (uint64_t at = 0; at + 4 <= size; at += 4) {
		float number;

		if (at % LAYER_BYTES == 0)
			scale = next_scale(&state, 1e-4f);
		number = scale * next_normal(&state);
		memcpy(bytes + at, &number, sizeof(number));
	}
}

/*
 * Fills in bytes like second moments, which are means of squares: the decay of an optimizer
 * determines of how many; with few squares they differ more.
 */
static void fill_second_moments(uint8_t *bytes, uint64_t size)
{
	uint64_t state = 3;
	float scale = 0;

	for (uint64_t at = 0; at + 4 <= size; at += 4) {
		float sum = 0;

		if (at % LAYER_BYTES == 0)
			scale = next_scale(&state, 1e-4f);
		for (int i = 0; i < 4; i++) {
			float gradient = scale * next_normal(&state);

			sum += gradient * gradient / 4;
		}
		memcpy(bytes + at, &sum, sizeof(sum));
	}
}

/*
 * Fills in bytes like a cache of requests. The memory of a request is used to a random point, half
 * on average; the rest is zeros.
 */
static void fill_cache(uint8_t *bytes, uint64_t size)
{
	float scales[CHANNELS];
	uint64_t state = 4;

	for (size_t i = 0; i < CHANNELS; i++)
		scales[i] = next_scale(&state, 0.5f);
	memset(bytes, 0, size);
	for (uint64_t first = 0; first < size; first += SEQUENCE_BYTES) {
		uint64_t used = next_random(&state) % SEQUENCE_BYTES;

		for (uint64_t at = first; at - first < used && at + 2 <= size; at += 2)
			put_bf16(bytes + at, scales[at / 2 % CHANNELS] * next_normal(&state));
	}
}

const struct bench_content bench_contents[BENCH_CONTENTS] = {
	{"weights", "weights, bf16 (synthetic)", fill_weights},
	{"first-moments", "optimizer's first moments, fp32 (synthetic)", fill_first_moments},
	{"second-moments", "optimizer's second moments, fp32 (synthetic)", fill_second_moments},
	{"cache", "KV cache, bf16, half of it used (synthetic)", fill_cache},
};
