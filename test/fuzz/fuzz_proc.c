/* SPDX-License-Identifier: MIT */
/*
 * Text of the kernel about programs, which choose their own names, arguments and mounts. First
 * byte: which file; the rest is its text.
 */
#include "lib/proc_text.h"

#include <errno.h>
#include <string.h>

#include "lib/cleanup.h"
#include "lib/proc_file.h"
#include "test/fuzz/fuzz.h"

static void check_stat(const char *text, size_t size)
{
	struct gcr_proc_stat stat;
	int result = gcr_proc_parse_stat(text, size, &stat);

	CHECK(!result || result == -EPROTO);
	if (!result)
		CHECK(memchr(stat.comm, '\0', sizeof(stat.comm)));
}

static void check_status(char *text)
{
	struct gcr_proc_status status;
	int result = gcr_proc_parse_status(text, &status);

	CHECK(!result || result == -ESRCH);
	if (!result)
		CHECK(status.thread_group && status.ns_pids_count <= GCR_NS_PIDS_MAX);
}

static void check_maps(char *text, size_t size)
{
	struct gcr_proc_span span;
	bool is_span = gcr_proc_parse_span(text, &span);
	const char *path = gcr_proc_parse_mapping_path(text);

	(void)is_span;
	CHECK(path >= text && path <= text + size && !strchr(path, '\n'));
}

static void check_environ(const char *text, size_t size)
{
	const char *value = gcr_proc_parse_environ(text, size, "GPUCR");

	if (value)
		CHECK(value - text >= 6 && value <= text + size && value[-1] == '=');
}

static int count_child(pid_t child, void *data)
{
	unsigned int *count = data;

	CHECK(child > 0);
	return ++*count == 5 ? 7 : 0;
}

static void check_children(const char *text)
{
	unsigned int count = 0;
	int result = gcr_proc_parse_children(text, count_child, &count);

	CHECK(count == 5 ? result == 7 : !result);
}

static void check_cgroup(char *text, size_t size)
{
	struct gcr_cgroup_place place = {0};

	CHECK(!gcr_cgroup_parse_place(text, &place));
	CHECK(!place.unified || strlen(place.unified) + 3 <= size);
	CHECK(!place.memory || !strchr(place.memory, '\n'));
	CHECK(!place.freezer || !strchr(place.freezer, '\n'));
	gcr_cgroup_place_finish(&place);
}

static void check_mountinfo(char *text, size_t size)
{
	char *copy = strdup(text);
	struct gcr_cgroup_mount mount = {0};
	const char *where;
	int result;

	CHECK(copy);
	result = gcr_cgroup_parse_mount(copy, size % 2 ? "memory" : NULL, &mount);
	CHECK(!result || result == -ENOENT);
	CHECK(!result == (mount.root && mount.point));
	gcr_cgroup_mount_finish(&mount);
	free(copy);
	where = gcr_mount_parse(text, 1000);
	CHECK(!where || (where > text && where <= text + size));
}

static void check_values(const char *text)
{
	uint64_t value = 0;

	CHECK(!gcr_cgroup_parse_value(text, "frozen", &value) || strstr(text, "frozen"));
	if (!gcr_parse_u64(text, &value))
		CHECK(*text >= '0' && *text <= '9');
}

static void check_rights(const char *text, size_t size)
{
	struct gcr_file_rights rights = {0};
	int result = gcr_file_rights_parse(text, &rights);

	CHECK(!result || result == -EIO);
	CHECK(rights.groups_count <= size);
	CHECK(!rights.groups_count || rights.groups);
	free(rights.groups);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text;

	if (!size)
		return 0;
	/* An exact-size copy, so that the sanitizer sees an overrun by one byte. */
	size--;
	text = malloc(size + 1);
	CHECK(text);
	memcpy(text, data + 1, size);
	text[size] = '\0';
	switch (data[0] % 9) {
	case 0:
		check_stat(text, size);
		break;
	case 1:
		check_status(text);
		break;
	case 2:
		check_maps(text, size);
		break;
	case 3:
		check_environ(text, size);
		break;
	case 4:
		check_children(text);
		break;
	case 5:
		check_cgroup(text, size);
		break;
	case 6:
		check_mountinfo(text, size);
		break;
	case 7:
		check_values(text);
		break;
	default:
		check_rights(text, size);
	}
	free(text);
	return 0;
}
