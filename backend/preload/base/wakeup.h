/* SPDX-License-Identifier: MIT */
/*
 * A pipe by which a thread of the program wakes the agent. Without the pipe (for instance, the
 * program has closed it) the agent is not woken, and the daemon reads the same facts from the page
 * a little later.
 */
#ifndef GCR_PRELOAD_WAKEUP_H
#define GCR_PRELOAD_WAKEUP_H

/* Makes the pipe. Called before there is an agent. */
void gcr_wakeup_prepare(void);

/* Wakes the agent. Any thread may call this, also in a signal handler. Never blocks. */
void gcr_wakeup_send(void);

/*
 * For the agent: returns the descriptor to poll, -1 if there is none; and empties the pipe once it
 * is readable.
 */
int gcr_wakeup_fd(void);
void gcr_wakeup_drain(void);

/* CRIU has restored the program: read the identity (device and inode) of the pipe again. */
void gcr_wakeup_restored(void);

#endif
