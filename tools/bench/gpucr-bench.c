/* SPDX-License-Identifier: MIT */
/*
 * gpucr-bench: measures how fast gpucrfs freezes and thaws on this machine, compared with the
 * driver's own checkpoint and with the machine's limits. This file has the options, the paths, and
 * the cleanup. The bench itself never loads the driver.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/error.h"
#include "lib/trusted_path.h"
#include "tools/bench/bench.h"
#include "tools/bench/pack.h"
#include "tools/bench/role.h"

static const struct option_words {
	const char *name, *value, *help;
} option_words[] = {
	{"sizes", "LIST",
	 "VRAM of the programs to freeze, as 1G,16G (default: these and what fits)"},
	{"runs", "N", "how often each (default 5)"},
	{"slow-runs", "N", "the same for rows in which the driver moves the bytes"},
	{"rows", "LIST",
	 "of bare, driver, vmm (or hip), data, refreeze, copy; also as vmm-cold, vmm-warm "
	 "(default: all); and exchange, only if it is named"},
	{"changed", "N",
	 "percent of its VRAM that a program changes before a refreeze (default 1)"},
	{"busy", NULL, "the programs give the GPU work up to the freeze"},
	{"no-calls", NULL, "leave out what the preload library costs"},
	{"command", "CMD", "freeze this program too (alone, without --sizes)"},
	{"ready", "TEXT", "it is ready when it prints a line with TEXT (default 'ready')"},
	{"check", "TEXT", "after a thaw it has to print lines with TEXT"},
	{"pack", NULL, "measure packing instead, of made-up weights, moments and caches"},
	{"pack-file", "FILE", "measure packing instead, of this file"},
	{"mount", "DIR", "use the gpucrfs that is mounted there"},
	{"gpu", "N", "the GPU to use (default 0)"},
	{"limit", "SEC", "start nothing new after so long"},
	{"json", "FILE", "write all values there; - is standard output, without the tables"},
	{"progress", NULL, "say what is being done, also if stderr is no terminal"},
	{"hip", NULL, "use an AMD GPU (without: if there is no NVIDIA one)"},
	{"sim", NULL, "use the simulated GPU, with small sizes: tests the bench only"},
	{"help", NULL, "print this"},
	{"version", NULL, "print the version"},
};

static int complain(const char *words, const char *what)
{
	fprintf(stderr, "gpucr-bench: %s%s%s\nTry 'gpucr-bench --help'.\n", words, what ? ": " : "",
		what ? what : "");
	return -EINVAL;
}

static void usage(void)
{
	puts("Usage: gpucr-bench [OPTION]...\n"
	     "Measure freezing and thawing: the driver alone, and gpucrfs with each engine.\n");
	for (size_t i = 0; i < GCR_ARRAY_SIZE(option_words); i++)
		printf("  --%-9s %-4s  %s\n", option_words[i].name,
		       option_words[i].value ? option_words[i].value : "", option_words[i].help);
	puts("\nThe contents of VRAM are checked after every thaw. Ends with status 1 if they "
	     "were\n"
	     "wrong, or if a freeze or thaw failed.");
}

/* Parses sizes like "64M" or "16G": powers of 1024. */
static int parse_bytes(const char *text, size_t length, uint64_t *ret_bytes)
{
	static const char suffixes[] = "KMG";
	char *end, copy[32];
	const char *suffix;
	unsigned long long number;
	int shift = 0;

	if (!length || length >= sizeof(copy) || *text < '0' || *text > '9')
		return -EINVAL;
	memcpy(copy, text, length);
	copy[length] = '\0';
	number = strtoull(copy, &end, 10);
	if (*end) {
		suffix = strchr(suffixes, *end);
		if (!suffix || end[1])
			return -EINVAL;
		shift = 10 * (int)(suffix - suffixes + 1);
	}
	if (number > (UINT64_C(1) << 50) >> shift)
		return -EINVAL;
	*ret_bytes = number << shift;
	return 0;
}

static int parse_number(const char *text, long min, long max, long *ret_number)
{
	char *end;
	long number;

	errno = 0;
	number = strtol(text, &end, 10);
	if (errno || end == text || *end || number < min || number > max)
		return -EINVAL;
	*ret_number = number;
	return 0;
}

static int parse_sizes(const char *text, struct bench_options *options)
{
	options->sizes_count = 0;
	options->sizes_given = true;
	for (;;) {
		size_t length = strcspn(text, ",");
		uint64_t *size = &options->sizes[options->sizes_count];

		/* The daemon hands over memory in units of 2 MiB. */
		if (options->sizes_count == BENCH_SIZES_MAX ||
		    parse_bytes(text, length, size) < 0 || !*size || *size % (UINT64_C(2) << 20))
			return -EINVAL;
		options->sizes_count++;
		if (!text[length])
			return 0;
		text += length + 1;
	}
}

/* Returns true if @text is the name, or its part before a hyphen. */
static bool is_meant(const char *name, const char *text, size_t length)
{
	return length && !strncmp(name, text, length) && (!name[length] || name[length] == '-');
}

/*
 * Does @text (of --rows) mean this kind of row? "hip" is a synonym for "vmm": AMD's engine of the
 * same kind.
 */
static bool is_kind(const struct bench_kind *kind, const char *text, size_t length)
{
	char copy[32];

	if (length < 3 || length >= sizeof(copy) || strncmp(text, "hip", 3))
		return is_meant(kind->name, text, length);
	snprintf(copy, sizeof(copy), "vmm%.*s", (int)length - 3, text + 3);
	return is_meant(kind->name, copy, length);
}

/*
 * Parses the value of --rows. "vmm" selects vmm-cold and vmm-warm, and on an existing mount vmm.
 * -EINVAL.
 */
static int parse_rows(const char *text, struct bench_options *options)
{
	memset(options->kinds, 0, sizeof(options->kinds));
	memset(options->copies, 0, sizeof(options->copies));
	options->exchange = false;
	for (;;) {
		size_t length = strcspn(text, ",");
		unsigned int found = 0;

		for (size_t i = 0; i < bench_kinds_count; i++) {
			if (!is_kind(&bench_kinds[i], text, length))
				continue;
			options->kinds[i] = true;
			found++;
		}
		for (size_t i = 0; i < BENCH_WAYS; i++) {
			if (!is_meant(bench_ways[i].name, text, length))
				continue;
			options->copies[i] = true;
			found++;
		}
		if (is_meant("exchange", text, length)) {
			options->exchange = true;
			found++;
		}
		if (!found)
			return -EINVAL;
		if (!text[length])
			return 0;
		text += length + 1;
	}
}

/*
 * Removes the rows that cannot be measured here. Rows are cold or warm with the bench's own
 * daemons; an existing mount is used as it is. If no row is left, complains and returns -EINVAL.
 */
static int choose_rows(struct bench_options *options)
{
	unsigned int count = 0;

	for (size_t i = 0; i < bench_kinds_count; i++) {
		if (bench_kinds[i].engine != BENCH_BARE &&
		    (bench_kinds[i].start == BENCH_AS_IT_IS) != !!options->mount)
			options->kinds[i] = false;
		if (options->kinds[i] && options->hip && !bench_kinds[i].hip_words) {
			options->kinds[i] = false;
			options->lacks_rows = true;
		}
		count += options->kinds[i];
	}
	for (size_t i = 0; i < BENCH_WAYS; i++) {
		if (options->mount)
			options->copies[i] = false;
		count += options->copies[i];
	}
	if (options->mount)
		options->exchange = false;
	if (count || options->exchange)
		return 0;
	return options->lacks_rows
		       ? complain("these rows are not there on an AMD GPU", NULL)
		       : complain("these rows need a daemon that is started for them", "--mount");
}

static int take_option(const char *name, const char *value, struct bench_options *options)
{
	int result = 0;
	long number = 0;

	if (!strcmp(name, "sizes")) {
		result = parse_sizes(value, options);
	} else if (!strcmp(name, "runs")) {
		result = parse_number(value, 1, BENCH_RUNS_MAX, &number);
		options->runs = (unsigned int)number;
	} else if (!strcmp(name, "slow-runs")) {
		result = parse_number(value, 1, BENCH_RUNS_MAX, &number);
		options->slow_runs = (unsigned int)number;
	} else if (!strcmp(name, "rows")) {
		result = parse_rows(value, options);
	} else if (!strcmp(name, "changed")) {
		result = parse_number(value, 0, 100, &number);
		options->changed_percent = (unsigned int)number;
	} else if (!strcmp(name, "gpu")) {
		result = parse_number(value, 0, INT_MAX, &number);
		options->gpu = (int)number;
	} else if (!strcmp(name, "limit")) {
		result = parse_number(value, 1, INT_MAX, &number);
		options->limit_usec = number * GCR_USEC_PER_SEC;
	} else if (!strcmp(name, "busy")) {
		options->busy = true;
	} else if (!strcmp(name, "no-calls")) {
		options->calls = false;
	} else if (!strcmp(name, "command")) {
		options->command = value;
	} else if (!strcmp(name, "ready")) {
		options->ready = value;
	} else if (!strcmp(name, "check")) {
		options->check = value;
	} else if (!strcmp(name, "pack")) {
		options->pack = true;
	} else if (!strcmp(name, "pack-file")) {
		options->pack_file = value;
	} else if (!strcmp(name, "mount")) {
		options->mount = value;
	} else if (!strcmp(name, "json")) {
		options->json = value;
	} else if (!strcmp(name, "progress")) {
		options->progress = true;
	} else if (!strcmp(name, "hip")) {
		options->hip = true;
	} else if (!strcmp(name, "sim")) {
		options->simulator = true;
	} else if (!strcmp(name, "version")) {
		puts("gpucr-bench " GCR_VERSION);
		exit(EXIT_SUCCESS);
	} else {
		usage();
		exit(EXIT_SUCCESS);
	}
	return result;
}

static int parse_arguments(int argc, char **argv, struct bench_options *options)
{
	struct option longs[GCR_ARRAY_SIZE(option_words) + 1] = {{0}};
	int found, which;

	*options = (struct bench_options){
		.runs = 5,
		.calls = true,
		.changed_percent = 1,
		.progress = isatty(STDERR_FILENO),
		.ready = "ready",
	};
	for (size_t i = 0; i < GCR_ARRAY_SIZE(option_words); i++)
		longs[i] = (struct option){option_words[i].name,
					   option_words[i].value ? required_argument : no_argument,
					   NULL, 1};
	for (size_t i = 0; i < bench_kinds_count; i++)
		options->kinds[i] = true;
	for (size_t i = 0; i < BENCH_WAYS; i++)
		options->copies[i] = true;
	while ((found = getopt_long(argc, argv, "", longs, &which)) != -1) {
		if (found != 1) {
			fputs("Try 'gpucr-bench --help'.\n", stderr);
			return -EINVAL;
		}
		if (take_option(option_words[which].name, optarg, options) < 0) {
			fprintf(stderr, "gpucr-bench: --%s: not '%s'\n", option_words[which].name,
				optarg);
			return -EINVAL;
		}
	}
	if (optind < argc)
		return complain("not an option", argv[optind]);
	/* Use the GPU that exists. */
	if (!options->simulator && access("/dev/nvidiactl", F_OK) && !access("/dev/kfd", F_OK))
		options->hip = true;
	if (!options->slow_runs)
		options->slow_runs = options->runs;
	return choose_rows(options);
}

/* ---- paths ---- */

static char *join(const char *directory, const char *name)
{
	char *path;

	return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

/*
 * Makes the working directory, which the caller frees, below $TMPDIR, unless others can put
 * something else in its place there. 0 or -errno.
 */
static int make_work(char **ret_path)
{
	const char *given = getenv("TMPDIR");
	_cleanup_free_ char *parent = NULL;
	_cleanup_free_ char *path = NULL;
	struct gcr_error error = {0};

	if (given && *given == '/' && gcr_trusted_directory("TMPDIR", given, &parent, &error) < 0)
		fprintf(stderr, "gpucr-bench: %s\n", error.words);
	path = join(parent ? parent : "/tmp", "gpucr-bench.XXXXXX");
	if (!path)
		return -ENOMEM;
	if (!mkdtemp(path))
		return -errno;
	*ret_path = TAKE_PTR(path);
	return 0;
}

/* Finds the programs: in the build tree they are not where they will be installed. */
static int find_paths(const struct bench_options *options, struct bench_paths *paths)
{
	_cleanup_free_ char *directory = NULL;
	_cleanup_free_ char *mark = NULL;
	char self[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int r;

	if (length < 0)
		return -errno;
	self[length] = '\0';
	paths->self = strdup(self);
	*strrchr(self, '/') = '\0';
	directory = strdup(self);
	mark = directory ? join(directory, "../meson-private") : NULL;
	if (!paths->self || !mark)
		return -ENOMEM;
	paths->run = join(directory, "gpucr-run");
	if (!access(mark, F_OK)) {
		paths->daemon = join(directory, "../fs/gpucrfs");
		paths->helpers = getenv("GPUCR_HELPER_DIR") ? NULL
							    : join(directory, "../backend/cuda");
		paths->simulator = getenv("GPUCR_SIM_LIBDIR") ? NULL
							      : join(directory, "../backend/sim");
	} else {
		paths->daemon = strdup(
			access(GCR_SBINDIR "/gpucrfs", X_OK) ? "gpucrfs" : GCR_SBINDIR "/gpucrfs");
	}
	r = make_work(&paths->work);
	if (r < 0)
		return r;
	/* Real GPUs are not what the simulator's files say. */
	if (!options->simulator)
		return unsetenv("GPUCR_SIM_DIR") ? -errno : 0;
	/* On an existing mount, use the mount's simulator. */
	if (options->mount)
		paths->simulator_state =
			strdup(getenv("GPUCR_SIM_DIR") ? getenv("GPUCR_SIM_DIR") : "");
	else
		paths->simulator_state = join(paths->work, "sim");
	if (!paths->simulator_state || !paths->daemon || !paths->run)
		return -ENOMEM;
	if (*paths->simulator_state)
		setenv("GPUCR_SIM_DIR", paths->simulator_state, 1);
	if (options->hip && !options->mount) {
		setenv("GPUCR_SIM_GPUS", "0", 1);
		setenv("GPUCR_SIM_HIP_GPUS", "1", 0);
	}
	return options->mount || !mkdir(paths->simulator_state, 0700) ? 0 : -errno;
}

static void remove_directory(const char *path)
{
	pid_t pid = fork();

	if (!pid) {
		execlp("rm", "rm", "-rf", "--one-file-system", path, (char *)NULL);
		_exit(127);
	}
	if (pid > 0)
		waitpid(pid, NULL, 0);
}

static void forget_paths(struct bench_paths *paths)
{
	if (paths->work)
		remove_directory(paths->work);
	free(paths->self);
	free(paths->daemon);
	free(paths->run);
	free(paths->work);
	free(paths->helpers);
	free(paths->simulator);
	free(paths->simulator_state);
}

static void interrupt(int number)
{
	(void)number;
	bench_interrupted = 1;
}

static void catch_signals(void)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	const char *preload = getenv("LD_PRELOAD");
	struct sigaction action = {.sa_handler = interrupt};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(signals); i++)
		sigaction(signals[i], &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	/*
	 * If the bench was started under gpucr-run, the library must not be in rows without
	 * preload.
	 */
	if (preload && strstr(preload, "libgpucr-preload"))
		unsetenv("LD_PRELOAD");
}

static int print_json(const struct bench *bench, const struct bench_packing *packing, FILE *stream)
{
	return packing ? bench_print_packing_json(bench, packing, stream)
		       : bench_print_json(bench, stream);
}

/*
 * Prints the results as text and, if wanted, as JSON. @packing: the results if only packing was
 * measured, or NULL.
 */
static int print_results(const struct bench *bench, const struct bench_packing *packing)
{
	_cleanup_fclose_ FILE *file = NULL;
	const char *json = bench->options.json;

	if (packing && (!json || strcmp(json, "-")))
		bench_print_packing(bench, packing, stdout);
	else if (!json || strcmp(json, "-"))
		bench_print(bench, stdout);
	if (!json)
		return 0;
	if (!strcmp(json, "-"))
		return print_json(bench, packing, stdout);
	file = fopen(json, "we");
	if (!file || print_json(bench, packing, file) < 0) {
		fprintf(stderr, "gpucr-bench: %s: %s\n", json, strerror(file ? EIO : errno));
		return -EIO;
	}
	return 0;
}

static int measure_packing(struct bench *bench)
{
	_cleanup_free_ struct bench_packing *packing = calloc(1, sizeof(*packing));
	struct gcr_error error = {0};
	int result = packing ? bench_measure_packing(bench, packing, &error) : -ENOMEM;

	if (packing && (packing->rows_count || !result))
		print_results(bench, packing);
	if (result < 0)
		fprintf(stderr, "gpucr-bench: %s\n", packing ? error.words : "out of memory");
	return result;
}

/* Makes all measurements except packing, which needs neither a directory nor a GPU. */
static int measure(struct bench *bench)
{
	struct gcr_error error = {0};
	int result = find_paths(&bench->options, &bench->paths);

	if (result < 0)
		fprintf(stderr, "gpucr-bench: no directory to work in: %s\n", strerror(-result));
	if (!result) {
		result = bench_measure(bench, &error);
		/* Show partial results too. */
		if (bench->rows_count || !result)
			print_results(bench, NULL);
		if (result < 0)
			fprintf(stderr, "gpucr-bench: %s\n", error.words);
	}
	forget_paths(&bench->paths);
	return result;
}

int main(int argc, char **argv)
{
	_cleanup_free_ struct bench *bench = calloc(1, sizeof(*bench));
	int result;

	if (argc > 2 && (!strcmp(argv[1], "--role") || !strcmp(argv[1], "--hip-role")))
		return bench_role(argv[1][2] == 'h', argc - 2, argv + 2);
	if (!bench)
		return EXIT_FAILURE;
	if (parse_arguments(argc, argv, &bench->options) < 0)
		return 2;
	catch_signals();
	if (bench->options.pack || bench->options.pack_file)
		result = measure_packing(bench);
	else
		result = measure(bench);
	free(bench->rows);
	return result < 0 || bench->failures_count ? EXIT_FAILURE : EXIT_SUCCESS;
}
