/* SPDX-License-Identifier: MIT */
/* fs/verb/task.c: the vote of two tasks, of which one extends the deadline while the other waits.
 */
#include "fs/verb/task.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "fs/daemon.h"
#include "fs/process/process.h"
#include "fs/verb/operation_data.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "test/unit/test.h"

#define TASKS 2
#define BYTES (UINT64_C(5) << 30) /* with them the deadline is some seconds later */
#define BEGUN_USEC \
	(59 * GCR_USEC_PER_SEC) /* so long ago: a second is left of the default deadline */

static struct gcr_daemon served;
static struct gcr_process processes[TASKS];

static struct gcr_operation *make(void)
{
	struct gcr_operation *operation =
		calloc(1, sizeof(*operation) + TASKS * sizeof(struct gcr_task));

	CHECK(operation);
	pthread_mutex_init(&operation->job.lock, NULL);
	pthread_cond_init(&operation->job.changed, NULL);
	operation->job.daemon = &served;
	operation->job.count = TASKS;
	for (int i = 0; i < TASKS; i++) {
		pthread_mutex_init(&processes[i].lock, NULL);
		processes[i].state = GCR_STATE_DUMPING;
		processes[i].pidfd = -1;
		operation->tasks[i] = (struct gcr_task){
			.operation = operation,
			.process = &processes[i],
			.command = &operation->job.command,
			.started_usec = gcr_clock_usec() - BEGUN_USEC,
		};
	}
	operation->job.deadline_usec = gcr_operation_deadline(operation, 0);
	return operation;
}

static void *vote(void *task)
{
	return (void *)(intptr_t)gcr_task_commit(task);
}

static void await_vote(struct gcr_operation *operation)
{
	bool is_there = false;

	while (!is_there) {
		usleep(1000);
		GCR_LOCK_SCOPE(&operation->job.lock);
		is_there = operation->votes;
	}
}

/* The one that waits goes by the deadline that there is, not by the one that there was. */
static void test_deadline_is_extended(void)
{
	_cleanup_free_ struct gcr_operation *operation = make();
	int64_t before_usec = operation->job.deadline_usec;
	pthread_t thread;
	void *result;

	CHECK(!pthread_create(&thread, NULL, vote, &operation->tasks[0]));
	await_vote(operation);
	gcr_task_set_bytes(&operation->tasks[1], BYTES);
	CHECK(operation->job.deadline_usec > before_usec + GCR_USEC_PER_SEC);
	while (gcr_clock_usec() < before_usec + GCR_USEC_PER_SEC / 2)
		usleep(10000);
	CHECK(gcr_task_commit(&operation->tasks[1]) == 0);
	CHECK(!pthread_join(thread, &result) && !result);
	CHECK(!operation->job.stop);
}

/* Without that, its wait ends with the deadline, and so does the verb. */
static void test_deadline(void)
{
	_cleanup_free_ struct gcr_operation *operation = make();

	CHECK(gcr_task_commit(&operation->tasks[0]) == -ECANCELED);
	CHECK(operation->job.stop == ETIMEDOUT);
	CHECK(gcr_task_commit(&operation->tasks[1]) == -ECANCELED);
}

int main(void)
{
	test_deadline_is_extended();
	test_deadline();
	return 0;
}
