/* SPDX-License-Identifier: MIT */
/* The results as JSON, with every single value: for storing and comparing results. */
#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <sys/utsname.h>

#include "config.h"
#include "tools/bench/bench.h"
#include "tools/bench/pack.h"

/* Makes {"median", "min", "max", "values"}; null if there are no values. */
static json_t *series_json(const struct bench_series *series)
{
	json_t *values;

	if (!series->count)
		return json_null();
	values = json_array();
	for (unsigned int i = 0; i < series->count; i++)
		json_array_append_new(values, json_real(series->values[i]));
	return json_pack("{s:f, s:f, s:f, s:o}", "median", bench_series_median(series), "min",
			 bench_series_min(series), "max", bench_series_max(series), "values",
			 values);
}

static json_t *number_json(double number)
{
	return number > 0 ? json_real(number) : json_null();
}

static void add_ratios(const struct bench *bench, const struct bench_row *row, json_t *object)
{
	const struct bench_row *peer = bench_peer(bench, row);
	double freeze = bench_series_median(&row->freeze_usec);
	double thaw = bench_series_median(&row->thaw_usec);
	double freeze_limit = bench_limit_usec(bench, row, false);
	double thaw_limit = bench_limit_usec(bench, row, true);

	json_object_set_new(object, "freeze_times_faster",
			    number_json(peer && freeze > 0
						? bench_series_median(&peer->freeze_usec) / freeze
						: 0));
	json_object_set_new(
		object, "thaw_times_faster",
		number_json(peer && thaw > 0 ? bench_series_median(&peer->thaw_usec) / thaw : 0));
	json_object_set_new(object, "freeze_limit_usec", number_json(freeze_limit));
	json_object_set_new(object, "thaw_limit_usec", number_json(thaw_limit));
	json_object_set_new(object, "freeze_of_limit",
			    number_json(freeze_limit > 0 ? freeze / freeze_limit : 0));
	json_object_set_new(object, "thaw_of_limit",
			    number_json(thaw_limit > 0 ? thaw / thaw_limit : 0));
}

static json_t *row_json(const struct bench *bench, const struct bench_row *row)
{
	static const char *const starts[] = {
		[BENCH_AS_IT_IS] = "as it is",
		[BENCH_COLD] = "cold",
		[BENCH_WARM] = "warm",
		[BENCH_AGAIN] = "again",
	};
	static const char *const engines[][2] = {
		[BENCH_BARE] = {"bare", "bare"},
		[BENCH_DRIVER] = {"driver", "driver"},
		[BENCH_VMM] = {"vmm", "hip"},
		[BENCH_DATA] = {"vmm data", "hip data"},
	};
	const char *name = row->kind->name;
	char hip_name[32];
	json_t *object;

	/* The row's name on the command line for AMD. */
	if (bench->options.hip && !strncmp(name, "vmm", 3)) {
		snprintf(hip_name, sizeof(hip_name), "hip%s", name + 3);
		name = hip_name;
	}
	object = json_pack("{s:s, s:s, s:s, s:b}", "row", name, "engine",
			   engines[row->kind->engine][bench->options.hip], "start",
			   starts[row->kind->start], "command", row->is_command);

	json_object_set_new(object, "bytes",
			    row->bytes ? json_integer((json_int_t)row->bytes) : json_null());
	json_object_set_new(object, "freeze_usec", series_json(&row->freeze_usec));
	json_object_set_new(object, "thaw_usec", series_json(&row->thaw_usec));
	add_ratios(bench, row, object);
	for (size_t part = 0; part < BENCH_PARTS; part++)
		json_object_set_new(object, bench_parts[part].key,
				    series_json(&row->parts_usec[part]));
	json_object_set_new(object, "moved_bytes", series_json(&row->moved_bytes));
	json_object_set_new(object, "copied_bytes", series_json(&row->copied_bytes));
	json_object_set_new(object, "frozen_vram_bytes", series_json(&row->frozen_vram));
	json_object_set_new(object, "helpers_vram_bytes", series_json(&row->helpers_vram));
	json_object_set_new(object, "idle_vram_bytes", series_json(&row->idle_vram));
	json_object_set_new(object, "idle_more_vram_bytes", series_json(&row->idle_more_vram));
	json_object_set_new(object, "daemon_host_bytes", series_json(&row->daemon_host));
	json_object_set_new(object, "store_host_bytes", series_json(&row->store_host));
	return object;
}

static json_t *copies_json(const struct bench *bench)
{
	const struct bench_copies *copies = &bench->copies;
	json_t *array = json_array();

	for (size_t way = 0; way < BENCH_WAYS; way++) {
		double bare = bench_series_median(&copies->bare_rate[way]);
		json_t *object;

		if (!copies->rate[way].count)
			continue;
		object = json_pack("{s:s, s:I, s:s, s:b}", "row", bench_ways[way].name, "bytes",
				   (json_int_t)copies->bytes, "place", copies->place, "passthrough",
				   copies->is_passthrough);
		json_object_set_new(object, "bytes_per_second", series_json(&copies->rate[way]));
		json_object_set_new(object, "bare_bytes_per_second",
				    series_json(&copies->bare_rate[way]));
		json_object_set_new(
			object, "of_bare",
			number_json(bare > 0 ? bench_series_median(&copies->rate[way]) / bare : 0));
		json_array_append_new(array, object);
	}
	return array;
}

static json_t *exchanges_json(const struct bench *bench)
{
	json_t *array = json_array();

	for (unsigned int i = 0; i < bench->exchanges_count; i++) {
		const struct bench_exchange *exchange = &bench->exchanges[i];
		json_t *object = json_pack("{s:s, s:I}", "row", "exchange", "bytes",
					   (json_int_t)exchange->bytes);

		json_object_set_new(object, "apart_usec", series_json(&exchange->apart_usec));
		json_object_set_new(object, "exchange_usec", series_json(&exchange->exchange_usec));
		json_object_set_new(object, "ratio",
				    number_json(bench_series_median(&exchange->apart_usec) /
						bench_series_median(&exchange->exchange_usec)));
		json_array_append_new(array, object);
	}
	return array;
}

static json_t *calls_json(const struct bench *bench)
{
	json_t *object = json_object();

	for (size_t call = 0; call < BENCH_CALLS; call++)
		json_object_set_new(object, bench_calls[call].name,
				    json_pack("{s:o, s:o}", "without_ns",
					      series_json(&bench->calls_without_ns[call]),
					      "with_ns", series_json(&bench->calls_with_ns[call])));
	return object;
}

static json_t *remarks_json(const struct bench_remark *remarks, unsigned int count)
{
	json_t *array = json_array();

	for (unsigned int i = 0; i < count; i++)
		json_array_append_new(array, json_pack("{s:s, s:s}", "what", remarks[i].what,
						       "words", remarks[i].words));
	return array;
}

static int dump(json_t *object, FILE *stream)
{
	int result = object ? json_dumpf(object, stream, JSON_INDENT(2) | JSON_REAL_PRECISION(9))
			    : -1;

	json_decref(object);
	if (result < 0 || fputc('\n', stream) == EOF || fflush(stream) == EOF)
		return -EIO;
	return 0;
}

int bench_print_json(const struct bench *bench, FILE *stream)
{
	const struct bench_machine *machine = &bench->machine;
	struct utsname system;
	json_t *object, *rows, *rates;

	uname(&system);
	rows = json_array();
	for (size_t i = 0; i < bench->rows_count; i++)
		json_array_append_new(rows, row_json(bench, &bench->rows[i]));
	object = json_pack(
		"{s:s, s:b, s:b, s:{s:s, s:s, s:s, s:I, s:I, s:I}}", "version", GCR_VERSION,
		"simulated", bench->options.simulator, "hip", bench->options.hip, "machine", "gpu",
		machine->gpu, "driver", machine->driver, "kernel", system.release, "processors",
		(json_int_t)machine->processors, "memory_bytes", (json_int_t)machine->host_bytes,
		"vram_bytes", (json_int_t)machine->vram_bytes);
	rates = json_array();
	for (unsigned int i = 0; i < bench->rates_count; i++)
		json_array_append_new(rates, json_pack("{s:I, s:f, s:f}", "bytes",
						       (json_int_t)bench->rates[i].bytes,
						       "out_bytes_per_second", bench->rates[i].out,
						       "in_bytes_per_second", bench->rates[i].in));
	json_object_set_new(object, "pinned_copies", rates);
	json_object_set_new(object, "control_freeze_usec",
			    series_json(&bench->control_freeze_usec));
	json_object_set_new(object, "control_thaw_usec", series_json(&bench->control_thaw_usec));
	json_object_set_new(object, "command",
			    bench->options.command ? json_string(bench->options.command)
						   : json_null());
	json_object_set_new(object, "digests",
			    *bench->digests ? json_string(bench->digests) : json_null());
	json_object_set_new(object, "changed_percent",
			    json_integer((json_int_t)bench->options.changed_percent));
	json_object_set_new(object, "rows", rows);
	json_object_set_new(object, "copies", copies_json(bench));
	json_object_set_new(object, "exchanges", exchanges_json(bench));
	json_object_set_new(object, "calls", calls_json(bench));
	json_object_set_new(object, "notes", remarks_json(bench->notes, bench->notes_count));
	json_object_set_new(object, "failures",
			    remarks_json(bench->failures, bench->failures_count));
	return dump(object, stream);
}

static json_t *packed_json(const struct bench_packed *row)
{
	static const char *const threads[BENCH_THREADS] = {
		[BENCH_ONE_THREAD] = "one",
		[BENCH_ALL_THREADS] = "all",
	};
	json_t *object = json_pack("{s:s, s:s, s:I, s:I, s:I}", "content", row->name, "words",
				   row->words, "bytes", (json_int_t)row->bytes, "packed_bytes",
				   (json_int_t)row->packed_bytes, "zero_bytes",
				   (json_int_t)row->zero_bytes);

	for (size_t i = 0; i < BENCH_THREADS; i++)
		json_object_set_new(object, threads[i],
				    json_pack("{s:o, s:o}", "pack_bytes_per_second",
					      series_json(&row->pack_rate[i]),
					      "unpack_bytes_per_second",
					      series_json(&row->unpack_rate[i])));
	return object;
}

int bench_print_packing_json(const struct bench *bench, const struct bench_packing *packing,
			     FILE *stream)
{
	json_t *object, *rows = json_array();
	struct utsname system;

	uname(&system);
	for (unsigned int i = 0; i < packing->rows_count; i++)
		json_array_append_new(rows, packed_json(&packing->rows[i]));
	object = json_pack("{s:s, s:s, s:i}", "version", GCR_VERSION, "kernel", system.release,
			   "threads", (int)packing->threads);
	json_object_set_new(object, "packing", rows);
	json_object_set_new(object, "failures",
			    remarks_json(bench->failures, bench->failures_count));
	return dump(object, stream);
}
