/* SPDX-License-Identifier: MIT */
/*
 * gpucr-launch: starts one program, CRIU, for a daemon whose service is restricted, and reports how
 * it ends. Its standard input is the connection (criu-glue/launch.h). A peer can have any program
 * run with all of root's rights, so only root of this pid and user namespace with CAP_SYS_ADMIN is
 * served; the permissions of the socket's file keep all others from connecting in the first place.
 */
#include <errno.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu-glue/launch.h"
#include "fs/helper/peer.h"
#include "lib/cleanup.h"
#include "lib/full_io.h"
#include "lib/procfs.h"
#include "lib/program.h"

#define CONNECTION STDIN_FILENO

GCR_DEFINE_CLEANUP(char **, free);

/* The parsed request. */
struct order {
	struct gcr_launch_request request;
	char *data;
	char **arguments;
	char **environment;
	int *fds; /* descriptors received */
	size_t fds_count;
	int *targets; /* the fds of struct gcr_program */
	struct gcr_program program;
};

static int fail(const char *what, int error)
{
	fprintf(stderr, "gpucr-launch: %s: %s\n", what, strerror(error));
	return EXIT_FAILURE;
}

static bool is_our_namespace(pid_t pid, const char *name)
{
	char theirs[64], ours[64];
	struct stat their_stat, our_stat;

	snprintf(theirs, sizeof(theirs), "/proc/%d/ns/%s", (int)pid, name);
	snprintf(ours, sizeof(ours), "/proc/self/ns/%s", name);
	return !stat(theirs, &their_stat) && !stat(ours, &our_stat) &&
	       their_stat.st_dev == our_stat.st_dev && their_stat.st_ino == our_stat.st_ino;
}

/*
 * Has root's process the daemon's rights? The daemon's helpers are root too, have given up this
 * capability, and start no programs.
 */
static bool has_daemons_rights(pid_t pid)
{
	struct gcr_proc_status status;

	return geteuid() || (!gcr_proc_status(pid, &status) &&
			     status.effective_capabilities >> CAP_SYS_ADMIN & 1);
}

/*
 * Checks that the peer is a process of our user in our user and pid namespaces, and has the
 * daemon's rights. -EPERM: it is not (root of a container may have got at the socket); errors of
 * gcr_peer_identify().
 */
static int check_peer(void)
{
	struct gcr_peer peer;
	int r = gcr_peer_identify(CONNECTION, &peer);

	if (r < 0)
		return r;
	if (peer.uid != geteuid() || !is_our_namespace(peer.pid, "user") ||
	    !is_our_namespace(peer.pid, "pid") || !has_daemons_rights(peer.pid) ||
	    !gcr_peer_is_alive(&peer))
		r = -EPERM;
	gcr_peer_finish(&peer);
	return r;
}

/* Takes @count strings from *at and returns them as a list that ends with NULL. */
static int take_strings(char **at, const char *end, size_t count, char ***ret_list)
{
	_cleanup_(free_cleanup) char **list = calloc(count + 1, sizeof(*list));

	if (!list)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		char *nul = memchr(*at, '\0', (size_t)(end - *at));

		if (!nul)
			return -EPROTO;
		list[i] = *at;
		*at = nul + 1;
	}
	*ret_list = TAKE_PTR(list);
	return 0;
}

static int read_data(struct order *order, int fd)
{
	size_t size = order->request.data_bytes;
	ssize_t got;

	order->data = malloc(size + 1);
	if (!order->data)
		return -ENOMEM;
	got = gcr_pread_all(fd, order->data, size, 0);
	if (got < 0)
		return (int)got;
	return (size_t)got == size ? 0 : -EPROTO;
}

static int parse(struct order *order)
{
	const struct gcr_launch_request *request = &order->request;
	char *at = order->data, *end = at + request->data_bytes;
	_cleanup_(free_cleanup) char **path = NULL;
	size_t used = 0;
	bool has_cgroup;
	int r = take_strings(&at, end, 1, &path);

	if (!r)
		r = take_strings(&at, end, request->arguments_count, &order->arguments);
	if (!r)
		r = take_strings(&at, end, request->environment_count, &order->environment);
	if (r < 0)
		return r;
	order->targets = calloc(request->fds_count + 1, sizeof(*order->targets));
	if (!order->targets)
		return -ENOMEM;
	if ((size_t)(end - at) != request->fds_count)
		return -EPROTO;
	for (size_t i = 0; i < request->fds_count; i++) {
		if (at[i] && used == order->fds_count)
			return -EPROTO;
		order->targets[i] = at[i] ? order->fds[used++] : -1;
	}
	has_cgroup = request->flags & GCR_LAUNCH_HAS_CGROUP;
	if (used + has_cgroup != order->fds_count)
		return -EPROTO;
	order->program = (struct gcr_program){
		.path = path[0],
		.arguments = order->arguments,
		.environment = order->environment,
		.fds = order->targets,
		.fds_count = request->fds_count,
		.ends_with_starter = request->flags & GCR_LAUNCH_ENDS_WITH_DAEMON,
		.ignored_signal = request->ignored_signal,
		.cgroup_procs_fd = has_cgroup ? order->fds[used] : -1,
	};
	return 0;
}

/*
 * Receives the descriptors of the order. They are closed, and all memory is freed, when this
 * program ends.
 */
static int receive_fds(struct order *order)
{
	size_t left = order->request.descriptors_count;

	order->fds = calloc(left + 1, sizeof(*order->fds));
	if (!order->fds)
		return -ENOMEM;
	while (left) {
		size_t count = left < GCR_LAUNCH_FDS_MAX ? left : GCR_LAUNCH_FDS_MAX;
		char byte;
		int r = gcr_launch_receive(CONNECTION, &byte, 1, order->fds + order->fds_count,
					   count, GCR_LAUNCH_WAIT_MSEC);

		if (r < 0)
			return r;
		if (byte != GCR_LAUNCH_MORE)
			return -EPROTO;
		order->fds_count += count;
		left -= count;
	}
	return 0;
}

static int receive_order(struct order *order)
{
	struct gcr_launch_request *request = &order->request;
	_cleanup_close_ int data_fd = -1;
	int r = gcr_launch_receive(CONNECTION, request, sizeof(*request), &data_fd, 1,
				   GCR_LAUNCH_WAIT_MSEC);

	if (r < 0)
		return r;
	if (request->magic != GCR_LAUNCH_MAGIC || request->version != GCR_LAUNCH_VERSION ||
	    request->data_bytes > GCR_LAUNCH_DATA_MAX ||
	    request->arguments_count > GCR_LAUNCH_COUNT_MAX ||
	    request->environment_count > GCR_LAUNCH_COUNT_MAX ||
	    request->fds_count > GCR_LAUNCH_COUNT_MAX ||
	    request->descriptors_count > request->fds_count + 1 || !request->arguments_count)
		return -EPROTO;
	r = receive_fds(order);
	if (!r)
		r = read_data(order, data_fd);
	return r ? r : parse(order);
}

static int tell(enum gcr_launch_word word, int value, const int *pidfd)
{
	struct gcr_launch_reply reply = {.word = word, .value = value};

	return gcr_launch_send(CONNECTION, &reply, sizeof(reply), pidfd, pidfd ? 1 : 0);
}

/* Prevents the program, which has not been waited for, from writing to files from now on. */
static void stop_writes(pid_t pid)
{
	const struct rlimit none = {0, 0};

	prlimit(pid, RLIMIT_FSIZE, &none, NULL);
}

/*
 * Serves the daemon until the program has ended. @ends_with_daemon: a restore whose daemon has died
 * is useless and must not continue: the next daemon, which cannot see it, may restore the same
 * tree. CRIU's whole session is killed; the restored tree is in another session.
 */
static void serve(pid_t pid, int pidfd, bool ends_with_daemon)
{
	struct pollfd fds[] = {
		{.fd = pidfd, .events = POLLIN},
		{.fd = CONNECTION, .events = POLLIN},
	};
	char word;

	for (;;) {
		ssize_t got;

		if (poll(fds, GCR_ARRAY_SIZE(fds), -1) < 0)
			continue;
		if (fds[0].revents)
			return;
		got = recv(CONNECTION, &word, 1, MSG_DONTWAIT);
		if (got == 1 && word == GCR_LAUNCH_NO_WRITES)
			stop_writes(pid);
		if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)))
			continue;
		/* The daemon has died. */
		fds[1].fd = -1;
		if (!ends_with_daemon)
			continue;
		kill(-pid, SIGKILL);
		kill(pid, SIGKILL);
	}
}

/*
 * Has the daemon given up this launcher, because it did not answer in time? Then the daemon expects
 * no program.
 */
static bool is_given_up(void)
{
	struct pollfd connection = {.fd = CONNECTION, .events = POLLRDHUP};

	return poll(&connection, 1, 0) != 0;
}

static int run(const struct order *order)
{
	int pidfd, status, r;
	pid_t pid;

	if (is_given_up())
		return fail("the daemon does not wait any more", ETIMEDOUT);
	r = gcr_program_start(&order->program, &pid, &pidfd);
	if (r < 0) {
		tell(GCR_LAUNCH_FAILED, r, NULL);
		return fail(order->program.path, -r);
	}
	/* Without the pidfd the daemon could not kill the program. */
	if (tell(GCR_LAUNCH_STARTED, pid, &pidfd) < 0)
		kill(pid, SIGKILL);
	for (size_t i = 0; i < order->fds_count; i++)
		close(order->fds[i]);
	serve(pid, pidfd, order->program.ends_with_starter);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return fail("the program cannot be waited for", errno);
	tell(GCR_LAUNCH_ENDED, status, NULL);
	return EXIT_SUCCESS;
}

int main(void)
{
	static struct order order; /* lives until the program ends, never freed */
	char byte;
	int r;

	/* If SIGCHLD were ignored, the program's exit status would be lost. */
	signal(SIGCHLD, SIG_DFL);
	r = check_peer();
	if (r < 0)
		return fail("only root's gpucrfs is served", -r);
	r = receive_order(&order);
	if (!r)
		r = tell(GCR_LAUNCH_READY, 0, NULL);
	/* The daemon may have given up by now: then no program must be started. */
	if (!r)
		r = gcr_launch_receive(CONNECTION, &byte, 1, NULL, 0, GCR_LAUNCH_WAIT_MSEC);
	if (!r && byte != GCR_LAUNCH_GO)
		r = -EPROTO;
	if (r < 0)
		return fail("no order", -r);
	return run(&order);
}
