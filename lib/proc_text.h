/* SPDX-License-Identifier: MIT */
/*
 * What files of the kernel's say, once they have been read: text goes in, which ends with a NUL,
 * and parsers change it where it is no const. Programs choose their names, arguments and mounts, so
 * the text may be anything. For the files that read it, and for tests.
 */
#ifndef GCR_LIB_PROC_TEXT_H
#define GCR_LIB_PROC_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/procfs.h"
#include "lib/rights.h"

/* ---- procfs.c ---- */

/* /proc/PID/stat. -EPROTO: it is no such text. */
int gcr_proc_parse_stat(const char *text, size_t bytes, struct gcr_proc_stat *ret_stat);

/* /proc/PID/status; what it does not say is 0. -ESRCH: it names no process. */
int gcr_proc_parse_status(char *text, struct gcr_proc_status *ret_status);

/* A line of /proc/PID/maps: its sixth column, "" if there is none. The line is cut behind it. */
char *gcr_proc_parse_mapping_path(char *line);
/* Which addresses, and what of the file. False: it is no such line. */
bool gcr_proc_parse_span(const char *line, struct gcr_proc_span *ret_span);

/* The value of @name in an environment of @bytes; NULL: it has none. */
const char *gcr_proc_parse_environ(const char *text, size_t bytes, const char *name);

/* ---- proc_tree.c ---- */

/* /proc/PID/task/TID/children: calls @visit until it returns non-zero, and returns that; else 0. */
int gcr_proc_parse_children(const char *text, int (*visit)(pid_t child, void *data), void *data);

/* ---- proc_cgroup.c ---- */

/* Where in the cgroup trees a process is. Strings are the holder's. */
struct gcr_cgroup_place {
	char *unified; /* v2 path, NULL if there is none */
	char *memory;  /* v1 paths of these controllers, NULL if they are v2's or of no tree */
	char *freezer;
};

/* /proc/PID/cgroup. -ENOMEM: some of it may be there. */
int gcr_cgroup_parse_place(char *text, struct gcr_cgroup_place *place);
void gcr_cgroup_place_finish(struct gcr_cgroup_place *place);

/* Where a cgroup tree is mounted, and which of its directories that is. */
struct gcr_cgroup_mount {
	char *root;
	char *point;
};

/*
 * The tree of @controller (NULL: the v2 tree) in /proc/PID/mountinfo. -ENOENT: it is not mounted;
 * -ENOMEM: some of it may be there.
 */
int gcr_cgroup_parse_mount(char *text, const char *controller, struct gcr_cgroup_mount *mount);
void gcr_cgroup_mount_finish(struct gcr_cgroup_mount *mount);

/* The value of "key value" or "key: value" in a text of such lines; false: the key is not there. */
bool gcr_cgroup_parse_value(const char *text, const char *key, uint64_t *ret_value);

/* ---- mount.c ---- */

/* /proc/self/mountinfo: where the mount is that gcr_mount_search() tells @user of, in @text. NULL.
 */
const char *gcr_mount_parse(char *text, uid_t user);

/* ---- rights.c ---- */

/* /proc/PID/status. -EIO: a line is missing; -ENOMEM. Groups are @rights' in any case. */
int gcr_file_rights_parse(const char *text, struct gcr_file_rights *rights);

#endif
