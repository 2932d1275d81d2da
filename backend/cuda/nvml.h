/* SPDX-License-Identifier: MIT */
/*
 * Facts about the GPUs from NVML (libnvidia-ml.so.1) that the CUDA driver does not provide: memory
 * in use on all GPUs without a context, by process, and the driver's version. If NVML is absent,
 * all functions return -ENOENT.
 */
#ifndef GCR_CUDA_NVML_H
#define GCR_CUDA_NVML_H

#include "lib/protocol.h"

/*
 * Returns the driver's version, such as "580.159.04". The first call loads NVML (8 ms on a machine
 * with one H200). -ENOENT, -EIO.
 */
int gcr_nvml_driver_version(char ret_version[GCR_NAME_BYTES]);

/*
 * Fills the gpus and processes of @ret_reply, at most as many as fit; if the process @asked_pid (0:
 * none) has entries, they are among them. Facts that NVML does not provide for one GPU are left out
 * (the flags say which); an -errno concerns all GPUs.
 */
int gcr_nvml_list(struct gcr_gpus_reply *ret_reply, int32_t asked_pid);

#endif
