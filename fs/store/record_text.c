/* SPDX-License-Identifier: MIT */
/* The text of a record: printing and parsing (see record_text.h). No file is opened here. */
#include "fs/store/record_text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/uuid.h"

#define VERSION_LINE	"gpucrfs-record 1"
/*
 * A record is filled up to a multiple of this, with room for the GPUs that a thaw may move it to:
 * then all versions of it are as long.
 */
#define FILLED_BYTES	4096
#define FILLER		"filler "
#define COMM_LINE_BYTES (sizeof("comm \n") + 3 * GCR_COMM_BYTES)
#define LINE_BYTES	96 /* at least those of each line with a GPU */

static const char *const state_names[] = {
	[GCR_RECORD_FREEZING] = "freezing",
	[GCR_RECORD_FROZEN] = "frozen",
	[GCR_RECORD_THAWING] = "thawing",
	[GCR_RECORD_FAILED] = "failed",
};

const char *gcr_record_state_name(enum gcr_record_state state)
{
	return state_names[state];
}

static bool is_uuid_text(const char *text)
{
	return gcr_uuid_parse(text, NULL) == 0;
}

static bool is_engine(const char *text)
{
	size_t length = strnlen(text, GCR_RECORD_ENGINE_BYTES);

	return length > 0 && length < GCR_RECORD_ENGINE_BYTES &&
	       strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
		       length;
}

/*
 * Writes the line with the name of a process, which may hold any byte: blanks, '%' and non-printing
 * bytes become %XX.
 */
static void write_comm(char line[COMM_LINE_BYTES], const char *comm)
{
	char *at = line + sprintf(line, "comm ");

	for (size_t i = 0; i < GCR_COMM_BYTES && comm[i]; i++) {
		unsigned char byte = (unsigned char)comm[i];

		if (byte > 0x20 && byte < 0x7f && byte != '%')
			*at++ = (char)byte;
		else
			at += sprintf(at, "%%%02x", byte);
	}
	strcpy(at, "\n");
}

static void print_uuid(FILE *stream, const uint8_t uuid[GCR_UUID_BYTES])
{
	for (size_t byte = 0; byte < GCR_UUID_BYTES; byte++)
		fprintf(stream, "%02x", uuid[byte]);
}

static void print_moves(FILE *stream, const char *name, const struct gcr_moves *moves)
{
	for (uint32_t i = 0; i < moves->count; i++) {
		fprintf(stream, "%s ", name);
		print_uuid(stream, moves->pairs[i].from);
		fputc(' ', stream);
		print_uuid(stream, moves->pairs[i].to);
		fputc('\n', stream);
	}
}

/*
 * Prints a line without meaning that fills the record up to a multiple of FILLED_BYTES.
 * @rest_bytes: the length of the text behind that line. So later versions of the record are as
 * long: there is room for three lines for each GPU, its own and those of two places that it may be
 * moved to.
 */
static void print_filler(FILE *stream, const struct gcr_record *record, size_t rest_bytes)
{
	size_t lines = 3 * (size_t)record->gpus_count;
	size_t bytes = FILLED_BYTES / 4 + lines * LINE_BYTES;
	long printed = ftell(stream);
	size_t used = (size_t)printed + strlen(FILLER "\n") + rest_bytes;

	bytes = (bytes + FILLED_BYTES - 1) / FILLED_BYTES * FILLED_BYTES;
	if (printed >= 0 && used <= bytes)
		fprintf(stream, FILLER "%*s\n", (int)(bytes - used), "");
}

int gcr_record_print(const struct gcr_record *record, const char *boot_id, char **ret_text,
		     size_t *ret_bytes)
{
	char comm[COMM_LINE_BYTES];
	_cleanup_free_ char *text = NULL;
	size_t bytes = 0;
	FILE *stream;

	if (record->pid <= 0 || (unsigned int)record->state >= GCR_ARRAY_SIZE(state_names) ||
	    !is_uuid_text(record->generation) || !is_engine(record->engine) ||
	    record->since_usec < 0 || record->gpus_count > GCR_GPUS_MAX ||
	    record->moved.count > GCR_GPUS_MAX || record->moving.count > GCR_GPUS_MAX)
		return -EINVAL;
	stream = open_memstream(&text, &bytes);
	if (!stream)
		return -errno;
	fprintf(stream,
		VERSION_LINE "\nboot %s\npid %d\nstart_ticks %" PRIu64 "\nstate %s\n"
			     "generation %s\nengine %s\nsince_usec %" PRId64 "\n",
		boot_id, (int)record->pid, record->start_ticks, state_names[record->state],
		record->generation, record->engine, record->since_usec);
	for (uint32_t i = 0; i < record->gpus_count; i++) {
		fputs("gpu ", stream);
		print_uuid(stream, record->gpus[i].uuid);
		fprintf(stream, " %" PRIu64 "\n", record->gpus[i].bytes);
	}
	print_moves(stream, "moved", &record->moved);
	print_moves(stream, "moving", &record->moving);
	if (record->swap_pid > 0)
		fprintf(stream, "swap %d %" PRIu64 "\n", (int)record->swap_pid,
			record->swap_start_ticks);
	if (record->frozen_for_pid > 0)
		fprintf(stream, "frozen_for %d %" PRIu64 "\n", (int)record->frozen_for_pid,
			record->frozen_for_start_ticks);
	write_comm(comm, record->comm);
	/* Not last: a record that was cut short has no comm. */
	print_filler(stream, record, strlen(comm));
	fputs(comm, stream);
	/* The stream owns the text until fclose(), which also reports a lack of memory. */
	if (fclose(stream) != 0)
		return -ENOMEM;
	*ret_text = TAKE_PTR(text);
	*ret_bytes = bytes;
	return 0;
}

/* Parses a whole decimal number up to @limit, without sign or leading zero. */
static bool parse_number(const char *text, uint64_t limit, uint64_t *ret_value)
{
	uint64_t value = 0;

	if (!isdigit((unsigned char)*text) || (text[0] == '0' && text[1]))
		return false;
	for (; *text; text++) {
		uint64_t digit = (uint64_t)(*text - '0');

		if (!isdigit((unsigned char)*text) || value > (limit - digit) / 10)
			return false;
		value = value * 10 + digit;
	}
	*ret_value = value;
	return true;
}

static int hex_digit(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static bool parse_hex_byte(const char *text, uint8_t *ret_byte)
{
	int high = hex_digit(text[0]);
	int low = high < 0 ? -1 : hex_digit(text[1]);

	if (low < 0)
		return false;
	*ret_byte = (uint8_t)(high * 16 + low);
	return true;
}

/* A record being parsed; `record` is filled line by line and used only if all of it is valid. */
struct parse {
	struct gcr_record record;
	char boot_id[GCR_BOOT_ID_BYTES];
	unsigned int keys_seen; /* bit of each row of keys[] */
};

static bool parse_boot(const char *value, struct parse *parse)
{
	if (!is_uuid_text(value))
		return false;
	memcpy(parse->boot_id, value, sizeof(parse->boot_id));
	return true;
}

static bool parse_pid(const char *value, struct parse *parse)
{
	uint64_t number;

	if (!parse_number(value, INT_MAX, &number) || number == 0)
		return false;
	parse->record.pid = (pid_t)number;
	return true;
}

static bool parse_start_ticks(const char *value, struct parse *parse)
{
	return parse_number(value, UINT64_MAX, &parse->record.start_ticks);
}

static bool parse_state(const char *value, struct parse *parse)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(state_names); i++) {
		if (strcmp(value, state_names[i]) == 0) {
			parse->record.state = (enum gcr_record_state)i;
			return true;
		}
	}
	return false;
}

static bool parse_generation(const char *value, struct parse *parse)
{
	if (!is_uuid_text(value))
		return false;
	memcpy(parse->record.generation, value, sizeof(parse->record.generation));
	return true;
}

static bool parse_engine(const char *value, struct parse *parse)
{
	if (!is_engine(value))
		return false;
	memcpy(parse->record.engine, value, strlen(value) + 1);
	return true;
}

static bool parse_since(const char *value, struct parse *parse)
{
	uint64_t number;

	if (!parse_number(value, INT64_MAX, &number))
		return false;
	parse->record.since_usec = (int64_t)number;
	return true;
}

static bool parse_uuid(const char *value, uint8_t ret_uuid[GCR_UUID_BYTES])
{
	for (size_t i = 0; i < GCR_UUID_BYTES; i++, value += 2)
		if (!parse_hex_byte(value, &ret_uuid[i]))
			return false;
	return true;
}

static bool parse_gpu(const char *value, struct parse *parse)
{
	struct gcr_record *record = &parse->record;

	if (record->gpus_count == GCR_GPUS_MAX)
		return false;
	if (!parse_uuid(value, record->gpus[record->gpus_count].uuid))
		return false;
	value += 2 * GCR_UUID_BYTES;
	if (*value != ' ' ||
	    !parse_number(value + 1, UINT64_MAX, &record->gpus[record->gpus_count].bytes))
		return false;
	record->gpus_count++;
	return true;
}

static bool parse_move(const char *value, struct gcr_moves *moves)
{
	struct gcr_gpu_pair *pair = &moves->pairs[moves->count];

	if (moves->count == GCR_GPUS_MAX || strlen(value) != 4 * GCR_UUID_BYTES + 1 ||
	    value[2 * GCR_UUID_BYTES] != ' ' || !parse_uuid(value, pair->from) ||
	    !parse_uuid(value + 2 * GCR_UUID_BYTES + 1, pair->to))
		return false;
	moves->count++;
	return true;
}

static bool parse_moved(const char *value, struct parse *parse)
{
	return parse_move(value, &parse->record.moved);
}

static bool parse_moving(const char *value, struct parse *parse)
{
	return parse_move(value, &parse->record.moving);
}

static bool parse_process(const char *value, pid_t *ret_pid, uint64_t *ret_start_ticks)
{
	const char *blank = strchr(value, ' ');
	char pid[16] = "";
	uint64_t number;

	if (!blank || (size_t)(blank - value) >= sizeof(pid))
		return false;
	memcpy(pid, value, (size_t)(blank - value));
	if (!parse_number(pid, INT_MAX, &number) || !number ||
	    !parse_number(blank + 1, UINT64_MAX, ret_start_ticks))
		return false;
	*ret_pid = (pid_t)number;
	return true;
}

static bool parse_swap(const char *value, struct parse *parse)
{
	return parse_process(value, &parse->record.swap_pid, &parse->record.swap_start_ticks);
}

static bool parse_frozen_for(const char *value, struct parse *parse)
{
	return parse_process(value, &parse->record.frozen_for_pid,
			     &parse->record.frozen_for_start_ticks);
}

static bool parse_comm(const char *value, struct parse *parse)
{
	size_t used = 0;

	while (*value) {
		uint8_t byte = (uint8_t)*value++;

		if (byte == '%') {
			if (!parse_hex_byte(value, &byte) || byte == 0)
				return false;
			value += 2;
		}
		if (used == sizeof(parse->record.comm) - 1)
			return false;
		parse->record.comm[used++] = (char)byte;
	}
	parse->record.comm[used] = '\0';
	return true;
}

static const struct key {
	const char *name;
	bool (*parse)(const char *value, struct parse *parse);
	bool may_repeat; /* may be missing or repeated; the other keys occur exactly once */
} keys[] = {
	{"boot", parse_boot, false},
	{"pid", parse_pid, false},
	{"start_ticks", parse_start_ticks, false},
	{"state", parse_state, false},
	{"generation", parse_generation, false},
	{"engine", parse_engine, false},
	{"since_usec", parse_since, false},
	{"gpu", parse_gpu, true},
	{"moved", parse_moved, true},
	{"moving", parse_moving, true},
	{"swap", parse_swap, true},
	{"frozen_for", parse_frozen_for, true},
	{"comm", parse_comm, false},
};

static bool parse_line(char *line, struct parse *parse)
{
	char *value = strchr(line, ' ');

	if (!value)
		return false;
	*value++ = '\0';
	for (size_t i = 0; i < GCR_ARRAY_SIZE(keys); i++) {
		if (strcmp(line, keys[i].name) != 0)
			continue;
		if (!keys[i].may_repeat && parse->keys_seen & 1u << i)
			return false;
		parse->keys_seen |= 1u << i;
		return keys[i].parse(value, parse);
	}
	return true; /* a key of a later version */
}

/* As gcr_record_parse(); false: @text is no record. */
static bool parse_text(char *text, struct parse *parse)
{
	char *rest = text;
	char *line = strsep(&rest, "\n");

	if (strcmp(line, VERSION_LINE) != 0)
		return false;
	while ((line = strsep(&rest, "\n"))) {
		/* the last line ends with a newline, too: a file cut short is no record */
		if (!rest)
			break;
		if (!parse_line(line, parse))
			return false;
	}
	if (!line || *line != '\0')
		return false;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(keys); i++)
		if (!keys[i].may_repeat && !(parse->keys_seen & 1u << i))
			return false;
	return true;
}

int gcr_record_parse(char *text, struct gcr_record *ret_record, char boot_id[GCR_BOOT_ID_BYTES])
{
	struct parse parse = {};

	if (!parse_text(text, &parse))
		return -EBADMSG;
	*ret_record = parse.record;
	memcpy(boot_id, parse.boot_id, sizeof(parse.boot_id));
	return 0;
}
