/* SPDX-License-Identifier: MIT */
/*
 * The fixed entries of the mount's root. A lookup finds them first, so no place can have such a
 * name.
 */
#ifndef GCR_FS_BASE_ROOT_ENTRIES_H
#define GCR_FS_BASE_ROOT_ENTRIES_H

#include <sys/stat.h>

/* @entry(kind, name, mode): kind is an enum gcr_node_kind without its prefix. */
#define GCR_ROOT_ENTRIES(entry)                                                             \
	entry(ROOT_CTL, "ctl", S_IFREG | 0222) entry(ROOT_STATUS, "status", S_IFREG | 0444) \
		entry(ROOT_ERROR, "error", S_IFREG | 0444)                                  \
			entry(ROOT_EVENTS, "events", S_IFREG | 0444)                        \
				entry(ROOT_METRICS, "metrics", S_IFREG | 0444)              \
					entry(SELF, "self", S_IFLNK | 0777)                 \
						entry(GPUS, "gpus", S_IFDIR | 0555)

#endif
