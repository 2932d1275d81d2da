/* SPDX-License-Identifier: MIT */
/*
 * Faulting in the pages of new files ahead of the writers. Each thread takes a piece of a file at a
 * time. The files of different GPUs are populated in parallel, as they are copied in parallel, and
 * so are several snapshots. The threads end when there is nothing left to do.
 */
#include "fs/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE /* Linux 5.14, <asm-generic/mman-common.h> */
#define MADV_POPULATE_WRITE 23
#endif

struct piece {
	struct gcr_snapshot *snapshot;
	size_t index;
	uint64_t offset;
	uint64_t bytes;
};

/*
 * Allocates the pages of a range that is mapped at @place. A read is enough to allocate a page of a
 * tmpfs, and cannot overwrite the bytes of a concurrent writer. fallocate() reports a lack of
 * memory as an error; without it, the read would raise a signal.
 */
static int touch(int fd, uint64_t offset, uint64_t bytes, const volatile char *place)
{
	if (fallocate(fd, 0, (off_t)offset, (off_t)bytes) < 0)
		return -errno;
	for (uint64_t at = 0; at < bytes; at += 4096)
		(void)place[at];
	return 0;
}

int gcr_store_populate_piece(int fd, uint64_t offset, uint64_t bytes)
{
	/* The kernel chooses an address that suits huge pages. */
	void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
	int result = 0;

	if (place == MAP_FAILED)
		return -errno;
	/* A tmpfs that is not the daemon's own may give huge pages only on request. */
	madvise(place, bytes, MADV_HUGEPAGE);
	if (madvise(place, bytes, MADV_POPULATE_WRITE) < 0)
		result = errno == EINVAL ? touch(fd, offset, bytes, place) : -errno;
	munmap(place, bytes);
	return result;
}

/* The next piece of @snapshot; false if there is none. Lock: store. */
static bool next_piece_locked(struct gcr_snapshot *snapshot, struct piece *piece)
{
	for (size_t tries = snapshot->groups_count; tries; tries--) {
		struct gcr_store_group *group = &snapshot->groups[snapshot->next_group];
		uint64_t bytes;

		snapshot->next_group = (snapshot->next_group + 1) % snapshot->groups_count;
		while (group->next < group->end && snapshot->files[group->next].has_pages)
			group->next++;
		if (group->next == group->end)
			continue;
		bytes = snapshot->extents[group->next].bytes - group->offset;
		if (bytes > GCR_STORE_PIECE_BYTES)
			bytes = GCR_STORE_PIECE_BYTES;
		*piece = (struct piece){snapshot, group->next, group->offset, bytes};
		group->offset += bytes;
		if (group->offset == snapshot->extents[group->next].bytes) {
			group->next++;
			group->offset = 0;
		}
		return true;
	}
	return false;
}

void gcr_snapshot_stop_populating(struct gcr_snapshot *snapshot)
{
	pthread_mutex_lock(&snapshot->store->lock);
	if (snapshot->populating)
		gcr_store_stop_populating_locked(snapshot);
	/* Pages that were added later would fill holes that have been made in the meantime. */
	while (snapshot->pieces_under_way)
		pthread_cond_wait(&snapshot->store->changed, &snapshot->store->lock);
	pthread_mutex_unlock(&snapshot->store->lock);
}

/*
 * Take a piece of the first job, with a reference to its snapshot; the job becomes the last one.
 * False: there is none. Lock: store.
 */
static bool take_piece_locked(struct gcr_store *store, struct piece *piece)
{
	while (store->jobs) {
		struct gcr_snapshot *snapshot = store->jobs;
		struct gcr_snapshot **link = &store->jobs;

		gcr_snapshot_unlink_job_locked(snapshot);
		if (!next_piece_locked(snapshot, piece) || !gcr_snapshot_try_ref(snapshot))
			continue;
		while (*link)
			link = &(*link)->next_job;
		snapshot->next_job = NULL;
		*link = snapshot;
		snapshot->pieces_under_way++;
		return true;
	}
	return false;
}

static int populate(const struct piece *piece)
{
	char name[GCR_EXTENT_NAME_BYTES];
	_cleanup_close_ int fd = -1;

	gcr_extent_name(&piece->snapshot->extents[piece->index], name);
	fd = openat(piece->snapshot->files_fd, name, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return gcr_store_populate_piece(fd, piece->offset, piece->bytes);
}

/*
 * A piece has been populated, or could not be. After an error, or when all pages are there, the
 * snapshot's job ends. Lock: store.
 */
static void piece_done_locked(const struct piece *piece, int result)
{
	struct gcr_snapshot *snapshot = piece->snapshot;
	bool complete = true;

	snapshot->pieces_under_way--;
	pthread_cond_broadcast(&snapshot->store->changed);
	if (result < 0 && snapshot->populating)
		gcr_store_stop_populating_locked(snapshot);
	if (snapshot->pieces_under_way || !snapshot->populating)
		return;
	for (size_t i = 0; i < snapshot->groups_count && complete; i++) {
		const struct gcr_store_group *group = &snapshot->groups[i];

		for (size_t file = group->next; file < group->end && complete; file++)
			complete = snapshot->files[file].has_pages;
	}
	if (!complete)
		return;
	snapshot->has_pages = true;
	gcr_store_stop_populating_locked(snapshot);
}

static void *populate_all(void *data)
{
	struct gcr_store *store = data;
	struct piece piece;

	pthread_mutex_lock(&store->lock);
	while (take_piece_locked(store, &piece)) {
		int result;

		pthread_mutex_unlock(&store->lock);
		result = populate(&piece);
		pthread_mutex_lock(&store->lock);
		piece_done_locked(&piece, result);
		pthread_mutex_unlock(&store->lock);
		gcr_snapshot_unref(piece.snapshot);
		pthread_mutex_lock(&store->lock);
	}
	store->populators--;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
	return NULL;
}

/* Makes the groups of the snapshot: consecutive extents of one GPU and one kind. -ENOMEM. */
static int make_groups(struct gcr_snapshot *snapshot)
{
	struct gcr_store_group *groups = calloc(snapshot->count, sizeof(*groups));
	size_t count = 0;

	if (!groups)
		return -ENOMEM;
	for (size_t i = 0; i < snapshot->count; i++) {
		const struct gcr_extent *extent = &snapshot->extents[i];

		if (!i || extent->gpu_index != extent[-1].gpu_index ||
		    extent->kind != extent[-1].kind)
			groups[count++].next = i;
		groups[count - 1].end = i + 1;
	}
	snapshot->groups = groups;
	snapshot->groups_count = count;
	return 0;
}

void gcr_snapshot_populate(struct gcr_snapshot *snapshot)
{
	struct gcr_store *store = snapshot->store;
	uint64_t pieces = snapshot->bytes / GCR_STORE_PIECE_BYTES + snapshot->count;
	pthread_attr_t attributes;

	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_mutex_lock(&store->lock);
	if (!snapshot->groups && !snapshot->has_pages && !snapshot->discarded && !store->stopping &&
	    snapshot->count && !make_groups(snapshot)) {
		snapshot->populating = true;
		snapshot->next_job = store->jobs;
		store->jobs = snapshot;
		for (; pieces && store->populators < store->threads_max; pieces--) {
			pthread_t thread;

			if (pthread_create(&thread, &attributes, populate_all, store))
				break;
			store->populators++;
		}
	}
	pthread_mutex_unlock(&store->lock);
	pthread_attr_destroy(&attributes);
}
