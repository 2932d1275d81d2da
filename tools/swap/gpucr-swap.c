/* SPDX-License-Identifier: MIT */
/*
 * gpucr-swap: moves GPU programs out of the GPU and back, by hand or on demand. This file has the
 * command line and the commands that run verbs by hand.
 */
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/mount.h"
#include "tools/swap/swap.h"

#define PIDS_MAX 3

static const char usage_words[] =
	"Usage: gpucr-swap out [OPTION]... PID | --idle SEC\n"
	"       gpucr-swap in [OPTION]... PID\n"
	"       gpucr-swap [OPTION]... PID_OUT PID_IN\n"
	"       gpucr-swap watch [OPTION]... --idle SEC [--gpu N]...\n"
	"       gpucr-swap status [--metrics]\n"
	"Move what GPU programs have on the GPU into host memory, and back.\n"
	"\n"
	"  out PID        freeze a program; with --idle all that have been idle for so long\n"
	"  in PID         thaw it\n"
	"  PID_OUT PID_IN freeze one and thaw the other, or leave both as they are\n"
	"  watch          let more programs share GPUs than fit: freeze what is idle, and make\n"
	"                 room for a frozen one as soon as it needs its GPU; Ctrl-C ends it\n"
	"  status         what a watcher does now: who waits, for how long, and for what\n"
	"\n"
	"  --idle SEC     since when it has given the GPU no work, such as 60 or 0.5\n"
	"  --gpu N        only programs on this GPU; may be given several times\n"
	"  --slice SEC    what a program that was thawed gets at least, if others want its place "
	"(2)\n"
	"  --full         also the driver's context goes out: frees more, and takes longer\n"
	"  --metrics      status as OpenMetrics text\n"
	"  --help, --version\n"
	"\n"
	"The mount is $GPUCR_MOUNT, else the first one of type fuse.gpucrfs that is yours, else\n"
	"root's.\n";

enum command { COMMAND_OUT, COMMAND_IN, COMMAND_EXCHANGE, COMMAND_WATCH, COMMAND_STATUS };

static const char *const command_names[] = {"out", "in", "exchange", "watch", "status"};

struct arguments {
	enum command command;
	struct swap_config config;
	bool has_idle;
	bool is_metrics;
	int pids[PIDS_MAX];
	size_t pids_count;
};

/* The options. `commands`: bit mask of the commands that take the option. */
static const struct option_words {
	const char *name;
	bool has_value;
	unsigned int commands;
} option_words[] = {
	{"--idle", true, 1 << COMMAND_OUT | 1 << COMMAND_WATCH},
	{"--gpu", true, 1 << COMMAND_OUT | 1 << COMMAND_WATCH},
	{"--slice", true, 1 << COMMAND_WATCH},
	{"--full", false, 1 << COMMAND_OUT | 1 << COMMAND_EXCHANGE | 1 << COMMAND_WATCH},
	{"--metrics", false, 1 << COMMAND_STATUS},
	{"--help", false, ~0u},
	{"--version", false, ~0u},
};

static int misuse(const char *words, const char *what)
{
	fprintf(stderr, "gpucr-swap: %s%s%s\nTry 'gpucr-swap --help'.\n", words, what ? ": " : "",
		what ? what : "");
	return 2;
}

static int fail(const char *words, const char *what)
{
	fprintf(stderr, "gpucr-swap: %s%s%s\n", what ? what : "", what ? ": " : "", words);
	return 1;
}

/* Parses a number of at most 9 digits and nothing else. 0 or -EINVAL. */
static int parse_number(const char *text, int *ret_number)
{
	size_t length = strspn(text, "0123456789");

	if (!length || text[length] || length > 9)
		return -EINVAL;
	*ret_number = atoi(text);
	return 0;
}

static int parse_seconds(const char *text, int64_t *ret_usec)
{
	size_t length = strspn(text, "0123456789.");

	if (!length || length > 9 || text[length] || !strcmp(text, ".") ||
	    strchr(text, '.') != strrchr(text, '.'))
		return -EINVAL;
	*ret_usec = (int64_t)(strtod(text, NULL) * (double)GCR_USEC_PER_SEC);
	return 0;
}

/* Takes one option and its value. Returns 0, or the exit status plus one. */
static int take_option(struct arguments *arguments, const char *name, const char *value)
{
	struct swap_config *config = &arguments->config;
	int gpu;

	if (!strcmp(name, "--full")) {
		config->is_full = true;
	} else if (!strcmp(name, "--metrics")) {
		arguments->is_metrics = true;
	} else if (!strcmp(name, "--gpu")) {
		if (parse_number(value, &gpu) < 0 || gpu >= SWAP_GPUS_MAX)
			return 1 + misuse("--gpu takes the index of a GPU, and not", value);
		config->gpus = config->gpus == SWAP_ALL_GPUS ? 1u << gpu : config->gpus | 1u << gpu;
	} else if (parse_seconds(value, !strcmp(name, "--idle") ? &config->idle_usec
								: &config->slice_usec) < 0) {
		return 1 + misuse("it takes seconds, such as 60 or 0.5", name);
	} else if (!strcmp(name, "--idle")) {
		arguments->has_idle = true;
	}
	return 0;
}

static int take_word(struct arguments *arguments, const char *word, const char *value,
		     bool *is_value_taken)
{
	const struct option_words *option = NULL;

	*is_value_taken = false;
	if (*word != '-') {
		if (arguments->pids_count == PIDS_MAX)
			return 1 + misuse("too many processes", word);
		return parse_number(word, &arguments->pids[arguments->pids_count++]) < 0
			       ? 1 + misuse("not a process id", word)
			       : 0;
	}
	for (size_t i = 0; i < GCR_ARRAY_SIZE(option_words); i++)
		if (!strcmp(word, option_words[i].name) ||
		    (!strcmp(word, "-h") && !strcmp(option_words[i].name, "--help")))
			option = &option_words[i];
	if (!option || !(option->commands & 1u << arguments->command))
		return 1 + misuse("not an option of this command", word);
	if (!strcmp(option->name, "--help")) {
		fputs(usage_words, stdout);
		return 1;
	}
	if (!strcmp(option->name, "--version")) {
		puts("gpucr-swap " GCR_VERSION);
		return 1;
	}
	if (option->has_value && !value)
		return 1 + misuse("it needs a value", word);
	*is_value_taken = option->has_value;
	return take_option(arguments, option->name, value);
}

static int check_arguments(const struct arguments *arguments)
{
	size_t count = arguments->pids_count;

	switch (arguments->command) {
	case COMMAND_OUT:
		return count + arguments->has_idle == 1
			       ? 0
			       : misuse("out: one process, or --idle SEC", NULL);
	case COMMAND_IN:
		return count == 1 ? 0 : misuse("in: one process", NULL);
	case COMMAND_EXCHANGE:
		return count == 2
			       ? 0
			       : misuse("two processes: one to go out, and one to come in", NULL);
	case COMMAND_WATCH:
		if (count)
			return misuse("watch takes no process", NULL);
		return arguments->has_idle ? 0 : misuse("watch: --idle SEC is needed", NULL);
	default:
		return count ? misuse("status takes no process", NULL) : 0;
	}
}

/* Parses the command line. Returns 0, or the exit status plus one. */
static int parse(int argc, char **argv, struct arguments *arguments)
{
	int result = 0, i = 1;

	*arguments = (struct arguments){
		.command = COMMAND_EXCHANGE,
		.config = {.slice_usec = 2 * GCR_USEC_PER_SEC, .gpus = SWAP_ALL_GPUS},
	};
	if (argc < 2) {
		fputs(usage_words, stderr);
		return 3;
	}
	for (enum command command = 0; command < GCR_ARRAY_SIZE(command_names); command++)
		if (command != COMMAND_EXCHANGE && !strcmp(argv[1], command_names[command])) {
			arguments->command = command;
			i = 2;
		}
	for (; i < argc && !result; i++) {
		bool is_value_taken;

		result = take_word(arguments, argv[i], argv[i + 1], &is_value_taken);
		i += is_value_taken;
	}
	if (!result && check_arguments(arguments))
		result = 3;
	return result;
}

/* ---- by hand ---- */

static int find_mount(char **ret_mount)
{
	const char *given = getenv("GPUCR_MOUNT");
	struct gcr_error error;
	_cleanup_free_ char *mount = NULL;
	_cleanup_free_ char *ctl = NULL;
	size_t length;

	if (given && *given) {
		if (gcr_mount_given(given, &mount, &error) < 0)
			return fail(error.words, NULL);
	} else if (gcr_mount_search(&mount) < 0) {
		return fail("no gpucrfs is mounted (GPUCR_MOUNT names it)", NULL);
	}
	length = mount ? strlen(mount) : 0;
	if (length > 1 && mount[length - 1] == '/')
		mount[length - 1] = '\0';
	if (!mount || asprintf(&ctl, "%s/ctl", mount) < 0)
		return fail("out of memory", NULL);
	if (access(ctl, F_OK) < 0)
		return fail("no gpucrfs is mounted there", mount);
	*ret_mount = TAKE_PTR(mount);
	return 0;
}

static int need_process(const char *mount, int pid)
{
	char name[16], path[32];
	_cleanup_free_ char *ctl = NULL;

	snprintf(name, sizeof(name), "%d", pid);
	snprintf(path, sizeof(path), "/proc/%d", pid);
	if (asprintf(&ctl, "%s/%d/ctl", mount, pid) < 0)
		return fail("out of memory", NULL);
	if (!access(ctl, F_OK))
		return 0;
	return fail(access(path, F_OK) ? "no such process"
				       : "this process uses no GPU, or is not yours",
		    name);
}

/* Runs a verb and waits for its end. Failures are printed. */
static int must(const char *mount, int pid, enum swap_verb verb, bool is_full)
{
	struct gcr_error error = {0};
	int result = swap_write_verb(mount, pid, swap_verb_text(verb, is_full), true, &error);

	if (result < 0)
		fprintf(stderr, "gpucr-swap: %s %d: %s\n", swap_verb_name(verb), pid, error.words);
	return result;
}

static int out_idle(const char *mount, const struct swap_config *config)
{
	struct swap_view view = {{{0}}};
	int status = swap_look(mount, &view) < 0 ? fail("it cannot be read", mount) : 0;

	for (size_t i = 0; i < view.situation.count; i++) {
		const struct swap_process *process = &view.processes[i];

		if (process->state != SWAP_RUNNING || process->idle_usec < config->idle_usec ||
		    process->idle_usec < 0 ||
		    (config->gpus != SWAP_ALL_GPUS &&
		     (process->gpus == SWAP_ALL_GPUS || !(process->gpus & config->gpus))))
			continue;
		if (must(mount, process->pid, SWAP_FREEZE, config->is_full) < 0)
			status = 1;
		else
			printf("%d\n", process->pid);
	}
	swap_view_finish(&view);
	return status;
}

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
	caught = number;
}

static bool is_running(const char *mount, int pid)
{
	char state[SWAP_STATE_BYTES];

	return !swap_status_value(mount, pid, "state", state, sizeof(state)) &&
	       !strcmp(state, "running");
}

/* Sets the handler of the signals that end this program. Under nohup(1), SIGHUP stays ignored. */
static void handle_signals(void (*handler)(int number))
{
	static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
	const struct sigaction action = {.sa_handler = handler};
	struct sigaction inherited;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(numbers); i++)
		if (numbers[i] != SIGHUP || sigaction(SIGHUP, NULL, &inherited) < 0 ||
		    inherited.sa_handler != SIG_IGN)
			sigaction(numbers[i], &action, NULL);
}

/*
 * Freezes @out and thaws @in. If the thaw fails, or a signal arrives before the thaw has ended,
 * @out is thawed again.
 */
static int exchange(const char *mount, int out, int in, bool is_full)
{
	bool was_running = is_running(mount, out);

	handle_signals(on_signal);
	if (must(mount, out, SWAP_FREEZE, is_full) == 0 && !caught &&
	    must(mount, in, SWAP_THAW, false) == 0)
		return 0;
	handle_signals(SIG_IGN);
	if (was_running && !is_running(mount, out) && must(mount, out, SWAP_THAW, false) == 0)
		fprintf(stderr, "gpucr-swap: %d has been thawed again\n", out);
	return !caught ? 1 : caught == SIGINT ? 130 : 143;
}

static int watch(const char *mount, const struct swap_config *config)
{
	struct gcr_error error = {0};
	int number;

	for (int gpu = 0; gpu < SWAP_GPUS_MAX && config->gpus != SWAP_ALL_GPUS; gpu++) {
		_cleanup_free_ char *path = NULL;

		if (!(config->gpus & 1u << gpu))
			continue;
		if (asprintf(&path, "%s/gpus/%d", mount, gpu) < 0)
			return fail("out of memory", NULL);
		if (access(path, F_OK) < 0) {
			fprintf(stderr, "gpucr-swap: there is no GPU %d\n", gpu);
			return 1;
		}
	}
	number = swap_watch(mount, config, &error);
	if (number < 0)
		return fail(error.words, NULL);
	return number == SIGINT ? 130 : 143;
}

int main(int argc, char **argv)
{
	_cleanup_free_ char *mount = NULL;
	struct arguments arguments;
	int status = parse(argc, argv, &arguments);

	if (status)
		return status - 1;
	status = find_mount(&mount);
	for (size_t i = 0; i < arguments.pids_count && !status; i++)
		status = need_process(mount, arguments.pids[i]);
	if (status)
		return status;
	switch (arguments.command) {
	case COMMAND_OUT:
		if (!arguments.pids_count)
			return out_idle(mount, &arguments.config);
		return must(mount, arguments.pids[0], SWAP_FREEZE, arguments.config.is_full) < 0;
	case COMMAND_IN:
		return must(mount, arguments.pids[0], SWAP_THAW, false) < 0;
	case COMMAND_EXCHANGE:
		return exchange(mount, arguments.pids[0], arguments.pids[1],
				arguments.config.is_full);
	case COMMAND_WATCH:
		return watch(mount, &arguments.config);
	default:
		return swap_status(mount, arguments.is_metrics);
	}
}
