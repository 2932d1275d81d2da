/* SPDX-License-Identifier: MIT */
/* Managed memory out and in: the agent's side, with the gate closed. */
#include <errno.h>

#include "backend/preload/managed.h"
#include "backend/preload/managed_table.h"

int gcr_managed_out(struct gcr_error *error)
{
	if (gcr_managed_describe(NULL, 0))
		return gcr_error_set(error, EOPNOTSUPP, "it uses managed memory");
	return 0;
}

int gcr_managed_in(struct gcr_error *error)
{
	return 0;
}

int gcr_managed_let_go(struct gcr_error *error)
{
	return 0;
}
