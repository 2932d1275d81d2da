/* SPDX-License-Identifier: MIT */
#include "criu-glue/protobuf.h"

/* The largest field number that the encoding allows. */
#define NUMBER_MAX ((1u << 29) - 1)

bool gcr_protobuf_varint(const uint8_t **at, const uint8_t *end, uint64_t *ret_value)
{
	uint64_t value = 0;

	for (unsigned int shift = 0; shift < 64 && *at < end; shift += 7) {
		uint8_t byte = *(*at)++;

		value |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80)) {
			*ret_value = value;
			return true;
		}
	}
	return false;
}

bool gcr_protobuf_next(const uint8_t **at, const uint8_t *end, struct gcr_protobuf_field *field)
{
	uint64_t key, bytes;

	*field = (struct gcr_protobuf_field){.start = *at};
	if (!gcr_protobuf_varint(at, end, &key) || !(key >> 3) || key >> 3 > NUMBER_MAX)
		return false;
	field->number = (unsigned int)(key >> 3);
	field->wire = (enum gcr_protobuf_wire)(key & 7);
	field->content = *at;
	switch (field->wire) {
	case GCR_PROTOBUF_VARINT:
		if (!gcr_protobuf_varint(at, end, &field->value))
			return false;
		bytes = (uint64_t)(*at - field->content);
		*at = field->content;
		break;
	case GCR_PROTOBUF_64BIT:
		bytes = 8;
		break;
	case GCR_PROTOBUF_BYTES:
		if (!gcr_protobuf_varint(at, end, &bytes))
			return false;
		field->content = *at;
		break;
	case GCR_PROTOBUF_32BIT:
		bytes = 4;
		break;
	default:
		return false;
	}
	if (bytes > (uint64_t)(end - *at))
		return false;
	*at += bytes;
	field->content_bytes = (size_t)bytes;
	field->bytes = (size_t)(*at - field->start);
	return true;
}

bool gcr_protobuf_find(const uint8_t *at, const uint8_t *end, unsigned int number,
		       enum gcr_protobuf_wire wire, struct gcr_protobuf_field *ret_field)
{
	struct gcr_protobuf_field field, found = {0};

	while (at < end) {
		if (!gcr_protobuf_next(&at, end, &field))
			return false;
		if (field.number != number)
			continue;
		if (field.wire != wire || found.number)
			return false;
		found = field;
	}
	if (found.number)
		*ret_field = found;
	return true;
}
