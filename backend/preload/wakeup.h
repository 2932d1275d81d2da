/* SPDX-License-Identifier: MIT */
/*
 * How a thread of the program wakes the agent: a pipe. Without it (the program has closed it, say)
 * nobody is woken, and the daemon finds out a little later what there is to find in the page.
 */
#ifndef GCR_PRELOAD_WAKEUP_H
#define GCR_PRELOAD_WAKEUP_H

/* Make it, before there is an agent. */
void gcr_wakeup_prepare(void);

/* Any thread, also in the handler of a signal. Never waits. */
void gcr_wakeup_send(void);

/* For the agent: the pipe to wait on, -1 if there is none; and to empty it, once it is readable. */
int gcr_wakeup_fd(void);
void gcr_wakeup_drain(void);

/* CRIU has restored the program: what the pipe is has to be found out anew. */
void gcr_wakeup_restored(void);

/* In the child of a fork. */
void gcr_wakeup_forget(void);

#endif
