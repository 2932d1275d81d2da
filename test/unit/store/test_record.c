/* SPDX-License-Identifier: MIT */
/*
 * fs/store/record.c: a written record reads back the same, and a record that was tampered with is
 * rejected.
 */
#include "fs/store/record.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "test/unit/test.h"

static char directory[] = "/tmp/gcr-record-XXXXXX";
static int directory_fd;

static struct gcr_record sample(pid_t pid)
{
	struct gcr_record record = {
		.pid = pid,
		.start_ticks = 987654321,
		.state = GCR_RECORD_FREEZING,
		.generation = "0f8fad5b-d9cb-469f-a165-70867728950e",
		.engine = "driver",
		.since_usec = 1700000000000000,
		.gpus_count = 2,
		.comm = "a b%\n\xff) \x01",
	};

	for (uint32_t gpu = 0; gpu < record.gpus_count; gpu++) {
		for (size_t i = 0; i < GCR_UUID_BYTES; i++)
			record.gpus[gpu].uuid[i] = (uint8_t)(gpu * 16 + i * 15);
		record.gpus[gpu].bytes = UINT64_MAX - gpu;
	}
	return record;
}

struct seen {
	struct gcr_record last;
	unsigned int count;
	unsigned int unreadable;
	int error;
	char name[256];
};

static int see(const struct gcr_record *record, void *data)
{
	struct seen *seen = data;

	seen->last = *record;
	seen->count++;
	return 0;
}

static void see_unreadable(const char *name, int error, void *data)
{
	struct seen *seen = data;

	seen->unreadable++;
	seen->error = error;
	snprintf(seen->name, sizeof(seen->name), "%s", name);
}

static struct seen each(void)
{
	struct seen seen = {};

	CHECK(gcr_record_each(directory_fd, see, see_unreadable, &seen) == 0);
	CHECK(gcr_record_each(directory_fd, see, NULL, &(struct seen){}) == 0);
	return seen;
}

static void check_moves(const struct gcr_moves *a, const struct gcr_moves *b)
{
	CHECK(a->count == b->count);
	CHECK(memcmp(a->pairs, b->pairs, a->count * sizeof(a->pairs[0])) == 0);
}

static void check_same(const struct gcr_record *a, const struct gcr_record *b)
{
	CHECK(a->pid == b->pid && a->start_ticks == b->start_ticks && a->state == b->state);
	CHECK(strcmp(a->generation, b->generation) == 0 && strcmp(a->engine, b->engine) == 0);
	CHECK(a->since_usec == b->since_usec && a->gpus_count == b->gpus_count);
	CHECK(strcmp(a->comm, b->comm) == 0);
	CHECK(a->swap_pid == b->swap_pid && a->swap_start_ticks == b->swap_start_ticks);
	CHECK(a->frozen_for_pid == b->frozen_for_pid &&
	      a->frozen_for_start_ticks == b->frozen_for_start_ticks);
	check_moves(&a->moved, &b->moved);
	check_moves(&a->moving, &b->moving);
	for (uint32_t i = 0; i < a->gpus_count; i++) {
		CHECK(memcmp(a->gpus[i].uuid, b->gpus[i].uuid, GCR_UUID_BYTES) == 0);
		CHECK(a->gpus[i].bytes == b->gpus[i].bytes);
	}
}

static void test_write(void)
{
	struct gcr_record record = sample(4321);
	struct stat status;
	struct seen seen;

	CHECK(each().count == 0); /* no directory yet */
	CHECK(gcr_record_prepare(directory_fd) == 0);
	CHECK(gcr_record_remove(directory_fd, 4321, 1) == 0);
	CHECK(gcr_record_write(directory_fd, &record) == 0);
	seen = each();
	CHECK(seen.count == 1 && seen.unreadable == 0);
	check_same(&seen.last, &record);
	CHECK(fstatat(directory_fd, "processes/4321-987654321", &status, 0) == 0);
	CHECK((status.st_mode & 07777) == 0600);

	/* A record can be replaced; what is no spare of ours is no obstacle. */
	CHECK(unlinkat(directory_fd, "processes/.4321-987654321.new", 0) == 0);
	CHECK(symlinkat("/etc/passwd", directory_fd, "processes/.4321-987654321.new") == 0);
	record.state = GCR_RECORD_FROZEN;
	record.gpus_count = 0;
	record.comm[0] = '\0';
	CHECK(gcr_record_write(directory_fd, &record) == 0);
	seen = each();
	CHECK(seen.count == 1 && seen.unreadable == 0);
	check_same(&seen.last, &record);

	record.swap_pid = INT_MAX;
	record.swap_start_ticks = UINT64_MAX;
	record.frozen_for_pid = 7;
	record.frozen_for_start_ticks = 8;
	record.gpus_count = GCR_GPUS_MAX;
	memset(record.gpus, 0xff, sizeof(record.gpus));
	record.moved.count = record.moving.count = GCR_GPUS_MAX;
	for (size_t i = 0; i < GCR_GPUS_MAX; i++) {
		memset(record.moved.pairs[i].from, (int)i, GCR_UUID_BYTES);
		memset(record.moved.pairs[i].to, (int)i + 100, GCR_UUID_BYTES);
		memset(&record.moving.pairs[i], 0xff, sizeof(record.moving.pairs[i]));
	}
	memset(record.comm, '\n', sizeof(record.comm) - 1);
	record.comm[sizeof(record.comm) - 1] = '\0';
	record.state = GCR_RECORD_THAWING;
	CHECK(gcr_record_write(directory_fd, &record) == 0);
	seen = each();
	CHECK(seen.count == 1);
	check_same(&seen.last, &record);

	CHECK(gcr_record_end_swap(directory_fd, record.pid, record.start_ticks) == 0);
	record.swap_pid = record.frozen_for_pid = 0;
	record.swap_start_ticks = record.frozen_for_start_ticks = 0;
	seen = each();
	CHECK(seen.count == 1);
	check_same(&seen.last, &record);

	CHECK(gcr_record_remove(directory_fd, record.pid, record.start_ticks) == 0);
	CHECK(gcr_record_remove(directory_fd, record.pid, record.start_ticks) == 0);
	CHECK(gcr_record_end_swap(directory_fd, record.pid, record.start_ticks) == 0);
	CHECK(each().count == 0);
	/* The spare has gone with the record. */
	CHECK(unlinkat(directory_fd, "processes", AT_REMOVEDIR) == 0);
}

/* A write that fails for want of descriptors leaves the record and its spare as they were. */
static void test_no_descriptors(void)
{
	struct gcr_record record = sample(4321);
	struct rlimit limit, few;
	struct seen seen;
	int next;

	CHECK(gcr_record_write(directory_fd, &record) == 0);
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	next = dup(directory_fd);
	CHECK(next >= 0 && close(next) == 0);
	for (rlim_t left = 0; left < 2; left++) {
		few = limit;
		few.rlim_cur = (rlim_t)next + left;
		CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
		CHECK(gcr_record_write(directory_fd, &record) == -EMFILE);
		CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
		CHECK(faccessat(directory_fd, "processes/.4321-987654321.new", F_OK, 0) == 0);
		seen = each();
		CHECK(seen.count == 1 && seen.unreadable == 0);
		check_same(&seen.last, &record);
	}
	CHECK(gcr_record_remove(directory_fd, record.pid, record.start_ticks) == 0);
	CHECK(unlinkat(directory_fd, "processes", AT_REMOVEDIR) == 0);
}

static void test_bad_fields(void)
{
	struct gcr_record record = sample(1);

	record.pid = 0;
	CHECK(gcr_record_write(directory_fd, &record) == -EINVAL);
	record = sample(1);
	record.gpus_count = GCR_GPUS_MAX + 1;
	CHECK(gcr_record_write(directory_fd, &record) == -EINVAL);
	record = sample(1);
	strcpy(record.engine, "a\nb");
	CHECK(gcr_record_write(directory_fd, &record) == -EINVAL);
	record = sample(1);
	memset(record.engine, 'a', sizeof(record.engine)); /* no NUL */
	CHECK(gcr_record_write(directory_fd, &record) == -EINVAL);
	record = sample(1);
	record.generation[0] = 'G';
	CHECK(gcr_record_write(directory_fd, &record) == -EINVAL);
	record = sample(1);
	record.state = GCR_RECORD_FAILED + 1;
	CHECK(gcr_record_write(directory_fd, &record) == -EINVAL);
	CHECK(each().count == 0);
}

static int remove_it(const struct gcr_record *record, void *data)
{
	++*(int *)data;
	return gcr_record_remove(directory_fd, record->pid, record->start_ticks);
}

/* Takes all room of the filesystem of the records, to the last byte. */
static void fill_up(void)
{
	int fd = openat(directory_fd, "filler", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	static char bytes[4096];

	CHECK(fd >= 0);
	while (write(fd, bytes, sizeof(bytes)) > 0)
		;
	CHECK(errno == ENOSPC);
	close(fd);
}

static uint64_t blocks_of(const char *name)
{
	struct stat status;

	CHECK(fstatat(directory_fd, name, &status, AT_SYMLINK_NOFOLLOW) == 0);
	return (uint64_t)status.st_blocks;
}

/* No room is left: a process that has a record gets all its later ones, and no other gets one. */
static void test_full(void)
{
	struct gcr_record record = sample(4321), other = sample(4322), read;
	int outside_fd = directory_fd;
	int fd;

	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("none", directory, "tmpfs", 0, "size=64k,mode=700") < 0) {
		printf("skipped: a filesystem of a few pages (%s)\n", strerror(errno));
		return;
	}
	directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(directory_fd >= 0);
	CHECK(gcr_record_write(directory_fd, &record) == 0);
	fill_up();
	CHECK(gcr_record_write(directory_fd, &other) == -ENOSPC);
	CHECK(faccessat(directory_fd, "processes/4322-987654321", F_OK, 0) < 0);
	CHECK(faccessat(directory_fd, "processes/.4322-987654321.new", F_OK, 0) < 0);
	CHECK(gcr_record_read(directory_fd, 4322, other.start_ticks, &read) == -ENOENT);

	for (int i = 0; i < 8; i++) {
		record.state = i % 2 ? GCR_RECORD_THAWING : GCR_RECORD_FROZEN;
		record.since_usec += i * 1000000000000;
		record.moved.count = record.moving.count = (uint32_t)i;
		for (int j = 0; j < i; j++)
			memset(&record.moved.pairs[j], i + j, sizeof(record.moved.pairs[j]));
		memcpy(&record.moving, &record.moved, sizeof(record.moving));
		record.swap_pid = record.frozen_for_pid = i;
		CHECK(gcr_record_write(directory_fd, &record) == 0);
		CHECK(gcr_record_read(directory_fd, 4321, record.start_ticks, &read) == 0);
		check_same(&read, &record);
		/* A daemon died while it wrote the spare; its successor has no room either. */
		fd = openat(directory_fd, "processes/.4321-987654321.new", O_WRONLY | O_CLOEXEC);
		CHECK(fd >= 0);
		CHECK(write(fd, "gpucrfs-rec\0x", 13) == 13);
		close(fd);
		CHECK(gcr_record_prepare(directory_fd) == 0);
		CHECK(gcr_record_read(directory_fd, 4321, record.start_ticks, &read) == 0);
		check_same(&read, &record);
	}
	CHECK(gcr_record_remove(directory_fd, 4321, record.start_ticks) == 0);
	CHECK(gcr_record_write(directory_fd, &other) == 0);

	/* A record of a version without spares gets one as soon as there is room. */
	CHECK(unlinkat(directory_fd, "processes/.4322-987654321.new", 0) == 0);
	fill_up();
	CHECK(gcr_record_prepare(directory_fd) == 0);
	CHECK(gcr_record_write(directory_fd, &other) == -ENOSPC);
	CHECK(gcr_record_read(directory_fd, 4322, other.start_ticks, &read) == 0);
	CHECK(unlinkat(directory_fd, "filler", 0) == 0);
	CHECK(gcr_record_prepare(directory_fd) == 0);
	CHECK(blocks_of("processes/.4322-987654321.new") == blocks_of("processes/4322-987654321"));
	fill_up();
	other.state = GCR_RECORD_THAWING;
	CHECK(gcr_record_write(directory_fd, &other) == 0);
	CHECK(gcr_record_remove(directory_fd, 4322, other.start_ticks) == 0);
	CHECK(each().count == 0);
	close(directory_fd);
	CHECK(umount2(directory, MNT_DETACH) == 0);
	directory_fd = outside_fd;
}

static int stop_it(const struct gcr_record *record, void *data)
{
	(void)record;
	++*(int *)data;
	return 7;
}

static void test_each(void)
{
	int count = 0;

	for (pid_t pid = 1; pid <= 100; pid++) {
		struct gcr_record record = sample(pid);

		CHECK(gcr_record_write(directory_fd, &record) == 0);
	}
	/* A spare without a record may be one that another thread is writing. */
	CHECK(symlinkat("/etc/passwd", directory_fd, "processes/.7-7.new") == 0);
	CHECK(each().count == 100 && each().unreadable == 0);
	CHECK(faccessat(directory_fd, "processes/.7-7.new", F_OK, AT_SYMLINK_NOFOLLOW) == 0);
	CHECK(gcr_record_prepare(directory_fd) == 0);
	CHECK(unlinkat(directory_fd, "processes/.7-7.new", 0) < 0 && errno == ENOENT);
	CHECK(each().count == 100);
	CHECK(gcr_record_each(directory_fd, stop_it, NULL, &count) == 7 && count == 1);
	count = 0;
	CHECK(gcr_record_each(directory_fd, remove_it, NULL, &count) == 0 && count == 100);
	CHECK(each().count == 0);
}

static void test_read(void)
{
	struct gcr_record record = sample(7), read = sample(1);

	CHECK(gcr_record_read(directory_fd, 7, record.start_ticks, &read) == -ENOENT);
	CHECK(read.pid == 1);
	CHECK(gcr_record_write(directory_fd, &record) == 0);
	CHECK(gcr_record_read(directory_fd, 7, record.start_ticks, &read) == 0);
	check_same(&read, &record);
	CHECK(gcr_record_read(directory_fd, 7, record.start_ticks + 1, &read) == -ENOENT);
	CHECK(gcr_record_read(directory_fd, 8, 8, &read) == -ENOENT);
	CHECK(gcr_record_remove(directory_fd, 7, record.start_ticks) == 0);
}

static char text[65536]; /* contents of the record file under test */

static void put(const char *name)
{
	char path[300];
	int fd;

	snprintf(path, sizeof(path), "processes/%s", name);
	unlinkat(directory_fd, path, 0);
	fd = openat(directory_fd, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

/* Reads the text of a valid record from its file into `text`. */
static void get_good(void)
{
	struct gcr_record record = sample(77);
	ssize_t got;
	int fd;

	CHECK(gcr_record_write(directory_fd, &record) == 0);
	fd = openat(directory_fd, "processes/77-987654321", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	got = read(fd, text, sizeof(text) - 1);
	CHECK(got > 0);
	text[got] = '\0';
	close(fd);
}

static void replace(const char *from, const char *to)
{
	char tail[8192];
	char *found = strstr(text, from);

	CHECK(found);
	strcpy(tail, found + strlen(from));
	strcpy(found, to);
	strcat(found, tail);
}

#define UUID "00112233445566778899aabbccddeeff"

static int read_77(void)
{
	struct gcr_record record;

	return gcr_record_read(directory_fd, 77, 987654321, &record);
}

static void test_distrust(void)
{
	static const struct {
		const char *from;
		const char *to;
		bool good;
	} cases[] = {
		{"\nboot ", "\nlater x y\nboot ", true}, /* an unknown key */
		{"gpucrfs-record 1", "gpucrfs-record 2", false},
		{"gpucrfs-record 1", "gpucrfs-record 11", false},
		{"\ncomm ", "\nswap 78 5\ncomm ", true},
		{"\ncomm ", "\nfrozen_for 78 5\ncomm ", true},
		{"\ncomm ", "\nfrozen_for 78\ncomm ", false},
		{"\ncomm ", "\nswap 78\ncomm ", false},
		{"\ncomm ", "\nswap 0 5\ncomm ", false},
		{"\ncomm ", "\nswap 78 -5\ncomm ", false},
		{"\ncomm ", "\nswap 78 5 6\ncomm ", false},
		{"\ncomm ", "\nswap 4294967296000000 5\ncomm ", false},
		{"\ncomm ", "\nmoved " UUID " " UUID "\nmoving " UUID " " UUID "\ncomm ", true},
		{"\ncomm ", "\nmoved " UUID " " UUID "0\ncomm ", false},
		{"\ncomm ", "\nmoved " UUID " " UUID " \ncomm ", false},
		{"\ncomm ", "\nmoved " UUID UUID "\ncomm ", false},
		{"\ncomm ", "\nmoved " UUID "\ncomm ", false},
		{"\ncomm ", "\nmoving \ncomm ", false},
		{"\ncomm ", "\nmoving " UUID " 00ff\ncomm ", false},
		{"\npid 77\n", "\n", false},
		{"\npid 77\n", "\npid 77\npid 77\n", false},
		{"\npid 77\n", "\npid 78\n", false}, /* differs from the file's name */
		{"\npid 77\n", "\npid -77\n", false},
		{"\npid 77\n", "\npid 077\n", false},
		{"\npid 77\n", "\npid 77 \n", false},
		{"\npid 77\n", "\npid 4294967373\n", false},
		{"\npid 77\n", "\npid 99999999999999999999999\n", false},
		{"\npid 77\n", "\npid\n", false},
		{"\npid 77\n", "\npid \n", false},
		{"\nstate freezing", "\nstate melting", false},
		{"\nengine driver", "\nengine driver/..", false},
		{"\nengine driver", "\nengine ", false},
		{"\nengine driver", "\nengine aaaaaaaaaaaaaaaa", false},
		{"\ngeneration 0f8fad5b", "\ngeneration ../../..", false},
		{"\nsince_usec 17", "\nsince_usec 17000000000", false},
		{"\ngpu 00", "\ngpu 0x", false},
		{"\ngpu 00", "\ngpu 0", false},
		{" 18446744073709551615", " 18446744073709551616", false},
		{" 18446744073709551615", "", false},
		{"\ncomm ", "\ncomm %0g", false},
		{"\ncomm ", "\ncomm %00", false},
		{"\ncomm ", "\ncomm aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
		 false},
		{"\ncomm ", "\n\ncomm ", false},
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(cases); i++) {
		struct seen seen;

		get_good();
		replace(cases[i].from, cases[i].to);
		put("77-987654321");
		seen = each();
		if (seen.count != cases[i].good)
			fprintf(stderr, "%s -> %s\n", cases[i].from, cases[i].to);
		CHECK(seen.count == cases[i].good && seen.unreadable == !cases[i].good);
		CHECK(cases[i].good || strcmp(seen.name, "77-987654321") == 0);
	}
	/* A record cut at any length. */
	get_good();
	for (size_t length = strlen(text); length-- > 0;) {
		text[length] = '\0';
		put("77-987654321");
		CHECK(each().count == 0);
	}
	/* Too many GPUs, and too large a file. */
	get_good();
	for (int i = 0; i < GCR_GPUS_MAX - 1; i++)
		strcat(text, "gpu 00112233445566778899aabbccddeeff 5\n");
	put("77-987654321");
	CHECK(each().unreadable == 1);
	get_good();
	while (strlen(text) < 20000)
		strcat(text, "later x\n");
	put("77-987654321");
	CHECK(each().unreadable == 1 && each().error == EFBIG);
	/* A record of another boot is skipped without an error. */
	get_good();
	replace("\nboot ", "\nboot 00000000-0000-0000-0000-000000000000\nold ");
	put("77-987654321");
	CHECK(each().count == 0 && each().unreadable == 0);
	CHECK(read_77() == -ENOENT);
	/* Other names, types and modes of files. */
	get_good();
	put("077-987654321");
	CHECK(each().count == 1 && each().unreadable == 1);
	CHECK(unlinkat(directory_fd, "processes/077-987654321", 0) == 0);
	CHECK(fchmodat(directory_fd, "processes/77-987654321", 0666, 0) == 0);
	CHECK(each().unreadable == 1 && each().error == EPERM);
	CHECK(read_77() == -EPERM);
	CHECK(renameat(directory_fd, "processes/77-987654321", directory_fd, "elsewhere") == 0);
	CHECK(symlinkat("../elsewhere", directory_fd, "processes/77-987654321") == 0);
	CHECK(each().unreadable == 1 && each().error == ELOOP);
	CHECK(read_77() == -ELOOP);
	CHECK(unlinkat(directory_fd, "processes/77-987654321", 0) == 0);
	CHECK(mkfifoat(directory_fd, "processes/77-987654321", 0600) == 0);
	CHECK(each().unreadable == 1);
	CHECK(unlinkat(directory_fd, "processes/77-987654321", 0) == 0);
	CHECK(mkdirat(directory_fd, "processes/x", 0700) == 0);
	CHECK(each().unreadable == 1);
	CHECK(unlinkat(directory_fd, "processes/x", AT_REMOVEDIR) == 0);
	CHECK(unlinkat(directory_fd, "elsewhere", 0) == 0);
}

static void test_directory(void)
{
	struct gcr_record record = sample(5);

	/* Spares whose records were removed otherwise. */
	CHECK(gcr_record_prepare(directory_fd) == 0);
	CHECK(unlinkat(directory_fd, "processes", AT_REMOVEDIR) == 0);
	CHECK(symlinkat("/tmp", directory_fd, "processes") == 0);
	CHECK(gcr_record_write(directory_fd, &record) == -ENOTDIR);
	CHECK(gcr_record_remove(directory_fd, 5, 1) == -ENOTDIR);
	CHECK(gcr_record_each(directory_fd, see, NULL, NULL) == -ENOTDIR);
	CHECK(read_77() == -ENOTDIR);
	CHECK(gcr_record_prepare(directory_fd) == -ENOTDIR);
	CHECK(unlinkat(directory_fd, "processes", 0) == 0);
}

int main(void)
{
	CHECK(mkdtemp(directory));
	directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(directory_fd >= 0);
	test_write();
	test_no_descriptors();
	test_bad_fields();
	test_full();
	test_each();
	test_read();
	test_distrust();
	test_directory();
	close(directory_fd);
	CHECK(rmdir(directory) == 0);
	return 0;
}
