/* SPDX-License-Identifier: MIT */
/*
 * CRIU as the daemon has it: which program, directories for its plugins, and for every process and
 * place a directory, in the runtime directory, with the log of the last dump or restore.
 */
#ifndef GCR_FS_IMAGE_CRIU_RUN_H
#define GCR_FS_IMAGE_CRIU_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "criu-glue/criu.h"
#include "fs/daemon.h"
#include "lib/error.h"

#define GCR_CRIU_DIRECTORY     "criu" /* in the runtime directory: all of them */
#define GCR_CRIU_LOG_NAME      "criu.log"
#define GCR_CRIU_SUBJECT_BYTES 80

/* What a directory is about: the names of two processes, or places, are never the same. */
void gcr_criu_subject_of_process(pid_t pid, uint64_t start_ticks,
				 char ret_subject[GCR_CRIU_SUBJECT_BYTES]);
void gcr_criu_subject_of_place(const char *name, char ret_subject[GCR_CRIU_SUBJECT_BYTES]);

/* The program, looked for once; stays the daemon's. Errors as of gcr_criu_find(). */
int gcr_criu_program(struct gcr_daemon *daemon, const struct gcr_criu_program **ret_program,
		     struct gcr_error *error);

/* Its directory, made if it is not there: a descriptor of the caller's. With words. */
int gcr_criu_directory(struct gcr_daemon *daemon, const char *subject, struct gcr_error *error);

/*
 * criu_plugin.c: a directory with CRIU's plugins for the vendors of @vendors (bit N: that of
 * gcr_backends[N]) that have one, and with nothing else; its path in @ret_path, for the caller to
 * free. -EOPNOTSUPP: one is not there. With words.
 */
int gcr_criu_plugins(struct gcr_daemon *daemon, unsigned int vendors, char **ret_path,
		     struct gcr_error *error);

/*
 * Where this vendor's is, for the caller to free: what the environment names (GPUCR_AMDGPU_PLUGIN),
 * else the simulator's own, or in CRIU_LIBS_DIR, else where CRIU's are installed. -EOPNOTSUPP,
 * -ENOMEM; with words.
 */
int gcr_criu_plugin_find(const struct gcr_daemon *daemon, const struct gcr_backend *backend,
			 char **ret_path, struct gcr_error *error);

/* What was about @from is about @to now. Where that cannot be, nothing is about either. */
void gcr_criu_hand_on(struct gcr_daemon *daemon, const char *from, const char *to);

/*
 * From now on the log in the directory @fd is root's, until gcr_criu_show_log(): it may name files
 * that the owner of the process cannot see. It stays so when it is handed on. With words.
 */
int gcr_criu_hide_log(int fd, struct gcr_error *error);
void gcr_criu_show_log(int fd);
bool gcr_criu_is_hidden(struct gcr_daemon *daemon, const char *subject);

/* The log, or as much of its end as people read. False: there is none. */
bool gcr_criu_render_log(struct gcr_daemon *daemon, const char *subject, FILE *stream);
/* What it was about is gone. */
void gcr_criu_forget(struct gcr_daemon *daemon, const char *subject);

/*
 * The same for what went while no daemon ran: places that are not there, processes that have ended.
 * At start, when the places are known and nobody can make one.
 */
void gcr_criu_sweep(struct gcr_daemon *daemon);

#endif
