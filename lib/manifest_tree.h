/* SPDX-License-Identifier: MIT */
/*
 * The member `tree` of the manifest of a dumped process tree: the data that decides, before CRIU is
 * started, whether and how the tree can be restored here. In the file it stands next to `criu`;
 * neither is there without the other.
 */
#ifndef GCR_MANIFEST_TREE_H
#define GCR_MANIFEST_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "lib/cleanup.h"
#include "lib/digest.h"
#include "lib/file_identity.h"
#include "lib/host.h"
#include "lib/procfs.h"

#define GCR_TREE_PROCESSES_MAX 4096
#define GCR_TREE_SUPPLIES_MAX  4096
#define GCR_TREE_FILES_MAX     65536
#define GCR_TREE_KEY_BYTES     64 /* the same as GCR_OPENS_KEY_BYTES of criu-glue/opens.h */
#define GCR_TREE_ENGINE_BYTES  16 /* the same as GCR_MANIFEST_ENGINE_BYTES */

/* The directory that has, for each GPU process but the root, a directory named by its pid. */
#define GCR_TREE_PROCESSES "processes"

struct gcr_tree_process {
	pid_t pid;    /* in the daemon's pid namespace; unique */
	pid_t parent; /* a process earlier in the list; 0 for the first one, the root */
	char comm[GCR_COMM_BYTES];
	/*
	 * The process has a snapshot of its own, with this generation and engine. The root's
	 * snapshot is the one whose manifest this is, any other process's is in
	 * GCR_TREE_PROCESSES/PID. Without a GPU both texts are "".
	 */
	bool has_gpu;
	char generation[GCR_GENERATION_BYTES];
	char engine[GCR_TREE_ENGINE_BYTES];
};

/*
 * An open file of the tree whose other end is outside the tree (pipe, socket, terminal): a restore
 * has to supply it again under @key.
 */
struct gcr_tree_supply {
	char key[GCR_TREE_KEY_BYTES]; /* "pipe:[123]", "socket:[123]", "tty[8800:19]" */
	bool is_writer;
	bool is_stdio; /* is descriptor 0, 1 or 2 of some process */
};

/* How CRIU treats TCP connections. The values are those of enum gcr_criu_tcp (criu-glue/criu.h). */
enum gcr_tree_tcp {
	GCR_TREE_TCP_REFUSE,
	GCR_TREE_TCP_KEEP,
	GCR_TREE_TCP_CLOSE,
	GCR_TREE_TCP_COUNT,
};

/*
 * Options that CRIU needs again for the restore: see struct gcr_criu_options; gcr_opens_describe()
 * fills them in.
 */
struct gcr_tree_options {
	bool shell_job, file_locks, link_remap, ext_unix_sockets;
	enum gcr_tree_tcp tcp;
};

struct gcr_manifest_tree {
	struct gcr_host host; /* the machine where the tree was dumped */
	struct gcr_tree_options options;
	struct gcr_tree_process *processes; /* the root first, whose pid is that of the manifest */
	size_t processes_count;
	struct gcr_tree_supply *supplies;
	size_t supplies_count;
	struct gcr_file_identity *files; /* sorted by strcmp() of their paths, without duplicates */
	size_t files_count;
};

/* Frees the tree with all its lists. NULL is allowed. */
void gcr_manifest_tree_free(struct gcr_manifest_tree *tree);
GCR_DEFINE_CLEANUP(struct gcr_manifest_tree *, gcr_manifest_tree_free);

#endif
