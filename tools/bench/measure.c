/* SPDX-License-Identifier: MIT */
/*
 * The sequence of measurements: the machine, its limits, then one row after another. Each row has
 * its own daemon and each run a new program, so that every freeze is the first of its process.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_cgroup.h"
#include "lib/procfs.h"
#include "tools/bench/bench.h"
#include "tools/bench/mount.h"
#include "tools/bench/run.h"
#include "tools/bench/subject.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

/*
 * Size of the copies that measure the rate for a command, whose size is not known in advance.
 * Larger sizes are slower: 1 or 2 GiB went to VRAM at 54.8 GB/s on an H100, but 16 GiB, also pinned
 * by the driver, at 51 to 53.8 GB/s with any number of pieces and streams.
 */
#define RATE_BYTES	     (8 * GIB)
#define SIMULATED_RATE_BYTES (16 * MIB)

/*
 * VRAM needed in addition to the program's: a context for the worker, and memory that the driver
 * allocates again at a thaw.
 */
#define VRAM_MARGIN_BYTES (1536 * MIB)
/*
 * Host memory needed in addition to the bytes: the control state (546 MB measured), daemon, helpers
 * and bench.
 */
#define HOST_MARGIN_BYTES (3 * GIB)

#define SIMULATED_VRAM_MARGIN_BYTES (96 * MIB)
#define SIMULATED_HOST_MARGIN_BYTES (256 * MIB)

const struct bench_part bench_parts[BENCH_PARTS] = {
	{"last_freeze_gate_usec", "gate", false}, {"last_freeze_handover_usec", "hand-over", false},
	{"last_freeze_copy_usec", "copy", false}, {"last_freeze_control_usec", "control", false},
	{"last_thaw_copy_usec", "copy", true},	  {"last_thaw_control_usec", "control", true},
	{"last_thaw_map_usec", "map", true},
};

const struct bench_kind bench_kinds[] = {
	{"bare", "bare cuCheckpoint", NULL, BENCH_BARE, BENCH_AS_IT_IS},
	{"driver-cold", "driver, cold", NULL, BENCH_DRIVER, BENCH_COLD},
	{"driver-warm", "driver, warm", NULL, BENCH_DRIVER, BENCH_WARM},
	{"vmm-cold", "vmm, cold", "hip, cold", BENCH_VMM, BENCH_COLD},
	{"vmm-warm", "vmm, warm", "hip, warm", BENCH_VMM, BENCH_WARM},
	{"data-cold", "vmm data, cold", "hip data, cold", BENCH_DATA, BENCH_COLD},
	{"data-warm", "vmm data, warm", "hip data, warm", BENCH_DATA, BENCH_WARM},
	{"refreeze", "vmm, refreeze", "hip, refreeze", BENCH_VMM, BENCH_AGAIN},
	{"refreeze-data", "vmm data, refreeze", "hip data, refreeze", BENCH_DATA, BENCH_AGAIN},
	/* On an existing mount. */
	{"driver", "driver", NULL, BENCH_DRIVER, BENCH_AS_IT_IS},
	{"vmm", "vmm", "hip", BENCH_VMM, BENCH_AS_IT_IS},
	{"data", "vmm data", "hip data", BENCH_DATA, BENCH_AS_IT_IS},
};
const size_t bench_kinds_count = GCR_ARRAY_SIZE(bench_kinds);

void bench_progress(const struct bench *bench, const char *format, ...)
{
	va_list arguments;

	if (!bench->options.progress)
		return;
	fprintf(stderr, "%6.1f s  ",
		(double)(gcr_clock_usec() - bench->started_usec) / (double)GCR_USEC_PER_SEC);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

static void remark(struct bench_remark *remarks, unsigned int *count, const char *what,
		   const char *words)
{
	if (*count == BENCH_REMARKS_MAX)
		return;
	snprintf(remarks[*count].what, sizeof(remarks->what), "%s", what);
	snprintf(remarks[*count].words, sizeof(remarks->words), "%s", words);
	(*count)++;
}

void bench_note(struct bench *bench, const char *what, const char *format, ...)
{
	char words[GCR_ERROR_WORDS_MAX];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(words, sizeof(words), format, arguments);
	va_end(arguments);
	bench_progress(bench, "%s: %s", what, words);
	remark(bench->notes, &bench->notes_count, what, words);
}

void bench_fail(struct bench *bench, const char *what, const char *format, ...)
{
	char words[GCR_ERROR_WORDS_MAX];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(words, sizeof(words), format, arguments);
	va_end(arguments);
	bench_progress(bench, "%s: FAILED: %s", what, words);
	remark(bench->failures, &bench->failures_count, what, words);
}

bool bench_is_late(const struct bench *bench)
{
	return bench->options.limit_usec &&
	       gcr_clock_usec() - bench->started_usec > bench->options.limit_usec;
}

/* ---- the machine ---- */

static int find_uuid(struct bench *bench, const char *line)
{
	const char *text = strstr(line, " uuid ");

	for (size_t i = 0; text && i < GCR_UUID_BYTES; i++) {
		unsigned int byte;

		if (sscanf(text + strlen(" uuid ") + 2 * i, "%2x", &byte) != 1)
			return -EPROTO;
		bench->machine.uuid[i] = (uint8_t)byte;
	}
	return text ? 0 : -EPROTO;
}

static int look_at_machine(struct bench *bench, struct gcr_error *error)
{
	struct bench_machine *machine = &bench->machine;
	_cleanup_free_ char *limit = NULL;
	char gpu[16], line[BENCH_LINE_MAX];
	const char *name, *driver;
	struct sysinfo info;
	double number;
	int result;

	snprintf(gpu, sizeof(gpu), "%d", bench->options.gpu);
	result = bench_role_once(bench, NULL, false, (const char *[]){"machine", gpu, NULL}, line,
				 error);
	if (result < 0)
		return result;
	name = strstr(line, " name ");
	driver = strstr(line, " driver ");
	if (!name || !driver || find_uuid(bench, line) < 0 ||
	    !bench_answer_number(line, "total", &number))
		return gcr_error_set(error, EPROTO, "an answer that is none: %s", line);
	machine->vram_bytes = (uint64_t)number;
	bench_answer_number(line, "free", &number);
	machine->vram_free_bytes = (uint64_t)number;
	snprintf(machine->gpu, sizeof(machine->gpu), "%s", name + strlen(" name "));
	driver += strlen(" driver ");
	snprintf(machine->driver, sizeof(machine->driver), "%.*s", (int)strcspn(driver, " "),
		 driver);

	machine->processors = sysconf(_SC_NPROCESSORS_ONLN);
	if (!sysinfo(&info))
		machine->host_bytes = (uint64_t)info.totalram * info.mem_unit;
	if (!gcr_proc_memory_room(getpid(), &machine->host_room_bytes, &limit))
		snprintf(machine->host_limit, sizeof(machine->host_limit), "%s", limit);
	else
		machine->host_room_bytes = machine->host_bytes;
	return 0;
}

static void start_figures(struct bench *bench)
{
	char uuid[2 * GCR_UUID_BYTES + 1], line[BENCH_LINE_MAX];
	struct bench_vram vram;
	struct gcr_error error;

	for (size_t i = 0; i < GCR_UUID_BYTES; i++)
		snprintf(uuid + 2 * i, 3, "%02x", bench->machine.uuid[i]);
	if (bench_role_start(bench, NULL, false, (const char *[]){"figures", uuid, NULL},
			     &bench->figures, &error) < 0)
		return;
	bench->has_figures = !bench_child_answer(&bench->paths, &bench->figures,
						 60 * GCR_USEC_PER_SEC, line, &error);
	if (!bench->has_figures)
		bench_note(bench, "VRAM in use", "not known: %s", error.words);
	else if (!bench_vram_read(bench, &vram) && vram.users_count)
		bench_note(bench, "not alone",
			   "%zu other processes use this GPU (%" PRIu64 " MiB in use)",
			   vram.users_count, vram.used_bytes / MIB);
}

/* ---- sizes ---- */

static uint64_t vram_margin(const struct bench *bench)
{
	return bench->options.simulator ? SIMULATED_VRAM_MARGIN_BYTES : VRAM_MARGIN_BYTES;
}

uint64_t bench_host_margin(const struct bench *bench)
{
	return bench->options.simulator ? SIMULATED_HOST_MARGIN_BYTES : HOST_MARGIN_BYTES;
}

static bool fits(struct bench *bench, uint64_t bytes)
{
	const struct bench_machine *machine = &bench->machine;
	uint64_t host_needed = bytes + bench_host_margin(bench);
	char what[32];

	/* The simulator's VRAM is host memory too. */
	if (bench->options.simulator)
		host_needed += bytes;
	bench_format_bytes(bytes, what, sizeof(what));
	if (bytes + vram_margin(bench) > machine->vram_free_bytes) {
		bench_note(bench, what,
			   "left out: needs %" PRIu64 " MiB of VRAM, %" PRIu64 " MiB are free",
			   (bytes + vram_margin(bench)) / MIB, machine->vram_free_bytes / MIB);
		return false;
	}
	if (host_needed > machine->host_room_bytes) {
		bench_note(bench, what,
			   "left out: needs %" PRIu64 " MiB of host memory, %" PRIu64
			   " MiB are left (%s)",
			   host_needed / MIB, machine->host_room_bytes / MIB, machine->host_limit);
		return false;
	}
	return true;
}

/* Chooses 1 GiB, 16 GiB, and the largest size in whole GiB that fits. */
static void choose_sizes(struct bench *bench)
{
	const struct bench_machine *machine = &bench->machine;
	struct bench_options *options = &bench->options;
	uint64_t vram = machine->vram_free_bytes, host = machine->host_room_bytes, most;

	if (options->sizes_given || options->command)
		return;
	if (options->simulator) {
		options->sizes[options->sizes_count++] = 64 * MIB;
		options->sizes[options->sizes_count++] = 256 * MIB;
		return;
	}
	vram -= vram < VRAM_MARGIN_BYTES ? vram : VRAM_MARGIN_BYTES;
	host -= host < HOST_MARGIN_BYTES ? host : HOST_MARGIN_BYTES;
	most = (vram < host ? vram : host) / GIB * GIB;
	options->sizes[options->sizes_count++] = GIB;
	options->sizes[options->sizes_count++] = 16 * GIB;
	if (most > GIB && most != 16 * GIB)
		options->sizes[options->sizes_count++] = most;
}

static void keep_sizes_that_fit(struct bench *bench)
{
	struct bench_options *options = &bench->options;
	unsigned int kept = 0;

	for (unsigned int i = 0; i < options->sizes_count; i++)
		if (fits(bench, options->sizes[i]))
			options->sizes[kept++] = options->sizes[i];
	options->sizes_count = kept;
}

/* ---- the limits ---- */

/* Returns the size to copy for rows of @bytes of VRAM; 0: for the command. */
static uint64_t rate_bytes(const struct bench *bench, uint64_t bytes)
{
	if (bytes)
		return bytes;
	bytes = bench->options.simulator ? SIMULATED_RATE_BYTES : RATE_BYTES;
	while (bytes > MIB && (bytes > bench->machine.vram_free_bytes / 2 ||
			       bytes > bench->machine.host_room_bytes / 2))
		bytes /= 2;
	return bytes;
}

/*
 * Measures the rate for as much memory as rows of @bytes move; the driver pins the memory outside
 * the timed part.
 */
static void measure_rate(struct bench *bench, uint64_t bytes)
{
	struct bench_rate *rate = &bench->rates[bench->rates_count];
	char gpu[16], size[32], line[BENCH_LINE_MAX];
	struct gcr_error error;

	if (bench_interrupted || bench_is_late(bench))
		return;
	bytes = rate_bytes(bench, bytes);

	snprintf(gpu, sizeof(gpu), "%d", bench->options.gpu);
	snprintf(size, sizeof(size), "%" PRIu64, bytes);
	if (bench_role_once(bench, NULL, false, (const char *[]){"rate", gpu, size, NULL}, line,
			    &error) < 0 ||
	    !bench_answer_number(line, "out", &rate->out) ||
	    !bench_answer_number(line, "in", &rate->in)) {
		bench_fail(bench, "pinned copies", "%s", error.words);
		return;
	}
	rate->bytes = bytes;
	bench->rates_count++;
	bench_progress(bench, "pinned copies of %" PRIu64 " MiB: %.1f GB/s out, %.1f GB/s in",
		       bytes / MIB, rate->out / 1e9, rate->in / 1e9);
}

/*
 * Returns the rate for rows of @bytes; for the command's rows (0) the last rate measured. NULL:
 * unknown.
 */
static const struct bench_rate *find_rate(const struct bench *bench, uint64_t bytes)
{
	for (unsigned int i = 0; i < bench->rates_count; i++)
		if (bench->rates[i].bytes == bytes)
			return &bench->rates[i];
	return bytes || bench->rates_count <= bench->options.sizes_count
		       ? NULL
		       : &bench->rates[bench->rates_count - 1];
}

/* Measures the driver's time for a process that has only a context. */
static void measure_control(struct bench *bench)
{
	struct bench_row *row = calloc(1, sizeof(*row));

	if (!row)
		return;
	row->kind = &bench_kinds[0];
	for (unsigned int run = 0; run < bench->options.runs && !bench_interrupted; run++)
		if (bench_run(bench, row, NULL, run) < 0)
			break;
	bench->control_freeze_usec = row->freeze_usec;
	bench->control_thaw_usec = row->thaw_usec;
	free(row);
}

double bench_limit_usec(const struct bench *bench, const struct bench_row *row, bool of_thaw)
{
	const struct bench_rate *measured = find_rate(bench, row->bytes);
	double rate = !measured ? 0 : of_thaw ? measured->in : measured->out;
	double bytes = row->bytes ? (double)row->bytes : bench_series_median(&row->moved_bytes);
	double limit = rate > 0 ? bytes * 1e6 / rate : 0;
	double control = bench_series_median(of_thaw ? &bench->control_thaw_usec
						     : &bench->control_freeze_usec);

	/* On AMD the control state is never moved. */
	bool has_control = row->kind->engine != BENCH_DATA && !bench->options.hip;

	if (row->kind->start == BENCH_AGAIN && !of_thaw)
		return has_control ? control : 0;
	if (!limit || (has_control && !control))
		return 0;
	return has_control && control > limit ? control : limit;
}

const struct bench_row *bench_peer(const struct bench *bench, const struct bench_row *row)
{
	for (size_t i = 0; i < bench->rows_count; i++)
		if (bench->rows[i].kind->engine == BENCH_BARE &&
		    bench->rows[i].bytes == row->bytes &&
		    bench->rows[i].is_command == row->is_command)
			return &bench->rows[i];
	return NULL;
}

/* ---- rows ---- */

/* Measures all runs of a row and reports remarks; stops at the first failure. */
static void measure_row(struct bench *bench, uint64_t bytes, const struct bench_kind *kind)
{
	struct bench_row *row = &bench->rows[bench->rows_count];
	bool is_slow = kind->engine == BENCH_BARE || kind->engine == BENCH_DRIVER;
	unsigned int runs = is_slow ? bench->options.slow_runs : bench->options.runs;
	struct bench_mount mount = {0};
	struct gcr_error error;
	char what[64];
	int result;

	memset(row, 0, sizeof(*row));
	row->kind = kind;
	row->bytes = bytes;
	row->is_command = !bytes;
	bench_format_row(bench, row, what, sizeof(what));
	if (bench_is_late(bench)) {
		bench_note(bench, what, "left out: the time is up");
		return;
	}
	result = bench_run_prepare(bench, row, &mount, &error);
	if (result < 0 && !bench_interrupted)
		bench_note(bench, what, "left out: %s", error.words);
	for (unsigned int run = 0; run < runs && !result && !bench_interrupted; run++) {
		if (run && bench_is_late(bench)) {
			bench_note(bench, what, "%u of %u runs: the time is up", run, runs);
			break;
		}
		result = bench_run(bench, row, &mount, run);
	}
	bench_mount_stop(&bench->paths, &mount);
	if (row->thaw_usec.count)
		bench->rows_count++;
}

static void measure_rows(struct bench *bench, uint64_t bytes)
{
	for (size_t i = 0; i < bench_kinds_count && !bench_interrupted; i++)
		if (bench->options.kinds[i])
			measure_row(bench, bytes, &bench_kinds[i]);
}

/* Measures calls with and without the library alternately, so that drift affects both. */
static void compare_calls(struct bench *bench, const struct bench_mount *mount)
{
	char gpu[16], line[BENCH_LINE_MAX];
	struct gcr_error error;

	unsigned int runs = 4 * bench->options.runs;

	snprintf(gpu, sizeof(gpu), "%d", bench->options.gpu);
	for (unsigned int run = 0; run < runs && !bench_interrupted; run++) {
		bool preload = run % 4 == 1 || run % 4 == 2; /* A B B A */
		struct bench_series *series = preload ? bench->calls_with_ns
						      : bench->calls_without_ns;

		if (bench_is_late(bench)) {
			bench_note(bench, "calls", "%u of %u runs: the time is up", run, runs);
			return;
		}
		bench_progress(bench, "calls, %s preload library", preload ? "with" : "without");
		if (bench_role_once(bench, mount, preload,
				    (const char *[]){"calls", gpu,
						     bench->options.simulator ? "1" : "0", NULL},
				    line, &error) < 0) {
			bench_fail(bench, "calls", "%s", error.words);
			return;
		}
		for (size_t call = 0; call < BENCH_CALLS; call++) {
			double number;

			if (bench_answer_number(line, bench_calls[call].name, &number))
				bench_series_add(&series[call], number);
		}
	}
}

/* Measures calls as in use: a daemon is running and knows the program. */
static void measure_calls(struct bench *bench)
{
	struct bench_mount mount = {0};
	struct gcr_error error;
	int result;

	if (bench->options.mount)
		result = bench_mount_find(bench->options.mount, &mount, &error);
	else
		result = bench_mount_start(&bench->paths, ++bench->mounts, "worker_idle=1", &mount,
					   &error);
	if (!result)
		compare_calls(bench, &mount);
	else if (!bench_interrupted)
		bench_fail(bench, "calls", "%s", error.words);
	bench_mount_stop(&bench->paths, &mount);
}

int bench_measure(struct bench *bench, struct gcr_error *error)
{
	const struct bench_options *options = &bench->options;
	uint64_t largest = 0;
	int result;

	bench->started_usec = gcr_clock_usec();
	result = look_at_machine(bench, error);
	if (result < 0)
		return result;
	bench_progress(bench, "%s, driver %s", bench->machine.gpu, bench->machine.driver);
	start_figures(bench);
	choose_sizes(bench);
	keep_sizes_that_fit(bench);
	for (unsigned int i = 0; i < options->sizes_count; i++)
		largest = options->sizes[i] > largest ? options->sizes[i] : largest;
	bench->rows = calloc((options->sizes_count + 1) * bench_kinds_count, sizeof(*bench->rows));
	if (!bench->rows)
		return gcr_error_set(error, ENOMEM, "out of memory");
	if (!options->simulator && largest) {
		bench_progress(bench, "touching %" PRIu64 " MiB of host memory once",
			       largest / MIB);
		bench_host_touch(largest);
	}
	if (options->lacks_rows)
		bench_note(bench, "bare, driver", "left out: AMD's driver has no checkpoint");
	if (!options->hip && (options->sizes_count || options->command))
		measure_control(bench);
	for (unsigned int i = 0; i < options->sizes_count; i++) {
		measure_rate(bench, options->sizes[i]);
		measure_rows(bench, options->sizes[i]);
	}
	if (options->command) {
		measure_rate(bench, 0);
		measure_rows(bench, 0);
	}
	if (!bench_interrupted)
		bench_measure_copies(bench);
	bench_measure_exchanges(bench);
	if (options->calls && !bench_interrupted)
		measure_calls(bench);
	bench_child_end(&bench->figures);
	return bench_interrupted ? gcr_error_set(error, EINTR, "interrupted") : 0;
}
