/* SPDX-License-Identifier: MIT */
/*
 * Who of the frozen wants its GPU back: a thread of it is held up in a call that needs it, says its
 * preload library. The page says so (the level), a message says that there is something to see (the
 * edge), and one that was lost is made good by the sampler.
 */
#ifndef GCR_FS_PROCESS_WANTED_H
#define GCR_FS_PROCESS_WANTED_H

#include "fs/process/process.h"

/* Look now, and tell of it once a freeze. Any thread, no lock held. */
void gcr_wanted_look(struct gcr_process *process);

#endif
