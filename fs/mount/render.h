/* SPDX-License-Identifier: MIT */
/* The text of the control files. Keys of status are a table that the manual's test reads too. */
#ifndef GCR_FS_MOUNT_RENDER_H
#define GCR_FS_MOUNT_RENDER_H

#include <stdio.h>

#include "fs/daemon.h"
#include "fs/image/place.h"
#include "fs/mount/sight.h"
#include "fs/process/process.h"

void gcr_render_status(struct gcr_process *process, FILE *stream);
void gcr_render_error(struct gcr_process *process, FILE *stream);
void gcr_render_maps(struct gcr_process *process, FILE *stream);

/* Which lines of the table the reader may see. */
struct gcr_render_view {
	struct gcr_sight *sight;
	uid_t uid;     /* his own quota is shown to him */
	bool sees_all; /* and everybody's */
};

/* The root's: keys, an empty line, and a table of the processes and places in the view. */
void gcr_render_root_status(struct gcr_daemon *daemon, const struct gcr_render_view *reader,
			    FILE *stream);

/* render_holders.c: of that, the lines that say which verb holds what of which GPU. */
void gcr_render_holders(struct gcr_daemon *daemon, bool is_for_root, FILE *stream);

void gcr_render_gpu_uuid(struct gcr_daemon *daemon, unsigned int index, FILE *stream);
void gcr_render_gpu_name(struct gcr_daemon *daemon, unsigned int index, FILE *stream);
void gcr_render_gpu_status(struct gcr_daemon *daemon, unsigned int index, FILE *stream);

/* All keys, NULL-terminated: of a process's status, of the root's, of a GPU's. */
extern const char *const gcr_render_root_keys[];
extern const char *const gcr_render_gpu_keys[];
const char *gcr_render_status_key(size_t index);

#endif
