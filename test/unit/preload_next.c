/* SPDX-License-Identifier: MIT */
/*
 * Preloaded behind libgpucr-preload.so by test_preload: interposes a libc function as such
 * libraries do. If our dlsym were a caller of the real one instead of a jump to it, "next" would
 * be counted from us, and this function would find itself.
 */
#include <dlfcn.h>
#include <unistd.h>

pid_t getppid(void)
{
	__typeof__(getppid) *next = (__typeof__(getppid) *)dlsym(RTLD_NEXT, "getppid");

	return next == getppid ? -1 : next() + 1;
}
