/* SPDX-License-Identifier: MIT */
/*
 * Information of the kernel about AMD GPUs in sysfs: KFD's topology and counters, amdgpu's memory
 * information. No AMD library and no device file is opened, so this code uses no VRAM.
 *
 * With GPUCR_SIM_DIR in the environment the simulator's files in $GPUCR_SIM_DIR/sys are read
 * instead; the simulator is asked to update them first, by a function that only its libamdhip64.so
 * has. The daemon and the tools remove the variable from their environment unless they run on the
 * simulator: another user may have set it.
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
 * Returns the version of the kernel's driver: "6.8.5" for amdgpu as packaged by AMD, otherwise the
 * release of the kernel that contains the driver.
 */
void gcr_kfd_driver_version(char ret_version[GCR_NAME_BYTES]);

/*
 * Fills in gpus and processes of @ret_reply, which is zeroed by the caller, in the order of KFD's
 * nodes and at most as many as fit. Unknown values of a GPU are left out, as its flags say. Errors,
 * with a message: -ENODEV if there is no KFD, or -errno if KFD's files cannot be read. Having no
 * GPU is not an error.
 *
 * A GPU's UUID is the one that hipDeviceGetUuid() returns: the 16 hexadecimal digits of the unique
 * id. For every GPU without a unique id HIP returns "XX" and zeros; here and in adapt.c the GPU's
 * place on the bus follows the "XX" instead ("XX0000:c3:00.0"). The minor is the N of
 * /dev/dri/renderD(N). GCR_GPU_MIG: other GPUs have the same UUID, so that HIP cannot tell them
 * apart (older kernels give all partitions of a GPU the same UUID).
 *
 * Processes are those that hold VRAM, by their pids in the initial PID namespace; a caller in
 * another PID namespace gets none. If the process @asked_pid (0: none) has entries, they are listed
 * however many others there are.
 */
int gcr_kfd_list(struct gcr_gpus_reply *ret_reply, int32_t asked_pid, struct gcr_error *error);

/* As the functions above, for files below @sysfs ("/sys"). */
void gcr_kfd_driver_version_below(const char *sysfs, char ret_version[GCR_NAME_BYTES]);
int gcr_kfd_list_below(const char *sysfs, struct gcr_gpus_reply *ret_reply, int32_t asked_pid,
		       struct gcr_error *error);

/*
 * Returns the 16 bytes for a unique id or, with @unique_id 0, for a place on the bus. See
 * gcr_kfd_list().
 */
void gcr_kfd_uuid(uint64_t unique_id, uint32_t domain, uint32_t location_id,
		  uint8_t ret_uuid[GCR_UUID_BYTES]);

#endif
