/* SPDX-License-Identifier: MIT */
/*
 * Connections of preload libraries. All code runs on the loop's thread, so nothing is locked; a
 * connection is an entry of a fixed table, identified by its index.
 */
#include "fs/process/registry.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "fs/base/credentials.h"
#include "fs/base/log.h"
#include "fs/base/loop.h"
#include "fs/base/quota.h"
#include "fs/base/turns.h"
#include "fs/helper/looker.h"
#include "fs/helper/peer.h"
#include "fs/helper/receiver.h"
#include "fs/process/library.h"
#include "fs/process/process.h"
#include "fs/process/process_private.h"
#include "fs/process/vendor.h"
#include "fs/process/wanted.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/message.h"
#include "lib/proc_page.h"

#define CONNECTIONS_MAX 4096
#define BACKLOG		64
/* Minimum time between two log messages about peers: a broken peer must not fill the log. */
#define COMPLAIN_USEC	(1 * GCR_USEC_PER_SEC)
#define PAUSE_MSEC	20
/*
 * One part in USER_PART of the table is reserved for root. If the descriptor limit reduces the
 * table, a user may have no more than such a part.
 */
#define USER_PART	8
/*
 * A library registers at once. A connection that has not registered after this time may be dropped
 * when the table or a user's quota is full.
 */
#define SILENT_USEC	(5 * GCR_USEC_PER_SEC)
/* Minimum time between two searches for connections to drop. */
#define SWEEP_USEC	(100 * GCR_USEC_PER_MSEC)

struct connection {
	int fd; /* -1: free */
	struct gcr_peer peer;
	struct gcr_quota_charge charge;
	int64_t accepted_usec;
	struct gcr_process *process; /* once registered */
	bool is_refused;	     /* registered, but not served */
	struct gcr_library *library; /* once registered, unless the library is too old; owns `fd` */
};

struct gcr_registry {
	struct gcr_daemon *daemon;
	int listener;
	int spare_fd;  /* closed for a moment when no other descriptor is left */
	uint32_t most; /* maximum of connections: descriptors have other uses too */
	int64_t complained_usec;
	int64_t swept_usec;
	struct gcr_message message; /* large, and used by one thread only */
	struct connection connections[CONNECTIONS_MAX];
};

static void complain(struct gcr_registry *registry, pid_t pid, const char *words)
{
	int64_t now_usec = gcr_clock_usec();

	if (registry->complained_usec && now_usec - registry->complained_usec < COMPLAIN_USEC)
		return;
	registry->complained_usec = now_usec;
	gcr_log(LOG_WARNING, pid, "connection dropped: %s", words);
}

/* Ends a connection: closes it, releases the claim on its process, and frees its entry. */
static void drop(struct gcr_registry *registry, struct connection *connection)
{
	struct gcr_process *process = connection->process;

	gcr_loop_remove(registry->daemon->loop, connection->fd);
	if (connection->library)
		gcr_library_end(connection->library, &connection->charge);
	else
		gcr_receiver_close(connection->fd, &connection->charge);
	if (process)
		gcr_process_unclaim(process, GCR_CLAIM_LIBRARY);
	gcr_process_unref(process);
	gcr_peer_finish(&connection->peer);
	*connection = (struct connection){.fd = -1};
}

/*
 * Reads the page whose descriptor came with the message. -EPROTO: there was no descriptor, or it is
 * no page.
 */
static int read_page(struct gcr_registry *registry, const struct connection *connection,
		     struct gcr_page_facts *ret_facts)
{
	const struct gcr_message *message = &registry->message;

	return message->fds_count == 1
		       ? gcr_proc_page_facts(connection->peer.pid, message->fds[0], ret_facts)
		       : -EPROTO;
}

/*
 * Keeps a connection without serving it: a program that uses the GPUs of two vendors is served for
 * one only. The other library's connection stays open, so that the library does not reconnect again
 * and again.
 */
static void refuse(struct connection *connection, struct gcr_process *process,
		   const struct gcr_vendor *vendor)
{
	connection->is_refused = true;
	if (process && !atomic_exchange(&process->has_other_vendor, true))
		gcr_log(LOG_WARNING, connection->peer.pid,
			"uses GPUs of %s and of %s, and can be frozen on neither",
			process->vendor->backend->vendor, vendor->backend->vendor);
}

/* May the peer register? If not, drops the connection. */
static bool check_peer(struct gcr_registry *registry, struct connection *connection)
{
	int r = gcr_peer_check(&connection->peer);

	if (r == 0)
		return true;
	complain(registry, connection->peer.pid,
		 r == -EPERM	? "its process has another user's rights now"
		 : r == -EACCES ? "its process has another program now"
				: "its process has ended");
	drop(registry, connection);
	return false;
}

static void register_process(struct gcr_registry *registry, struct connection *connection,
			     struct gcr_vendor *vendor)
{
	struct gcr_register registration;
	struct gcr_process *process;
	int result;

	if (!vendor->is_here) {
		/* A library that has handed over memory takes it back while no daemon answers. */
		gcr_message_payload(&registry->message, &registration, sizeof(registration));
		if (registration.phase > GCR_PRELOAD_RUNNING)
			drop(registry, connection);
		else
			refuse(connection, NULL, vendor);
		return;
	}
	result = gcr_processes_claim_library(registry->daemon->processes, connection->peer.pid,
					     connection->peer.start_ticks, vendor, &process);
	if (result < 0) {
		/* The library retries after a moment. */
		if (result != -ENOENT && result != -ESRCH && result != -EAGAIN)
			complain(registry, connection->peer.pid, strerror(-result));
		drop(registry, connection);
	} else if (process->vendor != vendor) {
		refuse(connection, process, vendor);
		gcr_process_unclaim(process, GCR_CLAIM_LIBRARY);
		gcr_process_unref(process);
	} else {
		connection->process = process;
	}
}

/* Creates the library, now that the connection's process is known. */
static void make_library(struct gcr_registry *registry, struct connection *connection,
			 const struct gcr_page_facts *facts)
{
	struct gcr_message *message = &registry->message;
	struct gcr_register registration;

	gcr_message_payload(message, &registration, sizeof(registration));
	if (gcr_library_is_live(connection->process)) {
		complain(registry, connection->peer.pid,
			 "its process has another connection that is in use");
		drop(registry, connection);
		return;
	}
	/* A verb may take the library at once, and the loop already watches its descriptor. */
	if (gcr_library_create(connection->process, connection->fd,
			       (uint32_t)(connection - registry->connections),
			       &connection->peer.program, connection->peer.owner, &registration,
			       TAKE_FD(message->fds[0]), facts, &connection->library) < 0) {
		complain(registry, connection->peer.pid, strerror(ENOMEM));
		drop(registry, connection); /* the library connects again */
		return;
	}
	gcr_wanted_look(connection->process);
	gcr_process_tell_registered(connection->process);
}

/*
 * Handles a REGISTER message. A library without a page is so old that it can only be the first
 * vendor's, and its process can only be frozen by the driver.
 */
static void handle_registration(struct gcr_registry *registry, struct connection *connection)
{
	struct gcr_page_facts facts = {0};
	int r;

	if (connection->process || connection->is_refused)
		return;
	r = read_page(registry, connection, &facts);
	/*
	 * After reading, which may take a while: the process may have become another user's
	 * program.
	 */
	if (!check_peer(registry, connection))
		return;
	if (r < 0 && r != -EPROTO) {
		complain(registry, connection->peer.pid, "its page cannot be read now");
		drop(registry, connection);
		return;
	}
	if (r < 0 && registry->message.fds_count)
		complain(registry, connection->peer.pid, "its page is not as it should be");
	register_process(registry, connection,
			 gcr_vendor_of_library(registry->daemon, facts.flags));
	if (r == 0 && connection->process)
		make_library(registry, connection, &facts);
}

/* Receives and handles one message of the connection's library. */
static void serve(struct gcr_registry *registry, struct connection *connection)
{
	int result;

	if (connection->library)
		result = gcr_library_look(connection->library, &registry->message);
	else
		result = gcr_receiver_receive(connection->fd, 0, -1, false, &registry->message);
	if (result == -ETIMEDOUT)
		return;
	if (!result && connection->library) {
		/* Other messages are answers to abandoned requests. */
		if (registry->message.header.type == GCR_MESSAGE_WANTED)
			gcr_wanted_look(connection->process);
		gcr_message_close_fds(&registry->message);
		return;
	}
	if (result == -EPIPE) {
		drop(registry, connection);
	} else if (result < 0) {
		complain(registry, connection->peer.pid, "it does not speak our protocol");
		drop(registry, connection);
	} else if (registry->message.header.type != GCR_MESSAGE_REGISTER) {
		complain(registry, connection->peer.pid, "it sent an unexpected message");
		drop(registry, connection);
	} else {
		handle_registration(registry, connection);
	}
	if (!result)
		gcr_message_close_fds(&registry->message);
}

/*
 * May the loop's thread, which serves all users, spend time on the peer of @fd? Its user, as
 * counted before the process has been looked at, is the one to whom the time counts.
 */
static bool may_take_time(struct gcr_registry *registry, int fd, uid_t *ret_user)
{
	socklen_t size = sizeof(struct ucred);
	struct ucred peer;

	*ret_user = GCR_QUOTA_OTHER_ROOT;
	gcr_looker_hurry();
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
		return false;
	*ret_user = gcr_credentials_seem_counted(peer.pid, peer.uid);
	if (gcr_turn_may_connect(registry->daemon->quota, *ret_user))
		return true;
	complain(registry, peer.pid, "looks at its user's processes have taken too long");
	return false;
}

static void handle_connection(void *context, uint32_t number)
{
	struct gcr_registry *registry = context;
	struct connection *connection = &registry->connections[number];
	int64_t before_usec = gcr_looker_waited_usec();
	uid_t user;

	if (connection->fd < 0)
		return;
	/* A library that has registered may be needed for a process that is frozen. */
	if (!may_take_time(registry, connection->fd, &user) && !connection->process) {
		drop(registry, connection);
		return;
	}
	serve(registry, connection);
	gcr_turn_connected(registry->daemon->quota, user, gcr_looker_waited_usec() - before_usec);
}

/*
 * Accepts and closes a connection for which no descriptor is left: the listener would report it
 * again at once, forever.
 */
static void turn_away(struct gcr_registry *registry)
{
	int fd;

	close(registry->spare_fd);
	fd = accept4(registry->listener, NULL, NULL, SOCK_CLOEXEC);
	if (fd >= 0)
		gcr_receiver_close(fd, NULL);
	else
		/* Another thread may have taken the descriptor: the loop would spin. */
		poll(NULL, 0, PAUSE_MSEC);
	registry->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	complain(registry, 0, "no descriptor is left");
}

/* May this connection be dropped to make room for another? */
static bool is_spare(const struct connection *connection, int64_t now_usec)
{
	if (connection->fd < 0)
		return false;
	if (!connection->process && now_usec - connection->accepted_usec >= SILENT_USEC)
		return true;
	return !gcr_peer_is_alive(&connection->peer);
}

/* Drops all connections that may be dropped; does so at most every SWEEP_USEC. */
static void sweep(struct gcr_registry *registry)
{
	int64_t now_usec = gcr_clock_usec();

	if (registry->swept_usec && now_usec - registry->swept_usec < SWEEP_USEC)
		return;
	registry->swept_usec = now_usec;
	for (uint32_t i = 0; i < registry->most; i++)
		if (is_spare(&registry->connections[i], now_usec))
			drop(registry, &registry->connections[i]);
}

/*
 * A free entry for a connection of @uid (see gcr_credentials_counted()), or NULL. A part of the
 * table is reserved for root.
 */
static struct connection *find_place(struct gcr_registry *registry, uid_t uid)
{
	bool is_limited = gcr_quota_is_limited(registry->daemon->quota, uid);
	struct connection *place = NULL;
	uint32_t used = 0;

	for (uint32_t i = 0; i < registry->most; i++) {
		struct connection *connection = &registry->connections[i];

		if (connection->fd < 0)
			place = place ? place : connection;
		else
			used++;
	}
	return is_limited && used >= registry->most - registry->most / USER_PART ? NULL : place;
}

/* The same, charged to the user's quota. NULL, with @error set, if there is no room. */
static struct connection *take_place(struct gcr_registry *registry, uid_t uid,
				     struct gcr_quota_charge *charge, struct gcr_error *error)
{
	struct connection *place = find_place(registry, uid);

	if (!place)
		gcr_error_set(error, EAGAIN, "too many connections");
	else if (gcr_quota_take(registry->daemon->quota, GCR_QUOTA_CONNECTIONS, uid, 1, charge,
				error) < 0)
		place = NULL;
	return place;
}

static void close_connection(const int *fd)
{
	if (*fd >= 0)
		gcr_receiver_close(*fd, NULL);
}

/* Makes an entry for the new connection @fd, which is then the entry's. */
static void admit(struct gcr_registry *registry, int *fd)
{
	_cleanup_(gcr_quota_release) struct gcr_quota_charge charge = {0};
	_cleanup_(gcr_peer_finish) struct gcr_peer peer = {.pidfd = -1};
	struct connection *connection;
	struct gcr_error error;
	uid_t counted;

	if (gcr_peer_identify(*fd, &peer) < 0) {
		complain(registry, 0, "its process has ended");
		return;
	}
	if (registry->daemon->only_uid != (uid_t)-1 && peer.uid != registry->daemon->only_uid)
		return;
	counted = gcr_credentials_counted(peer.pid, peer.uid);
	/* The pid may have been reused for a process without limits. */
	if (!gcr_peer_is_alive(&peer))
		return;
	connection = take_place(registry, counted, &charge, &error);
	if (!connection) {
		sweep(registry);
		connection = take_place(registry, counted, &charge, &error);
	}
	if (!connection) {
		complain(registry, peer.pid, error.words);
		return;
	}
	if (gcr_loop_add(registry->daemon->loop, *fd, GCR_LOOP_CONNECTION,
			 (uint32_t)(connection - registry->connections)) < 0)
		return;
	*connection = (struct connection){
		.fd = TAKE_FD(*fd),
		.peer = peer,
		.charge = charge,
		.accepted_usec = gcr_clock_usec(),
	};
	peer.pidfd = -1;
	charge = (struct gcr_quota_charge){0};
}

static void handle_listener(void *context, uint32_t number)
{
	struct gcr_registry *registry = context;
	_cleanup_(close_connection) int fd =
		accept4(registry->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	int64_t before_usec = gcr_looker_waited_usec();
	uid_t user;

	if (fd < 0 && (errno == EMFILE || errno == ENFILE))
		turn_away(registry);
	if (fd < 0 || !may_take_time(registry, fd, &user))
		return;
	admit(registry, &fd);
	gcr_turn_connected(registry->daemon->quota, user, gcr_looker_waited_usec() - before_usec);
}

static int listen_at(struct gcr_daemon *daemon, int *ret_listener)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	_cleanup_close_ int listener = -1;

	/* By the descriptor: the directory's path may be longer than sun_path. */
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/socket",
		 daemon->runtime_fd);
	unlinkat(daemon->runtime_fd, "socket", 0);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    fchmodat(daemon->runtime_fd, "socket", daemon->only_uid == (uid_t)-1 ? 0666 : 0600, 0) <
		    0 ||
	    listen(listener, BACKLOG) < 0)
		return -errno;
	*ret_listener = TAKE_FD(listener);
	return 0;
}

int gcr_registry_create(struct gcr_daemon *daemon, struct gcr_registry **ret_registry,
			struct gcr_error *error)
{
	_cleanup_free_ struct gcr_registry *registry = calloc(1, sizeof(*registry));
	struct rlimit limit;
	int result;

	if (!registry)
		return gcr_error_set(error, ENOMEM, "out of memory");
	registry->daemon = daemon;
	registry->most = CONNECTIONS_MAX;
	/* Each connection needs up to three descriptors: socket, pidfd and the library's page. */
	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur / 6 < registry->most)
		registry->most = (uint32_t)(limit.rlim_cur / 6);
	if (registry->most < CONNECTIONS_MAX)
		gcr_quota_lower(daemon->quota, GCR_QUOTA_CONNECTIONS, registry->most / USER_PART);
	registry->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	for (size_t i = 0; i < CONNECTIONS_MAX; i++)
		registry->connections[i].fd = -1;
	result = listen_at(daemon, &registry->listener);
	if (result < 0)
		return gcr_error_set(error, -result, "cannot listen on the socket in %s: %s",
				     daemon->options.runtime_directory, strerror(-result));
	gcr_loop_handle(daemon->loop, GCR_LOOP_LISTENER, handle_listener, registry);
	gcr_loop_handle(daemon->loop, GCR_LOOP_CONNECTION, handle_connection, registry);
	result = gcr_loop_add(daemon->loop, registry->listener, GCR_LOOP_LISTENER, 0);
	if (result < 0) {
		close(registry->listener);
		close(registry->spare_fd);
		return gcr_error_set(error, -result, "cannot watch the socket");
	}
	*ret_registry = TAKE_PTR(registry);
	return 0;
}

void gcr_registry_destroy(struct gcr_registry *registry)
{
	int fd;

	if (!registry)
		return;
	unlinkat(registry->daemon->runtime_fd, "socket", 0);
	/* No more connections can arrive; those in the queue may have sent messages already. */
	shutdown(registry->listener, SHUT_RDWR);
	while ((fd = accept4(registry->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		gcr_receiver_close(fd, NULL);
	close(registry->listener);
	close(registry->spare_fd);
	for (size_t i = 0; i < CONNECTIONS_MAX; i++)
		if (registry->connections[i].fd >= 0)
			drop(registry, &registry->connections[i]);
	free(registry);
}
