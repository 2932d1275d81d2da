/* SPDX-License-Identifier: MIT */
/*
 * A reader for the encoding of protocol buffers (protobuf.dev/programming-guides/encoding), field
 * by field: CRIU's images consist of such messages. Nothing is allocated, and nothing beyond the
 * given end is read.
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
	uint64_t value;	      /* a varint's value; else 0 */
	const uint8_t *start; /* the whole field, including its key */
	size_t bytes;
	/* The field without its key, and without the length of GCR_PROTOBUF_BYTES. */
	const uint8_t *content;
	size_t content_bytes;
};

/*
 * Reads a varint and moves *@at behind it. False: the varint does not end before @end, or has more
 * than 64 bits.
 */
bool gcr_protobuf_varint(const uint8_t **at, const uint8_t *end, uint64_t *ret_value);

/*
 * Reads the next field of a message and moves *@at, which is before @end, behind it. False: the
 * message is damaged.
 */
bool gcr_protobuf_next(const uint8_t **at, const uint8_t *end, struct gcr_protobuf_field *field);

/*
 * Looks for one field in the message from @at to @end. *ret_field stays as it is if there is none.
 * False: the message is damaged, the field is of another kind, or it is there twice: a reader would
 * take the last one, or merge them.
 */
bool gcr_protobuf_find(const uint8_t *at, const uint8_t *end, unsigned int number,
		       enum gcr_protobuf_wire wire, struct gcr_protobuf_field *ret_field);

#endif
