/* SPDX-License-Identifier: MIT */
/* fs/process/scan.c: a temporary file stands for the device, and children open and close it. */
#include "fs/process/scan.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/procfs.h"
#include "test/unit/idle_thread.h"
#include "test/unit/test.h"

/* Far longer than a pass lasts, for a machine under load. */
#define PATIENCE_SEC  20
#define PATIENCE_USEC (PATIENCE_SEC * GCR_USEC_PER_SEC)

static char directory[] = "/tmp/gcr-scan-XXXXXX";
static char device[64];

/* The result of the last pass. */
struct watcher {
	pthread_mutex_t lock;
	pthread_cond_t change;
	struct gcr_scan_holder holders[256];
	size_t count;
	unsigned int passes;
	int64_t slow_usec; /* what the pass spent on looks at slow processes */
	atomic_int inside;
	_Atomic pid_t ignored;
};

/* The time that looks at slow processes took on this thread, since the end of its last pass. */
static _Thread_local int64_t slow_usec;

static void pass(const struct gcr_scan_holder *holders, size_t count, void *data)
{
	struct watcher *watcher = data;

	CHECK(atomic_fetch_add(&watcher->inside, 1) == 0); /* passes never overlap */
	CHECK(count <= GCR_ARRAY_SIZE(watcher->holders));
	for (size_t i = 1; i < count; i++)
		CHECK(holders[i - 1].pid < holders[i].pid);
	pthread_mutex_lock(&watcher->lock);
	if (count)
		memcpy(watcher->holders, holders, count * sizeof(*holders));
	watcher->count = count;
	watcher->passes++;
	watcher->slow_usec = slow_usec;
	slow_usec = 0;
	pthread_cond_broadcast(&watcher->change);
	pthread_mutex_unlock(&watcher->lock);
	atomic_fetch_sub(&watcher->inside, 1);
}

static bool ignore(pid_t pid, void *data)
{
	struct watcher *watcher = data;

	return pid == watcher->ignored;
}

static bool holds(struct watcher *watcher, pid_t pid)
{
	bool found = false;

	pthread_mutex_lock(&watcher->lock);
	for (size_t i = 0; i < watcher->count; i++)
		found |= watcher->holders[i].pid == pid;
	pthread_mutex_unlock(&watcher->lock);
	return found;
}

static int64_t last_slow_usec(struct watcher *watcher)
{
	GCR_LOCK_SCOPE(&watcher->lock);

	return watcher->slow_usec;
}

static unsigned int passes(struct watcher *watcher)
{
	unsigned int count;

	pthread_mutex_lock(&watcher->lock);
	count = watcher->passes;
	pthread_mutex_unlock(&watcher->lock);
	return count;
}

static void wait_until(struct watcher *watcher, pid_t pid, bool held)
{
	struct timespec deadline;

	clock_gettime(CLOCK_MONOTONIC, &deadline);
	deadline.tv_sec += PATIENCE_SEC;
	while (holds(watcher, pid) != held) {
		pthread_mutex_lock(&watcher->lock);
		CHECK(pthread_cond_clockwait(&watcher->change, &watcher->lock, CLOCK_MONOTONIC,
					     &deadline) == 0);
		pthread_mutex_unlock(&watcher->lock);
	}
}

static struct gcr_scan *start(struct watcher *watcher, uid_t only_uid)
{
	struct gcr_scan_config config = {
		.devices = {{.path = device}},
		.only_uid = only_uid,
		.ignore = ignore,
		.pass = pass,
		.data = watcher,
	};
	struct gcr_scan *scan;

	*watcher = (struct watcher){.lock = PTHREAD_MUTEX_INITIALIZER,
				    .change = PTHREAD_COND_INITIALIZER};
	CHECK(gcr_scan_create(&config, &scan) == 0);
	return scan;
}

struct child {
	pid_t pid;
	int command; /* 'o' open and map the device, 'n' only open it, 'c' close it, 'e' end */
	int answer;
};

static struct child start_child(void)
{
	struct child child;
	int command[2];
	int answer[2];

	CHECK(pipe2(command, O_CLOEXEC) == 0 && pipe2(answer, O_CLOEXEC) == 0);
	child.pid = fork();
	CHECK(child.pid >= 0);
	if (child.pid == 0) {
		void *mapping = MAP_FAILED;
		int fd = -1;
		char byte;

		close(command[1]);
		close(answer[0]);
		while (read(command[0], &byte, 1) == 1 && byte != 'e') {
			if (byte == 'o' || byte == 'n')
				fd = open(device, O_RDWR);
			if (byte == 'o')
				mapping = mmap(NULL, 4096, PROT_NONE, MAP_SHARED, fd, 0);
			if (byte == 'c') {
				if (mapping != MAP_FAILED)
					munmap(mapping, 4096);
				mapping = MAP_FAILED;
				close(fd);
			}
			if (write(answer[1], &byte, 1) != 1)
				break;
		}
		_exit(0);
	}
	close(command[0]);
	close(answer[1]);
	child.command = command[1];
	child.answer = answer[0];
	return child;
}

static void tell(struct child child, char command)
{
	CHECK(write(child.command, &command, 1) == 1);
	CHECK(read(child.answer, &command, 1) == 1);
}

static void end_child(struct child child)
{
	CHECK(write(child.command, "e", 1) == 1);
	close(child.command);
	CHECK(waitpid(child.pid, NULL, 0) == child.pid);
	close(child.answer);
}

static void make_device(void)
{
	close(open(device, O_CREAT | O_RDWR | O_CLOEXEC, 0666));
}

/* A process that only queries figures (NVML) opens the device and never maps it. */
static void test_open_is_not_enough(void)
{
	struct watcher watcher;
	struct child child = start_child();
	struct gcr_scan *scan = start(&watcher, (uid_t)-1);

	tell(child, 'n');
	CHECK(gcr_scan_probe(scan, child.pid, NULL) == 0);
	tell(child, 'c');
	tell(child, 'o');
	CHECK(gcr_scan_probe(scan, child.pid, NULL) == 1);
	end_child(child);
	gcr_scan_destroy(scan);
}

static void test_now(void)
{
	struct child child = start_child();
	struct child other = start_child();
	struct gcr_proc_stat stat;
	struct watcher watcher;
	struct gcr_scan *scan = start(&watcher, (uid_t)-1);
	struct gcr_scan_holder holder = {0};

	CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0);
	CHECK(!holds(&watcher, child.pid));
	CHECK(gcr_scan_probe(scan, child.pid, NULL) == 0);
	tell(child, 'o');
	CHECK(gcr_scan_probe(scan, child.pid, &holder) == 1);
	CHECK(gcr_proc_stat(child.pid, &stat) == 0 && stat.start_ticks == holder.start_ticks);
	CHECK(holder.pid == child.pid && holder.devices == 1);
	CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0);
	CHECK(holds(&watcher, child.pid) && !holds(&watcher, other.pid));
	CHECK(watcher.holders[0].start_ticks == holder.start_ticks);

	tell(other, 'o');
	watcher.ignored = other.pid;
	CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0);
	CHECK(holds(&watcher, child.pid) && !holds(&watcher, other.pid));
	CHECK(gcr_scan_probe(scan, other.pid, NULL) == 0);

	tell(child, 'c');
	CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0);
	CHECK(!holds(&watcher, child.pid));
	end_child(child);
	CHECK(gcr_scan_probe(scan, child.pid, NULL) == -ESRCH);
	gcr_scan_destroy(scan);
	end_child(other);
}

static void test_watch(void)
{
	struct child child = start_child();
	struct watcher watcher;
	struct gcr_scan *scan = start(&watcher, (uid_t)-1);

	CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0);
	tell(child, 'o');
	wait_until(&watcher, child.pid, true);
	tell(child, 'c');
	wait_until(&watcher, child.pid, false);
	tell(child, 'o');
	wait_until(&watcher, child.pid, true);
	end_child(child); /* a process that ends closes the device too */
	wait_until(&watcher, child.pid, false);
	gcr_scan_destroy(scan);
}

static void test_replaced(void)
{
	struct child child = start_child();
	struct watcher watcher;
	struct gcr_scan *scan;

	CHECK(unlink(device) == 0);
	scan = start(&watcher, (uid_t)-1);
	CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0);
	for (int round = 0; round < 2; round++) {
		make_device();
		tell(child, 'o');
		wait_until(&watcher, child.pid, true);
		tell(child, 'c');
		wait_until(&watcher, child.pid, false);
		CHECK(unlink(device) == 0);
	}
	make_device();
	end_child(child);
	gcr_scan_destroy(scan);
}

static void test_storm(void)
{
	struct child child = start_child();
	struct watcher watcher;
	struct gcr_scan *scan = start(&watcher, (uid_t)-1);
	int64_t end_usec;
	unsigned int before;
	unsigned int made;

	CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0);
	before = passes(&watcher);
	end_usec = gcr_clock_usec() + GCR_USEC_PER_SEC;
	while (gcr_clock_usec() < end_usec) {
		tell(child, 'o');
		tell(child, 'c');
	}
	made = passes(&watcher) - before;
	/*
	 * Passes are at least 250 ms apart; the upper bound only holds if this thread was not
	 * delayed.
	 */
	CHECK(made >= 1 && made <= 7);
	tell(child, 'o');
	wait_until(&watcher, child.pid, true);
	gcr_scan_destroy(scan);
	end_child(child);
}

static void *scan_often(void *data)
{
	for (int i = 0; i < 50; i++)
		CHECK(gcr_scan_now(data, PATIENCE_USEC) == 0);
	return NULL;
}

static void test_sharing(void)
{
	struct child child = start_child();
	struct watcher watcher;
	struct gcr_scan *scan = start(&watcher, (uid_t)-1);
	pthread_t threads[8];
	unsigned int before = passes(&watcher);

	for (size_t i = 0; i < GCR_ARRAY_SIZE(threads); i++)
		CHECK(pthread_create(&threads[i], NULL, scan_often, scan) == 0);
	/* A change made before the call is always seen, whichever thread makes the pass. */
	for (int i = 0; i < 20; i++) {
		tell(child, 'o');
		CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0);
		CHECK(holds(&watcher, child.pid));
		tell(child, 'c');
		CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0);
		CHECK(!holds(&watcher, child.pid));
	}
	for (size_t i = 0; i < GCR_ARRAY_SIZE(threads); i++)
		pthread_join(threads[i], NULL);
	CHECK(passes(&watcher) - before <= 8 * 50 + 40 + 20);
	gcr_scan_destroy(scan);
	end_child(child);
}

static void test_user(void)
{
	struct child child = start_child();
	struct watcher watcher;
	struct gcr_scan *scan;

	tell(child, 'o');
	scan = start(&watcher, geteuid());
	CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0 && holds(&watcher, child.pid));
	gcr_scan_destroy(scan);
	scan = start(&watcher, geteuid() + 1);
	CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0 && !holds(&watcher, child.pid));
	CHECK(gcr_scan_probe(scan, child.pid, NULL) == 0);
	gcr_scan_destroy(scan);
	end_child(child);
}

static void test_thread(void)
{
	struct idle_thread thread;
	struct watcher watcher;
	struct gcr_scan *scan = start(&watcher, (uid_t)-1);
	void *mapping;
	int fd;

	idle_thread_start(&thread);
	fd = open(device, O_RDWR | O_CLOEXEC);
	mapping = mmap(NULL, 4096, PROT_NONE, MAP_SHARED, fd, 0);
	CHECK(mapping != MAP_FAILED);
	CHECK(gcr_scan_probe(scan, getpid(), NULL) == 1);
	CHECK(gcr_scan_probe(scan, thread.id, NULL) == 0);
	munmap(mapping, 4096);
	close(fd);
	idle_thread_end(&thread);
	gcr_scan_destroy(scan);
}

/* Two devices in one directory: for one of them, mappings of other files count. */
static void test_two_devices(void)
{
	static const char *const mapped[] = {"kfd", "dri/renderD", NULL};
	struct watcher watcher = {.lock = PTHREAD_MUTEX_INITIALIZER,
				  .change = PTHREAD_COND_INITIALIZER};
	char kfd[128], folder[128], render[160], card[160];
	struct gcr_scan_holder holder = {0};
	struct gcr_scan *scan;
	void *mapping, *other;
	int fd, render_fd;

	snprintf(kfd, sizeof(kfd), "%s/kfd", directory);
	snprintf(folder, sizeof(folder), "%s/dri", directory);
	snprintf(render, sizeof(render), "%s/renderD128", folder);
	snprintf(card, sizeof(card), "%s/renderDcard", folder);
	CHECK(mkdir(folder, 0755) == 0);
	CHECK(gcr_scan_create(
		      &(struct gcr_scan_config){
			      .devices = {{.path = device, .sibling = "nvidia"},
					  {.path = kfd, .mapped = mapped}},
			      .only_uid = (uid_t)-1,
			      .pass = pass,
			      .data = &watcher,
		      },
		      &scan) == 0);
	/* The device appears later, and is watched from then on. */
	fd = open(kfd, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
	CHECK(fd >= 0 && gcr_scan_probe(scan, getpid(), NULL) == 0);
	render_fd = open(card, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
	mapping = mmap(NULL, 4096, PROT_NONE, MAP_SHARED, render_fd, 0);
	CHECK(mapping != MAP_FAILED && gcr_scan_probe(scan, getpid(), NULL) == 0);
	munmap(mapping, 4096);
	close(render_fd);
	render_fd = open(render, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
	mapping = mmap(NULL, 4096, PROT_NONE, MAP_SHARED, render_fd, 0);
	close(render_fd);
	CHECK(mapping != MAP_FAILED && gcr_scan_probe(scan, getpid(), &holder) == 1);
	CHECK(holder.devices == 2);
	wait_until(&watcher, getpid(), true);

	render_fd = open(device, O_RDWR | O_CLOEXEC);
	other = mmap(NULL, 4096, PROT_NONE, MAP_SHARED, render_fd, 0);
	CHECK(other != MAP_FAILED && gcr_scan_probe(scan, getpid(), &holder) == 1);
	CHECK(holder.devices == 3);
	munmap(mapping, 4096);
	CHECK(gcr_scan_probe(scan, getpid(), &holder) == 1 && holder.devices == 1);
	close(render_fd);
	close(fd);
	munmap(other, 4096);
	wait_until(&watcher, getpid(), false);
	gcr_scan_destroy(scan);
	CHECK(!unlink(render) && !unlink(card) && !rmdir(folder) && !unlink(kfd));
}

#define SLOW_COUNT 20
#define SLOW_OWNER 1001
#define SLOW_USEC  (120 * 1000)

static struct child slow[SLOW_COUNT];

static bool is_slow(pid_t pid)
{
	for (size_t i = 0; i < SLOW_COUNT; i++)
		if (slow[i].pid == pid)
			return true;
	return false;
}

static uid_t owner_of(pid_t pid)
{
	return is_slow(pid) ? SLOW_OWNER : SLOW_OWNER + 1;
}

static int look_slowly(pid_t pid, const struct gcr_scan_wanted *wanted, unsigned int *ret_devices,
		       uint64_t *ret_start_ticks)
{
	if (is_slow(pid)) {
		usleep(SLOW_USEC);
		slow_usec += SLOW_USEC;
	}
	return gcr_scan_look(pid, wanted, ret_devices, ret_start_ticks);
}

static bool all_slow(struct watcher *watcher, bool held)
{
	for (size_t i = 0; i < SLOW_COUNT; i++)
		if (holds(watcher, slow[i].pid) != held)
			return false;
	return true;
}

/*
 * Makes passes until all processes of one owner are known; no pass looks at all of them, since the
 * owner has no more than his share of its time. How long a pass takes depends on what else runs on
 * the machine.
 */
static void await_all_slow(struct gcr_scan *scan, struct watcher *watcher, struct child other,
			   bool held)
{
	int64_t end_usec = gcr_clock_usec() + PATIENCE_USEC;

	while (!all_slow(watcher, held)) {
		CHECK(gcr_clock_usec() < end_usec);
		CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0);
		CHECK(last_slow_usec(watcher) < SLOW_COUNT / 2 * SLOW_USEC);
		CHECK(gcr_scan_put_off(scan) > 0);
		CHECK(holds(watcher, other.pid));
		usleep(20000);
	}
}

/*
 * One owner has a share of a pass; his remaining processes are seen later, and do not disappear in
 * between.
 */
static void test_shares(void)
{
	struct gcr_scan_config config = {
		.devices = {{.path = device}},
		.only_uid = (uid_t)-1,
		.look = look_slowly,
		.owner_of = owner_of,
		.pass = pass,
	};
	struct child other = start_child();
	struct watcher watcher = {.lock = PTHREAD_MUTEX_INITIALIZER,
				  .change = PTHREAD_COND_INITIALIZER};
	struct gcr_scan *scan;
	size_t unknown_count = 0;
	pid_t *unknown = NULL;

	for (size_t i = 0; i < SLOW_COUNT; i++) {
		slow[i] = start_child();
		tell(slow[i], 'o');
	}
	tell(other, 'o');
	config.data = &watcher;
	CHECK(gcr_scan_create(&config, &scan) == 0);
	CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0);
	CHECK(holds(&watcher, other.pid) && !all_slow(&watcher, true));
	CHECK(gcr_scan_unknown(scan, &unknown, &unknown_count) == 0 && unknown_count > 0);
	for (size_t i = 0; i < unknown_count; i++)
		CHECK(is_slow(unknown[i]));
	free(unknown);
	/* A deadline shorter than a pass. */
	CHECK(gcr_scan_now(scan, 1000) == -ETIMEDOUT);
	await_all_slow(scan, &watcher, other, true);
	CHECK(gcr_scan_now(scan, PATIENCE_USEC) == 0 && all_slow(&watcher, true));
	for (size_t i = 0; i < SLOW_COUNT; i++)
		tell(slow[i], 'c');
	await_all_slow(scan, &watcher, other, false);
	gcr_scan_destroy(scan);
	for (size_t i = 0; i < SLOW_COUNT; i++)
		end_child(slow[i]);
	end_child(other);
	memset(slow, 0, sizeof(slow));
}

static void test_create(void)
{
	struct gcr_scan_config config = {.devices = {{.path = "relative"}}, .pass = pass};
	struct watcher watcher;
	struct gcr_scan *scan;

	CHECK(gcr_scan_create(&config, &scan) == -EINVAL);
	gcr_scan_destroy(NULL);
	for (int i = 0; i < 20; i++)
		gcr_scan_destroy(start(&watcher, (uid_t)-1));
}

int main(void)
{
	CHECK(mkdtemp(directory) && chmod(directory, 0755) == 0);
	snprintf(device, sizeof(device), "%s/nvidia-uvm", directory);
	make_device();
	test_create();
	test_open_is_not_enough();
	test_now();
	test_watch();
	test_replaced();
	test_storm();
	test_sharing();
	test_shares();
	test_user();
	test_thread();
	test_two_devices();
	CHECK(unlink(device) == 0 && rmdir(directory) == 0);
	return 0;
}
