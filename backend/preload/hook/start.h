/* SPDX-License-Identifier: MIT */
#ifndef GCR_PRELOAD_START_H
#define GCR_PRELOAD_START_H

/* Called when the driver has been initialised: starts the library's work. May be called again. */
void gcr_preload_start(void);

#endif
