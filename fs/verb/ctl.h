/* SPDX-License-Identifier: MIT */
/* The grammar of a write to a ctl file: `verb[ key[=value]]...[\n]`, parsed whole or not at all. */
#ifndef GCR_FS_VERB_CTL_H
#define GCR_FS_VERB_CTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "criu-glue/criu.h"
#include "fs/base/credentials.h"
#include "fs/base/state.h"
#include "fs/store/place_name.h"
#include "lib/error.h"
#include "lib/protocol.h"

#define GCR_COMMAND_BYTES_MAX	    4096 /* of one write, its newline included */
#define GCR_COMMAND_PIDS_MAX	    512
#define GCR_COMMAND_PATH_BYTES	    1024
#define GCR_COMMAND_TIMEOUT_SEC_MAX (7 * 24 * 3600)

struct gcr_task;

/*
 * Carry out a verb for one process, on the task's thread. @ret_state: the state of the process
 * then.
 */
typedef int gcr_task_work(struct gcr_task *task, enum gcr_state *ret_state,
			  struct gcr_error *error);

struct gcr_command {
	enum gcr_verb verb;
	int64_t timeout_usec; /* `timeout=SEC`, 0 if not given */
	bool data;	      /* `data` of freeze: VRAM out, the driver's context stays */

	bool unseen; /* `unseen` of freeze, dump: per the writer, no GPU memory is shared */

	bool park; /* `park` of freeze: ready for a CRIU that the daemon does not start */

	bool leave;	       /* `leave` of dump: the tree stays, frozen */
	bool supervised;       /* `supervised`: the writer knows that a unit restarts the program */
	enum gcr_criu_tcp tcp; /* `tcp=close` or `tcp=keep` of dump */
	char name[GCR_PLACE_NAME_BYTES]; /* `name=N` of dump, "" if not given */
	/* Not parsed from the text: the process that a dump was written to, and the writer. */
	gcr_task_work *work; /* replaces the engine's freeze or thaw; NULL: not replaced */
	pid_t root;
	pid_t writer;		  /* 0: not known */
	struct gcr_rights rights; /* of the users who opened and wrote the file */

	bool unverified; /* `unverified` of thaw: ignore digests that differ */
	bool trusted;	 /* `trusted` of thaw: CRIU opens the files of a dumped tree as root */
	bool new_pids;	 /* `pid=new` of thaw: in a pid namespace of its own */
	pid_t restored;	 /* `pid=N`: process restored by a foreign CRIU; 0: not given */
	pid_t swap;	 /* `swap=PID`: the process to freeze at the same time; 0: not given */
	bool swap_data;	 /* freeze the process of swap= with `data` */
	char stdio[GCR_COMMAND_PATH_BYTES]; /* `stdio=PATH`, "" if not given */

	/* `gpu=OLD:NEW` of thaw, by index */
	unsigned int gpu_pairs_count;
	struct {
		unsigned int from;
		unsigned int to;
	} gpu_pairs[GCR_GPUS_MAX];

	/* root ctl only: the processes, each once, in the order of the text */
	unsigned int pids_count;
	pid_t pids[GCR_COMMAND_PIDS_MAX];
};

/* May the writer do operations that are for root only? */
static inline bool gcr_command_is_root(const struct gcr_command *command)
{
	return command->rights.uid == 0;
}

/*
 * Parses the @length bytes of a write to a `ctl` file. @with_pids: to the root's, which needs at
 * least one process id; elsewhere an id is an error. Errors, with a message: -EINVAL, -E2BIG.
 */
int gcr_command_parse(const char *bytes, size_t length, bool with_pids,
		      struct gcr_command *ret_command, struct gcr_error *error);

/* One option of a verb, for the parser and for the test of the manual pages. */
struct gcr_command_option {
	enum gcr_verb verb;
	const char *key;
	const char *value_words; /* "SEC"; NULL: the key stands alone */
};

const struct gcr_command_option *gcr_command_options(size_t *ret_count);

#endif
