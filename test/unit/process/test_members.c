/* SPDX-License-Identifier: MIT */
/*
 * fs/process/process_table.c: which listed processes are below another one, in a long chain; and
 * for whom the lines of a process count.
 */
#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "fs/daemon.h"
#include "fs/process/process_private.h"
#include "lib/cleanup.h"
#include "lib/proc_lineage.h"
#include "lib/procfs.h"
#include "test/unit/chain.h"
#include "test/unit/child.h"
#include "test/unit/test.h"

#define LISTED	  50 /* at the bottom of the chain */
#define SOME_USER 1001

static struct gcr_daemon served;
static struct gcr_processes table;
static struct gcr_process *make_process(pid_t pid, bool is_launcher)
{
	struct gcr_process *process = NULL;

	CHECK(gcr_process_create(&table, pid, 0, is_launcher ? NULL : &served.vendors[0],
				 &process) == 0);
	return process;
}

static void list_process(pid_t pid)
{
	struct gcr_process *process = make_process(pid, false);
	struct gcr_process **bucket = &table.by_pid[(uint32_t)pid % GCR_PROCESS_BUCKETS];

	process->next_pid = *bucket;
	*bucket = process;
	table.count++;
}

static void unlist_all(void)
{
	for (size_t i = 0; i < GCR_PROCESS_BUCKETS; i++) {
		struct gcr_process *process = table.by_pid[i];

		while (process) {
			struct gcr_process *next = process->next_pid;

			gcr_process_unref(process);
			process = next;
		}
		table.by_pid[i] = NULL;
	}
	table.count = 0;
}

/* Checks that just the listed processes from chain[@first] on are below chain[@ancestor]. */
static void check_members(int ancestor, int first, int end)
{
	struct gcr_process *launcher = make_process(chain[ancestor], true);
	struct gcr_process **members = NULL;
	size_t count = 0;

	CHECK(gcr_process_members(launcher, &members, &count) == 0);
	CHECK(count == (size_t)(end - first));
	for (int i = first; i < end; i++) {
		bool is_found = false;

		for (size_t j = 0; j < count && !is_found; j++)
			is_found = members[j]->pid == chain[i];
		CHECK(is_found);
	}
	for (size_t j = 1; j < count; j++)
		CHECK(members[j - 1]->pid < members[j]->pid);
	CHECK(gcr_process_has_members(launcher) == (count > 0));
	gcr_processes_list_free(members, count);
	gcr_process_unref(launcher);
}

static void become_undumpable(const char *argument)
{
	(void)argument;
	CHECK(setresuid(SOME_USER, SOME_USER, SOME_USER) == 0 && prctl(PR_SET_DUMPABLE, 0) == 0);
}

/* The lines of a process that does not let itself be looked at count for its user, not for root. */
static void test_event_owner(void)
{
	struct gcr_process *process;
	struct child child;
	gid_t gid;
	uid_t uid;

	if (geteuid())
		return;
	child = start_child(become_undumpable, NULL);
	CHECK(gcr_proc_owner(child.pid, &uid, &gid) == 0 && uid == 0);
	process = make_process(child.pid, false);
	CHECK(gcr_process_event_owner(process) == SOME_USER);
	gcr_process_unref(process);
	end_child(child);
}

int main(void)
{
	const int first = CHAIN - LISTED;

	served.processes = &table;
	table.daemon = &served;
	pthread_mutex_init(&table.lock, NULL);
	make_chain();
	check_members(0, 0, 0);
	for (int i = first; i < CHAIN; i++)
		list_process(chain[i]);
	check_members(0, 0, 0); /* too far above them */
	check_members(first - 1, first, CHAIN);
	check_members(first - GCR_PROC_GENERATIONS_MAX, first, first + 1);
	check_members(first, first + 1, CHAIN);
	check_members(CHAIN - 1, 0, 0);
	unlist_all();
	end_chain();
	test_event_owner();
	return 0;
}
