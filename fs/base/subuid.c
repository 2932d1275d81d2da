/* SPDX-License-Identifier: MIT */
/* Ranges of subordinate user ids, as an array in the order of the file. */
#include "fs/base/subuid.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/log.h"
#include "lib/cleanup.h"
#include "lib/clock.h"
#include "lib/full_io.h"

#define FILE_BYTES_MAX (1 << 20)
#define CHECK_USEC     GCR_USEC_PER_SEC
/* The user of a range may be in another user's range. */
#define LEVELS_MAX     8

struct range {
	uid_t owner;
	uid_t first;
	uid_t last;
	bool is_known; /* the owner is a user, and not root */
};

struct user {
	char *name;
	uid_t uid;
	size_t line; /* line number in the file */
};

/* The users of the users file, sorted by name; read at the first look-up. */
struct users {
	const char *path;
	bool is_read;
	struct user *list;
	size_t count;
};

struct gcr_subuids {
	char *path;
	char *users_path;
	struct stat stat; /* of the last file read; all zeros: there was none */
	int64_t checked_usec;
	struct range *ranges;
	size_t count;
};

/* Parses a decimal number up to @max; the whole of @text. */
static bool parse_number(const char *text, uint64_t max, uint64_t *ret_number)
{
	uint64_t number = 0;

	if (!*text)
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return false;
		number = number * 10 + (uint64_t)(*text - '0');
		if (number > max)
			return false;
	}
	*ret_number = number;
	return true;
}

static int compare_users(const void *left, const void *right)
{
	const struct user *a = left, *b = right;
	int order = strcmp(a->name, b->name);

	return order ? order : a->line < b->line ? -1 : a->line > b->line;
}

static void free_users(struct users *users)
{
	for (size_t i = 0; i < users->count; i++)
		free(users->list[i].name);
	free(users->list);
}

/* Parses NAME:PASSWORD:UID:..., of any length; modifies @line. False: no user. */
static bool parse_user(char *line, char **ret_name, uid_t *ret_uid)
{
	char *name = strsep(&line, ":");
	char *uid;
	uint64_t number;

	strsep(&line, ":");
	uid = strsep(&line, ":");
	if (!*name || *name == '#' || !line || !uid || !parse_number(uid, UINT32_MAX - 1, &number))
		return false;
	*ret_name = name;
	*ret_uid = (uid_t)number;
	return true;
}

/* Reads all users once. -ENOMEM. */
static int read_users(struct users *users)
{
	_cleanup_fclose_ FILE *file = fopen(users->path, "re");
	_cleanup_free_ char *line = NULL;
	size_t line_room = 0;
	size_t room = 0;

	users->is_read = true;
	while (file && getline(&line, &line_room, file) >= 0) {
		struct user *user;
		char *name;
		uid_t uid;

		if (!parse_user(line, &name, &uid))
			continue;
		if (users->count == room) {
			struct user *more =
				reallocarray(users->list, room ? 2 * room : 64, sizeof(*more));

			if (!more)
				return -ENOMEM;
			users->list = more;
			room = room ? 2 * room : 64;
		}
		user = &users->list[users->count];
		*user = (struct user){strdup(name), uid, users->count};
		if (!user->name)
			return -ENOMEM;
		users->count++;
	}
	if (users->count)
		qsort(users->list, users->count, sizeof(*users->list), compare_users);
	return 0;
}

/*
 * Finds a user by name or number. 0, -ENOENT, -ENOMEM. The first of several users of a name counts.
 */
static int find_user(struct users *users, const char *name, uid_t *ret_uid)
{
	size_t low = 0, high;
	uint64_t number;

	if (parse_number(name, UINT32_MAX - 1, &number)) {
		*ret_uid = (uid_t)number;
		return 0;
	}
	if (!users->is_read && read_users(users) < 0)
		return -ENOMEM;
	high = users->count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (strcmp(users->list[middle].name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == users->count || strcmp(users->list[low].name, name) != 0)
		return -ENOENT;
	*ret_uid = users->list[low].uid;
	return 0;
}

/* Parses NAME:FIRST:COUNT; modifies @line. -EINVAL: invalid line; -ENOMEM. */
static int parse_line(struct users *users, char *line, struct range *ret_range)
{
	char *first = strchr(line, ':');
	char *count = first ? strchr(first + 1, ':') : NULL;
	uint64_t number, length;
	uid_t owner;
	int result;

	if (!count || first == line)
		return -EINVAL;
	*first++ = '\0';
	*count++ = '\0';
	if (!parse_number(first, UINT32_MAX - 1, &number) || !number ||
	    !parse_number(count, UINT32_MAX, &length) || !length || length > UINT32_MAX - number)
		return -EINVAL;
	result = find_user(users, line, &owner);
	if (result == -ENOMEM)
		return result;
	/* Root itself is not limited, but the users of its containers are. */
	*ret_range = (struct range){
		.owner = result < 0 || !owner ? (uid_t)number : owner,
		.first = (uid_t)number,
		.last = (uid_t)(number + length - 1),
		.is_known = !result && owner,
	};
	return 0;
}

static bool is_trusted(const struct stat *stat)
{
	return S_ISREG(stat->st_mode) && !(stat->st_mode & (S_IWGRP | S_IWOTH)) &&
	       (!stat->st_uid || stat->st_uid == geteuid());
}

/*
 * Reads the file as text, which the caller frees; NULL: no memory. *ret_cut: the file is larger
 * than FILE_BYTES_MAX, and the text ends with the last whole line before that.
 */
static char *read_file(int fd, bool *ret_cut)
{
	_cleanup_free_ char *text = malloc(FILE_BYTES_MAX + 1);
	ssize_t got = text ? gcr_read_all(fd, text, FILE_BYTES_MAX) : 0;
	size_t size = got > 0 ? (size_t)got : 0;

	*ret_cut = size == FILE_BYTES_MAX;
	/* Half a line could be a line of its own, of fewer ids. */
	while (*ret_cut && size && text[size - 1] != '\n')
		size--;
	if (text)
		text[size] = '\0';
	return TAKE_PTR(text);
}

static int read_ranges(struct gcr_subuids *subuids, int fd)
{
	bool is_cut;
	_cleanup_free_ char *text = read_file(fd, &is_cut);
	_cleanup_free_ struct range *ranges = calloc(GCR_SUBUID_RANGES_MAX, sizeof(*ranges));
	_cleanup_(free_users) struct users users = {.path = subuids->users_path};
	size_t count = 0, bad = 0;
	char *rest = text;
	char *line;

	if (!text || !ranges)
		return -ENOMEM;
	while (count < GCR_SUBUID_RANGES_MAX && (line = strsep(&rest, "\n"))) {
		int result;

		if (!*line || *line == '#')
			continue;
		result = parse_line(&users, line, &ranges[count]);
		if (result == -ENOMEM)
			return result;
		count += !result;
		bad += result < 0;
	}
	if (bad || rest || is_cut)
		gcr_log(LOG_WARNING, 0, "%s: %zu lines are left out%s", subuids->path, bad,
			rest || is_cut ? ", and what comes after too many" : "");
	free(subuids->ranges);
	subuids->ranges = TAKE_PTR(ranges);
	subuids->count = count;
	return 0;
}

static bool is_same(const struct stat *left, const struct stat *right)
{
	return left->st_dev == right->st_dev && left->st_ino == right->st_ino &&
	       left->st_size == right->st_size && left->st_mtim.tv_sec == right->st_mtim.tv_sec &&
	       left->st_mtim.tv_nsec == right->st_mtim.tv_nsec &&
	       left->st_ctim.tv_sec == right->st_ctim.tv_sec &&
	       left->st_ctim.tv_nsec == right->st_ctim.tv_nsec;
}

void gcr_subuids_refresh(struct gcr_subuids *subuids, bool now)
{
	int64_t now_usec = gcr_clock_usec();
	_cleanup_close_ int fd = -1;
	struct stat found = {0};

	if (!now && subuids->checked_usec && now_usec - subuids->checked_usec < CHECK_USEC)
		return;
	subuids->checked_usec = now_usec;
	/* The open does not block, whatever kind of file it is. */
	if (stat(subuids->path, &found) < 0)
		found = (struct stat){0};
	if (is_same(&found, &subuids->stat))
		return;
	fd = open(subuids->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	/* For example without free descriptors: keep the present ranges, and retry later. */
	if (fd < 0 && errno != ENOENT && errno != ENOTDIR) {
		gcr_log(LOG_WARNING, 0, "%s cannot be opened: %s", subuids->path, strerror(errno));
		return;
	}
	if (fd < 0 || fstat(fd, &found) < 0 || !is_trusted(&found)) {
		if (fd >= 0)
			gcr_log(LOG_WARNING, 0,
				"%s is not used: it has to be a file that root alone may write to",
				subuids->path);
		subuids->stat = found;
		subuids->count = 0;
		return;
	}
	if (!read_ranges(subuids, fd))
		subuids->stat = found;
}

int gcr_subuids_create(const char *path, const char *users_path, struct gcr_subuids **ret_subuids)
{
	struct gcr_subuids *subuids = calloc(1, sizeof(*subuids));

	if (!subuids)
		return -ENOMEM;
	subuids->path = strdup(path);
	subuids->users_path = strdup(users_path);
	if (!subuids->path || !subuids->users_path) {
		gcr_subuids_destroy(subuids);
		return -ENOMEM;
	}
	gcr_subuids_refresh(subuids, true);
	*ret_subuids = subuids;
	return 0;
}

void gcr_subuids_destroy(struct gcr_subuids *subuids)
{
	if (!subuids)
		return;
	free(subuids->ranges);
	free(subuids->users_path);
	free(subuids->path);
	free(subuids);
}

static uid_t find_owner(const struct gcr_subuids *subuids, uid_t uid, bool only_known)
{
	for (int level = 0; uid && level < LEVELS_MAX; level++) {
		const struct range *range = subuids->ranges;
		const struct range *end = range + subuids->count;

		while (range < end && (uid < range->first || uid > range->last))
			range++;
		if (range == end || range->owner == uid || (only_known && !range->is_known))
			break;
		uid = range->owner;
	}
	return uid;
}

uid_t gcr_subuids_owner(struct gcr_subuids *subuids, uid_t uid)
{
	return find_owner(subuids, uid, false);
}

uid_t gcr_subuids_known_owner(struct gcr_subuids *subuids, uid_t uid)
{
	return find_owner(subuids, uid, true);
}
