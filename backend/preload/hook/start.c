/* SPDX-License-Identifier: MIT */
#include "backend/preload/hook/start.h"

#include "backend/preload/agent/agent.h"
#include "backend/preload/gate/ending.h"
#include "backend/preload/driver/entry_points.h"
#include "backend/preload/base/listener.h"

void gcr_preload_start(void)
{
	gcr_reals_pin();
	GCR_TELL(start);
	gcr_ending_expect();
	gcr_agent_start();
}
