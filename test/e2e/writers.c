/* SPDX-License-Identifier: MIT */
/*
 * writers: a program whose threads count in managed memory all the time, each in its own words, and
 * check that each word has the thread's last count. Other threads start, count once and end; one
 * thread calls read(2) into such memory and write(2) from it (the FIFOs of the two arguments); the
 * GPU changes its own part. Prints `pid N`, then `tick K ok`; exits with status 1 at the first
 * wrong word.
 *
 * With `signals` as the third argument, the program handles a signal every millisecond, and has
 * children that end all the time; with `quiet` the program does not call the driver after its first
 * tick. SIGUSR1 has a handler that does nothing. The program runs on an AMD GPU if
 * GPUCR_TEST_VENDOR is `hip`.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "test/e2e/vendor.h"

#define WRITERS	  3
#define BLOCKS	  5
#define STEP	  13001	     /* words from a writer's word to its next */
#define OTHERS	  16	     /* words at the start for other threads */
#define GPU_BYTES (64 << 10) /* the GPU's part, at each block's end */

#define CALLS(X)                    \
	X(cuInit)                   \
	X(cuDevicePrimaryCtxRetain) \
	X(cuCtxSetCurrent)          \
	X(cuMemAllocManaged)        \
	X(cuMemsetD32_v2)           \
	X(cuMemcpyDtoH_v2)          \
	X(cuCtxSynchronize)

#define MEMBER(name) __typeof__(name) *name;
static struct {
	CALLS(MEMBER)
} driver;

#define CALL(name, ...)                                                   \
	do {                                                              \
		CUresult result_ = driver.name(__VA_ARGS__);              \
		if (result_) {                                            \
			fprintf(stderr, "%s: %d\n", #name, (int)result_); \
			exit(1);                                          \
		}                                                         \
	} while (0)

static const size_t sizes[BLOCKS] = {200704, 131072, 3 << 20, 33 << 20, 70000};
static volatile uint64_t *blocks[BLOCKS];
static atomic_ulong rounds[WRITERS], visits;

static void wrong(const char *what, unsigned long found, unsigned long expected)
{
	fprintf(stderr, "%s: %lu, not %lu\n", what, found, expected);
	exit(1);
}

static void *write_on(void *argument)
{
	size_t index = (size_t)(uintptr_t)argument;
	uint64_t count = 0;

	for (;; count++) {
		for (int i = 0; i < BLOCKS; i++) {
			size_t end = (sizes[i] - GPU_BYTES) / sizeof(uint64_t);

			for (size_t at = OTHERS + index; at < end; at += STEP) {
				if (blocks[i][at] != count)
					wrong("a word", blocks[i][at], count);
				blocks[i][at] = count + 1;
			}
		}
		atomic_fetch_add(&rounds[index], 1);
		/* Each writer sleeps at a different rate; the processors are for others too. */
		if (count % (8 * (index + 1)) == 0)
			usleep(3000);
	}
	return NULL;
}

static void *visit(void *argument)
{
	volatile uint64_t *word = &blocks[0][1];

	if (*word != atomic_load(&visits))
		wrong("the visitors' word", *word, atomic_load(&visits));
	*word += 1;
	atomic_fetch_add(&visits, 1);
	return argument;
}

static void *send_visitors(void *argument)
{
	pthread_t thread;

	while (pthread_create(&thread, NULL, visit, NULL) == 0) {
		pthread_join(thread, NULL);
		usleep(2000);
	}
	return argument;
}

static void do_nothing(int number)
{
}

static void *have_children(void *argument)
{
	pid_t pid;

	while ((pid = fork()) >= 0) {
		if (pid == 0)
			_exit(0);
		waitpid(pid, NULL, 0);
		usleep(5000);
	}
	return argument;
}

static void expect_signals(bool all_the_time)
{
	const struct itimerval timer = {.it_interval = {.tv_usec = 1000},
					.it_value = {.tv_usec = 1000}};
	struct sigaction action = {.sa_handler = do_nothing, .sa_flags = SA_RESTART};

	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	if (all_the_time)
		setitimer(ITIMER_REAL, &timer, NULL);
}

static int fifos[2];

static void *echo(void *argument)
{
	char *buffer = (char *)(uintptr_t)&blocks[3][2];
	ssize_t length;

	while ((length = read(fifos[0], buffer, 64)) > 0)
		if (write(fifos[1], buffer, (size_t)length) != length)
			break;
	fputs("the FIFOs have ended\n", stderr);
	exit(1);
	return argument;
}

static void open_driver(void)
{
	vendor_open();
#define LOOK_UP(name) driver.name = (__typeof__(name) *)vendor_find(#name);
	CALLS(LOOK_UP)
}

static void start(void *(*function)(void *), size_t argument)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, function, (void *)(uintptr_t)argument)) {
		fputs("no thread\n", stderr);
		exit(1);
	}
}

static void change_gpu_part(int index, uint32_t tick)
{
	CUdeviceptr part = (CUdeviceptr)(uintptr_t)blocks[index] + sizes[index] - GPU_BYTES;
	uint32_t words[GPU_BYTES / sizeof(uint32_t)];

	CALL(cuMemcpyDtoH_v2, words, part, sizeof(words));
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (words[i] != (tick > BLOCKS ? tick - BLOCKS : 0))
			wrong("the GPU's words", words[i], tick - BLOCKS);
	CALL(cuMemsetD32_v2, part, tick, sizeof(words) / sizeof(words[0]));
	CALL(cuCtxSynchronize);
}

int main(int argc, char **argv)
{
	CUcontext context;
	bool has_signals, is_quiet;

	if (argc < 3)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	fifos[0] = open(argv[1], O_RDWR | O_CLOEXEC);
	fifos[1] = open(argv[2], O_RDWR | O_CLOEXEC);
	open_driver();
	CALL(cuInit, 0);
	CALL(cuDevicePrimaryCtxRetain, &context, 0);
	CALL(cuCtxSetCurrent, context);
	for (int i = 0; i < BLOCKS; i++) {
		CUdeviceptr pointer;

		CALL(cuMemAllocManaged, &pointer, sizes[i], CU_MEM_ATTACH_GLOBAL);
		CALL(cuMemsetD32_v2, pointer, 0, sizes[i] / sizeof(uint32_t));
		CALL(cuCtxSynchronize);
		blocks[i] = (volatile uint64_t *)(uintptr_t)pointer;
	}
	for (size_t i = 0; i < WRITERS; i++)
		start(write_on, i);
	start(send_visitors, 0);
	start(echo, 0);
	has_signals = argc > 3 && strcmp(argv[3], "signals") == 0;
	is_quiet = argc > 3 && strcmp(argv[3], "quiet") == 0;
	expect_signals(has_signals);
	if (has_signals)
		start(have_children, 0);
	printf("pid %ld\n", (long)getpid());
	for (uint32_t tick = 1;; tick++) {
		unsigned long before[WRITERS], visits_before = atomic_load(&visits);

		for (int i = 0; i < WRITERS; i++)
			before[i] = atomic_load(&rounds[i]);
		if (!is_quiet)
			change_gpu_part((int)(tick % BLOCKS), tick);
		/* Each tick waits until all writers have made progress. */
		for (int i = 0; i < WRITERS; i++)
			while (atomic_load(&rounds[i]) == before[i])
				usleep(1000);
		while (atomic_load(&visits) == visits_before)
			usleep(1000);
		printf("tick %u ok\n", tick);
		usleep(4000);
	}
}
