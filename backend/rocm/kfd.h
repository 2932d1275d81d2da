/* SPDX-License-Identifier: MIT */
/*
 * What the kernel tells about AMD GPUs in sysfs: KFD's topology and counters, amdgpu's memory
 * information. No library of AMD's and no device file is opened, so nothing here uses VRAM.
 *
 * With GPUCR_SIM_DIR in the environment it is the simulator that tells, in $GPUCR_SIM_DIR/sys: it
 * is asked to bring that up to date first, by a function that only its libamdhip64.so has.
 *
 * Sources: the kernel's drivers/gpu/drm/amd/amdkfd/kfd_topology.c (class/kfd/kfd/topology),
 * kfd_process.c (class/kfd/kfd/proc), amdgpu_vram_mgr.c (mem_info_vram_*), and
 * Documentation/gpu/amdgpu (product_name).
 */
#ifndef GCR_ROCM_KFD_H
#define GCR_ROCM_KFD_H

#include <stdint.h>

#include "lib/error.h"
#include "lib/protocol.h"

/*
 * The version of the kernel's driver: "6.8.5" of amdgpu as AMD packages it, or the release of the
 * kernel that it came with.
 */
void gcr_kfd_driver_version(char ret_version[GCR_NAME_BYTES]);

/*
 * Fill gpus and processes of @ret_reply, which is all zero, at most as many as fit, in the order of
 * KFD's nodes. What is not known about one GPU is left out (the flags say so). Errors, with words:
 * -ENODEV there is no KFD, or -errno it cannot be read; no GPU is no error.
 *
 * A GPU's UUID is what hipDeviceGetUuid() returns for it: the 16 hexadecimal digits of its unique
 * id. For a GPU that has none HIP returns "XX" and zeros, whichever it is; its place on the bus
 * follows the "XX" here ("XX0000:c3:00.0"), and in adapt.c. Its minor is the N of
 * /dev/dri/renderD(N). GCR_GPU_MIG: it is not the only one with this UUID, so that HIP cannot tell
 * them apart (older kernels give all partitions of a GPU the same).
 *
 * Processes are those that hold VRAM, by the numbers that they have in the first PID namespace:
 * none are listed to a caller in another one.
 */
int gcr_kfd_list(struct gcr_gpus_reply *ret_reply, struct gcr_error *error);

/* The same of what is below @sysfs ("/sys"). */
void gcr_kfd_driver_version_below(const char *sysfs, char ret_version[GCR_NAME_BYTES]);
int gcr_kfd_list_below(const char *sysfs, struct gcr_gpus_reply *ret_reply,
		       struct gcr_error *error);

/* The 16 bytes for a unique id, or (0) for a place on the bus. See gcr_kfd_list(). */
void gcr_kfd_uuid(uint64_t unique_id, uint32_t domain, uint32_t location_id,
		  uint8_t ret_uuid[GCR_UUID_BYTES]);

#endif
