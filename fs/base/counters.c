/* SPDX-License-Identifier: MIT */
#include "fs/base/counters.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/error.h"

/*
 * Results of verbs and reasons for refused writes: gpucrfs-verbs(7), ERRORS. The first is success.
 */
static const int results[] = {
	0,	E2BIG,	EACCES,	  EAGAIN,     EBUSY,  ECANCELED, EDQUOT,
	EEXIST, EINTR,	EINVAL,	  EIO,	      EMFILE, ENFILE,	 ENODEV,
	ENOMEM, ENOSPC, ENOTCONN, EOPNOTSUPP, EPERM,  ESRCH,	 ETIMEDOUT,
};

_Static_assert(GCR_ARRAY_SIZE(results) + 1 == GCR_COUNTERS_RESULTS, "one more: all others");

int gcr_counters_create(struct gcr_counters **ret_counters)
{
	*ret_counters = calloc(1, sizeof(**ret_counters));
	if (!*ret_counters)
		return -ENOMEM;
	(*ret_counters)->started_usec = gcr_clock_real_usec();
	return 0;
}

void gcr_counters_destroy(struct gcr_counters *counters)
{
	free(counters);
}

static size_t result_index(int error_number)
{
	size_t index = 0;

	while (index < GCR_ARRAY_SIZE(results) && results[index] != error_number)
		index++;
	return index;
}

const char *gcr_counters_result(size_t index)
{
	if (index >= GCR_ARRAY_SIZE(results))
		return index == GCR_ARRAY_SIZE(results) ? "other" : NULL;
	return results[index] ? gcr_error_name(results[index]) : "ok";
}

void gcr_counters_verb(struct gcr_counters *counters, enum gcr_verb verb, int error_number,
		       int64_t duration_usec, uint64_t bytes)
{
	atomic_fetch_add(&counters->verbs[verb].ended[result_index(error_number)], 1);
	if (error_number)
		return;
	atomic_fetch_add(&counters->verbs[verb].usec, (uint64_t)duration_usec);
	atomic_fetch_add(&counters->verbs[verb].bytes, bytes);
}

void gcr_counters_refusal(struct gcr_counters *counters, int error_number)
{
	atomic_fetch_add(&counters->refusals[result_index(error_number)], 1);
}
