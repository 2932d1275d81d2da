/* SPDX-License-Identifier: MIT */
/*
 * The table of the files of all subtrees, by inode. A file may have a name in two subtrees: in the
 * subtree of a process and in that of a place, after `dump leave` and during a restore. The table
 * holds the facts that do not depend on the name: the number of subtrees that have the file open;
 * whether the file was passed, which means that the kernel reads it without the daemon
 * (passthrough) and a process may have it mapped (a mapping does not count as open); and the number
 * of bytes that no other account counts. For instance, a place counts the bytes of its files, and a
 * process that is restored from the place does not; when the place is removed and the process keeps
 * reading the files, the table counts the bytes.
 *
 * No holes are made in a passed file, nor in a file that another subtree may have as well: a
 * process that reads a hole through a mapping allocates memory that no account counts. When no name
 * and no descriptor of a passed file is left, its memory is freed, mapped or not: a process that
 * reads such a mapping gets SIGBUS. Of a file that was made before this daemon began, the bytes
 * that the file had when this daemon first opened it stay allocated, because readers of the
 * previous daemon may have them mapped.
 *
 * The table has one lock. Only a quota's lock is taken under it. gcr_inodes_removed(),
 * gcr_inodes_close() and gcr_inodes_count_names() take the store's lock after the table's lock, and
 * are called without the store's lock; all other functions may be called under a subtree's lock.
 */
#ifndef GCR_FS_STORE_INODES_H
#define GCR_FS_STORE_INODES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

struct gcr_store;

/*
 * A daemon begins: files that were made before this call count as its predecessor's, and the
 * entries of files that are not open are dropped. Takes up to a tick of the kernel's clock (10 ms
 * at 100 Hz), so that files made after the call have a later time.
 */
void gcr_inodes_begin(void);
/*
 * Moves the limit of gcr_inodes_begin() on to @made, the time of the newest file of the store by
 * the clock of its file system: files made up to then count as the predecessor's.
 */
void gcr_inodes_begin_after(const struct timespec *made);

/* Counts one more subtree that has the file of @fd open. -ENOMEM, -EIO: not counted. */
int gcr_inodes_open(int fd);
/*
 * Mark an open file as passed; *ret_was_passed says whether it was passed before. -EBUSY: another
 * subtree has the file open, too.
 */
int gcr_inodes_pass(const struct stat *stat, bool *ret_was_passed);
/* Remove the mark: the file was not passed after all. */
void gcr_inodes_unpass(const struct stat *stat);
/* No process has the file mapped, as a lease has shown: the file is not passed any more. */
void gcr_inodes_unmapped(const struct stat *stat);
/*
 * Link the file @name in @from_fd to the same name in @to_fd, a directory that no user can reach
 * yet. The new name costs nothing, because the file's bytes are counted elsewhere. @adopter, not 0,
 * is the number of the snapshot or place that gets the name; the same number is given when the name
 * is removed. *ret_stat: the attributes of the file. The call waits for a truncation of the file
 * that is under way; gcr_inodes_removed() and gcr_inodes_close() of the same file wait for the
 * call. -EINVAL: not a regular file; -ENOENT, -ENOMEM, -EIO, ...: @to_fd has no such name.
 */
int gcr_inodes_link(int from_fd, const char *name, int to_fd, uint32_t adopter,
		    struct stat *ret_stat);
/*
 * From now on the place in @store counts all names that gcr_inodes_link() has made with the number
 * @adopter: they are ordinary names. The table stops counting the bytes that it has counted for
 * their files.
 */
void gcr_inodes_count_names(struct gcr_store *store, uint32_t adopter);

/*
 * Was the file passed by this daemon, or may the previous one have passed it? Known only for a file
 * that has an entry; for others the answer is no.
 */
bool gcr_inodes_is_passed(const struct stat *stat);
/* Number of subtrees that have the file open and are not closing it. */
unsigned int gcr_inodes_subtrees(const struct stat *stat);
/* The same with the subtrees that are closing it: gcr_inodes_close() has not ended for them. */
unsigned int gcr_inodes_holders(const struct stat *stat);
/*
 * A subtree begins to close the file of @fd: it does not use the file any more, and may open it
 * again as another user of the file. gcr_inodes_close() must follow. Called under the lock with
 * which the subtree gives up its inode, so that no thread finds the subtree in the count and the
 * inode already gone.
 */
void gcr_inodes_leave(int fd);
/*
 * Does the table have an entry of the file? If so, gcr_inodes_removed() must follow the removal of
 * a name.
 */
bool gcr_inodes_is_known(const struct stat *stat);

/*
 * Memory of a file that the caller has counted, and stops counting: the table takes the count over
 * if the file is still in use elsewhere.
 */
struct gcr_inodes_bytes {
	struct gcr_store
		*store; /* @bytes are already in its going_bytes; NULL: nothing to take over */
	uint64_t bytes;
	uid_t uid;	  /* the user for whom the bytes count */
	uint32_t adopter; /* the name's number, if gcr_inodes_link() made it; else 0 */
};

/*
 * gcr_inodes_removed(): a name of the file of @fd (O_PATH is enough) has been removed.
 * gcr_inodes_close(): a subtree has closed the file after gcr_inodes_leave(), and @fd is the
 * subtree's last descriptor. If no name is left and no subtree has the file open, the memory of a
 * passed file is freed. Returns true if the table takes @bytes over, because the remaining names or
 * subtrees have not counted the file; the bytes then keep counting, also for the user, until the
 * file is unused, and the table calls gcr_store_let_go(). Returns false if the bytes are still the
 * caller's to release, also if the table has already taken over those of another name.
 */
bool gcr_inodes_removed(int fd, const struct gcr_inodes_bytes *bytes);
bool gcr_inodes_close(int fd, const struct gcr_inodes_bytes *bytes);

#endif
