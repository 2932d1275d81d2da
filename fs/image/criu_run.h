/* SPDX-License-Identifier: MIT */
/*
 * CRIU as the daemon uses it: the program, the directories with its plugins, and one directory in
 * the runtime directory for each subject (a process or a place), which holds the log of the last
 * dump or restore of that subject.
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

#define GCR_CRIU_DIRECTORY     "criu" /* in the runtime directory: holds all these directories */
#define GCR_CRIU_LOG_NAME      "criu.log"
#define GCR_CRIU_SUBJECT_BYTES 80

/*
 * The subject of a process or of a place, as the name of its directory. Names of processes and
 * names of places never collide.
 */
void gcr_criu_subject_of_process(pid_t pid, uint64_t start_ticks,
				 char ret_subject[GCR_CRIU_SUBJECT_BYTES]);
void gcr_criu_subject_of_place(const char *name, char ret_subject[GCR_CRIU_SUBJECT_BYTES]);

/*
 * Returns the CRIU program, which stays the daemon's; the search is repeated until it has found
 * one. Errors as of gcr_criu_find(), of gcr_vendor_program() for its guard, and of
 * gcr_trusted_path() for GPUCR_CRIU_SOCKET.
 */
int gcr_criu_program(struct gcr_daemon *daemon, const struct gcr_criu_program **ret_program,
		     struct gcr_error *error);

/*
 * Opens the directory of @subject and creates the directory if there is none. Returns a descriptor,
 * which the caller closes. Errors set @error.
 */
int gcr_criu_directory(struct gcr_daemon *daemon, const char *subject, struct gcr_error *error);

/*
 * As gcr_criu_directory(), for the log of a dump or restore of a process of user @uid. A user has a
 * limited number of logs: the oldest ones are removed, but for those of dumps and restores under
 * way, whose directories somebody has open.
 */
int gcr_criu_log_directory(struct gcr_daemon *daemon, const char *subject, uid_t uid,
			   struct gcr_error *error);

/*
 * Ties the log in the directory @fd, of a process that a dump has left alive, to the dump's place.
 * gcr_criu_forget_tied(), called when that place is removed, removes the log of @subject, unless a
 * later dump has tied the log to another place. A failure to tie the log is ignored.
 */
void gcr_criu_tie_log(int fd, const char *place);
void gcr_criu_forget_tied(struct gcr_daemon *daemon, const char *subject, const char *place);

/*
 * criu_plugin.c: makes a directory that holds CRIU's plugins for those of @vendors (bit N: the
 * vendor of gcr_backends[N]) that have a plugin, and nothing else. The caller frees *ret_path.
 * -EOPNOTSUPP: a plugin is not installed. Errors set @error.
 */
int gcr_criu_plugins(struct gcr_daemon *daemon, unsigned int vendors, char **ret_path,
		     struct gcr_error *error);

/*
 * The path of this vendor's plugin, which the caller frees. Looked for in this order: the file that
 * the environment variable GPUCR_AMDGPU_PLUGIN names; with the simulator, the simulator's own
 * plugin only; CRIU_LIBS_DIR; the directories in which CRIU installs its plugins. -EOPNOTSUPP,
 * -ENOMEM; errors set @error.
 */
int gcr_criu_plugin_find(const struct gcr_daemon *daemon, const struct gcr_backend *backend,
			 char **ret_path, struct gcr_error *error);

/*
 * Renames the directory of the subject @from to that of @to; an older directory of @to is removed.
 * If the rename fails, both are removed.
 */
void gcr_criu_hand_on(struct gcr_daemon *daemon, const char *from, const char *to);

/*
 * Makes the log in the directory @fd readable for root alone until gcr_criu_show_log(): the log may
 * name files that the owner of the process cannot see. gcr_criu_hand_on() keeps the log hidden.
 * gcr_criu_is_hidden() tells whether the log of @subject is. Errors set @error.
 */
int gcr_criu_hide_log(int fd, struct gcr_error *error);
void gcr_criu_show_log(int fd);
bool gcr_criu_is_hidden(struct gcr_daemon *daemon, const char *subject);

/* Writes the log of @subject to @stream, or only the end of a long log. False: there is no log. */
bool gcr_criu_render_log(struct gcr_daemon *daemon, const char *subject, FILE *stream);
/* Removes the directory of a subject that no longer exists. */
void gcr_criu_forget(struct gcr_daemon *daemon, const char *subject);

/*
 * Removes the directories of subjects that disappeared while no daemon ran: places that no longer
 * exist, processes that have ended. Called at start, when the places are known and no user can make
 * one yet.
 */
void gcr_criu_sweep(struct gcr_daemon *daemon);

#endif
