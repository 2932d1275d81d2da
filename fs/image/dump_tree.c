/* SPDX-License-Identifier: MIT */
/* The processes of a dumped tree: listing, checks, stopping, ending. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/image/dump_private.h"
#include "fs/process/process.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_cgroup.h"
#include "lib/proc_file.h"
#include "lib/proc_source.h"

/* How long to wait for a killed process, which ends only when the kernel has freed its memory. */
#define END_USEC       (60 * GCR_USEC_PER_SEC)
/* How long to wait for a process to stop, which it does when it returns from the kernel. */
#define STOP_USEC      (5 * GCR_USEC_PER_SEC)
#define STOP_LOOK_USEC 1000
/*
 * How long to wait for the other threads of an exiting process, which end when each has seen the
 * exit.
 */
#define EXIT_MSEC      300
/* How far above the tracer of a tree the process is looked for that was started as CRIU. */
#define ANCESTORS_MAX  8

static void close_members(struct gcr_dump_member *members, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (members[i].pidfd >= 0)
			close(members[i].pidfd);
	free(members);
}

void gcr_dump_forget_tree(struct gcr_dump *dump)
{
	close_members(dump->members, dump->count);
	dump->members = NULL;
	dump->count = 0;
}

bool gcr_dump_is_gone(const struct gcr_dump_member *member)
{
	return member->pidfd < 0 || gcr_pidfd_is_gone(member->pidfd);
}

static int open_members(struct gcr_dump_member *members, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		int result = gcr_proc_open(members[i].proc.pid, members[i].proc.start_ticks,
					   &members[i].pidfd);

		/*
		 * A process that has ended by now needs no pidfd; any other could not be ended
		 * without one.
		 */
		if (result < 0 && result != -ESRCH)
			return result;
	}
	return 0;
}

static bool has_parent(const struct gcr_dump_member *members, size_t i)
{
	for (size_t j = 0; j < i; j++)
		if (members[j].proc.pid == members[i].proc.parent)
			return !gcr_dump_is_gone(&members[j]);
	return false;
}

/*
 * Closes the pidfds of processes that are not below their parents any more. Such a process may be
 * another one that was given a pid of the tree within the same clock tick, and would be ended with
 * the tree.
 */
static void drop_strangers(struct gcr_dump_member *members, size_t count)
{
	for (size_t i = 1; i < count; i++) {
		struct gcr_proc_stat stat;

		if (members[i].pidfd < 0 ||
		    (!gcr_proc_stat(members[i].proc.pid, &stat) &&
		     stat.parent == members[i].proc.parent && has_parent(members, i)))
			continue;
		close(members[i].pidfd);
		members[i].pidfd = -1;
	}
}

int gcr_dump_find_tree(struct gcr_dump *dump, struct gcr_error *error)
{
	_cleanup_free_ struct gcr_proc_member *found = NULL;
	struct gcr_dump_member *members;
	size_t count;
	int result = gcr_proc_tree(dump->root, &found, &count, error);

	if (result < 0)
		return result;
	members = calloc(count, sizeof(*members));
	if (!members)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (size_t i = 0; i < count; i++) {
		members[i].proc = found[i];
		members[i].pidfd = -1;
	}
	result = open_members(members, count);
	if (result < 0) {
		close_members(members, count);
		return gcr_error_set(error, -result, "the processes of the tree: %s",
				     strerror(-result));
	}
	drop_strangers(members, count);
	/* After all of this: the number was the root's own until now. */
	if (dump->count && gcr_dump_is_gone(&dump->members[0])) {
		close_members(members, count);
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)dump->root);
	}
	gcr_dump_forget_tree(dump);
	dump->members = members;
	dump->count = count;
	result = gcr_proc_owner(members[0].proc.pid, &dump->uid, &dump->gid);
	if (result == -ESRCH || result == -ENOENT)
		return gcr_error_set(error, ESRCH, "process %d has ended",
				     (int)members[0].proc.pid);
	return result < 0 ? gcr_error_set(error, -result, "the owner of process %d: %s",
					  (int)members[0].proc.pid, strerror(-result))
			  : 0;
}

static bool is_member(const struct gcr_dump *dump, const struct gcr_process *process)
{
	for (size_t i = 0; i < dump->count; i++)
		if (dump->members[i].proc.pid == process->pid &&
		    dump->members[i].proc.start_ticks == process->start_ticks)
			return true;
	return false;
}

static bool has_ended(const struct gcr_dump_member *member)
{
	return member->proc.state == 'Z' || member->proc.state == 'X';
}

/* Has the process opened a GPU since the verb was written? */
static bool is_new_gpu_process(const struct gcr_dump *dump, const struct gcr_dump_member *member)
{
	struct gcr_process *process;
	bool is_new;

	if (has_ended(member) || gcr_dump_gpu_process(dump, member->proc.pid) ||
	    gcr_processes_find(dump->daemon->processes, member->proc.pid, &process) < 0)
		return false;
	is_new = !process->launcher;
	gcr_process_unref(process);
	return is_new;
}

/* Has only the main thread of the process ended, or is it about to end? 1, 0, -errno. */
static int has_lost_main_thread(const struct gcr_dump_member *member)
{
	struct gcr_proc_stat stat;
	int result = gcr_proc_stat(member->proc.pid, &stat);

	if (!result && stat.start_ticks == member->proc.start_ticks &&
	    (stat.is_exiting || stat.state == 'Z' || stat.state == 'X')) {
		result = gcr_proc_is_ending(member->proc.pid);
		result = result < 0 ? result : !result;
	}
	return result == -ESRCH ? 0 : result;
}

/*
 * As has_lost_main_thread(), but looks again after a moment: when the whole process exits, the
 * other threads soon follow the main thread.
 */
static int lacks_main_thread(const struct gcr_dump_member *member)
{
	struct pollfd end = {.fd = member->pidfd, .events = POLLIN};
	int result = has_lost_main_thread(member);

	if (result > 0 && poll(&end, 1, EXIT_MSEC) != 1)
		return has_lost_main_thread(member);
	return result < 0 ? result : 0;
}

/*
 * Refuses a process whose main thread has ended (-EOPNOTSUPP): CRIU takes it for a process that has
 * ended, and its other threads would be lost.
 */
static int check_main_threads(const struct gcr_dump *dump, struct gcr_error *error)
{
	for (size_t i = 0; i < dump->count; i++) {
		const struct gcr_dump_member *member = &dump->members[i];
		int result = lacks_main_thread(member);

		if (result > 0)
			return gcr_error_set(error, EOPNOTSUPP,
					     "the main thread of process %d has ended, and other "
					     "threads go on: CRIU cannot dump that",
					     (int)member->proc.pid);
		if (gcr_proc_is_silent(result))
			return gcr_error_set(error, ETIMEDOUT, "process %d " GCR_PROC_SILENT_WORDS,
					     (int)member->proc.pid);
		if (result < 0)
			return gcr_error_set(error, -result,
					     "the threads of process %d cannot be looked at: %s",
					     (int)member->proc.pid, strerror(-result));
	}
	return 0;
}

int gcr_dump_check_members(const struct gcr_dump *dump, struct gcr_error *error)
{
	const struct gcr_process *process;
	int result = check_main_threads(dump, error);

	if (result < 0)
		return result;

	for (unsigned int i = 0; (process = gcr_task_sibling(dump->task, i)); i++)
		if (!is_member(dump, process))
			return gcr_error_set(error, EBUSY,
					     "process %d is no longer below process %d",
					     (int)process->pid, (int)dump->root);
	for (size_t i = 0; i < dump->count; i++)
		if (is_new_gpu_process(dump, &dump->members[i]))
			return gcr_error_set(error, EBUSY,
					     "process %d of the tree has only just begun to use a "
					     "GPU: write dump again",
					     (int)dump->members[i].proc.pid);
	return 0;
}

/*
 * Waits until the process is stopped: CRIU detaches from a process before the process has acted on
 * its stop signal.
 */
static int await_stop_of(const struct gcr_dump_member *member, int64_t until_usec,
			 struct gcr_error *error)
{
	struct gcr_proc_stat stat;

	while (!gcr_dump_is_gone(member) && !gcr_proc_stat(member->proc.pid, &stat) &&
	       !strchr("tTZX", stat.state)) {
		if (gcr_clock_usec() >= until_usec)
			return gcr_error_set(error, EIO,
					     "criu has not stopped process %d, and says it had",
					     (int)member->proc.pid);
		usleep(STOP_LOOK_USEC);
	}
	return 0;
}

int gcr_dump_await_stop(struct gcr_dump *dump, struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + STOP_USEC;
	size_t count;
	int result;

	/*
	 * Processes that were started before their parents stopped are found by another pass;
	 * stopped processes start no others.
	 */
	do {
		count = dump->count;
		for (size_t i = 0; i < count; i++) {
			result = await_stop_of(&dump->members[i], until_usec, error);
			if (result < 0)
				return result;
		}
		result = gcr_dump_find_tree(dump, error);
	} while (!result && dump->count > count);
	return result;
}

/* Is the process @pid CRIU, or below it? @criu may be a script that starts CRIU. */
static bool is_criu(pid_t pid, pid_t criu)
{
	struct gcr_proc_status status = {.parent = pid};

	for (int i = 0; i < ANCESTORS_MAX && status.parent > 1; i++) {
		if (status.parent == criu)
			return true;
		if (gcr_proc_status(status.parent, &status) < 0)
			return false;
	}
	return false;
}

int gcr_dump_check_held(struct gcr_dump *dump, pid_t criu, struct gcr_error *error)
{
	struct gcr_proc_status root;
	pid_t tracer = criu;

	if (!gcr_proc_status(dump->members[0].proc.pid, &root) && is_criu(root.tracer, criu))
		tracer = root.tracer;
	for (size_t i = 0; i < dump->count; i++) {
		struct gcr_dump_member *member = &dump->members[i];
		int result;

		/* A process that has ended, and for whom nobody has waited, has no threads. */
		if (gcr_dump_is_gone(member))
			continue;
		result = gcr_proc_is_traced_by(member->proc.pid, tracer);
		if (result == -ESRCH)
			continue;
		if (result != 1)
			return gcr_error_set(error, result < 0 ? -result : EIO,
					     "criu has let process %d go before the dump was done",
					     (int)member->proc.pid);
		member->was_held = true;
	}
	return 0;
}

bool gcr_dump_goes_on(const struct gcr_dump *dump)
{
	for (size_t i = 0; i < dump->count; i++) {
		const struct gcr_dump_member *member = &dump->members[i];

		if (member->was_held &&
		    (gcr_proc_living_thread(member->proc.pid) <= 0 || gcr_dump_is_gone(member)))
			return false;
	}
	return true;
}

/* ---- obstacles to a dump ---- */

/*
 * The container engine that made the cgroup, as the cgroup's name tells; a general word if no name
 * is known.
 */
static const char *engine_of(const char *cgroup)
{
	static const struct {
		const char *mark;
		const char *engine;
	} engines[] = {
		{"cri-containerd", "containerd"},
		{"docker", "docker"},
		{"libpod", "podman"},
		{"crio", "cri-o"},
		{"kubepods", "kubernetes"},
		{"lxc", "lxc"},
		{"machine.slice", "systemd-nspawn"},
	};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(engines); i++)
		if (strstr(cgroup, engines[i].mark))
			return engines[i].engine;
	return "its container engine";
}

static int check_namespace(const struct gcr_dump *dump, const char *cgroup, struct gcr_error *error)
{
	pid_t root = dump->members[0].proc.pid;
	struct gcr_proc_status ours, its;

	if (gcr_proc_status(getpid(), &ours) < 0 || gcr_proc_status(root, &its) < 0)
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)root);
	if (its.ns_pids_count <= ours.ns_pids_count || its.ns_pids[its.ns_pids_count - 1] == 1)
		return 0;
	return gcr_error_set(error, EOPNOTSUPP,
			     "process %d is in a container, and not its first process: let %s dump "
			     "the container",
			     (int)root, engine_of(cgroup));
}

/*
 * Refuses a tree that belongs to a service of systemd (-EOPNOTSUPP): systemd would start the
 * service again, and there would be two of it.
 */
static int check_unit(const struct gcr_dump *dump, const char *cgroup, struct gcr_error *error)
{
	static const char suffix[] = ".service";
	const char *unit = strrchr(cgroup, '/');
	size_t length;

	unit = unit ? unit + 1 : cgroup;
	length = strlen(unit);
	if (dump->task->command->supervised || dump->task->command->leave ||
	    length <= sizeof(suffix) - 1 ||
	    strcmp(unit + length - (sizeof(suffix) - 1), suffix) != 0)
		return 0;
	return gcr_error_set(
		error, EOPNOTSUPP,
		"process %d belongs to %s, which systemd may start again when the dump "
		"ends it: stop that, and write `dump supervised`",
		(int)dump->members[0].proc.pid, unit);
}

/* Refuses a tree with the daemon in it (-EBUSY): a stopped daemon could not wait for CRIU. */
static int check_daemon(const struct gcr_dump *dump, struct gcr_error *error)
{
	for (size_t i = 0; i < dump->count; i++)
		if (dump->members[i].proc.pid == getpid())
			return gcr_error_set(error, EBUSY, "the daemon itself is below process %d",
					     (int)dump->root);
	return 0;
}

static int check_writer(const struct gcr_dump *dump, struct gcr_error *error)
{
	pid_t writer = dump->task->command->writer;
	struct gcr_proc_status status;

	if (writer <= 0 || gcr_proc_status(writer, &status) < 0)
		return 0;
	for (size_t i = 0; i < dump->count; i++)
		if (dump->members[i].proc.pid == status.thread_group)
			return gcr_error_set(error, EBUSY,
					     "the writer is process %d of the tree itself",
					     (int)status.thread_group);
	return 0;
}

int gcr_dump_check_tree(struct gcr_dump *dump, struct gcr_error *error)
{
	_cleanup_free_ char *cgroup = NULL;
	int result;

	if (geteuid())
		return gcr_error_set(error, EOPNOTSUPP,
				     "CRIU needs root, and the daemon does not run as root");
	if (gcr_proc_cgroup(dump->members[0].proc.pid, &cgroup) < 0)
		cgroup = strdup("");
	if (!cgroup)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = check_daemon(dump, error);
	if (!result)
		result = check_writer(dump, error);
	if (!result)
		result = gcr_dump_check_owner(dump, error);
	if (!result)
		result = check_namespace(dump, cgroup, error);
	if (!result)
		result = check_unit(dump, cgroup, error);
	for (size_t i = 0; i < dump->count && !result; i++)
		if (dump->members[i].proc.state == 'T' || dump->members[i].proc.state == 't')
			result = gcr_error_set(error, EOPNOTSUPP,
					       "process %d of the tree is stopped: continue it",
					       (int)dump->members[i].proc.pid);
	return result;
}

/* ---- the memory of the tree ---- */

static uint64_t number_of(const char *text, const char *key)
{
	const char *line = strstr(text, key);
	uint64_t number = 0;

	if (line && sscanf(line + strlen(key), " %" SCNu64, &number) != 1)
		number = 0;
	return number;
}

/* Number of images of one process, without those of its threads, of which each has one. */
#define IMAGES_OF_PROCESS 10
/* Number of images of the tree as a whole. */
#define IMAGES_OF_TREE	  12

int gcr_dump_memory(const struct gcr_dump *dump, uint64_t *ret_bytes, uint64_t *ret_images,
		    struct gcr_error *error)
{
	uint64_t images = IMAGES_OF_TREE;
	uint64_t kib = 0;

	for (size_t i = 0; i < dump->count; i++) {
		_cleanup_free_ char *text = NULL;
		int result = gcr_proc_read(dump->members[i].proc.pid, "smaps_rollup", &text, NULL);
		_cleanup_free_ char *status = NULL;

		/* A zombie has no memory. */
		if (result < 0 && has_ended(&dump->members[i]))
			continue;
		if (result < 0)
			return gcr_error_set(error, -result, "the memory of process %d: %s",
					     (int)dump->members[i].proc.pid, strerror(-result));
		/* A page that processes share after a fork is written once for each of them. */
		kib += number_of(text, "\nAnonymous:") + number_of(text, "\nPss_Shmem:") +
		       number_of(text, "\nSwap:");
		if (!gcr_proc_read(dump->members[i].proc.pid, "status", &status, NULL))
			images += number_of(status, "\nThreads:");
		images += IMAGES_OF_PROCESS;
	}
	*ret_bytes = kib * 1024;
	*ret_images = images;
	return 0;
}

/* ---- the end of the tree ---- */

static void send_signal(const struct gcr_dump_member *member, int number)
{
	if (member->pidfd >= 0)
		syscall(SYS_pidfd_send_signal, member->pidfd, number, NULL, 0);
}

void gcr_dump_let_run(struct gcr_dump *dump)
{
	struct gcr_error unused;

	/* Lists the tree again, for new processes; if that fails, the known ones are continued. */
	gcr_dump_find_tree(dump, &unused);
	for (size_t i = dump->count; i-- > 0;)
		send_signal(&dump->members[i], SIGCONT);
}

bool gcr_dump_root_has_ended(const struct gcr_dump *dump)
{
	struct pollfd end = {.fd = dump->members[0].pidfd, .events = POLLIN};

	return end.fd < 0 || poll(&end, 1, 0) == 1;
}

/*
 * Stops the tree. A CRIU that has failed may have continued the processes, and processes that they
 * start then must be ended too. A tree that cannot be listed any more has ended.
 */
static void stop_all(struct gcr_dump *dump)
{
	struct gcr_error unused;
	size_t count;

	if (gcr_dump_root_has_ended(dump))
		return;
	do {
		count = dump->count;
		for (size_t i = 0; i < count; i++)
			send_signal(&dump->members[i], SIGSTOP);
	} while (!gcr_dump_await_stop(dump, &unused) && dump->count > count);
}

int gcr_dump_end_tree(struct gcr_dump *dump, struct gcr_error *error)
{
	int64_t until_usec = gcr_clock_usec() + END_USEC;

	stop_all(dump);
	/* Children first: a next daemon that finds the root alive then finds all that remain. */
	for (size_t i = dump->count; i-- > 0;)
		send_signal(&dump->members[i], SIGKILL);
	for (size_t i = 0; i < dump->count; i++) {
		struct pollfd end = {.fd = dump->members[i].pidfd, .events = POLLIN};
		int64_t left_usec = until_usec - gcr_clock_usec();

		if (end.fd >= 0 &&
		    poll(&end, 1, left_usec > 0 ? (int)(left_usec / GCR_USEC_PER_MSEC) : 0) != 1)
			return gcr_error_set(error, ETIMEDOUT, "process %d does not end",
					     (int)dump->members[i].proc.pid);
	}
	return 0;
}

void gcr_dump_leave_tree(struct gcr_dump *dump, struct gcr_places *places, const char *name)
{
	size_t count = 0;
	int *pidfds = calloc(dump->count, sizeof(*pidfds));

	if (!pidfds)
		return; /* the next daemon looks for them */
	for (size_t i = 0; i < dump->count; i++)
		if (dump->members[i].pidfd >= 0)
			pidfds[count++] = TAKE_FD(dump->members[i].pidfd);
	gcr_place_ends_with(places, name, pidfds, count);
}
