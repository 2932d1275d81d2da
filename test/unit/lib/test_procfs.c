/* SPDX-License-Identifier: MIT */
/*
 * lib/procfs.c against real processes: children with odd names, and files, mappings, signals and
 * cgroups.
 */
#include "lib/proc_cgroup.h"
#include "lib/proc_namespace.h"
#include "lib/procfs.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_file.h"
#include "lib/proc_source.h"
#include "test/unit/child.h"
#include "test/unit/test.h"

/* A pid that no process has: pid_max is at most 2^22. */
#define NOBODY 0x7ffffff0

#define SOMEBODY 65534 /* the user id of an ordinary user */

static void odd_name(const char *argument)
{
	prctl(PR_SET_NAME, ") R 1 (\n) x");
}

static void test_stat(void)
{
	struct child child = start_child(odd_name, NULL);
	struct gcr_proc_stat stat;
	struct gcr_proc_stat again;

	CHECK(gcr_proc_stat(child.pid, &stat) == 0);
	CHECK(strcmp(stat.comm, ") R 1 (\n) x") == 0);
	CHECK(stat.parent == getpid());
	CHECK(stat.state == 'S' || stat.state == 'R');
	CHECK(stat.start_ticks > 0);
	CHECK(gcr_proc_stat(child.pid, &again) == 0 && again.start_ticks == stat.start_ticks);

	close(child.go);
	while (again.state != 'Z')
		CHECK(gcr_proc_stat(child.pid, &again) == 0);
	CHECK(waitpid(child.pid, NULL, 0) == child.pid);
	CHECK(gcr_proc_stat(child.pid, &again) == -ESRCH);
	CHECK(gcr_proc_stat(0, &again) == -ESRCH && gcr_proc_stat(-1, &again) == -ESRCH);
	CHECK(gcr_proc_stat(NOBODY, &again) == -ESRCH);
}

static void block_signals(const char *argument)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

static void test_status(void)
{
	struct child child = start_child(block_signals, NULL);
	struct gcr_proc_status status;

	CHECK(kill(child.pid, SIGUSR1) == 0);
	CHECK(gcr_proc_status(child.pid, &status) == 0);
	CHECK(status.thread_group == child.pid && strchr("RS", status.state));
	CHECK(status.effective_uid == geteuid());
	CHECK(status.ns_pids_count == 1 && status.ns_pids[0] == child.pid);
	CHECK(status.signals_pending & 1u << (SIGUSR1 - 1));
	CHECK(!(status.signals_pending & 1u << (SIGTERM - 1)));
	CHECK(status.signals_blocked & 1u << (SIGTERM - 1));
	CHECK(status.rss_anon_bytes > 0 && status.rss_anon_bytes % 1024 == 0);
	CHECK(kill(child.pid, SIGSTOP) == 0);
	CHECK(waitpid(child.pid, NULL, WUNTRACED) == child.pid);
	CHECK(gcr_proc_status(child.pid, &status) == 0 && status.state == 'T');
	CHECK(kill(child.pid, SIGCONT) == 0);
	end_child(child);
	CHECK(gcr_proc_status(child.pid, &status) == -ESRCH);
}

static void test_owner(void)
{
	uid_t uid;
	gid_t gid;

	CHECK(gcr_proc_owner(getpid(), &uid, &gid) == 0);
	CHECK(uid == geteuid() && gid == getegid());
	CHECK(gcr_proc_owner(NOBODY, &uid, &gid) == -ESRCH);
}

/* ---- a process with more rights than its user ---- */

#define PLAIN (-1)

/*
 * A process of an ordinary user that is dumpable: with @capability, or PLAIN, and with root to
 * return to if @returns. It says by a byte in @ready that it is as it should be.
 */
static pid_t start_with_rights(int capability, bool returns)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}};
	int ready[2];
	pid_t pid;
	char byte;

	CHECK(pipe(ready) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(prctl(PR_SET_KEEPCAPS, 1) == 0);
		CHECK(setresgid(NOBODY, NOBODY, NOBODY) == 0);
		CHECK(setresuid(NOBODY, NOBODY, returns ? 0 : NOBODY) == 0);
		if (capability != PLAIN)
			data[capability / 32].permitted = 1u << (capability % 32);
		CHECK(syscall(SYS_capset, &header, data) == 0);
		CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
		CHECK(write(ready[1], "", 1) == 1);
		for (;;)
			pause();
	}
	close(ready[1]);
	CHECK(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	return pid;
}

/* The kernel lets no other process of the user look into such a one: it counts as root's. */
static void check_owner_with_rights(int capability, bool returns, uid_t expected)
{
	pid_t pid = start_with_rights(capability, returns);
	uid_t uid;
	gid_t gid;

	CHECK(gcr_proc_owner(pid, &uid, &gid) == 0);
	CHECK(uid == expected && gid == expected);
	CHECK(gcr_proc_has_more_rights(pid) == (expected == 0));
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

/*
 * In a user namespace whose root is SOMEBODY here: a process with capabilities is that of its root,
 * or belongs to that root.
 */
static void check_owner_in_namespace(uid_t uid, uid_t expected)
{
	uid_t inside = uid == SOMEBODY ? 0 : uid, owner;
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct all[2] = {{.permitted = ~0u}, {.permitted = 0}};
	int made[2], mapped[2], ready[2];
	gid_t group;
	pid_t pid;
	char byte;

	CHECK(pipe(made) == 0 && pipe(mapped) == 0 && pipe(ready) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* Not everybody may, and no process with several threads. */
		if (unshare(CLONE_NEWUSER) < 0)
			_exit(0);
		CHECK(write(made[1], "", 1) == 1 && read(mapped[0], &byte, 1) == 1);
		CHECK(prctl(PR_SET_KEEPCAPS, 1) == 0);
		CHECK(setresgid(inside, inside, inside) == 0);
		CHECK(setresuid(inside, inside, inside) == 0);
		CHECK(syscall(SYS_capset, &header, all) == 0);
		CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
		CHECK(write(ready[1], "", 1) == 1);
		for (;;)
			pause();
	}
	close(made[1]);
	close(mapped[0]);
	close(ready[1]);
	if (read(made[0], &byte, 1) != 1) {
		CHECK(waitpid(pid, NULL, 0) == pid);
		goto out;
	}
	write_id_map(pid, "uid_map", SOMEBODY, NOBODY);
	write_id_map(pid, "gid_map", SOMEBODY, NOBODY);
	CHECK(write(mapped[1], "", 1) == 1 && read(ready[0], &byte, 1) == 1);
	CHECK(gcr_proc_owner(pid, &owner, &group) == 0);
	CHECK(owner == expected && group == expected);
	CHECK(gcr_proc_has_more_rights(pid) == (uid != SOMEBODY));
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
out:
	close(made[0]);
	close(mapped[1]);
	close(ready[0]);
}

static void test_more_rights(void)
{
	if (geteuid())
		return;
	check_owner_with_rights(PLAIN, false, NOBODY);
	check_owner_with_rights(CAP_SYS_NICE, false, 0);
	check_owner_with_rights(CAP_WAKE_ALARM, false, NOBODY);
	check_owner_with_rights(PLAIN, true, 0);
	CHECK(!gcr_proc_has_more_rights(getpid()));
	CHECK(gcr_proc_is_secure(getpid()) == 0);
	CHECK(gcr_proc_is_secure(NOBODY) == -ESRCH);
	check_owner_in_namespace(SOMEBODY, SOMEBODY);
	check_owner_in_namespace(NOBODY, SOMEBODY);
}

/* ---- the program of a process ---- */

/* It is the same until execve(2), and then another one. */
static void test_program(void)
{
	struct gcr_proc_program ours, its, now;
	int64_t until_usec = gcr_clock_usec() + 10 * GCR_USEC_PER_SEC;
	int go[2];
	pid_t pid;
	char byte;

	CHECK(gcr_proc_program(getpid(), &ours) == 0 && ours.start_code && ours.start_stack);
	CHECK(gcr_proc_program(NOBODY, &its) == -ESRCH);
	CHECK(pipe(go) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		personality(personality(0xffffffff) & ~ADDR_NO_RANDOMIZE);
		CHECK(read(go[0], &byte, 1) == 1);
		execlp("sleep", "sleep", "1000", NULL);
		_exit(1);
	}
	CHECK(gcr_proc_program(pid, &its) == 0 && gcr_proc_program_is(&ours, &its));
	CHECK(write(go[1], "", 1) == 1);
	do {
		usleep(1000);
		CHECK(gcr_clock_usec() < until_usec);
	} while (gcr_proc_program(pid, &now) < 0 || gcr_proc_program_is(&ours, &now));
	CHECK(kill(pid, SIGKILL) == 0);
	/* A process that has ended and not been waited for has no program. */
	CHECK(waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | WNOWAIT) == 0);
	CHECK(gcr_proc_program(pid, &now) == -ESRCH);
	CHECK(waitpid(pid, NULL, 0) == pid);
	close(go[0]);
	close(go[1]);
}

/* ---- a process whose main thread has ended ---- */

#define TRACED_MOST (GCR_PROC_THREADS_LOOKED_AT + 20)

static struct {
	atomic_bool may_end;
	atomic_int count;
	pid_t tids[TRACED_MOST];
	_Atomic pid_t last; /* the thread that keeps running */
} * threads;		    /* shared with the child */

static void *end_when_told(void *data)
{
	*(pid_t *)data = (pid_t)syscall(SYS_gettid);
	atomic_fetch_add(&threads->count, 1);
	while (!atomic_load(&threads->may_end))
		usleep(1000);
	return NULL;
}

_Noreturn static void *go_on(void *data)
{
	(void)data;
	threads->last = (pid_t)syscall(SYS_gettid);
	for (;;)
		pause();
}

/*
 * Starts a process of an ordinary user with @count threads that end, one thread that keeps running,
 * and a main thread that ends.
 */
static pid_t start_threads(int count)
{
	pid_t pid = fork_for_a_minute();
	pthread_t thread;

	if (pid)
		return pid;
	CHECK(geteuid() || (!setresgid(SOMEBODY, SOMEBODY, SOMEBODY) &&
			    !setresuid(SOMEBODY, SOMEBODY, SOMEBODY)));
	prctl(PR_SET_DUMPABLE, 1);
	for (int i = 0; i < count; i++)
		CHECK(!pthread_create(&thread, NULL, end_when_told, &threads->tids[i]));
	CHECK(!pthread_create(&thread, NULL, go_on, NULL));
	while (atomic_load(&threads->count) < count || !threads->last)
		usleep(1000);
	while (!atomic_load(&threads->may_end))
		usleep(1000);
	syscall(SYS_exit, 0); /* the main thread alone */
	_exit(1);
}

/* A source that counts what it is asked: each question is a round trip to a helper process. */
static int questions;

static int read_counted(pid_t pid, const char *name, char **ret_text, size_t *ret_bytes)
{
	char path[GCR_PROC_PATH_BYTES];
	int r;

	questions++;
	gcr_proc_path(path, pid, name);
	r = gcr_file_read(path, ret_text, ret_bytes);
	return r < 0 ? gcr_proc_error(-r) : 0;
}

static const struct gcr_proc_source counting = {.read = read_counted};

/* However many threads have ended, few questions to the source find the owner, or a living one. */
static void check_questions(pid_t pid)
{
	uid_t uid;
	gid_t gid;

	gcr_proc_set_source(&counting);
	questions = 0;
	CHECK(!gcr_proc_owner(pid, &uid, &gid) && questions == 0);
	CHECK(gcr_proc_is_ending(pid) == 0 && questions <= 1);
	gcr_proc_set_source(NULL);
}

/* A process is traced if each of its threads is, by the same tracer. */
static void test_traced(void)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl("/bin/sleep", "sleep", "60", NULL);
		_exit(1);
	}
	CHECK(gcr_proc_is_traced_by(pid, getpid()) == 0);
	CHECK(!ptrace(PTRACE_SEIZE, pid, NULL, NULL));
	CHECK(gcr_proc_is_traced_by(pid, getpid()) == 1);
	CHECK(gcr_proc_is_traced_by(pid, getppid()) == 0);
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
	CHECK(gcr_proc_is_traced_by(pid, getpid()) == -ESRCH);

	threads = mmap(NULL, sizeof(*threads), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	CHECK(threads != MAP_FAILED);
	pid = start_threads(1);
	while (atomic_load(&threads->count) < 1 || !threads->last)
		usleep(1000);
	CHECK(!ptrace(PTRACE_SEIZE, pid, NULL, NULL));
	CHECK(!ptrace(PTRACE_SEIZE, threads->tids[0], NULL, NULL));
	CHECK(gcr_proc_is_traced_by(pid, getpid()) == 0);
	CHECK(!kill(pid, SIGKILL));
	/* The traced thread has to be waited for, too. */
	while (waitpid(-1, NULL, __WALL) != pid)
		;
	munmap(threads, sizeof(*threads));
}

/* Threads that a tracer keeps from ending come before the thread that keeps running. */
static void test_ended_threads(int count)
{
	struct gcr_proc_program program, ours;
	bool are_roots = count >= GCR_PROC_OWNER_THREADS;
	bool has_program = count < GCR_PROC_THREADS_LOOKED_AT;
	struct gcr_proc_stat stat = {0};
	uid_t uid, expected;
	pid_t pid;
	gid_t gid;

	threads = mmap(NULL, sizeof(*threads), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	CHECK(threads != MAP_FAILED);
	pid = start_threads(count);
	while (atomic_load(&threads->count) < count || !threads->last)
		usleep(1000);
	CHECK(gcr_proc_is_ending(pid) == 0 && gcr_proc_living_thread(pid) == pid);
	for (int i = 0; i < count; i++)
		CHECK(!ptrace(PTRACE_SEIZE, threads->tids[i], NULL, NULL));
	atomic_store(&threads->may_end, true);
	for (int i = 0; i < count; i++)
		do
			CHECK(!gcr_proc_stat(threads->tids[i], &stat));
		while (stat.state != 'Z');
	do
		CHECK(!gcr_proc_stat(pid, &stat));
	while (stat.state != 'Z');

	CHECK(gcr_proc_is_ending(pid) == 0);
	/* Also without its main thread it has the program of this test, from which it was forked.
	 */
	CHECK(!gcr_proc_program(getpid(), &ours));
#ifdef __SANITIZE_THREAD__
	has_program = true;
#endif
	if (has_program)
		CHECK(!gcr_proc_program(pid, &program) && gcr_proc_program_is(&program, &ours));
	else
		CHECK(gcr_proc_program(pid, &program) == -ESRCH);
#ifdef __SANITIZE_THREAD__
	/* The runtime has a thread of its own, which is the first. */
	are_roots = false;
	CHECK(gcr_proc_living_thread(pid) != 0 && gcr_proc_living_thread(pid) != pid);
#else
	CHECK(gcr_proc_living_thread(pid) ==
	      (count >= GCR_PROC_THREADS_LOOKED_AT ? 0 : threads->last));
#endif
	expected = geteuid() ? geteuid() : SOMEBODY;
	if (are_roots)
		expected = 0;
	CHECK(!gcr_proc_owner(pid, &uid, &gid) && uid == expected);
	check_questions(pid);

	CHECK(!kill(pid, SIGKILL));
	for (int i = 0; i < count; i++)
		CHECK(waitpid(threads->tids[i], NULL, __WALL) == threads->tids[i]);
	CHECK(waitpid(pid, NULL, 0) == pid);
	CHECK(!munmap(threads, sizeof(*threads)));
}

static char held_path[] = "/tmp/gcr-procfs-XXXXXX";

static void hold_file(const char *argument)
{
	CHECK(open(held_path, O_RDONLY) >= 0);
}

static int stop_at_first(const char *target, void *data)
{
	CHECK(*target);
	++*(int *)data;
	return 42;
}

static void test_files(void)
{
	struct child child;
	int count = 0;

	close(mkostemp(held_path, O_CLOEXEC));
	child = start_child(hold_file, NULL);
	CHECK(gcr_proc_holds_file(child.pid, held_path) == 1);
	CHECK(gcr_proc_holds_file(getpid(), held_path) == 0);
	CHECK(gcr_proc_each_file(child.pid, stop_at_first, &count) == 42 && count == 1);
	end_child(child);
	unlink(held_path);
	CHECK(gcr_proc_holds_file(child.pid, held_path) == -ESRCH);
	CHECK(gcr_proc_holds_file(NOBODY, held_path) == -ESRCH);
}

static char mapped_path[] = "/tmp/gcr map XXXXXX";

/* Maps one file many times, with holes between that keep the kernel from joining the mappings. */
static void map_often(const char *argument)
{
	int fd = open(mapped_path, O_RDONLY);

	for (int i = 0; i < 20000; i++)
		CHECK(mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE, fd, 0) !=
		      MAP_FAILED);
	close(fd);
}

static int count_mapping(const char *path, void *data)
{
	CHECK(path[0] == '/');
	if (strcmp(path, mapped_path) == 0)
		++*(int *)data;
	return 0;
}

static int count_range(uintptr_t start, uintptr_t end, void *data)
{
	if (end > start)
		++*(int *)data;
	return 0;
}

static int stop_at_range(uintptr_t start, uintptr_t end, void *data)
{
	count_range(start, end, data);
	return 42;
}

static void test_mappings(void)
{
	struct child child;
	int count = 0;
	int fd = mkostemp(mapped_path, O_CLOEXEC);

	CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
	close(fd);
	child = start_child(map_often, NULL);
	CHECK(gcr_proc_each_mapping(child.pid, count_mapping, &count) == 0 && count == 1);
	count = 0;
	CHECK(gcr_proc_each_mapping(child.pid, stop_at_first, &count) == 42 && count == 1);
	count = 0;
	CHECK(gcr_proc_each_range(child.pid, mapped_path, count_range, &count) == 0 && count > 1);
	count = 0;
	CHECK(gcr_proc_each_range(child.pid, mapped_path, stop_at_range, &count) == 42);
	CHECK(count == 1);
	CHECK(gcr_proc_each_range(child.pid, "/no/such/file", stop_at_range, &count) == 0);
	end_child(child);
	unlink(mapped_path);
	CHECK(gcr_proc_each_range(child.pid, mapped_path, count_range, &count) == -ESRCH);
	CHECK(gcr_proc_each_mapping(child.pid, count_mapping, &count) == -ESRCH);
}

static void nothing(const char *argument)
{
}

static void test_open(void)
{
	struct child child = start_child(nothing, NULL);
	struct gcr_proc_stat stat;
	int pidfd = -1;

	CHECK(gcr_proc_stat(child.pid, &stat) == 0);
	CHECK(gcr_proc_open(child.pid, stat.start_ticks + 1, &pidfd) == -ESRCH);
	CHECK(gcr_proc_open(child.pid, stat.start_ticks, &pidfd) == 0);
	CHECK(fcntl(pidfd, F_GETFD) & FD_CLOEXEC);
	close(pidfd);
	end_child(child);
	CHECK(gcr_proc_open(child.pid, stat.start_ticks, &pidfd) == -ESRCH);
}

static void test_environ(void)
{
	struct child child;
	char *value = NULL;
	pid_t pid;
	int go[2];

	/* The environment given at exec is read, not a later one. */
	CHECK(pipe(go) == 0);
	pid = fork();
	if (pid == 0) {
		char name[] = "cat";
		char first[] = "GCR_TEST_LONGER=no";
		char second[] = "GCR_TEST=a=b c";
		char third[] = "GCR_EMPTY=";
		char *arguments[] = {name, NULL};
		char *environment[] = {first, second, third, NULL};

		dup2(go[0], 0);
		close(go[1]);
		execve("/bin/cat", arguments, environment);
		_exit(1);
	}
	close(go[0]);
	while (gcr_proc_environ(pid, "GCR_TEST", &value) == -ENOENT)
		sched_yield(); /* the child has not executed yet */
	CHECK(value && strcmp(value, "a=b c") == 0);
	free(value);
	CHECK(gcr_proc_environ(pid, "GCR_EMPTY", &value) == 0 && *value == '\0');
	free(value);
	CHECK(gcr_proc_environ(pid, "GCR_TES", &value) == -ENOENT);
	close(go[1]);
	CHECK(waitpid(pid, NULL, 0) == pid);
	CHECK(gcr_proc_environ(pid, "GCR_TEST", &value) == -ESRCH);

	child = start_child(nothing, NULL);
	CHECK(gcr_proc_environ(child.pid, "NO_SUCH_NAME", &value) == -ENOENT);
	end_child(child);
}

static void test_memory_room(void)
{
	uint64_t bytes = 0;
	char *what = NULL;
	char *cgroup = NULL;
	int r;

	CHECK(gcr_proc_memory_room(getpid(), &bytes, &what) == 0);
	CHECK(bytes > 0 && what && *what);
	free(what);
	CHECK(gcr_proc_memory_room(NOBODY, &bytes, &what) == -ESRCH);
	r = gcr_proc_cgroup(getpid(), &cgroup);
	CHECK(r == -ENOENT || (r == 0 && cgroup[0] == '/'));
	free(cgroup);
	CHECK(gcr_proc_cgroup_frozen(getpid()) == 0);
	CHECK(gcr_proc_cgroup_frozen(NOBODY) == -ESRCH);
}

static int write_file(const char *directory, const char *file, const char *text)
{
	char path[256];
	ssize_t written;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", directory, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	written = write(fd, text, strlen(text));
	close(fd);
	return written == (ssize_t)strlen(text) ? 0 : -EIO;
}

/*
 * Makes a cgroup below @top, if permitted: limits and freezing as the kernel shows them. The lower
 * cgroup has no limit of its own, so the limit found is its parent's.
 */
static void test_cgroup(const char *top, const char *limit_file, const char *freeze_file,
			const char *freeze, const char *thaw)
{
	struct child child;
	char parent[128];
	char below[160];
	char id[16];
	uint64_t bytes;
	char *what;

	snprintf(parent, sizeof(parent), "%s/gcr-test-%d", top, (int)getpid());
	snprintf(below, sizeof(below), "%s/below", parent);
	if (mkdir(parent, 0755) < 0)
		return;
	child = start_child(nothing, NULL);
	snprintf(id, sizeof(id), "%d", (int)child.pid);
	if (mkdir(below, 0755) == 0 && write_file(below, "cgroup.procs", id) == 0) {
		if (limit_file && write_file(parent, limit_file, "67108864") == 0) {
			CHECK(gcr_proc_memory_room(child.pid, &bytes, &what) == 0);
			CHECK(bytes <= 64 << 20 && bytes > 32 << 20);
			CHECK(strstr(what, "/gcr-test-") && !strstr(what, "below"));
			free(what);
			fprintf(stderr, "%s: limit found\n", top);
		}
		CHECK(gcr_proc_cgroup_frozen(child.pid) == 0);
		if (freeze_file && write_file(parent, freeze_file, freeze) == 0) {
			CHECK(gcr_proc_cgroup_frozen(child.pid) == 1);
			CHECK(write_file(parent, freeze_file, thaw) == 0);
			while (gcr_proc_cgroup_frozen(child.pid))
				sched_yield();
			fprintf(stderr, "%s: freezing found\n", top);
		}
	}
	end_child(child);
	rmdir(below);
	rmdir(parent);
}

static int in_namespace(void *data)
{
	char byte;

	(void)!read(*(int *)data, &byte, 1);
	return 0;
}

static void test_namespaces(void)
{
	static char stack[65536] __attribute__((aligned(16)));
	struct gcr_proc_status status;
	pid_t pid;
	int go[2];

	CHECK(gcr_proc_namespace_reaches(getpid(), getppid()) == 1 || getppid() == 0);
	CHECK(gcr_proc_namespace_reaches(getpid(), NOBODY) == -ESRCH);
	CHECK(pipe2(go, O_CLOEXEC) == 0);
	pid = clone(in_namespace, stack + sizeof(stack), CLONE_NEWPID | SIGCHLD, &go[0]);
	if (pid < 0) {
		fprintf(stderr, "no pid namespace may be made: not tested\n");
		return;
	}
	CHECK(gcr_proc_status(pid, &status) == 0);
	CHECK(status.ns_pids_count == 2);
	CHECK(status.ns_pids[0] == pid && status.ns_pids[1] == 1);
	CHECK(gcr_proc_namespace_reaches(getpid(), pid) == 1);
	CHECK(gcr_proc_namespace_reaches(pid, getpid()) == 0);
	CHECK(gcr_proc_namespace_reaches(pid, pid) == 1);
	CHECK(gcr_proc_namespace_reaches(pid, NOBODY) == -ESRCH);
	CHECK(kill(pid, SIGKILL) == 0);
	CHECK(waitpid(pid, NULL, 0) == pid);
	close(go[0]);
	close(go[1]);
}

int main(void)
{
	test_stat();
	test_status();
	test_owner();
	test_more_rights();
	test_program();
	test_traced();
	test_ended_threads(0);
	test_ended_threads(GCR_PROC_OWNER_THREADS - 2);
	test_ended_threads(20);
	test_ended_threads(TRACED_MOST);
	test_files();
	test_mappings();
	test_open();
	test_environ();
	test_memory_room();
	test_namespaces();
	test_cgroup("/sys/fs/cgroup/memory", "memory.limit_in_bytes", NULL, NULL, NULL);
	test_cgroup("/sys/fs/cgroup/freezer", NULL, "freezer.state", "FROZEN", "THAWED");
	test_cgroup("/sys/fs/cgroup/unified", "memory.max", "cgroup.freeze", "1", "0");
	test_cgroup("/sys/fs/cgroup", "memory.max", "cgroup.freeze", "1", "0");
	return 0;
}
