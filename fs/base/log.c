/* SPDX-License-Identifier: MIT */
/* Messages to stderr, with systemd's level prefix where stderr is the journal, or to syslog. */
#include "fs/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/printable.h"

#define LINE_BYTES 1024

static atomic_bool to_syslog;

void gcr_log_to_syslog(void)
{
	openlog("gpucrfs", LOG_PID, LOG_DAEMON);
	atomic_store(&to_syslog, true);
}

/*
 * Is our stderr systemd's journal? JOURNAL_STREAM has "device:inode" of the journal's stream
 * (systemd.exec(5)).
 */
static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long device;
	unsigned long inode;
	struct stat status;

	return stream && sscanf(stream, "%lu:%lu", &device, &inode) == 2 &&
	       !fstat(STDERR_FILENO, &status) && status.st_dev == device && status.st_ino == inode;
}

void gcr_log(int level, pid_t pid, const char *format, ...)
{
	char line[LINE_BYTES];
	char about[32] = "";
	char prefix[8] = "";
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	gcr_make_printable(line);
	if (pid)
		snprintf(about, sizeof(about), "pid %d: ", (int)pid);
	if (atomic_load(&to_syslog)) {
		syslog(level, "%s%s", about, line);
		return;
	}
	if (stderr_is_journal())
		snprintf(prefix, sizeof(prefix), "<%d>", level);
	fprintf(stderr, "%sgpucrfs: %s%s\n", prefix, about, line);
}
