/* SPDX-License-Identifier: MIT */
/*
 * The files of all folders, by inode. A file may have a name in two folders: in that of a process
 * and in that of a place, after `dump leave` and during a restore. What is true of the file,
 * whatever its name is, is here: in how many folders it is open; whether it was passed, which means
 * that the kernel reads it by itself and somebody may have it mapped (a mapping does not count as
 * open); and how many bytes nobody else counts. For instance, a place counts the bytes of its
 * files, and a process that is restored from it does not; when the place is removed and the process
 * goes on to read them, they are counted here.
 *
 * A passed file gets no holes, nor does one that another folder may have, too: who reads a hole
 * through a mapping gives it memory, which nobody has counted. When nobody has a name or a
 * descriptor of a passed file any more, its memory is freed, mapped or not: a process that reads
 * such a mapping gets SIGBUS. Of a file that was made before this daemon began, the bytes that it
 * had when this daemon first opened it stay: its predecessor's readers may have them mapped.
 *
 * The table has one lock. Under it, only a quota's is taken. gcr_inodes_removed(),
 * gcr_inodes_close() and gcr_inodes_count_names() take the store's lock after it, and are called
 * without that; all others may be called under a folder's.
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
 * A daemon begins: files that were made before this call are its predecessor's, and nothing is
 * known of those that are not open. It takes up to 10 ms, so that what is made after it is later.
 */
void gcr_inodes_begin(void);
/* There is a file that was made at @made (of the clock of its file system): it is older, too. */
void gcr_inodes_begin_after(const struct timespec *made);

/* The file of @fd is open in one more folder. -ENOMEM, -EIO. */
int gcr_inodes_open(int fd);
/*
 * It is open, and passed from now on; @ret_was_passed says whether it was before. -EBUSY: another
 * folder has it open, too.
 */
int gcr_inodes_pass(const struct stat *stat, bool *ret_was_passed);
/* It has not been passed after all. */
void gcr_inodes_unpass(const struct stat *stat);
/* Nobody has it mapped, as a lease has shown. */
void gcr_inodes_unmapped(const struct stat *stat);
/*
 * The file @name in @from_fd gets the same name in @to_fd, a directory that nobody else can reach
 * yet. The new name costs nothing, as somebody else counts the file's bytes. @adopter, not 0, is
 * the number of the snapshot or place whose name it is: whoever removes the name says it again.
 * *ret_stat: the file's. It waits for whoever truncates the file at the moment;
 * gcr_inodes_removed() and gcr_inodes_close() of the same file wait for it. -EINVAL: it is no
 * regular file; -ENOENT, -ENOMEM, -EIO, ...: @to_fd has no such name.
 */
int gcr_inodes_link(int from_fd, const char *name, int to_fd, uint32_t adopter,
		    struct stat *ret_stat);
/*
 * All names with this number are counted from now on, by their place in @store, and are like any
 * other. What the table has counted for their files so far, it counts no longer.
 */
void gcr_inodes_count_names(struct gcr_store *store, uint32_t adopter);

/*
 * Was it passed by this daemon, or may the one before have passed it? That is only known of a file
 * that has an entry: of others the answer is no.
 */
bool gcr_inodes_is_passed(const struct stat *stat);
/* In how many folders is it open? */
unsigned int gcr_inodes_folders(const struct stat *stat);
/* Is there an entry of it? Then whoever removes a name of it calls gcr_inodes_removed(). */
bool gcr_inodes_is_known(const struct stat *stat);

/*
 * Memory of a file that the caller has counted, and will count no longer: if somebody else still
 * has the file, the table takes it over.
 */
struct gcr_inodes_bytes {
	struct gcr_store *store; /* it has added @bytes to its going_bytes; NULL: nothing to take */
	uint64_t bytes;
	uid_t uid;	  /* the user for whom they count */
	uint32_t adopter; /* whose name has gone, if gcr_inodes_link() made it; 0: nobody's */
};

/*
 * A name of the file of @fd (O_PATH is enough) has gone; or, for gcr_inodes_close(), it is open in
 * one folder less, where @fd was its last descriptor. If no name is left and no folder has it open,
 * the memory of a passed file is freed. If those who still have it have not counted it, the table
 * takes @bytes over: true. They go on to count, also for the user, until nobody has the file; then
 * the table calls gcr_store_let_go(). False: they are still the caller's; so they are if the table
 * has taken over those of another name.
 */
bool gcr_inodes_removed(int fd, const struct gcr_inodes_bytes *bytes);
bool gcr_inodes_close(int fd, const struct gcr_inodes_bytes *bytes);

#endif
