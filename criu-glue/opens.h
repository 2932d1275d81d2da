/* SPDX-License-Identifier: MIT */
/*
 * What a tree of processes has open, found in /proc before CRIU is started: what CRIU needs to be
 * told, what has to be supplied again at restore, what stands in the way, and which files must be
 * there. The tree should not run meanwhile (its GPU work is frozen, its threads stand at the gate);
 * if it does, the answer is that of some moment. Nothing that is read is trusted, no program's
 * memory is looked at, and no file system is asked for what it does not know already.
 */
#ifndef GCR_CRIU_GLUE_OPENS_H
#define GCR_CRIU_GLUE_OPENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "criu-glue/criu.h"
#include "lib/build_id.h"
#include "lib/cleanup.h"
#include "lib/error.h"
#include "lib/manifest_tree.h"
#include "lib/rights.h"

#define GCR_OPENS_KEY_BYTES    64
#define GCR_OPENS_FINDINGS_MAX 1024 /* more of them: the rest is counted only */

enum gcr_open_verdict {
	GCR_OPEN_EXTERNAL, /* to be supplied at restore under `key` */
	GCR_OPEN_REFUSED,  /* stands in the way */
};

struct gcr_open_finding {
	enum gcr_open_verdict verdict;
	pid_t pid;
	int fd;		 /* -1: none in particular */
	bool is_stdio;	 /* descriptor 0, 1 or 2 of some process */
	bool is_writer;	 /* EXTERNAL: opened for writing (too) */
	bool has_option; /* EXTERNAL: `--external key` of a dump; else the key is for restore only
			  */
	/*
	 * EXTERNAL. A terminal wants a terminal, "tty[..]"; anything will do for a pipe,
	 * "pipe:[..]", a file too; a unix socket, "socket:[..]", wants a connected socket of its
	 * type.
	 */
	char key[GCR_OPENS_KEY_BYTES];
	char option[GCR_OPENS_KEY_BYTES]; /* what follows --external, if has_option */
	struct gcr_error error;		  /* REFUSED: what, who, what to do */
};

struct gcr_open_file {
	char *path; /* as /proc tells it */
	uint64_t size_bytes;
	int64_t mtime_ns;	 /* real time */
	bool is_mapped;		 /* else open only */
	bool is_append_only;	 /* may have grown at restore: CRIU checks no size of it */
	uint32_t build_id_bytes; /* 0: it has none */
	uint8_t build_id[GCR_BUILD_ID_BYTES];
};

struct gcr_opens_options {
	enum gcr_criu_tcp tcp;
	uint64_t ghost_limit_max_bytes; /* unlinked files up to here go into the images */
	dev_t mount_device;		/* of our mount; 0: none */
	unsigned int criu_version;	/* 0: not known */
	/*
	 * Beginnings of the links of files that CRIU's plugins see to, open or mapped: nothing is
	 * said of them. The list ends with NULL; NULL: there are none.
	 */
	const char *const *plugin_files;
	/*
	 * Who will be able to read the images: files that the program has open, and that he could
	 * not read, are refused, or, with may_be_private, set is_private. NULL: not looked at.
	 */
	const struct gcr_file_rights *reader;
	bool may_be_private;
	/*
	 * The whole tree is root's, and in no container. Only there a file may be open that has
	 * lost its name and has another one: CRIU makes a name for it, as root, by the path that it
	 * was opened by, and whoever else can change that path would say where.
	 */
	bool may_link;
};

struct gcr_opens {
	/* for struct gcr_criu_options */
	bool shell_job, file_locks, link_remap, ext_unix_sockets;
	bool is_private; /* contents of files are in the images that the reader could not read */
	uint64_t ghost_limit_bytes; /* 0: CRIU's own suffices */
	uint64_t contents_bytes;    /* of files without a name, which go into the images */
	size_t contents_count;	    /* of these files: each has an image */

	struct gcr_open_finding *findings;
	size_t findings_count;
	size_t findings_lost; /* found, and not in the list */

	struct gcr_open_file *files; /* regular ones with a name, by path, each once */
	size_t files_count;
};

/*
 * @pids: all processes of the tree, its root first. 0 also if there are refusals. Errors with
 * words: -ESRCH the root has ended, -EACCES, -ENOMEM.
 */
int gcr_opens_scan(const pid_t *pids, size_t pids_count, const struct gcr_opens_options *options,
		   struct gcr_opens **ret_opens, struct gcr_error *error);

/* The first refusal, with -errno; 0 if there is none. */
int gcr_opens_refusal(const struct gcr_opens *opens, struct gcr_error *error);

/*
 * Fill in the options, supplies and files of @tree, which has none yet; the identities of the files
 * are the caller's to make. Errors with words: -E2BIG, -ENOMEM; what is in @tree by then is freed
 * with it.
 */
int gcr_opens_describe(const struct gcr_opens *opens, enum gcr_criu_tcp tcp,
		       struct gcr_manifest_tree *tree, struct gcr_error *error);

void gcr_opens_destroy(struct gcr_opens *opens);
GCR_DEFINE_CLEANUP(struct gcr_opens *, gcr_opens_destroy);

#endif
