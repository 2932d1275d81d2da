/* SPDX-License-Identifier: MIT */
/* The memory that CRIU shares with its code in a dumped process. */
#ifndef GCR_CRIU_GLUE_GUARD_MEMORY_H
#define GCR_CRIU_GLUE_GUARD_MEMORY_H

/*
 * Tells that @fd is memory which CRIU is about to share with its code. The guard takes over CRIU's
 * next shared mapping of @fd for writing.
 */
void gcr_guard_note_memory(int fd);

/* Copies the bytes that CRIU has changed to its code. Called before that code continues. */
void gcr_guard_give_memory(void);

#endif
