/* SPDX-License-Identifier: MIT */
/*
 * The one interface between the daemon (fs/) and a GPU vendor. struct gcr_backend holds the facts
 * that the daemon needs without a GPU library: which open files make a process a GPU process, which
 * visible things forbid a freeze, which helper programs to run. For everything that needs the
 * vendor's library, the daemon sends those helpers the vendor-neutral messages of lib/protocol.h.
 */
#ifndef GCR_BACKEND_H
#define GCR_BACKEND_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"
#include "lib/protocol.h"

#define GCR_ARCHITECTURE_BYTES 16 /* with the terminating NUL */

#define GCR_MEMORY_LINKS_MAX 2

/* One vendor. Strings and functions are constant and live for ever. */
struct gcr_backend {
	const char *name;   /* "cuda" */
	const char *api;    /* "CUDA", in messages */
	const char *vendor; /* "NVIDIA": in messages, and in lower case in status and manifests */

	/* The engine that freezes this vendor's processes if they have the preload library. */
	const char *engine;

	/*
	 * The driver can checkpoint by itself the state that it keeps for a process. If not, that
	 * state stays in place, every freeze is one of the data alone, and the control helper is
	 * only asked for the list of GPUs.
	 */
	bool has_control;

	/*
	 * The vendor's run time may keep holding VRAM that a process has released; in some releases
	 * it keeps imported memory until the process ends. So a worker that has imported memory
	 * ends with that freeze, and each freeze checks whether the VRAM was freed.
	 */
	bool may_keep_vram;

	/* The flag in the library's page that says which vendor's library it is (GCR_PAGE_HIP). */
	uint32_t page_flag;

	/* helper programs, names below libexecdir */
	const char *control_program;
	const char *worker_program;

	/*
	 * The device file, below the device directory ("/dev", or the simulator's), that a process
	 * holds open when it uses a GPU for computing. The daemon watches opens of this file and
	 * lists the processes that have it open.
	 */
	const char *compute_device;
	/*
	 * A process that computes has one of these files mapped: names below the device directory,
	 * with or without a number behind them. The list ends with NULL.
	 */
	const char *const *mapped_devices;
	/*
	 * The GPUs' own device files beside it, "nvidia" for nvidia0: also watched. NULL: no need
	 * to.
	 */
	const char *gpu_device;
	/*
	 * Prefixes of the links in /proc/PID/fd of descriptors of GPU memory: at most
	 * GCR_MEMORY_LINKS_MAX, below the device directory unless they begin with a slash. The list
	 * ends with NULL.
	 */
	const char *const *memory_links;
	/*
	 * A device file below the device directory, with a number behind its name, that the run
	 * time may have mapped where GPU memory is; a process that has inherited such a mapping
	 * keeps the memory alive. NULL: there is no such file.
	 */
	const char *memory_device;

	/* The vendor's id in the PCI registry (pci.ids). */
	unsigned int pci_vendor;

	/* Printed at start when compute_device is absent. */
	const char *no_device_words;
	/* Without compute_device there is no GPU, and no need to ask a helper. */
	bool needs_device;

	/*
	 * File name of the CRIU plugin that dump and restore of the processes require. NULL: no
	 * plugin is required.
	 */
	const char *criu_plugin;
	/* Files below the device directory that the plugin handles; same form as mapped_devices. */
	const char *const *criu_devices;

	/* The ids of the vendor's GPUs are characters: see gcr_gpu_uuid_format(). */
	bool has_text_uuids;
	/* The architecture that kernels are compiled for, "9.0" or "gfx90a"; "" if not known. */
	void (*format_architecture)(const struct gcr_gpu_info *gpu,
				    char ret_text[GCR_ARCHITECTURE_BYTES]);

	/*
	 * Looks from outside (in /proc) for anything in process @pid that forbids a freeze.
	 * @device_directory as above; @driver_version as in the helper's hello. Returns 0;
	 * -EOPNOTSUPP with the reason and a remedy in @error; -ESRCH if the process has ended;
	 * -EACCES if /proc cannot be read.
	 */
	int (*preflight)(pid_t pid, const char *device_directory, const char *driver_version,
			 struct gcr_error *error);
};

extern const struct gcr_backend gcr_backend_cuda;
extern const struct gcr_backend gcr_backend_hip;

/* All vendors. The GPUs of an earlier vendor get lower indexes than those of a later one. */
#define GCR_BACKENDS_COUNT 2
extern const struct gcr_backend *const gcr_backends[GCR_BACKENDS_COUNT];

/*
 * Returns the vendor whose processes @engine freezes. Never NULL: an engine name from before there
 * was a second vendor belongs to the first.
 */
const struct gcr_backend *gcr_backend_of_engine(const char *engine);

/* Looks up a vendor by name, ignoring case ("AMD", "amd"). NULL: there is no such vendor. */
const struct gcr_backend *gcr_backend_of_vendor(const char *vendor);

#endif
