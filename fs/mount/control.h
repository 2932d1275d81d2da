/* SPDX-License-Identifier: MIT */
/*
 * A write to a ctl file of the root or of a process: checks rights, finds targets, starts the verb.
 */
#ifndef GCR_FS_MOUNT_CONTROL_H
#define GCR_FS_MOUNT_CONTROL_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <stdbool.h>
#include <stddef.h>

#include "fs/base/credentials.h"
#include "fs/daemon.h"
#include "fs/process/process.h"

/*
 * Carries out one write of @length bytes through a descriptor that @opener opened. The request is
 * answered here or when the verb ends; with @nonblocking, when the verb has been accepted. @process
 * is NULL for the root's ctl.
 */
void gcr_control_write(fuse_req_t request, const struct gcr_credentials *opener,
		       struct gcr_process *process, const char *bytes, size_t length,
		       bool nonblocking);

#endif
