/* SPDX-License-Identifier: MIT */
/*
 * Reads the data of gpucr-top: only files of the mount. Every path is looked up again each time, so
 * that a new mount at the same place is found.
 */
#include "tools/top/top.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/beneath.h"
#include "lib/cleanup.h"
#include "lib/status_text.h"

#define TEXT_MAX (4 << 20)

/* Reads a whole file below @directory; the caller frees *ret_text. */
static int read_text(int directory, const char *path, char **ret_text)
{
	_cleanup_close_ int fd = openat(directory, path, O_RDONLY | O_CLOEXEC);
	_cleanup_free_ char *text = NULL;
	size_t used = 0, room = 0;
	ssize_t got = 1;

	if (fd < 0)
		return -errno;
	while (got > 0 && used < TEXT_MAX) {
		if (room - used < 2) {
			char *more = realloc(text, room + 16384);

			if (!more)
				return -ENOMEM;
			text = more;
			room += 16384;
		}
		got = read(fd, text + used, room - used - 1);
		if (got < 0)
			return -errno;
		used += (size_t)got;
	}
	text[used] = '\0';
	*ret_text = TAKE_PTR(text);
	return 0;
}

/* Replaces unprintable characters: a name may contain any byte, and must not control a terminal. */
static char harmless(char byte)
{
	return (char)(byte >= 0x20 && byte < 0x7f ? byte : '?');
}

/* Copies a word, truncated; blanks, which separate words, become '?'. */
static void copy_word(const char *from, size_t length, char ret_word[TOP_WORD_BYTES])
{
	size_t i;

	for (i = 0; i < length && i < TOP_WORD_BYTES - 1; i++)
		ret_word[i] = from[i] == ' ' ? '?' : harmless(from[i]);
	ret_word[i] = '\0';
}

static void find_word(const char *text, const char *key, char ret_word[TOP_WORD_BYTES])
{
	size_t length;
	const char *value = gcr_status_value(text, key, &length);

	copy_word(value ? value : "-", value ? length : 1, ret_word);
}

/* ---- processes ---- */

static const struct process_key {
	const char *name;
	size_t number; /* offset of its field */
} process_keys[] = {
	{"idle_ms", offsetof(struct top_process, idle_msec)},
	{"last_freeze_usec", offsetof(struct top_process, freeze_usec)},
	{"last_freeze_bytes", offsetof(struct top_process, freeze_bytes)},
	{"last_thaw_usec", offsetof(struct top_process, thaw_usec)},
	{"last_thaw_bytes", offsetof(struct top_process, thaw_bytes)},
	{"wanted_usec", offsetof(struct top_process, wanted_usec)},
	{"packed_bytes", offsetof(struct top_process, packed_bytes)},
	{"packed_to_bytes", offsetof(struct top_process, packed_to_bytes)},
};

/* Returns true if @id can be the name of one of the mount's directories. */
static bool is_name(const char *id)
{
	return *id && *id != '.' && !strchr(id, '/');
}

/* Reads the values that only the owner may read; for other users' processes they stay unknown. */
static void look_inside(int directory, struct top_process *process)
{
	char path[TOP_WORD_BYTES + sizeof("/status")];
	_cleanup_free_ char *text = NULL;

	snprintf(path, sizeof(path), "%s/status", process->id);
	if (!is_name(process->id) || read_text(directory, path, &text) < 0)
		text = NULL;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(process_keys); i++)
		*(uint64_t *)((char *)process + process_keys[i].number) =
			text ? gcr_status_number(text, process_keys[i].name) : TOP_UNKNOWN;
	find_word(text ? text : "", "gpus", process->gpus);
	for (char *byte = process->gpus; *byte; byte++)
		if (*byte == '?') /* a blank */
			*byte = ',';
}

/* Parses a line of the root's table. Returns false if the line is malformed. */
static bool parse_line(const char *line, size_t length, struct top_process *ret_process)
{
	char *const words[] = {ret_process->id, ret_process->user, ret_process->comm,
			       ret_process->state};
	uint64_t *const numbers[] = {&ret_process->vram_bytes, &ret_process->held_bytes};
	const char *end = line + length;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(words) + GCR_ARRAY_SIZE(numbers); i++) {
		size_t word = 0;

		while (line < end && *line == ' ')
			line++;
		while (line + word < end && line[word] != ' ')
			word++;
		if (!word)
			return false;
		if (i < GCR_ARRAY_SIZE(words))
			copy_word(line, word, words[i]);
		else
			*numbers[i - GCR_ARRAY_SIZE(words)] = isdigit((unsigned char)*line)
								      ? strtoull(line, NULL, 10)
								      : TOP_UNKNOWN;
		line += word;
	}
	return true;
}

/* Reads the table: it follows the first empty line and a line of headings. */
static int look_at_processes(int directory, const char *text, struct top_view *view)
{
	const char *table = strstr(text, "\n\n");
	size_t room = 0;

	table = table ? strchr(table + 2, '\n') : NULL;
	for (const char *line = table ? table + 1 : ""; *line;) {
		size_t length = strcspn(line, "\n");

		if (view->processes_count == room) {
			struct top_process *more =
				realloc(view->processes, (room + 64) * sizeof(*more));

			if (!more)
				return -ENOMEM;
			view->processes = more;
			room += 64;
		}
		if (parse_line(line, length, &view->processes[view->processes_count]))
			look_inside(directory, &view->processes[view->processes_count++]);
		line += length + (line[length] == '\n');
	}
	return 0;
}

/* ---- GPUs ---- */

static void look_at_gpu(int directory, struct top_gpu *gpu)
{
	_cleanup_free_ char *status = NULL;
	_cleanup_free_ char *name = NULL;
	char path[64];

	snprintf(path, sizeof(path), "gpus/%u/status", gpu->index);
	if (read_text(directory, path, &status) < 0)
		status = NULL;
	snprintf(path, sizeof(path), "gpus/%u/name", gpu->index);
	if (read_text(directory, path, &name) < 0)
		name = NULL;
	gpu->total_bytes = gcr_status_number(status ? status : "", "vram_total_bytes");
	gpu->used_bytes = gcr_status_number(status ? status : "", "vram_used_bytes");
	gpu->processes_bytes = gcr_status_number(status ? status : "", "vram_processes_bytes");
	gpu->held_bytes = gcr_status_number(status ? status : "", "held_bytes");
	/* This name may contain blanks: it is the last word of its line. */
	for (size_t i = 0; i < sizeof(gpu->name); i++) {
		char byte = name ? name[i] : '\0';

		gpu->name[i] = '\0';
		if (!byte || byte == '\n' || i == sizeof(gpu->name) - 1)
			break;
		gpu->name[i] = harmless(byte);
	}
}

static int by_index(const void *left, const void *right)
{
	const struct top_gpu *first = left, *second = right;

	return first->index < second->index ? -1 : first->index > second->index;
}

static int look_at_gpus(int directory, struct top_view *view)
{
	_cleanup_closedir_ DIR *list = NULL;
	const struct dirent *entry;

	if (gcr_beneath_list(directory, "gpus", &list) < 0)
		return 0;
	while ((entry = readdir(list))) {
		struct top_gpu *more;

		if (!isdigit((unsigned char)*entry->d_name))
			continue;
		more = realloc(view->gpus, (view->gpus_count + 1) * sizeof(*more));
		if (!more)
			return -ENOMEM;
		view->gpus = more;
		more[view->gpus_count].index = (unsigned int)strtoul(entry->d_name, NULL, 10);
		look_at_gpu(directory, &more[view->gpus_count++]);
	}
	if (view->gpus_count)
		qsort(view->gpus, view->gpus_count, sizeof(*view->gpus), by_index);
	return 0;
}

/* ---- the whole view ---- */

int top_look(const char *mount, struct top_view *ret_view, struct gcr_error *error)
{
	struct top_view view = {0};
	_cleanup_close_ int directory = open(mount, O_PATH | O_DIRECTORY | O_CLOEXEC);
	_cleanup_free_ char *text = NULL;
	int result = directory < 0 ? -errno : read_text(directory, "status", &text);

	if (result == -ENOTCONN)
		return gcr_error_set(error, ENOTCONN, "%s: its daemon has ended", mount);
	if (result == -ENOENT)
		return gcr_error_set(error, ENOENT, "%s: no gpucrfs is mounted there", mount);
	if (result < 0)
		return gcr_error_set(error, -result, "%s: %s", mount, strerror(-result));
	find_word(text, "version", view.version);
	view.store_bytes = gcr_status_number(text, "store_bytes");
	view.store_used_bytes = gcr_status_number(text, "store_used_bytes");
	view.pool_used_bytes = gcr_status_number(text, "pool_used_bytes");
	view.kept_bytes = gcr_status_number(text, "kept_bytes");
	result = look_at_gpus(directory, &view);
	if (!result)
		result = look_at_processes(directory, text, &view);
	if (result < 0) {
		top_view_finish(&view);
		return gcr_error_set(error, -result, "out of memory");
	}
	*ret_view = view;
	return 0;
}

void top_view_finish(struct top_view *view)
{
	free(view->gpus);
	free(view->processes);
	*view = (struct top_view){0};
}

/* ---- order ---- */

static const struct order {
	const char *name;
	char key;
	size_t number; /* offset of the field to compare; 0 for states and ids */
} orders[TOP_ORDERS_COUNT] = {
	[TOP_BY_VRAM] = {"vram", 'v', offsetof(struct top_process, vram_bytes)},
	[TOP_BY_HELD] = {"held", 'h', offsetof(struct top_process, held_bytes)},
	[TOP_BY_IDLE] = {"idle", 'i', offsetof(struct top_process, idle_msec)},
	[TOP_BY_STATE] = {"state", 's', 0},
	[TOP_BY_ID] = {"pid", 'p', 0},
};

const char *top_order_name(enum top_order order)
{
	return orders[order].name;
}

char top_order_key(enum top_order order)
{
	return orders[order].key;
}

/* Compares pids by number, and sorts them before names. */
static int compare_ids(const char *left, const char *right)
{
	bool is_pid = isdigit((unsigned char)*left);
	size_t lengths[2] = {strlen(left), strlen(right)};

	if (is_pid != !!isdigit((unsigned char)*right))
		return is_pid ? -1 : 1;
	if (is_pid && lengths[0] != lengths[1])
		return lengths[0] < lengths[1] ? -1 : 1;
	return strcmp(left, right);
}

static int compare(const void *left, const void *right, void *data)
{
	const struct top_process *first = left, *second = right;
	enum top_order order = *(const enum top_order *)data;
	int result = 0;

	if (order == TOP_BY_STATE) {
		result = strcmp(first->state, second->state);
	} else if (order != TOP_BY_ID) {
		size_t offset = orders[order].number;
		/* TOP_UNKNOWN + 1 is 0: unknown values sort last. */
		uint64_t one = *(const uint64_t *)((const char *)first + offset) + 1;
		uint64_t other = *(const uint64_t *)((const char *)second + offset) + 1;

		result = one > other ? -1 : one < other;
	}
	return result ? result : compare_ids(first->id, second->id);
}

void top_sort(struct top_view *view, enum top_order order)
{
	if (view->processes_count)
		qsort_r(view->processes, view->processes_count, sizeof(*view->processes), compare,
			&order);
}

/* ---- verbs ---- */

/* Reads the line of `error`. Returns 0 or -errno. */
static int read_error(const char *mount, const char *id, char ret_words[GCR_ERROR_WORDS_MAX])
{
	_cleanup_free_ char *path = NULL;
	_cleanup_free_ char *text = NULL;
	int result;

	if (asprintf(&path, "%s/%s/error", mount, id) < 0)
		return -ENOMEM;
	result = read_text(AT_FDCWD, path, &text);
	if (result < 0)
		return result;
	snprintf(ret_words, GCR_ERROR_WORDS_MAX, "%.*s", (int)strcspn(text, "\n"), text);
	for (char *byte = ret_words; *byte; byte++)
		*byte = harmless(*byte);
	return 0;
}

int top_verb_start(const char *mount, const char *id, const char *verb, struct gcr_error *error)
{
	char words[GCR_ERROR_WORDS_MAX];
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;
	int number;

	if (!is_name(id))
		return gcr_error_set(error, EINVAL, "it is no name");
	if (asprintf(&path, "%s/%s/ctl", mount, id) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return gcr_error_set(error, errno, "%s", strerror(errno));
	if (write(fd, verb, strlen(verb)) >= 0)
		return 0;
	number = errno;
	if (read_error(mount, id, words) < 0 || !strcmp(words, "ok"))
		return gcr_error_set(error, number, "%s", strerror(number));
	return gcr_error_set(error, number, "%s", words);
}

/* Returns true if @state is the one that the verb leads to. */
static bool is_done(const char *verb, const char *state)
{
	return !strcmp(state, !strcmp(verb, "freeze") ? "frozen" : "running");
}

int top_verb_result(const char *mount, const char *id, const char *verb,
		    char ret_words[GCR_ERROR_WORDS_MAX])
{
	_cleanup_free_ char *path = NULL;
	_cleanup_free_ char *text = NULL;
	char under_way[TOP_WORD_BYTES], state[TOP_WORD_BYTES];
	int result;

	if (asprintf(&path, "%s/%s/status", mount, id) < 0)
		return -ENOMEM;
	result = read_text(AT_FDCWD, path, &text);
	if (result < 0)
		return result;
	find_word(text, "verb", under_way);
	find_word(text, "state", state);
	if (strcmp(under_way, "-") != 0)
		return -EAGAIN;
	result = read_error(mount, id, ret_words);
	/* A verb that had nothing to do leaves the error of an earlier verb in `error`. */
	if (!result && is_done(verb, state) && strncmp(ret_words, "ok", 2) != 0)
		strcpy(ret_words, "ok");
	return result;
}
