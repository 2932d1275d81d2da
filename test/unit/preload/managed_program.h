/* SPDX-License-Identifier: MIT */
/*
 * Like preload_program.h, for a program with managed memory, which is its own agent: its main
 * thread does the agent's work and the daemon's, other threads may touch the memory.
 */
#ifndef GPUCR_TEST_MANAGED_PROGRAM_H
#define GPUCR_TEST_MANAGED_PROGRAM_H

#include <dirent.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "fs/helper/stop.h"
#include "test/unit/child.h"
#include "test/unit/preload/preload_managed.h"
#include "test/unit/preload/preload_program.h"

#define ALLOCATIONS_MAX 512
#define PIECES_MAX	4096

static inline const struct preload_managed *managed(void)
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

UNSEEN static inline unsigned word_at(const struct allocation *allocation, size_t at)
{
	return allocation->seed * 2654435761u ^ (unsigned)at * 40503u;
}

/* The CPU writes the pattern. The last bytes, fewer than a word, stay zero. */
UNSEEN static inline void write_pattern(const struct allocation *allocation)
{
	unsigned *words = (unsigned *)allocation->start;

	for (size_t i = 0; i < allocation->bytes / sizeof(*words); i++)
		words[i] = word_at(allocation, i);
}

UNSEEN static inline void check_pattern(const struct allocation *allocation)
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

static inline void check_all(void)
{
	for (size_t i = 0; i < allocations_count; i++)
		check_pattern(&allocations[i]);
}

static inline CUdeviceptr make(size_t bytes)
{
	static unsigned seed;
	struct allocation *allocation = &allocations[allocations_count++];

	CHECK(allocations_count <= ALLOCATIONS_MAX);
	*allocation = (struct allocation){.bytes = bytes, .seed = ++seed};
	OK(CU(cuMemAllocManaged)(&allocation->start, bytes, CU_MEM_ATTACH_GLOBAL));
	write_pattern(allocation);
	return allocation->start;
}

static inline void drop(size_t index)
{
	OK(CU(cuMemFree_v2)(allocations[index].start));
	allocations[index] = allocations[--allocations_count];
}

/* All memory can be used as before, by the GPU too, and freed. */
static inline void use_and_free_all(void)
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

/* ---- the daemon's part ---- */

static struct gcr_extent pieces[PIECES_MAX];
static size_t pieces_count;
static int directory = -1; /* the directory of the files; -1: they are memfds */

static inline int make_file(size_t bytes)
{
	int fd = directory >= 0 ? openat(directory, ".", O_TMPFILE | O_RDWR, 0600)
				: memfd_create("test", MFD_CLOEXEC);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	return fd;
}

static inline void give_files(void)
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

/* The daemon's half of stopping threads: a process that takes orders from a socket. */
static int stopper = -1;

static inline int stop_begin(pid_t pid, int pidfd, struct gcr_stop **ret_stop,
			     struct gcr_error *error)
{
	struct gcr_proc_program program;
	int result = gcr_proc_program(pid, &program);

	return result ? result : gcr_stop_begin(pid, pidfd, &program, ret_stop, error);
}

static inline void run_stopper(int socket, pid_t pid)
{
	struct gcr_stop *stop = NULL;
	struct gcr_error error;
	int result, pidfd = open_pidfd(pid);
	char order;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(socket, &order, 1) == 1) {
		result = 0;
		if (order == 's')
			result = stop_begin(pid, pidfd, &stop, &error);
		else
			gcr_stop_end(TAKE_PTR(stop));
		if (write(socket, &result, sizeof(result)) != sizeof(result))
			break;
	}
	_exit(0);
}

/*
 * Any other thread now is a sanitizer's. Such a thread may not be stopped: it has locks for which
 * the library's code would wait. It gets the name of a thread of the driver, which is not stopped.
 */
static inline void rename_others(void)
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

static inline void start_stopper(void)
{
	pid_t self = getpid(), pid;
	int sockets[2];

	/*
	 * This is the name of the library's own thread, which is not stopped. Threads started from
	 * here need another name.
	 */
	CHECK(prctl(PR_SET_NAME, "gpucr-agent") == 0);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		/*
		 * The stopper ends with this process: at the end of the socket if SIGKILL is no
		 * longer permitted.
		 */
		close(sockets[0]);
		run_stopper(sockets[1], self);
	}
	close(sockets[1]);
	stopper = sockets[0];
}

static inline int tell_stopper(char order)
{
	int result = -1;

	CHECK(write(stopper, &order, 1) == 1);
	CHECK(read(stopper, &result, sizeof(result)) == sizeof(result));
	return result;
}

static inline int go_out(void)
{
	int r = managed()->save(&failure);

	if (r < 0)
		return r;
	CHECK(tell_stopper('s') == 0);
	r = managed()->hold(&failure);
	CHECK(tell_stopper('g') == 0);
	return r < 0 ? r : managed()->out(&failure);
}

static inline void take_out(void)
{
	give_files();
	DONE(go_out());
	CHECK(managed()->is_held() || !pieces_count);
}

/* As the daemon does: a thread that sleeps in a system call stops when the call returns. */
static inline int take_in(void)
{
	int r = managed()->prepare(&failure);

	if (r < 0)
		return r;
	CHECK(tell_stopper('s') == 0);
	r = managed()->in(&failure);
	CHECK(tell_stopper('g') == 0);
	return r;
}

static inline void bring_in(void)
{
	DONE(take_in());
	managed()->close_files();
}

/* ---- main() ---- */

/* May this process have a userfaultfd? */
static inline bool may_hold(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd < 0)
		fd = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/*
 * For main(): runs the subject that argv names, with a process that stops its threads, or all
 * subjects.
 */
static inline void run_managed(int argc, char **argv, const struct subject *subjects, size_t count)
{
	if (argc == 2) {
		rename_others();
		start_stopper();
	}
	if (run_one(argc, argv, subjects, count))
		return;
	if (!may_hold())
		SKIP("no privilege for userfaultfd");
	run_all(subjects, count);
}

#endif
