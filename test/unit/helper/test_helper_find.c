/* SPDX-License-Identifier: MIT */
/* In which directory of a list gcr_helper_find() finds a program. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/helper/helper_process.h"
#include "lib/cleanup.h"
#include "test/unit/test.h"

/* Expects @path, or with NULL that no directory is left. In @list and @path, "@" is @top. */
static void expect(const char *top, const char *list, const char *path)
{
	char texts[2][1000] = {""};
	_cleanup_free_ char *found = NULL;
	struct gcr_error error = {0};
	int r;

	for (size_t i = 0; i < 2; i++)
		for (const char *from = i ? path : list; from && *from; from++) {
			size_t used = strlen(texts[i]);

			snprintf(texts[i] + used, sizeof(texts[i]) - used, "%.*s",
				 *from == '@' ? (int)strlen(top) : 1, *from == '@' ? top : from);
		}
	r = gcr_helper_find(texts[0], "program", &found, &error);
	CHECK(path ? r == 0 && !strcmp(found, texts[1])
		   : r == -EIO && strstr(error.words, "looked for in no directory"));
}

static void make_program(const char *directory)
{
	char path[1000];
	FILE *file;

	CHECK(mkdir(directory, 0700) == 0);
	snprintf(path, sizeof(path), "%s/program", directory);
	file = fopen(path, "w");
	CHECK(file && fclose(file) == 0 && chmod(path, 0700) == 0);
}

static void remove_program(const char *directory)
{
	char path[1000];

	snprintf(path, sizeof(path), "%s/program", directory);
	CHECK(remove(path) == 0 && remove(directory) == 0);
}

int main(void)
{
	char top[] = "/tmp/gpucr-test-find-XXXXXX";

	CHECK(mkdtemp(top) && chdir(top) == 0);
	make_program("a");
	make_program("b");
	CHECK(mkdir("c:", 0700) == 0);
	make_program("c:/none");

	expect(top, "@/a", "@/a/program");
	expect(top, "@/a:@/b", "@/a/program");
	expect(top, "@/none:@/b:@/a", "@/b/program");
	expect(top, "@/a/none:@/none", "@/none/program");
	/* The working directory is nobody's choice. */
	expect(top, "@/none:b", "@/none/program");
	expect(top, "b:@/a", "@/a/program");
	expect(top, "b", NULL);
	/* A list is no name of one directory, which another user could have made beside a good one.
	 */
	expect(top, "@/c:/none", "/none/program");

	remove_program("c:/none");
	remove_program("b");
	remove_program("a");
	CHECK(rmdir("c:") == 0 && rmdir(top) == 0);
	return 0;
}
