/* SPDX-License-Identifier: MIT */
/*
 * gpucr-pidns: runs `criu restore --restore-detached` in a new pid namespace, where all pids are
 * free, and leaves an init there that reaps processes. Three processes:
 *  - the first, which was started: writes the init's pid (int32_t) to a descriptor, waits for
 *    CRIU's end and ends in the same way, so that its starter can treat it as CRIU.
 *  - the init: has its own /proc, in a mount namespace that receives all mounts from outside,
 *    except for those of DEVICES, and propagates none. Until CRIU has succeeded, the init ends
 *    when the first process ends, and the namespace with it; afterwards the init ends when no
 *    other process is left.
 *  - CRIU, with the given descriptors and arguments.
 *
 * usage: gpucr-pidns DESCRIPTOR DEVICES PROGRAM [ARGUMENT...]
 *
 * DEVICES: "MAJOR:MINOR" of each as in /proc/self/mountinfo, separated by commas; may be empty.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdbool.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DESCRIPTOR_MIN 3
#define FAILED	       125

/* Number of the highest pids that CRIU and its own children get: a tree rarely has such pids. */
#define PIDS_FOR_CRIU 200

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "gpucr-pidns: %s: %s\n", what, strerror(errno));
	_exit(FAILED);
}

/* Replaces mountinfo's octal escapes of blanks, tabs, newlines and backslashes, in place. */
static void unescape(char *text)
{
	char *out = text;

	while (*text) {
		unsigned int byte;

		if (*text == '\\' && sscanf(text, "\\%3o", &byte) == 1) {
			*out++ = (char)byte;
			text += 4;
		} else {
			*out++ = *text++;
		}
	}
	*out = '\0';
}

/* Is @device in @devices, a list of "MAJOR:MINOR" separated by commas? */
static bool is_among(const char *device, const char *devices)
{
	size_t length = strlen(device);

	for (; *devices; devices += strcspn(devices, ","), devices += *devices == ',')
		if (strcspn(devices, ",") == length && !strncmp(devices, device, length))
			return true;
	return false;
}

/*
 * Unmounts the mount at @point. Users may own a directory above @point and replace it at any time:
 * so the mount is opened first, and unmounted only if it is of @device. False: there is no such
 * mount.
 */
static bool detach(const char *point, const char *device)
{
	/* paths in mountinfo contain no symbolic links */
	const struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
	int fd = (int)syscall(SYS_openat2, AT_FDCWD, point, &how, sizeof(how));
	char text[32], path[32];
	struct statx mount;
	bool is_done = false;

	if (fd < 0)
		return false;
	/* The filesystem is not asked, since it may not answer. */
	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &mount) == 0) {
		snprintf(text, sizeof(text), "%u:%u", mount.stx_dev_major, mount.stx_dev_minor);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		is_done = !strcmp(text, device) && umount2(path, MNT_DETACH) == 0;
	}
	close(fd);
	return is_done;
}

/* Unmounts one mount of one of @devices. 1: done; 0: there is none. */
static int unmount_one(const char *devices)
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	char *line = NULL;
	size_t bytes = 0;
	int done = 0;

	/* id parent major:minor root point options [optional...] - type source super */
	while (file && !done && getline(&line, &bytes, file) > 0) {
		char device[32];
		char *point;

		if (sscanf(line, "%*s %*s %31s", device) != 1 || !is_among(device, devices) ||
		    sscanf(line, "%*s %*s %*s %*s %ms", &point) != 1)
			continue;
		unescape(point);
		done = detach(point, device);
		free(point);
	}
	free(line);
	if (file)
		fclose(file);
	return done;
}

static void make_proc(const char *devices)
{
	if (unshare(CLONE_NEWNS) < 0)
		fail("no mount namespace can be made");
	/* A mount that is unmounted outside must not stay busy here. */
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
		fail("mounts cannot be kept inside");
	/*
	 * Private mounts stay mounted here when they are unmounted outside, and would keep the
	 * daemon's filesystem and store alive. CRIU has the descriptors that it needs.
	 */
	while (unmount_one(devices))
		;
	if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
		fail("/proc cannot be mounted");
}

/*
 * Makes the next pids high ones (PIDS_FOR_CRIU). If this fails, CRIU starts at the lowest pids,
 * which are more often those of a tree.
 */
static void skip_pids(void)
{
	FILE *file = fopen("/proc/sys/kernel/pid_max", "re");
	int pid_max = 0;

	if (!file)
		return;
	if (fscanf(file, "%d", &pid_max) != 1)
		pid_max = 0;
	fclose(file);
	if (pid_max <= 2 * PIDS_FOR_CRIU)
		return;
	file = fopen("/proc/sys/kernel/ns_last_pid", "we");
	if (!file)
		return;
	fprintf(file, "%d", pid_max - PIDS_FOR_CRIU);
	fclose(file);
}

static void let_go_of_files(void)
{
	int null = open("/dev/null", O_RDWR);

	for (int fd = 0; null >= 0 && fd < DESCRIPTOR_MIN; fd++)
		dup2(null, fd);
	close_range(null < 0 ? 0 : DESCRIPTOR_MIN, ~0u, 0);
	(void)!chdir("/");
}

/*
 * Waits for the end of @pid, and reaps all other children until then. Returns the status of @pid.
 */
static int reap_until(pid_t pid)
{
	for (;;) {
		int status;
		pid_t ended = waitpid(-1, &status, 0);

		if (ended == pid)
			return status;
		if (ended < 0 && errno == ECHILD)
			return -1;
	}
}

static _Noreturn void be_init(char **arguments, const char *devices, int status_fd)
{
	int status;
	pid_t criu;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	make_proc(devices);
	skip_pids();
	criu = fork();
	if (criu < 0)
		fail("no process can be made");
	if (criu == 0) {
		close(status_fd);
		/*
		 * a session that has a number in this namespace: that of a restored tree may be
		 * CRIU's
		 */
		setsid();
		execv(arguments[0], arguments);
		fail(arguments[0]);
	}
	status = reap_until(criu);
	if (status == 0)
		prctl(PR_SET_PDEATHSIG, 0);
	if (write(status_fd, &status, sizeof(status)) != sizeof(status) || status != 0)
		_exit(FAILED); /* the kernel then ends all processes of the namespace */
	let_go_of_files();
	reap_until(-1);
	_exit(0);
}

/* Ends in the same way as CRIU did. */
static int end_with(int status)
{
	const struct rlimit none = {0, 0};

	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	setrlimit(RLIMIT_CORE, &none);
	signal(WTERMSIG(status), SIG_DFL);
	raise(WTERMSIG(status));
	return FAILED;
}

int main(int count, char **arguments)
{
	int status_pipe[2];
	int report_fd = count > 3 ? atoi(arguments[1]) : -1;
	int status, end;
	int32_t init;
	ssize_t got;

	if (report_fd < DESCRIPTOR_MIN || fcntl(report_fd, F_SETFD, FD_CLOEXEC) < 0) {
		fprintf(stderr, "gpucr-pidns: only gpucrfs starts this program\n");
		return 2;
	}
	if (pipe2(status_pipe, O_CLOEXEC) < 0)
		fail("no pipe");
	if (unshare(CLONE_NEWPID) < 0)
		fail("no pid namespace can be made");
	init = fork();
	if (init < 0)
		fail("no process can be made");
	if (init == 0) {
		close(status_pipe[0]);
		close(report_fd);
		be_init(arguments + 3, arguments[2], status_pipe[1]);
	}
	close(status_pipe[1]);
	if (write(report_fd, &init, sizeof(init)) != sizeof(init)) {
		kill(init, SIGKILL);
		fail("nobody listens");
	}
	do
		got = read(status_pipe[0], &status, sizeof(status));
	while (got < 0 && errno == EINTR);
	if (got == sizeof(status) && status == 0)
		return 0;
	/* When the init has ended, so have all processes of the namespace. */
	if (got != sizeof(status))
		kill(init, SIGKILL);
	if (waitpid(init, &end, 0) != init)
		return FAILED;
	return end_with(got == sizeof(status) ? status : end);
}
