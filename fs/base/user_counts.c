/* SPDX-License-Identifier: MIT */
#include "fs/base/user_counts.h"

#include <stdlib.h>

static struct gcr_user_count *find(struct gcr_user_counts *counts, uid_t uid)
{
	for (size_t i = 0; i < counts->users; i++)
		if (counts->list[i].uid == uid)
			return &counts->list[i];
	return NULL;
}

size_t *gcr_user_counts_get(struct gcr_user_counts *counts, uid_t uid)
{
	struct gcr_user_count *user = find(counts, uid);
	struct gcr_user_count *list;

	if (user)
		return &user->count;
	list = reallocarray(counts->list, counts->users + 1, sizeof(*list));
	if (!list)
		return NULL;
	counts->list = list;
	list[counts->users] = (struct gcr_user_count){.uid = uid};
	return &list[counts->users++].count;
}

void gcr_user_counts_release(struct gcr_user_counts *counts, uid_t uid, size_t amount)
{
	struct gcr_user_count *user = find(counts, uid);

	if (!user)
		return;
	user->count -= amount < user->count ? amount : user->count;
	if (!user->count)
		*user = counts->list[--counts->users];
}
