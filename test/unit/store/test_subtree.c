/* SPDX-License-Identifier: MIT */
/*
 * Subtrees (the directory tree of a snapshot): the numbers under which items are known, and what
 * happens to open items.
 */
#include "fs/store/subtree_private.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "fs/base/access.h"
#include "fs/store/inodes.h"
#include "fs/store/store.h"
#include "test/unit/test.h"

#define SOMEBODY 65533

static char directory[64];
static struct gcr_subtree *subtree;

static void start(void)
{
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	CHECK(fd >= 0);
	CHECK(!gcr_subtree_create(&(struct gcr_subtree_config){.root_fd = fd}, &subtree));
	close(fd);
}

static uint32_t make_directory(uint32_t parent, const char *name)
{
	struct gcr_subtree_entry entry;

	CHECK(!gcr_subtree_mkdir(subtree, parent, name, 0755, geteuid(), getegid(), &entry));
	CHECK(S_ISDIR(entry.stat.st_mode) && (entry.stat.st_mode & 07777) == 0755);
	return entry.item;
}

static struct gcr_subtree_file *make_file(uint32_t parent, const char *name, uint32_t *ret_item)
{
	struct gcr_subtree_entry entry;
	struct gcr_subtree_file *file;

	CHECK(!gcr_subtree_create_file(subtree, parent, name, O_RDWR, 0640, geteuid(), getegid(),
				       &entry, &file));
	*ret_item = entry.item;
	return file;
}

static uint32_t look_up(uint32_t parent, const char *name)
{
	struct gcr_subtree_entry entry;

	CHECK(!gcr_subtree_lookup(subtree, parent, name, &entry));
	return entry.item;
}

static int lookup_error(uint32_t parent, const char *name)
{
	struct gcr_subtree_entry entry;

	return gcr_subtree_lookup(subtree, parent, name, &entry);
}

/*
 * An item is known until it has been forgotten as often as it was looked up; so is its parent while
 * an item below is known.
 */
static void test_forget(void)
{
	struct gcr_subtree_entry entry;
	uint32_t above;
	uint32_t below;
	uint64_t generation;

	start();
	above = make_directory(GCR_SUBTREE_ROOT, "above");
	below = make_directory(above, "below");
	CHECK(look_up(GCR_SUBTREE_ROOT, "above") == above && look_up(above, "below") == below);
	CHECK(subtree->named_count == 2);
	gcr_subtree_forget(subtree, above, 2);
	CHECK(subtree->named_count == 2 && !gcr_subtree_stat(subtree, below, &entry.stat));
	gcr_subtree_forget(subtree, below, 1);
	CHECK(subtree->named_count == 2);
	CHECK(!gcr_subtree_lookup(subtree, above, "below", &entry) && entry.item == below);
	generation = entry.generation;
	gcr_subtree_forget(subtree, below, 5); /* more lookups than were made */
	CHECK(subtree->named_count == 0);
	CHECK(gcr_subtree_stat(subtree, below, &entry.stat) == -ESTALE);
	CHECK(lookup_error(above, "below") == -ESTALE);
	gcr_subtree_forget(subtree, below, 1);
	gcr_subtree_forget(subtree, 123456, 1);
	gcr_subtree_forget(subtree, GCR_SUBTREE_ROOT, 10);
	/* An item number that is used again has another generation. */
	CHECK(!gcr_subtree_lookup(subtree, GCR_SUBTREE_ROOT, "above", &entry));
	above = entry.item;
	CHECK(!gcr_subtree_lookup(subtree, above, "below", &entry));
	CHECK(entry.item != below || entry.generation > generation);
	CHECK(!gcr_subtree_remove(subtree, above, "below", true));
	CHECK(!gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, "above", true));
	gcr_subtree_unref(TAKE_PTR(subtree));
}

/* Names below a directory that is renamed, and two directories that are exchanged. */
static void test_rename(void)
{
	struct stat stat;
	uint32_t one, two, file_item, other_item;
	struct gcr_subtree_file *file;
	struct gcr_subtree_file *other;

	start();
	one = make_directory(GCR_SUBTREE_ROOT, "one");
	two = make_directory(GCR_SUBTREE_ROOT, "two");
	file = make_file(one, "file", &file_item);
	gcr_subtree_close(file);
	CHECK(!gcr_subtree_rename(subtree, GCR_SUBTREE_ROOT, "one", two, "moved", 0));
	CHECK(look_up(two, "moved") == one && look_up(one, "file") == file_item);
	CHECK(lookup_error(GCR_SUBTREE_ROOT, "one") == -ENOENT);
	CHECK(!gcr_subtree_stat(subtree, file_item, &stat));
	CHECK(gcr_subtree_rename(subtree, GCR_SUBTREE_ROOT, "two", one, "x", 0) == -EINVAL);
	other = make_file(GCR_SUBTREE_ROOT, "other", &other_item);
	CHECK(gcr_subtree_rename(subtree, one, "file", GCR_SUBTREE_ROOT, "other",
				 RENAME_NOREPLACE) == -EEXIST);
	CHECK(gcr_subtree_rename(subtree, one, "file", GCR_SUBTREE_ROOT, "other", 4) == -EINVAL);
	CHECK(!gcr_subtree_rename(subtree, one, "file", GCR_SUBTREE_ROOT, "other",
				  RENAME_EXCHANGE));
	CHECK(look_up(one, "file") == other_item);
	CHECK(look_up(GCR_SUBTREE_ROOT, "other") == file_item);
	/* Rename onto an open file: the replaced file stays usable without a name. */
	CHECK(gcr_subtree_write(other, "bytes", 5, 0) == 5);
	CHECK(!gcr_subtree_rename(subtree, GCR_SUBTREE_ROOT, "other", one, "file", 0));
	CHECK(look_up(one, "file") == file_item);
	CHECK(!gcr_subtree_stat(subtree, other_item, &stat) && stat.st_size == 5 && !stat.st_nlink);
	gcr_subtree_close(other);
	/* The item exists as long as the kernel knows the number. */
	CHECK(!gcr_subtree_stat(subtree, other_item, &stat) && stat.st_size == 5 && !stat.st_nlink);
	gcr_subtree_forget(subtree, other_item, UINT64_MAX);
	CHECK(gcr_subtree_stat(subtree, other_item, &stat) == -ESTALE);
	CHECK(!gcr_subtree_remove(subtree, one, "file", false));
	CHECK(gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, "two", true) == -ENOTEMPTY);
	CHECK(!gcr_subtree_remove(subtree, two, "moved", true));
	CHECK(!gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, "two", true));
	CHECK(lookup_error(one, "file") == -ESTALE);
	gcr_subtree_unref(TAKE_PTR(subtree));
}

/*
 * The depth below an unreadable directory is not known, so the rename is refused; root can read all
 * directories.
 */
static void test_depth(void)
{
	uint32_t items[GCR_STORE_DEPTH_MAX];
	uint32_t last = GCR_SUBTREE_ROOT;
	struct gcr_subtree_entry entry;
	uint32_t other, closed;

	start();
	for (int i = 0; i < GCR_STORE_DEPTH_MAX; i++)
		last = items[i] = make_directory(last, "x");
	CHECK(gcr_subtree_mkdir(subtree, last, "x", 0755, geteuid(), getegid(), &entry) ==
	      -ENAMETOOLONG);
	other = make_directory(GCR_SUBTREE_ROOT, "other");
	closed = make_directory(other, "closed");
	make_directory(closed, "below");
	CHECK(gcr_subtree_rename(subtree, GCR_SUBTREE_ROOT, "other", items[29], "x2", 0) ==
	      -ENAMETOOLONG);
	CHECK(!fchmodat(subtree->root_fd, "other/closed", 0, 0));
	CHECK(gcr_subtree_rename(subtree, GCR_SUBTREE_ROOT, "other", items[29], "x2", 0) ==
	      (geteuid() ? -EACCES : -ENAMETOOLONG));
	CHECK(!fchmodat(subtree->root_fd, "other/closed", 0700, 0));
	CHECK(!gcr_subtree_rename(subtree, GCR_SUBTREE_ROOT, "other", items[28], "x2", 0));
	gcr_subtree_unref(TAKE_PTR(subtree));
}

/* The item number may be forgotten before the file is closed, and the name may be used again. */
static void test_unlink_while_open(void)
{
	struct gcr_subtree_attributes attributes = {
		.has_mode = true,
		.mode = 0604,
		.uid = (uid_t)-1,
		.gid = (gid_t)-1,
		.times = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 77}},
	};
	struct gcr_subtree_file *first;
	struct gcr_subtree_file *second;
	struct stat stat;
	uint32_t item;
	uint32_t again;

	start();
	first = make_file(GCR_SUBTREE_ROOT, "file", &item);
	CHECK(gcr_subtree_write(first, "first", 5, 0) == 5);
	CHECK(!gcr_subtree_stat(subtree, item, &stat));
	CHECK(gcr_subtree_has_open(subtree, stat.st_ino));
	CHECK(!gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, "file", false));
	second = make_file(GCR_SUBTREE_ROOT, "file", &again);
	CHECK(again != item);
	CHECK(!gcr_subtree_set(subtree, item, &attributes));
	CHECK(!gcr_subtree_stat(subtree, item, &stat) && (stat.st_mode & 07777) == 0604);
	CHECK(stat.st_size == 5 && stat.st_mtim.tv_sec == 77);
	gcr_subtree_forget(subtree, item, 1);
	gcr_subtree_forget(subtree, again, 1);
	again = look_up(GCR_SUBTREE_ROOT, "file");
	CHECK(!gcr_subtree_stat(subtree, again, &stat) && stat.st_size == 0);
	CHECK(gcr_subtree_has_open(subtree, stat.st_ino));
	CHECK(gcr_subtree_write(first, "1", 1, 4) == 1 &&
	      gcr_subtree_write(second, "2", 1, 0) == 1);
	gcr_subtree_close(first);
	gcr_subtree_close(second);
	CHECK(!gcr_subtree_has_open(subtree, stat.st_ino));
	CHECK(!gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, "file", false));
	gcr_subtree_unref(TAKE_PTR(subtree));
}

/*
 * Only one descriptor is left, too few to examine an item before its removal: nothing is removed.
 */
static void test_few_descriptors(void)
{
	struct rlimit limit, few;
	uint32_t item;
	int last;

	start();
	gcr_subtree_close(make_file(GCR_SUBTREE_ROOT, "file", &item));
	gcr_subtree_close(make_file(GCR_SUBTREE_ROOT, "other", &item));
	last = dup(0);
	CHECK(last >= 0 && !close(last) && !getrlimit(RLIMIT_NOFILE, &limit));
	few = (struct rlimit){.rlim_cur = (rlim_t)last + 1, .rlim_max = limit.rlim_max};
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	CHECK(gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, "file", false) == -EMFILE);
	CHECK(gcr_subtree_rename(subtree, GCR_SUBTREE_ROOT, "other", GCR_SUBTREE_ROOT, "file", 0) ==
	      -EMFILE);
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	CHECK(look_up(GCR_SUBTREE_ROOT, "file") != look_up(GCR_SUBTREE_ROOT, "other"));
	CHECK(!gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, "file", false));
	CHECK(!gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, "other", false));
	gcr_subtree_unref(TAKE_PTR(subtree));
}

/* Replaces the C library's function: a process may have four mappings. */
FILE *fopen(const char *path, const char *mode)
{
	static char four[] = "4";

	CHECK(!strcmp(path, "/proc/sys/vm/max_map_count"));
	return fmemopen(four, strlen(four), mode);
}

static bool is_read_from_mapping(struct gcr_subtree_file *file)
{
	struct gcr_subtree_bytes bytes;
	bool is;

	CHECK(!gcr_subtree_read(file, 0, 4, &bytes) && bytes.size == 4);
	CHECK(!memcmp(bytes.bytes, "text", 4));
	is = !bytes.buffer;
	gcr_subtree_read_done(file, &bytes);
	return is;
}

/* All files together use half of the mappings; a file without a mapping is still readable. */
static void test_few_mappings(void)
{
	struct gcr_subtree_file *files[4];
	uint32_t item;

	start();
	for (int i = 0; i < 4; i++) {
		char name[] = {(char)('a' + i), '\0'};

		files[i] = make_file(GCR_SUBTREE_ROOT, name, &item);
		CHECK(gcr_subtree_write(files[i], "text", 4, 0) == 4);
		gcr_subtree_close(files[i]);
		CHECK(!gcr_subtree_open(subtree, item, O_RDONLY, &files[i]));
		CHECK(is_read_from_mapping(files[i]) == (i < 2));
	}
	gcr_subtree_close(files[0]);
	CHECK(!gcr_subtree_open(subtree, item, O_RDONLY, &files[0]));
	gcr_subtree_close(files[3]);
	CHECK(!is_read_from_mapping(files[0])); /* same file as files[3], already looked at */
	gcr_subtree_close(files[0]);
	CHECK(!gcr_subtree_open(subtree, item, O_RDONLY, &files[0]));
	CHECK(is_read_from_mapping(files[0]) && is_read_from_mapping(files[1]));
	CHECK(!is_read_from_mapping(files[2]));
	for (int i = 0; i < 3; i++)
		gcr_subtree_close(files[i]);
	gcr_subtree_unref(TAKE_PTR(subtree));
}

#define MANY 5000

static void test_many(void)
{
	struct gcr_subtree_file *file;
	uint32_t items[MANY];
	char name[32];

	start();
	for (uint32_t i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "file-%u", i);
		file = make_file(GCR_SUBTREE_ROOT, name, &items[i]);
		gcr_subtree_close(file);
	}
	for (uint32_t i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "file-%u", i);
		CHECK(look_up(GCR_SUBTREE_ROOT, name) == items[i]);
		CHECK(!gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, name, false));
		gcr_subtree_forget(subtree, items[i], 2);
	}
	CHECK(subtree->named_count == 0 && !subtree->items[GCR_SUBTREE_ROOT].children);
	gcr_subtree_unref(TAKE_PTR(subtree));
}

/* A file that is open for writing when a verb begins is not writable afterwards. */
static void test_verbs(void)
{
	struct gcr_subtree_file *before;
	struct gcr_subtree_file *after;
	struct gcr_subtree_bytes bytes;
	uint32_t item;

	start();
	CHECK(!gcr_subtree_is_touched(subtree));
	before = make_file(GCR_SUBTREE_ROOT, "file", &item);
	CHECK(gcr_subtree_is_touched(subtree));
	CHECK(gcr_subtree_write(before, "before", 6, 0) == 6);
	gcr_subtree_begin_verb(subtree);
	gcr_subtree_begin_verb(subtree);
	CHECK(gcr_subtree_write(before, "x", 1, 0) == -EBUSY);
	gcr_subtree_end_verb(subtree);
	CHECK(gcr_subtree_open(subtree, item, O_WRONLY, &after) == -EBUSY);
	CHECK(gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, "file", false) == -EBUSY);
	gcr_subtree_end_verb(subtree);
	CHECK(gcr_subtree_write(before, "x", 1, 0) == -EBUSY);
	CHECK(gcr_subtree_truncate(before, 0) == -EBUSY);
	CHECK(gcr_subtree_allocate(before, 0, 0, 100) == -EBUSY);
	CHECK(!gcr_subtree_open(subtree, item, O_RDWR | O_APPEND, &after));
	CHECK(gcr_subtree_write(after, " and after", 10, 0) == 10);
	CHECK(!gcr_subtree_read(before, 0, 100, &bytes));
	CHECK(bytes.size == 16 && !memcmp(bytes.bytes, "before and after", 16));
	gcr_subtree_read_done(before, &bytes);
	gcr_subtree_retire(subtree);
	CHECK(gcr_subtree_write(after, "x", 1, 0) == -ESTALE);
	CHECK(lookup_error(GCR_SUBTREE_ROOT, "file") == -ESTALE);
	gcr_subtree_close(after);
	gcr_subtree_close(before);
	gcr_subtree_unref(TAKE_PTR(subtree));
}

/*
 * A user's open that comes after root's change of owner or mode has no more rights than the file
 * gives now, however long the open has waited.
 */
static void test_taken_away(void)
{
	const struct gcr_access user = {.uid = SOMEBODY, .gid = SOMEBODY};
	const struct gcr_access root = {.pid = getpid()};
	struct gcr_subtree_bytes bytes;
	struct gcr_subtree_attributes roots = {
		.is_by_root = true, .times = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}}};
	struct gcr_subtree_file *file;
	uint32_t item;

	if (geteuid())
		return;
	start();
	gcr_subtree_close(make_file(GCR_SUBTREE_ROOT, "taken", &item));
	roots.uid = roots.gid = SOMEBODY;
	CHECK(!gcr_subtree_set(subtree, item, &roots));
	CHECK(!gcr_subtree_open_as(subtree, item, O_RDWR, &user, &file));
	CHECK(gcr_subtree_write(file, "his", 3, 0) == 3);
	roots.uid = roots.gid = 0;
	CHECK(!gcr_subtree_set(subtree, item, &roots));
	CHECK(gcr_subtree_write(file, "x", 1, 0) == -EPERM);
	gcr_subtree_close(file);
	/* The kernel has permitted these, before root's change. */
	for (int flags = O_RDONLY; flags <= O_RDWR; flags++)
		CHECK(gcr_subtree_open_as(subtree, item, flags, &user, &file) == -EACCES);
	CHECK(gcr_subtree_open_as(subtree, item, O_RDONLY | O_TRUNC, &user, &file) == -EACCES);
	CHECK(gcr_subtree_open_as(subtree, item, O_WRONLY | O_TRUNC, &user, &file) == -EACCES);
	CHECK(!gcr_subtree_open_as(subtree, item, O_RDWR, &root, &file));
	CHECK(!gcr_subtree_read(file, 0, 100, &bytes));
	CHECK(bytes.size == 3 && !memcmp(bytes.bytes, "his", 3));
	gcr_subtree_read_done(file, &bytes);
	CHECK(gcr_subtree_write(file, "x", 1, 0) == 1);
	gcr_subtree_close(file);
	gcr_subtree_unref(TAKE_PTR(subtree));
}

/*
 * A directory that takes long to walk can be renamed only within its parent, not moved elsewhere.
 */
static void test_move_of_many(void)
{
	uint32_t many, other;
	char name[32];

	start();
	many = make_directory(GCR_SUBTREE_ROOT, "many");
	other = make_directory(GCR_SUBTREE_ROOT, "elsewhere");
	for (int i = 0; i < 80; i++) {
		snprintf(name, sizeof(name), "many/%d", i);
		CHECK(!mkdirat(subtree->root_fd, name, 0700));
	}
	CHECK(gcr_subtree_rename(subtree, GCR_SUBTREE_ROOT, "many", other, "many", 0) == -EXDEV);
	CHECK(gcr_subtree_rename(subtree, other, "many", GCR_SUBTREE_ROOT, "many",
				 RENAME_EXCHANGE) == -EXDEV);
	CHECK(!gcr_subtree_rename(subtree, GCR_SUBTREE_ROOT, "many", GCR_SUBTREE_ROOT, "more", 0));
	for (int i = 50; i < 80; i++) {
		snprintf(name, sizeof(name), "more/%d", i);
		CHECK(!unlinkat(subtree->root_fd, name, AT_REMOVEDIR));
	}
	CHECK(!gcr_subtree_rename(subtree, GCR_SUBTREE_ROOT, "more", other, "many", 0));
	CHECK(look_up(other, "many") == many);
	for (int i = 0; i < 1100; i++) {
		int fd;

		snprintf(name, sizeof(name), "elsewhere/many/0/%d", i);
		fd = openat(subtree->root_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		CHECK(fd >= 0 && !close(fd));
	}
	CHECK(gcr_subtree_rename(subtree, other, "many", GCR_SUBTREE_ROOT, "many", 0) == -EXDEV);
	gcr_subtree_unref(TAKE_PTR(subtree));
}

static uint32_t other_number(void)
{
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct gcr_subtree *other;
	uint32_t number;

	CHECK(fd >= 0);
	CHECK(!gcr_subtree_create(&(struct gcr_subtree_config){.root_fd = fd}, &other));
	close(fd);
	number = gcr_subtree_number(other);
	gcr_subtree_unref(other);
	return number;
}

/*
 * A number that has gone round is not given to another subtree as long as the kernel knows items
 * under it, and an item of that subtree has another generation.
 */
static void test_numbers(void)
{
	struct gcr_subtree_entry before, after;
	uint32_t number;

	start();
	number = gcr_subtree_number(subtree);
	make_directory(GCR_SUBTREE_ROOT, "known");
	CHECK(!gcr_subtree_lookup(subtree, GCR_SUBTREE_ROOT, "known", &before));
	gcr_subtree_set_last_number(number - 1);
	CHECK(other_number() != number); /* it exists */
	gcr_subtree_unref(subtree);
	/* Two look-ups are known. */
	gcr_subtree_set_last_number(number - 1);
	CHECK(other_number() != number);
	gcr_subtree_forget_of(number, before.item, 1);
	gcr_subtree_set_last_number(number - 1);
	CHECK(other_number() != number);
	gcr_subtree_forget_of(number, before.item, 1);
	gcr_subtree_forget_of(number, before.item, 1); /* of nothing */
	gcr_subtree_set_last_number(number - 1);
	start();
	CHECK(gcr_subtree_number(subtree) == number);
	CHECK(!gcr_subtree_lookup(subtree, GCR_SUBTREE_ROOT, "known", &after));
	CHECK(after.item == before.item && after.generation != before.generation);
	gcr_subtree_forget_of(number, after.item, 1);
	CHECK(!gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, "known", true));
	gcr_subtree_unref(subtree);
	/* Nothing is known of it any more. */
	gcr_subtree_set_last_number(number - 1);
	CHECK(other_number() == number);
}

#define APPENDS 10000

static void *append_often(void *item)
{
	static atomic_uint_least64_t offset;

	for (size_t i = 0; i < APPENDS; i++) {
		struct gcr_subtree_file *file;

		CHECK(!gcr_subtree_open(subtree, *(uint32_t *)item, O_RDWR, &file));
		CHECK(gcr_subtree_write(file, "x", 1, atomic_fetch_add(&offset, 1)) == 1);
		gcr_subtree_close(file);
	}
	return NULL;
}

/* A file that one thread closes and another one opens is not taken for one of two subtrees. */
static void test_closed_and_opened(void)
{
	pthread_t threads[3];
	uint32_t item;

	start();
	gcr_subtree_close(make_file(GCR_SUBTREE_ROOT, "appended", &item));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(threads); i++)
		CHECK(!pthread_create(&threads[i], NULL, append_often, &item));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(threads); i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(!gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, "appended", false));
	gcr_subtree_forget(subtree, item, UINT64_MAX);
	gcr_subtree_unref(TAKE_PTR(subtree));
}

/* A subtree that is closing a file counts as a holder of the file, and not as a user of it. */
static void test_leave(void)
{
	const struct gcr_inodes_bytes none = {0};
	bool was_passed;
	struct stat stat;
	uint32_t item;
	int fd;

	start();
	gcr_subtree_close(make_file(GCR_SUBTREE_ROOT, "appended", &item));
	fd = gcr_subtree_open_item(subtree, item, O_RDWR);
	CHECK(fd >= 0 && !fstat(fd, &stat));
	CHECK(!gcr_inodes_open(fd) && !gcr_inodes_open(fd));
	CHECK(gcr_inodes_subtrees(&stat) == 2 && gcr_inodes_holders(&stat) == 2);
	CHECK(gcr_inodes_pass(&stat, &was_passed) == -EBUSY);
	gcr_inodes_leave(fd);
	CHECK(gcr_inodes_subtrees(&stat) == 1 && gcr_inodes_holders(&stat) == 2);
	CHECK(!gcr_inodes_pass(&stat, &was_passed) && !was_passed);
	gcr_inodes_unpass(&stat);
	gcr_inodes_close(fd, &none);
	CHECK(gcr_inodes_subtrees(&stat) == 1 && gcr_inodes_holders(&stat) == 1);
	gcr_inodes_leave(fd);
	gcr_inodes_close(fd, &none);
	CHECK(gcr_inodes_holders(&stat) == 0 && !gcr_inodes_is_known(&stat));
	close(fd);
	CHECK(!gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, "appended", false));
	gcr_subtree_forget(subtree, item, UINT64_MAX);
	gcr_subtree_unref(TAKE_PTR(subtree));
}

/* A table of very many items is small again when the kernel knows none of them any more. */
static void test_shrink(void)
{
	static uint32_t items[3000];
	char name[16];

	start();
	for (int turn = 0; turn < 2; turn++) {
		for (size_t i = 0; i < GCR_ARRAY_SIZE(items); i++) {
			snprintf(name, sizeof(name), "%zu", i);
			items[i] = make_directory(GCR_SUBTREE_ROOT, name);
		}
		CHECK(subtree->items_count > GCR_ARRAY_SIZE(items));
		for (size_t i = 0; i < GCR_ARRAY_SIZE(items); i++) {
			CHECK(look_up(GCR_SUBTREE_ROOT, name) == items[GCR_ARRAY_SIZE(items) - 1]);
			gcr_subtree_forget(subtree, items[i], 1);
		}
		CHECK(subtree->items_count > GCR_ARRAY_SIZE(items));
		gcr_subtree_forget(subtree, items[GCR_ARRAY_SIZE(items) - 1], UINT64_MAX);
		CHECK(subtree->items_count == 1 && !subtree->lookups);
		for (size_t i = 0; i < GCR_ARRAY_SIZE(items); i++) {
			snprintf(name, sizeof(name), "%zu", i);
			CHECK(!gcr_subtree_remove(subtree, GCR_SUBTREE_ROOT, name, true));
		}
		CHECK(lookup_error(GCR_SUBTREE_ROOT, name) == -ENOENT);
	}
	gcr_subtree_unref(TAKE_PTR(subtree));
}

#define PART (2u << 20)

static bool is_first_time(void *data)
{
	return !(*(int *)data)++;
}

/* Zeros are written over data; holes stay, and so does what is before and after the range. */
static void test_zeros(void)
{
	static char bytes[PART];
	int fd = memfd_create("zeros", MFD_CLOEXEC);
	int times = 0;
	const struct gcr_wanted once = {is_first_time, &times};
	struct stat before, after;

	CHECK(fd >= 0 && !ftruncate(fd, 4 * PART));
	memset(bytes, 'x', sizeof(bytes));
	CHECK(pwrite(fd, bytes, PART, PART) == PART && pwrite(fd, bytes, PART, 3 * PART) == PART);
	CHECK(!fstat(fd, &before));
	CHECK(gcr_store_write_zeros(fd, 0, 4 * PART, &once) == -EBUSY && times == 2);
	CHECK(!gcr_store_write_zeros(fd, 0, 3 * PART + 5, NULL));
	CHECK(!gcr_store_write_zeros(fd, 8 * PART, 9 * PART, NULL));
	CHECK(!fstat(fd, &after) && after.st_blocks == before.st_blocks);
	CHECK(after.st_size == 4 * PART && lseek(fd, 2 * PART, SEEK_DATA) == 3 * PART);
	CHECK(pread(fd, bytes, PART, PART) == PART && !bytes[0] && !bytes[PART - 1]);
	CHECK(pread(fd, bytes, PART, 3 * PART) == PART && !bytes[4] && bytes[5] == 'x');
	CHECK(gcr_store_write_zeros(-1, 0, 1, NULL) == -EBADF);
	close(fd);
}

int main(void)
{
	char command[128];

	snprintf(directory, sizeof(directory), "/dev/shm/gcr-subtree-XXXXXX");
	CHECK(mkdtemp(directory));
	test_numbers();
	test_forget();
	test_rename();
	test_unlink_while_open();
	test_few_descriptors();
	test_few_mappings();
	test_many();
	test_verbs();
	test_taken_away();
	test_depth();
	test_move_of_many();
	test_closed_and_opened();
	test_leave();
	test_zeros();
	test_shrink();
	snprintf(command, sizeof(command), "rm -r %s", directory);
	CHECK(!system(command));
	return 0;
}
