/* SPDX-License-Identifier: MIT */
/*
 * Shared by the tests of files that other processes have mapped: a snapshot of one file, and its
 * mapping.
 */
#ifndef GCR_TEST_MAPPED_H
#define GCR_TEST_MAPPED_H

#include "test/unit/store/store.h"

/*
 * Opens, maps and closes a file as for a process that reads the file by passthrough, without the
 * daemon. The file stays open if @ret_file is not NULL.
 */
UNSEEN static inline void *map_outside(struct gcr_snapshot *snapshot,
				       struct gcr_subtree_file **ret_file)
{
	uint64_t bytes = gcr_snapshot_extent(snapshot, 0)->bytes;
	_cleanup_close_ int fd = gcr_snapshot_open_file(snapshot, 0, false);
	struct gcr_subtree_file *file;
	void *map;

	CHECK(fd >= 0 && !open_outside(snapshot, 0, O_RDONLY, &file) && gcr_subtree_pass(file));
	map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED);
	if (ret_file)
		*ret_file = file;
	else
		gcr_subtree_close(file);
	return map;
}

/* Checks the mapping in a child: a SIGBUS there must not end this process. */
UNSEEN static inline bool has_bytes(const uint64_t *map, uint64_t bytes)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid) {
		signal(SIGBUS, SIG_DFL);
		for (uint64_t at = 0; at < bytes; at += PAGE)
			if (map[at / sizeof(*map)] != pattern(at, 7))
				_exit(1);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGBUS : !status);
	return !status;
}

/* Makes a finished snapshot of one file that holds the pattern with seed 7. */
UNSEEN static inline struct gcr_snapshot *create_finished(uint64_t bytes)
{
	struct gcr_snapshot *snapshot;
	struct gcr_error error;

	CHECK(!try_create(1, bytes, &snapshot, &error));
	write_pattern(snapshot, 0, 7);
	gcr_snapshot_finish(snapshot);
	return snapshot;
}

/* Bytes of memory that the file has allocated. */
UNSEEN static inline uint64_t memory_of(struct gcr_snapshot *snapshot)
{
	struct stat stat;

	CHECK(!gcr_snapshot_stat(snapshot, 0, &stat));
	return (uint64_t)stat.st_blocks * 512;
}

/* Punches a hole into the file's first @bytes, as a user does. */
UNSEEN static inline void punch(struct gcr_snapshot *snapshot, uint64_t bytes)
{
	struct gcr_subtree_file *file = NULL;

	CHECK(!open_outside(snapshot, 0, O_RDWR, &file));
	CHECK(!gcr_subtree_allocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes));
	gcr_subtree_close(file);
}

#endif
