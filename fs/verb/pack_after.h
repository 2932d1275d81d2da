/* SPDX-License-Identifier: MIT */
/*
 * Packs each process once, in the background, after the time of -o pack_after= in the frozen state.
 */
#ifndef GCR_FS_VERB_PACK_AFTER_H
#define GCR_FS_VERB_PACK_AFTER_H

struct gcr_daemon;
struct gcr_pack_after;

/*
 * Without the option, starts nothing and leaves *ret_after as it is. -ENOMEM, -EAGAIN: no thread
 * could be started.
 */
int gcr_pack_after_create(struct gcr_daemon *daemon, struct gcr_pack_after **ret_after);
/* Stop starting packings; a packing that has begun continues. NULL is allowed. */
void gcr_pack_after_destroy(struct gcr_pack_after *after);

#endif
