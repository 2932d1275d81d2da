/* SPDX-License-Identifier: MIT */
/*
 * fs/image/place.c (a place: the directory of a dumped process): two dumps, one after the other,
 * with the same name.
 */
#include "fs/image/place.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/base/event.h"
#include "fs/base/loop.h"
#include "fs/base/quota.h"
#include "fs/daemon.h"
#include "fs/process/process.h"
#include "fs/image/place_origin.h"
#include "fs/store/store.h"
#include "lib/cleanup.h"
#include "test/unit/child.h"
#include "test/unit/test.h"

#define NAME "a-place"

static char directory[64];
static struct gcr_daemon served = {.runtime_fd = -1, .only_uid = (uid_t)-1};

static void start(void)
{
	struct gcr_error error;

	strcpy(directory, "/tmp/gcr-place-XXXXXX");
	CHECK(mkdtemp(directory));
	served.options.runtime_directory = directory;
	served.options.store_bytes = 64ull << 20;
	served.options.allow_swap = 1;
	served.runtime_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(served.runtime_fd >= 0);
	CHECK(!gcr_event_log_create(&served.events));
	CHECK(!gcr_quota_create(&served.options.user_limits, "/nowhere", 0, &served.quota));
	CHECK(!gcr_loop_create(&served.loop));
	CHECK(!gcr_processes_create(&served, &served.processes));
	if (gcr_store_create(&served, &served.store, &error) < 0) {
		fprintf(stderr, "%s\n", error.words);
		exit(1);
	}
	CHECK(!gcr_places_create(&served, &served.places));
}

static void stop(void)
{
	gcr_loop_stop(served.loop);
	gcr_places_destroy(served.places);
	gcr_store_destroy(served.store);
	gcr_processes_destroy(served.processes);
	gcr_loop_destroy(served.loop);
	gcr_quota_destroy(served.quota);
	gcr_event_log_unref(served.events);
	close(served.runtime_fd);
	CHECK(!rmdir(directory));
}

static struct gcr_place_origin origin(pid_t pid)
{
	return (struct gcr_place_origin){
		.pid = pid, .start_ticks = 1, .uid = geteuid(), .gid = getegid()};
}

/* Returns 0 or -errno. */
static int begin(pid_t pid, int *ret_fd, struct gcr_place_hold *ret_hold)
{
	char name[GCR_PLACE_NAME_BYTES] = NAME;
	struct gcr_error error;

	*ret_hold = (struct gcr_place_hold){0};
	return gcr_place_begin(served.places, name, false, pid, 1, geteuid(), ret_fd, ret_hold,
			       &error);
}

static int publish(pid_t pid, int fd, struct gcr_place_hold *hold)
{
	struct gcr_place_origin of = origin(pid);
	char *cgroup = NULL;
	struct gcr_error error;
	int result = gcr_place_publish(hold, NAME, fd, &of, &cgroup, &error);

	CHECK(!cgroup);
	return result;
}

/*
 * CRIU could not end the tree of the first dump after its place had been published. The name is
 * free before that dump is over, and another dump takes the name.
 */
static void test_withdrawn(void)
{
	struct gcr_place_hold first, second;
	struct gcr_place *place;
	int first_fd, second_fd;

	CHECK(!begin(100, &first_fd, &first));
	CHECK(begin(200, &second_fd, &second) == -EEXIST);
	CHECK(!publish(100, first_fd, &first));
	CHECK(begin(200, &second_fd, &second) == -EEXIST);
	gcr_place_withdraw(served.places, NAME);
	CHECK(!begin(200, &second_fd, &second));

	gcr_place_abort(&first, NAME);
	gcr_place_release(&first);
	CHECK(!faccessat(second_fd, "snapshot", F_OK, 0));
	CHECK(!publish(200, second_fd, &second));
	gcr_place_release(&second);
	CHECK(!gcr_place_find(served.places, NAME, &place));
	CHECK(place->origin.pid == 200);
	gcr_place_unref(place);
	gcr_place_withdraw(served.places, NAME);
	close(first_fd);
	close(second_fd);
}

/* What the next daemon would do with the tree of the place, by the file in the store. */
static void check_recorded(int fd, bool is_ending, bool is_staying)
{
	struct gcr_place_origin_file file = {0};
	struct gcr_error error;

	CHECK(!gcr_place_origin_read(fd, &file, &error));
	CHECK(file.origin.is_ending == is_ending && file.origin.is_staying == is_staying);
	free(file.made.cgroup);
}

/*
 * A tree that does not end in time: its place can be removed, and thawed, once all of its processes
 * have ended.
 */
static void test_ends_late(void)
{
	struct gcr_place_origin of = origin(100);
	pid_t children[2] = {fork_for_a_minute(), 0};
	struct gcr_place_hold hold;
	struct gcr_place *place;
	char *cgroup = NULL;
	struct gcr_error error;
	int *pidfds = calloc(2, sizeof(*pidfds));
	int fd;

	if (!children[0])
		for (;;)
			pause();
	children[1] = fork_for_a_minute();
	if (!children[1])
		for (;;)
			pause();
	CHECK(pidfds);
	for (int i = 0; i < 2; i++) {
		pidfds[i] = (int)syscall(SYS_pidfd_open, children[i], 0);
		CHECK(pidfds[i] >= 0);
	}
	of.is_ending = true;
	CHECK(!begin(100, &fd, &hold));
	CHECK(!gcr_place_publish(&hold, NAME, fd, &of, &cgroup, &error) && !cgroup);
	gcr_place_release(&hold);
	gcr_place_ends_with(served.places, NAME, pidfds, 2);
	CHECK(!gcr_place_find(served.places, NAME, &place));
	for (int i = 0; i < 2; i++) {
		CHECK(gcr_place_drop(place) == -EBUSY);
		check_recorded(fd, true, false);
		CHECK(!kill(children[i], SIGKILL) && waitpid(children[i], NULL, 0) == children[i]);
	}
	gcr_place_look_at_end(place);
	check_recorded(fd, false, false);
	CHECK(!gcr_place_drop(place));
	gcr_place_unref(place);
	close(fd);
}

/* The removal of a place whose tree lives fails: the next daemon lets the tree live. */
static void test_withdrawn_in_vain(void)
{
	struct gcr_place_origin of = origin(100);
	struct gcr_place_hold hold;
	struct gcr_place *place;
	char *cgroup = NULL;
	struct gcr_error error;
	int fd;

	of.is_ending = true;
	CHECK(!begin(100, &fd, &hold));
	CHECK(!gcr_place_publish(&hold, NAME, fd, &of, &cgroup, &error) && !cgroup);
	gcr_place_release(&hold);
	check_recorded(fd, true, false);
	CHECK(!gcr_place_find(served.places, NAME, &place));
	/* A restore is under way, for example. */
	place->restore = (struct gcr_restore *)place;
	gcr_place_withdraw(served.places, NAME);
	check_recorded(fd, false, true);
	place->restore = NULL;
	CHECK(!gcr_place_drop(place));
	gcr_place_unref(place);
	close(fd);
}

/* A dump that could not be published: its files are removed. */
static void test_not_published(void)
{
	struct gcr_place_hold hold;
	int fd;

	for (pid_t pid = 100; pid < 103; pid++) {
		CHECK(!begin(pid, &fd, &hold));
		CHECK(publish(pid, -1, &hold) < 0);
		gcr_place_abort(&hold, NAME);
		gcr_place_release(&hold);
		close(fd);
	}
}

/* An aborted dump leaves nothing. */
static void test_aborted(void)
{
	struct gcr_place_hold hold;
	struct gcr_place *place;

	for (pid_t pid = 100; pid < 103; pid++) {
		int fd;

		CHECK(!begin(pid, &fd, &hold));
		gcr_place_abort(&hold, NAME);
		gcr_place_release(&hold);
		close(fd);
	}
	CHECK(gcr_place_find(served.places, NAME, &place) == -ENOENT);
}

int main(void)
{
	start();
	test_withdrawn();
	test_ends_late();
	test_withdrawn_in_vain();
	test_not_published();
	test_aborted();
	stop();
	return 0;
}
