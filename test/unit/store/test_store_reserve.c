/* SPDX-License-Identifier: MIT */
/*
 * The reserve of the store, which is for packing only: a store that is full for all other callers
 * can still be packed, and never exceeds its size. And claims: freed room is promised only once.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/statvfs.h>

#include "fs/base/digest_buffer.h"
#include "fs/base/quota.h"
#include "fs/store/pack_work.h"
#include "test/unit/store/pack.h"

#define THREADS 4
#define TURNS	200

static uint64_t cost;

/*
 * Checks the size by the store's account and, if the store has a file system of its own, by that.
 */
static void check_size(void)
{
	struct statvfs found;

	CHECK(figures().used_bytes <= figures().size_bytes);
	CHECK(!fstatvfs(store->fd, &found));
	if (store->mountpoint)
		CHECK((found.f_blocks - found.f_bfree) * found.f_frsize <= figures().size_bytes);
}

static void *begin_and_end(void *data)
{
	for (int i = 0; i < TURNS; i++) {
		CHECK(!gcr_snapshot_begin_piece(data, cost, NULL));
		pthread_mutex_lock(&store->lock);
		CHECK(store->packing_bytes && store->packing_bytes <= store->reserve_bytes);
		pthread_mutex_unlock(&store->lock);
		gcr_snapshot_end_piece(data, cost);
	}
	return NULL;
}

static void test_turns(void)
{
	struct gcr_snapshot *snapshot;
	pthread_t threads[THREADS];
	struct gcr_error error;

	start(64 * MIB, 0);
	CHECK(figures().reserve_bytes == 4 * MIB && figures().free_bytes == 60 * MIB);
	/*
	 * Use up the room of other callers. The reserve is left, with room for one piece at a time.
	 */
	CHECK(!try_create(1, 54 * MIB, &snapshot, &error));
	CHECK(figures().free_bytes == 0 && figures().used_bytes == 60 * MIB);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, begin_and_end, snapshot));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(!store->packing_bytes);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
	/* A store this small has no reserve; a large store reserves no more than it needs. */
	start(16 * MIB, 0);
	CHECK(!figures().reserve_bytes);
	stop();
	start(40 * MIB, 0);
	CHECK(figures().reserve_bytes > cost && figures().reserve_bytes < 3 * MIB);
	stop();
	start(8192 * MIB, 0);
	CHECK(figures().reserve_bytes > 8 * cost && figures().reserve_bytes < 32 * MIB);
	stop();
}

static bool is_not_wanted(void *data)
{
	unsigned int *asked = data;

	++*asked;
	/* The callback is called with no lock held. */
	CHECK(!pthread_mutex_trylock(&store->lock) && !pthread_mutex_unlock(&store->lock));
	return *asked < 3;
}

/* Writes random bytes, which packing does not make smaller, or bytes that become almost nothing. */
static void write_bytes(struct gcr_snapshot *snapshot, bool are_noise)
{
	int fd = gcr_snapshot_open_file(snapshot, 0, true);
	uint64_t bytes = gcr_snapshot_extent(snapshot, 0)->bytes;
	uint64_t value = 88172645463325252ull;
	uint64_t *block = malloc(PAGE);

	CHECK(fd >= 0 && block);
	for (uint64_t at = 0; at < bytes; at += PAGE) {
		for (size_t i = 0; i < PAGE / sizeof(*block); i++) {
			value ^= value << 13;
			value ^= value >> 7;
			value ^= value << 17;
			block[i] = are_noise ? value : at + i / 1024 + 1;
		}
		CHECK(pwrite(fd, block, PAGE, (off_t)at) == (ssize_t)PAGE);
	}
	free(block);
	close(fd);
}

static uint64_t pack_in_turn(struct gcr_snapshot *snapshot)
{
	struct gcr_packs *packs = begin_packing(snapshot);
	struct gcr_subtree_file *file = open_to_pack(snapshot, 0);
	uint64_t count = 0;

	for (uint64_t piece = 0; piece < gcr_subtree_pieces(file); piece++) {
		uint64_t bytes = gcr_subtree_piece_cost(file);

		/* The first piece's cost includes the table. */
		CHECK(piece ? bytes == cost : bytes > cost && bytes < cost + 8 * 4096);
		CHECK(!gcr_snapshot_begin_piece(snapshot, bytes, NULL));
		count += !pack_piece(packs, file, piece);
		check_size();
		gcr_snapshot_end_piece(snapshot, bytes);
	}
	gcr_subtree_close(file);
	return count;
}

/* Packing compressible bytes frees memory in a full store; packing noise frees none. */
static void test_full_store(void)
{
	const struct gcr_tree_sum nothing = {0};
	struct gcr_snapshot *noise;
	struct gcr_snapshot *text;
	struct gcr_error error;
	struct gcr_room *others;
	uint64_t used;

	start(64 * MIB, 0);
	CHECK(!try_create(1, 16 * MIB, &noise, &error));
	CHECK(!try_create(2, 16 * MIB, &text, &error));
	write_bytes(noise, true);
	write_bytes(text, false);
	CHECK(!gcr_room_create(store, 0, &nothing, 0, &others));
	CHECK(!gcr_room_take(others, 0, figures().free_bytes));
	CHECK(gcr_room_take(others, 0, 1) == -ENOSPC && !figures().free_bytes);
	used = figures().used_bytes;
	CHECK(pack_in_turn(noise) == 8);
	CHECK(figures().used_bytes <= used + 64 * 4096);
	CHECK(pack_in_turn(text) == 8);
	CHECK(figures().used_bytes <= used - 12 * MIB && figures().free_bytes >= 12 * MIB);
	/* Other callers can use the freed room. */
	CHECK(!gcr_room_take(others, 0, 12 * MIB));
	gcr_room_destroy(others);
	gcr_snapshot_discard(noise);
	gcr_snapshot_discard(text);
	wait_used(0);
	stop();
}

/* A thread that waits for another thread's piece returns when its work is no longer wanted. */
static void test_not_wanted(void)
{
	struct gcr_pack_worker *worker;
	struct gcr_snapshot *snapshot;
	struct gcr_error error = {0};
	struct gcr_subtree_file *file;
	struct gcr_pack_work *work;
	unsigned int asked = 0;
	const struct gcr_wanted wanted = {is_not_wanted, &asked};

	start(40 * MIB, 0);
	CHECK(!try_create(1, 4 * MIB, &snapshot, &error));
	write_bytes(snapshot, false);
	CHECK(!gcr_pack_work_create(snapshot, false, false, &work, &error));
	CHECK(!gcr_pack_worker_create(&worker));
	CHECK(!gcr_snapshot_begin_piece(snapshot, cost, &wanted) && !asked);
	CHECK(gcr_snapshot_begin_piece(snapshot, cost, &wanted) == -ECANCELED && asked == 3);
	asked = 0;
	CHECK(gcr_pack_work_step(work, worker, &wanted, &error) == -ECANCELED && asked == 3);
	CHECK(!error.number && store->packing_bytes == cost);
	gcr_snapshot_end_piece(snapshot, cost);
	/*
	 * The cancelled piece is no error of the file: the second of the two pieces is still
	 * packed.
	 */
	CHECK(gcr_pack_work_step(work, worker, &wanted, &error) == 1);
	CHECK(gcr_pack_work_step(work, worker, &wanted, &error) == 0);
	CHECK(!gcr_pack_work_result(work, &error));
	gcr_pack_worker_destroy(worker);
	gcr_pack_work_destroy(work);
	file = open_to_pack(snapshot, 0);
	CHECK(pack_all(begin_packing(snapshot), file) == 1);
	gcr_subtree_close(file);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
}

/*
 * Not even the reserve is free: kept snapshots are dropped for a piece, and without any left
 * packing fails.
 */
static void test_used_up(void)
{
	const struct gcr_tree_sum nothing = {0};
	struct gcr_digest_buffer *digests = NULL;
	struct gcr_snapshot *snapshot;
	struct gcr_snapshot *kept;
	struct gcr_error error;
	struct gcr_room *room;

	daemon_.options.keep_bytes = 32 * MIB;
	start(64 * MIB, 0);
	CHECK(!try_create(1, 8 * MIB, &snapshot, &error));
	CHECK(!try_create(2, 8 * MIB, &kept, &error));
	CHECK(!gcr_digest_buffer_create(gcr_snapshot_first_chunk(kept, 1), &digests));
	CHECK(!gcr_store_keep(kept, &digests));
	CHECK(!gcr_room_create(store, 0, &nothing, 0, &room));
	CHECK(!gcr_room_take_promised(room, 64 * MIB - figures().used_bytes));
	CHECK(gcr_room_take_promised(room, 1) == -ENOSPC);
	CHECK(!gcr_snapshot_begin_piece(snapshot, cost, NULL));
	CHECK(!figures().kept_bytes);
	gcr_snapshot_end_piece(snapshot, cost);
	wait_used(50 * MIB);
	CHECK(!gcr_room_take_promised(room, 14 * MIB));
	CHECK(gcr_snapshot_begin_piece(snapshot, cost, NULL) == -ENOSPC && !store->packing_bytes);
	gcr_room_destroy(room);
	gcr_snapshot_discard(snapshot);
	wait_used(0);
	stop();
	daemon_.options.keep_bytes = 0;
}

static void test_claims(void)
{
	struct gcr_digest_buffer *digests = NULL;
	struct gcr_snapshot *snapshot;
	struct gcr_error error = {0};
	uint64_t missing;

	daemon_.options.keep_bytes = 32 * MIB;
	start(64 * MIB, 0);
	CHECK(!gcr_store_claim(store, 1, 77, &(struct gcr_store_payer){0}, 40 * MIB, &missing,
			       &error) &&
	      !missing);
	CHECK(figures().free_bytes == 60 * MIB);
	CHECK(gcr_store_claim(store, 2, 77, &(struct gcr_store_payer){0}, 30 * MIB, &missing,
			      &error) == -ENOSPC);
	CHECK(missing == 10 * MIB && error.number == ENOSPC);
	/* Only the last claim of each process counts. */
	CHECK(!gcr_store_claim(store, 1, 77, &(struct gcr_store_payer){0}, 30 * MIB, &missing,
			       &error));
	CHECK(!gcr_store_claim(store, 2, 77, &(struct gcr_store_payer){0}, 30 * MIB, &missing,
			       &error));
	CHECK(gcr_store_claim(store, 3, 77, &(struct gcr_store_payer){0}, 2 * MIB, &missing,
			      &error) == -ENOSPC);
	gcr_store_end_claim(store, 2, 77);
	gcr_store_end_claim(store, 2, 77);
	/* The claim has become a snapshot, and counts as such. */
	CHECK(!try_create(1, 24 * MIB, &snapshot, &error));
	CHECK(!store->claims && figures().used_bytes == 30 * MIB);
	CHECK(!gcr_store_claim(store, 2, 77, &(struct gcr_store_payer){0}, 30 * MIB, &missing,
			       &error));
	gcr_store_end_claim(store, 2, 77);
	/*
	 * A process's claim can count on its own kept snapshot, but not on those of other
	 * processes.
	 */
	CHECK(!gcr_digest_buffer_create(gcr_snapshot_first_chunk(snapshot, 1), &digests));
	CHECK(!gcr_store_keep(snapshot, &digests));
	CHECK(!gcr_store_claim(store, 1, 77, &(struct gcr_store_payer){0}, 50 * MIB, &missing,
			       &error));
	gcr_store_end_claim(store, 1, 77);
	CHECK(gcr_store_claim(store, 2, 77, &(struct gcr_store_payer){0}, 50 * MIB, &missing,
			      &error) == -ENOSPC);
	CHECK(missing == 20 * MIB);
	CHECK(!gcr_store_drop_kept_of_others(store, 1, 77));
	CHECK(gcr_store_drop_kept_of_others(store, 2, 77));
	CHECK(!gcr_store_drop_kept_of_others(store, 2, 77));
	wait_used(0);
	CHECK(!gcr_store_claim(store, 2, 77, &(struct gcr_store_payer){0}, 60 * MIB, &missing,
			       &error));
	stop();
	daemon_.options.keep_bytes = 0;
}

/* Counts processes with a pid below 10 as processes of a container. */
static uid_t count_as(pid_t pid)
{
	return pid < 10 ? GCR_QUOTA_OTHER_ROOT : 0;
}

/*
 * Root of a container has root's uid, but the store limit of a user; the host's root has no limit.
 */
static void test_root_of_container(void)
{
	const struct gcr_quota_limits limits = {.most = {[GCR_QUOTA_STORE] = 20 * MIB}};
	_cleanup_free_ struct gcr_quota_held *held = NULL;
	struct gcr_snapshot *snapshot, *roots;
	struct gcr_packs_figures packs;
	struct gcr_error error = {0};
	uint64_t missing;
	size_t count;

	if (geteuid())
		return;
	CHECK(!gcr_quota_create(&limits, "/nowhere/subuid", 0, &daemon_.quota));
	start(64 * MIB, 0);
	gcr_store_count_by(store, count_as);
	CHECK(!try_create(1, 16 * MIB, &snapshot, &error));
	CHECK(!try_create(10, 24 * MIB, &roots, &error));
	CHECK(!gcr_store_users(store, &held, &count) && count == 1);
	CHECK(held[0].uid == GCR_QUOTA_OTHER_ROOT && held[0].counts[GCR_QUOTA_STORE] >= 16 * MIB);
	CHECK(gcr_store_claim(store, 2, 77, &(struct gcr_store_payer){.uid = GCR_QUOTA_OTHER_ROOT},
			      8 * MIB, &missing, &error) == -EDQUOT);
	CHECK(strstr(error.words, "user container-root has "));
	CHECK(!gcr_store_claim(store, 11, 77, &(struct gcr_store_payer){0}, 8 * MIB, &missing,
			       &error));
	gcr_store_end_claim(store, 11, 77);
	/*
	 * The packed snapshot still counts for the container's root, and shares no chunk with
	 * root's snapshot.
	 */
	write_bytes(snapshot, true);
	write_bytes(roots, true);
	CHECK(pack_in_turn(snapshot) == 8 && pack_in_turn(roots) == 12);
	gcr_store_packs_figures(store, &packs);
	CHECK(packs.unpacked_bytes == 40 * MIB && !packs.shared_bytes);
	free(TAKE_PTR(held));
	CHECK(!gcr_store_users(store, &held, &count) && count == 1);
	CHECK(held[0].uid == GCR_QUOTA_OTHER_ROOT && held[0].counts[GCR_QUOTA_STORE] >= 16 * MIB);
	gcr_snapshot_discard(roots);
	gcr_snapshot_discard(snapshot);
	stop();
	gcr_quota_destroy(TAKE_PTR(daemon_.quota));
}

static void tests(void)
{
	cost = gcr_store_piece_cost(0);
	test_turns();
	test_full_store();
	test_not_wanted();
	test_used_up();
	test_claims();
	test_root_of_container();
}

static void be_killed(void)
{
}

int main(int argc, char **argv)
{
	return run_tests(argv, tests, be_killed);
}
