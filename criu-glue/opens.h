/* SPDX-License-Identifier: MIT */
/*
 * The open files of a process tree, found in /proc before CRIU is started: options that CRIU needs,
 * resources that a restore has to supply again, obstacles to a dump, and the files that a restore
 * needs. The tree should not run during the scan (its GPU work is frozen, its threads wait at the
 * gate); if it does, the result is that of some moment. No input is trusted, no program's memory is
 * read, and no file system is asked for anything that it does not have in memory.
 */
#ifndef GCR_CRIU_GLUE_OPENS_H
#define GCR_CRIU_GLUE_OPENS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "criu-glue/criu.h"
#include "lib/cleanup.h"
#include "lib/error.h"
#include "lib/manifest_tree.h"
#include "lib/rights.h"

#define GCR_OPENS_KEY_BYTES    64
#define GCR_OPENS_FINDINGS_MAX 1024 /* further ones are only counted */

/*
 * More EXTERNAL findings are refused: at a restore CRIU has a descriptor for each, and libraries of
 * its (4.1.1: nftables) fail if it has 1024 descriptors.
 */
#define GCR_OPENS_EXTERNALS_MAX 900

/* A scan of a tree with more than these ends with -E2BIG. */
#define GCR_OPENS_PATHS_BYTES_MAX (32u << 20) /* paths of different files together */
#define GCR_OPENS_NAMELESS_MAX	  262144      /* pipes, sockets, terminals, unlinked files */

enum gcr_open_verdict {
	GCR_OPEN_EXTERNAL, /* to be supplied by the restore under `key` */
	GCR_OPEN_REFUSED,  /* prevents the dump */
};

struct gcr_open_finding {
	enum gcr_open_verdict verdict;
	pid_t pid;
	int fd;		/* -1: no particular one */
	bool is_stdio;	/* descriptor 0, 1 or 2 of some process */
	bool is_writer; /* EXTERNAL: opened for writing (too) */
	/* EXTERNAL: `--external option` of a dump; else the restore alone uses the key. */
	bool has_option;
	/*
	 * EXTERNAL. The replacement of a terminal, "tty[..]", must be a terminal; of a pipe,
	 * "pipe:[..]", anything, also a file; of a unix socket, "socket:[..]", a connected socket
	 * of its type.
	 */
	char key[GCR_OPENS_KEY_BYTES];
	char option[GCR_OPENS_KEY_BYTES]; /* the argument of --external, if has_option */
	struct gcr_error error;		  /* REFUSED: object, process, what to do */
};

/* A file that must exist when the tree is restored. */
struct gcr_open_file {
	char *path;	     /* as in /proc */
	bool is_mapped;	     /* else open only */
	bool is_append_only; /* may grow before the restore: CRIU does not check its size */
};

/* The options of a scan; all that they point to stays the caller's. */
struct gcr_opens_options {
	enum gcr_criu_tcp tcp;
	uint64_t ghost_limit_max_bytes; /* unlinked files up to this size go into the images */
	dev_t mount_device;		/* the device number of our mount; 0: none */
	unsigned int criu_version;	/* 0: not known */
	/*
	 * Prefixes of the links of files that CRIU's plugins handle, open or mapped: they are
	 * skipped. The list ends with NULL; NULL: none.
	 */
	const char *const *plugin_files;
	/*
	 * The rights of the user who will be able to read the images. A file that the program has
	 * open and that this user could not read is refused, or, with may_be_private, sets
	 * is_private. NULL: not checked.
	 */
	const struct gcr_file_rights *reader;
	bool may_be_private;
	/*
	 * The whole tree belongs to root, and is in no container. Only then it may have a file open
	 * whose name was unlinked but which has another name: CRIU makes a temporary name for it,
	 * as root, at the path by which it was opened, and any other user who can change that path
	 * could decide where.
	 */
	bool may_link;
	/* Set by another thread: the scan ends soon, with -ECANCELED. NULL: it cannot be stopped.
	 */
	const atomic_bool *cancel;
};

/* The result of a scan. gcr_opens_destroy() frees it. */
struct gcr_opens {
	/* options for struct gcr_criu_options */
	bool shell_job, file_locks, link_remap, ext_unix_sockets;
	bool is_private; /* the images contain contents of files that the reader could not read */
	uint64_t ghost_limit_bytes; /* 0: CRIU's default suffices */
	uint64_t contents_bytes;    /* of files without a name, whose contents go into the images */
	size_t contents_count;	    /* number of these files: each has an image */

	struct gcr_open_finding *findings;
	size_t findings_count;
	size_t findings_lost; /* findings that did not fit into the list */

	/* Regular files with a name, sorted by path, without duplicates. */
	struct gcr_open_file *files;
	size_t files_count;
};

/*
 * Scans @pids: all processes of the tree, the root first. Returns 0 also if there are refusals.
 * Errors, with a message: -ESRCH the root has ended, -EACCES, -ENOMEM; -E2BIG: there are more than
 * GCR_TREE_FILES_MAX files, or more than the limits above; -ECANCELED without one.
 */
int gcr_opens_scan(const pid_t *pids, size_t pids_count, const struct gcr_opens_options *options,
		   struct gcr_opens **ret_opens, struct gcr_error *error);

/*
 * Returns -errno of the first refusal, with its message. 0: there is none; -E2BIG: there is none,
 * but there are more EXTERNAL findings than a restore can supply.
 */
int gcr_opens_refusal(const struct gcr_opens *opens, struct gcr_error *error);

/*
 * Fills in the options, supplies and files of @tree, which has none yet; the caller makes the
 * identities of the files. Errors, with a message: -E2BIG, -ENOMEM; lists that are already in @tree
 * are freed with it.
 */
int gcr_opens_describe(const struct gcr_opens *opens, enum gcr_criu_tcp tcp,
		       struct gcr_manifest_tree *tree, struct gcr_error *error);

void gcr_opens_destroy(struct gcr_opens *opens);
GCR_DEFINE_CLEANUP(struct gcr_opens *, gcr_opens_destroy);

#endif
