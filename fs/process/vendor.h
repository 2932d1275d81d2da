/* SPDX-License-Identifier: MIT */
/* The vendors of GPUs: which of them a process, a library or a helper belongs to. */
#ifndef GCR_FS_PROCESS_VENDOR_H
#define GCR_FS_PROCESS_VENDOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/daemon.h"

/* Fill in memory_links; -ENOMEM: some may be there. They are freed by gcr_vendor_free_links(). */
int gcr_vendor_set_links(struct gcr_vendor *vendor, const char *device_directory, bool simulated);
void gcr_vendor_free_links(struct gcr_vendor *vendor);

/* Whose processes this engine freezes. Never NULL. */
struct gcr_vendor *gcr_vendor_of_engine(struct gcr_daemon *daemon, const char *engine);

/* The path of a program that is where the helpers are; for the caller to free. NULL: no memory. */
char *gcr_vendor_program(struct gcr_daemon *daemon, const char *name);

/* The vendor whose preload library has these flags (GCR_PAGE_*) in its page. */
struct gcr_vendor *gcr_vendor_of_library(struct gcr_daemon *daemon, uint32_t flags);
bool gcr_vendor_has_library(const struct gcr_vendor *vendor, uint32_t flags);

/* Is @pid a helper, of whichever vendor? */
bool gcr_vendor_owns_helper(struct gcr_daemon *daemon, pid_t pid);

/* As gcr_helpers_keep_spare(), for those with processes that are frozen, or are being so. */
void gcr_vendor_keep_spares(struct gcr_daemon *daemon);

#endif
