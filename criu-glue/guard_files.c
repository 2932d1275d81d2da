/* SPDX-License-Identifier: MIT */
/*
 * The files of a restored program, in CRIU. CRIU opens them by their paths, as root and through
 * symbolic links, and the program's user can change a directory of such a path at any moment: he
 * could have root's files opened, and get them in his program. So CRIU's calls with paths from the
 * images are done with the rights of the tree's owner.
 *
 * Nothing is done as root instead if the owner may not do it, even where only root can have changed
 * the path: the images say which files the program had and how they were open, and the program's
 * user can have CRIU write something else into them.
 *
 * Which paths come from the images (CRIU 3.17 to 4.2: criu/files-reg.c, fifo.c, file-lock.c,
 * fsnotify.c, tty.c, sk-unix.c): those at a descriptor of a root directory. The other calls are at
 * the current directory, with paths that mostly begin with "/". In the processes that CRIU makes,
 * files are made, removed, renamed and changed there only for the images; CRIU itself only removes
 * files for them. What CRIU opens for itself, it opens without O_CREAT, and with O_PATH only what
 * anybody may open so. If the tree has a mount namespace of its own, CRIU makes the mounts by calls
 * at the current directory; so these are not guarded then.
 *
 * Real calls are raw system calls, which need nothing of libc's.
 */
#include "criu-glue/guard.h"
#include "criu-glue/guard_dump.h"
#include "criu-glue/guard_rights.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <unistd.h>

/* A name of libc's, which its headers may have given to another function, or declare otherwise. */
#define CALL(name) __asm__(name) GCR_GUARD_EXPORT

/* ---- paths ---- */

/* A directory's descriptor, and a path from there. */
struct path {
	int fd;
	const char *name;
};

/*
 * Is the file in a filesystem that only stores files? In others (/proc, /sys, cgroups, ...) the
 * rights of the user who opened a file may count later, or the kernel may use the name of an old
 * object for a new one.
 */
static bool is_of_files(int fd)
{
	static const unsigned long others[] = {
		PROC_SUPER_MAGIC,    SYSFS_MAGIC,	 CGROUP_SUPER_MAGIC,
		CGROUP2_SUPER_MAGIC, DEVPTS_SUPER_MAGIC, DEBUGFS_MAGIC,
		TRACEFS_MAGIC,	     SECURITYFS_MAGIC,	 BPF_FS_MAGIC,
	};
	struct statfs filesystem;

	if (fstatfs(fd, &filesystem) < 0)
		return false;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if ((unsigned long)filesystem.f_type == others[i])
			return false;
	return true;
}

/* ---- calls with the owner's rights ---- */

/* A call with one or two paths. The result is the system call's. */
typedef long (*call_function)(const struct path *first, const struct path *second,
			      const void *data);

static bool is_refusal(long result)
{
	return result < 0 && (errno == EACCES || errno == EPERM);
}

/*
 * Makes the call as the owner, and returns its result. -1 and errno also if this thread cannot get
 * the owner's rights; nothing is called then.
 */
static long call_as_owner(const struct path *first, const struct path *second, call_function call,
			  const void *data)
{
	struct gcr_guard_saved saved;
	long result;

	if (gcr_guard_begin(&saved) < 0)
		return -1;
	result = call(first, second, data);
	gcr_guard_end(&saved);
	return result;
}

/* ---- which calls ---- */

/*
 * Is @fd a root directory: that of this process, or of a mount namespace? CRIU's own mount of
 * /proc, which is attached nowhere, does not count.
 */
static bool is_root_directory(int fd)
{
	struct stat itself, above;

	return fd >= 0 && is_of_files(fd) && fstat(fd, &itself) == 0 && S_ISDIR(itself.st_mode) &&
	       fstatat(fd, "..", &above, 0) == 0 && itself.st_dev == above.st_dev &&
	       itself.st_ino == above.st_ino;
}

static bool begins_with(const char *path, const char *prefix)
{
	return !strncmp(path, prefix, strlen(prefix));
}

/*
 * Can @path, at the current directory, be a path of the images? Only if the tree has an owner, and
 * this process is in CRIU's first mount namespace; "/" and "." never are.
 */
static bool is_guarded_here(const char *path)
{
	return gcr_guard_has_owner() && strcmp(path, "/") != 0 && strcmp(path, ".") != 0 &&
	       gcr_guard_has_our_mounts();
}

/* Is @path, at the current directory, used by a process of the tree, and so for the images? */
static bool is_of_task(const char *path)
{
	return is_guarded_here(path) && !gcr_guard_is_criu();
}

/*
 * Does CRIU, or a process of the tree, remove by @path a deleted file that it has made again? The
 * other files that CRIU removes are its record of the kernel's features, and those of a test.
 */
static bool is_made_again(const char *path)
{
	static const char test[] = "/tmp/.criu.";

	if (!is_guarded_here(path) || !gcr_guard_is_criu())
		return is_guarded_here(path);
	return *path == '/' && !begins_with(path, "/run/criu.") &&
	       (!begins_with(path, test) || strchr(path + strlen(test), '/'));
}

/* Is @path, at the descriptor @fd or at the current directory, a path of the images? */
static bool is_guarded(int fd, const char *path)
{
	if (!gcr_guard_has_owner() || !path || !*path)
		return false;
	return fd == AT_FDCWD ? is_of_task(path) : is_root_directory(fd);
}

/* ---- open ---- */

struct open_options {
	int flags;
	mode_t mode;
};

static long call_open(const struct path *path, const struct path *unused, const void *data)
{
	const struct open_options *options = data;

	(void)unused;
	return gcr_guard_open(path->fd, path->name, options->flags, options->mode);
}

/*
 * Opens the file of @fd, which the owner has opened with O_PATH, if the file is his own: he could
 * change its mode. Returns a descriptor; -1: the file is not his own, of another kind, or cannot be
 * opened.
 */
static int open_own(int fd, const struct stat *stat, int flags)
{
	char path[64];

	if (stat->st_uid != gcr_guard_owner() || !is_of_files(fd) ||
	    (!S_ISREG(stat->st_mode) && !S_ISDIR(stat->st_mode) && !S_ISFIFO(stat->st_mode)))
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return gcr_guard_open(AT_FDCWD, path, flags & ~O_NOFOLLOW, 0);
}

/*
 * Opens a file that its present mode denies to the owner, who may have opened it earlier: his own
 * file, or a directory that he may enter but not read. The directory is opened with O_PATH, as a
 * current directory. Returns a descriptor; -1: the file is neither.
 */
static int open_refused(const struct path *path, const struct open_options *options)
{
	struct open_options only = {.flags = O_PATH | O_NOFOLLOW | (options->flags & O_DIRECTORY)};
	struct stat stat = {0};
	int fd, result = -1;

	if (options->flags & O_CREAT)
		return -1;
	only.flags |= options->flags & O_CLOEXEC;
	fd = (int)call_as_owner(path, NULL, call_open, &only);
	if (fd >= 0 && fstat(fd, &stat) == 0)
		result = open_own(fd, &stat, options->flags);
	/* The name is looked up in the directory, which the owner must be allowed to do. */
	if (result < 0 && S_ISDIR(stat.st_mode) && (options->flags & O_ACCMODE) == O_RDONLY)
		result = (int)call_as_owner(&(struct path){fd, "."}, NULL, call_open, &only);
	if (fd >= 0)
		close(fd);
	return result;
}

/*
 * Returns @flags, with O_APPEND if @name is the link in /proc of a descriptor that has O_APPEND.
 * CRIU opens a file that root has named for the program's output once more, with the flags of the
 * pipe that the file replaces (see also guard_sockets.c).
 */
static int keep_appending(const char *name, int flags)
{
	int fd, length = 0;
	long before;

	if (sscanf(name, "/proc/self/fd/%d%n", &fd, &length) != 1 || name[length] || flags & O_PATH)
		return flags;
	before = syscall(SYS_fcntl, fd, F_GETFL);
	return before >= 0 && before & O_APPEND ? flags | O_APPEND : flags;
}

/* As openat(2), with the rights of the owner if the path comes from the images. */
static int open_guarded(int fd, const char *name, int flags, mode_t mode)
{
	struct open_options options = {.flags = keep_appending(name, flags), .mode = mode};
	struct path path = {fd, name};
	int number, result;

	flags = options.flags;
	if (fd >= 0 && !(flags & O_CREAT) && gcr_guard_is_dump())
		return gcr_guard_dump_open(fd, name, flags);
	/* At the current directory CRIU opens its own files too, but makes none of them there. */
	if (!is_guarded(fd, name) || (fd == AT_FDCWD && !(flags & (O_CREAT | O_PATH))))
		return gcr_guard_open(fd, name, flags, mode);
	result = (int)call_as_owner(&path, NULL, call_open, &options);
	if (!is_refusal(result))
		return result;
	number = errno;
	result = open_refused(&path, &options);
	if (result < 0)
		errno = number;
	return result;
}

static mode_t mode_of(int flags, va_list *arguments)
{
	return flags & O_CREAT || (flags & __O_TMPFILE) == __O_TMPFILE ? va_arg(*arguments, mode_t)
								       : 0;
}

#define DEFINE_OPEN(function, name)                                \
	int function(const char *path, int flags, ...) CALL(name); \
	int function(const char *path, int flags, ...)             \
	{                                                          \
		va_list arguments;                                 \
		mode_t mode;                                       \
                                                                   \
		va_start(arguments, flags);                        \
		mode = mode_of(flags, &arguments);                 \
		va_end(arguments);                                 \
		return open_guarded(AT_FDCWD, path, flags, mode);  \
	}

#define DEFINE_OPENAT(function, name)                                      \
	int function(int fd, const char *path, int flags, ...) CALL(name); \
	int function(int fd, const char *path, int flags, ...)             \
	{                                                                  \
		va_list arguments;                                         \
		mode_t mode;                                               \
                                                                           \
		va_start(arguments, flags);                                \
		mode = mode_of(flags, &arguments);                         \
		va_end(arguments);                                         \
		return open_guarded(fd, path, flags, mode);                \
	}

DEFINE_OPEN(guard_open, "open")
DEFINE_OPEN(guard_open64, "open64")
DEFINE_OPENAT(guard_openat, "openat")
DEFINE_OPENAT(guard_openat64, "openat64")

/* What a program calls that was compiled with checks (_FORTIFY_SOURCE). */
int guard_open_2(const char *path, int flags) CALL("__open_2");
int guard_open_2(const char *path, int flags)
{
	return open_guarded(AT_FDCWD, path, flags, 0);
}

int guard_open64_2(const char *path, int flags) CALL("__open64_2");
int guard_open64_2(const char *path, int flags)
{
	return open_guarded(AT_FDCWD, path, flags, 0);
}

int guard_openat_2(int fd, const char *path, int flags) CALL("__openat_2");
int guard_openat_2(int fd, const char *path, int flags)
{
	return open_guarded(fd, path, flags, 0);
}

int guard_openat64_2(int fd, const char *path, int flags) CALL("__openat64_2");
int guard_openat64_2(int fd, const char *path, int flags)
{
	return open_guarded(fd, path, flags, 0);
}

/* ---- deleted files, which are made again: names ---- */

static long call_link(const struct path *from, const struct path *to, const void *data)
{
	int flags = *(const int *)data;

	return syscall(SYS_linkat, from->fd, from->name, to->fd, to->name, flags);
}

int guard_linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
	CALL("linkat");
int guard_linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
	struct path first = {from_fd, from}, second = {to_fd, to};

	if (gcr_guard_is_dump())
		return gcr_guard_dump_link(from_fd, from, to_fd, to, flags);
	if (is_guarded(from_fd, from) && is_guarded(to_fd, to))
		return (int)call_as_owner(&first, &second, call_link, &flags);
	return (int)call_link(&first, &second, &flags);
}

static long call_rename(const struct path *from, const struct path *to, const void *data)
{
	(void)data;
	return syscall(SYS_renameat2, from->fd, from->name, to->fd, to->name, 0);
}

int guard_rename(const char *from, const char *to) CALL("rename");
int guard_rename(const char *from, const char *to)
{
	struct path first = {AT_FDCWD, from}, second = {AT_FDCWD, to};

	if (is_of_task(from) && is_of_task(to))
		return (int)call_as_owner(&first, &second, call_rename, NULL);
	return (int)call_rename(&first, &second, NULL);
}

static long call_unlink(const struct path *path, const struct path *unused, const void *data)
{
	(void)unused;
	return syscall(SYS_unlinkat, path->fd, path->name, *(const int *)data);
}

static int unlink_guarded(int fd, const char *name, int flags, bool is_images)
{
	struct path path = {fd, name};

	return (int)(is_images ? call_as_owner(&path, NULL, call_unlink, &flags)
			       : call_unlink(&path, NULL, &flags));
}

/* CRIU itself removes old sockets so. */
int guard_unlinkat(int fd, const char *path, int flags) CALL("unlinkat");
int guard_unlinkat(int fd, const char *path, int flags)
{
	return unlink_guarded(fd, path, flags,
			      fd == AT_FDCWD ? is_guarded_here(path) : is_guarded(fd, path));
}

int guard_unlink(const char *path) CALL("unlink");
int guard_unlink(const char *path)
{
	return unlink_guarded(AT_FDCWD, path, 0, is_made_again(path));
}

int guard_rmdir(const char *path) CALL("rmdir");
int guard_rmdir(const char *path)
{
	return unlink_guarded(AT_FDCWD, path, AT_REMOVEDIR, is_made_again(path));
}

static long call_mkdir(const struct path *path, const struct path *unused, const void *data)
{
	(void)unused;
	return syscall(SYS_mkdirat, path->fd, path->name, *(const mode_t *)data);
}

int guard_mkdirat(int fd, const char *name, mode_t mode) CALL("mkdirat");
int guard_mkdirat(int fd, const char *name, mode_t mode)
{
	struct path path = {fd, name};

	return (int)(is_guarded(fd, name) ? call_as_owner(&path, NULL, call_mkdir, &mode)
					  : call_mkdir(&path, NULL, &mode));
}

struct node {
	mode_t mode;
	dev_t device;
};

static long call_mknod(const struct path *path, const struct path *unused, const void *data)
{
	const struct node *node = data;

	(void)unused;
	return syscall(SYS_mknodat, path->fd, path->name, node->mode, (unsigned int)node->device);
}

int guard_mknod(const char *name, mode_t mode, dev_t device) CALL("mknod");
int guard_mknod(const char *name, mode_t mode, dev_t device)
{
	struct node node = {.mode = mode, .device = device};
	struct path path = {AT_FDCWD, name};

	return (int)(is_of_task(name) ? call_as_owner(&path, NULL, call_mknod, &node)
				      : call_mknod(&path, NULL, &node));
}

static long call_symlink(const struct path *path, const struct path *unused, const void *data)
{
	(void)unused;
	return syscall(SYS_symlinkat, data, path->fd, path->name);
}

int guard_symlink(const char *target, const char *name) CALL("symlink");
int guard_symlink(const char *target, const char *name)
{
	struct path path = {AT_FDCWD, name};

	return (int)(is_of_task(name) ? call_as_owner(&path, NULL, call_symlink, target)
				      : call_symlink(&path, NULL, target));
}

/* ---- deleted files and sockets: owners, modes and times ---- */

struct ids {
	uid_t uid;
	gid_t gid;
	int flags;
};

static long call_chown(const struct path *path, const struct path *unused, const void *data)
{
	const struct ids *ids = data;

	(void)unused;
	return syscall(SYS_fchownat, path->fd, path->name, ids->uid, ids->gid, ids->flags);
}

static int chown_guarded(int fd, const char *name, uid_t uid, gid_t gid, int flags)
{
	struct ids ids = {.uid = uid, .gid = gid, .flags = flags};
	struct path path = {fd, name};

	return (int)(is_guarded(fd, name) ? call_as_owner(&path, NULL, call_chown, &ids)
					  : call_chown(&path, NULL, &ids));
}

int guard_fchownat(int fd, const char *path, uid_t uid, gid_t gid, int flags) CALL("fchownat");
int guard_fchownat(int fd, const char *path, uid_t uid, gid_t gid, int flags)
{
	return chown_guarded(fd, path, uid, gid, flags);
}

int guard_chown(const char *path, uid_t uid, gid_t gid) CALL("chown");
int guard_chown(const char *path, uid_t uid, gid_t gid)
{
	return chown_guarded(AT_FDCWD, path, uid, gid, 0);
}

int guard_lchown(const char *path, uid_t uid, gid_t gid) CALL("lchown");
int guard_lchown(const char *path, uid_t uid, gid_t gid)
{
	return chown_guarded(AT_FDCWD, path, uid, gid, AT_SYMLINK_NOFOLLOW);
}

static long call_chmod(const struct path *path, const struct path *unused, const void *data)
{
	(void)unused;
	return syscall(SYS_fchmodat, path->fd, path->name, *(const mode_t *)data);
}

static int chmod_guarded(int fd, const char *name, mode_t mode)
{
	struct path path = {fd, name};

	return (int)(is_guarded(fd, name) ? call_as_owner(&path, NULL, call_chmod, &mode)
					  : call_chmod(&path, NULL, &mode));
}

int guard_fchmodat(int fd, const char *path, mode_t mode, int flags) CALL("fchmodat");
int guard_fchmodat(int fd, const char *path, mode_t mode, int flags)
{
	static int (*real)(int fd, const char *path, mode_t mode, int flags);

	/* CRIU gives none, and the system call knows none. But programs that CRIU starts do. */
	if (flags && !real)
		*(void **)&real = dlsym(RTLD_NEXT, "fchmodat");
	if (flags && (!real || gcr_guard_has_owner())) {
		errno = EINVAL;
		return -1;
	}
	if (flags)
		return real(fd, path, mode, flags);
	return chmod_guarded(fd, path, mode);
}

int guard_chmod(const char *path, mode_t mode) CALL("chmod");
int guard_chmod(const char *path, mode_t mode)
{
	return chmod_guarded(AT_FDCWD, path, mode);
}

static long call_utimes(const struct path *path, const struct path *unused, const void *data)
{
	(void)unused;
	return syscall(SYS_utimensat, path->fd, path->name, data, AT_SYMLINK_NOFOLLOW);
}

int guard_lutimes(const char *name, const struct timeval times[2]) CALL("lutimes");
int guard_lutimes(const char *name, const struct timeval times[2])
{
	struct path path = {AT_FDCWD, name};
	struct timespec exact[2];

	for (size_t i = 0; times && i < 2; i++)
		exact[i] = (struct timespec){times[i].tv_sec, times[i].tv_usec * 1000};
	return (int)(is_of_task(name)
			     ? call_as_owner(&path, NULL, call_utimes, times ? exact : NULL)
			     : call_utimes(&path, NULL, times ? exact : NULL));
}

/* ---- the directory of a unix socket, and the root directory ---- */

static long call_chdir(const struct path *path, const struct path *unused, const void *data)
{
	(void)unused;
	(void)data;
	return syscall(SYS_chdir, path->name);
}

/* The directory to which the name of a socket is relative. */
int guard_chdir(const char *name) CALL("chdir");
int guard_chdir(const char *name)
{
	struct path path = {AT_FDCWD, name};
	/* CRIU itself first changes to the directory of its log. */
	bool is_work = gcr_guard_has_owner() && gcr_guard_is_criu() &&
		       begins_with(name, "/proc/self/fd/");

	return (int)(is_guarded_here(name) && !is_work
			     ? call_as_owner(&path, NULL, call_chdir, NULL)
			     : call_chdir(&path, NULL, NULL));
}

/*
 * As chroot(2); EPERM if the tree has an owner and @name is not a root directory. CRIU changes to
 * the root directory of a process first, and the owner can have put another directory into that
 * path. There a set-user-ID program, by a descriptor from outside, would load what the owner likes.
 */
GCR_GUARD_EXPORT int chroot(const char *name)
{
	int fd = gcr_guard_open(AT_FDCWD, name, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	bool is_root = fd >= 0 && is_root_directory(fd);

	if (fd >= 0)
		close(fd);
	if (gcr_guard_has_owner() && gcr_guard_has_our_mounts() && !is_root) {
		errno = EPERM;
		return -1;
	}
	return (int)syscall(SYS_chroot, name);
}

/* ---- watches ---- */

struct watch {
	int fd;
	unsigned int flags; /* of fanotify_mark(2) */
	uint64_t mask;
};

static long call_watch(const struct path *path, const struct path *unused, const void *data)
{
	const struct watch *watch = data;

	(void)unused;
	return syscall(SYS_inotify_add_watch, watch->fd, path->name, (uint32_t)watch->mask);
}

/* CRIU names the file by a descriptor in /proc that it has opened with O_PATH. */
int guard_inotify_add_watch(int fd, const char *name, uint32_t mask) CALL("inotify_add_watch");
int guard_inotify_add_watch(int fd, const char *name, uint32_t mask)
{
	struct watch watch = {.fd = fd, .mask = mask};
	struct path path = {AT_FDCWD, name};

	return (int)(gcr_guard_has_owner() ? call_as_owner(&path, NULL, call_watch, &watch)
					   : call_watch(&path, NULL, &watch));
}

static long call_mark(const struct path *path, const struct path *unused, const void *data)
{
	const struct watch *watch = data;

	(void)unused;
	return syscall(SYS_fanotify_mark, watch->fd, watch->flags, watch->mask, path->fd,
		       path->name);
}

int guard_fanotify_mark(int fd, unsigned int flags, uint64_t mask, int directory, const char *name)
	CALL("fanotify_mark");
int guard_fanotify_mark(int fd, unsigned int flags, uint64_t mask, int directory, const char *name)
{
	struct watch watch = {.fd = fd, .flags = flags, .mask = mask};
	struct path path = {directory, name};

	return (int)(gcr_guard_has_owner() ? call_as_owner(&path, NULL, call_mark, &watch)
					   : call_mark(&path, NULL, &watch));
}

static long call_fanotify(const struct path *unused, const struct path *unused_too,
			  const void *data)
{
	const unsigned int *flags = data;

	(void)unused;
	(void)unused_too;
	return syscall(SYS_fanotify_init, flags[0], flags[1]);
}

/* The kernel tells less to one that an ordinary user has made. */
int guard_fanotify_init(unsigned int flags, unsigned int event_flags) CALL("fanotify_init");
int guard_fanotify_init(unsigned int flags, unsigned int event_flags)
{
	const unsigned int both[] = {flags, event_flags};

	return (int)(gcr_guard_has_owner() ? call_as_owner(NULL, NULL, call_fanotify, both)
					   : call_fanotify(NULL, NULL, both));
}
