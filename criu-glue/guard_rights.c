/* SPDX-License-Identifier: MIT */
/*
 * The rights of a restored tree's owner, in CRIU. The daemon tells them in the environment. A
 * thread gets them for one call: by raw system calls, as those of glibc change all threads.
 */
#include "criu-glue/guard_rights.h"

#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "criu-glue/criu.h"

static struct {
	bool is_told;
	uid_t uid;
	gid_t gid;
	uint64_t capabilities;
	gid_t *groups;
	size_t groups_count;
	/* CRIU's own, when it was started. */
	uid_t own_uid;
	gid_t own_gid;
	gid_t *own_groups;
	size_t own_groups_count;
	struct stat mounts;
	/* In a page that a child gets empty. */
	bool *is_criu;
} owner;

bool gcr_guard_has_owner(void)
{
	return owner.is_told;
}

uid_t gcr_guard_owner(void)
{
	return owner.uid;
}

bool gcr_guard_is_criu(void)
{
	return *owner.is_criu;
}

bool gcr_guard_has_our_mounts(void)
{
	struct stat now;

	/* A process in which that cannot be found out is guarded. */
	return stat("/proc/self/ns/mnt", &now) < 0 ||
	       (now.st_dev == owner.mounts.st_dev && now.st_ino == owner.mounts.st_ino);
}

/* ---- what the daemon has told ---- */

/*
 * Parses "UID:GID:CAPABILITIES:GROUP,GROUP" into `owner`. False: the text has another form, or
 * there is no memory.
 */
static bool parse(const char *text)
{
	size_t room = strlen(text) / 2 + 1;
	int length = 0;

	if (sscanf(text, "%" SCNu32 ":%" SCNu32 ":%" SCNx64 ":%n", &owner.uid, &owner.gid,
		   &owner.capabilities, &length) != 3 ||
	    !length || !owner.uid)
		return false;
	owner.groups = calloc(room, sizeof(*owner.groups));
	if (!owner.groups)
		return false;
	for (text += length; *text; text += length) {
		gid_t *group = &owner.groups[owner.groups_count++];

		length = 0;
		if (sscanf(text, "%" SCNu32 "%n", group, &length) != 1 || !length)
			return false;
		if (text[length] == ',')
			length++;
	}
	return true;
}

/* Stores CRIU's own ids, groups and mount namespace in `owner`. False: one of them is not known. */
static bool note_own(void)
{
	int count = getgroups(0, NULL);

	owner.own_groups = calloc(count > 0 ? (size_t)count : 1, sizeof(*owner.own_groups));
	if (count < 0 || !owner.own_groups)
		return false;
	count = getgroups(count, owner.own_groups);
	owner.own_groups_count = count > 0 ? (size_t)count : 0;
	owner.is_criu = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (count < 0 || owner.is_criu == MAP_FAILED ||
	    madvise(owner.is_criu, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK) < 0)
		return false;
	*owner.is_criu = true;
	owner.own_uid = geteuid();
	owner.own_gid = getegid();
	return stat("/proc/self/ns/mnt", &owner.mounts) == 0;
}

bool gcr_guard_is_in_criu(void)
{
	return dlsym(RTLD_DEFAULT, "criu_get_image_dir");
}

/*
 * Reads the owner from the environment, in CRIU alone: not in a shell or another program that
 * starts CRIU, nor in one that CRIU starts. Ends CRIU if the owner is not valid.
 */
__attribute__((constructor)) static void learn(void)
{
	const char *text = getenv(GCR_CRIU_OWNER_VARIABLE);

	if (!text || !gcr_guard_is_in_criu())
		return;
	if (!parse(text) || !note_own()) {
		fprintf(stderr, "gpucr-criu-guard: the owner of the tree is not known: %s\n", text);
		_exit(1);
	}
	owner.is_told = true;
	unsetenv(GCR_CRIU_OWNER_VARIABLE);
}

/* ---- a thread's rights ---- */

static int set_capabilities(const struct __user_cap_data_struct *capabilities)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};

	return (int)syscall(SYS_capset, &header, capabilities);
}

/*
 * Sets the thread's effective ids to the owner's (and so those for files), and its real ids to
 * these, unless they are -1. The saved ids stay, so that the thread can get its old ids back. 0; -1
 * and errno.
 */
static int set_ids(uid_t real_uid, gid_t real_gid)
{
	return syscall(SYS_setresgid, real_gid, owner.gid, -1) < 0 ||
			       syscall(SYS_setresuid, real_uid, owner.uid, -1) < 0
		       ? -1
		       : 0;
}

void gcr_guard_end(const struct gcr_guard_saved *saved)
{
	int number = errno;

	/* The user comes first: the kernel gives the capabilities back with it. */
	if (syscall(SYS_setresuid, saved->uid, owner.own_uid, -1) < 0 ||
	    set_capabilities(saved->capabilities) < 0 ||
	    syscall(SYS_setresgid, saved->gid, owner.own_gid, -1) < 0 ||
	    syscall(SYS_setgroups, owner.own_groups_count, owner.own_groups) < 0)
		_exit(1);
	/* The kernel resets these two with the user. */
	if (saved->dumpable == 1)
		prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	if (saved->parent_death) {
		prctl(PR_SET_PDEATHSIG, saved->parent_death, 0, 0, 0);
		if (getppid() != saved->parent)
			raise(saved->parent_death);
	}
	errno = number;
}

static int begin(struct gcr_guard_saved *saved, bool is_real)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct few[_LINUX_CAPABILITY_U32S_3];

	saved->uid = is_real ? getuid() : (uid_t)-1;
	saved->gid = is_real ? getgid() : (gid_t)-1;
	saved->parent = getppid();
	saved->dumpable = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
	if (prctl(PR_GET_PDEATHSIG, &saved->parent_death, 0, 0, 0) < 0 ||
	    syscall(SYS_capget, &header, saved->capabilities) < 0)
		return -1;
	memcpy(few, saved->capabilities, sizeof(few));
	for (unsigned int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
		few[i].effective = few[i].permitted & (uint32_t)(owner.capabilities >> (32 * i));
	if (syscall(SYS_setgroups, owner.groups_count, owner.groups) == 0 &&
	    set_ids(is_real ? owner.uid : (uid_t)-1, is_real ? owner.gid : (gid_t)-1) == 0 &&
	    set_capabilities(few) == 0)
		return 0;
	gcr_guard_end(saved);
	return -1;
}

int gcr_guard_begin(struct gcr_guard_saved *saved)
{
	return begin(saved, false);
}

int gcr_guard_begin_real(struct gcr_guard_saved *saved)
{
	return begin(saved, true);
}
