/* SPDX-License-Identifier: MIT */
/*
 * gpucr-top: how it reads a directory that looks like a mount, and sorts and lays out the result.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "test/unit/test.h"
#include "tools/top/top.h"

#define GIB (UINT64_C(1) << 30)

static char mount[] = "/tmp/gpucr-top-XXXXXX";

static void put(const char *name, const char *text)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", mount, name);
	for (char *slash = path + sizeof(mount); (slash = strchr(slash, '/')); *slash++ = '/') {
		*slash = '\0';
		CHECK(!mkdir(path, 0700) || errno == EEXIST);
	}
	file = fopen(path, "we");
	CHECK(file && fputs(text, file) >= 0 && !fclose(file));
}

static void take_away(const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", mount, name);
	CHECK(!remove(path));
}

static const char *const files[][2] = {
	{"status", "version 0.1.0\nbackend cuda\nstore_bytes 107374182400\nstore_used_bytes 100\n"
		   "store_free_bytes 7\nkept_bytes -\nheld_bytes 1x\n\n"
		   "id user comm state vram_bytes held_bytes\n"
		   "900 1000 python3 running 4096 0\n"
		   "77 0 \x1b[2J\xc2\x9b\x07x frozen 0 8192\n"
		   "../etc 0 - dumped 0 1\n"
		   "short line\n"
		   "train-1 7 - incoming - 5\n"},
	{"900/status", "idle_ms 1500\ngpus 0 3\nlast_freeze_usec 2000\nlast_freeze_bytes 99\n"
		       "last_thaw_usec -\nlast_thaw_bytes 18446744073709551616\n"},
	{"77/status", "xidle_ms 3\nidle_ms 4\nverb freeze\n\nwanted_usec 5\n"},
	{"etc/status", "idle_ms 5\n"},
	{"gpus/10/name", "second\n"},
	{"gpus/2/name", "A \x1b[31m\x9b name that goes on\nand on"},
	{"gpus/2/status", "vram_total_bytes 85899345920\nvram_used_bytes 5\nheld_bytes 6\n"
			  "vram_processes_bytes -\n"},
	{"gpus/.x/name", "none"},
};

static struct top_process *find(struct top_view *view, const char *id)
{
	for (size_t i = 0; i < view->processes_count; i++)
		if (!strcmp(view->processes[i].id, id))
			return &view->processes[i];
	fprintf(stderr, "%s is not there\n", id);
	exit(1);
}

static void test_look(void)
{
	struct gcr_error error;
	struct top_view view;
	struct top_process *one;

	CHECK(!top_look(mount, &view, &error));
	CHECK(!strcmp(view.version, "0.1.0") && view.store_bytes == 100 * GIB);
	CHECK(view.store_used_bytes == 100 && view.kept_bytes == TOP_UNKNOWN);
	CHECK(view.pool_used_bytes == TOP_UNKNOWN);
	CHECK(view.gpus_count == 2 && view.gpus[0].index == 2 && view.gpus[1].index == 10);
	CHECK(!strcmp(view.gpus[0].name, "A ?[31m? name that goes on"));
	CHECK(view.gpus[0].total_bytes == 80 * GIB && view.gpus[0].used_bytes == 5);
	CHECK(view.gpus[0].processes_bytes == TOP_UNKNOWN && view.gpus[0].held_bytes == 6);
	CHECK(view.gpus[1].total_bytes == TOP_UNKNOWN && !strcmp(view.gpus[1].name, "second"));

	CHECK(view.processes_count == 4);
	one = find(&view, "900");
	CHECK(!strcmp(one->comm, "python3") && !strcmp(one->user, "1000"));
	CHECK(one->vram_bytes == 4096 && one->held_bytes == 0 && one->idle_msec == 1500);
	CHECK(!strcmp(one->gpus, "0,3") && one->freeze_usec == 2000 && one->freeze_bytes == 99);
	CHECK(one->thaw_usec == TOP_UNKNOWN && one->thaw_bytes == TOP_UNKNOWN);
	CHECK(one->wanted_usec == TOP_UNKNOWN && one->packed_bytes == TOP_UNKNOWN);
	one = find(&view, "77");
	CHECK(!strcmp(one->comm, "?[2J???x") && one->idle_msec == 4 && !strcmp(one->gpus, "-"));
	CHECK(one->wanted_usec == TOP_UNKNOWN); /* after an empty line, so ignored */
	/* No file outside the mount is read, whatever the id. */
	CHECK(find(&view, "../etc")->idle_msec == TOP_UNKNOWN);
	one = find(&view, "train-1");
	CHECK(one->vram_bytes == TOP_UNKNOWN && one->held_bytes == 5);
	top_view_finish(&view);
	CHECK(!view.processes && !view.gpus_count);
}

static void check_order(struct top_view *view, enum top_order order, const char *wanted)
{
	char found[256] = "";

	top_sort(view, order);
	for (size_t i = 0; i < view->processes_count; i++) {
		strcat(found, " ");
		strcat(found, view->processes[i].id);
	}
	if (strcmp(found + 1, wanted) != 0) {
		fprintf(stderr, "by %s: %s\n", top_order_name(order), found);
		exit(1);
	}
}

static void test_order(void)
{
	struct gcr_error error;
	struct top_view view;

	CHECK(!top_look(mount, &view, &error));
	check_order(&view, TOP_BY_ID, "77 900 ../etc train-1");
	check_order(&view, TOP_BY_VRAM, "900 77 ../etc train-1");
	check_order(&view, TOP_BY_HELD, "77 train-1 ../etc 900");
	check_order(&view, TOP_BY_IDLE, "900 77 ../etc train-1");
	check_order(&view, TOP_BY_STATE, "../etc 77 train-1 900");
	top_view_finish(&view);
}

/* Lines use the available width; the columns that identify a process always stay. */
static void test_layout(void)
{
	struct top_layout layout;
	char line[TOP_LINE_BYTES];
	struct gcr_error error;
	struct top_view view;
	size_t last = SIZE_MAX;

	CHECK(!top_look(mount, &view, &error));
	for (size_t width = 200; width >= 40; width--) {
		top_layout_make(&view, width, &layout);
		top_print_header(&layout, line);
		CHECK(strlen(line) <= width && strlen(line) <= last);
		last = strlen(line);
		CHECK(!strncmp(line, "ID ", 3) && strstr(line, " COMMAND ") &&
		      strstr(line, "VRAM"));
	}
	CHECK(!strstr(line, "RATE"));
	top_layout_make(&view, 1, &layout);
	top_print_process(&layout, find(&view, "900"), line);
	CHECK(!strcmp(line, "900     python3  running  4KiB"));
	top_view_finish(&view);
}

static void check_bar(const struct top_gpu *gpu, size_t width, const char *wanted)
{
	char cells[64];

	top_bar_gpu(gpu, width, cells);
	if (strcmp(cells, wanted) != 0) {
		fprintf(stderr, "found %s, expected %s\n", cells, wanted);
		exit(1);
	}
}

static void test_bars(void)
{
	struct top_gpu gpu = {.total_bytes = 80 * GIB,
			      .used_bytes = 40 * GIB,
			      .processes_bytes = 32 * GIB,
			      .held_bytes = 16 * GIB};
	struct top_view view = {.store_bytes = 100, .store_used_bytes = 50, .pool_used_bytes = 20};
	char cells[64];

	check_bar(&gpu, 10, "####+--...");
	check_bar(&gpu, 0, "");
	gpu.held_bytes = 800 * GIB; /* more than the GPU has */
	check_bar(&gpu, 10, "####+-----");
	gpu.processes_bytes = 90 * GIB; /* figures of two moments */
	check_bar(&gpu, 10, "#####-----");
	gpu.held_bytes = gpu.processes_bytes = TOP_UNKNOWN;
	check_bar(&gpu, 10, "+++++.....");
	gpu.total_bytes = TOP_UNKNOWN;
	check_bar(&gpu, 4, "....");
	top_bar_store(&view, 10, cells);
	CHECK(!strcmp(cells, "###++....."));
}

static void test_verbs(void)
{
	char words[GCR_ERROR_WORDS_MAX];
	struct gcr_error error;

	put("900/ctl", "");
	CHECK(!top_verb_start(mount, "900", "freeze", &error));
	CHECK(top_verb_start(mount, "901", "freeze", &error) == -ENOENT && *error.words);
	CHECK(top_verb_start(mount, "77/../900", "freeze", &error) == -EINVAL);
	put("900/status", "state freezing\nverb freeze\n");
	put("900/error", "EIO: an earlier one\nsecond line\n");
	CHECK(top_verb_result(mount, "900", "freeze", words) == -EAGAIN);
	put("900/status", "state running\nverb -\n");
	CHECK(!top_verb_result(mount, "900", "freeze", words));
	CHECK(!strcmp(words, "EIO: an earlier one"));
	/*
	 * The process is running already, so a thaw has nothing to do: the error is an earlier
	 * verb's.
	 */
	CHECK(!top_verb_result(mount, "900", "thaw", words) && !strcmp(words, "ok"));
	CHECK(top_verb_result(mount, "901", "thaw", words) == -ENOENT);
	take_away("900/ctl");
	take_away("900/error");
}

static void test_no_mount(void)
{
	struct gcr_error error;
	struct top_view view;

	take_away("status");
	CHECK(top_look(mount, &view, &error) == -ENOENT && strstr(error.words, mount));
	CHECK(top_look("/no/such/place", &view, &error) == -ENOENT);
	put("status", "");
	CHECK(!top_look(mount, &view, &error) && !view.processes_count);
	CHECK(view.store_bytes == TOP_UNKNOWN && !strcmp(view.version, "-"));
	top_view_finish(&view);
}

int main(void)
{
	static const char *const directories[] = {"900",    "77",      "etc", "gpus/10",
						  "gpus/2", "gpus/.x", "gpus"};

	CHECK(mkdtemp(mount));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(files); i++)
		put(files[i][0], files[i][1]);
	test_look();
	test_order();
	test_layout();
	test_bars();
	test_verbs();
	test_no_mount();
	for (size_t i = 0; i < GCR_ARRAY_SIZE(files); i++)
		take_away(files[i][0]);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(directories); i++)
		take_away(directories[i]);
	CHECK(!rmdir(mount));
	return 0;
}
