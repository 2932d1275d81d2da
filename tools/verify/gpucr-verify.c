/* SPDX-License-Identifier: MIT */
/*
 * gpucr-verify: checks that a copy of a snapshot equals the frozen data. Needs no daemon and no
 * GPU. This file has the command line and the output.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "lib/cleanup.h"
#include "lib/printable.h"
#include "tools/options.h"
#include "tools/verify/verify.h"

#define LETTERS	    "j:q"
#define THREADS_MAX 16 /* without -j: more threads do not read memory faster */

enum { STATUS_RIGHT, STATUS_WRONG, STATUS_UNREAD };

static const struct option_words option_words[] = {
	{'j', "jobs", "N", "so many threads (default: one a processor, at most 16)"},
	{'q', "quiet", NULL, "say nothing of what is right"},
	{'p', "progress", NULL, "say how far it is, also if stderr is no terminal"},
	{'h', "help", NULL, "print this"},
	{'V', "version", NULL, "print the version"},
};

static int complain(const char *words, const char *what)
{
	fprintf(stderr, "gpucr-verify: %s%s%s\nTry 'gpucr-verify --help'.\n", words,
		what ? ": " : "", what ? what : "");
	return STATUS_UNREAD;
}

static void usage(void)
{
	puts("Usage: gpucr-verify [OPTION]... DIR...\n"
	     "Check snapshots, or copies of them: DIR is the directory with the file manifest.\n");
	for (size_t i = 0; i < GCR_ARRAY_SIZE(option_words); i++) {
		const struct option_words *option = &option_words[i];
		bool has_letter = strchr(LETTERS, option->letter);

		printf("  %c%c%s --%-8s %-2s  %s\n", has_letter ? '-' : ' ',
		       has_letter ? option->letter : ' ', has_letter ? "," : " ", option->name,
		       option->value ? option->value : "", option->help);
	}
	puts("\nEnds with status 0 if all is right, 1 if something is wrong, 2 if something could "
	     "not\nbe read.");
}

static unsigned int processors(void)
{
	cpu_set_t set;
	long count = sched_getaffinity(0, sizeof(set), &set) < 0 ? sysconf(_SC_NPROCESSORS_ONLN)
								 : CPU_COUNT(&set);

	if (count < 1)
		return 1;
	return count < THREADS_MAX ? (unsigned int)count : THREADS_MAX;
}

static int parse_threads(const char *text, unsigned int *ret_threads)
{
	char *end;
	long number;

	errno = 0;
	number = strtol(text, &end, 10);
	if (errno || end == text || *end || number < 1 || number > VERIFY_THREADS_MAX)
		return -EINVAL;
	*ret_threads = (unsigned int)number;
	return 0;
}

static void print_line(FILE *stream, const struct verify *verify, const char *format,
		       va_list arguments) __attribute__((format(printf, 3, 0)));

/*
 * Prints one line; unprintable characters are replaced, because a file's name must not move the
 * cursor or imitate a line.
 */
static void print_line(FILE *stream, const struct verify *verify, const char *format,
		       va_list arguments)
{
	char line[PATH_MAX + 1024];
	int length;

	length = snprintf(line, sizeof(line), "%s%s%s", verify->path ? verify->path : "",
			  verify->path ? ": " : "", verify->part);
	if (length >= 0 && (size_t)length < sizeof(line))
		vsnprintf(line + length, sizeof(line) - (size_t)length, format, arguments);
	gcr_make_printable(line);
	if (stream == stderr)
		fputs("gpucr-verify: ", stream);
	fputs(line, stream);
	fputc('\n', stream);
}

void verify_wrong(struct verify *verify, const char *format, ...)
{
	va_list arguments;

	verify->wrong++;
	va_start(arguments, format);
	print_line(stdout, verify, format, arguments);
	va_end(arguments);
}

void verify_unread(struct verify *verify, const char *format, ...)
{
	va_list arguments;

	verify->unread++;
	va_start(arguments, format);
	print_line(stderr, verify, format, arguments);
	va_end(arguments);
}

static void print_right(const struct verify *verify, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void print_right(const struct verify *verify, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	print_line(stdout, verify, format, arguments);
	va_end(arguments);
}

static int check_directory(const char *path, bool is_only, const struct verify_options *options)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int number = errno;
	char shown[PATH_MAX];
	struct verify verify = {.options = options, .path = is_only ? NULL : shown, .part = ""};

	/* Somebody else may have named it, and a shell's pattern has found it. */
	snprintf(shown, sizeof(shown), "%s", path);
	gcr_make_printable(shown);
	if (fd < 0) {
		fprintf(stderr, "gpucr-verify: %s: %s\n", shown, strerror(number));
		return STATUS_UNREAD;
	}
	verify_snapshot(&verify, fd);
	if (verify.unread)
		return STATUS_UNREAD;
	if (verify.wrong)
		return STATUS_WRONG;
	if (!options->quiet)
		print_right(&verify, "all right: %zu files, %" PRIu64 " bytes", verify.files,
			    verify.bytes);
	return STATUS_RIGHT;
}

int main(int argc, char **argv)
{
	struct verify_options options = {
		.threads = processors(),
		.progress = isatty(STDERR_FILENO),
		.progress_in_place = isatty(STDERR_FILENO),
	};
	struct option long_options[GCR_ARRAY_SIZE(option_words) + 1] = {{0}};
	int status = STATUS_RIGHT;
	int letter;

	make_long_options(option_words, GCR_ARRAY_SIZE(option_words), long_options);
	while ((letter = getopt_long(argc, argv, LETTERS, long_options, NULL)) != -1) {
		switch (letter) {
		case 'j':
			if (parse_threads(optarg, &options.threads) < 0)
				return complain("not a number of threads", optarg);
			break;
		case 'q':
			options.quiet = true;
			break;
		case 'p':
			options.progress = true;
			break;
		case 'h':
			usage();
			return STATUS_RIGHT;
		case 'V':
			puts("gpucr-verify " GCR_VERSION);
			return STATUS_RIGHT;
		default:
			return complain("see above", NULL);
		}
	}
	if (optind == argc)
		return complain("no directory is given", NULL);
	for (int i = optind; i < argc; i++) {
		int result = check_directory(argv[i], argc - optind == 1, &options);

		if (result > status)
			status = result;
	}
	if (fflush(stdout) == EOF || ferror(stdout)) {
		fputs("gpucr-verify: standard output cannot be written\n", stderr);
		return STATUS_UNREAD;
	}
	return status;
}
