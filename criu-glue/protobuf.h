/* SPDX-License-Identifier: MIT */
/*
 * Messages in the encoding of protocol buffers (protobuf.dev/programming-guides/encoding), read
 * field by field: CRIU's images consist of them. Nothing is allocated, and nothing beyond the end
 * that is given is looked at.
 */
#ifndef GCR_CRIU_GLUE_PROTOBUF_H
#define GCR_CRIU_GLUE_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gcr_protobuf_wire {
	GCR_PROTOBUF_VARINT = 0,
	GCR_PROTOBUF_64BIT = 1,
	GCR_PROTOBUF_BYTES = 2,
	GCR_PROTOBUF_32BIT = 5,
};

struct gcr_protobuf_field {
	unsigned int number;
	enum gcr_protobuf_wire wire;
	uint64_t value;	      /* of a varint; else 0 */
	const uint8_t *start; /* the whole of it, key and all */
	size_t bytes;
	const uint8_t
		*content; /* of it without its key, and without the length of GCR_PROTOBUF_BYTES */
	size_t content_bytes;
};

/* *@at is moved behind it. False: it does not end before @end, or has more than 64 bits. */
bool gcr_protobuf_varint(const uint8_t **at, const uint8_t *end, uint64_t *ret_value);

/* The next field of a message; *@at, before @end, is moved behind it. False: it is damaged. */
bool gcr_protobuf_next(const uint8_t **at, const uint8_t *end, struct gcr_protobuf_field *field);

#endif
