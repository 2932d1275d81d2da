/* SPDX-License-Identifier: MIT */
/*
 * A hold is private anonymous memory without pages. It is registered with userfaultfd(2) while no
 * other thread knows it, and then moved to its place by mremap(2), which removes the old mapping in
 * the same step. With UFFD_FEATURE_EVENT_REMAP the memory stays registered when moved, but the
 * kernel blocks the move until the report of it has been read. So while ranges are being held, a
 * thread reads the reports.
 */
#include "backend/preload/managed/hold.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/preload/base/descriptor.h"
#include "backend/preload/base/listener.h"
#include "lib/cleanup.h"
#include "lib/lock.h"
#include "lib/thread_name.h"

/* In linux/userfaultfd.h since Linux 6.1. */
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

static struct {
	struct gcr_descriptor descriptor; /* the userfaultfd */
	/* Does the reader, the thread that reads reports, exist? */
	bool is_read;
	pthread_t reader;
	struct gcr_descriptor stop; /* eventfd(2) */
	atomic_bool stops;	    /* for when the program has closed the eventfd */
	/* Held by the reader while it calls read_page. */
	pthread_mutex_t serving;
	int (*read_page)(uintptr_t page, void *data);
	atomic_bool is_touched; /* a thread touched a held page and got none */
	/* The held ranges, ordered by address; adjacent ones are merged. */
	struct gcr_hold_range *ranges;
	size_t count, room;
	/* Bounds of all addresses held since the descriptor was opened. */
	uintptr_t lowest, highest;
} hold = {
	.descriptor = {.fd = -1},
	.stop = {.fd = -1},
	.serving = PTHREAD_MUTEX_INITIALIZER,
};

/* ---- the list ---- */

int gcr_hold_expect(size_t count)
{
	size_t room = hold.room ? hold.room : 16;
	struct gcr_hold_range *longer;

	/* Removing a piece from the middle of a range makes two ranges of it. */
	if (hold.count + 2 * count <= hold.room)
		return 0;
	while (room < hold.count + 2 * count)
		room *= 2;
	longer = realloc(hold.ranges, room * sizeof(*longer));
	if (!longer)
		return -ENOMEM;
	hold.ranges = longer;
	hold.room = room;
	return 0;
}

static void insert_at(size_t index, uintptr_t start, uintptr_t end)
{
	if (start >= end || hold.count == hold.room)
		return;
	memmove(&hold.ranges[index + 1], &hold.ranges[index],
		(hold.count - index) * sizeof(hold.ranges[0]));
	hold.ranges[index] = (struct gcr_hold_range){.start = start, .bytes = end - start};
	hold.count++;
}

static void remove_at(size_t index)
{
	hold.count--;
	memmove(&hold.ranges[index], &hold.ranges[index + 1],
		(hold.count - index) * sizeof(hold.ranges[0]));
}

static void subtract(uintptr_t start, uintptr_t end)
{
	size_t i = 0;

	while (i < hold.count && hold.ranges[i].start + hold.ranges[i].bytes <= start)
		i++;
	while (i < hold.count && hold.ranges[i].start < end) {
		uintptr_t old_start = hold.ranges[i].start;
		uintptr_t old_end = old_start + hold.ranges[i].bytes;

		remove_at(i);
		if (old_end > end)
			insert_at(i, end, old_end);
		if (old_start < start) {
			insert_at(i, old_start, start);
			i++;
		}
		if (old_end > end)
			break;
	}
}

/* Adds a range to the list; the caller has made room for two more ranges. */
static void add(uintptr_t start, uintptr_t end)
{
	size_t i = 0;

	subtract(start, end);
	while (i < hold.count && hold.ranges[i].start + hold.ranges[i].bytes < start)
		i++;
	while (i < hold.count && hold.ranges[i].start <= end) {
		if (hold.ranges[i].start < start)
			start = hold.ranges[i].start;
		if (hold.ranges[i].start + hold.ranges[i].bytes > end)
			end = hold.ranges[i].start + hold.ranges[i].bytes;
		remove_at(i);
	}
	insert_at(i, start, end);
	if (!hold.lowest || start < hold.lowest)
		hold.lowest = start;
	if (end > hold.highest)
		hold.highest = end;
}

/* ---- userfaultfd ---- */

static int open_userfaultfd(struct gcr_error *error)
{
	_cleanup_close_ int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	_cleanup_close_ int device = -1;
	struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_REMAP};
	int r;

	if (fd < 0)
		device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (device >= 0)
		fd = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return gcr_error_set(
			error, EOPNOTSUPP,
			"it uses managed memory, and a thread that touches that while it is away "
			"could not be held up: that takes CAP_SYS_PTRACE, access to "
			"/dev/userfaultfd or vm.unprivileged_userfaultfd=1");
	if (ioctl(fd, UFFDIO_API, &api) < 0)
		return gcr_error_set(error, EOPNOTSUPP,
				     "it uses managed memory, and this kernel's userfaultfd lacks "
				     "what that takes: %s",
				     strerror(errno));
	r = gcr_descriptor_keep_anywhere(TAKE_FD(fd), &hold.descriptor);
	if (r < 0)
		return gcr_error_set(error, -r, "no room for a descriptor: %s", strerror(-r));
	return 0;
}

/* Gives the thread that touched @address the page, or lets the thread sleep if there is none. */
static void serve(uintptr_t address)
{
	static char data[GCR_HOLD_PAGE_BYTES] __attribute__((aligned(GCR_HOLD_PAGE_BYTES)));
	struct uffdio_copy copy = {
		.dst = address & ~(GCR_HOLD_PAGE_BYTES - 1),
		.src = (uintptr_t)data,
		.len = GCR_HOLD_PAGE_BYTES,
	};
	struct uffdio_range page = {.start = copy.dst, .len = copy.len};
	GCR_LOCK_SCOPE(&hold.serving);

	if (!hold.read_page || hold.read_page(copy.dst, data) < 0) {
		atomic_store(&hold.is_touched, true);
		return;
	}
	/* The page is present, or the mapping is being changed: the thread repeats its access. */
	if (ioctl(hold.descriptor.fd, UFFDIO_COPY, &copy) < 0)
		ioctl(hold.descriptor.fd, UFFDIO_WAKE, &page);
}

static void serve_all(const struct uffd_msg *messages, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (messages[i].event == UFFD_EVENT_PAGEFAULT)
			serve((uintptr_t)messages[i].arg.pagefault.address);
}

static void *read_reports(void *nothing)
{
	/* If the program has closed the eventfd, `stops` is polled at this interval. */
	static const struct timespec now_and_then = {.tv_nsec = 100000000};
	struct pollfd polls[2] = {
		{.fd = hold.stop.fd, .events = POLLIN},
		{.fd = hold.descriptor.fd, .events = POLLIN},
	};
	struct uffd_msg messages[16];
	ssize_t length;

	prctl(PR_SET_NAME, GCR_THREAD_HOLD);
	while (!atomic_load(&hold.stops)) {
		if (polls[1].revents & POLLIN) {
			length = read(polls[1].fd, messages, sizeof(messages));
			if (length < 0 && errno != EAGAIN && errno != EINTR)
				break;
			if (length > 0)
				serve_all(messages, (size_t)length / sizeof(messages[0]));
		}
		/* The program has closed the descriptor: end, or gcr_hold_pause() would block. */
		if (polls[1].revents & (POLLERR | POLLNVAL))
			break;
		if (polls[0].revents & ~POLLIN)
			polls[0].fd = -1;
		ppoll(polls, 2, polls[0].fd < 0 ? &now_and_then : NULL, NULL);
	}
	return NULL;
}

static int start_reader(void)
{
	int fd = eventfd(0, EFD_CLOEXEC), r;
	sigset_t all, before;

	if (fd < 0)
		return -errno;
	r = gcr_descriptor_keep_anywhere(fd, &hold.stop);
	if (r < 0)
		return r;
	atomic_store(&hold.stops, false);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = -pthread_create(&hold.reader, NULL, read_reports, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r < 0)
		gcr_descriptor_close(&hold.stop);
	return r;
}

int gcr_hold_begin(struct gcr_error *error)
{
	int r = 0;

	if (hold.is_read)
		return 0;
	if (hold.descriptor.fd < 0)
		r = open_userfaultfd(error);
	else if (!gcr_descriptor_valid(&hold.descriptor))
		r = gcr_error_set(error, EIO, "the program has closed a descriptor of ours");
	if (r < 0)
		return r;
	r = start_reader();
	if (r < 0)
		return gcr_error_set(error, -r, "cannot start a thread: %s", strerror(-r));
	hold.is_read = true;
	return 0;
}

void gcr_hold_pause(void)
{
	const uint64_t one = 1;

	if (!hold.is_read)
		return;
	atomic_store(&hold.stops, true);
	while (gcr_descriptor_valid(&hold.stop) && write(hold.stop.fd, &one, sizeof(one)) < 0 &&
	       errno == EINTR)
		;
	pthread_join(hold.reader, NULL);
	gcr_descriptor_close(&hold.stop);
	hold.is_read = false;
	hold.read_page = NULL;
}

void gcr_hold_serve(int (*read_page)(uintptr_t page, void *data))
{
	struct uffdio_range all = {.start = hold.lowest, .len = hold.highest - hold.lowest};

	pthread_mutex_lock(&hold.serving);
	hold.read_page = read_page;
	pthread_mutex_unlock(&hold.serving);
	/* Threads that were reported earlier wake, touch the page and are reported again. */
	if (read_page && all.len && gcr_descriptor_valid(&hold.descriptor))
		ioctl(hold.descriptor.fd, UFFDIO_WAKE, &all);
}

bool gcr_hold_is_touched(void)
{
	struct pollfd reports = {.fd = gcr_hold_touch_fd(), .events = POLLIN};
	struct timespec at_once = {0};

	/* The report stays unread; gcr_hold_serve() makes all threads report again. */
	if (reports.fd >= 0 && ppoll(&reports, 1, &at_once, NULL) > 0)
		atomic_store(&hold.is_touched, true);
	return atomic_load(&hold.is_touched);
}

int gcr_hold_touch_fd(void)
{
	if (hold.is_read || !hold.count || atomic_load(&hold.is_touched) ||
	    !gcr_descriptor_valid(&hold.descriptor))
		return -1;
	return hold.descriptor.fd;
}

/* ---- holding ---- */

/*
 * MADV_DONTFORK: a child would not sleep on the pages. munlock(): if the program locks all new
 * mappings (mlockall(2)), the kernel would provide pages at once.
 */
void *gcr_hold_make(size_t bytes)
{
	struct uffdio_register registration = {.range = {.len = bytes},
					       .mode = UFFDIO_REGISTER_MODE_MISSING};
	void *memory;

	if (!hold.is_read || !gcr_descriptor_valid(&hold.descriptor))
		return NULL;
	memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return NULL;
	registration.range.start = (uintptr_t)memory;
	munlock(memory, bytes);
	if (madvise(memory, bytes, MADV_DONTFORK) == 0 &&
	    mprotect(memory, bytes, PROT_READ | PROT_WRITE) == 0 &&
	    ioctl(hold.descriptor.fd, UFFDIO_REGISTER, &registration) == 0)
		return memory;
	munmap(memory, bytes);
	return NULL;
}

int gcr_hold_place(void *memory, uintptr_t start, size_t bytes)
{
	/* Without a reader the kernel would block the move for ever. */
	if (!hold.is_read || !gcr_descriptor_valid(&hold.descriptor))
		return -EBADF;
	if (hold.count + 2 > hold.room)
		return -ENOMEM;
	if (mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)start) ==
	    MAP_FAILED)
		return -errno;
	add(start, start + bytes);
	return 0;
}

int gcr_hold(uintptr_t start, size_t bytes)
{
	void *memory;
	int r = gcr_hold_expect(1);

	if (r < 0)
		return r;
	if (!hold.is_read || !gcr_descriptor_valid(&hold.descriptor))
		return -EBADF;
	memory = gcr_hold_make(bytes);
	if (!memory)
		return -ENOMEM;
	r = gcr_hold_place(memory, start, bytes);
	if (r < 0)
		munmap(memory, bytes);
	return r;
}

int gcr_hold_empty(uintptr_t start, size_t bytes)
{
	/* Without the descriptor the kernel would give out pages of zeros. */
	if (!hold.is_read || !gcr_descriptor_valid(&hold.descriptor))
		return -EBADF;
	/* The kernel refuses this for pages that the program has locked (mlock(2)). */
	if (madvise((void *)start, bytes, MADV_DONTNEED) == 0)
		return 0;
	return gcr_hold(start, bytes);
}

void gcr_hold_replaced(uintptr_t start, size_t bytes)
{
	gcr_hold_expect(1);
	subtract(start, start + bytes);
}

bool gcr_hold_covers(uintptr_t start, size_t bytes)
{
	for (size_t i = 0; i < hold.count; i++)
		if (hold.ranges[i].start <= start &&
		    start + bytes <= hold.ranges[i].start + hold.ranges[i].bytes)
			return true;
	return false;
}

bool gcr_hold_first(struct gcr_hold_range *ret_range)
{
	if (!hold.count)
		return false;
	*ret_range = hold.ranges[0];
	return true;
}

void gcr_hold_end(void)
{
	struct uffdio_range all = {.start = hold.lowest, .len = hold.highest - hold.lowest};

	gcr_hold_pause();
	/* Closing does not suffice: a forked child may still have the descriptor for a moment. */
	if (all.len && gcr_descriptor_valid(&hold.descriptor))
		ioctl(hold.descriptor.fd, UFFDIO_WAKE, &all);
	gcr_descriptor_close(&hold.descriptor);
	atomic_store(&hold.is_touched, false);
	hold.count = 0;
	hold.lowest = 0;
	hold.highest = 0;
}

static void forget(void)
{
	gcr_descriptor_close(&hold.descriptor);
	gcr_descriptor_close(&hold.stop);
	hold.is_read = false;
	hold.serving = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	hold.read_page = NULL;
	atomic_store(&hold.is_touched, false);
	hold.count = 0;
	hold.lowest = 0;
	hold.highest = 0;
}

GCR_LISTEN(fork, forget);
