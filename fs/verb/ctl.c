/* SPDX-License-Identifier: MIT */
/*
 * The parser of writes to ctl. The parser accesses nothing but its arguments, and has a fuzz
 * target.
 */
#include "fs/verb/ctl.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "lib/cleanup.h"

/* The rest of the text to parse. */
struct cursor {
	const char *at;
	const char *end;
};

struct word {
	const char *start;
	size_t length;
};

static const struct gcr_command_option options[] = {
	{GCR_VERB_FREEZE, "data", NULL},      {GCR_VERB_FREEZE, "park", NULL},
	{GCR_VERB_FREEZE, "unseen", NULL},    {GCR_VERB_DUMP, "unseen", NULL},
	{GCR_VERB_FREEZE, "timeout", "SEC"},  {GCR_VERB_THAW, "timeout", "SEC"},
	{GCR_VERB_THAW, "gpu", "OLD:NEW"},    {GCR_VERB_THAW, "unverified", NULL},
	{GCR_VERB_THAW, "pid", "new|PID"},    {GCR_VERB_THAW, "stdio", "PATH"},
	{GCR_VERB_THAW, "swap", "PID"},	      {GCR_VERB_THAW, "data", NULL},
	{GCR_VERB_THAW, "trusted", NULL},     {GCR_VERB_DUMP, "timeout", "SEC"},
	{GCR_VERB_DUMP, "leave", NULL},	      {GCR_VERB_DUMP, "name", "NAME"},
	{GCR_VERB_DUMP, "tcp", "close|keep"}, {GCR_VERB_DUMP, "supervised", NULL},
	{GCR_VERB_PACK, "timeout", "SEC"},    {GCR_VERB_UNPACK, "timeout", "SEC"},
};

const struct gcr_command_option *gcr_command_options(size_t *ret_count)
{
	*ret_count = GCR_ARRAY_SIZE(options);
	return options;
}

static bool is_blank(char byte)
{
	return byte == ' ' || byte == '\t';
}

static bool next_word(struct cursor *cursor, struct word *ret_word)
{
	while (cursor->at < cursor->end && is_blank(*cursor->at))
		cursor->at++;
	ret_word->start = cursor->at;
	while (cursor->at < cursor->end && !is_blank(*cursor->at))
		cursor->at++;
	ret_word->length = (size_t)(cursor->at - ret_word->start);
	return ret_word->length > 0;
}

/* Parse a decimal number without sign, up to @max. */
static int parse_number(const char *start, size_t length, uint64_t max, uint64_t *ret_number)
{
	uint64_t number = 0;

	if (!length)
		return -EINVAL;
	for (size_t i = 0; i < length; i++) {
		if (!isdigit((unsigned char)start[i]))
			return -EINVAL;
		number = number * 10 + (uint64_t)(start[i] - '0');
		if (number > max)
			return -EINVAL;
	}
	*ret_number = number;
	return 0;
}

static int parse_timeout(struct gcr_command *command, const char *value, size_t length,
			 struct gcr_error *error)
{
	uint64_t seconds;

	if (command->timeout_usec)
		return gcr_error_set(error, EINVAL, "timeout= is given twice");
	if (parse_number(value, length, GCR_COMMAND_TIMEOUT_SEC_MAX, &seconds) < 0 || !seconds)
		return gcr_error_set(error, EINVAL, "timeout= takes whole seconds from 1 to %d",
				     GCR_COMMAND_TIMEOUT_SEC_MAX);
	command->timeout_usec = (int64_t)seconds * 1000000;
	return 0;
}

static int parse_gpu_pair(struct gcr_command *command, const char *value, size_t length,
			  struct gcr_error *error)
{
	const char *colon = memchr(value, ':', length);
	uint64_t from;
	uint64_t to;

	if (!colon || parse_number(value, (size_t)(colon - value), GCR_GPUS_MAX - 1, &from) < 0 ||
	    parse_number(colon + 1, length - (size_t)(colon + 1 - value), GCR_GPUS_MAX - 1, &to) <
		    0)
		return gcr_error_set(error, EINVAL, "gpu= takes two GPU indexes, as in gpu=0:1");
	for (unsigned int i = 0; i < command->gpu_pairs_count; i++)
		if (command->gpu_pairs[i].from == from || command->gpu_pairs[i].to == to)
			return gcr_error_set(error, EINVAL, "gpu= names a GPU twice");
	if (command->gpu_pairs_count == GCR_GPUS_MAX)
		return gcr_error_set(error, EINVAL, "too many gpu= pairs");
	command->gpu_pairs[command->gpu_pairs_count].from = (unsigned int)from;
	command->gpu_pairs[command->gpu_pairs_count].to = (unsigned int)to;
	command->gpu_pairs_count++;
	return 0;
}

static int parse_name(struct gcr_command *command, const char *value, size_t length,
		      struct gcr_error *error)
{
	if (*command->name)
		return gcr_error_set(error, EINVAL, "name= is given twice");
	if (!gcr_place_name_is_good(value, length))
		return gcr_error_set(error, EINVAL,
				     "name= takes at most %d letters, digits, '.', '_' and '-', "
				     "beginning with a letter or '_'",
				     GCR_PLACE_NAME_BYTES - 1);
	memcpy(command->name, value, length);
	return 0;
}

static int parse_tcp(struct gcr_command *command, const char *value, size_t length,
		     struct gcr_error *error)
{
	if (command->tcp != GCR_CRIU_TCP_REFUSE)
		return gcr_error_set(error, EINVAL, "tcp= is given twice");
	if (length == 5 && !memcmp(value, "close", 5))
		command->tcp = GCR_CRIU_TCP_CLOSE;
	else if (length == 4 && !memcmp(value, "keep", 4))
		command->tcp = GCR_CRIU_TCP_KEEP;
	else
		return gcr_error_set(error, EINVAL, "tcp= takes close or keep");
	return 0;
}

static int parse_restored(struct gcr_command *command, const char *value, size_t length,
			  struct gcr_error *error)
{
	uint64_t pid;

	if (command->new_pids || command->restored)
		return gcr_error_set(error, EINVAL, "pid= is given twice");
	if (length == 3 && !memcmp(value, "new", 3)) {
		command->new_pids = true;
		return 0;
	}
	if (parse_number(value, length, INT32_MAX, &pid) < 0 || !pid)
		return gcr_error_set(error, EINVAL, "pid= takes new, or a process id");
	command->restored = (pid_t)pid;
	return 0;
}

static int parse_swap(struct gcr_command *command, const char *value, size_t length,
		      struct gcr_error *error)
{
	uint64_t pid;

	if (command->swap)
		return gcr_error_set(error, EINVAL, "swap= takes one process, once");
	if (parse_number(value, length, INT32_MAX, &pid) < 0 || !pid)
		return gcr_error_set(error, EINVAL, "swap= takes a process id");
	command->swap = (pid_t)pid;
	return 0;
}

static int parse_stdio(struct gcr_command *command, const char *value, size_t length,
		       struct gcr_error *error)
{
	if (*command->stdio)
		return gcr_error_set(error, EINVAL, "stdio= is given twice");
	if (!length || *value != '/' || length >= sizeof(command->stdio))
		return gcr_error_set(error, EINVAL,
				     "stdio= takes an absolute path, shorter than %d",
				     GCR_COMMAND_PATH_BYTES);
	memcpy(command->stdio, value, length);
	return 0;
}

/* The flag that an option without a value sets. */
static bool *find_flag(struct gcr_command *command, const char *key)
{
	const struct {
		const char *key;
		bool *flag;
	} flags[] = {
		{"data", &command->data},	{"park", &command->park},
		{"unseen", &command->unseen},	{"unverified", &command->unverified},
		{"leave", &command->leave},	{"supervised", &command->supervised},
		{"trusted", &command->trusted},
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(flags); i++)
		if (!strcmp(flags[i].key, key))
			return flags[i].flag;
	return NULL;
}

/* The parsers of options with a value. */
static const struct {
	const char *key;
	int (*parse)(struct gcr_command *command, const char *value, size_t length,
		     struct gcr_error *error);
} values[] = {
	{"timeout", parse_timeout}, {"gpu", parse_gpu_pair}, {"name", parse_name},
	{"tcp", parse_tcp},	    {"pid", parse_restored}, {"stdio", parse_stdio},
	{"swap", parse_swap},
};

static int parse_value(struct gcr_command *command, const struct gcr_command_option *option,
		       struct word value, struct gcr_error *error)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(values); i++)
		if (!strcmp(values[i].key, option->key))
			return values[i].parse(command, value.start, value.length, error);
	return gcr_error_set(error, EINVAL, "%s takes no value", option->key);
}

static int parse_option(struct gcr_command *command, struct word word, struct gcr_error *error)
{
	const char *equals = memchr(word.start, '=', word.length);
	size_t key_length = equals ? (size_t)(equals - word.start) : word.length;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(options); i++) {
		bool *flag;

		if (options[i].verb != command->verb || strlen(options[i].key) != key_length ||
		    memcmp(options[i].key, word.start, key_length) != 0)
			continue;
		if (!options[i].value_words) {
			flag = find_flag(command, options[i].key);
			if (!flag || equals || *flag)
				return gcr_error_set(error, EINVAL, "%s stands alone, once",
						     options[i].key);
			*flag = true;
			return 0;
		}
		if (!equals)
			return gcr_error_set(error, EINVAL, "%s needs a value: %s=%s",
					     options[i].key, options[i].key,
					     options[i].value_words);
		return parse_value(command, &options[i],
				   (struct word){equals + 1, word.length - key_length - 1}, error);
	}
	return gcr_error_set(error, EINVAL, "%s has no option '%.*s'", gcr_verb_name(command->verb),
			     (int)(word.length < 64 ? word.length : 64), word.start);
}

/*
 * Checks the options of a thaw: `data` needs swap=, and refers to the process that is frozen.
 * -EINVAL, with a message.
 */
static int check_swap(struct gcr_command *command, struct gcr_error *error)
{
	if (command->verb != GCR_VERB_THAW)
		return 0;
	if (command->data && !command->swap)
		return gcr_error_set(error, EINVAL, "data goes with swap=PID");
	if (command->swap && command->pids_count > 1)
		return gcr_error_set(error, EINVAL, "swap= goes with one process");
	command->swap_data = command->data;
	command->data = false;
	return 0;
}

static int parse_pid(struct gcr_command *command, struct word word, struct gcr_error *error)
{
	uint64_t pid;

	if (parse_number(word.start, word.length, INT32_MAX, &pid) < 0 || !pid)
		return gcr_error_set(error, EINVAL, "'%.*s' is no process id",
				     (int)(word.length < 64 ? word.length : 64), word.start);
	for (unsigned int i = 0; i < command->pids_count; i++)
		if (command->pids[i] == (pid_t)pid)
			return 0;
	if (command->pids_count == GCR_COMMAND_PIDS_MAX)
		return gcr_error_set(error, E2BIG, "at most %d processes in one write",
				     GCR_COMMAND_PIDS_MAX);
	command->pids[command->pids_count++] = (pid_t)pid;
	return 0;
}

int gcr_command_parse(const char *bytes, size_t length, bool with_pids,
		      struct gcr_command *ret_command, struct gcr_error *error)
{
	struct gcr_command command = {0};
	struct cursor cursor;
	struct word word;
	int result;

	if (length > GCR_COMMAND_BYTES_MAX)
		return gcr_error_set(error, E2BIG, "a write to ctl takes at most %d bytes",
				     GCR_COMMAND_BYTES_MAX);
	if (length && bytes[length - 1] == '\n')
		length--;
	for (size_t i = 0; i < length; i++) {
		unsigned char byte = (unsigned char)bytes[i];

		if (byte == '\n')
			return gcr_error_set(error, EINVAL, "one write takes one verb, one line");
		if ((byte < 0x20 && byte != '\t') || byte >= 0x7f)
			return gcr_error_set(error, EINVAL, "byte 0x%02x does not belong in a verb",
					     byte);
	}
	cursor = (struct cursor){.at = bytes, .end = bytes + length};
	if (!next_word(&cursor, &word))
		return gcr_error_set(error, EINVAL, "an empty line is no verb");
	if (gcr_verb_parse(word.start, word.length, &command.verb) < 0)
		return gcr_error_set(error, EINVAL, "'%.*s' is no verb",
				     (int)(word.length < 64 ? word.length : 64), word.start);
	while (next_word(&cursor, &word)) {
		if (with_pids && isdigit((unsigned char)*word.start))
			result = parse_pid(&command, word, error);
		else
			result = parse_option(&command, word, error);
		if (result < 0)
			return result;
	}
	if (with_pids && !command.pids_count)
		return gcr_error_set(error, EINVAL, "%s at the root needs process ids",
				     gcr_verb_name(command.verb));
	result = check_swap(&command, error);
	if (result < 0)
		return result;
	*ret_command = command;
	return 0;
}
