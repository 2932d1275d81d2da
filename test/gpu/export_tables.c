/* SPDX-License-Identifier: MIT */
/*
 * A library preloaded into a program: prints on stderr each private table of the driver that is
 * requested, and the library that requests it (`table UUID LIBRARY`).
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_api.h"

static __typeof__(cuGetExportTable) *real_table;
static __typeof__(cuGetProcAddress) *real_find;
static __typeof__(cuGetProcAddress_v2) *real_find_v2;

static CUresult get_table(const void **table, const CUuuid *id)
{
	const unsigned char *bytes = (const unsigned char *)id;
	CUresult result = real_table(table, id);
	Dl_info info = {0};

	dladdr(__builtin_return_address(0), &info);
	fprintf(stderr, "table ");
	for (int i = 0; i < 16; i++)
		fprintf(stderr, "%02x", bytes[i]);
	fprintf(stderr, " %s%s\n", info.dli_fname ? info.dli_fname : "-",
		result ? " (refused)" : "");
	return result;
}

static void *replace(const char *name, int version, void *found);

static CUresult find(const char *symbol, void **function, int version, cuuint64_t flags)
{
	CUresult result = real_find(symbol, function, version, flags);

	if (!result && symbol && function)
		*function = replace(symbol, version, *function);
	return result;
}

static CUresult find_v2(const char *symbol, void **function, int version, cuuint64_t flags,
			CUdriverProcAddressQueryResult *status)
{
	CUresult result = real_find_v2(symbol, function, version, flags, status);

	if (!result && symbol && function)
		*function = replace(symbol, version, *function);
	return result;
}

/* @name is the base name: cuGetProcAddress of 12.0 and newer has one argument more. */
static void *replace(const char *name, int version, void *found)
{
	if (!found)
		return found;
	if (strcmp(name, "cuGetExportTable") == 0) {
		real_table = (__typeof__(real_table))found;
		return (void *)get_table;
	}
	if (strcmp(name, "cuGetProcAddress_v2") == 0 ||
	    (version >= 12000 && strcmp(name, "cuGetProcAddress") == 0)) {
		real_find_v2 = (__typeof__(real_find_v2))found;
		return (void *)find_v2;
	}
	if (strcmp(name, "cuGetProcAddress") == 0) {
		real_find = (__typeof__(real_find))found;
		return (void *)find;
	}
	return found;
}

void *dlsym(void *handle, const char *name)
{
	static void *(*real)(void *handle, const char *name);
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};

	for (int i = 0; !real && i < 3; i++)
		real = (__typeof__(real))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	return real ? replace(name, 0, real(handle, name)) : NULL;
}
