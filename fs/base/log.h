/* SPDX-License-Identifier: MIT */
/* The daemon's messages: one line each, with the pid they are about. */
#ifndef GCR_FS_BASE_LOG_H
#define GCR_FS_BASE_LOG_H

#include <stdbool.h>
#include <sys/types.h>
#include <syslog.h>

/* Sends further messages to syslog(3), and so to the journal: for a daemon without a terminal. */
void gcr_log_to_syslog(void);

/*
 * Logs one line. @level is one of syslog's (LOG_ERR, LOG_WARNING, LOG_NOTICE, LOG_INFO); @pid is
 * the process concerned, or 0. Control characters are replaced: a process name cannot forge a line.
 */
void gcr_log(int level, pid_t pid, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
