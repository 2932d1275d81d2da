/* SPDX-License-Identifier: MIT */
/*
 * libgpucr-preload.so beside other libraries that stand in for functions of the driver: in either
 * order no library of the program gets a function that bypasses the gate unnoticed.
 *
 * GPUCR_TEST_PRELOAD is the library, GPUCR_TEST_INTERPOSER another interposer, GPUCR_TEST_DLSYM a
 * library with a dlsym of its own, GPUCR_TEST_PLUGIN a library that is linked with libcuda,
 * GPUCR_TEST_FAKE a driver, and GPUCR_TEST_RUN is gpucr-run.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/cuda_api.h"
#include "lib/cleanup.h"
#include "lib/protocol.h"
#include "test/unit/preload/again.h"
#include "test/unit/preload/preload_interposer.h"
#include "test/unit/test.h"

/* Weak references, as in a program that is linked with libcuda. */
#pragma weak cuInit
#pragma weak cuStreamQuery
#pragma weak gcr_test_interposed
#pragma weak gcr_test_find

static bool is_of(const char *library, const void *function)
{
	Dl_info info;

	if (!function || !dladdr(function, &info) || !strstr(info.dli_fname, library))
		fprintf(stderr, "%s, not of %s\n", function ? info.dli_fname : "nothing", library);
	return function && strstr(info.dli_fname, library);
}

static bool is_ours(const void *function)
{
	return is_of("libgpucr-preload", function);
}

static void expect_incomplete(const char *words)
{
	_cleanup_fclose_ FILE *maps = fopen("/proc/self/maps", "re");
	struct gcr_page *page = NULL;
	char line[512];
	uintptr_t start;

	CHECK(maps);
	while (!page && fgets(line, sizeof(line), maps))
		if (strstr(line, "/memfd:gpucr-page") && sscanf(line, "%" SCNxPTR, &start) == 1)
			page = (struct gcr_page *)start;
	CHECK(page);
	if (!*words ? page->incomplete[0] : !strstr(page->incomplete, words))
		fprintf(stderr, "incomplete: '%s', not '%s'\n", page->incomplete, words);
	CHECK(*words ? strstr(page->incomplete, words) != NULL : !page->incomplete[0]);
}

/*
 * The next function that a library finds is the preload library's, whether its table has the name
 * or not.
 */
static void expect_gated(__typeof__(gcr_test_find) *find)
{
	CHECK(is_ours(find(RTLD_NEXT, "cuStreamQuery")));
	CHECK(is_ours(find(RTLD_DEFAULT, "cuInit")));
	CHECK(is_ours(find(RTLD_NEXT, "cuFutureCall")));
	CHECK(is_ours(find(RTLD_DEFAULT, "cuFutureCall")));
	CHECK(find(RTLD_NEXT, "getpid") == find(RTLD_DEFAULT, "getpid"));
	CHECK(!find(RTLD_NEXT, "cuNoSuchFunction") && dlerror());
}

/* A plugin in whose scope the driver is only by its own link. */
static void expect_gated_plugin(void)
{
	void *plugin = dlopen(getenv("GPUCR_TEST_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
	__typeof__(gcr_test_find) *find;

	CHECK(plugin);
	find = (__typeof__(find))dlsym(plugin, "gcr_test_find");
	CHECK(find);
	CHECK(is_ours(find(RTLD_NEXT, "cuStreamQuery")));
	CHECK(is_ours(find(RTLD_DEFAULT, "cuStreamQuery")));
	CHECK(find(RTLD_NEXT, "getpid") == (void *)getpid);
}

static int looks;

/* The fake driver calls this function when a stream is queried. */
static void look(void)
{
	looks++;
}

static int run_program(const char *way)
{
	CHECK(dlopen(getenv("GPUCR_TEST_FAKE"), RTLD_NOW | RTLD_GLOBAL));
	CHECK(cuInit && cuInit(0) == CUDA_SUCCESS);
	if (strcmp(way, "alone") == 0)
		expect_gated_plugin();
	else if (strcmp(way, "dlsym") != 0)
		expect_gated(gcr_test_find);
	expect_incomplete(strcmp(way, "dlsym") == 0 ? "dlsym of libpreload-dlsym" : "");
	if (strcmp(way, "run") == 0) {
		CHECK(is_of("libpreload-interposer", (void *)cuStreamQuery));
		CHECK(cuStreamQuery((CUstream)look) == CUDA_SUCCESS);
		CHECK(gcr_test_interposed() == 1 && looks == 1);
	}
	return 0;
}

/* ---- starting the program ---- */

static void start(const char *way, const char *first, const char *second)
{
	execute_again(way, first, second, strcmp(way, "run") == 0);
}

int main(int argc, char **argv)
{
	const char *preload = getenv("GPUCR_TEST_PRELOAD");
	const char *interposer = getenv("GPUCR_TEST_INTERPOSER");

	if (argc == 2)
		return run_program(argv[1]);
#if !defined(__GLIBC__) || !(defined(__x86_64__) || defined(__aarch64__))
	SKIP("the preload library has no dlsym on this architecture");
#endif
	CHECK(preload && interposer && getenv("GPUCR_TEST_DLSYM") && getenv("GPUCR_TEST_PLUGIN"));
	CHECK(getenv("GPUCR_TEST_FAKE") && getenv("GPUCR_TEST_RUN"));
	start("alone", preload, NULL);
	start("behind", preload, interposer);
	start("before", interposer, preload);
	start("dlsym", getenv("GPUCR_TEST_DLSYM"), preload);
	start("behind", preload, getenv("GPUCR_TEST_DLSYM"));
	start("run", interposer, NULL);
	return 0;
}
