/* SPDX-License-Identifier: MIT */
/*
 * aborted: a library preloaded into the daemon. After an unmount the kernel now and then returns
 * ECONNABORTED, rather than ENODEV, to a thread that was about to read a request; this library
 * makes every such read return ECONNABORTED.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static ssize_t told(ssize_t result)
{
	if (result < 0 && errno == ENODEV)
		errno = ECONNABORTED;
	return result;
}

ssize_t read(int fd, void *bytes, size_t size)
{
	ssize_t (*next)(int, void *, size_t) = (__typeof__(next))dlsym(RTLD_NEXT, "read");

	return told(next(fd, bytes, size));
}

ssize_t splice(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t size,
	       unsigned int flags)
{
	ssize_t (*next)(int, off64_t *, int, off64_t *, size_t, unsigned int) =
		(__typeof__(next))dlsym(RTLD_NEXT, "splice");

	return told(next(from, from_offset, to, to_offset, size, flags));
}
