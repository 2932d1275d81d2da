/* SPDX-License-Identifier: MIT */
/*
 * The text of the control files. The keys of status are a table that the test of the manual also
 * reads.
 */
#ifndef GCR_FS_MOUNT_RENDER_H
#define GCR_FS_MOUNT_RENDER_H

#include <stdio.h>

#include "fs/daemon.h"
#include "fs/image/place.h"
#include "fs/mount/sight.h"
#include "fs/process/process.h"

/*
 * Writes `status`. Returns 0 or, for a launcher, an error of gcr_process_members(): nothing is
 * written then.
 */
int gcr_render_status(struct gcr_process *process, FILE *stream);
void gcr_render_error(struct gcr_process *process, FILE *stream);
void gcr_render_maps(struct gcr_process *process, FILE *stream);

/* Which lines of the root's status the reader may see. */
struct gcr_render_view {
	struct gcr_sight *sight;
	uid_t uid;     /* the reader's own quota is shown */
	bool sees_all; /* the quotas of all users are shown */
};

/* The root's status: keys, an empty line, and a table of the processes and places in the view. */
void gcr_render_root_status(struct gcr_daemon *daemon, const struct gcr_render_view *reader,
			    FILE *stream);

/*
 * render_holders.c: the lines of the root's status that say which verb holds which resource of a
 * GPU.
 */
void gcr_render_holders(struct gcr_daemon *daemon, bool is_for_root, FILE *stream);

void gcr_render_gpu_uuid(struct gcr_daemon *daemon, unsigned int index, FILE *stream);
void gcr_render_gpu_name(struct gcr_daemon *daemon, unsigned int index, FILE *stream);
void gcr_render_gpu_status(struct gcr_daemon *daemon, unsigned int index, FILE *stream);

/*
 * All keys of the root's and of a GPU's status, NULL-terminated; and of a process's status, NULL
 * after the last.
 */
extern const char *const gcr_render_root_keys[];
extern const char *const gcr_render_gpu_keys[];
const char *gcr_render_status_key(size_t index);

#endif
