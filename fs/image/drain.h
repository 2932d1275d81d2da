/* SPDX-License-Identifier: MIT */
/* How large the log of a restored tree gets: see gpucr-drain, and stdio/NAME.log in gpucrfs(5). */
#ifndef GCR_FS_IMAGE_DRAIN_H
#define GCR_FS_IMAGE_DRAIN_H

/* It never has more bytes; before it would, all but about its last part goes. */
#define GCR_DRAIN_LOG_BYTES  (1 << 20)
#define GCR_DRAIN_KEPT_BYTES (512 << 10)

#endif
