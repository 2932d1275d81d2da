/* SPDX-License-Identifier: MIT */
/*
 * fs/helper/looker.c with a fake helper that lies, dies or does not answer: this program under the
 * helper's name. test_look.c has the real gpucr-look.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/base/quota.h"
#include "fs/helper/looker.h"
#include "fs/helper/looker_process.h"
#include "fs/helper/looker_silent.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/proc_file.h"
#include "lib/proc_namespace.h"
#include "lib/proc_page.h"
#include "lib/proc_source.h"
#include "lib/procfs.h"
#include "lib/protocol.h"
#include "test/unit/test.h"

#define SECOND_USEC INT64_C(1000000)

#define MANY	    120
#define OWNER	    54321
#define OTHER_OWNER 54400
#define HELPERS_MAX 9
#define ASKING_MAX  4

static char directory[] = "/tmp/gpucr-looker.XXXXXX";

/* ---- a helper that lies ---- */

static struct gcr_message message;

static void reply(uint16_t type, uint32_t sequence, int32_t error, uint64_t bytes, size_t more,
		  int fd)
{
	struct {
		struct gcr_looker_reply head;
		char data[4096];
	} packet = {.head = {.error = error, .bytes = bytes, .devices = ~0u}};

	memset(packet.data, 'x', sizeof(packet.data));
	gcr_message_send(GCR_LOOKER_SOCKET, type, sequence, &packet, sizeof(packet.head) + more,
			 fd >= 0 ? &fd : NULL, fd >= 0);
}

/* Does the process @pid belong to the user with many ids? */
static bool is_owners(pid_t pid)
{
	struct gcr_proc_status status;

	return gcr_proc_status(pid, &status) == 0 && status.real_uid >= OWNER &&
	       status.real_uid < OTHER_OWNER;
}

/* Time that a "late" or "busy" helper takes to answer. */
#define LATE_USEC (100 * INT64_C(1000))

/*
 * Take LATE_USEC if the kind @how demands that, except for the first question, which is about the
 * asking process.
 */
static void take_time(const char *how, pid_t pid)
{
	int64_t until_usec = gcr_clock_usec() + LATE_USEC;

	if (pid != getppid() && !strcmp(how, "late"))
		usleep(LATE_USEC);
	while (pid != getppid() && !strcmp(how, "busy") && gcr_clock_usec() < until_usec)
		;
}

/*
 * Answer truthfully, and return true, to the first question and, where the test asks for that, to
 * questions about other users' processes.
 */
static bool is_honest(const char *how)
{
	static char text[4096];
	struct {
		struct gcr_looker_reply head;
		char data[4096];
	} packet = {};
	const char *place = getenv("GPUCR_TEST_HONEST");
	struct gcr_looker_request request;
	bool is_so;
	pid_t pid;
	char path[64];
	ssize_t got;
	int fd;

	gcr_message_payload(&message, &request, sizeof(request));
	pid = request.pid;
	snprintf(path, sizeof(path), "%s/honest", place ? place : "/nonexistent");
	is_so = access(path, F_OK) == 0;
	snprintf(path, sizeof(path), "%s/other", place ? place : "/nonexistent");
	is_so |= access(path, F_OK) == 0 && !is_owners(pid) && !is_owners(request.other);
	is_so |= !strcmp(how, "late") || !strcmp(how, "busy");
	if (!is_so)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	got = read(fd, text, sizeof(text));
	CHECK(got > 0);
	take_time(how, pid);
	memcpy(packet.data, text, (size_t)got);
	packet.head.bytes = (uint64_t)got;
	return gcr_message_send(GCR_LOOKER_SOCKET, GCR_LOOKER_REPLY, message.header.sequence,
				&packet, sizeof(packet.head) + (size_t)got, NULL, 0) == 0;
}

/*
 * Make this helper unkillable for the looker, like a process that waits in the kernel: after a
 * SIGKILL the helper is a zombie that its parent cannot reap while another process traces it, until
 * the file "immortal" is removed.
 */
static void become_immortal(void)
{
	pid_t traced = getpid();
	int ready[2];
	char path[64];
	char byte;

	snprintf(path, sizeof(path), "%s/immortal", getenv("GPUCR_TEST_HONEST"));
	CHECK(pipe(ready) == 0);
	if (!fork()) {
		close(GCR_LOOKER_SOCKET);
		prctl(PR_SET_PTRACER, 0);
		if (ptrace(PTRACE_SEIZE, traced, NULL, NULL) < 0 || write(ready[1], "", 1) != 1)
			_exit(1);
		for (int i = 0; i < 60000 && access(path, F_OK) == 0; i++)
			usleep(1000);
		_exit(0);
	}
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	CHECK(read(ready[0], &byte, 1) == 1);
}

static int lie(const char *how)
{
	if (!strcmp(how, "immortal"))
		become_immortal();
	while (gcr_message_receive(GCR_LOOKER_SOCKET, -1, -1, &message) == 0) {
		uint32_t sequence = message.header.sequence;

		gcr_message_close_fds(&message);
		if (is_honest(how))
			continue;
		if (!strcmp(how, "end"))
			return 1;
		if (!strcmp(how, "die"))
			raise(SIGKILL);
		if (!strcmp(how, "silence") || !strcmp(how, "immortal"))
			pause();
		if (!strcmp(how, "garbage") && write(GCR_LOOKER_SOCKET, "garbage", 7) != 7)
			return 1;
		if (!strcmp(how, "sequence"))
			reply(GCR_LOOKER_REPLY, sequence + 1, 0, 0, 0, -1);
		if (!strcmp(how, "type"))
			reply(GCR_MESSAGE_RESULT, sequence, 0, 0, 0, -1);
		if (!strcmp(how, "long"))
			reply(GCR_LOOKER_REPLY, sequence, 0, UINT64_MAX, 16, -1);
		if (!strcmp(how, "short"))
			reply(GCR_LOOKER_REPLY, sequence, 0, 16, 4096, -1);
		if (!strcmp(how, "errno"))
			reply(GCR_LOOKER_REPLY, sequence, -5, 0, 0, -1);
		if (!strcmp(how, "large errno"))
			reply(GCR_LOOKER_REPLY, sequence, 1 << 30, 0, 0, -1);
		/* Well-formed answers of another kind than the question's. */
		if (!strcmp(how, "text"))
			reply(GCR_LOOKER_REPLY, sequence, 0, 300, 300, -1);
		if (!strcmp(how, "file"))
			reply(GCR_LOOKER_REPLY, sequence, 0, 0, 0, open("/dev/null", O_RDONLY));
	}
	return 0;
}

/* ---- checks with one looker ---- */

/*
 * Run @check in a child: a looker is started once in a process, and its helpers are this process's
 * children.
 */
static void in_child(void (*check)(const char *how), const char *how)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid) {
		check(how);
		exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	if (status)
		fprintf(stderr, "with a helper of the kind: %s\n", how);
	CHECK(status == 0);
}

static unsigned int count_fds(void)
{
	unsigned int count = 0;

	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

/* Look at this process in all seven ways; @result gets the results. */
static void look(int result[7])
{
	struct gcr_scan_wanted wanted = {.devices[0].path = "/dev/null"};
	unsigned int devices = 0;
	uint64_t start_ticks = 0;
	struct gcr_proc_stat stat;
	char target[64], data[8];
	int namespace_fd = -1;
	size_t bytes = 0;
	char *text = NULL;
	const int fd = 0;
	bool is_same;

	result[0] = gcr_proc_stat(getpid(), &stat);
	result[1] = gcr_proc_link(getpid(), "exe", target, sizeof(target));
	result[2] = gcr_proc_open_namespace(getpid(), "pid", &namespace_fd);
	result[3] = gcr_proc_peek(getpid(), (uintptr_t)directory, data, sizeof(data));
	result[4] = gcr_proc_same_files(getpid(), getpid(), &fd, 1, &is_same);
	result[5] = gcr_looker_devices(getpid(), &wanted, &devices, &start_ticks);
	result[6] = gcr_proc_links(getpid(), &text, &bytes);
	CHECK(devices < 1u << GCR_SCAN_DEVICES_MAX);
	if (namespace_fd >= 0)
		close(namespace_fd);
	free(text);
}

static void flag(const char *name, bool is_set)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	if (!is_set) {
		CHECK(unlink(path) == 0);
		return;
	}
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && close(fd) == 0);
}

static void start_liar(const char *how)
{
	struct gcr_error error = {0};

	CHECK(setenv("GPUCR_TEST_LIE", how, 1) == 0);
	CHECK(setenv("GPUCR_TEST_HONEST", directory, 1) == 0);
	flag("honest", true);
	CHECK(gcr_looker_start(directory, true, &error) == 0);
	flag("honest", false);
}

/* Stop the looker: no helper, child or descriptor is left, whatever the helpers did. */
static void stop_liar(unsigned int fds)
{
	struct gcr_looker_figures figures;
	int64_t until_usec = gcr_clock_usec() + 10 * GCR_USEC_PER_SEC;

	/* A killed helper may take a moment to disappear. */
	do
		gcr_looker_figures(&figures);
	while (figures.abandoned && gcr_clock_usec() < until_usec && !usleep(1000));
	CHECK(figures.abandoned == 0);
	gcr_looker_stop();
	CHECK(!gcr_proc_source());
	CHECK(count_fds() == fds);
	/* The last killed helpers may take a moment, too. */
	while (waitpid(-1, NULL, WNOHANG) >= 0 && gcr_clock_usec() < until_usec)
		usleep(1000);
	CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
}

/* A helper that does not behave as one of ours: each look fails with EIO. */
static void with_broken(const char *how)
{
	struct gcr_error error = {0};
	unsigned int fds = count_fds();
	int result[7];

	setenv("GPUCR_TEST_LIE", how, 1);
	CHECK(gcr_looker_start(directory, true, &error) == -EIO);
	CHECK(strstr(error.words, "gpucr-look cannot be started, or does not answer"));
	start_liar(how);
	look(result);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(result); i++)
		CHECK(result[i] == -EIO);
	stop_liar(fds);
}

/* Well-formed answers to other questions are refused. */
static void with_texts(const char *how)
{
	unsigned int fds = count_fds();
	int result[7];

	start_liar(how);
	look(result);
	CHECK(result[0] < 0);
	for (size_t i = 2; i < 6; i++)
		CHECK(result[i] == -EIO);
	stop_liar(fds);
}

/* A well-formed answer with a descriptor that does not fit the question is refused. */
static void with_file(const char *how)
{
	unsigned int fds = count_fds();
	int result[7];

	start_liar(how);
	look(result);
	CHECK(result[0] < 0);
	CHECK(result[2] == -EIO);
	stop_liar(fds);
}

/* A silent helper is killed at the deadline; looks at the process are then refused for a while. */
static void with_silence(const char *how)
{
	int64_t began_usec = gcr_clock_usec();
	unsigned int fds = count_fds();
	struct gcr_looker_figures figures;
	int result[7];

	start_liar(how);
	look(result);
	CHECK(result[0] == -ETIMEDOUT);
	for (size_t i = 1; i < GCR_ARRAY_SIZE(result); i++)
		CHECK(result[i] == -EBUSY || result[i] == -ETIMEDOUT);
	CHECK(gcr_looker_is_silent(getpid()));
	gcr_looker_figures(&figures);
	CHECK(figures.silent >= 1 && figures.kills >= 1);
	CHECK(gcr_clock_usec() - began_usec < 20 * SECOND_USEC);
	gcr_looker_stop();
	CHECK(count_fds() == fds);
}

/* ---- many looks at a time ---- */

#define SLOW_USEC (500 * INT64_C(1000))

/* All ids from OWNER on belong to one user. */
static uid_t owner_of(uid_t uid, void *data)
{
	return data || (uid >= OWNER && uid < OWNER + 50) ? OWNER : uid;
}

/* Start idle processes with ids from @uid on; (uid_t)-1: with the caller's id. */
static void start_children(pid_t *children, size_t count, uid_t uid)
{
	for (size_t i = 0; i < count; i++) {
		int ready[2];
		char byte;

		CHECK(pipe(ready) == 0);
		children[i] = fork();
		CHECK(children[i] >= 0);
		if (!children[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (uid != (uid_t)-1 && setuid(uid + (uid_t)(i % 7)) < 0)
				_exit(1);
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			CHECK(write(ready[1], "", 1) == 1);
			for (;;)
				pause();
		}
		CHECK(read(ready[0], &byte, 1) == 1);
		close(ready[0]);
		close(ready[1]);
	}
}

static void end_children(const pid_t *children, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		kill(children[i], SIGKILL);
		waitpid(children[i], NULL, 0);
	}
}

static void *look_at_memory(void *data)
{
	char byte;
	int r = gcr_proc_peek(*(pid_t *)data, (uintptr_t)directory, &byte, 1);

	CHECK(r == -EBUSY || r == -ETIMEDOUT);
	return NULL;
}

/* How many looks have had the time that a slow look has. */
static atomic_uint slow_looks;

static void *look_at_stat(void *data)
{
	struct gcr_proc_stat stat;
	int r = gcr_proc_stat(*(pid_t *)data, &stat);

	CHECK(r == -EBUSY || r == -ETIMEDOUT);
	atomic_fetch_add(&slow_looks, r == -ETIMEDOUT);
	return NULL;
}

static void start_looks(pthread_t *threads, pid_t *children, size_t count, void *(*run)(void *))
{
	for (size_t i = 0; i < count; i++)
		CHECK(pthread_create(&threads[i], NULL, run, &children[i]) == 0);
}

static void await_looks(const pthread_t *threads, size_t count)
{
	for (size_t i = 0; i < count; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

/* All looks wait for a helper before the first of them is known to keep its helper for ever. */
static void with_immortal(const char *how)
{
	static pthread_t threads[MANY];
	static pid_t children[MANY];
	struct gcr_looker_figures figures;

	start_children(children, MANY, (uid_t)-1);
	flag("immortal", true);
	start_liar(how);
	gcr_looker_set_owners(owner_of, children);
	for (int round = 0; round < 2; round++) {
		start_looks(threads, children, MANY, look_at_memory);
		await_looks(threads, MANY);
		gcr_looker_figures(&figures);
		CHECK(figures.abandoned >= 1 && figures.abandoned <= ASKING_MAX);
		CHECK(figures.helpers <= HELPERS_MAX);
	}
	flag("immortal", false);
	for (int i = 0; figures.abandoned && i < 10000; i++) {
		usleep(1000);
		gcr_looker_figures(&figures);
	}
	CHECK(!figures.abandoned);
	gcr_looker_stop();
	end_children(children, MANY);
}

/*
 * Silent looks at processes of a user with many ids, and looks at other users' processes, which do
 * not wait for these.
 */
static void with_one_owner(const char *how)
{
	enum { COUNT = 40 };
	static pthread_t threads[COUNT];
	static pid_t children[COUNT];
	pid_t other;
	struct gcr_looker_figures figures;
	struct gcr_proc_stat stat;
	int64_t began_usec;

	start_children(children, COUNT, OWNER);
	start_children(&other, 1, OTHER_OWNER);
	start_liar(how);
	gcr_looker_set_owners(owner_of, NULL);
	flag("other", true);
	start_looks(threads, children, COUNT, look_at_stat);
	/* While the first looks at the user's processes are pending, and after that. */
	for (int i = 0; i < 20; i++) {
		began_usec = gcr_clock_usec();
		CHECK(gcr_proc_stat(getpid(), &stat) == 0);
		CHECK(gcr_proc_stat(other, &stat) == 0);
		CHECK(gcr_clock_usec() - began_usec < SLOW_USEC);
		gcr_looker_figures(&figures);
		CHECK(figures.helpers <= HELPERS_MAX);
		usleep(20000);
	}
	await_looks(threads, COUNT);
	gcr_looker_figures(&figures);
	CHECK(figures.silent >= 1);
	/*
	 * Looks at other users' processes get their full time and are not refused, however many of
	 * this user's are silent.
	 */
	CHECK(gcr_proc_stat(other, &stat) == 0);
	flag("other", false);
	gcr_looker_stop();
	end_children(children, COUNT);
	end_children(&other, 1);
}

static void *look_at_stat_well(void *data)
{
	struct gcr_proc_stat stat;

	CHECK(gcr_proc_stat(*(pid_t *)data, &stat) == 0);
	return NULL;
}

/*
 * Many looks at processes of one owner at the same time, on a loaded machine. No look is refused:
 * with running ("busy") helpers of any owner, with waiting ("late") ones of a trusted owner.
 */
static void with_much_to_do(const char *how)
{
	enum { COUNT = 12 };
	static pthread_t threads[COUNT];
	static pid_t children[COUNT];
	struct gcr_looker_figures figures;

	start_children(children, COUNT, !strcmp(how, "busy") && geteuid() == 0 ? OWNER : (uid_t)-1);
	start_liar(how);
	gcr_looker_set_owners(owner_of, NULL);
	start_looks(threads, children, COUNT, look_at_stat_well);
	await_looks(threads, COUNT);
	gcr_looker_figures(&figures);
	CHECK(figures.silent == 0 && figures.kills == 0);
	gcr_looker_stop();
	end_children(children, COUNT);
}

static void *look_at_stat_somehow(void *data)
{
	struct gcr_proc_stat stat;

	gcr_proc_stat(*(pid_t *)data, &stat);
	return NULL;
}

static void *look_in_a_hurry(void *data)
{
	int64_t began_usec = gcr_clock_usec();
	struct gcr_proc_stat stat;
	int r;

	gcr_looker_hurry();
	r = gcr_proc_stat(*(pid_t *)data, &stat);
	CHECK(r == 0 || gcr_proc_is_silent(r));
	CHECK(gcr_clock_usec() - began_usec < SECOND_USEC * TEST_SLOW);
	return NULL;
}

/* The thread that hurries does not wait for other looks at processes of the same owner. */
static void with_hurry(const char *how)
{
	enum { COUNT = 80 };
	static pthread_t threads[COUNT], hurried;
	static pid_t children[COUNT];

	start_children(children, COUNT, OWNER);
	start_liar(how);
	gcr_looker_set_owners(owner_of, NULL);
	start_looks(threads, children, COUNT, look_at_stat_somehow);
	usleep(2 * LATE_USEC);
	for (int i = 0; i < 3; i++) {
		start_looks(&hurried, &children[i], 1, look_in_a_hurry);
		await_looks(&hurried, 1);
	}
	await_looks(threads, COUNT);
	gcr_looker_stop();
	end_children(children, COUNT);
}

/* All users are the daemon's own here, which is trusted as root is. */
static uid_t trusted_owner(uid_t uid, void *data)
{
	return geteuid();
}

/*
 * Any number of silent processes of a trusted owner's keeps no look at his other processes, and
 * does not take all helpers.
 */
static void with_trusted_owner(const char *how)
{
	enum { SILENT = 20, COUNT = 30 };
	static pthread_t threads[COUNT];
	static pid_t children[COUNT];
	struct gcr_looker_figures figures;
	struct gcr_proc_stat stat;
	int64_t began_usec;

	start_children(children, COUNT, OWNER);
	start_liar(how);
	gcr_looker_set_owners(trusted_owner, NULL);
	flag("other", true);
	for (int i = 0; i < SILENT; i++)
		look_at_stat(&children[i]);
	gcr_looker_figures(&figures);
	CHECK(figures.silent == SILENT);
	CHECK(gcr_proc_stat(getpid(), &stat) == 0);
	/* Nor do further ones, all at the same time, not all of which are waited for. */
	atomic_store(&slow_looks, 0);
	start_looks(threads, children + SILENT, COUNT - SILENT, look_at_stat);
	for (int i = 0; i < 10; i++) {
		began_usec = gcr_clock_usec();
		CHECK(gcr_proc_stat(getpid(), &stat) == 0);
		CHECK(gcr_clock_usec() - began_usec < SLOW_USEC);
	}
	await_looks(threads, COUNT - SILENT);
	CHECK(atomic_load(&slow_looks) < COUNT - SILENT);
	flag("other", false);
	gcr_looker_stop();
	end_children(children, COUNT);
}

/*
 * A comparison that is not answered is the first process's affair, and keeps no other looks at
 * either of the two.
 */
static void with_compared(const char *how)
{
	struct gcr_looker_figures figures;
	struct gcr_proc_stat stat;
	const int fd = 0;
	bool is_same;
	pid_t child;

	start_children(&child, 1, OWNER);
	start_liar(how);
	flag("other", true);
	CHECK(gcr_proc_same_files(getpid(), child, &fd, 1, &is_same) == -ETIMEDOUT);
	gcr_looker_figures(&figures);
	CHECK(figures.silent == 1);
	CHECK(!gcr_looker_is_silent(child) && !gcr_looker_is_silent(getpid()));
	CHECK(gcr_proc_stat(getpid(), &stat) == 0);
	/* The pause is for comparisons of this process, with any other. */
	CHECK(gcr_proc_same_files(getpid(), getppid(), &fd, 1, &is_same) == -EBUSY);
	flag("other", false);
	gcr_looker_stop();
	end_children(&child, 1);
}

/* Root of another pid or user namespace is not this machine's root. */
static void with_other_roots(const char *how)
{
	pid_t child, unused = fork();
	uid_t owner;

	CHECK(unused >= 0);
	if (!unused)
		_exit(0);
	CHECK(waitpid(unused, NULL, 0) == unused);
	CHECK(gcr_looker_owner(unused) == GCR_QUOTA_OTHER_ROOT);
	CHECK(gcr_looker_owner(getpid()) == 0);
	if (unshare(CLONE_NEWPID) < 0)
		return;
	start_children(&child, 1, (uid_t)-1);
	owner = gcr_looker_owner(child);
	end_children(&child, 1);
	CHECK(owner == GCR_QUOTA_OTHER_ROOT);
	/* LeakSanitizer would start a task, and this process's new pid namespace has ended. */
	_exit(0);
}

int main(int argc, char **argv)
{
	static const char *const broken[] = {"end",  "die",   "garbage", "sequence",   "type",
					     "long", "short", "errno",	 "large errno"};
	const char *name = strrchr(argv[0], '/');
	char path[64], self[4096] = "";

	if (!strcmp(name ? name + 1 : argv[0], GCR_LOOKER_PROGRAM))
		return lie(getenv("GPUCR_TEST_LIE"));
	CHECK(mkdtemp(directory));
	CHECK(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
	snprintf(path, sizeof(path), "%s/%s", directory, GCR_LOOKER_PROGRAM);
	CHECK(symlink(self, path) == 0);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(broken); i++)
		in_child(with_broken, broken[i]);
	in_child(with_texts, "text");
	in_child(with_file, "file");
	in_child(with_silence, "silence");
	in_child(with_immortal, "immortal");
	in_child(with_much_to_do, "late");
	in_child(with_much_to_do, "busy");
	/* These tests need several users. */
	if (geteuid() == 0) {
		in_child(with_one_owner, "silence");
		in_child(with_hurry, "busy");
		in_child(with_trusted_owner, "silence");
		in_child(with_compared, "silence");
		in_child(with_other_roots, "none");
	}
	CHECK(unlink(path) == 0 && rmdir(directory) == 0);
	return 0;
}
