/* SPDX-License-Identifier: MIT */
/*
 * The parts of gpucr-top: reading a mount (look.c), formatting text (format.c), and the terminal
 * (screen.c). Single-threaded.
 */
#ifndef GCR_TOOLS_TOP_TOP_H
#define GCR_TOOLS_TOP_TOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/error.h"
#include "lib/status_text.h"

#define TOP_UNKNOWN    GCR_STATUS_UNKNOWN /* the file says `-`, lacks the key, or is not readable */
#define TOP_WORD_BYTES 80		  /* an id, a name or a state, with its NUL */
#define TOP_LINE_BYTES 1024

/* ---- data ---- */

struct top_gpu {
	unsigned int index;
	char name[TOP_WORD_BYTES];
	uint64_t total_bytes;
	uint64_t used_bytes;
	uint64_t processes_bytes; /* part of used_bytes: of processes of the mount */
	uint64_t held_bytes;	  /* of frozen processes that were on this GPU */
};

struct top_process {
	/* A pid, or the name of a place (the directory of a dumped process). */
	char id[TOP_WORD_BYTES];
	char user[TOP_WORD_BYTES];
	char comm[TOP_WORD_BYTES];
	char state[TOP_WORD_BYTES];
	char gpus[TOP_WORD_BYTES]; /* indexes separated by commas; "-": unknown */
	uint64_t vram_bytes;
	uint64_t held_bytes;
	/* The following fields are TOP_UNKNOWN if the process's files are not readable. */
	uint64_t idle_msec;
	uint64_t freeze_usec; /* of the last freeze; 0: none yet */
	uint64_t freeze_bytes;
	uint64_t thaw_usec;
	uint64_t thaw_bytes;
	uint64_t wanted_usec; /* since when the process wants its GPU back; 0: does not */
	uint64_t packed_bytes;
	uint64_t packed_to_bytes;
};

/* Texts from the mount are printable ASCII: any other byte of a name has become '?'. */
struct top_view {
	char version[TOP_WORD_BYTES];
	uint64_t store_bytes;
	uint64_t store_used_bytes;
	uint64_t pool_used_bytes; /* part of store_used_bytes */
	uint64_t kept_bytes;	  /* part of store_used_bytes */
	struct top_gpu *gpus;	  /* sorted by index */
	size_t gpus_count;
	struct top_process *processes;
	size_t processes_count;
};

/*
 * Reads the whole view. On failure @error has a message: -ENOENT nothing is mounted at @mount,
 * -ENOTCONN the daemon has ended, -ENOMEM, or the errno of reading the root's status.
 */
int top_look(const char *mount, struct top_view *ret_view, struct gcr_error *error);
void top_view_finish(struct top_view *view);

enum top_order { TOP_BY_VRAM, TOP_BY_HELD, TOP_BY_IDLE, TOP_BY_STATE, TOP_BY_ID, TOP_ORDERS_COUNT };

/* Return the order's name, and the key that selects the order. */
const char *top_order_name(enum top_order order);
char top_order_key(enum top_order order);

/* Sorts the processes: figures in descending order, states by name; ties by id. */
void top_sort(struct top_view *view, enum top_order order);

/*
 * Writes a verb and returns without waiting for its end. If the daemon refuses, @error has the
 * daemon's message.
 */
int top_verb_start(const char *mount, const char *id, const char *verb, struct gcr_error *error);

/*
 * Reads how @verb (freeze, thaw) ended: 0 and ret_words ("ok", or the line of `error`). -EAGAIN:
 * still under way; other -errno: the files of the process cannot be read.
 */
int top_verb_result(const char *mount, const char *id, const char *verb,
		    char ret_words[GCR_ERROR_WORDS_MAX]);

/* ---- text ---- */

/* The width of each column; 0: the column is left out. */
#define TOP_COLUMNS_MAX 16
struct top_layout {
	size_t widths[TOP_COLUMNS_MAX];
};

/* Chooses the columns that have values and fit into @width (0: no limit). */
void top_layout_make(const struct top_view *view, size_t width, struct top_layout *ret_layout);

/* Print one line of the table, without a newline and without trailing blanks. */
void top_print_header(const struct top_layout *layout, char ret_line[TOP_LINE_BYTES]);
void top_print_process(const struct top_layout *layout, const struct top_process *process,
		       char ret_line[TOP_LINE_BYTES]);
void top_print_gpu(const struct top_gpu *gpu, char ret_line[TOP_LINE_BYTES]);
void top_print_store(const struct top_view *view, char ret_line[TOP_LINE_BYTES]);

/* The cells of a bar, as letters for terminals without better characters. */
enum top_cell {
	TOP_CELL_FREE = '.',
	TOP_CELL_MOST = '#',  /* VRAM of the mount's processes; bytes in the store */
	TOP_CELL_OTHER = '+', /* VRAM of other processes; the pool */
	TOP_CELL_HELD = '-',  /* free now, but needed by held processes when they return */
};

/* Write @width cells and a NUL. */
void top_bar_gpu(const struct top_gpu *gpu, size_t width, char *ret_cells);
void top_bar_store(const struct top_view *view, size_t width, char *ret_cells);

/* ---- terminal ---- */

/*
 * Runs until the user quits or a signal arrives. Returns -ENOTTY, with a message, if the terminal
 * is not usable.
 */
int top_screen_run(const char *mount, int64_t interval_usec, enum top_order order,
		   struct gcr_error *error);

#endif
