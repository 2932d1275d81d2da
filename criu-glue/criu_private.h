/* SPDX-License-Identifier: MIT */
/* What the files about a run of CRIU share. */
#ifndef GCR_CRIU_GLUE_CRIU_PRIVATE_H
#define GCR_CRIU_GLUE_CRIU_PRIVATE_H

#include "criu-glue/criu.h"

#define GCR_CRIU_OUTPUT_BYTES  (64u << 10) /* of what it prints that is kept */
#define GCR_CRIU_LOG_BYTES_MAX (8u << 20)  /* of its log that are kept: the last ones */
#define GCR_CRIU_PID_FILE      "criu.pid"  /* in its working directory */

struct gcr_criu_job {
	enum gcr_criu_action action;
	pid_t pid;
	int pidfd;
	int connection; /* to what has started it and will tell its end; -1: it is our child */
	bool is_launched;
	int work_fd;
	int output_fd;
	int hook_fd; /* -1: no hook, or it has its answer */
	char *log_name;
	bool stopped_by_us;
	bool reaped;
	int wait_status;
	int report_fd; /* gpucr-pidns tells its init's pid there; -1: it is not used */
	int32_t init;  /* then, of one that succeeded */
};

/* NULL: out of memory. For gcr_criu_destroy(). */
struct gcr_criu_job *gcr_criu_new_job(void);
/* A file for what a program prints, the caller's to close. -EMFILE, -ENOMEM, ... */
int gcr_criu_make_output(int *ret_fd);
/* What was printed, as a string; the rest of the file is NULs. */
void gcr_criu_read_output(int fd, char text[static GCR_CRIU_OUTPUT_BYTES + 1]);
/* A child of ours, or the launcher's; @options: of a dump or restore, or NULL. With words. */
int gcr_criu_start_program(const struct gcr_criu_program *criu, const char *path,
			   char *const *arguments, const int *fds, size_t count,
			   const struct gcr_criu_options *options, struct gcr_criu_job *job,
			   struct gcr_error *error);
void gcr_criu_send_signal(int pidfd, int number);
/* Has it ended? Then job->wait_status is how; -1: nobody knows. Never waits. */
bool gcr_criu_reap(struct gcr_criu_job *job);

#endif
