/* SPDX-License-Identifier: MIT */
/* Which engine a process gets. */
#include "fs/engine.h"

const struct gcr_engine *gcr_engine_choose(struct gcr_process *process, const char **ret_reason)
{
	*ret_reason = "no other engine in this version";
	return &gcr_engine_driver;
}
