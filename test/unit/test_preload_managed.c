/* SPDX-License-Identifier: MIT */
/*
 * Managed memory out and in again. The program is its own agent: its main thread does what the
 * agent does, others touch the memory.
 */
#include <dirent.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "fs/helper/stop.h"

#include "test/unit/preload_managed.h"
#include "test/unit/preload_program.h"

#define ALLOCATIONS_MAX 512
#define PIECES_MAX	4096

/* What unprivileged users may not have. */
#define NOBODY 65534

static const struct preload_managed *managed(void)
{
	static __typeof__(gcr_test_managed) *door;

	if (!door)
		door = (__typeof__(gcr_test_managed) *)dlsym(RTLD_DEFAULT, "gcr_test_managed");
	CHECK(door);
	return door();
}

/* ---- the program's memory ---- */

static struct allocation {
	CUdeviceptr start;
	size_t bytes;
	unsigned seed;
} allocations[ALLOCATIONS_MAX];
static size_t allocations_count;

UNSEEN static unsigned word_at(const struct allocation *allocation, size_t at)
{
	return allocation->seed * 2654435761u ^ (unsigned)at * 40503u;
}

/* By the CPU. The last bytes that make no word are left zero. */
UNSEEN static void write_pattern(const struct allocation *allocation)
{
	unsigned *words = (unsigned *)allocation->start;

	for (size_t i = 0; i < allocation->bytes / sizeof(*words); i++)
		words[i] = word_at(allocation, i);
}

UNSEEN static void check_pattern(const struct allocation *allocation)
{
	const unsigned *words = (const unsigned *)allocation->start;

	for (size_t i = 0; i < allocation->bytes / sizeof(*words); i++)
		if (words[i] != word_at(allocation, i)) {
			fprintf(stderr, "0x%llx + 0x%zx of 0x%zx: 0x%x, not 0x%x\n",
				allocation->start, i * 4, allocation->bytes, words[i],
				word_at(allocation, i));
			exit(1);
		}
}

static void check_all(void)
{
	for (size_t i = 0; i < allocations_count; i++)
		check_pattern(&allocations[i]);
}

static CUdeviceptr make(size_t bytes)
{
	static unsigned seed;
	struct allocation *allocation = &allocations[allocations_count++];

	CHECK(allocations_count <= ALLOCATIONS_MAX);
	*allocation = (struct allocation){.bytes = bytes, .seed = ++seed};
	OK(CU(cuMemAllocManaged)(&allocation->start, bytes, CU_MEM_ATTACH_GLOBAL));
	write_pattern(allocation);
	return allocation->start;
}

static void drop(size_t index)
{
	OK(CU(cuMemFree_v2)(allocations[index].start));
	allocations[index] = allocations[--allocations_count];
}

/* Everything there is can be used as before, by the GPU too, and given back. */
static void use_and_free_all(void)
{
	unsigned word;

	check_all();
	for (size_t i = 0; i < allocations_count; i++) {
		CUdeviceptr base;
		size_t bytes;

		OK(CU(cuMemGetAddressRange_v2)(&base, &bytes, allocations[i].start));
		CHECK(base == allocations[i].start && bytes == allocations[i].bytes);
		if (bytes < 4)
			continue;
		OK(CU(cuMemcpyDtoH_v2)(&word, base, sizeof(word)));
		CHECK(word == word_at(&allocations[i], 0));
		OK(CU(cuMemsetD8_v2)(base, 7, bytes));
		OK(CU(cuCtxSynchronize)());
		CHECK(*(unsigned char *)base == 7);
	}
	while (allocations_count)
		drop(0);
}

/* ---- what the daemon does ---- */

static struct gcr_extent pieces[PIECES_MAX];
static size_t pieces_count;
static int directory = -1; /* where files are made; else they are memfds */

static int make_file(size_t bytes)
{
	int fd = directory >= 0 ? openat(directory, ".", O_TMPFILE | O_RDWR, 0600)
				: memfd_create("test", MFD_CLOEXEC);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	return fd;
}

static void give_files(void)
{
	pieces_count = (size_t)managed()->describe(pieces, PIECES_MAX);
	CHECK(pieces_count <= PIECES_MAX);
	for (size_t i = 0; i < pieces_count; i++) {
		int fd = make_file(pieces[i].bytes);

		CHECK(pieces[i].kind == GCR_MEMORY_MANAGED);
		CHECK(pieces[i].bytes % 4096 == 0 && pieces[i].address % 4096 == 0);
		CHECK(i == 0 || pieces[i - 1].address + pieces[i - 1].bytes <= pieces[i].address);
		DONE(managed()->files(i, 1, &fd, &failure));
		CHECK(fd == -1);
	}
}

/* The daemon's half of stopping threads: a process that does as it is told. */
static int stopper = -1;

static void run_stopper(int socket, pid_t pid)
{
	struct gcr_stop *stop = NULL;
	struct gcr_error error;
	int result;
	char order;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(socket, &order, 1) == 1) {
		result = 0;
		if (order == 's')
			result = gcr_stop_begin(pid, &stop, &error);
		else
			gcr_stop_end(TAKE_PTR(stop));
		if (write(socket, &result, sizeof(result)) != sizeof(result))
			break;
	}
	_exit(0);
}

/*
 * What else there is now is a sanitizer's thread, which may not be stopped: it has locks that our
 * code then waits for. It is called as one of the driver's, which is not stopped.
 */
static void rename_others(void)
{
	_cleanup_closedir_ DIR *tasks = opendir("/proc/self/task");
	const struct dirent *entry;

	while (tasks && (entry = readdir(tasks))) {
		char path[300];
		int fd;

		if (strtol(entry->d_name, NULL, 10) == getpid() || entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		fd = open(path, O_WRONLY | O_CLOEXEC);
		CHECK(fd >= 0 && write(fd, "cuda-EvtHandlr", 14) == 14);
		close(fd);
	}
}

static void start_stopper(void)
{
	pid_t self = getpid(), pid;
	int sockets[2];

	/* As the library's own: not stopped. What it starts has to have another name. */
	CHECK(prctl(PR_SET_NAME, "gpucr-agent") == 0);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		/* It ends with us: by the end of the socket if we may not signal it any more. */
		close(sockets[0]);
		run_stopper(sockets[1], self);
	}
	close(sockets[1]);
	stopper = sockets[0];
}

static int tell_stopper(char order)
{
	int result = -1;

	CHECK(write(stopper, &order, 1) == 1);
	CHECK(read(stopper, &result, sizeof(result)) == sizeof(result));
	return result;
}

static int go_out(void)
{
	int r = managed()->save(&failure);

	if (r < 0)
		return r;
	CHECK(tell_stopper('s') == 0);
	r = managed()->hold(&failure);
	CHECK(tell_stopper('g') == 0);
	return r < 0 ? r : managed()->out(&failure);
}

static void take_out(void)
{
	give_files();
	DONE(go_out());
	CHECK(managed()->is_held() || !pieces_count);
}

/* As the daemon does: who sleeps in a system call stops when it has got what it waits for. */
static int take_in(void)
{
	int r = managed()->prepare(&failure);

	if (r < 0)
		return r;
	CHECK(tell_stopper('s') == 0);
	r = managed()->in(&failure);
	CHECK(tell_stopper('g') == 0);
	return r;
}

static void bring_in(void)
{
	DONE(take_in());
	managed()->close_files();
}

static void ask_driver(enum worker_verb verb)
{
	worker_ask(verb, NULL, 0, NULL, 0, &answer);
}

/* ---- contents and places ---- */

static void run_contents(void)
{
	static const size_t sizes[] = {1,	 4,	   100,		512,	  4096, 5000,
				       200000,	 1 * MIB,  2 * MIB,	3 * MIB,  1,	40 * MIB,
				       33 * MIB, 64 * MIB, 2 * MIB - 4, 32 * MIB, 100};

	worker_start();
	use_device(0);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(sizes); i++)
		make(sizes[i]);
	for (int cycle = 0; cycle < 3; cycle++) {
		take_out();
		/* The driver would refuse this while there is any. */
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

/* Only what is not zero takes room in the store. */
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

/* Whatever the program maps and unmaps meanwhile. */
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

/* Histories of all kinds: memory that was freed in between, in any order. */
static void run_places(void)
{
	worker_start();
	use_device(0);
	for (int cycle = 0; cycle < (TEST_SLOW > 1 ? 8 : 24); cycle++) {
		for (unsigned i = random_number(12); i > 0; i--)
			make(random_size());
		for (unsigned i = random_number(6); i > 0 && allocations_count; i--)
			drop(random_number((unsigned)allocations_count));
		while (allocations_count > 24)
			drop(random_number((unsigned)allocations_count));
		map_around();
		take_out();
		map_around();
		if (cycle % 8 == 0) {
			ask_driver(WORKER_CHECKPOINT);
			ask_driver(WORKER_RESTORE);
		}
		bring_in();
		check_all();
	}
	use_and_free_all();
	worker_stop();
}

/* A chunk that was made for something large which is gone, and others full of gaps. */
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
	DONE(go_out()); /* it is */
	bring_in();
	DONE(managed()->in(&failure));
	use_and_free_all();
	CHECK(memory()->page()->managed_bytes == 0);
}

/* ---- threads that touch it ---- */

static int pipes[2];

/* Until all of them sleep in the kernel, in a fault or on their way out of one. */
static void wait_until_asleep(pid_t tid)
{
	char path[64], text[128];

	snprintf(path, sizeof(path), "/proc/self/task/%d/wchan", tid);
	for (;;) {
		_cleanup_close_ int fd = open(path, O_RDONLY);
		ssize_t length = read(fd, text, sizeof(text) - 1);

		CHECK(length >= 0);
		text[length] = '\0';
		if (strcmp(text, "handle_userfault") == 0)
			return;
		sched_yield();
	}
}

struct toucher {
	pthread_t thread;
	_Atomic pid_t tid;
	const struct allocation *allocation;
	unsigned value;
};

static void *touch_by_reading(void *argument)
{
	struct toucher *toucher = argument;

	CHECK(prctl(PR_SET_NAME, "toucher") == 0);
	atomic_store(&toucher->tid, gettid());
	toucher->value = *(volatile unsigned *)toucher->allocation->start;
	return NULL;
}

static void *touch_by_writing(void *argument)
{
	struct toucher *toucher = argument;

	CHECK(prctl(PR_SET_NAME, "toucher") == 0);
	atomic_store(&toucher->tid, gettid());
	((volatile unsigned *)toucher->allocation->start)[1000] = 4711;
	return NULL;
}

static void *touch_by_kernel(void *argument)
{
	struct toucher *toucher = argument;

	CHECK(prctl(PR_SET_NAME, "toucher") == 0);
	atomic_store(&toucher->tid, gettid());
	CHECK(read(pipes[0], (char *)toucher->allocation->start + 8000, 5) == 5);
	return NULL;
}

/*
 * A child has nothing there, instead of zeros. Not with ThreadSanitizer, which holds its own locks
 * from before fork(2)'s handlers to after them: whoever has one of the locks that they wait for may
 * never let go of it.
 */
static void check_children(void)
{
#ifndef __SANITIZE_THREAD__
	for (size_t i = 0; i < 3; i++) {
		int status;
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (pid == 0) {
			signal(SIGSEGV, SIG_DFL);
			prctl(PR_SET_DUMPABLE, 0);
			_exit(*(volatile char *)allocations[i].start);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK(!WIFEXITED(status) || WEXITSTATUS(status) == 1 /* a sanitizer's */);
	}
#endif
}

static void run_touch(void)
{
	static struct toucher touchers[3];
	static void *(*const functions[])(void *) = {touch_by_reading, touch_by_writing,
						     touch_by_kernel};

	use_device(0);
	CHECK(pipe(pipes) == 0 && write(pipes[1], "hello", 5) == 5);
	make(3 * MIB);
	make(30000);
	make(34 * MIB);
	take_out();
	for (size_t i = 0; i < 3; i++) {
		touchers[i].allocation = &allocations[i];
		CHECK(pthread_create(&touchers[i].thread, NULL, functions[i], &touchers[i]) == 0);
		while (!atomic_load(&touchers[i].tid))
			sched_yield();
		wait_until_asleep(touchers[i].tid);
	}
	check_children();
	bring_in();
	for (size_t i = 0; i < 3; i++)
		CHECK(pthread_join(touchers[i].thread, NULL) == 0);
	CHECK(touchers[0].value == word_at(&allocations[0], 0));
	CHECK(((unsigned *)allocations[1].start)[1000] == 4711);
	CHECK(memcmp((char *)allocations[2].start + 8000, "hello", 5) == 0);
	for (size_t i = 1; i < 3; i++)
		write_pattern(&allocations[i]);
	use_and_free_all();
}

static atomic_bool ended;
static atomic_uint rounds;

/* All the time, all of it. */
static void *read_on(void *argument)
{
	CHECK(prctl(PR_SET_NAME, "reader") == 0);
	atomic_store((_Atomic pid_t *)argument, gettid());
	while (!atomic_load(&ended)) {
		check_all();
		atomic_fetch_add(&rounds, 1);
	}
	return NULL;
}

/* From the time it is taken out it is not seen otherwise than it was: who looks, sleeps. */
static void run_readers(void)
{
	static _Atomic pid_t tids[2];
	pthread_t threads[2];

	use_device(0);
	make(6 * MIB);
	make(100000);
	for (size_t i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, read_on, &tids[i]) == 0);
	for (int cycle = 0; cycle < 20; cycle++) {
		unsigned before = atomic_load(&rounds);

		while (atomic_load(&rounds) < before + 2)
			sched_yield();
		take_out();
		for (size_t i = 0; i < 2; i++)
			wait_until_asleep(atomic_load(&tids[i]));
		atomic_store(&ended, cycle == 19);
		bring_in();
	}
	for (size_t i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	use_and_free_all();
}

#define WRITERS 3

/* A thread that counts in words of its own, all over the memory, and sees what it has counted. */
struct writer {
	pthread_t thread;
	_Atomic pid_t tid;
	unsigned index;
	uint64_t count;
};

UNSEEN static void *write_on(void *argument)
{
	struct writer *writer = argument;

	CHECK(prctl(PR_SET_NAME, "writer") == 0);
	atomic_store(&writer->tid, gettid());
	while (!atomic_load(&ended)) {
		for (size_t i = 0; i < allocations_count; i++) {
			volatile uint64_t *words = (volatile uint64_t *)allocations[i].start;
			size_t last = allocations[i].bytes / sizeof(*words) - 1;

			for (size_t at = writer->index; at <= last; at += 40961) {
				CHECK(words[at] == writer->count);
				words[at] = writer->count + 1;
			}
		}
		writer->count++;
		atomic_fetch_add(&rounds, 1);
		if (writer->count % 8 == 0)
			usleep(1000);
	}
	return NULL;
}

/* Threads that change it all the time, stopped for a moment: no write is lost. */
static void run_writers(void)
{
	struct writer writers[WRITERS];

	use_device(0);
	make(6 * MIB);
	make(100000);
	make(33 * MIB);
	make(70000);
	for (size_t i = 0; i < allocations_count; i++)
		memset((void *)allocations[i].start, 0, allocations[i].bytes);
	for (unsigned i = 0; i < WRITERS; i++) {
		writers[i] = (struct writer){.index = i};
		CHECK(pthread_create(&writers[i].thread, NULL, write_on, &writers[i]) == 0);
	}
	for (int cycle = 0; cycle < 20; cycle++) {
		unsigned before = atomic_load(&rounds);

		while (atomic_load(&rounds) < before + 10)
			sched_yield();
		take_out();
		for (unsigned i = 0; i < WRITERS; i++)
			wait_until_asleep(atomic_load(&writers[i].tid));
		bring_in();
	}
	atomic_store(&ended, true);
	for (unsigned i = 0; i < WRITERS; i++)
		CHECK(pthread_join(writers[i].thread, NULL) == 0);
	for (size_t i = 0; i < allocations_count; i++)
		write_pattern(&allocations[i]);
	use_and_free_all();
}

/* Nobody stops them: it is not taken. */
static void run_not_stopped(void)
{
	struct writer writer = {0};

	use_device(0);
	make(6 * MIB);
	memset((void *)allocations[0].start, 0, allocations[0].bytes);
	CHECK(pthread_create(&writer.thread, NULL, write_on, &writer) == 0);
	while (!atomic_load(&rounds))
		sched_yield();
	give_files();
	CHECK(managed()->out(&failure) < 0);
	CHECK(!managed()->is_held());
	DONE(managed()->save(&failure));
	CHECK(managed()->hold(&failure) == -EIO);
	CHECK(strstr(failure.words, "were to be stopped"));
	CHECK(!managed()->is_held());
	managed()->cancel();
	/* Saved, stopped, and then nobody wants it. */
	DONE(managed()->save(&failure));
	CHECK(tell_stopper('s') == 0);
	CHECK(tell_stopper('g') == 0);
	managed()->cancel();
	DONE(managed()->in(&failure));
	take_out();
	/* It must not see what is not complete. */
	wait_until_asleep(atomic_load(&writer.tid));
	bring_in();
	atomic_store(&ended, true);
	CHECK(pthread_join(writer.thread, NULL) == 0);
	write_pattern(&allocations[0]);
	use_and_free_all();
}

static atomic_bool hides_pages;

/* As with memory of which the kernel does not know what is mapped. */
ssize_t pread64(int fd, void *data, size_t bytes, off_t offset)
{
	char path[64], target[64] = "";
	ssize_t length = syscall(SYS_pread64, fd, data, bytes, offset);

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (length > 0 && atomic_load(&hides_pages) &&
	    readlink(path, target, sizeof(target) - 1) > 0 && strstr(target, "pagemap"))
		memset(data, 0, (size_t)length);
	return length;
}

static void write_after_save(void)
{
	uint64_t *words = (uint64_t *)allocations[0].start;

	give_files();
	DONE(managed()->save(&failure));
	for (size_t i = 0; i < allocations[0].bytes / 8; i += 700001)
		words[i] = i + 1;
	CHECK(tell_stopper('s') == 0);
	DONE(managed()->hold(&failure));
	CHECK(tell_stopper('g') == 0);
	DONE(managed()->out(&failure));
	bring_in();
	for (size_t i = 0; i < allocations[0].bytes / 8; i++)
		CHECK(words[i] == (i % 700001 ? 0 : i + 1));
}

/* What nobody has had since it was saved is not compared, and what is written then is not lost. */
static void run_rest(void)
{
	for (int hidden = 0; hidden < 2; hidden++) {
		atomic_store(&hides_pages, hidden);
		use_device(0);
		make(64 * MIB);
		/* New memory, which nobody has touched. */
		OK(CU(cuMemFree_v2)(allocations[0].start));
		OK(CU(cuMemAllocManaged)(&allocations[0].start, 64 * MIB, CU_MEM_ATTACH_GLOBAL));
		write_after_save();
		write_pattern(&allocations[0]);
		use_and_free_all();
	}
}

/* ---- what was said about it ---- */

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
	/* Whoever advises without end needs no memory without end. */
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
	/* It is said again for two of them. */
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
	/* A stream that only its thread can name. */
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

/* ---- what goes wrong ---- */

static bool may_hold(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd < 0)
		fd = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

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

/* The program closes what it does not know; the daemon brings files again. */
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
	for (int fd = 1000; fd < 1 << 17; fd++) {
		char path[64], target[64] = "";

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		if (readlink(path, target, sizeof(target) - 1) > 0 && strstr(target, "memfd:test"))
			close(fd);
	}
	CHECK(take_in() == -EIO);
	CHECK(strstr(failure.words, "closed"));
	for (size_t i = 0; i < pieces_count; i++)
		DONE(managed()->files(i, 1, &kept[i], &failure));
	bring_in();
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
	/* With room for it, it goes. */
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
	/* With a sanitizer, which takes long, in one of the two ways. */
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

/* Freed behind our back: with its context. */
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
	{"touch", run_touch},
	{"readers", run_readers},
	{"writers", run_writers},
	{"not-stopped", run_not_stopped},
	{"rest", run_rest},
	{"advice", run_advice, .gpus = "2"},
	{"attached", run_attached},
	{"unprivileged", run_unprivileged},
	{"no-files", run_no_files},
	{"closed-files", run_closed_files},
	{"full-store", run_full_store},
	{"faults", run_faults},
	{"context", run_context},
};

int main(int argc, char **argv)
{
	if (argc == 2) {
		rename_others();
		start_stopper();
	}
	if (run_one(argc, argv, subjects, GCR_ARRAY_SIZE(subjects)))
		return 0;
	if (!may_hold())
		SKIP("no privilege for userfaultfd");
	run_all(subjects, GCR_ARRAY_SIZE(subjects));
	return 0;
}
