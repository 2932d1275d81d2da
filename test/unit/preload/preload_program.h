/* SPDX-License-Identifier: MIT */
/*
 * A test program that starts itself again: with the preload library, as the program whose memory
 * moves; without the library, as the worker, or to show how the driver behaves by itself.
 */
#ifndef GPUCR_TEST_PRELOAD_PROGRAM_H
#define GPUCR_TEST_PRELOAD_PROGRAM_H

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#ifdef GCR_HIP
#include "backend/rocm/adapt.h"
#endif
#include "lib/cleanup.h"
#include "lib/message.h"
#include "test/unit/driver_symbol.h"
#include "test/unit/preload/preload_memory.h"
#include "test/unit/test.h"

#define MIB (1ull << 20)

/* ---- the program's side ---- */

#ifdef GCR_HIP

#define DRIVER "libamdhip64.so.6"

static inline void *hip_symbol(void *library, const char *name)
{
	void *symbol = dlsym(library, name);

	dlerror();
	return symbol;
}

/* Finds a symbol by its CUDA name; on HIP, the wrapper of the HIP function that takes its place. */
static inline void *find_symbol(void *library, const char *name)
{
	return gcr_hip_find(name, hip_symbol, library);
}

/* Translates the names of functions and errors in a message to HIP's. */
static inline const char *driver_words(const char *words)
{
	static const char *const errors[][2] = {
		{"CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure"},
		{"CUDA_ERROR_NOT_SUPPORTED", "hipErrorNotSupported"},
		{"CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory"},
		{"CUDA_ERROR_UNKNOWN", "hipErrorUnknown"},
	};
	static char result[1024];
	char *end = result;

	while (words && *words && end < result + sizeof(result) - 128) {
		size_t length = strspn(words,
				       "ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
				       "0123456789");
		const char *other = NULL;
		char word[64] = "";

		if (!length) {
			*end++ = *words++;
			continue;
		}
		snprintf(word, sizeof(word) - 3, "%.*s", (int)length, words);
		words += length;
		for (size_t i = 0; i < GCR_ARRAY_SIZE(errors); i++)
			if (strcmp(word, errors[i][0]) == 0)
				other = errors[i][1];
		if (!other)
			other = gcr_hip_name(word);
		if (!other)
			other = gcr_hip_name(strcat(word, "_v2"));
		end += sprintf(end, "%.*s", other ? 64 : (int)length,
			       other ? other : words - length);
	}
	*end = '\0';
	return result;
}

#else

#define DRIVER "libcuda.so.1"

static inline void *find_symbol(void *library, const char *name)
{
	return dlsym(library, name);
}

static inline const char *driver_words(const char *words)
{
	return words;
}

#endif

static inline void *driver_symbol(const char *name)
{
	static void *library;

	return find_in_driver(&library, DRIVER, find_symbol, name);
}

/* An entry point by its exported name: the wrapper, if the library is preloaded. */
#define CU(name) ((__typeof__(name) *)driver_symbol(#name))

/* Checks that the call returns 0, and prints the message in @error_ if not. */
#define DONE(call)                                                                                 \
	do {                                                                                       \
		int result_ = (call);                                                              \
		if (result_ != 0) {                                                                \
			fprintf(stderr, "%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #call, result_, \
				failure.words);                                                    \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)
static struct gcr_error failure;

static inline const struct preload_memory *memory(void)
{
	static __typeof__(gcr_test_memory) *door;

	if (!door)
		door = (__typeof__(gcr_test_memory) *)dlsym(RTLD_DEFAULT, "gcr_test_memory");
	CHECK(door);
	return door();
}

static inline CUcontext use_device(int ordinal)
{
	CUcontext context;

	OK(CU(cuInit)(0));
	OK(CU(cuDevicePrimaryCtxRetain)(&context, ordinal));
	OK(CU(cuCtxSetCurrent)(context));
#ifdef GCR_HIP
	/* The driver allocates its own VRAM at this call only. */
	OK(CU(cuStreamSynchronize)(NULL));
#endif
	return context;
}

/* Frees everything that the program has on the GPU, which must be current. */
static inline void reset_device(int ordinal)
{
#ifdef GCR_HIP
	OK(((int (*)(void))dlsym(dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL), "hipDeviceReset"))());
#else
	OK(CU(cuDevicePrimaryCtxReset_v2)(ordinal));
#endif
}

static inline size_t free_bytes(void)
{
	size_t bytes, total;

	OK(CU(cuMemGetInfo_v2)(&bytes, &total));
	return bytes;
}

/* Makes a pattern that differs for each part of each allocation. */
#define PART_WORDS 16384

UNSEEN static inline void make_part(unsigned words[PART_WORDS], size_t at, unsigned seed)
{
	for (unsigned i = 0; i < PART_WORDS; i++)
		words[i] = (seed * 2654435761u) ^ (unsigned)(at / 4 + i);
}

static inline void fill(CUdeviceptr pointer, size_t bytes, unsigned seed)
{
	unsigned words[PART_WORDS];

	for (size_t at = 0; at < bytes; at += sizeof(words)) {
		size_t length = bytes - at < sizeof(words) ? bytes - at : sizeof(words);

		make_part(words, at, seed);
		OK(CU(cuMemcpyHtoD_v2)(pointer + at, words, length));
	}
}

static inline void expect(CUdeviceptr pointer, size_t bytes, unsigned seed)
{
	unsigned expected[PART_WORDS], words[PART_WORDS];

	for (size_t at = 0; at < bytes; at += sizeof(words)) {
		size_t length = bytes - at < sizeof(words) ? bytes - at : sizeof(words);

		make_part(expected, at, seed);
		OK(CU(cuMemcpyDtoH_v2)(words, pointer + at, length));
		CHECK(memcmp(words, expected, length / 4 * 4) == 0);
	}
}

static inline CUmemAllocationProp device_prop(int device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static inline CUmemAccessDesc device_access(int device)
{
	return (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
				 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

/* Number of open descriptors of simulated memory. */
static inline unsigned open_descriptors(void)
{
	_cleanup_closedir_ DIR *directory = opendir("/proc/self/fd");
	const struct dirent *entry;
	unsigned count = 0;
	char target[256];

	CHECK(directory);
	while ((entry = readdir(directory))) {
		ssize_t length =
			readlinkat(dirfd(directory), entry->d_name, target, sizeof(target) - 1);

		target[length > 0 ? length : 0] = '\0';
		count += strstr(target, "/memory/") != NULL;
	}
	return count;
}

/* ---- the worker, a process without the library, at the other end of a socket ---- */

/*
 * Messages from the program to the worker: IMPORT with gcr_range, descriptors and their sizes, ...
 */
struct piece {
	uint64_t bytes;
	int device;
	int reserved;
};

enum worker_verb {
	WORKER_TAKE = GCR_MESSAGE_IMPORT, /* pieces + descriptors: import and copy out */
	WORKER_DROP = GCR_MESSAGE_END,	  /* release all memory; keep the copies */
	WORKER_GIVE = GCR_MESSAGE_EXPORT, /* gcr_range: make, copy in, and send descriptors */
	WORKER_CHECKPOINT = GCR_MESSAGE_CHECKPOINT, /* of the program, by the driver's checkpoint */
	WORKER_RESTORE = GCR_MESSAGE_RESTORE,
	WORKER_DONE = GCR_MESSAGE_RESULT,
};

struct worker_piece {
	struct piece piece;
	char *copy;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr start;
};

/*
 * Returns the bytes to copy of a piece, TEST_COPY_BYTES at most: untouched simulated memory costs
 * nothing.
 */
static inline size_t copied_bytes(const struct worker_piece *piece)
{
	const char *most = getenv("TEST_COPY_BYTES");

	return most && piece->piece.bytes > strtoull(most, NULL, 10) ? strtoull(most, NULL, 10)
								     : piece->piece.bytes;
}

static inline void worker_map(struct worker_piece *piece)
{
	CUmemAccessDesc access = device_access(piece->piece.device);

	OK(CU(cuMemAddressReserve)(&piece->start, piece->piece.bytes, 0, 0, 0));
	OK(CU(cuMemMap)(piece->start, piece->piece.bytes, 0, piece->handle, 0));
	OK(CU(cuMemSetAccess)(piece->start, piece->piece.bytes, &access, 1));
}

static inline void worker_unmap(struct worker_piece *piece)
{
	if (!piece->start)
		return;
	OK(CU(cuMemUnmap)(piece->start, piece->piece.bytes));
	OK(CU(cuMemAddressFree)(piece->start, piece->piece.bytes));
	OK(CU(cuMemRelease)(piece->handle));
	piece->start = 0;
}

static inline void worker_take(struct worker_piece *piece, int fd)
{
	CUmemGenericAllocationHandle handle;

	use_device(piece->piece.device);
	OK(CU(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	piece->handle = handle;
	worker_map(piece);
	piece->copy = malloc(copied_bytes(piece));
	OK(CU(cuMemcpyDtoH_v2)(piece->copy, piece->start, copied_bytes(piece)));
}

static inline int worker_give(struct worker_piece *piece)
{
	CUmemAllocationProp prop = device_prop(piece->piece.device);
	int fd;

	use_device(piece->piece.device);
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	OK(CU(cuMemCreate)(&piece->handle, piece->piece.bytes, &prop, 0));
	worker_map(piece);
	OK(CU(cuMemcpyHtoD_v2)(piece->start, piece->copy, copied_bytes(piece)));
	OK(CU(cuMemExportToShareableHandle)(&fd, piece->handle,
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	return fd;
}

/* Serves requests until the program closes its end of the socket. */
static inline int worker_main(int socket)
{
	static struct gcr_message message;
	static struct worker_piece pieces[8192];
	int fds[GCR_MESSAGE_FDS_MAX];
	size_t count = 0;

	while (gcr_message_receive(socket, -1, -1, &message) == 0) {
		const struct piece *sent = (const struct piece *)message.payload;
		struct gcr_range range = {0};
		size_t fds_count = 0;

		if (message.header.type == WORKER_TAKE) {
			for (size_t i = 0; i < message.fds_count; i++) {
				CHECK(count < GCR_ARRAY_SIZE(pieces));
				free(pieces[count].copy);
				pieces[count] = (struct worker_piece){.piece = sent[i]};
				worker_take(&pieces[count++], message.fds[i]);
			}
		} else if (message.header.type == WORKER_DROP) {
			for (size_t i = 0; i < count; i++)
				worker_unmap(&pieces[i]);
			gcr_message_payload(&message, &range, sizeof(range));
			if (range.first == UINT32_MAX)
				count = 0;
		} else if (message.header.type == WORKER_CHECKPOINT) {
#ifndef GCR_HIP /* HIP has no checkpoint */
			CUcheckpointLockArgs lock = {.timeoutMs = 10000};

			OK(CU(cuInit)(0));
			OK(CU(cuCheckpointProcessLock)(getppid(), &lock));
			OK(CU(cuCheckpointProcessCheckpoint)(getppid(), NULL));
		} else if (message.header.type == WORKER_RESTORE) {
			OK(CU(cuCheckpointProcessRestore)(getppid(), NULL));
			OK(CU(cuCheckpointProcessUnlock)(getppid(), NULL));
#endif
		} else {
			gcr_message_payload(&message, &range, sizeof(range));
			for (size_t i = 0; i < range.count; i++)
				fds[fds_count++] = worker_give(&pieces[range.first + i]);
		}
		CHECK(gcr_message_send(socket, WORKER_DONE, 0, NULL, 0, fds, fds_count) == 0);
		for (size_t i = 0; i < fds_count; i++)
			close(fds[i]);
	}
	return 0;
}

/*
 * Executes this program again after prepare(), with the arguments @role and the number of its
 * socket. The result is its pid, and @ret_socket the other end of that socket.
 */
static inline pid_t start_peer(const char *role, void (*prepare)(void), int *ret_socket)
{
	int pair[2];
	pid_t pid;

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		char number[16];

		close(pair[0]);
		prepare();
		snprintf(number, sizeof(number), "%d", pair[1]);
		execl("/proc/self/exe", "test", role, number, (char *)NULL);
		_exit(127);
	}
	close(pair[1]);
	CHECK(fcntl(pair[0], F_SETFD, FD_CLOEXEC) == 0);
	*ret_socket = pair[0];
	return pid;
}

static int worker_socket = -1;
static pid_t worker_pid;

static inline void worker_prepare(void)
{
	unsetenv("LD_PRELOAD");
	unsetenv("GPUCR_SIM_FAULTS");
}

/* Starts the worker: this program without the library. */
static inline void worker_start(void)
{
	worker_pid = start_peer("worker", worker_prepare, &worker_socket);
}

/* Sends a request to the worker and waits for the answer, which must be WORKER_DONE. */
static inline void worker_ask(enum worker_verb verb, const void *payload, size_t bytes,
			      const int *fds, size_t count, struct gcr_message *ret_message)
{
	CHECK(gcr_message_send(worker_socket, verb, 0, payload, bytes, fds, count) == 0);
	CHECK(gcr_message_receive(worker_socket, 60000000, -1, ret_message) == 0);
	CHECK(ret_message->header.type == WORKER_DONE);
}

static inline void worker_stop(void)
{
	int status;

	close(TAKE_FD(worker_socket));
	CHECK(waitpid(worker_pid, &status, 0) == worker_pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- the parts of the agent and the daemon, played by the program itself ---- */

static struct gcr_extent extents[8192];
static size_t extents_count;
static struct gcr_message answer;

/* Reads the table of the program's allocations into `extents`. */
static inline void look(void)
{
	ssize_t count = memory()->describe(extents, GCR_ARRAY_SIZE(extents));

	CHECK(count >= 0 && (size_t)count <= GCR_ARRAY_SIZE(extents));
	CHECK(memory()->describe(NULL, 0) == count);
	extents_count = (size_t)count;
}

static inline int device_of(const struct gcr_extent *extent)
{
	CUuuid uuid;
	int count;

	OK(CU(cuDeviceGetCount)(&count));
	for (int i = 0; i < count; i++) {
		OK(CU(cuDeviceGetUuid_v2)(&uuid, i));
		if (memcmp(uuid.bytes, extent->gpu, sizeof(extent->gpu)) == 0)
			return i;
	}
	CHECK(!"extent on a GPU of this process");
	return -1;
}

/* Exports every allocation to the worker. */
static inline void hand_over(void)
{
	look();
	for (size_t first = 0; first < extents_count; first += GCR_MESSAGE_FDS_MAX) {
		size_t count = extents_count - first < GCR_MESSAGE_FDS_MAX ? extents_count - first
									   : GCR_MESSAGE_FDS_MAX;
		struct piece pieces[GCR_MESSAGE_FDS_MAX];
		int fds[GCR_MESSAGE_FDS_MAX];

		DONE(memory()->export(first, count, fds, &failure));
		for (size_t i = 0; i < count; i++)
			pieces[i] = (struct piece){.bytes = extents[first + i].bytes,
						   .device = device_of(&extents[first + i])};
		worker_ask(WORKER_TAKE, pieces, count * sizeof(pieces[0]), fds, count, &answer);
	}
	DONE(memory()->unmap(&failure));
}

/* Makes the worker release its memory; with @forget, its copies too. */
static inline void worker_drop(bool forget)
{
	struct gcr_range range = {.first = forget ? UINT32_MAX : 0};

	worker_ask(WORKER_DROP, &range, sizeof(range), NULL, 0, &answer);
}

static inline void freeze(void)
{
	hand_over();
	memory()->commit();
	worker_drop(false);
}

/* Receives pieces [first, first + count) back from the worker; returns the result of receive(). */
static inline int come_in(size_t first, size_t count)
{
	struct gcr_range range = {.first = (uint32_t)first, .count = (uint32_t)count};

	worker_ask(WORKER_GIVE, &range, sizeof(range), NULL, 0, &answer);
	CHECK(answer.fds_count == count);
	return memory()->receive(first, count, answer.fds, &failure);
}

static inline void thaw(void)
{
	for (size_t first = 0; first < extents_count; first += GCR_MESSAGE_FDS_MAX) {
		size_t count = extents_count - first < GCR_MESSAGE_FDS_MAX ? extents_count - first
									   : GCR_MESSAGE_FDS_MAX;

		CHECK(!memory()->complete(&failure));
		DONE(come_in(first, count));
	}
	CHECK(memory()->complete(&failure));
	worker_drop(true);
}

/* ---- the test's side ---- */

static char state_directory[64];

static inline int remove_one(const char *path, const struct stat *status, int kind,
			     struct FTW *where)
{
	return remove(path);
}

static inline void remove_state(void)
{
	nftw(state_directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void new_state(const char *gpus, const char *vram)
{
	strcpy(state_directory, "/dev/shm/gpucr-test-XXXXXX");
	CHECK(mkdtemp(state_directory));
	setenv("GPUCR_SIM_DIR", state_directory, 1);
	setenv("GPUCR_SIM_GPUS", gpus, 1);
	setenv("GPUCR_SIM_HIP_GPUS", gpus, 1);
	setenv("GPUCR_SIM_VRAM", vram, 1);
	setenv("GPUCR_SIM_CONTEXT_BYTES", "4M", 1);
}

/*
 * Starts this program again with the argument @what, and its output sent to the descriptor @output.
 */
static inline pid_t start(const char *what, bool preloaded, int output)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		const char *old_options = getenv("ASAN_OPTIONS");
		char options[1024];

		if (output >= 0)
			dup2(output, STDOUT_FILENO);
		setenv("LD_LIBRARY_PATH", getenv("GPUCR_TEST_SIMULATOR"), 1);
		setenv("GPUCR_SOCKET", "/nowhere", 1);
		/* The preload library must be loaded before the sanitizer's. */
		snprintf(options, sizeof(options), "%s:verify_asan_link_order=0",
			 old_options ? old_options : "");
		setenv("ASAN_OPTIONS", options, 1);
		if (preloaded)
			setenv("LD_PRELOAD", getenv("GPUCR_TEST_PRELOAD"), 1);
		alarm(120 * TEST_SLOW);
		execl("/proc/self/exe", "test", what, (char *)NULL);
		_exit(127);
	}
	return pid;
}

static inline void expect_success(const char *what, pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		fprintf(stderr, "%s: status 0x%x\n", what, (unsigned)status);
		remove_state();
		exit(1);
	}
}

static inline size_t read_all(int fd, char *buffer, size_t room)
{
	size_t length = 0;
	ssize_t got;

	while ((got = read(fd, buffer + length, room - length)) > 0)
		length += (size_t)got;
	return length;
}

/* The subject "show" must print the same with the library and without it. */
static inline void test_same(void)
{
	static char with[1 << 20], without[1 << 20];
	size_t with_length, without_length;
	int pipes[2];

	for (int preloaded = 0; preloaded < 2; preloaded++) {
		pid_t pid;

		new_state("1", "128M");
		CHECK(pipe(pipes) == 0);
		pid = start("show", preloaded, pipes[1]);
		close(pipes[1]);
		if (preloaded)
			with_length = read_all(pipes[0], with, sizeof(with));
		else
			without_length = read_all(pipes[0], without, sizeof(without));
		close(pipes[0]);
		expect_success("show", pid);
		remove_state();
	}
	if (with_length == without_length && memcmp(with, without, with_length) == 0)
		return;
	for (size_t i = 0, line = 0; i < with_length && i < without_length; i++) {
		if (with[i] == '\n')
			line = i + 1;
		if (with[i] == without[i])
			continue;
		fprintf(stderr, "without:\n%.400s\nwith:\n%.400s\n", without + line, with + line);
		break;
	}
	CHECK(!"the same output");
}

struct subject {
	const char *name;
	void (*run)(void);
	const char *gpus, *vram; /* default: 1 and 256M */
	const char *environment; /* NAME=VALUE, or NULL */
	const char *faults;	 /* GPUCR_SIM_FAULTS, or NULL */
	const char *not_on_hip;	 /* reason to skip on HIP, or NULL */
};

static inline void set_environment(const char *assignment, bool there)
{
	char name[64];
	const char *value = strchr(assignment, '=') + 1;

	snprintf(name, sizeof(name), "%.*s", (int)(value - 1 - assignment), assignment);
	if (there)
		setenv(name, driver_words(value), 1);
	else
		unsetenv(name);
}

/* Runs each subject in its own process, with its own simulator state. */
static inline void run_all(const struct subject *subjects, size_t count)
{
	CHECK(getenv("GPUCR_TEST_PRELOAD") && getenv("GPUCR_TEST_SIMULATOR"));
	for (size_t i = 0; i < count; i++) {
		const struct subject *subject = &subjects[i];

#ifdef GCR_HIP
		if (subject->not_on_hip) {
			printf("not on HIP: %s: %s\n", subject->name, subject->not_on_hip);
			continue;
		}
#endif
		new_state(subject->gpus ? subject->gpus : "1",
			  subject->vram ? subject->vram : "256M");
		if (subject->environment)
			set_environment(subject->environment, true);
		if (subject->faults)
			setenv("GPUCR_SIM_FAULTS", driver_words(subject->faults), 1);
		expect_success(subject->name, start(subject->name, true, -1));
		unsetenv("GPUCR_SIM_FAULTS");
		if (subject->environment)
			set_environment(subject->environment, false);
		remove_state();
	}
}

/* For main(): runs the subject or the worker that argv names; returns whether there was one. */
static inline bool run_one(int argc, char **argv, const struct subject *subjects, size_t count)
{
	if (argc == 3 && strcmp(argv[1], "worker") == 0)
		exit(worker_main(atoi(argv[2])));
	if (argc != 2)
		return false;
	for (size_t i = 0; i < count; i++)
		if (strcmp(argv[1], subjects[i].name) == 0) {
			subjects[i].run();
			return true;
		}
	fprintf(stderr, "no such subject: %s\n", argv[1]);
	exit(1);
}

#endif
