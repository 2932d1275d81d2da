/* SPDX-License-Identifier: MIT */
/*
 * The role that copies files as cp does, between a mount of gpucrfs and a bare tmpfs. The files in
 * the tmpfs have no names, so that nothing is left when this process ends at any point. This role
 * never loads the driver. Single-threaded.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/clock.h"
#include "tools/bench/role.h"

#define BLOCK_BYTES (UINT64_C(1) << 20)
#define SLACK_BYTES (UINT64_C(64) << 20)
#define FILES_MAX   1024
#define SHM	    "/dev/shm"

struct file {
	char name[128];
	int fd;
};

struct copier {
	const char *place; /* directory of the tmpfs */
	struct file files[FILES_MAX];
	size_t count;
	char *block, *other_block;
};

/* ---- the tmpfs ---- */

/*
 * Mounts a tmpfs over @directory in the private mount namespace, so that the tmpfs is invisible to
 * others and ends with this process.
 */
static bool mount_tmpfs(const char *directory, uint64_t bytes, const char *huge)
{
	_cleanup_free_ char *options = NULL;

	return asprintf(&options, "mode=0700,size=%" PRIu64 "%s", bytes, huge) > 0 &&
	       !mount("gpucr-bench", directory, "tmpfs", MS_NOSUID | MS_NODEV, options);
}

static int find_place(struct copier *copier, const char *directory, uint64_t bytes)
{
	uint64_t wanted = 2 * bytes + SLACK_BYTES;
	const char *words = SHM;
	struct statvfs system;

	copier->place = SHM;
	/* Slave: a mount that is unmounted elsewhere must not persist here. */
	if (!unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL)) {
		/* Same options as the store's mount, if the kernel has huge pages. */
		if (mount_tmpfs(directory, wanted, ",huge=always")) {
			copier->place = directory;
			words = "tmpfs with huge=always";
		} else if (mount_tmpfs(directory, wanted, "")) {
			copier->place = directory;
			words = "tmpfs";
		}
	}
	if (statvfs(copier->place, &system) < 0)
		return bench_role_fail("%s: %s", copier->place, strerror(errno));
	if ((uint64_t)system.f_bavail * system.f_frsize < wanted)
		return bench_role_fail("%s has no room for %" PRIu64 " bytes", copier->place,
				       wanted);
	printf("ok place %s\n", words);
	return 0;
}

static int make_file(const struct copier *copier)
{
	int fd = open(copier->place, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	return fd < 0 ? bench_role_fail("%s: %s", copier->place, strerror(errno)) : fd;
}

static void close_files(struct copier *copier)
{
	for (size_t i = 0; i < copier->count; i++)
		close(copier->files[i].fd);
	copier->count = 0;
}

/* ---- copying ---- */

/* Copies from the current offsets to the end of @from; used by all copies that are compared. */
static int copy_file(struct copier *copier, int from, int to, uint64_t *bytes)
{
	for (;;) {
		ssize_t got = read(from, copier->block, BLOCK_BYTES);

		if (got < 0)
			return bench_role_fail("read: %s", strerror(errno));
		if (!got)
			return 0;
		for (ssize_t done = 0; done < got;) {
			ssize_t written = write(to, copier->block + done, (size_t)(got - done));

			if (written < 0)
				return bench_role_fail("write: %s", strerror(errno));
			done += written;
		}
		*bytes += (uint64_t)got;
	}
}

static int rewind_file(const struct file *file)
{
	return lseek(file->fd, 0, SEEK_SET) < 0 ? bench_role_fail("lseek: %s", strerror(errno)) : 0;
}

static int copy_one_out(struct copier *copier, int directory, const char *name, uint64_t *bytes)
{
	_cleanup_close_ int from = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	struct file *file = &copier->files[copier->count];

	if (from < 0)
		return bench_role_fail("%s: %s", name, strerror(errno));
	if (copier->count == FILES_MAX || strlen(name) >= sizeof(file->name))
		return bench_role_fail("more files than there can be, or a longer name");
	file->fd = make_file(copier);
	if (file->fd < 0)
		return file->fd;
	strcpy(file->name, name);
	copier->count++;
	return copy_file(copier, from, file->fd, bytes);
}

/* Copies all files of directory @path into the tmpfs. */
static int copy_out(struct copier *copier, const char *path, uint64_t *bytes)
{
	_cleanup_closedir_ DIR *directory = opendir(path);
	const struct dirent *entry;
	int result = 0;

	if (!directory)
		return bench_role_fail("%s: %s", path, strerror(errno));
	while (!result && (entry = readdir(directory)))
		if (*entry->d_name != '.')
			result = copy_one_out(copier, dirfd(directory), entry->d_name, bytes);
	return result;
}

/* Copies the files in the tmpfs within the tmpfs and discards the copies. @path is unused. */
static int copy_bare(struct copier *copier, const char *path, uint64_t *bytes)
{
	_cleanup_free_ int *copies = malloc(sizeof(int) * FILES_MAX);
	size_t count = 0;
	int result = copies ? 0 : bench_role_fail("out of memory");

	(void)path;
	/* All copies exist until the last is written, as in the other directions. */
	while (!result && count < copier->count) {
		copies[count] = make_file(copier);
		if (copies[count] < 0) {
			result = copies[count];
			break;
		}
		result = rewind_file(&copier->files[count]);
		if (!result)
			result = copy_file(copier, copier->files[count].fd, copies[count], bytes);
		count++;
	}
	while (count)
		close(copies[--count]);
	return result;
}

/* Copies the files in the tmpfs into directory @path. */
static int copy_in(struct copier *copier, const char *path, uint64_t *bytes)
{
	_cleanup_close_ int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (directory < 0)
		return bench_role_fail("%s: %s", path, strerror(errno));
	for (size_t i = 0; i < copier->count; i++) {
		const struct file *file = &copier->files[i];
		_cleanup_close_ int to = openat(directory, file->name,
						O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		int result;

		if (to < 0)
			return bench_role_fail("%s: %s", file->name, strerror(errno));
		result = rewind_file(file);
		if (!result)
			result = copy_file(copier, file->fd, to, bytes);
		if (result < 0)
			return result;
		if (close(TAKE_FD(to)) < 0)
			return bench_role_fail("%s: %s", file->name, strerror(errno));
	}
	return 0;
}

static int compare_file(struct copier *copier, const struct file *file, int other)
{
	for (uint64_t at = 0;;) {
		ssize_t got = pread(file->fd, copier->block, BLOCK_BYTES, (off_t)at);
		ssize_t others = pread(other, copier->other_block, BLOCK_BYTES, (off_t)at);

		if (got < 0 || others < 0)
			return bench_role_fail("%s: %s", file->name, strerror(errno));
		if (got != others || memcmp(copier->block, copier->other_block, (size_t)got) != 0)
			return bench_role_fail("content %s is not what was copied, in the MiB at "
					       "byte %" PRIu64,
					       file->name, at);
		if (!got)
			return 0;
		at += (uint64_t)got;
	}
}

/* Compares the files in directory @path with those in the tmpfs. */
static int compare(struct copier *copier, const char *path)
{
	_cleanup_close_ int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (directory < 0)
		return bench_role_fail("%s: %s", path, strerror(errno));
	for (size_t i = 0; i < copier->count; i++) {
		const struct file *file = &copier->files[i];
		_cleanup_close_ int other = openat(directory, file->name, O_RDONLY | O_CLOEXEC);
		int result;

		if (other < 0)
			return bench_role_fail("%s: %s", file->name, strerror(errno));
		result = compare_file(copier, file, other);
		if (result < 0)
			return result;
	}
	return 0;
}

/* ---- requests ---- */

static void answer_copy(struct copier *copier, const char *path,
			int (*copy)(struct copier *copier, const char *path, uint64_t *bytes))
{
	int64_t started_usec = gcr_clock_usec();
	uint64_t bytes = 0;

	if (!copy(copier, path, &bytes))
		printf("ok bytes %" PRIu64 " usec %" PRId64 "\n", bytes,
		       gcr_clock_usec() - started_usec);
}

static void answer(struct copier *copier, const char *verb, const char *path)
{
	if (!strcmp(verb, "out")) {
		close_files(copier);
		answer_copy(copier, path, copy_out);
	} else if (!strcmp(verb, "bare")) {
		answer_copy(copier, path, copy_bare);
	} else if (!strcmp(verb, "in")) {
		answer_copy(copier, path, copy_in);
	} else if (!strcmp(verb, "compare")) {
		if (!compare(copier, path))
			puts("ok");
	} else if (!strcmp(verb, "make") || !strcmp(verb, "remove")) {
		if (*verb == 'm' ? mkdir(path, 0700) : rmdir(path))
			bench_role_fail("%s: %s", path, strerror(errno));
		else
			puts("ok");
	} else {
		bench_role_fail("what?");
	}
}

int bench_role_copy(int argc, char **argv)
{
	_cleanup_free_ struct copier *copier = calloc(1, sizeof(*copier));
	_cleanup_free_ char *blocks = malloc(2 * BLOCK_BYTES);
	char line[4096];

	if (!copier || !blocks || argc < 2)
		return EXIT_FAILURE;
	copier->block = blocks;
	copier->other_block = blocks + BLOCK_BYTES;
	if (find_place(copier, argv[0], strtoull(argv[1], NULL, 10)) < 0)
		return EXIT_FAILURE;
	while (fgets(line, sizeof(line), stdin)) {
		char *path;

		line[strcspn(line, "\n")] = '\0';
		path = line + strcspn(line, " ");
		if (*path)
			*path++ = '\0';
		answer(copier, line, path);
	}
	close_files(copier);
	return EXIT_SUCCESS;
}
