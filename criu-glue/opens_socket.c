/* SPDX-License-Identifier: MIT */
/*
 * Sockets, pipes and pseudo-terminals: files with a peer. The protocol of a socket is read from the
 * socket file system (the attribute that lsof(8) uses); the peers of unix sockets are read from the
 * kernel's socket monitor (sock_diag).
 */
#include "criu-glue/opens_private.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <sys/xattr.h>

#define TCP_LISTEN_STATE 0x0a /* include/net/tcp_states.h */
#define TCP_CLOSE_STATE	 0x07

static int compare_ends(const void *a, const void *b)
{
	const struct opens_end *left = a, *right = b;

	if (left->kind != right->kind)
		return left->kind < right->kind ? -1 : 1;
	return left->number < right->number ? -1 : left->number > right->number;
}

void opens_note_end(struct opens_scan *scan, const struct opens_end *end)
{
	struct opens_end *copy = malloc(sizeof(*copy));
	struct opens_end **slot = NULL;
	struct opens_end **larger;

	if (copy) {
		*copy = *end;
		slot = tsearch(copy, &scan->ends_seen, compare_ends);
	}
	if (!slot) {
		scan->failed = true;
		free(copy);
		return;
	}
	if (*slot != copy) {
		/* descriptor 0, 1 or 2 names the end better in messages */
		if (end->is_stdio && !(*slot)->is_stdio) {
			(*slot)->pid = end->pid;
			(*slot)->fd = end->fd;
			(*slot)->is_stdio = true;
		}
		(*slot)->reads |= end->reads;
		(*slot)->writes |= end->writes;
		free(copy);
		return;
	}
	if (!opens_count_nameless(scan))
		return; /* owned by the tree ends_seen */
	if ((scan->ends_count & (scan->ends_count + 1)) == 0) {
		larger = reallocarray(scan->ends, (scan->ends_count + 1) * 2, sizeof(*larger));
		if (!larger) {
			scan->failed = true; /* owned by the tree ends_seen */
			return;
		}
		scan->ends = larger;
	}
	scan->ends[scan->ends_count++] = copy;
}

static bool has_end(const struct opens_scan *scan, int kind, uint64_t number)
{
	struct opens_end wanted = {.kind = kind, .number = number};

	return tfind(&wanted, &scan->ends_seen, compare_ends) != NULL;
}

static int compare_tcp(const void *a, const void *b)
{
	const struct opens_tcp *left = a, *right = b;

	return left->inode < right->inode ? -1 : left->inode > right->inode;
}

/*
 * Fills in the table from @text, a file of /proc/net. Lines without an inode are of sockets that no
 * process has open any more.
 */
static void parse_tcp(struct opens_scan *scan, char *text, struct opens_tcp_table *table)
{
	size_t lines = 0;
	char *rest = text;

	for (const char *c = text; *c; c++)
		lines += *c == '\n';
	table->list = calloc(lines + 1, sizeof(*table->list));
	scan->failed |= !table->list;
	while (table->list && rest && *rest && table->count < lines && !opens_is_over(scan)) {
		const char *line = strsep(&rest, "\n");
		struct opens_tcp *entry = &table->list[table->count];
		unsigned long long inode;

		if (sscanf(line, " %*d: %*s %*s %x %*s %*s %*s %*d %*d %llu", &entry->state,
			   &inode) != 2 ||
		    !inode)
			continue;
		entry->inode = inode;
		table->count++;
	}
	if (table->list)
		qsort(table->list, table->count, sizeof(*table->list), compare_tcp);
}

/*
 * The state of the TCP socket with this inode, or -1. The table, which has the sockets of all
 * users, is read once, for the first socket: so it may lack one that was made later.
 */
static int tcp_state(struct opens_scan *scan, const char *name, struct opens_tcp_table *table,
		     uint64_t inode)
{
	const struct opens_tcp wanted = {.inode = inode};
	const struct opens_tcp *found;
	_cleanup_free_ char *text = NULL;

	if (!table->is_read && gcr_proc_read(scan->pids[0], name, &text, NULL) == 0)
		parse_tcp(scan, text, table);
	table->is_read = true;
	found = table->list
			? bsearch(&wanted, table->list, table->count, sizeof(wanted), compare_tcp)
			: NULL;
	return found ? (int)found->state : -1;
}

void opens_forget_tcp(struct opens_scan *scan)
{
	free(scan->tcp.list);
	free(scan->tcp6.list);
}

/*
 * Is the kernel too new for this CRIU? CRIU before 4.2 queries options of every socket that Linux
 * 6.16 and newer support for some only.
 */
static bool network_is_too_new(const struct opens_scan *scan)
{
	struct utsname name;
	unsigned int major, minor;

	return scan->options->criu_version && scan->options->criu_version < 40200 &&
	       uname(&name) == 0 && sscanf(name.release, "%u.%u", &major, &minor) == 2 &&
	       (major > 6 || (major == 6 && minor >= 16));
}

static void judge_tcp(struct opens_scan *scan, const struct opens_file *file, const char *name,
		      struct opens_tcp_table *table)
{
	int state = tcp_state(scan, name, table, file->status.stx_ino);

	/* Not in the table: neither bound nor connected. */
	if (state < 0 || state == TCP_LISTEN_STATE || state == TCP_CLOSE_STATE)
		return;
	if (scan->options->tcp == GCR_CRIU_TCP_REFUSE)
		opens_refuse(scan, file->pid, file->fd, EBUSY,
			     "is a TCP connection: close it, or say tcp=close or tcp=keep");
}

void opens_judge_socket(struct opens_scan *scan, const struct opens_file *file)
{
	char protocol[64];
	ssize_t length =
		getxattr(file->proc_path, "system.sockprotoname", protocol, sizeof(protocol) - 1);

	if (length < 0)
		return; /* closed in between */
	protocol[length] = '\0';
	if (strcmp(protocol, "UNIX") == 0 || strcmp(protocol, "UNIX-STREAM") == 0) {
		opens_note_end(scan, &(struct opens_end){
					     .kind = END_UNIX,
					     .number = file->status.stx_ino,
					     .pid = file->pid,
					     .fd = file->fd,
					     .is_stdio = file->fd >= 0 && file->fd <= 2,
					     .reads = true,
					     .writes = true,
				     });
		return;
	}
	if (strcmp(protocol, "NETLINK") == 0)
		return;
	if (strncmp(protocol, "TCP", 3) != 0 && strncmp(protocol, "UDP", 3) != 0 &&
	    strncmp(protocol, "RAW", 3) != 0 && strncmp(protocol, "PING", 4) != 0 &&
	    strcmp(protocol, "PACKET") != 0) {
		opens_refuse(scan, file->pid, file->fd, EOPNOTSUPP,
			     "is a socket of a kind that CRIU cannot dump (%s): close it",
			     protocol);
		return;
	}
	if (network_is_too_new(scan)) {
		opens_refuse(scan, file->pid, file->fd, EOPNOTSUPP,
			     "is a network socket (%s), which CRIU before 4.2 cannot dump on Linux "
			     "6.16 and newer: install a newer CRIU, or close it",
			     protocol);
		return;
	}
	if (strcmp(protocol, "TCP") == 0)
		judge_tcp(scan, file, "net/tcp", &scan->tcp);
	if (strcmp(protocol, "TCPv6") == 0)
		judge_tcp(scan, file, "net/tcp6", &scan->tcp6);
}

/* ---- peers of unix sockets ---- */

struct peer {
	uint32_t inode;
	uint32_t peer;
	uint8_t type, state;
	bool is_named;
};

struct peers {
	struct peer *list;
	size_t count;
};

static int add_peer(struct peers *peers, const struct peer *peer)
{
	if ((peers->count & (peers->count + 1)) == 0) {
		struct peer *larger =
			reallocarray(peers->list, (peers->count + 1) * 2, sizeof(*larger));

		if (!larger)
			return -ENOMEM;
		peers->list = larger;
	}
	peers->list[peers->count++] = *peer;
	return 0;
}

static int read_answer(const char *buffer, size_t bytes, struct peers *peers)
{
	const struct nlmsghdr *header = (const void *)buffer;

	for (; NLMSG_OK(header, bytes); header = NLMSG_NEXT(header, bytes)) {
		const struct unix_diag_msg *message = NLMSG_DATA(header);
		const struct rtattr *attribute = (const void *)(message + 1);
		struct peer peer;
		size_t left;
		int r;

		if (header->nlmsg_type == NLMSG_DONE)
			return 1;
		if (header->nlmsg_type == NLMSG_ERROR)
			return -EOPNOTSUPP;
		if (header->nlmsg_len < NLMSG_LENGTH(sizeof(*message)))
			return -EPROTO;
		left = header->nlmsg_len - NLMSG_LENGTH(sizeof(*message));
		peer = (struct peer){
			.inode = message->udiag_ino,
			.type = message->udiag_type,
			.state = message->udiag_state,
		};
		for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
			if (attribute->rta_type == UNIX_DIAG_PEER &&
			    RTA_PAYLOAD(attribute) >= sizeof(peer.peer))
				memcpy(&peer.peer, RTA_DATA(attribute), sizeof(peer.peer));
			if (attribute->rta_type == UNIX_DIAG_NAME)
				peer.is_named = true;
		}
		r = add_peer(peers, &peer);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Reads all unix sockets of our network namespace, which is also the tree's. */
static int read_peers(struct peers *peers)
{
	struct {
		struct nlmsghdr header;
		struct unix_diag_req request;
	} question = {
		.header = {.nlmsg_len = sizeof(question),
			   .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			   .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
		.request = {.sdiag_family = AF_UNIX,
			    .udiag_states = ~0u,
			    .udiag_show = UDIAG_SHOW_PEER | UDIAG_SHOW_NAME},
	};
	const struct timeval patience = {.tv_sec = 5};
	_cleanup_close_ int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	_cleanup_free_ char *buffer = malloc(32768);

	if (fd < 0)
		return -errno;
	if (!buffer)
		return -ENOMEM;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0 ||
	    send(fd, &question, sizeof(question), 0) < 0)
		return -errno;
	for (;;) {
		ssize_t got = recv(fd, buffer, 32768, 0);
		int r;

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -EPROTO;
		r = read_answer(buffer, (size_t)got, peers);
		if (r)
			return r < 0 ? r : 0;
	}
}

static int compare_peers(const void *a, const void *b)
{
	const struct peer *left = a, *right = b;

	return left->inode < right->inode ? -1 : left->inode > right->inode;
}

static const struct peer *find_peer(const struct peers *peers, uint64_t inode)
{
	struct peer wanted = {.inode = (uint32_t)inode};

	return peers->list && inode <= UINT32_MAX
		       ? bsearch(&wanted, peers->list, peers->count, sizeof(wanted), compare_peers)
		       : NULL;
}

__attribute__((format(printf, 4, 5))) static struct gcr_open_finding *make_external(
	struct opens_scan *scan, const struct opens_end *end, const char *option,
	const char *format, ...)
{
	struct gcr_open_finding *finding =
		opens_add_finding(scan, GCR_OPEN_EXTERNAL, end->pid, end->fd);
	va_list values;

	if (!finding)
		return NULL;
	finding->is_stdio = end->is_stdio;
	finding->is_writer = end->writes;
	va_start(values, format);
	vsnprintf(finding->key, sizeof(finding->key), format, values);
	va_end(values);
	finding->has_option = option != NULL;
	if (option)
		snprintf(finding->option, sizeof(finding->option), "%s", option);
	return finding;
}

/*
 * Judges a unix socket by its peer. CRIU 4.1.1: half a pair of stream or seqpacket sockets needs
 * --external; a datagram socket with a named peer needs --ext-unix-sk (CRIU connects it by that
 * name again); a socket in the queue of a listening socket outside, or whose peer has closed, is
 * dumped as it is.
 */
static void judge_unix(struct opens_scan *scan, const struct opens_end *end,
		       const struct peers *peers)
{
	const struct peer *socket = find_peer(peers, end->number);
	const struct peer *other = socket && socket->peer ? find_peer(peers, socket->peer) : NULL;
	char option[GCR_OPENS_KEY_BYTES];

	if (!other || has_end(scan, END_UNIX, other->inode))
		return;
	if (socket->type == SOCK_DGRAM && other->is_named) {
		scan->opens->ext_unix_sockets = true;
	} else if (end->is_stdio) {
		snprintf(option, sizeof(option), "unix[%llu]", (unsigned long long)end->number);
		make_external(scan, end, option, "socket:[%llu]", (unsigned long long)end->number);
	} else {
		opens_refuse(scan, end->pid, end->fd, EBUSY,
			     "is a unix socket connected to a program outside the tree: close it, "
			     "or freeze that program with it");
	}
}

void opens_judge_ends(struct opens_scan *scan)
{
	struct peers peers = {};
	bool have_unix = false;
	int r = 0;

	for (size_t i = 0; i < scan->ends_count; i++)
		have_unix |= scan->ends[i]->kind == END_UNIX;
	if (have_unix)
		r = read_peers(&peers);
	if (r < 0)
		opens_refuse(scan, scan->pids[0], OPENS_NO_FD, EOPNOTSUPP,
			     "has unix sockets, and the kernel does not tell who they are "
			     "connected to: %s",
			     strerror(-r));
	if (peers.list)
		qsort(peers.list, peers.count, sizeof(*peers.list), compare_peers);
	for (size_t i = 0; i < scan->ends_count; i++) {
		const struct opens_end *end = scan->ends[i];
		char option[GCR_OPENS_KEY_BYTES];

		switch (end->kind) {
		case END_PIPE:
			/*
			 * A pipe with both ends in the tree is dumped with it. CRIU dumps the
			 * others too.
			 */
			if (!end->reads || !end->writes)
				make_external(scan, end, NULL, "pipe:[%llu]",
					      (unsigned long long)end->number);
			break;
		case END_UNIX:
			if (r == 0)
				judge_unix(scan, end, &peers);
			break;
		case END_PTY_SLAVE:
			if (has_end(scan, END_PTY_MASTER, end->number))
				break;
			/* in CRIU's form: st_rdev and st_dev in hexadecimal */
			snprintf(option, sizeof(option), "tty[%llx:%llx]",
				 (unsigned long long)makedev(end->rdev_major, end->rdev_minor),
				 (unsigned long long)makedev(end->dev_major, end->dev_minor));
			make_external(scan, end, option, "%s", option);
			break;
		case END_PTY_MASTER:
			break;
		}
	}
	free(peers.list);
}
