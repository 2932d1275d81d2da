/* SPDX-License-Identifier: MIT */
/*
 * Parsers for the text of the kernel's files, for the source files that read them, and for tests.
 * The input ends with a NUL; parsers modify it where it is not const. Programs choose their names,
 * arguments and mounts, so the input is untrusted.
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

/* /proc/PID/stat. -EPROTO: invalid text. */
int gcr_proc_parse_stat(const char *text, size_t bytes, struct gcr_proc_stat *ret_stat);

/* /proc/PID/status; fields that are missing become 0. -ESRCH: the text names no process. */
int gcr_proc_parse_status(char *text, struct gcr_proc_status *ret_status);

/*
 * Returns the sixth column (path) of a line of /proc/PID/maps, "" if there is none. The line is cut
 * after the path.
 */
char *gcr_proc_parse_mapping_path(char *line);
/* Parses the address range and the file offset of such a line. False: invalid line. */
bool gcr_proc_parse_span(const char *line, struct gcr_proc_span *ret_span);

/* Returns the value of @name in an environment of @bytes; NULL: not set. */
const char *gcr_proc_parse_environ(const char *text, size_t bytes, const char *name);

/* ---- proc_tree.c ---- */

/*
 * /proc/PID/task/TID/children: calls @visit until it returns non-zero, and returns that value; else
 * 0.
 */
int gcr_proc_parse_children(const char *text, int (*visit)(pid_t child, void *data), void *data);

/* ---- proc_cgroup.c ---- */

/* A process's place in the cgroup trees. The struct owns its strings. */
struct gcr_cgroup_place {
	char *unified; /* v2 path, NULL if there is none */
	char *memory;  /* paths in v1 of these controllers, NULL if they are v2's or in no tree */
	char *freezer;
};

/* /proc/PID/cgroup. -ENOMEM: @place may be partly filled in. */
int gcr_cgroup_parse_place(char *text, struct gcr_cgroup_place *place);
void gcr_cgroup_place_finish(struct gcr_cgroup_place *place);

/* Where a cgroup tree is mounted (point), and which of its directories is mounted there (root). */
struct gcr_cgroup_mount {
	char *root;
	char *point;
};

/*
 * Finds the tree of @controller (NULL: the v2 tree) in /proc/PID/mountinfo. -ENOENT: not mounted;
 * -ENOMEM: @mount may be partly filled in.
 */
int gcr_cgroup_parse_mount(char *text, const char *controller, struct gcr_cgroup_mount *mount);
void gcr_cgroup_mount_finish(struct gcr_cgroup_mount *mount);

/*
 * Finds the line "key value" or "key: value" in @text; *ret_value is the number. False: there is no
 * such line.
 */
bool gcr_cgroup_parse_value(const char *text, const char *key, uint64_t *ret_value);

/* ---- mount.c ---- */

/*
 * /proc/self/mountinfo: returns the mount point that gcr_mount_search() chooses for @user, as a
 * pointer into @text, or NULL.
 */
const char *gcr_mount_parse(char *text, uid_t user);

/* ---- rights.c ---- */

/*
 * /proc/PID/status. -EIO: a line is missing; -ENOMEM. On error too, the groups are owned by
 * @rights.
 */
int gcr_file_rights_parse(const char *text, struct gcr_file_rights *rights);

#endif
