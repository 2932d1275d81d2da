/* SPDX-License-Identifier: MIT */
/* The rights of a restored tree's owner, for the calls of CRIU with paths that its images name. */
#ifndef GCR_CRIU_GLUE_GUARD_RIGHTS_H
#define GCR_CRIU_GLUE_GUARD_RIGHTS_H

#include <linux/capability.h>
#include <stdbool.h>
#include <sys/types.h>

/* What a thread of CRIU gets back after a call with the owner's rights. */
struct gcr_guard_saved {
	struct __user_cap_data_struct capabilities[_LINUX_CAPABILITY_U32S_3];
	int parent_death;
	int dumpable;
	pid_t parent;
	/* The real ids; -1: these did not change. */
	uid_t uid;
	gid_t gid;
};

/*
 * Is this program CRIU, and no program that starts CRIU? CRIU exports functions to its plugins. Its
 * arguments tell nothing: a program that starts CRIU can have the same ones.
 */
bool gcr_guard_is_in_criu(void);
/* Is this CRIU, and does it restore the tree of an ordinary user? */
bool gcr_guard_has_owner(void);
/* The owner's uid; call it only if there is an owner. */
uid_t gcr_guard_owner(void);
/* Is this process CRIU itself, and not a process of the tree that it makes? */
bool gcr_guard_is_criu(void);
/*
 * Is this process in the mount namespace in which CRIU was started? True also if that is not known.
 */
bool gcr_guard_has_our_mounts(void);

/*
 * Gives the calling thread the owner's effective ids and groups. *saved is for gcr_guard_end(). 0;
 * -1 and errno: the thread has the rights that it had.
 */
int gcr_guard_begin(struct gcr_guard_saved *saved);
/*
 * As gcr_guard_begin(), also with the real ids, for calls by which the kernel reports the thread's
 * ids to others. Until gcr_guard_end() the owner can send signals to the process.
 */
int gcr_guard_begin_real(struct gcr_guard_saved *saved);
/* Gives the calling thread its own rights back, or ends the process. errno does not change. */
void gcr_guard_end(const struct gcr_guard_saved *saved);

#endif
