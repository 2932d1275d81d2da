/* SPDX-License-Identifier: MIT */
/*
 * Reads that the kernel serves itself: a file of the mount that is opened for reading goes, where
 * kernel and privilege allow, straight to the file of the store ("passthrough", Linux 6.9). libfuse
 * has it from 3.17 on; this asks the kernel beneath libfuse, so that older ones will do.
 *
 * The kernel wants one answer for all opens of a file at a time: either all of them know the file
 * behind it, or none does (fs/fuse/iomode.c; others fail with EIO). So the first open decides, and
 * holds until the last is closed.
 *
 * What was opened so cannot be called back: a mapping of it lives on when the mount knows of no
 * open file any more. So it is for files that nobody else gets afterwards, not for those of a pool.
 */
#ifndef GCR_FS_BASE_PASSTHROUGH_H
#define GCR_FS_BASE_PASSTHROUGH_H

#include <stdbool.h>
#include <stdint.h>

struct fuse_session;

/*
 * For a session that is mounted and has not been asked anything yet: what the kernel offers with
 * its first request is accepted. One session in a process. Without this, or where it fails
 * (-ENOMEM; -EINVAL and -EBADF of libfuse's), there is no passthrough, and nothing else is missing.
 */
int gcr_passthrough_start(struct fuse_session *session);
/* After the session has been destroyed. */
void gcr_passthrough_stop(void);

/* Has the kernel agreed, and has nothing spoken against it since? */
bool gcr_passthrough_is_on(void);

/*
 * Who may both read and write a file can map it, and behind our back write to it that way, for
 * ever: such an open is to be refused while it is passed through. Waits a moment for closes that
 * are under way: 0 or -EBUSY.
 */
int gcr_passthrough_wait(uint64_t node);

/* Is it open, and not passed through? Then that is how it is opened, whatever is wanted. */
bool gcr_passthrough_is_plain(uint64_t node);

/*
 * The node @node is being opened with @flags as of open(2); @fd is open for its file. @wants: it
 * may be read so. On success gcr_passthrough_close() has to follow when the kernel has closed it.
 * Returns the kernel's name for the file behind, for gcr_passthrough_answer(); 0: there is none;
 * -ENOMEM; -EBUSY: see gcr_passthrough_wait(); or who has it open reads another file, one that
 * stood there before.
 */
int gcr_passthrough_open(uint64_t node, int fd, int flags, bool wants);
void gcr_passthrough_close(uint64_t node);

/* The answer to an open, as the kernel takes it: struct fuse_open_out of linux/fuse.h 7.40. */
struct gcr_passthrough_answer {
	uint64_t handle;
	uint32_t flags;
	int32_t backing;
};
/* @is_read: reads are to go to the file behind; else they come to us, like all writes. */
struct gcr_passthrough_answer gcr_passthrough_answer(uint64_t handle, int backing, bool is_read);

#endif
