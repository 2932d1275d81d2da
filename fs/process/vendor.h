/* SPDX-License-Identifier: MIT */
/* The vendors of GPUs: the vendor of a process, a library or a helper. */
#ifndef GCR_FS_PROCESS_VENDOR_H
#define GCR_FS_PROCESS_VENDOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/daemon.h"

/* Fills in memory_links; on -ENOMEM some may be set. gcr_vendor_free_links() frees them. */
int gcr_vendor_set_links(struct gcr_vendor *vendor, const char *device_directory, bool simulated);
void gcr_vendor_free_links(struct gcr_vendor *vendor);

/* The vendor whose processes this engine freezes. Never NULL. */
struct gcr_vendor *gcr_vendor_of_engine(struct gcr_daemon *daemon, const char *engine);

/*
 * The path of a program, or of a library, in the helpers' directories; the caller frees it. Errors,
 * with a message: -EIO it is not there; -ENOMEM.
 */
int gcr_vendor_program(struct gcr_daemon *daemon, const char *name, char **ret_path,
		       struct gcr_error *error);

/* The vendor whose preload library has these flags (GCR_PAGE_*) in its page. */
struct gcr_vendor *gcr_vendor_of_library(struct gcr_daemon *daemon, uint32_t flags);
/* Do these flags belong to @vendor's preload library? */
bool gcr_vendor_has_library(const struct gcr_vendor *vendor, uint32_t flags);

/* Is @pid a helper of any vendor? */
bool gcr_vendor_owns_helper(struct gcr_daemon *daemon, pid_t pid);

/*
 * Calls gcr_helpers_keep_spare() for each vendor: a spare helper is kept while processes of the
 * vendor are frozen or being frozen.
 */
void gcr_vendor_keep_spares(struct gcr_daemon *daemon);

#endif
