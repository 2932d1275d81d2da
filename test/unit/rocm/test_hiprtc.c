/* SPDX-License-Identifier: MIT */
/*
 * Compiling the kernels for AMD's GPUs: with a fake compiler whose answers the test sets, and with
 * the compiler of an installed ROCm, which needs no GPU. Where ROCm's header is installed, this
 * file includes it and so checks the declarations of hiprtc_api.h.
 */
#ifdef HAVE_HIPRTC_H
#define __HIP_PLATFORM_AMD__ 1
#define __HIP_PLATFORM_HCC__ 1
#include <hip/hiprtc.h>
#define GCR_HIPRTC_TYPES
#endif
#include "tools/gpu/hiprtc_api.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "test/unit/test.h"
#include "tools/gpu/hip_kernels.h"

#define MACHINE_AMDGPU 224 /* EM_AMDGPU */

static bool has(const char *code, size_t bytes, const char *name)
{
	return memmem(code, bytes, name, strlen(name) + 1);
}

/* With the fake compiler: its options, results and error messages are passed on. */
static void test_words(void)
{
	void *fake = dlopen(getenv("GPUCR_TEST_FAKE"), RTLD_NOW | RTLD_LOCAL);
	int (*programs)(void);
	struct gcr_error error = {0};
	void *code = NULL;
	size_t bytes = 0;

	CHECK(fake);
	programs = (int (*)(void))dlsym(fake, "hiprtc_fake_programs");
	CHECK(gcr_hip_kernels(fake, "gfx90a:xnack-", &code, &bytes, &error) == 0);
	CHECK(!strcmp(code, "--offload-arch=gfx90a:xnack-") && bytes == strlen(code) + 1);
	free(code);
	CHECK(gcr_hip_kernels(fake, NULL, &code, &bytes, &error) == 0 && !strcmp(code, "none"));
	free(code);

	code = NULL;
	CHECK(gcr_hip_kernels(fake, "wrong", &code, &bytes, &error) == -EIO && !code);
	CHECK(!strcmp(error.words, "hiprtcCompileProgram: HIPRTC_ERROR_COMPILATION (6): "
				   "it is wrong?indeed"));
	CHECK(gcr_hip_kernels(fake, "mute", &code, &bytes, &error) == -EIO && !code);
	CHECK(!strcmp(error.words, "hiprtcCompileProgram: unknown error (6)"));
	CHECK(programs() == 0);
}

static void test_real(const char *architecture, void *hip)
{
	static const char *const names[] = {"gpucr_fill", "gpucr_add", "gpucr_checksum",
					    "gpucr_spin"};
	struct gcr_error error = {0};
	void *code = NULL;
	size_t bytes = 0;

	if (gcr_hip_kernels(hip, architecture, &code, &bytes, &error) < 0)
		fprintf(stderr, "%s\n", error.words);
	CHECK(code);
	CHECK(bytes > sizeof(Elf64_Ehdr) && !memcmp(code, ELFMAG, SELFMAG));
	CHECK(((const Elf64_Ehdr *)code)->e_machine == MACHINE_AMDGPU);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		CHECK(has(code, bytes, names[i]));
	free(code);
}

int main(void)
{
	void *hip;

	test_words();
	hip = dlopen("libamdhip64.so", RTLD_NOW | RTLD_LOCAL);
	if (!hip)
		hip = dlopen("libamdhip64.so.5", RTLD_NOW | RTLD_LOCAL);
	if (!hip)
		SKIP("ROCm is not installed");
	test_real("gfx90a", hip);
	test_real("gfx906", hip);
	return EXIT_SUCCESS;
}
