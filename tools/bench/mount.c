/* SPDX-License-Identifier: MIT */
/* Daemons started by the bench, and files of mounts. Single-threaded. */
#include "tools/bench/mount.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/procfs.h"
#include "lib/status_text.h"

#define LOOKER	       "gpucr-look"    /* looks at processes; runs as long as the daemon */
#define RECEIVER       "gpucr-receive" /* receives descriptors; runs as long as the daemon */
#define START_USEC     (60 * GCR_USEC_PER_SEC)
#define STOP_USEC      (100 * GCR_USEC_PER_SEC) /* the daemon waits up to 90 s for a driver call */
#define LOOK_USEC      (20 * GCR_USEC_PER_SEC)
/* How long to wait for the end of a writer that was killed: the daemon rolls back first. */
#define ROLL_BACK_USEC (30 * GCR_USEC_PER_SEC)

/* The answer of a forked child, which a text follows. */
struct answer {
	int32_t number; /* errno */
	uint32_t bytes; /* length of the text that follows */
	int64_t usec;
};

static int file_path(const struct bench_mount *mount, pid_t pid, const char *file, char **ret_path)
{
	int length = pid ? asprintf(ret_path, "%s/%d/%s", mount->directory, (int)pid, file)
			 : asprintf(ret_path, "%s/%s", mount->directory, file);

	return length < 0 ? -ENOMEM : 0;
}

static void __attribute__((noreturn)) answer_with(int fd, struct answer *answer, const char *text)
{
	ssize_t written = write(fd, answer, sizeof(*answer));

	for (uint32_t done = 0; written > 0 && done < answer->bytes; done += (uint32_t)written)
		written = write(fd, text + done, answer->bytes - done);
	_exit(0);
}

static void __attribute__((noreturn)) read_file(const char *path, int answer_fd)
{
	static char text[BENCH_TEXT_MAX];
	struct answer answer = {0};
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : 0;

	while (fd >= 0 && answer.bytes < sizeof(text) - 1) {
		got = read(fd, text + answer.bytes, sizeof(text) - 1 - answer.bytes);
		if (got <= 0)
			break;
		answer.bytes += (uint32_t)got;
	}
	if (got < 0) {
		answer.number = errno;
		answer.bytes = 0;
	}
	answer_with(answer_fd, &answer, text);
}

static void __attribute__((noreturn)) write_file(const char *path, const char *verb, int answer_fd)
{
	struct answer answer = {0};
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	int64_t started_usec = gcr_clock_usec();

	if (fd < 0 || write(fd, verb, strlen(verb)) < 0)
		answer.number = errno;
	answer.usec = gcr_clock_usec() - started_usec;
	answer_with(answer_fd, &answer, NULL);
}

/* Reads the answer and its text; until @until_usec at most. */
static int take_answer(int fd, int64_t until_usec, struct answer *ret_answer, char *ret_text)
{
	size_t got = 0, wanted = sizeof(*ret_answer);

	while (got < wanted) {
		int result = bench_wait(fd, until_usec);
		ssize_t bytes;

		if (result < 0)
			return result;
		if (got < sizeof(*ret_answer))
			bytes = read(fd, (char *)ret_answer + got, sizeof(*ret_answer) - got);
		else
			bytes = read(fd, ret_text + got - sizeof(*ret_answer), wanted - got);
		if (bytes <= 0)
			return -EPIPE;
		got += (size_t)bytes;
		if (got == sizeof(*ret_answer))
			wanted += ret_answer->bytes < BENCH_TEXT_MAX && ret_text ? ret_answer->bytes
										 : 0;
	}
	if (ret_text)
		ret_text[got - sizeof(*ret_answer)] = '\0';
	return 0;
}

/* Waits for the end of the process; returns false on timeout. */
static bool reap(pid_t pid, int64_t timeout_usec)
{
	int64_t until_usec = gcr_clock_usec() + timeout_usec;

	while (waitpid(pid, NULL, WNOHANG) != pid) {
		if (gcr_clock_usec() > until_usec)
			return false;
		poll(NULL, 0, 5);
	}
	return true;
}

/* Reads (@verb NULL) or writes the file in a forked child. */
static int guarded(const struct bench_mount *mount, const char *path, const char *verb,
		   int64_t timeout_usec, struct answer *ret_answer, char *ret_text)
{
	_cleanup_close_ int fd = -1;
	int ends[2];
	int result;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	fd = ends[0];
	pid = fork();
	if (!pid) {
		static const int signals[] = {SIGINT, SIGTERM, SIGHUP};

		/* The terminal's ^C is for the parent only, which then kills this child. */
		for (size_t i = 0; i < GCR_ARRAY_SIZE(signals); i++)
			signal(signals[i], SIG_DFL);
		setpgid(0, 0);
		if (verb)
			write_file(path, verb, ends[1]);
		read_file(path, ends[1]);
	}
	result = pid < 0 ? -errno : 0;
	close(ends[1]);
	if (!result)
		result = take_answer(fd, gcr_clock_usec() + timeout_usec, ret_answer, ret_text);
	if (pid < 0)
		return result;
	if (result < 0)
		kill(pid, SIGKILL);
	if (!reap(pid, ROLL_BACK_USEC) && mount->daemon.pid) {
		kill(mount->daemon.pid, SIGKILL);
		reap(pid, ROLL_BACK_USEC);
	}
	return result;
}

int bench_mount_read(const struct bench_mount *mount, pid_t pid, const char *file,
		     char ret_text[BENCH_TEXT_MAX], struct gcr_error *error)
{
	_cleanup_free_ char *path = NULL;
	struct answer answer;
	int result;

	if (file_path(mount, pid, file, &path) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = guarded(mount, path, NULL, LOOK_USEC, &answer, ret_text);
	if (!result)
		result = -answer.number;
	if (result < 0)
		return gcr_error_set(error, -result, "%s: %s", path, strerror(-result));
	return 0;
}

int bench_mount_verb(const struct bench_mount *mount, pid_t pid, const char *verb,
		     int64_t timeout_usec, double *ret_usec, struct gcr_error *error)
{
	_cleanup_free_ char *text = malloc(BENCH_TEXT_MAX);
	_cleanup_free_ char *path = NULL;
	struct answer answer;
	int result;

	if (!text || file_path(mount, pid, "ctl", &path) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	result = guarded(mount, path, verb, timeout_usec, &answer, NULL);
	if (result < 0)
		return gcr_error_set(error, -result, "%s: %s", verb,
				     result == -ETIMEDOUT ? "it does not end" : strerror(-result));
	*ret_usec = (double)answer.usec;
	if (!answer.number)
		return 0;
	if (bench_mount_read(mount, pid, "error", text, NULL) < 0 || !strncmp(text, "ok", 2))
		snprintf(text, BENCH_TEXT_MAX, "%s", strerror(answer.number));
	text[strcspn(text, "\n")] = '\0';
	return gcr_error_set(error, answer.number, "%s: %s", verb, text);
}

bool bench_text_value(const char *text, const char *key, char *ret_value, size_t room)
{
	size_t length;
	const char *value = gcr_status_value(text, key, &length);

	if (value)
		snprintf(ret_value, room, "%.*s", (int)length, value);
	return value;
}

bool bench_text_number(const char *text, const char *key, double *ret_number)
{
	char value[64];
	char *end;
	double number;

	if (!bench_text_value(text, key, value, sizeof(value)))
		return false;
	number = strtod(value, &end);
	if (end == value || *end)
		return false;
	*ret_number = number;
	return true;
}

static bool is_mounted(const char *directory)
{
	_cleanup_free_ char *text = malloc(1 << 20);
	_cleanup_free_ char *wanted = NULL;
	_cleanup_close_ int fd = open("/proc/self/mounts", O_RDONLY | O_CLOEXEC);
	ssize_t got, all = 0;

	if (!text || fd < 0 || asprintf(&wanted, " %s ", directory) < 0)
		return false;
	while ((got = read(fd, text + all, (size_t)((1 << 20) - 1 - all))) > 0)
		all += got;
	text[all] = '\0';
	return strstr(text, wanted);
}

static void unmount(const char *directory)
{
	pid_t pid;

	if (!is_mounted(directory) || !umount2(directory, MNT_DETACH | UMOUNT_NOFOLLOW))
		return;
	/* An unprivileged user needs libfuse's helper. */
	pid = fork();
	if (!pid) {
		execlp("fusermount3", "fusermount3", "-u", "-q", "-z", directory, (char *)NULL);
		_exit(127);
	}
	if (pid > 0)
		waitpid(pid, NULL, 0);
}

static int wait_for_mount(const struct bench_paths *paths, struct bench_mount *mount,
			  struct gcr_error *error)
{
	_cleanup_free_ char *text = malloc(BENCH_TEXT_MAX);
	int64_t until_usec = gcr_clock_usec() + START_USEC;
	char words[256];

	if (!text)
		return gcr_error_set(error, ENOMEM, "out of memory");
	for (;;) {
		if (bench_child_ended(&mount->daemon)) {
			bench_child_last_words(paths, &mount->daemon, words, sizeof(words));
			return gcr_error_set(error, EIO, "gpucrfs does not start: %s",
					     *words ? words : "it says nothing");
		}
		if (is_mounted(mount->directory) &&
		    !bench_mount_read(mount, 0, "status", text, NULL))
			return 0;
		if (gcr_clock_usec() > until_usec)
			return gcr_error_set(error, ETIMEDOUT, "gpucrfs does not answer");
		if (bench_pause(5000) < 0)
			return gcr_error_set(error, EINTR, "interrupted");
	}
}

int bench_mount_start(const struct bench_paths *paths, unsigned int number, const char *options,
		      struct bench_mount *ret_mount, struct gcr_error *error)
{
	_cleanup_free_ char *all_options = NULL;
	_cleanup_free_ char *helpers = NULL;
	_cleanup_free_ char *simulator = NULL;
	_cleanup_free_ char *state = NULL;
	const char *environment[4] = {NULL};
	struct bench_mount mount = {0};
	size_t variables = 0;
	char name[32];
	int result;

	snprintf(name, sizeof(name), "daemon-%u", number);
	if (asprintf(&mount.directory, "%s/mnt-%u", paths->work, number) < 0 ||
	    asprintf(&mount.runtime, "%s/run-%u", paths->work, number) < 0 ||
	    asprintf(&mount.socket, "GPUCR_SOCKET=%s/socket", mount.runtime) < 0 ||
	    asprintf(&all_options, "runtime_dir=%s%s%s%s%s", mount.runtime,
		     paths->simulator_state ? ",sim=" : "",
		     paths->simulator_state ? paths->simulator_state : "", *options ? "," : "",
		     options) < 0 ||
	    (paths->helpers && asprintf(&helpers, "GPUCR_HELPER_DIR=%s", paths->helpers) < 0) ||
	    (paths->simulator &&
	     asprintf(&simulator, "GPUCR_SIM_LIBDIR=%s", paths->simulator) < 0)) {
		result = gcr_error_set(error, ENOMEM, "out of memory");
		goto fail;
	}
	if (helpers)
		environment[variables++] = helpers;
	if (simulator)
		environment[variables++] = simulator;
	if (mkdir(mount.directory, 0700) < 0 || mkdir(mount.runtime, 0700) < 0) {
		result = gcr_error_set(error, errno, "%s: %s", mount.directory, strerror(errno));
		goto fail;
	}
	result = bench_child_start(paths, name,
				   (char *[]){paths->daemon, (char[]){"-f"}, (char[]){"-o"},
					      all_options, mount.directory, NULL},
				   environment, &mount.daemon, error);
	if (!result)
		result = wait_for_mount(paths, &mount, error);
	if (!result) {
		*ret_mount = mount;
		return 0;
	}
fail:
	bench_mount_stop(paths, &mount);
	return result;
}

int bench_mount_find(const char *directory, struct bench_mount *ret_mount, struct gcr_error *error)
{
	_cleanup_free_ char *text = malloc(BENCH_TEXT_MAX);
	struct bench_mount mount = {0};
	char version[64];
	int result;

	if (!text)
		return gcr_error_set(error, ENOMEM, "out of memory");
	mount.directory = realpath(directory, NULL);
	if (!mount.directory)
		return gcr_error_set(error, errno, "%s: %s", directory, strerror(errno));
	result = bench_mount_read(&mount, 0, "status", text, error);
	if (!result && !bench_text_value(text, "version", version, sizeof(version)))
		result = gcr_error_set(error, ENOENT, "%s is no mount of gpucrfs", directory);
	if (result < 0) {
		free(mount.directory);
		return result;
	}
	*ret_mount = mount;
	return 0;
}

void bench_mount_stop(const struct bench_paths *paths, struct bench_mount *mount)
{
	_cleanup_free_ char *store = NULL;

	if (mount->daemon.pid)
		bench_child_signal(&mount->daemon, SIGTERM, STOP_USEC);
	bench_child_end(&mount->daemon);
	if (mount->runtime && mount->directory) {
		unmount(mount->directory);
		if (asprintf(&store, "%s/store", mount->runtime) > 0)
			unmount(store);
	}
	free(mount->directory);
	free(mount->runtime);
	free(mount->socket);
	memset(mount, 0, sizeof(*mount));
}

size_t bench_mount_helpers(const struct bench_mount *mount, const char *name,
			   pid_t ret_pids[BENCH_HELPERS_MAX])
{
	_cleanup_closedir_ DIR *proc = opendir("/proc");
	const struct dirent *entry;
	size_t count = 0;

	while (proc && mount->daemon.pid && (entry = readdir(proc))) {
		pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
		struct gcr_proc_stat stat;

		if (pid <= 0 || gcr_proc_stat(pid, &stat) < 0 || stat.parent != mount->daemon.pid ||
		    stat.state == 'Z' || stat.is_exiting)
			continue;
		if (name ? strncmp(stat.comm, name, strlen(name))
			 : !strcmp(stat.comm, LOOKER) || !strcmp(stat.comm, RECEIVER))
			continue;
		if (count < BENCH_HELPERS_MAX)
			ret_pids[count++] = pid;
	}
	return count;
}

/*
 * Returns the proportional share (Pss), which divides shared memory (libraries) among its users.
 * Mapped memory of the store (shmem) is left out, because it is counted with the store. 0 if the
 * file cannot be read.
 */
static uint64_t process_bytes(pid_t pid)
{
	_cleanup_fclose_ FILE *file = NULL;
	uint64_t kibibytes = 0, some;
	char path[64], line[256];

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "Pss_Anon: %" SCNu64 " kB", &some) == 1 ||
		    sscanf(line, "Pss_File: %" SCNu64 " kB", &some) == 1)
			kibibytes += some;
	return kibibytes * 1024;
}

uint64_t bench_mount_host_bytes(const struct bench_mount *mount)
{
	pid_t pids[BENCH_HELPERS_MAX];
	size_t count = bench_mount_helpers(mount, "", pids);
	uint64_t bytes = mount->daemon.pid ? process_bytes(mount->daemon.pid) : 0;

	for (size_t i = 0; i < count; i++)
		bytes += process_bytes(pids[i]);
	return bytes;
}
