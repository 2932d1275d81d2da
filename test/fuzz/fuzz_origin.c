/* SPDX-License-Identifier: MIT */
/*
 * The file `origin` of a place (the directory of a dumped process), as the daemon may find it after
 * a machine crash.
 */
#include "fs/image/place_origin.h"

#include <errno.h>
#include <string.h>

#include "test/fuzz/fuzz.h"

/* Checks that an accepted file is consistent, and unchanged after writing and reading. */
static void check_file(const struct gcr_place_origin_file *file)
{
	const struct gcr_place_origin *origin = &file->origin;
	const struct gcr_place_made *made = &file->made;
	struct gcr_place_origin_file again = {0};
	size_t bytes;
	char *text;

	CHECK(origin->pid >= 0 && made->root >= 0);
	CHECK(!origin->is_ending || !origin->is_staying);
	CHECK(origin->pid || (!origin->is_ending && !origin->is_staying));
	CHECK(!made->cgroup || (*made->cgroup == '/' && !strstr(made->cgroup, "/../")));
	CHECK(!made->cgroup || strlen(made->cgroup) < 3 ||
	      strcmp(made->cgroup + strlen(made->cgroup) - 3, "/..") != 0);
	CHECK(made->progress != GCR_PLACE_IDLE || !made->cgroup);

	CHECK(!gcr_place_origin_print(origin, made->progress == GCR_PLACE_IDLE ? NULL : made, &text,
				      &bytes));
	CHECK(!gcr_place_origin_parse(text, bytes, &again));
	CHECK(!memcmp(&again.origin, origin, sizeof(*origin)));
	CHECK(again.made.progress == made->progress && again.made.root == made->root &&
	      again.made.root_ticks == made->root_ticks &&
	      again.made.since_ticks == made->since_ticks);
	CHECK(!again.made.cgroup == !made->cgroup);
	CHECK(again.made.cgroup_inode == made->cgroup_inode);
	CHECK(made->cgroup || !made->cgroup_inode);
	CHECK(!made->cgroup || !strcmp(again.made.cgroup, made->cgroup));
	free(again.made.cgroup);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct gcr_place_origin_file file;
	char *text;
	int result;

	if (size >= GCR_PLACE_ORIGIN_BYTES_MAX)
		return 0;
	/* An exact-size copy, so that the sanitizer sees an overrun by one byte. */
	text = malloc(size + 1);
	CHECK(text);
	if (size)
		memcpy(text, data, size);
	text[size] = '\0';
	result = gcr_place_origin_parse(text, size, &file);
	CHECK(!result || result == -EIO);
	if (!result) {
		check_file(&file);
		free(file.made.cgroup);
	}
	free(text);
	return 0;
}
