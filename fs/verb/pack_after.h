/* SPDX-License-Identifier: MIT */
/* What has been frozen for some time (-o pack_after=) is packed, once, in the background. */
#ifndef GCR_FS_VERB_PACK_AFTER_H
#define GCR_FS_VERB_PACK_AFTER_H

struct gcr_daemon;
struct gcr_pack_after;

/* Starts nothing, and leaves NULL, without the option. -ENOMEM, -EAGAIN: there is no thread. */
int gcr_pack_after_create(struct gcr_daemon *daemon, struct gcr_pack_after **ret_after);
/* It begins no packing any more; one that it has begun goes on. NULL is allowed. */
void gcr_pack_after_destroy(struct gcr_pack_after *after);

#endif
