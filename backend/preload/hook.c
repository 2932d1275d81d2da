/* SPDX-License-Identifier: MIT */
/*
 * Being there when the program calls cuInit, however it gets hold of it: linked with libcuda, by
 * dlsym, or by cuGetProcAddress. Runs inside any program at any time, before main() too: no
 * constructor, no memory allocated here, no lock. In doubt the program gets the driver's own
 * function.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "backend/cuda/cuda_api.h"
#include "backend/preload/preload.h"
#include "lib/cleanup.h"

#define EXPORT __attribute__((visibility("default")))

/* The first API version whose "cuGetProcAddress" is cuGetProcAddress_v2 (cuda.h, cudaTypedefs.h).
 */
#define API_VERSION_PROC_ADDRESS_V2 12000

struct hook {
	const char *name;
	void *wrapper;
	_Atomic(void *) real; /* NULL until it was seen */
};

static struct hook init_hook = {.name = "cuInit", .wrapper = (void *)cuInit};
static struct hook proc_address_hook = {.name = "cuGetProcAddress",
					.wrapper = (void *)cuGetProcAddress};
static struct hook proc_address_v2_hook = {.name = "cuGetProcAddress_v2",
					   .wrapper = (void *)cuGetProcAddress_v2};

typedef void *dlsym_function(void *handle, const char *name);

#if GCR_PRELOAD_DLSYM

static dlsym_function *real_dlsym(void)
{
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
	static _Atomic(void *) known;
	void *real = atomic_load(&known);

	for (size_t i = 0; !real && i < GCR_ARRAY_SIZE(versions); i++)
		real = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	atomic_store(&known, real);
	return (dlsym_function *)real;
}

#else

static dlsym_function *real_dlsym(void)
{
	return dlsym;
}

#endif

static struct hook *find_hook(const char *name)
{
	static struct hook *const hooks[] = {&init_hook, &proc_address_hook, &proc_address_v2_hook};

	for (size_t i = 0; i < GCR_ARRAY_SIZE(hooks); i++)
		if (strcmp(hooks[i]->name, name) == 0)
			return hooks[i];
	return NULL;
}

static bool same_library(void *one, void *other)
{
	Dl_info info, other_info;

	return dladdr(one, &info) && dladdr(other, &other_info) &&
	       info.dli_fbase == other_info.dli_fbase;
}

/*
 * What the program gets instead of the driver's @real: our wrapper. A second driver library in
 * one program (a stub, say) is left alone, since a wrapper has only one function to call.
 */
static void *wrap(struct hook *hook, void *real)
{
	void *known = NULL;

	if (!real || real == hook->wrapper)
		return real;
	if (atomic_compare_exchange_strong(&hook->real, &known, real) || known == real ||
	    same_library(known, real))
		return hook->wrapper;
	return real;
}

/* The driver's function, for a caller that came through the symbol table. NULL: not loaded. */
static void *find_real(struct hook *hook)
{
	void *real = atomic_load(&hook->real);
	dlsym_function *look_up = real_dlsym();
	void *library;

	if (real || !look_up)
		return real;
	real = look_up(RTLD_NEXT, hook->name);
	if (!real) {
		/* Loaded for somebody's private use (RTLD_LOCAL): not in our scope. */
		library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
		if (library)
			real = look_up(library, hook->name);
		if (library)
			dlclose(library);
	}
	if (real)
		wrap(hook, real);
	return real;
}

/* As find_real(), for a wrapper: what dlerror() says must not be ours. */
static void *find_real_quietly(struct hook *hook)
{
	void *real = atomic_load(&hook->real);

	if (real)
		return real;
	real = find_real(hook);
	dlerror();
	return real;
}

/* ---- dlsym ---- */

#if GCR_PRELOAD_DLSYM

/* No driver is loaded: without us the program would find nothing. dlerror() says so. */
static void *answer_absent(void *handle, const char *name)
{
	void *nothing = real_dlsym()(RTLD_NEXT, name);

	/* The call must not become a jump: "next" is counted from this library. */
	__asm__ volatile("" : "+r"(nothing));
	return nothing;
}

/* A look-up in one library, whose caller does not matter. */
static void *answer_wrapped(void *handle, const char *name)
{
	struct hook *hook = find_hook(name);
	void *real = real_dlsym()(handle, name);

	/* dlopen(NULL) finds our own function even where there is no driver. */
	if (real == hook->wrapper && !find_real(hook))
		return answer_absent(handle, name);
	return wrap(hook, real);
}

static void *answer_nothing(void *handle, const char *name)
{
	return NULL;
}

void *gcr_preload_dlsym_target(void *handle, const char *name)
{
	dlsym_function *real = real_dlsym();
	struct hook *hook;

	if (!real)
		return (void *)answer_nothing;
	if (!name || name[0] != 'c' || name[1] != 'u')
		return (void *)real;
	hook = find_hook(name);
	if (!hook)
		return (void *)real;
	if (handle != RTLD_DEFAULT && handle != RTLD_NEXT)
		return (void *)answer_wrapped;
	/* The dynamic linker finds our function by itself, as it is before the driver's. */
	return find_real(hook) ? (void *)real : (void *)answer_absent;
}

#endif

/* ---- the driver's functions ---- */

EXPORT CUresult cuInit(unsigned int flags)
{
	__typeof__(cuInit) *real = (__typeof__(cuInit) *)find_real_quietly(&init_hook);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	result = real(flags);
	if (result == CUDA_SUCCESS)
		gcr_preload_register();
	return result;
}

/* What cuGetProcAddress found, or ours in its place. */
static void substitute(const char *symbol, void **function, int version)
{
	if (!symbol || !function || !*function)
		return;
	if (strcmp(symbol, init_hook.name) == 0)
		*function = wrap(&init_hook, *function);
	else if (strcmp(symbol, proc_address_hook.name) == 0)
		*function = wrap(version >= API_VERSION_PROC_ADDRESS_V2 ? &proc_address_v2_hook
									: &proc_address_hook,
				 *function);
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
	__typeof__(cuGetProcAddress) *real =
		(__typeof__(cuGetProcAddress) *)find_real_quietly(&proc_address_hook);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	result = real(symbol, function, version, flags);
	if (result == CUDA_SUCCESS)
		substitute(symbol, function, version);
	return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
				    cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	__typeof__(cuGetProcAddress_v2) *real =
		(__typeof__(cuGetProcAddress_v2) *)find_real_quietly(&proc_address_v2_hook);
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	result = real(symbol, function, version, flags, status);
	if (result == CUDA_SUCCESS)
		substitute(symbol, function, version);
	return result;
}
