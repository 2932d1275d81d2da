/* SPDX-License-Identifier: MIT */
/*
 * The parts of gpucr-swap: reading the mount (look.c), writing verbs (verb.c), the watcher
 * (watch.c) and its status socket (status.c). policy.c makes the decisions. Single-threaded.
 */
#ifndef GCR_TOOLS_SWAP_H
#define GCR_TOOLS_SWAP_H

#include <stdio.h>

#include "lib/error.h"
#include "tools/swap/policy.h"

#define SWAP_COMM_BYTES	 32
#define SWAP_STATE_BYTES 16
#define SWAP_STAMP_BYTES 40

/* ---- look.c ---- */

/* Further data of a process of the situation, for messages. */
struct swap_label {
	char comm[SWAP_COMM_BYTES];
	char state[SWAP_STATE_BYTES];
	bool has_verb;
};

/* The last state of the mount that was read. swap_view_finish() frees it. */
struct swap_view {
	struct swap_situation situation;
	struct swap_process *processes;
	struct swap_label *labels; /* one per process */
	size_t room;
};

/*
 * Reads the mount into @view. Returns 0; -ENOTCONN, -ENOENT or another -errno if no daemon answers
 * at @mount; -ENOMEM.
 */
int swap_look(const char *mount, struct swap_view *view);
void swap_view_finish(struct swap_view *view);

/* Reads the value of a key of PID's status. Returns 0 or -errno; -ENOENT: no such key. */
int swap_status_value(const char *mount, int pid, const char *key, char *ret_value, size_t room);

/* ---- verb.c ---- */

/* Returns the text to write to ctl: "freeze data", "freeze" or "thaw". */
const char *swap_verb_text(enum swap_verb verb, bool is_full);
const char *swap_verb_name(enum swap_verb verb);

/*
 * Writes a verb to PID's ctl file. With @is_waiting the call returns when the verb has ended,
 * otherwise when the daemon has accepted the verb. On failure @error has the daemon's message,
 * which begins with the name of the errno.
 */
int swap_write_verb(const char *mount, int pid, const char *text, bool is_waiting,
		    struct gcr_error *error);

/* Reads PID's error file. Returns 0 or -errno of the last verb; @error gets the file's line. */
int swap_read_error(const char *mount, int pid, struct gcr_error *error);

/* The end of a verb: one parsed line of the events file. */
struct swap_end {
	const char *stamp; /* time; later stamps compare greater as strings */
	int pid;
	const char *verb;
	const char *result; /* "ok", or the name of an errno */
	const char *words;
};

/* Formats @real_usec (real time) as the stamps in the events file. */
void swap_stamp(int64_t real_usec, char ret_stamp[SWAP_STAMP_BYTES]);

/*
 * Parses a line in place; the fields of @end point into @line. Returns false if the line does not
 * report the end of a verb.
 */
bool swap_parse_end(char *line, struct swap_end *end);

/* Returns 0 or -errno; on failure @error has the message. */
int swap_end_error(const struct swap_end *end, struct gcr_error *error);

/*
 * Finds in PID's events the last @verb that ended at @stamp or later. Returns the verb's result: 0,
 * or -errno with a message. -ENOENT without a message: no such event. -ESRCH: the process has
 * ended.
 */
int swap_find_end(const char *mount, int pid, const char *verb, const char *stamp,
		  struct gcr_error *error);

/* Returns the positive number of an errno's name; EIO if the name is unknown. */
int swap_errno(const char *name, size_t length);

/* ---- watch.c ---- */

struct swap_counters {
	uint64_t waits;	   /* programs that have begun to wait for their GPU */
	uint64_t turns;	   /* programs thawed after such a wait */
	int64_t wait_usec; /* total time that those programs waited */
	uint64_t room_freezes;
	uint64_t idle_freezes;
	uint64_t failures; /* failed verbs */
};

/*
 * Runs the watcher until a signal arrives. Returns the signal's number, or -errno if the watcher
 * cannot start.
 */
int swap_watch(const char *mount, const struct swap_config *config, struct gcr_error *error);

/* ---- status.c ---- */

/* The state that a watcher reports about itself. */
struct swap_told {
	const char *mount;
	const struct swap_config *config;
	const struct swap_view *view;
	const struct swap_note *notes; /* one per process */
	const struct swap_counters *counters;
	int64_t started_usec; /* real time */
	int64_t now_usec;     /* time of the notes */
};

/* Prints why process @i of the view waits: a sentence without a full stop. */
void swap_print_why(const struct swap_told *told, size_t i, FILE *stream);

/*
 * Creates the socket on which a watcher answers. Returns the descriptor, or -errno: no status can
 * be requested. swap_unlisten() closes the socket and removes its path.
 */
int swap_listen(char **ret_path, struct gcr_error *error);
void swap_unlisten(int fd, const char *path);

/* Answers all pending requests on the socket. */
void swap_answer(int fd, const struct swap_told *told);

#define SWAP_TOTALS_COUNT 9

/* The counters of one watcher, for the metrics, in the order of the last line of its answer. */
struct swap_totals {
	char gpus[128];
	double values[SWAP_TOTALS_COUNT];
};

/*
 * Parses a watcher's answer, which ends with a NUL; missing numbers become 0. Returns false if the
 * answer has no numbers.
 */
bool swap_parse_totals(const char *text, struct swap_totals *ret_totals);

/* gpucr-swap status: prints the answers of all watchers of @mount. Returns the exit status. */
int swap_status(const char *mount, bool is_metrics);

#endif
