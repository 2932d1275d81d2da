/* SPDX-License-Identifier: MIT */
/*
 * lib/confine.c in child processes: the capabilities that remain, and the attempts of an attacker
 * in a confined process.
 */
#include "lib/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config.h"
#include "lib/cleanup.h"
#include "test/unit/child.h"
#include "test/unit/test.h"

#if HAVE_SECCOMP && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HAS_FILTER 1
#else
#define HAS_FILTER 0
#endif

/* Opened in advance, because some roles cannot open files. */
static int status_fd = -1;

static uint64_t field(const char *name, int base)
{
	char text[4096];
	char pattern[64];
	ssize_t got = pread(status_fd, text, sizeof(text) - 1, 0);
	const char *found;

	CHECK(got > 0);
	text[got] = '\0';
	snprintf(pattern, sizeof(pattern), "\n%s:", name);
	found = strstr(text, pattern);
	CHECK(found);
	return strtoull(found + strlen(pattern), NULL, base);
}

/*
 * Confines the process to @role and checks that only the capabilities @kept remain; for an ordinary
 * user, none.
 */
static void check_rights(enum gcr_confine_role role, uint64_t kept)
{
	struct gcr_error error = {0};
	uint64_t bounding;

	status_fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	CHECK(status_fd >= 0);
	bounding = field("CapBnd", 16);
	CHECK(gcr_confine(role, &error) == 0);
	CHECK(field("NoNewPrivs", 10) == 1);
	if (geteuid() == 0)
		CHECK(field("CapBnd", 16) == (bounding & kept));
	CHECK((field("CapPrm", 16) & ~kept) == 0);
	CHECK(field("CapEff", 16) == field("CapPrm", 16));
	CHECK(field("CapInh", 16) == 0);
	CHECK(field("CapAmb", 16) == 0);
	CHECK(field("Seccomp", 10) == (HAS_FILTER ? 2 : 0));
}

/* Reading only, of files that are there: root's own files can be written to without a capability.
 */
static void check_no_writing(void)
{
	const int flags[] = {O_WRONLY,
			     O_RDWR,
			     O_RDONLY | O_CREAT,
			     O_RDONLY | O_TRUNC,
			     O_WRONLY | O_APPEND,
			     O_RDWR | O_TMPFILE};
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	close(fd);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(flags); i++)
		CHECK(open("/dev/null", flags[i] | O_CLOEXEC, 0600) < 0 && errno == EPERM);
	CHECK(creat("/tmp/gpucr-confined", 0600) < 0 && errno == EPERM);
}

static void *thread(void *data)
{
	return data;
}

/* Each of these calls would succeed for root without the filter. */
static void check_refused(void)
{
	char program[] = "/bin/true";
	char *arguments[] = {program, NULL};

	CHECK(execv(program, arguments) < 0 && errno == EPERM);
	CHECK(socket(AF_INET, SOCK_STREAM, 0) < 0 && errno == EPERM);
	CHECK(syscall(SYS_unshare, 0) < 0 && errno == EPERM);
	CHECK(syscall(SYS_keyctl, 0, 0, 0, 0, 0) < 0 && errno == EPERM);
	CHECK(syscall(SYS_setuid, geteuid()) < 0 && errno == EPERM);
	CHECK(syscall(SYS_personality, 0xffffffff) < 0 && errno == EPERM);
}

static void check_no_writev(void)
{
	CHECK(syscall(SYS_process_vm_writev, getpid(), NULL, 0ul, NULL, 0ul, 0ul) < 0 &&
	      errno == EPERM);
}

static void as_worker(void)
{
	pthread_t other;
	int pair[2];

	check_rights(GCR_CONFINE_WORKER, UINT64_C(1) << CAP_DAC_OVERRIDE | UINT64_C(1)
										   << CAP_IPC_LOCK);
	CHECK(pthread_create(&other, NULL, thread, NULL) == 0);
	CHECK(pthread_join(other, NULL) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	if (!HAS_FILTER)
		return;
	check_refused();
	check_no_writev();
	CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0 && errno == EPERM);
}

static void as_control(void)
{
	check_rights(GCR_CONFINE_CONTROL, UINT64_C(1) << CAP_SYS_PTRACE |
						  UINT64_C(1) << CAP_DAC_OVERRIDE |
						  UINT64_C(1) << CAP_KILL);
	if (!HAS_FILTER)
		return;
	check_refused();
	check_no_writev();
}

static void as_halt(void)
{
	check_rights(GCR_CONFINE_HALT, UINT64_C(1) << CAP_SYS_PTRACE | UINT64_C(1) << CAP_KILL);
	if (!HAS_FILTER)
		return;
	check_refused();
	check_no_writing();
	CHECK(socket(AF_UNIX, SOCK_STREAM, 0) < 0 && errno == EPERM);
}

static void as_look(void)
{
	check_rights(GCR_CONFINE_LOOK,
		     UINT64_C(1) << CAP_SYS_PTRACE | UINT64_C(1) << CAP_DAC_READ_SEARCH);
	if (!HAS_FILTER)
		return;
	check_refused();
	check_no_writev();
	CHECK(socket(AF_UNIX, SOCK_STREAM, 0) < 0 && errno == EPERM);
	CHECK(kill(getppid(), 0) < 0 && errno == EPERM);
	CHECK(ptrace(PTRACE_SEIZE, getppid(), NULL, NULL) < 0 && errno == EPERM);
}

/*
 * The receiver parses users' messages, so an attacker may control the process. The role can examine
 * a descriptor and pass it on, but cannot reach another process, write to a file that it has not
 * been given, or change a file's name, owner or mode.
 */
static void as_receive(void)
{
	int pair[2], status;

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	check_rights(GCR_CONFINE_RECEIVE, 0);
	CHECK(write(pair[0], "x", 1) == 1);
	if (!HAS_FILTER)
		return;
	check_refused();
	check_no_writing();
	check_no_writev();
	CHECK(socket(AF_UNIX, SOCK_STREAM, 0) < 0 && errno == EPERM);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 && errno == EPERM);
	CHECK(kill(getppid(), 0) < 0 && errno == EPERM);
	CHECK(ptrace(PTRACE_SEIZE, getppid(), NULL, NULL) < 0 && errno == EPERM);
	CHECK(syscall(SYS_process_vm_readv, getpid(), NULL, 0ul, NULL, 0ul, 0ul) < 0 &&
	      errno == EPERM);
	CHECK(syscall(SYS_pidfd_open, getppid(), 0) < 0 && errno == EPERM);
	CHECK(syscall(SYS_pidfd_getfd, -1, 0, 0) < 0 && errno == EPERM);
	CHECK(fork() < 0 && errno == EPERM);
	CHECK(unlink("/nowhere/at-all") < 0 && errno == EPERM);
	CHECK(rename("/nowhere/one", "/nowhere/other") < 0 && errno == EPERM);
	CHECK(fchmod(status_fd, 0777) < 0 && errno == EPERM);
	CHECK(fchown(status_fd, 0, 0) < 0 && errno == EPERM);
	CHECK(syscall(SYS_mount, NULL, "/nowhere", NULL, 0ul, NULL) < 0 && errno == EPERM);
	/* Without the filter the error would be ECHILD. */
	CHECK(waitpid(-1, &status, WNOHANG) < 0 && errno == EPERM);
}

static void as_drain(void)
{
	check_rights(GCR_CONFINE_DRAIN, 0);
	if (!HAS_FILTER)
		return;
	check_refused();
	check_no_writev();
	CHECK(open("/dev/null", O_RDONLY | O_CLOEXEC) < 0 && errno == EPERM);
}

static void as_empty(void)
{
	int fd = memfd_create("file", MFD_CLOEXEC);
	int pair[2];

	CHECK(fd >= 0 && write(fd, "x", 1) == 1);
	check_rights(GCR_CONFINE_EMPTY, 0);
	CHECK(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_END) == 0);
	if (!HAS_FILTER)
		return;
	check_refused();
	check_no_writev();
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 && errno == EPERM);
	CHECK(kill(getppid(), 0) < 0 && errno == EPERM);
	CHECK(fork() < 0 && errno == EPERM);
	CHECK(unlink("/nowhere/at-all") < 0 && errno == EPERM);
}

/* An ordinary user's role has no capabilities; all else is as for root. */
static void as_user(void)
{
	CHECK(setgid(65534) == 0 && setuid(65534) == 0);
	check_rights(GCR_CONFINE_WORKER, 0);
	if (HAS_FILTER)
		check_refused();
}

int main(void)
{
	check_in_child(as_worker);
	check_in_child(as_control);
	check_in_child(as_halt);
	check_in_child(as_look);
	check_in_child(as_receive);
	check_in_child(as_drain);
	check_in_child(as_empty);
	if (geteuid() == 0)
		check_in_child(as_user);
	return 0;
}
