/* SPDX-License-Identifier: MIT */
/* In which directory of a list gcr_helper_find() finds a program. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/helper/helper_process.h"
#include "lib/cleanup.h"
#include "test/unit/test.h"

/*
 * Expects @path of the program @name, or with NULL an error with these words. In @list, @path and
 * @words, "@" is @top.
 */
static void expect_of(const char *top, const char *list, const char *name, const char *path,
		      const char *words)
{
	const char *const from_texts[] = {list, path, words};
	char texts[3][1000] = {""};
	_cleanup_free_ char *found = NULL;
	struct gcr_error error = {0};
	int r;

	for (size_t i = 0; i < 3; i++)
		for (const char *from = from_texts[i]; from && *from; from++) {
			size_t used = strlen(texts[i]);

			snprintf(texts[i] + used, sizeof(texts[i]) - used, "%.*s",
				 *from == '@' ? (int)strlen(top) : 1, *from == '@' ? top : from);
		}
	r = gcr_helper_find(texts[0], name, &found, &error);
	CHECK(path ? r == 0 && !strcmp(found, texts[1])
		   : r == -EIO && !found && strstr(error.words, texts[2]));
}

static void expect(const char *top, const char *list, const char *path)
{
	expect_of(top, list, "program", path, "looked for in no directory");
}

static void make_file(const char *directory, const char *name, mode_t mode)
{
	char path[1000];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	file = fopen(path, "w");
	CHECK(file && fclose(file) == 0 && chmod(path, mode) == 0);
}

static void make_program(const char *directory)
{
	CHECK(mkdir(directory, 0700) == 0);
	make_file(directory, "program", 0700);
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
	expect_of(top, "@/a/none:@/none", "program", NULL,
		  "@/none/program cannot be started: No such");
	/* The working directory is nobody's choice. */
	expect_of(top, "@/none:b", "program", NULL, "@/none/program cannot be started: No such");
	expect(top, "b:@/a", "@/a/program");
	expect(top, "b", NULL);
	/* A list is no name of one directory, which another user could have made beside a good one.
	 */
	expect_of(top, "@/c:/none", "program", NULL, "/none/program cannot be started: No such");

	/* A library need not be executable, and a program has to be. */
	make_file("a", "library.so", 0400);
	expect_of(top, "@/a:@/b", "library.so", "@/a/library.so", NULL);
	expect_of(top, "@/b", "library.so", NULL, "@/b/library.so cannot be loaded: No such");
	CHECK(remove("a/library.so") == 0);
	make_file("b", "text", 0400);
	expect_of(top, "@/a:@/b", "text", NULL, "@/b/text cannot be started: Permission denied");
	CHECK(remove("b/text") == 0);

	remove_program("c:/none");
	remove_program("b");
	remove_program("a");
	CHECK(rmdir("c:") == 0 && rmdir(top) == 0);
	return 0;
}
