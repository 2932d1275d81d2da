/* SPDX-License-Identifier: MIT */
/*
 * The size of the log of a restored tree: see gpucr-drain, and stdio/NAME.log in gpucrfs-dump(7).
 */
#ifndef GCR_FS_IMAGE_DRAIN_H
#define GCR_FS_IMAGE_DRAIN_H

/*
 * The log's maximum size; before a write would exceed that, all but about the last part is removed.
 */
#define GCR_DRAIN_LOG_BYTES  (1 << 20)
#define GCR_DRAIN_KEPT_BYTES (512 << 10)

#endif
