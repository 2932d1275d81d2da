/* SPDX-License-Identifier: MIT */
/*
 * For tests of the code that reads KFD's part of sysfs: a directory tree that looks like KFD's, or
 * is malformed.
 */
#ifndef GPUCR_TEST_KFD_TREE_H
#define GPUCR_TEST_KFD_TREE_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/unit/test.h"

#define NODES "class/kfd/kfd/topology/nodes"
#define PROC  "class/kfd/kfd/proc"

static char root[64]; /* path of the tree */

static inline int remove_one(const char *path, const struct stat *status, int kind,
			     struct FTW *where)
{
	return remove(path);
}

static inline void remove_tree(void)
{
	if (*root)
		nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Makes a new, empty tree. */
static inline void begin(void)
{
	remove_tree();
	strcpy(root, "/dev/shm/gpucr-test-kfd-XXXXXX");
	CHECK(mkdtemp(root));
}

static inline void make_folders(char *path)
{
	for (char *slash = strchr(path + strlen(root) + 1, '/'); slash;
	     slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
		*slash = '/';
	}
}

/*
 * Returns the path of a file in the tree and makes its parent directories. The two latest results
 * stay valid.
 */
static inline const char *__attribute__((format(printf, 1, 2))) place(const char *format, ...)
{
	static char paths[2][512]; /* two, because one call may need two paths */
	static unsigned int turn;
	char *path = paths[turn++ % 2];
	va_list arguments;
	int length;

	length = snprintf(path, sizeof(paths[0]), "%s/", root);
	va_start(arguments, format);
	vsnprintf(path + length, sizeof(paths[0]) - (size_t)length, format, arguments);
	va_end(arguments);
	make_folders(path);
	return path;
}

static inline void put_bytes(const char *path, const char *bytes, size_t count)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && write(fd, bytes, count) == (ssize_t)count);
	close(fd);
}

static inline void put(const char *path, const char *text)
{
	put_bytes(path, text, strlen(text));
}

static inline void put_node(unsigned int number, const char *gpu_id, const char *name,
			    const char *properties)
{
	put(place(NODES "/%u/gpu_id", number), gpu_id);
	put(place(NODES "/%u/name", number), name);
	put(place(NODES "/%u/properties", number), properties);
}

static inline void put_memory(unsigned int minor, const char *total, const char *used)
{
	put(place("class/drm/renderD%u/device/mem_info_vram_total", minor), total);
	put(place("class/drm/renderD%u/device/mem_info_vram_used", minor), used);
}

#endif
