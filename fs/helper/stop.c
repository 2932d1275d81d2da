/* SPDX-License-Identifier: MIT */
/*
 * A stop is a thread of this process, because ptrace(2) is bound to a thread: when that thread
 * ends, the kernel detaches it from all its tracees, whatever their state. The thread shares data
 * with its creator only at its start, by two semaphores and at its end.
 */
#include "fs/helper/stop.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/procfs.h"
#include "lib/thread_name.h"

/* Time for a thread to return from a system call that cannot be interrupted. */
#define STOP_USEC	   (5 * GCR_USEC_PER_SEC)
/* Interval of checking threads that have not stopped yet; most stop at once. */
#define LOOK_FIRST_USEC	   50
#define LOOK_MOST_USEC	   2000
/* Interval of reaping dead threads, and so the longest delay of a concurrent execve(2). */
#define REAP_INTERVAL_USEC 20000
/* Time for another gpucr-halt, whose daemon has died, to let the threads go. */
#define HEIR_USEC	   (5 * GCR_USEC_PER_SEC)
#define PERMISSION_TRIES   5
#define PERMISSION_USEC	   10000

enum tracee_state {
	TRACEE_RUNNING,
	TRACEE_STOPPED,
	TRACEE_WAITING, /* in a system call in which it need not be stopped, see may_wait() */
	TRACEE_GONE,
};

struct tracee {
	pid_t tid;
	enum tracee_state state;
	int signal; /* the signal that it was about to get, 0: none */
};

struct gcr_stop {
	pid_t pid;
	int pidfd; /* the caller's, not used once the stop is done */
	struct gcr_proc_program program;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool is_done;  /* all threads are stopped, or the stop has failed; guarded by `lock` */
	sem_t release; /* posted to let the threads go */
	int result;
	struct gcr_error error;
	struct tracee *tracees;
	size_t count, room;
};

/* ---- attaching ---- */

static bool is_known(const struct gcr_stop *stop, pid_t tid)
{
	for (size_t i = 0; i < stop->count; i++)
		if (stop->tracees[i].tid == tid && stop->tracees[i].state != TRACEE_GONE)
			return true;
	return false;
}

static struct tracee *add_tracee(struct gcr_stop *stop)
{
	if (stop->count == stop->room) {
		size_t room = stop->room ? 2 * stop->room : 64;
		struct tracee *longer = reallocarray(stop->tracees, room, sizeof(*longer));

		if (!longer)
			return NULL;
		stop->tracees = longer;
		stop->room = room;
	}
	return &stop->tracees[stop->count++];
}

/* The tracer of a thread; 0: none (or one outside of our pid namespace). */
static pid_t tracer_of(pid_t pid, pid_t tid)
{
	_cleanup_fclose_ FILE *file = NULL;
	char path[64], line[128];
	int tracer = 0;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/status", (int)pid, (int)tid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "TracerPid: %d", &tracer) == 1)
			break;
	return tracer;
}

/* Is the tracer, or was it until just now, another gpucr-halt whose daemon has died? */
static bool lets_go_soon(pid_t tracer)
{
	struct gcr_proc_stat stat;

	if (gcr_proc_stat(tracer, &stat) < 0)
		return kill(tracer, 0) < 0 && errno == ESRCH;
	return strcmp(stat.comm, GCR_STOP_PROGRAM) == 0;
}

/* Finds out why the kernel refused to attach. 0: the thread is ending; -EAGAIN: try again soon. */
static int explain(const struct gcr_stop *stop, pid_t tid, pid_t tracer, struct gcr_error *error)
{
	struct gcr_proc_stat stat;

	/* The thread is ending: it executes no more code. */
	if (gcr_proc_stat(tid, &stat) < 0 || stat.state == 'Z' || stat.state == 'X')
		return 0;
	if (tracer && lets_go_soon(tracer))
		return -EAGAIN;
	if (tracer)
		return gcr_error_set(
			error, EOPNOTSUPP,
			"it uses managed memory, so its threads have to be stopped for "
			"a moment, but a debugger is attached to it (process %d)",
			(int)tracer);
	if (!stop->count)
		return -EPERM;
	return gcr_error_set(error, EOPNOTSUPP,
			     "it uses managed memory, and its thread %d (%s) cannot be stopped for "
			     "a moment",
			     (int)tid, stat.comm);
}

/*
 * Checks a thread that is attached now and still runs: the program and the thread were found by
 * their numbers, so is the thread one of the program's? *ret_is_gone: an execve(2) has given the
 * thread another number. -ESRCH, -EBUSY.
 */
static int check_attached(const struct gcr_stop *stop, pid_t tid, bool *ret_is_gone,
			  struct gcr_error *error)
{
	struct gcr_proc_stat stat;

	/* The program last: if it is there, the pid was its own when the thread was checked. */
	*ret_is_gone = syscall(SYS_tgkill, stop->pid, tid, 0) < 0;
	if (syscall(SYS_pidfd_send_signal, stop->pidfd, 0, NULL, 0) < 0)
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)stop->pid);
	if (*ret_is_gone && gcr_proc_stat(tid, &stat) == 0)
		return gcr_error_set(error, EBUSY,
				     "thread %d of process %d ended in the meantime: try again",
				     (int)tid, (int)stop->pid);
	return 0;
}

/*
 * Attaches to a thread and interrupts it. 0 also if the thread is ending. -EAGAIN, -EPERM,
 * -EOPNOTSUPP as explain(); -ESRCH, -EBUSY as check_attached(); -ENOMEM.
 */
static int seize(struct gcr_stop *stop, pid_t tid, struct gcr_error *error)
{
	struct tracee *tracee;
	bool was_tried = false, is_gone;
	pid_t tracer;
	int result;

	while (ptrace(PTRACE_SEIZE, tid, 0, 0) < 0) {
		if (errno == ESRCH)
			return 0;
		tracer = tracer_of(stop->pid, tid);
		/* Its tracer may have detached in between: try once more. */
		if (tracer || was_tried)
			return explain(stop, tid, tracer, error);
		was_tried = true;
	}
	result = check_attached(stop, tid, &is_gone, error);
	if (result < 0)
		return result;
	tracee = add_tracee(stop);
	if (!tracee)
		return gcr_error_set(error, ENOMEM, "out of memory");
	*tracee = (struct tracee){.tid = tid};
	if (is_gone || ptrace(PTRACE_INTERRUPT, tid, 0, 0) < 0)
		tracee->state = TRACEE_GONE;
	return 0;
}

/*
 * Checks that the process has still the same program: an execve(2) can have given it one with other
 * rights. -ESRCH.
 */
static int check_program(const struct gcr_stop *stop, struct gcr_error *error)
{
	struct gcr_proc_program program;

	if (gcr_proc_program(stop->pid, &program) < 0)
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)stop->pid);
	if (!gcr_proc_program_is(&program, &stop->program))
		return gcr_error_set(error, ESRCH,
				     "process %d has replaced its program by execve(2)",
				     (int)stop->pid);
	return 0;
}

/*
 * Seizes all threads that are not known yet; *ret_found is their number. If that is 0, the threads
 * known before are those of the right program: they were stopped when the program was checked.
 */
static int seize_new(struct gcr_stop *stop, size_t *ret_found, struct gcr_error *error)
{
	_cleanup_closedir_ DIR *directory = NULL;
	const struct dirent *entry;
	char path[64];
	size_t before = stop->count;
	struct gcr_proc_stat program;
	int result = check_program(stop, error);

	if (result < 0)
		return result;
	if (gcr_proc_stat(stop->pid, &program) < 0)
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)stop->pid);
	snprintf(path, sizeof(path), "/proc/%d/task", (int)stop->pid);
	directory = opendir(path);
	if (!directory)
		return gcr_error_set(error, ESRCH, "process %d has ended", (int)stop->pid);
	while (!result && (entry = readdir(directory))) {
		pid_t tid = (pid_t)strtol(entry->d_name, NULL, 10);
		struct gcr_proc_stat stat;

		if (tid <= 0 || is_known(stop, tid) || gcr_proc_stat(tid, &stat) < 0 ||
		    gcr_thread_name_is_ours(stat.comm) ||
		    gcr_thread_name_is_drivers(stat.comm, program.comm))
			continue;
		result = seize(stop, tid, error);
	}
	*ret_found = stop->count - before;
	return result;
}

/* ---- stopping ---- */

/* The kernel function in which the thread waits, "" if that cannot be read. */
static void find_place(pid_t pid, pid_t tid, char *name, size_t size)
{
	_cleanup_fclose_ FILE *file = NULL;
	char path[64];

	*name = '\0';
	snprintf(path, sizeof(path), "/proc/%d/task/%d/wchan", (int)pid, (int)tid);
	file = fopen(path, "re");
	if (!file || !fgets(name, (int)size, file) || !strcmp(name, "0"))
		*name = '\0';
}

/*
 * May the thread stay in its system call? A thread that writes a verb to our own files waits for
 * the verb, and neither a signal nor a tracer ends that wait. The thread need not be stopped: a
 * write(2) changes nothing in its memory, and on its way back to the program the thread stops.
 */
static bool may_wait(const struct gcr_stop *stop, pid_t tid)
{
	_cleanup_fclose_ FILE *call = NULL;
	struct gcr_proc_stat stat;
	char path[64], name[64];
	long number = -1;

	if (gcr_proc_stat(tid, &stat) < 0 || stat.state != 'D')
		return false;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall", (int)stop->pid, (int)tid);
	call = fopen(path, "re");
	if (!call || fscanf(call, "%ld", &number) != 1)
		return false;
	/* The kernel function in which it waits must not be one that reads the program's memory. */
	find_place(stop->pid, tid, name, sizeof(name));
	if (strcmp(name, "request_wait_answer") != 0)
		return false;
	return number == SYS_write || number == SYS_writev || number == SYS_pwrite64 ||
	       number == SYS_pwritev || number == SYS_pwritev2;
}

/* Finds out whether the thread has stopped or ended, without waiting. */
static void look(struct tracee *tracee)
{
	int status;
	pid_t tid = waitpid(tracee->tid, &status, __WALL | WNOHANG);

	if (tid == 0)
		return;
	if (tid < 0 || !WIFSTOPPED(status)) {
		tracee->state = TRACEE_GONE;
		return;
	}
	tracee->state = TRACEE_STOPPED;
	/*
	 * A stop for a signal, neither ours nor one by job control: the signal is delivered later.
	 */
	if (status >> 16 == 0)
		tracee->signal = WSTOPSIG(status);
}

static int does_not_stop(const struct gcr_stop *stop, pid_t tid, struct gcr_error *error)
{
	struct gcr_proc_stat stat;
	char name[64];

	if (gcr_proc_stat(tid, &stat) < 0)
		stat.state = '?';
	find_place(stop->pid, tid, name, sizeof(name));
	return gcr_error_set(error, EBUSY,
			     "it uses managed memory, and its thread %d does not stop: %s (state "
			     "%c%s%s)",
			     (int)tid,
			     stat.state == 'R'
				     ? "it gets no CPU"
				     : "it is in a system call that cannot be interrupted",
			     stat.state, *name ? ", " : "", name);
}

static int wait_for_all(struct gcr_stop *stop, int64_t deadline_usec, struct gcr_error *error)
{
	useconds_t pause_usec = LOOK_FIRST_USEC;

	for (size_t i = 0; i < stop->count;) {
		struct tracee *tracee = &stop->tracees[i];

		if (tracee->state == TRACEE_RUNNING)
			look(tracee);
		if (tracee->state != TRACEE_RUNNING) {
			i++;
			continue;
		}
		if (pause_usec == LOOK_MOST_USEC && may_wait(stop, tracee->tid)) {
			tracee->state = TRACEE_WAITING;
			continue;
		}
		if (gcr_clock_usec() >= deadline_usec)
			return does_not_stop(stop, tracee->tid, error);
		usleep(pause_usec);
		pause_usec = 2 * pause_usec < LOOK_MOST_USEC ? 2 * pause_usec : LOOK_MOST_USEC;
	}
	return 0;
}

/*
 * Stops all threads. A thread that is not stopped may create others, so this is repeated until no
 * new ones are found.
 */
static int stop_all(struct gcr_stop *stop, struct gcr_error *error)
{
	int64_t deadline_usec = gcr_clock_usec() + STOP_USEC;
	size_t found = 0;
	int result;

	do {
		result = seize_new(stop, &found, error);
		if (!result)
			result = wait_for_all(stop, deadline_usec, error);
	} while (!result && found);
	return result;
}

/* ---- the thread ---- */

/* Detaches the stopped threads. The others are detached when this thread ends. */
static void let_go(struct gcr_stop *stop)
{
	for (size_t i = 0; i < stop->count; i++) {
		const struct tracee *tracee = &stop->tracees[i];

		if (tracee->state == TRACEE_STOPPED)
			ptrace(PTRACE_DETACH, tracee->tid, 0, (void *)(intptr_t)tracee->signal);
	}
}

static void *run(void *argument)
{
	struct gcr_stop *stop = argument;
	int64_t deadline_usec = gcr_clock_usec() + HEIR_USEC;
	int result = stop_all(stop, &stop->error);

	/* -EPERM is also returned during an execve(2). */
	for (int try = 1; (result == -EPERM && try < PERMISSION_TRIES) ||
			  (result == -EAGAIN && gcr_clock_usec() < deadline_usec);
	     try++) {
		usleep(PERMISSION_USEC);
		result = stop_all(stop, &stop->error);
	}
	if (result == -EAGAIN)
		result = gcr_error_set(&stop->error, EBUSY,
				       "its threads are still stopped on behalf of a daemon that "
				       "has died");
	stop->result = result;
	pthread_mutex_lock(&stop->lock);
	stop->is_done = true;
	pthread_cond_signal(&stop->changed);
	pthread_mutex_unlock(&stop->lock);
	while (!stop->result && sem_wait(&stop->release) < 0)
		;
	let_go(stop);
	return NULL;
}

static void destroy(struct gcr_stop *stop)
{
	if (!stop)
		return;
	sem_destroy(&stop->release);
	pthread_cond_destroy(&stop->changed);
	pthread_mutex_destroy(&stop->lock);
	free(stop->tracees);
	free(stop);
}
GCR_DEFINE_CLEANUP(struct gcr_stop *, destroy);

/*
 * Waits for threads that have died. A thread in execve(2) waits for its process's other threads to
 * be gone. Traced threads are gone only when they have been waited for; until then PTRACE_SEIZE
 * waits for the execve(2).
 */
static void reap_dead(const struct gcr_stop *stop)
{
	_cleanup_closedir_ DIR *directory = NULL;
	const struct dirent *entry;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task", (int)stop->pid);
	directory = opendir(path);
	while (directory && (entry = readdir(directory))) {
		pid_t tid = (pid_t)strtol(entry->d_name, NULL, 10);
		struct gcr_proc_stat stat;
		int status;

		if (tid > 0 && gcr_proc_stat(tid, &stat) == 0 && stat.state == 'Z')
			waitpid(tid, &status, __WALL | WNOHANG);
	}
}

static void wait_done(struct gcr_stop *stop)
{
	GCR_LOCK_SCOPE(&stop->lock);
	while (!stop->is_done) {
		if (!gcr_cond_wait_until(&stop->changed, &stop->lock,
					 gcr_clock_usec() + REAP_INTERVAL_USEC))
			continue;
		pthread_mutex_unlock(&stop->lock);
		reap_dead(stop);
		pthread_mutex_lock(&stop->lock);
	}
}

int gcr_stop_begin(pid_t pid, int pidfd, const struct gcr_proc_program *program,
		   struct gcr_stop **ret_stop, struct gcr_error *error)
{
	_cleanup_(destroy_cleanup) struct gcr_stop *stop = calloc(1, sizeof(*stop));
	int result;

	if (!stop)
		return gcr_error_set(error, ENOMEM, "out of memory");
	stop->pid = pid;
	stop->pidfd = pidfd;
	stop->program = *program;
	pthread_mutex_init(&stop->lock, NULL);
	pthread_cond_init(&stop->changed, NULL);
	sem_init(&stop->release, 0, 0);
	result = -pthread_create(&stop->thread, NULL, run, stop);
	if (result < 0)
		return gcr_error_set(error, -result, "cannot start a thread: %s",
				     strerror(-result));
	wait_done(stop);
	if (!stop->result) {
		*ret_stop = TAKE_PTR(stop);
		return 0;
	}
	result = stop->result;
	pthread_join(stop->thread, NULL);
	*error = stop->error;
	return result;
}

bool gcr_stop_is_over(struct gcr_stop *stop)
{
	bool is_over = true;

	for (size_t i = 0; i < stop->count; i++) {
		struct tracee *tracee = &stop->tracees[i];

		if (tracee->state != TRACEE_GONE)
			look(tracee);
		is_over = is_over && tracee->state == TRACEE_GONE;
	}
	return is_over;
}

void gcr_stop_end(struct gcr_stop *stop)
{
	if (!stop)
		return;
	sem_post(&stop->release);
	pthread_join(stop->thread, NULL);
	destroy(stop);
}
