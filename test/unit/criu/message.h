/* SPDX-License-Identifier: MIT */
/* Messages in the format of protocol buffers, as CRIU's images have them, for tests that make such
 * images. */
#ifndef GCR_TEST_CRIU_MESSAGE_H
#define GCR_TEST_CRIU_MESSAGE_H

#include <stdint.h>
#include <string.h>

#include "test/unit/test.h"

/* A message that grows. */
struct message {
	uint8_t bytes[4096];
	size_t used;
};

static inline void put_byte(struct message *message, unsigned int byte)
{
	CHECK(message->used < sizeof(message->bytes));
	message->bytes[message->used++] = (uint8_t)byte;
}

/* A number without a field: of a key, a length, or a packed field. */
static inline void put(struct message *message, uint64_t value)
{
	for (; value > 0x7f; value >>= 7)
		put_byte(message, (unsigned int)(value & 0x7f) | 0x80);
	put_byte(message, (unsigned int)value);
}

static inline void put_number(struct message *message, unsigned int field, uint64_t value)
{
	put(message, field << 3);
	put(message, value);
}

static inline void put_message(struct message *message, unsigned int field,
			       const struct message *inner)
{
	put(message, field << 3 | 2);
	put(message, inner->used);
	for (size_t i = 0; i < inner->used; i++)
		put_byte(message, inner->bytes[i]);
}

#endif
