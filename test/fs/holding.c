/* SPDX-License-Identifier: MIT */
/*
 * holding: preloaded into the daemon, it holds up the thread that answers a statfs(2), and makes
 * its watchdog believe that time has passed. The file that GPUCR_TEST_HOLDING names has two numbers
 * of 64 bits: while the first is not 0 the thread stays; the second is by how many seconds the
 * monotonic clock is ahead, for the watchdog's thread alone.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
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
