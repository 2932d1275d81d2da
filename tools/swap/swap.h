/* SPDX-License-Identifier: MIT */
/*
 * The parts of gpucr-swap: what is read of a mount (look.c), verbs (verb.c), the watcher (watch.c)
 * and what it tells of itself (status.c). What it decides is in policy.c. One thread.
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

/* What else there is of a process of the situation, for people. */
struct swap_label {
	char comm[SWAP_COMM_BYTES];
	char state[SWAP_STATE_BYTES];
	bool has_verb;
};

struct swap_view {
	struct swap_situation situation;
	struct swap_process *processes;
	struct swap_label *labels; /* of each process */
	size_t room;
};

/* Read the mount. -ENOTCONN, -ENOENT, ...: no daemon answers there; -ENOMEM. */
int swap_look(const char *mount, struct swap_view *view);
void swap_view_finish(struct swap_view *view);

/* The value of a key of PID's status. -errno; -ENOENT: there is no such key. */
int swap_status_value(const char *mount, int pid, const char *key, char *ret_value, size_t room);

/* ---- verb.c ---- */

/* The verb as it is written: "freeze data", "freeze" or "thaw". */
const char *swap_verb_text(enum swap_verb verb, bool is_full);
const char *swap_verb_name(enum swap_verb verb);

/*
 * Write a verb. With @is_waiting until it has ended, else until it was accepted. What fails has the
 * words of the daemon, which begin with the name of the error.
 */
int swap_write_verb(const char *mount, int pid, const char *text, bool is_waiting,
		    struct gcr_error *error);

/* How PID's last verb ended: 0 or -errno, and its line in @error. */
int swap_read_error(const char *mount, int pid, struct gcr_error *error);

/* How a verb ended: a line of events, taken apart. */
struct swap_end {
	const char *stamp; /* when; later ones compare greater */
	int pid;
	const char *verb;
	const char *result; /* "ok", or the name of an errno */
	const char *words;
};

/* @real_usec as events are stamped. */
void swap_stamp(int64_t real_usec, char ret_stamp[SWAP_STAMP_BYTES]);

/* Takes a line apart in place; @end points into it. False: no verb ended there. */
bool swap_parse_end(char *line, struct swap_end *end);

/* 0 or -errno, and the words of a failure. */
int swap_end_error(const struct swap_end *end, struct gcr_error *error);

/*
 * How the last @verb of PID ended that did so at @stamp or later, by its own events. 0 or -errno,
 * and the words; -ENOENT without words: they do not tell; -ESRCH: there is no such process any
 * more.
 */
int swap_find_end(const char *mount, int pid, const char *verb, const char *stamp,
		  struct gcr_error *error);

/* The positive number of an errno's name; EIO for one that is not known. */
int swap_errno(const char *name, size_t length);

/* ---- watch.c ---- */

struct swap_counters {
	uint64_t waits;	   /* programs that have begun to wait for their GPU */
	uint64_t turns;	   /* those that were thawed */
	int64_t wait_usec; /* for so long those had waited */
	uint64_t room_freezes;
	uint64_t idle_freezes;
	uint64_t failures; /* of verbs */
};

/* Until a signal comes, which is returned; -errno if it cannot begin. */
int swap_watch(const char *mount, const struct swap_config *config, struct gcr_error *error);

/* ---- status.c ---- */

/* What a watcher tells of itself. */
struct swap_told {
	const char *mount;
	const struct swap_config *config;
	const struct swap_view *view;
	const struct swap_note *notes; /* of each process */
	const struct swap_counters *counters;
	int64_t started_usec; /* real time */
	int64_t now_usec;     /* that of the notes */
};

/* Why it waits, as a sentence without a full stop. */
void swap_print_why(const struct swap_told *told, size_t i, FILE *stream);

/* The socket of a watcher. -errno: nobody can ask it. Close it with the second one. */
int swap_listen(char **ret_path, struct gcr_error *error);
void swap_unlisten(int fd, const char *path);

/* Answer all that ask now. */
void swap_answer(int fd, const struct swap_told *told);

#define SWAP_TOTALS_COUNT 9

/* What one of them has counted, for the metrics: in the order of its last line. */
struct swap_totals {
	char gpus[128];
	double values[SWAP_TOTALS_COUNT];
};

/* From its answer, which ends with a NUL; what is missing is 0. False: there are no numbers. */
bool swap_parse_totals(const char *text, struct swap_totals *ret_totals);

/* gpucr-swap status: print what the watchers of @mount tell. Returns the exit status. */
int swap_status(const char *mount, bool is_metrics);

#endif
