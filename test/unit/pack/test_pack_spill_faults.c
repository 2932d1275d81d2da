/* SPDX-License-Identifier: MIT */
/*
 * A daemon killed at any step of moving a segment to a disk or removing a segment there, or a disk
 * that fails at any step: no chunk is lost, and no file is left behind. Calls that change the disk
 * or the store can be made to fail, or to end the process.
 */
#include <semaphore.h>
#include <sys/syscall.h>

#include "test/unit/pack/spill.h"

/* ---- calls that fail ---- */

/* A fault to inject; shared with children. */
struct plan {
	unsigned int at; /* number of the call; 0: none */
	int error;	 /* the call's errno; 0: the process ends there */
	unsigned int calls;
	bool reached;
	bool written;
	bool dropping;	/* the following calls drop chunks */
	bool is_public; /* the file system has no modes */
	bool is_dense;	/* the file system makes no holes */
};
static struct plan *plan;

/*
 * Called first in each wrapped call. Returns 0 if the real call is to be made, -1 with errno set if
 * the call fails; may end the process.
 */
static int step(void)
{
	if (!plan || !plan->at || ++plan->calls != plan->at)
		return 0;
	plan->reached = true;
	if (!plan->error)
		_exit(0);
	errno = plan->error;
	return -1;
}

/* While set, calls on the disk do not return. */
static atomic_bool is_hung;
static sem_t hung;
static sem_t answered;

static void wait_disk(int fd)
{
	struct stat disk_stat;
	struct stat stat;

	if (!is_hung || fstat(fd, &stat) < 0 || fstat(disk_fd, &disk_stat) < 0 ||
	    stat.st_dev != disk_stat.st_dev)
		return;
	sem_post(&hung);
	while (sem_wait(&answered) < 0)
		;
	sem_post(&answered);
}

int fsync(int fd)
{
	return step() ? -1 : (int)syscall(SYS_fsync, fd);
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at)
{
	if (plan)
		plan->written = true;
	return step() ? -1 : syscall(SYS_pwrite64, fd, bytes, size, at);
}

/* Report other modes if the plan says so. */
int fstat(int fd, struct stat *ret_stat)
{
	int result = fstatat(fd, "", ret_stat, AT_EMPTY_PATH);

	if (plan && plan->is_public)
		ret_stat->st_mode |= 0055;
	return result;
}

int ftruncate(int fd, off_t size)
{
	if (plan && plan->is_dense)
		return posix_fallocate(fd, 0, 4 * MIB) ? -1 : (int)syscall(SYS_ftruncate, fd, size);
	return step() ? -1 : (int)syscall(SYS_ftruncate, fd, size);
}

int symlinkat(const char *target, int fd, const char *name)
{
	return step() ? -1 : (int)syscall(SYS_symlinkat, target, fd, name);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
	return step() ? -1 : (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

int mkdirat(int fd, const char *path, mode_t mode)
{
	return step() ? -1 : (int)syscall(SYS_mkdirat, fd, path, mode);
}

int unlinkat(int fd, const char *path, int flags)
{
	wait_disk(fd);
	return step() ? -1 : (int)syscall(SYS_unlinkat, fd, path, flags);
}

int fallocate(int fd, int mode, off_t at, off_t size)
{
	wait_disk(fd);
	return step() ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, size);
}

static void fail_at(unsigned int at, int error)
{
	*plan = (struct plan){.at = at, .error = error};
}

/* ---- killed, and failing, at every step ---- */

static void be_killed(void)
{
	unsigned int at = plan->at;
	struct gcr_packs *packs;
	uint64_t bytes;

	plan->at = 0;
	packs = open_packs(UINT64_MAX);
	add_all(packs);
	plan->at = at;
	plan->calls = 0;
	spill_segment(packs, entries[0].segment, &bytes);
	plan->dropping = true;
	gcr_packs_drop(packs, &entries[CHUNKS / 2], CHUNKS / 2);
	gcr_packs_wait_disk(packs);
	gcr_packs_drop(packs, entries, CHUNKS / 2);
	gcr_packs_wait_disk(packs);
}

/*
 * Killed anywhere from the first step to the last drop: the chunks that tables name are still
 * there.
 */
static void test_killed(void)
{
	unsigned int at = 1;
	unsigned int spilled = 0;
	unsigned int gone = 0;

	for (;; at++) {
		struct gcr_packs *packs;
		bool is_reached;
		bool is_dropping;
		size_t claimed = 0;

		fail_at(at, 0);
		in_child(be_killed);
		is_reached = plan->reached;
		is_dropping = plan->dropping;
		fail_at(0, 0);
		packs = open_packs(UINT64_MAX);
		/*
		 * A table is removed before its chunks are dropped: the chunks before are still
		 * there.
		 */
		while (claimed < CHUNKS && !gcr_packs_claim(packs, &entries[claimed]))
			claimed++;
		CHECK(claimed == CHUNKS || is_dropping);
		gcr_packs_sweep(packs);
		if (!is_dropping)
			check_all(packs);
		for (uint64_t i = 0; i < claimed && i < CHUNKS / 2; i++)
			CHECK(!read_chunk(packs, packer, &entries[i], i));
		check_account(packs);
		spilled += figures(packs).spilled_segments;
		gone += !claimed;
		gcr_packs_drop(packs, entries, claimed);
		close_packs(packs);
		check_nothing();
		if (!is_reached)
			break;
	}
	CHECK(at > 10 && spilled > 1 && gone);
}

/* Each step fails with @error: the segment stays in memory unless the error does no harm. */
static void test_failing(int error)
{
	for (unsigned int at = 1;; at++) {
		struct gcr_packs *packs = open_packs(UINT64_MAX);
		struct gcr_packs_figures before;
		uint64_t bytes = 0;
		int result;

		add_all(packs);
		before = figures(packs);
		fail_at(at, error);
		result = spill_segment(packs, entries[0].segment, &bytes);
		plan->at = 0;
		CHECK(plan->reached || !result);
		CHECK(result <= 0 && (result ? result == -error && !bytes : bytes));
		if (result < 0)
			CHECK(figures(packs).memory_bytes == before.memory_bytes);
		check_all(packs);
		check_account(packs);
		/* Once the disk works, the segment can be moved. */
		if (result < 0)
			CHECK(!spill_segment(packs, entries[0].segment, &bytes) && bytes);
		check_all(packs);
		check_account(packs);
		gcr_packs_drop(packs, entries, CHUNKS);
		close_packs(packs);
		check_nothing();
		if (!plan->reached)
			break;
		CHECK(at < 100);
	}
}

/* A disk that makes no holes keeps the whole file until all its chunks are dropped. */
static void test_no_holes(void)
{
	struct gcr_packs *packs = open_packs(UINT64_MAX);
	uint64_t bytes;

	add_all(packs);
	CHECK(!spill_segment(packs, entries[0].segment, &bytes));
	fail_at(1, EOPNOTSUPP);
	gcr_packs_drop(packs, entries, CHUNKS / 2);
	gcr_packs_wait_disk(packs);
	CHECK(plan->reached && disk_used() == bytes && figures(packs).spilled_bytes == bytes);
	fail_at(0, 0);
	for (uint64_t i = CHUNKS / 2; i < CHUNKS; i++)
		CHECK(!read_chunk(packs, packer, &entries[i], i));
	gcr_packs_drop(packs, &entries[CHUNKS / 2], CHUNKS / 2);
	close_packs(packs);
	check_nothing();
}

/*
 * Dropping, sharing and adding chunks do not wait for a hung disk, which is freeing pages, or a
 * whole file.
 */
static void test_hung(void)
{
	struct gcr_pack_entry others[CHUNKS];

	CHECK(!sem_init(&hung, 0, 0));
	for (size_t first = CHUNKS / 2; first != CHUNKS; first = first ? 0 : CHUNKS) {
		struct gcr_packs *packs = open_packs(UINT64_MAX);
		uint64_t bytes;

		add_all(packs);
		CHECK(!spill_segment(packs, entries[0].segment, &bytes));
		CHECK(!sem_init(&answered, 0, 0));
		is_hung = true;
		gcr_packs_drop(packs, &entries[first], CHUNKS - first);
		CHECK(!sem_wait(&hung));
		for (uint64_t i = 0; i < CHUNKS; i++)
			CHECK(!add(packs, CHUNKS / 2 + i, &others[i]));
		for (uint64_t i = 0; i < first; i++)
			CHECK(!read_chunk(packs, packer, &entries[i], i));
		gcr_packs_drop(packs, others, CHUNKS / 2);
		gcr_packs_drop(packs, entries, first);
		CHECK(figures(packs).chunks == CHUNKS / 2);
		is_hung = false;
		sem_post(&answered);
		check_account(packs);
		for (uint64_t i = CHUNKS / 2; i < CHUNKS; i++)
			CHECK(!read_chunk(packs, packer, &others[i], CHUNKS / 2 + i));
		gcr_packs_drop(packs, &others[CHUNKS / 2], CHUNKS / 2);
		close_packs(packs);
		check_nothing();
		while (!sem_trywait(&hung))
			;
	}
}

/* A file that cannot be removed counts against the limit while it exists. */
static void test_stays(void)
{
	const struct gcr_spill_options options = {.path = directory_on_disk,
						  .limit_bytes = 2 * MIB};
	struct gcr_packs *packs = open_with(&options);
	uint64_t bytes;

	add_all(packs);
	CHECK(!spill_segment(packs, entries[0].segment, &bytes) && bytes > MIB);
	fail_at(2, EROFS); /* the call after that on the link */
	gcr_packs_drop(packs, entries, CHUNKS);
	gcr_packs_wait_disk(packs);
	CHECK(plan->reached && disk_used() == bytes);
	fail_at(0, 0);
	add_all(packs);
	CHECK(spill_segment(packs, entries[0].segment, &bytes) == -ENOSPC);
	check_all(packs);
	gcr_packs_drop(packs, entries, CHUNKS);
	close_packs(packs);
	check_nothing();
}

/* The store has no room for the link: the error comes before anything is copied. */
static void test_no_link(void)
{
	struct gcr_packs *packs = open_packs(UINT64_MAX);
	char path[PATH_MAX];
	uint64_t bytes;

	add_all(packs);
	snprintf(path, sizeof(path), GCR_PACKS_NAME "/%u/.link-%" PRIu32, USER, entries[0].segment);
	CHECK(!mkdirat(store_fd, path, 0700));
	fail_at(UINT_MAX, EIO);
	CHECK(spill_segment(packs, entries[0].segment, &bytes) < 0);
	CHECK(!plan->written && !disk_used());
	fail_at(0, 0);
	CHECK(!unlinkat(store_fd, path, AT_REMOVEDIR));
	check_account(packs);
	check_all(packs);
	gcr_packs_drop(packs, entries, CHUNKS);
	close_packs(packs);
	check_nothing();
}

/* Refused disks: other users could read the files, or holes take room. */
static void test_unfit(void)
{
	const struct gcr_spill_options options = {.path = directory_on_disk,
						  .limit_bytes = UINT64_MAX};
	struct gcr_error error = {0};
	struct gcr_packs *packs;
	uint64_t bytes;

	CHECK(!mkdir(directory_on_disk, 0700));
	plan->is_public = true;
	CHECK(gcr_spill_open(store_fd, &options, &spill, &error) == -EPERM);
	CHECK(strstr(error.words, "owners and modes"));
	plan->is_public = false;
	check_nothing();
	packs = open_packs(UINT64_MAX);
	add_all(packs);
	plan->is_public = true;
	CHECK(gcr_packs_spill(packs, entries[0].segment, &bytes, &error) == -EPERM);
	CHECK(strstr(error.words, "owners and modes"));
	plan->is_public = false;
	check_account(packs);
	plan->is_dense = true;
	CHECK(gcr_packs_spill(packs, entries[0].segment, &bytes, &error) == -EOPNOTSUPP);
	CHECK(strstr(error.words, "holes"));
	plan->is_dense = false;
	check_account(packs);
	check_all(packs);
	CHECK(!spill_segment(packs, entries[0].segment, &bytes) && bytes);
	gcr_packs_drop(packs, entries, CHUNKS);
	close_packs(packs);
	check_nothing();
}

int main(void)
{
	begin();
	plan = mmap(NULL, sizeof(*plan), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(plan != MAP_FAILED);
	test_killed();
	test_failing(EIO);
	test_failing(ENOSPC);
	test_no_holes();
	test_unfit();
	test_hung();
	test_stays();
	test_no_link();
	end();
	return 0;
}
