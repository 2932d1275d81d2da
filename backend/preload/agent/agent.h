/* SPDX-License-Identifier: MIT */
/*
 * The agent: the only thread of the preload library that serves the daemon. The agent sleeps until
 * the daemon sends a request, and carries it out. Without a connection the agent looks for a daemon
 * every few seconds.
 */
#ifndef GCR_PRELOAD_AGENT_H
#define GCR_PRELOAD_AGENT_H

/* Called when cuInit (hipInit) has succeeded: starts the agent, once per process. Keeps errno. */
void gcr_agent_start(void);

#endif
