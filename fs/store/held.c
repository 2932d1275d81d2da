/* SPDX-License-Identifier: MIT */
/*
 * Files that are gone and still mapped. The kernel tells nobody when the last mapping of a file
 * that it reads by itself ends: a descriptor is kept until a lease can be had on it, which the
 * remover's thread tries from time to time. Until then the file counts for its owner: its bytes,
 * and as one of his open files.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/store/folder.h"
#include "fs/store/store_private.h"
#include "lib/cleanup.h"
#include "lib/clock.h"

#define POLL_USEC (GCR_USEC_PER_SEC / 4)

/*
 * One whose file cannot be asked about, which needs CAP_LEASE, counts no longer. Who opens it at
 * this moment would have us get SIGIO, which is the end of who does not expect it.
 */
static bool is_held(int fd)
{
	return !fcntl(fd, F_SETSIG, SIGURG) && fcntl(fd, F_SETLEASE, F_WRLCK) < 0 &&
	       (errno == EAGAIN || errno == EBUSY);
}

bool gcr_store_hold(struct gcr_store *store, int fd, uid_t uid, uint64_t bytes, bool is_going)
{
	struct gcr_store_held *held;

	if (!is_held(fd))
		return false;
	held = malloc(sizeof(*held));
	if (!held)
		return false;
	*held = (struct gcr_store_held){.fd = fd, .uid = uid, .bytes = bytes};
	gcr_quota_count(store->quota, GCR_QUOTA_OPEN_FILES, uid, 1, &held->charge);
	pthread_mutex_lock(&store->lock);
	if (!is_going)
		store->going_bytes += bytes;
	held->next = store->held;
	store->held = held;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
	return true;
}

static void free_all(struct gcr_store_held *held)
{
	while (held) {
		struct gcr_store_held *next = held->next;

		close(held->fd);
		gcr_quota_release(&held->charge);
		free(held);
		held = next;
	}
}

int64_t gcr_store_poll_held_locked(struct gcr_store *store)
{
	struct gcr_store_held **link = &store->held;
	struct gcr_store_held *gone = NULL;
	int64_t now_usec = gcr_clock_usec();
	uint64_t bytes = 0;

	if (!store->held)
		return 0;
	if (now_usec < store->held_due_usec)
		return store->held_due_usec;
	while (*link) {
		struct gcr_store_held *held = *link;

		if (is_held(held->fd)) {
			link = &held->next;
			continue;
		}
		*link = held->next;
		held->next = gone;
		gone = held;
		bytes += held->bytes;
	}
	if (gone) {
		/* To free many pages takes a while. */
		pthread_mutex_unlock(&store->lock);
		free_all(gone);
		pthread_mutex_lock(&store->lock);
		store->going_bytes -= bytes;
		gcr_store_note_unlinked_locked(store);
		store->pools_changed = true;
		pthread_cond_broadcast(&store->changed);
	}
	store->held_due_usec = gcr_clock_usec() + POLL_USEC;
	return store->held ? store->held_due_usec : 0;
}

void gcr_store_end_held(struct gcr_store *store)
{
	free_all(TAKE_PTR(store->held));
}

/* ---- those of a tree ---- */

struct gcr_store_mapped {
	struct gcr_folder *folder;
	int *fds;
	size_t count;
};

static void add_mapped(void *data, int directory_fd, const char *name, const struct stat *stat)
{
	struct gcr_store_mapped *mapped = data;
	_cleanup_close_ int fd = -1;
	int *fds;

	if (!S_ISREG(stat->st_mode) || stat->st_size < GCR_FOLDER_PASSED_BYTES ||
	    !gcr_folder_may_be_mapped(mapped->folder, stat->st_ino))
		return;
	fd = openat(directory_fd, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	/* Nobody opens it from now on; and descriptors may be few. */
	if (fd < 0 || !is_held(fd))
		return;
	fds = reallocarray(mapped->fds, mapped->count + 1, sizeof(*fds));
	if (!fds)
		return;
	mapped->fds = fds;
	mapped->fds[mapped->count++] = TAKE_FD(fd);
}

int gcr_store_find_mapped(struct gcr_store *store, struct gcr_folder *folder, const char *name,
			  struct gcr_store_mapped **ret_mapped)
{
	struct gcr_store_mapped *mapped = calloc(1, sizeof(*mapped));

	if (!mapped)
		return -ENOMEM;
	mapped->folder = folder;
	gcr_store_each_file(store->fd, name, add_mapped, mapped);
	*ret_mapped = mapped;
	return 0;
}

uint64_t gcr_store_hold_mapped(struct gcr_store *store, struct gcr_store_mapped *mapped)
{
	uint64_t bytes = 0;

	for (size_t i = 0; mapped && i < mapped->count; i++) {
		struct stat stat;
		uint64_t of_file;

		/* What somebody has open counts until he closes it. */
		if (fstat(mapped->fds[i], &stat) < 0 ||
		    gcr_folder_has_open(mapped->folder, stat.st_ino))
			continue;
		of_file = (uint64_t)stat.st_blocks * 512;
		if (!gcr_store_hold(store, mapped->fds[i], gcr_folder_owner(mapped->folder),
				    of_file, true))
			continue;
		mapped->fds[i] = -1;
		bytes += of_file;
	}
	return bytes;
}

void gcr_store_mapped_free(struct gcr_store_mapped *mapped)
{
	for (size_t i = 0; mapped && i < mapped->count; i++)
		if (mapped->fds[i] >= 0)
			close(mapped->fds[i]);
	if (mapped)
		free(mapped->fds);
	free(mapped);
}
