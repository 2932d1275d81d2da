/* SPDX-License-Identifier: MIT */
/*
 * libgpucr-preload-hip.so in a program (this program, executed again). Tested are: the function
 * that the program gets for every entry point of HIP by every kind of lookup, on the simulator and
 * on a library with oddities; the moment at which the preload library initialises, as HIP needs no
 * hipInit; and both preload libraries, in either order, in one program that uses CUDA, HIP or both.
 *
 * GPUCR_TEST_PRELOAD and GPUCR_TEST_PRELOAD_HIP are the libraries, GPUCR_TEST_SIMULATOR the
 * directory of the simulator's libraries, GPUCR_TEST_FAKE and GPUCR_TEST_FAKE_HIP the odd
 * libraries, GPUCR_TEST_DLSYM a library with a dlsym of its own, and GPUCR_TEST_RUN is gpucr-run.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "backend/rocm/hip_api.h"
#include "lib/cleanup.h"
#include "lib/protocol.h"
#include "test/unit/preload/again.h"
#include "test/unit/preload/fake_hip.h"
#include "test/unit/test.h"

/* Weak references, as in a program that is linked with both drivers. */
#pragma weak cuInit
#pragma weak hipGetDeviceCount

#define OURS	  "libgpucr-preload-hip.so"
#define OURS_CUDA "libgpucr-preload.so"

enum class { CALL, POLL, SUBMIT, WAIT, FREE, OWN };

static const struct entry {
	enum class class;
	const char *symbol;
} entries[] = {
#define ENTRY(class, symbol, name, version, arguments) {class, #symbol},
#include "backend/preload/driver/entry_points_hip.def"
#undef ENTRY
};

static bool is_of(const char *library, const void *function)
{
	Dl_info info;

	return function && dladdr(function, &info) && strstr(info.dli_fname, library);
}

/* Is @function the preload library's function called @symbol (NULL: any name)? */
static bool is_ours(const void *function, const char *symbol)
{
	Dl_info info;

	return is_of(OURS, function) && dladdr(function, &info) &&
	       (!symbol || (info.dli_sname && strcmp(info.dli_sname, symbol) == 0));
}

static bool is_hips(const void *function)
{
	return is_of("/libamdhip64", function);
}

/* Returns the page of the preload library of @vendor, or NULL if that library has made none. */
static struct gcr_page *find_page(uint32_t vendor)
{
	_cleanup_fclose_ FILE *maps = fopen("/proc/self/maps", "re");
	struct gcr_page *page;
	char line[512];
	uintptr_t start;

	CHECK(maps);
	while (fgets(line, sizeof(line), maps)) {
		if (!strstr(line, "/memfd:gpucr-page") || sscanf(line, "%" SCNxPTR, &start) != 1)
			continue;
		page = (struct gcr_page *)start;
		if ((page->flags & GCR_PAGE_HIP) == vendor)
			return page;
	}
	return NULL;
}

/* ---- on the simulator ---- */

static void expect_wrapped(void *library)
{
	size_t there = 0;

	for (size_t i = 0; i < GCR_ARRAY_SIZE(entries); i++) {
		const struct entry *entry = &entries[i];
		void *function = dlsym(library, entry->symbol);
		bool is_cpp = strncmp(entry->symbol, "_Z", 2) == 0;

		if (!function) {
			CHECK(dlerror());
			continue;
		}
		there++;
		if (entry->class == FREE || is_cpp)
			CHECK(is_hips(function));
		else
			CHECK(is_ours(function, entry->symbol));
	}
	CHECK(there > 150);
}

static void expect_proc_address(void *library)
{
	__typeof__(hipGetProcAddress) *get = (__typeof__(get))dlsym(library, "hipGetProcAddress");
	hipDriverProcAddressQueryResult status;
	void *found;
	size_t there = 0;

	CHECK(is_ours((void *)get, "hipGetProcAddress"));
	for (size_t i = 0; i < GCR_ARRAY_SIZE(entries); i++) {
		const struct entry *entry = &entries[i];

		if (get(entry->symbol, &found, 602, 0, &status) != hipSuccess)
			continue;
		there++;
		if (entry->class == FREE)
			CHECK(is_hips(found));
		else
			CHECK(is_ours(found, entry->symbol));
	}
	CHECK(there > 100);
	CHECK(get("hipNoSuchFunction", &found, 602, 0, &status) == hipErrorInvalidValue);
	CHECK(get(NULL, &found, 602, 0, &status) == hipErrorInvalidValue);
	CHECK(get("hipInit", NULL, 602, 0, &status) == hipErrorInvalidValue);
}

static int run_simulator(int flags)
{
	void *library = dlopen("libamdhip64.so.6", RTLD_NOW | flags);

	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
	expect_wrapped(library);
	/* No call has needed a GPU yet. */
	CHECK(!find_page(GCR_PAGE_HIP));
	if (flags == RTLD_GLOBAL)
		CHECK(is_ours(dlsym(RTLD_DEFAULT, "hipMalloc"), "hipMalloc") &&
		      is_ours(dlsym(RTLD_NEXT, "hipStreamQuery"), "hipStreamQuery"));
	expect_proc_address(library);
	CHECK(!dlsym(library, "hipNoSuchFunction") && dlerror());
	CHECK(dlsym(library, "malloc") == (void *)malloc && !dlerror());
	return 0;
}

static bool has_agent(void)
{
	_cleanup_closedir_ DIR *threads = opendir("/proc/self/task");
	bool found = false;
	struct dirent *entry;

	CHECK(threads);
	while ((entry = readdir(threads))) {
		char path[300], line[64] = "";
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		file = fopen(path, "re");
		if (!file)
			continue;
		found = found ||
			(fgets(line, sizeof(line), file) && strcmp(line, "gpucr-agent\n") == 0);
		fclose(file);
	}
	return found;
}

/*
 * The first call that passes the gate initialises the library; a call that does not pass never
 * does.
 */
static int run_implicitly(void)
{
	void *library = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL), *memory = NULL;
	__typeof__(hipGetErrorName) *name = (__typeof__(name))dlsym(library, "hipGetErrorName");
	__typeof__(hipMalloc) *allocate = (__typeof__(allocate))dlsym(library, "hipMalloc");
	__typeof__(hipFree) *give_back = (__typeof__(give_back))dlsym(library, "hipFree");

	CHECK(strcmp(name(hipErrorNotReady), "hipErrorNotReady") == 0);
	CHECK(!find_page(GCR_PAGE_HIP) && !has_agent());
	CHECK(allocate(&memory, 4 << 20) == hipSuccess);
	CHECK(find_page(GCR_PAGE_HIP));
	/* The agent thread sets its name when it starts to run. */
	while (!has_agent())
		sched_yield();
	CHECK(find_page(GCR_PAGE_HIP)->device_bytes == 4 << 20);
	CHECK(give_back(memory) == hipSuccess && find_page(GCR_PAGE_HIP)->device_bytes == 0);
	/* From here on dlclose() does not unload the library. */
	CHECK(dlclose(library) == 0 && dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_NOLOAD));
	return 0;
}

/* Without a GPU the preload library behaves as if it were absent. */
static int run_without(void)
{
	void *library = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL);
	__typeof__(hipGetDeviceCount) *count =
		(__typeof__(count))dlsym(library, "hipGetDeviceCount");
	int devices = 7;

	CHECK(is_ours((void *)count, "hipGetDeviceCount"));
	CHECK(count(&devices) == hipErrorNoDevice);
	CHECK(!has_agent());
	return 0;
}

/* ---- on the odd library ---- */

static struct gcr_page *page;
static int looks;

static void look(void)
{
	looks++;
	CHECK(page->slots[1].tid == (uint32_t)gettid() && page->slots[1].inside);
}

static void expect_incomplete(const struct gcr_page *of, const char *words)
{
	if (!*words ? of->incomplete[0] : !strstr(of->incomplete, words))
		fprintf(stderr, "incomplete: '%s', not '%s'\n", of->incomplete, words);
	CHECK(*words ? strstr(of->incomplete, words) != NULL : !of->incomplete[0]);
}

static void expect_values(void *library)
{
	__typeof__(hipLaunchKernel) *launch = (__typeof__(launch))dlsym(library, "hipLaunchKernel");
	__typeof__(hipMemset3D) *set = (__typeof__(set))dlsym(library, "hipMemset3D");
	__typeof__(hipTexRefSetMipmapLevelClamp) *clamp =
		(__typeof__(clamp))dlsym(library, "hipTexRefSetMipmapLevelClamp");
	uint64_t submissions = page->slots[1].submissions;

	looks = 0;
	CHECK(launch((void *)1, (dim3){2, 4, 8}, (dim3){16, 32, 64}, (void **)128, 256,
		     (hipStream_t)look) == 511);
	CHECK(set((struct fake_pitched){(void *)look, 1, 2, 4}, 8,
		  (struct fake_extent){16, 32, 64}) == 127);
	CHECK(page->slots[1].submissions == submissions + 2);
	CHECK(clamp((void *)look, 0.25f, 5.0f) == 7);
	CHECK(looks == 3 && page->slots[1].inside == 0);
}

/* The function's C++ name is only used by programs that are linked with the library. */
static void expect_cpp(void)
{
	__typeof__(FAKE_EXT_LAUNCH) *launch = (__typeof__(launch))dlsym(
		RTLD_DEFAULT, "_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_"
			      "tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j");

	CHECK(is_ours((void *)launch, NULL));
	CHECK(launch((void *)1, 2, 4, 8, 16, 32, 64, 128, (void *)look, (void **)256, (void **)512,
		     (void *)1024, (void *)2048, 4096) == 8191);
}

static int run_fake(void)
{
	void *library = dlopen(getenv("GPUCR_TEST_FAKE_HIP"), RTLD_NOW | RTLD_LOCAL);
	__typeof__(fake_hip_inits) *inits;
	__typeof__(hipGetProcAddress) *get;
	__typeof__(hipGetDriverEntryPoint) *get_entry_point;
	__typeof__(hipGetDeviceCount) *get_count;
	__typeof__(hipStreamQuery) *query;
	__typeof__(hipFutureCall) *call;
	hipDriverProcAddressQueryResult status;
	void *found;
	int count;

	CHECK(library);
	inits = (__typeof__(inits))dlsym(library, "fake_hip_inits");
	get_count = (__typeof__(get_count))dlsym(library, "hipGetDeviceCount");
	query = (__typeof__(query))dlsym(library, "hipStreamQuery");
	CHECK(is_ours((void *)get_count, "hipGetDeviceCount"));
	CHECK(inits() == 0);
	CHECK(get_count(&count) == hipSuccess && count == 1 && inits() == 1);
	page = find_page(GCR_PAGE_HIP);
	CHECK(page);
	CHECK(query((hipStream_t)look) == hipSuccess && looks == 1 && inits() == 1);
	expect_values(library);
	looks = 1;
	expect_cpp();

	/*
	 * A function that HIP has looked up through the preload library is not wrapped a second
	 * time; a function that HIP returns by itself is wrapped.
	 */
	get = (__typeof__(get))dlsym(library, "hipGetProcAddress");
	CHECK(get("hipStreamQuery", &found, 602, 0, &status) == hipSuccess);
	CHECK(found == (void *)query);
	get_entry_point = (__typeof__(get_entry_point))dlsym(library, "hipGetDriverEntryPoint");
	found = NULL;
	CHECK(get_entry_point("hipStreamQuery", &found, 0, &count) == hipSuccess);
	CHECK(found == (void *)query);
	expect_incomplete(page, "");

	/* A function that the table does not know passes the gate, with all its arguments. */
	call = (__typeof__(call))dlsym(library, "hipFutureCall");
	CHECK(is_ours((void *)call, NULL));
	CHECK(get("hipFutureCall", &found, 602, 0, &status) == hipSuccess);
	CHECK(found == (void *)call);
	expect_incomplete(page, "");
	looks = 0;
	CHECK(call(look, 1, 0.5) == 1.5 && looks == 1);
	expect_incomplete(page, "hipFutureCall");
	page->incomplete[0] = '\0';
	CHECK(get("hipStreamQuery", &found, 9900, 0, &status) == hipSuccess);
	CHECK(is_ours(found, NULL) && found != (void *)query && found != (void *)call);
	query = (__typeof__(query))found;
	CHECK(query((hipStream_t)look) == hipErrorNotReady && looks == 2);
	/* This function only queries, so the library's record is not marked incomplete. */
	expect_incomplete(page, "");
	CHECK(strcmp(page->unknown, "hipFutureCall hipStreamQuery") == 0);

	/* An entry of the table that this library does not have. */
	CHECK(!dlsym(library, "hipMalloc") && dlerror());
	return 0;
}

/* ---- both libraries ---- */

/*
 * The compiler must not turn the call into a jump: dlsym() identifies the caller by the return
 * address.
 */
static void *find_next(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	__asm__ volatile("" : "+r"(found));
	return found;
}

static void expect_driver(const char *library, void *handle, const char *name)
{
	if (!handle) {
		CHECK(!dlsym(RTLD_DEFAULT, name) && dlerror());
		CHECK(!find_next(name) && dlerror());
		return;
	}
	CHECK(is_of(library, dlsym(RTLD_DEFAULT, name)));
	CHECK(is_of(library, find_next(name)));
	CHECK(is_of(library, dlsym(handle, name)));
}

static int run_both(bool uses_cuda, bool uses_hip)
{
	void *cuda = NULL, *hip = NULL;
	int count;

	if (uses_cuda)
		CHECK(cuda = dlopen(getenv("GPUCR_TEST_FAKE"), RTLD_NOW | RTLD_GLOBAL));
	if (uses_hip)
		CHECK(hip = dlopen(getenv("GPUCR_TEST_FAKE_HIP"), RTLD_NOW | RTLD_GLOBAL));
	expect_driver(OURS_CUDA, cuda, "cuStreamQuery");
	expect_driver(OURS_CUDA, cuda, "cuFutureCall");
	expect_driver(OURS, hip, "hipStreamQuery");
	expect_driver(OURS, hip, "hipFutureCall");
	CHECK(find_next("getpid") == (void *)getpid);
	CHECK(dlsym(RTLD_DEFAULT, "getpid") == (void *)getpid && !dlerror());
	CHECK(!dlsym(RTLD_DEFAULT, "noSuchFunction") && dlerror());
	CHECK(!find_next("cudaMalloc") && !find_next("hipblasCreate") && dlerror());
	CHECK(!find_page(0) && !find_page(GCR_PAGE_HIP));
	if (uses_cuda)
		CHECK(((__typeof__(cuInit) *)dlsym(cuda, "cuInit"))(0) == CUDA_SUCCESS);
	if (uses_hip)
		CHECK(((__typeof__(hipGetDeviceCount) *)dlsym(hip, "hipGetDeviceCount"))(&count) ==
		      hipSuccess);
	CHECK(!find_page(0) == !uses_cuda && !find_page(GCR_PAGE_HIP) == !uses_hip);
	if (uses_cuda)
		expect_incomplete(find_page(0), "");
	if (uses_hip)
		expect_incomplete(find_page(GCR_PAGE_HIP), "");
	return 0;
}

/*
 * A dlsym before the preload libraries' own bypasses both gates; the dlsym of one preload library
 * does not count as such for the other.
 */
static int run_other_dlsym(void)
{
	int count;

	CHECK(dlopen(getenv("GPUCR_TEST_FAKE"), RTLD_NOW | RTLD_GLOBAL));
	CHECK(dlopen(getenv("GPUCR_TEST_FAKE_HIP"), RTLD_NOW | RTLD_GLOBAL));
	CHECK(cuInit && cuInit(0) == CUDA_SUCCESS);
	CHECK(hipGetDeviceCount && hipGetDeviceCount(&count) == hipSuccess);
	expect_incomplete(find_page(0), "dlsym of libpreload-dlsym");
	expect_incomplete(find_page(GCR_PAGE_HIP), "dlsym of libpreload-dlsym");
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
	if (strcmp(way, "implicitly") == 0)
		return run_implicitly();
	if (strcmp(way, "without") == 0)
		return run_without();
	if (strcmp(way, "cuda") == 0)
		return run_both(true, false);
	if (strcmp(way, "hip") == 0)
		return run_both(false, true);
	if (strcmp(way, "both") == 0)
		return run_both(true, true);
	if (strcmp(way, "neither") == 0)
		return run_both(false, false);
	if (strcmp(way, "dlsym") == 0)
		return run_other_dlsym();
	return run_fake();
}

/* Without a first library, gpucr-run sets them. */
static void start(const char *way, const char *first, const char *second)
{
	execute_again(way, first, second, !first);
}

int main(int argc, char **argv)
{
	static const char *const uses[] = {"cuda", "hip", "both", "neither"};
	const char *cuda = getenv("GPUCR_TEST_PRELOAD"), *hip = getenv("GPUCR_TEST_PRELOAD_HIP");
	char state[] = "/tmp/gpucr-test-sim-XXXXXX", command[64], others[8192];

	if (argc == 2)
		return run_program(argv[1]);
#if !defined(__GLIBC__) || !(defined(__x86_64__) || defined(__aarch64__))
	SKIP("the preload library has no dlsym on this architecture");
#endif
	CHECK(cuda && hip && getenv("GPUCR_TEST_FAKE") && getenv("GPUCR_TEST_FAKE_HIP"));
	CHECK(getenv("GPUCR_TEST_SIMULATOR") && getenv("GPUCR_TEST_RUN"));
	CHECK(mkdtemp(state) && setenv("GPUCR_SIM_DIR", state, 1) == 0);
	setenv("GPUCR_SIM_HIP_GPUS", "1", 1);
	start("fake", hip, NULL);
	for (size_t i = 0; i < GCR_ARRAY_SIZE(uses); i++) {
		start(uses[i], cuda, hip);
		start(uses[i], hip, cuda);
		start(uses[i], NULL, NULL);
	}
	snprintf(others, sizeof(others), "%s:%s", getenv("GPUCR_TEST_DLSYM"), cuda);
	start("dlsym", others, hip);
	start("local", hip, NULL);
	start("global", hip, NULL);
	start("global", cuda, hip);
	start("implicitly", hip, NULL);
	start("implicitly", hip, cuda);
	snprintf(command, sizeof(command), "rm -rf %s/*", state);
	CHECK(system(command) == 0);
	setenv("GPUCR_SIM_HIP_GPUS", "0", 1);
	start("without", hip, NULL);
	snprintf(command, sizeof(command), "rm -rf %s", state);
	CHECK(system(command) == 0);
	return 0;
}
