/* SPDX-License-Identifier: MIT */
/*
 * The files of all folders, by inode. A file may have a name in two folders: in that of a process
 * and in that of a place, after `dump leave` and during a restore. What is true of the file,
 * whatever its name is, is here: in how many folders it is open; whether it was passed, which means
 * that the kernel reads it by itself and somebody may have it mapped (a mapping does not count as
 * open); and the bytes of one that somebody has without having counted them.
 *
 * A passed file gets no holes. When nobody has a name or a descriptor of it any more, its memory is
 * freed, mapped or not: a process that reads such a mapping gets SIGBUS. Files that were made
 * before this daemon began are left alone: its predecessor's readers go on, and nobody knows of
 * them.
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
 * A daemon begins: files that were made before this call are its predecessor's, and nothing is
 * known of those that are not open. It takes up to 10 ms, so that what is made after it is later.
 */
void gcr_inodes_begin(void);
/* Was the file of @fd made before that? True also when nobody can tell. */
bool gcr_inodes_is_older(int fd);

/* It is open in one more folder. -ENOMEM. */
int gcr_inodes_open(const struct stat *stat);
/* It is open, and passed from now on. -EBUSY: another folder has it open, too. */
int gcr_inodes_pass(const struct stat *stat);
/* Nobody has it mapped, as a lease has shown. */
void gcr_inodes_unpass(const struct stat *stat);
/* It has got a name that costs nothing, as another folder counts its bytes. -ENOMEM. */
int gcr_inodes_adopt(const struct stat *stat);

/* Was it passed by this daemon? */
bool gcr_inodes_is_passed(const struct stat *stat);
/* In how many folders is it open? */
unsigned int gcr_inodes_folders(const struct stat *stat);
/* Is it passed, open or adopted? Then whoever removes a name of it calls gcr_inodes_removed(). */
bool gcr_inodes_is_known(const struct stat *stat);

/* Bytes of a file that the caller will count no longer. */
struct gcr_inodes_bytes {
	struct gcr_store *store; /* its going_bytes have them already; NULL: there are none */
	uint64_t bytes;
	uid_t uid;     /* for whom they count */
	bool was_free; /* the name that has gone was one of gcr_inodes_adopt() */
};

/*
 * A name of the file of @fd (O_PATH is enough) has gone; or, for gcr_inodes_close(), it is open in
 * one folder less, where @fd was its last descriptor. If no name is left and no folder has it open,
 * the memory of a passed file is freed. If those who still have it have not counted it, @bytes go
 * on to count, also for the user, until nobody has it: true, and gcr_store_let_go() is called then.
 * False: they are still the caller's.
 */
bool gcr_inodes_removed(int fd, const struct gcr_inodes_bytes *bytes);
bool gcr_inodes_close(int fd, const struct gcr_inodes_bytes *bytes);

#endif
