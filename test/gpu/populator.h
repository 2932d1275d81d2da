/* SPDX-License-Identifier: MIT */
/* For copy_path.c: a process that faults in pages of the store's files, as the daemon does. */
#ifndef GCR_TEST_GPU_POPULATOR_H
#define GCR_TEST_GPU_POPULATOR_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/extent.h"
#include "test/gpu/check.h"

#define MIB   (1ull << 20)
#define STORE "/tmp/gpucr-copy-path"

struct order {
	unsigned int threads;
	bool goes_on; /* after copying has begun */
	size_t files;
	uint64_t bytes; /* of each file */
};

/* The socket of the process; it reads orders. */
static int populator = -1;
static struct {
	struct order order;
	char *maps[64];
	uint64_t next;
	volatile bool stop;
} populating;

static void *run_populator(void *unused)
{
	uint64_t pieces = populating.order.bytes / (8 * MIB), piece;

	while (!populating.stop &&
	       (piece = __atomic_fetch_add(&populating.next, 1, __ATOMIC_RELAXED)) <
		       pieces * populating.order.files)
		madvise(populating.maps[piece % populating.order.files] +
				piece / populating.order.files * 8 * MIB,
			8 * MIB, 23 /* MADV_POPULATE_WRITE */);
	return NULL;
}

/*
 * Per order: reads the order, then a byte when copying begins; writes a byte when the threads have
 * ended.
 */
static void serve_orders(int socket)
{
	struct order *order = &populating.order;
	pthread_t threads[64];
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(socket, order, sizeof(*order)) == sizeof(*order)) {
		populating.next = 0;
		populating.stop = false;
		for (size_t i = 0; i < order->files; i++) {
			struct gcr_extent extent = {.address = 0x7f0000000000 + i * order->bytes,
						    .kind = GCR_MEMORY_DEVICE};
			char name[GCR_EXTENT_NAME_BYTES], path[256];
			int fd;

			gcr_extent_name(&extent, name);
			snprintf(path, sizeof(path), "%s/%s", STORE, name);
			fd = open(path, O_RDWR);
			populating.maps[i] =
				mmap(NULL, order->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			if (fd < 0 || populating.maps[i] == MAP_FAILED)
				die("%s: %s", path, strerror(errno));
			close(fd);
		}
		for (unsigned int i = 0; i < order->threads; i++)
			OK(pthread_create(&threads[i], NULL, run_populator, NULL));
		OK(read(socket, &byte, 1) != 1);
		populating.stop = !order->goes_on;
		for (unsigned int i = 0; i < order->threads; i++)
			pthread_join(threads[i], NULL);
		for (size_t i = 0; i < order->files; i++)
			munmap(populating.maps[i], order->bytes);
		OK(write(socket, "x", 1) != 1);
	}
	_exit(0);
}

static void start_populator(void)
{
	int pair[2];

	OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
	if (fork() == 0) {
		close(pair[0]);
		serve_orders(pair[1]);
	}
	close(pair[1]);
	populator = pair[0];
}

#endif
