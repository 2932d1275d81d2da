/* SPDX-License-Identifier: MIT */
/*
 * The part that the tests' filesystems share: a root directory with one file. The including file
 * has to define FILE_NAME, FILE_NODE, FILE_BYTES and FILE_MODE first.
 */
#ifndef GCR_TEST_ONE_FILE_H
#define GCR_TEST_ONE_FILE_H

#include <errno.h>
#include <fuse_lowlevel.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ONE_FILE_TIMEOUT_SEC 3600

static struct stat stat_of(fuse_ino_t node)
{
	return (struct stat){
		.st_ino = node,
		.st_mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | FILE_MODE,
		.st_nlink = 1,
		.st_uid = getuid(),
		.st_gid = getgid(),
		.st_size = node == FUSE_ROOT_ID ? 0 : FILE_BYTES,
	};
}

static void do_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = {
		.ino = FILE_NODE,
		.attr = stat_of(FILE_NODE),
		.attr_timeout = ONE_FILE_TIMEOUT_SEC,
		.entry_timeout = ONE_FILE_TIMEOUT_SEC,
	};

	if (strcmp(name, FILE_NAME) != 0)
		fuse_reply_err(request, ENOENT);
	else
		fuse_reply_entry(request, &entry);
}

static void do_getattr(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
	struct stat stat = stat_of(node);

	fuse_reply_attr(request, &stat, ONE_FILE_TIMEOUT_SEC);
}

#endif
