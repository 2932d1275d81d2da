/* SPDX-License-Identifier: MIT */
/*
 * Passthrough for libfuse before 3.17, using the kernel's protocol. Layouts and numbers are those
 * of include/uapi/linux/fuse.h, protocol 7.40 (Linux 6.9).
 */
#define FUSE_USE_VERSION 314
#include "fs/base/passthrough.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "fs/base/user_counts.h"
#include "lib/cleanup.h"
#include "lib/lock.h"

#define OPCODE_INIT	 26
#define INIT_EXT	 (1u << 30) /* flags: flags2 is valid */
#define INIT_PASSTHROUGH (1u << 5)  /* flags2: FUSE_PASSTHROUGH, 1 << 37 */
#define STACK_DEPTH	 1	    /* the backing files are in a tmpfs, which is not stacked */
#define OPEN_DIRECT_IO	 (1u << 0)
#define OPEN_PASSTHROUGH (1u << 7)

#define BUCKETS		  64
#define WAIT_USEC	  (100 * GCR_USEC_PER_MSEC)
/*
 * Limits of waiting session threads, of one owner and of all; the others are needed to read the
 * close requests. GCR_SESSION_ITEMS_MAX, which counts them too, is greater.
 */
#define WAITERS_OWNER_MAX 2
#define WAITERS_MAX	  8

struct backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};

#define BACKING_OPEN  _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

struct in_header {
	uint32_t length, opcode;
	uint64_t unique, node;
	uint32_t uid, gid, pid, more;
};

struct init_in {
	uint32_t major, minor, max_readahead, flags, flags2;
};

struct out_header {
	uint32_t length;
	int32_t error;
	uint64_t unique;
};

struct init_out {
	uint32_t major, minor, max_readahead, flags;
	uint16_t max_background, congestion_threshold;
	uint32_t max_write, time_granularity;
	uint16_t max_pages, map_alignment;
	uint32_t flags2, max_stack_depth;
	uint32_t unused[6];
};

_Static_assert(sizeof(struct in_header) == 40, "struct fuse_in_header");
_Static_assert(sizeof(struct init_out) == 64, "struct fuse_init_out");
_Static_assert(sizeof(struct backing_map) == 16, "struct fuse_backing_map");
_Static_assert(sizeof(struct gcr_passthrough_answer) == 16, "struct fuse_open_out");

/* An open node. */
struct opened {
	struct opened *next;
	uint64_t node;
	ino_t ino; /* of the backing file */
	unsigned int opens;
	int backing; /* 0: no passthrough */
};

static struct {
	struct fuse_session *session;
	_Atomic uint64_t init; /* id of the request with the kernel's offer; 0: none is pending */
	atomic_bool is_on;

	pthread_mutex_t lock; /* a leaf; guards the fields below */
	pthread_cond_t is_closed;
	unsigned int waiters;
	struct gcr_user_counts waiters_of; /* of each owner */
	struct opened *opened[BUCKETS];
} passthrough = {.lock = PTHREAD_MUTEX_INITIALIZER, .is_closed = PTHREAD_COND_INITIALIZER};

static ssize_t read_request(int fd, void *buffer, size_t size, void *data)
{
	ssize_t got = read(fd, buffer, size);
	struct in_header header;
	struct init_in init;

	if (got < (ssize_t)(sizeof(header) + sizeof(init)))
		return got;
	memcpy(&header, buffer, sizeof(header));
	if (header.opcode != OPCODE_INIT)
		return got;
	memcpy(&init, (char *)buffer + sizeof(header), sizeof(init));
	if (init.flags & INIT_EXT && init.flags2 & INIT_PASSTHROUGH)
		atomic_store(&passthrough.init, header.unique);
	return got;
}

/*
 * May the daemon register backing files with the kernel, by @fd, the session's descriptor? Tries to
 * register one: that needs CAP_SYS_ADMIN in the initial user namespace.
 */
static bool may_register(int fd)
{
	_cleanup_close_ int file = memfd_create("gpucrfs", MFD_CLOEXEC);
	struct backing_map map = {.fd = file};
	int backing = file < 0 ? -1 : ioctl(fd, BACKING_OPEN, &map);
	uint32_t name = (uint32_t)backing;

	if (backing > 0)
		ioctl(fd, BACKING_CLOSE, &name);
	return backing > 0;
}

/*
 * Writes @iov, libfuse's answer to the kernel's first request, and accepts passthrough in it.
 * Returns as writev(2).
 */
static ssize_t accept_offer(int fd, struct iovec *iov)
{
	struct iovec changed[2] = {iov[0]};
	struct init_out out;
	ssize_t sent;

	memcpy(&out, iov[1].iov_base, sizeof(out));
	out.flags |= INIT_EXT;
	out.flags2 |= INIT_PASSTHROUGH;
	out.max_stack_depth = STACK_DEPTH;
	changed[1] = (struct iovec){.iov_base = &out, .iov_len = sizeof(out)};
	/* Set before the answer: the next request may already use passthrough. */
	atomic_store(&passthrough.is_on, true);
	sent = writev(fd, changed, 2);
	if (sent < 0 || !may_register(fd))
		atomic_store(&passthrough.is_on, false);
	return sent;
}

static ssize_t write_answer(int fd, struct iovec *iov, int count, void *data)
{
	uint64_t init = atomic_load(&passthrough.init);
	struct out_header header;

	if (init && count == 2 && iov[0].iov_len == sizeof(header) &&
	    iov[1].iov_len == sizeof(struct init_out)) {
		memcpy(&header, iov[0].iov_base, sizeof(header));
		if (header.unique == init && !header.error) {
			atomic_store(&passthrough.init, 0);
			return accept_offer(fd, iov);
		}
	}
	return writev(fd, iov, count);
}

int gcr_passthrough_start(struct fuse_session *session)
{
	const struct fuse_custom_io io = {.read = read_request, .writev = write_answer};

	passthrough.session = session;
	return fuse_session_custom_io(session, &io, fuse_session_fd(session));
}

void gcr_passthrough_stop(void)
{
	atomic_store(&passthrough.is_on, false);
	/* The kernel's ids of the backing files ended with the session. */
	for (size_t i = 0; i < BUCKETS; i++)
		while (passthrough.opened[i]) {
			struct opened *opened = passthrough.opened[i];

			passthrough.opened[i] = opened->next;
			free(opened);
		}
}

bool gcr_passthrough_is_on(void)
{
	return atomic_load(&passthrough.is_on);
}

static struct opened **find(uint64_t node)
{
	/* The lowest bits are the node's kind. */
	struct opened **link = &passthrough.opened[(node >> 8 ^ node >> 40) % BUCKETS];

	while (*link && (*link)->node != node)
		link = &(*link)->next;
	return link;
}

/* Registers the file of @fd as a backing file. Returns the kernel's id of it; 0: refused. */
static int register_backing(int fd)
{
	struct backing_map map = {.fd = fd};
	int backing = ioctl(fuse_session_fd(passthrough.session), BACKING_OPEN, &map);

	return backing > 0 ? backing : 0;
}

/* Counts one more waiting thread of this owner. False: there may be no more. Lock: passthrough. */
static bool take_wait(uid_t owner)
{
	size_t *count;

	if (passthrough.waiters >= WAITERS_MAX)
		return false;
	if (owner) {
		count = gcr_user_counts_get(&passthrough.waiters_of, owner);
		if (!count || *count >= WAITERS_OWNER_MAX)
			return false;
		++*count;
	}
	passthrough.waiters++;
	return true;
}

static void end_wait(uid_t owner)
{
	passthrough.waiters--;
	if (owner)
		gcr_user_counts_release(&passthrough.waiters_of, owner, 1);
}

int gcr_passthrough_wait(uint64_t node, uid_t owner)
{
	struct opened *opened;
	int64_t until_usec = gcr_clock_usec() + WAIT_USEC;
	int timed_out = 0;
	bool is_passed;

	pthread_mutex_lock(&passthrough.lock);
	while ((opened = *find(node)) && opened->backing && !timed_out && take_wait(owner)) {
		timed_out =
			gcr_cond_wait_until(&passthrough.is_closed, &passthrough.lock, until_usec);
		end_wait(owner);
	}
	is_passed = opened && opened->backing;
	pthread_mutex_unlock(&passthrough.lock);
	return is_passed ? -EBUSY : 0;
}

bool gcr_passthrough_is_plain(uint64_t node)
{
	struct opened *opened;
	bool is;

	pthread_mutex_lock(&passthrough.lock);
	opened = *find(node);
	is = opened && !opened->backing;
	pthread_mutex_unlock(&passthrough.lock);
	return is;
}

int gcr_passthrough_open(uint64_t node, int fd, int flags, bool wants)
{
	struct opened **link;
	struct opened *opened;
	struct stat stat;
	int result;

	if (fstat(fd, &stat) < 0)
		return -errno;
	pthread_mutex_lock(&passthrough.lock);
	link = find(node);
	opened = *link;
	if (!opened) {
		opened = calloc(1, sizeof(*opened));
		if (opened) {
			opened->node = node;
			opened->ino = stat.st_ino;
			opened->backing = wants ? register_backing(fd) : 0;
			*link = opened;
		}
	}
	if (!opened)
		result = -ENOMEM;
	else if (opened->backing && (opened->ino != stat.st_ino || (flags & O_ACCMODE) == O_RDWR))
		result = -EBUSY;
	else
		result = opened->backing;
	if (result >= 0)
		opened->opens++;
	pthread_mutex_unlock(&passthrough.lock);
	return result;
}

void gcr_passthrough_close(uint64_t node)
{
	_cleanup_free_ struct opened *closed = NULL;
	struct opened **link;

	pthread_mutex_lock(&passthrough.lock);
	link = find(node);
	if (*link && !--(*link)->opens) {
		closed = *link;
		*link = closed->next;
		pthread_cond_broadcast(&passthrough.is_closed);
	}
	/* Under the lock: the next open of the node needs a backing id of its own. */
	if (closed && closed->backing) {
		uint32_t backing = (uint32_t)closed->backing;

		ioctl(fuse_session_fd(passthrough.session), BACKING_CLOSE, &backing);
	}
	pthread_mutex_unlock(&passthrough.lock);
}

struct gcr_passthrough_answer gcr_passthrough_answer(uint64_t handle, int backing, bool is_read)
{
	return (struct gcr_passthrough_answer){
		.handle = handle,
		.flags = OPEN_PASSTHROUGH | (is_read ? 0 : OPEN_DIRECT_IO),
		.backing = backing,
	};
}
