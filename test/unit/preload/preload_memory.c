/* SPDX-License-Identifier: MIT */
/*
 * Linked into a test copy of the preload library: exports the functions that the agent calls, so
 * that a test program can take the agent's part.
 */
#include "test/unit/preload/preload_memory.h"

#include "backend/preload/memory/allocation.h"
#include "backend/preload/base/converts.h"
#include "backend/preload/gate/gate.h"
#include "backend/preload/gate/gate_close.h"
#include "backend/preload/memory/memory.h"
#include "backend/preload/base/preload.h"

static const struct preload_memory functions = {
	.converts = gcr_memory_converts,
	.describe = gcr_memory_describe,
	.export = gcr_memory_export,
	.unmap = gcr_memory_unmap,
	.take_back = gcr_memory_take_back,
	.commit = gcr_memory_commit,
	.receive = gcr_memory_receive,
	.complete = gcr_memory_complete,
	.let_go = gcr_memory_let_go,
	.forget = gcr_preload_forget,
	.owns = gcr_allocation_owns,
	.page = gcr_gate_page,
	.gate_close = gcr_gate_close,
	.gate_open = gcr_gate_open,
	.exempt = gcr_gate_exempt_thread,
};

__attribute__((visibility("default"))) const struct preload_memory *gcr_test_memory(void)
{
	return &functions;
}
