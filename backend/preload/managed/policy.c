/* SPDX-License-Identifier: MIT */
/*
 * Lists of page ranges with the advice given for them. Adjacent ranges with equal advice are
 * joined.
 */
#include "backend/preload/managed/policy.h"

#include <errno.h>
#include <stdlib.h>

#include "backend/preload/driver/entry_points.h"

#define DEVICES_MAX 64

CUmemLocation gcr_policy_location(CUdevice device)
{
	return (CUmemLocation){.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST
							       : CU_MEM_LOCATION_TYPE_DEVICE,
			       .id = device == CU_DEVICE_CPU ? 0 : device};
}

/* Inserts a new range before *@link. */
static struct gcr_policy *insert(struct gcr_policy **link, CUdeviceptr start, CUdeviceptr end)
{
	struct gcr_policy *policy = calloc(1, sizeof(*policy));

	if (!policy)
		return NULL;
	policy->start = start;
	policy->end = end;
	policy->next = *link;
	*link = policy;
	return policy;
}

/* Splits the range that contains @at, if there is one, at @at. -ENOMEM. */
static int cut(struct gcr_policy **link, CUdeviceptr at)
{
	struct gcr_policy *policy, *front;

	while (*link && (*link)->end <= at)
		link = &(*link)->next;
	policy = *link;
	if (!policy || policy->start >= at)
		return 0;
	front = insert(link, policy->start, at);
	if (!front)
		return -ENOMEM;
	front->read_mostly = policy->read_mostly;
	front->accessed_by_cpu = policy->accessed_by_cpu;
	front->preferred = policy->preferred;
	front->accessed_by = policy->accessed_by;
	policy->start = at;
	return 0;
}

/* Adds ranges, where there are none, to cover all of [start, end); no range crosses its borders. */
static int cover(struct gcr_policy **link, CUdeviceptr start, CUdeviceptr end)
{
	while (*link && (*link)->end <= start)
		link = &(*link)->next;
	while (start < end) {
		CUdeviceptr gap_end = *link && (*link)->start < end ? (*link)->start : end;

		if (start < gap_end && !insert(link, start, gap_end))
			return -ENOMEM;
		start = (*link)->end;
		link = &(*link)->next;
	}
	return 0;
}

static void set_accessed_by(struct gcr_policy *policy, CUmemLocation location, bool set)
{
	if (location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		policy->accessed_by_cpu = set;
	else if (location.id >= 0 && location.id < DEVICES_MAX && set)
		policy->accessed_by |= 1ull << location.id;
	else if (location.id >= 0 && location.id < DEVICES_MAX)
		policy->accessed_by &= ~(1ull << location.id);
}

static void advise_one(struct gcr_policy *policy, CUmem_advise advice, CUmemLocation location)
{
	switch (advice) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		policy->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
		break;
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		policy->preferred = location;
		break;
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		policy->preferred = (CUmemLocation){0};
		break;
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		set_accessed_by(policy, location, advice == CU_MEM_ADVISE_SET_ACCESSED_BY);
		break;
	default:
		break;
	}
}

static bool same(const struct gcr_policy *a, const struct gcr_policy *b)
{
	return a->read_mostly == b->read_mostly && a->accessed_by_cpu == b->accessed_by_cpu &&
	       a->accessed_by == b->accessed_by && a->preferred.type == b->preferred.type &&
	       a->preferred.id == b->preferred.id;
}

/* Removes ranges without advice, and joins equal neighbours: a program may advise in a loop. */
static void tidy(struct gcr_policy **link)
{
	static const struct gcr_policy none;

	while (*link) {
		struct gcr_policy *policy = *link, *next = policy->next;

		if (same(policy, &none)) {
			*link = next;
			free(policy);
		} else if (next && policy->end == next->start && same(policy, next)) {
			next->start = policy->start;
			*link = next;
			free(policy);
		} else {
			link = &policy->next;
		}
	}
}

int gcr_policy_advise(struct gcr_policy **policies, CUdeviceptr start, CUdeviceptr end,
		      CUmem_advise advice, CUmemLocation location)
{
	int r = cut(policies, start);

	if (r == 0)
		r = cut(policies, end);
	if (r == 0)
		r = cover(policies, start, end);
	for (struct gcr_policy *policy = *policies; policy && r == 0; policy = policy->next)
		if (policy->start >= start && policy->end <= end)
			advise_one(policy, advice, location);
	tidy(policies);
	return r;
}

void gcr_policy_free(struct gcr_policy *policies)
{
	while (policies) {
		struct gcr_policy *next = policies->next;

		free(policies);
		policies = next;
	}
}

void gcr_policy_tell(const struct gcr_policy *policy)
{
	__typeof__(cuMemAdvise) *advise_old = GCR_REAL(cuMemAdvise);
	__typeof__(cuMemAdvise_v2) *advise_new = GCR_REAL(cuMemAdvise_v2);
	size_t bytes = policy->end - policy->start;

	if (policy->preferred.type == CU_MEM_LOCATION_TYPE_DEVICE)
		advise_old(policy->start, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
			   policy->preferred.id);
	else if (policy->preferred.type == CU_MEM_LOCATION_TYPE_HOST)
		advise_old(policy->start, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
			   CU_DEVICE_CPU);
	else if (policy->preferred.type != CU_MEM_LOCATION_TYPE_INVALID && advise_new)
		advise_new(policy->start, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
			   policy->preferred);
	for (int device = 0; device < DEVICES_MAX; device++)
		if (policy->accessed_by >> device & 1)
			advise_old(policy->start, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
	if (policy->accessed_by_cpu)
		advise_old(policy->start, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU);
	if (policy->read_mostly)
		advise_old(policy->start, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, 0);
}
