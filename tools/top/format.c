/* SPDX-License-Identifier: MIT */
/*
 * The text of gpucr-top: figures, the table of processes, bars. Each column is a row of a table in
 * this file. No column contains blanks, so that scripts can split lines.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/cleanup.h"
#include "tools/top/top.h"

#define TEXT_BYTES (2 * TOP_WORD_BYTES)

/* ---- figures ---- */

static void print_size(uint64_t bytes, char *text, size_t size)
{
	if (bytes == TOP_UNKNOWN)
		snprintf(text, size, "-");
	else if (bytes == 0)
		snprintf(text, size, "0");
	else if (bytes < UINT64_C(1) << 20)
		snprintf(text, size, "%" PRIu64 "KiB", (bytes + 1023) >> 10);
	else if (bytes < UINT64_C(10) << 30)
		snprintf(text, size, "%" PRIu64 "MiB", (bytes + (1 << 19)) >> 20);
	else
		snprintf(text, size, "%.1fGiB", (double)bytes / (double)(1 << 30));
}

static void print_duration(uint64_t usec, char *text, size_t size)
{
	if (usec == TOP_UNKNOWN || usec == 0)
		snprintf(text, size, "-");
	else
		snprintf(text, size, "%.*fs", usec < 10000000 ? 3 : 1, (double)usec / 1e6);
}

/* Prints a rate in powers of ten, as usual for links. */
static void print_rate(uint64_t bytes, uint64_t usec, char *text, size_t size)
{
	double rate;

	if (usec == TOP_UNKNOWN || bytes == TOP_UNKNOWN || !usec || !bytes) {
		snprintf(text, size, "-");
		return;
	}
	rate = (double)bytes / (double)usec; /* MB/s */
	if (rate < 1000)
		snprintf(text, size, "%.0fMB/s", rate);
	else
		snprintf(text, size, "%.1fGB/s", rate / 1000);
}

static void print_idle(uint64_t msec, char *text, size_t size)
{
	static const struct {
		uint64_t msec; /* length of the unit */
		char unit;
	} units[] = {{1000, 's'}, {60000, 'm'}, {3600000, 'h'}, {86400000, 'd'}};
	size_t i = 0;

	if (msec == TOP_UNKNOWN) {
		snprintf(text, size, "-");
		return;
	}
	while (i + 1 < GCR_ARRAY_SIZE(units) && msec / units[i].msec >= 100)
		i++;
	snprintf(text, size, "%" PRIu64 "%c", msec / units[i].msec, units[i].unit);
}

/* ---- the table ---- */

#define COLUMN(name) static void print_##name(const struct top_process *process, char *text)

COLUMN(id)
{
	snprintf(text, TEXT_BYTES, "%s", process->id);
}

COLUMN(user)
{
	snprintf(text, TEXT_BYTES, "%s", process->user);
}

COLUMN(comm)
{
	snprintf(text, TEXT_BYTES, "%s", process->comm);
}

COLUMN(state)
{
	snprintf(text, TEXT_BYTES, "%s", process->state);
}

COLUMN(gpus)
{
	snprintf(text, TEXT_BYTES, "%s", process->gpus);
}

COLUMN(vram)
{
	print_size(process->vram_bytes, text, TEXT_BYTES);
}

COLUMN(held)
{
	print_size(process->held_bytes, text, TEXT_BYTES);
}

COLUMN(idle_of)
{
	print_idle(process->idle_msec, text, TEXT_BYTES);
}

COLUMN(wanted)
{
	snprintf(text, TEXT_BYTES, "%s",
		 process->wanted_usec == TOP_UNKNOWN ? "-"
		 : process->wanted_usec		     ? "yes"
						     : "no");
}

COLUMN(freeze)
{
	print_duration(process->freeze_usec, text, TEXT_BYTES);
}

COLUMN(freeze_rate)
{
	print_rate(process->freeze_bytes, process->freeze_usec, text, TEXT_BYTES);
}

COLUMN(thaw)
{
	print_duration(process->thaw_usec, text, TEXT_BYTES);
}

COLUMN(thaw_rate)
{
	print_rate(process->thaw_bytes, process->thaw_usec, text, TEXT_BYTES);
}

/* Prints the size of the packed bytes, and the size that they have when packed. */
COLUMN(packed)
{
	print_size(process->packed_bytes, text, TEXT_BYTES);
	if (process->packed_bytes == TOP_UNKNOWN || !process->packed_bytes)
		return;
	strcat(text, ">");
	print_size(process->packed_to_bytes, text + strlen(text), TEXT_BYTES - strlen(text));
}

#undef COLUMN

/*
 * The field of a column that a daemon may not support: the column is shown if any process has a
 * value.
 */
#define NUMBER(name) (1 + offsetof(struct top_process, name))

static const struct column {
	const char *title;
	void (*print)(const struct top_process *process, char *text);
	bool is_left;	   /* left-aligned */
	unsigned int rank; /* the highest rank is left out first; 0: never left out */
	size_t needs;	   /* NUMBER() of the field that must have a value; 0: always shown */
} columns[] = {
	{"ID", print_id, true, 0, 0},
	{"USER", print_user, true, 3, 0},
	{"COMMAND", print_comm, true, 0, 0},
	{"STATE", print_state, true, 0, 0},
	{"GPU", print_gpus, true, 4, 0},
	{"VRAM", print_vram, false, 0, 0},
	{"HELD", print_held, false, 1, 0},
	{"IDLE", print_idle_of, false, 2, 0},
	{"WANTED", print_wanted, false, 5, NUMBER(wanted_usec)},
	{"FREEZE", print_freeze, false, 6, 0},
	{"RATE", print_freeze_rate, false, 8, 0},
	{"THAW", print_thaw, false, 7, 0},
	{"RATE", print_thaw_rate, false, 9, 0},
	{"PACKED", print_packed, false, 10, NUMBER(packed_bytes)},
};

_Static_assert(GCR_ARRAY_SIZE(columns) <= TOP_COLUMNS_MAX, "more columns than a layout has");

static bool is_there(const struct top_view *view, const struct column *column)
{
	bool there = !column->needs;

	for (size_t i = 0; i < view->processes_count && !there; i++)
		there = *(const uint64_t *)((const char *)&view->processes[i] + column->needs -
					    1) != TOP_UNKNOWN;
	return there;
}

static size_t total_width(const struct top_layout *layout)
{
	size_t width = 0;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(columns); i++)
		if (layout->widths[i])
			width += layout->widths[i] + (width ? 1 : 0);
	return width;
}

/* Leaves out the column with the highest rank. Returns false if no column can be left out. */
static bool leave_one_out(struct top_layout *layout)
{
	size_t first = GCR_ARRAY_SIZE(columns);

	for (size_t i = 0; i < GCR_ARRAY_SIZE(columns); i++)
		if (layout->widths[i] && columns[i].rank &&
		    (first == GCR_ARRAY_SIZE(columns) || columns[i].rank > columns[first].rank))
			first = i;
	if (first == GCR_ARRAY_SIZE(columns))
		return false;
	layout->widths[first] = 0;
	return true;
}

void top_layout_make(const struct top_view *view, size_t width, struct top_layout *ret_layout)
{
	char text[TEXT_BYTES];

	*ret_layout = (struct top_layout){0};
	for (size_t i = 0; i < GCR_ARRAY_SIZE(columns); i++) {
		if (!is_there(view, &columns[i]))
			continue;
		ret_layout->widths[i] = strlen(columns[i].title);
		for (size_t j = 0; j < view->processes_count; j++) {
			columns[i].print(&view->processes[j], text);
			if (strlen(text) > ret_layout->widths[i])
				ret_layout->widths[i] = strlen(text);
		}
	}
	while (width && total_width(ret_layout) > width && leave_one_out(ret_layout))
		;
}

static void print_line(const struct top_layout *layout, const struct top_process *process,
		       char ret_line[TOP_LINE_BYTES])
{
	char text[TEXT_BYTES];
	size_t used = 0;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(columns); i++) {
		int width = (int)layout->widths[i];

		if (!width)
			continue;
		if (process)
			columns[i].print(process, text);
		else
			snprintf(text, sizeof(text), "%s", columns[i].title);
		used += (size_t)snprintf(ret_line + used, TOP_LINE_BYTES - used, "%s%*s",
					 used ? " " : "", columns[i].is_left ? -width : width,
					 text);
		if (used >= TOP_LINE_BYTES)
			used = TOP_LINE_BYTES - 1;
	}
	while (used && ret_line[used - 1] == ' ')
		used--;
	ret_line[used] = '\0';
}

void top_print_header(const struct top_layout *layout, char ret_line[TOP_LINE_BYTES])
{
	print_line(layout, NULL, ret_line);
}

void top_print_process(const struct top_layout *layout, const struct top_process *process,
		       char ret_line[TOP_LINE_BYTES])
{
	print_line(layout, process, ret_line);
}

/* ---- GPUs and the store ---- */

void top_print_gpu(const struct top_gpu *gpu, char ret_line[TOP_LINE_BYTES])
{
	char total[32], used[32], processes[32], held[32];

	print_size(gpu->total_bytes, total, sizeof(total));
	print_size(gpu->used_bytes, used, sizeof(used));
	print_size(gpu->processes_bytes, processes, sizeof(processes));
	print_size(gpu->held_bytes, held, sizeof(held));
	snprintf(ret_line, TOP_LINE_BYTES, "%s of %s, processes %s, held %s%s%s", used, total,
		 processes, held, *gpu->name ? ", " : "", gpu->name);
}

void top_print_store(const struct top_view *view, char ret_line[TOP_LINE_BYTES])
{
	char total[32], used[32], pool[32], kept[32];

	print_size(view->store_bytes, total, sizeof(total));
	print_size(view->store_used_bytes, used, sizeof(used));
	print_size(view->pool_used_bytes, pool, sizeof(pool));
	print_size(view->kept_bytes, kept, sizeof(kept));
	snprintf(ret_line, TOP_LINE_BYTES, "%s of %s, pool %s, kept %s", used, total, pool, kept);
}

/* Returns the figure, or 0 if it is unknown. */
static uint64_t known(uint64_t bytes)
{
	return bytes == TOP_UNKNOWN ? 0 : bytes;
}

/*
 * Fills the bar: each part begins at the rounded end of the part before, and is cut at the bar's
 * end.
 */
static void fill(size_t width, uint64_t total, const enum top_cell *cells, const uint64_t *parts,
		 size_t count, char *ret_cells)
{
	double end_bytes = 0;
	size_t begin = 0;

	memset(ret_cells, TOP_CELL_FREE, width);
	ret_cells[width] = '\0';
	for (size_t i = 0; i < count && total; i++) {
		size_t end;

		end_bytes += (double)parts[i];
		if (end_bytes > (double)total)
			end_bytes = (double)total;
		end = (size_t)(end_bytes / (double)total * (double)width + 0.5);
		memset(ret_cells + begin, (char)cells[i], end - begin);
		begin = end;
	}
}

void top_bar_gpu(const struct top_gpu *gpu, size_t width, char *ret_cells)
{
	uint64_t used = known(gpu->used_bytes);
	uint64_t processes = known(gpu->processes_bytes);

	if (processes > used)
		processes = used;
	fill(width, known(gpu->total_bytes),
	     (const enum top_cell[]){TOP_CELL_MOST, TOP_CELL_OTHER, TOP_CELL_HELD},
	     (const uint64_t[]){processes, used - processes, known(gpu->held_bytes)}, 3, ret_cells);
}

void top_bar_store(const struct top_view *view, size_t width, char *ret_cells)
{
	uint64_t used = known(view->store_used_bytes);
	uint64_t pool = known(view->pool_used_bytes);

	if (pool > used)
		pool = used;
	fill(width, known(view->store_bytes),
	     (const enum top_cell[]){TOP_CELL_MOST, TOP_CELL_OTHER},
	     (const uint64_t[]){used - pool, pool}, 2, ret_cells);
}
