/* SPDX-License-Identifier: MIT */
/*
 * The store: its accounts, what is left after a daemon's end, what is not believed. All of it
 * twice: with a tmpfs of its own, and, as an ordinary user, with a directory of /dev/shm.
 */
#include "fs/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/extent.h"
#include "lib/procfs.h"
#include "test/unit/test.h"

#define MIB	      (1ull << 20)
#define PAGE	      (2 * MIB)
#define GENERATION    "0f8fad5b-d9cb-469f-a165-70867728950e"
#define GENERATION2   "1f8fad5b-d9cb-469f-a165-70867728950e"
#define NOBODY	      65534
#define PATIENCE_USEC (60 * GCR_USEC_PER_SEC)

static char directory[64];
static char runtime[96];
static struct gcr_daemon daemon_;
static struct gcr_store *store;
static uint64_t our_ticks;

static void start(uint64_t size, uint64_t pool)
{
	struct gcr_error error = {0};

	daemon_.options.store_bytes = size;
	daemon_.options.pool_bytes = pool;
	daemon_.options.swap = 1; /* no warning where the machine has some */
	if (gcr_store_create(&daemon_, &store, &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
}

static void stop(void)
{
	gcr_store_destroy(TAKE_PTR(store));
}

/* A daemon that is killed does not tidy up: do what it does in a child that ends abruptly. */
static void in_killed_daemon(void (*work)(void))
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid) {
		work();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
}

static struct gcr_store_figures figures(void)
{
	struct gcr_store_figures found;

	gcr_store_figures(store, &found);
	return found;
}

static void wait_used(uint64_t bytes)
{
	int64_t deadline = gcr_clock_usec() + PATIENCE_USEC;

	while (figures().used_bytes != bytes) {
		if (gcr_clock_usec() > deadline)
			fprintf(stderr, "used %" PRIu64 ", expected %" PRIu64 "\n",
				figures().used_bytes, bytes);
		CHECK(gcr_clock_usec() < deadline);
		usleep(1000);
	}
}

/* Three of a GPU, one of another one, one managed: 8, 2, 64, 4 MiB and 12 KiB. */
static const uint64_t sizes[] = {8 * MIB, 2 * MIB, 64 * MIB, 4 * MIB, 12288};
#define COUNT	   GCR_ARRAY_SIZE(sizes)
#define COST	   (8 * MIB + 2 * MIB + 64 * MIB + 4 * MIB + PAGE + PAGE) /* with the table */
#define FILES_COST (COST - PAGE)

static void fill_extents(struct gcr_extent *extents)
{
	memset(extents, 0, COUNT * sizeof(*extents));
	for (size_t i = 0; i < COUNT; i++) {
		extents[i].address = 0x7f3a40000000 + i * (1ull << 30);
		extents[i].bytes = sizes[i];
		extents[i].id = i + 1;
		extents[i].kind = i == 4 ? GCR_MEMORY_MANAGED : GCR_MEMORY_DEVICE;
		extents[i].gpu_index = i == 3;
	}
	extents[1].address = 0; /* a handle that is mapped nowhere */
}

static struct gcr_snapshot *create(pid_t pid, const char *generation)
{
	struct gcr_extent extents[COUNT];
	struct gcr_snapshot *snapshot;
	struct gcr_error error = {0};

	fill_extents(extents);
	if (gcr_snapshot_create(store, pid, pid == getpid() ? our_ticks : 77, generation, extents,
				COUNT, &snapshot, &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
	return snapshot;
}

static int try_create(pid_t pid, uint64_t bytes, struct gcr_snapshot **ret, struct gcr_error *error)
{
	struct gcr_extent extent = {.address = PAGE, .bytes = bytes, .kind = GCR_MEMORY_DEVICE};

	*error = (struct gcr_error){0};
	return gcr_snapshot_create(store, pid, 77, GENERATION, &extent, 1, ret, error);
}

/* Every byte of file @index has a value of its own kind. */
static void write_pattern(struct gcr_snapshot *snapshot, size_t index, unsigned char seed)
{
	_cleanup_close_ int fd = gcr_snapshot_open_file(snapshot, index, true);
	uint64_t bytes = gcr_snapshot_extent(snapshot, index)->bytes;
	unsigned char *map;

	CHECK(fd >= 0);
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED);
	for (uint64_t i = 0; i < bytes; i++)
		map[i] = (unsigned char)(i * 131 + i / 4096 + seed);
	munmap(map, bytes);
}

static bool has_pattern(struct gcr_snapshot_reader *reader, uint64_t bytes, unsigned char seed)
{
	for (uint64_t at = 0; at < bytes;) {
		const void *place;
		size_t length = gcr_snapshot_reader_read(reader, at, 100000, &place);

		CHECK(length && length <= 100000);
		for (size_t i = 0; i < length; i++, at++)
			if (((const unsigned char *)place)[i] !=
			    (unsigned char)(at * 131 + at / 4096 + seed))
				return false;
	}
	return true;
}

static void check_pattern(struct gcr_snapshot *snapshot, size_t index, unsigned char seed)
{
	uint64_t bytes = gcr_snapshot_extent(snapshot, index)->bytes;
	struct gcr_snapshot_reader *reader;
	const void *place;

	CHECK(!gcr_snapshot_reader_open(snapshot, index, &reader));
	CHECK(has_pattern(reader, bytes, seed));
	CHECK(gcr_snapshot_reader_read(reader, bytes, 1, &place) == 0);
	CHECK(gcr_snapshot_reader_read(reader, bytes + 5, 1, &place) == 0);
	CHECK(gcr_snapshot_reader_read(reader, bytes - 1, 10, &place) == 1);
	CHECK(gcr_snapshot_reader_seek(reader, 0, SEEK_DATA) == 0);
	CHECK(gcr_snapshot_reader_seek(reader, 0, SEEK_HOLE) == (int64_t)bytes);
	CHECK(gcr_snapshot_reader_seek(reader, (int64_t)bytes, SEEK_DATA) == -ENXIO);
	gcr_snapshot_reader_close(reader);
}

static uint64_t resident(const struct gcr_snapshot *snapshot)
{
	uint64_t bytes = 0;
	struct stat stat;

	for (size_t i = 0; i < gcr_snapshot_count(snapshot); i++) {
		CHECK(!gcr_snapshot_stat(snapshot, i, &stat));
		bytes += (uint64_t)stat.st_blocks * 512;
	}
	return bytes;
}

static void wait_populated(const struct gcr_snapshot *snapshot)
{
	int64_t deadline = gcr_clock_usec() + PATIENCE_USEC;

	while (resident(snapshot) < gcr_snapshot_bytes(snapshot) || figures().pending_bytes) {
		CHECK(gcr_clock_usec() < deadline);
		usleep(1000);
	}
}

static void test_files(void)
{
	struct gcr_snapshot *snapshot;
	struct stat stat;
	size_t index;

	start(256 * MIB, 0);
	CHECK(figures().size_bytes == 256 * MIB && figures().used_bytes == 0);
	snapshot = create(getpid(), GENERATION);
	CHECK(figures().used_bytes == COST && figures().pool_bytes == 0);
	/* The table is there. */
	CHECK(figures().pending_bytes <= COST && figures().pending_bytes >= FILES_COST);
	CHECK(gcr_snapshot_count(snapshot) == COUNT && gcr_snapshot_number(snapshot));
	for (size_t i = 0; i < COUNT; i++) {
		char name[GCR_EXTENT_NAME_BYTES];

		CHECK(!gcr_snapshot_stat(snapshot, i, &stat));
		CHECK((uint64_t)stat.st_size == sizes[i] && stat.st_blocks == 0);
		CHECK(stat.st_nlink == 1 && (stat.st_mode & 07777) == 0600);
		gcr_extent_name(gcr_snapshot_extent(snapshot, i), name);
		CHECK(!gcr_snapshot_find(snapshot, name, &index) && index == i);
		CHECK(!fstatat(gcr_snapshot_directory(snapshot), name, &stat, 0));
	}
	CHECK(gcr_snapshot_find(snapshot, "", &index) == -ENOENT);
	CHECK(gcr_snapshot_find(snapshot, "gpu0-7f3a4000000", &index) == -ENOENT);
	CHECK(gcr_snapshot_find(snapshot, "zzz", &index) == -ENOENT);
	CHECK(!gcr_snapshot_find(snapshot, "gpu0-unmapped-2", &index) && index == 1);

	gcr_snapshot_populate(snapshot);
	gcr_snapshot_populate(snapshot);
	wait_populated(snapshot);
	for (size_t i = 0; i < COUNT; i++)
		write_pattern(snapshot, i, (unsigned char)i);
	for (size_t i = 0; i < COUNT; i++)
		check_pattern(snapshot, i, (unsigned char)i);
	CHECK(figures().used_bytes == COST);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/* Populating never changes what somebody has written meanwhile. */
static void test_populate_and_write(void)
{
	for (int round = 0; round < 5; round++) {
		struct gcr_snapshot *snapshot;

		start(256 * MIB, 0);
		snapshot = create(getpid(), GENERATION);
		gcr_snapshot_populate(snapshot);
		for (size_t i = 0; i < COUNT; i++)
			write_pattern(snapshot, COUNT - 1 - i, (unsigned char)(i + 3));
		wait_populated(snapshot);
		for (size_t i = 0; i < COUNT; i++)
			check_pattern(snapshot, COUNT - 1 - i, (unsigned char)(i + 3));
		gcr_snapshot_discard(snapshot);
		stop();
	}
}

static void test_populate_then_stop(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_error error;

	start(2048 * MIB, 0);
	for (int round = 0; round < 5; round++) {
		CHECK(!try_create(1, 1024 * MIB, &snapshot, &error));
		gcr_snapshot_populate(snapshot);
		gcr_snapshot_discard(snapshot);
		wait_used(0);
	}
	/* Also at the end, with threads at work and a snapshot that stays. */
	CHECK(!try_create(1, 1024 * MIB, &snapshot, &error));
	gcr_snapshot_populate(snapshot);
	gcr_snapshot_unref(snapshot);
	stop();
	start(2048 * MIB, 0);
	CHECK(figures().used_bytes == 1024 * MIB + PAGE);
	gcr_store_sweep(store);
	wait_used(0);
	stop();
}

static void test_full(void)
{
	struct gcr_snapshot *first;
	struct gcr_snapshot *second;
	struct gcr_snapshot_reader *reader;
	struct gcr_error error;

	start(64 * MIB, 0);
	CHECK(try_create(1, 64 * MIB, &first, &error) == -ENOSPC && error.number == ENOSPC);
	CHECK(strstr(error.words, "66 MiB more are needed, 64 of its 64 MiB are free"));
	CHECK(figures().used_bytes == 0);
	CHECK(!try_create(1, 40 * MIB, &first, &error));
	CHECK(try_create(2, 22 * MIB, &second, &error) == -ENOSPC);
	CHECK(strstr(error.words, "24 MiB more are needed, 22 of its 64 MiB are free"));
	CHECK(figures().used_bytes == 42 * MIB);
	/* The same again: there is nothing left behind. */
	CHECK(!try_create(2, 20 * MIB, &second, &error));
	CHECK(figures().used_bytes == 64 * MIB);
	gcr_snapshot_discard(second);
	/* What is on its way out is waited for. */
	CHECK(!try_create(2, 20 * MIB, &second, &error));
	gcr_snapshot_discard(second);
	wait_used(42 * MIB);

	/* What is removed and still read counts. */
	write_pattern(first, 0, 9);
	CHECK(!gcr_snapshot_reader_open(first, 0, &reader));
	gcr_snapshot_ref(first);
	gcr_snapshot_discard(first);
	wait_used(40 * MIB);
	CHECK(try_create(2, 30 * MIB, &second, &error) == -ENOSPC);
	CHECK(has_pattern(reader, 40 * MIB, 9));
	gcr_snapshot_reader_close(reader);
	CHECK(figures().used_bytes == 0);
	CHECK(gcr_snapshot_reader_open(first, 0, &reader) == -ESTALE);
	gcr_snapshot_unref(first);
	CHECK(!try_create(2, 30 * MIB, &second, &error));
	gcr_snapshot_discard(second);
	stop();
}

/* More than the machine has, in a store that promises it. */
static void test_host_memory(void)
{
	uint64_t room;
	_cleanup_free_ char *what = NULL;
	struct gcr_snapshot *snapshot;
	struct gcr_snapshot *second;
	struct gcr_error error;
	int result;

	CHECK(!gcr_proc_memory_room(getpid(), &room, &what));
	room = room / PAGE * PAGE;
	start(2 * room, 0);
	result = try_create(1, room, &snapshot, &error);
	/* Without a tmpfs of our own its size is the limit, half of the memory perhaps. */
	CHECK(result == -ENOMEM || result == -ENOSPC);
	CHECK(result != -ENOMEM || strstr(error.words, what));
	CHECK(figures().used_bytes == 0);
	if (result == -ENOMEM) {
		/* Two that fit one by one, and have not taken their memory yet. */
		CHECK(!try_create(1, room / PAGE * 2 / 3 * PAGE, &snapshot, &error));
		CHECK(figures().pending_bytes >= room / 2);
		result = try_create(2, room / PAGE * 2 / 3 * PAGE, &second, &error);
		CHECK(result == -ENOMEM || (geteuid() && result == -ENOSPC));
		gcr_snapshot_discard(snapshot);
	}
	stop();
}

struct creator {
	pthread_t thread;
	pid_t pid;
	int succeeded;
};

static void *create_many(void *data)
{
	struct creator *creator = data;

	for (int round = 0; round < 50; round++) {
		struct gcr_snapshot *snapshot;
		struct gcr_error error;
		int result = try_create(creator->pid, 20 * MIB, &snapshot, &error);

		CHECK(!result || result == -ENOSPC);
		CHECK(figures().used_bytes <= 64 * MIB);
		if (result)
			continue;
		creator->succeeded++;
		if (round % 2)
			gcr_snapshot_populate(snapshot);
		gcr_snapshot_discard(snapshot);
	}
	return NULL;
}

/* Four at once, of which two have room at a time. */
static void test_parallel(void)
{
	struct creator creators[4];
	int succeeded = 0;

	start(64 * MIB, 0);
	for (int i = 0; i < 4; i++) {
		creators[i] = (struct creator){.pid = i + 1};
		CHECK(!pthread_create(&creators[i].thread, NULL, create_many, &creators[i]));
	}
	for (int i = 0; i < 4; i++) {
		CHECK(!pthread_join(creators[i].thread, NULL));
		succeeded += creators[i].succeeded;
	}
	CHECK(succeeded >= 4);
	wait_used(0);
	stop();
}

static void leave_one(void)
{
	struct gcr_snapshot *snapshot;

	start(256 * MIB, 64 * MIB);
	snapshot = create(4711, GENERATION);
	for (size_t i = 0; i < COUNT; i++)
		write_pattern(snapshot, i, (unsigned char)(i + 40));
	create(4712, GENERATION);
	gcr_store_pool(store, 4711, 77, gcr_snapshot_extent(snapshot, 0), 3);
}

static void test_reopen(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_snapshot *again;
	struct gcr_error error = {0};

	in_killed_daemon(leave_one);
	start(256 * MIB, 0);
	CHECK(figures().used_bytes == 2 * COST && figures().pool_bytes == 0);
	CHECK(gcr_snapshot_open(store, 4711, 78, GENERATION, &snapshot, &error) == -ENOENT);
	CHECK(gcr_snapshot_open(store, 4711, 77, GENERATION2, &snapshot, &error) == -ENOENT);
	CHECK(gcr_snapshot_open(store, 4711, 77, "../x", &snapshot, &error) == -EINVAL);
	CHECK(gcr_snapshot_open(store, 4711, 77, "", &snapshot, &error) == -EINVAL);
	CHECK(!gcr_snapshot_open(store, 4711, 77, GENERATION, &snapshot, &error));
	CHECK(!gcr_snapshot_open(store, 4711, 77, GENERATION, &again, &error) && again == snapshot);
	gcr_snapshot_unref(again);
	for (size_t i = 0; i < COUNT; i++) {
		struct gcr_extent expected[COUNT];

		fill_extents(expected);
		CHECK(!memcmp(gcr_snapshot_extent(snapshot, i), &expected[i], sizeof(*expected)));
		check_pattern(snapshot, i, (unsigned char)(i + 40));
	}
	CHECK(figures().used_bytes == 2 * COST);
	/* Held no more, it is still there and counts. */
	gcr_snapshot_unref(snapshot);
	CHECK(figures().used_bytes == 2 * COST);
	gcr_store_sweep(store);
	wait_used(COST);
	CHECK(gcr_snapshot_open(store, 4712, 77, GENERATION, &snapshot, &error) == -ENOENT);
	stop();

	/* A clean stop leaves it too. The size may be another one. */
	start(128 * MIB, 0);
	CHECK(figures().size_bytes == 128 * MIB && figures().used_bytes == COST);
	CHECK(!gcr_snapshot_open(store, 4711, 77, GENERATION, &snapshot, &error));
	check_pattern(snapshot, 2, 42);
	CHECK(figures().used_bytes == COST);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

static char place[256]; /* of the snapshot 4711, absolute */

static void find_place(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_error error;
	char link[64];
	ssize_t length;

	start(256 * MIB, 0);
	CHECK(!gcr_snapshot_open(store, 4711, 77, GENERATION, &snapshot, &error));
	snprintf(link, sizeof(link), "/proc/self/fd/%d", gcr_snapshot_directory(snapshot));
	length = readlink(link, place, sizeof(place) - 1);
	CHECK(length > 5);
	place[length - 5] = '\0'; /* "/vram" */
	gcr_snapshot_unref(snapshot);
	stop();
}

static const char *at(const char *name)
{
	static char path[2][400];
	static int turn;

	turn = !turn;
	snprintf(path[turn], sizeof(path[turn]), "%s/%s", place, name);
	return path[turn];
}

static void lie_no_table(void)
{
	CHECK(!unlink(at("table")));
}

static void lie_short_table(void)
{
	CHECK(!truncate(at("table"), 200));
}

static void lie_empty_table(void)
{
	CHECK(!truncate(at("table"), 0));
}

static void lie_long_table(void)
{
	CHECK(!truncate(at("table"), 10000));
}

static void lie_table_is_link(void)
{
	CHECK(!rename(at("table"), at("../elsewhere")) && !symlink("../elsewhere", at("table")));
}

static void lie_table_is_directory(void)
{
	CHECK(!unlink(at("table")) && !mkdir(at("table"), 0700));
}

/* Change the byte at @offset of the table. */
static void change(off_t offset)
{
	_cleanup_close_ int fd = open(at("table"), O_RDWR);
	unsigned char byte;

	CHECK(fd >= 0 && pread(fd, &byte, 1, offset) == 1);
	byte ^= 0x41;
	CHECK(pwrite(fd, &byte, 1, offset) == 1);
}

static void lie_magic(void)
{
	change(3);
}

static void lie_extent_bytes(void)
{
	change(16);
}

static void lie_pid(void)
{
	change(20);
}

static void lie_start(void)
{
	change(24);
}

static void lie_count(void)
{
	change(32);
}

static void lie_huge_count(void)
{
	change(38);
}

static void lie_generation(void)
{
	change(41);
}

static void lie_address(void)
{
	change(80 + 3);
}

static void lie_bytes(void)
{
	change(80 + 8 + 3);
}

static void lie_kind(void)
{
	change(80 + offsetof(struct gcr_extent, kind));
}

static void lie_gpu(void)
{
	change(80 + offsetof(struct gcr_extent, gpu_index) + 2);
}

static void lie_no_files(void)
{
	CHECK(!rename(at("vram"), at("ram")));
}

static void lie_missing_file(void)
{
	CHECK(!unlink(at("vram/gpu0-unmapped-2")));
}

static void lie_other_file(void)
{
	CHECK(!rename(at("vram/gpu0-unmapped-2"), at("vram/gpu0-unmapped-3")));
}

static void lie_further_file(void)
{
	CHECK(!mkdir(at("vram/gpu0-unmapped-3"), 0700));
}

static void lie_file_size(void)
{
	CHECK(!truncate(at("vram/gpu0-unmapped-2"), 1234));
}

static void lie_file_mode(void)
{
	CHECK(!chmod(at("vram/gpu0-unmapped-2"), 0644));
}

static void lie_file_is_link(void)
{
	CHECK(!rename(at("vram/gpu0-unmapped-2"), at("../elsewhere")));
	CHECK(!symlink("../../elsewhere", at("vram/gpu0-unmapped-2")));
}

static void lie_file_has_two_names(void)
{
	CHECK(!link(at("vram/gpu0-unmapped-2"), at("../elsewhere")));
}

static void lie_directory_mode(void)
{
	CHECK(!chmod(place, 0755));
}

static void lie_directory_is_link(void)
{
	CHECK(!rename(place, at("../elsewhere")) && !symlink("elsewhere", place));
}

static void test_lies(void)
{
	static void (*const lies[])(void) = {
		lie_no_table,
		lie_short_table,
		lie_empty_table,
		lie_long_table,
		lie_table_is_link,
		lie_table_is_directory,
		lie_magic,
		lie_extent_bytes,
		lie_pid,
		lie_start,
		lie_count,
		lie_huge_count,
		lie_generation,
		lie_address,
		lie_bytes,
		lie_kind,
		lie_gpu,
		lie_no_files,
		lie_missing_file,
		lie_other_file,
		lie_further_file,
		lie_file_size,
		lie_file_mode,
		lie_file_is_link,
		lie_file_has_two_names,
		lie_directory_mode,
		lie_directory_is_link,
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(lies); i++) {
		struct gcr_snapshot *snapshot;
		struct gcr_error error = {0};
		int result;

		in_killed_daemon(leave_one);
		find_place();
		lies[i]();
		start(256 * MIB, 0);
		result = gcr_snapshot_open(store, 4711, 77, GENERATION, &snapshot, &error);
		if (result != -EPROTO || !*error.words)
			fprintf(stderr, "lie %zu: %d %s\n", i, result, error.words);
		CHECK(result == -EPROTO && *error.words && error.number == EPROTO);
		/* It is no obstacle to anything, and goes. */
		gcr_store_sweep(store);
		wait_used(0);
		snapshot = create(4711, GENERATION);
		gcr_snapshot_discard(snapshot);
		stop();
		start(256 * MIB, 0);
		CHECK(figures().used_bytes == 0);
		stop();
	}
}

static void wait_pool(uint64_t bytes)
{
	int64_t deadline = gcr_clock_usec() + PATIENCE_USEC;

	while (figures().pool_bytes != bytes) {
		CHECK(gcr_clock_usec() < deadline);
		usleep(1000);
	}
}

/* Wait until the pool's files have all their pages: then a snapshot made of them has, too. */
static void wait_filled(struct gcr_snapshot *any, uint64_t bytes)
{
	int64_t deadline = gcr_clock_usec() + PATIENCE_USEC;
	uint64_t found = 0;

	while (found < bytes) {
		int fd = openat(gcr_snapshot_directory(any), "../../pool", O_RDONLY | O_DIRECTORY);
		_cleanup_closedir_ DIR *dir = fdopendir(fd);
		const struct dirent *entry;
		struct stat stat;

		CHECK(dir && gcr_clock_usec() < deadline);
		found = 0;
		while ((entry = readdir(dir)))
			if (entry->d_type == DT_REG && !fstatat(fd, entry->d_name, &stat, 0))
				found += (uint64_t)stat.st_blocks * 512;
		usleep(1000);
	}
}

static void test_pool(void)
{
	struct gcr_extent extents[COUNT];
	struct gcr_snapshot *snapshot;
	struct gcr_snapshot *other;
	struct gcr_snapshot_reader *reader;
	struct gcr_error error;
	struct stat stat;

	fill_extents(extents);
	start(256 * MIB, 128 * MIB);
	gcr_store_pool(store, getpid(), our_ticks, extents, COUNT);
	wait_pool(FILES_COST);
	CHECK(figures().used_bytes == FILES_COST);
	/* The same again changes nothing. */
	gcr_store_pool(store, getpid(), our_ticks, extents, COUNT);
	CHECK(figures().pool_bytes == FILES_COST);
	/* Another process's freeze takes none of them. */
	other = create(4711, GENERATION);
	CHECK(figures().used_bytes == FILES_COST + COST && resident(other) == 0);
	wait_filled(other, FILES_COST - PAGE + 12288);
	gcr_snapshot_discard(other);
	wait_used(FILES_COST);
	/* Its own takes all. */
	snapshot = create(getpid(), GENERATION);
	CHECK(figures().pool_bytes == 0 && figures().used_bytes == COST);
	CHECK(resident(snapshot) >= gcr_snapshot_bytes(snapshot));
	gcr_snapshot_populate(snapshot);
	wait_populated(snapshot);
	for (size_t i = 0; i < COUNT; i++)
		write_pattern(snapshot, i, (unsigned char)i);
	/* One file is read as the process thaws; that one does not come back. */
	CHECK(!gcr_snapshot_reader_open(snapshot, 0, &reader));
	gcr_snapshot_discard(snapshot);
	wait_pool(FILES_COST - 8 * MIB);
	wait_used(FILES_COST);
	/* The next freeze takes them at once: cut, stretched, as they are. */
	extents[0].bytes = 16 * MIB;
	extents[3].bytes = 2 * MIB;
	CHECK(!gcr_snapshot_create(store, getpid(), our_ticks, GENERATION2, extents, COUNT,
				   &snapshot, &error));
	CHECK(figures().pool_bytes == 0);
	wait_used(COST + 8 * MIB - 2 * MIB + 8 * MIB); /* with what is read */
	for (size_t i = 0; i < COUNT; i++) {
		CHECK(!gcr_snapshot_stat(snapshot, i, &stat));
		CHECK((uint64_t)stat.st_size == extents[i].bytes);
	}
	gcr_snapshot_populate(snapshot);
	wait_populated(snapshot);
	CHECK(has_pattern(reader, 8 * MIB, 0));
	gcr_snapshot_reader_close(reader);
	gcr_snapshot_discard(snapshot);

	/* The program has changed: what no longer fits goes. */
	gcr_store_pool(store, getpid(), our_ticks, extents, 2);
	wait_pool(16 * MIB + 2 * MIB);
	wait_used(18 * MIB);
	/* It has more than -o pool= allows: the first ones that do. */
	for (size_t i = 0; i < COUNT; i++)
		extents[i].bytes = 60 * MIB;
	gcr_store_pool(store, getpid(), our_ticks, extents, COUNT);
	wait_pool(120 * MIB);
	/* The store is short: the pool goes first, that of others, too. */
	CHECK(!try_create(4711, 200 * MIB, &other, &error));
	CHECK(figures().pool_bytes <= 54 * MIB && figures().used_bytes <= 256 * MIB);
	CHECK(try_create(4712, 60 * MIB, &snapshot, &error) == -ENOSPC);
	CHECK(figures().pool_bytes == 0);
	gcr_store_pool(store, getpid(), our_ticks, extents, COUNT);
	CHECK(figures().pool_bytes == 0); /* there is no room */
	gcr_snapshot_discard(other);
	/* But then there is. */
	wait_pool(120 * MIB);
	gcr_store_pool_drop(store, getpid(), our_ticks);
	wait_used(0);
	gcr_store_pool_drop(store, getpid(), our_ticks);
	/* Of a process that has ended nothing comes back. */
	snapshot = create(4711, GENERATION);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	CHECK(figures().pool_bytes == 0);
	/* Left to the end. */
	gcr_store_pool(store, getpid(), our_ticks, extents, COUNT);
	stop();
}

/* Pools that change, freezes and thaws, all at once; the sums are right in the end. */
static void *freeze_and_thaw(void *data)
{
	const char *generation = data;

	for (int round = 0; round < 30; round++) {
		struct gcr_snapshot *snapshot;
		struct gcr_extent extent = {
			.address = PAGE,
			.bytes = (uint64_t)(round % 7 + 1) * 4 * MIB,
			.kind = GCR_MEMORY_DEVICE,
		};
		struct gcr_error error;

		if (gcr_snapshot_create(store, getpid(), our_ticks, generation, &extent, 1,
					&snapshot, &error) < 0)
			continue;
		gcr_snapshot_populate(snapshot);
		write_pattern(snapshot, 0, (unsigned char)round);
		check_pattern(snapshot, 0, (unsigned char)round);
		gcr_snapshot_discard(snapshot);
	}
	return NULL;
}

static void test_pool_in_parallel(void)
{
	static char generations[3][40] = {GENERATION, GENERATION2, "2"};
	pthread_t threads[3];

	start(96 * MIB, 64 * MIB);
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_create(&threads[i], NULL, freeze_and_thaw, generations[i]));
	for (int round = 0; round < 200; round++) {
		struct gcr_extent extents[4] = {0};

		for (size_t i = 0; i < 4; i++)
			extents[i].bytes = ((i + (size_t)round) % 5 + 1) * 4 * MIB;
		gcr_store_pool(store, getpid(), our_ticks, extents, (size_t)round % 5);
		if (round % 20 == 19)
			gcr_store_pool_drop(store, getpid(), our_ticks);
		CHECK(figures().used_bytes <= 96 * MIB);
		usleep(1000);
	}
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_join(threads[i], NULL));
	gcr_store_pool_drop(store, getpid(), our_ticks);
	wait_used(0);
	stop();
}

static void test_nothing(void)
{
	struct gcr_snapshot *snapshot;
	struct gcr_error error;
	size_t index;

	start(256 * MIB, 64 * MIB);
	CHECK(!gcr_snapshot_create(store, getpid(), our_ticks, GENERATION, NULL, 0, &snapshot,
				   &error));
	CHECK(gcr_snapshot_count(snapshot) == 0 && gcr_snapshot_bytes(snapshot) == 0);
	CHECK(gcr_snapshot_find(snapshot, "x", &index) == -ENOENT);
	gcr_snapshot_populate(snapshot);
	gcr_snapshot_unref(snapshot);
	CHECK(!gcr_snapshot_open(store, getpid(), our_ticks, GENERATION, &snapshot, &error));
	/* Twice the same one cannot be. */
	CHECK(gcr_snapshot_create(store, getpid(), our_ticks, GENERATION, NULL, 0,
				  &(struct gcr_snapshot *){NULL}, &error) == -EEXIST);
	CHECK(figures().used_bytes == PAGE);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

static void check_gone(void)
{
	struct stat stat;
	char path[128];

	snprintf(path, sizeof(path), "%s/store", runtime);
	CHECK(lstat(path, &stat) < 0 && errno == ENOENT);
}

/* What stands in the store's place and is not the store. */
static void test_refusals(void)
{
	struct gcr_error error = {0};
	char path[128];

	check_gone();
	if (geteuid())
		return;
	snprintf(path, sizeof(path), "%s/store", runtime);
	CHECK(!symlink("/tmp", path));
	CHECK(gcr_store_create(&daemon_, &store, &error) == -ENOTDIR && strstr(error.words, path));
	CHECK(!unlink(path) && !mkdir(path, 0700));
	CHECK(!mount("x", path, "tmpfs", 0, "mode=0755"));
	CHECK(gcr_store_create(&daemon_, &store, &error) == -EPERM);
	CHECK(!umount(path) && !mount("x", path, "tmpfs", 0, "mode=0700,uid=65534"));
	CHECK(gcr_store_create(&daemon_, &store, &error) == -EPERM);
	CHECK(!umount(path) && !mount("proc", path, "proc", 0, NULL));
	CHECK(gcr_store_create(&daemon_, &store, &error) < 0);
	CHECK(!umount(path));
	/* An empty directory that an earlier one has left is welcome. */
	start(16 * MIB, 0);
	stop();
	check_gone();
}

static void test_all(void)
{
	struct gcr_proc_stat stat;

	CHECK(!gcr_proc_stat(getpid(), &stat));
	our_ticks = stat.start_ticks;
	snprintf(runtime, sizeof(runtime), "%s/%u", directory, (unsigned int)geteuid());
	CHECK(!mkdir(runtime, 0700));
	daemon_.options.runtime_directory = runtime;
	daemon_.options.store_bytes = 16 * MIB;
	daemon_.runtime_fd = open(runtime, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(daemon_.runtime_fd >= 0);
	test_refusals();
	test_files();
	test_populate_and_write();
	test_populate_then_stop();
	test_full();
	test_host_memory();
	test_parallel();
	test_reopen();
	test_lies();
	test_pool();
	test_pool_in_parallel();
	test_nothing();
	check_gone();
	close(daemon_.runtime_fd);
	CHECK(!rmdir(runtime));
}

int main(void)
{
	const char *parent = getenv("TMPDIR");
	bool skipped = false;

	snprintf(directory, sizeof(directory), "%s/gcr-store-XXXXXX", parent ? parent : "/tmp");
	CHECK(mkdtemp(directory));
	if (geteuid() == 0) {
		pid_t pid;
		int status;

		CHECK(!chmod(directory, 0777));
		pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			CHECK(!setgroups(0, NULL) && !setgid(NOBODY) && !setuid(NOBODY));
			if (access("/dev/shm", W_OK) < 0)
				exit(77);
			test_all();
			exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
		CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
		skipped = WEXITSTATUS(status) == 77;
	}
	test_all();
	CHECK(!rmdir(directory));
	if (skipped)
		SKIP("an ordinary user has no /dev/shm to write to");
	return 0;
}
