/* SPDX-License-Identifier: MIT */
/* Reading small files of /proc and the cgroup trees, for lib/procfs.c and lib/proc_cgroup.c. */
#ifndef GCR_LIB_PROC_FILE_H
#define GCR_LIB_PROC_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define GCR_PROC_PATH_BYTES 64

/* "/proc/PID/NAME" */
void gcr_proc_path(char path[GCR_PROC_PATH_BYTES], pid_t pid, const char *name);

/* What an errno from below /proc/PID means to a caller: -ESRCH, -EACCES or as it is. */
int gcr_proc_error(int number);

/*
 * The whole of a file whose size is not known, with a NUL after it, for the caller to free.
 * @ret_bytes may be NULL. -errno as it is; -EFBIG from 64 MiB on.
 */
int gcr_file_read(const char *path, char **ret_text, size_t *ret_bytes);

/*
 * The same of /proc/PID/NAME, by way of the source (lib/proc_source.h), if there is one and the
 * file is not of those that never make their reader wait; errors as gcr_proc_error().
 */
int gcr_proc_read(pid_t pid, const char *name, char **ret_text, size_t *ret_bytes);

/* Open it for reading from its beginning, likewise. */
int gcr_proc_open_file(pid_t pid, const char *name, int *ret_fd);

/* A whole unsigned number, nothing before it and only white space after it. -EINVAL, -ERANGE. */
int gcr_parse_u64(const char *text, uint64_t *ret_value);

#endif
