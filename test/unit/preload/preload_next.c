/* SPDX-License-Identifier: MIT */
/*
 * Preloaded behind libgpucr-preload.so by test_preload: interposes a libc function as other
 * libraries do. The preload library's dlsym must jump to the real dlsym, not call it: otherwise
 * RTLD_NEXT would be relative to the preload library, and this function would find itself.
 */
#include <dlfcn.h>
#include <unistd.h>

pid_t getppid(void)
{
	__typeof__(getppid) *next = (__typeof__(getppid) *)dlsym(RTLD_NEXT, "getppid");

	return next == getppid ? -1 : next() + 1;
}
