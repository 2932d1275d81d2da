/* SPDX-License-Identifier: MIT */
/*
 * The pool of gpucr-receive processes. A helper that must end is "spent": it counts for its user
 * until it has ended, and for PENALTY_USEC at least. pool.lock protects the lists and is a leaf
 * lock; the only wait under it is that for a free helper (a condition variable), with a deadline.
 */
#include "fs/helper/receiver.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/base/credentials.h"
#include "fs/base/log.h"
#include "fs/base/loop.h"
#include "fs/base/quota.h"
#include "fs/daemon.h"
#include "fs/helper/helper_process.h"
#include "fs/helper/peer.h"
#include "fs/helper/receiver_protocol.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/lock.h"
#include "lib/program.h"

#define HELPERS_MAX	8
#define SPENT_USER_MAX	2
#define ANSWER_USEC	(1 * GCR_USEC_PER_SEC)
#define FREE_WAIT_USEC	(1 * GCR_USEC_PER_SEC)
#define PENALTY_USEC	(1 * GCR_USEC_PER_SEC) /* a spent helper counts for this time at least */
#define BUSY_WAIT_USEC	(3 * PENALTY_USEC)
#define BUSY_PAUSE_USEC (20 * GCR_USEC_PER_MSEC)
#define SAY_USEC	(1 * GCR_USEC_PER_SEC)
#define DISCARDED_MAX	512 /* packets that are discarded before a connection is closed */
#define LINKS_MAX	(GCR_BACKENDS_COUNT * GCR_MEMORY_LINKS_MAX)

/* Event numbers of the loop. */
#define NUMBER_END   0
#define NUMBER_TIMER 1

struct receiver {
	pid_t pid;
	int pidfd;
	int socket;
	uint32_t sequence;
	struct gcr_message message; /* used by the thread that has taken the helper */
	/* of a spent helper */
	struct receiver *next;
	uid_t owner;
	int64_t since_usec;
	bool is_close;
	bool has_ended;
	struct gcr_quota_charge charge; /* of the connections that are closed by its end */
};

/*
 * Connections of one user that no helper can close yet. They are in flight in a socket pair, so
 * that hundreds of them take two descriptors.
 */
struct deferred_closes {
	struct deferred_closes *next;
	int ends[2];
	uid_t owner;
	struct gcr_quota_charge charge;
};

static struct {
	struct gcr_daemon *daemon;
	char *path; /* path of the program; NULL: not started */
	bool keep_stderr;
	char *arguments[1 + LINKS_MAX + 1];
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct receiver *idle[HELPERS_MAX];
	unsigned int idle_count;
	unsigned int count; /* idle helpers, and those in use */
	struct receiver *spent;
	struct deferred_closes *deferred;
	int timer_fd; /* armed while there are any */
	int64_t said_usec;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .timer_fd = -1};

/* ---- one helper ---- */

static int start(struct receiver **ret_receiver)
{
	_cleanup_free_ struct receiver *receiver = calloc(1, sizeof(*receiver));
	int r;

	if (!receiver)
		return -ENOMEM;
	r = gcr_program_start_connected(pool.path, pool.arguments, GCR_RECEIVER_SOCKET,
					pool.keep_stderr, &receiver->pid, &receiver->pidfd,
					&receiver->socket);
	if (r < 0)
		return r;
	*ret_receiver = TAKE_PTR(receiver);
	return 0;
}

/* Reaps the helper if it has ended, and releases its charge. True: it has ended. */
static bool reap(struct receiver *receiver)
{
	if (!receiver->has_ended && waitpid(receiver->pid, NULL, WNOHANG) != 0) {
		receiver->has_ended = true;
		close(receiver->pidfd);
		close(receiver->socket);
		gcr_quota_release(&receiver->charge);
	}
	return receiver->has_ended;
}

static void reap_locked(void)
{
	struct receiver **at = &pool.spent;

	while (*at) {
		struct receiver *receiver = *at;

		if (reap(receiver) && gcr_clock_usec() - receiver->since_usec >= PENALTY_USEC) {
			*at = receiver->next;
			free(receiver);
		} else {
			at = &receiver->next;
		}
	}
}

/*
 * May the owner have one more helper spent? Helpers for closing and for receiving are counted
 * separately, so that refused connections do not delay good ones.
 */
static bool has_share_locked(uid_t owner, bool is_close)
{
	unsigned int count = 0;

	for (const struct receiver *receiver = pool.spent; receiver; receiver = receiver->next)
		count += receiver->owner == owner && receiver->is_close == is_close;
	return count < SPENT_USER_MAX;
}

/* ---- the pool ---- */

/*
 * Takes a helper, which must be given back or spent. -EBUSY: @owner has too many spent helpers;
 * -ETIMEDOUT: no helper became free.
 */
static int take(uid_t owner, bool is_close, struct receiver **ret_receiver)
{
	int64_t until_usec = gcr_clock_usec() + FREE_WAIT_USEC;
	int r = 0;

	if (!pool.path)
		return -EIO;
	pthread_mutex_lock(&pool.lock);
	reap_locked();
	if (!has_share_locked(owner, is_close)) {
		pthread_mutex_unlock(&pool.lock);
		return -EBUSY;
	}
	while (!pool.idle_count && pool.count == HELPERS_MAX && !r)
		r = gcr_cond_wait_until(&pool.changed, &pool.lock, until_usec);
	if (pool.idle_count) {
		*ret_receiver = pool.idle[--pool.idle_count];
		(*ret_receiver)->is_close = is_close;
		pthread_mutex_unlock(&pool.lock);
		return 0;
	}
	if (pool.count == HELPERS_MAX) {
		pthread_mutex_unlock(&pool.lock);
		return -ETIMEDOUT;
	}
	pool.count++;
	pthread_mutex_unlock(&pool.lock);
	r = start(ret_receiver);
	if (r < 0) {
		GCR_LOCK_SCOPE(&pool.lock);

		pool.count--;
		pthread_cond_signal(&pool.changed);
		return r;
	}
	(*ret_receiver)->is_close = is_close;
	return 0;
}

static void give_back(struct receiver *receiver)
{
	GCR_LOCK_SCOPE(&pool.lock);
	pool.idle[pool.idle_count++] = receiver;
	pthread_cond_signal(&pool.changed);
}

/* Gives up a helper, which ends, or may hang for ever; the loop reports its end. */
static void spend(struct receiver *receiver, uid_t owner)
{
	receiver->owner = owner;
	receiver->since_usec = gcr_clock_usec();
	gcr_loop_add(pool.daemon->loop, receiver->pidfd, GCR_LOOP_RECEIVER, NUMBER_END);

	GCR_LOCK_SCOPE(&pool.lock);
	pool.count--;
	pthread_cond_signal(&pool.changed);
	receiver->next = pool.spent;
	pool.spent = receiver;
}

static void kill_receiver(const struct receiver *receiver)
{
	syscall(SYS_pidfd_send_signal, receiver->pidfd, SIGKILL, NULL, 0);
}

/* ---- peers ---- */

/*
 * The process that connected. The kernel has recorded it, whichever process holds the other end
 * now.
 */
static struct ucred peer_of(int socket)
{
	struct ucred peer = {.uid = (uid_t)-1};
	socklen_t size = sizeof(peer);

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
		peer = (struct ucred){.uid = (uid_t)-1};
	return peer;
}

/* As gcr_credentials_counted(), for a process whose pid may have been reused. */
static uid_t counted_of(int socket, const struct ucred *peer)
{
	struct pollfd end = {.events = POLLIN};
	_cleanup_close_ int pidfd = -1;
	uid_t counted;

	if (peer->uid)
		return peer->uid;
	pidfd = end.fd = gcr_peer_open_pidfd(socket, peer->pid);
	counted = gcr_credentials_counted(peer->pid, peer->uid);
	return pidfd < 0 || poll(&end, 1, 0) ? GCR_QUOTA_OTHER_ROOT : counted;
}

/*
 * The user for whom spent helpers count, as for quotas: root of a container is not the host's root.
 */
static uid_t owner_of(int socket, const struct ucred *peer)
{
	uid_t counted = counted_of(socket, peer);

	return pool.daemon && pool.daemon->quota ? gcr_quota_owner(pool.daemon->quota, counted)
						 : counted;
}

/*
 * May a refusal be logged now? The rate is limited, so that a peer that tries again and again does
 * not fill the log.
 */
static bool may_say(void)
{
	int64_t now_usec = gcr_clock_usec();

	GCR_LOCK_SCOPE(&pool.lock);
	if (pool.said_usec && now_usec - pool.said_usec < SAY_USEC)
		return false;
	pool.said_usec = now_usec;
	return true;
}

static void say_refusal(const struct ucred *peer, int result, const char *link)
{
	if (!may_say())
		return;
	if (result == -EBADF)
		gcr_log(LOG_WARNING, peer->pid,
			"connection of user %u dropped: it sent a descriptor that is not due: %s",
			(unsigned int)peer->uid, link);
	else if (result == -EBUSY)
		gcr_log(LOG_WARNING, peer->pid,
			"connection of user %u dropped: descriptors that its user sent keep "
			"helpers from ending",
			(unsigned int)peer->uid);
	else
		gcr_log(LOG_WARNING, peer->pid,
			"connection of user %u dropped: its message cannot be received: %s",
			(unsigned int)peer->uid, strerror(-result));
}

/* ---- receiving ---- */

/* The descriptors that are expected with a message of @type. */
static struct gcr_receiver_request due_with(uint16_t type, bool awaits_handles)
{
	if (type == GCR_MESSAGE_REGISTER || type == GCR_MESSAGE_RESULT)
		return (struct gcr_receiver_request){GCR_RECEIVER_MEMORY, 1};
	if (type == GCR_MESSAGE_HANDLES && awaits_handles)
		return (struct gcr_receiver_request){GCR_RECEIVER_GPU, GCR_MESSAGE_FDS_MAX};
	return (struct gcr_receiver_request){GCR_RECEIVER_NONE, 0};
}

/*
 * Unpacks the helper's reply: the message with its descriptors becomes *ret_message. Returns 0, or
 * the reply's error as -errno.
 */
static int unpack(struct gcr_message *from, struct gcr_receiver_reply *ret_reply,
		  struct gcr_message *ret_message)
{
	size_t bytes = from->payload_bytes - sizeof(*ret_reply);

	gcr_message_payload(from, ret_reply, sizeof(*ret_reply));
	gcr_message_terminate(ret_reply->link);
	if (ret_reply->error)
		return -ret_reply->error;
	ret_message->header = ret_reply->header;
	ret_message->payload_bytes = bytes;
	memcpy(ret_message->payload, from->payload + sizeof(*ret_reply), bytes);
	ret_message->fds_count = from->fds_count;
	memcpy(ret_message->fds, from->fds, from->fds_count * sizeof(int));
	from->fds_count = 0;
	return 0;
}

static bool is_reply(const struct receiver *receiver)
{
	const struct gcr_message *message = &receiver->message;

	return message->header.type == GCR_RECEIVER_REPLY &&
	       message->header.sequence == receiver->sequence &&
	       message->payload_bytes >= sizeof(struct gcr_receiver_reply);
}

/*
 * Sends a request; retries with another helper if one has been killed while it was idle, so that no
 * message is lost.
 */
static int take_and_send(uid_t owner, uint16_t type, const struct gcr_receiver_request *request,
			 int socket, struct receiver **ret_receiver)
{
	for (int tries = 0;; tries++) {
		int r = take(owner, type == GCR_RECEIVER_CLOSE, ret_receiver);

		if (r < 0)
			return r;
		r = gcr_message_send((*ret_receiver)->socket, type, ++(*ret_receiver)->sequence,
				     request, sizeof(*request), &socket, 1);
		if (!r)
			return 0;
		kill_receiver(*ret_receiver);
		spend(*ret_receiver, (uid_t)-1);
		if (tries == HELPERS_MAX)
			return -EIO;
	}
}

/*
 * Lets a helper receive the message. -EAGAIN, -EBADF, -EPIPE, -EPROTO: the error in the reply;
 * -EBUSY, -ETIMEDOUT, -EIO: no helper has received the message.
 */
static int receive_by_helper(int socket, uint16_t type, bool awaits_handles,
			     const struct ucred *peer, struct gcr_receiver_reply *ret_reply,
			     struct gcr_message *ret_message)
{
	struct gcr_receiver_request request = due_with(type, awaits_handles);
	uid_t owner = owner_of(socket, peer);
	struct receiver *receiver;
	int r = take_and_send(owner, GCR_RECEIVER_REQUEST, &request, socket, &receiver);

	if (r < 0)
		return r;
	r = gcr_message_receive(receiver->socket, ANSWER_USEC, -1, &receiver->message);
	if (r < 0 || !is_reply(receiver)) {
		if (r == 0)
			gcr_message_close_fds(&receiver->message);
		kill_receiver(receiver);
		spend(receiver, owner);
		return r == -ETIMEDOUT ? r : -EIO;
	}
	r = unpack(&receiver->message, ret_reply, ret_message);
	if (r == -EBADF)
		spend(receiver, owner);
	else
		give_back(receiver);
	return r;
}

int gcr_receiver_receive(int socket, int64_t timeout_usec, int wake_fd, bool awaits_handles,
			 struct gcr_message *ret_message)
{
	int64_t deadline_usec = timeout_usec < 0 ? -1 : gcr_clock_usec() + timeout_usec;
	struct pollfd wake = {.fd = wake_fd, .events = POLLIN};
	struct gcr_receiver_reply reply = {0};
	struct gcr_message_header header;
	int64_t waited_usec = 0;
	struct ucred peer;
	bool has_fds;
	int r;

	for (;;) {
		int64_t left_usec = deadline_usec < 0 ? -1 : deadline_usec - gcr_clock_usec();

		if (deadline_usec >= 0 && left_usec < 0)
			left_usec = 0;
		ret_message->fds_count = 0;
		r = gcr_message_peek(socket, left_usec, wake_fd, &header, &has_fds);
		if (r < 0)
			return r;
		/*
		 * No other thread receives from this socket: the next message is the one peeked at.
		 */
		if (!has_fds)
			return gcr_message_receive(socket, 0, -1, ret_message);
		peer = peer_of(socket);
		r = receive_by_helper(socket, header.type, awaits_handles, &peer, &reply,
				      ret_message);
		if (r == -EAGAIN)
			continue;
		if (r == 0 || r == -EPIPE)
			return r;
		/*
		 * Other programs of the user have used up the helpers: one becomes available soon.
		 */
		if (r == -EBUSY && left_usec && waited_usec < BUSY_WAIT_USEC) {
			waited_usec += BUSY_PAUSE_USEC;
			if (poll(&wake, 1, BUSY_PAUSE_USEC / GCR_USEC_PER_MSEC) == 1)
				return -EINTR;
			continue;
		}
		if (r != -EPROTO)
			say_refusal(&peer, r, reply.link);
		shutdown(socket, SHUT_RDWR);
		return -EPROTO;
	}
}

/* ---- closing ---- */

/*
 * Is there a packet with descriptors? The packets before it are received and discarded. With
 * SO_PASSCRED each packet, an empty one too, has control data, which the end of the connection has
 * not. The control buffer has no room for descriptors: none is installed. True also if the answer
 * is not known, as a helper can then close the connection.
 */
static bool has_descriptors(int socket)
{
	const int on = 1;
	char byte;

	if (setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0)
		return true;
	for (int i = 0; i < DISCARDED_MAX; i++) {
		union {
			struct cmsghdr header;
			char space[CMSG_SPACE(sizeof(struct ucred))];
		} control;
		struct iovec part = {.iov_base = &byte, .iov_len = sizeof(byte)};
		struct msghdr packet = {
			.msg_iov = &part,
			.msg_iovlen = 1,
			.msg_control = &control,
			.msg_controllen = sizeof(control),
		};

		if (recvmsg(socket, &packet, MSG_PEEK | MSG_DONTWAIT) < 0) {
			/* The peer has closed with unread data: its packets are still there. */
			if (errno == EINTR || errno == ECONNRESET)
				continue;
			return errno != EAGAIN;
		}
		if (packet.msg_flags & MSG_CTRUNC)
			return true;
		if (!packet.msg_controllen)
			return false;
		/* The packet is truncated, which does not matter. */
		recv(socket, &byte, sizeof(byte), MSG_DONTWAIT);
	}
	return true;
}

/*
 * Lets a helper close the connection: the helper holds the last descriptor, and ends (or hangs)
 * after we have closed ours. @charge is released with the helper.
 */
static bool close_by_helper(int socket, uid_t owner, struct gcr_quota_charge *charge)
{
	struct gcr_receiver_request request = {0};
	struct receiver *receiver;

	if (take_and_send(owner, GCR_RECEIVER_CLOSE, &request, socket, &receiver) < 0)
		return false;
	close(socket);
	receiver->charge = *charge;
	*charge = (struct gcr_quota_charge){0};
	shutdown(receiver->socket, SHUT_WR);
	spend(receiver, owner);
	return true;
}

/*
 * Sends the socket through the pair: while it is in flight, closing our descriptor does not close
 * it.
 */
static bool add_socket(const struct deferred_closes *deferred, int socket)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec part = {.iov_base = (char[]){0}, .iov_len = 1};
	struct msghdr packet = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};

	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.header), &socket, sizeof(int));
	return sendmsg(deferred->ends[0], &packet, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

/* Has deferred connections closed after PENALTY_USEC. Lock: pool. */
static void try_later_locked(void)
{
	const struct itimerspec when = {.it_value.tv_sec = PENALTY_USEC / GCR_USEC_PER_SEC};

	timerfd_settime(pool.timer_fd, 0, &when, NULL);
}

static struct deferred_closes *new_deferred_locked(uid_t owner)
{
	struct deferred_closes *deferred = calloc(1, sizeof(*deferred));

	if (!deferred)
		return NULL;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, deferred->ends) < 0) {
		free(deferred);
		return NULL;
	}
	deferred->owner = owner;
	deferred->next = pool.deferred;
	pool.deferred = deferred;
	return deferred;
}

/*
 * Defers closing the connection. Without memory the socket stays open, and counted, as closing it
 * could block.
 */
static void defer_close(int socket, uid_t owner, struct gcr_quota_charge *charge)
{
	struct deferred_closes *deferred;

	GCR_LOCK_SCOPE(&pool.lock);
	for (deferred = pool.deferred; deferred; deferred = deferred->next)
		if (deferred->owner == owner && add_socket(deferred, socket))
			break;
	if (!deferred) {
		deferred = new_deferred_locked(owner);
		if (!deferred || !add_socket(deferred, socket))
			return;
	}
	close(socket);
	try_later_locked();
	/* All connections of one entry count for the same user, in the same kind of quota. */
	if (charge->amount)
		charge->amount += deferred->charge.amount;
	if (charge->amount)
		deferred->charge = *charge;
	*charge = (struct gcr_quota_charge){0};
}

/* Tries again to close deferred connections: one helper closes all those of an entry. */
static void close_deferred(void)
{
	struct deferred_closes *list, *deferred;

	{
		GCR_LOCK_SCOPE(&pool.lock);

		reap_locked();
		list = TAKE_PTR(pool.deferred);
	}
	while ((deferred = list)) {
		int sending = deferred->ends[0];

		list = deferred->next;
		/*
		 * Closing the sending end cannot block: the messages in flight belong to the other
		 * end.
		 */
		if (close_by_helper(deferred->ends[1], deferred->owner, &deferred->charge)) {
			close(sending);
			free(deferred);
			continue;
		}
		GCR_LOCK_SCOPE(&pool.lock);
		deferred->next = pool.deferred;
		pool.deferred = deferred;
		try_later_locked();
	}
}

/* Handler of the loop: a helper has ended, or the penalty of ended ones may be over. */
static void handle_end(void *context, uint32_t number)
{
	uint64_t times;

	if (number == NUMBER_TIMER && read(pool.timer_fd, &times, sizeof(times)) < 0)
		return;
	close_deferred();
}

void gcr_receiver_close(int socket, struct gcr_quota_charge *charge)
{
	struct gcr_quota_charge own = {0};
	struct ucred peer;
	uid_t owner;

	if (socket < 0)
		return;
	if (!charge)
		charge = &own;
	peer = peer_of(socket);
	owner = charge->amount ? charge->owner : owner_of(socket, &peer);
	close_deferred();
	/* No more messages can arrive from here on. */
	shutdown(socket, SHUT_RDWR);
	if (!has_descriptors(socket)) {
		close(socket);
		gcr_quota_release(charge);
		return;
	}
	/* A connection over its user's limit is counted too as long as it exists. */
	if (!charge->amount)
		gcr_quota_count(pool.daemon ? pool.daemon->quota : NULL, GCR_QUOTA_CONNECTIONS,
				owner, 1, charge);
	if (!close_by_helper(socket, owner, charge))
		defer_close(socket, owner, charge);
}

/* ---- its life ---- */

static void collect_links(struct gcr_daemon *daemon)
{
	static char name[] = GCR_RECEIVER_PROGRAM;
	size_t count = 0;

	pool.arguments[count++] = name;
	for (size_t i = 0; i < GCR_BACKENDS_COUNT; i++)
		for (char **link = daemon->vendors[i].memory_links; *link; link++)
			pool.arguments[count++] = *link;
	pool.arguments[count] = NULL;
}

int gcr_receivers_start(struct gcr_daemon *daemon, const char *helper_directory, bool keep_stderr,
			struct gcr_error *error)
{
	struct receiver *receiver;
	int r;

	r = gcr_helper_find(helper_directory, GCR_RECEIVER_PROGRAM, &pool.path, error);
	if (r < 0)
		return r;
	pool.daemon = daemon;
	pool.keep_stderr = keep_stderr;
	pthread_cond_init(&pool.changed, NULL);
	collect_links(daemon);
	gcr_loop_handle(daemon->loop, GCR_LOOP_RECEIVER, handle_end, NULL);
	pool.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	r = pool.timer_fd < 0
		    ? -errno
		    : gcr_loop_add(daemon->loop, pool.timer_fd, GCR_LOOP_RECEIVER, NUMBER_TIMER);
	if (!r)
		r = take((uid_t)-1, false, &receiver);
	if (r < 0) {
		gcr_error_set(error, EIO, "%s cannot be started: %s", pool.path, strerror(-r));
		gcr_receivers_stop();
		return -EIO;
	}
	give_back(receiver);
	return 0;
}

void gcr_receivers_stop(void)
{
	if (!pool.path)
		return;
	while (pool.idle_count) {
		struct receiver *receiver = pool.idle[--pool.idle_count];

		kill_receiver(receiver);
		waitpid(receiver->pid, NULL, 0);
		close(receiver->pidfd);
		close(receiver->socket);
		free(receiver);
	}
	while (pool.spent) {
		struct receiver *receiver = pool.spent;

		pool.spent = receiver->next;
		reap(receiver);
		gcr_quota_release(&receiver->charge);
		free(receiver);
	}
	/* Closing their descriptors could block: the kernel does that when we have ended. */
	while (pool.deferred) {
		struct deferred_closes *deferred = pool.deferred;

		pool.deferred = deferred->next;
		gcr_quota_release(&deferred->charge);
		free(deferred);
	}
	if (pool.timer_fd >= 0)
		close(pool.timer_fd);
	pool.timer_fd = -1;
	pthread_cond_destroy(&pool.changed);
	free(TAKE_PTR(pool.path));
	pool.count = 0;
}
