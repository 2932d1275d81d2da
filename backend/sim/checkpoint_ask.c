/* SPDX-License-Identifier: MIT */
/*
 * Sends requests to the restore thread of a process, one after the other, without a time limit.
 * Also part of the plugin for CRIU, where there is no simulated process: of the simulator this code
 * uses only the machine's state.
 */
#include "backend/sim/checkpoint_message.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>

int checkpoint_address(int pid, struct sockaddr_un *ret_address, int *ret_directory_fd)
{
	char path[PATH_MAX];

	memset(ret_address, 0, sizeof(*ret_address));
	ret_address->sun_family = AF_UNIX;
	*ret_directory_fd = -1;
	shared_path(path, "processes/%d.sock", pid);
	if (strlen(path) < sizeof(ret_address->sun_path)) {
		memcpy(ret_address->sun_path, path, strlen(path) + 1);
		return 0;
	}
	shared_path(path, "processes");
	*ret_directory_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (*ret_directory_fd < 0)
		return -errno;
	snprintf(ret_address->sun_path, sizeof(ret_address->sun_path),
		 "/proc/thread-self/fd/%d/%d.sock", *ret_directory_fd, pid);
	return 0;
}

/* A thread that can run reacts to a knock much sooner. */
#define KNOCK_PATIENCE_NS 30000000000ull

/*
 * Returns the error for a target that cannot be used. Measured: 304 for a process that does not
 * exist, belongs to another user or dies during the call; 3 for one that never called cuInit.
 */
static CUresult no_target(int pid)
{
	if (pid <= 0 || (kill(pid, 0) < 0 && errno == ESRCH))
		return CUDA_ERROR_OPERATING_SYSTEM;
	return CUDA_ERROR_NOT_INITIALIZED;
}

static int target_connect(int pid)
{
	_cleanup_close_ int directory_fd = -1;
	_cleanup_close_ int fd = -1;
	struct sockaddr_un address;
	int r = checkpoint_address(pid, &address, &directory_fd);

	if (r < 0)
		return r;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	return TAKE_FD(fd);
}

int checkpoint_thread_find(int pid)
{
	char path[64], comm[32];
	struct dirent *entry;
	int tid = -ESRCH;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	if (!tasks)
		return -ESRCH;
	while (tid < 0 && (entry = readdir(tasks))) {
		_cleanup_close_ int fd = -1;
		ssize_t length;

		snprintf(path, sizeof(path), "/proc/%d/task/%d/comm", pid, atoi(entry->d_name));
		fd = open(path, O_RDONLY | O_CLOEXEC);
		length = fd < 0 ? 0 : read(fd, comm, sizeof(comm) - 1);
		comm[length > 0 ? length : 0] = '\0';
		comm[strcspn(comm, "\n")] = '\0';
		if (!strcmp(comm, sim_vendor.server_thread_name))
			tid = atoi(entry->d_name);
	}
	closedir(tasks);
	return tid;
}

/* Reads file @name of thread @tid in /proc, truncated to @size; "" if there is none. */
static void read_proc(int tid, const char *name, char *text, size_t size)
{
	_cleanup_close_ int fd = -1;
	char path[64];
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/%d/%s", tid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	length = fd < 0 ? 0 : read(fd, text, size - 1);
	text[length > 0 ? length : 0] = '\0';
}

/* Returns the state letter of thread @tid; NUL: there is no such thread. */
static char state_of(int tid)
{
	char text[1024], *field;

	read_proc(tid, "stat", text, sizeof(text));
	field = strrchr(text, ')');
	return field && field[1] ? field[2] : '\0';
}

static int knock(int pid)
{
	int tid = checkpoint_thread_find(pid);
	siginfo_t info = {.si_signo = CHECKPOINT_KNOCK_SIGNAL, .si_code = SI_QUEUE};

	if (tid < 0)
		return tid;
	info.si_pid = getpid();
	info.si_uid = getuid();
	info.si_value = checkpoint_knock_value(pid, tid);
	if (syscall(SYS_rt_tgsigqueueinfo, pid, tid, CHECKPOINT_KNOCK_SIGNAL, &info) < 0)
		return errno == EPERM ? -EACCES : -errno;
	return 0;
}

/*
 * Connects to the target, and knocks while the target does not listen: a knock can be lost while
 * another controller is served. Waits for a stopped target. A running target that neither listens
 * nor reacts belongs to another machine or has lost its directory: -ESRCH.
 */
static int target_reach(int pid, uint64_t start_time)
{
	uint64_t deadline_ns = sim_now_ns() + KNOCK_PATIENCE_NS;
	int fd = target_connect(pid);

	while (fd == -ENOENT || fd == -ECONNREFUSED) {
		int r = knock(pid);

		if (r < 0)
			return r;
		for (int i = 0; i < 20 && (fd == -ENOENT || fd == -ECONNREFUSED); i++) {
			usleep(1000);
			fd = target_connect(pid);
		}
		if (fd < 0 &&
		    (process_start_time(pid) != start_time ||
		     (sim_now_ns() > deadline_ns && state_of(pid) != 'T' && state_of(pid) != 't')))
			return -ESRCH;
	}
	return fd;
}

/*
 * Sends one request and receives the reply. -EAGAIN: the target closed the connection without
 * serving the request.
 */
static int exchange(int fd, int pid, uint64_t start_time, const struct checkpoint_request *request,
		    CUresult *ret_result)
{
	struct pollfd answer = {.fd = fd, .events = POLLIN};
	struct checkpoint_request complete = *request;
	struct checkpoint_reply reply;

	complete.start_time = start_time;
	if (send(fd, &complete, sizeof(complete), MSG_NOSIGNAL) != sizeof(complete))
		return -EAGAIN;
	/*
	 * A stopped target replies when it is continued. A target that died while its child keeps
	 * the socket open never replies.
	 */
	for (;;) {
		int r = poll(&answer, 1, 200);

		if (r > 0)
			break;
		if (r < 0 && errno != EINTR)
			return -errno;
		if (process_start_time(pid) != start_time)
			return -ESRCH;
	}
	if (recv(fd, &reply, sizeof(reply), MSG_WAITALL) != sizeof(reply))
		return -EAGAIN;
	/*
	 * A checkpointed process closes the connection last of all, so wait for the close; not for
	 * ever, because a child forked just now may keep the connection open.
	 */
	poll(&answer, 1, 1000);
	*ret_result = (CUresult)reply.result;
	return 0;
}

static CUresult ask(int pid, const struct checkpoint_request *request)
{
	uint64_t start_time = process_start_time(pid);

	for (bool first = true;; first = false) {
		_cleanup_close_ int fd = target_reach(pid, start_time);
		CUresult result;
		int r;

		if (fd < 0)
			return first && fd != -EACCES ? no_target(pid)
						      : CUDA_ERROR_OPERATING_SYSTEM;
		r = exchange(fd, pid, start_time, request, &result);
		if (!r)
			return result;
		if (r != -EAGAIN || process_start_time(pid) != start_time)
			return CUDA_ERROR_OPERATING_SYSTEM;
	}
}

static CUresult find(int pid, struct shared_process *ret_process)
{
	struct checkpoint_request nothing = {.verb = CHECKPOINT_VERB_NOTHING};

	for (int attempt = 0; attempt < 2; attempt++) {
		int index;

		shared_lock();
		/* An entry whose process has called exec is stale, although the pid is alive. */
		shared_reclaim();
		index = shared_process_find(pid);
		if (index >= 0)
			*ret_process = shared->processes[index];
		shared_unlock();
		if (index >= 0)
			return geteuid() && geteuid() != ret_process->uid
				       ? CUDA_ERROR_OPERATING_SYSTEM
				       : CUDA_SUCCESS;
		if (attempt || ask(pid, &nothing))
			break;
	}
	return no_target(pid);
}

/*
 * Returns the process of thread @tid; @tid if /proc does not tell. Measured: the driver finds a
 * process by the id of any of its threads.
 */
static int group_of(int tid)
{
	char text[1024];
	const char *line;

	read_proc(tid, "status", text, sizeof(text));
	line = strstr(text, "\nTgid:");
	return line ? (int)strtol(line + strlen("\nTgid:"), NULL, 10) : tid;
}

CUresult checkpoint_find(int pid, struct shared_process *ret_process)
{
	CUresult result;

	if (pid <= 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	pid = group_of(pid);
	/* The caller itself may be checkpointed, and then has no state mapped. */
	if (shared_attach() < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	result = find(pid, ret_process);
	shared_detach();
	return result;
}

CUresult checkpoint_ask(int pid, const struct checkpoint_request *request)
{
	struct shared_process target;
	CUresult result = checkpoint_find(pid, &target);

	/*
	 * Measured: if the main thread has ended, its id does not find the process, but the ids of
	 * other threads do.
	 */
	if (!result && state_of(pid) == 'Z')
		return CUDA_ERROR_OPERATING_SYSTEM;
	return result ? result : ask(group_of(pid), request);
}
