/* SPDX-License-Identifier: MIT */
/*
 * older: a library preloaded into the daemon. The library lets the kernel be one before 6.11, which
 * does not tell the user namespace of a pidfd's process.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/ioctl.h>

#ifndef PIDFD_GET_USER_NAMESPACE
#define PIDFD_GET_USER_NAMESPACE _IO(0xFF, 9)
#endif

int ioctl(int fd, unsigned long request, ...)
{
	int (*next)(int, unsigned long, ...) = (__typeof__(next))dlsym(RTLD_NEXT, "ioctl");
	va_list arguments;
	void *argument;

	va_start(arguments, request);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	if (request != PIDFD_GET_USER_NAMESPACE)
		return next(fd, request, argument);
	errno = ENOTTY;
	return -1;
}
