/* SPDX-License-Identifier: MIT */
/*
 * Arbitrary packed chunks, and chunks that are packed and unpacked again. An input is a form, the
 * size of the chunk (2 bytes, little-endian, minus 1), then the packed bytes, or the chunk itself
 * if the highest bit of the form is set.
 */
#include "lib/pack.h"

#include <errno.h>
#include <string.h>

#include "test/fuzz/fuzz.h"

#define HEADER_BYTES 3
#define CHUNK_ITSELF 0x80

/* An exact-size copy, so that the sanitizer sees an overrun by one byte. */
static uint8_t *copy_of(const uint8_t *bytes, size_t size)
{
	uint8_t *copy = malloc(size + !size);

	CHECK(copy);
	memcpy(copy, bytes, size);
	return copy;
}

static void check_round_trip(struct gcr_packer *packer, const uint8_t *bytes, size_t size)
{
	uint8_t *packed = malloc(size + !size);
	uint8_t *unpacked = malloc(size + !size);
	enum gcr_pack_form form;
	size_t length;

	CHECK(packed && unpacked);
	length = gcr_pack(packer, bytes, size, packed, &form);
	CHECK(length <= size && (form == GCR_PACK_RAW) == (length == size));
	packed = realloc(packed, length + !length);
	CHECK(packed && !gcr_unpack(packer, form, packed, length, unpacked, size));
	CHECK(!memcmp(unpacked, bytes, size));
	free(packed);
	free(unpacked);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct gcr_packer *packer;
	uint8_t *packed, *unpacked;
	size_t chunk;
	int result;

	if (size < HEADER_BYTES || size - HEADER_BYTES > GCR_PACK_CHUNK_BYTES)
		return 0;
	if (!packer)
		CHECK(!gcr_packer_create(&packer));
	chunk = (data[1] | (size_t)data[2] << 8) + 1;
	packed = copy_of(data + HEADER_BYTES, size - HEADER_BYTES);
	if (data[0] & CHUNK_ITSELF) {
		check_round_trip(packer, packed, size - HEADER_BYTES);
	} else {
		unpacked = malloc(chunk);
		CHECK(unpacked);
		result = gcr_unpack(packer, (enum gcr_pack_form)data[0], packed,
				    size - HEADER_BYTES, unpacked, chunk);
		CHECK(!result || result == -EBADMSG);
		free(unpacked);
	}
	free(packed);
	return 0;
}
