/* SPDX-License-Identifier: MIT */
/*
 * What NVML (libnvidia-ml.so.1) knows about the GPUs that the CUDA driver does not tell: memory
 * in use on all of them without a context, by process, and the driver's version. It may be
 * absent; then everything here says -ENOENT.
 */
#ifndef GCR_CUDA_NVML_H
#define GCR_CUDA_NVML_H

#include "lib/protocol.h"

/* "580.159.04". Loads NVML at the first call (8 ms on a machine with one H200). */
int gcr_nvml_driver_version(char ret_version[GCR_NAME_BYTES]);

/*
 * Fill gpus and processes of @ret_reply, at most as many as fit. What NVML does not tell about
 * one GPU is left out (the flags say so); an -errno is about all of them.
 */
int gcr_nvml_list(struct gcr_gpus_reply *ret_reply);

#endif
