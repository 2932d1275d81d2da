/* SPDX-License-Identifier: MIT */
/*
 * Managed memory that is touched while it is moved out and in again: threads that read or write it
 * sleep until it is back, and no write is lost. The program is its own agent: its main thread does
 * the agent's work, other threads touch the memory.
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "test/unit/preload/managed_program.h"

static int pipes[2];

/* Waits until thread @tid sleeps in a userfault. */
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

/* Waits until a thread has begun: the others may make all the rounds before. */
static void wait_begun(const _Atomic pid_t *tid)
{
	while (!atomic_load(tid))
		sched_yield();
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
 * A forked child has no memory at these addresses, rather than zeros. Not with ThreadSanitizer,
 * which holds its own locks around the handlers of fork(2): the owner of a lock that these handlers
 * wait for may never release it.
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
		CHECK(!WIFEXITED(status) ||
		      WEXITSTATUS(status) == 1 /* a sanitizer's exit status */);
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
		wait_begun(&touchers[i].tid);
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

/* Reads all memory in a loop. */
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

/* While the memory is out, no reader sees wrong contents: readers sleep. */
static void run_readers(void)
{
	static _Atomic pid_t tids[2];
	pthread_t threads[2];

	use_device(0);
	make(6 * MIB);
	make(100000);
	for (size_t i = 0; i < 2; i++) {
		CHECK(pthread_create(&threads[i], NULL, read_on, &tids[i]) == 0);
		wait_begun(&tids[i]);
	}
	for (int cycle = test_few(7, 20); cycle > 0; cycle--) {
		unsigned before = atomic_load(&rounds);

		while (atomic_load(&rounds) < before + 2)
			sched_yield();
		take_out();
		for (size_t i = 0; i < 2; i++)
			wait_until_asleep(atomic_load(&tids[i]));
		atomic_store(&ended, cycle == 1);
		bring_in();
	}
	for (size_t i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	use_and_free_all();
}

#define WRITERS 3

/* A thread that counts in words of its own, all over the memory, and checks its counts. */
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

/* Threads change the memory all the time and are stopped for a moment: no write is lost. */
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
		wait_begun(&writers[i].tid);
	}
	for (int cycle = test_few(7, 20); cycle > 0; cycle--) {
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

/* If the threads are not stopped, the memory is not taken. */
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
	/* Saved and stopped, and then cancelled. */
	DONE(managed()->save(&failure));
	CHECK(tell_stopper('s') == 0);
	CHECK(tell_stopper('g') == 0);
	managed()->cancel();
	DONE(managed()->in(&failure));
	take_out();
	/* The writer must not see incomplete contents. */
	wait_until_asleep(atomic_load(&writer.tid));
	bring_in();
	atomic_store(&ended, true);
	CHECK(pthread_join(writer.thread, NULL) == 0);
	write_pattern(&allocations[0]);
	use_and_free_all();
}

static atomic_bool lets_go_in_hold, lets_go_in_write, is_paused, goes_on;
/* No hold can be placed at this address, and no pages be taken from it. */
static _Atomic uintptr_t fails_at;

/* Lets the threads go, and waits until one of them has written more. */
static void let_write(void)
{
	unsigned before = atomic_load(&rounds);

	CHECK(tell_stopper('g') == 0);
	while (atomic_load(&rounds) < before + 2)
		sched_yield();
}

/* Stands in for mremap(): as if gpucr-halt were killed before the memory is held. */
void *mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...)
{
	va_list list;
	void *place;

	va_start(list, flags);
	place = flags & MREMAP_FIXED ? va_arg(list, void *) : NULL;
	va_end(list);
	if (atomic_exchange(&lets_go_in_hold, false))
		let_write();
	if (place && (uintptr_t)place == atomic_load(&fails_at)) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return (void *)syscall(SYS_mremap, old, old_bytes, bytes, flags, place);
}

/* Stands in for madvise(): as if the program had locked the pages. */
int madvise(void *memory, size_t bytes, int advice)
{
	if (advice == MADV_DONTNEED && (uintptr_t)memory == atomic_load(&fails_at)) {
		errno = EINVAL;
		return -1;
	}
	return (int)syscall(SYS_madvise, memory, bytes, advice);
}

/* Stands in for pwrite64(): as if gpucr-halt were killed once a page is in its file. */
ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t offset)
{
	ssize_t length = syscall(SYS_pwrite64, fd, data, bytes, offset);

	if (atomic_exchange(&lets_go_in_write, false)) {
		let_write();
		atomic_store(&is_paused, true);
	}
	return length;
}

/* Counts in one word. Paused, it touches nothing, and then it finds what it has written. */
UNSEEN static void *count_on(void *argument)
{
	volatile uint64_t *word = (volatile uint64_t *)allocations[0].start;
	uint64_t count = 0;

	CHECK(prctl(PR_SET_NAME, "counter") == 0);
	atomic_store((_Atomic pid_t *)argument, gettid());
	for (;;) {
		while (atomic_load(&is_paused) && !atomic_load(&goes_on))
			sched_yield();
		CHECK(*word == count);
		*word = ++count;
		atomic_fetch_add(&rounds, 1);
	}
	return NULL;
}

/* Makes @count allocations; the thread counts in the one with the lowest address. */
static void start_counter(_Atomic pid_t *tid, size_t count)
{
	pthread_t thread;

	use_device(0);
	for (size_t i = 0; i < count; i++) {
		struct allocation first = allocations[0];

		make(3 * MIB);
		if (i == 0 || allocations[i].start > first.start)
			continue;
		allocations[0] = allocations[i];
		allocations[i] = first;
	}
	memset((void *)allocations[0].start, 0, allocations[0].bytes);
	CHECK(pthread_create(&thread, NULL, count_on, tid) == 0);
	while (!atomic_load(&rounds))
		sched_yield();
}

/* What may lack a write stays away: neither all of it nor a page comes back to the thread. */
static void check_stays_away(void)
{
	CHECK(managed()->prepare(&failure) == -EIO);
	CHECK(strstr(failure.words, "may lack"));
	CHECK(managed()->in(&failure) == -EIO);
	CHECK(strstr(failure.words, "may lack"));
	atomic_store(&goes_on, true);
	usleep(100000);
}

/* The thread is let go after its memory was compared with the file, and before it is held. */
static void run_let_go_in_hold(void)
{
	static _Atomic pid_t tid;

	start_counter(&tid, 1);
	give_files();
	DONE(managed()->save(&failure));
	CHECK(tell_stopper('s') == 0);
	atomic_store(&lets_go_in_hold, true);
	CHECK(managed()->hold(&failure) == -ENOTRECOVERABLE);
	wait_until_asleep(atomic_load(&tid));
	check_stays_away();
	wait_until_asleep(atomic_load(&tid));
}

/* The memory is out, and the thread has got a page of it and writes to that. */
static void take_out_with_page(_Atomic pid_t *tid, size_t count)
{
	unsigned before;

	start_counter(tid, count);
	take_out();
	wait_until_asleep(atomic_load(tid));
	before = atomic_load(&rounds);
	DONE(managed()->prepare(&failure));
	while (atomic_load(&rounds) < before + 2)
		sched_yield();
}

/* The thread has got a page, and is let go when that is in the file but not yet away. */
static void run_let_go_with_page(void)
{
	static _Atomic pid_t tid;

	take_out_with_page(&tid, 1);
	CHECK(tell_stopper('s') == 0);
	atomic_store(&lets_go_in_write, true);
	CHECK(managed()->in(&failure) == -ENOTRECOVERABLE);
	check_stays_away();
	wait_until_asleep(atomic_load(&tid));
}

/* The same, and a page of other memory, which is taken after the thread's, cannot be taken. */
static void run_let_go_with_pages(void)
{
	static _Atomic pid_t tid;

	take_out_with_page(&tid, 2);
	CHECK(*(volatile unsigned *)allocations[1].start == word_at(&allocations[1], 0));
	CHECK(tell_stopper('s') == 0);
	atomic_store(&fails_at, (uintptr_t)allocations[1].start);
	atomic_store(&lets_go_in_write, true);
	CHECK(managed()->in(&failure) == -ENOTRECOVERABLE);
	check_stays_away();
	wait_until_asleep(atomic_load(&tid));
}

static rlim_t data_bytes(void)
{
	_cleanup_fclose_ FILE *status = fopen("/proc/self/status", "re");
	unsigned long kib = 0;
	char line[128];

	CHECK(status);
	while (!kib && fgets(line, sizeof(line), status))
		sscanf(line, "VmData: %lu kB", &kib);
	CHECK(kib);
	return (rlim_t)kib << 10;
}

/* Memory comes back beside a limit that has no room for it twice, also if a page was touched. */
static void run_no_room(void)
{
	struct rlimit limit, before;
	unsigned *words;

	use_device(0);
	make(64 * MIB);
	words = (unsigned *)allocations[0].start;
	take_out();
	DONE(managed()->prepare(&failure));
	words[5000] = 4711;
	CHECK(getrlimit(RLIMIT_DATA, &before) == 0);
	limit = before;
	limit.rlim_cur = data_bytes() + 32 * MIB;
	CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
	bring_in();
	CHECK(setrlimit(RLIMIT_DATA, &before) == 0);
	CHECK(words[5000] == 4711);
	words[5000] = word_at(&allocations[0], 5000);
	use_and_free_all();
}

static atomic_bool hides_pages;

/* Stands in for pread64(): as if the kernel could not tell which pages are mapped. */
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

/* Memory that was not touched since it was saved is not compared; a later write is not lost. */
static void run_rest(void)
{
	for (int hidden = 0; hidden < 2; hidden++) {
		atomic_store(&hides_pages, hidden);
		use_device(0);
		make(64 * MIB);
		/* New memory that was never touched. */
		OK(CU(cuMemFree_v2)(allocations[0].start));
		OK(CU(cuMemAllocManaged)(&allocations[0].start, 64 * MIB, CU_MEM_ATTACH_GLOBAL));
		write_after_save();
		write_pattern(&allocations[0]);
		use_and_free_all();
	}
}

static const struct subject subjects[] = {
	{"touch", run_touch},
	{"readers", run_readers},
	{"writers", run_writers},
	{"not-stopped", run_not_stopped},
	{"rest", run_rest},
	{"let-go-in-hold", run_let_go_in_hold},
	{"let-go-with-page", run_let_go_with_page},
	{"let-go-with-pages", run_let_go_with_pages},
	{"no-room", run_no_room},
};

int main(int argc, char **argv)
{
	test_copies_unchecked(argv);
	run_managed(argc, argv, subjects, GCR_ARRAY_SIZE(subjects));
	return 0;
}
