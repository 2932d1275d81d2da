/* SPDX-License-Identifier: MIT */
/*
 * The one interface between the daemon (fs/) and a GPU vendor. What the daemon needs to know
 * without a GPU library stands in struct gcr_backend: which open files make a process a GPU
 * process, what can be seen to stand in the way of a freeze, which helper programs to run.
 * Everything that needs the vendor's library is asked of those helpers in the vendor-neutral
 * messages of lib/protocol.h.
 */
#ifndef GCR_BACKEND_H
#define GCR_BACKEND_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/error.h"
#include "lib/protocol.h"

#define GCR_ARCHITECTURE_BYTES 16 /* with its NUL */

#define GCR_MEMORY_LINKS_MAX 2

struct gcr_backend {
	const char *name;   /* "cuda" */
	const char *api;    /* "CUDA", in words */
	const char *vendor; /* "NVIDIA": in words, and in lower case in status and manifests */

	/* The engine by which its processes are frozen that have the preload library. */
	const char *engine;

	/*
	 * Its driver can checkpoint by itself what it keeps for a process. Else that stays where it
	 * is, every freeze is one of the data alone, and control helpers are asked for the GPUs and
	 * nothing else.
	 */
	bool has_control;

	/*
	 * Its run time may go on holding VRAM that a process has released, in some releases what it
	 * has imported until it ends. So a worker that has taken memory over ends with that freeze,
	 * and each freeze looks at whether the VRAM came back.
	 */
	bool may_keep_vram;

	/* Of what says in its page which vendor's library it is (GCR_PAGE_HIP). */
	uint32_t page_flag;

	/* helper programs, names below libexecdir */
	const char *control_program;
	const char *worker_program;

	/*
	 * The file, below the device directory ("/dev", or the simulator's), that a process holds
	 * open when it uses a GPU for computing: opening it is watched, those are listed.
	 */
	const char *compute_device;
	/*
	 * Who computes has one of these mapped: names below the device directory, with a number
	 * behind them or not. The list ends with NULL.
	 */
	const char *const *mapped_devices;
	/* The GPUs' own files beside it, "nvidia" for nvidia0: watched too. NULL: no need to. */
	const char *gpu_device;
	/*
	 * How links of descriptors of GPU memory begin in /proc/PID/fd: GCR_MEMORY_LINKS_MAX of
	 * them at most, below the device directory unless they begin with a slash. The list ends
	 * with NULL.
	 */
	const char *const *memory_links;
	/*
	 * Below the device directory, with a number behind it: what the run time may have mapped
	 * where GPU memory is, so that who has inherited such a mapping keeps it. NULL: nothing.
	 */
	const char *memory_device;

	/* Its number among makers of PCI devices (pci.ids). */
	unsigned int pci_vendor;

	/* Printed at start when compute_device is absent. */
	const char *no_device_words;
	/* Without compute_device there is no GPU, and no need to ask a helper. */
	bool needs_device;

	/*
	 * CRIU's plugin, the name of a file, without which the processes can be neither dumped nor
	 * restored. NULL: there is no need of one.
	 */
	const char *criu_plugin;
	/* Files below the device directory that it takes care of; as mapped_devices. */
	const char *const *criu_devices;

	/* Its GPUs' ids are characters: see gcr_gpu_uuid_format(). */
	bool has_text_uuids;
	/* What kernels are compiled for, "9.0" or "gfx90a"; "" if not known. */
	void (*format_architecture)(const struct gcr_gpu_info *gpu,
				    char ret_text[GCR_ARCHITECTURE_BYTES]);

	/*
	 * What can be seen from outside @pid (in /proc) that forbids a freeze: -EOPNOTSUPP with
	 * the reason and what to do in @error. @device_directory as above; @driver_version as the
	 * helper's hello has it. Other errors: -ESRCH the process ended, -EACCES /proc says no.
	 */
	int (*preflight)(pid_t pid, const char *device_directory, const char *driver_version,
			 struct gcr_error *error);
};

extern const struct gcr_backend gcr_backend_cuda;
extern const struct gcr_backend gcr_backend_hip;

/* All of them. The GPUs of one that stands before another have the lower indexes. */
#define GCR_BACKENDS_COUNT 2
extern const struct gcr_backend *const gcr_backends[GCR_BACKENDS_COUNT];

/*
 * Whose processes this engine freezes. Never NULL: the engines of before there was a second vendor
 * are the first's.
 */
const struct gcr_backend *gcr_backend_of_engine(const char *engine);

/* In any case ("AMD", "amd"). NULL: there is none such. */
const struct gcr_backend *gcr_backend_of_vendor(const char *vendor);

#endif
