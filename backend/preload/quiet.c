/* SPDX-License-Identifier: MIT */
/*
 * Whether the program's threads run, by what the kernel counts (proc(5), .../task/TID/stat and
 * schedstat). The time of a thread that is running is counted late, so that it is running counts
 * too.
 */
#include "backend/preload/quiet.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"

struct gcr_quiet_thread {
	uint64_t tid; /* no padding: compared as bytes */
	uint64_t ran_ns;
};

static bool read_file(int directory, const char *tid, const char *name, char *text, size_t room)
{
	_cleanup_close_ int fd = -1;
	char path[64];
	ssize_t length;

	snprintf(path, sizeof(path), "%s/%s", tid, name);
	fd = openat(directory, path, O_RDONLY | O_CLOEXEC);
	length = fd < 0 ? -1 : read(fd, text, room - 1);
	if (length <= 0)
		return false;
	text[length] = '\0';
	return true;
}

bool gcr_quiet_ignores(const char *stat_text, pid_t tid)
{
	const char *comm = strchr(stat_text, '(');

	return tid == gettid() ||
	       (comm && (strncmp(comm, "(cuda-", 6) == 0 || strncmp(comm, "(cuda0", 6) == 0 ||
			 strncmp(comm, "(gpucr-", 7) == 0));
}

/* False: it runs, or nothing can be known of it. */
static bool look_at(int directory, const char *name, struct gcr_quiet_thread *ret_thread,
		    bool *ret_counts)
{
	pid_t tid = (pid_t)strtol(name, NULL, 10);
	char text[512];
	const char *state;

	*ret_counts = false;
	if (!read_file(directory, name, "stat", text, sizeof(text)))
		return false;
	if (gcr_quiet_ignores(text, tid))
		return true;
	state = strrchr(text, ')');
	if (!state || state[1] != ' ' || !state[2] || state[2] == 'R')
		return false;
	if (!read_file(directory, name, "schedstat", text, sizeof(text)))
		return false;
	*ret_thread =
		(struct gcr_quiet_thread){.tid = (uint64_t)tid, .ran_ns = strtoull(text, NULL, 10)};
	*ret_counts = true;
	return true;
}

void gcr_quiet_look(struct gcr_quiet *ret_quiet)
{
	_cleanup_closedir_ DIR *directory = opendir("/proc/self/task");
	struct gcr_quiet quiet = {.is_quiet = directory != NULL};
	const struct dirent *entry;
	size_t room = 0;

	while (quiet.is_quiet && (entry = readdir(directory))) {
		bool counts;

		if (entry->d_name[0] == '.')
			continue;
		if (quiet.count == room) {
			struct gcr_quiet_thread *longer;

			room = room ? 2 * room : 64;
			longer = realloc(quiet.threads, room * sizeof(*longer));
			if (!longer) {
				quiet.is_quiet = false;
				break;
			}
			quiet.threads = longer;
		}
		quiet.is_quiet = look_at(dirfd(directory), entry->d_name,
					 &quiet.threads[quiet.count], &counts);
		if (quiet.is_quiet && counts)
			quiet.count++;
	}
	*ret_quiet = quiet;
}

bool gcr_quiet_since(const struct gcr_quiet *before)
{
	struct gcr_quiet now;
	bool is_quiet;

	if (!before->is_quiet)
		return false;
	gcr_quiet_look(&now);
	is_quiet = now.is_quiet && now.count == before->count &&
		   (!now.count ||
		    memcmp(now.threads, before->threads, now.count * sizeof(now.threads[0])) == 0);
	gcr_quiet_free(&now);
	return is_quiet;
}

void gcr_quiet_free(struct gcr_quiet *quiet)
{
	free(quiet->threads);
	*quiet = (struct gcr_quiet){0};
}
