/* SPDX-License-Identifier: MIT */
/*
 * Rights of helper programs. The capabilities and the system calls were measured on the driver
 * (580.159.04, H200, strace of both helpers over freezes and thaws of both engines, of root's
 * processes and of another user's): the driver's checkpoint of another user's process needs
 * CAP_SYS_PTRACE and CAP_DAC_OVERRIDE in the caller, else it returns CUDA_ERROR_OPERATING_SYSTEM.
 * The lists are wider than the calls that were seen: a later driver may read files, map memory,
 * start threads and wait in other ways, and a call that fails in the middle of a thaw could cost a
 * process.
 */
#include "lib/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config.h"
#include "lib/cleanup.h"

#if HAVE_SECCOMP && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <seccomp.h>
#define USE_SECCOMP 1
#else
#define USE_SECCOMP 0 /* LeakSanitizer traces its own process */
#endif

#define CAPABILITY(name) (UINT64_C(1) << (name))

/* Needed by every program: exit, memory, signals, descriptors, threads and clocks. */
#define CALLS_BASIC                                                                                \
	"arch_prctl", "brk", "clock_getres", "clock_gettime", "clock_nanosleep", "close",          \
		"close_range", "dup", "dup2", "dup3", "exit", "exit_group", "fcntl", "fstat",      \
		"futex", "get_robust_list", "getpid", "getppid", "gettid", "gettimeofday",         \
		"madvise", "mmap", "mprotect", "mremap", "munmap", "nanosleep", "newfstatat",      \
		"poll", "ppoll", "prctl", "pread64", "preadv", "preadv2", "prlimit64", "pwrite64", \
		"pwritev", "pwritev2", "read", "readv", "recvmsg", "restart_syscall", "rseq",      \
		"rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigreturn",                 \
		"rt_sigtimedwait", "sched_yield", "sendmsg", "set_robust_list", "set_tid_address", \
		"sigaltstack", "tgkill", "time", "write", "writev"

/* Needed by the driver: its devices, files below /proc and /sys, threads, NUMA nodes, sockets. */
#define CALLS_DRIVER                                                                               \
	"accept", "accept4", "access", "bind", "chdir", "chmod", "clone", "clone3", "connect",     \
		"creat", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait",              \
		"epoll_pwait2", "epoll_wait", "eventfd", "eventfd2", "faccessat", "faccessat2",    \
		"fadvise64", "fallocate", "fdatasync", "fchmod", "fchmodat", "flock", "fstatfs",   \
		"fsync", "ftruncate", "get_mempolicy", "getcpu", "getcwd", "getdents",             \
		"getdents64", "getegid", "geteuid", "getgid", "getgroups", "getpeername",          \
		"getpgid", "getpgrp", "getpriority", "getrandom", "getresgid", "getresuid",        \
		"getrlimit", "getrusage", "getsid", "getsockname", "getsockopt", "getuid",         \
		"ioctl", "kill", "landlock_create_ruleset", "listen", "lseek", "lstat", "mbind",   \
		"membarrier", "memfd_create", "migrate_pages", "mincore", "mkdir", "mkdirat",      \
		"mlock", "mlock2", "move_pages", "msync", "munlock", "open", "openat", "openat2",  \
		"pidfd_open", "pidfd_send_signal", "pipe", "pipe2", "pselect6", "readlink",        \
		"readlinkat", "recvfrom", "recvmmsg", "rename", "renameat", "renameat2", "rmdir",  \
		"rt_sigqueueinfo", "rt_sigsuspend", "rt_tgsigqueueinfo", "sched_get_priority_max", \
		"sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam",  \
		"sched_getscheduler", "sched_setaffinity", "sched_setattr", "sched_setparam",      \
		"sched_setscheduler", "select", "sendfile", "sendmmsg", "sendto", "set_mempolicy", \
		"setpriority", "setrlimit", "setsockopt", "shutdown", "socketpair", "splice",      \
		"stat", "statfs", "statx", "symlink", "symlinkat", "sync_file_range", "sysinfo",   \
		"tee", "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime",        \
		"timer_settime", "timerfd_create", "timerfd_gettime", "timerfd_settime", "times",  \
		"umask", "uname", "unlink", "unlinkat", "utimensat", "wait4", "waitid"

static const char *const calls_of_driver[] = {CALLS_BASIC, CALLS_DRIVER, NULL};
/* fs/helper/stop.c */
static const char *const calls_of_halt[] = {
	CALLS_BASIC,
	"access",
	"clone",
	"clone3",
	"getdents64",
	"getrandom",
	"kill",
	"lseek",
	"pidfd_open",
	"pidfd_getfd",
	"pidfd_send_signal",
	"ptrace",
	"process_vm_readv",
	"readlink",
	"readlinkat",
	"wait4",
	"waitid",
	"fstatfs",
	NULL,
};
/* fs/helper/gpucr_look.c */
static const char *const calls_of_look[] = {
	CALLS_BASIC, "access",	   "faccessat", "faccessat2",	"fstatfs", "getdents64",
	"getrandom", "kcmp",	   "lseek",	"memfd_create", "openat",  "process_vm_readv",
	"readlink",  "readlinkat", "statx",	NULL,
};
/* fs/helper/gpucr_receive.c */
static const char *const calls_of_receive[] = {
	CALLS_BASIC, "getrandom", "readlink", "readlinkat", "stat", "statx", NULL,
};
static const char *const calls_of_drain[] = {CALLS_BASIC, "ftruncate", "shutdown", NULL};
/* fs/engine/gpucr_empty.c */
static const char *const calls_of_empty[] = {
	CALLS_BASIC, "ftruncate", "getdents64", "getrandom", "lseek", "openat", NULL,
};

static const struct {
	uint64_t capabilities;
	const char *const *calls;
	bool has_sockets;	/* unix and netlink sockets; never a network's */
	bool opens_for_reading; /* files that exist, and not otherwise */
} roles[] = {
	/*
	 * CAP_KILL distinguishes a process that has ended from another user's; the simulator sends
	 * signals.
	 */
	[GCR_CONFINE_CONTROL] = {CAPABILITY(CAP_SYS_PTRACE) | CAPABILITY(CAP_DAC_OVERRIDE) |
					 CAPABILITY(CAP_KILL),
				 calls_of_driver, true},
	/* Files of the store belong to the users of the frozen processes. */
	[GCR_CONFINE_WORKER] = {CAPABILITY(CAP_DAC_OVERRIDE) | CAPABILITY(CAP_IPC_LOCK),
				calls_of_driver, true},
	[GCR_CONFINE_HALT] = {CAPABILITY(CAP_SYS_PTRACE) | CAPABILITY(CAP_KILL), calls_of_halt,
			      false, true},
	/* Only the process's user may open /proc/PID/fd. */
	[GCR_CONFINE_LOOK] = {CAPABILITY(CAP_SYS_PTRACE) | CAPABILITY(CAP_DAC_READ_SEARCH),
			      calls_of_look, false},
	/* Without any capability root can still write to root's files. */
	[GCR_CONFINE_RECEIVE] = {0, calls_of_receive, false, true},
	[GCR_CONFINE_DRAIN] = {0, calls_of_drain, false},
	[GCR_CONFINE_EMPTY] = {0, calls_of_empty, false},
};

/*
 * Reduces all capability sets to @kept, the bounding set first: dropping from that set needs
 * CAP_SETPCAP, which the other sets lose afterwards. -errno.
 */
static int drop_capabilities(uint64_t kept)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];

	/*
	 * EPERM: an ordinary user's helper cannot change its bounding set and has no capabilities.
	 */
	for (int number = 0; prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0; number++)
		if (!(kept & CAPABILITY(number)) && prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0 &&
		    errno != EPERM)
			return -errno;
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL)
		return -errno;
	if (syscall(SYS_capget, &header, sets) < 0)
		return -errno;
	for (size_t i = 0; i < GCR_ARRAY_SIZE(sets); i++) {
		sets[i].permitted &= (uint32_t)(kept >> (32 * i));
		sets[i].effective = sets[i].permitted;
		sets[i].inheritable = 0;
	}
	return syscall(SYS_capset, &header, sets) < 0 ? -errno : 0;
}

#if USE_SECCOMP
/*
 * Allows the system calls of a list. A call that this libseccomp or this architecture does not know
 * needs no rule.
 */
static int allow_calls(scmp_filter_ctx filter, const char *const *calls)
{
	for (; *calls; calls++) {
		int number = seccomp_syscall_resolve_name(*calls);
		int r = number < 0 ? 0 : seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 0);

		if (r < 0)
			return r;
	}
	return 0;
}

static int allow_sockets(scmp_filter_ctx filter)
{
	static const unsigned int domains[] = {AF_UNIX, AF_NETLINK};
	int r = 0;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(domains) && !r; i++)
		r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1,
				     SCMP_A0(SCMP_CMP_EQ, domains[i]));
	return r;
}

/* Allows openat(2) for reading only: no write access, O_CREAT or O_TRUNC. */
static int allow_reading(scmp_filter_ctx filter)
{
	return seccomp_rule_add(
		filter, SCMP_ACT_ALLOW, SCMP_SYS(openat), 1,
		SCMP_A2(SCMP_CMP_MASKED_EQ, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY));
}

static int filter_calls(enum gcr_confine_role role)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	int r;

	if (!filter)
		return -ENOMEM;
	/* A tree of comparisons, if this libseccomp can make one: drivers make many calls. */
	seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	r = allow_calls(filter, roles[role].calls);
	if (!r && roles[role].has_sockets)
		r = allow_sockets(filter);
	if (!r && roles[role].opens_for_reading)
		r = allow_reading(filter);
	if (!r)
		r = seccomp_load(filter);
	seccomp_release(filter);
	/* ECANCELED, EINVAL, ENOSYS: this kernel does not support filters. */
	return r == -ECANCELED || r == -EINVAL || r == -ENOSYS ? 0 : r;
}
#else
static int filter_calls(enum gcr_confine_role role)
{
	return 0;
}
#endif

int gcr_confine(enum gcr_confine_role role, struct gcr_error *error)
{
	int r;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return gcr_error_set(error, errno, "no_new_privs cannot be set: %s",
				     strerror(errno));
	r = drop_capabilities(roles[role].capabilities);
	if (r < 0)
		return gcr_error_set(error, -r, "capabilities cannot be given up: %s",
				     strerror(-r));
	r = filter_calls(role);
	if (r < 0)
		return gcr_error_set(error, -r, "system calls cannot be filtered: %s",
				     strerror(-r));
	return 0;
}
