/* SPDX-License-Identifier: MIT */
/*
 * The memory that CRIU shares with its code in a dumped process. In it CRIU puts the arguments of a
 * command, sends the command, and reads the results when its code has answered. A process outside
 * the tree can write there too: one that shares the memory of the dumped process, or has it open in
 * /proc. CRIU takes what it reads for its own: from the count of mappings in its arguments it gets
 * the place of its list of pages, and writes there (CRIU 4.1.1: criu/include/parasite.h,
 * criu/mem.c).
 *
 * So CRIU gets memory of its own at that address. The guard gives what CRIU has changed there to
 * the code with each command, and when CRIU lets a thread go on; and takes what the code has
 * changed when it answers, or the thread has stopped. It takes nothing for the commands with the
 * list of pages, which have no results. The end of the memory, with the most of a long list, stays
 * shared: CRIU reads nothing there but numbers for its images.
 */
#include "criu-glue/guard_memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu-glue/guard.h"

/* More than CRIU's code, and the first arguments of a command. */
#define OWN_BYTES (256u << 10)

/* A command to CRIU's code, and its answer (CRIU 3.17 to 4.2: compel/include/rpc-pie-priv.h). */
struct message {
	uint32_t command, answered;
	int32_t error;
};

/* The commands with the list of pages (criu/include/parasite.h). */
enum { PROTECT_MAPPINGS = 65, DUMP_PAGES = 66 };

struct memory {
	struct memory *next;
	/* What CRIU has; what its code has; and what was the same in both. */
	unsigned char *own, *shared, *known;
	/* Of all; and of what is CRIU's own. */
	size_t bytes, own_bytes;
	bool is_apart;
};

static struct memory *memories;
static int memory_fd = -1;
static uint32_t last_command;

static void *map_raw(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

static int unmap_raw(void *address, size_t bytes)
{
	return (int)syscall(SYS_munmap, address, bytes);
}

static void *map_own(void *address, size_t bytes)
{
	return map_raw(address, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | (address ? MAP_FIXED : 0), -1, 0);
}

static size_t page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

void gcr_guard_note_memory(int fd)
{
	memory_fd = fd;
}

/* ---- giving and taking ---- */

/*
 * Gives CRIU memory of its own at the same address, with the present contents. False: out of
 * memory.
 */
static bool set_apart(struct memory *memory)
{
	memcpy(memory->known, memory->shared, memory->own_bytes);
	if (map_own(memory->own, memory->own_bytes) == MAP_FAILED)
		return false;
	memcpy(memory->own, memory->known, memory->own_bytes);
	memory->is_apart = true;
	return true;
}

/*
 * Copies the bytes that CRIU has changed to its code's memory, and no others: the stack of its code
 * is there, too.
 */
static void give(struct memory *memory)
{
	size_t page = page_bytes();

	for (size_t at = 0; at < memory->own_bytes; at += page) {
		if (!memcmp(memory->own + at, memory->known + at, page))
			continue;
		for (size_t i = at; i < at + page; i++)
			if (memory->own[i] != memory->known[i])
				memory->shared[i] = memory->known[i] = memory->own[i];
	}
}

void gcr_guard_give_memory(void)
{
	for (struct memory *memory = memories; memory; memory = memory->next)
		if (memory->is_apart)
			give(memory);
}

static void take(void)
{
	if (last_command == PROTECT_MAPPINGS || last_command == DUMP_PAGES)
		return;
	for (struct memory *memory = memories; memory; memory = memory->next) {
		if (!memory->is_apart)
			continue;
		memcpy(memory->known, memory->shared, memory->own_bytes);
		memcpy(memory->own, memory->known, memory->own_bytes);
	}
}

/* ---- CRIU's calls ---- */

/*
 * Maps memory that CRIU shares with its code, and returns CRIU's address, or MAP_FAILED. A page of
 * zeros follows that memory, so that every text in it ends.
 */
static void *map_memory(size_t bytes, int protection, int flags, int fd, off_t offset)
{
	struct memory *memory = calloc(1, sizeof(*memory));
	size_t page = page_bytes(), all = (bytes + page - 1) / page * page;

	if (!memory)
		return MAP_FAILED;
	memory->bytes = all;
	memory->own_bytes = all < OWN_BYTES ? all : OWN_BYTES;
	memory->own = map_raw(NULL, all + page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memory->shared = map_raw(NULL, all, protection, flags, fd, offset);
	memory->known = map_own(NULL, memory->own_bytes);
	if (memory->own != MAP_FAILED && memory->shared != MAP_FAILED &&
	    memory->known != MAP_FAILED &&
	    map_raw(memory->own, all, protection, flags | MAP_FIXED, fd, offset) != MAP_FAILED) {
		memory->next = memories;
		memories = memory;
		return memory->own;
	}
	if (memory->own != MAP_FAILED)
		unmap_raw(memory->own, all + page);
	if (memory->shared != MAP_FAILED)
		unmap_raw(memory->shared, all);
	if (memory->known != MAP_FAILED)
		unmap_raw(memory->known, memory->own_bytes);
	free(memory);
	errno = ENOMEM;
	return MAP_FAILED;
}

static void *map(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	if (fd < 0 || fd != memory_fd || !(flags & MAP_SHARED) || !(protection & PROT_WRITE))
		return map_raw(address, bytes, protection, flags, fd, offset);
	memory_fd = -1;
	return map_memory(bytes, protection, flags, fd, offset);
}

/* Headers may give one name of libc's to the other function. */
#define DEFINE_MMAP(function, name)                                                    \
	void *function(void *address, size_t bytes, int protection, int flags, int fd, \
		       off_t offset) __asm__(name) GCR_GUARD_EXPORT;                   \
	void *function(void *address, size_t bytes, int protection, int flags, int fd, \
		       off_t offset)                                                   \
	{                                                                              \
		return map(address, bytes, protection, flags, fd, offset);             \
	}

DEFINE_MMAP(guard_mmap, "mmap")
DEFINE_MMAP(guard_mmap64, "mmap64")

GCR_GUARD_EXPORT int munmap(void *address, size_t bytes)
{
	struct memory **at = &memories, *memory;

	while (*at && (*at)->own != address)
		at = &(*at)->next;
	memory = *at;
	if (!memory)
		return unmap_raw(address, bytes);
	*at = memory->next;
	unmap_raw(memory->shared, memory->bytes);
	unmap_raw(memory->known, memory->own_bytes);
	unmap_raw(memory->own, memory->bytes + page_bytes());
	free(memory);
	return 0;
}

GCR_GUARD_EXPORT ssize_t send(int fd, const void *bytes, size_t count, int flags)
{
	if (memories && count == sizeof(struct message)) {
		last_command = ((const struct message *)bytes)->command;
		for (struct memory *memory = memories; memory; memory = memory->next)
			if (!memory->is_apart && !set_apart(memory))
				return -1;
		gcr_guard_give_memory();
	}
	return syscall(SYS_sendto, fd, bytes, count, flags, NULL, 0);
}

GCR_GUARD_EXPORT ssize_t recv(int fd, void *bytes, size_t count, int flags)
{
	ssize_t got = syscall(SYS_recvfrom, fd, bytes, count, flags, NULL, NULL);

	if (got == sizeof(struct message))
		take();
	return got;
}

GCR_GUARD_EXPORT pid_t wait4(pid_t pid, int *status, int options, struct rusage *usage)
{
	pid_t got = (pid_t)syscall(SYS_wait4, pid, status, options, usage);

	if (got > 0)
		take();
	return got;
}
