/* SPDX-License-Identifier: MIT */
/* Inode numbers of ctl files: none that the kernel still knows is given away again. */
#include "fs/mount/ctl_ids.h"

#include "test/unit/test.h"

#define FRESH_COUNT (1u << 23)
#define USER	    4001
#define NODE	    7

static struct gcr_quota *quota;

static bool is_fresh(uint32_t id)
{
	return id < FRESH_COUNT;
}

/* All numbers once around, and two that the kernel keeps. */
static void test_around(void)
{
	uint32_t kept = gcr_ctl_ids_take(quota, 0, NODE);
	uint32_t also_kept = gcr_ctl_ids_take(quota, 0, NODE);

	CHECK(is_fresh(kept) && is_fresh(also_kept) && kept != also_kept);
	for (uint32_t i = 0; i < FRESH_COUNT + 10; i++) {
		uint32_t id = gcr_ctl_ids_take(quota, 0, NODE);

		CHECK(is_fresh(id) && id != kept && id != also_kept);
		gcr_ctl_ids_give_back(id);
	}
	gcr_ctl_ids_give_back(kept);
	gcr_ctl_ids_give_back(also_kept);
}

/* A user's look-ups of one file have a limit; others, and those of another file, have their own. */
static void test_limit(void)
{
	uint32_t last = 0;
	unsigned int count = 0;

	while (is_fresh(last) && count++ < 1000)
		last = gcr_ctl_ids_take(quota, USER, NODE);
	/* The second may end meanwhile. */
	CHECK(count > 100 && count < 1000);
	CHECK(is_fresh(gcr_ctl_ids_take(quota, USER, NODE + 1)));
	CHECK(is_fresh(gcr_ctl_ids_take(quota, USER + 1, NODE)));
	for (unsigned int i = 0; i < 1000; i++)
		CHECK(is_fresh(gcr_ctl_ids_take(quota, 0, NODE)));
}

/* No number is left: all get one that is no fresh one, until one comes back. */
static void test_none_left(void)
{
	uint32_t count = 0;

	while (is_fresh(gcr_ctl_ids_take(quota, 0, NODE)))
		CHECK(++count <= FRESH_COUNT);
	gcr_ctl_ids_give_back(FRESH_COUNT + 12345);
	CHECK(!is_fresh(gcr_ctl_ids_take(quota, 0, NODE)));
	gcr_ctl_ids_give_back(12345);
	CHECK(gcr_ctl_ids_take(quota, 0, NODE) == 12345);
}

int main(void)
{
	static const struct gcr_quota_limits limits = {.most = {[GCR_QUOTA_PLACES] = 1}};

	CHECK(!gcr_quota_create(&limits, "/nonexistent", 0, &quota));
	test_around();
	test_limit();
	test_none_left();
	gcr_quota_destroy(quota);
	return 0;
}
