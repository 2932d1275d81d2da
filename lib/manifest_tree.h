/* SPDX-License-Identifier: MIT */
/*
 * The member `tree` of the manifest of a dumped tree of processes: by what is decided whether it
 * can be restored here, before CRIU is started, and how. In the file it stands next to `criu`, and
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
#define GCR_TREE_KEY_BYTES     64 /* as GCR_OPENS_KEY_BYTES of criu-glue/opens.h */
#define GCR_TREE_ENGINE_BYTES  16 /* as GCR_MANIFEST_ENGINE_BYTES */

/* The directory with one named by its pid for each GPU process but the root. */
#define GCR_TREE_PROCESSES "processes"

struct gcr_tree_process {
	pid_t pid;    /* in the daemon's pid namespace; each once */
	pid_t parent; /* one that stands before it in the list; 0 for the first, the root */
	char comm[GCR_COMM_BYTES];
	/*
	 * Has a snapshot of its own, with this generation and engine: the root's is the manifest
	 * that this is in, any other's is in GCR_TREE_PROCESSES/PID. Else both are "".
	 */
	bool has_gpu;
	char generation[GCR_GENERATION_BYTES];
	char engine[GCR_TREE_ENGINE_BYTES];
};

/* Something outside the tree that it had open: to be supplied again under @key. */
struct gcr_tree_supply {
	char key[GCR_TREE_KEY_BYTES]; /* "pipe:[123]", "socket:[123]", "tty[8800:19]" */
	bool is_writer;
	bool is_stdio; /* descriptor 0, 1 or 2 of some process */
};

/* The values are those of enum gcr_criu_tcp (criu-glue/criu.h). */
enum gcr_tree_tcp {
	GCR_TREE_TCP_REFUSE,
	GCR_TREE_TCP_KEEP,
	GCR_TREE_TCP_CLOSE,
	GCR_TREE_TCP_COUNT,
};

/* What CRIU has to be told again: see struct gcr_criu_options; gcr_opens_describe() fills it in. */
struct gcr_tree_options {
	bool shell_job, file_locks, link_remap, ext_unix_sockets;
	enum gcr_tree_tcp tcp;
};

struct gcr_manifest_tree {
	struct gcr_host host; /* that it was dumped on */
	struct gcr_tree_options options;
	struct gcr_tree_process *processes; /* the root first; pid is that of the manifest */
	size_t processes_count;
	struct gcr_tree_supply *supplies;
	size_t supplies_count;
	struct gcr_file_identity *files; /* in the order of strcmp() of their paths, each once */
	size_t files_count;
};

/* With all lists. NULL is allowed. */
void gcr_manifest_tree_free(struct gcr_manifest_tree *tree);
GCR_DEFINE_CLEANUP(struct gcr_manifest_tree *, gcr_manifest_tree_free);

#endif
