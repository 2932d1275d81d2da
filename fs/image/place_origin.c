/* SPDX-License-Identifier: MIT */
/* The text of a place's `origin` file: printing and parsing. */
#include "fs/image/place_origin.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/beneath.h"
#include "lib/cleanup.h"

enum word { INCOMING, DUMPED, ENDING, STAYING, RESTORING, THAWING, WORDS_COUNT };

static const char *const words[WORDS_COUNT] = {"incoming", "dumped",	"ending",
					       "staying",  "restoring", "thawing"};

/*
 * Parses the end of the first line, from @text on; *ret_next_line is the text after it. Earlier
 * versions did not write the time of the dump. 0 or -EIO.
 */
static int parse_dumped(const char *text, uint64_t *ret_dumped_ticks, const char **ret_next_line)
{
	int used = 0;

	if (*text == ' ' && sscanf(text + 1, "%" SCNu64 "%n", ret_dumped_ticks, &used) == 1)
		text += 1 + used;
	if (*text != '\n')
		return -EIO;
	*ret_next_line = text + 1;
	return 0;
}

static enum word word_of(const struct gcr_place_origin *origin, const struct gcr_place_made *made)
{
	if (made)
		return made->progress == GCR_PLACE_THAWING ? THAWING : RESTORING;
	if (origin->is_ending)
		return ENDING;
	if (origin->is_staying)
		return STAYING;
	return origin->pid ? DUMPED : INCOMING;
}

/*
 * See place_origin.h. In the second line the cgroup's path is the last field, and extends to the
 * end of the file. Before it comes the cgroup's inode number, which earlier versions did not write.
 */
int gcr_place_origin_print(const struct gcr_place_origin *origin, const struct gcr_place_made *made,
			   char **ret_text, size_t *ret_bytes)
{
	const char *word = words[word_of(origin, made)];
	char *text;
	_cleanup_free_ char *second = NULL;
	char inode[24] = "";
	int length = 0;

	if (made && made->cgroup && made->cgroup_inode)
		snprintf(inode, sizeof(inode), "%" PRIu64 " ", made->cgroup_inode);
	if (made)
		length = asprintf(&second, "%" PRIu64 " %d %" PRIu64 " %s%s", made->since_ticks,
				  (int)made->root, made->root_ticks, inode,
				  made->cgroup ? made->cgroup : "-");

	if (length < 0) {
		second = NULL;
		return -ENOMEM;
	}
	length = asprintf(&text, "%s %d %" PRIu64 " %" PRIu64 "\n%s", word, (int)origin->pid,
			  origin->start_ticks, origin->dumped_ticks, second ? second : "");
	if (length < 0)
		return -ENOMEM;
	*ret_text = text;
	*ret_bytes = (size_t)length;
	return 0;
}

/* Is @text "-" (no cgroup), or an absolute path without ".."? */
static bool is_cgroup(const char *text)
{
	size_t length = strlen(text);

	return !strcmp(text, "-") || (*text == '/' && !strstr(text, "/../") &&
				      (length < 3 || strcmp(text + length - 3, "/..") != 0));
}

/* Parses the second line. Its last field, the cgroup's path, is all the rest of the text. */
static int parse_made(const char *text, struct gcr_place_made *made)
{
	int root, used = 0, inode_used = 0;

	if (sscanf(text, "%" SCNu64 " %d %" SCNu64 " %n", &made->since_ticks, &root,
		   &made->root_ticks, &used) != 3 ||
	    !used || root < 0)
		return -EIO;
	made->root = root;
	text += used;
	if (*text >= '0' && *text <= '9' &&
	    sscanf(text, "%" SCNu64 " %n", &made->cgroup_inode, &inode_used) == 1)
		text += inode_used;
	if (!is_cgroup(text) || (inode_used && (!made->cgroup_inode || *text != '/')))
		return -EIO;
	if (!strcmp(text, "-"))
		return 0;
	made->cgroup = strdup(text);
	return made->cgroup ? 0 : -ENOMEM;
}

int gcr_place_origin_parse(const char *text, size_t bytes, struct gcr_place_origin_file *ret_file)
{
	struct gcr_place_origin_file file = {0};
	enum word word = INCOMING;
	int pid, used = 0, result = 0;
	char first[16];

	if (strlen(text) != bytes ||
	    sscanf(text, "%15s %d %" SCNu64 "%n", first, &pid, &file.origin.start_ticks, &used) !=
		    3 ||
	    parse_dumped(text + used, &file.origin.dumped_ticks, &text) < 0 || pid < 0)
		return -EIO;
	while (word < WORDS_COUNT && strcmp(words[word], first) != 0)
		word++;
	/* The origin of a tree that was dumped, or has to be ended or continued, has a pid. */
	if (word == WORDS_COUNT ||
	    (!pid && (word == DUMPED || word == ENDING || word == STAYING)) ||
	    (pid && word == INCOMING))
		return -EIO;
	file.origin.pid = pid;
	file.origin.is_ending = word == ENDING;
	file.origin.is_staying = word == STAYING;
	if (word == RESTORING || word == THAWING) {
		file.made.progress = word == THAWING ? GCR_PLACE_THAWING : GCR_PLACE_RESTORING;
		result = parse_made(text, &file.made);
	} else if (*text) {
		result = -EIO;
	}
	if (!result)
		*ret_file = file;
	return result;
}

int gcr_place_origin_write(int fd, const struct gcr_place_origin *origin,
			   const struct gcr_place_made *made, struct gcr_error *error)
{
	_cleanup_free_ char *text = NULL;
	struct iovec part;

	if (gcr_place_origin_print(origin, made, &text, &part.iov_len) < 0)
		return gcr_error_set(error, ENOMEM, "out of memory");
	part.iov_base = text;
	return gcr_beneath_replace(fd, GCR_PLACE_ORIGIN_NAME, &part, 1, error);
}

int gcr_place_origin_read(int fd, struct gcr_place_origin_file *ret_file, struct gcr_error *error)
{
	_cleanup_free_ void *bytes = NULL;
	char text[GCR_PLACE_ORIGIN_BYTES_MAX];
	size_t size;
	int result =
		gcr_beneath_read(fd, GCR_PLACE_ORIGIN_NAME, sizeof(text) - 1, &bytes, &size, error);

	if (result < 0)
		return result;
	memcpy(text, bytes, size);
	text[size] = '\0';
	result = gcr_place_origin_parse(text, size, ret_file);
	return result == -EIO ? gcr_error_set(error, EIO, "what is known of it cannot be read")
	       : result	      ? gcr_error_set(error, ENOMEM, "out of memory")
			      : 0;
}

int gcr_place_origin_read_begun(int fd, pid_t *ret_pid, uint64_t *ret_start_ticks)
{
	struct gcr_place_origin_file file;
	struct gcr_error error;

	if (gcr_place_origin_read(fd, &file, &error) < 0)
		return -EIO;
	*ret_pid = file.origin.pid;
	*ret_start_ticks = file.origin.start_ticks;
	free(file.made.cgroup);
	return 0;
}
