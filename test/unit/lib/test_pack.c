/* SPDX-License-Identifier: MIT */
/* lib/pack.c: any packed bytes are unpacked unchanged, and damaged packed bytes do no harm. */
#include "lib/pack.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/cleanup.h"
#include "test/unit/test.h"

#define SIZE  GCR_PACK_CHUNK_BYTES
#define PAGE  4096
#define ROUND 400

static struct gcr_packer *packer;
static uint64_t state = 0x9e3779b97f4a7c15;

/* Each buffer's end; an inaccessible page follows. */
static uint8_t *packed_end, *bytes_end;

static uint64_t random_word(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/*
 * A roughly normal number with standard deviation @deviation: a sum of uniform ones is nearly
 * normal.
 */
static float random_normal(float deviation)
{
	float sum = -6;

	for (int i = 0; i < 12; i++)
		sum += (float)(random_word() & 0xffffff) / 0x1000000;
	return sum * deviation;
}

static uint8_t *guarded(void)
{
	char *memory =
		mmap(NULL, SIZE + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED && !mprotect(memory + SIZE, PAGE, PROT_NONE));
	return (uint8_t *)memory + SIZE;
}

/* ---- contents ---- */

static void fill_zeros(uint8_t *bytes, size_t size)
{
	memset(bytes, 0, size);
}

static void fill_random(uint8_t *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		bytes[i] = (uint8_t)random_word();
}

static void fill_text(uint8_t *bytes, size_t size)
{
	static const char *const words[] = {"the ", "chunk ", "of ", "a ", "process, ", "digest\n"};

	for (size_t at = 0; at < size;) {
		const char *word = words[random_word() % GCR_ARRAY_SIZE(words)];

		for (; *word && at < size; word++)
			bytes[at++] = (uint8_t)*word;
	}
}

static void fill_16(uint8_t *bytes, size_t size, uint16_t (*make)(void))
{
	for (size_t at = 0; at < size; at += 2) {
		uint16_t element = make();

		memcpy(bytes + at, &element, size - at < 2 ? size - at : 2);
	}
}

static uint16_t make_bf16(void)
{
	float number = random_normal(0.02f);
	uint32_t word;

	memcpy(&word, &number, sizeof(word));
	return (uint16_t)(word >> 16);
}

/*
 * A random half-precision float: the exponent bias is 112 less than that of a float; numbers below
 * the normal range become 0.
 */
static uint16_t make_fp16(void)
{
	float number = random_normal(0.5f);
	uint32_t word;

	memcpy(&word, &number, sizeof(word));
	if ((word >> 23 & 0xff) <= 112)
		return (uint16_t)(word >> 16 & 0x8000);
	return (uint16_t)((word >> 16 & 0x8000) | ((word & 0x7fffffff) - (112u << 23)) >> 13);
}

static void fill_bf16(uint8_t *bytes, size_t size)
{
	fill_16(bytes, size, make_bf16);
}

static void fill_fp16(uint8_t *bytes, size_t size)
{
	fill_16(bytes, size, make_fp16);
}

static void fill_fp32(uint8_t *bytes, size_t size)
{
	for (size_t at = 0; at < size; at += 4) {
		float number = random_normal(1e-3f);

		memcpy(bytes + at, &number, size - at < 4 ? size - at : 4);
	}
}

/* Like a cache that is half full. */
static void fill_half(uint8_t *bytes, size_t size)
{
	fill_bf16(bytes, size);
	memset(bytes + size / 2, 0, size - size / 2);
}

/* Redundant bytes outside the middle, where the packer takes its sample. */
static void fill_late(uint8_t *bytes, size_t size)
{
	fill_random(bytes, size);
	memset(bytes + size / 8, 7, size / 8);
}

static void fill_counting(uint8_t *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		bytes[i] = (uint8_t)(i % 4 ? 0 : i / 4);
}

static const struct content {
	const char *name;
	void (*fill)(uint8_t *bytes, size_t size);
	enum gcr_pack_form form;
	double least, most; /* bounds of packed to original size, for a whole chunk */
} contents[] = {
	{"zeros", fill_zeros, GCR_PACK_LZ4, 0, 0.01},
	{"random", fill_random, GCR_PACK_RAW, 1, 1},
	{"text", fill_text, GCR_PACK_LZ4, 0.1, 0.6},
	{"bf16", fill_bf16, GCR_PACK_PLANES_2, 0.6, 0.75},
	{"fp16", fill_fp16, GCR_PACK_PLANES_2, 0.8, 0.95},
	{"fp32", fill_fp32, GCR_PACK_PLANES_4, 0.8, 0.9},
	{"half", fill_half, GCR_PACK_PLANES_2, 0.3, 0.48},
	{"late", fill_late, GCR_PACK_LZ4, 0.8, 0.9},
	{"counting", fill_counting, GCR_PACK_PLANES_4, 0, 0.02},
};

/* ---- round trips ---- */

/* Pack @size bytes, and check that they are unpacked unchanged. */
static size_t round_trip(const uint8_t *bytes, size_t size, uint8_t *packed,
			 enum gcr_pack_form *ret_form)
{
	uint8_t *unpacked = bytes_end - size;
	size_t length = gcr_pack(packer, bytes, size, packed, ret_form);

	CHECK(length <= size);
	CHECK((*ret_form == GCR_PACK_RAW) == (length == size));
	CHECK(*ret_form == GCR_PACK_RAW || length <= size - size / 20);
	memmove(packed_end - length, packed, length);
	memset(unpacked, 0x5a, size);
	CHECK(!gcr_unpack(packer, *ret_form, packed_end - length, length, unpacked, size));
	CHECK(!memcmp(unpacked, bytes, size));
	return length;
}

static void test_contents(void)
{
	static uint8_t bytes[SIZE], packed[SIZE];

	for (size_t i = 0; i < GCR_ARRAY_SIZE(contents); i++) {
		const struct content *content = &contents[i];
		enum gcr_pack_form form;
		double ratio;

		content->fill(bytes, SIZE);
		ratio = (double)round_trip(bytes, SIZE, packed, &form) / SIZE;
		printf("%-8s form %d, %.3f\n", content->name, form, ratio);
		CHECK(form == content->form);
		CHECK(ratio >= content->least && ratio <= content->most);
	}
}

static void test_sizes(void)
{
	static uint8_t bytes[SIZE], packed[SIZE];
	enum gcr_pack_form form;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(contents); i++) {
		for (size_t size = 0; size < 70; size++) {
			contents[i].fill(bytes, size);
			round_trip(bytes, size, packed + SIZE - size, &form);
		}
		for (size_t j = 0; j < ROUND / TEST_SLOW / 8; j++) {
			size_t size = random_word() % (SIZE + 1);

			contents[i].fill(bytes, size);
			round_trip(bytes, size, packed + SIZE - size, &form);
		}
	}
}

/* Chunks mixed from all contents, at any offset. */
static void test_mixtures(void)
{
	static uint8_t bytes[SIZE], packed[SIZE];
	enum gcr_pack_form form;

	for (size_t i = 0; i < ROUND / TEST_SLOW; i++) {
		for (size_t at = 0; at < SIZE;) {
			size_t size = random_word() % (SIZE / 2) + 1;

			if (size > SIZE - at)
				size = SIZE - at;
			contents[random_word() % GCR_ARRAY_SIZE(contents)].fill(bytes + at, size);
			at += size;
		}
		round_trip(bytes, SIZE, packed, &form);
	}
}

/* A chunk is stored unpacked if the packed form needs more than 19/20 of its size. */
static void test_gain(void)
{
	static uint8_t bytes[SIZE], packed[SIZE];
	enum gcr_pack_form form;

	fill_random(bytes, SIZE);
	memset(bytes, 0, SIZE / 25);
	CHECK(round_trip(bytes, SIZE, packed, &form) == SIZE && form == GCR_PACK_RAW);
	memset(bytes, 0, SIZE / 15);
	CHECK(round_trip(bytes, SIZE, packed, &form) < SIZE && form == GCR_PACK_LZ4);
}

/* ---- damaged packed bytes ---- */

/* Unpack between the guard pages: an access out of bounds ends the test. */
static int unpack(enum gcr_pack_form form, const uint8_t *packed, size_t packed_size, size_t size)
{
	int result;

	memcpy(packed_end - packed_size, packed, packed_size);
	result = gcr_unpack(packer, form, packed_end - packed_size, packed_size, bytes_end - size,
			    size);
	CHECK(!result || result == -EBADMSG);
	return result;
}

/* Random damage to packed bytes and sizes: every access stays in bounds. */
static void test_damage(void)
{
	static uint8_t bytes[SIZE], packed[SIZE], damaged[SIZE];

	for (size_t i = 0; i < GCR_ARRAY_SIZE(contents); i++)
		for (size_t j = 0; j < ROUND / TEST_SLOW / 4; j++) {
			size_t size = j % 2 ? SIZE : random_word() % SIZE + 1;
			enum gcr_pack_form form;
			size_t length;

			contents[i].fill(bytes, size);
			length = round_trip(bytes, size, packed, &form);
			memcpy(damaged, packed, length);
			for (size_t k = random_word() % 4; k <= 4; k++)
				damaged[random_word() % (j % 3 ? length : length / 64 + 1)] =
					(uint8_t)random_word();
			unpack(form, damaged, length, size);
			unpack((enum gcr_pack_form)(random_word() % 6), damaged, length, size);
			unpack(form, packed, random_word() % (length + 1), size);
			unpack(form, packed, length, random_word() % (SIZE + 1));
		}
}

/* Each of these errors is detected without the digest. */
static void test_refused(void)
{
	static uint8_t bytes[SIZE], packed[SIZE];
	enum gcr_pack_form form;
	size_t length;

	fill_bf16(bytes, SIZE);
	length = round_trip(bytes, SIZE, packed, &form);
	CHECK(form == GCR_PACK_PLANES_2);
	CHECK(unpack(form, packed, length - 1, SIZE) == -EBADMSG);
	CHECK(unpack(form, packed, length + 1, SIZE) == -EBADMSG);
	CHECK(unpack(form, packed, length, SIZE - 2) == -EBADMSG);
	CHECK(unpack(form, packed, 7, SIZE) == -EBADMSG);
	CHECK(unpack((enum gcr_pack_form)4, packed, length, SIZE) == -EBADMSG);
	CHECK(unpack(GCR_PACK_RAW, packed, length, SIZE) == -EBADMSG);
	CHECK(gcr_unpack(packer, GCR_PACK_RAW, packed, SIZE + 1, bytes, SIZE + 1) == -EBADMSG);
	packed[0] = 3; /* no valid kind of plane */
	CHECK(unpack(form, packed, length, SIZE) == -EBADMSG);
	packed[0] = 0;
	packed[1] = 1;
	CHECK(unpack(form, packed, length, SIZE) == -EBADMSG);
	packed[1] = 0;
	CHECK(!unpack(form, packed, length, SIZE));
}

static void test_is_zero(void)
{
	static uint8_t bytes[SIZE];

	CHECK(gcr_pack_is_zero(bytes, 0) && gcr_pack_is_zero(bytes, 1));
	CHECK(gcr_pack_is_zero(bytes, SIZE));
	for (size_t i = 0; i < SIZE; i += i < 70 ? 1 : 997) {
		bytes[i] = 1;
		CHECK(!gcr_pack_is_zero(bytes, SIZE) && !gcr_pack_is_zero(bytes, i + 1));
		CHECK(gcr_pack_is_zero(bytes, i));
		bytes[i] = 0;
	}
}

int main(void)
{
	CHECK(!gcr_packer_create(&packer));
	packed_end = guarded();
	bytes_end = guarded();
	test_contents();
	test_sizes();
	test_mixtures();
	test_gain();
	test_damage();
	test_refused();
	test_is_zero();
	gcr_packer_destroy(packer);
	gcr_packer_destroy(NULL);
	return 0;
}
