/* SPDX-License-Identifier: MIT */
/*
 * What is frozen and thawed: a program of our own whose memory is known, or the user's command.
 * And who uses how much of the GPU's memory, as NVML or KFD tells.
 */
#ifndef GCR_TOOLS_BENCH_SUBJECT_H
#define GCR_TOOLS_BENCH_SUBJECT_H

#include "tools/bench/bench.h"
#include "tools/bench/mount.h"

struct bench_subject {
	struct bench_child child;
	pid_t pid; /* of the GPU process: the child, or one below it */
	bool is_command;
};

/* Start the bench itself in a role; the arguments are texts, NULL ends them. */
int bench_role_start(const struct bench *bench, const struct bench_mount *mount, bool preload,
		     const char *const *role, struct bench_child *ret_child,
		     struct gcr_error *error);

/* The same for one that answers once and ends. */
int bench_role_once(const struct bench *bench, const struct bench_mount *mount, bool preload,
		    const char *const *role, char ret_line[BENCH_LINE_MAX],
		    struct gcr_error *error);

/*
 * Start a program with @bytes of VRAM (0: a context only), or the command, and wait until it is
 * ready. With @preload: under gpucr-run; @mount (NULL: none) is the daemon that it registers with.
 * -ENOMEM: not enough VRAM.
 */
int bench_subject_start(struct bench *bench, uint64_t bytes, bool is_command, bool preload,
			const struct bench_mount *mount, struct bench_subject *ret_subject,
			struct gcr_error *error);

/* While it is frozen: forget what it has said. */
void bench_subject_forget(const struct bench *bench, struct bench_subject *subject);

/* Is all as it was before the freeze? -EBADMSG if not; other errors are of the program. */
int bench_subject_verify(const struct bench *bench, struct bench_subject *subject,
			 struct gcr_error *error);

/*
 * After a thaw: the same, and then the program changes as much of its VRAM as was asked for; a
 * command goes on as it does.
 */
int bench_subject_change(const struct bench *bench, struct bench_subject *subject,
			 struct gcr_error *error);

void bench_subject_end(struct bench_subject *subject);

#define BENCH_USERS_MAX 128

struct bench_vram {
	uint64_t used_bytes, free_bytes;
	size_t users_count;
	struct {
		pid_t pid;
		uint64_t bytes;
	} users[BENCH_USERS_MAX];
};

/* -ENOENT: nobody tells. */
int bench_vram_read(struct bench *bench, struct bench_vram *ret_vram);
uint64_t bench_vram_of(const struct bench_vram *vram, pid_t pid);

/* Have this much host memory in use for a moment: a virtual machine is given its memory by use. */
int bench_host_touch(uint64_t bytes);

#endif
