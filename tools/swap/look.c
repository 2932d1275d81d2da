/* SPDX-License-Identifier: MIT */
/* Reads status and maps of a mount's processes and the status of its GPUs; nothing is cached. */
#include "tools/swap/swap.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_file.h"
#include "lib/status_text.h"
#include "lib/sum.h"

/*
 * Copies a value with unprintable characters replaced: a process's name must not control a
 * terminal.
 */
static void find_word(const char *text, const char *key, char *ret_word, size_t room)
{
	size_t length, i;
	const char *value = gcr_status_value(text, key, &length);

	for (i = 0; value && i < length && i < room - 1; i++)
		ret_word[i] = (char)(value[i] > 0x20 && value[i] < 0x7f ? value[i] : '?');
	ret_word[i] = '\0';
}

static int read_below(const char *mount, const char *directory, const char *name, char **ret_text)
{
	_cleanup_free_ char *path = NULL;

	if (asprintf(&path, "%s/%s/%s", mount, directory, name) < 0)
		return -ENOMEM;
	return gcr_file_read(path, ret_text, NULL);
}

int swap_status_value(const char *mount, int pid, const char *key, char *ret_value, size_t room)
{
	_cleanup_free_ char *text = NULL;
	char directory[16];
	int result;

	snprintf(directory, sizeof(directory), "%d", pid);
	result = read_below(mount, directory, "status", &text);
	if (result < 0)
		return result;
	find_word(text, key, ret_value, room);
	return *ret_value ? 0 : -ENOENT;
}

static uint32_t read_gpus(const char *text)
{
	size_t length;
	const char *value = gcr_status_value(text, "gpus", &length);
	const char *end = value ? value + length : NULL;
	uint32_t gpus = 0;

	if (value && length && *value == '-')
		return SWAP_ALL_GPUS;
	while (value && value < end) {
		unsigned long gpu = strtoul(value, NULL, 10);

		if (isdigit((unsigned char)*value) && gpu < SWAP_GPUS_MAX)
			gpus |= 1u << gpu;
		value += strcspn(value, " \n");
		value += value < end;
	}
	return gpus;
}

/* Adds a number; `-` counts as none. */
static void add_number(uint64_t *sum, const char *text)
{
	if (isdigit((unsigned char)*text))
		*sum = gcr_sum(*sum, strtoull(text, NULL, 10));
}

static enum swap_state state_of(const struct swap_label *label)
{
	if (label->has_verb || !strcmp(label->state, "freezing") ||
	    !strcmp(label->state, "thawing") || !strcmp(label->state, "dumping"))
		return SWAP_MOVING;
	if (!strcmp(label->state, "running"))
		return SWAP_RUNNING;
	return !strcmp(label->state, "frozen") ? SWAP_FROZEN : SWAP_OTHER;
}

/*
 * Adds up the VRAM of a process from its `maps`, whose lines are: RANGE GPU KIND BYTES HELD DIRTY.
 * Managed memory is left out: a thaw takes no VRAM for it, and it can be larger than the GPU.
 */
static void read_maps(const char *mount, const char *id, struct swap_process *process)
{
	_cleanup_free_ char *text = NULL;

	if (read_below(mount, id, "maps", &text) < 0)
		return;
	for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		char kind[16], bytes[24], held[24];
		unsigned int gpu;

		if (sscanf(line, "%*s %u %15s %23s %23s", &gpu, kind, bytes, held) != 4 ||
		    gpu >= SWAP_GPUS_MAX || !strcmp(kind, "managed"))
			continue;
		add_number(&process->need_bytes[gpu], held);
		add_number(&process->vram_bytes[gpu], bytes);
	}
}

/*
 * Assigns VRAM that maps does not list to the process's only GPU, or to unplaced_bytes if it has
 * several. While a HIP program runs, maps lacks most of its VRAM.
 */
static void place_vram(struct swap_process *process, uint64_t vram_bytes)
{
	uint64_t sum = 0;

	for (unsigned int gpu = 0; gpu < SWAP_GPUS_MAX; gpu++)
		sum = gcr_sum(sum, process->vram_bytes[gpu]);
	if (vram_bytes == SWAP_UNKNOWN || vram_bytes <= sum)
		return;
	if (process->gpus && !(process->gpus & (process->gpus - 1)))
		process->vram_bytes[__builtin_ctz(process->gpus)] += vram_bytes - sum;
	else
		process->unplaced_bytes = vram_bytes - sum;
}

static int add_process(struct swap_view *view, const struct swap_process *process,
		       const struct swap_label *label)
{
	if (view->situation.count == view->room) {
		size_t room = view->room ? 2 * view->room : 16;
		struct swap_process *processes =
			realloc(view->processes, room * sizeof(*processes));
		struct swap_label *labels = NULL;

		if (processes)
			view->processes = processes;
		labels = realloc(view->labels, room * sizeof(*labels));
		if (labels)
			view->labels = labels;
		if (!processes || !labels)
			return -ENOMEM;
		view->room = room;
	}
	view->processes[view->situation.count] = *process;
	view->labels[view->situation.count++] = *label;
	return 0;
}

static int look_at_process(const char *mount, const char *id, struct swap_view *view)
{
	struct swap_process process = {.pid = atoi(id)};
	struct swap_label label = {.state = ""};
	char engine[16], verb[16];
	_cleanup_free_ char *text = NULL;
	uint64_t idle_msec;
	size_t length;

	/* No access (another user's process), ended, or a launcher: skip. */
	if (read_below(mount, id, "status", &text) < 0 ||
	    !gcr_status_value(text, "wanted_usec", &length))
		return 0;
	find_word(text, "comm", label.comm, sizeof(label.comm));
	find_word(text, "state", label.state, sizeof(label.state));
	find_word(text, "engine", engine, sizeof(engine));
	find_word(text, "verb", verb, sizeof(verb));
	label.has_verb = *verb && strcmp(verb, "-") != 0 && strcmp(verb, "pack") != 0 &&
			 strcmp(verb, "unpack") != 0;
	process.state = state_of(&label);
	process.start_ticks = gcr_status_number(text, "start_ticks");
	process.state_since = gcr_status_number(text, "state_since_usec");
	process.wanted = gcr_status_number(text, "wanted_usec");
	process.can_tell = process.wanted != SWAP_UNKNOWN &&
			   (!strcmp(engine, "vmm") || !strcmp(engine, "hip"));
	idle_msec = gcr_status_number(text, "idle_ms");
	process.idle_usec = idle_msec > INT64_MAX / GCR_USEC_PER_MSEC
				    ? -1
				    : (int64_t)idle_msec * GCR_USEC_PER_MSEC;
	process.gpus = read_gpus(text);
	process.kept_bytes = gcr_status_number(text, "kept_vram_bytes");
	if (process.kept_bytes == SWAP_UNKNOWN)
		process.kept_bytes = 0;
	read_maps(mount, id, &process);
	if (process.state == SWAP_RUNNING)
		place_vram(&process, gcr_status_number(text, "vram_bytes"));
	return add_process(view, &process, &label);
}

static void look_at_gpus(const char *mount, struct swap_view *view)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_closedir_ DIR *list = NULL;
	const struct dirent *entry;

	if (asprintf(&path, "%s/gpus", mount) < 0)
		return;
	list = opendir(path);
	while (list && (entry = readdir(list))) {
		_cleanup_free_ char *text = NULL;
		unsigned long gpu = strtoul(entry->d_name, NULL, 10);

		if (!isdigit((unsigned char)*entry->d_name) || gpu >= SWAP_GPUS_MAX)
			continue;
		view->situation.gpus |= 1u << gpu;
		view->situation.free_bytes[gpu] = SWAP_UNKNOWN;
		if (read_below(path, entry->d_name, "status", &text) < 0)
			continue;
		view->situation.free_bytes[gpu] = gcr_status_number(text, "vram_free_bytes");
		view->situation.total_bytes[gpu] = gcr_status_number(text, "vram_total_bytes");
		if (view->situation.total_bytes[gpu] == SWAP_UNKNOWN)
			view->situation.total_bytes[gpu] = 0;
	}
}

int swap_look(const char *mount, struct swap_view *view)
{
	_cleanup_closedir_ DIR *list = opendir(mount);
	const struct dirent *entry;
	int result = list ? 0 : -errno;

	view->situation = (struct swap_situation){0};
	for (unsigned int gpu = 0; gpu < SWAP_GPUS_MAX; gpu++)
		view->situation.free_bytes[gpu] = SWAP_UNKNOWN;
	errno = 0;
	while (!result && (entry = readdir(list))) {
		if (isdigit((unsigned char)*entry->d_name))
			result = look_at_process(mount, entry->d_name, view);
		errno = 0;
	}
	if (!result && errno)
		result = -errno;
	if (!result)
		look_at_gpus(mount, view);
	view->situation.processes = view->processes;
	return result;
}

void swap_view_finish(struct swap_view *view)
{
	free(view->processes);
	free(view->labels);
	*view = (struct swap_view){0};
}
