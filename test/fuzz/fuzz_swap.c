/* SPDX-License-Identifier: MIT */
/*
 * The input of gpucr-swap: the files of a mount, parts of which programs choose, and the answers of
 * watchers. The first byte says which; the rest is the text. For a mount, lines `===` divide the
 * text: the status of process 7, its maps, that of GPU 0, its events, its error.
 */
#include "tools/swap/swap.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "test/fuzz/fuzz.h"

#define DIVIDER "===\n"

static const char *const files[] = {"7/status", "7/maps", "gpus/0/status", "7/events", "7/error"};

static char directory[64];
static int directory_fd = -1;

static void remove_directory(void)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(files); i++)
		unlinkat(directory_fd, files[i], 0);
	unlinkat(directory_fd, "7", AT_REMOVEDIR);
	unlinkat(directory_fd, "gpus/0", AT_REMOVEDIR);
	unlinkat(directory_fd, "gpus", AT_REMOVEDIR);
	rmdir(directory);
}

static void prepare(void)
{
	const char *parent = getenv("TMPDIR");

	snprintf(directory, sizeof(directory), "%s/gpucrfs-fuzz-XXXXXX", parent ? parent : "/tmp");
	CHECK(mkdtemp(directory));
	directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(directory_fd >= 0 && !mkdirat(directory_fd, "7", 0700) &&
	      !mkdirat(directory_fd, "gpus", 0700) && !mkdirat(directory_fd, "gpus/0", 0700));
	atexit(remove_directory);
}

static void make_files(const char *text, size_t size)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(files); i++) {
		const char *end = memmem(text, size, DIVIDER, strlen(DIVIDER));
		size_t bytes = end ? (size_t)(end - text) : size;
		_cleanup_close_ int fd = openat(directory_fd, files[i],
						O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

		CHECK(fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes);
		if (end)
			bytes += strlen(DIVIDER);
		text += bytes;
		size -= bytes;
	}
}

static bool is_printable(const char *word, size_t room)
{
	if (!memchr(word, '\0', room))
		return false;
	for (; *word; word++)
		if (*word <= 0x20 || *word >= 0x7f)
			return false;
	return true;
}

/* Checks that the parsed view is one that the policy can decide on. */
static void check_view(const struct swap_view *view)
{
	struct swap_config config = {.idle_usec = 1000, .slice_usec = 1000, .gpus = SWAP_ALL_GPUS};
	struct swap_policy *policy = swap_policy_create(&config);
	struct swap_action actions[2];
	struct swap_note notes[2];
	struct swap_decision decision = {.actions = actions, .notes = notes};

	CHECK(policy && view->situation.count <= 1);
	for (size_t i = 0; i < view->situation.count; i++) {
		const struct swap_label *label = &view->labels[i];

		CHECK(view->processes[i].pid == 7 && view->processes[i].idle_usec >= -1);
		CHECK(is_printable(label->comm, sizeof(label->comm)));
		CHECK(is_printable(label->state, sizeof(label->state)));
	}
	for (int64_t now = 1; now < 4000000; now += 1000000)
		CHECK(!swap_policy_decide(policy, &view->situation, now, &decision) &&
		      decision.actions_count <= view->situation.count);
	swap_policy_destroy(policy);
}

static void check_mount(const char *text, size_t size)
{
	struct swap_view view = {0};
	struct gcr_error error = {0};
	char value[16];
	int result;

	make_files(text, size);
	CHECK(!swap_look(directory, &view));
	check_view(&view);
	swap_view_finish(&view);
	result = swap_status_value(directory, 7, "state", value, sizeof(value));
	CHECK(!result ? *value && is_printable(value, sizeof(value)) : result == -ENOENT);
	result = swap_find_end(directory, 7, "freeze", "2026", &error);
	CHECK(result <= 0 && memchr(error.words, '\0', sizeof(error.words)));
	result = swap_read_error(directory, 7, &error);
	CHECK(result <= 0 && memchr(error.words, '\0', sizeof(error.words)));
}

/* Parses each line as a line of events. */
static void check_events(char *text)
{
	char *line;

	while ((line = strsep(&text, "\n"))) {
		struct gcr_error error = {0};
		struct swap_end end;

		if (!swap_parse_end(line, &end))
			continue;
		CHECK(!strchr(end.stamp, ' ') && !strchr(end.verb, ' ') &&
		      !strchr(end.result, ' '));
		CHECK(!swap_end_error(&end, &error) == !strcmp(end.result, "ok"));
		CHECK(!error.number || *error.words);
	}
}

static void check_answer(const char *text)
{
	struct swap_totals totals;

	if (swap_parse_totals(text, &totals))
		CHECK(memchr(totals.gpus, '\0', sizeof(totals.gpus)) && !strchr(totals.gpus, '\n'));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text;

	if (!size)
		return 0;
	if (directory_fd < 0)
		prepare();
	size--;
	text = malloc(size + 1);
	CHECK(text);
	memcpy(text, data + 1, size);
	text[size] = '\0';
	switch (data[0] % 3) {
	case 0:
		check_mount(text, size);
		break;
	case 1:
		check_events(text);
		break;
	default:
		check_answer(text);
	}
	free(text);
	return 0;
}
