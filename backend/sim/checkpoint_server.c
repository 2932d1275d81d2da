/* SPDX-License-Identifier: MIT */
/*
 * The restore thread: every process that called cuInit has one. The thread carries out the
 * cuCheckpointProcess* calls of other processes, one after the other; the death of a controller
 * does not interrupt a call. While the process is checkpointed, the thread waits for a knock, maps
 * the machine's state for one request, and has released everything when the reply is sent.
 */
#include "backend/sim/checkpoint_message.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* How long the socket stays open for a controller after its knock. */
#define KNOCKED_MS 1000

static int server_fd = -1;
/* The pid and tid by which the controller knows this process; the socket is named after the pid. */
static int server_pid, server_tid;
static sem_t started;

static const char *const verb_names[] = {
	[CHECKPOINT_VERB_LOCK] = "cuCheckpointProcessLock",
	[CHECKPOINT_VERB_CHECKPOINT] = "cuCheckpointProcessCheckpoint",
	[CHECKPOINT_VERB_RESTORE] = "cuCheckpointProcessRestore",
	[CHECKPOINT_VERB_UNLOCK] = "cuCheckpointProcessUnlock",
	[CHECKPOINT_VERB_NOTHING] = NULL,
	[CHECKPOINT_VERB_LEAVE] = "cuCheckpointProcessCheckpoint",
	[CHECKPOINT_VERB_RETURN] = "cuCheckpointProcessRestore",
};

/* Locks and checkpoints the process; on failure the process is not locked. */
static CUresult leave(unsigned timeout_ms)
{
	CUresult result = checkpoint_lock(timeout_ms);

	if (result)
		return result;
	result = checkpoint_save();
	if (result)
		checkpoint_unlock();
	return result;
}

static CUresult serve(const struct checkpoint_request *request)
{
	struct fault after = {0};
	CUresult result;

	if (request->verb >= CHECKPOINT_VERBS_COUNT || request->pair_count > SIM_MAX_GPUS)
		return CUDA_ERROR_INVALID_VALUE;
	/* Assumed of the real driver: same result as for a process that never called cuInit. */
	if (process_is_deinitialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (checkpoint_holds_nothing() &&
	    checkpoint_register_again(server_pid, server_tid, request->start_time) < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (request->verb == CHECKPOINT_VERB_NOTHING)
		return CUDA_SUCCESS;
	result = fault_check(verb_names[request->verb], FAULT_TARGET, &after);
	if (result)
		return result;
	switch (request->verb) {
	case CHECKPOINT_VERB_LOCK:
		result = checkpoint_lock(request->timeout_ms);
		break;
	case CHECKPOINT_VERB_CHECKPOINT:
		result = checkpoint_save();
		break;
	case CHECKPOINT_VERB_LEAVE:
		result = leave(request->timeout_ms);
		break;
	case CHECKPOINT_VERB_RESTORE:
	case CHECKPOINT_VERB_RETURN:
		result = checkpoint_restore(request->pairs, request->pair_count);
		break;
	default:
		result = checkpoint_unlock();
	}
	fault_act(&after);
	return result;
}

static bool peer_permitted(int fd)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) &&
	       (peer.uid == 0 || peer.uid == geteuid());
}

/*
 * Returns true if the sender died while its request was queued: the request is then not carried
 * out.
 */
static bool peer_gone(int fd)
{
	struct pollfd peer = {.fd = fd, .events = POLLRDHUP};

	return poll(&peer, 1, 0) > 0 && peer.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

static int server_open(int pid)
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
	unlink(address.sun_path);
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	/* Permissions are checked for each request. */
	chmod(address.sun_path, 0666);
	if (listen(fd, 64) < 0)
		return -errno;
	server_fd = TAKE_FD(fd);
	server_pid = pid;
	return 0;
}

static sigset_t knock_signals(void)
{
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, CHECKPOINT_KNOCK_SIGNAL);
	return signals;
}

/* Releases the socket and the machine's state. */
static void server_close(void)
{
	const sigset_t signals = knock_signals();
	const struct timespec now = {0};
	_cleanup_close_ int directory_fd = -1;
	struct sockaddr_un address;

	if (!checkpoint_address(server_pid, &address, &directory_fd))
		unlink(address.sun_path);
	close(TAKE_FD(server_fd));
	shared_detach();
	/*
	 * Drop queued knocks: those of the controller just served would reopen everything, and
	 * other controllers repeat theirs.
	 */
	while (sigtimedwait(&signals, NULL, &now) > 0)
		;
}

/*
 * Waits for a knock and reopens the state and the socket. CRIU may have restored the process with
 * another pid or in another machine.
 */
static void server_reopen(void)
{
	const sigset_t signals = knock_signals();
	siginfo_t info;
	int pid;

	if (sigwaitinfo(&signals, &info) < 0 || info.si_code != SI_QUEUE)
		return;
	checkpoint_knock_read(info.si_value, &pid, &server_tid);
	if (pid <= 0 || shared_attach() < 0)
		return;
	if (server_open(pid) < 0)
		shared_detach();
}

static void connection_serve(int connection)
{
	_cleanup_close_ int fd = connection;
	struct checkpoint_request request;
	struct checkpoint_reply reply;
	bool complete = recv(fd, &request, sizeof(request), MSG_WAITALL) == sizeof(request) &&
			!peer_gone(fd);

	if (complete)
		reply.result = peer_permitted(fd) ? (int32_t)serve(&request)
						  : CUDA_ERROR_OPERATING_SYSTEM;
	if (checkpoint_holds_nothing())
		server_close();
	if (complete)
		send(fd, &reply, sizeof(reply), MSG_NOSIGNAL);
	/*
	 * A stopped thread may hold the gate's lock: the controller must not wait for that, so the
	 * reply is sent first.
	 */
	if (complete && request.verb == CHECKPOINT_VERB_RETURN && !reply.result)
		checkpoint_unlock();
}

static bool somebody_connects(int timeout_ms)
{
	struct pollfd queue = {.fd = server_fd, .events = POLLIN};

	return poll(&queue, 1, timeout_ms) > 0;
}

static void *server_thread(void *argument)
{
	sim_thread_name(sim_vendor.server_thread_name);
	shared_lock();
	shared->processes[sim.index].restore_thread = gettid();
	shared_unlock();
	sem_post(&started);
	for (;;) {
		int fd;

		if (server_fd < 0) {
			server_reopen();
			continue;
		}
		if (checkpoint_holds_nothing() && !somebody_connects(KNOCKED_MS)) {
			server_close();
			continue;
		}
		fd = accept4(server_fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0)
			connection_serve(fd);
		else if (errno != EINTR && errno != ECONNABORTED)
			usleep(10000);
	}
	return NULL;
}

void checkpoint_server_forked(void)
{
	/*
	 * Close the socket: a controller must not wait for a reply from this child, which has no
	 * restore thread.
	 */
	if (server_fd >= 0)
		close(TAKE_FD(server_fd));
}

int checkpoint_server_start(void)
{
	pthread_t thread;
	int r = server_open(process_own_pid());

	if (r < 0)
		return r;
	sem_init(&started, 0, 0);
	r = sim_thread_start(&thread, server_thread, NULL);
	if (r < 0)
		return r;
	pthread_detach(thread);
	while (sem_wait(&started) < 0)
		;
	return 0;
}
