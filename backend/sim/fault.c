/* SPDX-License-Identifier: MIT */
/*
 * Injected faults. Rules come from the environment variable GPUCR_SIM_FAULTS and from the file
 * `faults` of the state directory, which is read again after a change. Rules are separated by
 * newlines or semicolons; `#` starts a comment:
 *
 *   ENTRYPOINT [pid=N] [comm=NAME] [thread=NAME] [nth=N] [times=N] [delay_ms=N]
 *              [error=N|NAME] [action=kill|stop|abort|hang|hold] [when=after|late] [where=caller]
 *
 * ENTRYPOINT is an exported name, with or without its _v2 and _ptsz, or `*`. In the simulated HIP
 * the name is that of the HIP function, or of the CUDA function that implements it (hipMemCreate,
 * cuMemCreate). comm is the process's name (gpucr-worker, gpucr-control, the program's), thread the
 * calling thread's name. `nth=3` lets the first two matching calls of a process pass; `times=2`
 * applies the rule to two calls (default: one with nth, else all). First delay_ms passes, then the
 * action is taken (kill and stop are SIGKILL and SIGSTOP; hold blocks while the file `hold` exists
 * in the state directory), then the error is returned (a number or a name) without carrying out the
 * call. With when=after the call is carried out first and its own result is returned. With
 * when=late the driver also considers the call finished, so that the process can be locked: only
 * the program is held up.
 *
 * Each call to which a rule applies appends a line `PID COMM ENTRYPOINT` to the file `faults.log`,
 * if the file exists, before anything else happens.
 *
 * For the cuCheckpointProcess calls a rule is applied inside the target process, before the
 * target's state changes (pid and comm are the target's); with where=caller the rule is applied in
 * the calling process before the request is sent.
 */
#include "backend/sim/sim.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

struct fault_rule {
	struct fault_rule *next;
	char name[80];
	char comm[32], thread[32];
	int pid;
	unsigned nth, times, seen;
	unsigned delay_ms;
	CUresult error;
	enum fault_action action;
	bool after, late;
	enum fault_place place;
};

static struct {
	pthread_mutex_t lock;
	struct fault_rule *environment, *file;
	bool environment_read;
	struct timespec checked, modified;
	ino_t inode;
	off_t size_bytes;
} faults = {.lock = PTHREAD_MUTEX_INITIALIZER};

__thread bool fault_nested;

static void rules_free(struct fault_rule *rule)
{
	while (rule) {
		struct fault_rule *next = rule->next;

		free(rule);
		rule = next;
	}
}

/*
 * Returns the length of the name without version and per-thread suffix: `cuMemAlloc` of
 * `cuMemAlloc_v2`.
 */
static size_t base_length(const char *name)
{
	size_t length = strlen(name);

	if (length > 5 &&
	    (!strcmp(name + length - 5, "_ptsz") || !strcmp(name + length - 5, "_ptds")))
		length -= 5;
	if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v' &&
	    isdigit((unsigned char)name[length - 1]))
		length -= 3;
	return length;
}

static bool name_matches(const char *rule, const char *name)
{
	size_t length = base_length(name);

	return (!strcmp(rule, "*") && !fault_nested) || !strcmp(rule, name) ||
	       (strlen(rule) == length && !strncmp(rule, name, length));
}

static CUresult error_by_name(const char *text)
{
	char *end;
	long number = strtol(text, &end, 0);
	const char *name;

	if (*text && !*end)
		return (CUresult)number;
	for (int i = 0; i < 1000; i++)
		if (!cuGetErrorName((CUresult)i, &name) && !strcmp(name, text))
			return (CUresult)i;
	if (sim_vendor.error_by_name && sim_vendor.error_by_name(text))
		return sim_vendor.error_by_name(text);
	return CUDA_ERROR_UNKNOWN;
}

static struct fault_rule *rule_parse(char *text)
{
	struct fault_rule *rule;
	char *save = NULL, *word = strtok_r(text, " \t\r", &save);

	if (!word || *word == '#')
		return NULL;
	rule = calloc(1, sizeof(*rule));
	if (!rule)
		return NULL;
	snprintf(rule->name, sizeof(rule->name), "%s", word);
	/* Only the checkpoint calls have two places; every other call is applied in its caller. */
	rule->place = strncmp(word, "cuCheckpointProcess", 19) ? FAULT_CALLER : FAULT_TARGET;
	while ((word = strtok_r(NULL, " \t\r", &save))) {
		char *value = strchr(word, '=');

		if (!value)
			continue;
		*value++ = '\0';
		if (!strcmp(word, "pid"))
			rule->pid = atoi(value);
		else if (!strcmp(word, "comm"))
			snprintf(rule->comm, sizeof(rule->comm), "%s", value);
		else if (!strcmp(word, "thread"))
			snprintf(rule->thread, sizeof(rule->thread), "%s", value);
		else if (!strcmp(word, "when")) {
			rule->late = !strcmp(value, "late");
			rule->after = rule->late || !strcmp(value, "after");
		} else if (!strcmp(word, "nth"))
			rule->nth = (unsigned)atoi(value);
		else if (!strcmp(word, "times"))
			rule->times = (unsigned)atoi(value);
		else if (!strcmp(word, "delay_ms"))
			rule->delay_ms = (unsigned)atoi(value);
		else if (!strcmp(word, "error"))
			rule->error = error_by_name(value);
		else if (!strcmp(word, "where") && !strcmp(value, "caller"))
			rule->place = FAULT_CALLER;
		else if (!strcmp(word, "action"))
			rule->action = !strcmp(value, "kill")	 ? FAULT_KILL
				       : !strcmp(value, "stop")	 ? FAULT_STOP
				       : !strcmp(value, "abort") ? FAULT_ABORT
				       : !strcmp(value, "hang")	 ? FAULT_HANG
				       : !strcmp(value, "hold")	 ? FAULT_HOLD
								 : FAULT_NOTHING;
	}
	return rule;
}

static struct fault_rule *rules_parse(char *text)
{
	struct fault_rule *first = NULL, **tail = &first;
	char *save = NULL;

	for (char *line = strtok_r(text, ";\n", &save); line; line = strtok_r(NULL, ";\n", &save)) {
		struct fault_rule *rule = rule_parse(line);

		if (rule) {
			*tail = rule;
			tail = &rule->next;
		}
	}
	return first;
}

static void environment_read(void)
{
	const char *value = getenv("GPUCR_SIM_FAULTS");

	faults.environment_read = true;
	if (value) {
		_cleanup_free_ char *copy = strdup(value);

		if (copy)
			faults.environment = rules_parse(copy);
	}
}

static void file_read(void)
{
	_cleanup_close_ int fd = -1;
	_cleanup_free_ char *text = NULL;
	char path[PATH_MAX];
	struct stat status;
	ssize_t length;

	shared_device_path(path, "faults");
	if (stat(path, &status) < 0) {
		rules_free(faults.file);
		faults.file = NULL;
		faults.inode = 0;
		return;
	}
	if (status.st_ino == faults.inode && status.st_size == faults.size_bytes &&
	    !memcmp(&status.st_mtim, &faults.modified, sizeof(faults.modified)))
		return;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	text = fd < 0 ? NULL : malloc((size_t)status.st_size + 1);
	if (!text)
		return;
	length = read(fd, text, (size_t)status.st_size);
	text[length < 0 ? 0 : length] = '\0';
	rules_free(faults.file);
	faults.file = rules_parse(text);
	faults.inode = status.st_ino;
	faults.size_bytes = status.st_size;
	faults.modified = status.st_mtim;
}

static void comm_read(const char *path, char comm[32])
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? 0 : read(fd, comm, 31);

	comm[length > 0 ? length : 0] = '\0';
	comm[strcspn(comm, "\n")] = '\0';
}

static bool comm_matches(const char *path, const char *name)
{
	char comm[32];

	comm_read(path, comm);
	return !strcmp(comm, name);
}

static void log_hit(const char *name)
{
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX], comm[32], line[160];
	int length;

	shared_device_path(path, "faults.log");
	fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
	if (fd < 0)
		return;
	comm_read("/proc/self/comm", comm);
	length = snprintf(line, sizeof(line), "%d %s %s\n", process_own_pid(), comm, name);
	if (write(fd, line, (size_t)length) < 0)
		return;
}

static bool rule_applies(struct fault_rule *rule, const char *name, enum fault_place place)
{
	unsigned first;

	if (rule->place != place || !name_matches(rule->name, name))
		return false;
	if (rule->pid && rule->pid != getpid())
		return false;
	if (rule->comm[0] && !comm_matches("/proc/self/comm", rule->comm))
		return false;
	if (rule->thread[0] && !comm_matches("/proc/thread-self/comm", rule->thread))
		return false;
	rule->seen++;
	first = rule->nth ? rule->nth : 1;
	return rule->seen >= first &&
	       (rule->times ? rule->seen < first + rule->times : !rule->nth || rule->seen == first);
}

/* Blocks until the test removes the file. */
static void hold(void)
{
	const struct timespec moment = {0, 5000000};
	char path[PATH_MAX];

	shared_device_path(path, "hold");
	while (access(path, F_OK) == 0)
		nanosleep(&moment, NULL);
}

void fault_act(const struct fault *fault)
{
	struct timespec delay = {fault->delay_ms / 1000, (long)(fault->delay_ms % 1000) * 1000000};

	while (fault->delay_ms && nanosleep(&delay, &delay) < 0 && errno == EINTR)
		;
	switch (fault->action) {
	case FAULT_KILL:
		kill(getpid(), SIGKILL);
		break;
	case FAULT_STOP:
		/*
		 * Stop this thread at once: before it stops it could otherwise take a lock that
		 * other threads need.
		 */
		syscall(SYS_tgkill, getpid(), gettid(), SIGSTOP);
		break;
	case FAULT_ABORT:
		abort();
	case FAULT_HANG:
		/* The filters of the helpers forbid pause(2), which would then return at once. */
		for (;;)
			poll(NULL, 0, -1);
	case FAULT_HOLD:
		hold();
		break;
	case FAULT_NOTHING:
		break;
	}
}

CUresult fault_check(const char *name, enum fault_place place, struct fault *ret_after)
{
	struct fault_rule found = {0};
	struct fault fault;

	pthread_mutex_lock(&faults.lock);
	if (!faults.environment_read)
		environment_read();
	file_read();
	for (int list = 0; list < 2 && !found.name[0]; list++)
		for (struct fault_rule *rule = list ? faults.file : faults.environment; rule;
		     rule = rule->next)
			if (rule_applies(rule, name, place)) {
				found = *rule;
				break;
			}
	pthread_mutex_unlock(&faults.lock);
	if (!found.name[0])
		return CUDA_SUCCESS;
	log_hit(name);
	fault = (struct fault){found.delay_ms, found.action, found.late};
	if (found.after) {
		*ret_after = fault;
		return CUDA_SUCCESS;
	}
	fault_act(&fault);
	return found.error;
}
