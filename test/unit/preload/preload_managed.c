/* SPDX-License-Identifier: MIT */
/* Linked into a test copy of the preload library, together with preload_memory.c. */
#include "test/unit/preload/preload_managed.h"

#include "backend/preload/gate/gate.h"
#include "backend/preload/managed/managed.h"

static const struct preload_managed functions = {
	.describe = gcr_managed_describe,
	.files = gcr_managed_files,
	.close_files = gcr_managed_close_files,
	.save = gcr_managed_save,
	.hold = gcr_managed_hold,
	.is_held = gcr_managed_is_held,
	.cancel = gcr_managed_cancel,
	.out = gcr_managed_out,
	.prepare = gcr_managed_prepare,
	.unprepare = gcr_managed_unprepare,
	.in = gcr_managed_in,
	.exempt_thread = gcr_gate_exempt_thread,
};

__attribute__((visibility("default"))) const struct preload_managed *gcr_test_managed(void)
{
	return &functions;
}
