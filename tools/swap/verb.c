/* SPDX-License-Identifier: MIT */
/* Verbs: writing them and reading their results. */
#include "tools/swap/swap.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_file.h"

const char *swap_verb_name(enum swap_verb verb)
{
	return verb == SWAP_THAW ? "thaw" : "freeze";
}

const char *swap_verb_text(enum swap_verb verb, bool is_full)
{
	if (verb == SWAP_THAW)
		return "thaw";
	return is_full ? "freeze" : "freeze data";
}

int swap_errno(const char *name, size_t length)
{
	for (int number = 1; number < 256; number++) {
		const char *known = strerrorname_np(number);

		if (known && strlen(known) == length && !memcmp(known, name, length))
			return number;
	}
	return EIO;
}

void swap_stamp(int64_t real_usec, char ret_stamp[SWAP_STAMP_BYTES])
{
	time_t seconds = real_usec / GCR_USEC_PER_SEC;
	struct tm utc;
	size_t length;

	gmtime_r(&seconds, &utc);
	length = strftime(ret_stamp, SWAP_STAMP_BYTES, "%Y-%m-%dT%H:%M:%S", &utc);
	snprintf(ret_stamp + length, SWAP_STAMP_BYTES - length, ".%06dZ",
		 (int)(real_usec % GCR_USEC_PER_SEC));
}

/* Format of a line: TIME ID GENERATION verb VERB RESULT [WORDS] */
bool swap_parse_end(char *line, struct swap_end *end)
{
	char *words[6] = {NULL};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(words) && line; i++)
		words[i] = strsep(&line, " ");
	if (!words[5] || strcmp(words[3], "verb") != 0)
		return false;
	*end = (struct swap_end){
		.stamp = words[0],
		.pid = atoi(words[1]),
		.verb = words[4],
		.result = words[5],
		.words = line ? line : "",
	};
	return true;
}

int swap_end_error(const struct swap_end *end, struct gcr_error *error)
{
	if (!strcmp(end->result, "ok"))
		return 0;
	return gcr_error_set(error, swap_errno(end->result, strlen(end->result)), "%s: %s",
			     end->result, end->words);
}

/*
 * Reads the file @name of a process's directory; the caller frees the text. -ESRCH: the process has
 * ended.
 */
static int read_file_of(const char *mount, int pid, const char *name, char **ret_text,
			struct gcr_error *error)
{
	_cleanup_free_ char *path = NULL;
	int result;

	if (asprintf(&path, "%s/%d/%s", mount, pid, name) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = gcr_file_read(path, ret_text, NULL);
	if (result == -ENOENT || result == -ESRCH)
		return gcr_error_set(error, ESRCH, "it has ended");
	if (result < 0)
		return gcr_error_set(error, -result, "%s cannot be read: %s", path,
				     strerror(-result));
	return 0;
}

int swap_find_end(const char *mount, int pid, const char *verb, const char *stamp,
		  struct gcr_error *error)
{
	_cleanup_free_ char *text = NULL;
	char *rest, *line;
	struct swap_end end, found = {0};
	int result = read_file_of(mount, pid, "events", &text, error);

	if (result < 0)
		return result;
	rest = text;
	while ((line = strsep(&rest, "\n")))
		if (swap_parse_end(line, &end) && !strcmp(end.verb, verb) &&
		    strcmp(end.stamp, stamp) >= 0)
			found = end;
	return found.stamp ? swap_end_error(&found, error) : -ENOENT;
}

int swap_read_error(const char *mount, int pid, struct gcr_error *error)
{
	_cleanup_free_ char *text = NULL;
	int result = read_file_of(mount, pid, "error", &text, error);

	if (result < 0)
		return result;
	if (!strncmp(text, "ok", 2))
		return 0;
	return gcr_error_set(error, swap_errno(text, strcspn(text, ":\n")), "%.*s",
			     (int)strcspn(text, "\n"), text);
}

int swap_write_verb(const char *mount, int pid, const char *text, bool is_waiting,
		    struct gcr_error *error)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;
	int number;

	if (asprintf(&path, "%s/%d/ctl", mount, pid) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | (is_waiting ? 0 : O_NONBLOCK));
	if (fd < 0)
		return gcr_error_set(error, errno, "%s", strerror(errno));
	if (write(fd, text, strlen(text)) >= 0)
		return 0;
	number = errno;
	/* The error file may describe another verb. */
	if (swap_read_error(mount, pid, error) != -number)
		gcr_error_set(error, number, "%s", strerror(number));
	return -number;
}
