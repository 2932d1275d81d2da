/* SPDX-License-Identifier: MIT */
/*
 * The files of all folders, by inode. A file may have a name in two folders: in that of a process
 * and in that of a place, after `dump leave` and during a restore. What is true of the file
 * whatever its name is here: in how many folders it is open, and whether it was passed, which means
 * that the kernel reads it by itself and somebody may have it mapped. A mapping does not count as
 * open.
 *
 * A passed file gets no holes, and when nobody has a name or a descriptor of it any more, its
 * memory is freed, mapped or not: a process that reads such a mapping gets SIGBUS. Files of an
 * earlier daemon are left alone: its readers go on, and nobody knows of them.
 *
 * The table has one lock. Under it, only a quota's is taken.
 */
#ifndef GCR_FS_STORE_INODES_H
#define GCR_FS_STORE_INODES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

struct gcr_store;

/*
 * A daemon begins: files that were made before this call are an earlier one's, and nothing is known
 * of those that are not open. It takes up to 10 ms, so that what is made after it is later.
 */
void gcr_inodes_begin(void);

/* It is open in one more folder. -ENOMEM. */
int gcr_inodes_open(const struct stat *stat);
/* It is open, and passed from now on. -ENOMEM. */
int gcr_inodes_pass(const struct stat *stat);
/* Nobody has it mapped, as a lease has shown. */
void gcr_inodes_unpass(const struct stat *stat);
/* Was it passed by this daemon? */
bool gcr_inodes_is_passed(const struct stat *stat);
/* In how many folders is it open? */
unsigned int gcr_inodes_folders(const struct stat *stat);
/* Was the file of @fd made before gcr_inodes_begin()? True also when nobody can tell. */
bool gcr_inodes_is_left(int fd);

/* Bytes that the caller has counted for a file, and counts no longer. */
struct gcr_inodes_bytes {
	struct gcr_store *store; /* in its going_bytes; NULL: nobody has counted any */
	uint64_t bytes;
	uid_t uid; /* for whom */
};

/*
 * A name of the file of @fd (O_PATH is enough) has gone; or, for gcr_inodes_close(), it is open in
 * one folder less, where @fd was its last descriptor. If no name is left and no folder has it open,
 * the memory of a passed file is freed. If another folder has it open, @bytes count on for it, and
 * for the user, until that has closed it: true, and gcr_store_let_go() is called then.
 */
bool gcr_inodes_removed(int fd, const struct gcr_inodes_bytes *bytes);
bool gcr_inodes_close(int fd, const struct gcr_inodes_bytes *bytes);

#endif
