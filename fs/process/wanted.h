/* SPDX-License-Identifier: MIT */
/*
 * Detects frozen processes that want their GPU back: the preload library holds a thread in a call
 * that needs the GPU. The library's page says so (the level), and a message announces the change
 * (the edge); the sampler makes up for a lost message.
 */
#ifndef GCR_FS_PROCESS_WANTED_H
#define GCR_FS_PROCESS_WANTED_H

#include "fs/process/process.h"

/*
 * Reads the page of the process's library now. If a thread waits for the GPU, appends the event
 * `wanted`, once per freeze. Any thread, no lock held.
 */
void gcr_wanted_look(struct gcr_process *process);

#endif
