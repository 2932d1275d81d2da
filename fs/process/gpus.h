/* SPDX-License-Identifier: MIT */
/*
 * The table of GPUs: names, UUIDs, memory, and the memory used by each process. The daemon queries
 * a control helper of each vendor when a reader needs the figures, at most ten times a second, and
 * readers wait only a short time. The table lists one vendor's GPUs after another's; its indexes
 * are those of the mount.
 */
#ifndef GCR_FS_PROCESS_GPUS_H
#define GCR_FS_PROCESS_GPUS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/daemon.h"
#include "lib/error.h"
#include "lib/protocol.h"

struct gcr_backend;
struct gcr_gpus;
struct gcr_manifest_gpu;
struct gcr_task;

/*
 * Makes the first query, finds out which vendors are present, and starts the threads that keep the
 * figures fresh. Errors, with a message: those of a machine without a usable GPU; -EIO: a process
 * is frozen that used a vendor which is absent; -ENOMEM, or no thread can be started.
 */
int gcr_gpus_create(struct gcr_daemon *daemon, struct gcr_gpus **ret_gpus, struct gcr_error *error);
void gcr_gpus_destroy(struct gcr_gpus *gpus);

/*
 * Calls @ready(@data) once the figures are at most 0.1 s old, or after 0.3 s if newer ones do not
 * arrive; on this thread or another. @ready must not block.
 */
void gcr_gpus_when_fresh(struct gcr_gpus *gpus, void (*ready)(void *data), void *data);

/* Copies the present figures. The reply has about 13 KB: not for the stack of a deep call. */
void gcr_gpus_snapshot(struct gcr_gpus *gpus, struct gcr_gpus_reply *ret_reply);

/* The vendor of GPU @index. NULL: there is no such index. */
struct gcr_vendor *gcr_gpus_vendor(struct gcr_gpus *gpus, unsigned int index);

/*
 * Stores a reply that the caller received from a helper of @vendor, queried at @asked_usec
 * (monotonic).
 */
void gcr_gpus_update(struct gcr_gpus *gpus, const struct gcr_vendor *vendor,
		     const struct gcr_gpus_reply *reply, int64_t asked_usec);

/*
 * Queries @vendor's helper now and waits for the reply. Returns the helper's errors and sets
 * @error.
 */
int gcr_gpus_ask(struct gcr_gpus *gpus, const struct gcr_vendor *vendor, struct gcr_error *error);

/* Marks the figures as out of date: the next reader waits for new ones. */
void gcr_gpus_expire(struct gcr_gpus *gpus);

/*
 * Fills in the fields of @gpu that describe the GPU itself: UUID, name, memory and architecture.
 * Its index, and the bytes of a process on it, stay as they are.
 */
void gcr_gpu_describe(const struct gcr_backend *backend, const struct gcr_gpu_info *info,
		      struct gcr_manifest_gpu *gpu);

/* VRAM in use by @pid on all GPUs, as last reported; 0 if none. */
uint64_t gcr_gpus_process_bytes(struct gcr_gpus *gpus, pid_t pid);

/* The host's memory, in bytes. */
uint64_t gcr_host_bytes(void);

/*
 * The most memory that a GPU can have in use: its own memory or, if the GPU does not report that,
 * the host's memory. Larger figures from the library in a program are not believed.
 */
uint64_t gcr_gpu_most_bytes(const struct gcr_gpu_info *info);
/* @bytes, but at most as many as all GPUs can have in use together. */
uint64_t gcr_gpus_bound(struct gcr_gpus *gpus, uint64_t bytes);

/* The GPUs that @pid uses, as last reported; a mask of indexes. */
uint32_t gcr_gpus_process_mask(struct gcr_gpus *gpus, pid_t pid);

/* Number of GPUs in the table. */
unsigned int gcr_gpus_count(struct gcr_gpus *gpus);

/* Index of the GPU with this UUID; -ENODEV. */
int gcr_gpus_index(struct gcr_gpus *gpus, const uint8_t uuid[GCR_UUID_BYTES]);

#endif
