/* SPDX-License-Identifier: MIT */
#include "backend/preload/gate/hip_begin.h"

#include <stdatomic.h>

#include "backend/preload/base/listener.h"

static atomic_flag begun = ATOMIC_FLAG_INIT;
static _Atomic(bool) has_failed; /* the last attempt */

bool gcr_hip_begin(void)
{
	if (!atomic_flag_test_and_set(&begun))
		GCR_TELL(first_call);
	return !atomic_load_explicit(&has_failed, memory_order_relaxed);
}

void gcr_hip_set_failed(bool failed)
{
	atomic_store(&has_failed, failed);
}
