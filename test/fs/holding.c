/* SPDX-License-Identifier: MIT */
/*
 * holding: a library preloaded into the daemon. The library holds up the thread that answers a
 * statfs(2), makes the watchdog believe that time has passed, and simulates a disk that does not
 * answer. The file that GPUCR_TEST_HOLDING names has numbers of 64 bits. While the first is not 0,
 * the thread is held. The second is the number of seconds by which the monotonic clock is ahead,
 * for the watchdog's thread alone. While the third is not 0, writes to files below
 * GPUCR_TEST_HOLDING_DISK are held. In the fourth the library counts the held writes. While the
 * fifth is not 0, the daemon's threads that begin to write a text for a reader are held; the sixth
 * is the number of these.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct words {
	_Atomic int64_t is_held;
	_Atomic int64_t ahead_sec;
	_Atomic int64_t is_disk_held;
	_Atomic int64_t held_writes; /* number of writes held */
	_Atomic int64_t are_texts_held;
	_Atomic int64_t held_texts;
};

static struct words none;
static struct words *words = &none;

__attribute__((constructor)) static void map_words(void)
{
	const char *path = getenv("GPUCR_TEST_HOLDING");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *mapped;

	if (fd < 0)
		return;
	mapped = mmap(NULL, sizeof(*words), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (mapped != MAP_FAILED)
		words = mapped;
}

static int64_t ahead_sec(void)
{
	int64_t ahead = atomic_load(&words->ahead_sec);
	char name[16];

	return ahead && !prctl(PR_GET_NAME, name) && !strcmp(name, "gpucrfs-watch") ? ahead : 0;
}

int fuse_reply_statfs(void *request, const void *statfs);

int fuse_reply_statfs(void *request, const void *statfs)
{
	int (*next)(void *, const void *) = (__typeof__(next))dlsym(RTLD_NEXT, "fuse_reply_statfs");

	while (atomic_load(&words->is_held))
		usleep(1000);
	return next(request, statfs);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	long result = syscall(SYS_clock_gettime, clock, time);

	if (!result && clock == CLOCK_MONOTONIC)
		time->tv_sec += ahead_sec();
	return (int)result;
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
			   const struct timespec *until)
{
	int (*next)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *) =
		(__typeof__(next))dlsym(RTLD_NEXT, "pthread_cond_clockwait");
	struct timespec real = *until;

	if (clock == CLOCK_MONOTONIC)
		real.tv_sec -= ahead_sec();
	return next(condition, mutex, clock, &real);
}

static int is_on_disk(int fd)
{
	const char *disk = getenv("GPUCR_TEST_HOLDING_DISK");
	char path[64], target[4096];
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, target, sizeof(target));
	return disk && length >= (ssize_t)strlen(disk) && !memcmp(target, disk, strlen(disk));
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at)
{
	ssize_t (*next)(int, const void *, size_t, off64_t) =
		(__typeof__(next))dlsym(RTLD_NEXT, "pwrite64");

	if (atomic_load(&words->is_disk_held) && is_on_disk(fd)) {
		atomic_fetch_add(&words->held_writes, 1);
		while (atomic_load(&words->is_disk_held))
			usleep(1000);
	}
	return next(fd, bytes, size, at);
}

FILE *open_memstream(char **text, size_t *size)
{
	FILE *(*next)(char **, size_t *) = (__typeof__(next))dlsym(RTLD_NEXT, "open_memstream");

	if (atomic_load(&words->are_texts_held) &&
	    !strcmp(program_invocation_short_name, "gpucrfs")) {
		atomic_fetch_add(&words->held_texts, 1);
		while (atomic_load(&words->are_texts_held))
			usleep(1000);
	}
	return next(text, size);
}
