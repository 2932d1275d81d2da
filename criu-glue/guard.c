/* SPDX-License-Identifier: MIT */
/*
 * libgpucr-criu-guard.so: preloaded into CRIU. CRIU uses abstract unix sockets in the machine's
 * network namespace, and trusts the process that connects or sends first (CRIU 4.1.1:
 * compel/src/lib/infect.c, criu/files.c). Any user could impersonate a process of the tree there.
 *  - "/crtools-pr-...", at a dump: CRIU's code in a process of the tree connects. The guard accepts
 *    only a process that this CRIU traces, closes other connections, and waits for the next one.
 *    Only from the accepted one CRIU takes descriptors: those of others could block their close(2).
 *  - "/crtools-fd-...", at a restore: processes that are being restored send descriptors to each
 *    other. Each message gets a secret at its end, which only the processes of this CRIU know, as
 *    all of them are forked after the secret was made. A socket filter drops messages without the
 *    secret before they are queued. A full queue would block the sender, and then also the
 *    receiver, which looks into its socket only when the sender has told it to.
 *
 * All other sockets are unaffected by these. What CRIU does with the files of a restored program:
 * guard_files.c; with its sockets: guard_sockets.c; who may look into its memory: guard_dumpable.c;
 * when it may run: guard_resume.c.
 * What CRIU does with the files, the memory, the namespaces and the connections of a dumped one:
 * guard_dump.c, guard_memory.c, guard_namespaces.c, guard_tcp.c; which processes it traces, and
 * when one executes another program: guard_tracee.c.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "criu-glue/guard.h"
#include "criu-glue/guard_dump.h"
#include "criu-glue/guard_memory.h"
#include "criu-glue/guard_resume.h"
#include "criu-glue/guard_rights.h"
#include "criu-glue/guard_tracee.h"
#include "lib/passing.h"

#define EXPORT GCR_GUARD_EXPORT

#define DUMP_PREFIX    "/crtools-pr-"
#define RESTORE_PREFIX "/crtools-fd-"

#define SECRET_WORDS 4
#define SECRET_BYTES (SECRET_WORDS * sizeof(uint32_t))
/* Maximum of parts of a message; CRIU's have one. */
#define PARTS_MAX    8

static uint32_t secret[SECRET_WORDS];
static bool has_secret;

#define REAL(name)                                         \
	static typeof(name) *real;                         \
	if (!real)                                         \
		*(void **)&real = dlsym(RTLD_NEXT, #name); \
	if (!real) {                                       \
		errno = ENOSYS;                            \
		return -1;                                 \
	}

/*
 * Is @address an abstract unix address that begins with @prefix? An abstract name starts with a
 * NUL, and does not end with one.
 */
static bool begins_with(const struct sockaddr *address, socklen_t bytes, const char *prefix)
{
	const struct sockaddr_un *name = (const struct sockaddr_un *)address;
	size_t start = offsetof(struct sockaddr_un, sun_path);
	size_t length = strlen(prefix);

	return bytes >= start + 1 + length && name->sun_family == AF_UNIX && !name->sun_path[0] &&
	       !memcmp(name->sun_path + 1, prefix, length);
}

static bool is_named(int fd, const char *prefix)
{
	struct sockaddr_un name;
	socklen_t bytes = sizeof(name);

	return getsockname(fd, (struct sockaddr *)&name, &bytes) == 0 &&
	       begins_with((struct sockaddr *)&name, bytes, prefix);
}

static bool is_traced(int fd)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.pid > 0 &&
	       gcr_guard_status_pid(peer.pid, "TracerPid") == getpid();
}

/*
 * As listen(2), with a longer queue for the guarded socket: connections of others take room there
 * too until they are closed.
 */
EXPORT int listen(int fd, int backlog)
{
	bool is_guarded = is_named(fd, DUMP_PREFIX);

	if (is_guarded)
		gcr_passing_refuse(fd);
	return gcr_guard_listen(fd, is_guarded ? SOMAXCONN : backlog);
}

EXPORT int accept(int fd, struct sockaddr *address, socklen_t *bytes)
{
	bool is_guarded = is_named(fd, DUMP_PREFIX);
	bool was_told = false;

	REAL(accept)
	for (;;) {
		struct ucred peer = {0};
		socklen_t peer_bytes = sizeof(peer);
		int peer_fd = real(fd, address, bytes);

		if (peer_fd < 0 || !is_guarded)
			return peer_fd;
		if (is_traced(peer_fd)) {
			gcr_passing_allow(peer_fd);
			return peer_fd;
		}
		getsockopt(peer_fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes);
		close(peer_fd);
		if (!was_told)
			fprintf(stderr,
				"gpucr-criu-guard: process %d of user %u has connected, and is "
				"none of the tree\n",
				(int)peer.pid, (unsigned int)peer.uid);
		was_told = true;
	}
}

/* Makes the secret before CRIU forks. */
__attribute__((constructor)) static void make_secret(void)
{
	has_secret = getrandom(secret, sizeof(secret), 0) == sizeof(secret);
}

/* Drops messages that do not end with the secret; their senders are not notified. */
static int attach_filter(int fd)
{
	struct sock_filter code[4 + 2 * SECRET_WORDS + 2];
	struct sock_fprog program = {.filter = code};
	unsigned short count = 0;
	unsigned short drop = sizeof(code) / sizeof(code[0]) - 1;

	/* X: offset of the secret. */
	code[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0);
	code[count] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SECRET_BYTES, 0,
						   (uint8_t)(drop - count - 1));
	count++;
	code[count++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, SECRET_BYTES);
	code[count++] = (struct sock_filter)BPF_STMT(BPF_MISC | BPF_TAX, 0);
	for (uint32_t i = 0; i < SECRET_WORDS; i++) {
		/* BPF loads words in network byte order. */
		code[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_IND,
							     i * sizeof(uint32_t));
		code[count] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
							   ntohl(secret[i]), 0,
							   (uint8_t)(drop - count - 1));
		count++;
	}
	code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
	code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
	program.len = count;
	return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

EXPORT int bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
	if (begins_with(address, bytes, RESTORE_PREFIX)) {
		if (!has_secret) {
			errno = EAGAIN;
			return -1;
		}
		if (attach_filter(fd) < 0)
			return -1;
	}
	return gcr_guard_bind(fd, address, bytes);
}

/* Appends @part to the message. -1: the message has too many parts. */
static int append(struct msghdr *message, struct iovec parts[PARTS_MAX + 1], void *part)
{
	if (message->msg_iovlen > PARTS_MAX) {
		errno = EMSGSIZE;
		return -1;
	}
	memcpy(parts, message->msg_iov, message->msg_iovlen * sizeof(*parts));
	parts[message->msg_iovlen] = (struct iovec){.iov_base = part, .iov_len = SECRET_BYTES};
	message->msg_iov = parts;
	message->msg_iovlen++;
	return 0;
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	struct iovec parts[PARTS_MAX + 1];
	struct msghdr longer = *message;
	ssize_t sent;

	if (!message->msg_name ||
	    !begins_with(message->msg_name, message->msg_namelen, RESTORE_PREFIX))
		return gcr_guard_sendmsg(fd, message, flags);
	if (append(&longer, parts, secret) < 0)
		return -1;
	sent = syscall(SYS_sendmsg, fd, &longer, flags);
	return sent < (ssize_t)SECRET_BYTES ? sent : sent - (ssize_t)SECRET_BYTES;
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	struct iovec parts[PARTS_MAX + 1];
	struct msghdr longer = *message;
	uint8_t end[SECRET_BYTES];
	ssize_t got;

	REAL(recvmsg)
	if (!is_named(fd, RESTORE_PREFIX))
		return real(fd, message, flags);
	if (append(&longer, parts, end) < 0)
		return -1;
	got = real(fd, &longer, flags);
	if (got < 0)
		return got;
	message->msg_flags = longer.msg_flags;
	message->msg_namelen = longer.msg_namelen;
	message->msg_controllen = longer.msg_controllen;
	return got < (ssize_t)SECRET_BYTES ? 0 : got - (ssize_t)SECRET_BYTES;
}

/*
 * Ends CRIU, because the filter of system calls of process @pid cannot be suspended. CRIU would go
 * on (4.1.1: criu/cr-restore.c), and the filter would answer the calls by which the thread gives up
 * root's rights. Before these calls the thread waits for CRIU.
 */
static void give_up(pid_t pid)
{
	fprintf(stderr,
		"gpucr-criu-guard: the filter of system calls of process %d cannot be suspended "
		"while it is restored: CRIU has a filter itself\n",
		(int)pid);
	_exit(1);
}

/*
 * As ptrace(2), but fails if CRIU has attached to a process that has got the root's pid. That
 * process is not stopped; it is released when CRIU, which gives up now, ends.
 */
EXPORT long ptrace(enum __ptrace_request request, ...)
{
	void *address, *data;
	va_list arguments;
	long result;
	pid_t pid;

	REAL(ptrace)
	va_start(arguments, request);
	pid = va_arg(arguments, pid_t);
	address = va_arg(arguments, void *);
	data = va_arg(arguments, void *);
	va_end(arguments);
	if (gcr_guard_tracee_check(request, pid) < 0 || gcr_guard_trace(request, pid) < 0)
		return -1;
	data = gcr_guard_tracee_data(request, gcr_guard_resume(request, data));
	if (request == PTRACE_CONT || request == PTRACE_SYSCALL)
		gcr_guard_give_memory();
	result = real(request, pid, address, data);
	if (result < 0 && request == PTRACE_SETOPTIONS && gcr_guard_has_owner() &&
	    (uintptr_t)data & PTRACE_O_SUSPEND_SECCOMP)
		give_up(pid);
	return result < 0 || request != PTRACE_SEIZE ? result : gcr_guard_tracee_seized(pid);
}
