/* SPDX-License-Identifier: MIT */
/* Reading small files of /proc and the cgroup trees, for lib/procfs.c and lib/proc_cgroup.c. */
#ifndef GCR_LIB_PROC_FILE_H
#define GCR_LIB_PROC_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define GCR_PROC_PATH_BYTES 64

/* Writes "/proc/PID/NAME" into @path. */
void gcr_proc_path(char path[GCR_PROC_PATH_BYTES], pid_t pid, const char *name);

/*
 * Converts a positive errno of a file below /proc/PID to the result that callers expect: ENOENT to
 * -ESRCH, EPERM to -EACCES, any other to its negative.
 */
int gcr_proc_error(int number);

/*
 * Reads a whole file of unknown size and appends a NUL; the caller frees *ret_text. @ret_bytes may
 * be NULL. -errno unchanged; -EFBIG from 64 MiB on.
 */
int gcr_file_read(const char *path, char **ret_text, size_t *ret_bytes);

/*
 * As gcr_file_read(), of /proc/PID/NAME. If a source is set (lib/proc_source.h), the source reads
 * the file, unless its reader never waits. Errors as gcr_proc_error(), and those of the source.
 */
int gcr_proc_read(pid_t pid, const char *name, char **ret_text, size_t *ret_bytes);

/*
 * Opens /proc/PID/NAME for reading from its beginning; the caller closes *ret_fd. If a source is
 * set, *ret_fd is the source's copy of the file. Errors as gcr_proc_read().
 */
int gcr_proc_open_file(pid_t pid, const char *name, int *ret_fd);

/* Parses an unsigned number: nothing before it and only white space after it. -EINVAL, -ERANGE. */
int gcr_parse_u64(const char *text, uint64_t *ret_value);

#endif
