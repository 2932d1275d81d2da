/* SPDX-License-Identifier: MIT */
/*
 * The one thread of the preload library: it sleeps until the daemon asks for something, and does
 * it. Without a daemon it looks for one every few seconds.
 */
#ifndef GCR_PRELOAD_AGENT_H
#define GCR_PRELOAD_AGENT_H

/* cuInit has succeeded: start the thread, once a process. Keeps errno. */
void gcr_agent_start(void);

/* In the child of a fork: there is no thread, no connection. */
void gcr_agent_forget(void);

#endif
