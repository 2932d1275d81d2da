/* SPDX-License-Identifier: MIT */
/*
 * For tests of the simulator: a private state directory, the simulator's entry points by name, and
 * child processes that talk over a socket. Children are started before the test itself calls
 * cuInit, because the driver does not work in a forked child of a process that called it.
 *
 * With GCR_HIP, code that uses CUDA's names is tested on HIP: GPUCR_SIM_LIB is then the stand-in
 * for libamdhip64.so, and entry points are those that backend/rocm/adapt.h finds for a name.
 */
#ifndef GPUCR_TEST_SIM_H
#define GPUCR_TEST_SIM_H

#include <dlfcn.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "test/unit/driver_symbol.h"
#include "test/unit/test.h"
#ifdef GCR_HIP
#include "backend/rocm/adapt.h"
#endif

#define MIB (1ull << 20)

/* Every clang that compiles for AMD's GPUs supports this architecture. */
#define SIM_ARCHITECTURE "gfx90a:sramecc+:xnack-"

static char sim_state_directory[64];
static pid_t sim_test_pid;

#ifdef GCR_HIP
static inline void *sim_look_up(void *library, const char *name)
{
	return dlsym(library, name);
}

/*
 * Returns HIP's name for the CUDA function named by the first @length letters of @words, with or
 * without a version suffix.
 */
static inline const char *sim_hip_name(const char *words, size_t length)
{
	char name[64];
	const char *hip_name;

	snprintf(name, sizeof(name), "%.*s", (int)length, words);
	hip_name = gcr_hip_name(name);
	snprintf(name, sizeof(name), "%.*s_v2", (int)length, words);
	return hip_name ? hip_name : gcr_hip_name(name);
}

/*
 * Translates a CUDA message in @words to HIP's: "cuMemMap: CUDA_ERROR_OUT_OF_MEMORY", either half
 * of that, or ": cu" at the end. Other text is returned unchanged.
 */
static inline const char *sim_words(const char *words)
{
	static const struct {
		const char *cuda, *hip;
	} errors[] = {
		{"CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory"},
		{"CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure"},
		{"CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress"},
	};
	static char text[256];
	size_t length = strcspn(words, ":");
	const char *error = strstr(words, "CUDA_ERROR_");
	const char *call;

	for (size_t i = 0; error && i < sizeof(errors) / sizeof(errors[0]); i++)
		if (strcmp(error, errors[i].cuda) == 0)
			error = errors[i].hip;
	if (error && error[0] == 'C') {
		fprintf(stderr, "what is %s in HIP?\n", error);
		exit(1);
	}
	if (strncmp(words, "cu", 2) != 0) {
		length = strlen(words);
		if (length < 4 || strcmp(words + length - 4, ": cu") != 0)
			return error ? error : words;
		snprintf(text, sizeof(text), "%.*s: hip", (int)length - 4, words);
		return text;
	}
	call = words[length] ? sim_hip_name(words, length) : NULL;
	if (call)
		snprintf(text, sizeof(text), "%s: %s", call, error ? error : "");
	else
		snprintf(text, sizeof(text), "hip%s", words + 2);
	return text;
}

static inline void *sim_find(void *library, const char *name)
{
	return gcr_hip_find(name, sim_look_up, library);
}

/* Translates a fault rule for a CUDA entry point to the function that is called in its place. */
static inline const char *sim_rule(const char *rule)
{
	static char text[256];
	size_t length = strcspn(rule, " ");
	const char *name = sim_hip_name(rule, length);

	snprintf(text, sizeof(text), "%s%s", name ? name : rule, name ? rule + length : "");
	return text;
}
#else
static inline const char *sim_words(const char *words)
{
	return words;
}

static inline const char *sim_rule(const char *rule)
{
	return rule;
}

static inline void *sim_find(void *library, const char *name)
{
	return dlsym(library, name);
}
#endif

static inline void *sim_symbol(const char *name)
{
	static void *library;

	return find_in_driver(&library, getenv("GPUCR_SIM_LIB"), sim_find, name);
}

/* An entry point by its exported name. */
#define CU(name) ((__typeof__(name) *)sim_symbol(#name))

static inline int sim_remove(const char *path, const struct stat *status, int kind,
			     struct FTW *where)
{
	return remove(path);
}

static inline void sim_end(void)
{
	if (getpid() == sim_test_pid)
		nftw(sim_state_directory, sim_remove, 16, FTW_DEPTH | FTW_PHYS);
}

/*
 * Returns the parent of the state directory: TMPDIR if that is a tmpfs (tools/check makes it one,
 * with huge pages), else /dev/shm.
 */
static inline const char *sim_parent(void)
{
	const char *directory = getenv("TMPDIR");
	struct statfs status;

	if (directory && strlen(directory) < 32 && statfs(directory, &status) == 0 &&
	    status.f_type == TMPFS_MAGIC)
		return directory;
	return "/dev/shm";
}

/* Makes the state directory and sets up the environment; skips without a simulator. */
static inline void sim_begin(const char *gpus, const char *vram)
{
	if (!getenv("GPUCR_SIM_LIB"))
		SKIP("GPUCR_SIM_LIB is not set");
	snprintf(sim_state_directory, sizeof(sim_state_directory), "%s/gpucr-test-XXXXXX",
		 sim_parent());
	CHECK(mkdtemp(sim_state_directory));
	sim_test_pid = getpid();
	atexit(sim_end);
	setenv("GPUCR_SIM_DIR", sim_state_directory, 1);
	setenv("GPUCR_SIM_GPUS", gpus, 1);
	setenv("GPUCR_SIM_VRAM", vram, 1);
	setenv("GPUCR_SIM_CONTEXT_BYTES", "4M", 1);
	unsetenv("GPUCR_SIM_FAULTS");
	unsetenv("CUDA_VISIBLE_DEVICES");
#ifdef GCR_HIP
	setenv("GPUCR_SIM_HIP_GPUS", gpus, 1);
	setenv("GPUCR_SIM_HIP_ARCH", SIM_ARCHITECTURE, 1);
	unsetenv("HIP_VISIBLE_DEVICES");
	unsetenv("ROCR_VISIBLE_DEVICES");
#endif
	signal(SIGPIPE, SIG_IGN);
	alarm(60 * TEST_SLOW);
}

/* Sets the simulator's fault rules for all processes from now on; NULL removes them. */
static inline void sim_set_faults(const char *rules)
{
	static unsigned int number;
	char path[128], old[128];
	int fd;

	snprintf(path, sizeof(path), "%s/faults", sim_state_directory);
	if (!rules) {
		CHECK(!unlink(path));
		return;
	}
	rules = sim_rule(rules);
	/* A new file each time makes the simulator read the rules again. */
	snprintf(old, sizeof(old), "%s/faults.%u", sim_state_directory, ++number);
	fd = open(old, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	CHECK(write(fd, rules, strlen(rules)) == (ssize_t)strlen(rules));
	close(fd);
	CHECK(!rename(old, path));
}

/* A child process running `body(socket)`. */
struct child {
	pid_t pid;
	int fd;
};

static inline struct child child_start(void (*body)(int fd))
{
	struct child child;
	int pair[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
	child.pid = fork();
	CHECK(child.pid >= 0);
	if (child.pid == 0) {
		close(pair[0]);
		alarm(60 * TEST_SLOW);
		body(pair[1]);
		_exit(0);
	}
	close(pair[1]);
	child.fd = pair[0];
	return child;
}

static inline void child_kill(struct child *child)
{
	kill(child->pid, SIGKILL);
	CHECK(waitpid(child->pid, NULL, 0) == child->pid);
	close(child->fd);
}

/* Waits for the child, which must exit by itself with status 0. */
static inline void child_finish(struct child *child)
{
	int status;

	CHECK(waitpid(child->pid, &status, 0) == child->pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(child->fd);
}

static inline void say(int fd, const void *data, size_t size)
{
	CHECK(write(fd, data, size) == (ssize_t)size);
}

static inline void hear(int fd, void *data, size_t size)
{
	CHECK(recv(fd, data, size, MSG_WAITALL) == (ssize_t)size);
}

static inline void say_byte(int fd, char byte)
{
	say(fd, &byte, 1);
}

static inline char hear_byte(int fd)
{
	char byte;

	hear(fd, &byte, 1);
	return byte;
}

static inline void say_descriptor(int socket, int fd)
{
	char byte = 'd', control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data,
				 .msg_iovlen = 1,
				 .msg_control = control,
				 .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	CHECK(sendmsg(socket, &message, 0) == 1);
}

static inline int hear_descriptor(int socket)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data,
				 .msg_iovlen = 1,
				 .msg_control = control,
				 .msg_controllen = sizeof(control)};
	int fd;

	CHECK(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1);
	CHECK(CMSG_FIRSTHDR(&message));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

static inline CUcontext sim_context(void)
{
	CUcontext context;

	OK(CU(cuInit)(0));
	OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
	OK(CU(cuCtxSetCurrent)(context));
#ifdef GCR_HIP
	/* HIP's equivalent of a context is created by the first call that needs it. */
	OK(CU(cuCtxSynchronize)());
#endif
	return context;
}

static inline size_t sim_free_bytes(void)
{
	size_t free_bytes, total;

	OK(CU(cuMemGetInfo_v2)(&free_bytes, &total));
	return free_bytes;
}

static inline CUmemAllocationProp sim_prop(void)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
				     .requestedHandleTypes =
					     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
}

/* Maps a handle at an address of the driver's choice, readable and writable. */
static inline CUdeviceptr sim_map(CUmemGenericAllocationHandle handle, size_t size)
{
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr pointer;

	OK(CU(cuMemAddressReserve)(&pointer, size, 0, 0, 0));
	OK(CU(cuMemMap)(pointer, size, 0, handle, 0));
	OK(CU(cuMemSetAccess)(pointer, size, &access, 1));
	return pointer;
}

static inline unsigned sim_word(CUdeviceptr pointer)
{
	unsigned word;

	OK(CU(cuMemcpyDtoH_v2)(&word, pointer, sizeof(word)));
	return word;
}

static const char sim_ptx[] = ".version 8.0\n.target sm_50\n.address_size 64\n"
			      ".visible .global .align 4 .b8 table[64];\n"
			      ".visible .entry gpucr_fill(.param .u64 a) { ret; }\n"
			      ".visible .entry gpucr_add (.param .u64 a) { ret; }\n"
			      ".visible .entry gpucr_checksum(.param .u64 a) { ret; }\n"
			      ".visible .entry gpucr_spin(.param .u64 a) { ret; }\n";

static inline CUfunction sim_kernel(const char *name)
{
	static CUmodule module;
	CUfunction function;

	if (!module)
		OK(CU(cuModuleLoadData)(&module, sim_ptx));
	OK(CU(cuModuleGetFunction)(&function, module, name));
	return function;
}

static inline CUresult sim_launch(CUfunction function, CUstream stream, void **params)
{
	return CU(cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

#endif
