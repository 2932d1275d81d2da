/* SPDX-License-Identifier: MIT */
/*
 * A forked child of a GPU process cannot use the driver, and nothing that we hold is its own: its
 * gate is open, its tables are empty, its copies of our descriptors closed.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "backend/preload/agent.h"
#include "backend/preload/capture.h"
#include "backend/preload/context.h"
#include "backend/preload/descriptor.h"
#include "backend/preload/gate.h"
#include "backend/preload/limit.h"
#include "backend/preload/managed.h"
#include "backend/preload/memory.h"
#include "backend/preload/preload.h"

void gcr_preload_forget(void)
{
	gcr_gate_forget();
	gcr_captures_forget();
	gcr_contexts_forget();
	gcr_limits_forget();
	gcr_memory_forget();
	gcr_managed_forget();
	gcr_agent_forget();
	gcr_descriptor_forget();
}

void gcr_preload_expect_fork(void)
{
	static atomic_flag expected = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&expected))
		pthread_atfork(gcr_descriptor_before_fork, NULL, gcr_preload_forget);
}
