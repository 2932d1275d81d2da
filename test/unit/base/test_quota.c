/* SPDX-License-Identifier: MIT */
/*
 * Quotas: the counts of each kind go up and down and stay correct, limits hold exactly, a
 * subordinate id counts for its owner, and no contents of the id files can do harm.
 */
#include "fs/base/quota.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fs/base/subuid.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "test/unit/descriptors.h"
#include "test/unit/test.h"

#define ALICE 4001
#define BOB   4002

static char directory[] = "/tmp/test-quota-XXXXXX";
static char subuids[64];
static char users[64];

static const struct gcr_quota_limits few = {
	.most = {[GCR_QUOTA_CONNECTIONS] = 3,
		 [GCR_QUOTA_OPEN_FILES] = 2,
		 [GCR_QUOTA_TEXT] = 1000,
		 [GCR_QUOTA_PLACES] = 2,
		 [GCR_QUOTA_STORE] = 10 << 20,
		 [GCR_QUOTA_SPILL] = 20 << 20,
		 [GCR_QUOTA_VERBS] = 4,
		 [GCR_QUOTA_DUMPS] = 1,
		 [GCR_QUOTA_DESCRIPTORS] = 100},
	.timeout_usec = 60 * GCR_USEC_PER_SEC,
};

/* Writes a new file each time and renames it, as an editor does. */
static void write_file(const char *path, const char *text, size_t size)
{
	char temporary[80];
	int fd;

	snprintf(temporary, sizeof(temporary), "%s.new", path);
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	CHECK(fd >= 0 && write(fd, text, size) == (ssize_t)size && !fchmod(fd, 0644));
	close(fd);
	CHECK(!rename(temporary, path));
}

static void write_text(const char *path, const char *text)
{
	write_file(path, text, strlen(text));
}

static struct gcr_quota *make(void)
{
	struct gcr_quota *quota;

	CHECK(!gcr_quota_create(&few, subuids, 0, &quota));
	return quota;
}

/* The text that root sees. */
static const char *shown(struct gcr_quota *quota)
{
	static char text[4096];
	FILE *stream = fmemopen(text, sizeof(text), "w");

	gcr_quota_render(quota, NULL, 0, true, 0, stream);
	fputc('\0', stream);
	fclose(stream);
	return text;
}

static void test_limits(void)
{
	struct gcr_quota *quota = make();
	struct gcr_quota_charge charges[5] = {0};
	struct gcr_quota_figures figures;
	struct gcr_error error = {0};

	for (int i = 0; i < 2; i++)
		CHECK(!gcr_quota_take(quota, GCR_QUOTA_OPEN_FILES, ALICE, 1, &charges[i], &error));
	CHECK(gcr_quota_take(quota, GCR_QUOTA_OPEN_FILES, ALICE, 1, &charges[2], &error) ==
	      -EMFILE);
	CHECK(!charges[2].quota && error.number == EMFILE);
	CHECK(strstr(error.words, "user 4001 has 2 open files"));
	CHECK(strstr(error.words, "limit of 2 (user_open_files in gpucrfs(8))"));
	/*
	 * The file with the message can be opened beyond the limit, but only a bounded number of
	 * times.
	 */
	CHECK(!gcr_quota_take_beyond(quota, GCR_QUOTA_OPEN_FILES, ALICE, 1, 1, &charges[2],
				     &error));
	CHECK(gcr_quota_take_beyond(quota, GCR_QUOTA_OPEN_FILES, ALICE, 1, 1, &charges[3],
				    &error) == -EMFILE);
	/* Another user and another kind have limits of their own. */
	CHECK(!gcr_quota_take(quota, GCR_QUOTA_OPEN_FILES, BOB, 2, &charges[3], &error));
	CHECK(!gcr_quota_take(quota, GCR_QUOTA_VERBS, ALICE, 4, &charges[4], &error));
	CHECK(!strcmp(shown(quota),
		      "user 4001 connections 0/3 open_files 3/2 text_bytes 0/1000 places 0/2 "
		      "store_bytes 0/10485760 spill_bytes 0/20971520 verbs 4/4 dumps 0/1 "
		      "descriptors 0/100\n"
		      "user 4002 connections 0/3 open_files 2/2 text_bytes 0/1000 places 0/2 "
		      "store_bytes 0/10485760 spill_bytes 0/20971520 verbs 0/4 dumps 0/1 "
		      "descriptors 0/100\n"));
	gcr_quota_get_figures(quota, &figures);
	CHECK(figures.users == 2 && figures.refusals[GCR_QUOTA_OPEN_FILES] == 2);
	for (int i = 0; i < 5; i++) {
		gcr_quota_release(&charges[i]);
		gcr_quota_release(&charges[i]); /* a second release does nothing */
	}
	CHECK(!*shown(quota));
	gcr_quota_destroy(quota);
}

/* No user has too many dumps, and still all users together leave some dumps to root. */
static void test_together(void)
{
	struct gcr_quota_charge charges[GCR_QUOTA_ALL_DUMPS] = {{0}};
	struct gcr_quota_charge charge = {0};
	struct gcr_error error = {0};
	struct gcr_quota *quota = make();

	for (size_t i = 0; i < GCR_QUOTA_ALL_DUMPS; i++)
		CHECK(gcr_quota_take(quota, GCR_QUOTA_DUMPS, 700000 + (uid_t)i, 1, &charges[i],
				     &error) == 0);
	CHECK(gcr_quota_take(quota, GCR_QUOTA_DUMPS, 4001, 1, &charge, &error) == -EAGAIN);
	CHECK(strstr(error.words, "all users together have 192 dumps under way"));
	CHECK(gcr_quota_take(quota, GCR_QUOTA_DUMPS, GCR_QUOTA_OTHER_ROOT, 1, &charge, &error) ==
	      -EAGAIN);
	CHECK(gcr_quota_take(quota, GCR_QUOTA_DUMPS, 0, 1, &charge, &error) == 0);
	gcr_quota_release(&charge);
	gcr_quota_release(&charges[7]);
	CHECK(gcr_quota_take(quota, GCR_QUOTA_DUMPS, 4001, 1, &charge, &error) == 0);
	gcr_quota_release(&charge);
	for (size_t i = 0; i < GCR_QUOTA_ALL_DUMPS; i++)
		gcr_quota_release(&charges[i]);
	gcr_quota_destroy(quota);
}

/*
 * The verbs of one user hold half of the users' descriptors at most; what must be possible is
 * possible alone.
 */
static void test_of_verbs(void)
{
	struct gcr_quota_charge charges[3] = {{0}};
	struct gcr_error error = {0};
	struct gcr_quota *quota;

	CHECK(!gcr_quota_create(&few, subuids, 150, &quota));
	CHECK(gcr_quota_take(quota, GCR_QUOTA_DESCRIPTORS, ALICE, 76, &charges[0], &error) ==
	      -ENFILE);
	CHECK(strstr(error.words, "76 more would be above the limit of 75 (user_descriptors"));
	CHECK(!gcr_quota_take(quota, GCR_QUOTA_DESCRIPTORS, ALICE, 75, &charges[0], &error));
	CHECK(gcr_quota_take_alone(quota, GCR_QUOTA_DESCRIPTORS, ALICE, 1, &charges[1], &error) ==
	      -ENFILE);
	CHECK(!gcr_quota_take(quota, GCR_QUOTA_DESCRIPTORS, BOB, 75, &charges[1], &error));
	gcr_quota_release(&charges[0]);
	CHECK(!gcr_quota_take_alone(quota, GCR_QUOTA_DESCRIPTORS, ALICE, 500, &charges[0], &error));
	CHECK(gcr_quota_take_alone(quota, GCR_QUOTA_DESCRIPTORS, ALICE, 1, &charges[2], &error) ==
	      -ENFILE);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(charges); i++)
		gcr_quota_release(&charges[i]);
	CHECK(!*shown(quota));
	gcr_quota_destroy(quota);
}

/* Amounts near the largest number do not wrap around. */
static void test_large(void)
{
	struct gcr_quota *quota = make();
	struct gcr_quota_charge charge = {0}, second = {0};
	struct gcr_error error;

	CHECK(!gcr_quota_take(quota, GCR_QUOTA_TEXT, ALICE, 1000, &charge, &error));
	CHECK(gcr_quota_take(quota, GCR_QUOTA_TEXT, ALICE, UINT64_MAX, &second, &error) == -EDQUOT);
	CHECK(gcr_quota_take(quota, GCR_QUOTA_TEXT, ALICE, UINT64_MAX - 999, &second, &error) ==
	      -EDQUOT);
	CHECK(!gcr_quota_take(quota, GCR_QUOTA_TEXT, ALICE, 0, &second, &error));
	gcr_quota_release(&second);
	gcr_quota_release(&charge);
	CHECK(!gcr_quota_take(quota, GCR_QUOTA_TEXT, ALICE, 0, &second, &error));
	CHECK(!*shown(quota));
	gcr_quota_release(&second);
	gcr_quota_destroy(quota);
}

/*
 * A copied charge is released twice: the count is clamped at 0, the counts of others stay, and the
 * daemon keeps running.
 */
static void test_clamp(void)
{
	struct gcr_quota *quota = make();
	struct gcr_quota_charge charge = {0}, other = {0}, copy;
	struct gcr_error error;

	CHECK(!gcr_quota_take(quota, GCR_QUOTA_PLACES, ALICE, 1, &charge, &error));
	CHECK(!gcr_quota_take(quota, GCR_QUOTA_VERBS, ALICE, 2, &other, &error));
	copy = charge;
	gcr_quota_release(&charge);
	gcr_quota_release(&copy);
	CHECK(strstr(shown(quota), "places 0/2 store_bytes 0/10485760 spill_bytes 0/20971520 "
				   "verbs 2/4"));
	copy = other;
	gcr_quota_release(&other);
	CHECK(!*shown(quota));
	gcr_quota_release(&copy);
	CHECK(!*shown(quota));
	gcr_quota_destroy(quota);
}

static void test_root(void)
{
	struct gcr_quota *quota = make();
	struct gcr_quota_charge charge = {0};
	struct gcr_error error;

	CHECK(!gcr_quota_take(quota, GCR_QUOTA_VERBS, 0, 1000, &charge, &error) && !charge.quota);
	CHECK(!gcr_quota_take(quota, GCR_QUOTA_VERBS, geteuid(), 1000, &charge, &error));
	CHECK(!charge.quota && !*shown(quota));
	CHECK(!gcr_quota_check_timeout(quota, 0, INT64_MAX, &error));
	CHECK(!gcr_quota_check_held(quota, GCR_QUOTA_STORE, 0, UINT64_MAX, 1, &error));
	/* The same calls without quotas. */
	CHECK(!gcr_quota_take(NULL, GCR_QUOTA_VERBS, ALICE, 1000, &charge, &error));
	CHECK(gcr_quota_owner(NULL, ALICE) == ALICE && !gcr_quota_is_limited(NULL, ALICE));
	gcr_quota_count(NULL, GCR_QUOTA_STORE, ALICE, 1, &charge);
	gcr_quota_release(&charge);
	gcr_quota_destroy(quota);
}

static void test_timeout(void)
{
	struct gcr_quota *quota = make();
	struct gcr_error error = {0};

	CHECK(!gcr_quota_check_timeout(quota, ALICE, 0, &error));
	CHECK(!gcr_quota_check_timeout(quota, ALICE, 60 * GCR_USEC_PER_SEC, &error));
	CHECK(gcr_quota_check_timeout(quota, ALICE, 61 * GCR_USEC_PER_SEC, &error) == -EINVAL);
	CHECK(strstr(error.words, "at most 60 seconds"));
	gcr_quota_destroy(quota);
}

/*
 * Bytes that the store reports for a user, and bytes of removed files that he has open, count
 * together.
 */
static void test_store(void)
{
	const struct gcr_quota_held held[] = {
		{ALICE, {[GCR_QUOTA_STORE] = 5 << 20, [GCR_QUOTA_SPILL] = 11 << 20}},
		{100005, {[GCR_QUOTA_STORE] = 1 << 20, [GCR_QUOTA_SPILL] = 1 << 20}},
		{0, {[GCR_QUOTA_STORE] = 7 << 20}},
		{BOB, {0}},
		{ALICE, {[GCR_QUOTA_STORE] = 1 << 20}},
	};
	struct gcr_quota *quota;
	struct gcr_quota_charge charge = {0};
	struct gcr_error error = {0};
	char text[512] = "";
	FILE *stream;

	write_text(subuids, "4001:100000:65536\n");
	quota = make();
	gcr_quota_count(quota, GCR_QUOTA_STORE, 100001, 3 << 20, &charge);
	CHECK(!gcr_quota_check_held(quota, GCR_QUOTA_STORE, ALICE, 6 << 20, 1 << 20, &error));
	CHECK(gcr_quota_check_held(quota, GCR_QUOTA_STORE, ALICE, 6 << 20, (1 << 20) + 1, &error) ==
	      -EDQUOT);
	CHECK(strstr(error.words, "has 9 MiB of bytes in the store, and 2 MiB more"));
	CHECK(strstr(error.words, "limit of 10 MiB"));
	stream = fmemopen(text, sizeof(text), "w");
	gcr_quota_render(quota, held, 5, false, 100009, stream);
	fclose(stream);
	CHECK(strstr(text, "user 4001 ") == text && strstr(text, "store_bytes 10485760/"));
	CHECK(strstr(text, "spill_bytes 12582912/20971520 ") && !strstr(text + 1, "user "));
	/* Spilled bytes have another limit, which may change. */
	CHECK(!gcr_quota_check_held(quota, GCR_QUOTA_SPILL, ALICE, 20 << 20, 0, &error));
	CHECK(gcr_quota_check_held(quota, GCR_QUOTA_SPILL, ALICE, 20 << 20, 1, &error) == -EDQUOT);
	CHECK(strstr(error.words, "limit of 20 MiB (user_spill in gpucrfs(8))"));
	gcr_quota_set_most(quota, GCR_QUOTA_SPILL, 30 << 20);
	CHECK(!gcr_quota_check_held(quota, GCR_QUOTA_SPILL, ALICE, 20 << 20, 10 << 20, &error));
	gcr_quota_lower(quota, GCR_QUOTA_SPILL, 5 << 20);
	CHECK(gcr_quota_check_held(quota, GCR_QUOTA_SPILL, ALICE, 20 << 20, 1, &error) == -EDQUOT);
	gcr_quota_release(&charge);
	gcr_quota_destroy(quota);
}

/* An open file of @uid, after counts and promises of the past have no effect any more. */
static int take_one(struct gcr_quota *quota, uid_t uid, struct gcr_quota_charge *ret_charge)
{
	struct gcr_error error;

	usleep(20000);
	return gcr_quota_take(quota, GCR_QUOTA_OPEN_FILES, uid, 1, ret_charge, &error);
}

static void test_descriptors(void)
{
	uint64_t count = count_descriptors();
	struct gcr_quota_charge charge = {0};
	struct gcr_quota *quota;
	struct gcr_error error;
	int more;

	CHECK(!gcr_quota_create(&few, subuids, count + 1, &quota));
	CHECK(!take_one(quota, ALICE, &charge));
	gcr_quota_release(&charge);
	more = open("/dev/null", O_RDONLY | O_CLOEXEC);
	CHECK(take_one(quota, ALICE, &charge) == -ENFILE);
	CHECK(gcr_quota_take(quota, GCR_QUOTA_CONNECTIONS, BOB, 1, &charge, &error) == -ENFILE);
	CHECK(!gcr_quota_take(quota, GCR_QUOTA_TEXT, ALICE, 1, &charge, &error));
	gcr_quota_release(&charge);
	CHECK(!gcr_quota_take(quota, GCR_QUOTA_OPEN_FILES, 0, 1, &charge, &error));
	CHECK(gcr_quota_check_descriptors(quota, ALICE, 1, &error) == -ENFILE);
	CHECK(!gcr_quota_check_descriptors(quota, 0, 1000, &error));
	close(more);
	CHECK(!take_one(quota, ALICE, &charge));
	gcr_quota_release(&charge);
	usleep(20000);
	CHECK(gcr_quota_check_descriptors(quota, ALICE, 2, &error) == -ENFILE);
	CHECK(!gcr_quota_check_descriptors(quota, ALICE, 1, &error));
	/* It was promised, though it is not open. */
	CHECK(gcr_quota_check_descriptors(quota, ALICE, 1, &error) == -ENFILE);
	gcr_quota_destroy(quota);
	CHECK(gcr_quota_descriptors(1024) == 768 && gcr_quota_descriptors(524288) == 516096);
}

/* Free numbers below those in use let nobody have more than the limit. */
static void test_descriptors_with_holes(void)
{
	uint64_t count = count_descriptors();
	struct gcr_quota_charge charge = {0};
	struct gcr_quota *quota;
	int first[20], last[20];

	CHECK(!gcr_quota_create(&few, subuids, count + 20, &quota));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(first); i++)
		first[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(last); i++)
		last[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(first); i++)
		close(first[i]);
	CHECK(take_one(quota, ALICE, &charge) == -ENFILE);
	close(last[0]);
	CHECK(!take_one(quota, ALICE, &charge));
	gcr_quota_release(&charge);
	for (size_t i = 1; i < GCR_ARRAY_SIZE(last); i++)
		close(last[i]);
	gcr_quota_destroy(quota);
}

static void *take_many(void *data)
{
	struct gcr_error error;
	uintptr_t got = 0;

	for (int i = 0; i < 100; i++)
		got += !gcr_quota_check_descriptors(data, ALICE, 1, &error);
	return (void *)got;
}

/* Many threads that ask at once get no more than there are. */
static void test_descriptors_at_once(void)
{
	int64_t began_usec = gcr_clock_usec();
	struct gcr_quota *quota;
	pthread_t threads[8];
	uint64_t sum = 0;
	void *got;

	CHECK(!gcr_quota_create(&few, subuids, count_descriptors() + 50, &quota));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(threads); i++)
		CHECK(!pthread_create(&threads[i], NULL, take_many, quota));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(threads); i++) {
		CHECK(!pthread_join(threads[i], &got));
		sum += (uintptr_t)got;
	}
	/* What nobody opens is free again after two counts. */
	CHECK(sum >= 50 && sum <= 50 * (2 + (uint64_t)(gcr_clock_usec() - began_usec) / 1000));
	gcr_quota_destroy(quota);
}

static uid_t owner_in(const char *text, uid_t uid)
{
	struct gcr_subuids *ranges;
	uid_t owner;

	write_text(subuids, text);
	CHECK(!gcr_subuids_create(subuids, users, &ranges));
	owner = gcr_subuids_owner(ranges, uid);
	gcr_subuids_destroy(ranges);
	return owner;
}

static void test_ranges(void)
{
	static char long_line[20000];

	write_text(users, "root:x:0:0::/:/bin/sh\nbad line\nalice:x:4001:4001:::\n");
	CHECK(owner_in("alice:100000:65536\n", 100000) == ALICE);
	CHECK(owner_in("alice:100000:65536\n", 165535) == ALICE);
	CHECK(owner_in("alice:100000:65536\n", 165536) == 165536);
	CHECK(owner_in("alice:100000:65536\n", 99999) == 99999);
	CHECK(owner_in("alice:100000:65536", 100001) == ALICE);
	CHECK(owner_in("# c\n\n4002:100000:10\nalice:100000:65536\n", 100001) == BOB);
	CHECK(owner_in("# c\n\n4002:100000:10\nalice:100000:65536\n", 100011) == ALICE);
	/* If a name occurs several times, the first line counts. */
	write_text(users, "zoe:x:4003:1:::\nalice:x:4001:1:::\nbob:x:4002:1:::\nalice:x:4002:1:::\n"
			  "root:x:0:0::/:/bin/sh\n");
	CHECK(owner_in("bob:300000:10\nzoe:200000:10\nalice:100000:10\n", 100001) == ALICE);
	CHECK(owner_in("bob:300000:10\nzoe:200000:10\nalice:100000:10\n", 200001) == 4003);
	CHECK(owner_in("bob:300000:10\nzoe:200000:10\nalice:100000:10\n", 300001) == BOB);
	/* A user after a very long line. */
	memset(long_line, 'x', sizeof(long_line));
	memcpy(long_line, "zoe:x:4003:1:", 13);
	strcpy(long_line + sizeof(long_line) - 40, "::\nalice:x:4001:1:::\n");
	write_text(users, long_line);
	CHECK(owner_in("alice:100000:10\n", 100001) == ALICE);
	CHECK(owner_in("zoe:100000:10\n", 100001) == 4003);
	/*
	 * A range of an unknown owner, or of root, who has no limits: all ids of the range count as
	 * one owner.
	 */
	CHECK(owner_in("nobody-knows:100000:65536\n", 100777) == 100000);
	CHECK(owner_in("root:100000:65536\n", 100777) == 100000);
	/* An id of a range has a range of its own. */
	CHECK(owner_in("alice:100000:10\n100005:200000:10\n", 200003) == ALICE);
	/* A cycle of ranges, and a range that contains its owner. */
	CHECK(owner_in("100000:200000:10\n200000:100000:10\n", 100000) >= 100000);
	CHECK(owner_in("100000:100000:10\n", 100004) == 100000);
}

/* No file can give root's id to a user or a user's to root, or crash the daemon. */
static void test_hostile_ranges(void)
{
	static const char *const bad[] = {"alice:0:65536\n",
					  "alice:100000:0\n",
					  "alice:100000:99999999999\n",
					  "alice:4294967295:1\n",
					  "alice:4294967290:65536\n",
					  "alice:100000\n",
					  "alice\n",
					  ":100000:65536\n",
					  "alice:-100000:65536\n",
					  "alice: 100000:65536\n",
					  "alice:100000:65536:1\n",
					  "alice:1e5:65536\n",
					  "alice:100000:0x10\n",
					  "::\n",
					  "alice:18446744073709651616:10\n",
					  "\n\n:::::\n"};
	size_t size = 0, most = 1 << 22;
	char *text = malloc(most);
	struct gcr_subuids *ranges;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		CHECK(owner_in(bad[i], 100001) == 100001 && !owner_in(bad[i], 0));
		CHECK(owner_in(bad[i], 65535) == 65535);
	}
	CHECK(!owner_in("alice:1:4294967290\n", 0));
	/* Too many ranges, and a line without an end. */
	CHECK(text != NULL);
	for (int i = 0; i < 2 * GCR_SUBUID_RANGES_MAX; i++)
		size += (size_t)sprintf(text + size, "alice:%d:1\n", 100000 + i);
	write_file(subuids, text, size);
	CHECK(!gcr_subuids_create(subuids, users, &ranges));
	CHECK(gcr_subuids_owner(ranges, 100000 + GCR_SUBUID_RANGES_MAX - 1) == ALICE);
	CHECK(gcr_subuids_owner(ranges, 100000 + GCR_SUBUID_RANGES_MAX) != ALICE);
	memset(text, 'a', most);
	write_file(subuids, text, most);
	gcr_subuids_refresh(ranges, true);
	CHECK(gcr_subuids_owner(ranges, 100000) == 100000);
	/* A file that is too large is cut between two lines. */
	memset(text, '#', most);
	text[(1 << 20) - 20] = '\n';
	memcpy(text + (1 << 20) - 19, "alice:100000:655360\n", 20);
	write_file(subuids, text, most);
	gcr_subuids_refresh(ranges, true);
	CHECK(gcr_subuids_owner(ranges, 100000) == 100000);
	memset(text, 0, 1000);
	write_file(subuids, text, 1000);
	gcr_subuids_refresh(ranges, true);
	CHECK(gcr_subuids_owner(ranges, 100000) == 100000);
	free(text);
	/* A file that others may write, a pipe, and no file. */
	write_text(subuids, "alice:100000:65536\n");
	gcr_subuids_refresh(ranges, true);
	CHECK(gcr_subuids_owner(ranges, 100000) == ALICE);
	CHECK(!chmod(subuids, 0666));
	gcr_subuids_refresh(ranges, true);
	CHECK(gcr_subuids_owner(ranges, 100000) == 100000);
	CHECK(!unlink(subuids) && !mkfifo(subuids, 0600));
	gcr_subuids_refresh(ranges, true);
	CHECK(gcr_subuids_owner(ranges, 100000) == 100000);
	CHECK(!unlink(subuids));
	gcr_subuids_refresh(ranges, true);
	CHECK(gcr_subuids_owner(ranges, 100000) == 100000);
	/* The file exists again. */
	write_text(subuids, "alice:100000:65536\n");
	gcr_subuids_refresh(ranges, true);
	CHECK(gcr_subuids_owner(ranges, 100000) == ALICE);
	gcr_subuids_destroy(ranges);
}

/* A charge is released for the owner for whom it was taken, whatever the file says then. */
static void test_changed_ranges(void)
{
	struct timespec moment = {.tv_nsec = 50000000};
	struct gcr_quota_charge charges[3] = {0};
	struct gcr_error error;
	struct gcr_quota *quota;

	write_text(subuids, "4001:100000:65536\n");
	quota = make();
	for (uid_t uid = 100000; uid < 100002; uid++)
		CHECK(!gcr_quota_take(quota, GCR_QUOTA_PLACES, uid, 1, &charges[uid - 100000],
				      &error));
	CHECK(gcr_quota_take(quota, GCR_QUOTA_PLACES, ALICE, 1, &charges[2], &error) == -EDQUOT);
	write_text(subuids, "4002:100000:65536\n");
	while (gcr_quota_owner(quota, 100000) != BOB)
		nanosleep(&moment, NULL);
	CHECK(!gcr_quota_take(quota, GCR_QUOTA_PLACES, 100000, 1, &charges[2], &error));
	gcr_quota_release(&charges[0]);
	gcr_quota_release(&charges[1]);
	CHECK(strstr(shown(quota), "user 4002 ") == shown(quota));
	gcr_quota_release(&charges[2]);
	CHECK(!*shown(quota));
	gcr_quota_destroy(quota);
}

static void *take_and_release(void *data)
{
	struct gcr_quota *quota = data;
	struct gcr_error error;

	for (int i = 0; i < 20000; i++) {
		struct gcr_quota_charge charge = {0};
		uid_t uid = (uid_t)(ALICE + i % 7);

		if (!gcr_quota_take(quota, GCR_QUOTA_VERBS, uid, 1, &charge, &error))
			CHECK(charge.owner == uid);
		gcr_quota_release(&charge);
	}
	return NULL;
}

static void test_threads(void)
{
	struct gcr_quota *quota = make();
	pthread_t threads[8];

	for (int i = 0; i < 8; i++)
		CHECK(!pthread_create(&threads[i], NULL, take_and_release, quota));
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	CHECK(!*shown(quota));
	gcr_quota_destroy(quota);
}

int main(void)
{
	char command[80];

	CHECK(mkdtemp(directory) != NULL);
	snprintf(subuids, sizeof(subuids), "%s/subuid", directory);
	snprintf(users, sizeof(users), "%s/passwd", directory);
	test_limits();
	test_together();
	test_of_verbs();
	test_large();
	test_clamp();
	test_root();
	test_timeout();
	test_store();
	test_descriptors();
	test_descriptors_with_holes();
	test_descriptors_at_once();
	test_ranges();
	test_hostile_ranges();
	test_changed_ranges();
	test_threads();
	snprintf(command, sizeof(command), "rm -r %s", directory);
	CHECK(!system(command));
	return 0;
}
