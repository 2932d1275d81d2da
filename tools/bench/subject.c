/* SPDX-License-Identifier: MIT */
/* Starts the measured program and verifies its state. Single-threaded, except to touch memory. */
#include "tools/bench/subject.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/procfs.h"

#define ANSWER_USEC	 (60 * GCR_USEC_PER_SEC)
#define COMMAND_USEC	 (600 * GCR_USEC_PER_SEC) /* limit until a command reports readiness */
#define BYTES_PER_USEC	 200			  /* minimum speed of any role that moves bytes */
#define TOUCH_PAGE_BYTES 4096
#define TOUCH_THREADS	 8
#define ARGUMENTS_MAX	 16

/*
 * Starts a program with the environment for or without the preload library, and with the daemon's
 * socket. gpucr-run adds variables that are only needed in the build tree.
 */
static int start_program(const struct bench *bench, const char *name, char *const *arguments,
			 bool preload, const struct bench_mount *mount,
			 struct bench_child *ret_child, struct gcr_error *error)
{
	const struct bench_paths *paths = &bench->paths;
	const char *environment[4] = {NULL};
	char sim[] = "--sim";
	char *all[ARGUMENTS_MAX] = {NULL};
	size_t variables = 0, count = 0;

	if (mount && mount->socket)
		environment[variables++] = mount->socket;
	if (!preload)
		environment[variables++] = "GPUCR_PRELOAD=";
	if (preload || paths->simulator_state) {
		all[count++] = paths->run;
		if (paths->simulator_state)
			all[count++] = sim;
	}
	while (*arguments && count < ARGUMENTS_MAX - 1)
		all[count++] = *arguments++;
	return bench_child_start(paths, name, all, environment, ret_child, error);
}

int bench_role_start(const struct bench *bench, const struct bench_mount *mount, bool preload,
		     const char *const *role, struct bench_child *ret_child,
		     struct gcr_error *error)
{
	char role_option[] = "--role", hip_option[] = "--hip-role";
	char *arguments[ARGUMENTS_MAX] = {bench->paths.self,
					  bench->options.hip ? hip_option : role_option};
	const char *name = role[0];

	for (size_t i = 2; *role && i < ARGUMENTS_MAX - 1; i++, role++)
		memcpy(&arguments[i], role, sizeof(*role));
	return start_program(bench, name, arguments, preload, mount, ret_child, error);
}

int bench_role_once(const struct bench *bench, const struct bench_mount *mount, bool preload,
		    const char *const *role, char ret_line[BENCH_LINE_MAX], struct gcr_error *error)
{
	struct bench_child child;
	int result = bench_role_start(bench, mount, preload, role, &child, error);

	if (result < 0)
		return result;
	result = bench_child_answer(&bench->paths, &child, 2 * ANSWER_USEC, ret_line, error);
	bench_child_end(&child);
	return result;
}

/* Returns true if @pid is @ancestor or a descendant. */
static bool is_below(pid_t pid, pid_t ancestor)
{
	struct gcr_proc_stat stat;

	for (int depth = 0; pid > 1 && depth < 64; depth++) {
		if (pid == ancestor)
			return true;
		if (gcr_proc_stat(pid, &stat) < 0)
			return false;
		pid = stat.parent;
	}
	return false;
}

/* Finds the only process of the command that uses the GPU. */
static int find_process(struct bench *bench, struct bench_subject *subject, struct gcr_error *error)
{
	struct bench_vram vram;
	size_t found = 0;

	subject->pid = subject->child.pid;
	if (bench_vram_read(bench, &vram) < 0)
		return 0;
	for (size_t i = 0; i < vram.users_count; i++) {
		if (!is_below(vram.users[i].pid, subject->child.pid))
			continue;
		subject->pid = vram.users[i].pid;
		found++;
	}
	if (found == 1)
		return 0;
	return gcr_error_set(error, EINVAL, "the command has %zu processes that use GPU %d, not 1",
			     found, bench->options.gpu);
}

static int start_command(const struct bench *bench, bool preload, const struct bench_mount *mount,
			 struct bench_subject *subject, struct gcr_error *error)
{
	const char *const shell[] = {"/bin/sh", "-c", bench->options.command, NULL};
	char *arguments[GCR_ARRAY_SIZE(shell)];
	char line[BENCH_LINE_MAX];
	int result;

	memcpy(arguments, shell, sizeof(shell));
	result = start_program(bench, "command", arguments, preload, mount, &subject->child, error);
	while (!result) {
		result =
			bench_child_line(&bench->paths, &subject->child, COMMAND_USEC, line, error);
		if (!result && strstr(line, bench->options.ready))
			return 0;
	}
	return result;
}

static int start_target(const struct bench *bench, uint64_t bytes, bool preload,
			const struct bench_mount *mount, struct bench_subject *subject,
			struct gcr_error *error)
{
	char gpu[16], size[32], seed[32], chunks[16], percent[16], line[BENCH_LINE_MAX];
	struct gcr_error problem = {0};
	int result;

	snprintf(gpu, sizeof(gpu), "%d", bench->options.gpu);
	snprintf(size, sizeof(size), "%" PRIu64, bytes);
	snprintf(chunks, sizeof(chunks), "%d", BENCH_CHUNKS);
	snprintf(percent, sizeof(percent), "%u", bench->options.changed_percent);
	/* A new seed each time: bytes left over from an earlier run are then detected. */
	snprintf(seed, sizeof(seed), "%" PRIu32, (uint32_t)gcr_clock_usec());
	result = bench_role_start(bench, mount, preload,
				  (const char *[]){"target", gpu, size, chunks, seed,
						   bench->options.busy ? "1" : "0", percent, NULL},
				  &subject->child, error);
	if (result < 0)
		return result;
	result = bench_child_answer(&bench->paths, &subject->child,
				    ANSWER_USEC + (int64_t)(bytes / BYTES_PER_USEC), line,
				    &problem);
	if (!result)
		return 0;
	if (strstr(problem.words, "CUDA_ERROR_OUT_OF_MEMORY") ||
	    strstr(problem.words, "hipErrorOutOfMemory"))
		return gcr_error_set(error, ENOMEM, "not enough VRAM: %s", problem.words);
	return gcr_error_set(error, problem.number, "the program does not start: %s",
			     problem.words);
}

int bench_subject_start(struct bench *bench, uint64_t bytes, bool is_command, bool preload,
			const struct bench_mount *mount, struct bench_subject *ret_subject,
			struct gcr_error *error)
{
	struct bench_subject subject = {.is_command = is_command};
	int result;

	if (is_command) {
		result = start_command(bench, preload, mount, &subject, error);
		if (!result)
			result = find_process(bench, &subject, error);
	} else {
		result = start_target(bench, bytes, preload, mount, &subject, error);
		subject.pid = subject.child.pid;
	}
	if (result < 0) {
		bench_subject_end(&subject);
		return result;
	}
	*ret_subject = subject;
	return 0;
}

void bench_subject_forget(const struct bench *bench, struct bench_subject *subject)
{
	char line[BENCH_LINE_MAX];

	while (subject->is_command &&
	       !bench_child_line(&bench->paths, &subject->child, 0, line, NULL))
		;
}

/* Checks that the command still runs and prints its --check text. */
static int verify_command(const struct bench *bench, struct bench_subject *subject,
			  struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + ANSWER_USEC;
	char line[BENCH_LINE_MAX];
	int result = 0;

	/* Two lines: the first may have been printed before the thaw. */
	for (int seen = 0; bench->options.check && seen < 2;) {
		result = bench_child_line(&bench->paths, &subject->child,
					  until_usec - gcr_clock_usec(), line, error);
		if (result < 0)
			break;
		seen += strstr(line, bench->options.check) != NULL;
	}
	if (!result && !bench->options.check)
		result = bench_pause(GCR_USEC_PER_SEC);
	if (!result && bench_child_ended(&subject->child))
		result = gcr_error_set(error, EPIPE, "it has ended");
	if (result == -EPIPE || result == -ETIMEDOUT) {
		gcr_error_prefix(error, "after the thaw");
		return -EBADMSG;
	}
	return result;
}

int bench_subject_verify(const struct bench *bench, struct bench_subject *subject,
			 struct gcr_error *error)
{
	char line[BENCH_LINE_MAX];

	if (subject->is_command)
		return verify_command(bench, subject, error);
	return bench_child_ask(&bench->paths, &subject->child, 2 * ANSWER_USEC, "verify", line,
			       error);
}

int bench_subject_change(const struct bench *bench, struct bench_subject *subject,
			 struct gcr_error *error)
{
	char line[BENCH_LINE_MAX];

	if (subject->is_command)
		return verify_command(bench, subject, error);
	return bench_child_ask(&bench->paths, &subject->child, 2 * ANSWER_USEC, "change", line,
			       error);
}

void bench_subject_end(struct bench_subject *subject)
{
	bench_child_end(&subject->child);
}

int bench_vram_read(struct bench *bench, struct bench_vram *ret_vram)
{
	struct bench_vram vram = {0};
	char line[BENCH_LINE_MAX];
	double used, free;
	const char *rest;
	int pid, length;

	if (!bench->has_figures ||
	    bench_child_ask(&bench->paths, &bench->figures, ANSWER_USEC, "list", line, NULL) < 0 ||
	    !bench_answer_number(line, "used", &used) || !bench_answer_number(line, "free", &free))
		return -ENOENT;
	vram.used_bytes = (uint64_t)used;
	vram.free_bytes = (uint64_t)free;
	rest = strstr(line, " free ") + strlen(" free ");
	rest += strcspn(rest, " ");
	while (vram.users_count < BENCH_USERS_MAX &&
	       sscanf(rest, "%d %" SCNu64 "%n", &pid, &vram.users[vram.users_count].bytes,
		      &length) == 2) {
		vram.users[vram.users_count++].pid = pid;
		rest += length;
	}
	*ret_vram = vram;
	return 0;
}

uint64_t bench_vram_of(const struct bench_vram *vram, pid_t pid)
{
	for (size_t i = 0; i < vram->users_count; i++)
		if (vram->users[i].pid == pid)
			return vram->users[i].bytes;
	return 0;
}

struct share {
	char *bytes;
	uint64_t count;
	pthread_t thread;
};

static void *touch(void *data)
{
	const struct share *share = data;

	for (uint64_t i = 0; i < share->count && !bench_interrupted; i += TOUCH_PAGE_BYTES)
		((volatile char *)share->bytes)[i] = 1;
	return NULL;
}

int bench_host_touch(uint64_t bytes)
{
	struct share shares[TOUCH_THREADS];
	unsigned int started = 0;
	char *memory;

	bytes -= bytes % ((uint64_t)TOUCH_THREADS << 21);
	if (!bytes)
		return 0;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return -errno;
	madvise(memory, bytes, MADV_HUGEPAGE);
	for (; started < TOUCH_THREADS; started++) {
		struct share *share = &shares[started];

		share->count = bytes / TOUCH_THREADS;
		share->bytes = memory + started * share->count;
		if (pthread_create(&share->thread, NULL, touch, share))
			break;
	}
	for (unsigned int i = 0; i < started; i++)
		pthread_join(shares[i].thread, NULL);
	munmap(memory, bytes);
	return 0;
}
