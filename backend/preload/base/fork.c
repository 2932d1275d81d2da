/* SPDX-License-Identifier: MIT */
/*
 * The child of a fork of a GPU process cannot use the driver, and nothing that the library holds
 * belongs to the child: its gate is opened, its tables are emptied, and its copies of the library's
 * descriptors are closed.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/preload/base/descriptor.h"
#include "backend/preload/base/listener.h"
#include "backend/preload/base/preload.h"

/*
 * A word of memory that is zero in a child with a copy of the parent's memory, however the child
 * was made (clone(2) itself calls no fork handlers), and is shared with a child that shares the
 * memory.
 */
static struct {
	_Atomic(uint32_t *) word; /* NULL: MADV_WIPEONFORK is not available */
	_Atomic(pid_t) pid;
} mark;

static void make_mark(void)
{
	uint32_t *word = mmap(NULL, sizeof(*word), PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	atomic_store(&mark.pid, getpid());
	if (word == MAP_FAILED)
		return;
	if (madvise(word, sizeof(*word), MADV_WIPEONFORK) < 0) {
		munmap(word, sizeof(*word));
		return;
	}
	__atomic_store_n(word, 1, __ATOMIC_RELAXED);
	atomic_store(&mark.word, word);
}

bool gcr_preload_is_copy(void)
{
	const uint32_t *word = atomic_load(&mark.word);

	if (word && __atomic_load_n(word, __ATOMIC_RELAXED))
		return false;
	/* A process that CRIU has restored has the same pid, even if the word was not restored. */
	return atomic_load(&mark.pid) && atomic_load(&mark.pid) != getpid();
}

static void set_mark(void)
{
	uint32_t *word = atomic_load(&mark.word);

	if (word)
		__atomic_store_n(word, 1, __ATOMIC_RELAXED);
	atomic_store(&mark.pid, getpid());
}

void gcr_preload_forget(void)
{
	set_mark();
	GCR_TELL(fork);
	/* The listeners have closed descriptors. */
	gcr_descriptor_forget();
}

void gcr_preload_expect_fork(void)
{
	static atomic_flag expected = ATOMIC_FLAG_INIT;

	if (atomic_flag_test_and_set(&expected))
		return;
	make_mark();
	pthread_atfork(gcr_descriptor_before_fork, NULL, gcr_preload_forget);
}
