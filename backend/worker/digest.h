/* SPDX-License-Identifier: MIT */
/*
 * Digests of VRAM: XXH3-128 of every chunk, computed by the GPU in place, or on the host if the GPU
 * cannot. A digester is made once for a context and used from one thread.
 */
#ifndef GCR_BACKEND_WORKER_DIGEST_H
#define GCR_BACKEND_WORKER_DIGEST_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/driver.h"
#include "lib/digest.h"
#include "lib/error.h"

struct gcr_digester;

struct gcr_digester_config {
	/* backend/digest/digest.cl, as cuModuleLoadData() takes it; NULL: digests on the host */
	const void *kernel;
	uint64_t chunks;      /* maximum number of chunks; 17 bytes of host memory each */
	unsigned int threads; /* on the host */
};

/*
 * Fills in the kernel that this program was built with, room for all VRAM of @device, and the
 * number of threads.
 */
void gcr_digester_config_default(const struct gcr_driver *driver, CUdevice device,
				 struct gcr_digester_config *ret_config);

/*
 * @driver must outlive the digester. If the driver rejects the kernel, digests are made on the
 * host. Errors, with a message: -ENOMEM, or the driver's; *ret_driver_result is the driver's last
 * result.
 */
int gcr_digester_create(const struct gcr_driver *driver, CUcontext context,
			const struct gcr_digester_config *config,
			struct gcr_digester **ret_digester, CUresult *ret_driver_result,
			struct gcr_error *error);
/* Calls gcr_digester_stop() first. NULL is allowed. */
void gcr_digester_destroy(struct gcr_digester *digester);

bool gcr_digester_is_on_gpu(const struct gcr_digester *digester);

/*
 * Begins the digests of @count chunks in VRAM, starting at chunk @first of the memory mapped at
 * @base. Does not wait. The memory must stay mapped and unchanged until the digests are made, and
 * copies into it must be complete. *ret_ticket is for gcr_digester_wait(). Errors, with a message:
 * -EINVAL there is no room for so many chunks, -ENOMEM, or the driver's, with its code in
 * *ret_driver_result; after a driver error call gcr_digester_stop().
 */
int gcr_digester_begin(struct gcr_digester *digester, CUdeviceptr base, uint64_t first,
		       uint64_t count, uint64_t *ret_ticket, CUresult *ret_driver_result,
		       struct gcr_error *error);

/*
 * Waits for the digests with this ticket, and for all that were begun before. Errors, with a
 * message: the driver's; then call gcr_digester_stop().
 */
int gcr_digester_wait(struct gcr_digester *digester, uint64_t ticket, CUresult *ret_driver_result,
		      struct gcr_error *error);

/*
 * Discards the digests under way and an error. When this function has returned, nothing reads the
 * memory any more.
 */
void gcr_digester_stop(struct gcr_digester *digester);

/*
 * Results by chunk number, valid for chunks that were waited for: the digest, and whether the chunk
 * is all zeros. They stay until the digest of that chunk is begun again.
 */
const struct gcr_digest *gcr_digester_digests(const struct gcr_digester *digester);
const bool *gcr_digester_zeros(const struct gcr_digester *digester);

#endif
