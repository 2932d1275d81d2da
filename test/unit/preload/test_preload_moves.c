/* SPDX-License-Identifier: MIT */
/*
 * Device memory that a program with libgpucr-preload.so (for HIP libgpucr-preload-hip.so) hands
 * over to a worker and takes back: the bytes are the same afterwards, and after every failure on
 * the way.
 */
#include "test/unit/preload/preload_program.h"

/* Allocations of several sizes, each with its own bytes. */
static const size_t sizes[] = {512, MIB, MIB + 4, 2 * MIB, 3 * MIB, 5 * MIB + 4, 8 * MIB};
static CUdeviceptr pointers[GCR_ARRAY_SIZE(sizes)];

static void allocate(unsigned seed)
{
	for (unsigned i = 0; i < GCR_ARRAY_SIZE(sizes); i++) {
		OK(CU(cuMemAlloc_v2)(&pointers[i], sizes[i]));
		fill(pointers[i], sizes[i], seed + i);
	}
}

static void expect_all(unsigned seed)
{
	for (unsigned i = 0; i < GCR_ARRAY_SIZE(sizes); i++)
		expect(pointers[i], sizes[i], seed + i);
}

static void fill_all(unsigned seed)
{
	for (unsigned i = 0; i < GCR_ARRAY_SIZE(sizes); i++)
		fill(pointers[i], sizes[i], seed + i);
}

static void free_all(void)
{
	for (unsigned i = 0; i < GCR_ARRAY_SIZE(sizes); i++)
		OK(CU(cuMemFree_v2)(pointers[i]));
}

static bool imported(void)
{
	const struct gcr_page *page = memory()->page();
	bool is_any = page->flags & GCR_PAGE_IMPORTED;

	CHECK(is_any == !!page->imported_bytes && page->imported_bytes <= page->device_bytes);
	return is_any;
}

/* After the free no VRAM and no descriptor is left. */
static void expect_nothing_left(size_t before, unsigned descriptors)
{
	CHECK(free_bytes() == before);
	CHECK(open_descriptors() == descriptors);
	CHECK(memory()->page()->extents == 0 && memory()->page()->device_bytes == 0);
	CHECK(!imported());
}

static void ask(enum worker_verb verb)
{
#ifdef GCR_HIP
	if (verb == WORKER_CHECKPOINT || verb == WORKER_RESTORE)
		return;
#endif
	worker_ask(verb, NULL, 0, NULL, 0, &answer);
}

/* The worker starts with nothing; the results are the free VRAM and the number of descriptors. */
static void begin(size_t *ret_free, unsigned *ret_descriptors)
{
	use_device(0);
	worker_start();
	ask(WORKER_DROP);
	*ret_free = free_bytes();
	*ret_descriptors = open_descriptors();
}

/* The memory moves out and in three times, together with the driver's own checkpoint. */
static void cycle(void)
{
	size_t before, with_worker, used;
	unsigned descriptors;

	begin(&before, &descriptors);
	allocate(100);
	used = before - free_bytes();
	CHECK(!imported());
	for (unsigned round = 0; round < 3; round++) {
		hand_over();
		CHECK(extents_count == 5);
		ask(WORKER_CHECKPOINT);
		memory()->commit();
		worker_drop(false);
		ask(WORKER_RESTORE);
		CHECK(open_descriptors() == descriptors);
		/* Only the small allocations and the worker's context are left. */
		with_worker = free_bytes();
		CHECK(before - with_worker <= used - 22 * MIB + 4 * MIB);
		thaw();
		CHECK(imported());
		CHECK(memory()->page()->imported_bytes == memory()->page()->device_bytes);
		CHECK(open_descriptors() == descriptors + 5);
		expect_all(100 + round);
		fill_all(101 + round);
	}
	worker_stop();
	expect_all(103);
	free_all();
	expect_nothing_left(before, descriptors);
}

/* The hand-over is undone: with created handles first, then with imported handles. */
static void undone(void)
{
	unsigned descriptors;
	size_t before;

	begin(&before, &descriptors);
	allocate(7);
	for (unsigned round = 0; round < 3; round++) {
		hand_over();
		DONE(memory()->take_back(&failure));
		CHECK(memory()->complete(&failure));
		worker_drop(true);
		expect_all(7 + round);
		CHECK(imported());
		fill_all(8 + round);
		/* A second take_back() succeeds: the memory is here already. */
		DONE(memory()->take_back(&failure));
	}
	freeze();
	thaw();
	expect_all(10);
	worker_stop();
	free_all();
	expect_nothing_left(before, descriptors);
}

/* The memory is allocated, without a worker; the result is the number of descriptors. */
static unsigned begin_alone(unsigned seed)
{
	unsigned descriptors;

	use_device(0);
	allocate(seed);
	descriptors = open_descriptors();
	look();
	return descriptors;
}

/* The memory is exported, not unmapped, and the freeze is abandoned. */
static void only_exported(void)
{
	unsigned descriptors;
	int fds[5];

	descriptors = begin_alone(7);
	DONE(memory()->export(0, 5, fds, &failure));
	CHECK(open_descriptors() == descriptors + 5);
	for (int i = 0; i < 5; i++)
		CHECK(fds[i] > 1000);
	DONE(memory()->take_back(&failure));
	CHECK(open_descriptors() == descriptors && !imported());
	CHECK(memory()->export(0, 6, fds, &failure) == -EINVAL);
	CHECK(memory()->export(6, 1, fds, &failure) == -EINVAL);
	expect_all(7);
}

#define MANY 2000

static void many(void)
{
	static CUdeviceptr many_pointers[MANY];
	unsigned descriptors;
	size_t before;

	use_device(0);
	worker_start();
	ask(WORKER_DROP);
	before = free_bytes();
	descriptors = open_descriptors();
	for (unsigned i = 0; i < MANY; i++) {
		OK(CU(cuMemAlloc_v2)(&many_pointers[i], MIB + 1 + i));
		OK(CU(cuMemsetD32_v2)(many_pointers[i], i, 1));
	}
	/* Waits for the GPU as the gate does. */
	OK(CU(cuCtxSynchronize)());
	for (unsigned round = 0; round < 2; round++) {
		freeze();
		CHECK(extents_count == MANY);
		thaw();
		for (unsigned i = 0; i < MANY; i++) {
			unsigned word;

			OK(CU(cuMemcpyDtoH_v2)(&word, many_pointers[i], 4));
			CHECK(word == i);
		}
	}
	worker_stop();
	for (unsigned i = 0; i < MANY; i++)
		OK(CU(cuMemFree_v2)(many_pointers[(i * 7) % MANY]));
	expect_nothing_left(before, descriptors);
}

/* The export needs a descriptor for each allocation, more than the program may have. */
static void no_descriptors(void)
{
	struct rlimit limit = {.rlim_cur = 1040, .rlim_max = 1040};
	CUdeviceptr some[64];
	unsigned descriptors;
	int fds[64];

	use_device(0);
	for (unsigned i = 0; i < 64; i++) {
		OK(CU(cuMemAlloc_v2)(&some[i], MIB + 1));
		OK(CU(cuMemsetD32_v2)(some[i], i, 1));
	}
	descriptors = open_descriptors();
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	look();
	CHECK(memory()->export(0, 64, fds, &failure) == -EMFILE);
	CHECK(strstr(failure.words, "limit of open files"));
	CHECK(open_descriptors() == descriptors);
	/* The same without any free descriptor. */
	limit.rlim_cur = 3;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	CHECK(memory()->export(0, 64, fds, &failure) == -EMFILE);
	CHECK(strstr(failure.words, "no free file descriptor") ||
	      strstr(failure.words, "limit of open files"));
	limit.rlim_cur = limit.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (unsigned i = 0; i < 64; i++) {
		unsigned word;

		OK(CU(cuMemcpyDtoH_v2)(&word, some[i], 4));
		CHECK(word == i);
	}
}

/* ---- failures: the message names the call, and the bytes are kept ---- */

static void expect_failure(int result, int number, const char *words)
{
	words = driver_words(words);
	if (result != -number || !strstr(failure.words, words))
		fprintf(stderr, "%d: %s, not %s\n", result, failure.words, words);
	CHECK(result == -number && strstr(failure.words, words));
}

static void export_fails(void)
{
	unsigned descriptors;
	int fds[5];

	descriptors = begin_alone(1);
	expect_failure(memory()->export(0, 5, fds, &failure), EIO,
		       "cuMemExportToShareableHandle: CUDA_ERROR_UNKNOWN");
	CHECK(open_descriptors() == descriptors && !imported());
	expect_all(1);
	worker_start();
	freeze();
	thaw();
	expect_all(1);
	worker_stop();
}

/* Any step of the unmapping fails: all memory is mapped again. */
static void unmap_fails(void)
{
	const char *call = getenv("TEST_CALL");
	unsigned descriptors;
	int fds[5];

	descriptors = begin_alone(1);
	DONE(memory()->export(0, 5, fds, &failure));
	expect_failure(memory()->unmap(&failure), EIO, call);
	CHECK(memory()->complete(&failure));
	expect_all(1);
	fill_all(2);
	/* Allocations that were released before the failure are imported. */
	CHECK(imported() == (strcmp(call, driver_words("cuMemRelease")) == 0));
	CHECK(open_descriptors() == descriptors + 2 * imported());
	worker_start();
	freeze();
	thaw();
	expect_all(2);
	worker_stop();
}

static void unmap_fails_twice(void)
{
	int fds[5];

	use_device(0);
	allocate(1);
	look();
	DONE(memory()->export(0, 5, fds, &failure));
	expect_failure(memory()->unmap(&failure), ENOTRECOVERABLE, "cuMemMap");
	CHECK(strstr(failure.words, driver_words("cuMemUnmap")));
	CHECK(!memory()->complete(&failure));
	/* The descriptors are kept: the take-back can be tried again. */
	DONE(memory()->take_back(&failure));
	expect_all(1);
}

static void take_back_fails(void)
{
	const char *call = getenv("TEST_CALL");

	use_device(0);
	allocate(1);
	worker_start();
	hand_over();
	expect_failure(memory()->take_back(&failure), EIO, call);
	CHECK(!memory()->complete(&failure));
	DONE(memory()->take_back(&failure));
	CHECK(memory()->complete(&failure));
	worker_drop(true);
	expect_all(1);
	freeze();
	thaw();
	expect_all(1);
	worker_stop();
}

/* Memory received before the failure stays until let_go(); then all can be received again. */
static void receive_fails(void)
{
	const char *call = getenv("TEST_CALL");
	unsigned descriptors;

	use_device(0);
	allocate(1);
	worker_start();
	ask(WORKER_DROP);
	descriptors = open_descriptors();
	freeze();
	CHECK(open_descriptors() == descriptors);
	DONE(come_in(0, 2));
	expect_failure(come_in(2, 3), EIO, call);
	CHECK(!memory()->complete(&failure));
	CHECK(open_descriptors() == descriptors + 3);
	DONE(memory()->let_go(&failure));
	DONE(memory()->let_go(&failure));
	CHECK(open_descriptors() == descriptors);
	worker_drop(false);
	thaw();
	expect_all(1);
	worker_stop();
}

/* The same memory twice, or more than there is. */
static void receive_refuses(void)
{
	unsigned descriptors;
	int fds[2];

	use_device(0);
	allocate(1);
	worker_start();
	freeze();
	DONE(come_in(0, 2));
	descriptors = open_descriptors();
	expect_failure(come_in(1, 1), EEXIST, "is here already");
	fds[0] = dup(0);
	fds[1] = dup(0);
	expect_failure(memory()->receive(4, 2, fds, &failure), EINVAL, "there are only 5");
	/*
	 * receive() takes all descriptors: a child would else close those that are left, whatever
	 * files have these numbers by then.
	 */
	CHECK(fds[0] == -1 && fds[1] == -1);
	/* A descriptor that is not of the driver's memory. */
	expect_failure(memory()->receive(2, 1, (int[]){dup(0)}, &failure), EIO,
		       "cuMemImportFromShareableHandle");
	CHECK(open_descriptors() == descriptors);
	DONE(come_in(2, 3));
	CHECK(memory()->complete(&failure));
	worker_drop(true);
	expect_all(1);
	worker_stop();
}

/* The program has lowered its limit of descriptors since the freeze. */
static void receive_without_room(void)
{
	struct rlimit limit, low;

	use_device(0);
	allocate(1);
	worker_start();
	freeze();
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	low = (struct rlimit){.rlim_cur = 1026, .rlim_max = 1026};
	worker_ask(WORKER_GIVE, &(struct gcr_range){0, 5}, sizeof(struct gcr_range), NULL, 0,
		   &answer);
	CHECK(prlimit(0, RLIMIT_NOFILE, &low, NULL) == 0);
	expect_failure(memory()->receive(0, 5, answer.fds, &failure), EMFILE,
		       "limit of open files");
	CHECK(open_descriptors() == 2);
	DONE(memory()->let_go(&failure));
	CHECK(open_descriptors() == 0);
	/* Only root may raise the limit again. */
	if (prlimit(0, RLIMIT_NOFILE, &limit, NULL) < 0)
		return;
	worker_drop(false);
	thaw();
	expect_all(1);
	worker_stop();
}

static void let_go_fails(void)
{
	const char *call = getenv("TEST_CALL");

	use_device(0);
	allocate(1);
	worker_start();
	freeze();
	DONE(come_in(0, 5));
	expect_failure(memory()->let_go(&failure), EIO, call);
	/* The allocation whose release failed is still here; the others are released. */
	CHECK(!memory()->complete(&failure));
	DONE(memory()->let_go(&failure));
	worker_drop(false);
	thaw();
	expect_all(1);
	worker_stop();
}

/* The program closes every descriptor that it does not know, as some programs do. */
static void descriptors_closed(void)
{
	int fds[5];

	use_device(0);
	allocate(1);
	look();
	DONE(memory()->export(0, 5, fds, &failure));
	close(fds[3]);
	expect_failure(memory()->unmap(&failure), EIO, "closed the descriptor");
	CHECK(memory()->complete(&failure) && !imported());
	expect_all(1);
	worker_start();
	freeze();
	thaw();
	expect_all(1);
	/* The memory is imported now: without the descriptor it can no longer be handed over. */
	look();
	DONE(memory()->export(0, 5, fds, &failure));
	close(fds[2]);
	expect_failure(memory()->export(0, 5, fds, &failure), EIO, "closed the descriptor");
	expect_all(1);
	worker_stop();
}

/* A forked child has none of the memory. */
static void forked(void)
{
	unsigned descriptors;
	int status;
	pid_t pid;

	use_device(0);
	allocate(1);
	worker_start();
	descriptors = open_descriptors();
	hand_over();
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		memory()->forget();
		if (open_descriptors() != descriptors || memory()->describe(NULL, 0))
			_exit(1);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	DONE(memory()->take_back(&failure));
	worker_drop(true);
	expect_all(1);
	worker_stop();
}

/* The memory of two GPUs, each of which uses the other's. */
static void two_gpus(void)
{
	CUcontext contexts[2];
	CUdeviceptr mine[2];

	for (int i = 0; i < 2; i++) {
		contexts[i] = use_device(i);
		OK(CU(cuMemAlloc_v2)(&mine[i], 6 * MIB));
		fill(mine[i], 6 * MIB, 40 + (unsigned)i);
	}
	OK(CU(cuCtxEnablePeerAccess)(contexts[0], 0));
	worker_start();
	for (int round = 0; round < 2; round++) {
		freeze();
		CHECK(extents_count == 2);
		CHECK(device_of(&extents[0]) == 0 && device_of(&extents[1]) == 1);
		CHECK(extents[0].address == mine[0] && extents[1].address == mine[1]);
		thaw();
		OK(CU(cuCtxSetCurrent)(contexts[1]));
		expect(mine[1], 6 * MIB, 41);
		/* The copy reads from the other GPU. */
		OK(CU(cuMemcpyDtoDAsync_v2)(mine[1], mine[0], 6 * MIB, NULL));
		OK(CU(cuStreamSynchronize)(NULL));
		expect(mine[1], 6 * MIB, 40);
		fill(mine[1], 6 * MIB, 41);
	}
	worker_stop();
}

/* Attributes set on the memory are set on the memory that replaces it. */
static void attributes_stay(void)
{
	unsigned long long id, id_after;
	CUdeviceptr pointer;
	int yes = 1, got = 0;

	use_device(0);
	OK(CU(cuMemAlloc_v2)(&pointer, 4 * MIB));
	OK(CU(cuPointerSetAttribute)(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer));
	OK(CU(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer));
	worker_start();
	freeze();
	thaw();
	OK(CU(cuPointerGetAttribute)(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer));
	CHECK(got == 1);
	OK(CU(cuPointerGetAttribute)(&id_after, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer));
	CHECK(id == id_after);
	worker_stop();
}

#define FAULT(what, function, entry, position)                                    \
	{                                                                         \
		.name = what, .run = function, .environment = "TEST_CALL=" entry, \
		.faults = entry " nth=" position " error=CUDA_ERROR_UNKNOWN"      \
	}

/* Five allocations are mapped and unmapped. The cuMemSetAccess calls of allocate() count first. */
static const struct subject subjects[] = {
	{.name = "cycle", .run = cycle},
	{.name = "undone", .run = undone},
	{.name = "only exported", .run = only_exported},
	{.name = "many", .run = many, .vram = "8G", .environment = "TEST_COPY_BYTES=4096"},
	{.name = "no descriptors", .run = no_descriptors},
	FAULT("export fails first", export_fails, "cuMemExportToShareableHandle", "1"),
	FAULT("export fails last", export_fails, "cuMemExportToShareableHandle", "5"),
	FAULT("unmap fails first", unmap_fails, "cuMemUnmap", "1"),
	FAULT("unmap fails last", unmap_fails, "cuMemUnmap", "5"),
	FAULT("release fails", unmap_fails, "cuMemRelease", "3"),
	{.name = "unmap fails twice",
	 .run = unmap_fails_twice,
	 .faults = "cuMemUnmap nth=3 error=CUDA_ERROR_UNKNOWN; cuMemMap nth=7 error=1"},
	FAULT("take back: import fails", take_back_fails, "cuMemImportFromShareableHandle", "3"),
	FAULT("take back: map fails", take_back_fails, "cuMemMap", "8"),
	FAULT("take back: access fails", take_back_fails, "cuMemSetAccess", "8"),
	FAULT("receive: import fails", receive_fails, "cuMemImportFromShareableHandle", "4"),
	FAULT("receive: map fails", receive_fails, "cuMemMap", "9"),
	FAULT("receive: access fails", receive_fails, "cuMemSetAccess", "9"),
	{.name = "receive refuses", .run = receive_refuses},
	{.name = "receive without room", .run = receive_without_room},
	FAULT("let go: unmap fails", let_go_fails, "cuMemUnmap", "7"),
	FAULT("let go: release fails", let_go_fails, "cuMemRelease", "7"),
	{.name = "descriptors closed", .run = descriptors_closed},
	{.name = "forked", .run = forked},
	{.name = "two gpus", .run = two_gpus, .gpus = "2"},
	{.name = "attributes stay", .run = attributes_stay},
};

int main(int argc, char **argv)
{
	test_copies_unchecked(argv);
	if (run_one(argc, argv, subjects, GCR_ARRAY_SIZE(subjects)))
		return 0;
	run_all(subjects, GCR_ARRAY_SIZE(subjects));
	return 0;
}
