/* SPDX-License-Identifier: MIT */
/*
 * What is known of the GPUs: names, UUIDs, memory, who uses how much. It is asked of a control
 * helper of each vendor when a reader wants it, at most ten times a second, and never waited for
 * long. One vendor's GPUs follow another's in one table, whose indexes are those of the mount.
 */
#ifndef GCR_FS_PROCESS_GPUS_H
#define GCR_FS_PROCESS_GPUS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/daemon.h"
#include "lib/error.h"
#include "lib/protocol.h"

struct gcr_gpus;
struct gcr_task;

/*
 * Asks for the first time, and finds out which vendors are here: the errors are those of a machine
 * without a usable GPU, with words.
 */
int gcr_gpus_create(struct gcr_daemon *daemon, struct gcr_gpus **ret_gpus, struct gcr_error *error);
void gcr_gpus_destroy(struct gcr_gpus *gpus);

/*
 * Call @ready(@data) once what is known is at most 0.1 s old, or cannot be had soon (0.3 s); on
 * this thread or another. It must not block.
 */
void gcr_gpus_when_fresh(struct gcr_gpus *gpus, void (*ready)(void *data), void *data);

/* A copy of what is known. About 13 KB: not for the stack of a deep call. */
void gcr_gpus_snapshot(struct gcr_gpus *gpus, struct gcr_gpus_reply *ret_reply);

/* The vendor of one of them. NULL: there is no such index. */
struct gcr_vendor *gcr_gpus_vendor(struct gcr_gpus *gpus, unsigned int index);

/* What somebody else has asked of a helper of @vendor at @asked_usec (monotonic). */
void gcr_gpus_update(struct gcr_gpus *gpus, const struct gcr_vendor *vendor,
		     const struct gcr_gpus_reply *reply, int64_t asked_usec);

/* Ask @vendor's now, and wait for the answer. Errors, with words, as of a helper's. */
int gcr_gpus_ask(struct gcr_gpus *gpus, const struct gcr_vendor *vendor, struct gcr_error *error);

/* What is known has just become wrong: the next reader waits for new figures. */
void gcr_gpus_expire(struct gcr_gpus *gpus);

/* VRAM in use by @pid on all GPUs, as last known; 0 if none. */
uint64_t gcr_gpus_process_bytes(struct gcr_gpus *gpus, pid_t pid);

/* The GPUs that @pid uses, as last known; a mask of indexes. */
uint32_t gcr_gpus_process_mask(struct gcr_gpus *gpus, pid_t pid);

unsigned int gcr_gpus_count(struct gcr_gpus *gpus);

/* Index of the GPU with this UUID, -ENODEV. */
int gcr_gpus_index(struct gcr_gpus *gpus, const uint8_t uuid[GCR_UUID_BYTES]);

#endif
