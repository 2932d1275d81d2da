/* SPDX-License-Identifier: MIT */
/*
 * core-N.img has a message of images/core.proto of CRIU 4, with one of images/creds.proto in it.
 */
#include "criu-glue/image_creds.h"

#include <errno.h>
#include <stdlib.h>

#include "criu-glue/image.h"
#include "criu-glue/protobuf.h"
#include "lib/cleanup.h"

/* Field numbers of core_entry, task_core_entry, thread_core_entry, and creds_entry. */
enum {
	FIELD_TASK_CORE = 3,
	FIELD_THREAD_CORE = 5,

	FIELD_TASK_STATE = 1,

	FIELD_CREDS = 10,

	FIELD_IDS = 1,		/* to 8 */
	FIELD_CAPABILITIES = 9, /* to 12 */
	FIELD_SECUREBITS = 13,
	FIELD_GROUPS = 14,
	FIELD_NO_NEW_PRIVS = 18,
	FIELD_AMBIENT = 19,
};

#define STATE_DEAD 2 /* TASK_DEAD of CRIU: nothing of the process was dumped */

void gcr_image_creds_finish(struct gcr_image_creds *creds)
{
	free(creds->groups);
	*creds = (struct gcr_image_creds){0};
}

/* ---- groups ---- */

int gcr_image_creds_add_group(struct gcr_image_creds *creds, uint32_t group)
{
	uint32_t *groups = reallocarray(creds->groups, creds->groups_count + 1, sizeof(*groups));

	if (!groups)
		return -ENOMEM;
	creds->groups = groups;
	groups[creds->groups_count++] = group;
	return 0;
}

static int compare(const void *left, const void *right)
{
	const uint32_t *a = left, *b = right;

	return (*a > *b) - (*a < *b);
}

void gcr_image_creds_sort(struct gcr_image_creds *creds)
{
	if (creds->groups_count)
		qsort(creds->groups, creds->groups_count, sizeof(*creds->groups), compare);
}

bool gcr_image_creds_has_group(const struct gcr_image_creds *creds, uint32_t group)
{
	return creds->groups_count &&
	       bsearch(&group, creds->groups, creds->groups_count, sizeof(*creds->groups), compare);
}

/* ---- reading ---- */

static int take_group(struct gcr_image_creds *creds, uint64_t group)
{
	return group > UINT32_MAX ? -EIO : gcr_image_creds_add_group(creds, (uint32_t)group);
}

/* A creds_entry as it is read: a set of capabilities consists of two numbers of 32 bits. */
struct reading {
	struct gcr_image_creds *creds;
	unsigned int ids; /* bit N: the id with field number N + 1 has been read */
	unsigned int halves[GCR_CREDS_SETS]; /* numbers read of each set */
};

static int take_half(struct reading *reading, unsigned int set, uint64_t value)
{
	if (value > UINT32_MAX || reading->halves[set] == 2)
		return -EIO;
	reading->creds->capabilities[set] |= value << (32 * reading->halves[set]++);
	return 0;
}

static int take_number(struct reading *reading, unsigned int field, uint64_t value)
{
	struct gcr_image_creds *creds = reading->creds;

	if (field >= FIELD_IDS && field < FIELD_IDS + GCR_ARRAY_SIZE(creds->ids)) {
		if (value > UINT32_MAX)
			return -EIO;
		creds->ids[field - FIELD_IDS] = (uint32_t)value;
		reading->ids |= 1u << (field - FIELD_IDS);
		return 0;
	}
	if (field >= FIELD_CAPABILITIES && field < FIELD_CAPABILITIES + GCR_CREDS_AMBIENT)
		return take_half(reading, field - FIELD_CAPABILITIES, value);
	if (field == FIELD_AMBIENT) {
		creds->has_ambient = true;
		return take_half(reading, GCR_CREDS_AMBIENT, value);
	}
	if (field == FIELD_GROUPS)
		return take_group(creds, value);
	if (field == FIELD_NO_NEW_PRIVS)
		creds->no_new_privs = value;
	if (field == FIELD_SECUREBITS && value > UINT32_MAX)
		return -EIO;
	if (field == FIELD_SECUREBITS)
		creds->securebits = (uint32_t)value;
	return 0;
}

/* Takes the numbers of a field, which has one or several packed ones. */
static int take_field(struct reading *reading, const struct gcr_protobuf_field *field)
{
	const uint8_t *at = field->content, *end = at + field->content_bytes;
	int result = 0;

	/* Fields with other numbers are texts, the profiles of security modules. */
	if (field->wire == GCR_PROTOBUF_BYTES && field->number != FIELD_GROUPS &&
	    field->number != FIELD_AMBIENT &&
	    (field->number < FIELD_IDS || field->number > FIELD_SECUREBITS))
		return 0;
	if (field->wire != GCR_PROTOBUF_VARINT && field->wire != GCR_PROTOBUF_BYTES)
		return -EIO;
	while (!result && at < end) {
		uint64_t value;

		result = gcr_protobuf_varint(&at, end, &value)
				 ? take_number(reading, field->number, value)
				 : -EIO;
	}
	return result;
}

static int parse_creds(const uint8_t *at, const uint8_t *end, struct gcr_image_creds *creds)
{
	struct reading reading = {.creds = creds};
	struct gcr_protobuf_field field;
	int result = 0;

	while (!result && at < end)
		result = gcr_protobuf_next(&at, end, &field) ? take_field(&reading, &field) : -EIO;
	if (result < 0)
		return result;
	for (size_t i = 0; i < GCR_CREDS_AMBIENT; i++)
		if (reading.halves[i] != 2)
			return -EIO;
	gcr_image_creds_sort(creds);
	return reading.ids == (1u << GCR_ARRAY_SIZE(creds->ids)) - 1 ? 0 : -EIO;
}

/*
 * Looks for one field in a message; *ret_field stays as it is without one. -EIO: see
 * gcr_protobuf_find().
 */
static int find_field(const uint8_t *at, const uint8_t *end, unsigned int number,
		      enum gcr_protobuf_wire wire, struct gcr_protobuf_field *ret_field)
{
	return gcr_protobuf_find(at, end, number, wire, ret_field) ? 0 : -EIO;
}

int gcr_image_creds_parse(const uint8_t *image, size_t bytes, struct gcr_image_creds *ret_creds)
{
	struct gcr_protobuf_field task = {0}, thread = {0}, state = {0}, creds = {0};
	const uint8_t *at, *end = image + bytes, *message;
	int result = gcr_criu_image_begin(image, bytes, GCR_CRIU_CORE, &at);

	*ret_creds = (struct gcr_image_creds){0};
	if (!result)
		result = gcr_criu_image_next(&at, end, &message);
	if (result < 0 || at != end)
		return -EIO;
	result = find_field(message, end, FIELD_TASK_CORE, GCR_PROTOBUF_BYTES, &task);
	if (!result)
		result = find_field(message, end, FIELD_THREAD_CORE, GCR_PROTOBUF_BYTES, &thread);
	if (!result && task.number)
		result = find_field(task.content, task.content + task.content_bytes,
				    FIELD_TASK_STATE, GCR_PROTOBUF_VARINT, &state);
	if (!result && thread.number)
		result = find_field(thread.content, thread.content + thread.content_bytes,
				    FIELD_CREDS, GCR_PROTOBUF_BYTES, &creds);
	if (result < 0)
		return result;
	ret_creds->is_dead = state.value == STATE_DEAD;
	if (ret_creds->is_dead)
		return 0;
	return creds.number
		       ? parse_creds(creds.content, creds.content + creds.content_bytes, ret_creds)
		       : -EIO;
}
