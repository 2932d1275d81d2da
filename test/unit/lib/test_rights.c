/* SPDX-License-Identifier: MIT */
/*
 * The files that another user may read, as root determines and applies his rights; only root can
 * run this test.
 */
#include "lib/rights.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/file_identity.h"
#include "test/unit/test.h"

#define USER 4001

static char directory[] = "/tmp/gcr-rights-XXXXXX";
static gid_t groups[] = {4003};
static const struct gcr_file_rights user = {
	.uid = USER, .gid = USER, .groups = groups, .groups_count = 1};

static const struct {
	const char *name;
	uid_t uid;
	gid_t gid;
	mode_t mode;
	bool is_readable;
} files[] = {
	{"roots", 0, 0, 0600, false},		{"for-all", 0, 0, 0604, true},
	{"groups", 0, USER, 0640, true},	{"other-groups", 0, 4003, 0640, true},
	{"strangers-group", 0, 0, 0640, false}, {"own", USER, USER, 0600, true},
	{"own-closed", USER, 0, 0000, true},	{"strangers", 4002, 4002, 0600, false},
};

static void make_files(void)
{
	CHECK(mkdtemp(directory) && !chmod(directory, 0711) && !chdir(directory));
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		int fd = open(files[i].name, O_WRONLY | O_CREAT | O_EXCL, 0600);

		CHECK(fd >= 0 && write(fd, "secret", 6) == 6);
		CHECK(!fchown(fd, files[i].uid, files[i].gid) && !fchmod(fd, files[i].mode));
		close(fd);
	}
	CHECK(!mkdir("closed", 0700) && !symlink("../for-all", "closed/link"));
}

static void test_questions(void)
{
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		int fd = open(files[i].name, O_PATH | O_CLOEXEC);

		CHECK(fd >= 0 && gcr_file_rights_read_fd(&user, fd) == files[i].is_readable);
		close(fd);
		CHECK(gcr_file_rights_find(&user, files[i].name) == 1);
	}
	CHECK(gcr_file_rights_find(&user, "closed/link") == 0);
	CHECK(gcr_file_rights_find(&user, "nothing") == -ENOENT);
}

/* Making digests for a reader reveals nothing of a file that he could not read. */
static void test_identities(void)
{
	const struct gcr_identity_options options = {.threads = 2, .rights = &user};
	struct gcr_error error;

	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		char path[64];
		struct gcr_file_identity file = {.path = path};
		int result;

		snprintf(path, sizeof(path), "%s/%s", directory, files[i].name);
		result = gcr_file_identities_make(&file, 1, &options, &error);
		CHECK(result == (files[i].is_readable ? 0 : -EACCES));
		CHECK(file.bytes == (files[i].is_readable ? 6 : 0));
	}
}

static void test_ours_again(void)
{
	struct gcr_file_rights *before, *after, *taken;

	CHECK(!gcr_file_rights_of(getpid(), &before) && !gcr_file_rights_take(&user, &taken));
	CHECK(open("roots", O_RDONLY | O_CLOEXEC) < 0 && errno == EACCES);
	gcr_file_rights_give_back(taken);
	CHECK(!gcr_file_rights_of(getpid(), &after));
	CHECK(before->uid == after->uid && before->gid == after->gid);
	CHECK(before->groups_count == after->groups_count);
	for (size_t i = 0; i < before->groups_count; i++)
		CHECK(before->groups[i] == after->groups[i]);
	gcr_file_rights_destroy(before);
	gcr_file_rights_destroy(after);
	CHECK(!close(open("roots", O_RDONLY | O_CLOEXEC)));
}

int main(void)
{
	if (geteuid())
		SKIP("only root has others' rights");
	make_files();
	test_questions();
	test_identities();
	test_ours_again();
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
		CHECK(!unlink(files[i].name));
	CHECK(!unlink("closed/link") && !rmdir("closed") && !rmdir(directory));
	return 0;
}
