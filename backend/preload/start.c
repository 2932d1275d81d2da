/* SPDX-License-Identifier: MIT */
#include "backend/preload/start.h"

#include "backend/preload/agent.h"
#include "backend/preload/ending.h"
#include "backend/preload/entry_points.h"
#include "backend/preload/listener.h"

void gcr_preload_start(void)
{
	gcr_reals_pin();
	GCR_TELL(start);
	gcr_ending_expect();
	gcr_agent_start();
}
