/* SPDX-License-Identifier: MIT */
/*
 * Descriptors moved to high numbers, away from the program's, under different limits; and programs
 * that close or replace them.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/preload/base/descriptor.h"
#include "test/unit/test.h"

static rlim_t hard_limit;

static int open_null(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	return fd;
}

static void limit(rlim_t soft, rlim_t hard)
{
	struct rlimit limits = {.rlim_cur = soft, .rlim_max = hard};

	CHECK(setrlimit(RLIMIT_NOFILE, &limits) == 0);
}

static void expect_limit(rlim_t soft, rlim_t hard)
{
	struct rlimit limits;

	CHECK(getrlimit(RLIMIT_NOFILE, &limits) == 0);
	CHECK(limits.rlim_cur == soft && limits.rlim_max == hard);
}

static struct gcr_descriptor keep_one(void)
{
	int fd = open_null();
	struct gcr_descriptor descriptor;

	CHECK(gcr_descriptor_keep(fd, &descriptor) == 0);
	CHECK(fcntl(descriptor.fd, F_GETFD) == FD_CLOEXEC);
	CHECK(gcr_descriptor_valid(&descriptor));
	return descriptor;
}

static void test_numbers(void)
{
	struct gcr_descriptor one, other;
	int low = open_null();

	limit(256, hard_limit);
	CHECK(gcr_descriptor_keep(low, &one) == 0);
	CHECK(fcntl(low, F_GETFD) < 0 && errno == EBADF);
	gcr_descriptor_close(&one);
	one = keep_one();
	CHECK(one.fd >= FD_SETSIZE);
	expect_limit(256, hard_limit);
	limit(2048, hard_limit);
	other = keep_one();
	CHECK(other.fd >= 2048);
	expect_limit(2048, hard_limit);
	gcr_descriptor_close(&one);
	gcr_descriptor_close(&other);
	CHECK(one.fd == -1 && other.fd == -1);
	gcr_descriptor_close(&one);
	CHECK(!gcr_descriptor_valid(&one));
}

/* 100 descriptors, with a hard limit that leaves just enough room. */
static void test_room(void)
{
	struct gcr_descriptor descriptors[100];
	int fd;

	limit(1100, 1124);
	for (size_t i = 0; i < 100; i++) {
		descriptors[i] = keep_one();
		CHECK(descriptors[i].fd >= FD_SETSIZE);
	}
	fd = open_null();
	CHECK(gcr_descriptor_keep(fd, &(struct gcr_descriptor){0}) == -EMFILE);
	CHECK(fcntl(fd, F_GETFD) < 0);
	expect_limit(1100, 1124);
	for (size_t i = 0; i < 100; i++)
		gcr_descriptor_close(&descriptors[i]);
}

static void test_no_room(void)
{
	struct gcr_descriptor descriptor;
	int fd;

	limit(160, 160);
	fd = open_null();
	CHECK(gcr_descriptor_keep(fd, &descriptor) == -EMFILE);
	CHECK(gcr_descriptor_keep_anywhere(open_null(), &descriptor) == 0);
	CHECK(descriptor.fd >= 150);
	CHECK(gcr_descriptor_valid(&descriptor));
	gcr_descriptor_close(&descriptor);
	CHECK(gcr_descriptor_keep(-1, &descriptor) == -EBADF);
	CHECK(gcr_descriptor_keep_anywhere(-1, &descriptor) == -EBADF);
	expect_limit(160, 160);
}

/* The program closes descriptors it does not know, and reuses the number for its own file. */
static void test_taken(void)
{
	struct gcr_descriptor descriptor;
	int number, pipes[2];

	limit(256, hard_limit);
	descriptor = keep_one();
	number = descriptor.fd;
	close(number);
	CHECK(!gcr_descriptor_valid(&descriptor));
	CHECK(pipe(pipes) == 0);
	limit(hard_limit, hard_limit);
	CHECK(dup2(pipes[0], number) == number);
	CHECK(!gcr_descriptor_valid(&descriptor));
	gcr_descriptor_close(&descriptor);
	CHECK(fcntl(number, F_GETFD) >= 0);
	close(number);
}

static atomic_bool ended;

static void *keep_many(void *argument)
{
	while (!atomic_load(&ended)) {
		struct gcr_descriptor descriptor = keep_one();

		gcr_descriptor_close(&descriptor);
	}
	return NULL;
}

/* A child inherits its parent's limit, whenever the fork happens, and keeps running. */
static void test_fork(void)
{
	pthread_t threads[2];

	limit(256, hard_limit);
	for (size_t i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, keep_many, NULL) == 0);
	for (int i = 0; i < 300; i++) {
		int status;
		pid_t pid;

		gcr_descriptor_before_fork();
		pid = fork();

		CHECK(pid >= 0);
		if (pid == 0) {
			struct gcr_descriptor descriptor;

			gcr_descriptor_forget();
			expect_limit(256, hard_limit);
			descriptor = keep_one();
			expect_limit(256, hard_limit);
			gcr_descriptor_close(&descriptor);
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	}
	atomic_store(&ended, true);
	for (size_t i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	expect_limit(256, hard_limit);
}

int main(void)
{
	struct rlimit limits;

	CHECK(getrlimit(RLIMIT_NOFILE, &limits) == 0);
	hard_limit = limits.rlim_max;
	if (hard_limit < 4096)
		SKIP("the hard limit of descriptors is below 4096");
	test_numbers();
	test_taken();
	test_fork();
	test_room();
	test_no_room();
	return 0;
}
