/* SPDX-License-Identifier: MIT */
/*
 * Reading files of /proc/PID, or a process's memory, can block for as long as that process's user
 * likes: execve(2) holds a lock (exec_update_lock) that most of them take, and waits for
 * filesystems; mmap(2) holds another (mmap_lock). Only SIGKILL ends the wait. A program whose
 * threads must not wait sets a source: functions that ask a helper process that can be killed
 * (fs/helper/looker.h). Without a source lib/procfs.c and lib/proc_file.c read directly.
 *
 * Measured on Linux 6.18, of a process in execve(2): stat, maps, environ, smaps_rollup, auxv and
 * the links exe, fd/N, ns/N block, and so do process_vm_readv(2), kcmp(2), pidfd_getfd(2),
 * ptrace(2) (on older kernels stat and the links do not). status, comm, cgroup, children, fdinfo,
 * mountinfo, net/unix and stat(2) of /proc/PID and its entries do not block, nor does ioctl(2) of a
 * pidfd for the user namespace (PIDFD_GET_USER_NAMESPACE): these are read without the source.
 *
 * Reading a file in memory that a process has sent can block too: the kernel locks a page of the
 * file while it looks for that page in all mappings, of which a user can make a hundred million.
 */
#ifndef GCR_LIB_PROC_SOURCE_H
#define GCR_LIB_PROC_SOURCE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct gcr_page_facts;

/*
 * Each does the work of the function of lib/procfs.h, lib/proc_file.h or lib/proc_page.h that calls
 * it. -ETIMEDOUT: looking at the process timed out; -EBUSY: it timed out a moment ago and was not
 * tried again.
 */
struct gcr_proc_source {
	int (*read)(pid_t pid, const char *name, char **ret_text, size_t *ret_bytes);
	int (*open)(pid_t pid, const char *name, int *ret_fd);
	int (*links)(pid_t pid, char **ret_text, size_t *ret_bytes);
	int (*link)(pid_t pid, const char *name, char *ret_target, size_t target_bytes);
	int (*open_namespace)(pid_t pid, const char *name, int *ret_fd);
	int (*peek)(pid_t pid, uintptr_t address, void *ret, size_t bytes);
	int (*unpark_pages)(pid_t pid);
	int (*unpark_page)(pid_t pid, int fd);
	int (*page_facts)(pid_t pid, int fd, struct gcr_page_facts *ret_facts);
	/* Returns a memfd with a copy of @fd, a file in memory that @pid has sent. */
	int (*copy_file)(pid_t pid, int fd, int *ret_fd);
	int (*same_files)(pid_t pid, pid_t other, const int *fds, size_t count, bool *ret_same);
};

/*
 * Sets the source for all threads; call it while there is only one. NULL: none. @source stays the
 * caller's and must stay valid.
 */
void gcr_proc_set_source(const struct gcr_proc_source *source);
const struct gcr_proc_source *gcr_proc_source(void);

/* Does this result mean that the source got no answer from the process? */
static inline bool gcr_proc_is_silent(int result)
{
	return result == -ETIMEDOUT || result == -EBUSY;
}

/* For error messages, after "process %d ". */
#define GCR_PROC_SILENT_WORDS                                                                   \
	"does not let itself be looked at: it is held in execve(2), or in a call that changes " \
	"its "                                                                                  \
	"memory; try again when that has returned"

#endif
