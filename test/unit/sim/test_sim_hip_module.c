/* SPDX-License-Identifier: MIT */
/*
 * The images that a HIP module can be loaded from on the simulator: a code object for the GPU, a
 * bundle of several code objects, and text of the stand-in of hiprtc; and kernels that the
 * compiler's code registers.
 */
#include "test/unit/sim_hip.h"

#include <elf.h>

#define MACH_GFX90A 0x3f
#define MACH_GFX908 0x30

/* A code object with the kernel gpucr_fill and the variable `table` of 64 bytes. */
struct code_object {
	Elf64_Ehdr header;
	Elf64_Sym symbols[4];
	char names[64];
	Elf64_Shdr sections[3];
};

static struct code_object code_object(unsigned mach)
{
	struct code_object object = {
		.header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB,
				       EV_CURRENT, 64, 2},
			   .e_type = ET_DYN,
			   .e_machine = 224,
			   .e_flags = 0x500 | mach,
			   .e_shoff = offsetof(struct code_object, sections),
			   .e_shentsize = sizeof(Elf64_Shdr),
			   .e_shnum = 3},
		.names = "\0gpucr_fill\0gpucr_fill.kd\0table",
		.symbols = {{0},
			    {.st_name = 1,
			     .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
			     .st_shndx = 1,
			     .st_size = 100},
			    {.st_name = 12,
			     .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT),
			     .st_shndx = 1,
			     .st_size = 64},
			    {.st_name = 26,
			     .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT),
			     .st_shndx = 1,
			     .st_size = 64}},
	};

	object.sections[1] = (Elf64_Shdr){.sh_type = SHT_DYNSYM,
					  .sh_offset = offsetof(struct code_object, symbols),
					  .sh_size = sizeof(object.symbols),
					  .sh_link = 2};
	object.sections[2] = (Elf64_Shdr){.sh_type = SHT_STRTAB,
					  .sh_offset = offsetof(struct code_object, names),
					  .sh_size = sizeof(object.names)};
	return object;
}

static void check_fill(hipFunction_t fill, unsigned seed)
{
	unsigned long long words = 16;
	void *memory, *params[] = {&memory, &words, &seed};

	OK(HIP(hipMalloc)(&memory, 4096));
	OK(sim_hip_launch(fill, NULL, params));
	CHECK(sim_hip_word(memory) == seed);
	OK(HIP(hipFree)(memory));
}

static void check_module(const void *image, unsigned seed)
{
	hipFunction_t function;
	hipDeviceptr_t table;
	hipModule_t module;
	size_t size;

	OK(HIP(hipModuleLoadData)(&module, image));
	OK(HIP(hipModuleGetFunction)(&function, module, "gpucr_fill"));
	check_fill(function, seed);
	RESULT(HIP(hipModuleGetFunction)(&function, module, "gpucr_add"), hipErrorNotFound);
	RESULT(HIP(hipModuleGetFunction)(&function, module, ""), hipErrorInvalidValue);
	RESULT(HIP(hipModuleGetFunction)(&function, NULL, "gpucr_fill"), hipErrorInvalidHandle);
	OK(HIP(hipModuleGetGlobal)(&table, &size, module, "table"));
	CHECK(size == 64);
	OK(HIP(hipMemset)(table, 3, 64));
	RESULT(HIP(hipModuleGetGlobal)(&table, &size, module, "gpucr_fill.kd"), hipErrorNotFound);
	RESULT(HIP(hipModuleGetGlobal)(NULL, NULL, module, "table"), hipErrorInvalidValue);
	OK(HIP(hipModuleUnload)(module));
}

static void test_code_object(void)
{
	struct code_object object = code_object(MACH_GFX90A), other = code_object(MACH_GFX908);
	hipModule_t module;

	check_module(&object, 1);
	RESULT(HIP(hipModuleLoadData)(&module, &other), hipErrorNoBinaryForGpu);
	setenv("GPUCR_SIM_HIP_ARCH", "gfx908", 1);
	check_module(&other, 2);
	RESULT(HIP(hipModuleLoadData)(&module, &object), hipErrorNoBinaryForGpu);
	unsetenv("GPUCR_SIM_HIP_ARCH");
	object.header.e_machine = EM_X86_64;
	RESULT(HIP(hipModuleLoadData)(&module, &object), hipErrorNoBinaryForGpu);
}

/*
 * A bundle as clang-offload-bundler writes it: an empty entry for the host, and two architectures.
 */
static unsigned char bundle[4096 + 2 * sizeof(struct code_object)];

static void bundle_make(unsigned second_mach, const char *second)
{
	const char *names[] = {"host-x86_64-unknown-linux--", "hipv4-amdgcn-amd-amdhsa--gfx908",
			       second};
	struct code_object objects[] = {code_object(MACH_GFX908), code_object(second_mach)};
	unsigned char *at = bundle;
	uint64_t count = 3;

	at = mempcpy(at, "__CLANG_OFFLOAD_BUNDLE__", 24);
	at = mempcpy(at, &count, sizeof(count));
	for (unsigned i = 0; i < 3; i++) {
		uint64_t numbers[] = {i ? 4096 + (i - 1) * sizeof(struct code_object) : 4096,
				      i ? sizeof(struct code_object) : 0, strlen(names[i])};

		at = mempcpy(at, numbers, sizeof(numbers));
		at = mempcpy(at, names[i], strlen(names[i]));
	}
	memcpy(bundle + 4096, objects, sizeof(objects));
}

static void test_bundle(void)
{
	struct {
		unsigned magic, version;
		const void *bundle;
		void *none;
	} wrapper = {0x48495046, 1, bundle, NULL};
	hipModule_t module;

	bundle_make(MACH_GFX90A, "hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-");
	check_module(bundle, 3);
	check_module(&wrapper, 4);
	bundle_make(0x4c, "hipv4-amdgcn-amd-amdhsa--gfx942");
	RESULT(HIP(hipModuleLoadData)(&module, bundle), hipErrorNoBinaryForGpu);
}

/* ---- the registration calls of the compiler's code ---- */

static void stub_fill(void)
{
}

static int table;

static void test_registered(void)
{
	void **(*register_program)(const void *) =
		(void **(*)(const void *))(uintptr_t)sim_hip_symbol("__hipRegisterFatBinary");
	void (*unregister)(void **) =
		(void (*)(void **))(uintptr_t)sim_hip_symbol("__hipUnregisterFatBinary");
	void (*register_function)(void **, const void *, char *, const char *, unsigned, void *,
				  void *, dim3 *, dim3 *, int *) =
		(void (*)(void **, const void *, char *, const char *, unsigned, void *, void *,
			  dim3 *, dim3 *, int *))(uintptr_t)sim_hip_symbol("__hipRegisterFunction");
	void (*register_variable)(void **, void *, char *, char *, int, size_t, int, int) =
		(void (*)(void **, void *, char *, char *, int, size_t, int, int))(
			uintptr_t)sim_hip_symbol("__hipRegisterVar");
	struct code_object object = code_object(MACH_GFX90A);
	unsigned seed = 8;
	unsigned long long words = 16;
	void *memory, *address, *params[] = {&memory, &words, &seed};
	const dim3 one = {1, 1, 1};
	hipFunction_t function;
	void **program;
	char name[] = "table";
	size_t size;
	int number = 77;

	program = register_program(&object);
	register_function(program, (void *)stub_fill, NULL, "gpucr_fill", 0, NULL, NULL, NULL, NULL,
			  NULL);
	register_variable(program, &table, NULL, name, 0, 64, 0, 0);
	OK(HIP(hipMalloc)(&memory, 4096));
	OK(HIP(hipLaunchKernel)((void *)stub_fill, one, one, params, 0, NULL));
	CHECK(sim_hip_word(memory) == 8);
	OK(HIP(hipGetFuncBySymbol)(&function, (void *)stub_fill));
	check_fill(function, 9);
	RESULT(HIP(hipLaunchKernel)(&seed, one, one, params, 0, NULL),
	       hipErrorInvalidDeviceFunction);
	OK(HIP(hipGetSymbolAddress)(&address, &table));
	OK(HIP(hipGetSymbolSize)(&size, &table));
	CHECK(size == 64);
	OK(HIP(hipMemcpyToSymbol)(&table, &number, sizeof(number), 8, hipMemcpyHostToDevice));
	CHECK(sim_hip_word((char *)address + 8) == 77);
	number = 0;
	OK(HIP(hipMemcpyFromSymbol)(&number, &table, sizeof(number), 8, hipMemcpyDeviceToHost));
	CHECK(number == 77);
	RESULT(HIP(hipMemcpyToSymbol)(&table, &number, 8, 60, hipMemcpyHostToDevice),
	       hipErrorInvalidValue);
	RESULT(HIP(hipGetSymbolAddress)(&address, &seed), hipErrorInvalidSymbol);
	unregister(program);
	RESULT(HIP(hipLaunchKernel)((void *)stub_fill, one, one, params, 0, NULL),
	       hipErrorInvalidDeviceFunction);
	OK(HIP(hipFree)(memory));
}

/* ---- hiprtc ---- */

static void *rtc(const char *name)
{
	static void *library;

	if (!library)
		library = dlopen(getenv("GPUCR_SIM_HIPRTC_LIB"), RTLD_NOW);
	CHECK(library && dlsym(library, name));
	return dlsym(library, name);
}

static const char source[] = "typedef unsigned int word;\n"
			     "extern \"C\" __global__ void gpucr_fill(word *words) { }\n"
			     "extern \"C\" __global__\nvoid __launch_bounds__(64)\n"
			     "gpucr_spin (word *flag) { while (!*flag) ; }\n"
			     "__device__ void gpucr_add(word *words);\n";

static void test_hiprtc(void)
{
	int (*create)(void **, const char *, const char *, int, const char **, const char **) =
		(int (*)(void **, const char *, const char *, int, const char **, const char **))(
			uintptr_t)rtc("hiprtcCreateProgram");
	int (*compile)(void *, int, const char **) =
		(int (*)(void *, int, const char **))(uintptr_t)rtc("hiprtcCompileProgram");
	int (*size)(void *, size_t *) =
		(int (*)(void *, size_t *))(uintptr_t)rtc("hiprtcGetCodeSize");
	int (*log_size)(void *, size_t *) =
		(int (*)(void *, size_t *))(uintptr_t)rtc("hiprtcGetProgramLogSize");
	int (*log)(void *, char *) = (int (*)(void *, char *))(uintptr_t)rtc("hiprtcGetProgramLog");
	int (*code)(void *, char *) = (int (*)(void *, char *))(uintptr_t)rtc("hiprtcGetCode");
	int (*destroy)(void **) = (int (*)(void **))(uintptr_t)rtc("hiprtcDestroyProgram");
	const char *(*words)(int) = (const char *(*)(int))(uintptr_t)rtc("hiprtcGetErrorString");
	const char *options[] = {"--offload-arch=gfx90a"}, *wrong[] = {"gfx90a"};
	hipFunction_t function;
	hipModule_t module;
	char *bytes, text[256];
	size_t count;
	void *program;

	RESULT(create(&program, NULL, NULL, 0, NULL, NULL), 3);
	OK(create(&program, source, "demo", 0, NULL, NULL));
	RESULT(size(program, &count), 4); /* not compiled yet */
	RESULT(compile(program, 1, wrong), 5);
	OK(compile(program, 1, options));
	OK(size(program, &count));
	bytes = malloc(count);
	CHECK(bytes);
	OK(code(program, bytes));
	OK(destroy(&program));
	OK(HIP(hipModuleLoadData)(&module, bytes));
	free(bytes);
	OK(HIP(hipModuleGetFunction)(&function, module, "gpucr_fill"));
	check_fill(function, 10);
	OK(HIP(hipModuleGetFunction)(&function, module, "gpucr_spin"));
	RESULT(HIP(hipModuleGetFunction)(&function, module, "gpucr_add"), hipErrorNotFound);
	OK(HIP(hipModuleUnload)(module));

	OK(create(&program, "__global__ void gpucr_fill(int *x) { if (x) {", "bad", 0, NULL, NULL));
	RESULT(compile(program, 0, NULL), 6);
	OK(log_size(program, &count));
	CHECK(count > 1 && count < sizeof(text));
	OK(log(program, text));
	CHECK(strstr(text, "error:") && strlen(text) + 1 == count);
	OK(destroy(&program));
	CHECK(!strcmp(words(6), "HIPRTC_ERROR_COMPILATION"));
}

int main(void)
{
	sim_hip_begin("1", "64M");
	test_code_object();
	test_bundle();
	test_registered();
	test_hiprtc();
	return 0;
}
