/* SPDX-License-Identifier: MIT */
/*
 * Helpers for the tests of gpucr-worker (with GCR_HIP: of gpucr-worker-hip). The test program acts
 * as the worker's daemon, with a store, and as the process whose memory is moved, on the simulator.
 * The environment variable GPUCR_TEST_HELPERS names the directory of the worker.
 */
#ifndef GPUCR_TEST_WORKER_H
#define GPUCR_TEST_WORKER_H

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <malloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/digest.h"
#include "lib/extent.h"
#include "lib/message.h"
#include "test/unit/sim.h"

#ifdef GCR_HIP
#define WORKER	    "gpucr-worker-hip"
#define WORKER_COMM "gpucr-worker-hi"
#else
#define WORKER	    "gpucr-worker"
#define WORKER_COMM "gpucr-worker"
#endif

#define PATIENCE_USEC (60 * GCR_USEC_PER_SEC) /* limit for events that must happen */
#define ADDRESS	      0x7f0000000000ull	      /* of the first piece in the process */

/* ---- the worker ---- */

struct worker {
	pid_t pid;
	int socket;
	uint32_t sequence;
};

struct worker_options {
	const char *faults;
	int gpu;
	rlim_t descriptors; /* hard limit, which the worker cannot raise; 0: this program's */
};

static inline void worker_uuid(int gpu, char ret_text[33])
{
	CUdevice device;
	CUuuid uuid;

	OK(CU(cuDeviceGet)(&device, gpu));
	OK(CU(cuDeviceGetUuid_v2)(&uuid, device));
	for (size_t i = 0; i < sizeof(uuid.bytes); i++)
		snprintf(ret_text + 2 * i, 3, "%02x", (unsigned char)uuid.bytes[i]);
}

/* Runs in the child after the fork: must not allocate memory. */
static inline void worker_become(const struct worker_options *options, const char *path, char *uuid,
				 int socket)
{
	char *arguments[] = {(char *)(uintptr_t)WORKER, uuid, NULL};

	if (dup2(socket, 3) != 3 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		_exit(126);
	if (options->descriptors) {
		struct rlimit limit = {options->descriptors, options->descriptors};

		prctl(PR_CAPBSET_DROP, 24 /* CAP_SYS_RESOURCE */);
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	execv(path, arguments);
	_exit(127);
}

static inline struct worker worker_start(const struct worker_options *options)
{
	struct worker worker = {0};
	struct gcr_message message;
	struct gcr_hello hello;
	char path[4096], uuid[33];
	int pair[2];

	worker_uuid(options->gpu, uuid);
	snprintf(path, sizeof(path), "%s/" WORKER, getenv("GPUCR_TEST_HELPERS"));
	if (options->faults)
		setenv("GPUCR_SIM_FAULTS", sim_rule(options->faults), 1);
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	worker.pid = fork();
	CHECK(worker.pid >= 0);
	if (worker.pid == 0)
		worker_become(options, path, uuid, pair[1]);
	unsetenv("GPUCR_SIM_FAULTS");
	close(pair[1]);
	worker.socket = pair[0];
	CHECK(!gcr_message_receive(worker.socket, PATIENCE_USEC, -1, &message));
	CHECK(message.header.type == GCR_MESSAGE_HELLO);
	gcr_message_payload(&message, &hello, sizeof(hello));
	if (hello.error)
		fprintf(stderr, "the worker says: %s\n", hello.words);
	CHECK(!hello.error && hello.driver_version[0]);
	return worker;
}

static inline void worker_ask(struct worker *worker, uint16_t type, const void *payload,
			      size_t bytes, const int *fds, size_t fds_count)
{
	CHECK(!gcr_message_send(worker->socket, type, ++worker->sequence, payload, bytes, fds,
				fds_count));
}

/*
 * Receives the answer to the last request and returns its errno. *ret_fds has room for
 * GCR_MESSAGE_FDS_MAX descriptors; NULL if the answer must carry none.
 */
static inline int worker_hear(struct worker *worker, struct gcr_result *ret_result, int *ret_fds,
			      size_t *ret_fds_count)
{
	static struct gcr_message message;

	CHECK(!gcr_message_receive(worker->socket, PATIENCE_USEC, -1, &message));
	CHECK(message.header.type == GCR_MESSAGE_RESULT);
	CHECK(message.header.sequence == worker->sequence);
	gcr_message_payload(&message, ret_result, sizeof(*ret_result));
	CHECK((ret_result->error == 0) == (ret_result->words[0] == '\0'));
	CHECK(ret_fds || message.fds_count == 0);
	if (ret_fds) {
		memcpy(ret_fds, message.fds, message.fds_count * sizeof(int));
		*ret_fds_count = message.fds_count;
	}
	return ret_result->error;
}

static struct gcr_result worker_result; /* the last answer */

static inline int worker_do_fds(struct worker *worker, uint16_t type, const void *payload,
				size_t bytes, const int *fds, size_t fds_count)
{
	worker_ask(worker, type, payload, bytes, fds, fds_count);
	return worker_hear(worker, &worker_result, NULL, NULL);
}

static inline int worker_do(struct worker *worker, uint16_t type)
{
	return worker_do_fds(worker, type, NULL, 0, NULL, 0);
}

/* Require the answer 0; otherwise print the worker's message and exit. */
#define DONE(call)                                                                    \
	do {                                                                          \
		if ((call) != 0) {                                                    \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
				worker_result.words);                                 \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

/* Require the error @number, with @text in the worker's message. */
#define REFUSED(call, number, text)                                                                \
	do {                                                                                       \
		int number_ = (call);                                                              \
		if (number_ != (number) || !strstr(worker_result.words, sim_words(text))) {        \
			fprintf(stderr, "%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #call, number_, \
				worker_result.words);                                              \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* Closes the connection, on which the worker must exit by itself; returns its exit status. */
static inline int worker_leaves(struct worker *worker)
{
	int status;

	close(worker->socket);
	CHECK(waitpid(worker->pid, &status, 0) == worker->pid);
	CHECK(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* ---- the store ---- */

static char store[80];
static bool own_mount; /* the store is a file system of its own, which a test can fill up */

static inline void store_resize(uint64_t bytes)
{
	char options[64];

	snprintf(options, sizeof(options), "size=%llu", (unsigned long long)bytes);
	CHECK(!mount(NULL, store, NULL, MS_REMOUNT, options));
}

/*
 * Mounts a tmpfs of its own for the store where permitted; the mount disappears with this program's
 * mount namespace.
 */
static inline void store_make(void)
{
	/*
	 * The test uses the memory of its large buffers again: new pages take longer than the
	 * comparisons. The worker is a process of its own, whose buffers are still filled.
	 * Allocators of sanitizers refuse this.
	 */
	(void)(mallopt(M_MMAP_MAX, 0) && mallopt(M_TRIM_THRESHOLD, INT_MAX) &&
	       mallopt(M_PERTURB, 0));
	snprintf(store, sizeof(store), "%s/store", sim_state_directory);
	CHECK(!mkdir(store, 0700));
	own_mount = !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
		    !mount("gpucr-test", store, "tmpfs", 0, "size=1g,huge=always");
}

static inline void store_leave(void)
{
	if (own_mount)
		umount2(store, MNT_DETACH);
}

/* ---- the process: its memory, its table, its files ---- */

/* Number of chunks of other owners in the file of digests, before and behind the process's. */
#define OTHER_CHUNKS 5

struct process {
	struct gcr_extent *extents;
	CUmemGenericAllocationHandle *handles;
	int *fds;
	size_t count;
	int gpu;
	int directory;
	int digests;	/* a memfd, laid out like the digests file of a snapshot */
	uint32_t flags; /* GCR_SESSION_*, for its sessions */
	int tables;	/* with GCR_SESSION_PACKED: directory of the tables */
	int segments;	/* and of the segments, which contain the packed chunks */
	char path[128];
};

UNSEEN static inline uint64_t process_word(const struct process *process, size_t index,
					   uint64_t offset)
{
	return (process->extents[index].id << 40) ^ (offset * 0x9e3779b97f4a7c15ull);
}

UNSEEN static inline void process_fill(const struct process *process, size_t index, uint64_t *words)
{
	for (uint64_t offset = 0; offset < process->extents[index].bytes; offset += 8)
		words[offset / 8] = process_word(process, index, offset);
}

UNSEEN static inline bool process_same(const struct process *process, size_t index,
				       const uint64_t *words)
{
	for (uint64_t offset = 0; offset < process->extents[index].bytes; offset += 8)
		if (words[offset / 8] != process_word(process, index, offset))
			return false;
	return true;
}

/* Makes a context of GPU @gpu the current one of this thread. */
static inline void use_gpu(int gpu)
{
	static CUcontext contexts[2];

	if (!contexts[gpu])
		OK(CU(cuDevicePrimaryCtxRetain)(&contexts[gpu], gpu));
	OK(CU(cuCtxSetCurrent)(contexts[gpu]));
#ifdef GCR_HIP
	/* HIP's counterpart of a context is made by the first call that needs it. */
	OK(CU(cuCtxSynchronize)());
#endif
}

/* First in main(): @gpus simulated GPUs, of which the first is the current one, and the store. */
static inline void worker_test_begin(int gpus)
{
	char count[4];

	snprintf(count, sizeof(count), "%d", gpus);
	sim_begin(count, "512M");
	alarm(450 * TEST_SLOW);
	store_make();
	OK(CU(cuInit)(0));
	while (gpus-- > 0)
		use_gpu(gpus);
}

struct worker_test {
	const char *name;
	void (*run)(void);
};

/* Runs all tests, or the one that argument 1 names. For main(), whose status it returns. */
static inline int worker_tests_run(int argc, char **argv, int gpus, const struct worker_test *tests,
				   size_t count)
{
	worker_test_begin(gpus);
	for (size_t i = 0; i < count; i++) {
		if (argc > 1 && strcmp(argv[1], tests[i].name))
			continue;
		fprintf(stderr, "%s\n", tests[i].name);
		tests[i].run();
	}
	store_leave();
	return 0;
}

static inline size_t free_of(int gpu)
{
	use_gpu(gpu);
	return sim_free_bytes();
}

static inline CUmemAllocationProp process_properties(int gpu)
{
	CUmemAllocationProp properties = sim_prop();

	properties.location.id = gpu;
	return properties;
}

/* Maps the allocation @handle and returns its address; process_unmap() undoes this. */
static inline CUdeviceptr process_map(int gpu, CUmemGenericAllocationHandle handle, size_t bytes)
{
	CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu},
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr pointer;

	use_gpu(gpu);
	OK(CU(cuMemAddressReserve)(&pointer, bytes, 0, 0, 0));
	OK(CU(cuMemMap)(pointer, bytes, 0, handle, 0));
	OK(CU(cuMemSetAccess)(pointer, bytes, &access, 1));
	return pointer;
}

static inline void process_unmap(CUdeviceptr pointer, size_t bytes)
{
	OK(CU(cuMemUnmap)(pointer, bytes));
	OK(CU(cuMemAddressFree)(pointer, bytes));
}

/*
 * Returns a copy of the memory behind @handle, which is as large as piece @index. The caller frees
 * it.
 */
static inline void *process_read_handle(const struct process *process, size_t index,
					CUmemGenericAllocationHandle handle)
{
	size_t bytes = process->extents[index].bytes;
	CUdeviceptr pointer = process_map(process->gpu, handle, bytes);
	void *memory = malloc(bytes);

	OK(CU(cuMemcpyDtoH_v2)(memory, pointer, bytes));
	process_unmap(pointer, bytes);
	return memory;
}

/* Returns whether the memory behind @handle has the pattern of process_fill(). */
static inline bool process_check_handle(const struct process *process, size_t index,
					CUmemGenericAllocationHandle handle)
{
	_cleanup_free_ uint64_t *words = process_read_handle(process, index, handle);

	return process_same(process, index, words);
}

/* Number of chunks (of 64 KiB) in all pieces before @index. */
static inline uint64_t process_chunk(const struct process *process, size_t index)
{
	uint64_t chunk = 0;

	for (size_t i = 0; i < index; i++)
		chunk += process->extents[i].bytes / GCR_CHUNK_BYTES;
	return chunk;
}

/* Offset of the digests of piece @index in the file of digests. */
static inline off_t process_digests_offset(const struct process *process, size_t index)
{
	return GCR_DIGESTS_HEADER_BYTES +
	       (off_t)(OTHER_CHUNKS + process_chunk(process, index)) * GCR_DIGEST_BYTES;
}

/*
 * Returns a file of digests, all bytes 0xd1. The header and OTHER_CHUNKS digests before and behind
 * belong to other owners.
 */
static inline int process_make_digests(const struct process *process)
{
	size_t bytes = (size_t)process_digests_offset(process, process->count) +
		       OTHER_CHUNKS * GCR_DIGEST_BYTES;
	int fd = memfd_create("digests", MFD_CLOEXEC);
	_cleanup_free_ char *content = malloc(bytes);

	CHECK(fd >= 0 && content);
	memset(content, 0xd1, bytes);
	CHECK(pwrite(fd, content, bytes, 0) == (ssize_t)bytes);
	return fd;
}

/* Returns the digests of piece @index as they are in the file. The caller frees them. */
static inline struct gcr_digest *process_read_digests(const struct process *process, size_t index)
{
	size_t bytes = process->extents[index].bytes / GCR_CHUNK_BYTES * GCR_DIGEST_BYTES;
	struct gcr_digest *digests = malloc(bytes);

	CHECK(pread(process->digests, digests, bytes, process_digests_offset(process, index)) ==
	      (ssize_t)bytes);
	return digests;
}

/* Returns whether the file has the digests of the bytes at @memory for piece @index. */
static inline bool process_check_digests(const struct process *process, size_t index,
					 const void *memory)
{
	_cleanup_free_ struct gcr_digest *digests = process_read_digests(process, index);
	size_t count = process->extents[index].bytes / GCR_CHUNK_BYTES;
	_cleanup_free_ struct gcr_digest *right = calloc(count, sizeof(*right));

	gcr_digest_chunks(memory, process->extents[index].bytes, right);
	return !memcmp(digests, right, count * sizeof(*right));
}

/* Returns whether the bytes before and behind the process's digests are unchanged. */
static inline bool process_check_other_digests(const struct process *process)
{
	size_t before = (size_t)process_digests_offset(process, 0);
	size_t behind = OTHER_CHUNKS * GCR_DIGEST_BYTES;
	off_t end = process_digests_offset(process, process->count);
	unsigned char bytes[GCR_DIGESTS_HEADER_BYTES + 2 * OTHER_CHUNKS * GCR_DIGEST_BYTES + 1];

	CHECK(pread(process->digests, bytes, before, 0) == (ssize_t)before);
	CHECK(pread(process->digests, bytes + before, behind + 1, end) == (ssize_t)behind);
	for (size_t i = 0; i < before + behind; i++)
		if (bytes[i] != 0xd1)
			return false;
	return true;
}

/*
 * Makes a table of @count pieces of @bytes each, without VRAM, and their sparse files in a new
 * directory below @parent. @base distinguishes the processes of a test.
 */
static inline struct process process_create(const char *parent, uint64_t base, int gpu,
					    const uint64_t *bytes, size_t count)
{
	struct process process = {.count = count, .gpu = gpu};
	uint64_t address = ADDRESS + base * (1ull << 36);

	process.extents = calloc(count, sizeof(*process.extents));
	process.handles = calloc(count, sizeof(*process.handles));
	process.fds = calloc(count, sizeof(*process.fds));
	snprintf(process.path, sizeof(process.path), "%s/%u", parent, (unsigned int)base);
	CHECK(!mkdir(process.path, 0700));
	process.directory = open(process.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(process.directory >= 0);
	for (size_t i = 0; i < count; i++) {
		struct gcr_extent *extent = &process.extents[i];
		char name[GCR_EXTENT_NAME_BYTES];
		int fd;

		extent->address = i % 7 == 3 ? 0 : address; /* some have no mapping */
		extent->bytes = bytes[i];
		extent->id = base * 100000 + i + 1;
		extent->kind = GCR_MEMORY_DEVICE;
		extent->gpu_index = (uint32_t)gpu;
		address += bytes[i] + 2 * MIB;
		gcr_extent_name(extent, name);
		fd = openat(process.directory, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		CHECK(fd >= 0 && !ftruncate(fd, (off_t)bytes[i]));
		close(fd);
		process.fds[i] = -1;
	}
	process.digests = process_make_digests(&process);
	return process;
}

/* Copies the bytes at @memory into the VRAM of piece @index. */
static inline void process_put(const struct process *process, size_t index, const void *memory)
{
	size_t bytes = process->extents[index].bytes;
	CUdeviceptr pointer = process_map(process->gpu, process->handles[index], bytes);

	OK(CU(cuMemcpyHtoD_v2)(pointer, memory, bytes));
	process_unmap(pointer, bytes);
}

/* Allocates VRAM for piece @index, with the bytes at @memory, and exports a descriptor of it. */
static inline void process_allocate_piece(struct process *process, size_t index, const void *memory)
{
	CUmemAllocationProp properties = process_properties(process->gpu);

	use_gpu(process->gpu);
	OK(CU(cuMemCreate)(&process->handles[index], process->extents[index].bytes, &properties,
			   0));
	process_put(process, index, memory);
	OK(CU(cuMemExportToShareableHandle)(&process->fds[index], process->handles[index],
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

/*
 * Allocates VRAM for all pieces, with the pattern of process_fill(), and exports a descriptor of
 * each; nothing stays mapped.
 */
static inline void process_allocate(struct process *process)
{
	for (size_t i = 0; i < process->count; i++) {
		_cleanup_free_ uint64_t *words = malloc(process->extents[i].bytes);

		process_fill(process, i, words);
		process_allocate_piece(process, i, words);
	}
}

/* Releases all allocations. Their VRAM stays in use as long as a descriptor of it is open. */
static inline void process_release(struct process *process, bool close_fds)
{
	for (size_t i = 0; i < process->count; i++) {
		if (process->handles[i])
			OK(CU(cuMemRelease)(process->handles[i]));
		process->handles[i] = 0;
		if (close_fds && process->fds[i] >= 0)
			close(TAKE_FD(process->fds[i]));
	}
}

static inline int process_open(const struct process *process, size_t index)
{
	char name[GCR_EXTENT_NAME_BYTES];
	int fd;

	gcr_extent_name(&process->extents[index], name);
	fd = openat(process->directory, name, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

/* Returns the content of the file of piece @index. The caller frees the buffer. */
static inline void *process_read_file(const struct process *process, size_t index)
{
	size_t bytes = process->extents[index].bytes;
	_cleanup_close_ int fd = process_open(process, index);
	void *memory = malloc(bytes);

	CHECK(pread(fd, memory, bytes, 0) == (ssize_t)bytes);
	return memory;
}

/* Returns whether the file has the pattern of process_fill(), and the file of digests matches. */
static inline bool process_check_file(const struct process *process, size_t index)
{
	_cleanup_free_ uint64_t *words = process_read_file(process, index);

	return process_same(process, index, words) && process_check_digests(process, index, words);
}

/* Writes the digests of files that no session has written. */
static inline void process_digest_files(const struct process *process)
{
	for (size_t i = 0; i < process->count; i++) {
		_cleanup_free_ void *memory = process_read_file(process, i);
		size_t count = process->extents[i].bytes / GCR_CHUNK_BYTES;
		_cleanup_free_ struct gcr_digest *digests = calloc(count, sizeof(*digests));

		gcr_digest_chunks(memory, process->extents[i].bytes, digests);
		CHECK(pwrite(process->digests, digests, count * sizeof(*digests),
			     process_digests_offset(process, i)) ==
		      (ssize_t)(count * sizeof(*digests)));
	}
}

static inline void process_destroy(struct process *process)
{
	process_release(process, true);
	close(process->directory);
	close(process->digests);
	nftw(process->path, sim_remove, 16, FTW_DEPTH | FTW_PHYS);
	free(process->extents);
	free(process->handles);
	free(process->fds);
}

/* ---- sessions ---- */

static inline int session_begin(struct worker *worker, uint16_t type, const struct process *process,
				uint32_t copies_in_flight)
{
	struct gcr_session asked = {.count = (uint32_t)process->count,
				    .copies_in_flight = copies_in_flight,
				    .first_chunk = OTHER_CHUNKS,
				    .flags = process->flags};
	int table = gcr_extents_write(process->extents, process->count);
	int fds[] = {table, process->directory, process->digests, process->tables,
		     process->segments};
	int r;

	CHECK(table >= 0);
	r = worker_do_fds(worker, type, &asked, sizeof(asked), fds,
			  process->flags & GCR_SESSION_PACKED ? 5 : 3);
	close(table);
	return r;
}

static inline int session_import(struct worker *worker, const struct process *process)
{
	int r = 0;

	for (size_t first = 0; first < process->count && !r;) {
		size_t count = process->count - first;
		struct gcr_range range;

		if (count > GCR_MESSAGE_FDS_MAX)
			count = GCR_MESSAGE_FDS_MAX;
		range = (struct gcr_range){(uint32_t)first, (uint32_t)count};
		r = worker_do_fds(worker, GCR_MESSAGE_IMPORT, &range, sizeof(range),
				  process->fds + first, count);
		first += count;
	}
	return r;
}

/* Exports a descriptor of each piece into process->fds; returns the errno of the answer. */
static inline int session_export(struct worker *worker, struct process *process)
{
	for (size_t first = 0; first < process->count;) {
		int fds[GCR_MESSAGE_FDS_MAX];
		size_t count = process->count - first, fds_count;
		struct gcr_range range;

		if (count > GCR_MESSAGE_FDS_MAX)
			count = GCR_MESSAGE_FDS_MAX;
		range = (struct gcr_range){(uint32_t)first, (uint32_t)count};
		worker_ask(worker, GCR_MESSAGE_EXPORT, &range, sizeof(range), NULL, 0);
		if (worker_hear(worker, &worker_result, fds, &fds_count)) {
			CHECK(fds_count == 0);
			return worker_result.error;
		}
		CHECK(fds_count == count);
		memcpy(process->fds + first, fds, count * sizeof(int));
		first += count;
	}
	return 0;
}

/* The process imports the exported descriptors, and checks that the memory has its bytes. */
static inline void process_receive(struct process *process)
{
	for (size_t i = 0; i < process->count; i++) {
		OK(CU(cuMemImportFromShareableHandle)(&process->handles[i],
						      (void *)(intptr_t)process->fds[i],
						      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		CHECK(process_check_handle(process, i, process->handles[i]));
	}
}

#endif
