/* SPDX-License-Identifier: MIT */
/*
 * Sessions of gpucr-worker as the daemon sees them: out of VRAM into files, and back. The files and
 * the VRAM are compared byte by byte afterwards, and the free VRAM is checked. Requests, files and
 * tables that are wrong are refused, and so is what there is no room for.
 */
#include <ftw.h>

#include "test/unit/worker/whole_sessions.h"

/* The same number of pieces as in small[], but larger ones. */
static const uint64_t few[FEW] = {2 * MIB, 34 * MIB, 6 * MIB, 2 * MIB, 16 * MIB, 50 * MIB, 2 * MIB};

static void round_trips(struct worker *worker, const uint64_t *bytes, uint32_t first, uint32_t end)
{
	struct process process = process_create(store, 1, 0, bytes, FEW);
	size_t before = free_of(0), total = 0;

	for (size_t i = 0; i < FEW; i++)
		total += bytes[i];
	for (uint32_t copies = first; copies < end; copies++) {
		process_allocate(&process);
		go_out_by(worker, &process, copies);
		/* Until the commit the process can keep its VRAM: no memory has been released. */
		CHECK(process_check_handle(&process, 1, process.handles[1]));
		process_release(&process, true);
		CHECK(free_of(0) == before - total);
		DONE(worker_do(worker, GCR_MESSAGE_END));
		CHECK(free_of(0) == before);
		come_in(worker, &process, copies);
		CHECK(free_of(0) == before - total);
		process_release(&process, true);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
}

/*
 * Large pieces with the default number of copies in flight, small ones with few; with
 * GPUCR_TEST_ALL large ones with each number.
 */
static void test_round_trip(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});

	if (getenv("GPUCR_TEST_ALL")) {
		round_trips(&worker, few, 0, 4);
	} else {
		round_trips(&worker, few, 0, 1);
		round_trips(&worker, small, 1, 4);
	}
	CHECK(worker_leaves(&worker) == 0);
}

/* The ballast for the driver's restore is allocated and released during a session. */
static void test_ballast(void)
{
	struct gcr_reserve_request ballast = {.bytes = 100 * MIB};
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t before = free_of(0);

	process_allocate(&process);
	go_out(&worker, &process);
	process_release(&process, true);
	DONE(worker_do(&worker, GCR_MESSAGE_END));

	DONE(worker_do_fds(&worker, GCR_MESSAGE_RESERVE, &ballast, sizeof(ballast), NULL, 0));
	CHECK(free_of(0) == before - 100 * MIB);
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 2));
	DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
	DONE(worker_do_fds(&worker, GCR_MESSAGE_RESERVE, &ballast, sizeof(ballast), NULL, 0));
	DONE(worker_do(&worker, GCR_MESSAGE_COPY));
	DONE(worker_do(&worker, GCR_MESSAGE_RELEASE));
	DONE(session_export(&worker, &process));
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process_receive(&process);
	process_destroy(&process);
	CHECK(free_of(0) == before);
	CHECK(worker_leaves(&worker) == 0);
}

/* Parts of a file that were never written, or were punched, are zeros in VRAM, and stay holes. */
static void test_holes(void)
{
	static const uint64_t bytes[FEW] = {2 * MIB, 6 * MIB,  2 * MIB, 2 * MIB,
					    4 * MIB, 22 * MIB, 2 * MIB};
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, bytes, FEW);
	uint64_t *words = malloc(22 * MIB);
	size_t before = free_of(0);
	struct stat old, new;
	int fd;

	/* Leave garbage in the VRAM that must become zeros. */
	process_allocate(&process);
	process_release(&process, true);
	fd = process_open(&process, 5);
	process_fill(&process, 5, words);
	/* Data in the middle of a GPU copy, at the start of one, and less than a page. */
	CHECK(pwrite(fd, words + 6 * MIB / 8, 4 * MIB, 6 * MIB) == 4 * MIB);
	CHECK(pwrite(fd, words + 16 * MIB / 8, 2 * MIB, 16 * MIB) == 2 * MIB);
	CHECK(pwrite(fd, words + 21 * MIB / 8, 512, 21 * MIB) == 512);
	CHECK(!fstat(fd, &old));
	process_digest_files(&process);

	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 1));
	DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
	DONE(worker_do(&worker, GCR_MESSAGE_COPY));
	DONE(session_export(&worker, &process));
	CHECK(!fstat(fd, &new) && new.st_blocks == old.st_blocks);
	close(fd);
	for (size_t i = 0; i < FEW; i++) {
		CUmemGenericAllocationHandle handle;
		CUdeviceptr pointer;

		OK(CU(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)process.fds[i],
						      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		pointer = process_map(0, handle, bytes[i]);
		OK(CU(cuMemcpyDtoH_v2)(words, pointer, bytes[i]));
		for (uint64_t at = 0; at < bytes[i]; at += 8) {
			bool data = i == 5 && ((at >= 6 * MIB && at < 10 * MIB) ||
					       (at >= 16 * MIB && at < 18 * MIB) ||
					       (at >= 21 * MIB && at < 21 * MIB + 512));

			CHECK(words[at / 8] == (data ? process_word(&process, i, at) : 0));
		}
		process_unmap(pointer, bytes[i]);
		OK(CU(cuMemRelease)(handle));
	}
	free(words);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process_destroy(&process);
	CHECK(free_of(0) == before);
	CHECK(worker_leaves(&worker) == 0);
}

static void test_two_gpus(void)
{
	struct worker workers[2];
	struct process processes[2];
	size_t before[2];

	for (int gpu = 0; gpu < 2; gpu++) {
		workers[gpu] = worker_start(&(struct worker_options){.gpu = gpu});
		before[gpu] = free_of(gpu);
		processes[gpu] =
			process_create(store, 1 + (uint64_t)gpu, gpu, small, FEW - (size_t)gpu);
		process_allocate(&processes[gpu]);
		DONE(session_begin(&workers[gpu], GCR_MESSAGE_SESSION_OUT, &processes[gpu], 0));
	}
#ifndef GCR_HIP
	/* Memory of the other GPU is refused. HIP does not report the GPU of a handle. */
	REFUSED(worker_do_fds(&workers[0], GCR_MESSAGE_IMPORT, &(struct gcr_range){0, 1},
			      sizeof(struct gcr_range), processes[1].fds, 1),
		EINVAL, "gpu0-");
	DONE(worker_do(&workers[0], GCR_MESSAGE_END));
	DONE(session_begin(&workers[0], GCR_MESSAGE_SESSION_OUT, &processes[0], 0));
#endif
	/* Both sessions at the same time. */
	for (int gpu = 0; gpu < 2; gpu++)
		DONE(session_import(&workers[gpu], &processes[gpu]));
	for (int gpu = 0; gpu < 2; gpu++)
		worker_ask(&workers[gpu], GCR_MESSAGE_COPY, NULL, 0, NULL, 0);
	for (int gpu = 0; gpu < 2; gpu++) {
		DONE(worker_hear(&workers[gpu], &worker_result, NULL, NULL));
		for (size_t i = 0; i < processes[gpu].count; i++)
			CHECK(process_check_file(&processes[gpu], i));
		process_release(&processes[gpu], true);
		DONE(worker_do(&workers[gpu], GCR_MESSAGE_END));
		CHECK(free_of(gpu) == before[gpu]);
	}
	for (int gpu = 0; gpu < 2; gpu++)
		come_in(&workers[gpu], &processes[gpu], 2);
	for (int gpu = 0; gpu < 2; gpu++) {
		process_destroy(&processes[gpu]);
		CHECK(free_of(gpu) == before[gpu]);
		CHECK(worker_leaves(&workers[gpu]) == 0);
	}
}

/* Sessions may be empty, or end in the middle; requests in the wrong order are refused. */
static void test_order(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, small, FEW);
	struct process nothing = process_create(store, 2, 0, small, 0);
	struct gcr_range range = {1, 2};
	size_t before = free_of(0);
	int fds[GCR_MESSAGE_FDS_MAX];
	size_t fds_count;

	REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EINVAL, "no session");
	REFUSED(worker_do(&worker, GCR_MESSAGE_END), EINVAL, "no session");
	REFUSED(worker_do(&worker, GCR_MESSAGE_LOCK), EOPNOTSUPP, "does not know");
	go_out(&worker, &nothing);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	come_in(&worker, &nothing, 0);

	process_allocate(&process);
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0));
	REFUSED(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0), EBUSY, "session");
	REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EINVAL, "0 of 7");
	REFUSED(worker_do(&worker, GCR_MESSAGE_CREATE), EINVAL, "");
	REFUSED(worker_do_fds(&worker, GCR_MESSAGE_IMPORT, &range, sizeof(range), process.fds + 1,
			      2),
		EINVAL, "next");
	range = (struct gcr_range){0, 3};
	REFUSED(worker_do_fds(&worker, GCR_MESSAGE_IMPORT, &range, sizeof(range), process.fds, 2),
		EINVAL, "next");
	range = (struct gcr_range){0, 2};
	DONE(worker_do_fds(&worker, GCR_MESSAGE_IMPORT, &range, sizeof(range), process.fds, 2));
	range = (struct gcr_range){2, 6};
	REFUSED(worker_do_fds(&worker, GCR_MESSAGE_IMPORT, &range, sizeof(range),
			      (int[]){0, 0, 0, 0, 0, 0}, 6),
		EINVAL, "next");
	REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EINVAL, "2 of 7");
	/* The session ends in the middle. */
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process_release(&process, true);
	CHECK(free_of(0) == before);

	process_digest_files(&process);
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 0));
	REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EINVAL, "0 of 7");
	range = (struct gcr_range){0, 1};
	worker_ask(&worker, GCR_MESSAGE_EXPORT, &range, sizeof(range), NULL, 0);
	REFUSED(worker_hear(&worker, &worker_result, fds, &fds_count), EINVAL, "");
	DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
	REFUSED(worker_do(&worker, GCR_MESSAGE_CREATE), EINVAL, "");
	/* Exporting before the copy has been made is allowed. */
	worker_ask(&worker, GCR_MESSAGE_EXPORT, &range, sizeof(range), NULL, 0);
	DONE(worker_hear(&worker, &worker_result, fds, &fds_count));
	CHECK(fds_count == 1);
	close(fds[0]);
	DONE(worker_do(&worker, GCR_MESSAGE_COPY));
	REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EINVAL, "");
	range = (struct gcr_range){5, 3};
	worker_ask(&worker, GCR_MESSAGE_EXPORT, &range, sizeof(range), NULL, 0);
	REFUSED(worker_hear(&worker, &worker_result, fds, &fds_count), EINVAL, "");
	range = (struct gcr_range){UINT32_MAX, 2};
	worker_ask(&worker, GCR_MESSAGE_EXPORT, &range, sizeof(range), NULL, 0);
	REFUSED(worker_hear(&worker, &worker_result, fds, &fds_count), EINVAL, "");
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	CHECK(free_of(0) == before);
	process_destroy(&process);
	process_destroy(&nothing);
	CHECK(worker_leaves(&worker) == 0);
}

/* Invalid tables, and descriptors of the wrong kind, are refused. */
static void test_lies(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, small, FEW);
	struct gcr_session asked = {.count = FEW, .first_chunk = OTHER_CHUNKS};
	int pipes[2];

	process.extents[6].kind = GCR_MEMORY_MANAGED;
	REFUSED(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0), EPROTO, "managed");
	process.extents[6].kind = GCR_MEMORY_DEVICE;
	process.extents[1].bytes += 4096;
	REFUSED(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0), EPROTO, "");
	process.extents[1].bytes -= 4096;
	process.extents[2].address = process.extents[1].address + 2 * MIB;
	REFUSED(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0), EPROTO, "");
	process.extents[2].address = process.extents[1].address + 14 * MIB;
	asked.count = GCR_EXTENTS_MAX + 1;
	CHECK(!pipe2(pipes, O_CLOEXEC));
	REFUSED(worker_do_fds(&worker, GCR_MESSAGE_SESSION_OUT, &asked, sizeof(asked),
			      (int[]){pipes[0], process.directory, process.digests}, 3),
		E2BIG, "");
	asked.count = FEW;
	REFUSED(worker_do_fds(&worker, GCR_MESSAGE_SESSION_OUT, &asked, sizeof(asked),
			      (int[]){pipes[0], process.directory, process.digests}, 3),
		EPROTO, "short");
	REFUSED(worker_do_fds(&worker, GCR_MESSAGE_SESSION_OUT, &asked, sizeof(asked), pipes, 2),
		EPROTO, "three descriptors");
	/* A descriptor without memory behind it. */
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0));
	REFUSED(worker_do_fds(&worker, GCR_MESSAGE_IMPORT, &(struct gcr_range){0, 1},
			      sizeof(struct gcr_range), pipes, 1),
		EINVAL, "gpu0-");
	REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EINVAL, "");
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	/* A descriptor that is no directory. */
	process_allocate(&process);
	{
		int table = gcr_extents_write(process.extents, FEW);

		DONE(worker_do_fds(&worker, GCR_MESSAGE_SESSION_OUT, &asked, sizeof(asked),
				   (int[]){table, pipes[1], process.digests}, 3));
		close(table);
	}
	worker_result.error = session_import(&worker, &process);
	CHECK(worker_result.error == 0 || worker_result.error == EIO);
	if (!worker_result.error)
		REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EIO, "gpu0-");
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	close(pipes[0]);
	close(pipes[1]);
	/* The worker is still usable. */
	go_out(&worker, &process);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process_destroy(&process);
	CHECK(worker_leaves(&worker) == 0);
}

/*
 * Expects a session out to fail in the copy with @number and @words, and the process to keep its
 * VRAM.
 */
static void expect_out(struct worker *worker, struct process *process, int number,
		       const char *words)
{
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_OUT, process, 0));
	DONE(session_import(worker, process));
	REFUSED(worker_do(worker, GCR_MESSAGE_COPY), number, words);
	/* A second copy fails too. */
	CHECK(worker_do(worker, GCR_MESSAGE_COPY) != 0);
	DONE(worker_do(worker, GCR_MESSAGE_END));
	for (size_t i = 0; i < process->count; i++)
		CHECK(process_check_handle(process, i, process->handles[i]));
}

static void expect_in(struct worker *worker, struct process *process, int number, const char *words)
{
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_IN, process, 0));
	DONE(worker_do(worker, GCR_MESSAGE_CREATE));
	REFUSED(worker_do(worker, GCR_MESSAGE_COPY), number, words);
	CHECK(session_export(worker, process) == EINVAL);
	DONE(worker_do(worker, GCR_MESSAGE_END));
}

/*
 * A file of digests that is too short, an offset in it that is too large, and a file that cannot be
 * written.
 */
static void test_digests_file(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, small, FEW);
	struct gcr_session asked = {.count = FEW, .first_chunk = UINT64_MAX / 32 + 1};
	int table = gcr_extents_write(process.extents, FEW);
	int digests = process.digests;
	size_t before = free_of(0);
	char path[64];
	int fds[] = {table, process.directory, digests};

	process_allocate(&process);
	go_out(&worker, &process);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	REFUSED(worker_do_fds(&worker, GCR_MESSAGE_SESSION_IN, &asked, sizeof(asked), fds, 3),
		EPROTO, "so many digests");
	REFUSED(worker_do_fds(&worker, GCR_MESSAGE_SESSION_OUT, &asked, sizeof(asked), fds, 3),
		EPROTO, "so many digests");
	/* The last digest is beyond the end of the file. */
	asked.first_chunk = 2 * OTHER_CHUNKS + 1;
	REFUSED(worker_do_fds(&worker, GCR_MESSAGE_SESSION_IN, &asked, sizeof(asked), fds, 3), EIO,
		"too few");
	asked.flags = GCR_SESSION_UNVERIFIED;
	DONE(worker_do_fds(&worker, GCR_MESSAGE_SESSION_IN, &asked, sizeof(asked), fds, 3));
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	close(table);

	/* The file is open for reading only. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", digests);
	process.digests = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(process.digests >= 0);
	expect_out(&worker, &process, EIO, "digests cannot be written");
	close(process.digests);
	process.digests = digests;
	CHECK(process_check_other_digests(&process));
	go_out(&worker, &process);
	process_release(&process, true);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	CHECK(free_of(0) == before);
	come_in(&worker, &process, 0);
	process_destroy(&process);
	CHECK(worker_leaves(&worker) == 0);
}

static void test_files(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t before = free_of(0);
	char name[GCR_EXTENT_NAME_BYTES];
	int fd;

	process_allocate(&process);
	gcr_extent_name(&process.extents[4], name);
	fd = process_open(&process, 4);
	CHECK(!ftruncate(fd, 2 * MIB));
	expect_out(&worker, &process, EIO, name);
	CHECK(!ftruncate(fd, 6 * MIB));
	expect_out(&worker, &process, EIO, "6291456 bytes, not 4194304");
	close(fd);
	CHECK(!unlinkat(process.directory, name, 0));
	expect_out(&worker, &process, EIO, "No such file");
	CHECK(!symlinkat("/dev/null", process.directory, name));
	expect_out(&worker, &process, EIO, name);
	CHECK(!unlinkat(process.directory, name, 0) && !mkfifoat(process.directory, name, 0600));
	expect_out(&worker, &process, EIO, name);
	CHECK(!unlinkat(process.directory, name, 0));
	fd = openat(process.directory, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && !ftruncate(fd, 4 * MIB));
	go_out(&worker, &process);
	process_release(&process, true);
	DONE(worker_do(&worker, GCR_MESSAGE_END));

	CHECK(!ftruncate(fd, 4 * MIB - 1));
	expect_in(&worker, &process, EIO, name);
	close(fd);
	CHECK(!unlinkat(process.directory, name, 0));
	expect_in(&worker, &process, EIO, "No such file");
	CHECK(free_of(0) == before);
	process_destroy(&process);
	CHECK(worker_leaves(&worker) == 0);
}

static void test_full_store(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process;

	if (!own_mount) {
		fprintf(stderr, "not done: a file system cannot be mounted here\n");
		CHECK(worker_leaves(&worker) == 0);
		return;
	}
	process = process_create(store, 1, 0, small, FEW);
	process_allocate(&process);
	store_resize(SMALL_BYTES - 10 * MIB);
	expect_out(&worker, &process, ENOSPC, "store is full");
	store_resize(1024 * MIB);
	go_out(&worker, &process);
	process_release(&process, true);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	/* Reading allocates no memory in the store. */
	store_resize(SMALL_BYTES + 2 * MIB);
	come_in(&worker, &process, 2);
	store_resize(1024 * MIB);
	process_destroy(&process);
	CHECK(worker_leaves(&worker) == 0);
}

/* Without enough free VRAM no memory is kept, and the message says how much is needed and free. */
static void test_no_vram(void)
{
	static const uint64_t much[] = {200 * MIB, 2 * MIB, 200 * MIB, 300 * MIB};
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, much, 3);
	struct process too_much = process_create(store, 2, 0, much, 4);
	CUmemAllocationProp properties = process_properties(0);
	CUmemGenericAllocationHandle other;
	size_t before = free_of(0);
	char figures[64];

	OK(CU(cuMemCreate)(&other, 128 * MIB, &properties, 0));
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 0));
	snprintf(figures, sizeof(figures), "402 MiB of VRAM are needed and %zu MiB are free",
		 (before >> 20) - 128);
	REFUSED(worker_do(&worker, GCR_MESSAGE_CREATE), ENOMEM, figures);
	CHECK(worker_result.driver_result == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(free_of(0) == before - 128 * MIB);
	/* Another user of the GPU makes room. */
	OK(CU(cuMemRelease)(other));
	DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &too_much, 0));
	REFUSED(worker_do(&worker, GCR_MESSAGE_CREATE), ENOMEM, "702 MiB");
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	CHECK(free_of(0) == before);
	process_destroy(&process);
	process_destroy(&too_much);
	CHECK(worker_leaves(&worker) == 0);
}

/*
 * With GCR_SESSION_IN_PARTS, the worker keeps the allocations that fit, and allocates the rest when
 * there is room.
 */
static void test_vram_in_parts(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, small, FEW);
	CUmemAllocationProp properties = process_properties(0);
	CUmemGenericAllocationHandle other;
	size_t before = free_of(0);

	process_allocate(&process);
	go_out(&worker, &process);
	process_release(&process, true);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process.flags = GCR_SESSION_IN_PARTS;
	/* The fourth allocation fits, and the fifth does not. */
	OK(CU(cuMemCreate)(&other, before - 24 * MIB, &properties, 0));
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 1));
	REFUSED(worker_do(&worker, GCR_MESSAGE_CREATE), ENOMEM, "36 MiB of VRAM are needed and");
	CHECK(free_of(0) == 2 * MIB);
	REFUSED(worker_do(&worker, GCR_MESSAGE_CREATE), ENOMEM, "and 2 MiB are free");
	CHECK(free_of(0) == 2 * MIB);
	REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EINVAL, "4 of 7 allocations");
	OK(CU(cuMemRelease)(other));
	DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
	/* All memory is allocated: another request does nothing. */
	DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
	DONE(worker_do(&worker, GCR_MESSAGE_COPY));
	DONE(session_export(&worker, &process));
	process_receive(&process);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process_release(&process, true);
	/* A session that ends with a part of its memory releases all of it. */
	OK(CU(cuMemCreate)(&other, before - 24 * MIB, &properties, 0));
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 1));
	REFUSED(worker_do(&worker, GCR_MESSAGE_CREATE), ENOMEM, "MiB are free");
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	CHECK(free_of(0) == 24 * MIB);
	OK(CU(cuMemRelease)(other));
	process_destroy(&process);
	CHECK(worker_leaves(&worker) == 0);
}

/* A session that needs more descriptors than the hard limit permits is refused. */
static void test_descriptor_limit(void)
{
	struct worker worker = worker_start(&(struct worker_options){.descriptors = 540});
	uint64_t bytes[40];
	struct process process;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(bytes); i++)
		bytes[i] = 2 * MIB;
	process = process_create(store, 1, 0, bytes, GCR_ARRAY_SIZE(bytes));
	REFUSED(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0), EOPNOTSUPP,
		"open files");
	process.count = 20;
	close(process.digests);
	process.digests = process_make_digests(&process);
	process_allocate(&process);
	go_out(&worker, &process);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process_destroy(&process);
	CHECK(worker_leaves(&worker) == 0);
}

static const struct worker_test tests[] = {
	{"round_trip", test_round_trip},
	{"ballast", test_ballast},
	{"holes", test_holes},
	{"two_gpus", test_two_gpus},
	{"order", test_order},
	{"lies", test_lies},
	{"digests_file", test_digests_file},
	{"files", test_files},
	{"full_store", test_full_store},
	{"no_vram", test_no_vram},
	{"vram_in_parts", test_vram_in_parts},
	{"descriptor_limit", test_descriptor_limit},
};

int main(int argc, char **argv)
{
	test_copies_unchecked(argv);
	return worker_tests_run(argc, argv, 2, tests, GCR_ARRAY_SIZE(tests));
}
