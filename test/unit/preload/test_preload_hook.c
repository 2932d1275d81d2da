/* SPDX-License-Identifier: MIT */
/*
 * The function that a program (this program, executed again with libgpucr-preload.so) gets for
 * every entry point by every kind of lookup: on the simulator, and on a driver with oddities.
 *
 * GPUCR_TEST_PRELOAD is the library, GPUCR_TEST_SIMULATOR the directory of the simulator's
 * libraries, GPUCR_TEST_FAKE the odd driver.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/cuda_api_later.h"
#include "lib/cleanup.h"
#include "lib/protocol.h"
#include "test/unit/preload/again.h"
#include "test/unit/test.h"

#define LIBRARY "libgpucr-preload.so"

enum class { CALL, POLL, SUBMIT, WAIT, FREE, OWN };

static const struct entry {
	enum class class;
	const char *symbol;
	const char *name;
	int version;
} entries[] = {
#define ENTRY(class, symbol, name, version, arguments) {class, #symbol, #name, version},
#include "backend/preload/driver/entry_points.def"
#undef ENTRY
};

static bool is_per_thread(const struct entry *entry)
{
	size_t length = strlen(entry->symbol);

	return length > 5 && (strcmp(entry->symbol + length - 5, "_ptsz") == 0 ||
			      strcmp(entry->symbol + length - 5, "_ptds") == 0);
}

/* Is @function the preload library's function called @symbol (NULL: any name)? */
static bool is_ours(const void *function, const char *symbol)
{
	Dl_info info;

	return function && dladdr(function, &info) && strstr(info.dli_fname, LIBRARY) &&
	       (!symbol || (info.dli_sname && strcmp(info.dli_sname, symbol) == 0));
}

static bool is_drivers(const void *function)
{
	Dl_info info;

	return function && dladdr(function, &info) && strstr(info.dli_fname, "/libcuda");
}

static struct gcr_page *find_page(void)
{
	_cleanup_fclose_ FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	uintptr_t start;

	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		if (strstr(line, "/memfd:gpucr-page") && sscanf(line, "%" SCNxPTR, &start) == 1)
			return (struct gcr_page *)start;
	return NULL;
}

/* ---- on the simulator ---- */

static void expect_wrapped(void *library)
{
	size_t there = 0;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(entries); i++) {
		const struct entry *entry = &entries[i];
		void *function = dlsym(library, entry->symbol);

		if (!function) {
			CHECK(dlerror());
			continue;
		}
		there++;
		if (entry->class == FREE)
			CHECK(is_drivers(function));
		else
			CHECK(is_ours(function, entry->symbol));
	}
	CHECK(there > 250);
}

static bool is_there(void *library, const struct entry *entry)
{
	bool there = dlsym(library, entry->symbol);

	dlerror();
	return there;
}

/*
 * Returns the entry that cudaTypedefs.h selects for @name and @version, among those of this driver.
 */
static const struct entry *find(void *library, const char *name, int version, bool per_thread)
{
	const struct entry *best = NULL;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(entries); i++) {
		const struct entry *entry = &entries[i];

		if (strcmp(entry->name, name) != 0 || entry->version > version ||
		    (is_per_thread(entry) && !per_thread) || !is_there(library, entry))
			continue;
		if (!best || entry->version > best->version || is_per_thread(entry))
			best = entry;
	}
	return best;
}

static void expect_found(void *library, __typeof__(cuGetProcAddress) *get_v1,
			 __typeof__(cuGetProcAddress_v2) *get_v2, const struct entry *asked)
{
	cuuint64_t flags = is_per_thread(asked) ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
						: CU_GET_PROC_ADDRESS_DEFAULT;
	const struct entry *entry =
		find(library, asked->name, asked->version, is_per_thread(asked));
	CUdriverProcAddressQueryResult status;
	void *function = NULL, *by_v2 = NULL;

	CHECK(entry);
	CHECK(get_v1(asked->name, &function, asked->version, flags) == CUDA_SUCCESS);
	CHECK(get_v2(asked->name, &by_v2, asked->version, flags, &status) == CUDA_SUCCESS);
	CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS && by_v2 == function);
	if (entry->class != FREE && !is_ours(function, entry->symbol))
		fprintf(stderr, "%s, version %d: not %s\n", asked->name, asked->version,
			entry->symbol);
	CHECK(entry->class == FREE ? is_drivers(function) : is_ours(function, entry->symbol));
}

static int run_simulator(int flags)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | flags);
	__typeof__(cuGetProcAddress) *get_v1;
	__typeof__(cuGetProcAddress_v2) *get_v2;
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
	void *function = library;

	CHECK(library);
	expect_wrapped(library);
	expect_wrapped(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
	if (flags == RTLD_GLOBAL)
		CHECK(is_ours(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), "cuMemAlloc_v2") &&
		      is_ours(dlsym(RTLD_NEXT, "cuStreamQuery"), "cuStreamQuery"));
	get_v1 = (__typeof__(get_v1))dlsym(library, "cuGetProcAddress");
	get_v2 = (__typeof__(get_v2))dlsym(library, "cuGetProcAddress_v2");
	for (size_t i = 0; i < GCR_ARRAY_SIZE(entries); i++)
		if (entries[i].version && is_there(library, &entries[i]))
			expect_found(library, get_v1, get_v2, &entries[i]);

	/* A lookup of a missing function or version fails. */
	CHECK(get_v2("cuNoSuchFunction", &function, 12000, 0, &status) == CUDA_SUCCESS);
	CHECK(!function && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	CHECK(get_v2("cuMemcpyAsync", &function, 1000, 0, &status) == CUDA_SUCCESS);
	CHECK(!function && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	CHECK(get_v2(NULL, &function, 12000, 0, &status) == CUDA_ERROR_INVALID_VALUE);
	CHECK(get_v1("cuInit", NULL, 12000, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!dlsym(library, "cuNoSuchFunction") && dlerror());
	CHECK(dlsym(library, "malloc") == (void *)malloc && !dlerror());
	return 0;
}

/* A program closes the library and opens it again. */
static int run_again(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *other;
	int *count = NULL;

	CHECK(is_ours(dlsym(library, "cuDeviceGetMemPool"), NULL));
	CHECK(dlclose(library) == 0);
	/* Another library takes its place in memory. */
	other = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(library && is_ours(dlsym(library, "cuMemAlloc_v2"), "cuMemAlloc_v2"));
	CHECK(((__typeof__(cuInit) *)dlsym(library, "cuInit"))(0) == CUDA_SUCCESS);
	CHECK(((__typeof__(cuDeviceGetCount) *)dlsym(library, "cuDeviceGetCount"))(count) !=
	      CUDA_SUCCESS);
	/* From here on dlclose() does not unload the library. */
	CHECK(dlclose(library) == 0 && dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
	if (other)
		dlclose(other);
	return 0;
}

/* ---- on the odd driver ---- */

static struct gcr_page *page;
static int looks;
static uint32_t inside;

static void look(void)
{
	looks++;
	inside = page->slots[1].inside;
	CHECK(page->slots[1].tid == (uint32_t)gettid() && inside);
}

typedef double future_call(void (*function)(void), int, double, long, float, void *, int, int, int,
			   int, int, double);

static void expect_incomplete(const char *name)
{
	if (strcmp(page->incomplete, name) != 0)
		fprintf(stderr, "incomplete: '%s', not '%s'\n", page->incomplete, name);
	CHECK(strcmp(page->incomplete, name) == 0);
}

#define CALL(library, name) ((__typeof__(name) *)dlsym(library, #name))

CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
				     void *attributes, CUstream stream);

static void be_called(void *data)
{
	(*(int *)data)++;
}

static void nothing(void)
{
}

/* Functions of CUDA 13.1 and later get their arguments, and are classified correctly. */
static void expect_later(void *library, __typeof__(cuGetProcAddress_v2) *get)
{
	CUdriverProcAddressQueryResult status;
	uint64_t submissions = page->slots[1].submissions;
	CUstream stream = (CUstream)&submissions;
	int calls = 0;
	void *found;

	CHECK(CALL(library, cuMulticastBindMem_v2)(0x100000001, 2, 3, 0x100000004, 5, 6, 7) ==
	      CUDA_SUCCESS);
	CHECK(CALL(library, cuMulticastBindAddr_v2)(0x100000001, 2, 3, 4, 5, 6) == CUDA_SUCCESS);
	CHECK(CALL(library, cuLogicalEndpointBindMem)(1, 2, 3, 0x100000004, 5, 6, 7) ==
	      CUDA_SUCCESS);
	CHECK(page->obstacle[0] == '\0');
	CHECK(CALL(library, cuLogicalEndpointCreate)(1, (void *)&calls) == CUDA_SUCCESS);
	CHECK(strstr(page->obstacle, "logical endpoint"));
	CHECK(CALL(library, cuLogicalEndpointImport)(1, &calls, 2) == CUDA_SUCCESS);
	CHECK(CALL(library, cuLogicalEndpointDestroy)(1) == CUDA_SUCCESS);
	CHECK(strstr(page->obstacle, "logical endpoint"));
	CHECK(CALL(library, cuLogicalEndpointDestroy)(7) != CUDA_SUCCESS);
	CHECK(strstr(page->obstacle, "logical endpoint"));
	CHECK(CALL(library, cuLogicalEndpointDestroy)(1) == CUDA_SUCCESS);
	CHECK(page->obstacle[0] == '\0');

	CHECK(page->slots[1].submissions == submissions);
	CHECK(CALL(library, cuMemcpyWithAttributesAsync)(1, 2, 3, (void *)4, (CUstream)5) ==
	      CUDA_SUCCESS);
	CHECK(page->slots[1].submissions == submissions + 1);
	CHECK(get("cuLaunchHostFunc", &found, 13020, 0, &status) == CUDA_SUCCESS);
	CHECK(is_ours(found, "cuLaunchHostFunc_v2"));
	CHECK(((__typeof__(cuLaunchHostFunc_v2) *)found)(stream, be_called, &calls, 3) ==
	      CUDA_SUCCESS);
	CHECK(calls == 1 && page->slots[1].submissions == submissions + 2);

	CHECK(CALL(library, cuStreamBeginRecaptureToGraph)(stream, CU_STREAM_CAPTURE_MODE_RELAXED,
							   (CUgraph)3, nothing,
							   (void *)5) == CUDA_SUCCESS);
	CHECK(page->captures == 1);
	CHECK(CALL(library, cuStreamEndCapture)(stream, NULL) == CUDA_SUCCESS);
	CHECK(page->captures == 0);
	CHECK(CALL(library, cuStreamBeginCaptureToCig)(stream, (void *)2) == CUDA_SUCCESS);
	CHECK(page->captures == 1);
	CHECK(CALL(library, cuStreamEndCaptureToCig)(stream) == CUDA_SUCCESS);
	CHECK(page->captures == 0);
	expect_incomplete("");
	CHECK(page->unknown[0] == '\0');
}

static void expect_shared_pool(bool there)
{
	if (there != !!strstr(page->obstacle, "pool shared with another process"))
		fprintf(stderr, "obstacle: '%s'\n", page->obstacle);
	CHECK(there == !!strstr(page->obstacle, "pool shared with another process"));
}

/*
 * A pool that was exported or imported counts as shared until it is destroyed and all memory
 * allocated from it is free.
 */
static void expect_pools(void *library)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
				.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
	CUmemPoolPtrExportData data = {{0}};
	CUmemoryPool exported, imported, current;
	CUdeviceptr before, pointer;
	int fd = -1;

	CHECK(CALL(library, cuMemPoolCreate)(&exported, &props) == CUDA_SUCCESS);
	CHECK(CALL(library, cuMemAllocFromPoolAsync)(&before, 1, exported, NULL) == CUDA_SUCCESS);
	expect_shared_pool(false);
	CHECK(CALL(library, cuMemPoolExportToShareableHandle)(
		      &fd, exported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
	expect_shared_pool(true);
	CHECK(CALL(library, cuMemPoolDestroy)(exported) == CUDA_SUCCESS);
	expect_shared_pool(true);
	CHECK(CALL(library, cuMemFreeAsync)(before, NULL) == CUDA_SUCCESS);
	expect_shared_pool(false);

	CHECK(CALL(library, cuMemPoolImportFromShareableHandle)(
		      &imported, &fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
	expect_shared_pool(true);
	CHECK(CALL(library, cuMemPoolImportPointer)(&pointer, imported, &data) == CUDA_SUCCESS);
	CHECK(CALL(library, cuMemPoolDestroy)(imported) == CUDA_SUCCESS);
	expect_shared_pool(true);
	CHECK(CALL(library, cuMemFreeAsync)(pointer, NULL) == CUDA_SUCCESS);
	expect_shared_pool(false);

	/*
	 * The library does not see the allocations of cuMemAllocAsync from the pool: the obstacle
	 * stays.
	 */
	CHECK(CALL(library, cuMemPoolCreate)(&current, &props) == CUDA_SUCCESS);
	CHECK(CALL(library, cuDeviceSetMemPool)(0, current) == CUDA_SUCCESS);
	expect_shared_pool(false);
	CHECK(CALL(library, cuMemPoolExportToShareableHandle)(
		      &fd, current, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
	CHECK(CALL(library, cuMemPoolDestroy)(current) == CUDA_SUCCESS);
	expect_shared_pool(true);
}

static int run_fake(void)
{
	void *library = dlopen(getenv("GPUCR_TEST_FAKE"), RTLD_NOW | RTLD_LOCAL);
	CUdriverProcAddressQueryResult status;
	__typeof__(cuGetProcAddress_v2) *get;
	__typeof__(cuMemsetD8_v2) *set;
	__typeof__(cuStreamQuery) *query;
	void *found, *newer;
	future_call *call;

	CHECK(library);
	CHECK(((__typeof__(cuInit) *)dlsym(library, "cuInit"))(0) == CUDA_SUCCESS);
	page = find_page();
	CHECK(page);
	get = (__typeof__(get))dlsym(library, "cuGetProcAddress_v2");
	query = (__typeof__(query))dlsym(library, "cuStreamQuery");
	CHECK(is_ours((void *)query, "cuStreamQuery"));
	CHECK(query((CUstream)look) == CUDA_SUCCESS && looks == 1);

	/*
	 * A function that is not exported, in a version that the table knows and in a later
	 * version.
	 */
	CHECK(get("cuMemsetD8", &found, 12000, 0, &status) == CUDA_SUCCESS);
	CHECK(is_ours(found, "cuMemsetD8_v2"));
	set = (__typeof__(set))found;
	CHECK(set((uintptr_t)look, 3, 4) == CUDA_SUCCESS && looks == 2);
	CHECK(get("cuMemsetD8", &newer, 99000, 0, &status) == CUDA_SUCCESS && newer == found);
	CHECK(get("cuDriverGetVersion", &found, 99000, 0, &status) == CUDA_SUCCESS);
	CHECK(is_drivers(found));

	expect_later(library, get);
	expect_pools(library);

	/* The library leaves names of other interfaces alone. */
	CHECK(get("hipMalloc", &found, 12000, 0, &status) == CUDA_SUCCESS);
	CHECK(is_drivers(found));
	CHECK(get("cudaMalloc", &found, 12000, 0, &status) == CUDA_SUCCESS);
	CHECK(is_drivers(found));

	/* A function that the table does not know passes the gate, with all its arguments. */
	call = (future_call *)dlsym(library, "cuFutureCall");
	CHECK(is_ours((void *)call, NULL));
	CHECK(get("cuFutureCall", &found, 99000, 0, &status) == CUDA_SUCCESS);
	CHECK(found == (void *)call);
	expect_incomplete("");
	CHECK(call(look, 1, 0.5, 2, 0.25f, (void *)3, 4, 5, 6, 7, 8, 0.125) == 36.875);
	CHECK(looks == 3 && page->slots[1].inside == 0);
	expect_incomplete("cuFutureCall");

	/*
	 * A known name of a newer version passes the gate too. This function only queries, so the
	 * record is not marked incomplete.
	 */
	page->incomplete[0] = '\0';
	CHECK(get("cuStreamQuery", &found, 99000, 0, &status) == CUDA_SUCCESS);
	CHECK(is_ours(found, NULL) && found != (void *)query && found != (void *)call);
	expect_incomplete("");
	query = (__typeof__(query))found;
	CHECK(query((CUstream)look) == CUDA_ERROR_NOT_READY && looks == 4);
	expect_incomplete("");
	CHECK(strcmp(page->unknown, "cuFutureCall cuStreamQuery") == 0);

	/* An entry of the table that this driver does not have. */
	CHECK(!dlsym(library, "cuMemAlloc_v2") && dlerror());
	return 0;
}

/* ---- starting the program ---- */

static int run_program(const char *way)
{
	alarm(60 * TEST_SLOW);
	if (strcmp(way, "local") == 0)
		return run_simulator(RTLD_LOCAL);
	if (strcmp(way, "global") == 0)
		return run_simulator(RTLD_GLOBAL);
	if (strcmp(way, "again") == 0)
		return run_again();
	return run_fake();
}

static void start(const char *way)
{
	execute_again(way, getenv("GPUCR_TEST_PRELOAD"), NULL, false);
}

int main(int argc, char **argv)
{
	char state[] = "/tmp/gpucr-test-sim-XXXXXX", command[64];

	if (argc == 2)
		return run_program(argv[1]);
#if !defined(__GLIBC__) || !(defined(__x86_64__) || defined(__aarch64__))
	SKIP("the preload library has no dlsym on this architecture");
#endif
	CHECK(getenv("GPUCR_TEST_PRELOAD") && getenv("GPUCR_TEST_FAKE"));
	CHECK(getenv("GPUCR_TEST_SIMULATOR"));
	CHECK(mkdtemp(state) && setenv("GPUCR_SIM_DIR", state, 1) == 0);
	start("local");
	start("global");
	start("again");
	start("fake");
	snprintf(command, sizeof(command), "rm -rf %s", state);
	CHECK(system(command) == 0);
	return 0;
}
