/* SPDX-License-Identifier: MIT */
/*
 * The gate: every driver call that can give the GPU work or change state passes it. While the gate
 * is open, a pass costs a few ns: the thread writes "inside" into its own slot and reads a flag.
 * The agent closes the gate by setting the flag, making every running thread see it
 * (membarrier(2)), and then reading the slots.
 */
#ifndef GCR_PRELOAD_GATE_H
#define GCR_PRELOAD_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/preload/driver/entry_points.h"
#include "lib/error.h"
#include "lib/protocol.h"

/* How a call got in; gcr_gate_leave() undoes it. */
struct gcr_gate_pass {
	bool outermost; /* false: a nested call, or the agent's at a closed gate */
};

/*
 * For a hand-written wrapper, GCR_OWN(name): blocks the thread while the gate is closed. The thread
 * then counts as inside until the end of the block.
 */
#define GCR_GATE(name) \
	_cleanup_(gcr_gate_leave) struct gcr_gate_pass gate_pass_ = gcr_gate_enter(GCR_ENTRY(name))

/*
 * The same for a wrapper that makes several driver calls, or holds a lock over one. Defers
 * cancellation (pthread_cancel(3)) to the end of the block: a thread cancelled in the middle would
 * leave resources behind that neither the library nor the program knows of.
 */
#define GCR_GATE_WHOLE(name)  \
	GCR_GATE_NO_CANCEL(); \
	GCR_GATE(name)
#define GCR_GATE_NO_CANCEL()                              \
	_cleanup_(gcr_gate_let_cancel) int cancel_before_ \
		__attribute__((unused)) = gcr_gate_stop_cancel()

int gcr_gate_stop_cancel(void);
void gcr_gate_let_cancel(const int *before);

/* Enter the gate for the call of @entry, which may block, and leave it. See GCR_GATE(). */
struct gcr_gate_pass gcr_gate_enter(enum gcr_entry entry);
void gcr_gate_leave(struct gcr_gate_pass *pass);

/*
 * Is the gate closed or closing? A thread that is inside and can stop in the middle should then
 * leave; if that thread enters again at once, it blocks until the gate opens.
 */
bool gcr_gate_is_closing(void);

/* Notes that the current call gives the GPU work. */
void gcr_gate_submitted(void);

/* Lets all calls of the current thread pass a closed gate. For the library's own threads. */
void gcr_gate_exempt_thread(void);

/* The page that the daemon reads. Made at the first call; NULL if that fails. */
struct gcr_page *gcr_gate_page(void);
int gcr_gate_page_fd(void); /* -1 if there is none */
/* CRIU has restored the program: finds out again which file the page's descriptor refers to. */
void gcr_gate_restored(void);

/* Notes that this function or library bypasses the gate. The page keeps the first name. */
void gcr_gate_incomplete(const char *name);

#endif
