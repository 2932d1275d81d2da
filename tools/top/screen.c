/* SPDX-License-Identifier: MIT */
/*
 * gpucr-top on a terminal, with ncurses: reads the mount, draws, and waits for a key or for the
 * next interval. At any end of the program the terminal is restored. A second signal ends the
 * program at once, in case a hanging mount prevents the handling of the first.
 */
#include <curses.h>
#include <errno.h>
#include <langinfo.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/printable.h"
#include "tools/top/top.h"

#define BAR_BYTES_MAX 256
#define VERBS_MAX     16 /* under way at once; the results of more are not reported */

/* The colours: bars have those of their cells, lines that of their state. */
enum { COLOUR_NONE, COLOUR_GOOD, COLOUR_HELD, COLOUR_MOVING, COLOUR_BAD };

static const struct state_colour {
	const char *state;
	short colour;
} state_colours[] = {
	{"running", COLOUR_GOOD},   {"frozen", COLOUR_HELD},	  {"dumped", COLOUR_HELD},
	{"incoming", COLOUR_HELD},  {"freezing", COLOUR_MOVING},  {"thawing", COLOUR_MOVING},
	{"dumping", COLOUR_MOVING}, {"restoring", COLOUR_MOVING}, {"failed", COLOUR_BAD},
};

static const struct cell_look {
	enum top_cell cell;
	const char *utf8; /* used in UTF-8 locales; else the cell's letter */
	short colour;
} cell_looks[] = {
	{TOP_CELL_MOST, "\u2588", COLOUR_GOOD},
	{TOP_CELL_OTHER, "\u2592", COLOUR_MOVING},
	{TOP_CELL_HELD, "\u2591", COLOUR_HELD},
	{TOP_CELL_FREE, "\u00b7", COLOUR_NONE},
};

struct screen {
	const char *mount;
	enum top_order order;
	bool is_utf8;
	bool is_ended;

	struct top_view view;
	bool is_there;		/* the view is current */
	struct gcr_error error; /* else: the reason */

	char selected[TOP_WORD_BYTES]; /* an id; "": no process */
	size_t first;		       /* first line of the table that is shown */

	const char *asked_verb; /* verb to be confirmed; NULL: none */
	char asked_id[TOP_WORD_BYTES];
	char message[TOP_LINE_BYTES]; /* for the bottom line; "": none */
	struct verb {
		const char *verb; /* NULL: free slot */
		char id[TOP_WORD_BYTES];
	} verbs[VERBS_MAX];
};

static volatile sig_atomic_t got_signal;

static void take_signal(int number)
{
	got_signal = number;
}

static void say(struct screen *screen, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void say(struct screen *screen, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(screen->message, sizeof(screen->message), format, arguments);
	va_end(arguments);
}

/* ---- data ---- */

static size_t selected_index(const struct screen *screen)
{
	for (size_t i = 0; i < screen->view.processes_count; i++)
		if (!strcmp(screen->view.processes[i].id, screen->selected))
			return i;
	return SIZE_MAX;
}

static void select_index(struct screen *screen, size_t index)
{
	const struct top_view *view = &screen->view;

	if (index >= view->processes_count)
		index = view->processes_count - 1;
	snprintf(screen->selected, sizeof(screen->selected), "%s",
		 view->processes_count ? view->processes[index].id : "");
}

/* Reports the results of verbs that have ended. */
static void look_at_verbs(struct screen *screen)
{
	char words[GCR_ERROR_WORDS_MAX];

	for (size_t i = 0; i < VERBS_MAX; i++) {
		struct verb *verb = &screen->verbs[i];
		int result;

		if (!verb->verb)
			continue;
		result = top_verb_result(screen->mount, verb->id, verb->verb, words);
		if (result == -EAGAIN)
			continue;
		say(screen, "%s %s: %s", verb->verb, verb->id, result < 0 ? "it has gone" : words);
		verb->verb = NULL;
	}
}

static void look(struct screen *screen)
{
	size_t was_at = selected_index(screen);
	struct top_view view;

	screen->is_there = !top_look(screen->mount, &view, &screen->error);
	if (screen->is_there) {
		top_view_finish(&screen->view);
		screen->view = view;
		top_sort(&screen->view, screen->order);
		if (selected_index(screen) == SIZE_MAX)
			select_index(screen, was_at == SIZE_MAX ? 0 : was_at);
		look_at_verbs(screen);
	}
}

/* ---- drawing ---- */

static void put(int line, int column, const char *text)
{
	if (line >= 0 && line < LINES && column < COLS)
		mvaddnstr(line, column, text, COLS - column);
}

static void put_bar(const struct screen *screen, int line, int column, const char *cells)
{
	for (; *cells && column < COLS; cells++, column++) {
		char letter[2] = {*cells, '\0'};

		for (size_t i = 0; i < GCR_ARRAY_SIZE(cell_looks); i++) {
			const struct cell_look *cell = &cell_looks[i];

			if ((char)cell->cell != *cells)
				continue;
			attron(COLOR_PAIR(cell->colour));
			mvaddstr(line, column, screen->is_utf8 ? cell->utf8 : letter);
			attroff(COLOR_PAIR(cell->colour));
		}
	}
}

/*
 * "GPU 0 [####++--....] 40.0GiB of ...": the bar takes a third of the line, unless that is too
 * narrow.
 */
static void draw_fill(const struct screen *screen, int line, const char *title, const char *words,
		      const struct top_gpu *gpu)
{
	int width = COLS / 3 < BAR_BYTES_MAX ? COLS / 3 : BAR_BYTES_MAX - 1;
	char cells[BAR_BYTES_MAX];

	put(line, 0, title);
	if (width < 8) {
		put(line, 6, words);
		return;
	}
	if (gpu)
		top_bar_gpu(gpu, (size_t)width, cells);
	else
		top_bar_store(&screen->view, (size_t)width, cells);
	put(line, 6, "[");
	put_bar(screen, line, 7, cells);
	put(line, 7 + width, "] ");
	put(line, 9 + width, words);
}

/* Draws as many bars as leave room for three processes; returns the next line. */
static int draw_fills(const struct screen *screen, int line)
{
	int room = LINES - line - 5;
	char title[16], words[TOP_LINE_BYTES];

	for (size_t i = 0; i < screen->view.gpus_count && room > 0; i++, room--) {
		const struct top_gpu *gpu = &screen->view.gpus[i];

		snprintf(title, sizeof(title), "GPU %u", gpu->index);
		top_print_gpu(gpu, words);
		draw_fill(screen, line++, title, words, gpu);
	}
	if (room > 0) {
		top_print_store(&screen->view, words);
		draw_fill(screen, line++, "store", words, NULL);
	}
	return line;
}

static int colour_of(const char *state)
{
	for (size_t i = 0; i < GCR_ARRAY_SIZE(state_colours); i++)
		if (!strcmp(state_colours[i].state, state))
			return COLOR_PAIR(state_colours[i].colour);
	return COLOR_PAIR(COLOUR_NONE);
}

/* Draws from @line to the last but one; the selected process is always visible. */
static void draw_table(struct screen *screen, int line)
{
	const struct top_view *view = &screen->view;
	size_t room = LINES - 2 - line > 0 ? (size_t)(LINES - 2 - line) : 0;
	size_t selected = selected_index(screen);
	char text[TOP_LINE_BYTES];
	struct top_layout layout;

	top_layout_make(view, (size_t)COLS, &layout);
	top_print_header(&layout, text);
	attron(A_BOLD);
	put(line++, 0, text);
	attroff(A_BOLD);
	if (selected != SIZE_MAX && selected < screen->first)
		screen->first = selected;
	if (selected != SIZE_MAX && room && selected >= screen->first + room)
		screen->first = selected - room + 1;
	if (screen->first && view->processes_count <= room)
		screen->first = 0;
	for (size_t i = screen->first; i < view->processes_count && i < screen->first + room; i++) {
		int attributes = colour_of(view->processes[i].state) |
				 (i == selected ? (int)A_REVERSE : 0);

		top_print_process(&layout, &view->processes[i], text);
		attron(attributes);
		if (i == selected)
			mvhline(line, 0, ' ', COLS);
		put(line++, 0, text);
		attroff(attributes);
	}
}

static void draw_bottom(const struct screen *screen)
{
	char text[TOP_LINE_BYTES];

	if (screen->asked_verb)
		snprintf(text, sizeof(text), "%s %s? y/n", screen->asked_verb, screen->asked_id);
	else if (*screen->message)
		snprintf(text, sizeof(text), "%s", screen->message);
	else
		snprintf(text, sizeof(text),
			 "q quit  f freeze  t thaw  order: v vram  h held  i idle  s state  p pid");
	attron(A_REVERSE);
	mvhline(LINES - 1, 0, ' ', COLS);
	put(LINES - 1, 0, text);
	attroff(A_REVERSE);
}

/* Adapts to the terminal's size, which may change without a SIGWINCH to this process. */
static void fit(void)
{
	struct winsize size;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || !size.ws_row || !size.ws_col ||
	    !is_term_resized(size.ws_row, size.ws_col))
		return;
	resizeterm(size.ws_row, size.ws_col);
	clearok(stdscr, TRUE);
}

static void draw(struct screen *screen)
{
	char text[TOP_LINE_BYTES];
	int line = 0;

	fit();
	erase();
	snprintf(text, sizeof(text), "gpucrfs %s on %s, %zu%s by %s",
		 *screen->view.version ? screen->view.version : "-", screen->mount,
		 screen->view.processes_count,
		 screen->view.processes_count == 1 ? " process" : " processes",
		 top_order_name(screen->order));
	if (!screen->is_there)
		snprintf(text, sizeof(text), "%s (looking for it again)", screen->error.words);
	gcr_make_printable(text); /* contains the mount's path */
	attron(A_BOLD);
	put(line++, 0, text);
	attroff(A_BOLD);
	if (screen->is_there) {
		line = draw_fills(screen, line);
		draw_table(screen, line);
	}
	draw_bottom(screen);
	move(LINES - 1, 0);
	refresh();
}

/* ---- keys ---- */

static void start_verb(struct screen *screen)
{
	const char *verb = screen->asked_verb;
	struct gcr_error error;

	screen->asked_verb = NULL;
	if (top_verb_start(screen->mount, screen->asked_id, verb, &error) < 0) {
		say(screen, "%s %s: %s", verb, screen->asked_id, error.words);
		return;
	}
	say(screen, "%s %s ...", verb, screen->asked_id);
	for (size_t i = 0; i < VERBS_MAX; i++)
		if (!screen->verbs[i].verb) {
			screen->verbs[i].verb = verb;
			memcpy(screen->verbs[i].id, screen->asked_id, sizeof(screen->asked_id));
			break;
		}
}

static void ask(struct screen *screen, const char *verb)
{
	if (!screen->is_there || !*screen->selected)
		return;
	screen->asked_verb = verb;
	memcpy(screen->asked_id, screen->selected, sizeof(screen->asked_id));
}

static void move_selection(struct screen *screen, int lines)
{
	size_t index = selected_index(screen);

	if (index == SIZE_MAX)
		return;
	if (lines < 0 && index < (size_t)-lines)
		select_index(screen, 0);
	else
		select_index(screen, index + (size_t)lines);
}

static void reorder(struct screen *screen, int key)
{
	for (enum top_order order = 0; order < TOP_ORDERS_COUNT; order++)
		if (top_order_key(order) == key) {
			screen->order = order;
			top_sort(&screen->view, order);
		}
}

static void take_key(struct screen *screen, int key)
{
	if (key == KEY_RESIZE) {
		clearok(stdscr, TRUE);
		return;
	}
	if (screen->asked_verb) {
		if (key == 'y' || key == 'Y')
			start_verb(screen);
		else
			screen->asked_verb = NULL;
		return;
	}
	*screen->message = '\0';
	switch (key) {
	case 'q':
		screen->is_ended = true;
		break;
	case 'f':
		ask(screen, "freeze");
		break;
	case 't':
		ask(screen, "thaw");
		break;
	case KEY_UP:
		move_selection(screen, -1);
		break;
	case KEY_DOWN:
		move_selection(screen, 1);
		break;
	case KEY_PPAGE:
		move_selection(screen, -LINES / 2);
		break;
	case KEY_NPAGE:
		move_selection(screen, LINES / 2);
		break;
	default:
		reorder(screen, key);
		break;
	}
}

static void take_keys(struct screen *screen)
{
	bool had_key = false;
	int key;

	while (!screen->is_ended && (key = getch()) != ERR) {
		had_key = true;
		take_key(screen, key);
	}
	if (had_key && !screen->is_ended)
		draw(screen);
}

/*
 * Handles keys until @until_usec. A signal that arrives just before poll() is handled within a
 * second.
 */
static void wait_for_keys(struct screen *screen, int64_t until_usec)
{
	while (!screen->is_ended && !got_signal) {
		struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
		int64_t left_usec;

		take_keys(screen);
		left_usec = until_usec - gcr_clock_usec();
		if (left_usec <= 0)
			break;
		if (left_usec > GCR_USEC_PER_SEC)
			left_usec = GCR_USEC_PER_SEC;
		/* The terminal has been closed. */
		if (poll(&input, 1, (int)(left_usec / GCR_USEC_PER_MSEC) + 1) > 0 &&
		    input.revents & (POLLHUP | POLLERR | POLLNVAL))
			screen->is_ended = true;
	}
}

/* ---- start and end ---- */

static void take_signals(void)
{
	static const int numbers[] = {SIGHUP, SIGINT, SIGTERM};
	struct sigaction action = {.sa_handler = take_signal, .sa_flags = SA_RESETHAND};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(numbers); i++)
		sigaction(numbers[i], &action, NULL);
}

/* Sets up the colours, if the terminal has any: without them all look the same. */
static void start_colours(void)
{
	static const short colours[] = {[COLOUR_GOOD] = COLOR_GREEN,
					[COLOUR_HELD] = COLOR_CYAN,
					[COLOUR_MOVING] = COLOR_YELLOW,
					[COLOUR_BAD] = COLOR_RED};

	if (!has_colors() || start_color() == ERR)
		return;
	use_default_colors();
	for (short i = COLOUR_GOOD; i <= COLOUR_BAD; i++)
		init_pair(i, colours[i], -1);
}

int top_screen_run(const char *mount, int64_t interval_usec, enum top_order order,
		   struct gcr_error *error)
{
	struct screen screen = {
		.mount = mount,
		.order = order,
		.is_utf8 = GCR_TOP_WIDE && !strcmp(nl_langinfo(CODESET), "UTF-8"),
	};
	const char *type = getenv("TERM");
	SCREEN *terminal;

	take_signals();
	terminal = newterm(NULL, stdout, stdin);
	if (!terminal)
		return gcr_error_set(error, ENOTTY,
				     "the terminal (TERM=%s) is not known: try --once",
				     type ? type : "");
	cbreak();
	noecho();
	keypad(stdscr, TRUE);
	nodelay(stdscr, TRUE);
	curs_set(0);
	start_colours();
	while (!screen.is_ended && !got_signal) {
		look(&screen);
		draw(&screen);
		wait_for_keys(&screen, gcr_clock_usec() + interval_usec);
	}
	endwin();
	delscreen(terminal);
	top_view_finish(&screen.view);
	return 0;
}
