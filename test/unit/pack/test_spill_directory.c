/* SPDX-License-Identifier: MIT */
/*
 * The directory for spilled segments on a disk: which directories the daemon accepts, which files
 * it removes in them, and that it removes nothing else.
 */
#include "test/unit/pack/spill.h"

/* ---- owners of the directories ---- */

#define RANDOM "-0123456789abcdef"

static void make(const char *name, const char *file)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", directory_on_disk, name);
	CHECK(!mkdir(path, 0700) || errno == EEXIST);
	if (!file)
		return;
	snprintf(path, sizeof(path), "%s/%s/1000", directory_on_disk, name);
	CHECK(!mkdir(path, 0700) || errno == EEXIST);
	snprintf(path, sizeof(path), "%s/%s/1000/%s", directory_on_disk, name, file);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && !close(fd));
}

static bool is_there(const char *name, const char *file)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s/%s", directory_on_disk, name, file);
	return !access(path, F_OK);
}

/*
 * At the start, segments of earlier boots of this machine are removed, and their directories once
 * empty. Directories of this boot, of other machines or with other names stay; without a machine
 * id, all stay.
 */
static void test_orphans(void)
{
	struct gcr_packs *packs = open_packs(UINT64_MAX);
	char home[PATH_MAX];
	char earlier[128], foreign[128], beside[128], wrong[128], mixed[128];
	bool has_machine;
	ssize_t length;

	length = readlinkat(store_fd, GCR_PACKS_NAME "/" GCR_SPILL_NAME, home, sizeof(home) - 1);
	CHECK(length > 0);
	home[length] = '\0';
	memmove(home, strrchr(home, '/') + 1, strlen(strrchr(home, '/')));
	/* Format: gpucrfs-<machine>-<boot>-<random> */
	CHECK(strlen(home) == 8 + 17 + 17 + 16 && home[24] == '-' && home[41] == '-');
	has_machine = strspn(home + 8, "0") < 16;
	snprintf(beside, sizeof(beside), "%s", home);
	memset(beside + 42, 'a', 16);
	snprintf(earlier, sizeof(earlier), "%s", beside);
	memset(earlier + 25, 'b', 16);
	snprintf(mixed, sizeof(mixed), "%s", earlier);
	mixed[50] = 'f';
	snprintf(foreign, sizeof(foreign), "%s", earlier);
	memset(foreign + 8, 'c', 16);
	snprintf(wrong, sizeof(wrong), "%s", earlier);
	wrong[50] = 'G';
	make(beside, "1" RANDOM);
	make(earlier, "1" RANDOM);
	make(earlier, "17" RANDOM);
	make(mixed, "1" RANDOM);
	make(mixed, "01" RANDOM);
	make(mixed, "1");
	make(mixed, "1" RANDOM "0");
	make(mixed, "letter");
	make(foreign, "1" RANDOM);
	make(wrong, "1" RANDOM);
	make("of somebody else", "1" RANDOM);
	/* In this daemon's own directory: a copy that no link names. The next start removes it. */
	make(home, "5" RANDOM);
	close_packs(packs);
	CHECK(!is_there(home, "") && is_there(earlier, "1000/1" RANDOM));
	packs = open_packs(UINT64_MAX);
	CHECK(is_there(beside, "1000/1" RANDOM) && is_there(foreign, "1000/1" RANDOM) &&
	      is_there(wrong, "1000/1" RANDOM));
	CHECK(is_there("of somebody else", "1000/1" RANDOM));
	CHECK(is_there(earlier, "") == !has_machine &&
	      is_there(mixed, "1000/1" RANDOM) == !has_machine);
	CHECK(is_there(mixed, "1000/01" RANDOM) && is_there(mixed, "1000/1") &&
	      is_there(mixed, "1000/1" RANDOM "0") && is_there(mixed, "1000/letter"));
	close_packs(packs);
	CHECK(!is_there(home, ""));
	snprintf(home, sizeof(home), "rm -r %s", directory_on_disk);
	CHECK(!system(home));
}

static void test_refused(void)
{
	struct gcr_spill_options options = {.path = directory_on_disk};
	struct gcr_error error;
	int fd;

	CHECK(!mkdir(directory_on_disk, 0700) && !chmod(directory_on_disk, 0770));
	CHECK(gcr_spill_open(store_fd, &options, &spill, &error) == -EPERM && *error.words);
	CHECK(!chmod(directory_on_disk, 0755) && !chown(directory_on_disk, 1000, 1000));
	CHECK(gcr_spill_open(store_fd, &options, &spill, &error) == -EPERM);
	CHECK(!rmdir(directory_on_disk));
	fd = open(directory_on_disk, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && !close(fd));
	CHECK(gcr_spill_open(store_fd, &options, &spill, &error) == -ENOTDIR);
	CHECK(!unlink(directory_on_disk));
	/* The directory does not exist; the daemon does not create it. */
	CHECK(gcr_spill_open(store_fd, &options, &spill, &error) == -ENOENT && *error.words);
	CHECK(access(directory_on_disk, F_OK) < 0);
	options.path = "/nowhere/at/all";
	CHECK(gcr_spill_open(store_fd, &options, &spill, &error) == -ENOENT && *error.words);
	/* A parent directory that is world-writable or belongs to another user is refused. */
	CHECK(!chmod(disk, 0777) && !mkdir(directory_on_disk, 0700));
	options.path = directory_on_disk;
	CHECK(gcr_spill_open(store_fd, &options, &spill, &error) == -EPERM && *error.words);
	CHECK(!chmod(disk, 0755) && !chown(disk, 1000, 1000));
	CHECK(gcr_spill_open(store_fd, &options, &spill, &error) == -EPERM && *error.words);
	CHECK(!chown(disk, 0, 0) && !rmdir(directory_on_disk));
	CHECK(faccessat(store_fd, GCR_PACKS_NAME, F_OK, 0) < 0);
}

/* Links that the daemon did not make are never followed, and their targets are never removed. */
static void test_links(void)
{
	char precious[64];
	char name[64];
	const char *const targets[] = {precious, "relative", "/"};
	int fd;

	snprintf(precious, sizeof(precious), "%s/precious", disk);
	fd = open(precious, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && !ftruncate(fd, GCR_PACK_SEGMENT_BYTES) && !close(fd));
	snprintf(name, sizeof(name), GCR_PACKS_NAME "/%u/7", USER);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(targets); i++) {
		struct gcr_packs *packs = open_packs(UINT64_MAX);

		CHECK(!symlinkat(targets[i], store_fd, name));
		gcr_packs_unref(packs);
		gcr_spill_close(TAKE_PTR(spill));
		packs = open_packs(UINT64_MAX);
		CHECK(figures(packs).segments == 1);
		gcr_packs_sweep(packs);
		CHECK(figures(packs).segments == 0);
		close_packs(packs);
		CHECK(!access(precious, F_OK));
	}
	CHECK(!unlink(precious));
	check_nothing();
}

static void leave_one(void)
{
	struct gcr_packs *packs = open_packs(UINT64_MAX);
	uint64_t bytes;

	CHECK(!add(packs, 0, &entries[0]) && !spill_segment(packs, entries[0].segment, &bytes));
	CHECK(!symlinkat("half", store_fd, GCR_PACKS_NAME "/." GCR_SPILL_NAME));
	CHECK(!add(packs, 1, &entries[1]));
}

/*
 * If the disk with segments is away (no directory, or an empty one in its place), the daemon starts
 * without spilling and creates nothing at that path.
 */
static void test_missing(void)
{
	const struct gcr_spill_options options = {.path = directory_on_disk,
						  .limit_bytes = UINT64_MAX};
	struct gcr_packs *packs;
	struct gcr_error error;
	char away[80];

	in_child(leave_one);
	snprintf(away, sizeof(away), "%s-away", directory_on_disk);
	CHECK(!rename(directory_on_disk, away));
	for (int is_there = 0; is_there < 2; is_there++) {
		struct gcr_packs_account account = {.take = count_take, .give = count_give};

		CHECK(!is_there || !mkdir(directory_on_disk, 0700));
		CHECK(!gcr_spill_open(store_fd, &options, &spill, &error));
		CHECK(!gcr_spill_is_on(spill));
		CHECK(faccessat(store_fd, GCR_PACKS_NAME "/." GCR_SPILL_NAME, F_OK,
				AT_SYMLINK_NOFOLLOW) < 0);
		account.spill = spill;
		CHECK(!gcr_packs_open(store_fd, USER, &account, &packs, &error));
		CHECK(!gcr_packs_claim(packs, &entries[0]) && !gcr_packs_claim(packs, &entries[1]));
		gcr_packs_sweep(packs);
		CHECK(read_chunk(packs, packer, &entries[0], 0) == -EIO);
		CHECK(!read_chunk(packs, packer, &entries[1], 1));
		close_packs(packs);
	}
	CHECK(!rmdir(directory_on_disk) && !rename(away, directory_on_disk));
	packs = open_packs(UINT64_MAX);
	CHECK(gcr_spill_is_on(spill));
	CHECK(!gcr_packs_claim(packs, &entries[0]) && !gcr_packs_claim(packs, &entries[1]));
	gcr_packs_sweep(packs);
	CHECK(!read_chunk(packs, packer, &entries[0], 0));
	gcr_packs_drop(packs, entries, 2);
	close_packs(packs);
	check_nothing();
}

/* The target of a link must belong to the daemon's user: a segment of another owner is not read. */
static void test_foreign(void)
{
	struct gcr_packs *packs;
	char path[PATH_MAX];

	in_child(leave_one);
	segment_path(entries[0].segment, path);
	CHECK(!chown(path, 1000, 1000));
	packs = open_packs(UINT64_MAX);
	CHECK(!gcr_packs_claim(packs, &entries[0]));
	gcr_packs_sweep(packs);
	CHECK(read_chunk(packs, packer, &entries[0], 0) == -EIO);
	gcr_packs_drop(packs, entries, 1);
	close_packs(packs);
	check_nothing();
}

int main(void)
{
	begin();
	test_orphans();
	test_refused();
	test_links();
	test_missing();
	test_foreign();
	end();
	return 0;
}
