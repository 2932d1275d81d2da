/* SPDX-License-Identifier: MIT */
/*
 * The process that is frozen and thawed: a role of the bench with known memory, or the user's
 * command. Also the use of GPU memory per process, as NVML or KFD reports it.
 */
#ifndef GCR_TOOLS_BENCH_SUBJECT_H
#define GCR_TOOLS_BENCH_SUBJECT_H

#include "tools/bench/bench.h"
#include "tools/bench/mount.h"

struct bench_subject {
	struct bench_child child;
	pid_t pid; /* pid of the GPU process: the child or a descendant */
	bool is_command;
};

/* Starts the bench itself in a role; @role: its arguments, ended by NULL. */
int bench_role_start(const struct bench *bench, const struct bench_mount *mount, bool preload,
		     const char *const *role, struct bench_child *ret_child,
		     struct gcr_error *error);

/* As bench_role_start(), for a role that answers once and ends; ret_line is the answer. */
int bench_role_once(const struct bench *bench, const struct bench_mount *mount, bool preload,
		    const char *const *role, char ret_line[BENCH_LINE_MAX],
		    struct gcr_error *error);

/*
 * Starts a program with @bytes of VRAM (0: only a context), or the command, and waits until the
 * program is ready. With @preload under gpucr-run; @mount (NULL: none) is the daemon to register
 * with. -ENOMEM: not enough VRAM.
 */
int bench_subject_start(struct bench *bench, uint64_t bytes, bool is_command, bool preload,
			const struct bench_mount *mount, struct bench_subject *ret_subject,
			struct gcr_error *error);

/* Discards the output received up to now; called while the process is frozen. */
void bench_subject_forget(const struct bench *bench, struct bench_subject *subject);

/*
 * Checks that the memory is as before the freeze. -EBADMSG if not; other errors come from the
 * program.
 */
int bench_subject_verify(const struct bench *bench, struct bench_subject *subject,
			 struct gcr_error *error);

/*
 * Called after a thaw: verifies too, and then the program changes the requested share of its VRAM.
 * A command runs on unchanged.
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

/* Reads the use of VRAM. -ENOENT: no figures are available. */
int bench_vram_read(struct bench *bench, struct bench_vram *ret_vram);
/* Returns the VRAM in use by a process; 0 if the process is not listed. */
uint64_t bench_vram_of(const struct bench_vram *vram, pid_t pid);

/*
 * Uses this much host memory for a moment: a virtual machine gets memory from its host on first
 * use.
 */
int bench_host_touch(uint64_t bytes);

#endif
