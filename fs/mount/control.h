/* SPDX-License-Identifier: MIT */
/* A write to a ctl file: whose it is, what, about whom; then the verb is started. */
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
 * Carry out one write of @length bytes by a descriptor of @opener. The request is answered here or
 * when the verb ends; @nonblocking: when the verb has been accepted. @process is NULL for the
 * root's ctl.
 */
void gcr_control_write(fuse_req_t request, const struct gcr_credentials *opener,
		       struct gcr_process *process, const char *bytes, size_t length,
		       bool nonblocking);

#endif
