/* SPDX-License-Identifier: MIT */
/* The memory that CRIU shares with its code in a dumped process. */
#ifndef GCR_CRIU_GLUE_GUARD_MEMORY_H
#define GCR_CRIU_GLUE_GUARD_MEMORY_H

/* The next shared mapping of @fd, for writing, is such memory. */
void gcr_guard_note_memory(int fd);

/* Gives what CRIU has written to its code, which goes on. */
void gcr_guard_give_memory(void);

#endif
