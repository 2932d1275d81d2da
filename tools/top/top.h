/* SPDX-License-Identifier: MIT */
/*
 * The parts of gpucr-top: what is read of a mount (look.c), as text (format.c), and on a
 * terminal (screen.c). One thread.
 */
#ifndef GCR_TOOLS_TOP_TOP_H
#define GCR_TOOLS_TOP_TOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/error.h"

#define TOP_UNKNOWN    UINT64_MAX /* the file says `-`, has no such key, or may not be read */
#define TOP_WORD_BYTES 80	  /* an id, a name, a state: with its NUL */
#define TOP_LINE_BYTES 1024

/* ---- what there is ---- */

struct top_gpu {
	unsigned int index;
	char name[TOP_WORD_BYTES];
	uint64_t total_bytes;
	uint64_t used_bytes;
	uint64_t processes_bytes; /* of these: of processes of the mount */
	uint64_t held_bytes;	  /* of frozen processes that were on it */
};

struct top_process {
	char id[TOP_WORD_BYTES]; /* a pid, or the name of a place */
	char user[TOP_WORD_BYTES];
	char comm[TOP_WORD_BYTES];
	char state[TOP_WORD_BYTES];
	char gpus[TOP_WORD_BYTES]; /* indexes, divided by commas; "-": not known */
	uint64_t vram_bytes;
	uint64_t held_bytes;
	/* What follows is not known of processes whose files may not be read. */
	uint64_t idle_msec;
	uint64_t freeze_usec; /* of the last one; 0: there was none */
	uint64_t freeze_bytes;
	uint64_t thaw_usec;
	uint64_t thaw_bytes;
	uint64_t wanted_usec; /* since when it wants its GPU back; 0: it does not */
	uint64_t packed_bytes;
	uint64_t packed_to_bytes;
};

/* Texts from the mount are printable ASCII: whatever else a name has is '?' in here. */
struct top_view {
	char version[TOP_WORD_BYTES];
	uint64_t store_bytes;
	uint64_t store_used_bytes;
	uint64_t pool_used_bytes; /* of these */
	uint64_t kept_bytes;	  /* likewise */
	struct top_gpu *gpus;	  /* in the order of their indexes */
	size_t gpus_count;
	struct top_process *processes;
	size_t processes_count;
};

/*
 * Read all of it. Errors, with words: -ENOENT nothing is mounted there, -ENOTCONN the daemon is
 * gone, -ENOMEM, and what else reading the root's status says.
 */
int top_look(const char *mount, struct top_view *ret_view, struct gcr_error *error);
void top_view_finish(struct top_view *view);

enum top_order { TOP_BY_VRAM, TOP_BY_HELD, TOP_BY_IDLE, TOP_BY_STATE, TOP_BY_ID, TOP_ORDERS_COUNT };

/* Its name, and the key that asks for it. */
const char *top_order_name(enum top_order order);
char top_order_key(enum top_order order);

/* The largest or longest first, states by their names; what is alike by id. */
void top_sort(struct top_view *view, enum top_order order);

/*
 * Write a verb, and do not wait for its end. What is refused is an error with the words of the
 * daemon.
 */
int top_verb_start(const char *mount, const char *id, const char *verb, struct gcr_error *error);

/* How @verb (freeze, thaw) ended: 0 and ret_words ("ok", or what `error` says); -EAGAIN: not yet.
 */
int top_verb_result(const char *mount, const char *id, const char *verb,
		    char ret_words[GCR_ERROR_WORDS_MAX]);

/* ---- as text ---- */

/* Of each column, its width; 0: it is left out. */
#define TOP_COLUMNS_MAX 16
struct top_layout {
	size_t widths[TOP_COLUMNS_MAX];
};

/* Those that fit into @width (0: all) of those that there is something for. */
void top_layout_make(const struct top_view *view, size_t width, struct top_layout *ret_layout);

/* Lines without a newline, and without blanks at their ends. */
void top_print_header(const struct top_layout *layout, char ret_line[TOP_LINE_BYTES]);
void top_print_process(const struct top_layout *layout, const struct top_process *process,
		       char ret_line[TOP_LINE_BYTES]);
void top_print_gpu(const struct top_gpu *gpu, char ret_line[TOP_LINE_BYTES]);
void top_print_store(const struct top_view *view, char ret_line[TOP_LINE_BYTES]);

/* What a cell of a bar stands for: letters, as they are shown where there is nothing better. */
enum top_cell {
	TOP_CELL_FREE = '.',
	TOP_CELL_MOST = '#',  /* VRAM of processes; what is in the store */
	TOP_CELL_OTHER = '+', /* VRAM of others; the pool */
	TOP_CELL_HELD = '-',  /* free now, but held processes would come back to it */
};

/* @width cells and a NUL. */
void top_bar_gpu(const struct top_gpu *gpu, size_t width, char *ret_cells);
void top_bar_store(const struct top_view *view, size_t width, char *ret_cells);

/* ---- on a terminal ---- */

/*
 * Until the user wants no more, or a signal came. -ENOTTY, with words: the terminal is of no use.
 */
int top_screen_run(const char *mount, int64_t interval_usec, enum top_order order,
		   struct gcr_error *error);

#endif
