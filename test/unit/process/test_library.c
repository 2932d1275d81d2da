/* SPDX-License-Identifier: MIT */
/*
 * fs/process/library.c: the vendor of a page found in a process, and a library that ends while it
 * is taken. This program is the process.
 */
#include "fs/process/library.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fs/base/loop.h"
#include "fs/base/quota.h"
#include "fs/daemon.h"
#include "lib/page.h"
#include "lib/proc_source.h"
#include "lib/protocol.h"
#include "test/unit/test.h"

static struct gcr_daemon served;
static struct gcr_process process;

/* Make a page like a library with @flags does. */
static struct gcr_page *make_page(uint32_t flags, uint64_t device_bytes)
{
	int fd = memfd_create(GCR_PAGE_NAME, MFD_CLOEXEC);
	struct gcr_page *page;

	CHECK(fd >= 0 && ftruncate(fd, sizeof(*page)) == 0);
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	close(fd);
	page->magic = GCR_PAGE_MAGIC;
	page->version = GCR_PAGE_VERSION;
	page->phase = GCR_PRELOAD_RUNNING;
	page->flags = flags;
	page->device_bytes = device_bytes;
	return page;
}

static void drop_page(struct gcr_page *page)
{
	CHECK(munmap(page, sizeof(*page)) == 0);
}

/* Is the page of @backend's library found, with @device_bytes? */
static bool finds(const struct gcr_backend *backend, uint64_t device_bytes)
{
	struct gcr_page_facts facts;
	bool is_due;
	int result;

	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		if (served.vendors[i].backend == backend)
			process.vendor = &served.vendors[i];
	is_due = gcr_library_is_due(&process);
	result = gcr_library_facts_unconnected(&process, &facts);
	CHECK(result == 0 || result == -ENOTCONN);
	CHECK(is_due == !result);
	return !result && facts.device_bytes == device_bytes;
}

/* A page is found for the backend of its library only. */
static void test_whose(uint32_t flags, const struct gcr_backend *its,
		       const struct gcr_backend *others)
{
	struct gcr_page *page = make_page(flags | GCR_PAGE_VMM, 1 << 20);

	CHECK(finds(its, 1 << 20));
	CHECK(!finds(others, 1 << 20));
	drop_page(page);
	CHECK(!finds(its, 1 << 20));
}

/* Each library's page is found, in either order in the maps. */
static void test_both(void)
{
	for (int order = 0; order < 2; order++) {
		struct gcr_page *first = make_page(order ? GCR_PAGE_HIP : 0, order ? 2 : 1);
		struct gcr_page *second = make_page(order ? 0 : GCR_PAGE_HIP, order ? 1 : 2);

		CHECK(finds(&gcr_backend_cuda, 1));
		CHECK(finds(&gcr_backend_hip, 2));
		drop_page(first);
		drop_page(second);
	}
}

/* A page of an unknown version may be any vendor's: the result is EPROTO. */
static void test_of_another_version(void)
{
	struct gcr_page *page = make_page(0, 1);
	struct gcr_page_facts facts;

	page->version = GCR_PAGE_VERSION + 1;
	process.vendor = &served.vendors[0];
	CHECK(gcr_library_is_due(&process));
	CHECK(gcr_library_facts_unconnected(&process, &facts) == -EPROTO);
	drop_page(page);
}

/* ---- the loop ---- */

#define DROPPED 7 /* the number of the connection */

static atomic_int dropped_heard;
static sem_t heard;

static void hear(void *nothing, uint32_t number)
{
	uint64_t count;

	if (number == DROPPED)
		atomic_fetch_add(&dropped_heard, 1);
	else if (read((int)number, &count, sizeof(count)) == sizeof(count))
		sem_post(&heard);
}

/* Wait until the loop has handled all events that were ready before. */
static void wait_for_loop(void)
{
	int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	uint64_t one = 1;

	CHECK(event >= 0 &&
	      !gcr_loop_add(served.loop, event, GCR_LOOP_CONNECTION, (uint32_t)event));
	CHECK(write(event, &one, sizeof(one)) == sizeof(one));
	CHECK(!sem_wait(&heard));
	gcr_loop_remove(served.loop, event);
	close(event);
}

/*
 * Connects a library of this process's, of which @owner is the owner and the program's code is
 * @moved bytes from where it really is; the loop watches its connection, of which @ends are the
 * ends.
 */
static struct gcr_library *connect_library(uid_t owner, uint64_t moved, int ends[2])
{
	struct gcr_register registration = {.phase = GCR_PRELOAD_RUNNING};
	struct gcr_page_facts facts = {0};
	struct gcr_proc_program program;
	struct gcr_library *library;

	CHECK(!gcr_loop_create(&served.loop));
	gcr_loop_handle(served.loop, GCR_LOOP_CONNECTION, hear, NULL);
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
	CHECK(!gcr_proc_program(getpid(), &program));
	program.start_code += moved;
	CHECK(!gcr_library_create(&process, ends[0], DROPPED, &program, owner, &registration,
				  memfd_create("page", MFD_CLOEXEC), &facts, &library));
	return library;
}

/*
 * A connection that ends while its library is taken is no longer watched, whether the library is
 * given back or not.
 */
static void test_dropped_while_taken(void)
{
	struct gcr_quota_charge charge = {0};
	struct gcr_library *library, *taken;
	struct gcr_error error;
	int ends[2];

	CHECK(!sem_init(&heard, 0, 0));
	library = connect_library(geteuid(), 0, ends);
	CHECK(!gcr_loop_add(served.loop, ends[0], GCR_LOOP_CONNECTION, DROPPED));
	CHECK(!gcr_library_take(&process, 0, &taken, &error) && taken == library);
	gcr_library_ref(library);
	gcr_library_end(library, &charge);
	close(ends[1]);
	gcr_library_put(taken);
	wait_for_loop();
	wait_for_loop();
	CHECK(!atomic_load(&dropped_heard));
	gcr_library_unref(library);
	gcr_loop_stop(served.loop);
	gcr_loop_destroy(served.loop);
	sem_destroy(&heard);
}

/*
 * A connection that another process has kept open does not speak for the program that its own
 * process has got by execve(2): neither for a verb that begins then, nor for one under way.
 */
static void test_of_another_program(void)
{
	struct gcr_quota_charge charge = {0};
	struct gcr_message message = {0};
	struct gcr_library *library;
	struct gcr_error error;
	int ends[2];

	library = connect_library(geteuid(), 4096, ends);
	CHECK(gcr_message_send(ends[1], GCR_MESSAGE_RESULT, 0, NULL, 0, NULL, 0) == 0);
	CHECK(gcr_library_receive(library, 0, &message) == -EPIPE);
	CHECK(!gcr_library_is_live(&process));
	CHECK(gcr_library_take(&process, 0, &library, &error) == -ENOTCONN);
	CHECK(recv(ends[1], &message, sizeof(message), MSG_DONTWAIT) == 0);
	gcr_library_end(library, &charge);
	close(ends[1]);
	gcr_loop_stop(served.loop);
	gcr_loop_destroy(served.loop);
}

static int read_of_silent(pid_t pid, const char *name, char **ret_text, size_t *ret_bytes)
{
	return -EBUSY;
}

static const struct gcr_proc_source silent = {.read = read_of_silent};

/*
 * The program of a process that does not let itself be looked at is taken for the same only if the
 * process has the same owner.
 */
static void test_of_another_owner(uid_t owner, int expected)
{
	struct gcr_quota_charge charge = {0};
	struct gcr_message message = {0};
	struct gcr_proc_program program;
	struct gcr_library *library;
	int ends[2];

	library = connect_library(owner, 0, ends);
	gcr_proc_set_source(&silent);
	CHECK(gcr_proc_program(getpid(), &program) == -EBUSY);
	CHECK(gcr_message_send(ends[1], GCR_MESSAGE_RESULT, 0, NULL, 0, NULL, 0) == 0);
	CHECK(gcr_library_receive(library, 0, &message) == expected);
	CHECK(gcr_library_is_live(&process) == !expected);
	gcr_proc_set_source(NULL);
	gcr_library_end(library, &charge);
	close(ends[1]);
	gcr_loop_stop(served.loop);
	gcr_loop_destroy(served.loop);
}

int main(void)
{
	pthread_mutex_init(&process.lock, NULL);
	atomic_init(&process.references, 1);
	process.pid = getpid();
	process.pidfd = -1;
	process.daemon = &served;
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		served.vendors[i] =
			(struct gcr_vendor){.backend = gcr_backends[i], .index = (unsigned int)i};
	test_whose(0, &gcr_backend_cuda, &gcr_backend_hip);
	test_whose(GCR_PAGE_HIP, &gcr_backend_hip, &gcr_backend_cuda);
	test_both();
	test_of_another_version();
	test_dropped_while_taken();
	test_of_another_program();
	test_of_another_owner(geteuid(), 0);
	test_of_another_owner(geteuid() + 1, -EPIPE);
	return 0;
}
