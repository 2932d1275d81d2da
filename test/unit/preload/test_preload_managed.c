/* SPDX-License-Identifier: MIT */
/*
 * Managed memory is moved out and in again: its contents, addresses, advice and attachments are the
 * same afterwards, and after a failure. The program is its own agent.
 */
#include <sys/mount.h>
#include <sys/stat.h>

#include "test/unit/preload/managed_program.h"

/* An unprivileged user, whom the kernel may deny a userfaultfd. */
#define NOBODY 65534

static void ask_driver(enum worker_verb verb)
{
	worker_ask(verb, NULL, 0, NULL, 0, &answer);
}

/* ---- contents and addresses ---- */

static void run_contents(void)
{
	static const size_t sizes[] = {1,	 4,	   100,		512,	  4096, 5000,
				       200000,	 1 * MIB,  2 * MIB,	3 * MIB,  1,	40 * MIB,
				       33 * MIB, 64 * MIB, 2 * MIB - 4, 32 * MIB, 100};

	worker_start();
	use_device(0);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(sizes); i++)
		make(sizes[i]);
	for (int cycle = test_few(2, 3); cycle > 0; cycle--) {
		take_out();
		/* The driver would refuse the checkpoint while there is managed memory. */
		ask_driver(WORKER_CHECKPOINT);
		ask_driver(WORKER_RESTORE);
		bring_in();
		check_all();
		for (size_t i = 0; i < allocations_count; i++) {
			allocations[i].seed += 1000;
			write_pattern(&allocations[i]);
		}
	}
	use_and_free_all();
	worker_stop();
}

/* Only bytes other than zero take space in the store. */
static void run_holes(void)
{
	struct stat status;
	int fd;

	use_device(0);
	make(64 * MIB);
	memset((void *)allocations[0].start, 0, allocations[0].bytes);
	((unsigned *)allocations[0].start)[5000000] = 77;
	pieces_count = (size_t)managed()->describe(pieces, PIECES_MAX);
	CHECK(pieces_count == 1);
	fd = make_file(pieces[0].bytes);
	directory = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	DONE(managed()->files(0, 1, &fd, &failure));
	DONE(go_out());
	CHECK(fstat(directory, &status) == 0);
	CHECK(status.st_blocks > 0 && status.st_blocks * 512 <= (off_t)(16 * MIB));
	bring_in();
	CHECK(((unsigned *)allocations[0].start)[5000000] == 77);
	((unsigned *)allocations[0].start)[5000000] = 0;
	for (size_t i = 0; i < allocations[0].bytes; i += 8)
		CHECK(*(uint64_t *)(allocations[0].start + i) == 0);
}

static unsigned random_number(unsigned below)
{
	static uint64_t state = 88172645463325252ull;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (unsigned)(state >> 20) % below;
}

static size_t random_size(void)
{
	switch (random_number(5)) {
	case 0:
		return 1 + random_number(4096);
	case 1:
		return 1 + random_number(1 << 20);
	case 2:
		return (size_t)(1 + random_number(8)) * MIB;
	case 3:
		return 1 + (size_t)random_number(8) * MIB + random_number(1 << 20);
	default:
		return (size_t)(30 + random_number(8)) * MIB / (1 + random_number(4));
	}
}

/* Other mappings that the program makes and removes between the steps. */
static void map_around(void)
{
	static struct {
		void *start;
		size_t bytes;
	} others[256];

	for (int i = 0; i < 64; i++) {
		size_t index = random_number(256);

		if (others[index].start)
			munmap(others[index].start, others[index].bytes);
		others[index].bytes = (size_t)(1 + random_number(1 << 14)) * 4096;
		others[index].start = mmap(NULL, others[index].bytes, PROT_NONE,
					   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		CHECK(others[index].start != MAP_FAILED);
	}
}

/* Allocations of all sizes, some freed again in any order. */
static void run_places(void)
{
	worker_start();
	use_device(0);
	for (int cycle = test_few(8, 24); cycle > 0; cycle--) {
		for (unsigned i = random_number(12); i > 0; i--)
			make(random_size());
		for (unsigned i = random_number(6); i > 0 && allocations_count; i--)
			drop(random_number((unsigned)allocations_count));
		while (allocations_count > 24)
			drop(random_number((unsigned)allocations_count));
		map_around();
		take_out();
		map_around();
		if (cycle % 4 == 0) {
			ask_driver(WORKER_CHECKPOINT);
			ask_driver(WORKER_RESTORE);
		}
		bring_in();
		check_all();
	}
	use_and_free_all();
	worker_stop();
}

/* A chunk that was made for a large allocation, since freed, and other chunks full of gaps. */
static void run_gaps(void)
{
	CUdeviceptr large, first, second;

	use_device(0);
	large = make(50 * MIB);
	first = make(5 * MIB);
	second = make(3000);
	CHECK(first > large && first < large + (64 * MIB));
	drop(0);
	CHECK(allocations[0].start == second || allocations[0].start == first);
	make(1 * MIB);
	for (int i = 0; i < 10; i++)
		make(3 * MIB);
	for (int i = 0; i < 5; i++)
		drop(3 + (size_t)i);
	make(70 * MIB);
	make(200);
	take_out();
	map_around();
	bring_in();
	use_and_free_all();
}

static void run_none(void)
{
	use_device(0);
	CHECK(managed()->describe(NULL, 0) == 0);
	DONE(go_out());
	DONE(managed()->in(&failure));
	CHECK(memory()->page()->managed_bytes == 0);
	make(12345);
	CHECK(memory()->page()->managed_bytes == 12345);
	take_out();
	DONE(go_out()); /* repeated: the memory is out already */
	bring_in();
	DONE(managed()->in(&failure));
	use_and_free_all();
	CHECK(memory()->page()->managed_bytes == 0);
}

/* ---- advice and attachments ---- */

static int attribute(CUdeviceptr start, size_t bytes, CUmem_range_attribute which)
{
	int value = 0;

	OK(CU(cuMemRangeGetAttribute)(&value, sizeof(value), which, start, bytes));
	return value;
}

static void check_advice(CUdeviceptr start)
{
	int devices[3];

	CHECK(attribute(start, 1 * MIB, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) == 1);
	CHECK(attribute(start + 1 * MIB, 1 * MIB, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) == 0);
	CHECK(attribute(start + 2 * MIB, 2 * MIB, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) == 1);
	CHECK(attribute(start, 2 * MIB, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) == 1);
	CHECK(attribute(start + 2 * MIB, 1 * MIB, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) ==
	      CU_DEVICE_CPU);
	CHECK(attribute(start + 3 * MIB, 5 * MIB, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) ==
	      CU_DEVICE_INVALID);
	OK(CU(cuMemRangeGetAttribute)(devices, sizeof(devices), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
				      start + 4 * MIB, 4 * MIB));
	CHECK(devices[0] == CU_DEVICE_CPU && devices[1] == 0 && devices[2] == CU_DEVICE_INVALID);
	OK(CU(cuMemRangeGetAttribute)(devices, sizeof(devices), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
				      start, 4 * MIB));
	CHECK(devices[0] == CU_DEVICE_INVALID);
}

static void run_advice(void)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
	CUdeviceptr start;

	use_device(0);
	start = make(8 * MIB);
	OK(CU(cuMemAdvise)(start, 4 * MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
	OK(CU(cuMemAdvise)(start + 1 * MIB, 1 * MIB, CU_MEM_ADVISE_UNSET_READ_MOSTLY, 0));
	OK(CU(cuMemAdvise)(start, 2 * MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 1));
	OK(CU(cuMemAdvise)(start + 2 * MIB, 2 * MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
			   CU_DEVICE_CPU));
	OK(CU(cuMemAdvise)(start + 3 * MIB, 1 * MIB, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 0));
	OK(CU(cuMemAdvise_v2)(start, 8 * MIB, CU_MEM_ADVISE_SET_ACCESSED_BY, location));
	OK(CU(cuMemAdvise)(start, 4 * MIB, CU_MEM_ADVISE_UNSET_ACCESSED_BY, 0));
	OK(CU(cuMemAdvise)(start + 4 * MIB, 4 * MIB, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU));
	/* A program that gives advice without end does not consume memory without end. */
	for (size_t i = 0; i < 1000; i++)
		OK(CU(cuMemAdvise)(start + i % 512 * 4096, 4096,
				   i < 512 ? CU_MEM_ADVISE_SET_ACCESSED_BY
					   : CU_MEM_ADVISE_UNSET_ACCESSED_BY,
				   1));
	for (size_t i = 0; i < 512; i++)
		OK(CU(cuMemAdvise)(start + i * 4096, 4096, CU_MEM_ADVISE_UNSET_ACCESSED_BY, 1));
	check_advice(start);
	for (int i = 0; i < 2; i++) {
		take_out();
		bring_in();
		check_advice(start);
	}
	use_and_free_all();
}

static void set_faults(const char *rules)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/faults", getenv("GPUCR_SIM_DIR"));
	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0 && write(fd, rules, strlen(rules)) == (ssize_t)strlen(rules));
	close(fd);
}

static void run_attached(void)
{
	CUstream stream, other;

	use_device(0);
	OK(CU(cuStreamCreate)(&stream, 0));
	OK(CU(cuStreamCreate)(&other, 0));
	make(1 * MIB);
	make(2 * MIB);
	make(3 * MIB);
	OK(CU(cuStreamAttachMemAsync)(stream, allocations[0].start, 0, CU_MEM_ATTACH_SINGLE));
	OK(CU(cuStreamAttachMemAsync)(NULL, allocations[1].start, 0, CU_MEM_ATTACH_HOST));
	OK(CU(cuStreamAttachMemAsync)(other, allocations[2].start, 0, CU_MEM_ATTACH_SINGLE));
	OK(CU(cuStreamDestroy_v2)(other));
	/* The attachments of two allocations are set again. */
	for (int nth = 1; nth <= 3; nth++) {
		char rule[100];
		int r;

		take_out();
		snprintf(rule, sizeof(rule), "cuStreamAttachMemAsync nth=%d error=999\n", nth);
		set_faults(rule);
		r = take_in();
		set_faults("");
		CHECK(r == (nth < 3 ? -EIO : 0));
		bring_in();
		check_all();
	}
	/* An attachment to a stream that only its own thread can name. */
	OK(((__typeof__(cuStreamAttachMemAsync) *)driver_symbol("cuStreamAttachMemAsync_ptsz"))(
		NULL, allocations[0].start, 0, CU_MEM_ATTACH_SINGLE));
	give_files();
	CHECK(go_out() == -EOPNOTSUPP);
	CHECK(strstr(failure.words, "only its thread"));
	OK(CU(cuStreamAttachMemAsync)(NULL, allocations[0].start, 0, CU_MEM_ATTACH_GLOBAL));
	take_out();
	bring_in();
	OK(CU(cuStreamDestroy_v2)(stream));
	use_and_free_all();
}

/* ---- failures ---- */

static void run_unprivileged(void)
{
	CUdeviceptr start;

	CHECK(chmod(getenv("GPUCR_SIM_DIR"), 0777) == 0);
	CHECK(geteuid() != 0 || setresuid(NOBODY, NOBODY, NOBODY) == 0);
	if (may_hold())
		return;
	use_device(0);
	start = make(3 * MIB);
	make(100);
	give_files();
	CHECK(go_out() == -EOPNOTSUPP);
	CHECK(strstr(failure.words, "/dev/userfaultfd"));
	CHECK(allocations[0].start == start);
	use_and_free_all();
}

static void run_no_files(void)
{
	int fd;

	use_device(0);
	make(3 * MIB);
	make(5 * MIB);
	CHECK(go_out() == -EBADF);
	give_files();
	fd = make_file(4096);
	DONE(managed()->files(1, 1, &fd, &failure));
	CHECK(go_out() == -EINVAL);
	fd = make_file(4096);
	CHECK(managed()->files(2, 1, &fd, &failure) == -EINVAL);
	CHECK(fcntl(fd, F_GETFD) < 0);
	managed()->close_files();
	CHECK(go_out() == -EBADF);
	use_and_free_all();
}

/* As a program that closes descriptors which it does not know: those of the library's files. */
static void close_kept_files(void)
{
	for (int fd = 1000; fd < 1 << 17; fd++) {
		char path[64], target[64] = "";

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		if (readlink(path, target, sizeof(target) - 1) > 0 && strstr(target, "memfd:test"))
			close(fd);
	}
}

/* The program closes descriptors that it does not know; the daemon sends files again. */
static void run_closed_files(void)
{
	int kept[8];

	use_device(0);
	make(3 * MIB);
	make(35 * MIB);
	pieces_count = (size_t)managed()->describe(pieces, PIECES_MAX);
	CHECK(pieces_count == 2);
	for (size_t i = 0; i < pieces_count; i++) {
		int fd = make_file(pieces[i].bytes);

		kept[i] = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		DONE(managed()->files(i, 1, &fd, &failure));
	}
	DONE(go_out());
	close_kept_files();
	CHECK(take_in() == -EIO);
	CHECK(strstr(failure.words, "closed"));
	for (size_t i = 0; i < pieces_count; i++)
		DONE(managed()->files(i, 1, &kept[i], &failure));
	bring_in();
	use_and_free_all();
}

static int send_file(int fd)
{
	fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return managed()->files(0, 1, &fd, &failure);
}

/*
 * A thread writes to a page of memory that does not come back then; the program closes the file
 * with what it wrote. A file without that is not taken, even if other files have had it meanwhile.
 */
static void run_closed_newer_file(void)
{
	int older, newer;
	char *copy = malloc(3 * MIB);
	unsigned *words;

	use_device(0);
	words = (unsigned *)make(3 * MIB);
	newer = make_file(3 * MIB);
	older = make_file(3 * MIB);
	DONE(send_file(newer));
	CHECK(managed()->describe(pieces, PIECES_MAX) == 1 && pieces[0].bytes == 3 * MIB);
	DONE(go_out());
	CHECK(copy && pread(newer, copy, 3 * MIB, 0) == 3 * MIB);
	CHECK(pwrite(older, copy, 3 * MIB, 0) == 3 * MIB);
	free(copy);
	DONE(managed()->prepare(&failure));
	words[5000] = 4711;
	CHECK(tell_stopper('s') == 0);
	set_faults("cuMemAllocManaged nth=1 error=2\n");
	CHECK(managed()->in(&failure) < 0);
	set_faults("");
	CHECK(tell_stopper('g') == 0);
	for (int i = 0; i < 2; i++) {
		close_kept_files();
		CHECK(send_file(older) == -EIO);
		CHECK(strstr(failure.words, "closed"));
		CHECK(take_in() == -EIO);
		DONE(send_file(newer));
	}
	/* From the file that is still open into the older one. */
	DONE(send_file(older));
	bring_in();
	CHECK(words[5000] == 4711);
	words[5000] = word_at(&allocations[0], 5000);
	use_and_free_all();
}

static void run_full_store(void)
{
	char path[128];

	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return;
	snprintf(path, sizeof(path), "%s/store", getenv("GPUCR_SIM_DIR"));
	CHECK(mkdir(path, 0700) == 0);
	CHECK(mount("tmpfs", path, "tmpfs", 0, "size=16M") == 0);
	directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	use_device(0);
	make(5 * MIB);
	make(33 * MIB);
	make(2 * MIB);
	give_files();
	CHECK(go_out() == -ENOSPC);
	check_all();
	managed()->close_files();
	/* With enough space the freeze succeeds. */
	CHECK(mount("tmpfs", path, "tmpfs", MS_REMOUNT, "size=80M") == 0);
	take_out();
	bring_in();
	use_and_free_all();
}

/* Each call of each function fails once; nothing is lost, and the next try works. */
static void run_faults(void)
{
	static const char *const names[] = {"cuMemAllocManaged", "cuMemFree", "cuMemcpyDtoH",
					    "cuMemcpyHtoD", "cuCtxSetCurrent"};
	static const int errors[] = {2, 999};
	/* With a sanitizer, which is slow, only one of the two errors. */
	const size_t step = TEST_SLOW > 1 ? 2 : 1;

	use_device(0);
	make(33 * MIB);
	make(1 * MIB);
	make(3000);
	make(2 * MIB);
	make(5000);
	drop(0);
	for (size_t i = 0; i < 2 * GCR_ARRAY_SIZE(names); i += step) {
		const char *name = names[i / 2];
		unsigned failed = 1;

		for (int nth = 1; failed; nth++) {
			char rule[100];
			int r;

			failed = 0;
			give_files();
			snprintf(rule, sizeof(rule), "%s nth=%d error=%d\n", name, nth,
				 errors[i % 2]);
			set_faults(rule);
			r = go_out();
			if (r < 0) {
				failed++;
				set_faults("");
				CHECK(r != -ENOTRECOVERABLE);
				if (managed()->is_held())
					DONE(take_in());
				check_all();
				DONE(go_out());
				set_faults(rule);
			}
			r = take_in();
			set_faults("");
			if (r < 0) {
				failed++;
				if (r == -ENOTRECOVERABLE)
					fprintf(stderr, "%s%s\n", rule, failure.words);
				CHECK(r != -ENOTRECOVERABLE);
				DONE(take_in());
			}
			managed()->close_files();
			check_all();
		}
	}
	use_and_free_all();
}

/* Memory freed without a call that the library sees: with its context. */
static void run_context(void)
{
	CUcontext context, primary = use_device(0);

	OK(CU(cuCtxCreate_v2)(&context, 0, 0));
	make(3 * MIB);
	make(4 * MIB);
	take_out();
	bring_in();
	check_all();
	OK(CU(cuCtxDestroy_v2)(context));
	allocations_count = 0;
	CHECK(managed()->describe(NULL, 0) == 0);
	OK(CU(cuCtxSetCurrent)(primary));
	make(5 * MIB);
	make(500);
	take_out();
	bring_in();
	use_and_free_all();
}

static const struct subject subjects[] = {
	{"contents", run_contents, .vram = "1G"},
	{"holes", run_holes},
	{"places", run_places, .vram = "1G"},
	{"gaps", run_gaps},
	{"none", run_none},
	{"advice", run_advice, .gpus = "2"},
	{"attached", run_attached},
	{"unprivileged", run_unprivileged},
	{"no-files", run_no_files},
	{"closed-files", run_closed_files},
	{"closed-newer-file", run_closed_newer_file},
	{"full-store", run_full_store},
	{"faults", run_faults},
	{"context", run_context},
};

int main(int argc, char **argv)
{
	test_copies_unchecked(argv);
	run_managed(argc, argv, subjects, GCR_ARRAY_SIZE(subjects));
	return 0;
}
