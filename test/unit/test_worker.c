/* SPDX-License-Identifier: MIT */
/*
 * Sessions of gpucr-worker as the daemon sees them: out of VRAM into files and back. What is in
 * the files and in VRAM afterwards is compared byte by byte, and whose VRAM is in use.
 */
#include <ftw.h>

#include "test/unit/worker.h"

static const uint64_t few[] = {2 * MIB, 34 * MIB, 6 * MIB, 2 * MIB, 16 * MIB, 50 * MIB, 2 * MIB};
#define FEW GCR_ARRAY_SIZE(few)
/* As many, for tests that go through a list. */
static const uint64_t small[FEW] = {2 * MIB, 18 * MIB, 6 * MIB, 2 * MIB,
				    4 * MIB, 10 * MIB, 2 * MIB};

static void go_out_by(struct worker *worker, struct process *process, uint32_t copies_in_flight)
{
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_OUT, process, copies_in_flight));
	DONE(session_import(worker, process));
	DONE(worker_do(worker, GCR_MESSAGE_COPY));
	for (size_t i = 0; i < process->count; i++)
		CHECK(process_check_file(process, i));
	CHECK(process_check_other_digests(process));
}

static void go_out(struct worker *worker, struct process *process)
{
	go_out_by(worker, process, 0);
}

static void come_in(struct worker *worker, struct process *process, uint32_t copies_in_flight)
{
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_IN, process, copies_in_flight));
	DONE(worker_do(worker, GCR_MESSAGE_CREATE));
	DONE(worker_do(worker, GCR_MESSAGE_COPY));
	DONE(session_export(worker, process));
	process_receive(process);
	DONE(worker_do(worker, GCR_MESSAGE_END));
}

static void test_round_trip(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, few, FEW);
	size_t before = free_of(0), total = 0;

	for (size_t i = 0; i < FEW; i++)
		total += few[i];
	for (uint32_t copies = 0; copies < 4; copies++) {
		process_allocate(&process);
		go_out_by(&worker, &process, copies);
		/* Everything can go back until the commit: nothing was given up. */
		CHECK(process_check_handle(&process, 1, process.handles[1]));
		process_release(&process, true);
		CHECK(free_of(0) == before - total);
		DONE(worker_do(&worker, GCR_MESSAGE_END));
		CHECK(free_of(0) == before);
		come_in(&worker, &process, copies);
		CHECK(free_of(0) == before - total);
		process_release(&process, true);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
	CHECK(worker_leaves(&worker) == 0);
}

/* The ballast for the driver's restore is held and let go beside a session. */
static void test_ballast(void)
{
	struct gcr_reserve_request ballast = {.bytes = 100 * MIB};
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, few, FEW);
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

/* What was never written, or punched, is zeros, and stays a hole. */
static void test_holes(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, few, FEW);
	uint64_t *words = malloc(50 * MIB);
	size_t before = free_of(0);
	struct stat old, new;
	int fd;

	/* Dirt where the zeros are going to be. */
	process_allocate(&process);
	process_release(&process, true);
	fd = process_open(&process, 5);
	process_fill(&process, 5, words);
	/* Data in the middle of a copy of the GPU's, at its start, and less than a page. */
	CHECK(pwrite(fd, words + 6 * MIB / 8, 4 * MIB, 6 * MIB) == 4 * MIB);
	CHECK(pwrite(fd, words + 16 * MIB / 8, 2 * MIB, 16 * MIB) == 2 * MIB);
	CHECK(pwrite(fd, words + 49 * MIB / 8, 512, 49 * MIB) == 512);
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
		pointer = process_map(0, handle, few[i]);
		OK(CU(cuMemcpyDtoH_v2)(words, pointer, few[i]));
		for (uint64_t at = 0; at < few[i]; at += 8) {
			bool data = i == 5 && ((at >= 6 * MIB && at < 10 * MIB) ||
					       (at >= 16 * MIB && at < 18 * MIB) ||
					       (at >= 49 * MIB && at < 49 * MIB + 512));

			CHECK(words[at / 8] == (data ? process_word(&process, i, at) : 0));
		}
		process_unmap(pointer, few[i]);
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
			process_create(store, 1 + (uint64_t)gpu, gpu, few, FEW - (size_t)gpu);
		process_allocate(&processes[gpu]);
		DONE(session_begin(&workers[gpu], GCR_MESSAGE_SESSION_OUT, &processes[gpu], 0));
	}
#ifndef GCR_HIP
	/* Memory of the other GPU. HIP does not tell. */
	REFUSED(worker_do_fds(&workers[0], GCR_MESSAGE_IMPORT, &(struct gcr_range){0, 1},
			      sizeof(struct gcr_range), processes[1].fds, 1),
		EINVAL, "gpu0-");
	DONE(worker_do(&workers[0], GCR_MESSAGE_END));
	DONE(session_begin(&workers[0], GCR_MESSAGE_SESSION_OUT, &processes[0], 0));
#endif
	/* At once. */
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

/* A session may be empty, begin and end again without anything, and be in the wrong order. */
static void test_order(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, few, FEW);
	struct process nothing = process_create(store, 2, 0, few, 0);
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
	/* In the middle of it. */
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
	/* While it is copied to. */
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

/* A table that lies, and descriptors that are not what they should be. */
static void test_lies(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, few, FEW);
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
	process.extents[2].address = process.extents[1].address + 36 * MIB;
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
	/* No memory behind the descriptor. */
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0));
	REFUSED(worker_do_fds(&worker, GCR_MESSAGE_IMPORT, &(struct gcr_range){0, 1},
			      sizeof(struct gcr_range), pipes, 1),
		EINVAL, "gpu0-");
	REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EINVAL, "");
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	/* No directory. */
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
	/* It is as good as ever. */
	go_out(&worker, &process);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process_destroy(&process);
	CHECK(worker_leaves(&worker) == 0);
}

/* Import and copy: one of them says what is wrong with the files. */
static void expect_out(struct worker *worker, struct process *process, int number,
		       const char *words)
{
	DONE(session_begin(worker, GCR_MESSAGE_SESSION_OUT, process, 0));
	DONE(session_import(worker, process));
	REFUSED(worker_do(worker, GCR_MESSAGE_COPY), number, words);
	/* A second answer is no different. */
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

/* Digests that are too few, too far on, and in a file that cannot be written. */
static void test_digests_file(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, few, FEW);
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
	/* The last one is beyond the end of the file. */
	asked.first_chunk = 2 * OTHER_CHUNKS + 1;
	REFUSED(worker_do_fds(&worker, GCR_MESSAGE_SESSION_IN, &asked, sizeof(asked), fds, 3), EIO,
		"too few");
	asked.flags = GCR_SESSION_UNVERIFIED;
	DONE(worker_do_fds(&worker, GCR_MESSAGE_SESSION_IN, &asked, sizeof(asked), fds, 3));
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	close(table);

	/* It can be read only. */
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
	struct process process = process_create(store, 1, 0, few, FEW);
	size_t before = free_of(0);
	char name[GCR_EXTENT_NAME_BYTES];
	int fd;

	process_allocate(&process);
	gcr_extent_name(&process.extents[4], name);
	fd = process_open(&process, 4);
	CHECK(!ftruncate(fd, 14 * MIB));
	expect_out(&worker, &process, EIO, name);
	CHECK(!ftruncate(fd, 18 * MIB));
	expect_out(&worker, &process, EIO, "18874368 bytes, not 16777216");
	close(fd);
	CHECK(!unlinkat(process.directory, name, 0));
	expect_out(&worker, &process, EIO, "No such file");
	CHECK(!symlinkat("/dev/null", process.directory, name));
	expect_out(&worker, &process, EIO, name);
	CHECK(!unlinkat(process.directory, name, 0) && !mkfifoat(process.directory, name, 0600));
	expect_out(&worker, &process, EIO, name);
	CHECK(!unlinkat(process.directory, name, 0));
	fd = openat(process.directory, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && !ftruncate(fd, 16 * MIB));
	go_out(&worker, &process);
	process_release(&process, true);
	DONE(worker_do(&worker, GCR_MESSAGE_END));

	CHECK(!ftruncate(fd, 16 * MIB - 1));
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
	process = process_create(store, 1, 0, few, FEW);
	process_allocate(&process);
	store_resize(70 * MIB);
	expect_out(&worker, &process, ENOSPC, "store is full");
	store_resize(1024 * MIB);
	go_out(&worker, &process);
	process_release(&process, true);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	/* Nothing is allocated by reading. */
	store_resize(114 * MIB);
	come_in(&worker, &process, 2);
	store_resize(1024 * MIB);
	process_destroy(&process);
	CHECK(worker_leaves(&worker) == 0);
}

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
	/* Somebody makes room. */
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

/* What there is room for is kept, and the rest taken when there is more. */
static void test_vram_in_parts(void)
{
	struct worker worker = worker_start(&(struct worker_options){0});
	struct process process = process_create(store, 1, 0, few, FEW);
	CUmemAllocationProp properties = process_properties(0);
	CUmemGenericAllocationHandle other;
	size_t before = free_of(0);

	process_allocate(&process);
	go_out(&worker, &process);
	process_release(&process, true);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process.flags = GCR_SESSION_IN_PARTS;
	/* The fourth finds room, and the fifth does not. */
	OK(CU(cuMemCreate)(&other, before - 46 * MIB, &properties, 0));
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 1));
	REFUSED(worker_do(&worker, GCR_MESSAGE_CREATE), ENOMEM, "112 MiB of VRAM are needed and");
	CHECK(free_of(0) == 2 * MIB);
	REFUSED(worker_do(&worker, GCR_MESSAGE_CREATE), ENOMEM, "and 2 MiB are free");
	CHECK(free_of(0) == 2 * MIB);
	REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EINVAL, "4 of 7 allocations");
	OK(CU(cuMemRelease)(other));
	DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
	/* All is there: there is nothing left to take. */
	DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
	DONE(worker_do(&worker, GCR_MESSAGE_COPY));
	DONE(session_export(&worker, &process));
	process_receive(&process);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process_release(&process, true);
	/* And what is given up in the middle is given up whole. */
	OK(CU(cuMemCreate)(&other, before - 46 * MIB, &properties, 0));
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 1));
	REFUSED(worker_do(&worker, GCR_MESSAGE_CREATE), ENOMEM, "MiB are free");
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	CHECK(free_of(0) == 46 * MIB);
	OK(CU(cuMemRelease)(other));
	process_destroy(&process);
	CHECK(worker_leaves(&worker) == 0);
}

/* One call of the driver fails, once, on the way out. Afterwards everything is as before. */
static void test_faults_out(void)
{
	static const struct {
		const char *rule;
		int number;
		int result;
	} faults[] = {
		{"cuMemAddressReserve nth=1 error=CUDA_ERROR_OUT_OF_MEMORY", ENOMEM, 2},
		{"cuMemImportFromShareableHandle nth=4 error=CUDA_ERROR_UNKNOWN", EIO, 999},
		{"cuMemGetAllocationPropertiesFromHandle nth=2 error=CUDA_ERROR_UNKNOWN", EIO, 999},
		{"cuMemMap nth=3 error=CUDA_ERROR_OUT_OF_MEMORY", ENOMEM, 2},
		{"cuMemSetAccess nth=1 error=CUDA_ERROR_UNKNOWN", EIO, 999},
		{"cuMemcpyDtoHAsync nth=1 error=CUDA_ERROR_ECC_UNCORRECTABLE", EIO, 214},
		{"cuMemcpyDtoHAsync nth=5 error=CUDA_ERROR_ILLEGAL_ADDRESS", EIO, 700},
		{"cuEventRecord nth=2 error=CUDA_ERROR_UNKNOWN", EIO, 999},
		{"cuEventSynchronize nth=3 error=CUDA_ERROR_ECC_UNCORRECTABLE", EIO, 214},
	};
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t idle = free_of(0), before;

	process_allocate(&process);
	before = free_of(0);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(faults); i++) {
		struct worker worker =
			worker_start(&(struct worker_options){.faults = faults[i].rule});
		int r = session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0);
		bool began = !r;

		if (!r)
			r = session_import(&worker, &process);
		if (!r)
			r = worker_do(&worker, GCR_MESSAGE_COPY);
		if (r != faults[i].number || worker_result.driver_result != faults[i].result)
			fprintf(stderr, "%s: %d: %s\n", faults[i].rule, r, worker_result.words);
		CHECK(r == faults[i].number && worker_result.driver_result == faults[i].result);
		if (began)
			DONE(worker_do(&worker, GCR_MESSAGE_END));
		for (size_t at = 0; at < FEW; at++)
			CHECK(process_check_handle(&process, at, process.handles[at]));
		go_out(&worker, &process);
		DONE(worker_do(&worker, GCR_MESSAGE_END));
		CHECK(worker_leaves(&worker) == 0);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
	CHECK(free_of(0) == idle);
}

/* Ring and digester cannot be made, as long as the driver does not give what they need. */
static void test_unprepared(void)
{
	static const struct {
		const char *rule;
		int number;
		int result;
	} faults[] = {
		{"cuMemHostRegister comm=" WORKER_COMM " error=CUDA_ERROR_OUT_OF_MEMORY", ENOMEM,
		 2},
		{"cuStreamCreate comm=" WORKER_COMM " error=CUDA_ERROR_UNKNOWN", EIO, 999},
		{"cuEventCreate comm=" WORKER_COMM " error=CUDA_ERROR_UNKNOWN", EIO, 999},
		{"cuMemHostAlloc comm=" WORKER_COMM " error=CUDA_ERROR_OUT_OF_MEMORY", ENOMEM, 2},
	};
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t idle = free_of(0);

	process_allocate(&process);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(faults); i++) {
		struct worker worker;

		sim_set_faults(faults[i].rule);
		worker = worker_start(&(struct worker_options){0});
		REFUSED(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0),
			faults[i].number, "cu");
		CHECK(worker_result.driver_result == faults[i].result);
		sim_set_faults(NULL);
		go_out(&worker, &process);
		DONE(worker_do(&worker, GCR_MESSAGE_END));
		CHECK(worker_leaves(&worker) == 0);
	}
	process_destroy(&process);
	CHECK(free_of(0) == idle);
}

/* The driver does not take the kernel: the host makes the digests, and the answer says so. */
static void test_host_digests(void)
{
	struct worker_options options = {.faults = "cuModuleLoadData error=CUDA_ERROR_INVALID_PTX"};
	struct worker worker = worker_start(&options);
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t before = free_of(0);

	process_allocate(&process);
	go_out(&worker, &process);
	CHECK(worker_result.flags & GCR_RESULT_HOST_DIGESTS);
	process_release(&process, true);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	come_in(&worker, &process, 2);
	process_destroy(&process);
	CHECK(free_of(0) == before);
	CHECK(worker_leaves(&worker) == 0);
}

/* The kernel that makes the digests fails, on the way out and in. */
static void test_faults_digests(void)
{
	static const struct {
		const char *rule;
		bool is_in;
	} faults[] = {
		{"cuLaunchKernel nth=1 error=CUDA_ERROR_LAUNCH_FAILED", false},
		{"cuEventRecord nth=1 error=CUDA_ERROR_LAUNCH_FAILED", false},
		{"cuEventSynchronize nth=1 error=CUDA_ERROR_LAUNCH_FAILED", false},
		{"cuLaunchKernel nth=2 error=CUDA_ERROR_LAUNCH_FAILED", true},
	};
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t before = free_of(0);

	for (size_t i = 0; i < GCR_ARRAY_SIZE(faults); i++) {
		struct worker worker =
			worker_start(&(struct worker_options){.faults = faults[i].rule});

		process_allocate(&process);
		if (!faults[i].is_in) {
			DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0));
			DONE(session_import(&worker, &process));
			if (!worker_do(&worker, GCR_MESSAGE_COPY)) {
				fprintf(stderr, "not done: there is no kernel\n");
				worker_leaves(&worker);
				process_release(&process, true);
				break;
			}
			REFUSED(worker_result.error, EIO, "digests: cu");
			CHECK(worker_result.driver_result == 719);
			REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EINVAL, "7 of 7");
			DONE(worker_do(&worker, GCR_MESSAGE_END));
		}
		go_out(&worker, &process);
		process_release(&process, true);
		DONE(worker_do(&worker, GCR_MESSAGE_END));
		if (faults[i].is_in) {
			DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 0));
			DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
			REFUSED(worker_do(&worker, GCR_MESSAGE_COPY), EIO, "digests: cu");
			CHECK(worker_result.driver_result == 719);
			CHECK(session_export(&worker, &process) == EINVAL);
			DONE(worker_do(&worker, GCR_MESSAGE_END));
		}
		come_in(&worker, &process, 0);
		process_release(&process, true);
		CHECK(worker_leaves(&worker) == 0);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
}

static void test_faults_in(void)
{
	static const struct {
		const char *rule;
		uint16_t at; /* the request that fails */
		int number;
	} faults[] = {
		{"cuMemAddressReserve nth=2 error=CUDA_ERROR_OUT_OF_MEMORY", GCR_MESSAGE_SESSION_IN,
		 ENOMEM},
		{"cuMemCreate nth=3 error=CUDA_ERROR_OUT_OF_MEMORY", GCR_MESSAGE_CREATE, ENOMEM},
		{"cuMemCreate nth=1 error=CUDA_ERROR_UNKNOWN", GCR_MESSAGE_CREATE, EIO},
		{"cuMemMap nth=10 error=CUDA_ERROR_UNKNOWN", GCR_MESSAGE_CREATE, EIO},
		{"cuMemSetAccess nth=2 error=CUDA_ERROR_OUT_OF_MEMORY", GCR_MESSAGE_CREATE, ENOMEM},
		{"cuMemcpyHtoDAsync nth=4 error=CUDA_ERROR_ECC_UNCORRECTABLE", GCR_MESSAGE_COPY,
		 EIO},
		{"cuMemcpyHtoDAsync nth=1 error=CUDA_ERROR_UNKNOWN", GCR_MESSAGE_COPY, EIO},
		{"cuMemExportToShareableHandle nth=5 error=CUDA_ERROR_UNKNOWN", GCR_MESSAGE_EXPORT,
		 EIO},
	};
	struct process process = process_create(store, 1, 0, small, FEW);
	size_t before = free_of(0);

	for (size_t i = 0; i < GCR_ARRAY_SIZE(faults); i++) {
		struct worker worker =
			worker_start(&(struct worker_options){.faults = faults[i].rule});
		int r;

		process_allocate(&process);
		go_out(&worker, &process);
		DONE(worker_do(&worker, GCR_MESSAGE_END));
		process_release(&process, true);

		r = session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 1);
		CHECK(r == (faults[i].at == GCR_MESSAGE_SESSION_IN ? faults[i].number : 0));
		if (!r) {
			r = worker_do(&worker, GCR_MESSAGE_CREATE);
			CHECK(r == (faults[i].at == GCR_MESSAGE_CREATE ? faults[i].number : 0));
		}
		if (!r) {
			r = worker_do(&worker, GCR_MESSAGE_COPY);
			CHECK(r == (faults[i].at == GCR_MESSAGE_COPY ? faults[i].number : 0));
		}
		if (!r)
			CHECK(session_export(&worker, &process) == faults[i].number);
		if (faults[i].at != GCR_MESSAGE_SESSION_IN)
			DONE(worker_do(&worker, GCR_MESSAGE_END));
		come_in(&worker, &process, 1);
		process_release(&process, true);
		CHECK(worker_leaves(&worker) == 0);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
}

/* When the driver does not let go of memory, the worker does, by ending. */
static void test_stuck_memory(void)
{
	static const char *const faults[] = {
		"cuMemUnmap nth=1 error=CUDA_ERROR_UNKNOWN",
		"cuMemRelease nth=2 error=CUDA_ERROR_UNKNOWN",
		"cuMemAddressFree nth=1 error=CUDA_ERROR_UNKNOWN",
	};
	struct process process = process_create(store, 1, 0, few, FEW);
	size_t before = free_of(0);

	for (size_t i = 0; i < GCR_ARRAY_SIZE(faults); i++) {
		struct worker worker = worker_start(&(struct worker_options){.faults = faults[i]});
		struct gcr_message message;

		DONE(session_begin(&worker, GCR_MESSAGE_SESSION_IN, &process, 1));
		DONE(worker_do(&worker, GCR_MESSAGE_CREATE));
		REFUSED(worker_do(&worker, GCR_MESSAGE_END), EIO, "cuMem");
		CHECK(gcr_message_receive(worker.socket, PATIENCE_USEC, -1, &message) == -EPIPE);
		CHECK(worker_leaves(&worker) == 0);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
}

/* Killed while it copies: whoever has the descriptors has the memory. */
static void test_killed(void)
{
	struct worker_options options = {.faults = "cuEventRecord nth=3 action=hang"};
	size_t before = free_of(0); /* without the worker's context */
	struct worker worker = worker_start(&options);
	struct process process = process_create(store, 1, 0, few, FEW);
	struct gcr_message message;

	process_allocate(&process);
	DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0));
	DONE(session_import(&worker, &process));
	process_release(&process, false);
	worker_ask(&worker, GCR_MESSAGE_COPY, NULL, 0, NULL, 0);
	CHECK(!kill(worker.pid, SIGKILL));
	CHECK(waitpid(worker.pid, NULL, 0) == worker.pid);
	CHECK(gcr_message_receive(worker.socket, PATIENCE_USEC, -1, &message) == -EPIPE);
	close(worker.socket);
	process_receive(&process);
	process_release(&process, true);
	CHECK(free_of(0) == before);

	/* The next one does it. */
	worker = worker_start(&(struct worker_options){0});
	process_allocate(&process);
	go_out(&worker, &process);
	process_release(&process, true);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	come_in(&worker, &process, 1);
	CHECK(worker_leaves(&worker) == 0);
	process_destroy(&process);
}

/* The daemon goes while the worker copies, with a driver that does not answer: so does it. */
static void test_daemon_gone(void)
{
	static const char *const faults[] = {
		"cuEventRecord nth=3 action=hang",
		"cuEventSynchronize nth=3 action=hang",
	};
	struct process process = process_create(store, 1, 0, few, FEW);
	size_t before = free_of(0);

	for (size_t i = 0; i < GCR_ARRAY_SIZE(faults); i++) {
		struct worker worker = worker_start(&(struct worker_options){.faults = faults[i]});

		process_allocate(&process);
		DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0));
		DONE(session_import(&worker, &process));
		worker_ask(&worker, GCR_MESSAGE_COPY, NULL, 0, NULL, 0);
		worker_leaves(&worker);
		process_release(&process, true);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
}

/* Between two requests it goes, too, and leaves nothing. */
static void test_daemon_gone_between(void)
{
	struct process process = process_create(store, 1, 0, few, FEW);
	size_t before = free_of(0);

	for (int step = 0; step < 4; step++) {
		struct worker worker = worker_start(&(struct worker_options){0});

		process_allocate(&process);
		if (step > 0)
			DONE(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0));
		if (step > 1)
			DONE(session_import(&worker, &process));
		if (step > 2)
			DONE(worker_do(&worker, GCR_MESSAGE_COPY));
		CHECK(worker_leaves(&worker) == 0);
		process_release(&process, true);
		CHECK(free_of(0) == before);
	}
	process_destroy(&process);
}

static void test_descriptor_limit(void)
{
	struct worker worker = worker_start(&(struct worker_options){.descriptors = 600});
	uint64_t bytes[100];
	struct process process;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(bytes); i++)
		bytes[i] = 2 * MIB;
	process = process_create(store, 1, 0, bytes, GCR_ARRAY_SIZE(bytes));
	REFUSED(session_begin(&worker, GCR_MESSAGE_SESSION_OUT, &process, 0), EOPNOTSUPP,
		"open files");
	process.count = 50;
	close(process.digests);
	process.digests = process_make_digests(&process);
	process_allocate(&process);
	go_out(&worker, &process);
	DONE(worker_do(&worker, GCR_MESSAGE_END));
	process_destroy(&process);
	CHECK(worker_leaves(&worker) == 0);
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
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
	{"faults_out", test_faults_out},
	{"unprepared", test_unprepared},
	{"host_digests", test_host_digests},
	{"faults_digests", test_faults_digests},
	{"faults_in", test_faults_in},
	{"stuck_memory", test_stuck_memory},
	{"killed", test_killed},
	{"daemon_gone", test_daemon_gone},
	{"daemon_gone_between", test_daemon_gone_between},
	{"descriptor_limit", test_descriptor_limit},
};

/* With a name: only that test. */
int main(int argc, char **argv)
{
	sim_begin("2", "512M");
	alarm(450 * TEST_SLOW);
	store_make();
	OK(CU(cuInit)(0));
	use_gpu(1);
	use_gpu(0);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(tests); i++) {
		if (argc > 1 && strcmp(argv[1], tests[i].name))
			continue;
		fprintf(stderr, "%s\n", tests[i].name);
		tests[i].run();
	}
	store_leave();
	return 0;
}
