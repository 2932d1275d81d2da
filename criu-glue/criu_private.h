/* SPDX-License-Identifier: MIT */
/* Shared by the files that run CRIU. */
#ifndef GCR_CRIU_GLUE_CRIU_PRIVATE_H
#define GCR_CRIU_GLUE_CRIU_PRIVATE_H

#include "criu-glue/criu.h"

#define GCR_CRIU_OUTPUT_BYTES (64u << 10) /* of its output that are kept */
#define GCR_CRIU_PID_FILE     "criu.pid"  /* in its working directory */

/* The message about a CRIU, %s, that has not loaded its guard, %s. */
#define GCR_CRIU_UNGUARDED                                                                   \
	"%s has not loaded %s, and was let at nothing without it: install a CRIU that is a " \
	"dynamic "                                                                           \
	"program, or a script that passes its environment and its descriptors on"

struct gcr_criu_job {
	enum gcr_criu_action action;
	pid_t pid;
	int pidfd;
	/* To the launcher that started it and reports its end; -1: it is our child. */
	int connection;
	bool is_launched;
	int work_fd;
	int output_fd;
	int hook_fd; /* -1: no hook, or already answered */
	char *log_name;
	struct gcr_criu_job *log; /* the program that keeps the log; NULL: none, or it has ended */
	int log_end_fd;		  /* tells that program that CRIU has ended; -1: not open */
	char *guard;		  /* the library that it has to load; NULL: none */
	int guard_fd;		  /* our end of the gate, see guard_start.c; -1: none */
	bool is_guarded;	  /* the guard has answered */
	bool stopped_by_us;
	bool reaped;
	int wait_status;
	int report_fd; /* gpucr-pidns writes its init's pid there; -1: not used */
	int32_t init;  /* that pid, after success */
};

/* Returns an empty job, for gcr_criu_destroy(). NULL: out of memory. */
struct gcr_criu_job *gcr_criu_new_job(void);
/* Makes a file for a program's output, which the caller closes. -EMFILE, -ENOMEM, ... */
int gcr_criu_make_output(int *ret_fd);
/* Reads the output as a string; the rest of the buffer is filled with NULs. */
void gcr_criu_read_output(int fd, char text[static GCR_CRIU_OUTPUT_BYTES + 1]);
/*
 * Starts a program as our child, or by the launcher; @options: of a dump or restore, or NULL.
 * @gate: the program's descriptor of the gate, if the options have a guard. Errors come with a
 * message.
 */
int gcr_criu_start_program(const struct gcr_criu_program *criu, const char *path,
			   char *const *arguments, const int *fds, size_t count,
			   const struct gcr_criu_options *options, int gate,
			   struct gcr_criu_job *job, struct gcr_error *error);
void gcr_criu_send_signal(int pidfd, int number);
/*
 * Makes the gate of a CRIU that loads @guard, with the directory of its images (-1: none) behind
 * it. *ret_fd, the caller's, is for CRIU. Errors come with a message.
 */
int gcr_criu_make_gate(struct gcr_criu_job *job, const char *guard, int images_fd, int *ret_fd,
		       struct gcr_error *error);
/* Has the job's CRIU loaded its guard? True if it was given none. */
bool gcr_criu_is_guarded(struct gcr_criu_job *job);
/*
 * Starts the program that keeps CRIU's log: job->log. *ret_fd, the caller's: the socket that CRIU
 * writes its log to. Errors come with a message.
 */
int gcr_criu_keep_log(const struct gcr_criu_program *criu, const struct gcr_criu_options *options,
		      struct gcr_criu_job *job, int *ret_fd, struct gcr_error *error);
/*
 * CRIU has ended: waits until all that it has written is in the log. From then on nothing can be
 * written there. Nothing happens if the log is complete already.
 */
void gcr_criu_complete_log(struct gcr_criu_job *job);
/* Has the job's program ended? If so, job->wait_status is its status; -1: unknown. Never waits. */
bool gcr_criu_reap(struct gcr_criu_job *job);

#endif
