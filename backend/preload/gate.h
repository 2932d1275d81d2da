/* SPDX-License-Identifier: MIT */
/*
 * The gate that every call of the driver passes which can give the GPU work or change state. Open,
 * it costs a few ns: a thread writes "inside" into its own slot and reads a flag; who closes the
 * gate sets the flag, makes every running thread see it (membarrier(2)) and then reads the slots.
 */
#ifndef GCR_PRELOAD_GATE_H
#define GCR_PRELOAD_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/preload/entry_points.h"
#include "lib/error.h"
#include "lib/protocol.h"

/* What a call had to do to get in; leave() undoes it. */
struct gcr_gate_pass {
	bool outermost; /* a nested call, or one of the agent's, is let through */
};

/*
 * For a hand-written wrapper, GCR_OWN(name): holds the thread up while the gate
 * is closed, and is inside until the end of the block.
 */
#define GCR_GATE(name) \
	_cleanup_(gcr_gate_leave) struct gcr_gate_pass gate_pass_ = gcr_gate_enter(GCR_ENTRY(name))

/*
 * The same for one that makes several calls of the driver, or holds a lock over one: a thread that
 * is cancelled in the middle (pthread_cancel(3)) would leave behind what nobody knows of. It is
 * cancelled afterwards.
 */
#define GCR_GATE_WHOLE(name)  \
	GCR_GATE_NO_CANCEL(); \
	GCR_GATE(name)
#define GCR_GATE_NO_CANCEL()                              \
	_cleanup_(gcr_gate_let_cancel) int cancel_before_ \
		__attribute__((unused)) = gcr_gate_stop_cancel()

int gcr_gate_stop_cancel(void);
void gcr_gate_let_cancel(const int *before);

struct gcr_gate_pass gcr_gate_enter(enum gcr_entry entry);
void gcr_gate_leave(struct gcr_gate_pass *pass);

/*
 * Is it closed, or about to be? A thread that is inside and can leave in the middle does so then;
 * it may come in again at once, and waits.
 */
bool gcr_gate_is_closing(void);

/* The call that is inside gives the GPU work. */
void gcr_gate_submitted(void);

/*
 * For the agent thread. Close the gate to all others and wait until no call is inside, no capture
 * is open and every context is idle. -ETIMEDOUT with words that name what it waits for: the gate
 * stays closed, except where a capture is open. -EINTR: @wake_fd became readable, likewise. Closed
 * already: waits again for what is missing. -EIO: the driver says that a context has failed;
 * -EOPNOTSUPP: it cannot say whether one is idle, or nothing orders the threads. Open the gate
 * then. -ESRCH: the program is ending, and the gate is open.
 */
int gcr_gate_close(int64_t timeout_usec, int wake_fd, struct gcr_error *error);
void gcr_gate_open(void);

/* Calls of this thread pass a closed gate: the agent's. */
void gcr_gate_exempt_thread(void);

/* The page that the daemon looks at; made at the first call, NULL if it cannot be. */
struct gcr_page *gcr_gate_page(void);
int gcr_gate_page_fd(void); /* -1 if there is none */
/* CRIU has restored the program: what the page's descriptor is has to be found out anew. */
void gcr_gate_restored(void);

/* Something of the driver that goes around the gate; the first such name stays in the page. */
void gcr_gate_incomplete(const char *name);

/* In the child of a fork: nothing of the parent's is ours. Async-signal-safe. */
void gcr_gate_forget(void);

#endif
