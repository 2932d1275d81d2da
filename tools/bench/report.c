/* SPDX-License-Identifier: MIT */
/*
 * The text report: tables aligned for a terminal, which can be pasted into a Markdown file. Every
 * figure is the median of a row's runs.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "config.h"
#include "lib/cleanup.h"
#include "tools/bench/bench.h"
#include "tools/bench/pack.h"

#define COLUMNS_MAX 12
#define CELL_BYTES  64
#define LINES_MAX   256
#define MIB	    1048576.0

struct table {
	unsigned int columns, lines;
	char cells[LINES_MAX][COLUMNS_MAX][CELL_BYTES];
};

static int compare(const void *a, const void *b)
{
	const double *first = a, *second = b;

	return *first < *second ? -1 : *first > *second;
}

void bench_series_add(struct bench_series *series, double value)
{
	if (series->count < BENCH_RUNS_MAX)
		series->values[series->count++] = value;
}

double bench_series_median(const struct bench_series *series)
{
	struct bench_series sorted = *series;
	unsigned int middle = series->count / 2;

	if (!series->count)
		return 0;
	qsort(sorted.values, sorted.count, sizeof(*sorted.values), compare);
	return series->count % 2 ? sorted.values[middle]
				 : (sorted.values[middle - 1] + sorted.values[middle]) / 2;
}

double bench_series_min(const struct bench_series *series)
{
	double min = series->count ? series->values[0] : 0;

	for (unsigned int i = 1; i < series->count; i++)
		min = series->values[i] < min ? series->values[i] : min;
	return min;
}

double bench_series_max(const struct bench_series *series)
{
	double max = series->count ? series->values[0] : 0;

	for (unsigned int i = 1; i < series->count; i++)
		max = series->values[i] > max ? series->values[i] : max;
	return max;
}

void bench_format_bytes(uint64_t bytes, char *ret_text, size_t room)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	size_t unit = 0;

	while (unit < GCR_ARRAY_SIZE(units) - 1 && bytes && bytes % 1024 == 0) {
		bytes /= 1024;
		unit++;
	}
	snprintf(ret_text, room, "%llu %s", (unsigned long long)bytes, units[unit]);
}

static void format_size(const struct bench_row *row, char *ret_text, size_t room)
{
	if (row->is_command)
		snprintf(ret_text, room, "command");
	else if (!row->bytes)
		snprintf(ret_text, room, "context only");
	else
		bench_format_bytes(row->bytes, ret_text, room);
}

static const char *kind_words(const struct bench *bench, const struct bench_row *row)
{
	return bench->options.hip && row->kind->hip_words ? row->kind->hip_words : row->kind->words;
}

void bench_format_row(const struct bench *bench, const struct bench_row *row, char *ret_text,
		      size_t room)
{
	char size[32];

	format_size(row, size, sizeof(size));
	snprintf(ret_text, room, "%s %s", size, kind_words(bench, row));
}

/* ---- tables ---- */

/* Adds a line with its first cells, ended by NULL; the first line has the headings. */
static void add_line(struct table *table, ...)
{
	unsigned int column = 0;
	const char *cell;
	va_list cells;

	if (table->lines == LINES_MAX)
		return;
	va_start(cells, table);
	while (column < COLUMNS_MAX && (cell = va_arg(cells, const char *)))
		snprintf(table->cells[table->lines][column++], CELL_BYTES, "%s", cell);
	va_end(cells);
	if (!table->lines++)
		table->columns = column;
}

/* Fills in the next empty cell of the last line. */
static void __attribute__((format(printf, 2, 3)))
add_cell(struct table *table, const char *format, ...)
{
	char(*cells)[CELL_BYTES] = table->cells[table->lines - 1];
	va_list arguments;

	for (unsigned int column = 0; column < table->columns; column++) {
		if (*cells[column])
			continue;
		va_start(arguments, format);
		vsnprintf(cells[column], CELL_BYTES, format, arguments);
		va_end(arguments);
		return;
	}
}

/* Prints numbers right-aligned; the first @words columns are text. */
static void print_table(const struct table *table, unsigned int words, FILE *stream)
{
	int widths[COLUMNS_MAX] = {0};

	for (unsigned int line = 0; line < table->lines; line++)
		for (unsigned int column = 0; column < table->columns; column++) {
			int width = (int)strlen(table->cells[line][column]);

			widths[column] = width > widths[column] ? width : widths[column];
		}
	for (unsigned int line = 0; line < table->lines; line++) {
		for (unsigned int column = 0; column < table->columns; column++)
			fprintf(stream, "| %*s ", column < words ? -widths[column] : widths[column],
				table->cells[line][column]);
		fputs("|\n", stream);
		for (unsigned int column = 0; column < table->columns && !line; column++) {
			fputs(column < words ? "|:" : "|-", stream);
			for (int i = 0; i < widths[column]; i++)
				fputc('-', stream);
			fputs(column < words ? "-" : ":", stream);
		}
		if (!line)
			fputs("|\n", stream);
	}
	fputc('\n', stream);
}

static void add_seconds(struct table *table, const struct bench_series *usec)
{
	add_cell(table, "%.3f", bench_series_median(usec) / 1e6);
	add_cell(table, "%.3f-%.3f", bench_series_min(usec) / 1e6, bench_series_max(usec) / 1e6);
}

static void add_ratios(struct table *table, const struct bench *bench, const struct bench_row *row,
		       bool of_thaw)
{
	const struct bench_row *peer = bench_peer(bench, row);
	double usec = bench_series_median(of_thaw ? &row->thaw_usec : &row->freeze_usec);
	double limit = bench_limit_usec(bench, row, of_thaw);

	if (peer && usec > 0)
		add_cell(table, "%.1f x",
			 bench_series_median(of_thaw ? &peer->thaw_usec : &peer->freeze_usec) /
				 usec);
	else
		add_cell(table, "-");
	if (limit > 0)
		add_cell(table, "%.2f", usec / limit);
	else
		add_cell(table, "-");
}

static void print_times(const struct bench *bench, struct table *table, FILE *stream)
{
	char size[32];

	add_line(table, "VRAM", "engine", "freeze, s", "min-max", "faster", "of limit", "thaw, s",
		 "min-max", "faster", "of limit", "runs", NULL);
	for (size_t i = 0; i < bench->rows_count; i++) {
		const struct bench_row *row = &bench->rows[i];

		format_size(row, size, sizeof(size));
		add_line(table, size, kind_words(bench, row), NULL);
		add_seconds(table, &row->freeze_usec);
		add_ratios(table, bench, row, false);
		add_seconds(table, &row->thaw_usec);
		add_ratios(table, bench, row, true);
		add_cell(table, "%u", row->thaw_usec.count);
	}
	print_table(table, 2, stream);
	if (bench->options.hip)
		fputs("of limit: of bytes / rate of pinned copies. Queues and context stay on the "
		      "GPU.\n\n",
		      stream);
	else
		fputs("faster: than bare cuCheckpoint. of limit: of the longer of bytes / rate of "
		      "pinned\n"
		      "copies and the control state alone (vmm data: of bytes / rate). The freeze "
		      "of a\n"
		      "refreeze: of the control state alone.\n\n",
		      stream);
}

static void add_or_dash(struct table *table, const struct bench_series *series, double unit,
			int digits)
{
	if (series->count)
		add_cell(table, "%.*f", digits, bench_series_median(series) / unit);
	else
		add_cell(table, "-");
}

/* Prints the parts of the verbs, for rows that have any: those of the driver's engine have none. */
static void print_parts(const struct bench *bench, struct table *table, FILE *stream)
{
	char size[32];

	add_line(table, "VRAM", "engine", "freeze: gate", "hand-over", "copy", "control",
		 "thaw: copy", "control", "map", "copied, MiB", NULL);
	for (size_t i = 0; i < bench->rows_count; i++) {
		const struct bench_row *row = &bench->rows[i];
		unsigned int known = 0;

		for (size_t part = 0; part < BENCH_PARTS; part++)
			known += row->parts_usec[part].count;
		if (!known)
			continue;
		format_size(row, size, sizeof(size));
		add_line(table, size, kind_words(bench, row), NULL);
		for (size_t part = 0; part < BENCH_PARTS; part++)
			add_or_dash(table, &row->parts_usec[part], 1e3, 1);
		add_or_dash(table, &row->copied_bytes, MIB, 1);
	}
	if (table->lines < 2)
		return;
	fputs("Parts, ms (they overlap), and what the freeze copied out of VRAM:\n\n", stream);
	print_table(table, 2, stream);
}

static void print_memory(const struct bench *bench, struct table *table, FILE *stream)
{
	char size[32];

	add_line(table, "VRAM", "engine", "frozen: program", "helpers", "later: helpers",
		 "beyond before", "running: daemon", "store", NULL);
	for (size_t i = 0; i < bench->rows_count; i++) {
		const struct bench_row *row = &bench->rows[i];

		format_size(row, size, sizeof(size));
		add_line(table, size, kind_words(bench, row), NULL);
		add_or_dash(table, &row->frozen_vram, MIB, 0);
		add_or_dash(table, &row->helpers_vram, MIB, 0);
		add_or_dash(table, &row->idle_vram, MIB, 0);
		add_or_dash(table, &row->idle_more_vram, MIB, 0);
		add_or_dash(table, &row->daemon_host, MIB, 0);
		add_or_dash(table, &row->store_host, MIB, 0);
	}
	fputs("Memory, MiB: VRAM in use when frozen and after the helpers' idle time; host memory\n"
	      "of daemon and helpers, and of the store, while the program runs:\n\n",
	      stream);
	print_table(table, 2, stream);
}

static void add_rate(struct table *table, const struct bench_series *rate)
{
	add_cell(table, "%.2f", bench_series_median(rate) / 1e9);
	add_cell(table, "%.2f-%.2f", bench_series_min(rate) / 1e9, bench_series_max(rate) / 1e9);
}

static void print_copies(const struct bench *bench, struct table *table, FILE *stream)
{
	const struct bench_copies *copies = &bench->copies;
	char size[32];

	bench_format_bytes(copies->bytes, size, sizeof(size));
	add_line(table, "bytes", "copy", "GB/s", "min-max", "bare, GB/s", "min-max", "of bare",
		 "runs", NULL);
	for (size_t way = 0; way < BENCH_WAYS; way++) {
		double bare = bench_series_median(&copies->bare_rate[way]);

		if (!copies->rate[way].count || bare <= 0)
			continue;
		add_line(table, size, bench_ways[way].words, NULL);
		add_rate(table, &copies->rate[way]);
		add_rate(table, &copies->bare_rate[way]);
		add_cell(table, "%.2f", bench_series_median(&copies->rate[way]) / bare);
		add_cell(table, "%u", copies->rate[way].count);
	}
	if (table->lines < 2)
		return;
	fprintf(stream,
		"Copies of a frozen process's files by read and write of 1 MiB, between the mount\n"
		"and a bare %s; bare: the same from one file to another of that. The %s reads\n"
		"the mount's files:\n\n",
		copies->place, copies->is_passthrough ? "kernel itself" : "daemon");
	print_table(table, 2, stream);
}

static void print_exchanges(const struct bench *bench, struct table *table, FILE *stream)
{
	add_line(table, "VRAM of each", "freeze, thaw", "min-max", "exchange", "min-max", "ratio",
		 "runs", NULL);
	for (unsigned int i = 0; i < bench->exchanges_count; i++) {
		const struct bench_exchange *exchange = &bench->exchanges[i];
		const struct bench_series *series[] = {&exchange->apart_usec,
						       &exchange->exchange_usec};
		char size[32];

		bench_format_bytes(exchange->bytes, size, sizeof(size));
		add_line(table, size, NULL);
		for (size_t j = 0; j < 2; j++) {
			add_cell(table, "%.3f", bench_series_median(series[j]) / 1e6);
			add_cell(table, "%.3f-%.3f", bench_series_min(series[j]) / 1e6,
				 bench_series_max(series[j]) / 1e6);
		}
		add_cell(table, "%.2f",
			 bench_series_median(series[0]) / bench_series_median(series[1]));
		add_cell(table, "%u", series[1]->count);
	}
	if (table->lines < 2)
		return;
	fputs("One program in the place of another, in seconds: a freeze and then a thaw, against\n"
	      "thaw swap=. Warm:\n\n",
	      stream);
	print_table(table, 1, stream);
}

/* Adds a cell with a time, in tenths of a ns for small values. */
static void add_ns(struct table *table, double ns)
{
	add_cell(table, "%.*f", ns < 1e4 && ns > -1e4 ? 1 : 0, ns);
}

static void print_calls(const struct bench *bench, struct table *table, FILE *stream)
{
	add_line(table, "call", "without, ns", "min-max", "with preload, ns", "min-max", "more, ns",
		 "more, %", NULL);
	for (size_t call = 0; call < BENCH_CALLS; call++) {
		const struct bench_series *without = &bench->calls_without_ns[call];
		const struct bench_series *with = &bench->calls_with_ns[call];
		double before = bench_series_median(without), after = bench_series_median(with);

		if (!without->count || !with->count)
			continue;
		add_line(table,
			 bench->options.hip ? bench_calls[call].hip_words : bench_calls[call].words,
			 NULL);
		add_ns(table, before);
		add_cell(table, "%.0f-%.0f", bench_series_min(without), bench_series_max(without));
		add_ns(table, after);
		add_cell(table, "%.0f-%.0f", bench_series_min(with), bench_series_max(with));
		add_ns(table, after - before);
		add_cell(table, "%+.2f", before > 0 ? (after / before - 1) * 100 : 0);
	}
	if (table->lines > 1)
		print_table(table, 1, stream);
}

static void print_remarks(const char *title, const struct bench_remark *remarks, unsigned int count,
			  FILE *stream)
{
	for (unsigned int i = 0; i < count; i++)
		fprintf(stream, "%s: %s: %s\n", title, remarks[i].what, remarks[i].words);
}

void bench_print(const struct bench *bench, FILE *stream)
{
	_cleanup_free_ struct table *table = calloc(1, sizeof(*table));
	const struct bench_machine *machine = &bench->machine;
	static void (*const prints[])(const struct bench *bench, struct table *table,
				      FILE *stream) = {print_times, print_parts, print_memory};
	struct utsname system;

	if (!table)
		return;
	uname(&system);
	fprintf(stream,
		"gpucr-bench %s: %s, driver %s; Linux %s, %ld processors, %.0f GiB of memory\n",
		GCR_VERSION, machine->gpu, machine->driver, system.release, machine->processors,
		(double)machine->host_bytes / (1 << 30));
	if (bench->options.simulator)
		fputs("On the simulated GPU: these figures mean nothing.\n", stream);
	for (unsigned int i = 0; i < bench->rates_count; i++)
		fprintf(stream, "Pinned copies of %" PRIu64 " MiB: %.1f GB/s out, %.1f GB/s in.\n",
			bench->rates[i].bytes >> 20, bench->rates[i].out / 1e9,
			bench->rates[i].in / 1e9);
	if (bench->control_thaw_usec.count)
		fprintf(stream,
			"Control state alone: checkpoint %.3f s (%.3f-%.3f), restore %.3f s "
			"(%.3f-%.3f).\n",
			bench_series_median(&bench->control_freeze_usec) / 1e6,
			bench_series_min(&bench->control_freeze_usec) / 1e6,
			bench_series_max(&bench->control_freeze_usec) / 1e6,
			bench_series_median(&bench->control_thaw_usec) / 1e6,
			bench_series_min(&bench->control_thaw_usec) / 1e6,
			bench_series_max(&bench->control_thaw_usec) / 1e6);
	if (!strcmp(bench->digests, "gpu") || !strcmp(bench->digests, "host"))
		fprintf(stream, "Digests made on the %s.\n",
			strcmp(bench->digests, "gpu") ? "host" : "GPU");
	if (bench->options.command)
		fprintf(stream, "Command: %s\n", bench->options.command);
	fputc('\n', stream);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(prints) && bench->rows_count; i++) {
		memset(table, 0, sizeof(*table));
		prints[i](bench, table, stream);
	}
	memset(table, 0, sizeof(*table));
	print_copies(bench, table, stream);
	memset(table, 0, sizeof(*table));
	print_exchanges(bench, table, stream);
	memset(table, 0, sizeof(*table));
	print_calls(bench, table, stream);
	print_remarks("note", bench->notes, bench->notes_count, stream);
	print_remarks("FAILED", bench->failures, bench->failures_count, stream);
}

void bench_print_packing(const struct bench *bench, const struct bench_packing *packing,
			 FILE *stream)
{
	_cleanup_free_ struct table *table = calloc(1, sizeof(*table));
	struct utsname system;
	char all[32];

	if (!table)
		return;
	uname(&system);
	fprintf(stream, "gpucr-bench %s: Linux %s, %u processors\n\n", GCR_VERSION, system.release,
		packing->threads);
	snprintf(all, sizeof(all), "by %u", packing->threads);
	add_line(table, "packed", "MiB", "become", "zeros, MiB", "pack, GB/s: by 1", all,
		 "unpack, GB/s: by 1", all, "runs", NULL);
	for (unsigned int i = 0; i < packing->rows_count; i++) {
		const struct bench_packed *row = &packing->rows[i];

		add_line(table, row->words, NULL);
		add_cell(table, "%.1f", (double)row->bytes / MIB);
		add_cell(table, "%.3f", (double)row->packed_bytes / (double)row->bytes);
		add_cell(table, "%.1f", (double)row->zero_bytes / MIB);
		for (size_t j = 0; j < BENCH_THREADS; j++)
			add_or_dash(table, &row->pack_rate[j], 1e9, 2);
		for (size_t j = 0; j < BENCH_THREADS; j++)
			add_or_dash(table, &row->unpack_rate[j], 1e9, 2);
		add_cell(table, "%u", row->pack_rate[BENCH_ALL_THREADS].count);
	}
	print_table(table, 1, stream);
	if (bench->options.pack)
		fputs("synthetic: numbers that are normally distributed (second moments: means of "
		      "four\n"
		      "squares), with a scale for each layer of 8 MiB, or each channel of the "
		      "cache, that\n"
		      "differ as in trained models; not a model's.\n",
		      stream);
	print_remarks("FAILED", bench->failures, bench->failures_count, stream);
}
