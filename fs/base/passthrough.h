/* SPDX-License-Identifier: MIT */
/*
 * Reads served by the kernel: where kernel and privilege allow, reads of a mount's file that is
 * opened for reading go directly to the store's file ("passthrough", Linux 6.9). libfuse supports
 * that from 3.17 on; this code speaks to the kernel below libfuse, so that older versions suffice.
 *
 * The kernel requires all concurrent opens of a file to agree: either all have the backing file or
 * none has (fs/fuse/iomode.c; a differing open fails with EIO). So the first open decides, until
 * the last close.
 *
 * A passed-through open cannot be revoked: a mapping lives on after the mount has no open file any
 * more. So passthrough is only for files that are never reused for another owner, not for those of
 * a pool.
 */
#ifndef GCR_FS_BASE_PASSTHROUGH_H
#define GCR_FS_BASE_PASSTHROUGH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct fuse_session;

/*
 * Accepts the kernel's offer in its first request. For a mounted session that has not been used
 * yet; one session per process. Without this call, or if it fails (-ENOMEM; libfuse's -EINVAL and
 * -EBADF), there is no passthrough, and everything else works.
 */
int gcr_passthrough_start(struct fuse_session *session);
/* Resets the state, after the session has been destroyed. */
void gcr_passthrough_stop(void);

/* Has the kernel agreed, and has registering a backing file worked? */
bool gcr_passthrough_is_on(void);

/*
 * Waits briefly for pending closes of a passed-through node. A user who can both read and write a
 * file can map it, and write to it through the mapping at any later time without our knowledge: an
 * open for reading and writing must be refused while the node is passed through. Only a few threads
 * may wait for opens of one owner (gcr_quota_owner(); root of the host is not limited): beyond
 * these it does not wait. Returns 0 or -EBUSY.
 */
int gcr_passthrough_wait(uint64_t node, uid_t owner);

/* Is the node open without passthrough? Then further opens must be so, too. */
bool gcr_passthrough_is_plain(uint64_t node);

/*
 * Registers an open of @node with @flags as of open(2); @fd is a descriptor of its file, and stays
 * the caller's. @wants: passthrough is permitted. On success gcr_passthrough_close() must follow
 * when the kernel has closed the node. Returns the kernel's id of the backing file, for
 * gcr_passthrough_answer(); 0: no passthrough; -ENOMEM; -errno of fstat(2); -EBUSY: see
 * gcr_passthrough_wait(), or the present opens read another file that had this node before.
 */
int gcr_passthrough_open(uint64_t node, int fd, int flags, bool wants);
/* Ends one open that gcr_passthrough_open() has registered. */
void gcr_passthrough_close(uint64_t node);

/* The kernel's answer to an open: struct fuse_open_out of linux/fuse.h 7.40. */
struct gcr_passthrough_answer {
	uint64_t handle;
	uint32_t flags;
	int32_t backing;
};
/*
 * Makes the answer to an open, with @backing from gcr_passthrough_open(). @is_read: reads go to the
 * backing file; else they come to us, like all writes.
 */
struct gcr_passthrough_answer gcr_passthrough_answer(uint64_t handle, int backing, bool is_read);

#endif
