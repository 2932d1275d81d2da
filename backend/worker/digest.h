/* SPDX-License-Identifier: MIT */
/*
 * Digests of what is in VRAM: XXH3-128 of every chunk, made by the GPU where the bytes are, or on
 * the host where the GPU cannot. A digester is made once for a context and used from one thread.
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
	uint64_t chunks;      /* for so many there is room, 17 bytes of host memory each */
	unsigned int threads; /* on the host */
};

/* The kernel this program was built with, room for all of the VRAM of @device. */
void gcr_digester_config_default(const struct gcr_driver *driver, CUdevice device,
				 struct gcr_digester_config *ret_config);

/*
 * @driver is kept. If the driver does not take the kernel, digests are made on the host.
 * Errors, with words: -ENOMEM, or what the driver says; *ret_driver_result is its last answer.
 */
int gcr_digester_create(const struct gcr_driver *driver, CUcontext context,
			const struct gcr_digester_config *config,
			struct gcr_digester **ret_digester, CUresult *ret_driver_result,
			struct gcr_error *error);
/* As gcr_digester_stop() first. NULL is allowed. */
void gcr_digester_destroy(struct gcr_digester *digester);

bool gcr_digester_is_on_gpu(const struct gcr_digester *digester);

/*
 * Begin the digests of @count chunks in VRAM, from chunk @first of what is mapped at @base on. Does
 * not wait. The memory has to stay mapped, and as it is, until they are made; what is copied to it
 * has to be there. *ret_ticket is for gcr_digester_wait(). Errors, with words: -EINVAL there is no
 * room for so many chunks, -ENOMEM, or what the driver says, whose code is *ret_driver_result then;
 * after those gcr_digester_stop() comes next.
 */
int gcr_digester_begin(struct gcr_digester *digester, CUdeviceptr base, uint64_t first,
		       uint64_t count, uint64_t *ret_ticket, CUresult *ret_driver_result,
		       struct gcr_error *error);

/*
 * Wait for the digests with this ticket, and all that were begun before them. Errors, with words:
 * what the driver says; gcr_digester_stop() comes next.
 */
int gcr_digester_wait(struct gcr_digester *digester, uint64_t ticket, CUresult *ret_driver_result,
		      struct gcr_error *error);

/* Forget what was begun, and an error. Nobody reads that memory any more then. */
void gcr_digester_stop(struct gcr_digester *digester);

/*
 * By number of the chunk, for those that were waited for: its digest, and whether it has nothing
 * but zeros. They stay until they are made again.
 */
const struct gcr_digest *gcr_digester_digests(const struct gcr_digester *digester);
const bool *gcr_digester_zeros(const struct gcr_digester *digester);

#endif
